"""Suites that run: each cell once, whatever happens to the others; how far they are; one file of results."""

import csv
import fcntl
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ube import UsageError
from ube.cli import main
from ube.runs.directory import RunDirectory
from ube.suite import Suite, collect, run_suite, status
from ube.suite.cells import parsed
from ube.suite.execute import _check_fits, _left, _reached
from ube.suite.plan import Rate, costs, measured, room_at_once, seconds_of, warnings
from ube.suite.pool import GRACE, Failure, answer
from ube.suite.status import lines, seconds_left
from ube.suite.work import DONE, FAILED, CellTask, done, folder_of

TINY = """
about = "tiny"

[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
seeds = 3
steps = 240
evaluation_episodes = 2
set = { hidden = [4], batch_size = 4, warmup = 8, epsilon_end = 0.123456789, "env.size" = 3 }
"""
BROKEN = """
[[cells]]
envs = ["Nope-v0"]
agents = ["dqn"]
steps = 10
"""


def suite(text: str = TINY) -> Suite:
    return parsed("tiny", text, "tiny.toml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole suite, run once by two processes, with a cell that fails."""
    folder = tmp_path_factory.mktemp("suites") / "tiny"
    said: list[str] = []
    outcome = run_suite(suite(TINY + BROKEN), folder, workers=2, said=said.append)
    assert outcome.finished == 3
    (broken,) = outcome.failures
    assert "no environment 'Nope-v0'" in outcome.failures[broken]
    assert sorted(line.split()[0] for line in said) == sorted(cell.id for cell in suite(TINY + BROKEN).cells)
    return folder


def test_a_finished_cell_keeps_what_counts(finished: Path) -> None:
    cell = suite().cells[0]
    kept = json.loads((folder_of(finished, cell) / DONE).read_text())
    assert kept["cell"] == json.loads(json.dumps(cell.spec))
    assert (kept["config_digest"], kept["resumed_with"]) == (cell.config_digest, [])
    assert sum(kept["training"]["episodes"]) == 80
    assert (kept["evaluations"]["policy"], kept["evaluations"]["episodes"]) == (["greedy", "own"], [2, 2])
    assert not (folder_of(finished, cell) / "run" / "checkpoints").exists()


def test_the_same_command_does_only_what_is_left(finished: Path) -> None:
    whole = suite(TINY + BROKEN)
    before = {cell.id: (folder_of(finished, cell) / DONE).stat().st_mtime_ns for cell in whole.cells[:3]}
    found = {one.cell.id: one.state for one in status(whole, finished)}
    assert [found[cell.id] for cell in whole.cells] == ["done"] * 3 + ["failed"]
    assert run_suite(suite(), finished, workers=1).failures == {}
    assert {cell.id: (folder_of(finished, cell) / DONE).stat().st_mtime_ns for cell in whole.cells[:3]} == before


def test_the_results_are_those_of_runs_by_themselves(finished: Path, tmp_path: Path) -> None:
    cell = suite().cells[1]
    alone = CellTask(cell, tmp_path).run()
    there = json.loads((folder_of(finished, cell) / DONE).read_text())
    assert alone is not None
    assert (alone["training"], alone["evaluations"]) == (there["training"], there["evaluations"])


@pytest.fixture
def small_disk() -> Iterator[Callable[..., None]]:
    """Mounts a small disk on a folder."""
    mounted: list[Path] = []

    def mount(folder: Path, size: str = "8k") -> None:
        folder.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no disk can be mounted: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_in_one_cell_stops_no_other_and_the_same_command_finishes_it(
    finished: Path, tmp_path: Path, small_disk: Callable[..., None]
) -> None:
    whole = suite()
    full = folder_of(tmp_path, whole.cells[1])
    small_disk(full)
    outcome = run_suite(whole, tmp_path, workers=1)
    assert outcome.finished == 2
    assert "No space left" in outcome.failures[whole.cells[1].id]
    subprocess.run(["mount", "-o", "remount,size=10m", full], check=True)
    assert run_suite(whole, tmp_path, workers=1).finished == 3
    for cell in whole.cells:
        here, there = (json.loads((folder_of(at, cell) / DONE).read_text()) for at in (tmp_path, finished))
        assert (here["training"], here["evaluations"]) == (there["training"], there["evaluations"])


def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    cell = suite().cells[0]
    with RunDirectory.locked(folder_of(tmp_path, cell)):
        assert CellTask(cell, tmp_path).run() is None
        (first, *others) = status(suite(), tmp_path)
        assert (first.state, {one.state for one in others}) == ("running", {"waiting"})
    assert status(suite(), tmp_path)[0].state == "waiting"


class Ended:
    """A run that needs no time."""

    def __init__(self) -> None:
        numbers = {"step": np.array([1.0]), "episode_return": np.array([0.5])}
        self.episodes, self.evaluations = numbers, numbers | {"policy": np.array(["greedy"])}
        self.config: dict[str, Any] = {"versions": {"ube": "0"}}

    def evaluate(self, episodes: int, *, policy: str, seed: int) -> Any:
        return SimpleNamespace(episode_return=np.zeros(episodes))


def test_a_cell_that_ends_while_another_process_looks_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looks for done.json and finds none; the other, if it can, does all of the cell before the first goes on."""
    task, trained = CellTask(suite().cells[0], tmp_path), []
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: trained.append(asked) or Ended())

    def slowly(folder: Path) -> Any:
        found = done(folder)
        monkeypatch.setattr("ube.suite.work.done", done)
        task.run()
        return found

    monkeypatch.setattr("ube.suite.work.done", slowly)
    assert task.run() is not None
    assert task.run() is not None
    assert len(trained) == 1


@pytest.mark.parametrize(
    ("policy", "evaluated"), [("greedy", ["greedy"]), ("own", ["own"]), ("both", ["greedy", "own"]), ("none", [])]
)
def test_only_the_policy_that_was_asked_for_is_evaluated_after_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, evaluated: list[str]
) -> None:
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: Ended())
    asked = suite(TINY + f'evaluation_policy = "{policy}"').cells[0]
    kept = CellTask(asked, tmp_path).run()
    assert kept is not None
    steps, policies = (kept["evaluations"][name] for name in ("step", "policy"))
    assert [policy for step, policy in zip(steps, policies, strict=True) if step == asked.steps] == evaluated
    assert not (folder_of(tmp_path, asked) / "run").exists()


def test_damaged_files_of_a_cell_are_its_own_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: Ended())
    monkeypatch.setattr("ube.suite.execute.Pool", HereAndNow)
    folders = [folder_of(tmp_path / "tiny", cell) for cell in suite().cells]
    for folder in folders:
        folder.mkdir(parents=True)
    none = {"step": [], "policy": [], "mean": [], "episodes": []}
    tables: list[Any] = [
        [3],
        {},
        none | {"step": 3},
        none | {"step": ["3"]},
        none | {"step": [3]},
        {"step": [3], "policy": ["a,b"], "mean": [0.5], "episodes": [1]},
    ]
    damaged = [json.dumps({"cell": {}, "versions": {}, "evaluations": none, "training": table}) for table in tables]
    for content in ("", "[]", "{}", *damaged):
        (folders[0] / DONE).write_text(content)
        with pytest.raises(UsageError, match=r"done.json cannot be read \(.*\): remove it, and its cell is run again"):
            done(folders[0])
        outcome = run_suite(suite(), tmp_path / "tiny")
        assert (outcome.finished, list(outcome.failures)) == (2, [folders[0].name])
        assert [one.state for one in status(suite(), tmp_path / "tiny")] == ["failed", "done", "done"]
    (folders[1] / DONE).unlink()
    for content in ("", "[]", "{}"):
        (folders[1] / FAILED).write_text(content)
        assert "failed.json cannot be read" in status(suite(), tmp_path / "tiny")[1].message
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    with pytest.raises(SystemExit) as stop:
        main(["suite", "run", str(file), "--out", str(tmp_path)])
    assert stop.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "ube: 1 of 3 cells failed; the same command tries them again"


class HereAndNow:
    """A pool without processes."""

    def __init__(self, *options: Any, **more: Any) -> None:
        pass

    def __enter__(self) -> "HereAndNow":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def finish(self, tasks: list[CellTask]) -> Iterator[tuple[CellTask, Any]]:
        for task in tasks:
            kind, content = answer(task)
            yield task, content if kind == "done" else Failure(kind, content)  # type: ignore[arg-type]


def test_cells_that_were_left_to_another_process_are_said_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: Ended())
    monkeypatch.setattr("ube.suite.execute.Pool", HereAndNow)
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    (task, *_) = _left(suite(), tmp_path, 1.0)
    assert task.patience > GRACE  # a process whose parent was killed may need so long to stop
    monkeypatch.setattr("ube.suite.execute.GRACE", -10.0)
    monkeypatch.setattr("ube.runs.directory.TRIES", 1)
    with RunDirectory.locked(folder_of(tmp_path / "tiny", suite().cells[2])), pytest.raises(SystemExit) as stop:
        main(["suite", "run", str(file), "--out", str(tmp_path)])
    assert stop.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "ube: 1 of 3 cells were left to another process"


def test_only_the_last_line_of_why_a_cell_failed_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: 1 // 0)
    monkeypatch.setattr("ube.suite.execute.Pool", HereAndNow)
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    with pytest.raises(SystemExit):
        main(["suite", "run", str(file), "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert said.count(f"\n{suite().cells[0].id} failed: ZeroDivisionError: ") == 1
    assert "Traceback" not in said
    assert "Traceback" in status(suite(), tmp_path / "tiny")[0].message


def test_checkpoints_that_a_finished_cell_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed after it had written done.json."""
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: Ended())
    cell = suite().cells[0]
    CellTask(cell, tmp_path).run()
    left = folder_of(tmp_path, cell) / "run" / "checkpoints"
    left.mkdir(parents=True)
    assert [task.cell.seed for task in _left(suite(), tmp_path, 1.0)] == [1, 2]
    assert not left.exists()


def test_a_cell_that_no_node_can_hold_is_refused() -> None:
    """Ray would wait for a larger node, and say nothing."""
    (one,) = parsed("a", TINY.replace("seeds = 3", "gpus = 0.5\ncpus = 2"), "a").cells
    task = CellTask(one, Path("a"))
    nodes = [{"CPU": 8.0, "memory": 64e9}, {"CPU": 1.0, "GPU": 1.0, "memory": 4e9}]
    with pytest.raises(
        UsageError,
        match=r"seed0-\w+ needs 2 CPU, 0.5 GPU, 1.5 GB of memory on one node, and the largest .* has 1 CPU, 1 GPU, 4.0 GB",
    ):
        _check_fits(task, nodes)
    _check_fits(task, [*nodes, {"CPU": 2.0, "GPU": 1.0, "memory": 2e9}])
    with pytest.raises(UsageError, match=r"the largest of the cluster has 0 CPU, 0 GPU, 0.0 GB of memory"):
        _check_fits(task, [])


def test_a_look_at_a_suite_does_not_keep_a_cell_from_starting(tmp_path: Path) -> None:
    """status locks a run for a moment, to see whether another does."""
    with RunDirectory.locked(tmp_path):
        pass
    with (tmp_path / ".lock").open() as looked:
        fcntl.flock(looked, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looked.fileno(), fcntl.LOCK_UN)).start()
        with RunDirectory.locked(tmp_path) as directory:
            assert (directory.path / ".lock").read_text() == str(os.getpid())


def test_status_reads_what_is_there(tmp_path: Path) -> None:
    cells = suite().cells
    runs = [folder_of(tmp_path, cell) / "run" for cell in cells]
    for run in runs:
        run.mkdir(parents=True)
    (runs[0] / "metrics.jsonl").write_text(
        '{"step": 40, "steps_per_second": 7}\n{"step": 60, "steps_per_second": 20.0}\n{"st'
    )
    (runs[1] / "metrics.jsonl").write_text("")
    (folder_of(tmp_path, cells[2]) / FAILED).write_text('{"message": "why not"}')
    with RunDirectory.locked(runs[1].parent):
        found = status(suite(), tmp_path)
    assert [(one.state, one.step) for one in found] == [("stopped", 60), ("running", 0), ("failed", 0)]
    assert found[2].message == "why not"
    line = lines(found)[-1]
    assert (line.name, line.states["stopped"], line.share) == ("all", 1, 60 / 720)
    assert seconds_left(found) is None
    with RunDirectory.locked(runs[0].parent):
        assert seconds_left(status(suite(), tmp_path)) == (180 + 240) / 20.0  # what failed is not waited for


def test_collect_makes_one_tidy_file(finished: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY + BROKEN)
    main(["suite", "collect", str(file), "--out", str(finished.parent)])
    said = capsys.readouterr().out
    assert "of 3 of 4 cells" in said
    assert "missing: Nope-v0-dqn-seed0" in said
    head, rows = [], []
    for line in (finished / "results.csv").read_text().splitlines():
        (head if line.startswith("#") else rows).append(line)
    assert head[0] == "# suite: tiny"
    assert head[3] == "# cells: 3 of 4 finished"
    assert json.loads(head[2].removeprefix("# versions: "))["ube"]
    table = list(csv.DictReader(rows))
    assert {row["seed"] for row in table} == {"0", "1", "2"}
    assert {row["policy"] for row in table} == {"training", "greedy", "own"}
    assert sum(int(row["episodes"]) for row in table if row["policy"] == "training") == 3 * 80
    assert json.loads(table[0]["env_args"]) == {"size": 3}


def test_results_of_two_versions_are_never_mixed(finished: Path, tmp_path: Path) -> None:
    kept = [json.loads((folder_of(finished, cell) / DONE).read_text()) for cell in suite().cells]
    kept[1]["versions"]["numpy"] = "0.1"
    for cell, content in zip(suite().cells, kept, strict=True):
        folder_of(tmp_path, cell).mkdir(parents=True)
        (folder_of(tmp_path, cell) / DONE).write_text(json.dumps(content))
    with pytest.raises(
        UsageError, match=r"cells of different versions, or parts of them, 2 of numpy [\d.]+; 1 of numpy 0.1: "
    ):
        collect(suite(), tmp_path)
    now = kept[0]["versions"]
    resumed = kept[1] | {"versions": now, "resumed_with": [now | {"numpy": "0.2"}]}
    (folder_of(tmp_path, suite().cells[1]) / DONE).write_text(json.dumps(resumed))
    with pytest.raises(UsageError, match=r"3 of numpy [\d.]+; 1 of numpy 0.2: run them in one"):
        collect(suite(), tmp_path)
    changed = kept[1] | {"versions": now, "config_digest": "of a dqn that was"}
    (folder_of(tmp_path, suite().cells[1]) / DONE).write_text(json.dumps(changed))
    with pytest.raises(UsageError, match=r"is from another config: the preset dqn has changed since; remove it"):
        collect(suite(), tmp_path)
    (folder_of(tmp_path, suite().cells[1]) / DONE).write_text('{"cell": ')
    with pytest.raises(UsageError, match=r"done.json cannot be read .* remove it, and its cell is run again"):
        collect(suite(), tmp_path)
    (folder_of(tmp_path, suite().cells[1]) / DONE).unlink()
    (tmp_path / "cells" / "of-another-suite").mkdir()
    found = collect(suite(), tmp_path)
    assert found.missing == [suite().cells[1]]
    assert found.strangers == ["of-another-suite"]
    (folder_of(tmp_path, suite().cells[1]) / DONE).write_text(json.dumps(kept[0]))
    with pytest.raises(UsageError, match="is of another cell than its name says"):
        collect(suite(), tmp_path)


def test_a_suite_that_was_begun_by_another_version_is_not_gone_on_with(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = suite()
    monkeypatch.setattr("ube.suite.execute.Pool", HereAndNow)
    monkeypatch.setattr("ube.suite.execute.versions", lambda: {"ube": "9.9", "python": platform.python_version()})
    assert run_suite(whole, finished).finished == 3  # there is nothing left to mix
    for name in (DONE, "run/config.json"):  # one is done, one was only begun
        for cell in whole.cells[:2]:
            path = folder_of(tmp_path, cell) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != DONE or cell is whole.cells[0]:
                path.write_text((folder_of(finished, cell) / name).read_text())
    with pytest.raises(
        UsageError, match=r"holds 2 cells of other versions, such as ube [\d.]+, and here is ube 9.9: .* \(--out\)"
    ):
        run_suite(whole, tmp_path)
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"versions": {"ube": "9.9"}, "resumed_with": [{"ube": "9.8"}]}))
    with pytest.raises(UsageError, match=r"holds 2 cells of other versions"):
        run_suite(whole, tmp_path)
    path.write_text("{")  # its own failure, if it is one
    with pytest.raises(UsageError, match=r"holds 1 cells of other versions"):
        run_suite(whole, tmp_path)


def test_a_cell_with_infinity_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has none: done.json says null."""
    monkeypatch.setattr("ube.runs.train", lambda *asked, **more: Ended())
    unclipped = suite(TINY.replace("hidden = [4]", "hidden = [4], reward_clip = inf").replace("seeds = 3", "seeds = 1"))
    CellTask(unclipped.cells[0], tmp_path).run()
    assert collect(unclipped, tmp_path).rows


def test_what_a_suite_costs_by_hand() -> None:
    text = SMALL_ATARI
    cell = parsed("a", text, "a").cells[0]
    assert seconds_of(cell, Rate(training=10.0, evaluation=50.0)) == 1_000 / 10 + 2 * 2 * 100 / 50
    found = costs(parsed("a", text, "a"), {cell.kind: Rate(10.0, 50.0)})
    assert [cost[:4] for cost in found] == [("dqn", 2, 2_000, 8_000), ("all", 2, 2_000, 8_000)]
    assert found[0].hours == pytest.approx(2 * 108 / 3600)
    paper, _ = costs(parsed("a", text, "a"), 400.0)
    assert paper.hours == pytest.approx(2 * 4_000 / 400 / 3600)


SMALL_ATARI = """
[[cells]]
envs = ["atari/pong", "atari/breakout"]
agents = ["dqn"]
frames = 4_000
evaluate_every = 2_000
evaluation_frames = 400
"""


def test_rates_are_measured_once(tmp_path: Path) -> None:
    said: list[str] = []
    rates = measured(suite(), tmp_path, 1, anew=False, say=said.append)
    (rate,) = rates.values()
    assert min(rate) > 0
    assert [line.startswith("measuring dqn on DeepSea-v0: ") for line in said] == [True]
    kept = json.loads((tmp_path / "rates.json").read_text())
    assert kept["rates"] == {suite().cells[0].kind: pytest.approx(list(rate), rel=1e-5)}
    assert measured(suite(), tmp_path, 1, anew=False, say=said.append).keys() == rates.keys()
    assert len(said) == 1
    with pytest.raises(UsageError, match="measuring dqn on Nope-v0: no environment 'Nope-v0'"):
        measured(suite(BROKEN), tmp_path, 1, anew=False, say=said.append)


def test_damaged_rates_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ube.suite.plan.Pool", HereAndNow)
    monkeypatch.setattr("ube.suite.plan.Measure.run", lambda task: Rate(2.0, 3.0))
    said: list[str] = []
    path = tmp_path / "rates.json"
    found = measured(suite(), tmp_path, 1, anew=False, say=said.append)
    kept = json.loads(path.read_text())
    for bad in ({"a": 3}, {"a": [1]}, {"a": [0.0, 1.0]}, {"a": ["x", 1.0]}, [1]):
        path.write_text(json.dumps(kept | {"rates": bad}))
        assert measured(suite(), tmp_path, 1, anew=False, say=said.append) == found
        assert said[-2] == f"{path} cannot be read: measuring anew"


def test_what_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = room_at_once(parsed("a", SMALL_ATARI, "a"), workers=4)
    assert needed.memory == pytest.approx(2 * (1.5e9 + 0.7064e9), rel=1e-3)  # there are only two cells
    monkeypatch.setattr("ube.suite.plan.free_memory", lambda: 1e9)
    monkeypatch.setattr("ube.suite.plan.free_disk", lambda folder: 1e9)
    memory, disk = warnings(needed, tmp_path, 4)
    assert "4 workers need 4.4 GB of memory, and 1.0 GB are free" in memory
    assert "of disk are needed, and 1.0 GB are free" in disk
    monkeypatch.setattr("ube.suite.plan.free_memory", lambda: None)
    monkeypatch.setattr("ube.suite.plan.free_disk", lambda folder: 1e12)
    assert list(warnings(needed, tmp_path, 4)) == []


def test_plan_status_and_bad_input_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["suite", "plan", "atari57", "--rate", "300", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "684 cells" in shown
    assert "1,368" in shown  # 171 runs of 8 days
    assert "136,800,000,000" in shown  # frames of all
    main(["suite", "status", "demo", "--all", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert shown.count("waiting  0 of 5,000") == 6
    main(["suite", "--list"])
    assert "the paper's main experiment" in capsys.readouterr().out
    for words, message in [
        (["plna", "demo"], "ube suite plna: did you mean plan"),
        (["plan"], "which suite?"),
        ([], "ube suite: choose one of plan, run, status, collect; `ube suite --list` shows the suites"),
        (["run", "demo", "--checkpoint-minutes", "0"], "--checkpoint-minutes 0: it must be positive"),
        (["run", "demo", "--workers", "0"], "--workers 0: at least 1"),
        (["run", "demo", "--executor", "slurm"], "--executor slurm: choose local or ray"),
        (["run", "demo", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: only of --executor ray"),
        (["run", "demo", "--executor", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1 ("),
        (["run", "demo", "--executor", "ray", "--address", "there"], "--address there: write HOST:PORT"),
        (["plan", "demo", "--rate", "-1"], "--rate -1.0: it must be positive"),
        (["collect", "demo"], "has no finished cell yet: `ube suite run demo"),
    ]:
        with pytest.raises(SystemExit) as stop:
            main(["suite", *words, "--out", str(tmp_path)])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["suite", "run", "demo", "--out", str(tmp_path / "file")])
    assert stop.value.code == 2
    assert f"ube: cannot write to {tmp_path}/file/demo (" in capsys.readouterr().err


def test_what_listens_there_but_is_no_ray_is_told_apart() -> None:
    """Ray would try for minutes, and print warnings meanwhile."""
    answers = {b"HTTP/1.1 400 Bad Request\r\n": "is no Ray cluster", b"": "is no Ray cluster", HTTP2: None}
    for answered, message in answers.items():
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = threading.Thread(target=_answer_once, args=(server, answered))
            peer.start()
            address = f"127.0.0.1:{server.getsockname()[1]}"
            if message is None:
                _reached(address)
            else:
                with pytest.raises(
                    UsageError, match=f"what answers at {address} {message}: give the port of `ray start"
                ):
                    _reached(address)
            peer.join()


HTTP2 = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"


def _answer_once(server: socket.socket, answer: bytes) -> None:
    with server.accept()[0] as peer:
        assert peer.recv(100).startswith(b"PRI * HTTP/2.0")
        peer.sendall(answer)


COMMAND = """
import signal, sys
from ube.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    main(sys.argv[1:])
"""
LONG = TINY.replace("steps = 240", "steps = 60_000").replace("seeds = 3", "seeds = 1")


def test_ctrl_c_stops_a_suite_cleanly_and_it_goes_on(tmp_path: Path) -> None:
    """The command in a process of its own, as in a terminal; with a worker killed as well."""
    file = tmp_path / "long.toml"
    file.write_text(LONG)
    long = parsed("long", LONG, "long.toml")
    words = ["suite", "run", str(file), "--out", str(tmp_path), "--workers", "1", "--checkpoint-minutes", "1e-9"]
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    process = subprocess.Popen([sys.executable, str(script), *words], stderr=subprocess.PIPE, text=True)
    (cell,) = long.cells
    while (one := status(long, tmp_path / "long")[0]).step < 2_000:
        assert process.poll() is None
        time.sleep(0.02)
    lock = folder_of(tmp_path / "long", cell) / "run" / ".lock"
    os.kill(int(lock.read_text()), signal.SIGKILL)  # the worker: another takes its place
    killed_at = one.step
    while status(long, tmp_path / "long")[0].step <= killed_at:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert (process.returncode, said.splitlines()[-1]) == (130, "ube: stopped")
    stopped = status(long, tmp_path / "long")[0]
    assert (stopped.state, stopped.step < cell.steps) == ("stopped", True)
    assert run_suite(long, tmp_path / "long", workers=1).failures == {}
    ended = json.loads((folder_of(tmp_path / "long", cell) / DONE).read_text())
    straight = CellTask(cell, tmp_path / "straight").run()
    assert straight is not None
    assert (ended["training"], ended["evaluations"]) == (straight["training"], straight["evaluations"])


@pytest.mark.slow
def test_workers_killed_again_and_again_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    text = LONG.replace("seeds = 1", "seeds = 2")
    long, rng, ended = parsed("long", text, "long.toml"), random.Random(0), threading.Event()
    kills = 0

    def kill() -> None:
        nonlocal kills
        before: dict[str, int] = {}
        while not ended.wait(rng.uniform(0.2, 2.0)):
            running = [one for one in status(long, tmp_path) if one.state == "running" and one.step]
            further = [one for one in running if one.step > before.get(one.cell.id, 0)]
            if further and kills < 10:
                victim = rng.choice(further)
                before[victim.cell.id] = victim.step
                os.kill(int((folder_of(tmp_path, victim.cell) / ".lock").read_text()), signal.SIGKILL)
                kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    said: list[str] = []
    outcome = run_suite(long, tmp_path, workers=2, checkpoint_minutes=1e-9, said=said.append)
    ended.set()
    killer.join()
    assert kills > 2
    assert (outcome.finished, outcome.failures) == (2, {})
    assert sorted(said) == sorted(f"{cell.id} is done" for cell in long.cells)
    for cell in long.cells:
        straight = CellTask(cell, tmp_path / "straight").run()
        killed = done(folder_of(tmp_path, cell))
        assert straight is not None
        assert killed is not None
        assert (killed["training"], killed["evaluations"]) == (straight["training"], straight["evaluations"])


def test_status_of_ten_thousand_cells(tmp_path: Path) -> None:
    """A few of which began: it reads only the ends of their files."""
    many = suite(TINY.replace("seeds = 3", "seeds = 10_000"))
    for cell in many.cells[:20]:
        run = folder_of(tmp_path, cell) / "run"
        run.mkdir(parents=True)
        with (run / "metrics.jsonl").open("w") as file:
            file.writelines(json.dumps({"step": step, "steps_per_second": 1}) + "\n" for step in range(20_000))
    found = status(many, tmp_path)
    assert [one.step for one in found[:21]] == [19_999] * 20 + [0]
    assert len(found) == 10_000
