"""How figures look: readable at column width, colour-blind safe (Okabe & Ito), each agent the same colour everywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ube.errors import UsageError
from ube.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = ("png", "svg", "pdf")
BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_YELLOW, _BLUE, _RED, _PINK, _GREY = "#B8A500", "#0072B2", "#D55E00", "#CC79A7", "#777777"

# colour, line style, marker: two agents that share a colour differ in the other two.
LOOKS: dict[str, tuple[str, str, str]] = {
    "ube-thompson": (_BLUE, "-", "o"),
    "ube-ucb": (_GREEN, "-", "s"),
    "ube-ucb-exact": (_GREEN, "--", "D"),
    "ube-ucb-horizon": (_GREEN, ":", "v"),
    "ube-episode": (_SKY, "-", "^"),
    "ube-joint": (_SKY, "--", "P"),
    "bonus": (_RED, "-", "X"),
    "ucbvi": (_RED, "--", "v"),
    "psrl": (_ORANGE, "-", "D"),
    "rlsvi": (_ORANGE, "--", "<"),
    "k-learning": (_PINK, "-", ">"),
    "epsilon-greedy": (_GREY, "-", "x"),
    "boltzmann": (_GREY, "--", "+"),
    "dqn": (_GREY, "-", "x"),
    "dqn-small-epsilon": (_GREY, "--", "+"),
    "greedy": (_GREY, ":", "."),
    "ube-1step": (_BLUE, "-", "o"),
    "ube-nstep": (_BLUE, "--", "^"),
    "unstructured-noise": (_SKY, ":", "v"),
    "boot": (_ORANGE, "-", "D"),
    "boot-2": (_ORANGE, "--", "<"),
    "ube-deep": (_GREEN, "-", "s"),
}


def look(name: str) -> tuple[str, str, str]:
    """Colour, line and marker of a line by its name: an agent, perhaps with more behind it. What the paper says of an agent
    is dotted, and how it does by its own policy dash-dotted."""
    agent = re.split("[ ,:]", name)[0]
    colour, line, marker = LOOKS.get(agent, (BLACK, "-", "."))
    return colour, ":" if "(paper" in name else "-." if "own policy" in name else line, marker


@contextmanager
def canvas(columns: int = 1, rows: int = 1, *, width: float = 3.5, height: float = 2.7) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes (2-d array) in the house style."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    look: dict[Any, Any] = {
        "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8.5, "legend.fontsize": 6.5, "xtick.labelsize": 7,
        "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.3,
        "lines.markersize": 3.5, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "legend.frameon": False,
        "svg.hashsalt": "ube", "savefig.dpi": 200,
    }  # fmt: skip
    with plt.rc_context(look):
        figure, axes = plt.subplots(
            rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
        )
        try:
            yield figure, axes
        finally:
            plt.close(figure)


def draw(
    axis: Axes, agent: str, x: Any, y: Any, low: Any = None, high: Any = None, *, marks: bool = False, **extra: Any
) -> None:
    colour, line, marker = look(agent)
    label = extra.pop("label", agent)
    axis.plot(x, y, line, color=colour, marker=marker if marks else None, label=label, **extra)
    if low is not None and high is not None:
        axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def legend_below(figure: Figure, axes: Axes | Iterable[Axes], columns: int) -> None:
    """One legend for all panels, from the labels of one of them, or of several."""
    found: dict[str, Any] = {}
    for axis in (axes,) if not isinstance(axes, Iterable) else axes:
        found |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


def save(figure: Figure, path: Path) -> None:
    """SVG and PNG, without a date, so that the same results give the same files."""
    for kind, metadata in (("svg", {"Date": None}), ("png", None)):
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, metadata=metadata)
        write_atomically(path.with_suffix(f".{kind}"), picture.getvalue())


def picture_kind(path: Path) -> str:
    """png, svg or pdf, by its name: to be known before there is anything to draw."""
    kind = path.suffix[1:].lower()
    if kind not in PICTURES:
        raise UsageError(f"{path}: a picture ends in .{', .'.join(PICTURES)}")
    return kind


def write_picture(figure: Figure, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format=picture_kind(path))
    write_atomically(path, picture.getvalue())
