"""DeepSea (Osband et al. 2019) as a Gymnasium environment, for the examples beside it.

A grid of size × size cells. Each of `size` decisions goes one row down, and one column left or right; going right costs
0.01/size, and only who went right every time finds the treasure of 1. Which of the two actions is "right" is drawn anew for
each cell, so random actions find the treasure in one of 2^size episodes.
"""

import gymnasium as gym
import numpy as np


class DeepSea(gym.Env):
    def __init__(self, size: int, seed: int):
        self.size, self.row, self.column = size, 0, 0
        self.right = np.random.default_rng(seed).integers(2, size=(size, size))
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._observation(), {}

    def step(self, action):
        right = bool(action == self.right[self.row, self.column])
        treasure = right and self.row == self.column == self.size - 1
        reward = float(treasure) - 0.01 / self.size * right
        self.column = min(self.column + 1, self.size - 1) if right else max(self.column - 1, 0)
        self.row += 1
        return self._observation(), reward, self.row == self.size, False, {}

    def _observation(self):
        """One-hot of the cell; zeros below the last row."""
        cells = np.zeros((self.size, self.size), np.float32)
        if self.row < self.size:
            cells[self.row, self.column] = 1.0
        return cells.ravel()


def summary(returns: list[float]) -> str:
    """Solved at the first find from which on at least 10 of 100 episodes find the treasure; episodes count from 1."""
    found = np.asarray(returns) > 0.5
    solved = [episode for episode in np.flatnonzero(found) if found[episode : episode + 100].sum() >= 10]
    verdict = f"solved at episode {solved[0] + 1}" if solved else "not solved"
    return f"treasure in {found.sum()} of {len(found)} episodes, {verdict}"
