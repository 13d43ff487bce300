"""A run directory: what was asked (config.json), what happened (episodes.jsonl, metrics.jsonl, evaluations.jsonl), what was
learned (state.safetensors; best.safetensors, at the best evaluation), and what it takes to go on (checkpoints/). Plain files
that run no code when loaded.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from ube.errors import BusyError, RunError, UsageError
from ube.files import STAGED, to_json, write_atomically, writing
from ube.reading import LARGEST_ROWS, check_links, parse_rows, read_bytes, read_table, refuse
from ube.runs.arrays import load_arrays, read_arrays, save_arrays

Columns = dict[str, np.ndarray]
CONFIG, STATE, BEST, LOCK = "config.json", "state.safetensors", "best.safetensors", ".lock"
STEPS = "['learner'].steps"
"""Of the arrays in STATE, how many decisions it has seen."""
TRIES = 10
ROWS = ("episodes", "metrics", "evaluations")
NEEDED = {
    "episodes": ("step", "episode_return"),
    "metrics": ("step",),
    "evaluations": ("step", "policy", "episode_return"),
}
TEXT = ("policy",)
"""Columns of words; all others are numbers."""
KINDS: dict[str, type] = {
    "env": str, "env_args": dict, "agent": dict, "seed": int, "steps": int, "chunk": int, "schedule": dict,
    "random_play": dict, "command": str, "versions": dict, "resumed_with": list,
}  # fmt: skip
"""Of what config.json holds."""
NOT_A_RUN = "give a folder that `ube train` wrote"


class RunDirectory:
    def __init__(self, path: Path):
        self.path = path

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[RunDirectory]:
        """For one process alone to write to."""
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file: choose another place (--out)")
        path.mkdir(parents=True, exist_ok=True)
        check_links(path, ("", "checkpoints"))
        with (path / LOCK).open("a+") as file:
            if not _taken(file):
                file.seek(0)
                raise BusyError(
                    f"{path} is being written by another run (process {file.read().strip()}): wait for it, or choose "
                    "another place (--out)"
                )
            with _kept_from_children(file), _explained(path):
                with writing(path / LOCK):
                    file.truncate(0)
                    file.write(str(os.getpid()))
                    file.flush()
                for left in path.glob(f".*{STAGED}"):  # by a process that was killed
                    left.unlink(missing_ok=True)
                yield cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / CONFIG).is_file():
            raise UsageError(f"{path} is not a run: it has no {CONFIG}; {NOT_A_RUN}")
        return cls(path)

    @property
    def is_new(self) -> bool:
        return {entry.name for entry in self.path.iterdir()} <= {LOCK}

    def finished(self, steps: int) -> bool:
        """Whether so many steps were made, and what was learned is kept."""
        if not (self.path / STATE).exists() or not (self.columns("metrics").get("step", np.zeros(0)) >= steps).any():
            return False
        made = read_arrays(self.path / STATE, {STEPS: np.zeros((), np.int32)})[STEPS]
        return int(made) >= steps  # else it is what an error left, of an earlier start

    def begin(self, config: dict[str, Any]) -> None:
        write_atomically(self.path / CONFIG, to_json(config, digits=17))

    def note_start(self, versions: dict[str, str], steps: int) -> None:
        """What a run goes on with: versions it has not had yet, and how long it is to be now."""
        config = self.config
        later = config.get("resumed_with", [])
        if versions not in (config.get("versions"), *later):
            later = [*later, versions]
        noted = config | {"steps": steps} | ({"resumed_with": later} if later else {})
        if noted != config:
            self.begin(noted)

    @property
    def config(self) -> dict[str, Any]:
        path = self.path / CONFIG
        content = read_table(path, inside=self.path, remedy=NOT_A_RUN)
        for name, value in content.items():
            if not isinstance(value, KINDS.get(name, object)) or (isinstance(value, bool) and KINDS.get(name) is int):
                refuse(path, f"{name} is {str(value)[:40]!r}", NOT_A_RUN)
        if not isinstance(content.get("agent", {}).get("name", ""), str):
            refuse(path, "the agent's name is not text", NOT_A_RUN)
        return content

    def sizes(self) -> dict[str, int]:
        """Bytes of the rows so far, all of which are on the disk then."""
        paths = {name: self.path / f"{name}.jsonl" for name in ROWS}
        return {name: _synced(path) for name, path in paths.items() if path.exists()}

    def lost(self, sizes: dict[str, int]) -> list[str]:
        """Files that have become shorter since `sizes` was taken."""
        now = self.sizes()
        return [f"{name}.jsonl" for name, size in sizes.items() if now.get(name, -1) < size]

    def cut_back(self, sizes: dict[str, int]) -> None:
        """Forgets the rows that came after `sizes` was taken."""
        there = self.sizes()
        if not isinstance(sizes, dict) or not all(
            type(size) is int and 0 <= size <= there.get(name, 0) for name, size in sizes.items()
        ):
            raise UsageError(
                f"{self.path} has fewer rows ({there} bytes) than its checkpoint says ({str(sizes)[:200]}): they were lost, "
                "or belong to another run; start a new one (--out)"
            )
        for name in ROWS:
            path = self.path / f"{name}.jsonl"
            if name in sizes:
                os.truncate(path, sizes[name])
            else:
                path.unlink(missing_ok=True)

    def append(self, name: str, columns: dict[str, Any]) -> None:
        """Adds rows to NAME.jsonl: columns of equal length, or one number each."""
        lists = {key: np.atleast_1d(value).tolist() for key, value in columns.items()}
        rows = zip(*lists.values(), strict=True)
        path = self.path / f"{name}.jsonl"
        with writing(path), path.open("a") as file:
            file.writelines(json.dumps(dict(zip(lists, row, strict=True))) + "\n" for row in rows)

    def columns(self, name: str) -> Columns:
        """All rows of NAME.jsonl; none if the run never got there. A column missing in some rows is NaN there."""
        path, remedy = (
            self.path / f"{name}.jsonl",
            "the rows of a run are what `ube train` wrote, one JSON object a line",
        )
        try:
            rows = parse_rows(read_bytes(path, inside=self.path, remedy=remedy, most=LARGEST_ROWS))
            names = dict.fromkeys(key for row in rows for key in row)
            lacking = [key for key in NEEDED.get(name, ()) if rows and key not in names]
            if lacking:
                refuse(path, f"no column {lacking[0]!r}", remedy)
            return {key: _column(key, [row.get(key, np.nan) for row in rows]) for key in names}
        except FileNotFoundError:
            return {}
        except UsageError:
            raise
        except ValueError as error:
            refuse(path, str(error), remedy)

    def save_state(self, tree: Any, name: str = STATE) -> None:
        write_atomically(self.path / name, save_arrays(tree))

    def load_state(self, like: Any, name: str = STATE) -> Any:
        """The saved state, in the shape of `like` (arrays or their shapes)."""
        return load_arrays(self.path / name, like)


def _synced(path: Path) -> int:
    with writing(path), path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A disk that refuses is no end: what to do about it."""
    try:
        yield
    except OSError as error:
        if error.filename is None or not Path(os.fsdecode(error.filename)).is_relative_to(path):
            raise
        raise RunError(
            f"{os.fsdecode(error.filename)}: {error.strerror}: make room, or mend the disk or its permissions; what was kept "
            "before is whole, and the same command goes on from there (ube train: with --resume)"
        ) from error


_held: set[IO[str]] = set()
"""Locks of this process."""


@contextmanager
def _kept_from_children(file: IO[str]) -> Iterator[None]:
    """A child that is forked, as those of vector environments, would hold the lock for as long as it lives: longer than its
    parent, if that is killed."""
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)


def _let_go() -> None:
    for file in _held:
        os.close(file.fileno())
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _column(name: str, values: list[Any]) -> np.ndarray:
    """Raises ValueError where they are not all numbers, or for TEXT not all words."""
    column = np.array(values)
    if column.ndim != 1 or column.dtype.kind not in ("U" if name in TEXT else "fiub"):
        raise ValueError(f"column {name[:40]!r} holds something else than {'words' if name in TEXT else 'numbers'}")
    return column


def _taken(file: IO[str]) -> bool:
    """Locks it. `ube suite status` holds a lock for a moment when it looks, so one try is not enough."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False
