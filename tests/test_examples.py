"""The scripts of examples/ do what they say: with UBE a DQN finds DeepSea's treasure, and without it does not.

posterior_variance.py is run by test_readme.py.
"""

import difflib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
needs_sb3 = pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None, reason="stable-baselines3 is not installed: make test-sb3"
)


TEN = ("--size", "10", "--seed", "0")


def printed(script: str, *options: str) -> str:
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / script), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | one_thread).stdout


def solved_at(line: str, who: str) -> int | None:
    found = re.fullmatch(rf"{who}, DeepSea 10, seed 0: treasure in \d+ of 100 episodes, (.*)\n", line)
    assert found, line
    return None if found[1] == "not solved" else int(found[1].removeprefix("solved at episode "))


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_all_scripts_are_tested_and_listed() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    shared = {"deep_sea.py"}
    agents = {"algorithm1.py", "plain_dqn.py", "plain_dqn_ube.py", "sb3_dqn_ube.py"}
    assert names == {"posterior_variance.py", "exact_recursion.py"} | shared | agents
    listed = re.findall(r"^\| `(\w+\.py)` ", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == names


def test_a_plain_dqn_does_not_solve_what_it_solves_with_ube() -> None:
    assert solved_at(printed("plain_dqn.py", *TEN, "--episodes", "100"), "plain DQN") is None
    solved = solved_at(printed("plain_dqn_ube.py", *TEN, "--episodes", "100"), "DQN with UBE")
    assert solved is not None
    assert 10 <= solved <= 90


def test_algorithm_1_runs_and_explores_with_long_targets_and_more_noise() -> None:
    line = printed("algorithm1.py", "--size", "4", "--episodes", "150", "--n", "20", "--beta", "1")
    assert re.fullmatch(r"Algorithm 1, n = 20: treasure in \d\d+ of 150 episodes, solved at episode \d+\n", line), line


def test_ube_is_fewer_than_60_changed_lines() -> None:
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("plain_dqn.py", "plain_dqn_ube.py"))
    changed = [line for line in list(difflib.unified_diff(before, after))[2:] if line[0] in "+-"]
    assert 20 < len(changed) < 60


def test_the_how_to_shows_lines_of_the_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "howto" / "your_agent.md").read_text(), re.DOTALL)
    shown = [line.strip() for block in blocks for line in block.splitlines() if line.strip() not in ("", "...")]
    code = [(EXAMPLES / name).read_text() for name in ("plain_dqn_ube.py", "sb3_dqn_ube.py")]
    written = {line.strip() for text in code for line in text.splitlines()}
    assert len(shown) > 20
    assert [line for line in shown if line not in written] == []


@pytest.mark.usefixtures("examples")
def test_deep_sea_by_hand() -> None:
    from deep_sea import DeepSea

    env = DeepSea(size=4, seed=1)
    assert env.right.min() == 0
    assert env.right.max() == 1

    def play(rightness: list[bool]) -> list[tuple[int, float, bool]]:
        obs, steps = env.reset()[0], []
        for right in rightness:
            action = int(env.right[env.row, env.column]) if right else 1 - int(env.right[env.row, env.column])
            obs, reward, terminated, truncated, _ = env.step(action)
            assert obs in env.observation_space
            assert not truncated
            steps.append((int(obs.argmax()) if obs.any() else -1, round(reward, 6), terminated))
        return steps

    assert env.reset()[0].nonzero()[0].tolist() == [0]
    assert play([True] * 4) == [(5, -0.0025, False), (10, -0.0025, False), (15, -0.0025, False), (-1, 0.9975, True)]
    assert play([True, True, False, True])[2:] == [(13, 0.0, False), (-1, -0.0025, True)]
    assert play([False] * 2) == [(4, 0.0, False), (8, 0.0, False)]


@pytest.mark.usefixtures("examples")
def test_summary_by_hand() -> None:
    from deep_sea import summary

    early = np.isin(np.arange(300), [3, *range(150, 159), 249]).astype(float)
    assert summary(list(early)) == "treasure in 11 of 300 episodes, solved at episode 151"
    assert summary(list(early[:249])) == "treasure in 10 of 249 episodes, not solved"


@needs_sb3
def test_stable_baselines3_does_not_solve_what_it_solves_with_ube() -> None:
    assert solved_at(printed("sb3_dqn_ube.py", *TEN, "--episodes", "100", "--agent", "dqn"), "SB3 DQN") is None
    assert solved_at(printed("sb3_dqn_ube.py", *TEN, "--episodes", "100"), "SB3 UbeDQN") is not None


@needs_sb3
class TestStableBaselines3:
    @pytest.fixture
    def model(self, examples: None) -> Any:
        from deep_sea import DeepSea
        from sb3_dqn_ube import UbeDQN
        from stable_baselines3.common.vec_env import DummyVecEnv

        envs = DummyVecEnv([lambda: DeepSea(4, 0)] * 3)
        model = UbeDQN(
            "MlpPolicy", envs, learning_starts=12, train_freq=1, target_update_interval=6, device="cpu", seed=0
        )
        return model.learn(60)

    def test_every_decision_is_counted_once(self, model: Any) -> None:
        assert model.counts.visits.sum() == model.num_timesteps == 60
        taken = model.replay_buffer.actions[: model.replay_buffer.pos].ravel()
        np.testing.assert_array_equal(model.counts.visits, np.bincount(taken, minlength=2))

    def test_acts_on_q_plus_beta_root_u(self, model: Any) -> None:
        import torch

        obs = np.eye(16, dtype=np.float32)
        with torch.no_grad():
            q = model.q_net(torch.as_tensor(obs)).numpy()
            later = model.u_net(torch.as_tensor(obs)).clamp(min=0).numpy()
        u = model.counts.local_uncertainty(model.phi(obs)) + later
        optimistic = (q + 2.0 * np.sqrt(u)).argmax(1)
        np.testing.assert_array_equal(model.predict(obs)[0], optimistic)
        np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], q.argmax(1))
        assert (optimistic != q.argmax(1)).any()
        assert model.predict(obs[3])[0] == optimistic[3]

    def test_a_saved_agent_comes_back_with_what_it_knows(self, model: Any, tmp_path: Path) -> None:
        model.save(tmp_path / "agent.zip")
        loaded = type(model).load(tmp_path / "agent.zip", device="cpu")
        obs = np.random.default_rng(0).random((5, 16), np.float32)
        tensor = model.policy.obs_to_tensor(obs)[0]
        for name in ("u_net", "u_net_target"):
            ours, theirs = (m.u(getattr(m, name), tensor).detach().numpy() for m in (model, loaded))
            np.testing.assert_array_equal(ours, theirs)
        loaded.counts.update(loaded.phi(obs)[0], 1)
        assert loaded.counts.visits.sum() == 61
