"""Spaces of Gymnasium as arrays: what an agent sees of an observation, and what its action number means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ube.errors import UsageError, brief

MOST_CATEGORIES, MOST_ACTIONS = 10_000, 4_096
COLOURS = (1, 3, 4)
SCREEN = 36
"""Pixels a side from which a flat array of bytes is taken for a picture."""


class Encoding(NamedTuple):
    """Of an observation space: arrays of one shape and dtype."""

    encode: Callable[[Any], np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype
    low: np.ndarray
    high: np.ndarray
    whole: np.ndarray
    """Which inputs are whole numbers, but no categories."""
    words: str


def encoding(space: spaces.Space, name: str) -> Encoding:
    """Box as it is (pictures with channels last, other arrays flat), categories one-hot, Dict and Tuple side by side."""
    found = _encoding(space, name)
    if found is None:
        raise UsageError(f"{name} shows only text: give it a wrapper that makes numbers of it")
    return found


def _encoding(space: spaces.Space, name: str) -> Encoding | None:
    """None for text, which is left out."""
    if isinstance(space, spaces.Box):
        return _box(space)
    if isinstance(space, spaces.Discrete):
        return _one_hot([int(space.n)], np.array([int(space.start)]), name, f"one of {space.n} states, one-hot")
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec).ravel().tolist()
        return _one_hot(sizes, np.asarray(space.start).ravel(), name, f"{len(sizes)} categories, one-hot side by side")
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))

        def bits(seen: Any) -> np.ndarray:
            array = np.asarray(seen)
            if array.shape != space.shape or not np.isin(array, (0, 1)).all():
                raise WrongObservation(f"the observation {brief(seen)}, which is outside of its space")
            return array.ravel().astype(bool)

        return _bits(bits, size, f"{size} bits")
    if isinstance(space, spaces.Dict):
        return _joined(dict(space.spaces), name)
    if isinstance(space, spaces.Tuple):
        return _joined(dict(enumerate(space.spaces)), name)
    if isinstance(space, spaces.Text) or "Mission" in type(space).__name__:  # MiniGrid's is a space of its own
        return None
    raise UsageError(
        f"{name} has observations of {type(space).__name__}, which cannot be read: give it a wrapper that makes Box, "
        "Discrete, MultiDiscrete, MultiBinary, Dict or Tuple of them"
    )


def _box(space: spaces.Box) -> Encoding:
    shape, declared = space.shape, np.dtype(space.dtype)
    kept = declared if declared in (np.uint8, np.bool_) else np.dtype(np.float32)
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    if len(shape) == 2 and kept == np.uint8 and min(shape) >= SCREEN:
        arrange, words = (lambda x: x[..., None]), "a grey picture"
    elif len(shape) == 3 and shape[0] in COLOURS and shape[2] not in COLOURS:
        arrange, words = (lambda x: np.moveaxis(x, 0, -1)), "a picture, its channels moved to the end"
    elif len(shape) == 3:
        arrange, words = (lambda x: x), "a picture"
    else:
        arrange, words = np.ravel, "one number" if np.prod(shape) == 1 else f"{int(np.prod(shape))} numbers"
    low, high = arrange(low), arrange(high)

    def encode(seen: Any) -> np.ndarray:
        array = np.asarray(seen)
        if array.shape != shape:
            raise WrongObservation(f"an observation of shape {array.shape}, not {shape}")
        if declared.kind in "iub" and array.dtype.kind not in "iub":
            raise WrongObservation(f"an observation of {array.dtype}, not {declared}")
        return arrange(array).astype(kept)

    whole = np.full(low.shape, declared.kind in "iu")
    return Encoding(encode, low.shape, kept, low, high, whole, words)


class WrongObservation(ValueError):
    """Not what the space had said."""


def _bits(encode: Callable[[Any], np.ndarray], size: int, words: str) -> Encoding:
    none = np.zeros(size)
    return Encoding(encode, (size,), np.dtype(bool), none, none + 1, none.astype(bool), words)


def _one_hot(sizes: list[int], start: np.ndarray, name: str, words: str) -> Encoding:
    total = sum(sizes)
    if total > MOST_CATEGORIES:
        raise UsageError(
            f"{name} has {total:,} states, more than the {MOST_CATEGORIES:,} that are told apart one-hot: give it a wrapper "
            "that makes numbers of them"
        )
    offsets = np.cumsum([0, *sizes[:-1]])

    def encode(seen: Any) -> np.ndarray:
        given = np.asarray(seen).ravel().astype(np.int64)
        chosen = given - start if len(given) == len(sizes) else np.array([-1])
        if (chosen < 0).any() or (chosen >= sizes).any():
            raise WrongObservation(f"the observation {brief(seen)}, which is outside of its space")
        bits = np.zeros(total, bool)
        bits[offsets + chosen] = True
        return bits

    return _bits(encode, total, words)


def _joined(parts: dict[Any, spaces.Space], name: str) -> Encoding | None:
    found = {key: _encoding(part, name) for key, part in parts.items()}
    read = {key: one for key, one in found.items() if one is not None}
    left_out = "".join(f"; {key} is text, and left out" for key, one in found.items() if one is None)
    if not read:
        return None
    words = ", ".join(f"{key} ({one.words})" for key, one in read.items()) + left_out
    if len(read) == 1:
        ((key, only),) = read.items()
        return only._replace(encode=lambda seen: only.encode(seen[key]), words=words)
    kept = np.dtype(bool) if all(one.dtype == bool for one in read.values()) else np.dtype(np.float32)
    fields = ("low", "high", "whole")
    low, high, whole = (np.concatenate([getattr(one, field).ravel() for one in read.values()]) for field in fields)

    def encode(seen: Any) -> np.ndarray:
        return np.concatenate([one.encode(seen[key]).ravel() for key, one in read.items()]).astype(kept)

    return Encoding(encode, low.shape, kept, low, high, whole, f"side by side: {words}")


class Actions(NamedTuple):
    number: int
    decode: Callable[[int], Any]
    """The number of an action -> what the environment takes."""


def actions(space: spaces.Space, name: str) -> Actions:
    """Discrete as it is; the combinations of MultiDiscrete and MultiBinary counted through."""
    if isinstance(space, spaces.Discrete):
        first, kind = int(space.start), np.dtype(space.dtype).type
        return Actions(int(space.n), lambda action: kind(first + action))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        sizes, start = np.full(space.shape, 2).ravel(), np.zeros(space.shape).ravel()
        if isinstance(space, spaces.MultiDiscrete):
            sizes, start = np.asarray(space.nvec).ravel(), np.asarray(space.start).ravel()
        number = int(np.prod(sizes.astype(float)))
        if number > MOST_ACTIONS:
            raise UsageError(
                f"{name} has {number:,} combinations of actions, more than {MOST_ACTIONS:,}: give it a wrapper with fewer"
            )

        def decode(action: int) -> np.ndarray:
            return (np.array(np.unravel_index(action, sizes)) + start).reshape(space.shape).astype(space.dtype)

        return Actions(number, decode)
    what = "continuous actions" if isinstance(space, spaces.Box) else "actions"
    raise UsageError(
        f"{name} has {what} ({space}): these agents choose among finitely many; give it a wrapper with a Discrete action "
        "space"
    )
