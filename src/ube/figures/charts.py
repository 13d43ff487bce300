"""Curves that the page draws itself, so that a reader can point at them, leave some out, and smooth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ube.figures.experiment import Results
from ube.figures.results import rows_of


class Series(NamedTuple):
    name: str
    """An agent, perhaps with more after a space: the agent decides the colour."""
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


class Chart(NamedTuple):
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False


Curves = Mapping[str, Mapping[str, Any]]
"""agent -> {"mean": …, "low": …, "high": …}"""


def of_bins(panels: Mapping[str, Curves], lengths: Mapping[str, float], x_label: str, y_label: str) -> list[Chart]:
    """A chart for each panel, whose curves have one value in each equal part of its length."""
    charts = []
    for title, curves in panels.items():
        n_bins = max(len(curve["mean"]) for curve in curves.values())
        x = ((np.arange(n_bins) + 0.5) * lengths[title] / n_bins).tolist()
        series = [Series(agent, x, curve["mean"], curve["low"], curve["high"]) for agent, curve in curves.items()]
        charts.append(Chart(title, x_label, y_label, series))
    return charts


def with_error(name: str, x: Sequence[float], curve: Mapping[str, Any], errors: float) -> Series:
    """A band of so many errors to both sides of the mean."""
    mean, half = np.array(curve["mean"]), errors * np.array(curve["error"])
    return Series(name, x, mean.tolist(), (mean - half).tolist(), (mean + half).tolist())


def of_growth(
    results: Results, size_name: str, x_label: str, panels: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[Chart]:
    """Episodes to solve against the size; a gap where the median was never reached."""
    charts = []
    for title, setting in panels:
        rows = rows_of(results, "episodes_to_solve", **setting)
        series = []
        for agent in dict.fromkeys(r["agent"] for r in rows):
            mine = [r for r in rows if r["agent"] == agent]
            series.append(
                Series(
                    agent,
                    [r["setting"][size_name] for r in mine],
                    *([r[k] for r in mine] for k in ("value", "low", "high")),
                )
            )
        charts.append(Chart(title, x_label, "episodes to solve (median, quartiles)", series, log_y=True))
    return charts
