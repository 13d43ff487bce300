"""A run in environments outside of JAX, as a stream of chunks: `Session` of the compiled loop, with the same surface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ube.deep.config import AgentConfig
from ube.deep.frames import FrameReplay
from ube.deep.hosted import Fields, Heard, HostedLoop, compiled_hosted
from ube.deep.learner import LearnerState
from ube.deep.loop import RECOUNTED
from ube.deep.session import Chunk, Episodes, Evaluation, check_finite, check_weights, in_rewards, refreshed, summarised
from ube.deep.settings import filled, split_knobs
from ube.envs.contract import HostedEnvironment
from ube.errors import RunError, UsageError

CHUNK = 1_000
"""Decisions between two looks at a run."""
REFRESH = 10_000
"""Decisions between two refreshes of Σ."""
EVALUATION_ENVS = 8
"""Games played side by side in evaluation."""
STREAMS = ("start", "step", "end", "batch")


class Stopped(Exception):
    """An evaluation, or games that are played again, were asked to stop: nothing of it counts."""


class HostedSession:
    """One agent in `n_envs` environments with one seed.

    Every `restart_every` decisions, around each evaluation, all games are cut off and begin anew from a seed; a run is
    continued by playing the actions since then again.
    """

    def __init__(
        self, env: HostedEnvironment, config: AgentConfig, seed: int, *, n_envs: int = 1, restart_every: int = 250_000
    ):
        self.env, self.config, self.seed, self.n_envs = env, filled(config, env), seed, n_envs
        period = self.config.update_period
        if n_envs < 1 or max(n_envs, period) % min(n_envs, period):
            raise UsageError(f"n_envs={n_envs}: a divisor or a multiple of update_period={period}")
        self.round = max(period, n_envs)
        """Decisions of a round."""
        if restart_every % self.round:
            raise UsageError(
                f"evaluate_every={restart_every} decisions: whole rounds are {self.round}; take "
                f"{-(-restart_every // self.round) * self.round}"
            )
        self.restart_every = restart_every
        shape, self.knobs = split_knobs(self.config)
        self.loop: HostedLoop = compiled_hosted(env, shape, n_envs)
        self.keys = dict(zip(STREAMS, jax.random.split(jax.random.key(seed), len(STREAMS)), strict=True))
        self.trained: Fields
        self.lived: Fields
        self.trained, self.lived = self.loop.start(self.keys["start"], self.knobs)
        self.last_good: dict[str, Any] | None = None
        self.instance: Any = ()
        self.observations = self._no_frames(n_envs)
        self.heard = Heard(*(np.zeros(n_envs, dtype) for dtype in (np.float32, np.float32, bool, bool)))
        self.idle = np.zeros((2, n_envs), bool)
        """Of environments that reset late: which only began anew in the last step, and which will in the next."""
        self.episode_return, self.episode_length = np.zeros(n_envs), np.zeros(n_envs, np.int64)
        self.actions = np.zeros((restart_every // n_envs, n_envs), np.uint16)
        """Since the games began anew."""
        self.refresh_every = -(-REFRESH // self.round) * self.round
        counts: Any = self.loop.learner.counts
        width = counts.size if self.loop.learner.keeps_codes else 0
        self.codes = np.zeros((self.refresh_every * (width > 0), width), np.float32)
        self.coded_actions = np.zeros(len(self.codes), np.uint16)
        """Since the last refresh of Σ."""
        self.step = 0
        self.games: Any = None
        self._noted: list[jax.Array] = []
        self._ended: list[tuple[int, float, int]] = []

    @property
    def learner(self) -> LearnerState:
        return self.loop.of_first(self.trained, self.lived)

    @cached_property
    def replay(self) -> FrameReplay:
        env = self.env
        return FrameReplay(self.config.replay_size, env.frame_shape, env.stack, self.n_envs, env.observation_dtype)

    def _no_frames(self, n_envs: int) -> np.ndarray:
        return np.zeros((n_envs, self.env.stack, *self.env.frame_shape), self.env.observation_dtype)

    # ---------------------------------------------------------------- training

    def run(self, steps: int, chunk: int = CHUNK) -> Iterator[Chunk]:
        """Up to `steps` decisions in all, or a few more where whole rounds ask for it."""
        if self.games is None:
            self.games = self.env.open(self.n_envs)
        chunk = -(-chunk // self.round) * self.round
        with ThreadPoolExecutor(1) as worker:
            while self.step < steps:
                began, first = time.perf_counter(), self.step
                self.last_good = jax.device_get(self.kept())
                if self.step % self.restart_every == 0:
                    self._restart()
                end = min(self.step // chunk * chunk + chunk, -(-steps // self.round) * self.round)
                for every in (self.restart_every, self.refresh_every):
                    end = min(end, self.step // every * every + every)
                learned = self._rounds(end, worker)
                if self.step % self.refresh_every == 0:
                    self._refresh()
                metrics = self._metrics(learned, first)
                rate = (self.step - first) / (time.perf_counter() - began)
                metrics["steps_per_second"] = rate
                if self.env.frame_skip > 1:
                    metrics["frames_per_second"] = rate * self.env.frame_skip
                episodes = Episodes(*(np.array([end[i] for end in self._ended]) for i in range(3)))
                self._ended = []
                if len(episodes.step):
                    metrics["return"] = float(episodes.episode_return.mean())
                yield Chunk(self.step, episodes, metrics)

    def _rounds(self, end: int, worker: ThreadPoolExecutor) -> list[Any]:
        """Plays and learns until `end`. Nothing is under way before or after."""
        learned: list[Any] = []
        ahead = self._draw() if self._learns() else []
        while self.step < end:
            gradient = worker.submit(self._improved, self.trained, ahead)
            for _ in range(self.round // self.n_envs):
                self._play()
            later = self._draw(len(ahead)) if self._learns() and self.step < end else []
            self.trained, metrics = gradient.result()
            learned += metrics
            ahead = later
        return learned

    def _learns(self) -> bool:
        """Each game has a decision whose next frame is known."""
        return self.step >= max(self.config.warmup, 2 * self.n_envs)

    def _draw(self, under_way: int = 0) -> list[tuple[Any, Any]]:
        """Batches of the next round, with their targets."""
        done = int(self.trained["updates"]) + under_way
        batches = []
        for number in range(done, done + self.round // self.config.update_period):
            rng = np.random.default_rng((self.seed, number))
            sample = self.replay.sample(self.config.batch_size, rng, self.config.q_steps, self.config.discount)
            batches.append(self.loop.targets(self.trained, self.lived, sample, self.keys["batch"], number, self.knobs))
        return batches

    def _improved(self, trained: Fields, batches: list[tuple[Any, Any]]) -> tuple[Fields, list[Any]]:
        metrics, done = [], int(trained["updates"])
        for number, (batch, targets) in enumerate(batches, done + 1):
            new, heard = self.loop.improve(trained, batch, targets, self.knobs)
            trained = self.loop.copied(trained | new, number)
            metrics.append(heard)
        return jax.block_until_ready(trained), metrics

    def _play(self) -> None:
        """One decision in each environment."""
        self.lived, decision = self.loop.step(
            self.trained, self.lived, self.heard, self.observations, self.keys["step"], self.step, self.knobs,
            tuple(self.idle) if self.env.resets_late else None,
        )  # fmt: skip
        self._noted.append(decision.noted)
        action = np.asarray(decision.action)
        after = self._stepped(self.games, action, f"at step {self.step + 1}")
        clip = self.config.reward_clip
        learned = np.clip(after.reward / self.config.reward_unit, -clip, clip)
        if self.config.bonus_scale:
            learned = learned + np.asarray(decision.bonus)
        ended, over = after.terminated | after.truncated, after.terminated | after.life_lost
        newest = self.observations[:, -1]
        began = self.idle[1]
        for env in np.flatnonzero(~began).tolist():
            self.replay.add(env, newest[env], action[env], learned[env], not over[env])
            if after.truncated[env]:
                self.replay.cut(env, after.last_frame[env])
            elif after.terminated[env]:
                self.replay.begin(env)
        self.actions[self.step % self.restart_every // self.n_envs] = action
        if len(self.codes):
            late = slice(self.step % self.refresh_every, self.step % self.refresh_every + self.n_envs)
            self.codes[late], self.coded_actions[late] = np.where(began[:, None], 0.0, decision.code), action
        self.step += self.n_envs
        last = np.concatenate([self.observations[:, 1:], after.last_frame[:, None]], 1)
        self.heard = Heard(
            after.reward.astype(np.float32), self._u_at_end(last, after.truncated), ended | over, after.truncated
        )
        self.observations = last
        self.episode_return += after.reward
        self.episode_length += 1
        for env in np.flatnonzero(ended).tolist():
            self._ended.append((self.step, self.episode_return[env], self.episode_length[env]))
        for env in np.flatnonzero(ended | began).tolist():
            self._begin(env, after.frame[env])
        self.idle = np.stack([began, ended & self.env.resets_late])

    def _stepped(self, games: Any, action: np.ndarray, when: str) -> Any:
        after = games.step(action)
        for what, value in (("reward", after.reward), ("observation", after.last_frame), ("observation", after.frame)):
            self._check(what, value, when)
        return after

    def _check(self, what: str, value: np.ndarray, when: str) -> None:
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise RunError(
                f"{self.env.name} gave the {what} {_unusual(value)} {when}: mend the environment; the last good state is kept"
            )

    def _begin(self, env: int, frame: np.ndarray) -> None:
        self._check("observation", frame, f"at step {self.step + 1}")
        self.observations[env] = 0
        self.observations[env, -1] = frame
        self.episode_return[env], self.episode_length[env] = 0.0, 0

    def _u_at_end(self, last: np.ndarray, cut: np.ndarray) -> np.ndarray:
        if not self.loop.learner.u_from_stream or not cut.any():
            return np.zeros(self.n_envs, np.float32)
        u = self.loop.u_at_end(self.trained, self.lived, last, self.keys["end"], self.step, self.knobs)
        return np.where(cut, u, 0).astype(np.float32)

    def _restart(self) -> None:
        """Games in progress are cut off, new ones begin from a seed of their own."""
        running = self.episode_length > 0
        for env in np.flatnonzero(running).tolist():
            self.replay.cut(env, self.observations[env, -1])
        cut = running & ~self.heard.ended
        self.heard = Heard(
            self.heard.reward, self.heard.u_at_end + self._u_at_end(self.observations, cut), self.heard.ended | running,
            self.heard.cut | cut,
        )  # fmt: skip
        for env, frame in enumerate(self.games.reset(self._game_seed())):
            self._begin(env, frame)
        self.idle[1] = False

    def _game_seed(self) -> int:
        """Of the games that are being played."""
        index = self.step // self.restart_every
        return int(np.random.SeedSequence((self.seed, index)).generate_state(1)[0])

    def _refresh(self) -> None:
        """Σ free of the rounding of late, or of the features of the past."""
        learner, codes, actions = self.loop.learner, self.codes, self.coded_actions
        if not learner.refreshes:
            return
        if not learner.keeps_codes:
            sample = self.replay.sample(RECOUNTED, np.random.default_rng((self.seed, self.step, 1)))
            codes, actions = self.loop.codes(self.trained, self.lived, sample, self.knobs), sample.action
        self.lived["counts"] = refreshed(learner, self.lived["counts"], codes, actions, self.config)

    def _metrics(self, learned: list[Any], good: int) -> dict[str, float]:
        noted, learned = jax.device_get((self._noted, learned))
        self._noted = []
        decisions = np.concatenate(noted)
        metrics = summarised(decisions[:, :-1]) | {"u_loss": float(decisions[:, -1].mean())}
        if learned:
            metrics |= {name: float(np.mean([one[name] for one in learned])) for name in learned[0]}
        metrics = in_rewards(metrics, self.config)
        check_finite(metrics, self.config, self.step, good)
        check_weights(self.learner, self.config, self.step, good)
        learner = self.loop.learner
        metrics["epsilon"] = float(learner.epsilon(self.step, self.knobs))
        metrics["beta_unit"] = float(learner.unit(self.learner))
        return metrics

    # ---------------------------------------------------------------- evaluation

    def open_games(self, n_envs: int) -> Any:
        """To play beside training."""
        if self.env.one_object and self.games is not None and self.step % self.restart_every:
            raise UsageError(
                f"{self.env.name} is one object, and in the middle of training: give a class or a function that makes more"
            )
        return self.env.open(n_envs)

    def play(
        self, learner: LearnerState, episodes: int | None = None, *, own: bool, seed: int, steps: int | None = None,
        epsilon: float | None = None, stop: Callable[[], int] = lambda: 0,
    ) -> Evaluation:  # fmt: skip
        """Without learning, Σ frozen: so many episodes, or as many as begin within so many decisions. epsilon: of the greedy
        policy, instead of `epsilon_evaluation`. Raises Stopped where `stop` says so.

        Several games side by side, each played to its end, so that long ones count as often as short ones. One that goes on
        for more than `env.longest` decisions counts as it stands. No more are side by side than the budget has room for if
        all are that long: at most twice `steps` and one longest game are played.
        """
        enough = -(-steps // self.env.longest) if steps else EVALUATION_ENVS
        n_envs = self.env.n_envs or min(EVALUATION_ENVS, episodes or enough)
        with closing(self.open_games(n_envs)) as games:
            return self._played(games, n_envs, learner, episodes, own, seed, steps, epsilon, stop)

    def _played(
        self, games: Any, n_envs: int, learner: LearnerState, episodes: int | None, own: bool, seed: int, steps: int | None,
        epsilon: float | None, stop: Callable[[], int],
    ) -> Evaluation:  # fmt: skip
        epsilon = self.config.epsilon_evaluation if epsilon is None else epsilon
        keys = jax.random.split(jax.random.key(seed), 2)
        member, zeta = (np.array(part) for part in self.loop.draw_noise(jax.random.split(keys[0], n_envs)))
        observations = self._no_frames(n_envs)
        observations[:, -1] = games.reset(seed)
        played = np.zeros(n_envs), np.zeros(n_envs, np.int64)
        number = np.arange(n_envs)  # of the game in each; -1 where no more are needed
        if episodes is not None:
            number[episodes:] = -1
        idle = np.zeros(n_envs, bool)
        begun, decisions, results = int((number >= 0).sum()), 0, {}
        while (number >= 0).any():
            if stop():
                raise Stopped
            choice = self.loop.think_each(
                learner, member, zeta, observations, keys[1], decisions, self.knobs, own, epsilon
            )
            after = self._stepped(games, np.asarray(choice.action), f"in an evaluation after step {self.step}")
            decisions += n_envs
            played[0][:] += np.where(idle, 0.0, after.reward)
            played[1][:] += ~idle
            observations = np.concatenate([observations[:, 1:], after.last_frame[:, None]], 1)
            too_long = played[1] >= self.env.longest  # and counts as it stands
            ended = after.terminated | after.truncated
            for env in np.flatnonzero(idle).tolist():
                observations[env] = 0
                observations[env, -1] = after.frame[env]
            idle = ended & self.env.resets_late
            for env in np.flatnonzero(ended | too_long).tolist():
                observations[env] = 0
                observations[env, -1] = after.frame[env] if ended[env] else games.restart(env)
                if number[env] >= 0:
                    results[int(number[env])] = (played[0][env], played[1][env])
                    more = begun < episodes if episodes is not None else decisions < (steps or 0)
                    number[env], begun = (begun, begun + 1) if more else (-1, begun)
                played[0][env], played[1][env] = 0.0, 0
                noise = self.loop.draw_noise(jax.random.split(jax.random.fold_in(keys[0], begun + decisions), 1))
                member[env], zeta[env] = noise[0][0], noise[1][0]
        ordered = [results[index] for index in sorted(results)]
        return Evaluation(*(np.array(column) for column in zip(*ordered, strict=True)))

    # ---------------------------------------------------------------- to go on later

    def kept(self) -> dict[str, Any]:
        """What it takes to play."""
        return {"learner": self.learner, "instance": ()}

    like_kept = kept

    def snapshot(self) -> dict[str, Any]:
        """All there is to know between two chunks, but for the frames of the replay."""
        replay = {name: array for name, array in self.replay.arrays().items() if name != "frames"}
        return {
            "trained": self.trained, "lived": self.lived, "replay": replay, "heard": self.heard,
            "observations": self.observations, "episode_return": self.episode_return,
            "episode_length": self.episode_length, "actions": self.actions, "codes": self.codes,
            "coded_actions": self.coded_actions, "step": np.int64(self.step),
            **({"idle": self.idle} if self.env.resets_late else {}),
        }  # fmt: skip

    like_snapshot = snapshot

    def restore(self, saved: dict[str, Any], stop: Callable[[], int] = lambda: 0) -> None:
        """Goes on from a snapshot; the frames of the replay are there already. The games are played up to there again; raises
        Stopped where `stop` says so."""
        self.trained, self.lived = jax.tree.map(jax.numpy.asarray, (saved["trained"], saved["lived"]))
        for name, array in saved["replay"].items():
            self.replay.arrays()[name][...] = array
        self.heard = saved["heard"]
        for name in ("observations", "actions", "codes", "coded_actions"):
            setattr(self, name, saved[name])
        self.episode_return, self.episode_length = saved["episode_return"], saved["episode_length"]
        self.idle = saved.get("idle", self.idle)
        self.step = int(saved["step"])
        if self.step % self.restart_every:
            self.games = self.env.open(self.n_envs)
            frame = self.games.reset(self._game_seed())
            for action in self.actions[: self.step % self.restart_every // self.n_envs]:
                if stop():
                    raise Stopped
                frame = self.games.step(action).frame
            if not np.array_equal(frame, self.observations[:, -1]):
                raise RunError(
                    f"{self.env.name} does not repeat itself from its seed, so the run cannot go on exactly: seed its "
                    "randomness in reset(seed=…), take the version it was begun with, or start a new run (--out)"
                )

    def close(self) -> None:
        if self.games is not None:
            self.games.close()
            self.games = None


def _unusual(values: np.ndarray) -> float:
    return float(values[~np.isfinite(values)].flat[0])
