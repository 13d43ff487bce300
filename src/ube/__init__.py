"""ube: exploration by the uncertainty Bellman equation (O'Donoghue et al., ICML 2018) and beyond.

`ube.tabular` is the exact half: beliefs over MDPs, the variance of their Q-values, agents and experiments.
`ube.linear` estimates inverse visit counts from features.
`ube.train`, `ube.compare` and `ube.load` are the learning half.
"""

from typing import TYPE_CHECKING, Any

from ube._version import __version__
from ube.errors import RunError, UsageError

if TYPE_CHECKING:
    from ube.comparison.compare import compare
    from ube.runs import Progress, load, train

__all__ = ["Progress", "RunError", "UsageError", "__version__", "compare", "load", "train"]


def __getattr__(name: str) -> Any:
    """The learning half brings JAX, which the tabular half does without: it is imported at first use."""
    if name in ("Progress", "load", "train"):
        from ube import runs

        return getattr(runs, name)
    if name == "compare":
        from ube.comparison.compare import compare

        return compare
    raise AttributeError(f"module 'ube' has no attribute {name!r}")
