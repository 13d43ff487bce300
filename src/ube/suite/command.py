"""`ube suite`: parse, call, print."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from tyro.conf import Positional, arg

from ube.errors import RunError, UsageError, nearest, plain

if TYPE_CHECKING:
    from ube.suite import Suite

VERBS = ("plan", "run", "status", "collect")
STATES = ("done", "running", "stopped", "waiting", "failed")
REDRAWN = 2.0
"""Seconds between two looks at a suite."""


@dataclass
class SuiteCommand:
    """Many runs as one: what they cost (plan), train them (run), how far they are (status), one file of results (collect)."""

    verb: Annotated[Positional[str | None], arg(metavar="plan|run|status|collect")] = None
    """What to do. `run` goes on where it was, and each cell is done once; `status` may be asked from another terminal."""
    name: Annotated[Positional[str | None], arg(metavar="NAME")] = None
    """A suite that comes with ube (--list), or the path of your own .toml file."""
    list: bool = False
    """List the suites that come with ube, and stop."""
    out: Path = Path("suites")
    """Folder of all suites; this one is in OUT/NAME."""
    workers: Annotated[int | None, arg(metavar="N")] = None
    """Processes side by side, which share the cores; one for each core if not given."""
    modules: Annotated[tuple[str, ...], arg(metavar="MODULE ...")] = ()
    """Of yours, that environments and networks module:NAME may come from: a file alone may not choose what is run."""
    executor: Annotated[str, arg(metavar="local|ray")] = "local"
    """Where cells run: processes of this machine, or tasks of a Ray cluster (pip install 'ube-rl[cluster]')."""
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    """Of the Ray cluster, if it is not that of this machine; all its nodes must see OUT under the same path."""
    checkpoint_minutes: Annotated[float, arg(metavar="M")] = 10.0
    """Minutes between the checkpoints of a cell: as much as a killed process can lose."""
    measure: bool = False
    """For plan: measure rates anew, instead of taking those of the last plan in OUT."""
    rate: Annotated[float | None, arg(metavar="R")] = None
    """For plan: frames (outside of Atari, steps) a second of one worker on your machine, instead of measuring this one."""
    all: bool = False
    """For plan and status: a line for every cell."""

    def run(self) -> None:
        from ube.suite import read_suite, shipped

        if self.list:
            for name, about in shipped().items():
                print(f"{name:14} {about}")
            return
        if self.verb is None:
            raise UsageError(f"ube suite: choose one of {', '.join(VERBS)}; `ube suite --list` shows the suites")
        if self.verb not in VERBS:
            raise UsageError(f"ube suite {self.verb}: {nearest(self.verb, VERBS)}")
        if self.name is None:
            raise UsageError("which suite? `ube suite --list` shows them; your own is a file that ends in .toml")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers {self.workers}: at least 1")
        suite = read_suite(self.name, self.modules if self.verb in ("plan", "run") else None)
        getattr(self, f"_{self.verb}")(suite, self.out / suite.name)

    def _plan(self, suite: Suite, folder: Path) -> None:
        from ube.machine import gigabytes
        from ube.suite.execute import threads_each
        from ube.suite.plan import PAPER_RATE, costs, measured, room_at_once, warnings

        workers = self.workers or os.cpu_count() or 1
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise UsageError(f"--rate {self.rate}: it must be positive")
        console = _console()
        if self.all:
            for cell in suite.cells:
                console.print(f"{cell.id}  {cell.steps:,} decisions")
        rates: Any = self.rate or measured(suite, folder, threads_each(workers), anew=self.measure, say=_say)
        found = costs(suite, rates)
        whole = found[-1]
        of_atari = ("frames", "days at the paper's rate") if whole.frames else ()
        table = Table("agent", "cells", "decisions", "worker-hours", *of_atari, title=_title(suite))
        for cost in found:
            more = (f"{cost.frames:,}", _number(cost.frames / PAPER_RATE / 86_400)) if whole.frames else ()
            table.add_row(cost.agent, str(cost.cells), f"{cost.decisions:,}", _number(cost.hours), *more)
        console.print(table)
        source = f"{self.rate:g} a second" if self.rate else f"the rates in {folder / 'rates.json'} (--measure: anew)"
        console.print(f"{workers} workers: {_duration(3600 * whole.hours / workers)} in all, at {source}")
        console.print("Not counted: each process starts, and compiles each kind of cell, for some seconds to a minute.")
        if whole.frames:
            console.print("The paper's rate is that of one GPU: 200 million frames in 8 days.")
        needed = room_at_once(suite, workers, self.checkpoint_minutes)
        console.print(f"{gigabytes(needed.memory)} of memory, {gigabytes(needed.disk)} of disk")
        for warning in warnings(needed, folder, workers):
            console.print(f"warning: {warning}", style="bold")

    def _run(self, suite: Suite, folder: Path) -> None:
        from ube.suite import run_on_ray, run_suite

        if self.executor not in ("local", "ray"):
            raise UsageError(f"--executor {self.executor}: choose local or ray")
        if self.address is not None and self.executor != "ray":
            raise UsageError(f"--address {self.address}: only of --executor ray")
        if not self.checkpoint_minutes > 0:
            raise UsageError(f"--checkpoint-minutes {self.checkpoint_minutes:g}: it must be positive")
        _check_writable(folder)
        run, where = (
            (run_suite, {"workers": self.workers})
            if self.executor == "local"
            else (run_on_ray, {"address": self.address})
        )
        with watched(suite, folder) as said:
            outcome = run(suite, folder, checkpoint_minutes=self.checkpoint_minutes, said=said, **where)
        _console().print(_status_table(suite, folder))
        for cell, why in outcome.failures.items():
            print(plain(f"{cell} failed: {_last_line(why)}"), file=sys.stderr)
        number, ends = len(suite.cells), []
        if outcome.failures:
            ends.append(f"{len(outcome.failures)} of {number} cells failed; the same command tries them again")
        if outcome.left:
            ends.append(f"{len(outcome.left)} of {number} cells were left to another process")
        if ends:
            raise RunError("; ".join(ends))
        print(f"`ube suite collect {self.name} --out {self.out}` makes one file of it")

    def _status(self, suite: Suite, folder: Path) -> None:
        from ube.suite.status import status

        console = _console()
        if self.all:
            for one in status(suite, folder):
                why = f"  {plain(_last_line(one.message))}" if one.message else ""
                console.print(f"{one.cell.id}  {one.state}  {one.step:,} of {one.cell.steps:,}{why}")
        console.print(_status_table(suite, folder))

    def _collect(self, suite: Suite, folder: Path) -> None:
        from ube.suite import collect, write_csv

        found = collect(suite, folder)
        if not len(found):
            raise UsageError(f"{folder} has no finished cell yet: `ube suite run {self.name} --out {self.out}`")
        path = folder / "results.csv"
        write_csv(suite, found, shlex.join(sys.argv), path)
        number = len(suite.cells)
        print(f"Wrote {path}: {len(found):,} rows of {number - len(found.missing)} of {number} cells")
        if found.missing:
            print(f"missing: {', '.join(cell.id for cell in found.missing[:5])}{' …' if found.missing[5:] else ''}")
        if found.strangers:
            print(plain(f"left out, since not of this suite: {', '.join(found.strangers[:5])}"))


def _check_writable(folder: Path) -> None:
    """Once, before every cell fails with it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write to {folder} ({error.strerror}): choose another place (--out)") from None


def _console(**options: Any) -> Console:
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160, **options)


def _say(text: str) -> None:
    print(f"ube: {text}", file=sys.stderr, flush=True)


def _title(suite: Suite) -> str:
    return plain(f"{suite.name}, {len(suite.cells)} cells: {suite.about}")


def _status_table(suite: Suite, folder: Path) -> Table:
    from ube.suite.status import lines, seconds_left, status

    found = status(suite, folder)
    left = seconds_left(found)
    caption = f"about {_duration(left)} left" if left is not None else "nothing is running"
    table = Table("agent", "cells", *STATES, "trained", title=_title(suite), caption=caption)
    for line in lines(found):
        numbers = [str(line.states[state]) for state in STATES]
        table.add_row(line.name, str(line.states.total()), *numbers, f"{100 * line.share:.1f} %")
    return table


def _last_line(message: str) -> str:
    return (message.strip().splitlines() or [""])[-1]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    for unit, size in (("years", 365.25 * 86_400), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


@contextmanager
def watched(suite: Suite, folder: Path) -> Iterator[Callable[[str], None]]:
    """A table that is drawn again and again on a terminal; a line for each finished cell elsewhere."""
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield _say
        return
    ended = threading.Event()
    with Live(_status_table(suite, folder), console=console, auto_refresh=False) as live:

        def redraw() -> None:
            while not ended.wait(REDRAWN):
                live.update(_status_table(suite, folder), refresh=True)

        drawer = threading.Thread(target=redraw, daemon=True)
        drawer.start()
        try:
            yield live.console.print
        finally:
            ended.set()
            drawer.join()
