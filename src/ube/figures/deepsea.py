"""DeepSea with learning agents: episodes to solve against the size, and what u is on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ube.deep.config import PRESETS
from ube.figures.charts import of_growth
from ube.figures.deepsea_maps import look, maps, plot_maps
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.learning_cells import LearningCell, Result
from ube.figures.results import Row, evaluations, quartiles, row, rows_of, rows_of_metrics
from ube.figures.style import LOOKS, canvas, draw, legend_below
from ube.figures.sweep import APPLY, CANDIDATES, applied, draw_sweep, sweep
from ube.figures.workers import Workers
from ube.stats import mean_interval

PICTURED = "ube-deep"


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    seeds = range(first_seed, first_seed + settings["seeds"])
    summary: list[Row] = []
    data: dict[str, Any] = {"not_run": [], "picture": None}
    best: dict[str, dict[str, Any]] = {}
    with Workers(kept, progress) as workers:
        if settings["tuning"]:
            rows, best = _tuning(settings["tuning"], workers)
            summary += rows
        tuned = applied(settings["tuning"], best)
        agents = {agent: (agent, tuned.get(agent, {})) for agent in settings["agents"]}
        for name, variant in settings.get("variants", {}).items():
            agents[name] = (variant["agent"], tuned.get(variant["agent"], {}) | variant["overrides"])
        rows, data["not_run"] = _solve(
            workers, agents, settings["sizes"], settings["caps"], seeds, settings.get("largest", {})
        )
        summary += rows
        if settings["picture"]:
            data["picture"] = _picture(settings["picture"], first_seed, workers)
    return {"summary": summary, "data": data}


def cell(agent: str, overrides: dict[str, Any], size: int, cap: int, seed: int, **extra: Any) -> LearningCell:
    """All episodes have `size` steps; the stop rule is looked at every 100 of them."""
    return LearningCell(
        "DeepSea-v0", agent, seed, cap * size, env_args={"size": size}, overrides=overrides, chunk=100 * size,
        max_episodes=cap, **extra,
    )  # fmt: skip


def _solve(
    workers: Workers, agents: dict[str, tuple[str, dict[str, Any]]], sizes: Sequence[int], caps: Sequence[int],
    seeds: range, largest: Mapping[str, int],
) -> tuple[list[Row], list[dict[str, Any]]]:  # fmt: skip
    """Rows, and what was not run: sizes above one that no seed of an agent could solve, or above its `largest`."""
    rows: list[Row] = []
    not_run: list[dict[str, Any]] = []
    failed: dict[str, int] = {}
    why: dict[str, str] = {}
    for size, cap in zip(sizes, caps, strict=True):
        for name, limit in largest.items():
            if size > limit and name not in failed:
                failed[name] = limit
                why[name] = f"not run: beyond size {limit} its networks take too long on this machine"
        alive = [name for name in agents if name not in failed]
        cells = [
            cell(agent, changes | {"epsilon_evaluation": 0.0}, size, cap, seed, stop="solved", evaluation_episodes=10)
            for agent, changes in (agents[name] for name in alive)
            for seed in seeds
        ]
        results = iter(workers.run(f"deepsea, size {size}", cells))
        runs = {name: [next(results) for _ in seeds] for name in alive}
        times = {name: np.array([_time(run) for run in runs[name]]) for name in alive}
        for name in agents:
            setting = {"size": size}
            if name not in times:
                not_run.append({"agent": name, "size": size, "why": why[name]})
                rows += [row(name, setting | {"not_run": True}, m, None) for m in ("episodes_to_solve", "solved_seeds")]
                continue
            rows.append(row(name, setting, "episodes_to_solve", *quartiles(times[name])))
            rows.append(row(name, setting, "solved_seeds", int(np.isfinite(times[name]).sum())))
            rows += [row(name, setting, m, *mean_interval(value)) for m, value in evaluations(runs[name]).items()]
            if not np.isfinite(times[name]).any():
                failed[name] = size
                why[name] = f"not run: no seed solved size {size}"
    return rows, not_run


def _time(result: Result) -> float:
    return math.inf if result["episodes_to_solve"] is None else result["episodes_to_solve"]


def _tuning(tuning: dict[str, Any], workers: Workers) -> tuple[list[Row], dict[str, dict[str, float]]]:
    """Score: mean episodes to solve, twice the cap where unsolved."""
    size, cap = tuning["size"], tuning["cap"]
    return sweep(
        workers, "deepsea, tuning", tuning, {"size": size},
        make=lambda agent, change, seed: cell(agent, change, size, cap, seed, stop="solved"),
        score=lambda result: min(_time(result), 2 * cap),
        lower_is_better=True,
    )  # fmt: skip


def _picture(picture: dict[str, Any], seed: int, workers: Workers) -> dict[str, Any]:
    size = picture["size"]
    (result,) = workers.run("deepsea, picture", [cell(PICTURED, {}, size, picture["cap"], seed, watch=look)])
    solved = result["episodes_to_solve"]
    return {"agent": PICTURED, "size": size, "episodes_to_solve": solved, "looks": result["watched"]}


@contextmanager
def plot_solving(results: Results) -> Iterator[Any]:
    settings = results["settings"]
    with canvas(columns=3 if settings["tuning"] else 2, width=4.2, height=3.2) as (figure, axes):
        _draw_times(axes[0, 0], results)
        _draw_shares(axes[0, 1], results)
        if settings["tuning"]:
            draw_sweep(axes[0, 2], results, f"mean episodes to solve, N = {settings['tuning']['size']}", log=True)
        legend_below(figure, axes[0, 1], 5)
        yield figure


def _draw_times(axis: Any, results: Results) -> None:
    settings = results["settings"]
    caps = dict(zip(settings["sizes"], settings["caps"], strict=True))
    for agent in _shown(settings):
        rows = [r for r in rows_of(results, "episodes_to_solve", agent) if not r["setting"].get("not_run")]
        found = [r for r in rows if r["value"] is not None]
        x, y, low = (_places(agent, found, settings), *([r[key] for r in found] for key in ("value", "low")))
        high = [r["high"] if r["high"] is not None else caps[r["setting"]["size"]] for r in found]
        draw(axis, agent, x, y, low, high, marks=True)
        axis.vlines(x, low, high, color=LOOKS[agent][0], linewidth=0.6)
        never = [r for r in rows if r["value"] is None]
        top = [1.2 * caps[r["setting"]["size"]] for r in never]
        axis.plot(_places(agent, never, settings), top, "^", color=LOOKS[agent][0], markerfacecolor="none")
    axis.plot(list(caps), list(caps.values()), ":", color="black", linewidth=0.8)
    axis.set(xlabel="size N", ylabel="episodes to solve (median, quartiles)", yscale="log")
    axis.set(title="time to solve (△ median never; dotted: episodes allowed)")
    axis.set_xticks(settings["sizes"])


def _draw_shares(axis: Any, results: Results) -> None:
    settings = results["settings"]
    for agent in _shown(settings):
        rows = [r for r in rows_of(results, "solved_seeds", agent) if r["value"] is not None]
        draw(axis, agent, _places(agent, rows, settings), [r["value"] for r in rows], marks=True)
    axis.set(xlabel="size N", ylabel=f"seeds solved, of {settings['seeds']}", title="seeds that solved it")
    axis.set_ylim(-0.03 * settings["seeds"], 1.03 * settings["seeds"])
    axis.set_xticks(settings["sizes"])
    axis.yaxis.get_major_locator().set_params(integer=True)


def _shown(settings: dict[str, Any]) -> list[str]:
    return [*settings["agents"], *settings.get("variants", {})]


def _places(agent: str, rows: list[Row], settings: dict[str, Any]) -> list[float]:
    """Sizes, shifted a little for each agent so that equal marks do not hide each other."""
    agents = _shown(settings)
    shift = agents.index(agent) - (len(agents) - 1) / 2
    return [r["setting"]["size"] + 0.15 * shift for r in rows]


EXPERIMENT = Experiment(
    name="deepsea",
    title="DeepSea, learning agents: episodes to solve against the size",
    note=(
        "Which action goes right is drawn per cell, once per run. Solved: the first success from which on the reward is "
        "found in 10 of 100 episodes; a median that is never reached is null. An agent that no seed could solve at one "
        "size is not run at larger ones, and boot, for its ten networks, only up to 30; the "
        "summary says so. boot-2 is boot with two networks, which is still more work per step than ube-deep's. "
        "Every agent but ube-deep, which has one setting everywhere, is reported at the best of its sweep, "
        "unstructured-noise at that of ube-1step. Controls: greedy has no exploration at all, "
        "dqn-small-epsilon ends at ε = 0.01, unstructured-noise is as large as ube-1step's and knows nothing of states. "
        "Below: the sweep of each agent's one scale, five values on seeds "
        "of their own (its score counts twice the cap where unsolved). A run ends when it is solved or out of episodes; then "
        "evaluation_return is of ten episodes, greedy and without learning, own_policy_return the same by the agent's own "
        "policy. The maps show where ube-deep is uncertain as it "
        "learns (√u, the larger of the two actions), what a tabular Bayesian who saw the same decisions would not know (the "
        "exact standard deviation of Q under the agent's policy; rewards that vary by 1, a flat prior over where an action "
        "leads), and where it has been."
    ),
    scales={
        "quick": {
            "agents": ["dqn", "ube-1step", "ube-deep"], "sizes": [10], "caps": [500], "seeds": 3,
            "tuning": None,
            "picture": {"size": 10, "cap": 500, "episodes": [0, 100, 200, 500]},
        },
        "paper": {
            "agents": list(PRESETS), "sizes": [10, 15, 20, 30, 40, 50],
            "caps": [1_000, 1_000, 1_000, 3_000, 10_000, 10_000], "seeds": 10,
            "largest": {"boot": 30}, "variants": {"boot-2": {"agent": "boot", "overrides": {"ensemble": 2}}},
            "tuning": {
                "size": 10, "cap": 1_000, "seeds": 3, "candidates": CANDIDATES, "apply": APPLY,
            },
            "picture": {"size": 20, "cap": 1_000, "episodes": [0, 100, 200, 400, 1_000]},
        },
    },
    job=job,
    plots={"deepsea": plot_solving, "deepsea-uncertainty": plot_maps},
    headline=partial(
        rows_of_metrics,
        metrics=("tuned_setting", "episodes_to_solve", "solved_seeds", "evaluation_return", "own_policy_return"),
    ),
    charts=partial(of_growth, size_name="size", x_label="size N", panels=[("all agents", {"case": None})]),
    maps=maps,
    keeps_cells=True,
)  # fmt: skip
