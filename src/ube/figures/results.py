"""Results files: numbers with where they came from, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ube._version import __version__

Row = dict[str, Any]


def row(agent: str, setting: dict[str, Any], metric: str, value: Any, low: Any = None, high: Any = None) -> Row:
    """One line of a summary; `low` and `high` span a 95 % interval, or the quartiles where the metric says so."""
    return {"agent": agent, "setting": setting, "metric": metric, "value": value, "low": low, "high": high}


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean and a normal 95 % interval for it."""
    mean = float(np.mean(values))
    half = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return mean, mean - half, mean + half


def quartiles(values: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Median and quartiles, None where they are infinite (a run that never got there counts as infinite)."""
    cut = np.quantile(values, [0.5, 0.25, 0.75], method="inverted_cdf")
    median, low, high = (None if math.isinf(x) else float(x) for x in cut)
    return median, low, high


def versions() -> dict[str, str]:
    packages = ("numpy", "scipy", "numba", "matplotlib")
    found = {name: metadata.version(name) for name in packages}
    return {"ube": __version__, "python": platform.python_version(), **found}


def to_json(content: Any, digits: int = 6) -> str:
    """JSON with so many significant digits; NaN and infinity become null."""
    return json.dumps(_plain(content, digits), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Staged beside its place and renamed, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        os.chmod(staged, 0o644)
        os.replace(staged, path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise


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


def rows_of(results: dict[str, Any], metric: str, agent: str | None = None, **setting: Any) -> list[Row]:
    """The summary rows that fit."""
    return [
        r
        for r in results["summary"]
        if r["metric"] == metric
        and agent in (None, r["agent"])
        and all(r["setting"].get(key) == value for key, value in setting.items())
    ]


def rows_of_metrics(results: dict[str, Any], metrics: tuple[str, ...]) -> list[Row]:
    return [row for metric in metrics for row in rows_of(results, metric)]
