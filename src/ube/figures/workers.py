"""Learning cells over processes of one thread each. Each result is written at once, and never computed twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from ube.errors import RunError, UsageError
from ube.figures.experiment import Progress
from ube.figures.learning_cells import Cell, Result, code_digest
from ube.files import to_json, write_atomically

_DIGITS = 9  # a float32 comes back from its text


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    program: str = ""
    """Of its last cell, which it need not compile again."""


class Workers:
    """with Workers(folder, progress) as workers: results = workers.run("what", cells)

    A stopped run goes on where it was when it is asked for again with the same folder.
    """

    def __init__(self, folder: Path, progress: Progress, processes: int | None = None):
        self.folder, self.progress = folder, progress
        self.processes = processes or os.cpu_count() or 1
        self.workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()
        self.workers = []

    def run(self, what: str, cells: Sequence[Cell]) -> list[Result]:
        """In the order of the cells."""
        results = {cell.key: found for cell in cells if (found := self._kept(cell)) is not None}
        waiting: dict[str, deque[Cell]] = {}
        for key, cell in {cell.key: cell for cell in cells}.items():
            if key not in results:
                waiting.setdefault(cell.program, deque()).append(cell)
        self.progress(what, sum(cell.key in results for cell in cells), len(cells))
        try:
            for cell, result in self._finish(waiting):
                results[cell.key] = self._keep(cell, result)
                self.progress(what, sum(cell.key in results for cell in cells), len(cells))
        except BaseException:
            self._stop()  # others are still busy: their answers must not meet the next question
            raise
        return [results[cell.key] for cell in cells]

    def _finish(self, waiting: dict[str, deque[Cell]]) -> Iterator[tuple[Cell, Result]]:
        """Cells as they get ready. A worker stays with a program while there are cells for it."""
        idle, busy = list(self.workers), dict[Connection, tuple[_Worker, Cell]]()
        while any(waiting.values()) or busy:
            while any(waiting.values()) and (idle or len(self.workers) < self.processes):
                worker = idle.pop() if idle else self._start()
                cell = _choose(worker.program, waiting, {taken.program for taken, _ in busy.values()})
                worker.program = cell.program
                worker.pipe.send((cell, self.folder, code_digest()))
                busy[worker.pipe] = worker, cell
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, cell = busy.pop(pipe)
                yield cell, _received(worker, cell)
                idle.append(worker)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), daemon=True)
        with _environment(_ONE_THREAD | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_XLA}".strip()}):
            process.start()
        there.close()
        worker = _Worker(process, here)
        self.workers.append(worker)
        return worker

    def _kept(self, cell: Cell) -> Result | None:
        try:
            kept = json.loads((self.folder / f"{cell.key}.json").read_text())
            return kept["result"] if kept["cell"] == json.loads(to_json(cell.spec, _DIGITS)) else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, cell: Cell, result: Result) -> Result:
        text = to_json({"cell": cell.spec, "result": result}, _DIGITS)
        write_atomically(self.folder / f"{cell.key}.json", text)
        return json.loads(text)["result"]  # the same whether it was computed now or before


_XLA = "--xla_cpu_multi_thread_eigen=false"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def _choose(last: str, waiting: dict[str, deque[Cell]], taken: set[str]) -> Cell:
    """Of the worker's last program; else of one that no other worker has; else help where most is left."""
    left = {program: cells for program, cells in waiting.items() if cells}
    fresh = [program for program in left if program not in taken]
    program = last if last in left else fresh[0] if fresh else max(left, key=lambda p: len(left[p]))
    return left[program].popleft()


def _received(worker: _Worker, cell: Cell) -> Result:
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        raise RunError(
            f"{cell.name}: its process died (exit code {worker.process.exitcode}; -9 is often a lack of memory); "
            "the same command goes on from the cells that are finished"
        ) from None
    if kind == "usage":
        raise UsageError(f"{cell.name}: {content}")
    if kind == "failed":
        raise RunError(f"{cell.name}: {content}")
    return content


def _work(pipe: Connection) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    while True:
        try:
            cell, kept, code = pipe.recv()
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            if code != code_digest():  # this process has read the files anew
                raise UsageError("the code of ube was changed while the experiment ran: start it again")
            answer = "done", cell.run(kept)
        except UsageError as error:
            answer = "usage", str(error)
        except RunError as error:
            answer = "failed", str(error)
        except Exception:
            answer = "failed", traceback.format_exc()
        pipe.send(answer)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """For the processes started inside: numpy and XLA read these once, when they are imported."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
