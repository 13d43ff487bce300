"""Environments of Gymnasium with discrete actions: by id, by class or function (`module:Name` or itself), or as an object."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv

from ube.envs.arguments import number, whole
from ube.envs.contract import OF_NUMBERS, REPLAY_BYTES, HostedEnvironment, RandomPlay
from ube.envs.gymnasium_games import STEP_TIMEOUT, SingleGames, VectorGames, rendered, resets_late
from ube.envs.spaces import Encoding, actions, encoding
from ube.errors import UsageError, nearest, words
from ube.places import OBJECT, imported, missing, place_of

PREFIX = "gym/"
CALIBRATION_STEPS = 1_000
LONGEST = 2_000
"""Decisions of a game in evaluation, where no time limit is known."""
EVALUATE_EVERY, EVALUATION_STEPS = 10_000, 2_000
SYMBOLIC = 32
"""Whole numbers up to 255 that stay below this are symbols rather than brightness."""
HUGE = 1e6
"""Bounds beyond this are as good as none."""

Source = Callable[..., Any]


def source_of(env_id: str) -> Source:
    """gym/ID, an ID that Gymnasium knows, or module:NAME -> what makes it."""
    asked = env_id.removeprefix(PREFIX)
    _, colon, name = asked.partition(":")
    if colon:
        found = imported(asked, "my_module:MyEnv")
        if callable(found):
            return found
        if found is not None:
            raise UsageError(f"{env_id}: {name} is {type(found).__name__}; give a class or a function that makes one")
        if not known(name):
            raise missing(asked)
        asked = name
    if not known(asked):
        raise UsageError(f"no environment {env_id!r} in Gymnasium: {nearest(asked, gymnasium_ids())}")
    return functools.partial(gymnasium.make, asked, disable_env_checker=True)


REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
"""Packages that must be imported before Gymnasium knows their ids."""


def known(env_id: str) -> bool:
    for start, module in REGISTERED_BY.items():
        if env_id.startswith(start):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise UsageError(f"{env_id} needs {module}: pip install {module}") from error
    return env_id in gymnasium.registry or any(spec.startswith(f"{env_id}-v") for spec in gymnasium.registry)


def gymnasium_ids() -> list[str]:
    """Those that need no other package."""
    return [name for name, spec in gymnasium.registry.items() if "/" not in name and spec.entry_point is not None]


def gymnasium_environment(
    source: Any, name: str, *, frame_stack: int = 1, step_timeout: float | None = None, **env_args: Any
) -> HostedEnvironment:
    """source: a class or function that makes an environment from `env_args`, or one that is made.

    frame_stack: how many of the last observations are seen together. step_timeout: seconds that a step or a reset may take;
    one that takes longer hangs, and stops the run; None waits for as long as it takes. An object is used for everything
    there is to do, training and evaluation in turn, and closed by whoever made it.
    """
    whole("frame_stack", frame_stack, 1)
    if step_timeout is not None and not number(STEP_TIMEOUT, step_timeout) > 0:
        raise UsageError(
            f"{STEP_TIMEOUT}={step_timeout}: it must be positive; leave it out to wait for as long as it takes"
        )
    made = isinstance(source, gymnasium.Env | VectorEnv)
    if made and env_args:
        raise UsageError(f"{name} is made already: it takes no arguments ({', '.join(env_args)})")
    first: Any = source if made else _made(source, name, env_args)
    if not isinstance(first, gymnasium.Env | VectorEnv):
        raise UsageError(f"{name} gave {type(first).__name__}, which is no gymnasium.Env: wrap it as one")
    many = first.num_envs if isinstance(first, VectorEnv) else None
    kind = "single_" if many else ""
    action_space, observation_space = _space(first, f"{kind}action_space"), _space(first, f"{kind}observation_space")
    choices, seen = actions(action_space, name), encoding(observation_space, name)
    spec = getattr(first, "spec", None)
    limit = getattr(spec, "max_episode_steps", None)
    if not made:
        first.close()

    def open_games(n_envs: int) -> Any:
        if many:
            env = first if made else _made(source, name, env_args)
            return VectorGames(env, seen, choices, name, not made, step_timeout)
        if made and n_envs != 1:
            raise UsageError(f"n_envs={n_envs}: {name} is one object; give a class or a function that makes as many")
        envs = [first] if made else [_made(source, name, env_args) for _ in range(n_envs)]
        return SingleGames(envs, seen, choices, name, not made, step_timeout)

    def screens(seed: int, played: np.ndarray) -> Iterator[np.ndarray]:
        shown = first if made else _made(source, name, env_args | {"render_mode": "rgb_array"})
        return rendered(SingleGames([shown], seen, choices, name, owned=not made), seed, played)

    shape = (*seen.shape[:-1], seen.shape[-1] * frame_stack)
    low, high = (np.concatenate([bound] * frame_stack, -1) for bound in (seen.low, seen.high))
    size = int(np.prod(seen.shape)) * seen.dtype.itemsize
    notes = {
        "observation": seen.words + (f", the last {frame_stack} together" if frame_stack > 1 else ""),
        "actions": f"{choices.number} ({action_space})",
        "time limit": f"{limit} steps, bootstrapped" if limit else "not known; where one cuts, it is bootstrapped",
    }
    return HostedEnvironment(
        name, shape, seen.dtype, low, high, choices.number, open_games, seen.shape, frame_stack, 1, None if many else screens,
        limit or LONGEST, EVALUATE_EVERY, EVALUATION_STEPS, many or (1 if made else None),
        bool(many) and resets_late(first), made,
        lambda: calibrated(open_games, many or 1, seen, frame_stack, choices.number), seen.encode, choices.decode,
        max(int(REPLAY_BYTES / size), 1_000), True, notes,
        defaults={} if seen.dtype == np.bool_ else OF_NUMBERS,
    )  # fmt: skip


def _made(source: Source, name: str, env_args: dict[str, Any]) -> Any:
    try:
        return source(**env_args)
    except (UsageError, KeyboardInterrupt):
        raise
    except Exception as error:
        given = f" with {env_args}" if env_args else ""
        raise UsageError(f"{name} could not be made{given} ({words(error)}){_hint(source, env_args)}") from error


def _hint(source: Source, env_args: dict[str, Any]) -> str:
    """What else an argument could be called."""
    if isinstance(source, functools.partial):  # of an id
        entry = gymnasium.spec(source.args[0]).entry_point
        source = load_env_creator(entry) if isinstance(entry, str) else entry or source
    try:
        taken = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # of a class that is not written in Python
        return ""
    names = [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return ""
    hints = [
        f"; {name}: {nearest(name, names) if names else 'it takes none'}" for name in env_args if name not in names
    ]
    return "".join(hints)


def _space(env: Any, name: str) -> Any:
    space = getattr(env, name, None)
    if not isinstance(space, gymnasium.Space):
        said = "has no" if space is None else f"has {type(space).__name__} for"
        raise UsageError(f"{type(env).__name__} {said} {name}: set it to one of gymnasium.spaces")
    return space


def calibrated(
    open_games: Callable[[int], Any], n_envs: int, seen: Encoding, frame_stack: int, n_actions: int
) -> RandomPlay:
    """Random play, always the same, in one environment (or in those of a vector)."""
    steps = -(-CALIBRATION_STEPS // n_envs)
    plan = np.random.default_rng(0).integers(0, n_actions, (steps, n_envs))
    games = open_games(n_envs)
    first, played = games.reset(0), [games.step(chosen) for chosen in plan]
    again, replayed = games.reset(0), [games.step(chosen) for chosen in plan[:100]]
    games.close()
    pairs = [
        (first, again),
        *(pair for one, two in zip(played, replayed, strict=False) for pair in zip(one, two, strict=True)),
    ]
    repeats = all(np.array_equal(one, two, equal_nan=one.dtype.kind == "f") for one, two in pairs)
    frames = [first, *(frame for step in played for frame in (step.last_frame, step.frame))]
    episodes = int(sum((step.terminated | step.truncated).sum() for step in played))
    paid = np.concatenate([step.reward for step in played])
    paid = paid[np.isfinite(paid)]
    largest = float(np.abs(paid).max(initial=0.0))
    low, high = _bounds(np.concatenate(frames), seen)
    if low.ndim:
        low, high = (np.concatenate([bound] * frame_stack, -1) for bound in (low, high))
    span = (float(paid.min(initial=0.0)), float(paid.max(initial=0.0)))
    return RandomPlay(low.tolist(), high.tolist(), largest or 1.0, steps * n_envs, span, episodes, repeats)


def _bounds(frames: np.ndarray, seen: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """The space's own, but where they say nothing: none at all, or bytes of which only small ones are used, as symbols."""
    largest = float(frames[:, seen.whole].max(initial=0))
    symbols = largest < SYMBOLIC
    if seen.dtype == bool:
        return np.zeros(()), np.ones(())
    if seen.dtype == np.uint8:
        return np.zeros(()), np.asarray(2 * max(largest, 1.0) if symbols else 255.0)
    met = np.where(np.isfinite(frames), frames, 0.0).astype(np.float64)
    middle, reach = (met.max(0) + met.min(0)) / 2, np.ptp(met, 0)
    reach = np.where(reach > 0, reach, 1.0)
    unbounded = ~((np.abs(seen.low) < HUGE) & (np.abs(seen.high) < HUGE))
    low, high = np.where(unbounded, middle - reach, seen.low), np.where(unbounded, middle + reach, seen.high)
    used = seen.whole & symbols & (seen.low == 0) & (seen.high > 4 * SYMBOLIC)
    return low, np.where(used, 2 * max(largest, 1.0), high)


def name_of(source: Any) -> str:
    """Of what was given from Python: module:NAME where it can be found again."""
    if isinstance(source, gymnasium.Env | VectorEnv):
        return OBJECT + type(source.unwrapped).__name__
    return place_of(source)
