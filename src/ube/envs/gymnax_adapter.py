"""Environments of gymnax (Lange 2022) with discrete actions, by their gymnax ids, without its auto-reset.

What ends an episode. gymnax ≥ 1.0 keeps the two apart: `step_env` reports termination alone, `is_truncated` compares
the time with `max_steps_in_episode`. In the MinAtar games the limit (1,000 steps; 2,500 in Freeway, which never
terminates) is therefore a truncation. The limits are gymnax's own: Young & Tian's MinAtar has none but Freeway's. Where
both fall on one step, as always in DeepSea-bsuite, the task has ended: terminated, not truncated.

What is drawn when. `reset` draws all that is random, nothing is drawn per run: SimpleBandit-bsuite deals new arms every
episode of one step, so that nothing can be learned, and DeepSea-bsuite's action meaning is the same in every run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import gymnax  # type: ignore[import-untyped]
import jax
import jax.numpy as jnp
import numpy as np
from gymnax import registration
from gymnax.environments import spaces  # type: ignore[import-untyped]

from ube.envs.arguments import flag, known_names, number, whole
from ube.envs.carry import settled
from ube.envs.contract import OF_NUMBERS, Environment, Instance, Key, State, Step
from ube.errors import UsageError

_BINARY = ("Catch-bsuite", "DeepSea-bsuite")
"""Zeros and ones declared as numbers; so are all MinAtar games."""
_WRONG_BOUNDS = ("GaussianBandit-misc", "MemoryChain-bsuite", "MetaMaze-misc", "UmbrellaChain-bsuite")
"""gymnax 1.0.1 declares bounds that their observations leave: we declare none."""

_LOADS_DATA = ("MNISTBandit-bsuite",)
"""Fetches MNIST when it is made; not listed, so that listing needs no network."""


def gymnax_ids() -> list[str]:
    return list(gymnax.registered_envs)


def gymnax_arguments() -> dict[str, dict[str, Any]]:
    """For every id with discrete actions what it takes, with defaults: fields of its parameters and of its constructor."""
    found = {}
    for env_id in gymnax_ids():
        if env_id in _LOADS_DATA:
            continue
        env = _construct(env_id, {})
        if isinstance(env.action_space(env.default_params), spaces.Discrete):
            found[env_id] = _parameters(env) | _constructor_arguments(env_id)
    return found


def gymnax_environment(env_id: str, **env_args: Any) -> Environment:
    """An environment registered with gymnax. Arguments go to its constructor or to its parameters, whichever has them;
    dynamics, optimum and source are in the docstring of the gymnax class.
    """
    building = _constructor_arguments(env_id)
    constructor = {name: _fit(name, value, building[name]) for name, value in env_args.items() if name in building}
    env = _construct(env_id, constructor)
    tuning = _parameters(env)
    known_names(env_id, env_args, (*tuning, *building))
    given = {name: _fit(name, value, tuning[name]) for name, value in env_args.items() if name not in building}
    fixed = replace(env.default_params, **given)
    params = jax.tree.map(jnp.asarray, fixed)  # as gymnax traces them: Python floats would be combined in float64

    n_actions = _n_actions(env_id, env.action_space(fixed))
    shape, dtype, low, high, encode = _observations(env_id, env.observation_space(fixed))
    some_key, some_action = jax.random.key(0), jnp.int32(0)
    _, after_reset = jax.eval_shape(env.reset_env, some_key, params)
    _, after_step, *_ = jax.eval_shape(env.step_env, some_key, after_reset, some_action, params)
    cast = settled(after_reset, after_step)

    def draw(key: Key) -> Instance:
        return ()

    def reset(key: Key, instance: Instance) -> tuple[State, jax.Array]:
        observation, state = env.reset_env(key, params)
        return cast(state), encode(observation)

    def step(key: Key, instance: Instance, state: State, action: jax.Array) -> tuple[State, Step]:
        observation, state, reward, terminated, _ = env.step_env(key, state, action, params)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(env.is_truncated(state, params), bool) & ~terminated
        return cast(state), Step(encode(observation), jnp.asarray(reward, jnp.float32), terminated, truncated)

    defaults = OF_NUMBERS if dtype == np.float32 else {}
    return Environment(env_id, shape, dtype, low, high, n_actions, draw, reset, step, defaults=defaults)


def _construct(env_id: str, constructor: dict[str, Any]) -> Any:
    try:
        return gymnax.make(env_id, **constructor)[0]
    except OSError as error:
        raise UsageError(f"{env_id} loads data that cannot be fetched ({error}): use another environment") from error
    except (TypeError, ValueError, AssertionError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in constructor.items()) or "no arguments"
        raise UsageError(f"{env_id} does not accept {given}: {str(error) or 'see its gymnax class'}") from error


def _constructor_arguments(env_id: str) -> dict[str, Any]:
    arguments = inspect.signature(registration._registry[env_id]).parameters.values()
    return {a.name: a.default for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)}


def _parameters(env: Any) -> dict[str, Any]:
    return {field.name: getattr(env.default_params, field.name) for field in fields(env.default_params)}


def _fit(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        return flag(name, value)
    if name == "max_steps_in_episode":
        return whole(name, value, 1)
    if isinstance(default, int):
        return whole(name, value, 0)
    return number(name, value) if isinstance(default, float) else value


def _n_actions(env_id: str, space: Any) -> int:
    if not isinstance(space, spaces.Discrete):
        raise UsageError(
            f"{env_id} has continuous actions ({space}), and ube needs discrete ones: use another environment"
        )
    return int(space.n)


Encoder = Callable[[Any], jax.Array]


def _observations(env_id: str, space: Any) -> tuple[tuple[int, ...], np.dtype, np.ndarray, np.ndarray, Encoder]:
    """(shape, dtype, low, high, encoder). A numbered state becomes one-hot: its number means nothing to a network."""
    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        return (n,), np.dtype(bool), np.zeros(n), np.ones(n), lambda observation: jnp.arange(n) == observation
    if not isinstance(space, spaces.Box):
        raise UsageError(f"{env_id} observes {space}, and ube needs one array: use another environment")
    shape = tuple(int(n) for n in space.shape)
    if env_id in _BINARY or env_id.endswith("-MinAtar"):
        return shape, np.dtype(bool), np.zeros(shape), np.ones(shape), lambda observation: observation > 0.5
    low, high = (_bound(bound, shape) for bound in (space.low, space.high))
    if env_id in _WRONG_BOUNDS:
        low, high = np.full(shape, -np.inf), np.full(shape, np.inf)
    return shape, np.dtype(np.float32), low, high, lambda observation: jnp.asarray(observation, jnp.float32)


def _bound(bound: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The largest float stands for none, as in CartPole's velocities."""
    wide = np.array(np.broadcast_to(np.asarray(bound, np.float64), shape))
    return np.where(np.abs(wide) >= np.finfo(np.float32).max, np.copysign(np.inf, wide), wide)
