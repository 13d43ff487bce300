"""Sparse rewards: success against steps where nothing points the way."""

from __future__ import annotations

import importlib.util
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
from ube.figures.results import Row, evaluations, quartiles, row, rows_of_metrics
from ube.figures.style import canvas, draw, legend_below
from ube.figures.sweep import APPLY, CANDIDATES, SHORT_SCHEDULE, applied, sweep
from ube.figures.workers import Workers
from ube.stats import mean_interval, mean_intervals

BINS = 20
REMEDY = "pip install 'ube-rl[grids]'"


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    seeds = range(first_seed, first_seed + settings["seeds"])
    grids = importlib.util.find_spec("navix") is not None
    tasks = [task for task in settings["tasks"] if grids or not _is_grid(task)]
    left_out = [
        {"env": task["env"], "why": f"left out: navix is not installed; {REMEDY}"}
        for task in settings["tasks"]
        if task not in tasks
    ]
    summary: list[Row] = []
    curves: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    firsts: dict[str, dict[str, list[int | None]]] = {}
    with Workers(kept, progress) as workers:
        tuned: dict[str, dict[str, Any]] = {}
        for task in tasks:
            label = task_label(task)
            if "tuning_steps" in task:
                rows, best = _tuning(settings["tuning"], task, workers)
                summary, tuned = summary + rows, applied(settings["tuning"], best)
            cells = [
                cell(task, agent, tuned.get(agent, {}), seed, settings["evaluation_episodes"])
                for agent in settings["agents"]
                for seed in seeds
            ]
            results = iter(workers.run(f"sparse, {label}", cells))
            curves[label], firsts[label] = {}, {}
            for agent in settings["agents"]:
                runs = [next(results) for _ in seeds]
                summary += _rows(agent, {"env": task["env"], **task["env_args"], "steps": task["steps"]}, runs)
                mean, low, high = mean_intervals(success_rates(runs))
                curves[label][agent] = {"mean": mean, "low": low, "high": high}
                firsts[label][agent] = [run["first_success_step"] for run in runs]
    steps = {task_label(task): task["steps"] for task in tasks}
    data = {"bins": BINS, "steps": steps, "curves": curves, "first_success_steps": firsts}
    return {"summary": summary, "data": data | {"left_out": left_out}}


def task_label(task: dict[str, Any]) -> str:
    return ", ".join([task["env"], *(f"{name} {value}" for name, value in task["env_args"].items())])


def _is_grid(task: dict[str, Any]) -> bool:
    return task["env"].startswith("Navix-")


def cell(
    task: dict[str, Any], agent: str, overrides: dict[str, Any], seed: int, evaluation_episodes: int = 0
) -> LearningCell:
    changes = overrides | task["overrides"]
    if evaluation_episodes:
        changes = changes | {"epsilon_evaluation": 0.0}
    return LearningCell(
        task["env"], agent, seed, task["steps"], env_args=task["env_args"], overrides=changes, bins=BINS,
        evaluation_episodes=evaluation_episodes,
    )  # fmt: skip


def _tuning(
    tuning: dict[str, Any], task: dict[str, Any], workers: Workers
) -> tuple[list[Row], dict[str, dict[str, float]]]:
    """Score: successes in training."""
    shorter = task | {"steps": task["tuning_steps"]}
    return sweep(
        workers, f"sparse, tuning on {task_label(task)}", tuning, {"env": task["env"], **task["env_args"]},
        make=lambda agent, change, seed: cell(shorter, agent, change, seed),
        score=lambda result: result["successes"],
        lower_is_better=False,
    )  # fmt: skip


def success_rates(runs: list[Result]) -> np.ndarray:
    """(seeds, bins): share of the episodes ending in a bin that succeeded, NaN where none ended."""
    won, episodes = (np.array([run["bins"][key] for run in runs], float) for key in ("successes", "episodes"))
    return np.where(episodes > 0, won / np.maximum(episodes, 1), np.nan)


def _rows(agent: str, setting: dict[str, Any], runs: list[Result]) -> list[Row]:
    firsts = [math.inf if run["first_success_step"] is None else run["first_success_step"] for run in runs]
    won, episodes = (np.array([run["bins"][key] for run in runs]) for key in ("successes", "episodes"))
    last = slice(-BINS // 4, None)
    rate = won[:, last].sum(1) / np.maximum(episodes[:, last].sum(1), 1)
    return [
        row(agent, setting, "successes", *mean_interval(np.array([run["successes"] for run in runs]))),
        row(agent, setting, "first_success_step", *quartiles(np.array(firsts))),
        row(agent, setting, "seeds_with_success", int(np.isfinite(firsts).sum())),
        row(agent, setting, "success_rate_last_quarter", *mean_interval(rate)),
        *(row(agent, setting, metric, *mean_interval(value)) for metric, value in evaluations(runs).items()),
    ]


def charts(results: Results) -> list[Chart]:
    data = results["data"]
    return of_bins(data["curves"], data["steps"], "steps", "success rate (mean, 95 %)")


@contextmanager
def plot_found(results: Results) -> Iterator[Any]:
    """Which share of the seeds has reached the goal once, against steps."""
    data = results["data"]
    with _panels(data) as (figure, axes):
        for axis, (label, firsts) in zip(axes.flat, data["first_success_steps"].items(), strict=False):
            for agent, steps in firsts.items():
                found = sorted(step for step in steps if step is not None)
                x = [1, *(step for step in found for _ in range(2)), data["steps"][label]]
                y = [number for number in range(len(found) + 1) for _ in range(2)]
                draw(axis, agent, x, [number / len(steps) for number in y])
            axis.set(xscale="log", xlim=(100, data["steps"][label]))
        yield _completed(figure, axes, data, "seeds that have found the goal")


@contextmanager
def plot_success(results: Results) -> Iterator[Any]:
    data = results["data"]
    with _panels(data) as (figure, axes):
        for axis, (label, curves) in zip(axes.flat, data["curves"].items(), strict=False):
            x = (np.arange(data["bins"]) + 0.5) * data["steps"][label] / data["bins"]
            for agent, curve in curves.items():
                draw(axis, agent, x, np.array(curve["mean"], float))
        yield _completed(figure, axes, data, "success rate (mean)")


@contextmanager
def _panels(data: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """One for each task."""
    columns = min(3, len(data["curves"]))
    rows = math.ceil(len(data["curves"]) / columns)
    with canvas(columns=columns, rows=rows, width=3.0, height=2.3) as (figure, axes):
        for axis in axes.flat[len(data["curves"]) :]:
            axis.set_axis_off()
        for axis, label in zip(axes.flat, data["curves"], strict=False):
            axis.set(title=label, xlabel="steps", ylim=(-0.03, 1.03))
        yield figure, axes


def _completed(figure: Any, axes: Any, data: dict[str, Any], what: str) -> Any:
    for axis in axes[:, 0]:
        axis.set_ylabel(what)
    legend_below(figure, axes.flat[0], 5)
    if data["left_out"]:
        names = ", ".join(one["env"] for one in data["left_out"])
        figure.suptitle(f"left out, navix is not installed: {names}", fontsize=7)
    return figure


def _task(env: str, steps: int, tuning_steps: int = 0, **env_args: Any) -> dict[str, Any]:
    """With `tuning_steps`, agents are tuned here, and keep their settings until the next such task."""
    task = {"env": env, "env_args": env_args, "steps": steps, "overrides": {}}
    if _is_grid(task):  # an image, whose default schedule is for runs that are much longer
        task["overrides"] = SHORT_SCHEDULE
    return task | ({"tuning_steps": tuning_steps} if tuning_steps else {})


EXPERIMENT = Experiment(
    name="sparse",
    title="Sparse rewards: success against steps",
    note=(
        "Nothing is paid before the goal. In MountainCar the car has to swing up; in the tree one wrong turn of fifty ends "
        "the episode; in DoorKey a key opens the door to the goal; in FourRooms start, goal and gaps are drawn anew every "
        "episode. first_success_step is the median over seeds with quartiles, null where the median seed never got there; "
        "successes are counted over all of training. evaluation_return is of episodes after training, greedy and without "
        "learning, own_policy_return the same by the agent's own policy. The sweep gives each agent five values of its one "
        "scale, on seeds of their own, scored by successes; what wins on DoorKey-5x5 is used on all grids. Controls: greedy, "
        "dqn-small-epsilon and unstructured-noise. The grids need navix (pip install 'ube-rl[grids]'); without it they are "
        "left out, and the results say so."
    ),
    scales={
        "quick": {
            "agents": ["dqn", "ube-deep"], "seeds": 2, "evaluation_episodes": 10, "tuning": None,
            "tasks": [_task("Tree-v0", 5_000, depth=10), _task("MountainCarSparse-v0", 10_000)],
        },
        "paper": {
            "agents": list(PRESETS), "seeds": 5, "evaluation_episodes": 20,
            "tuning": {"seeds": 2, "candidates": CANDIDATES, "apply": APPLY},
            "tasks": [
                _task("MountainCarSparse-v0", 60_000, tuning_steps=30_000),
                _task("Tree-v0", 60_000, tuning_steps=30_000, depth=50),
                _task("Navix-DoorKey-5x5-v0", 60_000, tuning_steps=30_000),
                _task("Navix-DoorKey-6x6-v0", 30_000),
                _task("Navix-DoorKey-8x8-v0", 30_000),
                _task("Navix-FourRooms-v0", 20_000),
            ],
        },
    },
    job=job,
    plots={"sparse": plot_found, "sparse-rates": plot_success},
    headline=partial(
        rows_of_metrics,
        metrics=(
            "tuned_setting", "successes", "first_success_step", "seeds_with_success", "success_rate_last_quarter",
            "evaluation_return", "own_policy_return",
        ),
    ),
    charts=charts,
    keeps_cells=True,
)  # fmt: skip
