"""Checkpoints of a run: each whole or absent, the last two kept, plain files that run no code when loaded.

DIR/checkpoints/STEP-DIGEST/state.safetensors   all arrays but the frames of the replay
DIR/checkpoints/STEP-DIGEST/manifest.json       sha256 of every file; its own is the DIGEST in the folder's name
DIR/checkpoints/frames/ENV-SEGMENT-LAST.bin     frames of the replay, shared between checkpoints: named by the last frame
                                                written into the segment, so one that did not change is not written again
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ube.deep.frames import FrameReplay
from ube.errors import RunError, UsageError
from ube.files import sync_folder, writing
from ube.machine import SEGMENT
from ube.reading import parse_json
from ube.runs.arrays import load_arrays, save_arrays

FORMAT = 1
"""Of what is written here; a higher one is of a newer ube."""
KEPT = 2
STATE, MANIFEST, FRAMES, STAGED = "state.safetensors", "manifest.json", "frames", ".staged"
_SEGMENT = re.compile(r"[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18}\.bin")
Say = Callable[[str], None]
Check = Callable[[dict[str, Any]], None]
"""Raises Damaged where facts do not fit the run."""


class Damaged(Exception):
    """Of no use: the checkpoint before may be."""


class Segment(NamedTuple):
    name: str
    env: int
    first: int
    end: int


class Checkpoints:
    def __init__(self, run: Path):
        self.path = run / "checkpoints"
        self._damaged: set[Path] = set()

    @property
    def any(self) -> bool:
        return bool(self._folders())

    def save(self, step: int, tree: Any, replay: FrameReplay | None, facts: dict[str, Any]) -> None:
        """`facts` is JSON that comes back with the arrays of `tree`."""
        known = self._known_segments()
        staged = self.path / STAGED
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        (self.path / FRAMES).mkdir(exist_ok=True)
        segments = {}
        for segment in _segments(replay):
            frames = replay.frames[segment.env, segment.first : segment.end]  # type: ignore[union-attr]
            digest = known.get(segment.name)
            segments[segment.name] = digest or _write(
                self.path / FRAMES / segment.name, np.ascontiguousarray(frames).data
            )
        content = {
            "format": FORMAT, "step": step, "facts": facts, "files": {STATE: _write(staged / STATE, save_arrays(tree))},
            "segments": segments,
        }  # fmt: skip
        digest = _write(staged / MANIFEST, json.dumps(content, indent=1).encode())
        final = self.path / f"{step:012d}-{digest[:16]}"
        shutil.rmtree(final, ignore_errors=True)
        for folder in (staged, self.path / FRAMES):
            sync_folder(folder)
        staged.rename(final)
        sync_folder(self.path)
        self._damaged.discard(final)
        self._forget_older()

    def restore(
        self, like: Any, replay: FrameReplay | None, say: Say, check: Check = lambda facts: None
    ) -> tuple[Any, dict[str, Any]] | None:
        """The newest whole checkpoint: its tree in the shape of `like`, and its facts; frames go into `replay`. Those found
        damaged are forgotten when the next one is saved."""
        damaged = ""
        for folder in self._folders():
            try:
                manifest = _manifest(folder)
                check(manifest["facts"])
                for name, digest in manifest["files"].items():
                    _verify(folder / name, digest)
                for segment in map(_segment, manifest["segments"]):
                    path = self.path / FRAMES / segment.name
                    _verify(path, manifest["segments"][segment.name])
                    self._read(path, segment, replay)
                return load_arrays(folder / STATE, like), manifest["facts"]
            except Damaged as error:
                damaged = f"the checkpoint {folder} is damaged ({error})"
                self._damaged.add(folder)
                say(f"{damaged}: going back to the one before")
        if damaged:
            raise RunError(f"{damaged}, and there is none before it: start a new run")
        return None

    def _read(self, path: Path, segment: Segment, replay: FrameReplay | None) -> None:
        if replay is None:
            raise Damaged(f"{path.name} belongs to a replay of frames")
        if segment.env >= len(replay.frames) or segment.first >= replay.slots:
            raise Damaged(f"{path.name} is of a larger replay")
        room = replay.frames[segment.env, segment.first : segment.end]
        number, rest = divmod(path.stat().st_size, room[0].nbytes)
        if rest or number > len(room):
            raise Damaged(f"{path.name} holds another number of frames")
        room[:number] = np.fromfile(path, room.dtype).reshape(number, *room.shape[1:])

    def _folders(self) -> list[Path]:
        """Newest first. A folder that cannot be read is an error: `glob` would take it to be empty."""
        if not self.path.exists():
            return []
        names = (path for path in self.path.iterdir() if "-" in path.name)
        return sorted((path for path in names if path.is_dir()), reverse=True)

    def _known_segments(self) -> dict[str, str]:
        """Frames in files that some checkpoint vouches for."""
        known: dict[str, str] = {}
        for folder in self._folders():
            if folder in self._damaged:  # what follows the one before may be another run than it was
                continue
            with contextlib.suppress(Damaged):
                known |= _manifest(folder)["segments"]
        return {name: digest for name, digest in known.items() if (self.path / FRAMES / name).is_file()}

    def _forget_older(self) -> None:
        good = [folder for folder in self._folders() if folder not in self._damaged]
        for folder in (*good[KEPT:], *self._damaged):
            shutil.rmtree(folder, ignore_errors=True)
        self._damaged.clear()
        try:
            needed = {name for folder in good[:KEPT] for name in _manifest(folder)["segments"]}
        except Damaged:  # whose frames may go is not known
            return
        for path in (self.path / FRAMES).iterdir():
            if path.name not in needed:
                path.unlink()


def _segments(replay: FrameReplay | None) -> Iterator[Segment]:
    if replay is None:
        return
    for env, added in enumerate(replay.added.tolist()):
        for index, first in enumerate(range(0, min(added, replay.slots), SEGMENT)):
            end = min(first + SEGMENT, replay.slots)
            turn, newest = divmod(added - 1, replay.slots)
            last = (
                turn * replay.slots + min(newest, end - 1) if newest >= first else (turn - 1) * replay.slots + end - 1
            )
            yield Segment(f"{env}-{index}-{last}.bin", env, first, min(end, added))


def _segment(name: str) -> Segment:
    env, index, _ = name.removesuffix(".bin").split("-")
    first = int(index) * SEGMENT
    return Segment(name, int(env), first, first + SEGMENT)


def _manifest(folder: Path) -> Any:
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest()[:16] != folder.name.rpartition("-")[2]:
        raise Damaged(f"{path.name} is not what was written")
    manifest = _checked(content)
    if manifest.get("format", 1) > FORMAT:
        raise UsageError(
            f"{folder} was written by a newer ube (its format is {manifest['format']}, and this one reads {FORMAT}): go on "
            "with that version, or start a new run (--out)"
        )
    return manifest


def _checked(content: bytes) -> dict[str, Any]:
    """A manifest may be a stranger's: it names files of its own folders alone, and has all that it should."""
    try:
        found = parse_json(content)
        files, segments = found["files"], found["segments"]
        digests = [*files.values(), *segments.values()]
        sound = (
            set(files) == {STATE}
            and all(_SEGMENT.fullmatch(name) for name in segments)
            and all(isinstance(digest, str) for digest in digests)
            and isinstance(found["facts"], dict)
            and isinstance(found.get("format", 1), int)
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST}: {type(error).__name__}: {error}") from None
    if not sound:
        raise Damaged(f"{MANIFEST} names other files than those of a checkpoint")
    return found


def _verify(path: Path, digest: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from None
    if found != digest:
        raise Damaged(f"{path.name} is not what was written")


def _write(path: Path, content: Any) -> str:
    """To the disk, not only to the system's memory. Returns the sha256."""
    with writing(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()
