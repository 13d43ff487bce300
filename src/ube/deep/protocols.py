"""How Atari games are played and learned from: three published sets of rules."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ube.deep.config import AgentConfig
from ube.errors import UsageError


class Protocol(NamedTuple):
    env_args: dict[str, Any]
    overrides: dict[str, Any]


_STICKY = {"sticky": 0.25, "noops": 1, "life_loss": False}
PROTOCOLS = {
    "mnih2015": Protocol({}, {}),  # the defaults, and the paper's
    "machado2018": Protocol(_STICKY | {"full_action_space": True}, {}),
    "dopamine": Protocol(
        _STICKY,
        dict(
            epsilon_end=0.01, epsilon_steps=250_000, warmup=20_000, target_period=2_000, epsilon_evaluation=0.001
        ),
    ),
}  # fmt: skip


def with_protocol(
    name: str, env_args: dict[str, Any], config: AgentConfig, overrides: dict[str, Any]
) -> tuple[dict[str, Any], AgentConfig]:
    """What was given explicitly wins. Only agents that act ε-greedily get its ε."""
    if name not in PROTOCOLS:
        raise UsageError(f"protocol {name!r}: choose one of {', '.join(PROTOCOLS)}")
    protocol = PROTOCOLS[name]
    changes = {field: value for field, value in protocol.overrides.items() if field not in overrides}
    if not config.epsilon_start:
        changes.pop("epsilon_end", None)
    return protocol.env_args | env_args, dataclasses.replace(config, **changes)
