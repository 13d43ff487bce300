"""The paper's Figure 2: regret on the two-branch chain, UBE against a count bonus, and where that result holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ube.figures.charts import Chart, with_error
from ube.figures.experiment import Experiment, Progress, Results, run_grouped
from ube.figures.results import Row, quartiles, row, rows_of
from ube.figures.style import LOOKS, canvas, draw, legend_below
from ube.stats import mean_interval
from ube.tabular import mdp
from ube.tabular.agents import AGENTS, Agent
from ube.tabular.mdp import MDP
from ube.tabular.simulate import Cell, Learner, Run

BETAS = tuple(float(f"{b:.3g}") for b in np.geomspace(0.01, 3.0, 15))
QUARTILES = ("median", "lower", "upper")
FLOOR = 0.5  # of logarithmic axes: half an episode's regret
UBE = ("ube-thompson", "ube-episode", "ube-ucb")


_MEANS = {"paper": (1.0, 0.0), "swapped": (0.0, 1.0)}
CASES = (*_MEANS, "random means")


def _problems(case: str, length: int, seeds: range) -> list[MDP]:
    """One per seed; the same one for all where nothing is random."""
    if case in _MEANS:
        return [mdp.chain(length, _MEANS[case])] * len(seeds)
    draws = (np.random.default_rng([seed, 1]).standard_normal(2).tolist() for seed in seeds)
    return [mdp.chain(length, (first, second)) for first, second in draws]


def _cells(problems: list[MDP], agent: Agent, episodes: int, seeds: range) -> list[Cell]:
    learners: dict[MDP, Learner] = {}
    for problem in problems:
        if problem not in learners:
            # An improper prior, as in the paper: what has never been tried comes first, then Var μ = σ²/n.
            learners[problem] = Learner(problem, problem.belief(reward_var=np.inf), agent)
    return [Cell(learners[problem], episodes, seed) for problem, seed in zip(problems, seeds, strict=True)]


def _agents() -> dict[str, Agent]:
    bonuses = {f"bonus β={b:g}": AGENTS["bonus"].but(beta=b) for b in BETAS}
    return {name: AGENTS[name].but(variance="ube", beta=1.0) for name in UBE} | bonuses


def job(settings: dict[str, Any], first_seed: int, progress: Progress) -> Results:
    length, episodes = settings["length"], settings["episodes"]
    seeds = range(first_seed, first_seed + settings["seeds"])
    agents = _agents()
    problems = {case: _problems(case, length, seeds) for case in CASES}
    groups = {
        (case, name): _cells(problems[case], agent, episodes, seeds) for case in CASES for name, agent in agents.items()
    }
    curves = {key: _curves(runs) for key, runs in run_grouped(groups, "chain", progress).items()}
    summary: list[Row] = []
    for (case, name), curve in curves.items():
        agent, beta = name.split(" β=") if "β" in name else (name, None)
        setting: dict[str, Any] = {"case": case, "length": length, "episodes": episodes}
        setting |= {} if beta is None else {"beta": float(beta)}
        summary.append(row(agent, setting, "regret", *mean_interval(curve[:, -1])))
        summary.append(row(agent, setting, "median_regret", *quartiles(curve[:, -1])))
    best = {
        case: min((f"bonus β={b:g}" for b in BETAS), key=lambda name: curves[case, name][:, -1].mean())
        for case in CASES
    }
    few = seeds[: settings["growth_seeds"]]
    growth = {
        (name, h): _cells(_problems("paper", h, few), agents[name], episodes, few)
        for h in settings["growth_lengths"]
        for name in ("ube-thompson", best["paper"])
    }
    for (name, h), runs in run_grouped(growth, "chain: growth with H", progress).items():
        setting = {"case": "growth", "length": h, "episodes": episodes}
        summary.append(row(name.split(" ")[0], setting, "regret", *mean_interval(_curves(runs)[:, -1])))
    at = np.unique(np.geomspace(1, episodes, 60).astype(int))
    shown = {
        f"{case}/{name}": {
            "mean": curves[case, name][:, at - 1].mean(axis=0),
            "error": curves[case, name][:, at - 1].std(axis=0, ddof=1) / settings["seeds"] ** 0.5,
            **dict(zip(QUARTILES, np.quantile(curves[case, name][:, at - 1], [0.5, 0.25, 0.75], axis=0), strict=True)),
        }
        for case in CASES
        for name in (*UBE, best[case])
    }
    return {"summary": summary, "data": {"episodes": at, "best_bonus": best, "curves": shown}}


def _curves(runs: list[Run]) -> np.ndarray:
    return np.cumsum([run.regret for run in runs], axis=1)


def charts(results: Results) -> list[Chart]:
    data = results["data"]
    return [
        Chart(
            f"regret, {case}", "episodes", "regret (mean ± 1.96 standard errors)",
            [
                with_error(name, data["episodes"], data["curves"][f"{case}/{name}"], 1.96)
                for name in (*UBE, data["best_bonus"][case])
            ],
            log_x=True,
        )
        for case in CASES
    ]  # fmt: skip


def headline(results: Results) -> list[Row]:
    """All but the sweep: of the bonuses only the best of each case."""
    best = {case: float(name.split("=")[1]) for case, name in results["data"]["best_bonus"].items()}
    return [r for r in results["summary"] if r["setting"].get("beta") in (None, best.get(r["setting"]["case"]))]


@contextmanager
def plot_regret(results: Results) -> Iterator[Any]:
    """The paper's Figure 2, and the three ways to look again."""
    data = results["data"]
    with canvas(columns=4, width=2.7) as (figure, axes):
        views = [("paper", "mean", "μ = (1, 0), mean (paper)"), ("paper", "median", "μ = (1, 0), median and quartiles")]
        views += [("swapped", "mean", "μ = (0, 1), mean"), ("random means", "mean", "random μ, mean")]
        for axis, (case, statistic, title) in zip(axes[0], views, strict=True):
            for name in (*UBE, data["best_bonus"][case]):
                curve = data["curves"][f"{case}/{name}"]
                middle, low, high = (np.array(curve[q]) for q in QUARTILES)
                if statistic == "mean":
                    middle, error = np.array(curve["mean"]), 1.96 * np.array(curve["error"])
                    low, high = middle - error, middle + error
                draw(axis, name.split(" ")[0], data["episodes"], middle, low, high, label=name)
            axis.set(title=title, xlabel="episodes", xscale="log")
            axis.set_ylim(bottom=0)
            axis.legend()
        axes[0, 0].set_ylabel("regret")
        yield figure


@contextmanager
def plot_sweep(results: Results) -> Iterator[Any]:
    with canvas(columns=4, width=2.7, height=2.9) as (figure, axes):
        for axis, case in zip(axes[0], CASES, strict=False):
            for metric, line in (("regret", "-"), ("median_regret", ":")):
                word = "mean" if metric == "regret" else "median"
                rows = rows_of(results, metric, "bonus", case=case)
                beta = [r["setting"]["beta"] for r in rows]
                axis.plot(beta, [r["value"] for r in rows], line, color=LOOKS["bonus"][0], label=f"bonus, {word}")
                if metric == "regret":
                    low, high = ([max(r[end], FLOOR) for r in rows] for end in ("low", "high"))
                    axis.fill_between(beta, low, high, color=LOOKS["bonus"][0], alpha=0.12, linewidth=0)
                ours = rows_of(results, metric, "ube-thompson", case=case)[0]["value"]
                axis.axhline(ours, ls=line, color=LOOKS["ube-thompson"][0], label=f"ube-thompson, {word}")
            axis.set(title=case, xlabel="β of the bonus", xscale="log", yscale="log")
            axis.set_ylim(bottom=FLOOR)
        growth = axes[0, 3]
        for agent in ("ube-thompson", "bonus"):
            rows = rows_of(results, "regret", agent, case="growth")
            length = [r["setting"]["length"] for r in rows]
            label = results["data"]["best_bonus"]["paper"] if agent == "bonus" else agent
            value, low, high = ([max(r[k], FLOOR) for r in rows] for k in ("value", "low", "high"))
            draw(growth, agent, length, value, low, high, marks=True, label=label)
        growth.set(title="growth with the length (paper's means)", xlabel="H", xscale="log", yscale="log")
        growth.legend()
        axes[0, 0].set_ylabel(f"regret after {results['settings']['episodes']} episodes")
        legend_below(figure, axes[0, 0], 4)
        yield figure


EXPERIMENT = Experiment(
    name="chain",
    title="Two-branch chain: adding up variances against adding up standard deviations (paper, Figure 2)",
    note=(
        "Action 1 pays N(1, 1) at once, action 2 leads down a chain of ten states that pays N(0, 1) in all. The bonus "
        "agent gets the best of 15 values of β in each case, chosen after the fact; UBE has none to tune. By the mean "
        "UBE wins, because a small bonus locks onto the wrong branch in some seeds; by the median the small bonus wins, "
        "and with the means swapped its bias happens to point the right way. Optimism without a growing factor (ube-ucb) "
        "locks in too, in fewer seeds."
    ),
    scales={
        "quick": {"length": 10, "episodes": 1000, "seeds": 100, "growth_lengths": [1, 3, 10, 30], "growth_seeds": 40},
        "paper": {
            "length": 10,
            "episodes": 1000,
            "seeds": 500,
            "growth_lengths": [1, 3, 10, 30, 100],
            "growth_seeds": 100,
        },
    },
    job=job,
    plots={"chain": plot_regret, "chain-sweep": plot_sweep},
    headline=headline,
    charts=charts,
)
