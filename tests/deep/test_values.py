"""Values that mean something: zero at the start, ties, n-step and double targets, units of β, levels of optimism, warm-up."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ube
from deep.tiny import SEA, played, session
from ube import UsageError
from ube.deep import replay as ring
from ube.deep.checks import Checks
from ube.deep.config import PRESETS, agent_config
from ube.deep.learner import LARGEST, MEANS, Ahead, Choice, LearnerState, any_best
from ube.deep.settings import filled


@pytest.mark.parametrize("preset", PRESETS)
def test_before_anything_is_learned_q_is_zero_and_u_is_nu(preset: str) -> None:
    run = session(preset, randomised_prior=0.0)
    learner = run.loop.learner
    state = learner.init(jax.random.key(3), run.knobs)
    for cell in (0, 9, 63):
        observation = (np.arange(64) == cell).reshape(8, 8)
        choice = learner.act(state, observation, jax.random.key(0), run.knobs)
        np.testing.assert_array_equal(choice.q, 0.0)
        np.testing.assert_array_equal(choice.u, choice.nu if preset == "ube-deep" else 0.0)


def test_random_initial_values_are_one_field_away() -> None:
    run = session("ube-deep", initial_values="random")
    state = run.loop.learner.init(jax.random.key(3), run.knobs)
    choice = run.loop.learner.act(state, np.eye(8, dtype=bool), jax.random.key(0), run.knobs)
    assert np.abs(choice.q).min() > 0


def test_ties_are_broken_uniformly() -> None:
    score = jnp.array([1.0, 2.0, 0.0, 2.0, 2.0])
    drawn = jax.vmap(lambda key: any_best(score, key))(jax.random.split(jax.random.key(0), 3_000))
    share = np.bincount(np.asarray(drawn), minlength=5) / 3_000
    np.testing.assert_allclose(share, [0, 1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)


class Kept(NamedTuple):
    reward: Any
    ended: Any
    continues: Any


def test_looking_ahead_is_a_plain_loop() -> None:
    rng, capacity, n, discount = np.random.default_rng(0), 11, 4, 0.9  # of 40 transitions the ring keeps the last 11
    reward, ended = rng.normal(size=40), rng.random(40) < 0.2
    continues = 1.0 - ended * (rng.random(40) < 0.5)
    replay = ring.empty_replay(Kept(jnp.zeros(()), jnp.bool_(False), jnp.zeros(())), capacity)
    for row in zip(reward, ended, continues, strict=True):
        replay = ring.add(replay, Kept(*row))
    total, weight, last = ring.look_ahead(replay, jnp.arange(capacity), n, jnp.float32(discount))
    for slot in range(capacity):
        t = next(t for t in range(39, -1, -1) if t % capacity == slot)
        expected = 0.0
        for k in range(n):
            expected += discount**k * reward[t]
            if ended[t] or t == 39 or k == n - 1:
                break
            t += 1
        assert float(total[slot]) == pytest.approx(expected, abs=1e-6)
        assert float(weight[slot]) == pytest.approx(discount ** (k + 1) * continues[t], abs=1e-6)
        assert int(last[slot]) == t % capacity


def test_targets_of_several_steps_reach_q() -> None:
    """With double Q-learning: the online network chooses, the target network values."""
    run = session("dqn", q_steps=3, double_q=True, discount=0.5)
    carry, _ = played(run, 300)
    learner = run.loop.learner
    batch, slots = ring.sample(carry.replay, jax.random.key(0), 16)
    reward, discount, last = ring.look_ahead(carry.replay, slots, 3, run.knobs.discount)
    following = carry.replay.rows.next_observation[last]
    targets = learner.targets(carry.learner, batch, Ahead(reward, discount, following), jax.random.key(1), run.knobs)
    online, target = (
        learner.values.network.apply(params, following.astype(jnp.float32))[0]
        for params in (carry.learner.values.params, carry.learner.values.target)
    )
    value = np.asarray(target)[np.arange(16), np.asarray(online).argmax(1)]
    np.testing.assert_allclose(targets.q[:, 0], np.asarray(reward) + np.asarray(discount) * value, atol=1e-6)


@pytest.mark.parametrize(
    ("unit", "rewards", "expected"),
    [
        ("one", (-7.0, 9.0), 1.0),
        ("rewards", (0.0, 0.0), 1.0),  # none seen yet
        ("rewards", (-0.01, 0.0), 1.0),  # costs do not tell what a success is worth
        ("rewards", (-10.0, 0.0), 10.0),
        ("rewards", (-10.0, 0.5), 0.5),
        ("rewards", (0.0, 1_000.0), 1_000.0),
    ],
)
def test_the_unit_of_beta_by_hand(unit: str, rewards: tuple[float, float], expected: float) -> None:
    run = session("ube-deep", beta_unit=unit)
    learner = run.loop.learner
    state = learner.init(jax.random.key(0), run.knobs)._replace(reward_range=jnp.array(rewards))
    assert float(learner.unit(state)) == expected


def test_levels_by_hand() -> None:
    run = session("ube-deep", optimism="levels", greedy_share=0.5, levels_wait=True)
    learner = run.loop.learner
    state = learner.init(jax.random.key(0), run.knobs)
    seen = state._replace(reward_range=jnp.array([0.0, 1.0]))
    for zeta, expected in ((-1.0, 0.0), (0.0, 0.0), (0.6744898, 0.5), (8.0, 1.0)):  # Φ: 0.16, 0.5, 0.75, 1
        at = {"zeta": jnp.float32(zeta)}
        assert float(learner.level(seen._replace(**at), run.knobs)) == pytest.approx(expected, abs=1e-6)
        assert float(learner.level(state._replace(**at), run.knobs)) == 1.0
    for rewards, waits in (((-0.01, 0.0), True), ((-1.0, 0.0), False), ((0.0, 0.001), False)):
        greedy = state._replace(zeta=jnp.float32(-1.0), reward_range=jnp.array(rewards))
        assert float(learner.level(greedy, run.knobs)) == (1.0 if waits else 0.0)
    u, q = jnp.array([4.0, 1.0]), jnp.zeros(2)
    half = seen._replace(zeta=jnp.float32(0.6744898))
    np.testing.assert_allclose(learner.score(half, q, u, jax.random.key(0), run.knobs), [1.0, 0.5], atol=1e-5)
    np.testing.assert_allclose(learner.score(half, q, u, jax.random.key(0), run.knobs, level=1.0), [2.0, 1.0])


@pytest.mark.parametrize(("warmup_policy", "expected"), [("agent", (0, 0, 100)), ("random", (100, 0, 100))])
def test_actions_are_random_in_greedy_episodes_only(warmup_policy: str, expected: tuple[int, int, int]) -> None:
    """ε = 1 throughout: in the warm-up and after it in an optimistic episode, and after it in a greedy one."""
    run = session("ube-deep", epsilon_end=1.0, warmup=10, warmup_policy=warmup_policy)
    learner = run.loop.learner
    start = learner.init(jax.random.key(0), run.knobs)._replace(reward_range=jnp.array([0.0, 1.0]))
    optimistic, greedy = jnp.float32(8.0), jnp.float32(-1.0)

    for (steps, zeta), percent in zip([(5, optimistic), (20, optimistic), (20, greedy)], expected, strict=True):
        state = start._replace(steps=jnp.int32(steps), zeta=zeta)
        assert float(learner.random_share(state, run.knobs)) * 100 == percent
    full = session("ube-deep", epsilon_end=1.0, optimism="full", levels_wait=False, warmup=10)
    state = start._replace(steps=jnp.int32(20), zeta=optimistic)
    assert float(full.loop.learner.random_share(state, full.knobs)) == 1.0


def test_rewards_seen_are_kept() -> None:
    run = session("dqn", epsilon_end=1.0)  # random play does not find the treasure
    carry, _ = played(run, 100, scale=-1.0)  # moves pay 0.00125
    np.testing.assert_allclose(carry.learner.reward_range, [0.0, 0.00125], rtol=1e-5)


def test_levels_are_drawn_per_episode() -> None:
    run = session("ube-deep")
    learner = run.loop.learner
    state = learner.init(jax.random.key(0), run.knobs)

    def zeta_after(ended: bool) -> float:
        end, no = jnp.bool_(ended), jnp.bool_(False)
        after = learner.after_step(state, jnp.float32(0.5), jnp.zeros(()), end, no, jax.random.key(1), run.knobs)
        return float(after.zeta)

    assert zeta_after(False) == float(state.zeta)
    assert zeta_after(True) != float(state.zeta)


def test_greedy_steps_make_up_for_optimistic_ones() -> None:
    """greedy_share=0.75: each optimistic step owes three greedy ones, and until they are paid every episode is greedy."""
    run = session("ube-deep", greedy_share=0.75)
    learner = run.loop.learner
    state = learner.init(jax.random.key(0), run.knobs)._replace(zeta=jnp.float32(8.0))
    no = jnp.bool_(False)

    def after(state: LearnerState, reward: float, ended: bool, key: int = 0) -> LearnerState:
        keys = jax.random.key(key), run.knobs
        return learner.after_step(state, jnp.float32(reward), jnp.zeros(()), jnp.bool_(ended), no, *keys)

    state = after(state, 0.0, False)
    assert float(state.greedy_debt) == 0.0  # before any return there is nothing to use
    state = after(after(state._replace(reward_range=jnp.array([0.0, 1.0])), 0.0, False), 0.0, True)
    assert float(state.greedy_debt) == 6.0
    for left in (5.0, 4.0, 3.0, 2.0, 1.0):
        assert float(learner.level(state, run.knobs)) == 0.0
        state = after(state, 0.0, True, key=int(left))
        assert float(state.greedy_debt) == left
    state = after(after(state, 0.0, False), 0.0, False)
    assert float(state.greedy_debt) == 0.0  # what greedy episodes do beyond their share is not saved up
    levels = [float(learner.level(after(state, 0.0, True, key), run.knobs)) for key in range(40)]
    assert 0.5 < np.mean(np.array(levels) == 0.0) < 0.95  # without debt the share is of episodes, 0.75


@pytest.mark.parametrize("preset", ["ube-1step", "ube-nstep", "unstructured-noise"])
def test_the_papers_agents_begin_with_random_play(preset: str) -> None:
    run = session(preset, warmup=50)
    learner = run.loop.learner
    assert [float(learner.epsilon(step, run.knobs)) for step in (0, 49, 50, 1_000)] == [1.0, 1.0, 0.0, 0.0]
    own = session(preset, warmup=50, warmup_policy="agent")
    assert float(own.loop.learner.epsilon(0, own.knobs)) == 0.0


def test_random_play_comes_before_the_schedule_of_epsilon() -> None:
    run = session("dqn", warmup=50, epsilon_start=0.5, epsilon_end=0.1, epsilon_steps=100, warmup_policy="random")
    learner = run.loop.learner
    assert [round(float(learner.epsilon(step, run.knobs)), 6) for step in (0, 49, 50, 100, 150)] == [
        1,
        1,
        0.5,
        0.3,
        0.1,
    ]


def test_metrics_of_a_decision_by_hand() -> None:
    run = session("ube-deep", beta=0.5, beta_unit="rewards")
    learner = run.loop.learner
    state = learner.init(jax.random.key(0), run.knobs)._replace(reward_range=jnp.array([0.0, 3.0]))
    zero = jnp.zeros(0)
    choice = Choice(
        jnp.int32(1), jnp.array([2.0, -4.0]), jnp.array([4.0, 9.0]), zero, jnp.float32(0.7), zero, zero, zero
    )
    noted = dict(zip((*MEANS, *LARGEST), learner.noted(state, choice, run.knobs).tolist(), strict=True))
    assert noted == pytest.approx(
        {"q": 2.0, "u": 9.0, "nu": 0.7, "nongreedy": 1.0, "q_gap": 3.0, "spread": 0.5 * 3.0 * (3.0 - 2.0),
         "q_largest": 4.0, "u_largest": 9.0}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"u_discount": 1.01}, "u_discount=1.01: γ_u must be within 0..1"),
        ({"greedy_share": 1.0}, "greedy_share=1.0: must be within 0..0.99"),
        ({"policy": "noise-per-step"}, "only ucb has levels"),
        ({"optimism": "full", "levels_wait": True}, "set optimism=levels"),
        ({"q_steps": 50, "replay_size": 50}, "q_steps=50, replay_size=50: the replay must hold more decisions"),
        ({"warmup": 500}, "warmup=500, steps=500: nothing would be learned"),
        ({"features": "windows"}, "features='windows' reads images (height, width, channels)"),
    ],
)
def test_fields_that_contradict_each_other_are_one_clear_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        filled(agent_config("ube-deep", {"optimism": "levels", "levels_wait": True} | overrides), SEA, 500)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_rewards_and_discounts_do_not_allow_is_said_once() -> None:
    config = filled(agent_config("ube-deep", {"discount": 0.9, "u_discount": 0.6, "reward_unit": 2.0}), SEA)
    checks, fine = Checks(config), {"q_largest": 39.0, "u_largest": 12.0}
    seen = np.array([-1.0, 1.0])  # Q is within 2 · 1 / (1 - 0.9) = 20; u within 2² / (1 - 0.36) = 6.25
    assert checks.messages(fine, seen) == []
    (message,) = checks.messages(fine | {"q_largest": 41.0}, seen)
    assert message.startswith(
        "|Q| is 41, but the rewards seen and γ = 0.9 allow 20 at most: Q is diverging; raise target_period"
    )
    (message,) = checks.messages({"q_largest": 41.0, "u_largest": 14.0}, seen)
    assert message.startswith("√u is 3.74, but ν ≤ 4 and γ_u = 0.6 allow 2.5 at most")
    (message,) = checks.messages(fine, np.array([0.0, 500.0]))
    assert message.endswith("start again with --set reward_unit=1000")
    assert checks.messages({"q_largest": 1e9, "u_largest": 1e9}, np.array([0.0, 5e5])) == []
    (message,) = Checks(config).messages({"q_largest": 0.0, "u_largest": 0.0}, np.zeros(2), last=True)
    assert message.startswith("no reward other than 0 was seen")
    assert len(Checks(config).messages({"q_largest": 0.1, "u_largest": 0.0}, np.zeros(2))) == 1  # from nothing
    boot = filled(agent_config("boot"), SEA)
    assert Checks(boot).messages({"q_largest": 9.0, "u_largest": 0.0}, np.zeros(2)) == []  # its prior is no reward


def test_a_run_says_that_no_reward_was_seen(tmp_path: Path) -> None:
    heard: list[str] = []
    overrides = {"hidden": (8,), "batch_size": 4, "warmup": 8, "replay_size": 100}
    ube.train("Tree-v0", "dqn", 40, env_args={"depth": 30}, overrides=overrides, out=tmp_path / "run", say=heard.append)
    assert heard == ["no reward other than 0 was seen: train for longer, or check that the environment pays one"]
