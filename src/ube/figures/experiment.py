"""What an entry of the registry is, and how its cells are run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ube.figures.results import Row
from ube.tabular.simulate import Cell, Run, run_cells

if TYPE_CHECKING:
    from ube.figures.charts import Chart

Results = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""progress(what, done, total)"""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    note: str
    """What is run and what to look at, for the page."""
    scales: dict[str, dict[str, Any]]
    """Settings of each scale; `seeds` is one of them."""
    job: Callable[..., Results]
    """(settings, first seed, progress) -> {"summary": rows, "data": what the plots need beyond it}; also "seeds", how many
    there were, if settings do not say."""
    plots: dict[str, Callable[[Results], AbstractContextManager[Any]]]
    """File name -> a function of a results file that gives a figure."""
    headline: Callable[[Results], list[Row]]
    """The summary rows worth printing."""
    charts: Callable[[Results], list[Chart]] = lambda results: []
    """What the page draws itself."""
    maps: Callable[[Results], dict[str, Any] | None] = lambda results: None
    """Grids through which the page has a slider: title, size, labels of the grids, those with same_colours, looks (grid by
    grid, and the episode)."""
    digits: int = 6
    """Significant ones of every number in the results file."""
    reads_collected: bool = False
    """Nothing is run: settings["collected"] is a file of `ube suite collect`, or None."""
    keeps_cells: bool = False
    """The job takes a fourth argument: the folder where finished cells are kept, so that a stopped run goes on."""


def run_grouped(groups: Mapping[Key, Sequence[Cell]], what: str, progress: Progress) -> dict[Key, list[Run]]:
    """The runs of each group, all cells sharing the machine's cores."""
    total = sum(map(len, groups.values()))
    runs = run_cells([cell for cells in groups.values() for cell in cells])
    finished: dict[Key, list[Run]] = {}
    done = 0
    for key, cells in groups.items():
        finished[key] = []
        for _ in cells:
            finished[key].append(next(runs))
            done += 1
            progress(what, done, total)
    return finished
