"""Networks: observation -> features φ (the last hidden layer) -> one value per action. Images are NHWC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

NetworkName = Literal["mlp", "minatar", "nature"]


class MLP(nn.Module):
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return x


class MinAtarCNN(nn.Module):
    """Young & Tian 2019: 16 filters of 3x3, then one hidden layer of 128.

    The convolution is nine shifted slices and one product, with the batch as the last axis: so no large matrix has to be
    transposed, not in the gradient either, and XLA's products of transposed matrices are slow on CPU.
    """

    filters: int = 16

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.transpose(3, 1, 2, 0)
        channels, height, width, batch = x.shape
        shifts = [x[:, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
        patches = jnp.concatenate(shifts).reshape(9 * channels, -1)
        kernel = self.param("kernel", nn.initializers.lecun_normal(-1, -2), (self.filters, 9 * channels))
        bias = self.param("bias", nn.initializers.zeros, (self.filters, 1))
        x = nn.relu(kernel @ patches + bias).reshape(-1, batch)
        return nn.relu(nn.Dense(128)(x.T))


class NatureCNN(nn.Module):
    """Mnih et al. 2015."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(nn.Conv(filters, (size, size), (stride, stride), padding="VALID")(x))
        return nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))


class ValueNetwork(nn.Module):
    """Trunk and a linear head. Returns (values, φ)."""

    trunk: nn.Module
    n_actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        phi = self.trunk(x)
        return nn.Dense(self.n_actions)(phi), phi


class UncertaintyHead(nn.Module):
    """The paper's second head: one hidden layer on the features, which it cannot change."""

    n_actions: int
    width: int = 512

    @nn.compact
    def __call__(self, phi: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.width)(jax.lax.stop_gradient(phi)))
        return nn.Dense(self.n_actions)(x)


def default_network(shape: tuple[int, ...]) -> NetworkName:
    """By the observation: images of 36 pixels a side and more get the Nature network, smaller ones MinAtar's."""
    if len(shape) != 3 or min(shape[:2]) < 4:
        return "mlp"
    return "nature" if min(shape[:2]) >= 36 else "minatar"


def make_trunk(name: str, hidden: tuple[int, ...]) -> nn.Module:
    if name == "mlp":
        return MLP(hidden)
    return MinAtarCNN() if name == "minatar" else NatureCNN()


def input_scaling(dtype: np.dtype, low: np.ndarray, high: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """Observation -> float32 of order one: bool as 0 and 1, bytes over 255, bounded numbers onto [-1, 1]."""
    if dtype == np.uint8:
        return lambda x: x.astype(jnp.float32) / 255.0
    if dtype == np.bool_:
        return lambda x: x.astype(jnp.float32)
    bounded = np.isfinite(low) & np.isfinite(high) & (np.abs(low) < 1e6) & (np.abs(high) < 1e6) & (high > low)
    centre = np.where(bounded, (np.where(bounded, low, 0) + np.where(bounded, high, 0)) / 2, 0.0).astype(np.float32)
    half = np.where(bounded, (np.where(bounded, high, 2) - np.where(bounded, low, 0)) / 2, 1.0).astype(np.float32)
    return lambda x: (x.astype(jnp.float32) - centre) / half
