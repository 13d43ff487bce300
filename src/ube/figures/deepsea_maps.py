"""Maps of DeepSea as an agent learns: what it thinks it does not know, what cannot be known yet, and where it has been."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ube.figures.experiment import Results
from ube.figures.style import canvas

MAPS = {"root_u": "√max u", "root_variance": "posterior std of Q", "visits": "visits (logarithmic colours)"}
"""Of every look -> label."""


SAME_COLOURS = ("root_u", "root_variance")
"""They are there to be compared."""


def look(session: Any, chunk: Any) -> dict[str, Any]:
    """Each map as (row, column), of the decisions in the replay, which holds the last 20,000."""
    import jax

    size, _ = shape = session.env.observation_shape
    choice = thoughts(session, session.learner, every_cell(shape, np.dtype(bool)))
    replay = session.carry.replay
    seen = jax.tree.map(lambda column: np.asarray(column[: int(replay.added)]), replay.rows)
    deviation = posterior_deviation(
        size,
        seen.observation,
        seen.action,
        seen.reward,
        seen.next_observation,
        np.asarray(choice.action).reshape(shape),
    )
    return {
        "episode": chunk.step // size,
        "root_u": np.sqrt(np.asarray(choice.u).max(1)).reshape(shape).round(5).tolist(),
        "root_variance": deviation.round(5).tolist(),
        "visits": seen.observation.sum(0).tolist(),
    }


def every_cell(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """All one-hot observations of a shape, (cells, *shape)."""
    cells = int(np.prod(shape))
    return np.eye(cells, dtype=dtype).reshape(cells, *shape)


def thoughts(session: Any, learner: Any, observations: np.ndarray) -> Any:
    """What the agent thinks at each of many observations: a Choice with one more axis in front."""
    import jax

    think = jax.vmap(session.loop.think, in_axes=(None, 0, None, None))
    return think(learner, observations, jax.random.key(0), session.knobs)


def posterior_deviation(
    size: int, observation: np.ndarray, action: np.ndarray, reward: np.ndarray, next_observation: np.ndarray,
    policy: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """(size, size): the exact standard deviation of Q, the larger of both actions, after these decisions; 0 above the
    diagonal, where nobody gets.

    observation, next_observation: (n, size, size), one-hot, all False after the end. policy: (size, size) of actions.
    The belief: flat over the two cells below, rewards of mean N(0, 1) that vary by 1.
    """
    from ube.tabular import solve
    from ube.tabular.mdp import deep_sea

    row, column = np.divmod(observation.reshape(len(observation), -1).argmax(1), size)
    next_column = (
        next_observation.reshape(len(observation), -1).argmax(1) % size
    )  # 0 after the end, where all is one state
    decisions = np.stack([row, column, action, reward, next_column], 1)
    belief = deep_sea(size, np.random.default_rng(0)).belief(noise_var=1.0).updated(decisions)
    chosen = [np.eye(2)[policy[depth, : depth + 1]] for depth in range(size)]
    deviation = np.zeros((size, size))
    for depth, variance in enumerate(solve(belief, chosen, "exact").variance):
        deviation[depth, : depth + 1] = np.sqrt(variance.max(-1))
    return deviation


def unreachable(size: int) -> np.ndarray:
    """(size, size) of DeepSea: a column is at most the row."""
    return np.triu(np.ones((size, size), bool), 1)


@contextmanager
def plot_maps(results: Results) -> Iterator[Any]:
    """At the looks nearest to the episodes asked for; reachable cells only."""
    from matplotlib.colors import Normalize, SymLogNorm

    picture, asked = results["data"]["picture"], results["settings"]["picture"]["episodes"]
    size, all_looks = picture["size"], picture["looks"]
    looks = [all_looks[i] for i in sorted({nearest_look(all_looks, episode) for episode in asked})]
    hidden = unreachable(size)
    with canvas(columns=len(looks), rows=len(MAPS), width=1.7, height=1.75) as (figure, axes):
        for axis_row, (key, label) in zip(axes, MAPS.items(), strict=True):
            shown = [np.array(one[key], float) for one in looks]
            masked = [np.ma.masked_where(hidden, grid) for grid in shown]
            top = max(np.max(one[name]) for one in looks for name in (("visits",) if key == "visits" else SAME_COLOURS))
            norm = SymLogNorm(1, vmin=0, vmax=top) if key == "visits" else Normalize(0, top)
            for axis, grid, one in zip(axis_row, masked, looks, strict=True):
                image = axis.imshow(grid, norm=norm, cmap="cividis" if key == "visits" else "viridis")
                axis.set(xticks=[], yticks=[])
                axis.grid(False)
                if key == "root_u":
                    axis.set_title(f"after {one['episode']:,} episodes")
            figure.colorbar(image, ax=list(axis_row), label=label, shrink=0.85)
        figure.suptitle(_title(picture), fontsize=8.5)
        yield figure


def maps(results: Results) -> dict[str, Any] | None:
    picture = results["data"]["picture"]
    if picture is None or not picture["looks"]:
        return None
    return {
        "title": _title(picture), "same_colours": SAME_COLOURS, "size": picture["size"], "looks": picture["looks"],
        "labels": {key: label for key, label in MAPS.items() if all(key in one for one in picture["looks"])},
    }  # fmt: skip


def _title(picture: dict[str, Any]) -> str:
    solved = picture["episodes_to_solve"]
    when = f"solved at episode {solved:,}" if solved is not None else "not solved"
    whose = f"{picture['agent']}, N = {picture['size']}, one seed, {when}"
    return f"{whose}: rows down, columns right; of the last 20,000 decisions"


def nearest_look(looks: list[dict[str, Any]], episode: int) -> int:
    return min(range(len(looks)), key=lambda i: abs(looks[i]["episode"] - episode))
