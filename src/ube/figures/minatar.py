"""MinAtar: training and evaluation returns of every agent, and their interquartile mean over games."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ube.deep.config import PRESETS
from ube.figures.charts import Chart, of_bins
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.learning_cells import LearningCell, Result
from ube.figures.results import Row, evaluations, row, rows_of, rows_of_metrics
from ube.figures.style import LOOKS, canvas, draw, legend_below
from ube.figures.sweep import APPLY, CANDIDATES, SHORT_SCHEDULE, applied, draw_sweep, sweep
from ube.figures.workers import Workers
from ube.stats import bootstrap, iqm, mean_interval, mean_intervals

BINS = 20
REFERENCE = "dqn"
"""Scores are divided by the mean score of this agent in the same game."""
GAMES = ["Breakout-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar"]
METRICS = ("training_return", "evaluation_return", "own_policy_return")


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    seeds = range(first_seed, first_seed + settings["seeds"])
    summary: list[Row] = []
    best: dict[str, dict[str, Any]] = {}
    scores: dict[str, dict[tuple[str, str], np.ndarray]] = {metric: {} for metric in METRICS}
    curves: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    with Workers(kept, progress) as workers:
        if settings["tuning"]:
            rows, best = _tuning(settings["tuning"], workers)
            summary += rows
        tuned = applied(settings["tuning"], best)
        for game in settings["games"]:
            cells = [
                cell(game, agent, tuned.get(agent, {}), seed, settings["steps"], settings["evaluation_episodes"])
                for agent in settings["agents"]
                for seed in seeds
            ]
            results = iter(workers.run(f"minatar, {game}", cells))
            curves[game] = {}
            for agent in settings["agents"]:
                runs = [next(results) for _ in seeds]
                mean, low, high = mean_intervals(np.array([training_curve(run) for run in runs]))
                curves[game][agent] = {"mean": mean, "low": low, "high": high}
                values = {"training_return": np.array([final_return(run) for run in runs]), **evaluations(runs)}
                for metric in METRICS:
                    scores[metric][game, agent] = values[metric]
                    setting = {"env": game, "steps": settings["steps"]}
                    summary.append(row(agent, setting, metric, *mean_interval(values[metric])))
    learned = _learned(scores, curves)
    rng = np.random.default_rng(first_seed)
    for metric, name in zip(METRICS[:2], ("iqm_training", "iqm_evaluation"), strict=True):
        for agent in settings["agents"] if learned else []:
            table, reference = (
                np.array([scores[metric][game, who] for game in learned]).T for who in (agent, REFERENCE)
            )
            setting = {"games": len(learned), "steps": settings["steps"]}
            found = _relative_iqm(table, None if agent == REFERENCE else reference, settings["resamples"], rng)
            summary.append(row(agent, setting, name, *found))
    seen = {
        metric: {game: {agent: scores[metric][game, agent] for agent in settings["agents"]} for game in curves}
        for metric in METRICS
    }
    data = {"bins": BINS, "curves": curves, "scores": seen, "games_of_iqm": learned, "overrides": SHORT_SCHEDULE}
    return {"summary": summary, "data": data}


def _learned(scores: dict[str, dict[tuple[str, str], np.ndarray]], curves: dict[str, Any]) -> list[str]:
    """Games in which the reference's returns at the end are above those at the beginning, by a 95 % interval over seeds; if
    there is none, all. Not those where a seed of it scores nothing: nothing can be divided by that."""
    games = [game for game in curves if all((scores[metric][game, REFERENCE] > 0).all() for metric in METRICS[:2])]
    first = {game: of[REFERENCE]["mean"][0] for game, of in curves.items()}
    return [g for g in games if mean_interval(scores["training_return"][g, REFERENCE])[1] > first[g]] or games


def _relative_iqm(
    table: np.ndarray, reference: np.ndarray | None, resamples: int, rng: np.random.Generator
) -> tuple[float, ...]:
    """Interquartile mean over (seeds, games) of scores over the mean of the reference in the same game (None: of these
    scores themselves), with a 95 % interval that draws the seeds of both anew within each game."""
    if reference is None:
        return bootstrap(lambda mine: iqm(mine / mine.mean(0)), table, rng=rng, resamples=resamples)
    return bootstrap(lambda mine, theirs: iqm(mine / theirs.mean(0)), table, reference, rng=rng, resamples=resamples)


def cell(game: str, agent: str, overrides: dict[str, Any], seed: int, steps: int, evaluation: int) -> LearningCell:
    changes = overrides | SHORT_SCHEDULE
    return LearningCell(game, agent, seed, steps, overrides=changes, bins=BINS, evaluation_episodes=evaluation)


def training_curve(run: Result) -> np.ndarray:
    """(bins,): mean return of the episodes that ended in each, NaN where none did."""
    total, episodes = (np.array(run["bins"][key], float) for key in ("returns", "episodes"))
    return np.where(episodes > 0, total / np.maximum(episodes, 1), np.nan)


def final_return(run: Result) -> float:
    """Mean over the episodes that ended in the last tenth of training; if none did, in the last bin with one."""
    total, episodes = (np.array(run["bins"][key], float) for key in ("returns", "episodes"))
    there = np.flatnonzero(episodes)
    if not len(there):
        return math.nan
    first = min(len(episodes) - len(episodes) // 10, there[-1])
    return float(total[first:].sum() / episodes[first:].sum())


def _tuning(tuning: dict[str, Any], workers: Workers) -> tuple[list[Row], dict[str, dict[str, float]]]:
    """Score: training return at the end."""
    game, steps = tuning["game"], tuning["steps"]
    return sweep(
        workers, "minatar, tuning", tuning, {"env": game, "steps": steps},
        make=lambda agent, change, seed: cell(game, agent, change, seed, steps, 0),
        score=lambda run: float(np.nan_to_num(final_return(run))),
        lower_is_better=False,
    )  # fmt: skip


def charts(results: Results) -> list[Chart]:
    curves, steps = results["data"]["curves"], results["settings"]["steps"]
    return of_bins(curves, dict.fromkeys(curves, steps), "steps", "training return (mean, 95 %)")


@contextmanager
def plot_curves(results: Results) -> Iterator[Any]:
    data, settings = results["data"], results["settings"]
    banded = len(settings["agents"]) <= 4  # bands of nine hide each other
    shown = ("mean", "low", "high") if banded else ("mean",)
    columns = min(3, len(data["curves"]))
    with canvas(columns=columns, rows=math.ceil(len(data["curves"]) / columns), width=3.0, height=2.3) as (
        figure,
        axes,
    ):
        x = (np.arange(data["bins"]) + 0.5) * settings["steps"] / data["bins"]
        for axis in axes.flat[len(data["curves"]) :]:
            axis.set_axis_off()
        for axis, (game, curves) in zip(axes.flat, data["curves"].items(), strict=False):
            for agent, curve in curves.items():
                draw(axis, agent, x, *(np.array(curve[key], float) for key in shown))
            axis.set(title=game, xlabel="steps")
        for axis in axes[:, 0]:
            axis.set_ylabel("training return (mean, 95 %)" if banded else "training return (mean)")
        legend_below(figure, axes.flat[0], 5)
        yield figure


@contextmanager
def plot_scores(results: Results) -> Iterator[Any]:
    """Interquartile means as points with intervals, and the sweep where there is one."""
    settings = results["settings"]
    agents = settings["agents"]
    titles = {"iqm_training": "training return", "iqm_evaluation": "evaluation return (greedy but for ε)"}
    with canvas(columns=3 if settings["tuning"] else 2, width=3.4, height=2.6) as (figure, axes):
        for axis, (metric, title) in zip(axes[0], titles.items(), strict=False):
            for r in rows_of(results, metric):
                y, (colour, _, marker) = agents.index(r["agent"]), LOOKS[r["agent"]]
                axis.plot([r["low"], r["high"]], [y, y], "-", color=colour)
                axis.plot([r["value"]], [y], marker, color=colour)
            axis.axvline(1.0, color="black", linewidth=0.6, linestyle=":")
            axis.set_yticks(range(len(agents)), agents)
            axis.set_ylim(len(agents) - 0.5, -0.5)
            if not rows_of(results, metric):
                axis.text(0.5, 0.5, f"{REFERENCE} learns no game", ha="center", transform=axis.transAxes)
            axis.set(title=title, xlabel=f"interquartile mean, in units of {REFERENCE}'s mean")
        if settings["tuning"]:
            draw_sweep(axes[0, 2], results, f"training return, {settings['tuning']['game']}", log=False)
        yield figure


EXPERIMENT = Experiment(
    name="minatar",
    title="MinAtar: returns in training and in evaluation",
    note=(
        "Games of gymnax, which stop at 1,000 steps (Freeway 2,500). Training return: of the episodes that ended in the last "
        "tenth of training. Evaluation: without learning, greedy but for ε = 0.05, and by the agent's own policy. The "
        f"interquartile mean is over seeds and games, of scores divided by {REFERENCE}'s mean in the same game. Only games "
        f"that {REFERENCE} learns count (its training return at the end is above that at the beginning, by a 95 % interval): "
        "elsewhere a handful of lucky points would weigh most. Its interval draws the seeds of both anew within each game. "
        "These games hardly test exploration: greedy, which does not explore at all, stands beside every claim, as do "
        "dqn-small-epsilon and unstructured-noise. The sweep gives each agent five values of its one scale, on seeds of "
        "their own."
    ),
    scales={
        "quick": {
            "agents": ["dqn", "ube-1step"], "games": ["Breakout-MinAtar"], "steps": 10_000, "seeds": 2,
            "evaluation_episodes": 10, "resamples": 2_000, "tuning": None,
        },
        "paper": {
            "agents": list(PRESETS), "games": GAMES, "steps": 50_000, "seeds": 5,
            "evaluation_episodes": 30, "resamples": 2_000,
            "tuning": {
                "game": "Breakout-MinAtar", "steps": 25_000, "seeds": 3, "candidates": CANDIDATES, "apply": APPLY,
            },
        },
    },
    job=job,
    plots={"minatar": plot_curves, "minatar-scores": plot_scores},
    headline=partial(rows_of_metrics, metrics=("tuned_setting", *METRICS, "iqm_training", "iqm_evaluation")),
    charts=charts,
    keeps_cells=True,
)  # fmt: skip
