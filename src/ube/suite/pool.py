"""Tasks over processes of their own, each with its share of the threads; a process that dies takes only its task with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType, ModuleType, TracebackType
from typing import Any, Literal, Protocol

from ube.errors import RunError, UsageError

GRACE = 60.0
"""Seconds that a task is given to keep what it has when all is to stop."""
MOST_PROGRAMS = 10
"""That a process compiles in its life: XLA gives back neither their memory nor their maps, of which there is an end."""


class Task(Protocol):
    """What a process can be asked to do. It is pickled, so it must be of a module."""

    @property
    def name(self) -> str: ...

    @property
    def program(self) -> str:
        """Tasks alike in this share a compiled program, and so a process."""

    @property
    def memory(self) -> float:
        """Bytes."""

    def run(self) -> Any: ...


@dataclass(frozen=True)
class Failure:
    kind: Literal["usage", "failed", "died"]
    message: str


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    program: str = ""
    """Of its last task, which it need not compile again."""
    programs: int = 0
    """So far."""


class Deaths:
    """Of tasks whose process died: each may begin again `retries` times since what `kept` says it has kept was last new."""

    def __init__(self, retries: int, kept: Callable[[Task], Any]) -> None:
        self.retries, self.kept = retries, kept
        self.counts = Counter[tuple[int, Any]]()

    def again(self, task: Task) -> bool:
        """After one more death of it."""
        at = (id(task), self.kept(task))
        self.counts[at] += 1
        return self.counts[at] <= self.retries


class Pool:
    """with Pool(2) as pool: for task, outcome in pool.finish(tasks): ...

    An outcome is what the task gave, or a Failure. threads: of each process. memory: bytes that all running tasks may need
    together; one task may always run. retries: how often a task begins again after its process died; what `kept` says it
    has kept, where that is new, makes the count begin again. environment: variables of the processes. Ctrl-C gives tasks
    time to keep what they have.
    """

    def __init__(
        self, processes: int | None = None, *, threads: int = 1, memory: float | None = None, retries: int = 0,
        kept: Callable[[Task], Any] = lambda task: None, environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.processes = processes or os.cpu_count() or 1
        self.memory, self.deaths = memory, partial(Deaths, retries, kept)
        self.environment = {**few_threads(threads), **environment}
        self.workers: list[_Worker] = []
        self.busy: dict[Connection, tuple[_Worker, Task]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop(gently=kind is not None and issubclass(kind, KeyboardInterrupt))

    def stop(self, *, gently: bool = False) -> None:
        """At once, or after tasks that know how to stop have kept what they have."""
        if gently:
            busy = [worker.process for worker, _ in self.busy.values()]
            for pipe in self.busy:
                pipe.close()  # for those that have yet to start, and do not listen to the signal
            for process in busy:
                os.kill(process.pid, signal.SIGINT)  # type: ignore[arg-type]
            end = time.monotonic() + GRACE
            for process in busy:
                process.join(max(0.0, end - time.monotonic()))
        for worker in self.workers:
            worker.process.kill()  # SIGTERM would be heard as a request, and one that hangs would not answer it
        for worker in self.workers:
            self._buried(worker)
        self.busy = {}

    def finish(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        """Tasks and their outcomes as they get ready. A process stays with a program while there are tasks for it."""
        if self.busy:  # left by an error: their answers must not meet the next question
            self.stop()
        waiting: dict[str, deque[Task]] = {}
        for task in tasks:
            waiting.setdefault(task.program, deque()).append(task)
        idle, deaths = list(self.workers), self.deaths()
        while any(waiting.values()) or self.busy:
            while any(waiting.values()) and (idle or len(self.workers) < self.processes):
                running = [task for _, task in self.busy.values()]
                task = _choose(idle[-1].program if idle else "", waiting, {other.program for other in running})
                if running and not self._fit([task, *running]):
                    waiting[task.program].appendleft(task)
                    break
                if not self._ask(self._worker_for(task, idle), task):
                    waiting[task.program].appendleft(task)
            ready = wait(list(self.busy))
            for pipe in [pipe for pipe in self.busy if pipe in ready]:
                worker, task = self.busy.pop(pipe)
                outcome = self._outcome(worker)
                if not isinstance(outcome, Failure) or outcome.kind != "died":
                    idle.append(worker)
                elif deaths.again(task):
                    waiting[task.program].append(task)
                    continue
                yield task, outcome

    def _fit(self, tasks: list[Task]) -> bool:
        return self.memory is None or sum(task.memory for task in tasks) <= self.memory

    def _worker_for(self, task: Task, idle: list[_Worker]) -> _Worker:
        """One of the idle; a new one where there is none, or in the place of one that has compiled enough."""
        if not idle:
            return self._start()
        worker = idle.pop()
        if worker.program == task.program or worker.programs < MOST_PROGRAMS:
            return worker
        worker.process.terminate()
        self._buried(worker)
        return self._start()

    def _ask(self, worker: _Worker, task: Task) -> bool:
        """Whether it is alive."""
        try:
            worker.pipe.send(task)
        except ConnectionError:
            self._buried(worker)
            return False
        worker.programs += worker.program != task.program
        worker.program = task.program
        self.busy[worker.pipe] = worker, task
        return True

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, os.getpid()), daemon=True)
        with _environment(self.environment), _script_at_rest(), _deaf_to_ctrl_c():
            process.start()
        there.close()
        worker = _Worker(process, here)
        self.workers.append(worker)
        return worker

    def _outcome(self, worker: _Worker) -> Any:
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, ConnectionError):
            self._buried(worker)
            code = worker.process.exitcode
            return Failure("died", f"its process died (exit code {code}; -9 is often a lack of memory)")
        return content if kind == "done" else Failure(kind, content)

    def _buried(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        self.workers = [other for other in self.workers if other is not worker]


def few_threads(threads: int) -> dict[str, str]:
    """For numpy and XLA, which read these once, when they are imported."""
    few = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    if threads > 1:
        return few
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return few | {"XLA_FLAGS": flags, "NPROC": "1"}  # the flag alone leaves XLA a pool of as many threads as cores


def _choose(last: str, waiting: dict[str, deque[Task]], taken: set[str]) -> Task:
    """Of the process's last program; else of one that no other has; else help where most is left."""
    left = {program: tasks for program, tasks in waiting.items() if tasks}
    fresh = [program for program in left if program not in taken]
    program = last if last in left else fresh[0] if fresh else max(left, key=lambda p: len(left[p]))
    return left[program].popleft()


def _work(pipe: Connection, parent: int) -> None:
    """The life of a process. Ctrl-C reaches only the parent, which passes it on to those with a task."""
    os.setpgrp()
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        while True:
            task = pipe.recv()
            if pipe.poll():  # the parent is gone, or stopped before this process could hear of it
                return
            pipe.send(answer(task))


def answer(task: Task) -> tuple[str, Any]:
    try:
        return "done", task.run()
    except UsageError as error:
        return "usage", str(error)
    except RunError as error:
        return "failed", str(error)
    except MemoryError as error:
        return "failed", f"not enough memory ({error}): take fewer workers (--workers), or a smaller replay_size"
    except Exception:
        return "failed", traceback.format_exc()


def _end_with(parent: int) -> None:
    """A process whose parent was killed stops as after Ctrl-C, and then for good."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """For the processes started inside, until they say what to do with it: a terminal sends it to all, and they would
    print where they were. Only the main thread may decide that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _script_at_rest() -> Iterator[None]:
    """A new process imports the script that was started, for what it may register; not one that would run again from the
    top, since it does not ask for its `__name__`."""
    script = sys.modules["__main__"]
    try:
        asks = "__name__" in Path(script.__file__ or "").read_text(encoding="utf-8", errors="ignore")
    except (AttributeError, OSError):
        asks = True
    if not asks:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """For the processes started inside."""
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
