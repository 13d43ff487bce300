"""Reading what users give for transitions: Dirichlet rows, dense or sparse, terminal states, indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ube.errors import UsageError
from ube.tabular.graph import Graph, numbers
from ube.tabular.rewards import Floats


@dataclass
class Rows:
    n_rows: int
    n_actions: int
    n_columns: int
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    data: Floats


def is_sparse(array: Any) -> bool:
    return hasattr(array, "tocsr")


def read_rows(alpha: Any, name: str, n_actions: int | None, terminal: NDArray[np.bool_] | None = None) -> Rows:
    """One block of Dirichlet rows, checked and copied; the rows of terminal states come out empty."""
    if is_sparse(alpha):
        n_rows, n_columns = alpha.shape
        if n_actions is None or n_actions < 1 or n_rows % n_actions:
            raise UsageError(f"{name} is sparse with {n_rows} rows: give n_actions=, rows are states x actions")
        matrix = alpha.tocsr(copy=True)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        data, indices, indptr = matrix.data.astype(np.float64, copy=False), matrix.indices, matrix.indptr
    else:
        array = numbers(alpha, name)
        if array.ndim != 3 or 0 in array.shape:
            raise UsageError(f"{name} has shape {array.shape}: expected (states, actions, next states)")
        n_actions, n_columns = array.shape[1:]
        flat = array.reshape(-1, n_columns)
        n_rows = len(flat)
        entry_row, indices = np.nonzero(flat)  # NaN is not 0: it stays, to be reported
        data, indptr = flat[entry_row, indices], np.r_[0, np.cumsum(np.bincount(entry_row, minlength=n_rows))]
    opening = f"{name}[" if name == "alpha" else name[:-1] + ", "
    if terminal is not None and terminal.any():
        ending = np.repeat(terminal, n_actions)
        keep = ~np.repeat(ending, np.diff(indptr))
        data, indices = data[keep], indices[keep]
        indptr = np.r_[0, np.cumsum(np.where(ending, 0, np.diff(indptr)))]
    bad = np.flatnonzero(~((data > 0) & (data < 1e300)))  # α₀ must not overflow
    if len(bad):
        row = int(np.searchsorted(indptr, bad[0], side="right")) - 1
        raise UsageError(
            f"{opening}{row // n_actions}, {row % n_actions}, {indices[bad[0]]}] is {data[bad[0]]:g}: "
            "Dirichlet parameters are finite and 0 or more"
        )
    empty = np.diff(indptr) == 0
    if terminal is not None:
        empty &= ~np.repeat(terminal, n_actions)
    if empty.any():
        row = int(np.argmax(empty))
        raise UsageError(
            f"{opening}{row // n_actions}, {row % n_actions}] sums to 0: every (s, a) needs at least one reachable next "
            f"state{'' if terminal is None else ', or list the state in terminal='}"
        )
    return Rows(n_rows, n_actions, n_columns, indptr, indices, data)


def read_terminal(terminal: Any, n_states: int) -> NDArray[np.bool_]:
    given = np.asarray(terminal)
    if given.dtype == np.bool_:
        if given.shape != (n_states,):
            raise UsageError(
                f"terminal is a mask of shape {given.shape}: it needs one entry for each of {n_states} states"
            )
        return given
    if given.size and (given.dtype.kind not in "iuf" or (given != np.round(given)).any()):
        raise UsageError(f"terminal={terminal!r}: give states as whole numbers, or a mask of booleans")
    if given.size == n_states > 2 and set(given.ravel().tolist()) == {0, 1}:
        raise UsageError("terminal looks like a mask of 0 and 1: give booleans for a mask, or list the states")
    listed = given.astype(np.int64).reshape(-1)
    within(listed, n_states, "terminal state")
    mask = np.zeros(n_states, dtype=np.bool_)
    mask[listed] = True
    return mask


def within(values: NDArray[np.int64], size: Any, name: str) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= size))
    if len(wrong):
        limit = np.broadcast_to(size, values.shape)[wrong[0]]
        raise UsageError(f"{name} {values[wrong[0]]} is out of range: there are {limit}, counted from 0")


def read_transitions(
    graph: Graph, transitions: Iterable[Sequence[float]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Of each transition: its row, the place of the next state among the row's successors, and the reward."""
    from ube.tabular import kernels

    names = ("layer",) * (graph.layers is not None) + ("state", "action", "reward", "next_state")
    given = transitions if isinstance(transitions, np.ndarray) else list(transitions)
    if len(given) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    try:
        table = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"transitions are no table of numbers: each must be ({', '.join(names)})") from error
    if table.ndim != 2 or table.shape[1] != len(names):
        raise UsageError(f"transitions have shape {table.shape}: each must be ({', '.join(names)})")
    columns = dict(zip(names, table.T, strict=True))
    reward = columns.pop("reward")
    for name, column in columns.items():
        wrong = np.flatnonzero(~np.isfinite(column) | (column != np.round(column)))
        if len(wrong):
            raise UsageError(f"transition {wrong[0]}: {name} {column[wrong[0]]:g} is not a whole number")
    whole = {name: column.astype(np.int64) for name, column in columns.items()}
    if not np.isfinite(reward).all():
        raise UsageError(f"transition {np.argmin(np.isfinite(reward))}: the reward is not finite")
    node, following = whole["state"], whole["next_state"]
    sizes = np.full(len(node), graph.n_nodes), np.full(len(node), graph.n_nodes)
    if graph.layers is not None:
        starts = np.r_[graph.layers, graph.n_nodes]
        within(whole["layer"], len(starts) - 2, "layer")
        layer = whole["layer"]
        sizes = starts[layer + 1] - starts[layer], starts[layer + 2] - starts[layer + 1]
    within(whole["action"], graph.n_actions, "action")
    within(node, sizes[0], "state")
    within(following, sizes[1], "next_state")
    if graph.layers is not None:
        node, following = node + starts[layer], following + starts[layer + 1]
    rows = node * graph.n_actions + whole["action"]
    place = kernels.find_edges(graph.indptr, graph.indices, rows, following)
    if (place < 0).any():
        i = int(np.argmax(place < 0))
        raise UsageError(
            f"transition {i} goes from {graph.entry(rows[i])} to state {whole['next_state'][i]}, which has alpha 0 "
            "(unreachable): give it a positive alpha"
        )
    return rows, place, reward
