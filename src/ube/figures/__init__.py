"""Every figure and table, as an entry in a registry: settings for each scale, a job, a summary, a plot."""

from ube.figures.registry import EXPERIMENTS, Experiment, reproduce

__all__ = ["EXPERIMENTS", "Experiment", "reproduce"]
