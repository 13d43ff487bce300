"""RiverSwim: regret with stochastic transitions and tied layers, where no bound is guaranteed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ube.figures.deepsea_tabular import CANDIDATES
from ube.figures.experiment import Experiment, Progress, Results, run_grouped
from ube.figures.results import mean_interval, quartiles, row, rows_of_metrics
from ube.figures.solving import TUNING_SEEDS, middle_of_best
from ube.figures.style import canvas, draw, legend_below
from ube.tabular import mdp
from ube.tabular.agents import Agent
from ube.tabular.simulate import Cell, Learner


def _cells(agent: Agent, settings: dict[str, Any], seeds: range) -> list[Cell]:
    problem = mdp.river_swim(settings["states"], settings["horizon"])
    learner = Learner(problem, problem.belief(noise_var=settings["noise_var"]), agent)
    return [Cell(learner, settings["episodes"], seed, evaluate_policy=True) for seed in seeds]


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    options = {(name, i): agent for name, agents in CANDIDATES.items() for i, agent in enumerate(agents)}
    tuning = range(TUNING_SEEDS, TUNING_SEEDS + settings["tuning_seeds"])
    trials = run_grouped({k: _cells(a, settings, tuning) for k, a in options.items()}, "riverswim: tuning", progress)
    cost = {key: np.mean([run.regret.sum() for run in runs]) for key, runs in trials.items()}
    chosen = {
        name: agents[middle_of_best([float(cost[name, i]) for i in range(len(agents))])]
        for name, agents in CANDIDATES.items()
    }
    seeds = range(first_seed, first_seed + settings["seeds"])
    runs = run_grouped({n: _cells(a, settings, seeds) for n, a in chosen.items()}, "riverswim", progress)
    at = np.unique(np.geomspace(1, settings["episodes"], 50).astype(int))
    summary, curves = [], {}
    setting = {"episodes": settings["episodes"], "states": settings["states"], "horizon": settings["horizon"]}
    for name, group in runs.items():
        regret = np.cumsum([run.regret for run in group], axis=1)
        tuned = {"epsilon-greedy": chosen[name].epsilon, "boltzmann": chosen[name].temperature}
        summary.append(row(name, setting, "regret", *mean_interval(regret[:, -1])))
        summary.append(row(name, setting, "median_regret", *quartiles(regret[:, -1])))
        summary.append(row(name, setting, "tuned_setting", tuned.get(name, chosen[name].beta)))
        error = 1.96 * regret[:, at - 1].std(axis=0, ddof=1) / len(group) ** 0.5
        curves[name] = {"mean": regret[:, at - 1].mean(axis=0), "error": error}
    return {"summary": summary, "data": {"episodes": at, "curves": curves}}


@contextmanager
def plot_regret(results: Results) -> Iterator[Any]:
    data = results["data"]
    with canvas(width=4.2, height=3.6) as (figure, axes):
        for name, curve in data["curves"].items():
            mean, error = np.array(curve["mean"]), np.array(curve["error"])
            draw(axes[0, 0], name, data["episodes"], mean, np.maximum(mean - error, 1e-3), mean + error)
        axes[0, 0].set(xscale="log", yscale="log", xlabel="episodes", ylabel="regret (mean, 95 % interval)")
        axes[0, 0].set_title("RiverSwim")
        legend_below(figure, axes[0, 0], 4)
        yield figure


EXPERIMENT = Experiment(
    name="riverswim",
    title="RiverSwim: regret with stochastic transitions and one posterior for all layers",
    note=(
        "Six states, twenty decisions an episode; the layers share what is learned, so no variance is guaranteed here. "
        "Regret is that of the policy's true value. Every agent is tuned over six settings on seeds of its own (PSRL has "
        "none)."
    ),
    scales={
        "quick": {"states": 6, "horizon": 20, "episodes": 1_000, "noise_var": 1.0, "seeds": 20, "tuning_seeds": 4},
        "paper": {"states": 6, "horizon": 20, "episodes": 5_000, "noise_var": 1.0, "seeds": 100, "tuning_seeds": 10},
    },
    job=job,
    plots={"riverswim": plot_regret},
    headline=partial(rows_of_metrics, metrics=("regret", "median_regret")),
)
