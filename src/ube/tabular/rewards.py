"""Beliefs about mean rewards, one per (state, action), each with a conjugate update.

`mean` and `variance` are those of the *mean* reward μ, not of one reward. Every parameter is an array of one shape, or
a number for all. The arrays are flat inside a `Belief`; users give them in the shape of their problem.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ube.errors import UsageError

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RewardBelief(ABC):
    """A belief about each mean reward, independent between (state, action) pairs."""

    @property
    @abstractmethod
    def mean(self) -> Floats:
        """E μ."""

    @property
    @abstractmethod
    def variance(self) -> Floats:
        """Var μ; infinite for an improper prior without data."""

    @property
    @abstractmethod
    def noise_variance(self) -> Floats:
        """The variance of one reward as believed: σ_r² of the paper's count form."""

    @property
    def bound(self) -> float:
        """The largest |μ| that has any probability."""
        return np.inf

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """(n, …) draws of all mean rewards."""

    @abstractmethod
    def updated(self, rows: Rows, rewards: Floats) -> Self:
        """The posterior after `rewards[i]` was seen at flat index `rows[i]`."""

    def arranged(self, arrange: Callable[[Any], Floats]) -> Self:
        """The same belief with every parameter put through `arrange` (reshaped, selected, padded)."""
        return dataclasses.replace(self, **{name: arrange(values) for name, values in self._parameters()})

    def _parameters(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]

    def _check(self, name: str, holds: Callable[[Floats], NDArray[np.bool_]], needed: str) -> None:
        values = _floats(getattr(self, name))
        if not _is_ragged(getattr(self, name)):
            object.__setattr__(self, name, values)
        held = holds(values)
        values = np.broadcast_to(values, held.shape)
        wrong = np.argwhere(~held)
        if len(wrong):
            index = tuple(int(i) for i in wrong[0])
            where = f"[{', '.join(map(str, index))}]" if index else ""
            raise UsageError(f"{type(self).__name__} {name}{where} is {values[index]:g}: it must be {needed}")


def _is_ragged(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and len({np.shape(part) for part in values}) > 1


def _floats(values: Any) -> Floats:
    """As one array; layers of different widths end to end."""
    parts = [np.ravel(part) for part in values] if _is_ragged(values) else None
    return np.asarray(values, dtype=np.float64) if parts is None else np.concatenate(parts)


def _sums(rows: Rows, weights: Floats | None, like: Floats) -> Floats:
    return np.bincount(rows, weights=weights, minlength=like.size).astype(np.float64).reshape(like.shape)


@dataclass(frozen=True, eq=False)
class Normal(RewardBelief):
    """μ ~ N(centre, spread), rewards N(μ, noise). An infinite spread is the improper flat prior."""

    centre: Any
    spread: Any
    noise: Any = 1.0

    def __post_init__(self) -> None:
        self._check("centre", np.isfinite, "finite")
        self._check("spread", lambda x: x >= 0, "a variance, 0 or more")
        self._check("noise", lambda x: (x >= 0) & (x < np.inf), "a variance, 0 or more and finite")

    @property
    def mean(self) -> Floats:
        return np.asarray(self.centre, dtype=np.float64)

    @property
    def variance(self) -> Floats:
        return np.asarray(self.spread, dtype=np.float64)

    @property
    def noise_variance(self) -> Floats:
        return np.asarray(self.noise, dtype=np.float64)

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        _proper(self)
        return self.mean + np.sqrt(self.variance) * rng.standard_normal((n, *self.mean.shape))

    def updated(self, rows: Rows, rewards: Floats) -> Self:
        count = _sums(rows, None, self.mean)
        total = _sums(rows, rewards, self.mean)
        # In variances, not precisions, so that noise 0 (one look is enough) and spread inf (no prior) both work.
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = np.where(np.isinf(self.variance), 1.0, count * self.variance / (self.noise + count * self.variance))
        gain = np.where((count > 0) & (self.variance > 0), gain, 0.0)
        average = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        spread = np.where(gain > 0, gain * self.noise / np.maximum(count, 1), self.variance)
        return dataclasses.replace(self, centre=self.mean + gain * (average - self.mean), spread=spread)


@dataclass(frozen=True, eq=False)
class NormalGamma(RewardBelief):
    """Mean and variance of the reward both unknown: precision λ ~ Gamma(shape, rate), μ | λ ~ N(centre, 1/(strength λ)).

    μ is Student-t with variance rate / (strength (shape - 1)), finite for shape > 1.
    """

    centre: Any
    strength: Any
    shape: Any
    rate: Any

    def __post_init__(self) -> None:
        self._check("centre", np.isfinite, "finite")
        self._check("strength", lambda x: (x > 0) & (x < np.inf), "above 0 and finite (it counts as so many rewards)")
        self._check("shape", lambda x: (x > 1) & (x < np.inf), "above 1 and finite, or the variance does not exist")
        self._check("rate", lambda x: (x > 0) & (x < np.inf), "above 0 and finite")

    @property
    def mean(self) -> Floats:
        return np.asarray(self.centre, dtype=np.float64)

    @property
    def variance(self) -> Floats:
        return np.asarray(self.rate / (self.strength * (self.shape - 1.0)), dtype=np.float64)

    @property
    def noise_variance(self) -> Floats:
        return np.asarray(self.rate / (self.shape - 1.0), dtype=np.float64)

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        precision = rng.standard_gamma(self.shape, (n, *self.mean.shape)) / self.rate
        return self.mean + rng.standard_normal(precision.shape) / np.sqrt(self.strength * precision)

    def updated(self, rows: Rows, rewards: Floats) -> Self:
        count = _sums(rows, None, self.mean)
        total = _sums(rows, rewards, self.mean)
        average = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        scatter = _sums(rows, (rewards - average.reshape(-1)[rows]) ** 2, self.mean)
        strength = self.strength + count
        return dataclasses.replace(
            self,
            centre=self.mean + count * (average - self.mean) / strength,
            strength=strength,
            shape=self.shape + count / 2,
            rate=self.rate + 0.5 * (scatter + self.strength * count * (average - self.mean) ** 2 / strength),
        )


@dataclass(frozen=True, eq=False)
class ScaledBeta(RewardBelief):
    """μ = low + (high - low) Beta(a, b): mean rewards in a known interval, as Theorem 1 assumes.

    The update adds the reward's place in the interval to `a` and the rest to `b`: the conjugate one for rewards that
    are low or high, and the usual bounded-reward belief for any in between.
    """

    a: Any
    b: Any
    low: Any = 0.0
    high: Any = 1.0

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            self._check(name, lambda x: (x > 0) & (x < np.inf), "above 0 and finite")
        self._check("low", np.isfinite, "finite")
        self._check("high", lambda x: np.isfinite(x) & (x > _floats(self.low)), "finite and above low")

    @property
    def width(self) -> Floats:
        """high - low."""
        return np.asarray(self.high, dtype=np.float64) - self.low

    @property
    def mean(self) -> Floats:
        return np.asarray(self.low + self.width * self.a / (np.asarray(self.a) + self.b), dtype=np.float64)

    @property
    def variance(self) -> Floats:
        total = np.asarray(self.a, dtype=np.float64) + self.b
        return self.width**2 * self.a * self.b / (total**2 * (total + 1.0))

    @property
    def noise_variance(self) -> Floats:
        return self.width**2 / 4.0

    @property
    def bound(self) -> float:
        return float(np.max(np.maximum(np.abs(self.low), np.abs(self.high))))

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return self.low + self.width * rng.beta(self.a, self.b, (n, *self.mean.shape))

    def updated(self, rows: Rows, rewards: Floats) -> Self:
        low = np.broadcast_to(self.low, self.mean.shape).reshape(-1)[rows]
        place = (rewards - low) / np.broadcast_to(self.width, self.mean.shape).reshape(-1)[rows]
        outside = np.flatnonzero((place < 0) | (place > 1))
        if len(outside):
            raise UsageError(
                f"reward {rewards[outside[0]]:g} is outside the interval of its ScaledBeta belief: widen low..high"
            )
        return dataclasses.replace(
            self, a=self.a + _sums(rows, place, self.mean), b=self.b + _sums(rows, 1.0 - place, self.mean)
        )


def _proper(belief: RewardBelief) -> None:
    improper = np.flatnonzero(~np.isfinite(belief.variance))
    if len(improper):
        raise UsageError(
            f"the reward belief has infinite variance at flat index {improper[0]}: "
            "an improper prior can be sampled only after one update there"
        )
