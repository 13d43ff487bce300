"""DeepSea with tabular agents: episodes to solve against the size, every agent tuned with the same budget."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.results import row, rows_of_metrics
from ube.figures.solving import Build, plot_times, solve_times, summarise, tune
from ube.tabular import mdp
from ube.tabular.agents import AGENTS, Agent
from ube.tabular.simulate import Learner

# Six settings for each agent: of its scale, or of whatever it has in that place.
_SCALES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
CANDIDATES: dict[str, list[Agent]] = {
    "ube-thompson": [AGENTS["ube-thompson"].but(beta=b) for b in _SCALES],
    "ube-ucb": [AGENTS["ube-ucb"].but(beta=b) for b in _SCALES],
    "ube-ucb-exact": [AGENTS["ube-ucb"].but(variance="exact", beta=b) for b in _SCALES],
    "ube-ucb-horizon": [AGENTS["ube-ucb"].but(variance="ube-horizon", beta=b) for b in _SCALES],
    "ube-episode": [AGENTS["ube-episode"].but(beta=b) for b in _SCALES],
    "ube-joint": [AGENTS["ube-joint"].but(beta=b) for b in _SCALES],
    "bonus": [AGENTS["bonus"].but(beta=b) for b in (0.0001, 0.001, 0.01, 0.03, 0.1, 1.0)],
    "ucbvi": [AGENTS["ucbvi"].but(beta=b) for b in _SCALES],
    "rlsvi": [AGENTS["rlsvi"].but(beta=b) for b in _SCALES],
    "psrl": [AGENTS["psrl"]],  # has no scale: its six settings are priors, see PSRL_ALPHAS
    "k-learning": [AGENTS["k-learning"].but(beta=b) for b in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)],
    "epsilon-greedy": [AGENTS["epsilon-greedy"].but(epsilon=e) for e in (0.01, 0.03, 0.1, 0.2, 0.5, 1.0)],
    "boltzmann": [AGENTS["boltzmann"].but(temperature=t) for t in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)],
}
PSRL_ALPHAS = (0.03, 0.1, 0.3, 0.5, 1.0, 2.0)
CASES = {
    "noise known": {"noise_var": 0.0},
    "noise overrated": {"noise_var": 1.0},
    "known transitions": {"noise_var": 0.0, "known_transitions": True},
}


def _builder(case: str) -> Build:
    def build(rng: np.random.Generator, size: int, agent: Agent) -> Learner:
        options = CASES[case]
        problem = mdp.deep_sea(size, rng, known_transitions=bool(options.get("known_transitions")))
        alpha = float(agent.name.split("=")[1]) if agent.name.startswith("psrl α=") else 1.0
        return Learner(problem, problem.belief(alpha=alpha, noise_var=options["noise_var"]), agent)

    return build


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    candidates = CANDIDATES | {"psrl": [AGENTS["psrl"].but(name=f"psrl α={a:g}") for a in PSRL_ALPHAS]}
    seeds = range(first_seed, first_seed + settings["seeds"])
    summary = []
    for case in CASES:
        what = f"deepsea-tabular, {case}"
        chosen = tune(
            _builder(case), candidates, settings["tuning_size"], settings["tuning_cap"], settings["tuning_seeds"], what,
            progress,
        )  # fmt: skip
        for name, agent in chosen.items():
            value = {"epsilon-greedy": agent.epsilon, "boltzmann": agent.temperature}.get(name, agent.beta)
            setting: dict[str, Any] = {"case": case, "size": settings["tuning_size"]}
            if name == "psrl":
                value = float(agent.name.split("=")[1])
            summary.append(row(name, setting, "tuned_setting", value))
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
    title="DeepSea, tabular: episodes to solve against the size, every agent tuned with the same budget",
    note=(
        "Which action goes right is drawn per cell. Solved: the first success from which on the reward is found in 10 of "
        "100 episodes. Every agent gets six settings, tried on seeds of their own at one small size; PSRL, which has no "
        "scale, six priors. Left: the belief knows that rewards carry no noise. Middle: it expects unit noise, so those "
        "that trust it explore far too long, and UCBVI and RLSVI, which do not use it, win. ube-thompson (the paper's "
        "eq. 3), ε-greedy and Boltzmann dither: exponential in the size. Agents that no seed could solve at one size are "
        "not run at the next."
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
)  # fmt: skip
