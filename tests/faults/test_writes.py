"""Every operation on a file that a write needs fails once; whole runs meet a few of them here, and all in `make soak`."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from faults import writes
from faults.refusing import FAULTS, Death, disk
from runs.test_checkpoints import contents, made_here, same, trained  # noqa: F401
from suite.test_execute import small_disk  # noqa: F401
from ube import RunError


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    met = writes.files(tmp_path)
    assert min(met.values()) >= 8  # mkdir, open, write, close, fsync, chmod, replace; and the folder


def test_a_checkpoint_is_whole_or_the_one_before_serves(tmp_path: Path) -> None:
    met = writes.checkpointing(tmp_path)
    assert min(met.values()) >= 30


def test_a_cell_is_done_or_begins_again(tmp_path: Path) -> None:
    met = writes.cells(tmp_path)
    assert min(met.values()) >= 15


@pytest.mark.parametrize(("kind", "tries"), [("compiled", 8), ("hosted", 2)])
def test_a_run_goes_on_after_any_fault(tmp_path: Path, kind: str, tries: int) -> None:
    rng = np.random.default_rng(0)
    chosen = {
        (int(at), str(fault)) for at, fault in zip(rng.integers(5, 90, tries), rng.choice(FAULTS, tries), strict=True)
    }
    met = writes.runs(tmp_path, kind, lambda at, fault: (at, fault) in chosen)
    assert sum(met.values()) == len(chosen)


def test_the_disk_of_these_tests_refuses_and_dies(tmp_path: Path) -> None:
    def work() -> None:
        with (tmp_path / "a").open("w") as file:
            file.write("1234")
        (tmp_path / "a").unlink()

    with disk(tmp_path) as whole:
        work()
    assert whole.operations == ["open", "write", "close", "unlink"]
    with disk(tmp_path, 2, "short"), pytest.raises(OSError, match="No space"):
        work()
    assert (tmp_path / "a").read_text() == "12"
    with disk(tmp_path, 3, "death"), pytest.raises(Death):
        work()
    assert (tmp_path / "a").read_text() == ""  # it was never flushed


@pytest.mark.usefixtures("made_here")
def test_a_full_disk_stops_a_run_that_then_goes_on(
    tmp_path: Path, small_disk: Callable[..., None]  # noqa: F811
) -> None:  # fmt: skip
    whole = trained(tmp_path / "whole", **writes.RUNS["compiled"])
    out = tmp_path / "small"
    small_disk(out, "100k")
    with pytest.raises(RunError, match=r"small/.*: No space left on device: make room, .* goes on from there"):
        trained(out, **writes.RUNS["compiled"])
    subprocess.run(["mount", "-o", "remount,size=10m", out], check=True)
    assert same(contents(trained(out, **writes.RUNS["compiled"], resume=True)), contents(whole))
