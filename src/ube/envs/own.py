"""The tabular exploration problems of `ube.tabular.mdp` as compiled environments: same rules, one-hot observations."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ube.envs.arguments import flag, number, whole
from ube.envs.contract import Environment, Instance, Key, State, Step
from ube.errors import UsageError

MOST_CELLS = 10**7
"""Numbers of an observation: more would take all memory before anything is learned."""


def deep_sea(
    size: int = 10, randomize_actions: bool = True, move_cost: float = 0.01, stochastic: bool = False
) -> Environment:
    """DeepSea (Osband et al. 2019, rules of bsuite): one row down each time, one column right or left.

    Which action means right is drawn for every cell, once per run (or is 1 everywhere). Right costs move_cost / size;
    right in the last column pays 1 and is found only by going right all the way. Episodes terminate after `size` steps.
    Optimum: 1 - move_cost. The observation is the cell, one-hot (size, size); nothing is set below the last row.

    stochastic: a move to the right goes straight down with probability 1 / size, as in bsuite, whose noise on the last reward
    is left out so that a success can be told. Even the best policy then succeeds in some 37 % of the episodes.
    """
    size = whole("size", size, 2)
    move_cost = number("move_cost", move_cost, 0.0)
    if move_cost >= 0.5:
        raise UsageError(f"move_cost={move_cost:g}: below 0.5, so that the treasure is worth the way")
    random_meaning, slips = flag("randomize_actions", randomize_actions), flag("stochastic", stochastic)

    def observe(row: jax.Array, column: jax.Array) -> jax.Array:
        cells = jnp.arange(size)
        return (cells[:, None] == row) & (cells == column)

    def draw(key: Key) -> Instance:
        """(size, size) of the action that means right."""
        if random_meaning:
            return jax.random.randint(key, (size, size), 0, 2)
        return jnp.ones((size, size), jnp.int32)

    def reset(key: Key, right: Instance) -> tuple[State, jax.Array]:
        state = (jnp.int32(0), jnp.int32(0))
        return state, observe(*state)

    def step(key: Key, right: Instance, state: State, action: jax.Array) -> tuple[State, Step]:
        row, column = state
        goes_right = action == right[row, column]
        reward = goes_right * ((column == size - 1) - jnp.float32(move_cost / size))
        moves = jnp.where(goes_right, 1, -1)
        if slips:
            moves = jnp.where(goes_right & jax.random.bernoulli(key, 1 / size), 0, moves)
        row, column = row + 1, jnp.clip(column + moves, 0, size - 1)
        return (row, column), Step(observe(row, column), reward, row == size, jnp.bool_(False))

    return _one_hot(
        f"DeepSea-v0(size={size}{', stochastic' * slips})", (size, size), draw, reset, step, success_return=0.5
    )


def tree(depth: int = 10) -> Environment:
    """The binary tree of Janz et al. 2019: at each of `depth` junctions one action, drawn once per run, ends the episode
    with nothing, the other goes on; 1 after the last. Optimum: 1. Uniform play finds it with probability 2^-depth.

    The observation is one-hot of 2 depth + 1 states: junction k at 2k, its dead end at 2k + 1, the treasure last.
    """
    depth = whole("depth", depth, 1)
    treasure = 2 * depth

    def observe(node: jax.Array) -> jax.Array:
        return jnp.arange(treasure + 1) == node

    def draw(key: Key) -> Instance:
        """(depth,) of the action that goes on."""
        return jax.random.randint(key, (depth,), 0, 2)

    def reset(key: Key, onward: Instance) -> tuple[State, jax.Array]:
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: Key, onward: Instance, node: State, action: jax.Array) -> tuple[State, Step]:
        node = jnp.where(action == onward[node // 2], node + 2, node + 1)
        found = node == treasure
        return node, Step(observe(node), found.astype(jnp.float32), found | (node % 2 == 1), jnp.bool_(False))

    return _one_hot(f"Tree-v0(depth={depth})", (treasure + 1,), draw, reset, step, success_return=1.0)


def chain(length: int = 10, means: tuple[float, float] = (1.0, 0.0), sigma: float = 1.0) -> Environment:
    """The paper's Figure 1. Action 0 at the root pays N(μ1, σ²) and terminates; action 1 pays nothing and leads down
    `length` states, where either action goes on and pays N(μ2 / H, σ² / H). Optimum: max(μ1, μ2).

    The observation is one-hot of the root and the `length` states; nothing is set after the end.
    """
    length = whole("length", length, 1)
    sigma = number("sigma", sigma, 0.0)
    if not isinstance(means, tuple | list) or len(means) != 2:
        raise UsageError(f"means={means!r}: two numbers, one for each branch")
    first, second = (number("means", mean) for mean in means)
    end = length + 1

    def observe(node: jax.Array) -> jax.Array:
        return jnp.arange(end) == node

    def draw(key: Key) -> Instance:
        return ()

    def reset(key: Key, instance: Instance) -> tuple[State, jax.Array]:
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: Key, instance: Instance, node: State, action: jax.Array) -> tuple[State, Step]:
        at_root = node == 0
        stops = at_root & (action == 0)
        mean = jnp.where(stops, first, jnp.where(at_root, 0.0, second / length))
        std = jnp.where(stops, sigma, jnp.where(at_root, 0.0, sigma / length**0.5))
        reward = mean + std * jax.random.normal(key)
        node = jnp.where(stops, end, node + 1)
        return node, Step(observe(node), reward.astype(jnp.float32), node == end, jnp.bool_(False))

    return _one_hot(f"Chain-v0(length={length})", (end,), draw, reset, step)


def _one_hot(
    name: str, shape: tuple[int, ...], draw: Any, reset: Any, step: Any, success_return: float | None = None
) -> Environment:
    if math.prod(shape) > MOST_CELLS:
        raise UsageError(f"{name}: an observation of more than {MOST_CELLS:,} numbers; choose a smaller one")
    return Environment(
        name, shape, np.dtype(bool), np.zeros(shape), np.ones(shape), 2, draw, reset, step, success_return
    )  # fmt: skip
