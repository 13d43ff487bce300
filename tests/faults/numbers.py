"""Millions of Sherman-Morrison updates with features that are hard on them: Σ against float64, and u never negative."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ube.deep.counts import DenseCounts
from ube.linear import InverseCounts, inverse_count

D = 16
BLOCK = 10_000
"""Updates between two looks; the learner refreshes Σ as often, after the look, and `ube.linear` at other times."""
BOUND = 0.05
"""Of |φᵀΣφ / exact - 1|, at features that were seen; of a learner, after each refresh."""
BETWEEN = 2e-4
"""Of |φᵀΣφ - exact| / |φ|² before a refresh, where Σ began as I: a learner's float32 cannot tell 10⁻⁵ from 2·10⁻⁵ there."""


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _correlated(rng: np.random.Generator, n: int) -> np.ndarray:
    return _unit(np.ones(D) + 1e-3 * rng.normal(size=(n, D)))


def _mixed(rng: np.random.Generator, n: int) -> np.ndarray:
    return _unit(rng.normal(size=(n, D))) * rng.choice([1e-6, 1.0, 1e3], size=(n, 1))


FEATURES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "random": lambda rng, n: _unit(rng.normal(size=(n, D))),
    "correlated": _correlated,
    "repeated": lambda rng, n: np.tile(_unit(np.arange(1.0, D + 1)[None]), (n, 1)),
    "tiny": lambda rng, n: 1e-6 * _unit(rng.normal(size=(n, D))),
    "huge": lambda rng, n: 1e3 * _unit(rng.normal(size=(n, D))),
    "mixed": _mixed,
}
OF_LEARNER = ("random", "correlated", "repeated", "tiny")
"""Agents scale features to unit length or less."""


def soaked(kind: str, of: str, updates: int, seed: int) -> dict[str, Any]:
    """of: "linear" (float64) or "learner" (float32, refreshed as by its session)."""
    take, sigma_now = _taker(of)
    rng, information = np.random.default_rng(seed), np.eye(D)
    worst, between, smallest, asymmetry, lowest, done = 0.0, 0.0, np.inf, 0.0, np.inf, 0
    while done < updates:
        rows = FEATURES[kind](rng, min(BLOCK, updates - done)).astype(np.float32).astype(np.float64)
        information += rows.T @ rows
        take(rows)
        done += len(rows)
        (sigma, earlier), seen = sigma_now(), rows[:50]
        asymmetry = max(asymmetry, float(np.abs(sigma - sigma.T).max()))
        smallest = min(smallest, float(np.linalg.eigvalsh(sigma).min()))
        u, exact = inverse_count(sigma, seen), (seen * np.linalg.solve(information, seen.T).T).sum(-1)
        lowest = min(lowest, float(u.min()))
        assert np.isfinite(sigma).all()
        assert np.isfinite(u).all()
        worst = max(worst, float(np.abs(u / exact - 1).max()))
        off = np.abs(inverse_count(earlier, seen) - exact) / (seen**2).sum(-1)
        between = max(between, float(off.max()))
    found = {
        "features": kind, "of": of, "updates": done, "largest_error": worst, "between": between,
        "smallest_eigenvalue": smallest, "lowest_u": lowest, "asymmetry": asymmetry,
    }  # fmt: skip
    assert smallest > 0, found
    assert lowest >= 0, found
    assert asymmetry == 0, found
    assert worst < BOUND, found
    assert between < BETWEEN, found
    return found


def _taker(of: str) -> tuple[Callable[[np.ndarray], None], Callable[[], list[np.ndarray]]]:
    if of == "learner":
        return _learner()
    counts = InverseCounts(D, 1, refresh_every=3 * BLOCK + 1)

    def take(rows: np.ndarray) -> None:
        half = len(rows) // 2  # some one at a time, some in blocks
        for row in rows[: half // 10]:
            counts.update(row, 0)
        counts.update_batch(rows[half // 10 :], np.zeros(len(rows) - half // 10, int))

    return take, lambda: [counts.sigma[0].astype(np.float64)] * 2


def _learner() -> tuple[Callable[[np.ndarray], None], Callable[[], list[np.ndarray]]]:
    counts = DenseCounts(1, D, 0, D, normalise=True, forgetting=1.0)
    states = [counts.init(jax.random.key(0), jnp.float32(1.0))]

    @jax.jit
    def chunk(state: Any, codes: jax.Array) -> tuple[Any, jax.Array]:
        def one(state: Any, code: jax.Array) -> tuple[Any, jax.Array]:
            gain, nu = counts.look(state, code, jnp.int32(0))
            return counts.add(state, code, gain, jnp.int32(0)), nu

        return jax.lax.scan(one, state, codes)

    def take(rows: np.ndarray) -> None:
        codes = np.asarray(rows, np.float32)
        state, nu = chunk(states[0], jnp.asarray(codes))
        nu = np.asarray(nu)
        assert np.isfinite(nu).all()
        assert nu.min() >= 0
        sigma = np.asarray(state.sigma[0], np.float64)
        assert np.linalg.eigvalsh(sigma).min() > 0, "before the refresh"
        states[:] = counts.refresh(state, codes, np.zeros(len(codes), int), 1.0), state

    return take, lambda: [np.asarray(state.sigma[0], np.float64) for state in states]
