"""One small environment and one small network for all tests of learners, so that each program is compiled once."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ube.deep.config import agent_config
from ube.deep.loop import Carry, Log
from ube.deep.session import Session
from ube.envs import Environment, Step, make

SMALL = {"hidden": (16,), "replay_size": 2_000, "batch_size": 16, "warmup": 8, "epsilon_steps": 200}


class World(NamedTuple):
    """What a test may change without compiling anew."""

    right: Any
    scale: Any  # of every reward
    limit: Any  # steps until an episode is truncated


def deep_sea_with_knobs(size: int) -> Environment:
    """DeepSea whose rewards and time limit belong to the instance."""
    inner = make("DeepSea-v0", size=size)

    def draw(key: jax.Array) -> World:
        return World(inner.draw(key), jnp.float32(1.0), jnp.int32(1_000))

    def step(key: jax.Array, world: World, state: Any, action: jax.Array) -> tuple[Any, Step]:
        state, after = inner.step(key, world.right, state, action)
        truncated = (state[0] >= world.limit) & ~after.terminated
        return state, after._replace(reward=after.reward * world.scale, truncated=truncated)

    def reset(key: jax.Array, world: World) -> tuple[Any, jax.Array]:
        return inner.reset(key, world.right)

    return dataclasses.replace(inner, name=f"DeepSea({size})", draw=draw, reset=reset, step=step)


SEA = deep_sea_with_knobs(8)
CHUNK = 100


def session(agent: str, seed: int = 0, env: Environment = SEA, **overrides: Any) -> Session:
    return Session(env, agent_config(agent, SMALL | overrides), seed)


def played(run: Session, steps: int = CHUNK, scale: float | None = None, limit: int | None = None) -> tuple[Carry, Log]:
    """The state after, and the log of, so many steps with an update after each."""
    carry = run.loop.start(jax.random.key(run.seed), run.knobs)
    world = carry.instance
    if scale is not None:
        world = world._replace(scale=jnp.float32(scale))
    if limit is not None:
        world = world._replace(limit=jnp.int32(limit))
    carry, logs = carry._replace(instance=world), []
    for _ in range(steps // CHUNK):
        carry, log, _ = run.loop.chunk(carry, run.knobs, CHUNK, True)
        logs.append(jax.device_get(log))
    return carry, jax.tree.map(lambda *parts: np.concatenate(parts), *logs)


def counted(counts: Any, state: Any, code: jax.Array, action: jax.Array) -> Any:
    """Σ after one more decision, taken in as a learner does."""
    gain, _ = counts.look(state, code, action)
    return counts.add(state, code, gain, action)


def returns(log: Log) -> np.ndarray:
    return np.asarray(log.episode_return)[np.asarray(log.ended)]


def weight(tree: Any) -> float:
    """Sum of |x| over all leaves."""
    return float(sum(np.abs(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree)))
