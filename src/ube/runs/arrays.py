"""Trees of arrays as safetensors: loading runs no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ube.errors import UsageError
from ube.reading import is_inside, refuse

_SIZES = {"F": "float", "I": "int", "U": "uint"}
_DTYPES = {f"{short}{bits}": f"{long}{bits}" for short, long in _SIZES.items() for bits in (8, 16, 32, 64)}
_DTYPES |= {"BOOL": "bool", "BF16": "bfloat16"}
"""As safetensors names them -> as NumPy does."""


def save_arrays(tree: Any) -> bytes:
    return save({name: np.array(_plain(leaf), order="C") for name, leaf in _named_leaves(jax.device_get(tree))})


def load_arrays(path: Path, like: Any) -> Any:
    """NumPy arrays and JAX keys in the shape of `like` (arrays or their shapes)."""
    saved = read_arrays(path, {name: _shape(leaf) for name, leaf in _named_leaves(like)})
    leaves = []
    for name, leaf in _named_leaves(like):
        leaves.append(jax.random.wrap_key_data(jnp.asarray(saved[name])) if _is_key(leaf) else saved[name])
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def read_arrays(path: Path, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
    """By name, in the shapes of `wanted`: those alone of what `save_arrays` wrote."""
    try:
        return _read(path, wanted)
    except FileNotFoundError:
        raise UsageError(f"{path} is not there: the run did not come to its end; go on with it (--resume)") from None
    except (SafetensorError, OSError) as error:
        refuse(path, str(error), "train the run again")


def _read(path: Path, wanted: dict[str, Any]) -> dict[str, np.ndarray]:
    """Each is looked at before it is loaded: a file may say that it holds anything."""
    if not path.exists():
        raise FileNotFoundError
    if not path.is_file() or not is_inside(path, path.parent):
        refuse(path, "it is no plain file of this folder", "put a copy in its place")
    saved = {}
    with safe_open(path, framework="numpy") as file:
        names = set(file.keys())
        for name, like in wanted.items():
            should, found = f"{like.dtype} {tuple(like.shape)}", "nothing"
            if name in names:
                there = file.get_slice(name)
                found = f"{_DTYPES.get(there.get_dtype(), there.get_dtype())} {tuple(there.get_shape())}"
            if found != should:
                raise UsageError(f"{path}: {name} should be {should}, found {found}; was the config changed?")
            saved[name] = file.get_tensor(name)
    return saved


def _shape(leaf: Any) -> Any:
    return jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
