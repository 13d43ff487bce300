"""What a run should be told about while it is under way: values that nothing supports, and rewards of another scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from ube.deep.config import AgentConfig

SLACK = 2.0
"""Values this many times beyond their limit are worth a message: learning overshoots a little."""
LARGE_REWARD = 100.0
"""Rewards this many times the unit of β are far larger than it."""


class Checks:
    """Messages about a run, each given once."""

    def __init__(self, config: AgentConfig):
        self.config = config
        self._said: set[str] = set()

    def messages(self, metrics: dict[str, float], reward_range: Any, last: bool = False) -> list[str]:
        """Return what is new. metrics: of a chunk, in rewards; reward_range: of the learned rewards so far; last: whether
        the run ends here."""
        found = {
            "q": self._q(metrics, reward_range), "u": self._u(metrics), "large": self._large(reward_range),
            "none": self._none(reward_range) if last else None,
        }  # fmt: skip
        new = {name: text for name, text in found.items() if text and name not in self._said}
        self._said |= new.keys()
        return list(new.values())

    def _q(self, metrics: dict[str, float], reward_range: Any) -> str | None:
        config, largest = self.config, float(np.abs(reward_range).max())
        if config.discount == 1 or config.bonus_scale or config.randomised_prior:
            return None  # nothing limits Q
        limit = largest * config.reward_unit / (1 - config.discount)
        if metrics["q_largest"] <= SLACK * limit + 1e-3:
            return None
        return (
            f"|Q| is {metrics['q_largest']:.3g}, but the rewards seen and γ = {config.discount:g} allow {limit:.3g} at most: "
            f"Q is diverging; raise target_period (is {config.target_period:,}) or q_steps (is {config.q_steps}), or set "
            "double_q=true"
        )

    def _u(self, metrics: dict[str, float]) -> str | None:
        """A u that is clipped to what can follow never gets there."""
        config, gamma = self.config, self.config.u_discount or self.config.discount
        if not config.uses_u or not config.nu_is_bounded or gamma == 1:
            return None
        local = config.prior * config.reward_unit**2
        limit = local / (1 - gamma**2)
        if metrics["u_largest"] <= SLACK * limit:
            return None
        return (
            f"√u is {metrics['u_largest'] ** 0.5:.3g}, but ν ≤ {local:.3g} and γ_u = {gamma:g} allow "
            f"{limit**0.5:.3g} at most: u is diverging; lower u_learning_rate (is {config.u_learning_rate:g}) or u_discount"
        )

    def _large(self, reward_range: Any) -> str | None:
        largest = float(np.abs(reward_range).max())
        if largest < LARGE_REWARD:
            return None
        seen = largest * self.config.reward_unit
        return (
            f"a reward of {seen:.4g} is far larger than reward_unit (is {self.config.reward_unit:g}): learning will be slow "
            f"and exploration too timid; start again with --set reward_unit={seen:.4g}"
        )

    def _none(self, reward_range: Any) -> str | None:
        if np.any(reward_range):
            return None
        return "no reward other than 0 was seen: train for longer, or check that the environment pays one"
