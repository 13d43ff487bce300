"""Whether the machine has room for a run, before it starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ube.deep.frames import FrameReplay
from ube.errors import UsageError

BESIDE_REPLAY = 1.5e9
"""Bytes for networks, Σ, the compiler and the interpreter."""


def check_room(replay_size: int, frame_shape: tuple[int, ...], out: Path) -> None:
    """Raises where memory or disk would run out as the replay fills."""
    frames = FrameReplay.bytes_needed(replay_size, frame_shape)
    remedy = f"--set replay_size=N with fewer than {replay_size:,}"
    memory = free_memory()
    if memory is not None and frames + BESIDE_REPLAY > memory:
        raise UsageError(
            f"replay_size={replay_size} needs {_gb(frames + BESIDE_REPLAY)} of memory, and {_gb(memory)} are free: {remedy}"
        )
    disk = shutil.disk_usage(next(folder for folder in out.absolute().parents if folder.exists())).free
    if 1.2 * frames + 1e9 > disk:
        raise UsageError(
            f"checkpoints with replay_size={replay_size} need {_gb(1.2 * frames + 1e9)} of disk, and {_gb(disk)} are free "
            f"in {out}: {remedy}, or another place (--out)"
        )


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


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
