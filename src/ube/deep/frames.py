"""The replay of hosted environments: each frame is kept once, and observations are stacked when they are sampled.

A slot holds a frame and the decision taken when it was the newest one. Where an episode is cut off, its last frame gets a
slot of its own without a decision, so that the value of what would have followed can be asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ube.errors import UsageError

TRIES = 1_000
"""Draws until every place of a batch has a decision that can be used: nearly all can."""


class Sample(NamedTuple):
    frames: np.ndarray  # (B, stack + 1, …): the observation is the first `stack` of them, the next one the last `stack`
    age: np.ndarray  # (B,) frames of this episode before the decision, at most stack - 1: older ones are zero
    action: np.ndarray  # (B,)
    reward: np.ndarray  # (B,)
    continues: np.ndarray  # (B,) 0 where nothing follows
    number: np.ndarray  # (B,) of the decision, another for each ever taken (modulo 2³²)
    ahead: Any = None
    """A FramesAhead where targets span several steps."""


class FramesAhead(NamedTuple):
    """Where n-step targets bootstrap."""

    reward: np.ndarray  # (B,) the discounted sum of the rewards until then
    discount: np.ndarray  # (B,) γⁿ, 0 where nothing follows
    frames: np.ndarray  # (B, stack, …)
    age: np.ndarray  # (B,) as in Sample, of the last of these frames


class FrameReplay:
    """One ring for each of `n_envs` environments, `capacity` slots in all. Plain arrays, so that a checkpoint is easy."""

    def __init__(self, capacity: int, frame_shape: tuple[int, ...], stack: int, n_envs: int = 1, dtype: Any = np.uint8):
        self.slots = capacity // n_envs
        if self.slots < stack + 2:
            raise UsageError(f"replay_size={capacity} is too small: at least {(stack + 2) * n_envs}")
        self.stack = stack
        self.frames = np.zeros((n_envs, self.slots, *frame_shape), dtype)
        self.action = np.zeros((n_envs, self.slots), np.uint16)
        self.reward = np.zeros((n_envs, self.slots), np.float32)
        self.continues = np.zeros((n_envs, self.slots), bool)
        self.decided = np.zeros((n_envs, self.slots), bool)
        self.age = np.zeros((n_envs, self.slots), np.uint8)
        self.added = np.zeros(n_envs, np.int64)
        self._next_age = np.zeros(n_envs, np.uint8)

    @staticmethod
    def bytes_needed(capacity: int, frame_shape: tuple[int, ...], dtype: Any = np.uint8) -> int:
        return capacity * (int(np.prod(frame_shape)) * np.dtype(dtype).itemsize + 2 + 4 + 1 + 1 + 1)

    def arrays(self) -> dict[str, np.ndarray]:
        """All there is to know, by name."""
        names = ("frames", "action", "reward", "continues", "decided", "age", "added")
        return {name: getattr(self, name) for name in names} | {"next_age": self._next_age}

    def begin(self, env: int) -> None:
        """The next frame is the first of an episode."""
        self._next_age[env] = 0

    def add(self, env: int, frame: np.ndarray, action: int, reward: float, continues: bool) -> None:
        """`frame` was the newest when `action` was taken. Call `begin` or `cut` when the episode ends there."""
        slot = self._open(env, frame)
        self.action[env, slot], self.reward[env, slot], self.continues[env, slot] = action, reward, continues
        self.decided[env, slot] = True

    def cut(self, env: int, last_frame: np.ndarray) -> None:
        """The episode was cut off at `last_frame`, where no decision was taken."""
        self.decided[env, self._open(env, last_frame)] = False
        self.begin(env)

    def _open(self, env: int, frame: np.ndarray) -> int:
        slot = int(self.added[env] % self.slots)
        self.frames[env, slot] = frame
        self.age[env, slot] = self._next_age[env]
        self._next_age[env] = min(self._next_age[env] + 1, self.stack - 1)
        self.added[env] += 1
        return slot

    def sample(self, size: int, rng: np.random.Generator, n: int = 1, discount: float = 1.0) -> Sample:
        """Decisions, uniformly with replacement, among those whose frames are all there; with n-step targets if n > 1."""
        env, slot, number = (np.zeros(size, np.int64) for _ in range(3))
        held = np.minimum(self.added, self.slots)
        edges = np.cumsum(held)
        unfilled = np.arange(size)
        for _ in range(TRIES):
            drawn = rng.integers(0, edges[-1], len(unfilled))
            which = np.searchsorted(edges, drawn, side="right")
            position = drawn - (edges[which] - held[which])  # 0 for the oldest
            ever = self.added[which] - held[which] + position
            usable = self._usable(which, ever % self.slots, position, held)
            filled = unfilled[usable]
            env[filled], slot[filled] = which[usable], ever[usable] % self.slots
            number[filled] = ever[usable] * len(held) + which[usable]
            unfilled = unfilled[~usable]
            if not len(unfilled):
                break
        else:
            raise RuntimeError("nothing to sample: at least one decision and the frame after it must be there")
        around = (slot[:, None] + np.arange(1 - self.stack, 2)) % self.slots
        return Sample(
            self.frames[env[:, None], around], self.age[env, slot].astype(np.int32), self.action[env, slot].astype(np.int32),
            self.reward[env, slot], self.continues[env, slot].astype(np.float32), number.astype(np.uint32),
            self._ahead(env, slot, n, discount) if n > 1 else None,
        )  # fmt: skip

    def _ahead(self, env: np.ndarray, slot: np.ndarray, n: int, discount: float) -> FramesAhead:
        """Follow decisions for up to n steps; stop where a return ended, at the last frame of an episode that was cut off,
        and at the newest frame."""
        newest = (self.added[env] - 1) % self.slots
        total, last = self.reward[env, slot].astype(np.float64), slot.copy()
        weight = np.full(len(slot), discount)
        for _ in range(n - 1):
            after = (last + 1) % self.slots
            # The frame after the next decision must be there too, unless nothing follows it.
            goes_on = self.continues[env, last] & self.decided[env, after] & (last != newest)
            goes_on &= (after != newest) | ~self.continues[env, after]
            last = np.where(goes_on, after, last)
            total += np.where(goes_on, weight * self.reward[env, last], 0.0)
            weight = np.where(goes_on, weight * discount, weight)
        follows = self.continues[env, last]
        at = (last + 1) % self.slots
        around = (at[:, None] + np.arange(1 - self.stack, 1)) % self.slots
        with np.errstate(over="ignore"):  # rewards beyond float32 show in the loss, where they are reported
            total = total.astype(np.float32)
        return FramesAhead(
            total, (weight * follows).astype(np.float32), self.frames[env[:, None], around],
            self.age[env, at].astype(np.int32),
        )  # fmt: skip

    def _usable(self, env: np.ndarray, slot: np.ndarray, position: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Taken, with all its older frames still there, and the frame after it if that is needed."""
        followed = (position + 1 < held[env]) | ~self.continues[env, slot]
        return self.decided[env, slot] & (position >= self.age[env, slot]) & followed
