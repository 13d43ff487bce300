"""Real environments of Gymnasium behind the contract of hosted ones, one by one and as vectors in every mode of resetting."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from PIL import Image

import ube
from ube import RunError, UsageError
from ube.deep.config import agent_config
from ube.deep.hosted_session import HostedSession
from ube.deep.protocols import with_protocol
from ube.deep.settings import filled
from ube.envs import HostedEnvironment, environments, make, wrapped
from ube.envs.contract import RandomPlay
from ube.runs.plan import Schedule, explained, planned, with_calibration

SMALL: dict[str, Any] = {"hidden": (8,), "warmup": 20, "batch_size": 4}


class Clock(gymnasium.Env):
    """Shows how many steps were made and a number that depends on the seed; ends after `ends` steps, is cut after `cut`.
    Action 1 pays `pays`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, ends: int = 5, cut: int = 100, pays: float = 1.0):
        self.ends, self.cut, self.pays = ends, cut, pays

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.mark = 0, self.np_random.normal()
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.t, self.mark], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.seen(), self.pays * float(action), self.t >= self.ends, self.t >= self.cut, {}


def vector(mode: AutoresetMode, kind: Callable[..., Any] = SyncVectorEnv, **options: Any) -> Any:
    """Two clocks, which end after 3 and 5 steps."""
    apart = {"context": "spawn"} if kind is AsyncVectorEnv else {}
    return kind([partial(Clock, 3), partial(Clock, 5)], autoreset_mode=mode, **apart, **options)


def history(env: HostedEnvironment, n_envs: int, steps: int = 12) -> list[Any]:
    games = env.open(n_envs)
    rows = [games.reset(7)]
    for t in range(steps):
        rows.append(games.step(np.full(n_envs, t % 2)))
    games.close()
    return rows


def test_an_episode_step_by_step() -> None:
    first, *steps = history(wrapped(Clock, ends=3, pays=2.0), 1)
    mark = first[0, 1]
    assert first[0, 0] == 0
    np.testing.assert_array_equal(steps[0].frame, [[1, mark]])
    third = steps[2]
    assert (third.terminated.tolist(), third.truncated.tolist(), third.reward.tolist()) == ([True], [False], [0.0])
    np.testing.assert_array_equal(third.last_frame, [[3, mark]])
    assert third.frame[0, 0] == 0
    assert third.frame[0, 1] != mark
    assert [step.reward[0] for step in steps[:4]] == [0.0, 2.0, 0.0, 2.0]


def test_a_time_limit_is_a_truncation_unless_the_task_ended_there() -> None:
    _, *steps = history(wrapped(Clock, ends=50, cut=4), 1)
    assert [bool(step.truncated[0]) for step in steps] == [t % 4 == 3 for t in range(12)]
    assert not any(step.terminated[0] for step in steps)
    _, *both = history(wrapped(Clock, ends=4, cut=4), 1)
    assert [(bool(s.terminated[0]), bool(s.truncated[0])) for s in both[2:5]] == [
        (False, False),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("mode", "kind"), [*((mode, SyncVectorEnv) for mode in AutoresetMode), (AutoresetMode.NEXT_STEP, AsyncVectorEnv)]
)
def test_a_vector_plays_as_its_environments_do_alone(mode: AutoresetMode, kind: Any) -> None:
    env = vector(mode, kind)
    try:
        together = history(wrapped(env), 2)
    finally:
        env.close()
    seeds = (np.random.SeedSequence(7).generate_state(2).astype(np.int64) >> 1).tolist()
    for index, ends in enumerate((3, 5)):
        alone = Clock(ends)
        frame = alone.reset(seed=seeds[index])[0]
        np.testing.assert_array_equal(together[0][index], frame)
        for t, step in enumerate(together[1:]):
            last, reward, terminated, _, _ = alone.step(t % 2)
            np.testing.assert_array_equal(step.last_frame[index], last)
            assert (step.reward[index], step.terminated[index]) == (reward, terminated)
            np.testing.assert_array_equal(step.frame[index], alone.reset()[0] if terminated else last)


def late() -> Any:
    """A vector of which nothing is known but that it spends the next step on a reset."""
    return gymnasium.vector.VectorWrapper(vector(AutoresetMode.NEXT_STEP))


def test_where_one_cannot_be_reset_alone_the_next_step_is_for_that() -> None:
    made = wrapped(late())
    assert made.resets_late
    assert not wrapped(vector(AutoresetMode.NEXT_STEP)).resets_late
    _, *steps = history(made, 2)
    assert [step.frame[0, 0] for step in steps] == [1, 2, 3, 0] * 3
    assert [step.frame[1, 0] for step in steps] == [1, 2, 3, 4, 5, 0] * 2
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True, False] * 3
    with pytest.raises(
        RunError, match="an episode does not end, and one alone cannot be begun anew: give it a time limit"
    ):
        made.open(2).restart(0)


@pytest.mark.parametrize("agent", ["ube-deep", "ube-nstep"])
def test_steps_that_only_reset_are_not_learned_from(agent: str, tmp_path: Path) -> None:
    plan = planned(
        late(), agent, 120, 0, frames=None, protocol="auto", env_args=None, overrides={**SMALL, "warmup": 40},
        schedule=Schedule(evaluate_every=40),
    )  # fmt: skip
    session = plan.session()
    assert isinstance(session, HostedSession)
    lengths = [length for chunk in session.run(120) for length in chunk.episodes.episode_length.tolist()]
    assert sorted(set(lengths)) == [3, 5]
    replay = session.replay
    decided = replay.decided.sum(1).tolist()
    assert decided == [3 * (20 - 5), 3 * (20 - 3)]  # three times 20 steps, of which 5 and 3 only reset
    assert int(session.learner.steps) == sum(decided)
    for env, ends in enumerate((3, 5)):
        slots = np.flatnonzero(replay.decided[env])[:-1]  # what follows the last one is not known yet
        before, after = replay.frames[env, slots, 0], replay.frames[env, slots + 1, 0]
        going_on = replay.continues[env, slots]
        np.testing.assert_array_equal(going_on, before < ends - 1)
        np.testing.assert_array_equal(after[going_on], before[going_on] + 1)
    session.close()


def test_gymnasiums_own_vector_trains_is_evaluated_and_watched(tmp_path: Path) -> None:
    env = gymnasium.make_vec("CartPole-v1", 2)
    assert wrapped(env).resets_late
    run = ube.train(env, "dqn", 80, overrides=SMALL, out=tmp_path / "run", schedule=Schedule(evaluate_every=40))
    assert len(run.evaluate(episodes=3).episode_return) == 3
    for episode in run.agent.episodes(2):
        assert np.all(episode.reward == 1)  # a step that only resets would pay 0
        assert np.all(np.abs(episode.observation[0]) <= 0.05)
        assert 8 <= len(episode.action) < 200


def test_a_vector_that_cannot_reset_one_of_its_own_and_leaves_it_to_others_is_refused() -> None:
    env = gymnasium.make_vec("CartPole-v1", 3)
    env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.DISABLED}
    with pytest.raises(RunError, match="new episodes to all when one was to begin: make it of single environments"):
        wrapped(env).calibrate()


def test_seeds_are_passed_on_and_differ_between_environments() -> None:
    env = wrapped(Clock)
    games = env.open(2)
    first, again, other = games.reset(1), games.reset(1), games.reset(2)
    np.testing.assert_array_equal(first, again)
    assert len({*first[:, 1].tolist(), *other[:, 1].tolist()}) == 4


# ---------------------------------------------------------------- calibration


def test_the_unit_of_rewards_is_the_largest_that_random_play_meets() -> None:
    found = wrapped(Clock, pays=-250.0).calibrate()
    assert (found.reward_unit, found.rewards, found.steps, found.repeats) == (250.0, (-250.0, 0.0), 1_000, True)
    assert found.episodes == 200
    assert wrapped(Clock, pays=0.0).calibrate().reward_unit == 1.0


def test_an_environment_that_does_not_repeat_itself_is_noticed() -> None:
    class Unseeded(Clock):
        def seen(self) -> np.ndarray:
            return np.array([self.t, np.random.default_rng().normal()], np.float32)

    assert not wrapped(Unseeded).calibrate().repeats


def test_inputs_without_bounds_are_scaled_by_what_was_met() -> None:
    env = wrapped(Clock, ends=20)
    found = env.calibrate()
    assert (found.low[0], found.high[0]) == (10 - 20, 10 + 20)
    np.testing.assert_array_equal(env.calibrated(found).high, found.high)
    bounded = make("gym/MountainCar-v0")
    np.testing.assert_allclose(bounded.calibrate().low, bounded.low)


@pytest.mark.parametrize(("largest", "expected"), [(9, 18.0), (200, 255.0)])
def test_bytes_that_stay_small_are_symbols(largest: int, expected: float) -> None:
    class Grid(Clock):
        observation_space = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)

        def seen(self) -> np.ndarray:
            return np.full((7, 7, 3), largest if self.t else 0, np.uint8)

    assert wrapped(Grid).calibrate().high == expected
    space = gymnasium.spaces.Dict(image=Grid.observation_space, way=gymnasium.spaces.Discrete(4))

    def with_way() -> Any:
        return gymnasium.wrappers.TransformObservation(Grid(), lambda seen: {"image": seen, "way": 1}, space)

    beside = wrapped(with_way)
    high = beside.calibrate().high
    assert high[:147] == [expected] * 147
    assert high[147:] == [1.0] * 4


@pytest.mark.parametrize("agent", ["ube-deep", pytest.param("ube-1step", marks=pytest.mark.slow)])
def test_what_rewards_are_counted_in_changes_nothing(agent: str, tmp_path: Path) -> None:
    runs = [
        ube.train(Clock, agent, 300, env_args={"pays": pays}, out=tmp_path / f"{pays}", overrides={"hidden": (8,)})
        for pays in (1.0, 1024.0)
    ]
    one, many = runs
    np.testing.assert_array_equal(many.episodes["episode_return"], 1024 * one.episodes["episode_return"])
    np.testing.assert_array_equal(many.metrics["loss"], one.metrics["loss"])
    np.testing.assert_allclose(many.metrics["q"], 1024 * one.metrics["q"], rtol=1e-6)
    seen = np.array([1.0, 0.0], np.float32)
    mine, theirs = (run.agent.uncertainty(seen) for run in runs)
    np.testing.assert_allclose(theirs.q, 1024 * mine.q, rtol=1e-5)
    np.testing.assert_allclose(theirs.u, 1024**2 * mine.u, rtol=1e-5)


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("env_id", ["gym/CartPole-v1", pytest.param("Blackjack-v1", marks=pytest.mark.slow)])
def test_real_environments_train_and_are_evaluated(env_id: str, tmp_path: Path) -> None:
    schedule = Schedule(evaluate_every=150, evaluation_steps=20)
    run = ube.train(env_id, "ube-deep", 300, out=tmp_path / "run", schedule=schedule, overrides={"hidden": (8,)})
    assert len(run.metrics["step"]) == 2
    assert set(run.evaluations["policy"]) == {"greedy", "own"}
    assert np.unique(run.evaluations["step"]).tolist() == [150, 300]
    again = ube.load(tmp_path / "run")
    np.testing.assert_array_equal(again.evaluate(2).episode_return, run.evaluate(2).episode_return)


def small_run(out: Path, env: Any = Clock, steps: int = 300, **options: Any) -> ube.runs.Run:
    schedule = options.pop("schedule", Schedule(evaluate_every=100, evaluation_steps=10))
    agent, overrides = options.pop("agent", "ube-deep"), {"hidden": (8,)} | options.pop("overrides", {})
    return ube.train(env, agent, steps, out=out, overrides=overrides, schedule=schedule, chunk=50, **options)


def test_a_run_goes_on_exactly(tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole")
    small_run(tmp_path / "parts", callback=lambda now: now.step == 150)
    parts = small_run(tmp_path / "parts", resume=True)
    for name in ("episodes", "evaluations"):
        for column, values in getattr(whole, name).items():
            np.testing.assert_array_equal(getattr(parts, name)[column], values)
    states = [(tmp_path / name / "state.safetensors").read_bytes() for name in ("whole", "parts")]
    assert states[0] == states[1]


def test_a_run_goes_on_for_longer_with_the_times_it_began_with(tmp_path: Path) -> None:
    assert small_run(tmp_path / "run", steps=150).config["agent"]["warmup"] == 7
    longer = small_run(tmp_path / "run", steps=300, resume=True)
    assert (longer.config["agent"]["warmup"], int(longer.metrics["step"].max()), longer.config["steps"]) == (
        7,
        300,
        300,
    )


def test_a_run_that_cannot_be_repeated_does_not_go_on(tmp_path: Path) -> None:
    class Drifting(Clock):
        born = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).born += 1

        def seen(self) -> np.ndarray:
            return np.array([self.t, self.born], np.float32)

    small_run(tmp_path / "run", Drifting, steps=150)
    with pytest.raises(RunError, match=r"does not repeat itself from its seed.*reset\(seed=…\).*--out"):
        small_run(tmp_path / "run", Drifting, resume=True)


def test_rewards_and_ends_must_repeat_too() -> None:
    class Lottery(Clock):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:1], float(np.random.default_rng().normal()), False, False, {}

    assert not wrapped(Lottery).calibrate().repeats


def test_what_can_be_learned_is_learned(tmp_path: Path) -> None:
    """Six steps to the right, of which each but the last costs; Q must not run away, as it does with a young target."""

    class Corridor(Clock):
        def reset(self, **options: Any) -> Any:
            self.x = 0
            return super().reset(**options)

        def seen(self) -> np.ndarray:
            return np.array([self.x, 0.0], np.float32)

        def step(self, action: Any) -> Any:
            self.x, self.t = max(0, self.x + 2 * int(action) - 1), self.t + 1
            return self.seen(), 1.0 if self.x == 6 else -0.01, self.x == 6, self.t == 30, {}

    for agent in ("dqn", "ube-deep"):
        run = small_run(
            tmp_path / agent, Corridor, 3_000, agent=agent, overrides={"hidden": (32,)}, schedule=Schedule()
        )
        assert run.evaluate(10).episode_return.mean() > 0.8
        assert np.abs(run.metrics["q"]).max() < 3


def test_few_steps_and_many_games(tmp_path: Path) -> None:
    assert len(small_run(tmp_path / "few", steps=5, schedule=Schedule()).metrics["step"]) == 1
    small_run(tmp_path / "many", steps=150, schedule=Schedule(n_envs=8))


def test_a_game_without_end_is_left_in_evaluation_and_begun_anew(tmp_path: Path) -> None:
    class Endless(Clock):
        def step(self, action: Any) -> Any:
            self.t += 1
            return self.seen(), float(self.t), False, False, {}

    agent = small_run(tmp_path / "run", Endless, 50, overrides={"update_period": 50}, schedule=Schedule()).agent
    longest = agent.session.env.longest
    played = agent.evaluate(9, seed=1)
    assert set(played.episode_length.tolist()) == {longest}
    assert set(played.episode_return.tolist()) == {longest * (longest + 1) / 2}
    first, second = agent.episodes(2, seed=1)
    assert len(first.reward) == len(second.reward) == longest
    assert second.reward[0] == 1.0


def test_an_object_is_used_for_everything_and_stays_open(tmp_path: Path) -> None:
    class Once(Clock):
        closed = 0

        def close(self) -> None:
            type(self).closed += 1

    run = small_run(tmp_path / "run", Once(), 200, agent="dqn")
    assert run.evaluate(3).episode_length.tolist() == [5, 5, 5]
    assert Once.closed == 0
    with pytest.raises(
        UsageError, match=r"trained in object/Once, which only Python can give again: ube.load\(path, env=…\)"
    ):
        ube.load(tmp_path / "run").evaluate(1)
    assert ube.load(tmp_path / "run", env=Once).evaluate(1).episode_length.tolist() == [5]
    with pytest.raises(UsageError, match="one object, and in the middle of training"):
        small_run(tmp_path / "other", Once(), 100, callback=lambda now: bool(now.agent.evaluate(1)))


def test_an_object_with_an_id_is_not_taken_for_that_id(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", gymnasium.make("FrozenLake-v1", is_slippery=False), 60, agent="dqn")
    assert run.config["env"] == "object/FrozenLakeEnv"


def test_a_vector_trains_all_its_environments(tmp_path: Path) -> None:
    env = vector(AutoresetMode.NEXT_STEP)
    run = small_run(tmp_path / "run", env, 200, agent="ube-1step")
    env.close()
    assert run.config["schedule"]["n_envs"] == 2
    lengths = run.episodes["episode_length"]
    assert set(lengths.tolist()) <= {3, 5}
    assert (lengths == 3).sum() > (lengths == 5).sum() > 0


def test_a_module_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_clocks.py").write_text(
        "from tests.envs.test_gymnasium import Clock\nclass Mine(Clock): pass\nnumber = 3\n"
    )
    (tmp_path / "broken.py").write_text("raise RuntimeError('on purpose')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    run = ube.train("my_clocks:Mine", "dqn", 60, out=tmp_path / "run", env_args={"ends": 4}, overrides={"hidden": (8,)})
    assert set(run.episodes["episode_length"].tolist()) == {4}
    with pytest.raises(UsageError, match="a file may not choose which module is run"):
        ube.load(tmp_path / "run").evaluate(1)
    assert ube.load(tmp_path / "run", env="my_clocks:Mine").evaluate(2).episode_length.tolist() == [4, 4]
    for wrong, message in {
        "my_clocks:Min": "did you mean Mine", "my_clocks:number": "number is int",
        "no_clocks:Mine": "cannot be imported .*, or on PYTHONPATH",
        "broken:X": "RuntimeError: on purpose", ":X": "write module:NAME", ".rel:X": "write module:NAME",
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=message):
            make(wrong)


def test_frames_are_stacked(tmp_path: Path) -> None:
    env = wrapped(Clock, frame_stack=3)
    assert (env.observation_shape, env.frame_shape, env.stack) == ((6,), (2,), 3)
    run = ube.train(Clock, "dqn", 60, out=tmp_path / "run", env_args={"frame_stack": 3}, overrides={"hidden": (8,)})
    assert run.agent.env.low.shape == (6,)
    assert run.agent.act(np.zeros(6, np.float32)) in (0, 1)


# ---------------------------------------------------------------- choices and their reasons


def plan_of(env: Any, **options: Any) -> Any:
    asked: dict[str, Any] = dict(
        frames=None, protocol="auto", env_args=None, overrides=options.pop("overrides", None), schedule=Schedule()
    )
    return planned(env, "ube-deep", options.pop("steps", 50_000), 0, **asked, **options)


def test_the_choices_fit_the_spaces_and_the_budget() -> None:
    class Camera(Clock):
        observation_space = gymnasium.spaces.Box(0, 255, (96, 96, 3), np.uint8)

        def seen(self) -> np.ndarray:
            return np.full((96, 96, 3), 200, np.uint8)

    plan = plan_of(Camera)
    chosen = plan.config
    assert (chosen.network, chosen.replay_size) == ("nature", int(2e9 / (96 * 96 * 3)))
    assert (chosen.warmup, chosen.epsilon_steps, chosen.target_period) == (2_500, 12_500, 250)
    why = {reason.what: reason.why for reason in explained(plan)}
    assert "fits 2 GB" in why["replay_size"]
    assert why["warmup"] == "shortened to 50,000 steps (usual: 5,000)"
    assert plan_of(Camera, steps=50_000_000).config.warmup == 5_000
    given = plan_of(Camera, overrides={"warmup": 9})
    assert {r.what: r.why for r in explained(given)}["warmup"] == "given"


def test_published_settings_do_not_shrink() -> None:
    _, published = with_protocol("mnih2015", {}, agent_config("dqn"), {})
    atari = filled(published, make("atari/pong"), 60_000)
    assert (atari.warmup, atari.target_period, atari.replay_size) == (50_000, 2_500, 1_000_000)


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "DeepSea-v0", Clock])
def test_every_choice_has_a_reason(env: Any) -> None:
    reasons = explained(plan_of(env))
    assert all(reason.what and reason.chosen and reason.why for reason in reasons)
    assert {"environment", "network", "learning_rate", "policy", "beta"} <= {reason.what for reason in reasons}


def test_an_agent_takes_what_the_environment_shows_and_gives_what_it_takes(tmp_path: Path) -> None:
    class Signals(Clock):
        observation_space = gymnasium.spaces.Discrete(3, start=5)
        action_space = gymnasium.spaces.MultiDiscrete([2, 2], start=[10, 20])

        def seen(self) -> Any:
            return 5 + self.t % 3

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return super().step(action[0] - 10)

    agent = ube.train(Signals, "ube-deep", 60, out=tmp_path / "run", overrides={"hidden": (8,)}).agent
    assert Signals.action_space.contains(agent.act(6))
    assert agent.uncertainty(7).u.shape == (4,)
    with pytest.raises(UsageError, match="8 is no observation of"):
        agent.act(8)
    with pytest.raises(UsageError, match=r"^array\(\[\[0\., .* … is no observation of [^\n]*$"):
        agent.act(np.zeros((30, 30)))
    with pytest.raises(UsageError, match=r"should be .*, found .*; was it trained in gym/CartPole-v1\?"):
        ube.load(tmp_path / "run", env="gym/CartPole-v1").evaluate()
    of_three = RandomPlay([0.0] * 3, [1.0] * 3, 1.0, 10, (0.0, 1.0), 1, True)
    with pytest.raises(UsageError, match=r"shape \(2,\), and the run was trained on others: give the environment"):
        with_calibration(wrapped(Clock), of_three)


def test_they_are_listed() -> None:
    assert any(listed.id == "gym/CartPole-v1" for listed in environments())


# ---------------------------------------------------------------- what goes wrong


class Broken(Clock):
    def __init__(self, how: str):
        super().__init__(ends=10_000, cut=10_000)
        self.how = how

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.t == 1_500:  # after calibration
            if self.how == "raises":
                raise ZeroDivisionError("by nothing\nand more")
            observation = {"shape": np.zeros(3), "nan": np.array([np.nan, 0.0])}.get(self.how, observation)
            reward = np.inf if self.how == "inf" else reward
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", r"Broken failed in step 1500 \(ZeroDivisionError: by nothing\): mend it"),
        ("shape", r"an observation of shape \(3,\), not \(2,\), in step 1500"),
        ("nan", "gave the observation nan at step 1500"),
        ("inf", "gave the reward inf at step 1500"),
    ],
)
def test_an_environment_that_fails_is_named_and_what_was_learned_is_kept(
    how: str, message: str, tmp_path: Path
) -> None:
    small = {"hidden": (8,), "update_period": 100, "target_period": 1}
    with pytest.raises(RunError, match=message):
        ube.train(Broken, "dqn", 2_000, env_args={"how": how}, out=tmp_path / "run", overrides=small)
    assert (tmp_path / "run" / "state.safetensors").exists()


@pytest.mark.parametrize(
    ("env", "args", "message"),
    [
        ("gym/Pendulum-v1", {}, "continuous actions"),
        ("gym/CartPol-v1", {}, "did you mean CartPole-v1"),
        ("CartPole-v9", {}, "the nearest ids are CartPole-v1"),
        ("gym/CartPole-v1", {"no_such": 1}, "could not be made with {'no_such': 1}"),
        (Clock, {"frame_stack": 0}, "frame_stack=0"),
        (dict, {}, "dict gave dict, which is no gymnasium.Env"),
        (3, {}, "env=3: give an id"),
        ("gym/CartPole-v1", {"render_mod": 1}, "; render_mod: did you mean render_mode"),
        (Clock, {"end": 1}, r"unexpected keyword argument 'end'\); end: did you mean ends"),
        (gymnasium.Env, {}, "Env has no action_space: set it to one of gymnasium.spaces"),
    ],
)
def test_bad_environments_in_one_line(env: Any, args: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ube.train(env, "dqn", 10, env_args=args, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_games_of_atari_by_gymnasiums_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, "ALE/Pong-v5", raising=False)  # there once ale-py was imported
    with pytest.raises(UsageError, match="no environment 'ALE/Pong-v5': games of Atari are atari/pong here"):
        make("ALE/Pong-v5")


class Old(Clock):
    """As environments were before Gymnasium."""

    def __init__(self, what: str):
        super().__init__()
        self.what = what

    def reset(self, **options: Any) -> Any:
        seen, info = super().reset(**options)
        return seen if self.what == "reset" else (seen, info)

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, terminated or truncated, info


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("reset", r"Old gave ndarray where Gymnasium asks for \(observation, info\), in reset 0: mend it"),
        (
            "step",
            r"gave 4 values where Gymnasium asks for \(observation, reward, terminated, truncated, info\), in step 1",
        ),
    ],
)
def test_an_environment_of_the_old_kind_is_told_what_is_asked_for(what: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        wrapped(Old, what=what).calibrate()


class Shown(Clock):
    """Brighter with every step."""

    def __init__(self, render_mode: str | None = None, ends: int = 6):
        super().__init__(ends=ends)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((20, 40, 3), 30 * self.t, np.uint8) if self.render_mode == "rgb_array" else None


class Unsteady(Shown):
    """Ends sooner when it is filmed."""

    def __init__(self, render_mode: str | None = None):
        super().__init__(render_mode, ends=4 if render_mode else 6)


def test_a_game_is_filmed(tmp_path: Path) -> None:
    def trained(env: Any) -> Any:
        return ube.train(env, "ube-deep", 60, out=tmp_path / f"run{len(list(tmp_path.iterdir()))}", overrides=SMALL)

    with Image.open(trained(Shown).video()) as film:
        assert film.n_frames == 6
        brightness = []
        for frame in range(film.n_frames):
            film.seek(frame)
            brightness.append(film.convert("RGB").getpixel((5, 5))[0])
        assert brightness == [0, 30, 60, 90, 120, 150]
        assert film.size[0] == 320
    with pytest.raises(UsageError, match="renders NoneType in render_mode=None: a video needs one that gives pictures"):
        trained(Shown()).video()
    with pytest.raises(UsageError, match=r"could not be made with {'render_mode': 'rgb_array'}"):
        trained(Clock).video()
    with pytest.raises(RunError, match="does not repeat itself from its seed, so its game cannot be shown"):
        trained(Unsteady).video()
    assert not list(tmp_path.glob("run[123]/*.gif"))


def test_several_of_one_object_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"n_envs=2: .*Clock is one object of 1"):
        ube.train(Clock(), "dqn", 10, out=tmp_path / "run", schedule=Schedule(n_envs=2))


def test_minigrid(tmp_path: Path) -> None:
    run = ube.train(
        "MiniGrid-Empty-5x5-v0", "ube-deep", 300, out=tmp_path / "run",
        schedule=Schedule(evaluate_every=150, evaluation_steps=20), overrides={"hidden": (8,)},
    )  # fmt: skip
    assert run.agent.env.observation_shape == (7 * 7 * 3 + 4,)
