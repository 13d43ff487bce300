"""What the process pool of `ube suite run` costs: the time that is not spent in cells, and two workers against one.

Cells of about a minute with one thread each, the same for both. Not in cells: starting processes, importing, handing out
tasks and writing down how they went. A cell's own time includes compiling, checkpoints and its results file.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks import common
from ube.suite.cells import Cell
from ube.suite.pool import Pool
from ube.suite.work import CellTask

CELLS = 4


def measured(folder: Path, workers: int, steps: int) -> tuple[float, list[float]]:
    """Seconds of all, and of each cell in its process."""
    cells = [Cell("DeepSea-v0", "dqn", seed, steps, env_args={"size": 20}) for seed in range(CELLS)]
    tasks = [CellTask(cell, folder) for cell in cells]
    with Pool(workers, threads=1) as pool:
        total, outcomes = common.timed(lambda: [outcome for _, outcome in pool.finish(tasks)])
    return total, [outcome["seconds_since_last_start"] for outcome in outcomes]


def main() -> None:
    given = common.arguments(__doc__, "suite_rate", steps=dict(type=int, default=400_000, help="decisions of a cell"))
    load = os.getloadavg()
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
        common.demand("time outside of cells, as a share of theirs, one worker", alone / sum(in_cells) - 1, 0.02),
        common.demand("throughput of two workers over one", alone / together, 1.8, least=True),
    ]
    runs = {str(workers): {"seconds": total, "cells": cells} for workers, (total, cells) in rows.items()}
    common.write(given.out, "suite_rate", load, {"workers": runs, "demands": demands})


if __name__ == "__main__":
    main()
