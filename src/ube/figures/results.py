"""Rows of a summary, and the statistics in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import stdtrit

Row = dict[str, Any]


def row(agent: str, setting: dict[str, Any], metric: str, value: Any, low: Any = None, high: Any = None) -> Row:
    """One line of a summary; `low` and `high` span a 95 % interval, or the quartiles where the metric says so."""
    return {"agent": agent, "setting": setting, "metric": metric, "value": value, "low": low, "high": high}


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean and Student's 95 % interval for it."""
    mean, n = float(np.mean(values)), len(values)
    half = float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def mean_intervals(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`mean_interval` of each column of (seeds, columns), over the seeds that are not NaN there; NaN where none is."""
    there = [column[np.isfinite(column)] for column in np.transpose(values)]
    found = np.array([mean_interval(column) if len(column) else (math.nan,) * 3 for column in there])
    return found[:, 0], found[:, 1], found[:, 2]


def iqm(scores: np.ndarray) -> float:
    """The interquartile mean: of what is left without the lowest and the highest quarter (Agarwal et al. 2021)."""
    ordered = np.sort(np.ravel(scores))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else math.nan


def evaluations(runs: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Mean return of each run after training, by the greedy policy (but for the cell's ε) and by the agent's own policy."""
    kept = {"evaluation_return": "greedy_returns", "own_policy_return": "own_returns"}
    return {metric: np.array([np.mean(run[key]) for run in runs if run[key]]) for metric, key in kept.items()}


def quartiles(values: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Median and quartiles, None where they are infinite (a run that never got there counts as infinite)."""
    cut = np.quantile(values, [0.5, 0.25, 0.75], method="inverted_cdf")
    median, low, high = (None if math.isinf(x) else float(x) for x in cut)
    return median, low, high


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
