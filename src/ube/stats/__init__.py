"""Scores and what may be said of them: the paper's scoring of Atari, and statistics for few runs."""

from ube.stats import atari
from ube.stats.robust import (
    Estimate,
    bootstrap,
    iqm,
    mean,
    mean_interval,
    mean_intervals,
    median,
    optimality_gap,
    probability_of_improvement,
    profile,
    profile_intervals,
    wilson,
)

__all__ = [
    "Estimate", "atari", "bootstrap", "iqm", "mean", "mean_interval", "mean_intervals", "median", "optimality_gap",
    "probability_of_improvement", "profile", "profile_intervals", "wilson",
]  # fmt: skip
