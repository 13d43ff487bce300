"""Environments of Gymnasium while they are played.

One at a time they are stepped and reset here, so that no autoreset is involved. A vector environment resets itself in one of
three ways, and must be told apart by its mode:

- SAME_STEP: the observation is already that of the new episode, the last one is in `final_obs`
- NEXT_STEP: the next step would be spent on the reset, whatever the action: it is reset here instead, by `reset_mask`, where
  that is known to work; elsewhere the loop leaves that step out (`resets_late`)
- DISABLED: by `reset_mask`, since nobody else does it
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ube.envs.contract import HostedStep
from ube.envs.spaces import Actions, Encoding, WrongObservation
from ube.envs.watchdog import Hangs, Watchdog
from ube.errors import RunError, UsageError, words

STEP_TIMEOUT = "step_timeout"
"""An argument of every environment of Gymnasium."""


def resets_late(env: Any) -> bool:
    """Vectors of a kind of their own need not know `reset_mask`, nor need wrappers, and worker processes that do not share
    memory forget to clear their flag when they are told to reset."""
    by_mask = isinstance(env, SyncVectorEnv) or (isinstance(env, AsyncVectorEnv) and env.shared_memory)
    return _mode(env) is AutoresetMode.NEXT_STEP and not by_mask


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
        seeds = seeds_of(seed, len(self.envs))
        return np.stack([self._first(env, own) for env, own in zip(self.envs, seeds, strict=True)])

    def _first(self, env: Any, seed: int | None = None) -> np.ndarray:
        with blamed(self, "reset"):
            observation, _ = _parts(env.reset(seed=seed), ("observation", "info"))
            return self.seen.encode(observation)

    def step(self, actions: np.ndarray) -> HostedStep:
        self.steps += 1
        results = [self._one(env, int(action)) for env, action in zip(self.envs, actions, strict=True)]
        frame, last, reward, terminated, truncated = (np.array(part) for part in zip(*results, strict=True))
        return HostedStep(frame, last, reward, terminated, truncated, np.zeros(len(results), bool))

    def _one(self, env: Any, action: int) -> tuple[Any, ...]:
        with blamed(self, "step"):
            observation, reward, terminated, truncated, _ = _parts(env.step(self.choices.decode(action)), STEP)
            last, paid = self.seen.encode(observation), float(reward)
        ended = bool(terminated), bool(truncated) and not terminated
        return (self._first(env) if any(ended) else last), last, paid, *ended

    def restart(self, env: int) -> np.ndarray:
        return self._first(self.envs[env])

    def close(self) -> None:
        if self.owned and not self.hangs:
            for env in self.envs:
                env.close()


def rendered(games: SingleGames, seed: int, actions: np.ndarray) -> Iterator[np.ndarray]:
    """The screen before each action of one game, (height, width, 3); the game is played for it once more."""
    (env,) = games.envs
    games.reset(seed)
    for number, action in enumerate(actions, 1):
        with blamed(games, "render"):
            screen = env.render()
        if not isinstance(screen, np.ndarray) or screen.ndim != 3 or screen.shape[2] != 3:
            raise UsageError(
                f"{games.name} renders {type(screen).__name__} in render_mode={env.render_mode!r}: a video needs one that "
                "gives pictures (height, width, 3) when made with render_mode='rgb_array'"
            )
        yield screen.astype(np.uint8)
        after = games.step(np.array([action]))
        if number < len(actions) and (after.terminated | after.truncated).any():
            raise RunError(
                f"{games.name} does not repeat itself from its seed, so its game cannot be shown: seed its randomness in "
                "reset(seed=…)"
            )
    games.close()


class VectorGames:
    """A vector environment, whatever its mode of resetting."""

    def __init__(
        self, env: Any, seen: Encoding, choices: Actions, name: str, owned: bool, timeout: float | None = None
    ):
        self.env, self.seen, self.choices, self.name, self.owned = env, seen, choices, name, owned
        self.mode, self.late = _mode(env), resets_late(env)
        self.steps, self.timeout, self.hangs = 0, timeout, False

    def reset(self, seed: int) -> np.ndarray:
        with blamed(self, "reset"):
            return self._frames(self.env.reset(seed=self._seed(seed))[0])

    def _seed(self, seed: int) -> Any:
        """One for each where the vector is made of environments; others take a single one."""
        seeds = seeds_of(seed, self.env.num_envs)
        return seeds if isinstance(self.env.unwrapped, AsyncVectorEnv | SyncVectorEnv) else seeds[0]

    def step(self, actions: np.ndarray) -> HostedStep:
        self.steps += 1
        with blamed(self, "step"):
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
            elif ended.any() and not self.late:
                frame = self._begun(ended)
                if not np.array_equal(frame[~ended], last[~ended]):
                    raise WrongObservation(
                        "new episodes to all when one was to begin: make it of single environments "
                        "(gymnasium.make_vec(…, vectorization_mode='sync'))"
                    )
        none = np.zeros(len(actions), bool)
        return HostedStep(frame, last, np.array(reward, np.float64), terminated, truncated & ~terminated, none)

    def restart(self, env: int) -> np.ndarray:
        if self.late:
            raise RunError(
                f"{self.name}: an episode does not end, and one alone cannot be begun anew: give it a time limit"
            )
        with blamed(self, "reset"):
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
            with warnings.catch_warnings(action="ignore"):  # that it is still at it
                self.env.close(terminate=True)  # it would wait for an answer
        elif self.owned and not self.hangs:
            self.env.close()


STEP = ("observation", "reward", "terminated", "truncated", "info")


def _parts(given: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(given, tuple) or len(given) != len(names):
        what = f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__
        raise WrongObservation(f"{what} where Gymnasium asks for ({', '.join(names)})")
    return given


class blamed:
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
                f"{self.games.name} failed in {self.doing} {self.games.steps} ({words(error)}): mend it"
            ) from error


def seeds_of(seed: int, n_envs: int) -> list[int]:
    """Of each game; some take only those below 2³¹."""
    return (np.random.SeedSequence(seed).generate_state(n_envs).astype(np.int64) >> 1).tolist()
