"""What a suite costs, at the rate of this machine or of another."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ube.errors import UsageError
from ube.files import to_json, write_atomically
from ube.machine import Room, free_disk, free_memory, gigabytes
from ube.reading import read_table
from ube.suite.cells import FRAME_SKIP, Cell, Suite
from ube.suite.pool import Failure, Pool
from ube.suite.work import room

PAPER_RATE = 200e6 / (8 * 86_400)
"""Frames per second: 200 million in 8 days on a GPU."""
RATES = "rates.json"
KEPT = 30e6
"""Bytes of a finished cell."""
MEASURED = {"warmup": 400, "replay_size": 2_000}
"""A run this short still learns at its full rate."""


class Rate(NamedTuple):
    """Decisions per second."""

    training: float
    evaluation: float


@dataclass(frozen=True)
class Measure:
    """Of one kind of cells, as a task."""

    cell: Cell
    memory = 0.0

    @property
    def name(self) -> str:
        return f"measuring {self.cell.agent} on {self.cell.env}"

    @property
    def program(self) -> str:
        return self.cell.kind

    def run(self) -> Rate:
        from ube.runs.jax_setup import set_up_jax
        from ube.runs.plan import Schedule, planned

        set_up_jax()
        cell = self.cell
        overrides = cell.overrides | MEASURED if cell.is_atari else cell.overrides
        session = planned(
            cell.env, cell.agent, cell.steps, cell.seed, frames=None, protocol=cell.protocol, env_args=cell.env_args,
            overrides=overrides, schedule=Schedule(),
        ).session()  # fmt: skip
        parts = session.run(10**9, 400 if cell.is_atari else 2_000)
        try:
            rates = [next(parts).metrics["steps_per_second"] for _ in range(5)]  # the first ones compile, and warm up
            episodes = 1 if cell.is_atari else 10
            session.play(session.learner, episodes, own=False, seed=1)  # compiles
            began = time.perf_counter()
            played = session.play(session.learner, episodes, own=False, seed=2)
            seconds = time.perf_counter() - began
        finally:
            session.close()
        return Rate(max(rates[2:]), float(played.episode_length.sum()) / seconds)


def measured(suite: Suite, folder: Path, threads: int, *, anew: bool, say: Any) -> dict[str, Rate]:
    """kind -> rate, from the last measurement on this machine in this folder, or from a new one."""
    path = folder / RATES
    machine = f"{platform.node()}, {os.cpu_count()} cores, {threads} threads each"
    kept: dict[str, Rate] = {}
    if not anew and path.exists():
        try:
            content = read_table(path, inside=folder, remedy="measuring anew")
            kept = _rates(content["rates"]) if content["machine"] == machine else {}
        except (ValueError, LookupError, TypeError, AttributeError):
            say(f"{path} cannot be read: measuring anew")
    rates = dict(kept)
    kinds = {cell.kind: cell for cell in suite.cells}
    tasks = [Measure(cell) for kind, cell in kinds.items() if kind not in rates]
    with Pool(1, threads=threads) as pool:
        for task, outcome in pool.finish(tasks):
            if isinstance(outcome, Failure):
                raise UsageError(f"{task.name}: {outcome.message}")
            say(f"{task.name}: {outcome.training:.3g} decisions a second")
            rates[task.program] = outcome
    if tasks:
        content = {"machine": machine, "when": time.strftime("%Y-%m-%d %H:%M"), "rates": rates}
        write_atomically(path, to_json(content))
    return rates


def _rates(content: dict[str, Any]) -> dict[str, Rate]:
    rates = {kind: Rate(*map(float, rate)) for kind, rate in content.items()}
    if not all(0 < number < math.inf for rate in rates.values() for number in rate):
        raise UsageError("a rate must be positive")
    return rates


class Cost(NamedTuple):
    agent: str
    cells: int
    decisions: int
    frames: int
    """Of Atari."""
    hours: float
    """Of one worker."""


def seconds_of(cell: Cell, rate: Rate) -> float:
    training = cell.steps / rate.training
    if not cell.is_atari:
        return training
    policies = {"both": 2, "none": 0}.get(cell.evaluation_policy, 1)
    assert cell.evaluate_every is not None
    assert cell.evaluation_steps is not None
    periods = cell.steps // cell.evaluate_every
    return training + policies * periods * cell.evaluation_steps / rate.evaluation


def costs(suite: Suite, rates: dict[str, Rate] | float) -> list[Cost]:
    """One for each agent, and one for all of them.

    A number stands for frames (or decisions, outside of Atari) per second, evaluation included.
    """

    def frames(cell: Cell) -> int:
        return cell.steps * FRAME_SKIP if cell.is_atari else 0

    def hours(cell: Cell) -> float:
        if isinstance(rates, dict):
            return seconds_of(cell, rates[cell.kind]) / 3600
        return (frames(cell) or cell.steps) / rates / 3600

    agents = dict.fromkeys(cell.agent for cell in suite.cells)
    groups = {agent: [cell for cell in suite.cells if cell.agent == agent] for agent in agents} | {"all": suite.cells}
    return [
        Cost(agent, len(cells), sum(cell.steps for cell in cells), sum(map(frames, cells)), sum(map(hours, cells)))
        for agent, cells in groups.items()
    ]


def room_at_once(suite: Suite, workers: int, checkpoint_minutes: float = 10.0) -> Room:
    """Of so many cells, the largest there are. What is done keeps no checkpoint."""
    needs = [room(cell, checkpoint_minutes) for cell in suite.cells]
    memory, disk = (sum(sorted(column, reverse=True)[:workers]) for column in zip(*needs, strict=True))
    return Room(memory, disk + KEPT * len(suite.cells))


def warnings(needed: Room, folder: Path, workers: int) -> Iterator[str]:
    """What will not fit."""
    memory, disk = free_memory(), free_disk(folder)
    if memory is not None and needed.memory > memory:
        yield (
            f"{workers} workers need {gigabytes(needed.memory)} of memory, and {gigabytes(memory)} are free: fewer will run "
            "at once; where one alone does not fit, set a smaller replay_size"
        )
    if needed.disk > disk:
        yield (
            f"{gigabytes(needed.disk)} of disk are needed, and {gigabytes(disk)} are free: choose another place (--out) or "
            "fewer workers"
        )
