"""What a variance is worth: exact, a bound, or neither, and why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ube.tabular.belief import Belief
from ube.tabular.rewards import Floats


def guarantee(belief: Belief, method: str, u: Floats, tight: Callable[[], Floats]) -> tuple[str, str]:
    """(guarantee, why) for the result u (rows,) of a method; `tight` computes that of "pombu" if it is needed."""
    if not belief.is_acyclic:
        return "none", (
            "the belief has cycles: an episode can use one row of the posterior twice, so next values depend on the rows "
            "that lead to them and the Bellman inequality for the variance fails"
        )
    if belief.is_tied:
        return "none", (
            "rows are tied: the layers are copies that share one posterior, so their errors add up coherently and the "
            "variance can exceed this value"
        )
    if method == "delta":
        return "none", "the delta method is a first-order approximation, neither an upper nor a lower bound"
    independent = "no state recurs in an episode and all rows have independent posteriors"
    if method == "exact":
        return (
            "exact",
            f"{independent}: the covariance recursion is closed and gives the posterior variance to rounding",
        )
    if method == "lower":
        return "lower bound", f"{independent}: all covariances between values are 0 or more, and this leaves them out"
    if method == "pombu":
        return "upper bound", f"{independent}: by the law of total variance and Jensen's inequality, for any rewards"
    if method != "count" and belief.rewards.bound <= belief.r_max:
        return "upper bound", f"{independent}, and mean rewards are within r_max={belief.r_max:g}: Theorem 1 holds"
    least = tight()
    below = ~(u >= least * (1 - 1e-12))
    checked = "the result was checked to be above the 'pombu' bound, which needs no such assumption, at every (s, a)"
    doubt = (
        "a count of visits leaves the prior out"
        if method == "count"
        else f"the reward belief is not confined to r_max={belief.r_max:g}"
    )
    if not below.any():
        return "upper bound", f"{independent}; {doubt}, but {checked}"
    row = int(np.argmax(below))
    if method == "count":
        return "none", (
            f"{doubt}: at {belief.graph.entry(row)} the result {u[row]:.4g} is below the 'pombu' bound {least[row]:.4g}; "
            "use 'pombu' or 'exact'"
        )
    return "none", (
        f"the belief gives weight to mean rewards beyond r_max={belief.r_max:g}, and at {belief.graph.entry(row)} the result "
        f"{u[row]:.4g} is below the 'pombu' bound {least[row]:.4g}: raise r_max, or use 'pombu' or 'exact'"
    )
