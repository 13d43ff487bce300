"""Runs: train, load, evaluate, and the directory that keeps them."""

from ube.runs.plan import Schedule
from ube.runs.training import Evaluation, Run, TrainedAgent, Uncertainty, load, train

__all__ = ["Evaluation", "Run", "Schedule", "TrainedAgent", "Uncertainty", "load", "train"]
