"""Networks against XLA's own convolution."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ube.deep.networks import MinAtarCNN, NatureCNN, product, shifts


def randomised(network: Any, x: jax.Array) -> Any:
    """Parameters with biases that are not 0."""
    params = network.init(jax.random.key(1), x)["params"]
    return jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape), params)


def convolution(x: jax.Array, params: Any, name: str, size: int, stride: int) -> jax.Array:
    """XLA's own, on (batch, height, width, channels)."""
    filters, reach, channels = params[f"{name}bias"].shape[0], size // stride, x.shape[-1]
    kernel = params[f"{name}kernel"].reshape(filters, reach, reach, stride, stride, channels)
    kernel = kernel.transpose(1, 3, 2, 4, 5, 0).reshape(size, size, channels, filters)
    out = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.maximum(out + params[f"{name}bias"][:, 0], 0.0)


def test_the_minatar_network_is_a_convolution_and_a_hidden_layer() -> None:
    x = jax.random.normal(jax.random.key(0), (3, 10, 9, 4))
    params = randomised(MinAtarCNN(), x)
    flat = convolution(x, params, "", 3, 1).transpose(0, 3, 1, 2).reshape(3, 16 * 8 * 7)
    expected = jnp.maximum(flat @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"], 0.0)
    np.testing.assert_allclose(MinAtarCNN().apply({"params": params}, x), expected, rtol=1e-4, atol=1e-4)


def nature(params: Any, x: jax.Array) -> jax.Array:
    for name, size, stride in (("first_", 8, 4), ("second_", 4, 2), ("third_", 3, 1)):
        x = convolution(x, params, name, size, stride)
    flat = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
    return jnp.maximum(flat @ params["last_kernel"].T + params["last_bias"][:, 0], 0.0)


@pytest.mark.parametrize(
    "shape",
    [pytest.param((84, 84, 4), marks=pytest.mark.slow), (41, 50, 2)],  # the second does not divide by the strides
)
def test_the_nature_network_is_three_convolutions_and_a_hidden_layer(shape: tuple[int, ...]) -> None:
    x = jax.random.normal(jax.random.key(0), (2, *shape))
    params = randomised(NatureCNN(), x)
    if shape == (84, 84, 4):
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 1_684_128  # Mnih et al. 2015, without the head
    sizes = [(8 * 8 * shape[2], 32), (4 * 4 * 32, 64), (3 * 3 * 64, 64)]
    for name, (inputs, filters) in zip(("first_", "second_", "third_"), sizes, strict=True):
        assert params[f"{name}kernel"].shape == (filters, inputs)
    mine, theirs = NatureCNN().apply({"params": params}, x), nature(params, x)
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    gradients = [
        jax.grad(lambda params, f=f: (f(params) ** 2).mean())(params)
        for f in (lambda params: NatureCNN().apply({"params": params}, x), lambda params: nature(params, x))
    ]
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-3 * float(jnp.abs(other).max()))


@pytest.mark.parametrize("columns", [3, 40])  # fewer and more than outputs
def test_products_have_the_gradient_of_a_product(columns: int) -> None:
    kernel, x, weight = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(((5, 7), (7, columns), (5, columns)))
    )
    expected = np.asarray(weight) @ np.asarray(x).T, np.asarray(kernel).T @ np.asarray(weight)
    found = jax.grad(lambda kernel, x: (weight * product(kernel, x)).sum(), (0, 1))(kernel, x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_shifts_are_what_each_place_of_the_window_sees_and_their_gradient_adds_up() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=(8, 4, 3, 3)).astype(np.float32)
    expected, of_x = np.zeros_like(weight), np.zeros_like(x)
    for i, j, channel, row, column in np.ndindex(2, 2, 2, 4, 3):
        place = 4 * i + 2 * j + channel
        expected[place, row, column] = x[channel, row + i, column + j]
        of_x[channel, row + i, column + j] += weight[place, row, column]
    np.testing.assert_array_equal(shifts(jnp.asarray(x), 2), expected)
    found = jax.grad(lambda x: (weight * shifts(x, 2)).sum())(jnp.asarray(x))
    np.testing.assert_allclose(found, of_x, rtol=1e-6, atol=1e-6)
