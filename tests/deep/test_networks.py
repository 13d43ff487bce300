"""Networks against XLA's own convolution, and the two ways to run a chunk against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ube.deep.config import agent_config
from ube.deep.networks import MinAtarCNN
from ube.deep.session import Session
from ube.envs import Environment, Step


def test_the_minatar_network_is_a_convolution_and_a_hidden_layer() -> None:
    x = jax.random.normal(jax.random.key(0), (3, 10, 9, 4))
    network = MinAtarCNN()
    params = network.init(jax.random.key(1), x)["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)  # biases too
    kernel = params["kernel"].reshape(16, 3, 3, 4).transpose(1, 2, 3, 0)
    filtered = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    filtered = jnp.maximum(filtered + params["bias"][:, 0], 0.0)
    flat = filtered.transpose(0, 3, 1, 2).reshape(3, 16 * 8 * 7)
    expected = jnp.maximum(flat @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"], 0.0)
    np.testing.assert_allclose(network.apply({"params": params}, x), expected, rtol=1e-4, atol=1e-4)


def noise_images(side: int) -> Environment:
    """Random images; the reward is 1 for the action that the clock asks for; an episode has 5 steps."""
    shape = (side, side, 1)

    def image(key: jax.Array) -> jax.Array:
        return jax.random.bits(key, shape, jnp.uint8)

    def step(key: jax.Array, _: None, time: jax.Array, action: jax.Array) -> tuple[jax.Array, Step]:
        time = time + 1
        return time, Step(image(key), (action == time % 2).astype(jnp.float32), time >= 5, jnp.bool_(False))

    return Environment(
        "Images", shape, np.dtype(np.uint8), np.zeros(shape), np.full(shape, 255.0), 2, lambda key: None,
        lambda key, _: (jnp.int32(0), image(key)), step,
    )  # fmt: skip


@pytest.mark.parametrize("learning", [False, True])
def test_rounds_one_by_one_are_a_chunk(learning: bool) -> None:
    config = agent_config("dqn", {"replay_size": 50, "warmup": 8, "batch_size": 2, "update_period": 2})
    run = Session(noise_images(36), config, seed=0)
    assert run.config.network == "nature"
    loop, knobs = run.loop, run.knobs
    in_one = jax.jit(loop._chunk, static_argnums=(2, 3))
    results = []
    for chunk in (loop.chunk, in_one):
        carry, log, metrics = chunk(loop.start(jax.random.key(0), knobs), knobs, 3, learning)
        assert log.ended.tolist() == [False] * 4 + [True, False]
        assert set(metrics) == ({"loss", "q"} if learning else set())
        results.append(jax.tree.leaves((carry.learner, log, metrics)))
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
