"""Runs of `ube train`, alone or as cells of a suite, as the page shows them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.figures.charts import Chart, Series
from ube.figures.learning_cells import binned
from ube.figures.style import LOOKS

BINS = 100
WHERE = ("config.json", "*/config.json", "cells/*/run/config.json", "*/cells/*/run/config.json")
_DASHES = {"-": "", "--": "7 4", ":": "2 3"}


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Of every run in a folder, one level below, or in the suites there."""
    return [_read(path, folder) for pattern in WHERE for path in sorted(folder.glob(pattern))]


def _read(path: Path, folder: Path) -> dict[str, Any]:
    from ube.runs.directory import RunDirectory

    run = RunDirectory.open(path.parent)
    try:
        config, episodes = run.config, run.columns("episodes")
        step, returns = (np.asarray(episodes.get(name, []), float) for name in ("step", "episode_return"))
        args = ", ".join(f"{key}={value}" for key, value in config["env_args"].items())
        parts = binned(step.astype(int), returns, None, config["steps"], BINS)
        last = returns[-max(1, len(returns) // 10) :]
        return {
            "name": path.parent.relative_to(folder).as_posix().removesuffix("/run"),
            "env": f"{config['env']} ({args})" if args else config["env"],
            "agent": config["agent"]["name"], "seed": config["seed"], "steps": config["steps"], "episodes": len(returns),
            "last_return": float(last.mean()) if len(last) else None, "config": config,
            "curve": [
                total / n if n else None for total, n in zip(parts["returns"], parts["episodes"], strict=True)
            ],
        }  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path.parent}: not a run of ube ({type(error).__name__}: {error})") from error


def run_charts(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each environment."""
    charts = []
    for env in dict.fromkeys(run["env"] for run in runs):
        mine = [run for run in runs if run["env"] == env]
        names = [f"{run['agent']}, seed {run['seed']}" for run in mine]
        twice = Counter(names)
        series = []
        for run, name in zip(mine, names, strict=True):
            x = ((np.arange(BINS) + 0.5) * run["steps"] / BINS).tolist()
            series.append(Series(f"{name}, {run['name']}" if twice[name] > 1 else name, x, run["curve"]))
        charts.append(to_draw(Chart(env, "steps", "mean return in training", series)))
    return charts


def to_draw(chart: Chart) -> dict[str, Any]:
    """With a colour and dashes for each series, those of its agent in the figures."""
    series = []
    for one in chart.series:
        colour, line, _ = LOOKS.get(re.split("[ ,:]", one.name)[0], ("currentColor", "-", "."))
        series.append(one._asdict() | {"colour": colour, "dash": _DASHES[line]})
    return chart._asdict() | {"series": series}
