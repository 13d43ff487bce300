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
    rng = np.random.default_rng(first_seed)
    left_out: dict[str, list[str]] = {}
    for metric, name in zip(METRICS[:2], ("iqm_training", "iqm_evaluation"), strict=True):
        rows, left_out[name] = _iqm_rows(name, scores[metric], settings, rng)
        summary += rows
    return {"summary": summary, "data": {"bins": BINS, "curves": curves, "left_out_of_iqm": left_out}}


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


def _iqm_rows(
    name: str, scores: dict[tuple[str, str], np.ndarray], settings: dict[str, Any], rng: np.random.Generator
) -> tuple[list[Row], list[str]]:
    """Of scores over the reference's mean, with 95 % intervals that draw the seeds of each game anew (stratified
    bootstrap, the reference fixed). Games where the reference has no positive mean are left out, and named."""
    means = {game: float(np.mean(scores[game, REFERENCE])) for game in settings["games"]}
    games = [game for game, mean in means.items() if mean > 0]
    rows = []
    for agent in settings["agents"]:
        if not games:
            break
        table = np.array([scores[game, agent] / means[game] for game in games]).T  # (seeds, games)
        setting = {"games": len(games), "steps": settings["steps"]}
        rows.append(row(agent, setting, name, *bootstrap(iqm, table, rng=rng, resamples=settings["resamples"])))
    return rows, [game for game in settings["games"] if game not in games]


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
                draw(axis, agent, x, *(np.array(curve[key], float) for key in ("mean", "low", "high")))
            axis.set(title=game, xlabel="steps")
        for axis in axes[:, 0]:
            axis.set_ylabel("training return (mean, 95 %)")
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
                axis.text(0.5, 0.5, f"no game where {REFERENCE} scores", ha="center", transform=axis.transAxes)
            axis.set(title=title, xlabel=f"interquartile mean over games, {REFERENCE} = 1")
        if settings["tuning"]:
            draw_sweep(axes[0, 2], results, f"training return, {settings['tuning']['game']}", log=False)
        yield figure


EXPERIMENT = Experiment(
    name="minatar",
    title="MinAtar: returns in training and in evaluation",
    note=(
        "Games of gymnax, which stop at 1,000 steps (Freeway 2,500). Training return: of the episodes that ended in the last "
        "tenth of training. Evaluation: without learning, greedy but for ε = 0.05, and by the agent's own policy. The "
        f"interquartile mean is over all games and seeds, of scores divided by {REFERENCE}'s mean in the same game (a game "
        "where that is not positive is left out and named in the data); its interval draws seeds anew within each game. "
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
