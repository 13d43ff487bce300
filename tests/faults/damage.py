"""Files of checkpoints cut, flipped, lost and exchanged at random: the one before serves, or an error says why none does."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from faults.writes import replay, save, tree
from ube import RunError
from ube.deep.frames import FrameReplay
from ube.runs import checkpoints
from ube.runs.checkpoints import Checkpoints

HOW = ("flipped", "cut", "longer", "empty", "lost", "exchanged")


def spoil(path: Path, how: str, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    if how == "lost":
        path.unlink()
        return
    if how == "flipped":
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    elif how == "cut":
        content = content[: rng.integers(len(content))]
    elif how == "longer":
        content += b"\0"
    elif how == "empty":
        content = bytearray()
    elif how == "exchanged":
        content = bytearray(rng.bytes(len(content)))
    path.write_bytes(content)


def damaged(folder: Path, tries: int, seed: int) -> dict[str, int]:
    """Of two checkpoints, some files are damaged. Returns how often which one served, or none."""
    rng, found = np.random.default_rng(seed), Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SEGMENT", 32)
        for step in (1, 2):
            save(folder / "whole", step)
        for number in range(tries):
            found[_damaged_once(folder / "whole", folder / f"{number}", rng)] += 1
            shutil.rmtree(folder / f"{number}")
    return dict(found)


def _damaged_once(whole: Path, place: Path, rng: np.random.Generator) -> str:
    shutil.copytree(whole, place)
    files = sorted(path for path in (place / "checkpoints").rglob("*") if path.is_file())
    chosen = [files[i] for i in rng.choice(len(files), rng.integers(1, 4), replace=False)]
    for path in chosen:
        spoil(path, str(rng.choice(HOW)), rng)
    touched = {path for path in chosen if not _as_it_was(whole, place, path)}
    said: list[str] = []
    why = ""
    good = [step for step in (2, 1) if not touched & _files_of(whole, place, step)]
    again = FrameReplay(200, (2, 2), 2)
    try:
        result = Checkpoints(place).restore(tree(0), again, said.append)
    except RunError as error:
        why = str(error)
        result = None
    if not good:
        assert "is damaged" in why
        assert "start a new run" in why
        return "none, and an error"
    assert result is not None, why or "a silent restart"
    step = result[1]["n"]
    assert good[0] == step
    assert len(said) == (step == 1)
    np.testing.assert_array_equal(result[0]["weights"], tree(step)["weights"])
    held = min(30 * step, 200)
    np.testing.assert_array_equal(again.frames[:, :held], replay(step).frames[:, :held])
    return "the last one" if step == 2 else "the one before"


def _as_it_was(whole: Path, place: Path, path: Path) -> bool:
    return path.exists() and path.read_bytes() == (whole / path.relative_to(place)).read_bytes()


def _files_of(whole: Path, place: Path, step: int) -> set[Path]:
    """Of a checkpoint, the frames included."""
    (own,) = (whole / "checkpoints").glob(f"{step:012d}-*")
    frames = checkpoints._manifest(own)["segments"]
    paths = [*own.iterdir(), *(whole / "checkpoints" / "frames" / name for name in frames)]
    return {place / path.relative_to(whole) for path in paths}
