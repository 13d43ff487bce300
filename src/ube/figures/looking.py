"""Pictures of what an agent has learned: along an episode, against the returns that followed, over its observations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ube.errors import UsageError
from ube.figures.deepsea_maps import every_cell, thoughts, unreachable
from ube.figures.learning import title_of
from ube.figures.style import canvas, legend_below, picture_kind, write_picture
from ube.stats.calibration import Calibration, calibration, returns_that_followed, settled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ube.deep.watching import Episode
    from ube.runs.training import Run, TrainedAgent

GRID = 50
"""Cells of a map along each number of the observation."""
Q, U, NU, REWARD, GREY = "#0072B2", "#009E73", "#E69F00", "#D55E00", "#777777"


# ---------------------------------------------------------------- an episode


def plot_episode(run: Run, path: Path, *, policy: str, seed: int, longest: int) -> None:
    picture_kind(path)
    if longest < 1:
        raise UsageError(f"longest={longest}: at least 1")
    agent = run.agent
    (episode,) = agent.episodes(1, policy=policy, seed=seed, longest=longest, observations=False)
    q, u, nu = (episode.taken(values) for values in (episode.q, episode.u, episode.nu))
    root_u, root_nu = (agent.beta * np.sqrt(np.maximum(values, 0.0)) for values in (u, nu))
    shown = {"√u": (root_u, U), "√ν, the local part": (root_nu, NU)}
    shown = {name: line for name, line in shown.items() if line[0].any()}
    t = np.arange(1, len(q) + 1)
    marker = "." if len(t) < 30 else None
    with canvas(rows=3 if shown else 2, width=5.0, height=1.4) as (figure, axes):
        axes[0, 0].get_gridspec().set_height_ratios([2.2, 1.4, 0.8] if shown else [2.2, 0.8])
        axis = axes[0, 0]
        axis.plot(t, q, color=Q, marker=marker, label="Q of the action taken")
        if root_u.any():
            axis.fill_between(t, q - root_u, q + root_u, color=U, alpha=0.25, linewidth=0, label="± β√u")
        for number, lost in enumerate(t[:-1][episode.closes[:-1]]):
            axis.axvline(lost, color=GREY, linestyle=":", linewidth=0.8, label=None if number else "a life was lost")
        axis.set(ylabel="value")
        axis.legend(loc="best")
        over = "" if len(t) < longest else f" in {longest:,} decisions"
        axis.set_title(f"{title_of(run.config)}\n{policy} policy, return {episode.reward.sum():.4g}{over}")
        for name, (values, colour) in shown.items():
            axes[1, 0].plot(t, values, color=colour, marker=marker, label=f"β{name}")
            axes[1, 0].set(ylabel="uncertainty", ylim=(0, None))
            axes[1, 0].legend(loc="best")
        paid = episode.reward != 0
        axes[-1, 0].vlines(t[paid], 0, episode.reward[paid], color=REWARD, linewidth=1.0)
        axes[-1, 0].axhline(0, color=GREY, linewidth=0.6)
        if paid.any():
            axes[-1, 0].plot(t[paid], episode.reward[paid], ".", color=REWARD)
        else:
            axes[-1, 0].set_yticks([0])
        axes[-1, 0].set(ylabel="reward", xlabel="decision")
        for other in axes[1:, 0]:
            other.sharex(axis)
        for other in axes[:-1, 0]:
            other.tick_params(labelbottom=False)
        write_picture(figure, path)


# ---------------------------------------------------------------- calibration


def plot_calibration(run: Run, path: Path, *, episodes: int, policy: str, seed: int, bins: int) -> Calibration:
    picture_kind(path)
    if bins < 1:
        raise UsageError(f"bins={bins}: at least 1")
    agent = run.agent
    _check_u(agent)
    played = agent.episodes(episodes, policy=policy, seed=seed, observations=False)
    found = [_claims(agent, episode) for episode in played]
    if not sum(len(claimed) for claimed, _ in found):
        raise UsageError(
            f"discount={agent.session.config.discount:g}: every episode was cut off within 1 / (1 - γ) decisions, so no "
            "return is known well enough; give the environment a longer time limit"
        )
    numbers = calibration(*zip(*found, strict=True), bins=bins, rng=np.random.default_rng(seed))
    number = f"{numbers.decisions.sum():,} decisions of {sum(len(claimed) > 0 for claimed, _ in found)} episodes"
    with canvas(width=3.5, height=3.1) as (figure, axes):
        _draw_calibration(axes[0, 0], numbers)
        axes[0, 0].set_title(f"{title_of(run.config)}\n{policy} policy, {number}")
        legend_below(figure, axes[0, 0], 1)
        write_picture(figure, path)
    return numbers


def _draw_calibration(axis: Axes, numbers: Calibration) -> None:
    """Claims and errors may be powers of ten apart, and both axes are logarithmic; a 0 is drawn on the lower edge."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [column[column > 0] for column in (numbers.claimed, numbers.error, numbers.high)]
    ends = [(values.min() / 1.5, values.max() * 1.5) for values in positive if len(values)] or [(0.1, 1.0)]
    lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
    left, right = ends[0] if len(positive[0]) else (lowest, highest)
    for share, line, label in ((1.0, "-", "β√u itself"), (np.sqrt(2 / np.pi), ":", "0.8 β√u, if errors are Normal")):
        axis.plot([left, right], [share * left, share * right], line, color=GREY, linewidth=1.0, label=label)
    x, y, low, high = (np.maximum(column, lowest) for column in numbers[:4])
    axis.errorbar(
        x, y, [y - np.minimum(low, y), np.maximum(high, y) - y], fmt="o", color=Q, elinewidth=1.0, capsize=2,
        label="mean of a bin, 95 % interval",
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlim=(left, right), ylim=(lowest, highest))
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if highest < 1e3 * lowest else (1.0,)))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ticks.set_minor_formatter(NullFormatter())
    axis.set(xlabel="β√u of the action taken", ylabel="|Q - return that followed|")


def _claims(agent: TrainedAgent, episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    """β√u and Q - G of the decisions whose return is known."""
    config = agent.session.config
    most = config.reward_clip * config.reward_unit
    learned = np.clip(episode.reward, -most, most)
    returns = returns_that_followed(learned, episode.closes, episode.follows, config.discount)
    known = settled(episode.closes, config.discount)
    claimed = agent.beta * np.sqrt(np.maximum(episode.taken(episode.u), 0.0))
    return claimed[known], (episode.taken(episode.q) - returns)[known]


def _check_u(agent: TrainedAgent) -> None:
    if not agent.session.config.uses_u:
        raise UsageError(f"{agent.session.config.name} has no u to look at: train an agent that has, such as ube-deep")


# ---------------------------------------------------------------- maps

MAPPED = "{} gives observations of shape {}: maps are of vectors of two numbers or more, and of one-hot cells"


class Map(NamedTuple):
    """Grids (rows, columns), rows from the top for cells, from the bottom for numbers of the observation."""

    root_u: np.ndarray  # β√u, the largest of the actions
    visits: np.ndarray
    edges: tuple[np.ndarray, np.ndarray] | None  # of columns and of rows; None for cells


def plot_map(
    run: Run, path: Path, *, dims: tuple[int, int], grid: tuple[int, int] | None, episodes: int, policy: str, seed: int
) -> None:
    from matplotlib.colors import Normalize, SymLogNorm

    picture_kind(path)
    found = u_and_visits(run.agent, dims, episodes, policy, seed, grid)
    size = found.root_u.shape
    hidden = np.zeros(size, bool)
    if run.agent.env.name.startswith("DeepSea") and grid is None:
        hidden = unreachable(size[0])
    panels = (
        ("β√u, largest of the actions", found.root_u, "viridis", Normalize(0, np.max(found.root_u[~hidden]))),
        (f"visits in {episodes} episodes", found.visits, "cividis", SymLogNorm(1, vmin=0, vmax=found.visits.max())),
    )
    with canvas(columns=2, width=2.9, height=2.6) as (figure, axes):
        for axis, (title, cells, colours, norm) in zip(axes[0], panels, strict=True):
            axis.grid(False)
            axis.set_title(title)
            if found.edges is None:
                masked = np.ma.masked_where(hidden, cells)
                image = axis.imshow(masked, norm=norm, cmap=colours, aspect="auto" if size[0] == 1 else "equal")
                axis.set(xlabel="column", ylabel="row")
                for one in (axis.xaxis, axis.yaxis):
                    one.get_major_locator().set_params(integer=True)
                if size[0] == 1:
                    axis.set(xlabel="state", ylabel="", yticks=[])
            else:
                image = axis.pcolormesh(*found.edges, cells, norm=norm, cmap=colours, rasterized=True)
                axis.set(xlabel=f"observation[{dims[0]}]", ylabel=f"observation[{dims[1]}]")
            figure.colorbar(image, ax=axis, shrink=0.9, format="%d" if cells is found.visits else None)
        others = run.agent.env.observation_shape[0] > 2 and found.edges is not None
        rest = ", the other numbers at their median" if others else ""
        figure.suptitle(f"{title_of(run.config)}, {policy} policy{rest}", fontsize=8.5)
        write_picture(figure, path)


def u_and_visits(
    agent: TrainedAgent, dims: tuple[int, int], episodes: int, policy: str, seed: int,
    grid: tuple[int, int] | None = None,
) -> Map:  # fmt: skip
    _check_u(agent)
    env, shape = agent.env, agent.env.observation_shape
    vector = len(shape) == 1 and shape[0] > 1
    if vector and (len(dims) != 2 or dims[0] == dims[1] or not all(0 <= dim < shape[0] for dim in dims)):
        raise UsageError(f"dims={tuple(dims)}: two different numbers within 0..{shape[0] - 1}")
    if grid is not None and (min(grid) < 1 or grid[0] * grid[1] != np.prod(shape)):
        raise UsageError(f"grid={tuple(grid)}: rows times columns must be {np.prod(shape)}, the states of {env.name}")
    if not vector and len(shape) != 2:
        raise UsageError(MAPPED.format(env.name, shape))
    played = list(agent.episodes(episodes, policy=policy, seed=seed))
    seen = np.concatenate([episode.observation for episode in played])
    if _is_one_hot(seen):
        rows = grid or (shape if len(shape) == 2 else (1, *shape))
        root_u = _root_u(agent, every_cell(shape, env.observation_dtype))
        return Map(root_u.reshape(rows), seen.sum(0, dtype=np.int64).reshape(rows), None)
    if grid is not None:
        raise UsageError(
            f"grid={tuple(grid)}: {env.name} shows numbers, not one-hot states; choose two of them by dims"
        )
    if not vector:
        raise UsageError(MAPPED.format(env.name, shape))
    edges = tuple(_edges(env, seen[:, dim], dim) for dim in dims)
    across, up = ((ends[1:] + ends[:-1]) / 2 for ends in edges)
    everywhere = np.tile(np.median(seen, 0), (GRID, GRID, 1))  # [up, across]
    everywhere[..., dims[0]], everywhere[..., dims[1]] = across, up[:, None]
    root_u = _root_u(agent, everywhere.reshape(GRID * GRID, -1).astype(env.observation_dtype))
    visits, _, _ = np.histogram2d(seen[:, dims[1]], seen[:, dims[0]], bins=edges[::-1])
    return Map(root_u.reshape(GRID, GRID), visits.astype(int), edges)  # type: ignore[arg-type]


def _root_u(agent: TrainedAgent, observations: np.ndarray) -> np.ndarray:
    u = np.asarray(thoughts(agent.session, agent.state, observations).u)
    return agent.beta * agent.session.config.reward_unit * np.sqrt(np.maximum(u.max(1), 0.0))


def _is_one_hot(seen: np.ndarray) -> bool:
    flat = seen.reshape(len(seen), -1)
    return seen.dtype.kind in "bui" and bool((flat <= 1).all() and (flat.sum(1) == 1).all())


def _edges(env: Any, values: np.ndarray, dim: int) -> np.ndarray:
    """Of the cells along one number: within its bounds, or a little around what was seen if it has none."""
    low, high = (float(np.broadcast_to(bound, env.observation_shape)[dim]) for bound in (env.low, env.high))
    least, most = float(values.min()), float(values.max())
    around = 0.1 * (most - least) or 0.5
    far = 1e6
    return np.linspace(low if low > -far else least - around, high if high < far else most + around, GRID + 1)
