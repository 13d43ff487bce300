"""Rows of a summary, and the statistics in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Row = dict[str, Any]


def row(agent: str, setting: dict[str, Any], metric: str, value: Any, low: Any = None, high: Any = None) -> Row:
    """One line of a summary; `low` and `high` span a 95 % interval, or the quartiles where the metric says so."""
    return {"agent": agent, "setting": setting, "metric": metric, "value": value, "low": low, "high": high}


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
