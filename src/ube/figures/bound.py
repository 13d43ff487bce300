"""How loose is each variance? u of every method against the true posterior variance, over random beliefs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.results import row, rows_of_metrics
from ube.figures.style import canvas
from ube.tabular import Belief, ScaledBeta, monte_carlo, solve

UPPER = ("ube", "ube-horizon", "pombu")
LAYERED = (*UPPER, "lower")
TIED = (*UPPER, "exact", "lower", "delta")


def _rewards(rng: np.random.Generator, shape: tuple[int, ...]) -> ScaledBeta:
    return ScaledBeta(rng.uniform(0.5, 5.0, shape), rng.uniform(0.5, 5.0, shape))


def _layered(rng: np.random.Generator, horizon: int, states: int, actions: int) -> tuple[Belief, np.ndarray]:
    alpha = rng.gamma(1.0, 1.0, (horizon, states, actions, states)) + 0.05
    belief = Belief.layered(alpha, rewards=_rewards(rng, (horizon, states, actions)))
    return belief, rng.dirichlet(np.ones(actions), (horizon, states))


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    ratios: dict[str, dict[str, list[float]]] = {"layered": {m: [] for m in LAYERED}, "tied": {m: [] for m in TIED}}
    violations = {kind: dict.fromkeys(methods, 0) for kind, methods in (("layered", LAYERED), ("tied", TIED))}
    horizon, states, actions = settings["horizon"], settings["states"], settings["actions"]
    for i in range(settings["seeds"]):
        belief, policy = _layered(np.random.default_rng([first_seed + i, 0]), horizon, states, actions)
        truth = solve(belief, policy, "exact").variance
        for method in LAYERED:
            u = solve(belief, policy, method).variance
            ratios["layered"][method].append(float(np.median(u[0] / truth[0])))
            wrong = u > truth * (1 + 1e-9) if method == "lower" else u < truth * (1 - 1e-9)
            violations["layered"][method] += bool(wrong.any())
        progress("bound: layered beliefs", i + 1, settings["seeds"])
    for i in range(settings["tied_beliefs"]):
        rng = np.random.default_rng([first_seed + i, 1])
        alpha = rng.gamma(1.0, 1.0, (states, actions, states)) + 0.05
        belief = Belief.stationary(alpha, rewards=_rewards(rng, (states, actions)), discount=1.0, horizon=horizon)
        policy = np.broadcast_to(rng.dirichlet(np.ones(actions), states), (horizon, states, actions))
        oracle = monte_carlo(belief, policy, settings["samples"], rng=rng)
        for method in TIED:
            u = solve(belief, policy, method).variance
            ratios["tied"][method].append(float(np.median(u[0] / oracle.variance[0])))
            if method in UPPER:
                violations["tied"][method] += bool((u[0] < oracle.variance[0] - 4 * oracle.variance_se[0]).any())
        progress("bound: tied beliefs", i + 1, settings["tied_beliefs"])
    summary = []
    for kind, methods in ratios.items():
        count = {"layered": settings["seeds"], "tied": settings["tied_beliefs"]}[kind]
        setting = {"belief": kind, "horizon": horizon, "states": states, "beliefs": count}
        for method, values in methods.items():
            middle, low, high = np.quantile(values, [0.5, 0.05, 0.95])
            summary.append(row(method, setting, "ratio_to_true_variance", middle, low, high))
            if method in UPPER or (kind == "layered" and method == "lower"):
                summary.append(row(method, setting, "beliefs_with_a_violation", violations[kind][method]))
    return {"summary": summary, "data": {"ratios": ratios}}


@contextmanager
def plot_ladder(results: Results) -> Iterator[Any]:
    with canvas(columns=2, width=3.5) as (figure, axes):
        for axis, (kind, methods) in zip(axes[0], results["data"]["ratios"].items(), strict=True):
            names = list(methods)
            boxes = axis.boxplot(
                [methods[m] for m in names], orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6,
                patch_artist=True, medianprops={"color": "black"},
            )  # fmt: skip
            for box in boxes["boxes"]:
                box.set(facecolor="#56B4E9", alpha=0.6, linewidth=0.6)
            axis.axvline(1.0, color="#D55E00", linewidth=1)
            axis.set_yticks(range(1, len(names) + 1), names)
            title = "layers with posteriors of their own" if kind == "layered" else "tied layers: one posterior shared"
            axis.set(xscale="log", xlabel="u / true posterior variance, first layer", title=title)
        yield figure


EXPERIMENT = Experiment(
    name="bound",
    title="The ladder of bounds: how far each variance is from the true one (Theorem 1 and beyond)",
    note=(
        "Random beliefs; the true variance is the exact recursion (layered) or Monte Carlo (tied). Left, every method "
        "keeps its promise, and the paper's bound is thousands of times loose. Right, when the layers share one "
        "posterior, as an unrolled stationary MDP does, nothing is guaranteed: pombu and exact fall below the truth."
    ),
    scales={
        "quick": {"seeds": 200, "tied_beliefs": 30, "samples": 2_000, "horizon": 10, "states": 5, "actions": 2},
        "paper": {"seeds": 5_000, "tied_beliefs": 200, "samples": 20_000, "horizon": 10, "states": 5, "actions": 2},
    },
    job=job,
    plots={"bound": plot_ladder},
    headline=partial(rows_of_metrics, metrics=("ratio_to_true_variance", "beliefs_with_a_violation")),
)
