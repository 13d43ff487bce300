"""Files: numbers as JSON, versions beside them, written whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ube._version import __version__

STAGED = ".part"
"""How the names of files end that are not whole yet."""


def versions() -> dict[str, str]:
    packages = ("numpy", "scipy", "numba", "matplotlib", "jax", "jaxlib", "flax", "optax", "gymnasium", "gymnax")
    found = {name: metadata.version(name) for name in packages}
    for name in ("navix", "ale-py"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {"ube": __version__, "python": platform.python_version(), **found}


def to_json(content: Any, digits: int = 6) -> str:
    """JSON with so many significant digits; NaN and infinity become null."""
    return json.dumps(_plain(content, digits), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Staged beside its place and renamed, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path):
        handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=STAGED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
                file.flush()
                os.fsync(file.fileno())  # else a power cut may leave the new name with nothing in it
            os.chmod(staged, 0o644)
            os.replace(staged, path)
        except BaseException:
            Path(staged).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the system name this file: those of a full disk name none by themselves."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync_folder(path: Path) -> None:
    """So that a power cut does not take back which files are in it."""
    with writing(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that does not do this
                raise
        finally:
            os.close(handle)


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, digits) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value
