"""A belief and a policy in an .npz file, for the command line. Plain arrays only: loading runs no code."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.tabular.belief import Belief
from ube.tabular.rewards import NormalGamma, RewardBelief, ScaledBeta

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
"""
_BETA = ("a", "b", "low", "high")
_GAMMA = ("centre", "strength", "shape", "rate")
_KNOWN = {
    "alpha", "alpha_data", "alpha_indices", "alpha_indptr", "n_actions", "reward_mean", "reward_var", "policy", "discount",
    "horizon", "terminal", "r_max", *(f"beta_{p}" for p in _BETA), *(f"gamma_{p}" for p in _GAMMA),
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
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise UsageError(f"{path}: a single array, not a model; save one with np.savez(path, alpha=…, …)")
            arrays = {name: content[name] for name in content.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path}: not a model file ({error}); save one with np.savez(path, alpha=…, …)") from error
    for name, array in arrays.items():
        if name not in _KNOWN and not (name.startswith("alpha_") and name[6:].isdigit()):
            raise UsageError(f"{path}: unknown array {name!r}; see `ube variance --arrays` for the names")
        if array.dtype.kind not in "fiub":
            raise UsageError(f"{path}: array {name!r} holds {array.dtype}, not numbers")
    return arrays


def _scalar(arrays: dict[str, Any], name: str, default: Any = None) -> Any:
    if name not in arrays:
        return default
    if arrays[name].size != 1:
        raise UsageError(f"{name} has shape {arrays[name].shape}: it must be one number")
    return float(arrays[name].reshape(()))


def _rewards(arrays: dict[str, Any]) -> dict[str, Any]:
    beta = {p: arrays[f"beta_{p}"] for p in _BETA if f"beta_{p}" in arrays}
    gamma = {p: arrays[f"gamma_{p}"] for p in _GAMMA if f"gamma_{p}" in arrays}
    rewards: RewardBelief
    try:
        if beta:
            rewards = ScaledBeta(**beta)
        elif gamma:
            rewards = NormalGamma(**gamma)
        else:
            return {name: arrays.get(name) for name in ("reward_mean", "reward_var")}
    except TypeError as error:
        raise UsageError(f"incomplete reward belief: {error}") from error
    return {"rewards": rewards}


def _belief(arrays: dict[str, Any]) -> Belief:
    options: dict[str, Any] = _rewards(arrays) | {"r_max": _scalar(arrays, "r_max")}
    discount = _scalar(arrays, "discount", 1.0)
    layers = sorted(
        (name for name in arrays if name.startswith("alpha_") and name[6:].isdigit()), key=lambda n: int(n[6:])
    )
    if layers:
        return Belief.layered([arrays[name] for name in layers], discount=discount, **_split(options, arrays, layers))
    if "alpha_data" in arrays:
        alpha: Any = _sparse(arrays)
    elif "alpha" in arrays:
        alpha = arrays["alpha"]
    else:
        raise UsageError("no array 'alpha'; see `ube variance --arrays` for the names")
    if alpha.ndim not in (3, 4) and "alpha" in arrays:
        raise UsageError(f"alpha has shape {alpha.shape}: expected (H, S, A, S) or (S, A, S)")
    if alpha.ndim == 4:
        return Belief.layered(alpha, discount=discount, **options)
    if "terminal" in arrays and discount == 1.0:
        return Belief.acyclic(alpha, terminal=arrays["terminal"], **options)
    horizon = _scalar(arrays, "horizon")
    terminal = arrays.get("terminal", np.zeros(0, dtype=int))
    return Belief.stationary(
        alpha, discount=discount, horizon=None if horizon is None else int(horizon), terminal=terminal, **options
    )


def _split(options: dict[str, Any], arrays: dict[str, Any], layers: list[str]) -> dict[str, Any]:
    """Rewards of ragged layers come as one array over all states, (total states, actions): cut them up."""
    if "rewards" in options:
        return options
    cuts = np.cumsum([arrays[name].shape[0] for name in layers])[:-1]
    for name in ("reward_mean", "reward_var"):
        if options[name] is not None and options[name].ndim == 2:
            options[name] = np.split(options[name], cuts)
    if "policy" in arrays and arrays["policy"].ndim == 2:
        arrays["policy"] = np.split(arrays["policy"], cuts)
    return options


def _sparse(arrays: dict[str, Any]) -> Any:
    from scipy.sparse import csr_array

    missing = [n for n in ("alpha_indices", "alpha_indptr", "n_actions") if n not in arrays]
    if missing:
        raise UsageError(f"alpha_data without {missing[0]}: a sparse alpha needs both CSR index arrays and n_actions")
    n_actions = int(_scalar(arrays, "n_actions", 1) or 0)
    rows = len(arrays["alpha_indptr"]) - 1
    if n_actions < 1 or rows < 1 or rows % n_actions:
        raise UsageError(f"n_actions={n_actions} does not divide the {rows} rows of the sparse alpha")
    try:
        matrix = csr_array(
            (arrays["alpha_data"], arrays["alpha_indices"], arrays["alpha_indptr"]), shape=(rows, rows // n_actions)
        )
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise UsageError(f"the sparse alpha is broken: {error}") from error
    return matrix
