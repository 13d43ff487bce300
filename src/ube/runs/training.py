"""`ube.train`, `ube.load` and what they give back."""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ube.deep.config import AgentConfig, agent_config
from ube.deep.hosted_session import CHUNK as HOSTED_CHUNK
from ube.deep.hosted_session import HostedSession
from ube.deep.learner import LearnerState
from ube.deep.protocols import with_protocol
from ube.deep.session import CHUNK, Evaluation, Session
from ube.envs import Environment, HostedEnvironment, make
from ube.envs.atari import PREFIX as ATARI
from ube.errors import RunError, UsageError
from ube.files import to_json, versions
from ube.machine import check_room
from ube.runs.checkpoints import Checkpoints
from ube.runs.directory import Columns, RunDirectory
from ube.runs.tensorboard import tensorboard

Progress = Callable[[int, int, dict[str, float]], None]
"""progress(step, steps, metrics), after each chunk"""
POLICIES = ("greedy", "own")
EVALUATED = {"greedy": POLICIES[:1], "own": POLICIES[1:], "both": POLICIES, "none": ()}
MAY_CHANGE = ("command", "versions", "schedule.checkpoint_minutes", "schedule.tensorboard")
"""Fields of config.json, when a run goes on."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What happens beside learning. All but `checkpoint_minutes` is for environments outside of JAX."""

    evaluate_every: int = 250_000
    """Decisions between evaluations (a million frames of Atari), around which all games begin anew."""
    evaluation_steps: int = 125_000
    """Decisions of an evaluation: games that begin within them are played to their end."""
    evaluation_policy: str = "both"
    """greedy but for ε = epsilon_evaluation, by the agent's own exploring policy, both in turn, or none."""
    n_envs: int = 1
    """Games side by side in training."""
    checkpoint_minutes: float = 10.0
    """Between checkpoints; how often they are made changes nothing in the run."""
    tensorboard: bool = False
    """Write metrics for TensorBoard as well."""

    def __post_init__(self) -> None:
        if self.evaluation_policy not in EVALUATED:
            raise UsageError(f"evaluation_policy={self.evaluation_policy!r}: choose one of {', '.join(EVALUATED)}")
        for name in ("evaluate_every", "evaluation_steps", "n_envs", "checkpoint_minutes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)}: it must be positive")


def train(
    env: str,
    agent: str | AgentConfig = "ube-deep",
    steps: int | None = None,
    seed: int = 0,
    *,
    frames: int | None = None,
    protocol: str = "mnih2015",
    env_args: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    out: str | Path | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
    schedule: Schedule = Schedule(),  # noqa: B008 - it is frozen
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> Run:
    """Trains a preset (or a config of your own) and keeps all of it in a run directory.

    env: an id from `ube envs`, with `env_args` such as {"size": 20}. overrides: fields of the agent to replace, such as
    {"beta": 0.1}. steps: decisions, 50,000 if not given; Atari games ask for `frames` instead, four for each decision
    (the paper: 200,000,000). protocol: of Atari games, a name in PROTOCOLS; `env_args` and `overrides` come before it.
    out: the directory, by default runs/ENV-AGENT-seedN; it must be new, unless `resume`, which goes on from its last
    checkpoint as if it had never stopped. chunk: steps between two rows of metrics, at most 10,000; Σ is refreshed then as
    well. The same seed gives the same run to the bit on a CPU with as many threads. Ctrl-C stops after the chunk that is
    under way, with a checkpoint.
    """
    enable_compilation_cache()
    if seed < 0 or seed >= 2**32:
        raise UsageError(f"seed={seed}: within 0..{2**32 - 1}")
    config = agent_config(agent, overrides)
    if chunk is not None and chunk < 1:
        raise UsageError(f"chunk={chunk}: at least 1")
    if env.startswith(ATARI):
        env_args, config = with_protocol(protocol, env_args or {}, config, overrides or {})
    elif protocol != "mnih2015":
        raise UsageError(f"protocol {protocol!r}: only games of {ATARI}… have one")
    made = make(env, **(env_args or {}))
    steps = decisions(made, steps, frames)
    session = open_session(made, config, seed, schedule)
    hosted = isinstance(made, HostedEnvironment)
    name = "-".join([env, config.name, f"seed{seed}"]).replace("/", "_")
    path = Path(out) if out is not None else Path("runs") / name
    chunk = chunk or (HOSTED_CHUNK if hosted else CHUNK)
    asked = {
        "env": env, "env_args": env_args or {}, "agent": dataclasses.asdict(session.config), "seed": seed,
        "steps": steps, "chunk": chunk, "schedule": dataclasses.asdict(schedule) if hosted else {},
        "command": shlex.join(sys.argv), "versions": versions(),
    }  # fmt: skip
    if isinstance(made, HostedEnvironment) and not path.exists():
        check_room(session.config.replay_size, made.frame_shape, path)
    with RunDirectory.locked(path) as directory, _gentle_interrupt(say) as interrupted:
        checkpoints = Checkpoints(path)
        if directory.is_new:
            directory.begin(asked)
        elif not resume:
            raise UsageError(f"{path} exists and is not empty: --resume goes on with it, --out chooses another place")
        else:
            _same_run(directory, asked, hosted)
            if not hosted and directory.finished(steps):
                say(f"{path} is finished")
                return Run(directory)
            _go_on(session, directory, checkpoints, say)
        try:
            _learn(session, directory, checkpoints, steps, chunk, schedule, progress, interrupted)
        except RunError as error:
            if session.last_good is not None:
                directory.save_state(session.last_good)
            raise RunError(f"{error} in {path}") from None
        finally:
            session.close()
    return Run(directory)


def decisions(env: Environment | HostedEnvironment, steps: int | None, frames: int | None) -> int:
    """What was asked for, in decisions."""
    if steps is not None and frames is not None:
        raise UsageError(f"steps={steps}, frames={frames}: give one of them")
    if frames is not None:
        if not isinstance(env, HostedEnvironment):
            raise UsageError(f"frames={frames}: {env.name} has none; give steps")
        steps = frames // env.frame_skip
    elif steps is None:
        if isinstance(env, HostedEnvironment):
            raise UsageError(f"how long? give --frames N ({env.frame_skip} for each decision; the paper: 200000000)")
        steps = 50_000
    if steps < 1:
        raise UsageError(f"steps={steps}: at least 1")
    return steps


def open_session(
    env: Environment | HostedEnvironment, config: AgentConfig, seed: int, schedule: Schedule
) -> Session | HostedSession:
    if isinstance(env, HostedEnvironment):
        return HostedSession(env, config, seed, n_envs=schedule.n_envs, restart_every=schedule.evaluate_every)
    if schedule.n_envs != 1:
        raise UsageError(f"n_envs={schedule.n_envs}: {env.name} is compiled, and runs one at a time")
    return Session(env, config, seed)


def _learn(
    session: Session | HostedSession, directory: RunDirectory, checkpoints: Checkpoints, steps: int, chunk: int,
    schedule: Schedule, progress: Progress | None, interrupted: Callable[[], bool],
) -> None:  # fmt: skip
    def checkpoint() -> None:
        checkpoints.save(session.step, session.snapshot(), session.replay, {"sizes": directory.sizes()})

    kept_at = time.monotonic()
    with tensorboard(directory.path, schedule.tensorboard) as write:
        for part in session.run(steps, chunk):
            directory.append("episodes", part.episodes._asdict())
            directory.append("metrics", {"step": part.step, **part.metrics})
            write(part.step, part.metrics)
            if progress is not None:
                progress(part.step, steps, part.metrics)
            if isinstance(session, HostedSession) and part.step % schedule.evaluate_every == 0:
                write(part.step, _evaluate(session, directory, schedule))
            stop = interrupted()
            if stop or time.monotonic() - kept_at > 60 * schedule.checkpoint_minutes:
                checkpoint()
                kept_at = time.monotonic()
            if stop:
                raise KeyboardInterrupt
    if isinstance(session, HostedSession):
        checkpoint()
    directory.save_state(session.kept())


def _evaluate(session: HostedSession, directory: RunDirectory, schedule: Schedule) -> dict[str, float]:
    """Mean returns, by policy."""
    means = {}
    for policy in EVALUATED[schedule.evaluation_policy]:
        seed = int(np.random.SeedSequence((session.seed, session.step)).generate_state(1)[0])
        played = session.play(session.learner, own=policy == "own", seed=seed, steps=schedule.evaluation_steps)
        number = len(played.episode_return)
        directory.append(
            "evaluations", {"step": [session.step] * number, "policy": [policy] * number, **played._asdict()}
        )
        means[f"evaluation_{policy}"] = float(played.episode_return.mean())
    return means


def _same_run(directory: RunDirectory, asked: dict[str, Any], hosted: bool) -> None:
    """A run goes on only with what it began with; one outside of JAX may go on for longer."""
    before, now = _flat(directory.config), _flat(json.loads(to_json(asked, digits=17)))
    free = (*MAY_CHANGE, "steps") if hosted else MAY_CHANGE
    for name in before | now:
        if not name.startswith(free) and before.get(name) != now.get(name):
            raise UsageError(
                f"{directory.path} was begun with {name}={before.get(name)}, not {now.get(name)}: a run goes on only with "
                "what it began with; leave that as it was, or start a new run (--out)"
            )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return leaves


def _go_on(session: Session | HostedSession, directory: RunDirectory, checkpoints: Checkpoints, say: Any) -> None:
    found = checkpoints.restore(session.like_snapshot(), session.replay, say)
    if found is None:
        say(f"{directory.path} has no checkpoint yet: starting from the beginning")
        directory.cut_back({})
        return
    tree, facts = found
    directory.cut_back(facts["sizes"])
    session.restore(tree)
    say(f"going on from step {session.step:,}")


@contextmanager
def _gentle_interrupt(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C only asks to stop; the second one stops at once."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("stopping after this chunk, with a checkpoint; Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def load(path: str | Path) -> Run:
    """A run that `train` wrote."""
    enable_compilation_cache()
    return Run(RunDirectory.open(Path(path)))


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory: what was asked, what happened, and the agent that came of it."""

    directory: RunDirectory

    @property
    def path(self) -> Path:
        """Of the directory."""
        return self.directory.path

    @cached_property
    def episodes(self) -> Columns:
        """step, episode_return and episode_length of each finished episode."""
        empty = {name: np.zeros(0) for name in ("step", "episode_return", "episode_length")}
        return self.directory.columns("episodes") or empty

    @cached_property
    def metrics(self) -> Columns:
        """step, loss, q, u, nu, … at the end of each chunk."""
        return self.directory.columns("metrics")

    @cached_property
    def evaluations(self) -> Columns:
        """step, policy, episode_return and episode_length of each episode played without learning."""
        return self.directory.columns("evaluations")

    def last_evaluation(self) -> dict[str, np.ndarray]:
        """Returns of the last evaluation in training, by policy; empty if there was none."""
        rows = self.evaluations
        if not rows:
            return {}
        last = rows["step"] == rows["step"].max()
        names = dict.fromkeys(rows["policy"][last].tolist())
        return {name: rows["episode_return"][last & (rows["policy"] == name)] for name in names}

    @cached_property
    def config(self) -> dict[str, Any]:
        """All that was asked, with every default filled in, and the versions of the packages."""
        return self.directory.config

    @cached_property
    def agent(self) -> TrainedAgent:
        """As it was at the end of training."""
        config = self.config
        try:
            fields = {**config["agent"], "reward_clip": config["agent"]["reward_clip"] or np.inf}
            env, seed = make(config["env"], **config["env_args"]), config["seed"]
        except (KeyError, TypeError) as error:
            raise UsageError(f"{self.path / 'config.json'} is not that of a run ({error!r})") from None
        session = open_session(env, agent_config(AgentConfig(), fields), seed, Schedule())
        state = jax.tree.map(jax.numpy.asarray, self.directory.load_state(session.like_kept()))
        session.instance = state["instance"]
        return TrainedAgent(session, state["learner"])

    def evaluate(self, episodes: int = 10, *, policy: str = "greedy", seed: int = 0) -> Evaluation:
        """Plays without learning: `policy` is "greedy" (but for ε = epsilon_evaluation) or "own", the agent's."""
        return self.agent.evaluate(episodes, policy=policy, seed=seed)

    def video(
        self, path: str | Path | None = None, *, policy: str = "own", seed: int = 0, longest: int = 1_000
    ) -> Path:
        """One game with u drawn under the screen, as a GIF; by default DIR/game.gif. At most `longest` decisions."""
        where = Path(path) if path is not None else self.path / "game.gif"
        self.agent.video(where, policy=policy, seed=seed, longest=longest)
        return where

    def plot(self, path: str | Path | None = None) -> Path:
        """Returns and uncertainty against steps, as a picture; by default DIR/learning.png."""
        from ube.figures.learning import plot_run

        where = Path(path) if path is not None else self.path / "learning.png"
        plot_run(self, where)
        return where


class Uncertainty(NamedTuple):
    """q, u and nu (ν) of each action, (A,) each."""

    q: np.ndarray
    u: np.ndarray
    nu: np.ndarray


@dataclasses.dataclass(frozen=True)
class TrainedAgent:
    """What a run learned, to act, to be asked and to be evaluated. It learns no more."""

    session: Session | HostedSession
    state: LearnerState

    @property
    def env(self) -> Environment | HostedEnvironment:
        """The environment it was trained in."""
        return self.session.env

    def act(self, observation: Any, seed: int = 0) -> int:
        """The agent's own choice at one observation; `seed` draws its noise."""
        return int(self._think(observation, seed).action)

    def uncertainty(self, observation: Any) -> Uncertainty:
        """Q, u and ν of each action. u and ν are 0 for agents that have none."""
        choice = self._think(observation, 0)
        return Uncertainty(*(np.asarray(part) for part in (choice.q, choice.u, choice.nu)))

    def _think(self, observation: Any, seed: int) -> Any:
        array = np.asarray(observation)
        if array.shape != self.env.observation_shape:
            raise UsageError(f"observation has shape {array.shape}: {self.env.name} gives {self.env.observation_shape}")
        array = array.astype(self.env.observation_dtype)
        return self.session.loop.think(self.state, array, jax.random.key(seed), self.session.knobs)

    def video(self, path: Path, *, policy: str, seed: int, longest: int) -> None:
        """As `Run.video`."""
        from ube.runs.video import Watched, write_video

        session = self.session
        if not isinstance(session, HostedSession):
            raise UsageError(f"{session.env.name} has no screen: videos are of Atari games")
        _check_policy(policy)
        actions, u, q = session.watch(self.state, own=policy == "own", seed=seed, longest=longest)
        write_video(Watched(session.env.screens(seed, actions), u, q), path)

    def evaluate(self, episodes: int = 10, *, policy: str = "greedy", seed: int = 0) -> Evaluation:
        """As `Run.evaluate`."""
        _check_policy(policy)
        if episodes < 1:
            raise UsageError(f"episodes={episodes}: at least 1")
        return self.session.play(self.state, episodes, own=policy == "own", seed=seed)


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise UsageError(f"policy={policy!r}: choose greedy or own")


def enable_compilation_cache() -> None:
    """A second start need not wait for the compiler. JAX_COMPILATION_CACHE_DIR moves or, set empty, disables it."""
    import os

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and not getattr(jax.config, "jax_compilation_cache_dir", None):
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "ube" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
