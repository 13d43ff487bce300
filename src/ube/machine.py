"""What the machine has, and whether a run has room on it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ube.deep.frames import FrameReplay
from ube.errors import UsageError

ATARI_FRAME = (84, 84)
PACE = 200
"""Decisions per second by which room is counted: those of Atari on two cores. An accelerator makes more."""
SEGMENT = 10_000
"""Frames in a file of a checkpoint."""


class Room(NamedTuple):
    """Bytes that a run needs as its replay fills."""

    memory: float
    disk: float


def room_needed(
    replay_size: int,
    frame_shape: tuple[int, ...] = ATARI_FRAME,
    dtype: Any = np.uint8,
    *,
    checkpoint_minutes: float = 10.0,
    n_envs: int = 1,
) -> Room:
    """Of a run outside of JAX; with no replay, of any other. Beside it: networks, Σ, the compiler, the interpreter.

    While a checkpoint is written the last two are still there, each with the files that changed until the next: those of the
    frames between, and two of each environment that hold others as well.
    """
    new = int(min(replay_size, PACE * 60 * checkpoint_minutes + 2 * n_envs * SEGMENT))
    memory, disk = (
        FrameReplay.bytes_needed(number, frame_shape, dtype) for number in (replay_size, replay_size + 2 * new)
    )
    return Room(memory=1.5e9 + memory, disk=1e9 + disk)


def check_room(
    replay_size: int, frame_shape: tuple[int, ...], dtype: Any, out: Path, *, checkpoint_minutes: float, n_envs: int
) -> None:
    """Raises where memory or disk would run out. Checkpoints of a run that goes on are room that it has already."""
    needed = room_needed(replay_size, frame_shape, dtype, checkpoint_minutes=checkpoint_minutes, n_envs=n_envs)
    remedy = f"--set replay_size=N with fewer than {replay_size:,}"
    memory, disk = free_memory(), free_disk(out) + _written(out / "checkpoints")
    if memory is not None and needed.memory > memory:
        raise UsageError(
            f"replay_size={replay_size} needs {gigabytes(needed.memory)} of memory, and {gigabytes(memory)} are free: "
            f"{remedy}"
        )
    if needed.disk > disk:
        raise UsageError(
            f"checkpoints with replay_size={replay_size} need {gigabytes(needed.disk)} of disk, and {gigabytes(disk)} are "
            f"free in {out}: {remedy}, checkpoints more often than every {checkpoint_minutes:g} minutes "
            "(--checkpoint-minutes), or another place (--out)"
        )


def _written(top: Path) -> int:
    """Bytes of all files in it that can be seen: another process may be removing some."""
    total = 0
    for folder, _, names in os.walk(top):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def free_disk(out: Path) -> float:
    """Bytes where this folder is, or will be."""
    return shutil.disk_usage(next(folder for folder in (out, *out.absolute().parents) if folder.exists())).free


def free_memory() -> float | None:
    """Bytes that can be taken without swapping, also within a container; None where nobody says."""
    found = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(float(line.split()[1]) * 1024)
    limit, used, parts = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current", "stat"))
    if limit and used and limit[0].strip().isdigit():
        cached = sum(float(line.split()[1]) for line in parts if line.startswith("inactive_file "))
        found.append(float(limit[0]) - float(used[0]) + cached)
    if not found and "SC_AVPHYS_PAGES" in os.sysconf_names:
        found.append(float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return min(found, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
