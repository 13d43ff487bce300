"""Ctrl-C and SIGTERM: a checkpoint first, and an exit code that says so. One process at a time, whoever died before."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.kills import Killer
from runs.test_checkpoints import contents, folders, made_here, same, trained  # noqa: F401
from ube.errors import BusyError
from ube.runs import Progress, Schedule, load
from ube.runs.directory import RunDirectory
from ube.stopping import Terminated, gently, terminable
from ube.suite.cells import parsed
from ube.suite.work import folder_of

NEVER = Schedule(evaluate_every=80, evaluation_steps=20, checkpoint_minutes=1e9)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.usefixtures("made_here")
@pytest.mark.parametrize(
    ("env", "agent", "steps"), [("sea", "ube-1step", 208), ("corridors", "ube-nstep", 240)], ids=["compiled", "hosted"]
)
def test_sigterm_stops_after_the_chunk_with_a_checkpoint(tmp_path: Path, env: str, agent: str, steps: int) -> None:
    def terminate(now: Progress) -> None:
        if now.step >= 80 and not folders(tmp_path / "run"):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # it may be sent more than once
            os.kill(os.getpid(), signal.SIGINT)  # and the parent of the process may pass it on

    asked: dict[str, Any] = {"steps": steps, "agent": agent, "env": env, "schedule": NEVER}
    with pytest.raises(Terminated):
        trained(tmp_path / "run", **asked, callback=terminate)
    assert len(folders(tmp_path / "run")) == 1
    whole = trained(tmp_path / "whole", **asked)
    assert same(contents(trained(tmp_path / "run", **asked, resume=True)), contents(whole))


@pytest.mark.usefixtures("made_here")
def test_an_evaluation_does_not_keep_a_run_from_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take half an hour; what was learned before it is kept, and it is the first thing when the run goes on."""
    from deep.test_hosted import Corridors

    # Eight games side by side: 100 rounds and a few for each policy.
    eight = Schedule(evaluate_every=80, evaluation_steps=800, checkpoint_minutes=1e-9)
    whole, step, decisions = trained(tmp_path / "whole", schedule=eight), Corridors.step, 0

    def slow(self: Corridors, actions: Any) -> Any:
        nonlocal decisions
        decisions += self.n_envs == 8  # an evaluation's
        if decisions == 120:  # by the second policy
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, actions)

    monkeypatch.setattr(Corridors, "step", slow)
    with pytest.raises(Terminated):
        trained(tmp_path / "run", schedule=eight)
    assert (decisions, int(folders(tmp_path / "run")[-1].name[:12])) == (120, 80)
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()
    assert same(contents(trained(tmp_path / "run", resume=True, schedule=eight)), contents(whole))


@pytest.mark.usefixtures("made_here")
def test_games_that_are_played_again_do_not_keep_a_run_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a million decisions take minutes; nothing is lost."""
    from deep.test_hosted import Corridors

    asked: dict[str, Any] = {"schedule": NEVER, "resume": True}
    whole, step = trained(tmp_path / "whole", schedule=NEVER), Corridors.step
    trained(tmp_path / "run", schedule=NEVER, callback=lambda now: now.step == 120)
    before, said, played = contents(load(tmp_path / "run")), [], 0

    def terminated(self: Corridors, actions: Any) -> Any:
        nonlocal played
        played += 1
        if played == 30:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, actions)

    monkeypatch.setattr("ube.runs.training.SOME", 39)
    monkeypatch.setattr(Corridors, "step", terminated)
    with pytest.raises(Terminated):
        trained(tmp_path / "run", **asked, say=said.append)
    assert (played, said[0]) == (30, "going on from step 120, once 40 decisions are played again")
    assert same(contents(load(tmp_path / "run")), before)
    assert same(contents(trained(tmp_path / "run", **asked)), contents(whole))


def test_the_second_ctrl_c_stops_at_once() -> None:
    said: list[str] = []
    with gently(said.append) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == ["stopping soon, with all that was learned kept; Ctrl-C again to stop at once"]


def test_a_handler_of_ones_own_for_sigterm_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with terminable(), gently(print) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (heard, stop()) == ([signal.SIGTERM], 0)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_where_python_drops_what_is_raised_comes_again(number: int, raised: type[BaseException]) -> None:
    class Dropped:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0)  # the handler runs here at the latest, and what it raises is ignored

    def wait() -> None:
        Dropped()
        time.sleep(10)

    hook, before = sys.unraisablehook, signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(raised) as stop, terminable():
            wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.type is raised
    assert sys.unraisablehook is hook


def test_other_threads_leave_signals_alone() -> None:
    found: list[int] = []

    def stop() -> None:
        with gently(print) as asked:
            found.append(asked())

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert found == [0]


SUITE = """
[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
steps = 200_000
evaluation_episodes = 1
set = { hidden = [4], batch_size = 4, warmup = 8, "env.size" = 3 }
"""


def started(killer: Killer, words: list[str], run: Path) -> "subprocess.Popen[bytes]":
    """The command, once it has made its first rows."""
    process = killer.start(words)
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.01)
    return process


def test_sigterm_to_all_processes_of_a_suite(tmp_path: Path) -> None:
    """As a cluster sends it; no second Ctrl-C of the parent's makes a worker stop without its checkpoint."""
    (tmp_path / "sea.toml").write_text(SUITE)
    killer, (cell,) = Killer(tmp_path, 0), parsed("sea", SUITE, "sea.toml").cells
    words = ["suite", "run", str(tmp_path / "sea.toml"), "--out", str(tmp_path), "--workers", "1"]
    run = folder_of(tmp_path / "sea", cell) / "run"
    process = started(killer, words, run)
    began = time.monotonic()
    for pid in (int((run / ".lock").read_text()), process.pid):
        os.kill(pid, signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert (process.returncode, said.decode().splitlines()[-1]) == (143, "ube: stopped")
    assert time.monotonic() - began < 30
    (kept,) = (run / "checkpoints").glob("*-*")
    rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert int(kept.name[:12]) == rows[-1] < cell.steps


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_exit_codes_and_locks_between_processes(tmp_path: Path, number: int, code: int) -> None:
    """One process runs, a second is refused; the first is stopped, and its lock with it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and number == signal.SIGINT:
        pytest.skip("Ctrl-C is ignored where tests run in the background")
    words = ["train", "--env", "DeepSea-v0", "--agent", "dqn", "--steps", "400_000", "--out", str(tmp_path / "run")]
    words += ["--set", "env.size=3", "hidden=4", "batch_size=4", "warmup=8"]
    process = started(Killer(tmp_path, 0), words, tmp_path / "run")
    refused = pytest.raises(BusyError, match=rf"being written by another run \(process {process.pid}\)")
    with refused, RunDirectory.locked(tmp_path / "run"):
        pass
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    assert (process.returncode, said.decode().splitlines()[-1]) == (code, "ube: stopped")
    assert len(list((tmp_path / "run" / "checkpoints").glob("*-*"))) == 1
    with RunDirectory.locked(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())


def test_a_lock_dies_with_its_process_though_a_child_lives_on(tmp_path: Path) -> None:
    """Vector environments fork theirs."""
    code = (
        "import os, sys, time; from pathlib import Path; from ube.runs.directory import RunDirectory\n"
        f"with RunDirectory.locked(Path({str(tmp_path)!r})):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        sys.stdout.close(); os.close(1); time.sleep(100)\n"
        "    print(child, flush=True); os.kill(os.getpid(), 9)"
    )
    made = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert made.returncode == -signal.SIGKILL
    child = int(made.stdout)
    try:
        os.kill(child, 0)  # it lives
        with RunDirectory.locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    """Killed in the middle of its first file, a run is still a new one."""
    (tmp_path / ".config.json.abc.part").write_text('{"env": ')
    with RunDirectory.locked(tmp_path) as directory:
        assert directory.is_new
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
