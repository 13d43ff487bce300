"""Every write of a file, a checkpoint, a cell and a run goes wrong once, in every way; what was kept before must serve."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.refusing import Death, every_fault
from runs.test_checkpoints import contents, same, trained
from suite.test_execute import TINY, Ended, suite
from ube import RunError, UsageError
from ube.deep.frames import FrameReplay
from ube.files import write_atomically
from ube.runs import Schedule, checkpoints
from ube.runs.checkpoints import Checkpoints
from ube.suite.work import CellTask, done, folder_of

Choose = Callable[[int, str], bool]


def every(at: int, fault: str) -> bool:
    return True


def fresh(folder: Path) -> Callable[[], Path]:
    """Gives new folders, and forgets those before."""
    numbers = itertools.count()

    def prepared() -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / f"{next(numbers)}").mkdir(parents=True)
        return next(folder.iterdir())

    return prepared


def explained(raised: BaseException | None) -> None:
    """What a user sees names a file and a remedy; the command adds the latter to errors of the system."""
    if isinstance(raised, RunError | UsageError):
        assert "mend the disk" in str(raised)
        assert "/" in str(raised)
    elif raised is not None and not isinstance(raised, Death):
        assert isinstance(raised, OSError)
        assert raised.filename is not None


def files(folder: Path, choose: Choose = every) -> dict[str, int]:
    new = fresh(folder)

    def prepare() -> Path:
        place = new()
        (place / "results.json").write_text("old")
        return place

    def verify(place: Path, fault: str, raised: BaseException | None) -> None:
        explained(raised)
        found = (place / "results.json").read_text()
        assert found in ("old", "new" * 100)
        assert fault == "death" or [path.name for path in place.iterdir()] == ["results.json"]  # nothing is left behind
        write_atomically(place / "results.json", "newer")
        assert (place / "results.json").read_text() == "newer"

    return every_fault(prepare, lambda place: write_atomically(place / "results.json", "new" * 100), verify, choose)


def tree(step: int) -> dict[str, np.ndarray]:
    return {"weights": np.arange(100.0) + step}


def replay(step: int) -> FrameReplay:
    """Of a run that has made so many times 30 decisions: some segments change from one step to the next, some do not."""
    rng, made = np.random.default_rng(0), FrameReplay(200, (2, 2), 2)
    for _ in range(30 * step):
        made.add(0, rng.integers(0, 256, (2, 2)), 0, 0.0, True)
    return made


def restored(place: Path) -> int:
    """The step of the newest checkpoint, which must be whole."""
    for step in (2, 3, 4):
        again = FrameReplay(200, (2, 2), 2)
        found = Checkpoints(place).restore(tree(0), again, pytest.fail)
        assert found is not None
        if found[1] == {"n": step}:
            np.testing.assert_array_equal(found[0]["weights"], tree(step)["weights"])
            np.testing.assert_array_equal(again.frames, replay(step).frames)
            return step
    raise AssertionError("no checkpoint that was ever saved")


def save(place: Path, step: int) -> None:
    Checkpoints(place).save(step, tree(step), replay(step), {"n": step})


def checkpointing(folder: Path, choose: Choose = every) -> dict[str, int]:
    new = fresh(folder)

    def prepare() -> Path:
        place = new()
        for step in (1, 2):
            save(place, step)
        return place

    def verify(place: Path, fault: str, raised: BaseException | None) -> None:
        explained(raised)
        assert restored(place) in ((2, 3) if raised is not None else (3,))
        save(place, 4)
        assert restored(place) == 4
        assert len(list((place / "checkpoints").glob("*-*"))) == checkpoints.KEPT
        kept = {
            name for path in (place / "checkpoints").glob("*-*") for name in checkpoints._manifest(path)["segments"]
        }
        assert {path.name for path in (place / "checkpoints" / "frames").iterdir()} == kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SEGMENT", 32)
        return every_fault(prepare, lambda place: save(place, 3), verify, choose)


def cells(folder: Path, choose: Choose = every) -> dict[str, int]:
    """A cell of a suite, whose training needs no time."""
    (cell, *_) = suite(TINY).cells

    def work(place: Path) -> None:
        CellTask(cell, place).run()

    def verify(place: Path, fault: str, raised: BaseException | None) -> None:
        explained(raised)
        kept = done(folder_of(place, cell))
        assert kept is None or kept["training"]
        assert raised is None or CellTask(cell, place).run() is not None
        assert done(folder_of(place, cell)) is not None
        left = {path.name for path in folder_of(place, cell).iterdir()}
        assert left <= {".lock", "done.json"} or fault == "death"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ube.runs.train", lambda *asked, **more: Ended())
        return every_fault(fresh(folder), work, verify, choose)


RUNS: dict[str, dict[str, Any]] = {
    "compiled": {"steps": 208, "agent": "ube-1step", "env": "sea"},
    "hosted": {"steps": 160, "agent": "ube-nstep", "env": "corridors"},
}


def runs(folder: Path, kind: str, choose: Choose = every) -> dict[str, int]:
    """A whole run, with a checkpoint after every chunk: it goes on, and is the run that never stopped."""
    schedule = Schedule(evaluate_every=80, evaluation_steps=20, checkpoint_minutes=1e-9)
    asked = RUNS[kind] | {"schedule": schedule}
    whole = contents(trained(folder / "whole", **asked))

    def work(place: Path) -> None:
        trained(place / "run", **asked)

    def verify(place: Path, fault: str, raised: BaseException | None) -> None:
        explained(raised)
        assert same(contents(trained(place / "run", **asked, resume=True)), whole)

    return every_fault(fresh(folder / "runs"), work, verify, choose)
