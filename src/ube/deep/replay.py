"""A ring of transitions inside the compiled loop: plain arrays, written and sampled in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Replay(NamedTuple):
    rows: Any  # a pytree, each leaf (capacity, …)
    added: jax.Array  # () transitions ever added


def empty_replay(example: Any, capacity: int) -> Replay:
    """Room for `capacity` transitions shaped like `example`."""
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *jnp.shape(leaf)), jnp.asarray(leaf).dtype), example)
    return Replay(rows, jnp.zeros((), jnp.int32))


def add(replay: Replay, row: Any) -> Replay:
    """The oldest transition makes room."""
    capacity = jax.tree.leaves(replay.rows)[0].shape[0]
    slot = replay.added % capacity
    rows = jax.tree.map(lambda column, value: column.at[slot].set(value), replay.rows, row)
    return Replay(rows, replay.added + 1)


def sample(replay: Replay, key: jax.Array, size: int) -> tuple[Any, jax.Array]:
    """`size` transitions, uniformly with replacement, and their slots; at least one must have been added."""
    capacity = jax.tree.leaves(replay.rows)[0].shape[0]
    slots = jax.random.randint(key, (size,), 0, jnp.minimum(replay.added, capacity))
    return jax.tree.map(lambda column: column[slots], replay.rows), slots


def look_ahead(replay: Replay, slots: jax.Array, n: int, discount: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Follow transitions for up to n steps: the discounted sum of their rewards, the discount of what comes after, and the
    slot of the last one. Stops where an episode ended and at the newest transition."""
    rows, capacity = replay.rows, replay.rows.reward.shape[0]
    newest = (replay.added - 1) % capacity
    total, last = rows.reward[slots], slots
    weight = jnp.full(slots.shape, discount)
    for _ in range(n - 1):
        stays = (rows.ended[last] > 0) | (last == newest)
        last = jnp.where(stays, last, (last + 1) % capacity)
        total = total + jnp.where(stays, 0.0, weight * rows.reward[last])
        weight = jnp.where(stays, weight, weight * discount)
    return total, weight * rows.continues[last], last
