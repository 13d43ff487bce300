"""Runs of `ube train`, alone or as cells of a suite, as the page shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.figures.charts import Chart, Series
from ube.figures.style import BLACK, look
from ube.reading import is_inside, refuse

BINS = 100
WHERE = ("config.json", "*/config.json", "cells/*/run/config.json", "*/cells/*/run/config.json")
_DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "7 3 2 3"}


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Of every run in a folder, one level below, or in the suites there; one that cannot be read says why."""
    return [_read(path, folder) for pattern in WHERE for path in sorted(folder.glob(pattern))]


def _read(path: Path, folder: Path) -> dict[str, Any]:
    from ube.runs.directory import RunDirectory

    name = path.parent.relative_to(folder).as_posix().removesuffix("/run")
    try:
        if not is_inside(path, folder):
            refuse(path, f"it leads out of {folder}", "put a copy in its place")
        run = RunDirectory.open(path.parent)
        config, episodes = run.config, run.columns("episodes")
        step, returns = (np.asarray(episodes.get(column, []), float) for column in ("step", "episode_return"))
        args = ", ".join(f"{key}={value}" for key, value in config["env_args"].items())
        last = returns[-max(1, len(returns) // 10) :]
        length = max([int(config["steps"]), *step.astype(int).tolist()])  # a run may have gone on for longer than asked
        return {
            "name": name, "env": f"{config['env']} ({args})" if args else config["env"], "agent": config["agent"]["name"],
            "seed": config["seed"], "steps": length, "episodes": len(returns),
            "last_return": float(last.mean()) if len(last) else None, "config": config,
            "curve": _curve(step, returns, length), "problem": None,
        }  # fmt: skip
    except (UsageError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        return {"name": name, "problem": f"not a run of ube ({type(error).__name__}: {error})"}


def _curve(step: np.ndarray, returns: np.ndarray, length: int) -> np.ndarray:
    """(bins,): mean return of the episodes that ended in each part, NaN where none did."""
    part = np.minimum((step - 1) * BINS // length, BINS - 1).astype(int)
    episodes, total = np.bincount(part, minlength=BINS), np.bincount(part, returns, minlength=BINS)
    return np.where(episodes > 0, total / np.maximum(episodes, 1), np.nan)


def run_charts(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each environment: runs that differ only in the seed are one line, their mean, with a band from the lowest to
    the highest."""
    charts = []
    runs = [run for run in runs if not run["problem"]]
    for env in dict.fromkeys(run["env"] for run in runs):
        lines: dict[tuple[str, int], list[np.ndarray]] = {}
        for run, name in _named([run for run in runs if run["env"] == env]):
            lines.setdefault((name, run["steps"]), []).append(run["curve"])
        series = []
        for (name, steps), curves in lines.items():
            table = np.array(curves)
            there = np.isfinite(table).any(0)
            x = ((np.arange(BINS) + 0.5) * steps / BINS)[there].tolist()
            mean, low, high = (f(table[:, there], 0).tolist() for f in (np.nanmean, np.nanmin, np.nanmax))
            many = len(curves) > 1
            label = f"{name}, {len(curves)} seeds" if many else name
            series.append(Series(label, x, mean, low if many else None, high if many else None))
        charts.append(to_draw(Chart(env, "steps", "mean return in training", series)))
    return charts


def _named(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Each with its agent, and the fields in which runs of that agent differ."""
    configs: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        configs.setdefault(run["agent"], []).append(run["config"]["agent"])
    differing = {agent: _differing(of) for agent, of in configs.items()}
    found = []
    for run in runs:
        mine = run["config"]["agent"]
        changed = [f"{key}={mine[key]}" for key in mine if key in differing[run["agent"]]]
        found.append((run, ", ".join([run["agent"], *changed])))
    return found


def _differing(configs: list[dict[str, Any]]) -> set[str]:
    first = configs[0]
    return {key for one in configs for key in first | one if one.get(key) != first.get(key)}


def to_draw(chart: Chart) -> dict[str, Any]:
    """With a colour and dashes for each series, those of its agent in the figures."""
    series = []
    for one in chart.series:
        colour, line, _ = look(one.name)
        series.append(one._asdict() | {"colour": "currentColor" if colour == BLACK else colour, "dash": _DASHES[line]})
    return chart._asdict() | {"series": series}
