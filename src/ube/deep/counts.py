"""Local uncertainty ν(s, a) = φᵀΣ_aφ for learning agents, by two kinds of features behind one interface:

state = counts.init(key)
code = counts.code(state, phi, x)              # what Σ needs to know of an observation, (B, …)
nu = counts.nu(state, code)                    # (B, A)
gain, nu = counts.look(state, code[0], action) # of one decision: ν, and what `add` needs
state = counts.add(state, code[0], gain, action)
state = counts.hear(state, code[0], action, error)  # how far the outcome was from what had been expected
state = counts.refresh(state, codes, actions, prior)  # after many decisions, on the host
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ube.linear import certainty_gained

FORGOTTEN_AFTER = 10_000
"""Steps, over which `forgetting` is left."""


class DenseState(NamedTuple):
    sigma: jax.Array  # (A, D, D)
    information: jax.Array  # (2, A, D, D) Σ⁻¹ - I/μ at the last refresh, as a float32 and what it leaves over: 48 bits
    visits: jax.Array  # (A,) integers
    squares: Any  # (A,) of the errors heard; () where the noise is known
    frequencies: jax.Array  # (d, F) of the Fourier features
    phases: jax.Array  # (F,)


@dataclass(frozen=True)
class DenseCounts:
    """Σ_a as a full matrix, over learned features, random Fourier features of the observation, or both."""

    n_actions: int
    n_learned: int
    n_random: int
    n_inputs: int
    normalise: bool
    forgetting: float
    learns_noise: bool = False
    stores_code = False

    @property
    def size(self) -> int:
        return self.n_learned + self.n_random

    def init(self, key: jax.Array, prior: jax.Array) -> DenseState:
        frequency_key, phase_key = jax.random.split(key)
        return DenseState(
            sigma=jnp.tile(prior * jnp.eye(self.size), (self.n_actions, 1, 1)),
            information=jnp.zeros((2, self.n_actions, self.size, self.size)),
            visits=jnp.zeros(self.n_actions, jnp.int32),
            squares=jnp.zeros(self.n_actions) if self.learns_noise else (),
            frequencies=jax.random.normal(frequency_key, (self.n_inputs, self.n_random)),
            phases=jax.random.uniform(phase_key, (self.n_random,), maxval=2 * jnp.pi),
        )

    def code(self, state: DenseState, phi: jax.Array, x: jax.Array) -> jax.Array:
        """φ (B, D): unit length if `normalise`, each half of two."""
        parts = []
        if self.n_learned:
            parts.append(_unit(phi) if self.normalise else phi)
        if self.n_random:  # Rahimi & Recht 2007: inner products approximate exp(-|x - y|²/2)
            flat = x.reshape(x.shape[0], -1)
            parts.append((2 / self.n_random) ** 0.5 * jnp.cos(flat @ state.frequencies + state.phases))
        return jnp.concatenate(parts, -1) / len(parts) ** 0.5

    def nu(self, state: DenseState, code: jax.Array) -> jax.Array:
        # Σ is symmetric, so Σ@φ for one observation reads each row in order; a matrix product serves a batch.
        if code.shape[0] == 1:
            return self._noise(state) * jnp.maximum(state.sigma @ code[0] @ code[0], 0.0)[None]
        gains = jnp.einsum("bd,ade->abe", code, state.sigma)
        return self._noise(state) * jnp.maximum((gains * code).sum(-1), 0.0).T

    def _noise(self, state: DenseState) -> Any:
        """σ², (A,)"""
        return noise_variance(state.squares, state.visits) if self.learns_noise else 1.0

    def look(self, state: DenseState, code: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Σ_aφ (D,) and ν ()."""
        gain = state.sigma[action] @ code
        noise = self._noise(state)[action] if self.learns_noise else 1.0
        return gain, noise * jnp.maximum(gain @ code, 0.0)

    def add(self, state: DenseState, code: jax.Array, gain: jax.Array, action: jax.Array) -> DenseState:
        """In place: the gain of `look` says that Σ is read before it is written, and `add` needs no copy of Σ_a."""
        sigma = state.sigma.at[action].add(-certainty_gained(code, gain))
        return state._replace(sigma=sigma, visits=state.visits.at[action].add(1))

    def hear(self, state: DenseState, code: jax.Array, action: jax.Array, error: jax.Array) -> DenseState:
        return state._replace(squares=state.squares.at[action].add(error**2))

    def refresh(self, state: DenseState, codes: np.ndarray, actions: np.ndarray, prior: float) -> DenseState:
        """After the decisions codes (N, D), actions (N,) since the last time: forgets, and computes Σ from Σ⁻¹ in float64.

        φφᵀ must not be summed in float32: where one observation is nearly all that is seen, Σ⁻¹ loses its prior.
        """
        kept = self.forgetting ** (len(codes) / FORGOTTEN_AFTER)
        return self._from(state, kept * (self._information(state) + self._products(codes, actions)), prior)

    def recounted(self, state: DenseState, codes: np.ndarray, actions: np.ndarray, prior: float) -> DenseState:
        """Σ from a sample of decisions alone, codes (N, D), scaled up to all visits; as it was where there is none."""
        sampled = np.bincount(actions, minlength=self.n_actions)[:, None, None]
        visits = np.asarray(state.visits, np.float64)[:, None, None]
        scaled_up = visits / np.maximum(sampled, 1) * self._products(codes, actions)
        return self._from(state, np.where(sampled > 0, scaled_up, self._information(state)), prior)

    def _information(self, state: DenseState) -> np.ndarray:
        return np.asarray(state.information, np.float64).sum(0)

    def _products(self, codes: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Σ_t φ_tφ_tᵀ of each action, (A, D, D)."""
        of_each = (np.asarray(codes[actions == action], np.float64) for action in range(self.n_actions))
        return np.stack([rows.T @ rows for rows in of_each])

    def _from(self, state: DenseState, information: np.ndarray, prior: float) -> DenseState:
        root = np.linalg.inv(np.linalg.cholesky(information + np.eye(self.size) / float(prior)))
        sigma = root.swapaxes(-1, -2) @ root
        rounded = information.astype(np.float32)
        return state._replace(
            sigma=jnp.asarray(sigma, jnp.float32),
            information=jnp.asarray(np.stack([rounded, (information - rounded).astype(np.float32)])),
        )


class BinState(NamedTuple):
    visits: jax.Array  # (tables, cells, A)
    squares: Any  # (tables, cells, A) of the errors heard; () where the noise is known
    prior: jax.Array  # ()
    projection: jax.Array  # (d, tables·DIRECTIONS), columns divided by the pitch of their grid
    offset: jax.Array  # (tables·DIRECTIONS,)
    salt: jax.Array  # (tables, DIRECTIONS) odd numbers


DIRECTIONS = 4
FINEST, COARSEST = 0.2, 3.2


@dataclass(frozen=True)
class BinCounts:
    """Random binning features (Rahimi & Recht 2007): `tables` random grids over random projections of the observation,
    from fine to coarse. In each, an observation falls into one cell: φ is one-hot, Σ diagonal, φᵀΣφ = 1/(1/μ + visits).
    ν is the mean over the grids, and so falls with how near the visited observations are. No matrix, no training.
    """

    n_actions: int
    n_inputs: int
    tables: int
    learns_noise: bool = False
    cells_log2: int = 14
    stores_code = True

    def init(self, key: jax.Array, prior: jax.Array) -> BinState:
        direction_key, offset_key, salt_key = jax.random.split(key, 3)
        pitch = FINEST * (COARSEST / FINEST) ** (np.arange(self.tables) / max(self.tables - 1, 1))
        shape = (self.tables, DIRECTIONS)
        directions = jax.random.normal(direction_key, (self.n_inputs, *shape)) / pitch[:, None]
        salt = jax.random.bits(salt_key, shape, jnp.uint32) | 1
        zeros = jnp.zeros((self.tables, 1 << self.cells_log2, self.n_actions))
        return BinState(
            visits=zeros,
            squares=zeros if self.learns_noise else (),
            prior=jnp.asarray(prior, jnp.float32),
            projection=directions.reshape(self.n_inputs, -1).astype(jnp.float32),
            offset=jax.random.uniform(offset_key, (self.tables * DIRECTIONS,)),
            salt=salt,
        )

    def code(self, state: BinState, phi: jax.Array, x: jax.Array) -> jax.Array:
        """The cell in each grid, (B, tables)."""
        projected = x.reshape(x.shape[0], -1) @ state.projection + state.offset
        return hashed(projected.reshape(-1, *state.salt.shape), state.salt, self.cells_log2)

    def nu(self, state: BinState, code: jax.Array) -> jax.Array:
        cells = jnp.arange(self.tables), code
        visits = state.visits[cells]  # (B, tables, A)
        noise = noise_variance(state.squares[cells], visits) if self.learns_noise else 1.0
        return (noise / (1.0 / state.prior + visits)).mean(1)

    def look(self, state: BinState, code: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(0), self.nu(state, code[None])[0, action]

    def add(self, state: BinState, code: jax.Array, gain: jax.Array, action: jax.Array) -> BinState:
        return state._replace(visits=state.visits.at[jnp.arange(self.tables), code, action].add(1.0))

    def hear(self, state: BinState, code: jax.Array, action: jax.Array, error: jax.Array) -> BinState:
        return state._replace(squares=state.squares.at[jnp.arange(self.tables), code, action].add(error**2))


WINDOW_BLOCKS, STRIDE_BLOCKS, BLOCK = 3, 2, 4
"""A window is 3 blocks of 4 pixels a side, 12 pixels; windows begin every 2 blocks, 8 pixels."""
WINDOW_PITCH = 2.0


@dataclass(frozen=True)
class WindowCounts(BinCounts):
    """Binning features of an image's windows: each window has a grid of its own, over random projections of its pixels.

    Two frames of a game are nearly always different as a whole, but most of their windows have been seen before: ν, the mean
    over windows, falls with the share of the image that is familiar.
    """

    shape: tuple[int, ...] = ()
    cells_log2: int = 11

    @staticmethod
    def over(n_actions: int, shape: tuple[int, ...], learns_noise: bool) -> WindowCounts:
        """shape: (height, width, channels) of the image."""
        rows, columns = (_windows(side) for side in shape[:2])
        return WindowCounts(n_actions, int(np.prod(shape)), rows * columns, learns_noise, shape=shape)

    def init(self, key: jax.Array, prior: jax.Array) -> BinState:
        direction_key, offset_key, salt_key = jax.random.split(key, 3)
        inputs = BLOCK**2 * self.shape[2]
        zeros = jnp.zeros((self.tables, 1 << self.cells_log2, self.n_actions))
        return BinState(
            visits=zeros,
            squares=zeros if self.learns_noise else (),
            prior=jnp.asarray(prior, jnp.float32),
            projection=jax.random.normal(direction_key, (inputs, WINDOW_BLOCKS**2 * DIRECTIONS)) / WINDOW_PITCH,
            offset=jax.random.uniform(offset_key, (DIRECTIONS,)),
            salt=jax.random.bits(salt_key, (self.tables, DIRECTIONS), jnp.uint32) | 1,
        )

    def code(self, state: BinState, phi: jax.Array, x: jax.Array) -> jax.Array:
        """The cell of each window in its grid, (B, windows)."""
        batch, height, width, channels = x.shape
        rows, columns = (_windows(side) for side in (height, width))
        tall, wide = ((n - 1) * STRIDE_BLOCKS + WINDOW_BLOCKS for n in (rows, columns))
        x = jnp.pad(x, ((0, 0), (0, max(tall * BLOCK - height, 0)), (0, max(wide * BLOCK - width, 0)), (0, 0)))
        x = x[:, : tall * BLOCK, : wide * BLOCK].reshape(batch, tall, BLOCK, wide, BLOCK, channels)
        blocks = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, tall, wide, -1)
        # One product projects each block as every part of a window that it can be; then windows add up their parts.
        parts = (blocks @ state.projection).reshape(batch, tall, wide, WINDOW_BLOCKS, WINDOW_BLOCKS, DIRECTIONS)
        down, right = (slice(0, (n - 1) * STRIDE_BLOCKS + 1, STRIDE_BLOCKS) for n in (rows, columns))
        total = sum(parts[:, i:, j:, i, j][:, down, right] for i in range(WINDOW_BLOCKS) for j in range(WINDOW_BLOCKS))
        return hashed((total + state.offset).reshape(batch, -1, DIRECTIONS), state.salt, self.cells_log2)


def _windows(side: int) -> int:
    """Windows along a side; the last may reach over the edge, onto zeros."""
    return max(-(-(side - WINDOW_BLOCKS * BLOCK) // (STRIDE_BLOCKS * BLOCK)), 0) + 1


def hashed(projected: jax.Array, salt: jax.Array, cells_log2: int) -> jax.Array:
    """projected (B, tables, DIRECTIONS), in units of the pitch -> the cell of each table's grid, (B, tables)."""
    grid = jnp.floor(projected).astype(jnp.int32).astype(jnp.uint32)
    mixed = (grid * salt).sum(-1)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
    return (mixed >> (32 - cells_log2)).astype(jnp.int32)


NOISE_PRIOR = 10.0
"""Errors of size 1 that a belief about the noise begins with. With one alone, exploration of DeepSea can end too early."""


def noise_variance(squares: jax.Array, visits: jax.Array) -> jax.Array:
    """σ² of a Normal-Gamma belief: what is left of a visit's surprise."""
    return (NOISE_PRIOR + squares) / (NOISE_PRIOR + visits)


def _unit(phi: jax.Array) -> jax.Array:
    return phi / jnp.maximum(jnp.linalg.norm(phi, axis=-1, keepdims=True), 1e-6)
