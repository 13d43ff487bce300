"""How JAX and the allocator are set for training. Called before either is used; what a user has set stays."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import jax

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Of glibc's mallopt."""


def set_up_jax() -> None:
    """
    - A second start need not wait for the compiler. JAX_COMPILATION_CACHE_DIR moves its cache or, set empty, disables it.
    - On CPU, programs run in the thread that asks for them: two threads of a training loop then really are two. No effect
      where JAX is in use already. JAX_CPU_ENABLE_ASYNC_DISPATCH says otherwise.
    - Memory of large arrays is used again at once; giving it back to the system makes each update fault all its pages in.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and not getattr(jax.config, "jax_compilation_cache_dir", None):
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "ube" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    with suppress(AttributeError, OSError, TypeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
        libc.mallopt(M_TOP_PAD, 64 * 2**20)  # else threads but the first give back each heap of so much that is free
