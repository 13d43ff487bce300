"""The learning curve of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ube.figures.style import canvas, picture_kind, write_picture

if TYPE_CHECKING:
    from ube.runs.training import Run


def plot_run(run: Run, path: Path) -> None:
    """Writes returns in training and evaluations against steps; below them √u and √ν, in the unit of returns, where the agent
    has any."""
    picture_kind(path)
    episodes, metrics = run.episodes, run.metrics
    roots = {name: np.sqrt(np.maximum(metrics.get(name, np.zeros(0)), 0.0)) for name in ("u", "nu")}
    roots = {name: values for name, values in roots.items() if np.any(values > 0)}
    with canvas(rows=2 if roots else 1, width=5.0, height=2.4) as (figure, axes):
        axis, returns = axes[0, 0], episodes["episode_return"]
        if len(returns):
            window = max(1, min(100, len(returns) // 20))
            axis.plot(episodes["step"], returns, ".", color="#777777", alpha=0.25, markersize=2, linewidth=0)
            axis.plot(episodes["step"], running_mean(returns, window), color="#0072B2")
            axis.set_ylabel(f"return (mean of {window} episodes)" if window > 1 else "return")
        else:
            axis.text(0.5, 0.5, "no episode has ended", ha="center", transform=axis.transAxes)
        for policy, colour in (("greedy", "#D55E00"), ("own", "#CC79A7")):
            steps, means = mean_evaluations(run.evaluations, policy)
            if len(steps):
                axis.plot(steps, means, "D", color=colour, markersize=4, label=f"evaluation, {policy} policy")
        if len(run.evaluations):
            axis.legend()
        axis.set_title(title_of(run.config))
        if roots:
            looks = {"u": ("#009E73", "√u of the actions taken"), "nu": ("#E69F00", "√ν, the local part")}
            for name, values in roots.items():
                few = "." if len(values) < 20 else None  # a line needs two points
                axes[1, 0].plot(metrics["step"], values, color=looks[name][0], marker=few, label=looks[name][1])
            axes[1, 0].set(ylabel="uncertainty", ylim=(0, None))
            axes[1, 0].legend()
            axes[1, 0].sharex(axis)
        if len(metrics.get("step", ())):
            axis.set_xlim(0, 1.02 * metrics["step"][-1])
        axes[-1, 0].set_xlabel("steps")
        write_picture(figure, path)


def title_of(config: dict[str, Any]) -> str:
    args = "".join(f", {name} {value}" for name, value in config["env_args"].items())
    return f"{config['agent']['name']} on {config['env']}{args}, seed {config['seed']}"


def mean_evaluations(rows: dict[str, np.ndarray], policy: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps after which this policy was evaluated, and its mean return each time."""
    mine = rows["policy"] == policy if rows else np.zeros(0, bool)
    steps = np.unique(rows["step"][mine]) if mine.any() else np.zeros(0)
    return steps, np.array([rows["episode_return"][mine & (rows["step"] == step)].mean() for step in steps])


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Of the last `window` values; of as many as there are at the start."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)
