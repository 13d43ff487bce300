"""A cell as a task: a run of `ube.train` in a folder of its own, which goes on where it was, and is done once."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ube.errors import BusyError
from ube.files import to_json, write_atomically
from ube.machine import Room, room_needed
from ube.reading import read_table, refuse
from ube.suite.cells import Cell

DONE, FAILED = "done.json", "failed.json"
KEPT: dict[str, set[type]] = {"step": {int}, "policy": {str}, "mean": {int, float}, "episodes": {int}}
"""What is kept of episodes, and of which types: lists of one length, much quicker to read than a table for each row."""
POLICIES = ("training", "greedy", "own")
BINS = 100
"""Equal parts of training, whose mean returns are kept."""
EVALUATION_SEEDS = 2_000_000
"""Added to the seed of a cell: evaluation must not replay the random numbers of training."""


def folder_of(suite_folder: Path, cell: Cell) -> Path:
    return suite_folder / "cells" / cell.id


@dataclass(frozen=True)
class CellTask:
    cell: Cell
    suite_folder: Path
    checkpoint_minutes: float = 10.0
    patience: float = 0.0
    """Seconds to wait for a process that is still at the cell, such as one that is being killed."""

    @property
    def name(self) -> str:
        return self.cell.id

    @property
    def program(self) -> str:
        return f"{self.cell.env} {self.cell.kind}"

    @property
    def memory(self) -> float:
        return room(self.cell).memory

    @property
    def folder(self) -> Path:
        return folder_of(self.suite_folder, self.cell)

    def run(self) -> dict[str, Any] | None:
        """What is kept of the run; None if another process is at it."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return self._trained()
            except BusyError:
                if time.monotonic() > end:
                    return None
                time.sleep(1.0)

    def _trained(self) -> dict[str, Any]:
        from ube.runs.directory import RunDirectory

        with RunDirectory.locked(self.folder):  # until all is done: what was done meanwhile must not begin again
            return done(self.folder) or self._done_now()

    def _done_now(self) -> dict[str, Any]:
        from ube.runs import Schedule, train
        from ube.runs.plan import EVALUATED

        (self.folder / FAILED).unlink(missing_ok=True)
        cell, began = self.cell, time.monotonic()
        schedule = Schedule(
            evaluate_every=cell.evaluate_every, evaluation_steps=cell.evaluation_steps,
            evaluation_policy=cell.evaluation_policy, checkpoint_minutes=self.checkpoint_minutes,
        )  # fmt: skip
        run = train(
            cell.env, cell.agent, cell.steps, cell.seed, protocol=cell.protocol, env_args=cell.env_args,
            overrides=cell.overrides, out=self.folder / "run", resume=True, schedule=schedule, say=lambda text: None,
        )  # fmt: skip
        evaluations = _periods(run.evaluations)
        if not cell.is_atari:
            for policy in _unseen(evaluations, cell.steps, EVALUATED[cell.evaluation_policy]):
                played = run.evaluate(cell.evaluation_episodes, policy=policy, seed=EVALUATION_SEEDS + cell.seed)
                evaluations.append(_row(cell.steps, policy, played.episode_return))
        kept = {
            "cell": cell.spec, "config_digest": cell.config_digest, "versions": run.config["versions"],
            "resumed_with": run.config.get("resumed_with", []), "evaluations": columns(evaluations),
            "training": columns(_training(run.episodes, cell.steps)),
            "seconds_since_last_start": round(time.monotonic() - began, 1),
        }  # fmt: skip
        text = to_json(kept, digits=17)
        write_atomically(self.folder / DONE, text)
        forget_checkpoints(self.folder)
        return json.loads(text)


def done(folder: Path) -> dict[str, Any] | None:
    """What is kept of a finished cell."""
    path, remedy = folder / DONE, "remove it, and its cell is run again"
    try:
        kept = read_table(path, inside=folder.parent.parent, remedy=remedy)
        _check(kept)
    except FileNotFoundError:
        return None
    except (LookupError, TypeError, AttributeError) as error:
        refuse(path, f"{type(error).__name__}: {error}", remedy)
    return kept


def versions_of(folder: Path) -> list[dict[str, str]]:
    """With which its run was begun, and went on; none where it was not, or where that cannot be read."""
    try:
        config = read_table(folder / "run" / "config.json", inside=folder, remedy="train the cell again")
        return [dict(one) for one in (config["versions"], *config.get("resumed_with", []))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _check(kept: Any) -> None:
    if not isinstance(kept["cell"], dict):
        raise TypeError("no cell")
    for versions in (kept["versions"], *kept.get("resumed_with", [])):
        if not isinstance(versions, dict) or not all(isinstance(version, str) for version in versions.values()):
            raise TypeError("no versions")
    for part in ("evaluations", "training"):
        table = kept[part]
        if not isinstance(table, dict) or table.keys() != KEPT.keys():
            raise TypeError(f"{part} must have {', '.join(KEPT)}")
        for name, types in KEPT.items():
            if not isinstance(table[name], list) or not types.issuperset(map(type, table[name])):
                raise TypeError(f"{part}: {name} {str(table[name])[:80]}")
        if len({len(column) for column in table.values()}) > 1:
            raise TypeError(f"{part}: columns of different lengths")
        if unknown := set(table["policy"]) - set(POLICIES):
            raise TypeError(f"{part}: no policy {min(unknown)[:40]!r}")


def forget_checkpoints(folder: Path) -> None:
    """Of a finished cell: nobody goes on from them."""
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)


def failed(folder: Path, message: str) -> None:
    """Keeps why, if there is room: a full disk may be the reason."""
    with suppress(OSError):
        write_atomically(folder / FAILED, to_json({"message": message, "when": time.strftime("%Y-%m-%d %H:%M:%S")}))


def room(cell: Cell, checkpoint_minutes: float = 10.0) -> Room:
    # The frames of other environments outside of JAX are known only when one is made, which may run anybody's code.
    needed = room_needed(cell.replay_size if cell.is_atari else 0, checkpoint_minutes=checkpoint_minutes)
    return needed if cell.memory_gb is None else needed._replace(memory=1e9 * cell.memory_gb)


def ends(steps: int) -> list[int]:
    """The last step of each part of training."""
    return [(part + 1) * steps // BINS for part in range(BINS)]


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in KEPT}


def _row(step: int, policy: str, returns: np.ndarray) -> dict[str, Any]:
    return {"step": int(step), "policy": policy, "mean": float(np.mean(returns)), "episodes": len(returns)}


def _unseen(evaluations: list[dict[str, Any]], steps: int, policies: tuple[str, ...] = ("greedy", "own")) -> list[str]:
    """Policies that were not evaluated at the end of training; compiled environments never are."""
    seen = {row["policy"] for row in evaluations if row["step"] >= steps}
    return [policy for policy in policies if policy not in seen]


def _periods(evaluations: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The mean return of each evaluation, by policy."""
    if not evaluations:
        return []
    step, policy, returns = (evaluations[name] for name in ("step", "policy", "episode_return"))
    pairs = dict.fromkeys(zip(step.tolist(), policy.tolist(), strict=True))
    return [_row(at, who, returns[(step == at) & (policy == who)]) for at, who in pairs]


def _training(episodes: dict[str, np.ndarray], steps: int) -> list[dict[str, Any]]:
    """Mean returns of the episodes that ended in each part of training; parts without any are left out."""
    part = np.minimum((episodes["step"] - 1) * BINS // steps, BINS - 1).astype(int)
    last = ends(steps)
    filled = np.unique(part)
    return [_row(last[bin_], "training", episodes["episode_return"][part == bin_]) for bin_ in filled.tolist()]
