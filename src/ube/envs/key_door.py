"""A grid with a key and a locked door: a sparse reward at the end of a long chain of events, and cycles all along it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ube.envs.arguments import flag, whole
from ube.envs.contract import Environment, Instance, Key, State, Step
from ube.errors import UsageError

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""Up, down, left, right; the fifth action uses what is here: takes the key, or unlocks the door."""
OBSERVATIONS = ("dictionary", "one-hot", "image")


def key_door(
    size: int = 7, observation: str = "dictionary", max_steps: int = 0, new_layouts: bool = False
) -> Environment:
    """Two rooms of a size × size grid with a wall between them. Take the key in the left room, stand beside the locked door
    and unlock it, walk to the goal in the right room: 1, and the episode terminates. 0 for everything else.

    Start, key, door and goal are drawn once per run, or for every episode if `new_layouts`, which only "image" can show.
    Five actions: four moves, which walls and the locked door block, and use. Everything can be walked back, so there are
    cycles everywhere. After `max_steps` (0: 4 size²) the episode is truncated. Optimum: 1.

    observation: "dictionary" is what {"position": …, "has_key": …, "door_open": …} becomes: the cell one-hot (size²), then
    one bit each. "one-hot" is one bit for each of the 3 size² states. "image" is (size, size, 5) bits: the agent, the key
    (in the upper right corner once it was taken), the wall (with a gap for the door), the locked door, the goal.
    """
    size = whole("size", size, 5)
    if observation not in OBSERVATIONS:
        raise UsageError(f"observation={observation!r}: choose one of {', '.join(OBSERVATIONS)}")
    limit, per_episode = whole("max_steps", max_steps, 0) or 4 * size**2, flag("new_layouts", new_layouts)
    if per_episode and observation != "image":
        raise UsageError(f"new_layouts=True, observation={observation!r}: only observation='image' shows the layout")
    wall = size // 2

    def at(place: jax.Array) -> jax.Array:
        return (jnp.arange(size)[:, None] == place[0]) & (jnp.arange(size) == place[1])

    def observe(state: State) -> jax.Array:
        row, column, has_key, door_open, _, (_, key_at, door, goal) = state
        cell = jnp.arange(size**2) == row * size + column
        if observation == "image":
            key_plane = jnp.where(has_key, at(jnp.array([0, size - 1])), at(key_at))
            walls = (jnp.arange(size) == wall) & ~at(door)
            planes = [cell.reshape(size, size), key_plane, walls, at(door) & ~door_open, at(goal)]
            return jnp.stack(planes, -1)
        if observation == "dictionary":
            return jnp.concatenate([cell, jnp.stack([has_key, door_open])])
        stage = jnp.where(door_open, 2, jnp.where(has_key, 1, 0))
        return ((jnp.arange(3) == stage)[:, None] & cell).reshape(-1)

    def layout(key: Key) -> jax.Array:
        """(row, column) of the start and the key (left), the door (in the wall) and the goal (right)."""
        left_key, door_key, goal_key = jax.random.split(key, 3)
        start, found = jax.random.choice(left_key, size * wall, (2,), replace=False)
        door = jax.random.randint(door_key, (), 0, size)
        goal = jax.random.randint(goal_key, (), 0, size * (size - wall - 1))
        right = size - wall - 1
        far = [goal // right, wall + 1 + goal % right]
        return jnp.array([[start // wall, start % wall], [found // wall, found % wall], [door, wall], far])

    def reset(key: Key, instance: Instance) -> tuple[State, jax.Array]:
        places = layout(key) if per_episode else instance
        state = (places[0, 0], places[0, 1], jnp.bool_(False), jnp.bool_(False), jnp.int32(0), places)
        return state, observe(state)

    def step(key: Key, instance: Instance, state: State, action: jax.Array) -> tuple[State, Step]:
        row, column, has_key, door_open, t, places = state
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
        state = (there[0], there[1], has_key, door_open, t, places)
        return state, Step(observe(state), won.astype(jnp.float32), won, t >= limit)

    shapes: dict[str, tuple[int, ...]] = {
        "dictionary": (size**2 + 2,), "one-hot": (3 * size**2,), "image": (size, size, 5)
    }  # fmt: skip
    shape = shapes[observation]
    name = f"KeyDoor-v0(size={size}, observation={observation}, max_steps={limit}{', new layouts' * per_episode})"
    return Environment(
        name, shape, np.dtype(bool), np.zeros(shape), np.ones(shape), len(MOVES) + 1,
        lambda key: () if per_episode else layout(key), reset, step, success_return=1.0,
    )  # fmt: skip
