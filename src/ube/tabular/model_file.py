"""A belief and a policy in an .npz file, for the command line. Plain arrays only: loading runs no code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.tabular.belief import Belief
from ube.tabular.graph import numbers
from ube.tabular.npz import read_npz
from ube.tabular.rewards import NormalGamma, ScaledBeta

FORMAT = """\
alpha                  (H, S, A, S) layered, or (S, A, S) stationary / acyclic; Dirichlet parameters, 0 = unreachable
alpha_0, alpha_1, …    instead: one (states, actions, next states) array per layer, where widths differ
alpha_data, alpha_indices, alpha_indptr
                       instead: the CSR arrays of a sparse (S * A, S) matrix, with n_actions
reward_mean, reward_var                      Normal mean rewards, shaped like alpha without its last axis
beta_a, beta_b [, beta_low, beta_high]       instead: mean rewards in an interval
gamma_centre, gamma_strength, gamma_shape, gamma_rate   instead: Normal-Gamma
policy                 probabilities, shaped like the rewards; uniform if missing
discount               below 1 for a stationary belief; default 1
horizon                decisions of a stationary belief without discount
terminal               states that end an episode, for an acyclic belief
r_max                  bound on |mean reward|; default 1
noise_var, visits      variance of one reward and visit counts, shaped like the rewards, for method count
"""
MOST_ENTRIES = 10**8
"""Of all layers that a horizon asks for: a file of a few bytes must not take all memory."""
_BETA = ("a", "b", "low", "high")
_GAMMA = ("centre", "strength", "shape", "rate")
_KNOWN = {
    "alpha", "alpha_data", "alpha_indices", "alpha_indptr", "n_actions", "reward_mean", "reward_var", "policy", "discount",
    "horizon", "terminal", "r_max", "noise_var", "visits", *(f"beta_{p}" for p in _BETA), *(f"gamma_{p}" for p in _GAMMA),
}  # fmt: skip


def read_model(path: str | Path) -> tuple[Belief, Any]:
    """The belief and the policy ("uniform" if the file has none)."""
    arrays = _arrays(Path(path))
    try:
        return _belief(arrays), arrays.get("policy", "uniform")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _arrays(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            single = file.read(6) == np.lib.format.MAGIC_PREFIX
        arrays = {} if single else dict(read_npz(path))
    except Exception as error:  # whatever a broken or hostile archive makes the readers raise
        raise UsageError(f"{path}: not a model file ({error}); save one with np.savez(path, alpha=…, …)") from error
    if single:
        raise UsageError(f"{path}: a single array, not a model; save one with np.savez(path, alpha=…, …)")
    for name in arrays:
        if name not in _KNOWN and not _is_layer(name):
            raise UsageError(f"{path}: unknown array {name!r}; see `ube variance --arrays` for the names")
    return arrays


def _is_layer(name: str) -> bool:
    return name.startswith("alpha_") and name[6:].isdecimal() and name.isascii()


def _scalar(arrays: dict[str, Any], name: str, default: Any = None, *, whole: bool = False) -> Any:
    if name not in arrays:
        return default
    if arrays[name].size != 1:
        raise UsageError(f"{name} has shape {arrays[name].shape}: it must be one number")
    value = float(arrays[name].reshape(()))
    if not whole:
        return value
    if not (math.isfinite(value) and 1 <= value <= 1e9 and value == int(value)):
        raise UsageError(f"{name} is {value:g}: it must be a whole number, 1 or more")
    return int(value)


def _one_of(choices: dict[str, list[str]], what: str) -> None:
    """Refuses a file that says the same thing twice."""
    given = [names[0] for names in choices.values() if names]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both give {what}: keep one")


def _rewards(arrays: dict[str, Any]) -> dict[str, Any]:
    families = {
        prefix: [name for name in arrays if name.startswith(prefix)] for prefix in ("reward_", "beta_", "gamma_")
    }
    _one_of(families, "the reward belief")
    try:
        if families["beta_"]:
            return {"rewards": ScaledBeta(**{name[5:]: arrays[name] for name in families["beta_"]})}
        if families["gamma_"]:
            return {"rewards": NormalGamma(**{name[6:]: arrays[name] for name in families["gamma_"]})}
    except TypeError as error:
        raise UsageError(f"incomplete reward belief: {error}") from error
    return {name: arrays.get(name) for name in ("reward_mean", "reward_var")}


def _belief(arrays: dict[str, Any]) -> Belief:
    layers = [name for name in arrays if _is_layer(name)]
    forms = {"dense": [n for n in ("alpha",) if n in arrays], "layers": layers}
    _one_of(forms | {"sparse": [n for n in arrays if n.startswith("alpha_") and n not in layers]}, "alpha")
    discount, horizon = _scalar(arrays, "discount", 1.0), _scalar(arrays, "horizon", whole=True)
    r_max = _scalar(arrays, "r_max")
    alpha: Any = (
        _layers(arrays, layers) if layers else _sparse(arrays) if "alpha_data" in arrays else arrays.get("alpha")
    )
    options: dict[str, Any] = _rewards(arrays) | {"r_max": r_max}
    options |= {name: arrays[name] for name in ("noise_var", "visits") if name in arrays}
    if alpha is None:
        raise UsageError("no array 'alpha'; see `ube variance --arrays` for the names")
    if layers or alpha.ndim == 4:
        extra = [name for name in ("horizon", "terminal") if name in arrays]
        if extra:
            raise UsageError(f"{extra[0]} goes with a stationary alpha (S, A, S): a layered one has its own end")
        return Belief.layered(alpha, discount=discount, **options)
    if "alpha" in arrays and alpha.ndim != 3:
        raise UsageError(f"alpha has shape {alpha.shape}: expected (H, S, A, S) or (S, A, S)")
    if horizon is not None and horizon * alpha.size > MOST_ENTRIES:
        raise UsageError(
            f"horizon is {horizon}: so many copies of alpha have over {MOST_ENTRIES:.0e} entries; give a discount instead"
        )
    terminal = arrays.get("terminal", np.zeros(0, dtype=int))
    if "terminal" in arrays and discount == 1.0 and horizon is None:
        return Belief.acyclic(alpha, terminal=terminal, **options)
    return Belief.stationary(alpha, discount=discount, horizon=horizon, terminal=terminal, **options)


def _layers(arrays: dict[str, Any], names: list[str]) -> list[Any]:
    """The layers in order; what else the file holds for all states in one (total states, actions) array is cut up."""
    missing = [i for i in range(len(names)) if f"alpha_{i}" not in arrays]
    if missing:
        raise UsageError(f"no alpha_{missing[0]}: {len(names)} layers are numbered alpha_0 to alpha_{len(names) - 1}")
    layers = [arrays[f"alpha_{i}"] for i in range(len(names))]
    if any(layer.ndim != 3 for layer in layers):
        raise UsageError("alpha_0, alpha_1, … must each have the shape (states, actions, next states)")
    cuts = np.cumsum([len(layer) for layer in layers])
    for name, array in arrays.items():
        if not _is_layer(name) and array.ndim == 2 and len(array) == cuts[-1]:
            arrays[name] = np.split(array, cuts[:-1])
    return layers


def _sparse(arrays: dict[str, Any]) -> Any:
    from scipy.sparse import csr_array

    missing = [n for n in ("alpha_indices", "alpha_indptr", "n_actions") if n not in arrays]
    if missing:
        raise UsageError(f"alpha_data without {missing[0]}: a sparse alpha needs both CSR index arrays and n_actions")
    n_actions, indptr = _scalar(arrays, "n_actions", whole=True), arrays["alpha_indptr"]
    rows = len(indptr) - 1 if indptr.ndim == 1 else 0
    if rows < 1 or rows % n_actions:
        raise UsageError(f"n_actions={n_actions} does not divide the {rows} rows of the sparse alpha")
    data, indices = numbers(arrays["alpha_data"], "alpha_data"), arrays["alpha_indices"]
    # SciPy's own check leaves out matrices whose last offset is 0, and its compiled code then reads beyond the arrays.
    if not (data.ndim == indices.ndim == 1 and len(data) == len(indices) == indptr[-1] and indptr[0] == 0):
        raise UsageError(
            "the sparse alpha is broken: alpha_indptr must go from 0 to the length of alpha_data and alpha_indices"
        )
    if (np.diff(indptr.astype(float)) < 0).any():
        raise UsageError("the sparse alpha is broken: alpha_indptr must not fall")
    try:
        matrix = csr_array((data, indices, indptr), shape=(rows, rows // n_actions))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise UsageError(f"the sparse alpha is broken: {error}") from error
    return matrix
