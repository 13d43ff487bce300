"""Metrics elsewhere: one interface, and a clear word where a package is missing."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep.tiny import SEA, SMALL
from ube import UsageError
from ube.runs import Progress, Run, Schedule, trackers, train


@pytest.fixture(scope="module", autouse=True)
def made_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ube.runs.plan.make", lambda env_id, **args: {"sea": SEA}[env_id])
        yield


def trained(out: Path, *track: str, minutes: float = 10.0, **more: Any) -> Run:
    schedule = Schedule(track=track, checkpoint_minutes=minutes)
    return train("sea", "ube-1step", 208, 3, overrides=SMALL, out=out, chunk=100, schedule=schedule, say=str, **more)


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named_before_anything_is_written(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"^--{name} needs {package}: pip install 'ube-rl\[{name}\]'$"):
        trained(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


def test_a_folder_is_not_taken_for_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watched_here").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers.PACKAGES, "wandb", "watched_here")
    with pytest.raises(UsageError, match="--wandb needs watched_here"):
        trackers.check_trackers(["wandb"])


@pytest.mark.parametrize("track", [("wandbb",), "wandb"])
def test_unknown_names_are_refused(track: Any) -> None:
    with pytest.raises(UsageError, match=r"track=.*wandb.*: a tuple of names among tensorboard, wandb"):
        Schedule(track=track)


def test_every_tracker_hears_of_every_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    run = trained(tmp_path / "run", "tensorboard")
    (file,) = (run.path / "tensorboard").iterdir()
    assert file.read_bytes().count(b"beta_unit") == len(run.metrics["step"]) == 3


def shown(folder: Path) -> dict[int, float]:
    """q by step as TensorBoard shows it: of all files in turn, without what a later one says is void."""
    from tensorboardX.proto.event_pb2 import Event

    values: dict[int, float] = {}
    for file in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)  # of a record: a checksum before it, and one after
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            if event.HasField("session_log"):
                values = {step: value for step, value in values.items() if step < event.step}
            for value in event.summary.value:
                if value.tag == "q":
                    assert event.step not in values
                    values[event.step] = value.simple_value
    return values


@pytest.mark.parametrize("minutes", [1e-9, 1e9], ids=["from a checkpoint", "from the beginning"])
def test_tensorboard_shows_no_step_twice(tmp_path: Path, minutes: float) -> None:
    pytest.importorskip("tensorboardX")

    def killed(now: Progress) -> None:
        if now.step == 208:  # written, and not in the checkpoint of step 108
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", "tensorboard", minutes=minutes, callback=killed)
    time.sleep(1.1)  # a file is named by the second it was made in
    run = trained(tmp_path / "run", "tensorboard", resume=True)
    found = shown(run.path / "tensorboard")
    assert list(found) == run.metrics["step"].tolist() == [8, 108, 208]
    np.testing.assert_allclose(list(found.values()), run.metrics["q"], rtol=1e-6)


# ---------------------------------------------------------------- Weights & Biases


def records(file: Path) -> Iterator[Any]:
    """Of wandb's own file: the log format of LevelDB, blocks of 32 KiB, after 7 bytes of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of it, or its last part
            yield Record.FromString(whole)
            whole = b""


def history(folder: Path) -> list[dict[str, float]]:
    (file,) = folder.glob("*.wandb")
    rows = [record.history.item for record in records(file) if record.WhichOneof("record_type") == "history"]
    return [{(item.key or item.nested_key[0]): json.loads(item.value_json) for item in row} for row in rows]


def test_a_run_that_goes_on_is_the_same_run_in_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'ube-rl[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "tests")

    def enough(now: Progress) -> bool:
        return now.step >= 108

    trained(tmp_path / "run", "wandb", callback=enough)
    run = trained(tmp_path / "run", "wandb", resume=True)
    wandb.teardown()
    name = (run.path / "wandb" / "id").read_text()
    parts = sorted((run.path / "wandb").glob("offline-run-*"))
    assert [part.name.rpartition("-")[2] for part in parts] == [name] * 2
    first, second = (history(part) for part in parts)
    assert [row["step"] for row in first] == [8, 108]
    assert [row["step"] for row in second] == [208]
    rows = first + second
    for column in ("q", "u", "nu"):
        np.testing.assert_allclose([row[column] for row in rows], run.metrics[column], rtol=1e-12)
    (file,) = parts[0].glob("*.wandb")
    (there,) = [record.run for record in records(file) if record.WhichOneof("record_type") == "run"]
    assert (there.project, there.display_name) == ("tests", "sea-ube-1step-seed3")
    config = {item.key: json.loads(item.value_json) for item in there.config.update}
    assert config["agent"]["beta"] == 0.01
    assert "".join(capfd.readouterr()) == ""


def test_wandb_that_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'ube-rl[wandb]'")

    def fails(**_: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", fails)
    with pytest.raises(UsageError, match=r"^wandb does not start \(No API key.*WANDB_MODE=offline .* later$"):
        trained(tmp_path / "run", "wandb")
