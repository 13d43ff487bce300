"""Networks: observation -> features φ (the last hidden layer) -> one value per action. Images are NHWC."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ube.deep.config import OwnNetwork
from ube.errors import UsageError, brief, words
from ube.places import OBJECT, imported, missing, place_of


class MLP(nn.Module):
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return x


@jax.custom_vjp
def convolved_frames(kernel: jax.Array, bias: jax.Array, x: jax.Array) -> jax.Array:
    """relu of the convolution of stride 1 of x (channels, height, width, batch), for frames: x gets no gradient.

    kernel (filters, reach·reach·channels). One product for all positions in the window, whose results are shifted and
    added: x, which is large next to the number of filters, is read once, where patches would copy it reach² times.
    """
    reach = _reach(kernel, x)
    filters, (channels, height, width, batch) = len(kernel), x.shape
    rows, columns = height - reach + 1, width - reach + 1
    each = kernel.reshape(filters, reach * reach, channels).swapaxes(0, 1).reshape(-1, channels)
    products = (each @ x.reshape(channels, -1)).reshape(reach, reach, filters, height, width, batch)
    total = sum(products[i, j, :, i : i + rows, j : j + columns] for i, j in _window(reach))
    return nn.relu(total + bias[:, :, None, None])


def _reach(kernel: jax.Array, x: jax.Array) -> int:
    """Of a square window."""
    return math.isqrt(kernel.shape[1] // x.shape[0])


def _window(reach: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(reach) for j in range(reach)]


def _convolved_forward(kernel: jax.Array, bias: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    y = convolved_frames(kernel, bias, x)
    return y, (kernel, x, y)


def _convolved_backward(kept: tuple[jax.Array, ...], of_y: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    kernel, x, y = kept
    channels, reach, filters = len(x), _reach(kernel, x), len(y)
    of_y = jnp.where(y > 0, of_y, 0.0)
    shifted = [jnp.pad(of_y, ((0, 0), (i, reach - 1 - i), (j, reach - 1 - j), (0, 0))) for i, j in _window(reach)]
    each = jnp.stack(shifted).reshape(reach * reach * filters, -1) @ x.reshape(channels, -1).T
    of_kernel = each.reshape(reach * reach, filters, channels).swapaxes(0, 1).reshape(kernel.shape)
    return of_kernel, of_y.sum((1, 2, 3))[:, None], None


convolved_frames.defvjp(_convolved_forward, _convolved_backward)


@jax.custom_vjp
def product(kernel: jax.Array, x: jax.Array) -> jax.Array:
    """kernel @ x, (outputs, inputs) @ (inputs, columns); its gradient by the products that are fast on CPU."""
    return kernel @ x


def _product_backward(kept: tuple[jax.Array, jax.Array], of_y: jax.Array) -> tuple[jax.Array, jax.Array]:
    kernel, x = kept
    as_written = jax.lax.optimization_barrier  # XLA would fold the transpositions into the product, which is slower
    if of_y.shape[1] > len(kernel):
        return as_written(x @ of_y.T).T, kernel.T @ of_y
    return of_y @ x.T, as_written(as_written(of_y.T) @ kernel).T


product.defvjp(lambda kernel, x: (kernel @ x, (kernel, x)), _product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def shifts(x: jax.Array, reach: int) -> jax.Array:
    """x (channels, height, width, batch) from each place of a square window, (reach·reach·channels, rows, columns, batch)."""
    rows, columns = (side - reach + 1 for side in x.shape[1:3])
    return jnp.concatenate([x[:, i : i + rows, j : j + columns] for i, j in _window(reach)])


def _shifts_backward(reach: int, _: None, of_y: jax.Array) -> tuple[jax.Array]:
    """Adds each shift in place, where XLA would look up every element in every shift."""
    rows, columns, batch = of_y.shape[1:]
    of_x = jnp.zeros((len(of_y) // reach**2, rows + reach - 1, columns + reach - 1, batch))
    for (i, j), part in zip(_window(reach), jnp.split(of_y, reach**2), strict=True):
        of_x = jax.lax.dynamic_update_slice(of_x, of_x[:, i : i + rows, j : j + columns] + part, (0, i, j, 0))
    return (of_x,)


shifts.defvjp(lambda x, reach: (shifts(x, reach), None), _shifts_backward)


class ConvolutionalTrunk(nn.Module):
    """Convolutions as shifted slices and one product, with the batch as the last axis of (channels, height, width, batch).

    So no large matrix has to be transposed, not in the gradient either, and all work is in matrix products: on CPU these
    scale over cores and run as fast in a loop as outside, neither of which XLA's own convolutions and their gradients do.
    """

    def convolved(
        self, name: str, x: jax.Array, filters: int, size: int, stride: int, frames: bool = False
    ) -> jax.Array:
        """relu of the convolution without padding; `size` is a multiple of `stride`. `frames` need no gradient."""
        channels, height, width, batch = x.shape
        rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
        reach = size // stride
        tall, wide = rows + reach - 1, columns + reach - 1
        x = x[:, : tall * stride, : wide * stride]
        x = jnp.concatenate([x[:, i::stride, j::stride] for i, j in _window(stride)])
        if frames:
            return convolved_frames(*self.weights(name, size * size * channels, filters), x)
        patches = shifts(x, reach).reshape(size * size * channels, -1)
        return self.dense(name, patches, filters).reshape(filters, rows, columns, batch)

    def dense(self, name: str, x: jax.Array, width: int) -> jax.Array:
        """relu of a linear layer on columns, (inputs, …) -> (width, …)."""
        kernel, bias = self.weights(name, x.shape[0], width)
        return nn.relu(product(kernel, x) + bias)

    def weights(self, name: str, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
        kernel = self.param(f"{name}kernel", nn.initializers.lecun_normal(-1, -2), (outputs, inputs))
        return kernel, self.param(f"{name}bias", nn.initializers.zeros, (outputs, 1))


class MinAtarCNN(ConvolutionalTrunk):
    """Young & Tian 2019: 16 filters of 3x3, then one hidden layer of 128."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.convolved("", x.transpose(3, 1, 2, 0), 16, 3, 1)
        return nn.relu(nn.Dense(128)(x.reshape(-1, x.shape[-1]).T))


class NatureCNN(ConvolutionalTrunk):
    """Mnih et al. 2015."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.transpose(3, 1, 2, 0)
        x = self.convolved("first_", x, 32, 8, 4, frames=True)
        x = self.convolved("second_", x, 64, 4, 2)
        x = self.convolved("third_", x, 64, 3, 1)
        return self.dense("last_", x.reshape(-1, x.shape[-1]), 512).T


class ValueNetwork(nn.Module):
    """Trunk and a linear head. Returns (values, φ)."""

    trunk: nn.Module
    n_actions: int
    starts_at: str = "random"
    """"zero": the head's weights are zero at first, so that all values are."""

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        phi = self.trunk(x)
        return nn.Dense(self.n_actions, kernel_init=OUTPUT_INIT[self.starts_at])(phi), phi


OUTPUT_INIT = {"zero": nn.initializers.zeros, "random": nn.initializers.lecun_normal()}


class UncertaintyHead(nn.Module):
    """The paper's second head: one hidden layer on the features, which it cannot change."""

    n_actions: int
    width: int = 512
    starts_at: str = "random"

    @nn.compact
    def __call__(self, phi: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.width)(jax.lax.stop_gradient(phi)))
        return nn.Dense(self.n_actions, kernel_init=OUTPUT_INIT[self.starts_at])(x)


SMALLEST = {"minatar": 3, "nature": 36}
"""Pixels a side."""


def default_network(shape: tuple[int, ...]) -> str:
    """By the observation: images of 36 pixels a side and more get the Nature network, smaller ones MinAtar's."""
    if len(shape) != 3 or min(shape[:2]) < 4:
        return "mlp"
    return "nature" if min(shape[:2]) >= 36 else "minatar"


def make_trunk(network: Any, hidden: tuple[int, ...]) -> nn.Module:
    """network: of ours, or what `found_network` gave."""
    if isinstance(network, OwnNetwork):
        return network.module
    return MLP(hidden) if network == "mlp" else MinAtarCNN() if network == "minatar" else NatureCNN()


def found_network(network: Any) -> str | OwnNetwork:
    """A network of ours stays its name. One's own is given as module:NAME, which is imported, or as what that stands for."""
    if isinstance(network, OwnNetwork) or (isinstance(network, str) and ":" not in network):
        return network
    source, place = network, ""
    if isinstance(network, str):
        source, place = imported(network, "my_module:MyTrunk"), network
        if source is None:
            raise missing(network)
        if not callable(source):
            raise UsageError(
                f"network={network}: it is {type(source).__name__}; give a class or a function that makes one"
            )
    name = place or place_of(source)
    try:
        module = source if isinstance(source, nn.Module) else source()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"network={name} cannot be made without arguments ({words(error)}): give its fields defaults, or a function that "
            "makes it"
        ) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"network={name} gave {type(module).__name__}, which is no flax.linen.Module")
    try:
        hash(module)
    except TypeError as error:
        raise UsageError(f"network={name}: its fields cannot be compared ({words(error)}); make lists tuples") from None
    return OwnNetwork(name if ":" in name else _described(module), module)


def _described(module: nn.Module) -> str:
    """What only Python can give again, by its kind and its fields."""
    fields = {f.name: getattr(module, f.name) for f in dataclasses.fields(module) if f.name not in ("parent", "name")}
    return f"{OBJECT}{type(module).__name__}({', '.join(f'{name}={brief(value)}' for name, value in fields.items())})"


@functools.lru_cache(maxsize=64)
def n_features(network: Any, hidden: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """D, of what the trunk makes of observations; raises where it is not one that can be trained here."""
    trunk = make_trunk(network, hidden)
    name = network.place if isinstance(network, OwnNetwork) else network

    def batch(size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *shape), jnp.float32)

    try:
        variables = jax.eval_shape(trunk.init, jax.random.key(0), batch(1))
        if own_state := sorted(variables.keys() - {"params"}):
            raise UsageError(
                f"network={name} keeps a state of its own ({', '.join(own_state)}), as BatchNorm does: use layers without, "
                "such as LayerNorm"
            )
        seen = jax.eval_shape(trunk.apply, variables, batch(3))
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"network={name} cannot read observations {shape} of this environment ({words(error)}); it must take a batch of "
            "any size, and nothing else: no flags, no randomness"
        ) from error
    for leaf in jax.tree.leaves(variables):
        if leaf.dtype != jnp.float32 or not leaf.shape:
            raise UsageError(
                f"network={name} has a parameter of {leaf.dtype}, shape {leaf.shape}: parameters are float32, of "
                "shape (1,) at least"
            )
    if getattr(seen, "dtype", None) != jnp.float32 or len(seen.shape) != 2 or len(seen) != 3 or not seen.shape[1]:
        gave = f"{seen.dtype} of shape {seen.shape}" if hasattr(seen, "dtype") else type(seen).__name__
        raise UsageError(
            f"network={name}: features are float32 of shape (batch, D), but for a batch of 3 it gave {gave}; reshape them, "
            "or end with .astype(jnp.float32)"
        )
    return seen.shape[1]


def input_scaling(dtype: np.dtype, low: np.ndarray, high: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Observation -> float32 of order one: bool as 0 and 1, bytes over the largest, bounded numbers onto [-1, 1]."""
    if dtype == np.uint8:
        largest = float(np.max(high))
        return lambda x: x.astype(jnp.float32) / largest
    if dtype == np.bool_:
        return lambda x: x.astype(jnp.float32)
    bounded = np.isfinite(low) & np.isfinite(high) & (np.abs(low) < 1e6) & (np.abs(high) < 1e6) & (high > low)
    centre = np.where(bounded, (np.where(bounded, low, 0) + np.where(bounded, high, 0)) / 2, 0.0).astype(np.float32)
    half = np.where(bounded, (np.where(bounded, high, 2) - np.where(bounded, low, 0)) / 2, 1.0).astype(np.float32)
    return lambda x: (x.astype(jnp.float32) - centre) / half
