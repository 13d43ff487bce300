"""A suite of very many very small cells, run by two executors at once while many look at it: each cell once."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from faults.kills import TESTS
from ube.runs import training
from ube.suite import collect, run_suite, status
from ube.suite.cells import Suite, parsed
from ube.suite.status import lines
from ube.suite.work import DONE, CellTask, folder_of

CELLS = """
[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
seeds = {cells}
steps = 16
evaluation_episodes = 1
set = {{ hidden = [4], batch_size = 4, warmup = 8, replay_size = 64, "env.size" = 3 }}
"""
BEGUN = "FAULTS_BEGUN"


def suite(cells: int) -> Suite:
    return parsed("many", CELLS.format(cells=cells), "many.toml")


def counted(folder: Path) -> None:
    """Every training that begins leaves a line with its cell, whoever does it."""
    learn = training._learn

    def noted(session: Any, directory: Any, *rest: Any) -> None:
        handle = os.open(folder / "begun", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{directory.path.parent.name}\n".encode())
        os.close(handle)
        learn(session, directory, *rest)

    training._learn = noted


def loaded(folder: Path, cells: int, executors: int = 2, lookers: int = 8) -> dict[str, Any]:
    """Runs it; what was counted."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "faults.load", str(folder), str(cells)],
            env=os.environ | {"PYTHONPATH": paths, BEGUN: str(folder)},
        )
        for _ in range(executors)
    ]
    looks, wrong, ended = [0] * lookers, [], threading.Event()

    def look(number: int) -> None:
        """What is done never becomes less."""
        before = 0
        while not ended.is_set():
            (*_, line) = lines(status(suite(cells), folder / "many"))
            if line.states["done"] < before or line.states["failed"]:
                wrong.append(dict(line.states))
            before = line.states["done"]
            looks[number] += 1
            time.sleep(0.2)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(lookers)]
    for thread in threads:
        thread.start()
    codes = [process.wait() for process in started]
    ended.set()
    for thread in threads:
        thread.join()
    begun = (folder / "begun").read_text().split()
    whole = collect(suite(cells), folder / "many")
    assert codes == [0] * executors
    assert wrong == []
    assert sorted(begun) == sorted(cell.id for cell in suite(cells).cells), "a cell was not begun exactly once"
    assert whole.missing == []
    _as_alone(folder, cells)
    return {"cells": cells, "executors": executors, "begun": len(begun), "looks": sum(looks), "rows": len(whole)}


def _as_alone(folder: Path, cells: int) -> None:
    (*_, last) = suite(cells).cells
    alone = CellTask(last, folder / "alone").run()
    there = json.loads((folder_of(folder / "many", last) / DONE).read_text())
    assert alone is not None
    assert (alone["training"], alone["evaluations"]) == (there["training"], there["evaluations"])


if BEGUN in os.environ:  # also in the workers
    counted(Path(os.environ[BEGUN]))
if __name__ == "__main__":
    outcome = run_suite(suite(int(sys.argv[2])), Path(sys.argv[1]) / "many", workers=1)
    sys.exit(len(outcome.failures))
