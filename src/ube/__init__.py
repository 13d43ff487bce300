"""ube: exploration by the uncertainty Bellman equation (O'Donoghue et al., ICML 2018) and beyond.

`ube.tabular` is the exact half: beliefs over MDPs, the variance of their Q-values, agents and experiments.
`ube.linear` estimates inverse visit counts from features.
"""

from ube._version import __version__
from ube.errors import UsageError

__all__ = ["UsageError", "__version__"]
