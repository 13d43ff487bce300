"""Arrays of numbers from an .npz file, whoever made it: no pickle, and nothing larger than the file says and memory holds."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ube.machine import free_memory, gigabytes

MOST_ARRAYS = 20_000
PLAIN = 1e7
"""Bytes that anybody has: less is not compared with the memory that is free."""
_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name and content of each array. Raises whatever the readers of a broken archive do, ValueError where it is hostile."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        _check_entries(entries)
        for entry in entries:
            with archive.open(entry) as file:
                yield entry.filename.removesuffix(".npy"), _array(file, entry)


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MOST_ARRAYS:
        raise ValueError(f"{len(entries):,} arrays; at most {MOST_ARRAYS:,}")
    names: set[str] = set()
    for entry in entries:
        if entry.filename.removesuffix(".npy") in names:
            raise ValueError(f"{entry.filename[:40]!r} is in it twice")
        names.add(entry.filename.removesuffix(".npy"))
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
            raise ValueError(f"{entry.filename[:40]!r} is packed in another way than NumPy's")
    size, free = float(sum(entry.file_size for entry in entries)), free_memory()
    if size > PLAIN and free is not None and 3 * size > free:  # a belief keeps copies
        raise ValueError(f"{gigabytes(size)} when unpacked, and {gigabytes(free)} of memory are free")


def _array(file: IO[bytes], entry: zipfile.ZipInfo) -> np.ndarray:
    """Its header is checked against the size of the entry before room is made for it."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{entry.filename[:40]!r} is in NumPy's format {version}, which holds no plain numbers")
    shape, fortran, dtype = _HEADERS[version](file)
    if dtype.kind not in "fiub":
        raise ValueError(f"array {entry.filename.removesuffix('.npy')[:40]!r} holds {str(dtype)[:40]}, not numbers")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or file.tell() + count * dtype.itemsize != entry.file_size:
        raise ValueError(
            f"{entry.filename[:40]!r} says it has shape {str(shape)[:60]}, and holds another number of bytes"
        )
    values = np.frombuffer(bytearray(file.read(count * dtype.itemsize)), dtype, count)  # bytes could not be written to
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
