"""Episodes until a sparse reward is found reliably, against the size of the problem: shared by tree and DeepSea."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from ube.figures.experiment import Key, Progress, Results, run_grouped
from ube.figures.results import Row, quartiles, row, rows_of
from ube.figures.style import canvas, draw, legend_below
from ube.tabular.agents import Agent
from ube.tabular.simulate import Cell, Learner, Stop, episodes_to_solve


class Build(Protocol):
    def __call__(self, rng: np.random.Generator, size: int, agent: Agent) -> Learner: ...


def solve_times(
    build: Build, agents: Mapping[Key, Agent], sizes: list[int], cap: int, seeds: range, what: str, progress: Progress
) -> dict[tuple[Key, int], np.ndarray]:
    """Episodes to solve, (seeds,), infinite where the cap came first. A size is skipped after one no seed could solve."""
    times: dict[tuple[Key, int], np.ndarray] = {}
    for size in sizes:
        alive = {n: a for n, a in agents.items() if all(np.isfinite(times[n, s]).any() for s in sizes if s < size)}
        groups = {
            name: [Cell(partial(build, size=size, agent=agent), cap, seed, Stop()) for seed in seeds]
            for name, agent in alive.items()
        }
        runs = run_grouped(groups, f"{what}, size {size}", progress)
        for name in agents:
            solved = [episodes_to_solve(run.returns) for run in runs.get(name, [])] or [None] * len(seeds)
            times[name, size] = np.array([math.inf if t is None else t for t in solved])
    return times


def summarise(
    times: Mapping[tuple[str, int], np.ndarray], size_name: str, cap: int, extra: dict[str, Any]
) -> list[Row]:
    """Median and quartiles per size, the share of seeds solved, and the exponent of growth where it can be fitted."""
    summary: list[Row] = []
    for (agent, size), values in times.items():
        setting = {size_name: size, "cap": cap, **extra}
        summary.append(row(agent, setting, "episodes_to_solve", *quartiles(values)))
        summary.append(row(agent, setting, "share_solved", float(np.isfinite(values).mean())))
    for agent in dict.fromkeys(name for name, _ in times):
        points = [(s, float(np.median(v))) for (n, s), v in times.items() if n == agent and np.isfinite(np.median(v))]
        if len(points) >= 3:
            log_size, log_time = np.log(np.array(points).T)
            slope = np.polyfit(log_size, log_time, 1)[0]
            summary.append(row(agent, {"from": points[0][0], "to": points[-1][0], **extra}, "growth_exponent", slope))
    return summary


@contextmanager
def plot_times(
    results: Results, size_name: str, x_label: str, panels: list[tuple[str, dict[str, Any]]]
) -> Iterator[Any]:
    with canvas(columns=len(panels), width=3.6 if len(panels) > 1 else 4.4, height=3.4) as (figure, axes):
        for axis, (title, setting) in zip(axes[0], panels, strict=True):
            rows = rows_of(results, "episodes_to_solve", **setting)
            for agent in dict.fromkeys(r["agent"] for r in rows):
                found = [r for r in rows if r["agent"] == agent and r["value"] is not None]
                x, y = [r["setting"][size_name] for r in found], [r["value"] for r in found]
                low = [r["low"] for r in found]
                high = [r["high"] if r["high"] is not None else r["setting"]["cap"] for r in found]
                draw(axis, agent, x, y, low, high, marks=True)
            axis.axhline(rows[0]["setting"]["cap"], color="black", linewidth=0.6, linestyle=":")
            sizes = sorted({r["setting"][size_name] for r in rows})
            axis.set(title=title, xlabel=x_label, xscale="log", yscale="log")
            axis.set_xticks(sizes, [str(s) for s in sizes])
            axis.minorticks_off()
        axes[0, 0].set_ylabel("episodes to solve (median, quartiles)")
        legend_below(figure, axes[0, 0], 7 if len(panels) > 1 else 4)
        yield figure
