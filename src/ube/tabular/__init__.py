"""The exact half: a belief about an MDP in, the mean and the variance of its Q-values out."""

from ube.tabular.belief import Belief, unroll
from ube.tabular.oracle import MonteCarlo, monte_carlo
from ube.tabular.rewards import Normal, NormalGamma, RewardBelief, ScaledBeta
from ube.tabular.solver import METHODS, Solution, solve

__all__ = [
    "METHODS",
    "Belief",
    "MonteCarlo",
    "Normal",
    "NormalGamma",
    "RewardBelief",
    "ScaledBeta",
    "Solution",
    "monte_carlo",
    "solve",
    "unroll",
]
