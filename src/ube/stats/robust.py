"""Statistics over few runs of many tasks (Agarwal et al. 2021). Scores have the shape (runs, tasks)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from ube.errors import UsageError


class Estimate(NamedTuple):
    """value, with a 95 % interval from low to high."""

    value: float
    low: float
    high: float


def mean_interval(values: np.ndarray) -> Estimate:
    """The mean and Student's 95 % interval for it."""
    mean, n = float(np.mean(values)), len(values)
    half = float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(mean, mean - half, mean + half)


def mean_intervals(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`mean_interval` of each column of (seeds, columns), over the seeds that are not NaN there; NaN where none is."""
    there = [column[np.isfinite(column)] for column in np.transpose(values)]
    found = np.array([mean_interval(column) if len(column) else (math.nan,) * 3 for column in there])
    return found[:, 0], found[:, 1], found[:, 2]


def wilson(successes: int, n: int) -> Estimate:
    """How many of n runs succeeded, with Wilson's 95 % interval for how many would in the long run."""
    z = 1.959964
    middle, half = successes + z**2 / 2, z * math.sqrt(successes * (n - successes) / n + z**2 / 4)
    scale = n / (n + z**2)
    return Estimate(successes, max(scale * (middle - half), 0.0), min(scale * (middle + half), n))


def iqm(scores: np.ndarray) -> float:
    """The interquartile mean: of what is left without the lowest and the highest quarter of all runs."""
    _check_finite(scores)
    ordered = np.sort(np.ravel(scores))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else math.nan


def mean(scores: np.ndarray) -> float:
    """Over tasks, of the mean over runs."""
    return float(np.mean(scores))


def median(scores: np.ndarray) -> float:
    """Over tasks, of the mean over runs."""
    return float(np.median(np.mean(scores, 0)))


def optimality_gap(scores: np.ndarray, goal: float = 1.0) -> float:
    """By how much runs miss the goal, those beyond it counting as on it."""
    return float(goal - np.minimum(scores, goal).mean())


def profile(scores: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """The share of runs above each threshold."""
    _check_finite(scores)
    return (np.ravel(scores)[:, None] > np.asarray(thresholds)).mean(0)


def probability_of_improvement(scores: np.ndarray, rival: np.ndarray) -> float:
    """That a run on a task beats one of the rival's there, a tie counting half; the mean over tasks."""
    _check(scores, rival)
    better = scores[:, None] > rival[None]
    equal = scores[:, None] == rival[None]
    return float((better + 0.5 * equal).mean())


def bootstrap(
    statistic: Callable[..., float], *scores: np.ndarray, rng: np.random.Generator, resamples: int = 2_000
) -> Estimate:
    """`statistic(*scores)` with a 95 % percentile interval: runs are drawn again within each task, never across them."""
    _check(*scores)
    again = [float(statistic(*(_resampled(one, rng) for one in scores))) for _ in range(resamples)]
    low, high = np.quantile(again, [0.025, 0.975])
    return Estimate(float(statistic(*scores)), float(low), float(high))


def profile_intervals(
    scores: np.ndarray, thresholds: Sequence[float] | np.ndarray, *, rng: np.random.Generator, resamples: int = 2_000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`profile` with the ends of a 95 % interval at each threshold, as `bootstrap` makes them."""
    _check(scores)
    again = [profile(_resampled(scores, rng), thresholds) for _ in range(resamples)]
    low, high = np.quantile(again, [0.025, 0.975], axis=0)
    return profile(scores, thresholds), low, high


def _resampled(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.take_along_axis(scores, rng.integers(len(scores), size=scores.shape), 0)


def _check(*scores: np.ndarray) -> None:
    for one in scores:
        if np.ndim(one) != 2 or one.shape[1] != scores[0].shape[1] or not one.size:
            raise UsageError(f"scores of shape {np.shape(one)}: expected (runs, tasks), the tasks the same for all")
        _check_finite(one)


def _check_finite(scores: np.ndarray) -> None:
    if not np.isfinite(scores).all():
        raise UsageError("scores hold NaN or infinity: leave out tasks that some run did not finish")
