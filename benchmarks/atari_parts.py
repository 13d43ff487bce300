"""What an update of the Nature network consists of, on one core: `python -m benchmarks.atari_parts` prints JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from ube.suite.pool import few_threads

if __name__ == "__main__":  # before JAX is imported
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= few_threads(1)

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import common
from ube.deep.config import agent_config
from ube.deep.frames import Sample
from ube.deep.hosted_session import HostedSession
from ube.envs import HostedEnvironment, make
from ube.runs.jax_setup import set_up_jax

BATCH, SIZE, REPEATS = 32, 512, 30
LAYERS = ((20 * 20 * 32, 8 * 8 * 4), (9 * 9 * 64, 4 * 4 * 32), (7 * 7 * 64, 3 * 3 * 64), (512, 3136))
"""(outputs, inputs of each) of the Nature network."""
FORWARD = 2e-9 * BATCH * sum(outputs * inputs for outputs, inputs in LAYERS)
"""GFLOP of a batch; its gradient takes twice that, but for the gradient of the frames, which nobody needs."""
GRADIENT = 3 * FORWARD - 2e-9 * BATCH * LAYERS[0][0] * LAYERS[0][1]


def main() -> None:
    set_up_jax()
    env = make("atari/breakout")
    assert isinstance(env, HostedEnvironment)
    session = HostedSession(env, agent_config("dqn"), seed=0)
    loop, rng = session.loop, np.random.default_rng(0)
    frames = rng.integers(0, 256, (BATCH, 5, *env.frame_shape), dtype=np.uint8)
    ones = np.ones(BATCH, np.float32)
    zeros = np.zeros(BATCH, np.int32)
    sample = jax.device_put(Sample(frames, zeros + 3, zeros, ones, ones, zeros.astype(np.uint32)))
    key = jax.random.key(0)
    matrix = jnp.asarray(rng.random((SIZE, SIZE)), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    batch, targets = loop.targets(session.trained, session.lived, sample, key, 0, session.knobs)

    def seconds(function: Any, *args: Any) -> Any:
        return lambda: jax.block_until_ready(function(*args))

    times = common.interleaved(
        {
            "target pass": seconds(loop.targets, session.trained, session.lived, sample, key, 0, session.knobs),
            "gradient and step": seconds(loop.improve, session.trained, batch, targets, session.knobs),
            f"product of two {SIZE} x {SIZE} matrices": seconds(product, matrix),
        },
        REPEATS,
    )
    work = (FORWARD, GRADIENT, 2e-9 * SIZE**3)
    print(
        json.dumps(
            {name: (1e3 * t.min(), gflop / t.min()) for (name, t), gflop in zip(times.items(), work, strict=True)}
        )
    )


if __name__ == "__main__":
    main()
