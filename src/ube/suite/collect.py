"""One tidy file of all finished cells, with what made it in its first lines."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ube.errors import UsageError
from ube.files import to_json, write_atomically
from ube.reading import read_bytes, refuse
from ube.suite.cells import FRAME_SKIP, Cell, Suite
from ube.suite.work import done, ends, folder_of

OF_CELL = (
    "env",
    "env_args",
    "agent",
    "overrides",
    "seed",
    "protocol",
    "steps",
    "evaluate_every",
    "evaluation_steps",
    "cell",
)
OF_ROW = ("step", "frames", "policy", "mean", "episodes")
COLUMNS = OF_CELL + OF_ROW
"""steps: decisions of training in all, `step` those before the row. policy: greedy or own for evaluations; training for the
mean return of training episodes since the row before."""


class CellRows(NamedTuple):
    of_cell: tuple[Any, ...]
    """The values that all rows of a cell have in common, in the order of `OF_CELL`."""
    of_row: tuple[list[Any], ...]
    """The columns in which they differ, in the order of `OF_ROW`."""


@dataclass(frozen=True)
class Collected:
    """What there is of a suite: for each finished cell a row for each evaluation and each hundredth of training."""

    cells: list[CellRows]
    missing: list[Cell]
    strangers: list[str]
    """Folders of cells that are not, or no longer, of this suite: left out."""
    versions: dict[str, str]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """With `COLUMNS`."""
        return [
            dict(zip(COLUMNS, (*cell.of_cell, *values), strict=True))
            for cell in self.cells
            for values in zip(*cell.of_row, strict=True)
        ]

    def __len__(self) -> int:
        return sum(len(cell.of_row[0]) for cell in self.cells)


def collect(suite: Suite, folder: Path) -> Collected:
    """Rows of all finished cells. Raises where they, or parts of one, were made by different versions or by a preset that
    has changed since: those must not be compared."""
    cells: list[CellRows] = []
    missing, made_by = [], Counter[str]()
    for cell in suite.cells:
        kept = done(folder_of(folder, cell))
        if kept is None:
            missing.append(cell)
            continue
        if kept["cell"] != json.loads(to_json(cell.spec, digits=17)):
            raise UsageError(f"{folder_of(folder, cell)} is of another cell than its name says: remove it")
        if kept.get("config_digest", cell.config_digest) != cell.config_digest:
            raise UsageError(
                f"{folder_of(folder, cell)} is from another config: the preset {cell.agent} has changed since; remove it, "
                "and its cell is run again"
            )
        if not set(kept["training"]["step"]) <= set(ends(cell.steps)):
            raise UsageError(f"{folder_of(folder, cell)} has rows of other steps than its cell's: remove it")
        made_by.update(json.dumps(one, sort_keys=True) for one in (kept["versions"], *kept.get("resumed_with", [])))
        cells.append(_rows(cell, kept))
    if len(made_by) > 1:
        raise UsageError(
            f"{folder} holds cells of different versions, or parts of them, {_difference(made_by)}: run them in one (--out)"
        )
    ids = {cell.id for cell in suite.cells}
    there = sorted(path.name for path in (folder / "cells").iterdir()) if (folder / "cells").exists() else []
    strangers = [name for name in there if name not in ids]
    return Collected(cells, missing, strangers, json.loads(next(iter(made_by))) if made_by else {})


def _rows(cell: Cell, kept: dict[str, Any]) -> CellRows:
    of_cell = (
        cell.env, json.dumps(cell.env_args), cell.agent, json.dumps(cell.overrides), cell.seed,
        cell.protocol if cell.is_atari else "", cell.steps, cell.evaluate_every, cell.evaluation_steps, cell.id,
    )  # fmt: skip
    columns = {name: kept["training"][name] + kept["evaluations"][name] for name in kept["training"]}
    is_atari = cell.is_atari
    columns["frames"] = [step * FRAME_SKIP if is_atari else "" for step in columns["step"]]
    return CellRows(of_cell, tuple(columns[name] for name in OF_ROW))


def _difference(made_by: Counter[str]) -> str:
    """Which packages, and how many cells of each."""
    parts = [(json.loads(text), number) for text, number in made_by.items()]
    names = sorted({name for versions, _ in parts for name in versions})
    differing = [name for name in names if len({versions.get(name) for versions, _ in parts}) > 1]
    return "; ".join(
        f"{number} of " + ", ".join(f"{name} {versions.get(name)}" for name in differing) for versions, number in parts
    )


class ReadBack(NamedTuple):
    head: dict[str, str]
    """suite, command, versions, cells: as written."""
    rows: list[dict[str, str]]


def read_csv(path: Path) -> ReadBack:
    """What `write_csv` wrote."""
    try:
        lines = read_bytes(path, remedy=_OF_COLLECT, most=LARGEST_CSV).decode("utf-8").splitlines()
        comments = [line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# ")]
        table = csv.DictReader(line for line in lines if not line.startswith("#"))
        if tuple(table.fieldnames or ()) != COLUMNS:
            refuse(path, f"its columns are {', '.join(table.fieldnames or ['none'])[:200]}", _OF_COLLECT)
        rows = list(table)
    except FileNotFoundError as error:
        refuse(path, str(error.strerror), _OF_COLLECT)
    except (UnicodeDecodeError, csv.Error) as error:
        refuse(path, str(error), _OF_COLLECT)
    for number, row in enumerate(rows, 1):
        if len(row) != len(COLUMNS) or None in row.values():
            refuse(path, f"row {number} has more or fewer columns than the first line", _OF_COLLECT)
    return ReadBack({part[0]: part[1] for part in comments if len(part) == 2}, rows)


_OF_COLLECT = "give a file of `ube suite collect`"
LARGEST_CSV = 2**30
"""Bytes; the paper's suite makes near 100 million."""


def write_csv(suite: Suite, found: Collected, command: str, path: Path) -> None:
    """The rows, after comments that say which suite, command and versions made them."""
    head = {
        "suite": suite.name, "command": command, "versions": found.versions,
        "cells": f"{len(suite.cells) - len(found.missing)} of {len(suite.cells)} finished",
    }  # fmt: skip
    lines = [f"# {name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in head.items()]
    lines.append(_line(COLUMNS))
    for cell in found.cells:
        begin = _line(cell.of_cell)  # once: there may be a million rows, and none of the rest needs quoting
        lines.extend(
            f"{begin},{step},{frames},{policy},{mean},{episodes}"
            for step, frames, policy, mean, episodes in zip(*cell.of_row, strict=True)
        )
    write_atomically(path, "\n".join(lines) + "\n")


def _line(values: tuple[Any, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()
