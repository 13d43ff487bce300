"""`ube.train`, `ube.load` and what they give back."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ube.deep.config import AgentConfig, agent_config
from ube.deep.learner import LearnerState
from ube.deep.session import CHUNK, Session
from ube.envs import Environment, make
from ube.errors import RunError, UsageError
from ube.files import versions
from ube.runs.directory import Columns, RunDirectory

Progress = Callable[[int, int, dict[str, float]], None]
"""progress(step, steps, metrics), after each chunk"""


def train(
    env: str,
    agent: str | AgentConfig = "ube-deep",
    steps: int = 50_000,
    seed: int = 0,
    *,
    env_args: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    out: str | Path | None = None,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> Run:
    """Trains a preset (or a config of your own) and keeps all of it in a run directory.

    env: an id from `ube envs`, with `env_args` such as {"size": 20}. overrides: fields of the agent to replace, such as
    {"beta": 0.1}. out: the directory, by default runs/ENV-AGENT-seedN; it must be new. chunk: steps between two rows
    of metrics. The same seed gives the same run to the bit on a CPU.
    """
    enable_compilation_cache()
    if seed < 0 or seed >= 2**32:
        raise UsageError(f"seed={seed}: within 0..{2**32 - 1}")
    if steps < 1:
        raise UsageError(f"steps={steps}: at least 1")
    config = agent_config(agent, overrides)
    session = Session(make(env, **(env_args or {})), config, seed)
    path = (
        Path(out) if out is not None else Path("runs") / "-".join([env, config.name, f"seed{seed}"]).replace("/", "_")
    )
    directory = RunDirectory.create(
        path,
        {
            "env": env, "env_args": env_args or {}, "agent": dataclasses.asdict(session.config), "seed": seed,
            "steps": steps, "chunk": chunk, "command": shlex.join(sys.argv), "versions": versions(),
        },
    )  # fmt: skip
    try:
        for part in session.run(steps, chunk):
            directory.append("episodes", part.episodes._asdict())
            directory.append("metrics", {"step": part.step, **part.metrics})
            if progress is not None:
                progress(part.step, steps, part.metrics)
        directory.save_state({"learner": jax.device_get(part.carry.learner), "instance": session.instance})
    except (RunError, KeyboardInterrupt) as error:
        directory.save_state({"learner": session.last_good, "instance": session.instance})
        if isinstance(error, RunError):
            raise RunError(f"{error} in {path}") from None
        raise
    return Run(directory)


def load(path: str | Path) -> Run:
    """A run that `train` wrote."""
    enable_compilation_cache()
    return Run(RunDirectory.open(Path(path)))


@dataclasses.dataclass(frozen=True)
class Run:
    directory: RunDirectory

    @property
    def path(self) -> Path:
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
    def config(self) -> dict[str, Any]:
        return self.directory.config

    @cached_property
    def agent(self) -> TrainedAgent:
        config = self.config
        try:
            fields = {**config["agent"], "reward_clip": config["agent"]["reward_clip"] or np.inf}
            env, seed = make(config["env"], **config["env_args"]), config["seed"]
        except (KeyError, TypeError) as error:
            raise UsageError(f"{self.path / 'config.json'} is not that of a run ({error!r})") from None
        session = Session(env, agent_config(AgentConfig(), fields), seed)
        like = jax.eval_shape(session.loop.start, jax.random.key(0), session.knobs)
        state = self.directory.load_state({"learner": like.learner, "instance": like.instance})
        return TrainedAgent(env, session, *jax.tree.map(jax.numpy.asarray, (state["learner"], state["instance"])))

    def evaluate(self, episodes: int = 10, *, policy: str = "greedy", seed: int = 0) -> Evaluation:
        """Plays without learning: `policy` is "greedy" (but for ε = epsilon_evaluation) or "own", the agent's."""
        return self.agent.evaluate(episodes, policy=policy, seed=seed)

    def plot(self, path: str | Path | None = None) -> Path:
        """Returns and uncertainty against steps, as a picture; by default DIR/learning.png."""
        from ube.figures.learning import plot_run

        where = Path(path) if path is not None else self.path / "learning.png"
        plot_run(self, where)
        return where


class Uncertainty(NamedTuple):
    """Per action, (A,)."""

    q: np.ndarray
    u: np.ndarray
    nu: np.ndarray


class Evaluation(NamedTuple):
    episode_return: np.ndarray
    episode_length: np.ndarray


@dataclasses.dataclass(frozen=True)
class TrainedAgent:
    env: Environment
    session: Session
    state: LearnerState
    instance: Any

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

    def evaluate(self, episodes: int = 10, *, policy: str = "greedy", seed: int = 0) -> Evaluation:
        if policy not in ("greedy", "own"):
            raise UsageError(f"policy={policy!r}: choose greedy or own")
        if episodes < 1:
            raise UsageError(f"episodes={episodes}: at least 1")
        return evaluate(self.session, self.state, self.instance, episodes, own=policy == "own", seed=seed)


def evaluate(
    session: Session, state: LearnerState, instance: Any, episodes: int, *, own: bool, seed: int, chunk: int = 2_000
) -> Evaluation:
    """Episodes one after the other in one environment, so that short ones do not count more often."""
    loop = session.loop
    game = loop.begin(jax.random.key(seed), instance)
    returns: list[float] = []
    lengths: list[int] = []
    for _ in range(MAX_CHUNKS):
        game, log = loop.evaluate(game, state, instance, session.knobs, session.config.epsilon_evaluation, chunk, own)
        ended = np.flatnonzero(log.ended)
        returns += np.asarray(log.episode_return)[ended].tolist()
        lengths += np.asarray(log.episode_length)[ended].tolist()
        if len(returns) >= episodes:
            return Evaluation(np.array(returns[:episodes]), np.array(lengths[:episodes]))
    raise RunError(
        f"{session.env.name}: {len(returns)} of {episodes} episodes ended within {MAX_CHUNKS * chunk:,} steps: "
        "give the environment a time limit, or ask for fewer"
    )


MAX_CHUNKS = 1_000


def enable_compilation_cache() -> None:
    """A second start need not wait for the compiler. JAX_COMPILATION_CACHE_DIR moves or, set empty, disables it."""
    import os

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and not getattr(jax.config, "jax_compilation_cache_dir", None):
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "ube" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
