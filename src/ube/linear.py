"""Inverse counts of a linear value estimate: Σ_a = (Φ_aᵀ Φ_a + I/μ)⁻¹, one matrix per action.

Φ_a stacks the features φ(s) of the states where action a was taken. `inverse_count` and `sherman_morrison` use only
operators, so they accept NumPy arrays, JAX arrays (also within `jit`) and PyTorch tensors; `InverseCounts` is the fast
in-place version in NumPy, which takes any of them that lies in the memory of the host.
"""

import functools
import math
import operator
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt


def inverse_count(sigma: Any, phi: Any) -> Any:
    """φᵀΣφ, the estimate of 1/n; β² times it is the local uncertainty ν (eq. 4).

    sigma (D, D); phi (D,) gives a scalar, phi (N, D) gives (N,). All actions at once, sigma (A, D, D): (A,) and (A, N).
    """
    return ((phi @ sigma) * phi).sum(-1)


def sherman_morrison(sigma: Any, phi: Any) -> Any:
    """Σ⁺ = Σ − (ΣφφᵀΣ)/(1 + φᵀΣφ), the inverse of Σ⁻¹ + φφᵀ (eq. 5). sigma (D, D) symmetric, phi (D,)."""
    return sigma - certainty_gained(phi, sigma @ phi)


def certainty_gained(phi: Any, gain: Any) -> Any:
    """Σ − Σ⁺ of eq. 5, from φ and Σφ, both (D,)."""
    return gain[:, None] * gain[None, :] / (1.0 + phi @ gain)


def woodbury(sigma: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Eq. 5 for N samples at once: Σ⁺ = Σ − ΣFᵀ (I + FΣFᵀ)⁻¹ FΣ. sigma (D, D) symmetric, features F (N, D)."""
    from scipy.linalg import cholesky, solve_triangular

    gain = features @ sigma
    capacitance = np.eye(len(features), dtype=sigma.dtype) + gain @ features.T
    root = solve_triangular(cholesky(capacitance, lower=True), gain, lower=True)
    updated = sigma - root.T @ root
    return (updated + updated.T) / 2


class LeastSquares(NamedTuple):
    """weights w* (D,) and their covariance (D, D)."""

    weights: np.ndarray  # (D,)
    covariance: np.ndarray  # (D, D)


def least_squares_values(features: np.ndarray, targets: np.ndarray, prior: float = math.inf) -> LeastSquares:
    """w* = (ΦᵀΦ)⁻¹Φᵀy and var w* = (ΦᵀΦ)⁻¹ for targets of unit variance ("Linear value estimate", above eq. 4).

    features Φ (N, D), targets y (N,). A finite prior μ adds I/μ to ΦᵀΦ: the posterior for w ~ N(0, μI).
    """
    features = _finite(features, "features")
    targets = _finite(targets, "targets")
    if features.ndim != 2 or targets.shape != features.shape[:1]:
        raise ValueError(f"expected features (N, D) and targets (N,), got {features.shape} and {targets.shape}")
    if not prior > 0:
        raise ValueError(f"prior is {prior}: it must be positive; inf means no ridge")
    n_features = features.shape[1]
    if math.isfinite(prior):
        # Ridge as D extra samples: the singular values see Φ itself, never the squared condition number of ΦᵀΦ.
        features = np.vstack([features, np.eye(n_features) / math.sqrt(prior)])
        targets = np.concatenate([targets, np.zeros(n_features)])
    left, scale, right = np.linalg.svd(features, full_matrices=False)
    rank = int((scale > scale.max(initial=0.0) * max(features.shape) * np.finfo(np.float64).eps).sum())
    if rank < n_features:
        raise ValueError(
            f"features have rank {rank} with D = {n_features} columns, so ΦᵀΦ has no inverse: "
            f"pass a finite prior such as 1.0 (prior is {prior})"
        )
    root = right.T / scale
    return LeastSquares(root @ (left.T @ targets), root @ root.T)


class InverseCounts:
    """Σ_a of every action, updated in place as samples arrive (eqs. 4 and 5).

    Σ_a starts as prior·I, so a one-hot basis gives φᵀΣ_aφ = 1/(n + 1/prior). `update` takes one sample, `update_batch`
    many, in Woodbury blocks of `block` rows.

    Rounding. An update cancels numbers of size prior·|φ|², which leaves an error of eps·prior·|φ|² in Σ. Later samples
    in every direction shrink it again; where features leave directions unseen, errors add up while 1/n falls, with all
    eigenvalues still positive. Hence float64 by default, a small prior and |φ| near 1. `refresh_every` recomputes Σ_a by
    Cholesky after that many updates of action a, from the information matrix Φ_aᵀΦ_a + I/prior kept in float64; in
    float32 eps·prior remains as a floor.

    A Σ_a found not positive definite is refreshed, or without `refresh_every` raises LinAlgError: each φᵀΣ_aφ is
    checked when computed, and all of Σ_a by Cholesky every max(D, 256) updates. Positive is not yet accurate.

    Threads. Products of a few hundred features gain little from a second thread of BLAS, and on a machine with other work
    wait for it far longer than they take: set OPENBLAS_NUM_THREADS=1 there, before NumPy is imported.
    """

    def __init__(
        self,
        n_features: int,
        n_actions: int,
        prior: float = 1.0,
        dtype: npt.DTypeLike = np.float64,
        block: int = 32,
        refresh_every: int | None = None,
    ):
        sizes = {"n_features": n_features, "n_actions": n_actions, "block": block, "refresh_every": refresh_every}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} is {size}: it must be at least 1")
        if not 0 < prior < math.inf:
            raise ValueError(f"prior is {prior}: it must be positive and finite, since Σ starts as prior·I; try 1.0")
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype is {self.dtype}: use float64, or float32 for half the memory")
        self.n_features, self.n_actions, self.prior = n_features, n_actions, prior
        self.block, self.refresh_every = block, refresh_every
        self._audit_every = max(n_features, 256)  # D³/3 flops each D updates: little beside the 4D² of an update
        # Only the lower triangles are kept up to date; the transpose of one is the Fortran-ordered upper BLAS works on.
        self._half = np.tile(np.eye(n_features) * prior, (n_actions, 1, 1)).astype(self.dtype)
        self._information: np.ndarray | None = None
        if refresh_every is not None:
            self._information = np.tile(np.eye(n_features) / prior, (n_actions, 1, 1))
        self._visits = np.zeros(n_actions, dtype=np.int64)

    @property
    def sigma(self) -> np.ndarray:
        """Σ_a as full symmetric matrices, a copy (A, D, D)."""
        return np.tril(self._half) + np.tril(self._half, -1).swapaxes(1, 2)

    @property
    def visits(self) -> np.ndarray:
        """Number of samples of each action, a copy (A,)."""
        return self._visits.copy()

    def local_uncertainty(self, phi: npt.ArrayLike, beta: float = 1.0) -> np.ndarray:
        """ν = β² φᵀΣ_aφ of every action (eq. 4): phi (D,) gives (A,), phi (N, D) gives (N, A)."""
        rows = self._features(phi, "phi", (1, 2))
        readings = [self._gains(a, np.atleast_2d(rows))[1] for a in range(self.n_actions)]
        nu = beta**2 * np.stack(readings, axis=-1)
        return nu[0] if rows.ndim == 1 else nu

    def update(self, phi: npt.ArrayLike, action: int) -> None:
        """Takes the sample phi (D,) of one action into Σ_a (eq. 5)."""
        row = self._features(phi, "phi", (1,))
        a = operator.index(action)
        if not 0 <= a < self.n_actions:
            raise ValueError(f"action is {a}: it must be within 0..{self.n_actions - 1}")
        self._absorb(a, row[None])

    def update_batch(self, features: npt.ArrayLike, actions: npt.ArrayLike) -> None:
        """Takes features (N, D) with actions (N,); all are checked before the first is taken."""
        rows = self._features(features, "features", (2,))
        taken = np.asarray(actions)
        if taken.shape != rows.shape[:1] or (taken.size and taken.dtype.kind not in "iu"):
            raise ValueError(f"actions must be ({len(rows)},) integers, got {taken.shape} of {taken.dtype}")
        for i in np.flatnonzero((taken < 0) | (taken >= self.n_actions))[:1]:
            raise ValueError(f"actions[{i}] is {taken[i]}: it must be within 0..{self.n_actions - 1}")
        for a in np.unique(taken):
            mine = rows[taken == a]
            for start in range(0, len(mine), self.block):
                self._absorb(int(a), mine[start : start + self.block])

    def _features(self, phi: npt.ArrayLike, name: str, ranks: tuple[int, ...]) -> np.ndarray:
        rows = _finite(phi, name, self.dtype)
        if rows.ndim not in ranks or rows.shape[-1] != self.n_features:
            allowed = " or ".join(("", f"({self.n_features},)", f"(N, {self.n_features})")[rank] for rank in ranks)
            raise ValueError(f"{name} has shape {rows.shape}: expected {allowed}, for n_features = {self.n_features}")
        return rows

    def _gains(self, a: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ_a Fᵀ (D, N) in Fortran order and the diagonal of F Σ_a Fᵀ (N,), positive unless φ = 0."""
        call, half = _routines(self.dtype), self._half[a].T
        for rescued in (False, True):
            gains = call.symv(1.0, half, rows[0])[:, None] if len(rows) == 1 else call.symm(1.0, half, rows.T)
            with np.errstate(over="ignore", invalid="ignore"):
                nu = (gains.T * rows).sum(-1)
            bad = ~((nu > 0) & (nu < math.inf))
            if not bad.any() or not (bad := bad & rows.any(-1)).any():
                break
            self._rescue(a, f"φᵀΣφ = {nu[bad][0]:.3g}", may_refresh=not rescued)
        return gains, nu

    def _absorb(self, a: int, rows: np.ndarray) -> None:
        gains, nu = self._gains(a, rows)
        call, half = _routines(self.dtype), self._half[a].T
        if len(rows) == 1:
            _add_outer(half, -1.0 / (1.0 + float(nu[0])), gains)
        else:
            lower, failed = call.potrf(np.eye(len(rows), dtype=self.dtype) + rows @ gains, lower=1)
            if failed:
                # The pivots are the 1 + φᵀΣφ of taking the rows in turn, so in turn the bad row meets its check.
                for row in rows:
                    self._absorb(a, row[None])
                return
            _add_outer(half, -1.0, call.trsm(1.0, lower, gains, side=1, lower=1, trans_a=1, overwrite_b=1))
        if self._information is not None:
            _add_outer(self._information[a].T, 1.0, rows.T.astype(np.float64))
        before, self._visits[a] = int(self._visits[a]), self._visits[a] + len(rows)
        if self.refresh_every is not None and before // self.refresh_every < self._visits[a] // self.refresh_every:
            self._refresh(a)
        elif before // self._audit_every < self._visits[a] // self._audit_every and call.potrf(half)[1]:
            self._rescue(a, "its Cholesky factor does not exist")

    def _refresh(self, a: int) -> None:
        assert self._information is not None
        call = _routines(np.dtype(np.float64))
        upper, failed = call.potrf(self._information[a].T)
        if failed:
            self._stop(a, "ΦᵀΦ + I/prior has no Cholesky factor even in float64")
        self._half[a] = call.potri(upper)[0].T

    def _rescue(self, a: int, symptom: str, may_refresh: bool = True) -> None:
        if self._information is None or not may_refresh:
            self._stop(a, symptom)
        self._refresh(a)
        if _routines(self.dtype).potrf(self._half[a].T)[1]:
            self._stop(a, f"{symptom}, also after a refresh")

    def _stop(self, a: int, symptom: str) -> NoReturn:
        raise np.linalg.LinAlgError(
            f"Σ of action {a} failed its check for positive definiteness after {self._visits[a]} updates ({symptom}): "
            f"use float64 (dtype is {self.dtype}), a smaller prior (prior is {self.prior}), features of norm near 1, "
            f"or refresh_every (refresh_every is {self.refresh_every})"
        )


def _add_outer(half: np.ndarray, scale: float, root: np.ndarray) -> None:
    """Adds scale·RRᵀ to the upper triangle in place. half (D, D) and root R (D, N), both in Fortran order."""
    call = _routines(half.dtype)
    if root.shape[1] == 1:
        call.syr(scale, root[:, 0], a=half, overwrite_a=1)
    else:
        call.syrk(scale, root, beta=1.0, c=half, overwrite_c=1)


@functools.cache
def _routines(dtype: np.dtype) -> SimpleNamespace:
    """BLAS and LAPACK by name; outside InverseCounts because Fortran objects cannot be pickled."""
    from scipy.linalg import get_blas_funcs, get_lapack_funcs

    names = ("symv", "symm", "syr", "syrk", "trsm"), ("potrf", "potri")
    found = get_blas_funcs(names[0], dtype=dtype) + get_lapack_funcs(names[1], dtype=dtype)
    return SimpleNamespace(**dict(zip(names[0] + names[1], found, strict=True)))


def _finite(values: npt.ArrayLike, name: str, dtype: npt.DTypeLike = np.float64) -> np.ndarray:
    array = np.ascontiguousarray(values, dtype=dtype)
    if not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name}[{', '.join(map(str, at))}] is {array[at]}: drop or repair this sample")
    return array
