"""Games played without learning, decision by decision, with what the agent thought of each: in JAX or outside of it."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import jax
import numpy as np

from ube.deep.hosted_session import HostedSession
from ube.deep.learner import LearnerState
from ube.deep.session import Session, in_rewards
from ube.errors import RunError

CHUNK = 200
"""Decisions of a compiled game between two looks."""
LONGEST = 200_000
"""Decisions of an episode, before it is taken to have no end."""


class Moment(NamedTuple):
    """A decision, and what came of it."""

    observation: np.ndarray
    action: int
    reward: float  # as the environment pays it
    q: np.ndarray  # (A,)
    u: np.ndarray  # (A,) zeros without a u-network
    nu: np.ndarray  # (A,) zeros without counts
    closes: bool  # the return that is learned ends here: the task did, or a life was lost
    ended: bool  # the episode did
    follows: float  # max Q where a time limit cut the episode off; 0 anywhere else


class Episode(NamedTuple):
    """T decisions, the last of which ended it, unless there were too many to wait for that."""

    observation: np.ndarray  # (T, …), or (T, 0) where they were not asked for
    action: np.ndarray  # (T,)
    reward: np.ndarray  # (T,)
    q: np.ndarray  # (T, A)
    u: np.ndarray  # (T, A)
    nu: np.ndarray  # (T, A)
    closes: np.ndarray  # (T,)
    follows: float

    def taken(self, values: np.ndarray) -> np.ndarray:
        """(T, A) -> (T,) of the actions taken."""
        return np.take_along_axis(values, self.action[:, None], 1)[:, 0]


def episodes(
    session: Session | HostedSession, learner: LearnerState, number: int, *, own: bool, seed: int,
    longest: int | None = None, observations: bool = False,
) -> Iterator[Episode]:  # fmt: skip
    """So many, one after the other; each ends after `longest` decisions if it goes on for longer, and is then incomplete."""
    with closing(moments(session, learner, own=own, seed=seed)) as played:
        for _ in range(number):
            yield _episode(session, played, longest, observations)


def _episode(session: Any, played: Iterator[Moment], longest: int | None, observations: bool) -> Episode:
    columns: dict[str, list[Any]] = {name: [] for name in Episode._fields if name != "follows"}
    for number, moment in enumerate(played, 1):
        if not observations:
            moment = moment._replace(observation=np.zeros(0))
        for name, column in columns.items():
            column.append(getattr(moment, name))
        if moment.ended or number == longest:
            break
        if number == LONGEST:
            raise RunError(f"{session.env.name}: an episode did not end in {LONGEST:,} steps: give it a time limit")
    arrays: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
    return Episode(**arrays, follows=moment.follows)


def moments(
    session: Session | HostedSession, learner: LearnerState, *, own: bool, seed: int
) -> Generator[Moment, None, None]:
    """Without end. Compiled, they are the games of `Session.play` with the same seed."""
    played = _hosted if isinstance(session, HostedSession) else _compiled
    for moment in played(session, learner, own, seed):  # type: ignore[arg-type]
        values = in_rewards({"q": moment.q, "u": moment.u, "nu": moment.nu}, session.config)
        yield moment._replace(**values, follows=moment.follows * session.config.reward_unit)


def _compiled(session: Session, learner: LearnerState, own: bool, seed: int) -> Generator[Moment, None, None]:
    loop, epsilon = session.loop, session.config.epsilon_evaluation
    game = loop.begin(jax.random.key(seed), session.instance)
    while True:
        game, seen = loop.watch(game, learner, session.instance, session.knobs, epsilon, CHUNK, own)
        seen = jax.device_get(seen)
        for t in range(CHUNK):
            one = jax.tree.map(lambda column: column[t], seen)  # noqa: B023 - it is read at once
            follows = 0.0
            if one.truncated and not one.terminated:
                state = learner._replace(member=one.member, zeta=one.zeta)
                as_played = () if own else (epsilon,)
                after = loop.think(state, one.reached, jax.random.key(0), session.knobs, *as_played)
                follows = float(after.q.max())
            yield Moment(
                one.observation, int(one.action), float(one.reward), one.q, one.u, one.nu, bool(one.terminated),
                bool(one.terminated | one.truncated), follows,
            )  # fmt: skip


def _hosted(session: HostedSession, learner: LearnerState, own: bool, seed: int) -> Generator[Moment, None, None]:
    """Of several side by side, the first."""
    env, loop, key = session.env, session.loop, jax.random.key(seed)
    n_envs = env.n_envs or 1

    def think(observations: np.ndarray, count: int) -> Any:
        epsilon = session.config.epsilon_evaluation
        return jax.device_get(loop.think_each(learner, *noise, observations, key, count, session.knobs, own, epsilon))

    def young(frame: np.ndarray) -> np.ndarray:
        observations = np.zeros((n_envs, env.stack, *env.frame_shape), env.observation_dtype)
        observations[:, -1] = frame
        return observations

    noise = loop.draw_noise(jax.random.split(key, n_envs))
    with closing(session.open_games(n_envs)) as games:
        now, began, idle = young(games.reset(seed)), 0, False
        for t in itertools.count():
            choices = think(now, t)
            choice = jax.tree.map(lambda leaf: leaf[0], choices)
            after = games.step(choices.action)
            if idle:  # it only began anew
                now, began, idle = young(after.frame), t + 1, False
                continue
            terminated, truncated, lost = (
                bool(flag[0]) for flag in (after.terminated, after.truncated, after.life_lost)
            )
            left = not terminated and not truncated and t + 1 - began >= env.longest
            seen = np.moveaxis(now[0], 0, -2).reshape(env.observation_shape)
            now = np.concatenate([now[:, 1:], after.last_frame[:, None]], 1)
            yield Moment(
                seen, int(choice.action), float(after.reward[0]), choice.q, choice.u, choice.nu, terminated or lost,
                terminated or truncated or left,
                float(think(now, t).q[0].max()) if left or (truncated and not terminated) else 0.0,
            )  # fmt: skip
            if terminated or truncated or left:
                now, began = young(games.restart(0) if left else after.frame), t + 1
                noise = loop.draw_noise(jax.random.split(jax.random.fold_in(key, t + 1), n_envs))
                idle = env.resets_late
