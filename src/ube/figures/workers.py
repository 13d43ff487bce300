"""Learning cells over processes of one thread each. Each result is written at once, and never computed twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ube.errors import RunError, UsageError
from ube.figures.experiment import Progress
from ube.figures.learning_cells import Cell, Result, code_digest
from ube.files import to_json, write_atomically
from ube.reading import read_table
from ube.suite.pool import Failure, Pool

_DIGITS = 9  # a float32 comes back from its text


@dataclass(frozen=True)
class _Task:
    """A cell, the folder for what it takes to go on after a stop, and the code it was asked by."""

    cell: Cell
    kept: Path
    code: str
    memory = 0.0

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def program(self) -> str:
        return self.cell.program

    def run(self) -> Result:
        if self.code != code_digest():  # this process has read the files anew
            raise UsageError("the code of ube was changed while the experiment ran: start it again")
        return self.cell.run(self.kept)


class Workers:
    """with Workers(folder, progress) as workers: results = workers.run("what", cells)

    A stopped run goes on where it was when it is asked for again with the same folder.
    """

    def __init__(self, folder: Path, progress: Progress, processes: int | None = None):
        self.folder, self.progress = folder, progress
        self.pool = Pool(processes, environment={"JAX_PLATFORMS": "cpu"})

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.pool.stop(gently=kind is KeyboardInterrupt)

    def run(self, what: str, cells: Sequence[Cell]) -> list[Result]:
        """In the order of the cells. The first failure stops all."""
        results = {cell.key: found for cell in cells if (found := self._kept(cell)) is not None}
        left = {cell.key: cell for cell in cells if cell.key not in results}
        self.progress(what, sum(cell.key in results for cell in cells), len(cells))
        for task, outcome in self.pool.finish([_Task(cell, self.folder, code_digest()) for cell in left.values()]):
            if isinstance(outcome, Failure):
                self.pool.stop()
                go_on = "; the same command goes on from the cells that are finished" if outcome.kind == "died" else ""
                raise (UsageError if outcome.kind == "usage" else RunError)(f"{task.name}: {outcome.message}{go_on}")
            assert isinstance(task, _Task)
            results[task.cell.key] = self._keep(task.cell, outcome)
            self.progress(what, sum(cell.key in results for cell in cells), len(cells))
        return [results[cell.key] for cell in cells]

    def _kept(self, cell: Cell) -> Result | None:
        try:
            kept = read_table(self.folder / f"{cell.key}.json", inside=self.folder, remedy="it is run again")
        except (FileNotFoundError, UsageError):
            return None
        same = kept.get("cell") == json.loads(to_json(cell.spec, _DIGITS)) and isinstance(kept.get("result"), dict)
        return kept["result"] if same else None

    def _keep(self, cell: Cell, result: Result) -> Result:
        text = to_json({"cell": cell.spec, "result": result}, _DIGITS)
        write_atomically(self.folder / f"{cell.key}.json", text)
        return json.loads(text)["result"]  # the same whether it was computed now or before
