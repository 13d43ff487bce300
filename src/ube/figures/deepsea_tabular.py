"""DeepSea with tabular agents: episodes to solve against the size, six settings tried for each line."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ube.figures.charts import of_growth
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.results import row, rows_of_metrics
from ube.figures.solving import Build, plot_times, solve_times, summarise
from ube.figures.tuning import tune
from ube.tabular import mdp
from ube.tabular.agents import Agent
from ube.tabular.simulate import Learner

CASES = {
    "noise known": {"noise_var": 0.0},
    "noise overrated": {"noise_var": 1.0},
    "known transitions": {"noise_var": 0.0, "known_transitions": True},
}


def _builder(case: str) -> Build:
    def build(rng: np.random.Generator, size: int, agent: Agent) -> Learner:
        options = CASES[case]
        problem = mdp.deep_sea(size, rng, known_transitions=bool(options.get("known_transitions")))
        return Learner(problem, problem.belief(alpha=agent.prior_alpha, noise_var=options["noise_var"]), agent)

    return build


def _costs(
    build: Build,
    settings: dict[str, Any],
    what: str,
    progress: Progress,
    options: dict[tuple[str, int], Agent],
    seeds: range,
) -> dict[tuple[str, int], float]:
    """Mean time to solve at the tuning size, twice the cap where unsolved."""
    size, cap = settings["tuning_size"], settings["tuning_cap"]
    times = solve_times(build, options, [size], cap, seeds, f"{what}: tuning", progress)
    return {key: float(np.minimum(times[key, size], 2 * cap).mean()) for key in options}


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    seeds = range(first_seed, first_seed + settings["seeds"])
    summary = []
    for case in CASES:
        what = f"deepsea-tabular, {case}"
        chosen = tune(partial(_costs, _builder(case), settings, what, progress), settings["tuning_seeds"])
        for name, agent in chosen.items():
            summary.append(row(name, {"case": case, "size": settings["tuning_size"]}, "tuned_setting", agent.scale))
        times = solve_times(_builder(case), chosen, settings["sizes"], settings["cap"], seeds, what, progress)
        summary += summarise(times, "size", settings["cap"], {"case": case})
    return {"summary": summary, "data": {}}


_PANELS = [
    ("transitions unknown, rewards known to be noiseless", {"case": "noise known"}),
    ("transitions unknown, reward noise taken to be 1", {"case": "noise overrated"}),
    ("transitions known", {"case": "known transitions"}),
]

EXPERIMENT = Experiment(
    name="deepsea-tabular",
    title="DeepSea, tabular: episodes to solve against the size, six settings tried for each line",
    note=(
        "Which action goes right is drawn per cell. Solved: the first success from which on the reward is found in 10 of "
        "100 episodes. Each line gets six settings of its scale (PSRL, which has none, six priors), tried on seeds of their "
        "own at one small size; six of the lines are UBE. Left: the belief knows that rewards carry no noise. "
        "Middle: it expects unit noise, and agents that trust it explore far too long. UCBVI and RLSVI have no noise in "
        "their model: their scale takes its place, and tuning sets it near zero. Right: all agents know where actions lead. "
        "ube-thompson (the paper's eq. 3), ε-greedy and Boltzmann dither: exponential in the size. Agents that no seed "
        "could solve at one size are not run at the next."
    ),
    scales={
        "quick": {
            "sizes": [5, 10, 15, 20, 30], "cap": 1_000, "seeds": 10,
            "tuning_size": 10, "tuning_cap": 500, "tuning_seeds": 4,
        },
        "paper": {
            "sizes": [5, 10, 15, 20, 30, 40, 50], "cap": 5_000, "seeds": 30,
            "tuning_size": 20, "tuning_cap": 2_000, "tuning_seeds": 8,
        },
    },
    job=job,
    plots={"deepsea-tabular": partial(plot_times, size_name="size", x_label="size N", panels=_PANELS)},
    headline=partial(rows_of_metrics, metrics=('tuned_setting', 'episodes_to_solve', 'growth_exponent')),
    charts=partial(of_growth, size_name="size", x_label="size N", panels=_PANELS),
)  # fmt: skip
