"""How the tests compile. Most of their time is XLA's, so programs are optimised little, and compiled once."""

import os
import shutil
import tempfile

import pytest

COMPILER = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
"""For all workers of pytest and the processes that they start; the user's own cache is neither read nor written."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ |= COMPILER | {"JAX_COMPILATION_CACHE_DIR": tempfile.mkdtemp(prefix="ube-tests-")}


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
