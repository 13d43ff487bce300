"""What both PyTorch loops share: the body of the network and the optimiser, each as ours has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

MLP_WIDTHS = (64, 64)


def minatar_body(channels: int = 4) -> nn.Sequential:
    """Young & Tian 2019: 16 filters of 3x3 on 10x10, then 128."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 128), nn.ReLU())


def nature_body(channels: int = 4) -> nn.Sequential:
    """Mnih et al. 2015."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    )  # fmt: skip


def mlp_body(inputs: int) -> nn.Sequential:
    first, second = MLP_WIDTHS
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())


def optimiser(task: str) -> tuple[type[torch.optim.Optimizer], float, dict[str, Any]]:
    """(class, learning rate, the rest): Adam for the MLP, centred RMSProp for images."""
    if task == "deep_sea":
        return torch.optim.Adam, 1e-3, {}
    return torch.optim.RMSprop, 2.5e-4, {"alpha": 0.95, "centered": True, "eps": 0.01}
