"""Our training loops as contenders: `python -m benchmarks.training_contenders SPEC`, see benchmarks/worker.py.

One seed runs as `ube.train` runs it, by a `Session`, whose work between chunks counts. Many seeds run the compiled loop
itself: `vmapped` as one batch, `in turn` one after the other on one compiled function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import worker
from ube.deep.config import AgentConfig, agent_config
from ube.deep.loop import compiled
from ube.deep.session import Chunk, Session
from ube.deep.settings import filled, split_knobs
from ube.envs import Environment, Step, make
from ube.runs.jax_setup import set_up_jax

CHUNKS = 100_000  # more than any run lasts


def frames(n_frames: int = 64, episode: int = 500) -> Environment:
    """Images of Atari's shape at next to no cost: random frames drawn once per run, one after the other."""
    shape = (84, 84, 4)

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.bits(key, (n_frames, *shape), jnp.uint8)

    def reset(key: jax.Array, pool: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), pool[0]

    def step(key: jax.Array, pool: jax.Array, time: jax.Array, action: jax.Array) -> tuple[jax.Array, Step]:
        time = time + 1
        reward = (action == time % 6).astype(jnp.float32)
        return time, Step(pool[time % n_frames], reward, time >= episode, jnp.bool_(False))

    byte = np.dtype(np.uint8)
    return Environment("Frames", shape, byte, np.zeros(shape), np.full(shape, 255.0), 6, draw, reset, step)


TASKS: dict[str, Callable[[], Environment]] = {
    "deep_sea": lambda: make("DeepSea-v0", size=20),
    "deep_sea_50": lambda: make("DeepSea-v0", size=50),
    "breakout": lambda: make("Breakout-MinAtar"),
    "frames": frames,
}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"boot-2": ("boot", {"ensemble": 2})}
"""Name -> preset and what is changed in it."""


def config_of(spec: worker.Spec) -> AgentConfig:
    fields: dict[str, Any] = {
        "batch_size": spec["batch"],
        "replay_size": spec["replay"],
        "warmup": spec["warmup"],
        "update_period": spec["period"],
        "target_period": spec["target"],
    }
    if spec["agent"] == "dqn":
        fields |= {"epsilon_start": spec["epsilon"], "epsilon_end": spec["epsilon"]}
    agent, changes = VARIANTS.get(spec["agent"], (spec["agent"], {}))
    return agent_config(agent, fields | changes)


def one_seed(env: Environment, config: AgentConfig, chunk: int) -> Callable[[], int]:
    stream = Session(env, config, seed=0).run(config.warmup + CHUNKS * chunk, chunk)
    return chunks_of(stream, next(stream).step)


def chunks_of(stream: Iterator[Chunk], step: int) -> Callable[[], int]:
    """Trains one chunk of a run that is at `step`."""

    def advance() -> int:
        nonlocal step
        before, step = step, next(stream).step
        return step - before

    return advance


def many_seeds(env: Environment, config: AgentConfig, chunk: int, seeds: int, vmapped: bool) -> Callable[[], int]:
    shape, knobs = split_knobs(filled(config, env))
    loop, period = compiled(env, shape), config.update_period
    keys = jax.random.split(jax.random.key(0), seeds)
    start, run = (loop.start_seeds, loop.chunk_seeds) if vmapped else (loop.start, loop.chunk)
    carries = [start(keys, knobs)] if vmapped else [start(key, knobs) for key in keys]

    def advance(rounds: int = chunk // period, learning: bool = True) -> int:
        for i, carry in enumerate(carries):
            carries[i], log, _ = run(carry, knobs, rounds, learning)
            jax.device_get(log)
        return seeds * rounds * period

    advance(config.warmup // period, learning=False)
    return advance


def build(spec: worker.Spec) -> Callable[[], int]:
    set_up_jax()
    env, config = TASKS[spec["task"]](), config_of(spec)
    if "seeds" in spec:
        return many_seeds(env, config, spec["chunk"], spec["seeds"], spec["vmapped"])
    return one_seed(env, config, spec["chunk"])


if __name__ == "__main__":
    worker.serve(build)
