"""Agents solve what they should, and fail where theory says so."""

import numpy as np
import pytest

from deep.tiny import played, returns, session
from ube.deep.config import agent_config
from ube.deep.session import Session
from ube.envs import make


def test_q_learning_catches_the_ball() -> None:
    config = agent_config("dqn", {"hidden": (32,), "epsilon_steps": 1_500, "epsilon_end": 0.01, "replay_size": 2_000})
    parts = list(Session(make("Catch-bsuite"), config, 0).run(6_000, 6_000))
    paid = np.concatenate([part.episodes.episode_return for part in parts])
    assert np.abs(paid).max() == 1
    assert paid[:50].mean() < 0.2
    assert paid[-100:].mean() > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_ube_deep_finds_the_treasure_and_keeps_it(seed: int) -> None:
    _, log = played(session("ube-deep", seed), 2_400)  # 300 episodes
    found = returns(log) > 0.5
    assert found[:250].any()
    assert found[-20:].mean() >= 0.8


@pytest.mark.parametrize("seed", range(4))
def test_greedy_never_finds_it(seed: int) -> None:
    _, log = played(session("greedy", seed), 2_400)
    assert returns(log).max() <= 0
