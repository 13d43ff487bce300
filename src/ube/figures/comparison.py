"""Learning curves of a comparison, and the rows worth printing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ube.figures.charts import Chart, Series
from ube.figures.experiment import Results
from ube.figures.results import Row, row
from ube.figures.style import canvas, draw, legend_below, save

FILE = "comparison.json"
Y_LABEL = "mean return in training"


def _series(results: Results) -> list[Series]:
    """One for each agent, only where episodes ended; without a band where there is but one seed. Bands are cut at the lowest
    and highest that any run reached: with few seeds, Student's interval lies far outside."""
    found = []
    lowest, highest = results["data"]["range"]
    for agent, curve in results["data"]["curves"].items():
        width = results["data"]["length"] / len(curve["mean"])
        there = [i for i, mean in enumerate(curve["mean"]) if mean is not None]
        x = [(i + 0.5) * width for i in there]
        mean = [curve["mean"][i] for i in there]
        low = [None if curve["low"][i] is None else max(curve["low"][i], lowest) for i in there]
        high = [None if curve["high"][i] is None else min(curve["high"][i], highest) for i in there]
        banded = any(edge is not None for edge in low)
        found.append(Series(agent, x, mean, low if banded else None, high if banded else None))
    return found


def charts(results: Results) -> list[Chart]:
    """What the page draws."""
    return [Chart(results["title"], results["data"]["unit"], f"{Y_LABEL} (95 %)", _series(results))]


def draw_comparison(results: Results, folder: Path) -> None:
    """Writes comparison.svg and .png: means over seeds, with 95 % intervals."""
    with canvas(width=5.0, height=3.2) as (figure, axes):
        axis, series = axes[0, 0], _series(results)
        for one in series:
            band = [[y if y is not None else m for y, m in zip(edge, one.y, strict=True)] if edge else None
                    for edge in (one.low, one.high)]  # fmt: skip
            draw(axis, one.name, one.x, one.y, *band, marks=len(one.x) < 20)
        axis.set(xlabel=results["data"]["unit"], ylabel=f"{Y_LABEL}, {results['seeds']['count']} seeds")
        axis.set_title(results["title"], wrap=True)
        axis.set_xlim(0, results["data"]["length"])
        legend_below(figure, axis, columns=min(4, len(series)))
        save(figure, folder / "comparison")


def headline(results: Results) -> list[Row]:
    """The summary as one table: agents down, measures across."""
    first, shown = results["settings"]["agents"][0], []
    words = {
        "seeds_done": "seeds done", "training_return": "training, last tenth", "evaluation_return": "evaluation, greedy",
        "own_policy_return": "evaluation, own policy", "better_in_training": f"better than {first} in training",
        "better_in_evaluation": f"better than {first}, greedy",
    }  # fmt: skip
    for metric, word in words.items():  # columns stand in this order
        for one in results["summary"]:
            if one["metric"] == metric:
                value = f"{one['value']} of {one['setting']['of']}" if metric == "seeds_done" else one["value"]
                shown.append(row(one["agent"], {"statistic": word}, "mean return", value, one["low"], one["high"]))
    return shown


class Shown(NamedTuple):
    """What the page asks of a results file, as of an Experiment."""

    headline: Callable[[Results], list[Row]]
    charts: Callable[[Results], list[Chart]]
    maps: Callable[[Results], dict[str, Any] | None]


COMPARISON = Shown(headline, charts, lambda results: None)
