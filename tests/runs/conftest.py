from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def no_compilation_cache() -> Iterator[None]:
    """Tests neither read nor write the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "")
        yield


@pytest.fixture(scope="package", autouse=True)
def quick_compiler() -> Iterator[None]:
    """As in tests/deep."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
