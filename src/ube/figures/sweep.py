"""Settings of learning agents, the same number for each, tried on seeds of their own and published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ube.figures.experiment import Results
from ube.figures.learning_cells import LearningCell, Result
from ube.figures.results import Row, row, rows_of
from ube.figures.style import draw
from ube.figures.tuning import FIRST_TUNING_SEED, middle_of_best
from ube.figures.workers import Workers
from ube.stats import mean_interval

Candidates = Mapping[str, Mapping[str, Sequence[float]]]
"""agent -> {field of its config: values to try}"""

CANDIDATES: dict[str, dict[str, list[float]]] = {
    "dqn": {"epsilon_end": [0.01, 0.03, 0.1, 0.2, 0.5]},
    "ube-1step": {"beta": [0.001, 0.01, 0.1, 1.0, 10.0]},
    "ube-nstep": {"beta": [0.001, 0.01, 0.1, 1.0, 10.0]},
    "bonus": {"bonus_scale": [0.001, 0.01, 0.1, 1.0, 10.0]},
    "boot": {"randomised_prior": [0.3, 1.0, 3.0, 10.0, 30.0]},
    "ube-deep": {"beta": [0.03, 0.1, 0.3, 1.0, 3.0]},
}

SHORT_SCHEDULE = {"warmup": 1_000, "epsilon_steps": 10_000}
"""For images in runs of about 100,000 steps: the defaults would still lower ε at their end."""


def sweep(
    workers: Workers, what: str, tuning: dict[str, Any], where: dict[str, Any],
    make: Callable[[str, dict[str, Any], int], LearningCell], score: Callable[[Result], float], lower_is_better: bool,
) -> tuple[list[Row], dict[str, dict[str, float]]]:  # fmt: skip
    """Rows, and the best overrides of each agent.

    tuning: {"seeds": …, "candidates": …, "apply": …}, the last as in `applied`.
    make: (agent, overrides, seed) -> cell. where: added to each row's setting.
    """
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning["seeds"])
    tried = [
        (agent, {field: value})
        for agent, fields in tuning["candidates"].items()
        for field, values in fields.items()
        for value in values
    ]
    results = iter(workers.run(what, [make(agent, change, seed) for agent, change in tried for seed in seeds]))
    scores = [np.array([score(next(results)) for _ in seeds]) for _ in tried]
    rows = [
        row(agent, {**where, **change}, "tuning_score", *mean_interval(scored))
        for (agent, change), scored in zip(tried, scores, strict=True)
    ]
    best = {}
    for agent in tuning["candidates"]:
        mine = [(change, s.mean()) for (name, change), s in zip(tried, scores, strict=True) if name == agent]
        costs = [mean if lower_is_better else max(m for _, m in mine) - mean for _, mean in mine]
        best[agent] = mine[middle_of_best(costs)][0]
        (field, value), *_ = best[agent].items()
        rows.append(row(agent, {**where, "field": field}, "tuned_setting", value))
    return rows, best


APPLY = {name: name for name in ("dqn", "ube-1step", "ube-nstep", "bonus", "boot")} | {
    "unstructured-noise": "ube-1step"
}
"""Reported agent -> the agent whose best setting it gets. Not ube-deep, which has one setting everywhere; noise without
structure gets the β of the agent it is the control of."""


def applied(tuning: dict[str, Any] | None, best: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Overrides of the agents that are reported at their best."""
    return {agent: best[source] for agent, source in tuning["apply"].items()} if tuning else {}


def draw_sweep(axis: Any, results: Results, label: str, log: bool) -> None:
    """Score against the setting relative to the middle one, so that agents share an axis. Intervals are in the table."""
    rows = rows_of(results, "tuning_score")
    for agent in dict.fromkeys(r["agent"] for r in rows):
        (fields,) = [results["settings"]["tuning"]["candidates"][agent]]
        ((field, values),) = fields.items()
        mine = [r for r in rows if r["agent"] == agent]
        x = [r["setting"][field] / values[len(values) // 2] for r in mine]
        draw(axis, agent, x, [r["value"] for r in mine], marks=True)
    axis.set(xscale="log", xlabel="setting / middle candidate", ylabel=label, title="the sweep, on seeds of its own")
    if log:
        axis.set_yscale("log")
