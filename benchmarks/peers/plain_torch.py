"""DQN in one file of PyTorch and NumPy, in the manner of CleanRL: `python -m benchmarks.peers.plain_torch SPEC`.

Leaner than CleanRL's own: no vector environment around the one game, no logging, a replay of bare arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import worker
from benchmarks.peers import games, parts

DISCOUNT = 0.99


class Bytes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 255.0


class Agent:
    def __init__(self, spec: dict[str, Any]):
        self.spec, self.rng = spec, np.random.default_rng(0)
        self.env = games.make(spec["task"])
        shape, capacity = self.env.observation_space.shape, spec["replay"]
        assert shape is not None
        self.n_actions = int(self.env.action_space.n)  # type: ignore[attr-defined]
        self.network, self.target = self.new_network(shape), self.new_network(shape)
        self.target.load_state_dict(self.network.state_dict())
        kind, rate, settings = parts.optimiser(spec["task"])
        self.optimiser = kind(self.network.parameters(), lr=rate, **settings)  # type: ignore[call-arg]
        self.observations = np.zeros((capacity, *shape), np.uint8)
        self.next_observations = np.zeros((capacity, *shape), np.uint8)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards, self.continues = np.zeros(capacity, np.float32), np.zeros(capacity, np.float32)
        self.added = self.updates = 0
        self.observation, _ = self.env.reset()

    def new_network(self, shape: tuple[int, ...]) -> nn.Sequential:
        task = self.spec["task"]
        if task == "atari":
            return nn.Sequential(Bytes(), parts.nature_body(), nn.Linear(512, self.n_actions))
        mlp = task == "deep_sea"
        body = parts.mlp_body(int(np.prod(shape))) if mlp else parts.minatar_body(shape[0])
        return nn.Sequential(body, nn.Linear(64 if mlp else 128, self.n_actions))

    def act(self) -> int:
        if self.rng.random() < self.spec["epsilon"]:
            return int(self.rng.integers(self.n_actions))
        with torch.inference_mode():
            return int(self.network(torch.from_numpy(self.observation)[None].float()).argmax())

    def step(self) -> None:
        action = self.act()
        following, reward, terminated, truncated, _ = self.env.step(action)
        slot = self.added % len(self.actions)
        self.observations[slot], self.next_observations[slot] = self.observation, following
        self.actions[slot], self.rewards[slot], self.continues[slot] = action, reward, not terminated
        self.added += 1
        self.observation = self.env.reset()[0] if terminated or truncated else following

    def update(self) -> None:
        slots = self.rng.integers(0, min(self.added, len(self.actions)), self.spec["batch"])
        x, next_x, action, reward, continues = (
            torch.from_numpy(column[slots])
            for column in (self.observations, self.next_observations, self.actions, self.rewards, self.continues)
        )
        with torch.no_grad():
            target = reward + DISCOUNT * continues * self.target(next_x.float()).max(1).values
        q = self.network(x.float()).gather(1, action[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(q, target)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.updates += 1
        if self.updates % self.spec["target"] == 0:
            self.target.load_state_dict(self.network.state_dict())


def build(spec: dict[str, Any]) -> Callable[[], int]:
    torch.set_num_threads(spec.get("threads", 1))
    agent = Agent(spec)
    for _ in range(spec["warmup"]):
        agent.step()

    def advance() -> int:
        for i in range(spec["chunk"]):
            agent.step()
            if (i + 1) % spec["period"] == 0:
                agent.update()
        return spec["chunk"]

    return advance


if __name__ == "__main__":
    worker.serve(build)
