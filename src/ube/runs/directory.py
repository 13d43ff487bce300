"""A run directory: what was asked (config.json), what happened (episodes.jsonl, metrics.jsonl, evaluations.jsonl), what was
learned (state.safetensors), and what it takes to go on (checkpoints/). Plain files that run no code when loaded.
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

from ube.errors import BusyError, UsageError
from ube.files import to_json, write_atomically
from ube.reading import LARGEST_ROWS, check_links, parse_rows, read_bytes, read_table, refuse
from ube.runs.arrays import load_arrays, save_arrays

Columns = dict[str, np.ndarray]
CONFIG, STATE, LOCK = "config.json", "state.safetensors", ".lock"
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
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
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
        return (self.path / STATE).exists() and bool((self.columns("metrics").get("step", np.zeros(0)) >= steps).any())

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
        """Bytes of the rows so far."""
        paths = {name: self.path / f"{name}.jsonl" for name in ROWS}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

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
        with (self.path / f"{name}.jsonl").open("a") as file:
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

    def save_state(self, tree: Any) -> None:
        write_atomically(self.path / STATE, save_arrays(tree))

    def load_state(self, like: Any) -> Any:
        """The saved state, in the shape of `like` (arrays or their shapes)."""
        return load_arrays(self.path / STATE, like)


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
