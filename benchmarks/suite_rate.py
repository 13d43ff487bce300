"""What `ube suite run` costs beside its cells: the time that its process pool does not spend in them, two workers against
one, and how long plan, status and collect of many cells take.

Cells of about a minute with one thread each, the same for one worker and two. Not in cells: starting processes, importing,
handing out tasks and writing down how they went. A cell's own time includes compiling, checkpoints and its results file.
The commands are timed whole, from the shell, over folders in which every cell is done: 684 of the paper's suite with 200
evaluations by two policies each, and 10,000 of DeepSea. `plan` is given a rate: measuring one is training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from ube.files import versions
from ube.suite.cells import Cell, Suite, parsed, read_suite
from ube.suite.pool import Pool
from ube.suite.work import BINS, DONE, CellTask, columns, folder_of

CELLS = 4
MANY = """
[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
seeds = 10_000
steps = 1_000
"""
LIMITS = {684: 2.0, 10_000: 20.0}
"""Seconds: "a second or two", and "still usable"."""


def measured(folder: Path, workers: int, steps: int) -> tuple[float, list[float]]:
    """Seconds of all, and of each cell in its process."""
    cells = [Cell("DeepSea-v0", "dqn", seed, steps, env_args={"size": 20}) for seed in range(CELLS)]
    tasks = [CellTask(cell, folder) for cell in cells]
    with Pool(workers, threads=1) as pool:
        total, outcomes = common.timed(lambda: [outcome for _, outcome in pool.finish(tasks)])
    return total, [outcome["seconds_since_last_start"] for outcome in outcomes]


def finish(suite: Suite, folder: Path) -> None:
    """As if every cell had been trained and evaluated."""
    made_by = versions()
    for cell in suite.cells:
        periods = (
            range(cell.evaluate_every, cell.steps + 1, cell.evaluate_every) if cell.evaluate_every else [cell.steps]
        )
        parts = [(end + 1) * cell.steps // BINS for end in range(BINS)]
        kept: dict[str, Any] = {
            "cell": cell.spec, "config_digest": cell.config_digest, "versions": made_by, "resumed_with": [],
            "evaluations": columns([row(step, policy) for step in periods for policy in ("greedy", "own")]),
            "training": columns([row(step, "training") for step in parts]), "seconds_since_last_start": 60.0,
        }  # fmt: skip
        place = folder_of(folder, cell)
        (place / "run").mkdir(parents=True)
        (place / DONE).write_text(json.dumps(kept))


def row(step: int, policy: str) -> dict[str, Any]:
    return {"step": step, "policy": policy, "mean": step / 7, "episodes": 10}


def commands(suite: Suite, name: str, out: Path) -> dict[str, float]:
    """Seconds of each, in a process of its own."""
    finish(suite, out / suite.name)
    verbs = {"plan": ["--rate", "1000"], "status": [], "collect": []}
    asked = {
        verb: [sys.executable, "-m", "ube", "suite", verb, name, "--out", str(out), *more]
        for verb, more in verbs.items()
    }
    return {
        verb: common.timed(lambda words=words: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))[0]
        for verb, words in asked.items()
    }


def bookkeeping() -> dict[int, dict[str, float]]:
    """Cells -> command -> seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "many.toml"
        file.write_text(MANY)
        suites = [("atari57", read_suite("atari57")), (str(file), parsed("many", MANY, str(file)))]
        return {len(suite.cells): commands(suite, name, Path(folder)) for name, suite in suites}


def main() -> None:
    given = common.arguments(__doc__, "suite_rate", steps=dict(type=int, default=400_000, help="decisions of a cell"))
    load = os.getloadavg()
    took = bookkeeping()
    common.table(("cells", *took[684]), [(f"{cells:,}", *seconds.values()) for cells, seconds in took.items()])
    rows = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            rows[workers] = measured(Path(folder), workers, given.steps)
    common.table(
        ("workers", "seconds in all", "in cells", "cells a minute"),
        [(str(workers), total, sum(cells), 60 * CELLS / total) for workers, (total, cells) in rows.items()],
    )
    (alone, in_cells), (together, _) = rows[1], rows[2]
    demands = [
        common.demand(f"seconds of {verb} of {cells:,} cells", seconds, LIMITS[cells])
        for cells, of in took.items()
        for verb, seconds in of.items()
    ]
    demands += [
        common.demand("time outside of cells, as a share of theirs, one worker", alone / sum(in_cells) - 1, 0.02),
        common.demand("throughput of two workers over one", alone / together, 1.8, least=True),
    ]
    runs = {str(workers): {"seconds": total, "cells": cells} for workers, (total, cells) in rows.items()}
    kept = {"workers": runs, "commands": {str(cells): of for cells, of in took.items()}, "demands": demands}
    common.write(given.out, "suite_rate", load, kept)


if __name__ == "__main__":
    main()
