"""MountainCar with a reward only at the goal: nothing points the way, so it has to be explored."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ube.envs.arguments import whole
from ube.envs.contract import Environment, Instance, Key, State, Step


def mountain_car_sparse(max_steps: int = 200) -> Environment:
    """The car in a valley (Moore 1990, dynamics of gymnax's MountainCar-v0): push left, not at all or right; the motor
    is too weak for the slope, and the car has to swing up. 1 on reaching the goal, which terminates; 0 otherwise.
    After `max_steps` the episode is truncated. Optimum: 1. The observation is (position, velocity), not rescaled.
    """
    from ube.envs.gymnax_adapter import gymnax_environment  # takes a second, and JAX into use

    max_steps = whole("max_steps", max_steps, 1)
    dense = gymnax_environment("MountainCar-v0", max_steps_in_episode=max_steps)

    def step(key: Key, instance: Instance, state: State, action: jax.Array) -> tuple[State, Step]:
        state, played = dense.step(key, instance, state, action)
        return state, played._replace(reward=played.terminated.astype(jnp.float32))

    return Environment(
        f"MountainCarSparse-v0(max_steps={max_steps})", dense.observation_shape, dense.observation_dtype,
        dense.low, dense.high, dense.n_actions, dense.draw, dense.reset, step, success_return=1.0,
    )  # fmt: skip
