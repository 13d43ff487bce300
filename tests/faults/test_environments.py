"""Environments that hang, lie about their spaces or need all memory, and clocks that jump."""

import ast
import contextlib
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import ube
from ube import RunError, UsageError
from ube.envs.gymnasium_adapter import gymnasium_environment
from ube.envs.watchdog import Watchdog
from ube.suite import run_suite, status
from ube.suite.cells import parsed

SMALL = {"hidden": (8,), "update_period": 100, "target_period": 1, "batch_size": 4}


class Moody(gymnasium.Env):
    """A line of numbers, and something that happens at a step after those of the random play at the start."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: str = "", at: int = 1_300):
        self.how, self.at, self.t = how, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        observation: Any = np.full(2, np.sin(self.t), np.float32)
        reward: Any = 1.0
        if self.t == self.at:
            observation, reward = self.misbehave(observation)
        return observation, reward, self.t % 50 == 0, False, {}

    def misbehave(self, observation: Any) -> Any:
        if self.how == "hangs":
            with contextlib.suppress(Exception):
                time.sleep(1e6)
        if self.how == "works":
            while True:
                observation = observation + 0
        if self.how == "memory":
            limit = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (2**30, limit[1]))
            np.ones(2**34)
        wrong = {
            "shape": np.zeros((2, 2)), "text": "up", "object": np.array([None, 0.0]), "nan": np.full(2, np.nan),
            "huge": np.full(2, 1e300),
        }  # fmt: skip
        paid = {"pays text": "much", "pays nothing": None, "pays nan": np.nan, "pays twice": np.ones(2)}
        return wrong.get(self.how, observation), paid.get(self.how, 1.0)


def trained(out: Path, how: str, **more: Any) -> Any:
    return ube.train(Moody, "dqn", 600, env_args={"how": how} | more, out=out, overrides=SMALL, chunk=100)


@pytest.mark.parametrize("how", ["hangs", "works"])
def test_an_environment_that_hangs_stops_the_run_if_there_is_a_limit(tmp_path: Path, how: str) -> None:
    before = signal.getsignal(signal.SIGALRM)
    message = (
        r"Moody did not come back from step 200 within 0\.5 s: mend it, or give it longer \(--set env\.step_timeout=N\)"
    )
    with pytest.raises(RunError, match=message):
        trained(tmp_path / "run", how, at=200, step_timeout=0.5)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert int(ube.load(tmp_path / "run", Moody).agent.state.steps) == 100


@pytest.fixture(autouse=True)
def no_random_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which every environment here is fit for: their steps are then those of the run."""
    from ube.envs.contract import RandomPlay

    found = RandomPlay([-1.0, -1.0], [1.0, 1.0], 1.0, 1_000, (0.0, 1.0), 1, True)
    monkeypatch.setattr("ube.envs.gymnasium_adapter.calibrated", lambda *asked: found)


def test_a_limit_changes_nothing_else_and_may_change(tmp_path: Path) -> None:
    plain, limited = trained(tmp_path / "plain", ""), trained(tmp_path / "limited", "", step_timeout=60)
    np.testing.assert_array_equal(plain.metrics["loss"], limited.metrics["loss"])
    again = ube.train(
        Moody,
        "dqn",
        700,
        env_args={"how": "", "step_timeout": 70},
        out=limited.path,
        overrides=SMALL,
        chunk=100,
        resume=True,
    )
    assert again.metrics["step"][-1] == 700
    with pytest.raises(UsageError, match="step_timeout=0: it must be positive"):
        trained(tmp_path / "none", "", step_timeout=0)
    refused: list[str] = []

    def elsewhere() -> None:
        try:
            Watchdog(1.0)
        except UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert refused == ["step_timeout=1.0: only in the main thread; leave it out in others"]


@pytest.mark.slow
def test_processes_of_a_vector_that_hang_are_ended(tmp_path: Path) -> None:
    made: list[AsyncVectorEnv] = []

    def vector() -> AsyncVectorEnv:
        made.append(
            AsyncVectorEnv([lambda: Moody("hangs", 50)] * 2, autoreset_mode=AutoresetMode.SAME_STEP, context="spawn")
        )
        return made[-1]

    with pytest.raises(RunError, match="did not come back from step 50 within 1 s"):
        ube.train(vector, "dqn", 600, env_args={"step_timeout": 1}, out=tmp_path / "run", overrides=SMALL)
    assert not any(process.is_alive() for env in made for process in env.processes)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", r"gave an observation of shape \(2, 2\), not \(2,\), in step 200"),
        ("text", r"gave an observation of shape \(\), not \(2,\)"),
        ("object", "gave the observation nan at step 200"),
        ("nan", "gave the observation nan at step 200"),
        ("huge", "gave the observation inf at step 200"),
        ("pays text", r"failed in step 200 \(ValueError: could not convert"),
        ("pays nothing", r"failed in step 200 \(TypeError"),
        ("pays nan", "gave the reward nan at step 200"),
        ("pays twice", r"failed in step 200 \(TypeError"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_an_environment_may_not_give_is_named(tmp_path: Path, how: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        trained(tmp_path / "run", how, at=200)
    assert int(ube.load(tmp_path / "run", Moody).agent.state.steps) == 100


class Skewed(SyncVectorEnv):
    """A vector that gets the shape of something wrong."""

    what = "reward"

    def step(self, actions: Any) -> Any:
        parts = dict(
            zip(("observation", "reward", "terminated", "truncated", "info"), super().step(actions), strict=True)
        )
        parts[self.what] = np.stack([parts[self.what]] * 2, -1)
        return tuple(parts.values())


@pytest.mark.parametrize("what", ["reward", "terminated", "truncated"])
def test_a_vector_with_wrong_shapes_is_named(what: str) -> None:
    env = Skewed([Moody] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env.what = what
    games = gymnasium_environment(env, "Skewed").open(2)
    games.reset(0)
    with pytest.raises(RunError, match=rf"Skewed gave {what} of shape \(2, 2\), not \(2,\), in step 1: mend it"):
        games.step(np.zeros(2, int))


def test_nan_is_noticed_in_evaluations_too(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "")
    with pytest.raises(RunError, match="gave the reward nan in an evaluation after step"):
        ube.load(run.path, lambda **asked: Moody("pays nan", 5)).evaluate(2)


SUITE = """
[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
steps = 24
evaluation_episodes = 1
set = { hidden = [4], batch_size = 4, warmup = 8, "env.size" = 3 }

[[cells]]
envs = ["faults.test_environments:Moody"]
agents = ["dqn"]
steps = 200
set = { hidden = [4], batch_size = 4, "env.how" = "memory", "env.at" = 20 }
"""


def test_a_cell_that_runs_out_of_memory_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{Path(ube.__file__).parents[1]}")
    suite = parsed("memory", SUITE, "memory.toml")
    outcome = run_suite(suite, tmp_path, workers=1)
    assert outcome.finished == 1
    (why,) = outcome.failures.values()
    assert "MemoryError" in why or "not enough memory" in why or "lack of memory" in why
    assert [one.state for one in status(suite, tmp_path)] == ["done", "failed"]


def test_no_duration_is_measured_by_a_clock_that_jumps() -> None:
    """time.time is set back and forth by people and daylight; a monotonic clock is not."""
    found = []
    for path in Path(ube.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "time" and getattr(node.value, "id", "") == "time":
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow"):
                found.append(f"{path.name}:{node.lineno}")
    assert found == []


def test_a_clock_that_jumps_changes_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = trained(tmp_path / "straight", "")
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 1e9)
    run = trained(tmp_path / "run", "")
    np.testing.assert_array_equal(run.metrics["loss"], straight.metrics["loss"])
    assert (run.metrics["steps_per_second"] > 0).all()
