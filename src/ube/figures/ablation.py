"""ube-deep with one choice changed at a time, on tasks that it was developed on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.held_out import cell, make_task, task_label, task_rows
from ube.figures.results import Row, rows_of, rows_of_metrics
from ube.figures.style import canvas, look
from ube.figures.workers import Workers

AGENT = "ube-deep"
_NO_LEVELS: dict[str, Any] = {"optimism": "full", "levels_wait": False, "epsilon_start": 0.0, "epsilon_end": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "full optimism always": _NO_LEVELS,
    "levels from the first episode": {"levels_wait": False},
    "no share of greedy episodes": {"greedy_share": 0.0},
    "no random actions": {"epsilon_start": 0.0, "epsilon_end": 0.0},
    "β in the largest return": {"beta_unit": "returns"},
    "noise per episode": _NO_LEVELS | {"policy": "noise-per-episode"},
    "noise per step": _NO_LEVELS | {"policy": "noise-per-step"},
    "1-step Q": {"q_steps": 1},
    "double Q": {"double_q": True},
    "random output layers": {"initial_values": "random"},
    "γ_u = 0.97": {"u_discount": 0.97},
    "noise known": {"noise": "known"},
    "u predicts all": {"u_predicts": "total"},
    "u learns from the stream": {"u_data": "stream"},
    "learned features": {"features": "learned"},
}
"""Name of each variant -> the fields that are changed."""
MEASURES = {"solve": "episodes_to_solve", "sparse": "successes", "game": "training_return"}


def job(settings: dict[str, Any], first_seed: int, progress: Progress, kept: Path) -> Results:
    seeds, variants = range(first_seed, first_seed + settings["seeds"]), settings["variants"]
    summary: list[Row] = []
    with Workers(kept, progress) as workers:
        for task in settings["tasks"]:
            cells = [cell(task, AGENT, seed, overrides=fields) for fields in variants.values() for seed in seeds]
            results = iter(workers.run(task_label(task), cells))
            for name in variants:
                summary += task_rows(f"{AGENT}: {name}", task, [next(results) for _ in seeds])
    return {"summary": summary, "data": {}}


@contextmanager
def plot(results: Results) -> Iterator[Any]:
    """Variants down, a task in each column; open marks at the edge where the median seed never solved it."""
    tasks, names = results["settings"]["tasks"], list(results["settings"]["variants"])
    colour = look(AGENT)[0]
    with canvas(columns=len(tasks), width=2.0 + 1.8 / len(tasks), height=1.1 + 0.17 * len(names)) as (figure, axes):
        for column, (axis, task) in enumerate(zip(axes[0], tasks, strict=True)):
            env, metric = task_label(task), MEASURES[task["kind"]]
            found = [rows_of(results, metric, f"{AGENT}: {name}", env=env)[0] for name in names]
            edge = 1.1 * max([r["high"] or r["value"] or 0.0 for r in found] + [1.0])
            for y, r in enumerate(found):
                value, low, high = r["value"], r["low"], r["high"]
                if value is None:
                    axis.plot([edge], [y], ">", color=colour, markerfacecolor="none")
                else:
                    axis.plot([edge if x is None else x for x in (low, high)], [y, y], color=colour, linewidth=0.8)
                    axis.plot([value], [y], "o", color=colour)
            if found[0]["value"] is not None:
                axis.axvline(found[0]["value"], color="black", linestyle=":", linewidth=0.8)
            axis.set_yticks(range(len(names)), names if column == 0 else [""] * len(names))
            axis.set_title(env.replace(", ", "\n", 1).replace(", new", ",\nnew"))
            axis.set_xlabel(metric.replace("_", " "))
            axis.set_ylim(len(names) - 0.5, -0.5)
        yield figure


EXPERIMENT = Experiment(
    name="ablation",
    title="ube-deep with one choice changed at a time",
    note=(
        "Each line changes one choice of ube-deep (full optimism and the two noises also give up levels and random actions, "
        "which make no sense with them), on tasks that its settings were chosen on, so `as it is` is flattered. "
        "episodes_to_solve is the median over seeds with quartiles, null where the median seed never solved it; the others "
        "are means with a 95 % interval. Three seeds tell large differences only."
    ),
    scales={
        "quick": {
            "seeds": 2,
            "variants": {name: VARIANTS[name] for name in ("as it is", "full optimism always")},
            "tasks": [make_task("sparse", "KeyDoor-v0", 3_000, [AGENT], episodes=5, size=5)],
        },
        "paper": {
            "seeds": 3,
            "variants": VARIANTS,
            "tasks": [
                make_task("solve", "DeepSea-v0", 12_000, [AGENT], size=20),
                make_task("sparse", "MountainCarSparse-v0", 60_000, [AGENT]),
                make_task("sparse", "KeyDoor-v0", 50_000, [AGENT], size=7),
                make_task("sparse", "KeyDoor-v0", 200_000, [AGENT], size=5, observation="image", new_layouts=True),
                make_task("game", "Breakout-MinAtar", 200_000, [AGENT]),
            ],
        },
    },
    job=job,
    plots={"ablation": plot},
    headline=partial(
        rows_of_metrics,
        metrics=("episodes_to_solve", "first_success_step", "successes", "training_return", "evaluation_return"),
    ),
    keeps_cells=True,
)
