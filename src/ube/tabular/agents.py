"""Tabular agents: one frozen record each, all read by one learning loop (`simulate`).

They share the belief and the backward pass, and differ in how local uncertainty ν compounds into a choice: UBE adds up
variances, a bonus adds up standard deviations, sampling draws ν once per row, K-learning adds up cumulants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ube.errors import UsageError
from ube.tabular.solver import METHODS, Q_MAX_METHODS

KINDS = ("ube", "bonus", "epsilon-greedy", "boltzmann", "psrl", "rlsvi", "ucbvi", "k-learning")
NOISES = ("step", "episode", "ucb", "joint")
EVALUATED = ("acting", "greedy")


@dataclass(frozen=True)
class Agent:
    """Every field can be overridden: `AGENTS["ube-ucb"].but(beta=0.5)`."""

    name: str
    kind: str = "ube"
    variance: str = "ube"
    """Method of `solve` behind u (kind ube), or ν behind the bonus and K-learning."""
    noise: str = "step"
    """ζ of kind ube: independent per action and step (eq. 3), one per episode, 1 (UCB), or a joint sample of values."""
    beta: float = 1.0
    """Scale of the exploration: of ζ√u, of the bonus, of RLSVI's noise, of K-learning's temperature."""
    epsilon: float = 0.1
    temperature: float = 0.1
    prior_std: float = 1.0
    """Of a Q-value before any data (RLSVI)."""
    prior_alpha: float = 1.0
    """Dirichlet parameter of each next state that experiments give this agent's belief."""
    evaluate: str = "acting"
    """Whose Q̄ and u: of the policy that acts, or of the one that is greedy in Q̄ (kind ube)."""

    def __post_init__(self) -> None:
        for field, allowed in (("kind", KINDS), ("variance", METHODS), ("noise", NOISES), ("evaluate", EVALUATED)):
            if getattr(self, field) not in allowed:
                raise UsageError(f"{field}={getattr(self, field)!r}: choose one of {', '.join(allowed)}")
        if self.kind == "bonus" and self.variance not in Q_MAX_METHODS:
            raise UsageError(f"variance={self.variance!r}: kind 'bonus' takes one of {', '.join(Q_MAX_METHODS)}")
        if self.variance == "delta":
            raise UsageError("variance='delta': an agent needs a method that works in one backward pass")
        if self.noise == "joint" and self.evaluate == "greedy":
            raise UsageError("noise='joint' acts on its own sample: evaluate must be 'acting'")
        for field in ("beta", "epsilon", "temperature", "prior_std", "prior_alpha"):
            value = getattr(self, field)
            positive = field in ("temperature", "prior_std", "prior_alpha") or (
                field == "beta" and self.kind in ("rlsvi", "k-learning")
            )
            if not 0 <= value < float("inf") or (positive and value == 0):
                raise UsageError(f"{field}={value!r}: it must be finite and {'above 0' if positive else '0 or more'}")
        if self.epsilon > 1:
            raise UsageError(f"epsilon={self.epsilon!r}: a probability is at most 1")

    @property
    def scale(self) -> float:
        """The one number that experiments tune: β, or what the kind has in its place."""
        own = {"epsilon-greedy": self.epsilon, "boltzmann": self.temperature, "psrl": self.prior_alpha}
        return own.get(self.kind, self.beta)

    def but(self, **changes: Any) -> Agent:
        return replace(self, **changes)


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("ube-thompson", variance="ube", noise="step"),
        Agent("ube-episode", variance="pombu", noise="episode"),
        Agent("ube-ucb", variance="pombu", noise="ucb"),
        Agent("ube-joint", variance="exact", noise="joint"),
        Agent("bonus", kind="bonus"),
        Agent("epsilon-greedy", kind="epsilon-greedy"),
        Agent("boltzmann", kind="boltzmann"),
        Agent("psrl", kind="psrl"),
        Agent("rlsvi", kind="rlsvi"),
        Agent("ucbvi", kind="ucbvi"),
        Agent("k-learning", kind="k-learning", variance="pombu"),
    )
}
