"""Runs what is left of a suite: each cell once, whatever happens to the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ube.errors import UsageError
from ube.machine import free_memory
from ube.suite.cells import Suite
from ube.suite.pool import Failure, Pool
from ube.suite.work import CellTask, done, failed, folder_of

RETRIES = 3
"""How often a cell goes on from its checkpoint after its process died."""


class Outcome(NamedTuple):
    finished: int
    """Cells that are done, now or before."""
    failures: dict[str, str]
    """id of a cell -> why."""


def threads_each(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


def run_suite(
    suite: Suite, folder: Path, *, workers: int | None = None, checkpoint_minutes: float = 10.0,
    said: Callable[[str], None] = lambda text: None,
) -> Outcome:  # fmt: skip
    """On this machine. Cells that are done are left alone; Ctrl-C stops with a checkpoint of those that run."""
    workers = workers or os.cpu_count() or 1
    if workers < 1:
        raise UsageError(f"workers={workers}: at least 1")
    left = [CellTask(cell, folder, checkpoint_minutes) for cell in suite.cells if done(folder_of(folder, cell)) is None]
    failures: dict[str, str] = {}
    pool = Pool(workers, threads=threads_each(workers), memory=free_memory(), retries=RETRIES)
    with pool:
        for task, outcome in pool.finish(left):
            assert isinstance(task, CellTask)
            if outcome is None:
                said(f"{task.name} is being run by another process: left to it")
            elif isinstance(outcome, Failure):
                failures[task.name] = outcome.message
                failed(task.folder, outcome.message)
                said(f"{task.name} failed: {outcome.message.strip().splitlines()[-1]}")
            else:
                said(f"{task.name} is done")
    return Outcome(sum(done(folder_of(folder, cell)) is not None for cell in suite.cells), failures)
