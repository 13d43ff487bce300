"""Grid worlds of navix (Pignatelli et al. 2024), MiniGrid in JAX: DoorKey, FourRooms, LavaGap, … (extra `grids`).

Checked against navix 0.7.4, whose traps are: `step` resets by itself one step late (so `_step` here). Its symbolic view
shows one of the player and the door or goal it stands on, and which one differs within and without `jit`; GoToDoor's
target it does not show (so the planes below). GoToDoor pays for facing the target door, whatever the action. Lava in
DistShift does not end an episode. KeyCorridor holds no goal that could pay, and is refused.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ube.envs.arguments import known_names, whole
from ube.envs.carry import settled
from ube.envs.contract import Environment, Instance, Key, State, Step
from ube.errors import UsageError

_TAGS = (1, 2, 4, 5, 6, 7, 8, 9)
"""floor, wall, door, key, ball, box, goal, lava: navix.entities.EntityIds without the player, who has planes apart."""
_DOOR = 4
_COLOURS, _DOOR_STATES, _DIRECTIONS = 6, 3, 4
ANY_REWARD = 1e-6
"""The goal pays 1, and nothing else pays: any positive return is a success."""


def navix_environment(env_id: str, **env_args: Any) -> Environment:
    """A navix environment by its id: turn left or right, forward, pick up, drop, open, done. 1 at the goal, which
    terminates (so do lava and balls where they are deadly); truncated after `max_steps`, 100 by default. Optimum: 1.

    Random in every episode, drawn by `reset`: the layout (DoorKey: the column of the wall, the door, the key; FourRooms:
    gaps, player and goal; -Random ids also the start), and in Dynamic-Obstacles each move of the balls, drawn by `step`.
    Nothing is drawn per run. The observation is the whole grid, (height, width, planes) of bool, one-hot: 8 objects,
    6 colours, a door's 3 states, the player's 4 directions at its position, and the target where there is one. A key
    that is carried lies in the upper right corner.
    """
    navix = _navix()
    ids = list(navix.registry())
    if env_id not in ids:
        near = difflib.get_close_matches(env_id, ids, n=3, cutoff=0.3)
        raise UsageError(f"no environment {env_id!r}; the nearest ids are {', '.join(near or ids[:3])}")
    if "KeyCorridor" in env_id:
        raise UsageError(f"{env_id} of navix 0.7.4 never pays a reward: use Navix-DoorKey-8x8-v0, for instance")
    known_names(env_id, env_args, ("max_steps",))
    env = navix.make(env_id, max_steps=whole("max_steps", env_args.get("max_steps", 100), 1))

    def begin(key: Key) -> tuple[Any, jax.Array]:
        timestep = env.reset(key)
        timestep = timestep.replace(state=timestep.state.replace(cache=None))  # sprites, for images only: 3 kB a cell
        return timestep, planes(timestep.state)

    def advance(key: Key, timestep: Any, action: jax.Array) -> tuple[Any, Step]:
        timestep = timestep.replace(state=timestep.state.replace(key=key))  # navix would go on with a key of its own
        timestep = env._step(timestep, action)
        observation, reward = planes(timestep.state), jnp.asarray(timestep.reward, jnp.float32)
        return timestep, Step(observation, reward, timestep.is_termination(), timestep.is_truncation())

    after_reset, observed = jax.eval_shape(begin, jax.random.key(0))
    after_step, _ = jax.eval_shape(advance, jax.random.key(0), after_reset, jnp.int32(0))
    shape, cast = tuple(observed.shape), settled(after_reset, after_step)

    def draw(key: Key) -> Instance:
        return ()

    def reset(key: Key, instance: Instance) -> tuple[State, jax.Array]:
        timestep, observation = begin(key)
        return cast(timestep), observation

    def step(key: Key, instance: Instance, state: State, action: jax.Array) -> tuple[State, Step]:
        state, played = advance(key, state, action)
        return cast(state), played

    return Environment(
        env_id, shape, np.dtype(bool), np.zeros(shape), np.ones(shape), len(env.action_set), draw, reset, step, ANY_REWARD
    )  # fmt: skip


def planes(state: Any) -> jax.Array:
    """(height, width, 21 or 22) of bool from a navix state; see `navix_environment`."""
    things = {name: entity for name, entity in sorted(state.entities.items()) if name != "player"}
    symbols = _navix().observations.symbolic(state.replace(entities=things))
    tag, colour, condition = (symbols[..., layer, None] for layer in range(3))
    player = state.get_player(idx=0)
    here = _at(player.position, state.grid.shape)
    stacked = [
        tag == jnp.asarray(_TAGS),
        colour == jnp.arange(_COLOURS),
        (tag == _DOOR) & (condition == jnp.arange(_DOOR_STATES)),
        here & (player.direction == jnp.arange(_DIRECTIONS)),
    ]
    if state.mission is not None:
        stacked.append(_at(state.mission.position, state.grid.shape))
    return jnp.concatenate(stacked, axis=-1)


def _at(position: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """(height, width, 1), set at one position."""
    rows, columns = jnp.arange(shape[0]), jnp.arange(shape[1])
    return ((rows[:, None] == position[0]) & (columns == position[1]))[..., None]


def _navix() -> Any:
    """navix brings wandb, rlax and more: imported only when one of its environments is made."""
    try:
        return importlib.import_module("navix")
    except ImportError as error:
        raise UsageError("the Navix- environments need navix: pip install 'ube-rl[grids]'") from error
