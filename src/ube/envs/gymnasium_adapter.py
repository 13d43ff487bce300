"""Environments of Gymnasium with discrete actions: by id, by class or function (`module:Name` or itself), or as an object.

One at a time they are stepped and reset here, so that no autoreset is involved. A vector environment resets itself in one of
three ways, and must be told apart by its mode:

- SAME_STEP: the observation is already that of the new episode, the last one is in `final_obs`
- NEXT_STEP: the next step would be spent on the reset, whatever the action: it is reset here instead, by `reset_mask`
- DISABLED: the same, since nobody else does it
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ube.envs.arguments import number, whole
from ube.envs.contract import OF_NUMBERS, HostedEnvironment, HostedStep, RandomPlay
from ube.envs.spaces import Actions, Encoding, WrongObservation, actions, encoding
from ube.envs.watchdog import Hangs, Watchdog
from ube.errors import RunError, UsageError, nearest

PREFIX = "gym/"
STEP_TIMEOUT = "step_timeout"
"""An argument of every environment here."""
CALIBRATION_STEPS = 1_000
REPLAY_BYTES = 2e9
"""The most that the replay takes where nobody says: pictures are large."""
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
    module, colon, name = asked.partition(":")
    if colon:
        if not module or module.startswith("."):
            raise UsageError(f"{env_id}: write module:NAME, such as my_module:MyEnv")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            raise UsageError(
                f"{env_id}: the module {module!r} cannot be imported ({_words(error)}); is it installed, in this folder (ube "
                "train, ube compare), or on PYTHONPATH?"
            ) from error
        if callable(found):
            return found
        if found is not None:
            raise UsageError(f"{env_id}: {name} is {type(found).__name__}; give a class or a function that makes one")
        if not known(name):
            names = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, type)]
            hint = nearest(name, names) if names else "give the name of a class or a function in it"
            raise UsageError(f"{env_id}: {module} has no {name!r}: {hint}")
        asked = name
    if not known(asked):
        raise UsageError(f"no environment {env_id!r} in Gymnasium: {nearest(asked, gymnasium_ids())}")
    return lambda **env_args: gymnasium.make(asked, disable_env_checker=True, **env_args)


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
    action_space = getattr(first, f"{kind}action_space")
    choices, seen = actions(action_space, name), encoding(getattr(first, f"{kind}observation_space"), name)
    if many and _resets_one_step_late_for_sure(first):
        raise UsageError(
            f"{name} resets itself on the next step, and without shared memory cannot be stopped: make it with "
            "autoreset_mode=AutoresetMode.SAME_STEP"
        )
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

    shape = (*seen.shape[:-1], seen.shape[-1] * frame_stack)
    low, high = (np.concatenate([bound] * frame_stack, -1) for bound in (seen.low, seen.high))
    size = int(np.prod(seen.shape)) * seen.dtype.itemsize
    notes = {
        "observation": seen.words + (f", the last {frame_stack} together" if frame_stack > 1 else ""),
        "actions": f"{choices.number} ({action_space})",
        "time limit": f"{limit} steps, bootstrapped" if limit else "not known; where one cuts, it is bootstrapped",
    }
    return HostedEnvironment(
        name, shape, seen.dtype, low, high, choices.number, open_games, seen.shape, frame_stack, 1, None,
        limit or LONGEST, EVALUATE_EVERY, EVALUATION_STEPS, many or (1 if made else None), made,
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
        raise UsageError(f"{name} could not be made{given} ({_words(error)})") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _resets_one_step_late_for_sure(env: Any) -> bool:
    """Worker processes that do not share memory forget to clear their flag when they are told to reset."""
    inner = env.unwrapped
    return isinstance(inner, AsyncVectorEnv) and not inner.shared_memory and _mode(env) is AutoresetMode.NEXT_STEP


def _mode(env: VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return AutoresetMode(mode) if not isinstance(mode, AutoresetMode) else mode


class SingleGames:
    """Environments one at a time."""

    def __init__(
        self, envs: list[Any], seen: Encoding, choices: Actions, name: str, owned: bool, timeout: float | None = None
    ):
        self.envs, self.seen, self.choices, self.name, self.owned = envs, seen, choices, name, owned
        self.steps, self.timeout, self.hangs = 0, timeout, False

    def reset(self, seed: int) -> np.ndarray:
        seeds = _seeds(seed, len(self.envs))
        return np.stack([self._first(env, own) for env, own in zip(self.envs, seeds, strict=True)])

    def _first(self, env: Any, seed: int | None = None) -> np.ndarray:
        with _blamed(self, "reset"):
            return self.seen.encode(env.reset(seed=seed)[0])

    def step(self, actions: np.ndarray) -> HostedStep:
        self.steps += 1
        results = [self._one(env, int(action)) for env, action in zip(self.envs, actions, strict=True)]
        frame, last, reward, terminated, truncated = (np.array(part) for part in zip(*results, strict=True))
        return HostedStep(frame, last, reward, terminated, truncated, np.zeros(len(results), bool))

    def _one(self, env: Any, action: int) -> tuple[Any, ...]:
        with _blamed(self, "step"):
            observation, reward, terminated, truncated, _ = env.step(self.choices.decode(action))
            last, paid = self.seen.encode(observation), float(reward)
        ended = bool(terminated), bool(truncated) and not terminated
        return (self._first(env) if any(ended) else last), last, paid, *ended

    def restart(self, env: int) -> np.ndarray:
        return self._first(self.envs[env])

    def close(self) -> None:
        if self.owned and not self.hangs:
            for env in self.envs:
                env.close()


class VectorGames:
    """A vector environment, whatever its mode of resetting."""

    def __init__(
        self, env: Any, seen: Encoding, choices: Actions, name: str, owned: bool, timeout: float | None = None
    ):
        self.env, self.seen, self.choices, self.name, self.owned = env, seen, choices, name, owned
        self.mode, self.steps, self.timeout, self.hangs = _mode(env), 0, timeout, False

    def reset(self, seed: int) -> np.ndarray:
        with _blamed(self, "reset"):
            return self._frames(self.env.reset(seed=self._seed(seed))[0])

    def _seed(self, seed: int) -> Any:
        """One for each where the vector is made of environments; others take a single one."""
        seeds = _seeds(seed, self.env.num_envs)
        return seeds if isinstance(self.env.unwrapped, AsyncVectorEnv | SyncVectorEnv) else seeds[0]

    def step(self, actions: np.ndarray) -> HostedStep:
        self.steps += 1
        with _blamed(self, "step"):
            taken = np.stack([self.choices.decode(int(action)) for action in actions])
            observation, reward, terminated, truncated, info = self.env.step(taken)
            for what, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
                if np.shape(value) != (self.env.num_envs,):
                    raise WrongObservation(f"{what} of shape {np.shape(value)}, not ({self.env.num_envs},)")
            frame = last = self._frames(observation)
            terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
            ended = terminated | truncated
            if ended.any() and self.mode is AutoresetMode.SAME_STEP:
                last = frame.copy()
                for env in np.flatnonzero(ended):
                    last[env] = self.seen.encode(info["final_obs"][env])
            elif ended.any():
                frame = self._begun(ended)
                if not np.array_equal(frame[~ended], last[~ended]):
                    raise WrongObservation(
                        "new episodes to all when one was to begin: make it of single environments "
                        "(gymnasium.make_vec(…, vectorization_mode='sync'))"
                    )
        none = np.zeros(len(actions), bool)
        return HostedStep(frame, last, np.array(reward, np.float64), terminated, truncated & ~terminated, none)

    def restart(self, env: int) -> np.ndarray:
        with _blamed(self, "reset"):
            return self._begun(np.arange(self.env.num_envs) == env)[env]

    def _begun(self, which: np.ndarray) -> np.ndarray:
        return self._frames(self.env.reset(options={"reset_mask": which})[0])

    def _frames(self, observation: Any) -> np.ndarray:
        from gymnasium.vector.utils import iterate

        return np.stack([self.seen.encode(one) for one in iterate(self.env.observation_space, observation)])

    def close(self) -> None:
        if self.hangs and isinstance(self.env.unwrapped, AsyncVectorEnv):
            for process in self.env.unwrapped.processes:
                process.kill()
            self.env.close(terminate=True)  # it would wait for an answer
        elif self.owned and not self.hangs:
            self.env.close()


class _blamed:
    """Errors of an environment name it, and what it was doing. So does a hang, if there is a limit."""

    def __init__(self, games: SingleGames | VectorGames, doing: str):
        self.games, self.doing = games, doing
        self.watch = Watchdog(games.timeout)

    def __enter__(self) -> None:
        self.watch.start()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.watch.stop()
        if isinstance(error, Hangs):
            self.games.hangs = True
            raise RunError(
                f"{self.games.name} did not come back from {self.doing} {self.games.steps} within {self.games.timeout:g} s: "
                f"mend it, or give it longer (--set env.{STEP_TIMEOUT}=N); the last good state is kept"
            ) from error
        if isinstance(error, WrongObservation):
            raise RunError(f"{self.games.name} gave {error}, in {self.doing} {self.games.steps}: mend it") from error
        if isinstance(error, Exception) and not isinstance(error, RunError | UsageError):
            raise RunError(
                f"{self.games.name} failed in {self.doing} {self.games.steps} ({_words(error)}): mend it"
            ) from error


def _seeds(seed: int, n_envs: int) -> list[int]:
    """Of each game; some take only those below 2³¹."""
    return (np.random.SeedSequence(seed).generate_state(n_envs).astype(np.int64) >> 1).tolist()


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


OBJECT = "object/"
"""Before the names of environments that only Python can give again."""


def name_of(source: Any) -> str:
    """Of what was given from Python: module:NAME where it can be found again."""
    if isinstance(source, gymnasium.Env | VectorEnv):
        return OBJECT + type(source.unwrapped).__name__
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", type(source).__name__)
    if module in (None, "__main__") or not name.isidentifier():
        return OBJECT + re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_")
    return f"{module}:{name}"
