"""One learning run of an experiment: what is asked (a cell), and the few numbers that are kept of it.

The parent process only describes cells, and so needs no JAX; `run_cell` is for the workers of `ube.figures.workers`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import math
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ube.deep.config import agent_config
from ube.suite.work import EVALUATION_SEEDS
from ube.tabular.simulate import episodes_to_solve

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell(ABC):
    """What all have in common."""

    env: str
    agent: str
    """A preset."""
    seed: int
    steps: int
    env_args: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the agent to replace."""

    @abstractmethod
    def run(self, kept: Path) -> Result:
        """In a worker; `kept` is a folder for what it takes to go on after a stop."""

    @property
    def name(self) -> str:
        args = "".join(f", {key}={value}" for key, value in self.env_args.items())
        changes = "".join(f", {key}={value}" for key, value in self.overrides.items())
        return f"{self.agent}{changes} on {self.env}{args}, seed {self.seed}"

    @property
    def program(self) -> str:
        """Cells alike in this mostly share a compiled program: numbers with a decimal point are its inputs."""
        changes = {key: value for key, value in self.overrides.items() if not isinstance(value, float)}
        return json.dumps([self.env, self.env_args, self.agent, changes, self.steps])

    @functools.cached_property
    def spec(self) -> dict[str, Any]:
        """All that decides the result: also the agent as it is configured today, the code and the packages."""
        asked = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        agent = dataclasses.asdict(agent_config(self.agent, self.overrides))
        described = _digest(_meaning(inspect.getsource(inspect.getmodule(type(self)))))  # type: ignore[arg-type]
        made_with = {"code": code_digest(), "cell": described, **_package_versions()}
        return json.loads(json.dumps({**asked, "agent_config": agent, "made_with": made_with}))

    @property
    def key(self) -> str:
        return _digest(json.dumps(self.spec, sort_keys=True))


@dataclass(frozen=True)
class LearningCell(Cell):
    """In an environment that is compiled, or one of Gymnasium."""

    chunk: int = 10_000
    """Steps between two looks at the stop rule."""
    stop: Literal["never", "solved"] = "never"
    goal: float | None = None
    """The least return that counts as a success, where the environment does not say."""
    max_episodes: int | None = None
    """Episodes after these do not count."""
    bins: int = 1
    """Equal parts of `steps` for which episodes, successes and returns are added up."""
    evaluation_episodes: int = 0
    """Played after training without learning, greedy but for ε and again by the agent's own policy; or at each checkpoint."""
    checkpoints: int = 0
    """Evaluations spread evenly over training, the last one at its end; 0 for a single one after it."""
    epsilons: tuple[float, ...] = (0.0, 0.05)
    """Of the greedy policy at checkpoints."""
    watch: Callable[[Any, Any], Any] | None = None
    """Called with (session, chunk) after each chunk, in the worker; what it gives is kept. A function of a module."""

    def run(self, kept: Path) -> Result:
        return run_cell(self)

    @property
    def program(self) -> str:
        return f"{super().program}, {self.chunk}"


def _plain(value: Any) -> Any:
    """A function stands for its meaning."""
    return _digest(_meaning(textwrap.dedent(inspect.getsource(value)))) if callable(value) else value


def run_cell(cell: LearningCell) -> Result:
    from ube.runs.jax_setup import set_up_jax
    from ube.runs.plan import Schedule, planned

    set_up_jax()
    began = time.perf_counter()
    overrides = {key: tuple(value) if isinstance(value, list) else value for key, value in cell.overrides.items()}
    plan = planned(
        cell.env, cell.agent, cell.steps, cell.seed, frames=None, protocol="auto", env_args=cell.env_args,
        overrides=overrides, schedule=Schedule(evaluation_policy="none"),
    )  # fmt: skip
    with closing(plan.session()) as session:
        return _learned(session, cell, getattr(plan.env, "success_return", None) or cell.goal, began)


def _learned(session: Any, cell: LearningCell, goal: float | None, began: float) -> Result:
    step, episode_return = np.zeros(0, int), np.zeros(0)
    watched: list[Any] = []
    evaluated: list[dict[str, Any]] = []
    every = cell.steps / cell.checkpoints if cell.checkpoints else math.inf
    for chunk in session.run(cell.steps, cell.chunk):
        step = np.append(step, chunk.episodes.step.astype(int))
        episode_return = np.append(episode_return, chunk.episodes.episode_return)
        if cell.watch is not None:
            watched.append(cell.watch(session, chunk))
        if chunk.step // every > len(evaluated):
            evaluated.append({"step": chunk.step, "returns": [_greedy_return(session, cell, e) for e in cell.epsilons]})
        if cell.stop == "solved" and solved_at(episode_return[: cell.max_episodes], goal) is not None:
            break
    counted = np.flatnonzero(step <= cell.steps)[: cell.max_episodes]
    result = {
        "steps": chunk.step,
        "episodes": len(counted),
        **successes(step[counted], episode_return[counted], goal),
        "bins": binned(step[counted], episode_return[counted], goal, cell.steps, cell.bins),
        "watched": watched,
    }
    if cell.checkpoints:
        result["checkpoints"] = evaluated
    elif cell.evaluation_episodes:
        for policy in ("greedy", "own"):
            played = session.play(
                session.learner, cell.evaluation_episodes, own=policy == "own", seed=EVALUATION_SEEDS + cell.seed
            )
            result[f"{policy}_returns"] = played.episode_return.tolist()
    return result | {"seconds": round(time.perf_counter() - began, 2)}


def _greedy_return(session: Any, cell: LearningCell, epsilon: float) -> float:
    """The mean over the cell's evaluation episodes."""
    played = session.play(
        session.learner, cell.evaluation_episodes, own=False, seed=EVALUATION_SEEDS + cell.seed, epsilon=epsilon
    )
    return float(played.episode_return.mean())


def solved_at(returns: np.ndarray, goal: float | None) -> int | None:
    """The first success, counted from 1, from which on 10 of 100 episodes succeed: the rule of the tabular half."""
    return None if goal is None else episodes_to_solve((returns >= goal).astype(float))


def successes(step: np.ndarray, returns: np.ndarray, goal: float | None) -> Result:
    """How many there were, when the first was, and when the task was solved; None for never."""
    if goal is None:
        return {"successes": None, "first_success_episode": None, "first_success_step": None, "episodes_to_solve": None}
    found = np.flatnonzero(returns >= goal)
    return {
        "successes": len(found),
        "first_success_episode": int(found[0]) + 1 if len(found) else None,
        "first_success_step": int(step[found[0]]) if len(found) else None,
        "episodes_to_solve": solved_at(returns, goal),
    }


def binned(step: np.ndarray, returns: np.ndarray, goal: float | None, steps: int, bins: int) -> Result:
    """Sums over the episodes that ended in each of `bins` equal parts of 1..steps."""
    part = (step - 1) * bins // steps
    won = returns >= (np.inf if goal is None else goal)
    return {
        "episodes": np.bincount(part, minlength=bins).tolist(),
        "returns": np.bincount(part, returns, bins).tolist(),
        "successes": np.bincount(part, won, bins).tolist(),
    }


@functools.cache
def code_digest() -> str:
    """Of all code that decides what a cell gives, whatever its comments say: results of two versions never mix."""
    home = Path(__file__).parent.parent
    files = [file for room in ("deep", "envs", "runs") for file in (home / room).glob("*.py")]
    files += [home / name for name in ("backups.py", "linear.py", "acting.py", "tabular/simulate.py")]
    files.append(Path(__file__))
    return _digest("\n".join(f"{file.relative_to(home)} {_meaning(file.read_text())}" for file in sorted(files)))


def _meaning(source: str) -> str:
    """The syntax tree without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [x for x in body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _package_versions() -> dict[str, str]:
    found = {}
    for name in ("numpy", "jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "navix", "ale-py"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
