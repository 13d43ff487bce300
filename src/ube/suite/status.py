"""How far a suite is, from its files alone: another process may be running it."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

from ube.errors import UsageError
from ube.reading import is_inside, parse_rows, read_table, refuse
from ube.suite.cells import Cell, Suite
from ube.suite.work import DONE, FAILED, done, folder_of

State = Literal["done", "failed", "running", "stopped", "waiting"]
LATELY = 4096
"""Bytes at the end of metrics.jsonl that are read."""


class CellStatus(NamedTuple):
    """How far one cell is."""

    cell: Cell
    state: State
    step: int
    steps_per_second: float
    """Lately; 0 where nobody knows."""
    message: str
    """Why it failed."""


def status(suite: Suite, folder: Path) -> list[CellStatus]:
    """Of every cell, in the order of the suite."""
    return [_status(cell, folder_of(folder, cell)) for cell in suite.cells]


def _status(cell: Cell, folder: Path) -> CellStatus:
    if not folder.exists():
        return CellStatus(cell, "waiting", 0, 0.0, "")
    if (folder / DONE).exists():
        try:
            if (folder / FAILED).exists():  # only then is it worth reading
                done(folder)
        except UsageError as error:
            return CellStatus(cell, "failed", cell.steps, 0.0, str(error))
        return CellStatus(cell, "done", cell.steps, 0.0, "")
    step, rate = _lately(folder / "run" / "metrics.jsonl")
    if _locked(folder / ".lock"):
        return CellStatus(cell, "running", step, rate, "")
    try:
        path, remedy = folder / FAILED, "nobody knows why the cell failed"
        kept = read_table(path, inside=folder.parent.parent, remedy=remedy)
        message = kept["message"] if isinstance(kept.get("message"), str) else refuse(path, "no message", remedy)
    except FileNotFoundError:
        return CellStatus(cell, "stopped" if step else "waiting", step, 0.0, "")
    except UsageError as error:
        message = str(error)
    return CellStatus(cell, "failed", step, 0.0, message)


def _lately(path: Path) -> tuple[int, float]:
    """The last whole row: step, and steps per second."""
    try:
        if not path.is_file() or not is_inside(path, path.parents[3]):
            return 0, 0.0
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LATELY))
            rows = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0, 0.0
    try:
        row = parse_rows(rows[-1] + b"\n")[0]
        return int(row["step"]), float(row.get("steps_per_second", 0.0))
    except (LookupError, ValueError, TypeError, OverflowError):
        return 0, 0.0


def _locked(path: Path) -> bool:
    """Whether a living process holds it."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class Line(NamedTuple):
    """Cells of one agent, or of all."""

    name: str
    states: Counter[str]
    share: float
    """Of all decisions, that were made."""


def lines(found: list[CellStatus]) -> list[Line]:
    """One for each agent, and one for all of them."""
    agents = dict.fromkeys(one.cell.agent for one in found)
    return [*(_line(agent, [one for one in found if one.cell.agent == agent]) for agent in agents), _line("all", found)]


def _line(name: str, found: list[CellStatus]) -> Line:
    made, asked = sum(min(one.step, one.cell.steps) for one in found), sum(one.cell.steps for one in found)
    return Line(name, Counter(one.state for one in found), made / asked)


def seconds_left(found: list[CellStatus]) -> float | None:
    """At the rate of the cells that are running; None where nothing is."""
    rates = [one.steps_per_second for one in found if one.state == "running" and one.steps_per_second > 0]
    left = sum(one.cell.steps - min(one.step, one.cell.steps) for one in found if one.state != "failed")
    return left / sum(rates) if rates else None
