"""Stable-Baselines3's DQN: `python -m benchmarks.peers.sb3 SPEC`, see benchmarks/worker.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from benchmarks import worker
from benchmarks.peers import games, parts


class MinAtarFeatures(BaseFeaturesExtractor):
    def __init__(self, observation_space: Any):
        super().__init__(observation_space, features_dim=128)
        self.body = parts.minatar_body()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.body(observations)


def build(spec: dict[str, Any]) -> Callable[[], int]:
    torch.set_num_threads(spec.get("threads", 1))
    task = spec["task"]
    kind, rate, settings = parts.optimiser(task)
    policy: dict[str, Any] = {"optimizer_class": kind, "optimizer_kwargs": settings}
    kind_of_policy = "CnnPolicy" if task == "atari" else "MlpPolicy"  # the Nature network is its own
    if task == "deep_sea":
        policy |= {"net_arch": list(parts.MLP_WIDTHS)}
    elif task == "breakout":
        policy |= {"net_arch": [], "features_extractor_class": MinAtarFeatures}
    model = DQN(
        kind_of_policy, games.make(task), policy_kwargs=policy, learning_rate=rate, batch_size=spec["batch"],
        buffer_size=spec["replay"], learning_starts=spec["warmup"], train_freq=spec["period"], gradient_steps=1,
        # SB3 counts environment steps, we updates.
        target_update_interval=spec["target"] * spec["period"], gamma=0.99, exploration_initial_eps=spec["epsilon"],
        exploration_final_eps=spec["epsilon"], seed=0, device="cpu",
    )  # fmt: skip
    model.learn(spec["warmup"], log_interval=None)

    def advance() -> int:
        before = model.num_timesteps
        model.learn(spec["chunk"], log_interval=None, reset_num_timesteps=False)
        return model.num_timesteps - before

    return advance


if __name__ == "__main__":
    worker.serve(build)
