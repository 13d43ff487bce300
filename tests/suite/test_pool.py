"""Processes that work, fail, die, are told to stop, and lose their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from ube import RunError, UsageError
from ube.suite.pool import MOST_PROGRAMS, Failure, Pool, _choose


@dataclass(frozen=True)
class Small:
    """Writes a line that it ran, and then does what it is told."""

    name: str
    log: Path
    act: str = "answer"
    memory: float = 0.0
    program: str = ""

    def note(self, word: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{self.name} {word} {time.monotonic()}\n")

    def run(self) -> str:
        self.note("began")
        if self.act == "misuse":
            raise UsageError("not like this")
        if self.act == "fail":
            raise RunError("it went wrong")
        if self.act == "stumble":
            raise ZeroDivisionError("over a stone")
        if self.act == "die" or (self.act == "die once" and lines(self.log).count(f"{self.name} began") == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act == "last":
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                self.note("kept")
                raise
        if self.act == "meet":
            while sum(line.endswith("began") for line in lines(self.log)) < 2:
                time.sleep(0.01)
        if self.act == "wait":
            time.sleep(0.1)
        if self.act == "process":
            return str(os.getpid())
        self.note("ended")
        return os.environ["OMP_NUM_THREADS"] + os.environ.get("SAID", "")


def lines(log: Path) -> list[str]:
    return [line.rsplit(" ", 1)[0] for line in log.read_text().splitlines()]


def finish(pool: Pool, *tasks: Small) -> dict[str, object]:
    return {task.name: outcome for task, outcome in pool.finish(tasks)}


def test_a_task_that_fails_or_dies_takes_nothing_else_with_it(tmp_path: Path) -> None:
    acts = ("answer", "misuse", "fail", "stumble", "die", "wait")
    with Pool(2, threads=3, environment={"SAID": "!"}) as pool:
        outcomes = finish(pool, *(Small(act, tmp_path / "log", act) for act in acts))
        again = finish(pool, Small("later", tmp_path / "log"))
    assert (outcomes["answer"], outcomes["wait"], again) == ("3!", "3!", {"later": "3!"})
    assert outcomes["misuse"] == Failure("usage", "not like this")
    assert outcomes["fail"] == Failure("failed", "it went wrong")
    assert isinstance(outcomes["stumble"], Failure)
    assert "ZeroDivisionError: over a stone" in outcomes["stumble"].message
    assert isinstance(outcomes["die"], Failure)
    assert outcomes["die"].message.startswith("its process died (exit code -9")
    assert multiprocessing.active_children() == []


def test_a_process_that_has_compiled_enough_programs_makes_room_for_another(tmp_path: Path) -> None:
    """XLA keeps what it compiled; a process that went through some forty programs ran out of memory maps."""
    programs = [str(number) for number in range(MOST_PROGRAMS + 1)]
    with Pool(1) as pool:
        tasks = [Small(p + which, tmp_path / "log", "process", program=p) for p in programs for which in "ab"]
        processes = list(finish(pool, *tasks).values())
        assert len(pool.workers) == 1
    assert len(set(processes[: 2 * MOST_PROGRAMS])) == 1
    assert len(set(processes[2 * MOST_PROGRAMS :])) == 1
    assert len(set(processes)) == 2
    assert multiprocessing.active_children() == []


def test_a_task_begins_again_where_its_process_died(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Pool(1, retries=2) as pool:
        outcomes = finish(pool, Small("once", log, "die once"), Small("always", log, "die"))
    assert outcomes["once"] == "1"
    assert isinstance(outcomes["always"], Failure)
    assert [lines(log).count(f"{name} began") for name in ("once", "always")] == [2, 3]


def test_what_a_task_kept_makes_its_deaths_count_anew(tmp_path: Path) -> None:
    """It has kept something new at its first two deaths."""
    log = tmp_path / "log"
    with Pool(1, retries=1, kept=lambda task: min(2, lines(log).count("always began"))) as pool:
        outcomes = finish(pool, Small("always", log, "die"))
    assert isinstance(outcomes["always"], Failure)
    assert lines(log).count("always began") == 3


def test_a_process_that_starts_hears_no_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would print where its imports were."""
    heard: list[object] = []
    start, before = SpawnProcess.start, signal.getsignal(signal.SIGINT)

    def watched(self: SpawnProcess) -> None:
        heard.append(signal.getsignal(signal.SIGINT))
        start(self)
        os.kill(self.pid, signal.SIGINT)  # type: ignore[arg-type]

    monkeypatch.setattr(SpawnProcess, "start", watched)
    with Pool(1) as pool:
        assert finish(pool, Small("quick", tmp_path / "log")) == {"quick": "1"}
    assert heard == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_was_told_to_stop_as_it_started_does_nothing(tmp_path: Path) -> None:
    pool = Pool(1)
    assert pool._ask(pool._start(), Small("late", tmp_path / "log", "last"))
    pool.stop(gently=True)
    assert not (tmp_path / "log").exists()
    assert pool.workers == []


def test_no_more_runs_at_once_than_memory_allows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    needs = {"a": 5.0, "b": 5.0, "c": 6.0, "d": 6.0, "e": 99.0}
    tasks = [Small(name, log, "meet" if name in "ab" else "wait", need, name) for name, need in needs.items()]
    with Pool(2, memory=10.0) as pool:
        assert len(finish(pool, *tasks)) == 5
    running, together = set(), set()
    for line in lines(log):
        name, word = line.split()
        (running.add if word == "began" else running.remove)(name)
        together.add("".join(sorted(running)))
    assert together - {"a", "b"} == {"", "ab", "c", "d", "e"}


def test_a_process_that_died_while_idle_is_replaced(tmp_path: Path) -> None:
    with Pool(1) as pool:
        finish(pool, Small("first", tmp_path / "log"))
        pool.workers[0].process.kill()
        pool.workers[0].process.join()
        assert finish(pool, Small("second", tmp_path / "log")) == {"second": "1"}


def test_ctrl_c_lets_tasks_keep_what_they_have(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def interrupted() -> None:
        with Pool(2) as pool:
            for task, _ in pool.finish([Small("quick", log), Small("long", log, "last", program="other")]):
                assert task.name == "quick"
                while "long began" not in lines(log):
                    time.sleep(0.01)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "long kept" in lines(log)
    assert multiprocessing.active_children() == []


def test_processes_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "from pathlib import Path; from suite.test_pool import Small; from ube.suite.pool import Pool\n"
        f"if __name__ == '__main__': list(Pool(1).finish([Small('long', Path({str(log)!r}), 'last')]))"
    )
    script = tmp_path / "parent.py"
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment)
    while not log.exists():
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    for _ in range(500):
        if "long kept" in lines(log):
            break
        time.sleep(0.01)
    assert lines(log) == ["long began", "long kept"]


def test_processes_stay_with_a_program_and_help_at_the_end() -> None:
    waiting = {p: deque([f"{p}{i}" for i in range(n)]) for p, n in {"a": 3, "b": 1}.items()}
    order = [("", set()), ("a", set()), ("", {"a"}), ("b", {"a"})]
    assert [_choose(last, waiting, taken) for last, taken in order] == ["a0", "a1", "b0", "a2"]  # type: ignore[arg-type]
