"""What environments offer to the loops: one place for each preprocessing decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

Key = jax.Array
Instance = Any
"""What is drawn once for a whole run, as arrays: for instance which action means right in each cell of DeepSea."""
State = Any


class Step(NamedTuple):
    observation: jax.Array
    """Of the state just reached, also when the episode ends there: a truncated episode is bootstrapped from it."""
    reward: jax.Array
    terminated: jax.Array
    """The task ended: nothing follows, and no value."""
    truncated: jax.Array
    """A time limit cut the episode: the value of what would follow still counts."""


OF_NUMBERS = {"target_period": 250}
"""Defaults of an agent where observations are numbers rather than bits. A target network that is copied every 4 updates
suits DeepSea, but lets Q run away where neighbouring observations are alike and episodes long, as in CartPole."""


REPLAY_BYTES = 2e9
"""The most that the replay takes unless a size is given: pictures are large."""


@dataclass(frozen=True, eq=False)
class Interface:
    """What a learner needs to know of a family of tasks with discrete actions."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    """As stored in replay; networks see float32. Binary observations are bool, so that replay stays small."""
    low: np.ndarray
    """Bounds of the observation, broadcast to its shape; -inf and inf where there are none."""
    high: np.ndarray
    n_actions: int
    defaults: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Fields of an agent that this environment decides where 0 asks for it: they come before those of the network."""


@dataclass(frozen=True, eq=False)
class Environment(Interface):
    """Compiled. `step` never resets: the loop does, and so sees every last observation.

    instance = env.draw(key)                                   # once per run
    state, observation = env.reset(key, instance)              # once per episode
    state, step = env.step(key, instance, state, action)       # once per decision
    """

    draw: Callable[[Key], Instance]
    reset: Callable[[Key, Instance], tuple[State, jax.Array]]
    step: Callable[[Key, Instance, State, jax.Array], tuple[State, Step]]
    success_return: float | None = None
    """An episode with at least this undiscounted return counts as a success; None where there is no such notion."""


class HostedStep(NamedTuple):
    """Of E environments that run outside of JAX and start a new episode in the step that ends one."""

    frame: np.ndarray  # (E, …) that the next decision sees
    last_frame: np.ndarray  # (E, …) of the state just reached: another one only where the episode ended
    reward: np.ndarray  # (E,) as the environment pays it
    terminated: np.ndarray  # (E,)
    truncated: np.ndarray  # (E,)
    life_lost: np.ndarray  # (E,) the episode goes on, and the return that is learned ends


class Games(Protocol):
    """E environments side by side, outside of JAX."""

    def reset(self, seed: int) -> np.ndarray:
        """New episodes, which depend on the seed and on nothing that happened before: their first frames, (E, …)."""

    def step(self, actions: np.ndarray) -> HostedStep: ...

    def restart(self, env: int) -> np.ndarray:
        """A new episode in one of them, though the last one had not ended: its first frame."""

    def close(self) -> None: ...


class RandomPlay(NamedTuple):
    """What a short random play showed of an environment; kept with a run, so that it is measured once."""

    low: Any
    """Bounds to scale observations by: numbers, or one for each input."""
    high: Any
    reward_unit: float
    """The largest |reward|, 1 if there was none."""
    steps: int
    rewards: tuple[float, float]
    """Lowest and highest."""
    episodes: int
    """That ended."""
    repeats: bool
    """Whether the same seed and actions gave the same observations."""


@dataclass(frozen=True, eq=False)
class HostedEnvironment(Interface):
    """Outside of JAX. An observation is the last `stack` frames of the episode side by side in its last axis, zeros where it
    is younger."""

    open: Callable[[int], Games]
    """So many of them."""
    frame_shape: tuple[int, ...]
    stack: int
    frame_skip: int
    """Frames of the emulator for each decision: budgets are given in them."""
    screens: Callable[[int, np.ndarray], Iterable[np.ndarray]] | None
    """(seed, actions of one game) -> what a person would have seen before each, (height, width, 3); None without a screen."""
    longest: int
    """Decisions after which evaluation stops waiting for the end of a game."""
    evaluate_every: int
    """Decisions between evaluations, and of an evaluation, where nobody says."""
    evaluation_steps: int
    n_envs: int | None = None
    """So many side by side, always; None for as many as are asked for."""
    resets_late: bool = False
    """Whether a game that ended begins anew only in the step after, whatever is decided there: until then `frame` is the last
    one, and `restart` is not possible."""
    one_object: bool = False
    """Whether every `open` gives the same games, so that only one user can be at them."""
    calibrate: Callable[[], RandomPlay] | None = None
    """None where all is known."""
    encode: Callable[[Any], np.ndarray] = np.asarray
    """What the environment shows -> a frame."""
    decode: Callable[[int], Any] = int
    """The number of an action -> what the environment takes."""
    most_replay: int | None = None
    """Frames that the replay holds at most where nobody says."""
    fits_budget: bool = False
    """Whether an agent's times are shortened to fit short runs where nobody says; else they are as published."""
    notes: dict[str, str] = field(default_factory=dict)
    """How its spaces are read, in words."""

    def calibrated(self, found: RandomPlay) -> HostedEnvironment:
        bounds = (np.broadcast_to(np.asarray(bound, np.float64), self.observation_shape) for bound in found[:2])
        low, high = bounds
        return replace(
            self, low=low, high=high, calibrate=None, defaults=self.defaults | {"reward_unit": found.reward_unit}
        )
