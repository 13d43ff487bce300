"""The peers' environments, with the rules of ours: plain NumPy behind Gymnasium's interface, bytes as observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

Stepped = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class DeepSea(gymnasium.Env):
    """`ube.envs.own.deep_sea`: the cell one-hot, (size, size)."""

    def __init__(self, size: int = 20, move_cost: float = 0.01, seed: int = 0):
        self.size, self.cost = size, move_cost / size
        self.right = np.random.default_rng(seed).integers(0, 2, (size, size))
        self.observation_space = gymnasium.spaces.Box(0, 1, (size, size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.row = self.column = 0

    def _observation(self) -> np.ndarray:
        cells = np.zeros((self.size, self.size), np.uint8)
        if self.row < self.size:
            cells[self.row, self.column] = 1
        return cells

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.row = self.column = 0
        return self._observation(), {}

    def step(self, action: Any) -> Stepped:
        reward = 0.0
        if int(action) == self.right[self.row, self.column]:
            reward = float(self.column == self.size - 1) - self.cost
            self.column = min(self.column + 1, self.size - 1)
        else:
            self.column = max(self.column - 1, 0)
        self.row += 1
        return self._observation(), reward, self.row == self.size, False, {}


class Breakout(gymnasium.Env):
    """MinAtar's own, without sticky actions and with the three actions that matter, as gymnax has it; channels first,
    as PyTorch wants them."""

    LIMIT = 1_000  # steps, gymnax's

    def __init__(self) -> None:
        from minatar import Environment

        self.game = Environment("breakout", sticky_action_prob=0.0)
        self.game.seed(0)
        self.actions = self.game.minimal_action_set()
        self.observation_space = gymnasium.spaces.Box(0, 1, (4, 10, 10), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self.actions))
        self.time = 0

    def _observation(self) -> np.ndarray:
        return np.ascontiguousarray(self.game.state().transpose(2, 0, 1)).view(np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.game.reset()
        self.time = 0
        return self._observation(), {}

    def step(self, action: Any) -> Stepped:
        reward, terminated = self.game.act(self.actions[int(action)])
        self.time += 1
        truncated = self.time >= self.LIMIT and not terminated
        return self._observation(), float(reward), bool(terminated), truncated, {}


class Lives(gymnasium.Wrapper):
    """A lost life ends the return, and the game goes on: Gymnasium's own `terminal_on_life_loss` begins a new one."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.over, self.lives = True, 0
        self.last: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        info: dict[str, Any] = {"lives": self.lives}
        if self.over:
            self.last, info = self.env.reset(**options)
        self.over, self.lives = False, info["lives"]
        return self.last, info

    def step(self, action: Any) -> Any:
        self.last, reward, terminated, truncated, info = self.env.step(action)
        self.over = terminated or truncated
        lost, self.lives = info["lives"] < self.lives, info["lives"]
        return self.last, reward, terminated or lost, truncated, info


def atari() -> gymnasium.Env:
    """Breakout of Atari with the preprocessing of Mnih et al. 2015: stacks of four, channels first."""
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=False)
    env = AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, terminal_on_life_loss=False)
    return TransformReward(FrameStackObservation(Lives(env), 4), lambda reward: float(np.clip(reward, -1, 1)))


def make(task: str) -> gymnasium.Env:
    return {"deep_sea": DeepSea, "breakout": Breakout, "atari": atari}[task]()
