"""RiverSwim: regret with stochastic transitions and tied layers, where no bound is guaranteed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ube.figures.charts import Chart, with_error
from ube.figures.experiment import Experiment, Key, Progress, Results, run_grouped
from ube.figures.results import Row, quartiles, row, rows_of_metrics
from ube.figures.style import canvas, draw, legend_below
from ube.figures.tuning import tune
from ube.stats import mean_interval
from ube.tabular import mdp
from ube.tabular.agents import Agent
from ube.tabular.simulate import Cell, Learner

CASES = {"noise known": 0.0, "noise overrated": 1.0}


def _runs(
    agents: Mapping[Key, Agent], settings: dict[str, Any], noise_var: float, seeds: range, what: str, progress: Progress
) -> dict[Key, np.ndarray]:
    """Cumulative regret, (seeds, episodes), of each agent."""
    problem = mdp.river_swim(settings["states"], settings["horizon"])
    cells = {}
    for key, agent in agents.items():
        learner = Learner(problem, problem.belief(alpha=agent.prior_alpha, noise_var=noise_var), agent)
        cells[key] = [Cell(learner, settings["episodes"], seed, evaluate_policy=True) for seed in seeds]
    runs = run_grouped(cells, what, progress)
    return {key: np.cumsum([run.regret for run in group], axis=1) for key, group in runs.items()}


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    at = np.unique(np.geomspace(1, settings["episodes"], 50).astype(int))
    seeds = range(first_seed, first_seed + settings["seeds"])
    summary: list[Row] = []
    curves: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for case, noise_var in CASES.items():

        def costs(
            options: dict[tuple[str, int], Agent], tuning_seeds: range, case: str = case, noise_var: float = noise_var
        ) -> dict[tuple[str, int], float]:
            trials = _runs(options, settings, noise_var, tuning_seeds, f"riverswim, {case}: tuning", progress)
            return {key: float(regret[:, -1].mean()) for key, regret in trials.items()}

        chosen = tune(costs, settings["tuning_seeds"])
        regrets = _runs(chosen, settings, noise_var, seeds, f"riverswim, {case}", progress)
        setting = {k: settings[k] for k in ("episodes", "states", "horizon")} | {"case": case}
        curves[case] = {}
        for name, regret in regrets.items():
            summary.append(row(name, setting, "regret", *mean_interval(regret[:, -1])))
            summary.append(row(name, setting, "median_regret", *quartiles(regret[:, -1])))
            summary.append(row(name, setting, "tuned_setting", chosen[name].scale))
            shown = regret[:, at - 1]
            error = 1.96 * shown.std(axis=0, ddof=1) / len(seeds) ** 0.5
            curves[case][name] = {"mean": shown.mean(axis=0), "error": error}
    return {"summary": summary, "data": {"episodes": at, "curves": curves}}


def charts(results: Results) -> list[Chart]:
    data = results["data"]
    return [
        Chart(
            f"regret, {case}", "episodes", "regret (mean, 95 %)",
            [with_error(name, data["episodes"], curve, 1.0) for name, curve in curves.items()], log_x=True, log_y=True,
        )
        for case, curves in data["curves"].items()
    ]  # fmt: skip


@contextmanager
def plot_regret(results: Results) -> Iterator[Any]:
    data = results["data"]
    titles = {"noise known": "rewards known to be noiseless", "noise overrated": "reward noise taken to be 1"}
    with canvas(columns=len(titles), width=3.6, height=3.4) as (figure, axes):
        for axis, (case, title) in zip(axes[0], titles.items(), strict=True):
            for name, curve in data["curves"][case].items():
                mean, error = np.array(curve["mean"]), np.array(curve["error"])
                draw(axis, name, data["episodes"], mean, np.maximum(mean - error, 0.1), mean + error)
            axis.set(xscale="log", yscale="log", xlabel="episodes", title=title)
        axes[0, 0].set_ylabel("regret (mean, 95 % interval)")
        legend_below(figure, axes[0, 0], 5)
        yield figure


EXPERIMENT = Experiment(
    name="riverswim",
    title="RiverSwim: regret with stochastic transitions and one posterior for all layers",
    note=(
        "Six states, twenty decisions an episode; the layers share what is learned, so no variance is guaranteed here. "
        "Regret is that of the policy's true value. Each line gets six settings of its scale (PSRL: six priors), tried on "
        "seeds of their own. Left, the belief knows that rewards carry no noise; right, it expects unit noise."
    ),
    scales={
        "quick": {"states": 6, "horizon": 20, "episodes": 1_000, "seeds": 20, "tuning_seeds": 4},
        "paper": {"states": 6, "horizon": 20, "episodes": 2_000, "seeds": 50, "tuning_seeds": 8},
    },
    job=job,
    plots={"riverswim": plot_regret},
    headline=partial(rows_of_metrics, metrics=("tuned_setting", "regret", "median_regret")),
    charts=charts,
)
