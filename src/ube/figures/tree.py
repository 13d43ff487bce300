"""The binary tree of Janz et al. 2019: episodes to solve against depth. Noise per step needs 2^depth, the rest does not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ube.figures.charts import of_growth
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.results import rows_of_metrics
from ube.figures.solving import plot_times, solve_times, summarise
from ube.tabular import mdp
from ube.tabular.agents import AGENTS, Agent
from ube.tabular.simulate import Learner


def _build(rng: np.random.Generator, size: int, agent: Agent) -> Learner:
    problem = mdp.tree(size, rng)
    return Learner(problem, problem.belief(), agent)


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    seeds = range(first_seed, first_seed + settings["seeds"])
    agents = {
        "ube-thompson": AGENTS["ube-thompson"].but(variance="pombu"),
        **{name: agent for name, agent in AGENTS.items() if name != "ube-thompson"},
        "rlsvi": AGENTS["rlsvi"].but(beta=0.1),
        "ucbvi": AGENTS["ucbvi"].but(beta=0.1),
    }
    times = solve_times(_build, agents, settings["depths"], settings["cap"], seeds, "tree", progress)
    return {"summary": summarise(times, "depth", settings["cap"], {}), "data": {}}


EXPERIMENT = Experiment(
    name="tree",
    title="Binary tree (Janz et al. 2019): episodes to solve against depth",
    note=(
        "At each junction one of two actions ends the episode with nothing; 1 waits after the last. Before it is found "
        "all values tie, and independent noise per action and step (ube-thompson, the paper's eq. 3) is a coin toss at "
        "each junction whatever the variances say: 2^depth episodes. One scalar per episode, optimism, or a joint sample "
        "go straight on. All agents share the prior; nothing is tuned, RLSVI and UCBVI have scale 0.1, the others 1. "
        "The dotted line is the cap; agents that no seed could solve at one depth are not run deeper."
    ),
    scales={
        "quick": {"depths": [5, 10, 20, 50, 100], "cap": 2_000, "seeds": 10},
        "paper": {"depths": [5, 10, 15, 25, 50, 100, 150, 200, 250], "cap": 5_000, "seeds": 50},
    },
    job=job,
    plots={"tree": partial(plot_times, size_name="depth", x_label="depth L", panels=[("tree", {})])},
    headline=partial(rows_of_metrics, metrics=("episodes_to_solve", "growth_exponent")),
    charts=partial(of_growth, size_name="depth", x_label="depth L", panels=[("tree", {})]),
)
