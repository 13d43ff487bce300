"""Which state can follow which: the sparse skeleton that MDPs and beliefs about them share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ube.errors import UsageError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def numbers(values: object, name: str, expected: str = "") -> NDArray[np.float64]:
    """As an array of floats, or an error that says what is not one."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise TypeError("complex")
        return array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} is no array of numbers{expected}") from error


@dataclass(frozen=True, eq=False)
class Graph:
    """Rows (state, action) and the states each can lead to.

    A *node* is a state; row `node * n_actions + action` has the successors `indices[indptr[row]:indptr[row + 1]]`.
    A row without successors is an action that does not exist there; a node without any is terminal and worth 0.
    `layers` holds the first node of each layer and the end of the last one, for layered problems only: the nodes of
    layer h are `layers[h]:layers[h + 1]`, and those from `layers[-1]` on are the terminal ones after the horizon.
    """

    n_nodes: int
    n_actions: int
    indptr: Ints
    indices: NDArray[np.int32]
    layers: tuple[int, ...] | None = None

    @property
    def n_rows(self) -> int:
        return self.n_nodes * self.n_actions

    @property
    def n_decisions(self) -> int:
        """Nodes that results speak of: all, or without the terminal layer after the horizon."""
        return self.n_nodes if self.layers is None else self.layers[-1]

    @cached_property
    def successors(self) -> Ints:
        """How many successors each row has (rows,): K in the formulas."""
        return np.diff(self.indptr)

    @cached_property
    def available(self) -> Bools:
        """Which actions exist, (nodes, actions)."""
        return (self.successors > 0).reshape(self.n_nodes, self.n_actions)

    @cached_property
    def terminal(self) -> Bools:
        return np.logical_not(self.available.any(axis=1))

    @cached_property
    def order(self) -> NDArray[np.int32] | None:
        """Every node after all its successors, terminal nodes left out; None where there is a cycle."""
        if self.layers is not None:
            order = np.arange(self.layers[-1] - 1, -1, -1, dtype=np.int32)
            return order[~self.terminal[order]]
        if not self.terminal.any():
            return None
        from ube.tabular import kernels

        order, acyclic = kernels.postorder(self.n_nodes, self.n_actions, self.indptr, self.indices)
        return order[~self.terminal[order]] if acyclic else None

    @cached_property
    def slots(self) -> tuple[NDArray[np.int32], int]:
        """A place in the covariance for each node, and how many places there are.

        A node gives its place up once its last predecessor is done, so a layered problem needs little more than one
        layer's width: nodes x nodes would be far too much for DeepSea-100. Terminal nodes have none (-1).
        """
        from ube.tabular import kernels

        assert self.order is not None
        return kernels.assign_slots(self.n_nodes, self.n_actions, self.order, self.indptr, self.indices)

    def per_row(self, values: object, name: str) -> NDArray[np.float64]:
        """Values given for each (state, action) in the user's shape, as a flat array over rows."""
        if isinstance(values, (list, tuple)) and self.layers is not None and len(values) == len(self.layers) - 1:
            parts = [numbers(part, f"{name}[{layer}]") for layer, part in enumerate(values)]
            for layer, part in enumerate(parts):
                expected: tuple[int, ...] = (self.layers[layer + 1] - self.layers[layer], self.n_actions)
                if part.shape != expected:
                    raise UsageError(f"{name}[{layer}] has shape {part.shape}: layer {layer} needs {expected}")
            flat = np.concatenate([part.reshape(-1) for part in parts])
        else:
            array = numbers(values, name, f": expected {self.shape_in_words}")
            expected = self.shape
            if array.ndim and array.shape != expected:
                raise UsageError(f"{name} has shape {array.shape}: expected {self.shape_in_words}")
            flat = np.broadcast_to(array, expected).reshape(-1) if array.ndim else np.full(self._n_shown, float(array))
        full = np.zeros(self.n_rows)
        full[: self._n_shown] = flat
        return full

    def shown(self, flat: NDArray[np.float64], missing: float | None = None) -> Any:
        """The inverse of `per_row`: (H, S, A), (S, A), or a list of layers where their widths differ.

        `missing` is put in the place of actions that do not exist; terminal states keep their value.
        """
        if missing is not None:
            acts = np.repeat(~self.terminal, self.n_actions)
            flat = np.where(acts & (self.successors == 0), missing, flat)
        rows = flat[: self._n_shown]
        if self.is_ragged:
            assert self.layers is not None
            cuts = [node * self.n_actions for node in self.layers[1:-1]]
            return [part.reshape(-1, self.n_actions) for part in np.split(rows, cuts)]
        return rows.reshape(self.shape)

    @property
    def _n_shown(self) -> int:
        return self.n_decisions * self.n_actions

    @cached_property
    def is_ragged(self) -> bool:
        return self.layers is not None and len(set(np.diff(self.layers))) > 1

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of a value per (state, action) as users give and get it; the flat one where layers differ."""
        if self.layers is None or self.is_ragged:
            return (self.n_decisions, self.n_actions)
        horizon = len(self.layers) - 1
        return (horizon, self.layers[1] - self.layers[0], self.n_actions)

    @property
    def shape_in_words(self) -> str:
        if self.is_ragged:
            assert self.layers is not None
            return f"a list of {len(self.layers) - 1} arrays, one per layer, each (states of that layer, actions)"
        return f"{self.shape} ({'layers, ' if self.layers else ''}states, actions), or one number for all"

    def entry(self, row: int) -> str:
        """The row as users index it: '[h, s, a]' or '[s, a]'."""
        node, action = divmod(int(row), self.n_actions)
        if self.layers is None:
            return f"[{node}, {action}]"
        layer = int(np.searchsorted(self.layers, node, side="right")) - 1
        return f"[{layer}, {node - self.layers[layer]}, {action}]"
