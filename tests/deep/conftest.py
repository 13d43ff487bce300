from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def quick_compiler() -> Iterator[None]:
    """Most of the time of these tests is XLA's: half of it goes into code that is faster than they need."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
