"""A grid with a key and a locked door: a sparse reward at the end of a long chain of events, and cycles all along it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ube.envs.arguments import whole
from ube.envs.contract import Environment, Instance, Key, State, Step
from ube.errors import UsageError

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""Up, down, left, right; the fifth action uses what is here: takes the key, or unlocks the door."""
OBSERVATIONS = ("dictionary", "one-hot")


def key_door(size: int = 7, observation: str = "dictionary", max_steps: int = 0) -> Environment:
    """Two rooms of a size × size grid with a wall between them. Take the key in the left room, stand beside the locked door
    and unlock it, walk to the goal in the right room: 1, and the episode terminates. 0 for everything else.

    Start, key, door and goal are drawn once per run. Five actions: four moves, which walls and the locked door block, and
    use. Everything can be walked back, so there are cycles everywhere. After `max_steps` (0: 4 size²) the episode is
    truncated. Optimum: 1.

    observation: "dictionary" is what {"position": …, "has_key": …, "door_open": …} becomes: the cell one-hot (size²), then
    one bit each. "one-hot" is one bit for each of the 3 size² states.
    """
    size = whole("size", size, 5)
    if observation not in OBSERVATIONS:
        raise UsageError(f"observation={observation!r}: choose one of {', '.join(OBSERVATIONS)}")
    limit = whole("max_steps", max_steps, 0) or 4 * size**2
    wall = size // 2

    def observe(state: State) -> jax.Array:
        row, column, has_key, door_open, _ = state
        cell = jnp.arange(size**2) == row * size + column
        if observation == "dictionary":
            return jnp.concatenate([cell, jnp.stack([has_key, door_open])])
        stage = jnp.where(door_open, 2, jnp.where(has_key, 1, 0))
        return ((jnp.arange(3) == stage)[:, None] & cell).reshape(-1)

    def draw(key: Key) -> Instance:
        """(row, column) of the start and the key (left), the door (in the wall) and the goal (right)."""
        left_key, door_key, goal_key = jax.random.split(key, 3)
        start, found = jax.random.choice(left_key, size * wall, (2,), replace=False)
        door = jax.random.randint(door_key, (), 0, size)
        goal = jax.random.randint(goal_key, (), 0, size * (size - wall - 1))
        right = size - wall - 1
        far = [goal // right, wall + 1 + goal % right]
        return jnp.array([[start // wall, start % wall], [found // wall, found % wall], [door, wall], far])

    def reset(key: Key, places: Instance) -> tuple[State, jax.Array]:
        state = (places[0, 0], places[0, 1], jnp.bool_(False), jnp.bool_(False), jnp.int32(0))
        return state, observe(state)

    def step(key: Key, places: Instance, state: State, action: jax.Array) -> tuple[State, Step]:
        row, column, has_key, door_open, t = state
        _, key_at, door, goal = places
        here, move = jnp.stack([row, column]), jnp.concatenate([jnp.asarray(MOVES), jnp.zeros((1, 2), int)])[action]
        there = jnp.clip(here + move, 0, size - 1)
        is_door = (there == door).all()
        blocked = (there[1] == wall) & ~(is_door & door_open)
        there = jnp.where(blocked, here, there)
        uses = action == len(MOVES)
        door_open = door_open | (uses & has_key & (jnp.abs(here - door).sum() == 1))
        has_key = has_key | (uses & (here == key_at).all())
        won, t = (there == goal).all(), t + 1
        state = (there[0], there[1], has_key, door_open, t)
        return state, Step(observe(state), won.astype(jnp.float32), won, t >= limit)

    shape = (size**2 + 2,) if observation == "dictionary" else (3 * size**2,)
    return Environment(
        f"KeyDoor-v0(size={size}, observation={observation}, max_steps={limit})", shape, np.dtype(bool), np.zeros(shape),
        np.ones(shape), len(MOVES) + 1, draw, reset, step, success_return=1.0,
    )  # fmt: skip
