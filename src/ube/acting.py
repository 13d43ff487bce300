"""From (Q, u) to an action. Pure arithmetic: scalars, NumPy, JAX and compiled tabular kernels share it."""

from typing import Any


def perturbed(q: Any, u: Any, zeta: Any, beta: Any) -> Any:
    """Q + β ζ √u, of which the action is the argmax (eq. 3). What ζ is makes the agent:

    - independent N(0, 1) for each action at each step: the paper's Thompson sampling;
    - one N(0, 1) for the whole episode: a scalar sample, consistent over states;
    - 1: upper confidence bound; 0: greedy.
    """
    return q + beta * zeta * u**0.5
