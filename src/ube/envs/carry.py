"""Makes states fit for `lax.scan`: environments of others may return another dtype from a step than from a reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def settled(after_reset: Any, after_step: Any) -> Callable[[Any], Any]:
    """A cast of either state to the dtypes that hold both; the arguments come from `jax.eval_shape`.

    Weak types go too: a time that starts as a Python 0 would compile the loop twice.
    """
    dtypes = jax.tree.map(lambda a, b: _common(a.dtype, b.dtype), after_reset, after_step)

    def cast(state: Any) -> Any:
        return jax.tree.map(_cast_leaf, state, dtypes)

    return cast


def _common(a: Any, b: Any) -> Any:
    return a if a == b else jnp.promote_types(a, b)


def _cast_leaf(leaf: Any, dtype: Any) -> jax.Array:
    """Keys stay as they came, of the old kind or the new."""
    return leaf if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(leaf, dtype)
