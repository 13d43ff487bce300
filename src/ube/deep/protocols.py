"""How Atari games are played and learned from: three published sets of rules."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ube.deep.config import AgentConfig
from ube.errors import UsageError

_MNIH = dict(
    optimiser="rmsprop", learning_rate=2.5e-4, replay_size=1_000_000, warmup=50_000, target_period=2_500,
    epsilon_steps=1_000_000, q_steps=1,
)  # fmt: skip
"""How Mnih et al. 2015 learn, and so the paper, which takes "the exact same network architecture, learning rate, optimizer,
pre-processing and replay scheme". They count the target period in updates of 10,000 in their table, and in frames seen by the
agent in their text: 2,500 updates are 10,000 decisions."""


class Protocol(NamedTuple):
    env_args: dict[str, Any]
    overrides: dict[str, Any]


_STICKY = {"sticky": 0.25, "noops": 1, "life_loss": False}
PROTOCOLS = {
    "mnih2015": Protocol({}, _MNIH),  # the default, and the paper's
    "short": Protocol({}, {}),  # the games of Mnih et al., learned from as suits up to ten million frames
    "machado2018": Protocol(_STICKY | {"full_action_space": True}, _MNIH),
    "dopamine": Protocol(
        _STICKY,
        _MNIH | dict(
            epsilon_end=0.01, epsilon_steps=250_000, warmup=20_000, target_period=2_000, epsilon_evaluation=0.001
        ),
    ),
}  # fmt: skip


AUTO = "auto"
SHORT_FRAMES = 10_000_000
"""Longer runs are learned from as Mnih et al. do, unless another protocol is asked for."""


def with_protocol(
    name: str, env_args: dict[str, Any], config: AgentConfig, overrides: dict[str, Any], frames: int = SHORT_FRAMES
) -> tuple[dict[str, Any], AgentConfig]:
    """What was given explicitly wins. Only agents that act ε-greedily get its ε. auto: short for so many frames, else
    mnih2015."""
    if name == AUTO:
        name = "short" if frames <= SHORT_FRAMES else "mnih2015"
    if name not in PROTOCOLS:
        raise UsageError(f"protocol {name!r}: choose one of {', '.join([AUTO, *PROTOCOLS])}")
    protocol = PROTOCOLS[name]
    changes = {field: value for field, value in protocol.overrides.items() if field not in overrides}
    if not config.epsilon_start:
        changes.pop("epsilon_end", None)
    return protocol.env_args | env_args, dataclasses.replace(config, **changes)
