"""From a config to what a program is compiled for, and the numbers it runs on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ube.deep.config import NETWORK_DEFAULTS, AgentConfig, OwnNetwork
from ube.deep.networks import SMALLEST, default_network, found_network, n_features
from ube.envs.contract import REPLAY_BYTES, HostedEnvironment, Interface
from ube.errors import UsageError


class Knobs(NamedTuple):
    """Numbers that may change without compiling again."""

    beta: jax.Array
    greedy_share: jax.Array
    u_discount: jax.Array
    epsilon_start: jax.Array
    epsilon_end: jax.Array
    epsilon_steps: jax.Array
    warmup: jax.Array
    prior: jax.Array
    u_learning_rate: jax.Array
    trace_decay: jax.Array
    bonus_scale: jax.Array
    randomised_prior: jax.Array
    mask_probability: jax.Array
    discount: jax.Array
    learning_rate: jax.Array
    reward_unit: jax.Array
    reward_clip: jax.Array


def split_knobs(config: AgentConfig) -> tuple[AgentConfig, Knobs]:
    """What shapes the program, and the numbers it runs on."""
    numbers = {name: getattr(config, name) for name in Knobs._fields}
    numbers["u_discount"] = config.u_discount or config.discount
    knobs = Knobs(**{name: jnp.asarray(value, jnp.float32) for name, value in numbers.items()})
    same = AgentConfig()
    shape = dataclasses.replace(
        config, name="", epsilon_steps=1, learning_rate=1.0, warmup=1, epsilon_evaluation=0.0,
        **{name: getattr(same, name) for name in Knobs._fields if name not in _FILLED and name != "bonus_scale"},
        bonus_scale=float(config.bonus_scale > 0),
    )  # fmt: skip
    return shape, knobs


_FILLED = ("epsilon_steps", "warmup", "learning_rate")


def filled(config: AgentConfig, env: Interface, steps: int | None = None) -> AgentConfig:
    """The config with every 0 and "auto" decided by the environment, and by how long the run will be where that counts."""
    network = default_network(env.observation_shape) if config.network == "auto" else found_network(config.network)
    if isinstance(network, OwnNetwork):
        n_features(network, config.hidden, env.observation_shape)
    elif network != "mlp" and len(env.observation_shape) != 3:
        raise UsageError(
            f"network={network!r} reads images (height, width, channels), but {env.name} gives "
            f"{env.observation_shape}: set network=mlp"
        )
    elif network in SMALLEST and min(env.observation_shape[:2]) < SMALLEST[network]:
        raise UsageError(
            f"network={network!r} reads images of {SMALLEST[network]} pixels or more a side, but {env.name} gives "
            f"{env.observation_shape}: set network=auto"
        )
    like = like_network(network, env)
    auto = NETWORK_DEFAULTS[like] | {"reward_unit": 1.0, "reward_clip": math.inf} | env.defaults
    auto |= {name: min(auto[name], most) for name, most in _most(env, config, auto, steps).items()}
    defaults = {name: value for name, value in auto.items() if getattr(config, name) in (0, "auto")}
    if config.ensemble_of == "auto":
        defaults["ensemble_of"] = "networks" if like == "mlp" else "heads"
    if config.features == "auto":
        defaults["features"] = "windows" if like == "nature" else "bins"
    if config.u_network == "auto":
        defaults["u_network"] = "own" if like == "mlp" else "head"
    full = dataclasses.replace(config, network=network, **defaults)
    if full.features == "windows" and len(env.observation_shape) != 3:
        raise UsageError(
            f"features='windows' reads images (height, width, channels), but {env.name} gives {env.observation_shape}: "
            "set features=bins"
        )
    if full.replay_size <= full.q_steps:
        raise UsageError(
            f"q_steps={full.q_steps}, replay_size={full.replay_size}: the replay must hold more decisions than one target "
            "spans; raise replay_size or lower q_steps"
        )
    if steps is not None and full.warmup >= steps:
        raise UsageError(
            f"warmup={full.warmup}, steps={steps}: nothing would be learned; lower warmup or train for longer"
        )
    if full.ensemble > 1 and full.ensemble_of == "networks" and full.features in ("learned", "both"):
        raise UsageError(
            f"features={full.features!r}, ensemble={full.ensemble}: each network would have features of its own, but there "
            "is one Σ; set features=bins or random, or ensemble_of=heads"
        )
    return full


def like_network(network: Any, env: Interface) -> str:
    """Whose defaults it takes: its own, or those of the network that the observation would have got."""
    return default_network(env.observation_shape) if isinstance(network, OwnNetwork) else network


def _most(env: Any, config: AgentConfig, auto: dict[str, Any], steps: int | None) -> dict[str, int]:
    """Upper limits of defaults: what memory allows, and what fits a run of so many steps."""
    hosted = isinstance(env, HostedEnvironment)
    if not hosted:  # both observations of each decision
        size = 2 * int(np.prod(env.observation_shape)) * env.observation_dtype.itemsize
        most = {"replay_size": int(REPLAY_BYTES / size)}
    else:
        most = {"replay_size": env.most_replay} if env.most_replay is not None else {}
    if steps is not None and (not hosted or env.fits_budget):
        period = config.update_period or auto["update_period"]
        most |= {"warmup": steps // 20, "epsilon_steps": steps // 4}
        if hosted:
            most["target_period"] = steps // (50 * period)
    return {name: max(value, 1) for name, value in most.items()}
