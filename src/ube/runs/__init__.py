"""Runs: train, load, evaluate, and the directory that keeps them."""

from ube.runs.plan import Schedule
from ube.runs.training import (
    Callback,
    Episode,
    Evaluation,
    Progress,
    Run,
    TrainedAgent,
    Uncertainty,
    load,
    train,
)

__all__ = [
    "Callback",
    "Episode",
    "Evaluation",
    "Progress",
    "Run",
    "Schedule",
    "TrainedAgent",
    "Uncertainty",
    "load",
    "train",
]
