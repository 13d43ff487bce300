"""Checkpoints that are damaged, of another run, or of a newer version: named, and never a silent restart."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from faults.damage import damaged
from runs.test_checkpoints import Killed, contents, folders, killed_at, made_here, same, trained  # noqa: F401
from ube import RunError, UsageError
from ube.runs import checkpoints
from ube.runs.checkpoints import Checkpoints

SEA: dict[str, Any] = {"steps": 208, "agent": "ube-1step", "env": "sea"}


def test_random_damage_is_found_and_the_one_before_serves(tmp_path: Path) -> None:
    found = damaged(tmp_path, 60, seed=0)
    assert sum(found.values()) == 60
    assert min(found[name] for name in ("the one before", "none, and an error")) > 5


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(Killed):
        trained(tmp_path / "run", **SEA, callback=killed_at(168))
    assert [int(folder.name[:12]) for folder in folders(tmp_path / "run")] == [88, 128]
    return tmp_path / "run"


def recorded(folder: Path) -> dict[str, str]:
    digests: dict[str, str] = json.loads((folder / "manifest.json").read_text())["files"]
    return digests


def test_a_damaged_checkpoint_takes_no_place_of_a_good_one(stopped: Path) -> None:
    """It is forgotten when the next is saved: two whole ones are there again."""
    (folders(stopped)[-1] / "state.safetensors").write_bytes(b"")
    digests = recorded(folders(stopped)[-1])
    with pytest.raises(Killed):
        trained(stopped, **SEA, resume=True, callback=killed_at(168))
    kept = [int(folder.name[:12]) for folder in folders(stopped)]
    assert kept == [88, 128]
    assert recorded(folders(stopped)[-1]) == digests  # the same run, though its rows of speeds may be longer or shorter
    assert (folders(stopped)[-1] / "state.safetensors").stat().st_size > 0


def rewritten(folder: Path, **changes: Any) -> None:
    """With another manifest, whose digest is right."""
    content = json.loads((folder / "manifest.json").read_text()) | changes
    text = json.dumps(content).encode()
    (folder / "manifest.json").write_bytes(text)
    folder.rename(folder.parent / f"{folder.name[:12]}-{hashlib.sha256(text).hexdigest()[:16]}")


def test_a_checkpoint_of_a_newer_version_is_refused_by_name(stopped: Path) -> None:
    before = (stopped / "metrics.jsonl").read_bytes()
    rewritten(folders(stopped)[-1], format=checkpoints.FORMAT + 1)
    with pytest.raises(
        UsageError, match=r"was written by a newer ube \(its format is 2, and this one reads 1\): go on"
    ):
        trained(stopped, **SEA, resume=True)
    assert (stopped / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_before_formats_had_numbers_is_still_read(stopped: Path, tmp_path: Path) -> None:
    for folder in folders(stopped):
        content = json.loads((folder / "manifest.json").read_text())
        del content["format"], content["facts"]["run"]
        text = json.dumps(content).encode()
        (folder / "manifest.json").write_bytes(text)
        folder.rename(folder.parent / f"{folder.name[:12]}-{hashlib.sha256(text).hexdigest()[:16]}")
    whole = trained(tmp_path / "whole", **SEA)
    assert same(contents(trained(stopped, **SEA, resume=True)), contents(whole))


def test_a_checkpoint_of_another_run_does_not_serve(stopped: Path, tmp_path: Path) -> None:
    """Its arrays have the same shapes, so only the config tells them apart."""
    from deep.tiny import SMALL

    other: dict[str, Any] = SEA | {"overrides": SMALL | {"beta": 0.5}}
    whole = trained(tmp_path / "whole", **other)
    with pytest.raises(Killed):
        trained(tmp_path / "other", **other, callback=killed_at(168))
    theirs = folders(stopped)[-1]
    shutil.rmtree(folders(tmp_path / "other")[-1])
    shutil.copytree(theirs, tmp_path / "other" / "checkpoints" / theirs.name)
    said: list[str] = []
    run = trained(tmp_path / "other", **other, resume=True, say=said.append)
    assert "is damaged (it is of another run: this one was begun with other values): going back" in said[0]
    assert said[1] == "going on from step 88"
    assert same(contents(run), contents(whole))
    shutil.rmtree(tmp_path / "other" / "checkpoints")
    shutil.copytree(stopped / "checkpoints", tmp_path / "other" / "checkpoints")
    (tmp_path / "other" / "state.safetensors").unlink()
    with pytest.raises(RunError, match=r"of another run.*and there is none before it: start a new run"):
        trained(tmp_path / "other", **other, resume=True)


def test_rows_that_were_lost_are_noticed(stopped: Path, tmp_path: Path) -> None:
    """As after a power cut: the checkpoint before is from when they were there."""
    whole = trained(tmp_path / "whole", **SEA)
    rows = (stopped / "episodes.jsonl").read_bytes()
    sizes = [Checkpoints(stopped).restore(_like(whole), None, print)]
    assert sizes[0] is not None
    size = sizes[0][1]["sizes"]["episodes"]
    (stopped / "episodes.jsonl").write_bytes(rows[: size - 10])
    said: list[str] = []
    run = trained(stopped, **SEA, resume=True, say=said.append)
    assert "episodes.jsonl lost rows since): going back" in said[0]
    assert same(contents(run), contents(whole))
    (stopped / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"metrics.jsonl lost rows since.*start a new run"):
        trained(stopped, **SEA, resume=True)


def _like(run: Any) -> Any:
    return run.agent.session.like_snapshot()


def test_what_an_error_left_is_not_taken_for_the_end(stopped: Path, tmp_path: Path) -> None:
    """An earlier start failed and kept its last good state; the one after was killed as it wrote its last row."""
    whole = trained(tmp_path / "whole", **SEA)

    def fails(now: Any) -> None:
        raise RunError("a stumble")

    with pytest.raises(RunError, match="a stumble"):
        trained(stopped, **SEA, resume=True, callback=fails)
    assert (stopped / "state.safetensors").exists()
    with pytest.raises(Killed):
        trained(stopped, **SEA, resume=True, callback=killed_at(208))
    assert same(contents(trained(stopped, **SEA, resume=True)), contents(whole))
