"""Environments: `make(env_id, **env_args)` and the list of what there is, `environments()`."""

from ube.envs.contract import Environment, HostedEnvironment, Step
from ube.envs.registry import environments, make, wrapped

__all__ = ["Environment", "HostedEnvironment", "Step", "environments", "make", "wrapped"]
