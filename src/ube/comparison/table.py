"""From the rows of finished runs to one line for each agent, with intervals over seeds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ube.figures.results import Row, row
from ube.stats import Estimate, bootstrap, mean_interval, mean_intervals, probability_of_improvement
from ube.suite.work import BINS, ends

MEASURES = {"training": "training_return", "greedy": "evaluation_return", "own": "own_policy_return"}
"""Policy of a run's rows -> metric of the summary."""
ENOUGH = 3
"""Seeds of both, for a word on who is better."""
Scores = dict[str, dict[int, float]]
"""Metric -> seed -> what that run reached."""


@dataclass(frozen=True)
class AgentRow:
    """Means over seeds with Student's 95 % interval (NaN from a single seed); None where no seed has any."""

    agent: str
    seeds_done: int
    seeds: int
    training_return: Estimate | None
    """Of the episodes that ended in the last tenth of training."""
    evaluation_return: Estimate | None
    """After training, greedy but for a small ε."""
    own_policy_return: Estimate | None
    """After training, by the agent's own exploring policy."""
    better_in_training: Estimate | None
    """Probability that a run beats one of the first agent in training_return, a tie counting half, with a bootstrap
    interval; None for that agent itself, and with fewer than three seeds."""
    better_in_evaluation: Estimate | None
    """The same in evaluation_return."""


def scores_of(rows: list[dict[str, Any]], agent: str, steps: int) -> Scores:
    """What each finished run of an agent reached."""
    found: Scores = {metric: {} for metric in MEASURES.values()}
    mine = [one for one in rows if one["agent"] == agent]
    for seed in dict.fromkeys(one["seed"] for one in mine):
        for policy, metric in MEASURES.items():
            part = [one for one in mine if one["seed"] == seed and one["policy"] == policy]
            score = _last_tenth(part, steps) if policy == "training" else _last(part)
            if score is not None:
                found[metric][seed] = score
    return found


def _last_tenth(parts: list[dict[str, Any]], steps: int) -> float | None:
    """Mean over episodes; where none ended there, over the last part of training in which one did."""
    late = [one for one in parts if one["step"] > 0.9 * steps] or parts[-1:]
    episodes = sum(one["episodes"] for one in late)
    return sum(one["mean"] * one["episodes"] for one in late) / episodes if episodes else None


def _last(evaluations: list[dict[str, Any]]) -> float | None:
    return max(evaluations, key=lambda one: one["step"])["mean"] if evaluations else None


def agent_rows(scores: dict[str, Scores], done: dict[str, int], seeds: int) -> list[AgentRow]:
    """In the order of the agents, the first of which the others are measured by."""
    first = next(iter(scores))
    found = []
    for agent, mine in scores.items():
        means = {metric: _mean(list(by_seed.values())) for metric, by_seed in mine.items()}
        better = {
            name: None if agent == first else _improvement(mine[metric], scores[first][metric])
            for name, metric in (
                ("better_in_training", "training_return"),
                ("better_in_evaluation", "evaluation_return"),
            )
        }
        found.append(AgentRow(agent, done[agent], seeds, **means, **better))
    return found


def _mean(values: list[float]) -> Estimate | None:
    return mean_interval(np.array(values)) if values else None


def _improvement(mine: dict[int, float], rival: dict[int, float]) -> Estimate | None:
    if min(len(mine), len(rival)) < ENOUGH:
        return None
    columns = [np.array(list(values.values()))[:, None] for values in (mine, rival)]
    return bootstrap(probability_of_improvement, *columns, rng=np.random.default_rng(0))


def summary(table: list[AgentRow]) -> list[Row]:
    """As results files have it: a row for each agent and metric."""
    first, found = table[0].agent, []
    for one in table:
        found.append(row(one.agent, {"of": one.seeds}, "seeds_done", one.seeds_done))
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            if isinstance(value, Estimate):
                better = field.name.startswith("better")
                setting = {"than": first} if better else {}
                low, high = (None if math.isnan(edge) else edge for edge in (value.low, value.high))
                found.append(row(one.agent, setting, field.name, value.value, low, high))
    return found


def curves_of(rows: list[dict[str, Any]], agent: str, steps: int) -> dict[str, list[float | None]]:
    """mean, low and high over seeds of the mean return in each hundredth of training; None where no episode ended."""
    mine = [one for one in rows if one["agent"] == agent and one["policy"] == "training"]
    seeds = list(dict.fromkeys(one["seed"] for one in mine))
    values = np.full((max(1, len(seeds)), BINS), np.nan)
    parts_by_end = {end: part for part, end in enumerate(ends(steps))}
    for one in mine:
        values[seeds.index(one["seed"]), parts_by_end[one["step"]]] = one["mean"]
    parts = dict(zip(("mean", "low", "high"), mean_intervals(values), strict=True))
    return {name: [float(x) if np.isfinite(x) else None for x in part] for name, part in parts.items()}
