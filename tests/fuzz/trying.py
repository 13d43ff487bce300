"""Tries readers with hostile files, each made from a seed and a number, so that any try can be made again."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fuzz.readers import Reader
from ube.errors import RunError, UsageError

LONGEST = 20
"""Seconds of a try."""


class Failure(NamedTuple):
    number: int
    error: str
    content: str


class Counts(NamedTuple):
    tries: int
    read: int
    """Of hostile files that were good enough to be read; the others were refused."""
    failures: list[Failure]
    slowest: float
    """Seconds of a try."""


def tried(reader: Reader, seed: int, numbers: range, most_failures: int = 10) -> Counts:
    read, failures, slowest = 0, [], 0.0
    with _folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            began = time.perf_counter()
            error = one_try(reader, seed, number, folder)
            slowest = max(slowest, time.perf_counter() - began)
            read += error is None
            if isinstance(error, str):
                content = repr(made(reader, seed, number))
                failures.append(Failure(number, error, content[:4_000]))
                if len(failures) >= most_failures:
                    return Counts(number - numbers.start + 1, read, failures, slowest)
    return Counts(len(numbers), read, failures, slowest)


def made(reader: Reader, seed: int, number: int) -> Any:
    return reader.make(_random(reader, seed, number))


def one_try(reader: Reader, seed: int, number: int, folder: Path) -> bool | str | None:
    """None if it was read, True if it was refused as it should be, or what went wrong."""
    rng = _random(reader, seed, number)
    content = reader.make(rng)
    try:
        with _alarm():
            reader.read(folder, content, rng)
    except (UsageError, RunError) as error:
        return True if str(error) else "an error without words"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-6:])
    return None


def _random(reader: Reader, seed: int, number: int) -> Random:
    return Random(f"{reader.name} {seed} {number}")


@contextmanager
def _folder() -> Iterator[Path]:
    """In memory where there is such a place."""
    shared = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="ube-fuzz-", dir=shared if shared.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alarm() -> Iterator[None]:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"longer than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
