"""From what was asked for to what will be run: the environment made and measured, every default decided, and why."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import sys
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from ube.deep.config import NETWORK_DEFAULTS, AgentConfig, OwnNetwork, agent_config, as_fields
from ube.deep.hosted_session import CHUNK as HOSTED_CHUNK
from ube.deep.hosted_session import HostedSession
from ube.deep.protocols import AUTO, with_protocol
from ube.deep.session import CHUNK, Session
from ube.deep.settings import filled, like_network
from ube.envs import Environment, HostedEnvironment, make, wrapped
from ube.envs.atari import FRAME_SKIP
from ube.envs.atari import PREFIX as ATARI
from ube.envs.contract import RandomPlay
from ube.envs.gymnasium_adapter import name_of
from ube.errors import UsageError
from ube.files import versions
from ube.machine import gigabytes, room_needed
from ube.runs.trackers import TRACKERS

POLICIES = ("greedy", "own")
EVALUATED = {"greedy": POLICIES[:1], "own": POLICIES[1:], "both": POLICIES, "none": ()}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What happens beside learning. All but `checkpoint_minutes` and `track` is for environments outside of JAX."""

    evaluate_every: int | None = None
    """Decisions between evaluations, around which all games begin anew: 250,000 (a million frames) for Atari, 10,000 for
    environments of Gymnasium."""
    evaluation_steps: int | None = None
    """Decisions of an evaluation: games that begin within them are played to their end. 125,000 and 2,000."""
    evaluation_policy: str = "both"
    """greedy but for ε = epsilon_evaluation, by the agent's own exploring policy, both in turn, or none."""
    n_envs: int = 1
    """Games side by side in training."""
    checkpoint_minutes: float = 10.0
    """Between checkpoints; how often they are made changes nothing in the run."""
    track: tuple[str, ...] = ()
    """Where metrics go as well: "tensorboard" (RUN/tensorboard), "wandb" (Weights & Biases; RUN/wandb)."""

    def __post_init__(self) -> None:
        if self.evaluation_policy not in EVALUATED:
            raise UsageError(f"evaluation_policy={self.evaluation_policy!r}: choose one of {', '.join(EVALUATED)}")
        for name in ("evaluate_every", "evaluation_steps", "n_envs", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name}={value}: it must be positive")
        if isinstance(self.track, str) or not set(self.track) <= set(TRACKERS):
            raise UsageError(f"track={self.track!r}: a tuple of names among {', '.join(TRACKERS)}")

    def of(self, env: HostedEnvironment, config: AgentConfig) -> Schedule:
        """With all that the environment decides."""
        n_envs = env.n_envs or self.n_envs
        if self.n_envs not in (1, n_envs):
            raise UsageError(
                f"n_envs={self.n_envs}: {env.name} is one object of {n_envs}; give a function that makes them"
            )
        whole = max(n_envs, config.update_period)
        every = self.evaluate_every or -(-env.evaluate_every // whole) * whole
        steps = self.evaluation_steps or env.evaluation_steps
        return dataclasses.replace(self, n_envs=n_envs, evaluate_every=every, evaluation_steps=steps)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run before it is begun."""

    source: Environment | HostedEnvironment
    """As it was made; `env` is the same, measured."""
    env: Environment | HostedEnvironment
    env_name: str
    env_args: dict[str, Any]
    asked: AgentConfig
    """As it was asked for; `config` has every default decided."""
    config: AgentConfig
    steps: int
    seed: int
    schedule: Schedule
    calibration: RandomPlay | None

    @property
    def hosted(self) -> bool:
        return isinstance(self.env, HostedEnvironment)

    @property
    def own_network(self) -> Any:
        """None where it is one of ours."""
        return self.config.network if isinstance(self.config.network, OwnNetwork) else None

    @property
    def chunk(self) -> int:
        return HOSTED_CHUNK if self.hosted else CHUNK

    def content(self, chunk: int) -> dict[str, Any]:
        """Of config.json."""
        return {
            "env": self.env_name, "env_args": self.env_args, "agent": as_fields(self.config), "seed": self.seed,
            "steps": self.steps, "chunk": chunk, "schedule": dataclasses.asdict(self.schedule) if self.hosted else {},
            "random_play": self.calibration._asdict() if self.calibration else {},
            "command": shlex.join(sys.argv), "versions": versions(),
        }  # fmt: skip

    def session(self) -> Session | HostedSession:
        env, schedule = self.env, self.schedule
        if isinstance(env, HostedEnvironment):
            assert schedule.evaluate_every is not None
            return HostedSession(
                env, self.config, self.seed, n_envs=schedule.n_envs, restart_every=schedule.evaluate_every
            )
        return Session(env, self.config, self.seed)


def planned(
    env: Any, agent: str | AgentConfig, steps: int | None, seed: int, *, frames: int | None, protocol: str,
    env_args: dict[str, Any] | None, overrides: dict[str, Any] | None, schedule: Schedule,
    begun: dict[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """begun: config.json of the run that goes on, whose measurements and defaults stay as they were."""
    check_seed(seed)
    asked = agent_config(agent, overrides)
    env_args = env_args or {}
    if isinstance(env, str) and env.startswith(ATARI):
        total = (begun or {}).get("steps", steps) or 0  # a run that goes on for longer keeps its settings
        env_args, asked = with_protocol(
            protocol, env_args, asked, overrides or {}, frames if frames and not begun else total * FRAME_SKIP
        )
    elif protocol != AUTO:
        raise UsageError(f"protocol {protocol!r}: only games of {ATARI}… have one")
    source = made = made_from(env, env_args)
    steps = decisions(made, steps, frames)
    calibration = None
    if isinstance(made, HostedEnvironment) and made.calibrate is not None:
        saved = (begun or {}).get("random_play")
        calibration = RandomPlay(**saved) if saved else _measured(made)
        made = with_calibration(made, calibration)
    elif not isinstance(made, HostedEnvironment) and schedule.n_envs != 1:
        raise UsageError(f"n_envs={schedule.n_envs}: {made.name} is compiled, and runs one at a time")
    config = filled(_as_begun(asked, begun), made, steps)
    if isinstance(made, HostedEnvironment):
        schedule = schedule.of(made, config)
    name = env if isinstance(env, str) else source.name
    return Plan(source, made, name, env_args, asked, config, steps, seed, schedule, calibration)


def default_path(env: Any, agent: str | AgentConfig, seed: int) -> Path:
    """runs/ENV-AGENT-seedN"""
    env_name = env if isinstance(env, str) else env.name if isinstance(env, HostedEnvironment) else name_of(env)
    name = "-".join([env_name, agent if isinstance(agent, str) else agent.name, f"seed{seed}"])
    return Path("runs") / name.replace("/", "_").replace(":", "_")


def check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise UsageError(f"seed={seed}: a whole number within 0..{2**32 - 1}")


def made_from(env: Any, env_args: dict[str, Any]) -> Environment | HostedEnvironment:
    if isinstance(env, str):
        return make(env, **env_args)
    return env if isinstance(env, Environment | HostedEnvironment) else wrapped(env, **env_args)


@functools.lru_cache(maxsize=64)
def _measured(env: HostedEnvironment) -> RandomPlay:
    assert env.calibrate is not None
    return env.calibrate()


def with_calibration(env: HostedEnvironment, found: RandomPlay) -> HostedEnvironment:
    """Always the same object for the same numbers, so that compiled loops are found again."""
    try:
        return _calibrated(env, json.dumps(found))
    except ValueError:
        raise UsageError(
            f"{env.name} shows observations of shape {env.observation_shape}, and the run was trained on others: give the "
            "environment that it was trained in"
        ) from None


@functools.lru_cache(maxsize=64)
def _calibrated(env: HostedEnvironment, found: str) -> HostedEnvironment:
    return env.calibrated(RandomPlay(*json.loads(found)))


def _as_begun(asked: AgentConfig, begun: dict[str, Any] | None) -> AgentConfig:
    before = (begun or {}).get("agent", {})
    names = [field.name for field in dataclasses.fields(asked) if getattr(asked, field.name) in (0, "auto")]
    open_ = {name: before[name] for name in names if name in NETWORK_DEFAULTS["mlp"] and before.get(name)}
    return dataclasses.replace(asked, **open_)


def decisions(env: Environment | HostedEnvironment, steps: int | None, frames: int | None) -> int:
    """What was asked for, in decisions."""
    if steps is not None and frames is not None:
        raise UsageError(f"steps={steps}, frames={frames}: give one of them")
    for name, value in (("steps", steps), ("frames", frames)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UsageError(f"{name}={value!r}: a whole number")
    skip = env.frame_skip if isinstance(env, HostedEnvironment) else 1
    if frames is not None:
        if skip == 1:
            raise UsageError(f"frames={frames}: {env.name} has none; give steps")
        steps = frames // skip
    elif steps is None:
        if skip > 1:
            raise UsageError(f"how long? give --frames N ({skip} for each decision; the paper: 200000000)")
        steps = 50_000
    if steps < 1:
        raise UsageError(f"steps={steps}: at least 1")
    return steps


# ---------------------------------------------------------------- why


class Reason(NamedTuple):
    what: str
    chosen: str
    why: str


def explained(plan: Plan) -> list[Reason]:
    """What was chosen, and why, from the environment to the evaluation."""
    env, config, schedule = plan.env, plan.config, plan.schedule
    shape = "×".join(map(str, env.observation_shape))
    reasons = []
    if isinstance(env, HostedEnvironment):
        where = "Atari's emulator" if env.frame_skip > 1 else "a Gymnasium environment"
        reasons.append(Reason("environment", env.name, f"{where}, stepped outside of the compiled learner"))
        reasons += [Reason(name, text, "from its space") for name, text in env.notes.items()]
    else:
        reasons.append(Reason("environment", env.name, "written in JAX: the whole run is compiled"))
        reasons.append(Reason("actions", str(env.n_actions), "from the environment"))
    if plan.calibration is not None:
        found = plan.calibration
        reasons += [
            Reason("input range", *_ranges(plan)),
            Reason("reward_unit", f"{config.reward_unit:g}", _why_unit(plan, found)),
            Reason(
                "same seed, same run", "yes" if found.repeats else "no",
                "random play repeated itself from its seed, so --resume is exact"
                if found.repeats
                else "random play did not repeat itself: seed its randomness in reset(seed), or --resume will refuse",
            ),
        ]  # fmt: skip
    reasons.append(
        Reason("network", as_fields(config)["network"], f"observations are {shape} of {env.observation_dtype}")
    )
    for name in NETWORK_DEFAULTS["mlp"]:
        reasons.append(
            Reason(name, f"{getattr(config, name):,}" if name != "optimiser" else config.optimiser, _why(plan, name))
        )
    reasons.append(Reason("policy", config.policy, f"of the preset {plan.asked.name}"))
    if config.uses_u:
        unit = {
            "one": "reward_unit", "rewards": "the largest reward so far",
            "returns": "the largest return so far, at least one reward_unit",
        }[config.beta_unit]  # fmt: skip
        reasons.append(Reason("beta", f"{config.beta:g}", f"how much √u counts, in {unit}"))
    if isinstance(env, HostedEnvironment):
        room = room_needed(config.replay_size, env.frame_shape, env.observation_dtype)
        reasons.append(
            Reason(
                "memory", gigabytes(room.memory), f"replay of {config.replay_size:,} frames, and 1.5 GB for all else"
            )
        )
        text = (
            f"{schedule.evaluation_policy}, {schedule.evaluation_steps:,} steps after every {schedule.evaluate_every:,}"
        )
        reasons.append(Reason("evaluation", text, "without learning; games begin anew around it"))
        reasons.append(Reason("environments", str(schedule.n_envs), "side by side (--envs)"))
    return reasons


def _why_unit(plan: Plan, found: RandomPlay) -> str:
    low, high = found.rewards
    if plan.asked.reward_unit:
        return "given: learned rewards are divided by it"
    if not low and not high:
        return (
            f"{found.steps:,} random steps met no reward, so their scale is not known: taken as they come; if they will not "
            "be of order one, give it"
        )
    return (
        f"the largest |reward| in {found.steps:,} random steps (they paid {low:g} to {high:g}): learned rewards are divided "
        "by it, so β need not know their scale"
    )


def _ranges(plan: Plan) -> tuple[str, str]:
    import numpy as np

    env, source = plan.env, plan.source
    if env.observation_dtype == np.bool_:
        return "0 and 1", "bits"
    span = f"{np.min(env.low):.3g} to {np.max(env.high):.3g}"
    same = np.allclose(env.low, source.low) and np.allclose(env.high, source.high)
    return span, "as its space says" if same else "met in random play, and twice as wide, where its space says nothing"


def _why(plan: Plan, name: str) -> str:
    asked, value = getattr(plan.asked, name), getattr(plan.config, name)
    if asked not in (0, "auto"):
        return "given"
    like = like_network(plan.config.network, plan.env)
    usual = NETWORK_DEFAULTS[like][name]
    if value == usual:
        return f"what the network {like} takes"
    if name == "replay_size":
        return f"as much as fits 2 GB (usual: {usual:,})"
    return f"shortened to {plan.steps:,} steps (usual: {usual:,})"
