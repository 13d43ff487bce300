"""Trees of arrays as safetensors: loading runs no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from ube.errors import UsageError


def save_arrays(tree: Any) -> bytes:
    return save({name: np.array(_plain(leaf), order="C") for name, leaf in _named_leaves(jax.device_get(tree))})


def read_array(path: Path, name: str) -> np.ndarray:
    """One of those that `save_arrays` wrote."""
    try:
        with safe_open(path, "numpy") as saved:
            return saved.get_tensor(name)
    except SafetensorError as error:
        raise UsageError(f"{path} cannot be read ({error})") from None


def load_arrays(path: Path, like: Any) -> Any:
    """NumPy arrays and JAX keys in the shape of `like` (arrays or their shapes)."""
    try:
        saved = load_file(path)
    except FileNotFoundError:
        raise UsageError(f"{path} is not there: the run did not come to its end") from None
    except SafetensorError as error:
        raise UsageError(f"{path} cannot be read ({error})") from None
    leaves = []
    for name, leaf in _named_leaves(like):
        shape = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        wanted = f"{shape.dtype} {tuple(shape.shape)}"
        found = f"{saved[name].dtype} {saved[name].shape}" if name in saved else "nothing"
        if found != wanted:
            raise UsageError(f"{path}: {name} should be {wanted}, found {found}")
        leaves.append(jax.random.wrap_key_data(jnp.asarray(saved[name])) if _is_key(leaf) else saved[name])
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
