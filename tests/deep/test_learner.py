"""The learner: what each step may change, how each policy acts, and the batch update against NumPy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.tiny import SEA, played, returns, session
from ube.deep.learner import Learner, LearnerState, Transition

UBE_PRESETS = ["ube-1step", "ube-nstep", "ube-deep", "unstructured-noise"]
SCALE = 1e6


def same_bits(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def observation(row: int = 0, column: int = 0) -> np.ndarray:
    cells = np.zeros(SEA.observation_shape, bool)
    cells[row, column] = True
    return cells


# ---------------------------------------------------------------- the u-network and Q


def test_the_u_loss_cannot_move_the_trunk() -> None:
    run = session("ube-1step")
    learner, state = run.loop.learner, played(run)[0].learner
    x = jnp.eye(64)

    @jax.jit
    def gradients(q: Any, u: Any) -> Any:
        def loss(q: Any, u: Any) -> jax.Array:
            phi = learner.values.network.apply(q, x)[1]
            return ((learner.u_network.apply(u, phi) - 3.0) ** 2).sum()

        return jax.grad(loss, (0, 1))(q, u)

    of_q, of_u = gradients(state.values.params, state.u)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(of_q))
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(of_u))


def test_observing_moves_u_and_leaves_q_alone() -> None:
    run = session("ube-1step")
    learner, state = run.loop.learner, played(run)[0].learner
    choice = run.loop.think(state, observation(), jax.random.key(0), run.knobs)
    after, loss = jax.jit(learner.observe)(state, choice, run.knobs)
    before, later = ((s.values.params, s.values.target, s.values.optimiser) for s in (state, after))
    assert same_bits(before, later)
    assert float(loss) > 0
    assert not same_bits(state.u, after.u)
    assert int(after.steps) == int(state.steps) + 1 == 101


@pytest.mark.parametrize("preset", UBE_PRESETS)
@pytest.mark.parametrize(
    ("scale", "clip"), [(SCALE, np.inf), (-SCALE, np.inf), pytest.param(SCALE, 1.0, marks=pytest.mark.slow)]
)
def test_u_is_finite_and_never_negative_whatever_the_reward(preset: str, scale: float, clip: float) -> None:
    carry, log = played(session(preset, reward_clip=clip), 300, scale=scale)
    assert np.isfinite(log.column("u")).all()
    assert log.column("u").min() >= 0
    assert log.column("nu").min() >= 0  # 0 where every learned feature is 0
    assert log.column("nu").max() <= 1 + 1e-5
    floats = [leaf for leaf in jax.tree.leaves(carry.learner) if leaf.dtype == jnp.float32]
    assert all(np.isfinite(leaf).all() for leaf in floats)
    paid = np.abs(returns(log))
    assert paid.max() > 1e3  # what is reported is never clipped
    assert np.abs(carry.replay.rows.reward).max() <= clip


def test_the_bonus_comes_on_top_of_the_clipped_reward() -> None:
    carry, log = played(session("bonus", reward_clip=1.0), scale=SCALE)
    extrinsic = np.asarray(carry.replay.rows.reward[:100]) - 0.1 * np.sqrt(log.column("nu"))
    np.testing.assert_allclose(extrinsic, np.round(extrinsic), atol=1e-6)
    assert set(np.round(extrinsic)) == {-1.0, 0.0}  # -1250 a move, clipped; nothing for going left
    unclipped, log = played(session("bonus", bonus_scale=0.5), scale=1.0)
    extrinsic = np.asarray(unclipped.replay.rows.reward[:100]) - 0.5 * np.sqrt(log.column("nu"))
    np.testing.assert_allclose(np.minimum(np.abs(extrinsic), np.abs(extrinsic + 0.00125)), 0.0, atol=1e-6)


def test_truncation_continues_and_termination_does_not() -> None:
    carry, log = played(session("ube-1step"), limit=3)
    assert list(np.flatnonzero(log.ended)) == list(range(2, 100, 3))
    np.testing.assert_array_equal(carry.replay.rows.continues[:100], 1.0)
    carry, log = played(session("ube-1step"))
    assert list(np.flatnonzero(log.ended)) == list(range(7, 100, 8))
    np.testing.assert_array_equal(carry.replay.rows.continues[:100], 1.0 - log.ended)


# ---------------------------------------------------------------- acting


def many(learner: Learner, state: Any, knobs: Any, n: int) -> Any:
    keys = jax.random.split(jax.random.key(9), n)
    act = jax.jit(jax.vmap(lambda key: learner.act(state, observation(), key, knobs)))
    return keys, act(keys)


def test_equation_3_with_the_same_noise() -> None:
    run = session("ube-1step", beta=3.0)
    state = played(run)[0].learner
    keys, choice = many(run.loop.learner, state, run.knobs, 200)
    noise_keys = jax.vmap(lambda key: jax.random.split(key, 3)[0])(keys)
    zeta = jax.vmap(lambda key: jax.random.normal(key, (1, 2))[0])(noise_keys)
    score = np.asarray(choice.q) + 3.0 * np.asarray(zeta) * np.sqrt(np.asarray(choice.u))
    np.testing.assert_array_equal(choice.action, score.argmax(1))
    assert 0 < np.asarray(choice.action).sum() < 200
    assert np.ptp(np.asarray(choice.u), axis=0).max() == 0  # one state: only the noise differs


def test_ucb_is_measured_in_returns() -> None:
    run = session("ube-deep", beta_unit="returns", optimism="full", levels_wait=False)
    learner, state = run.loop.learner, played(run)[0].learner
    q, u = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.25])
    for largest, unit in ((0.2, 1.0), (4.0, 4.0)):
        state = state._replace(largest_return=jnp.float32(largest))
        assert float(learner.unit(state)) == unit
        score = learner.score(state, q, u, jax.random.key(0), run.knobs)
        np.testing.assert_allclose(score, [1.0, unit * 0.5])
        think = run.loop.think(state, observation(), jax.random.key(0), run.knobs)
        assert int(think.action) == int((think.q + unit * jnp.sqrt(think.u)).argmax())


def test_every_policy_on_hand_numbers() -> None:
    run = session("ube-1step", beta=2.0)
    shape = run.loop.learner.config
    state = played(run)[0].learner._replace(zeta=jnp.float32(-1.5), mean_u_root=jnp.float32(3.0))
    q, u, key = jnp.array([1.0, 2.0]), jnp.array([4.0, 9.0]), jax.random.key(4)
    zeta = np.asarray(jax.random.normal(key, (2,)))
    expected = {
        "epsilon-greedy": [1.0, 2.0],
        "noise-per-step": np.array([1.0, 2.0]) + 2.0 * zeta * [2.0, 3.0],
        "noise-per-episode": [1.0 - 3.0 * 2.0, 2.0 - 3.0 * 3.0],
        "ucb": [5.0, 8.0],
        "unstructured-noise": np.array([1.0, 2.0]) + 2.0 * zeta * 3.0,
    }
    for policy, score in expected.items():
        learner = Learner(dataclasses.replace(shape, policy=policy), SEA)
        np.testing.assert_allclose(learner.score(state, q, u, key, run.knobs), score, rtol=1e-6)


def test_epsilon_is_constant_then_linear_then_constant() -> None:
    run = session("dqn", epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100, warmup=20)
    rate = [float(run.loop.learner.epsilon(step, run.knobs)) for step in (0, 20, 45, 70, 120, 10_000)]
    assert rate == pytest.approx([0.9, 0.9, 0.7, 0.5, 0.1, 0.1])


def test_epsilon_is_how_often_actions_are_random() -> None:
    run = session("dqn", epsilon_start=0.4, epsilon_end=0.4)
    state = played(run)[0].learner
    _, choice = many(run.loop.learner, state, run.knobs, 4_000)
    surprising = np.asarray(choice.action) != np.asarray(choice.q).argmax(1)
    assert surprising.mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.2 * 0.8 / 4_000))


def test_what_lasts_an_episode_changes_at_its_end() -> None:
    run = session("boot")
    learner, state = run.loop.learner, played(run)[0].learner

    @jax.jit
    @jax.vmap
    def after(key: jax.Array, ended: jax.Array) -> Any:
        new = learner.after_step(state, jnp.float32(2.0), jnp.float32(0.0), ended, False, key, run.knobs)
        return new.member, new.zeta, new.episode_return, new.episode_weight

    keys = jax.random.split(jax.random.key(0), 200)
    member, zeta, total, weight = after(keys, jnp.zeros(200, bool))
    assert set(np.asarray(member)) == {int(state.member)}
    assert set(np.asarray(zeta)) == {float(state.zeta)}
    np.testing.assert_allclose(total, float(state.episode_return + 2.0 * state.episode_weight), rtol=1e-6)
    np.testing.assert_allclose(weight, float(0.99 * state.episode_weight), rtol=1e-6)
    member, zeta, total, weight = after(keys, jnp.ones(200, bool))
    assert set(np.asarray(member)) == set(range(10))
    assert len(set(np.asarray(zeta))) == 200
    assert (set(np.asarray(total)), set(np.asarray(weight))) == ({0.0}, {1.0})


@pytest.mark.parametrize(("preset", "features", "unit"), [("ube-deep", "bins", 4.0), ("ube-1step", "learned", 2.0)])
def test_noise_is_learned_from_how_decisions_turn_out(preset: str, features: str, unit: float) -> None:
    """Errors of Q, one decision late: not for an episode that was cut off, and without a future for one that ended. A reward
    of 3 is clipped to 2.5; where 2 is the unit, that error is no larger than 1."""
    run = session(preset, features=features, noise="learned", beta_unit="returns", reward_clip=2.5)
    learner, knobs = run.loop.learner, run.knobs
    act, observe, after_step = jax.jit(learner.act), jax.jit(learner.observe), jax.jit(learner.after_step)
    state = learner.init(jax.random.key(0), knobs)._replace(largest_return=jnp.float32(unit))
    ends = {3: "ended", 7: "cut", 8: "ended"}
    rewards = np.array([0.5, -1.0, 0.0, 3.0, 0.1, 0.2, 0.3, 0.4, 0.9, 0.0, 0.0])
    values, taken, expected = [], [], 0.0
    for t, reward in enumerate(rewards):
        choice = act(state, observation(t % 8, t % 3), jax.random.key(t), knobs)
        values.append(np.asarray(choice.q, np.float64))
        taken.append(int(choice.action))
        state, _ = observe(state, choice, knobs)
        how = ends.get(t, "")
        state = after_step(state, jnp.float32(reward), 0.0, how != "", how == "cut", jax.random.key(t), knobs)
    assert float(learner.unit(state)) == unit
    for t in range(len(rewards) - 1):  # the last one is still awaited
        future = 0.0 if t in ends else 0.99 * values[t + 1].max()
        error = (min(rewards[t], 2.5) + future - values[t][taken[t]]) / unit
        expected += 0.0 if ends.get(t) == "cut" else min(abs(error), 1.0) ** 2
    squares = np.asarray(state.counts.squares, np.float64)
    of_each_table = squares.reshape(16, -1).sum(1) if features == "bins" else squares.sum()
    np.testing.assert_allclose(of_each_table, expected, rtol=1e-4)


# ---------------------------------------------------------------- the batch


def forward(params: Any, x: np.ndarray) -> np.ndarray:
    """Q of an mlp of one hidden layer and K networks, (B, K, A), in NumPy."""
    layers = params["params"]["trunk"]["Dense_0"], params["params"]["Dense_0"]
    (w1, b1), (w2, b2) = [[np.asarray(part[name], np.float64) for name in ("kernel", "bias")] for part in layers]
    if w1.ndim == 2:
        w1, b1, w2, b2 = w1[:, None], b1[None], w2[:, None], b2[None]
    hidden = np.maximum(np.einsum("bi,iko->bko", x, w1) + b1, 0)
    return np.einsum("bki,iko->bko", hidden, w2) + b2


def batch_of(rows: int, members: int, codes: int) -> Transition:
    rng = np.random.default_rng(0)
    cells = np.eye(64, dtype=bool).reshape(64, 8, 8)
    return Transition(
        observation=cells[rng.integers(0, 64, rows)], action=rng.integers(0, 2, rows),
        reward=rng.normal(size=rows).astype(np.float32), continues=(rng.random(rows) < 0.7).astype(np.float32),
        next_observation=cells[rng.integers(0, 64, rows)], code=np.zeros((rows, codes)),
        next_code=np.zeros((rows, codes)), mask=(rng.random((rows, members)) < 0.5).astype(np.float32),
    )  # fmt: skip


def with_other_targets(state: LearnerState) -> LearnerState:
    """Target networks that are not the networks, as between two copies."""
    q_target, u_target = jax.tree.map(lambda leaf: 2 * leaf + 0.3, (state.values.params, state.u))
    return state._replace(values=state.values._replace(target=q_target), u_target=u_target)


@pytest.mark.parametrize(("preset", "members", "prior"), [("ube-nstep", 1, 0.0), ("boot", 10, 3.0)])
def test_q_regresses_on_one_step_targets(preset: str, members: int, prior: float) -> None:
    run = session(preset)
    state = with_other_targets(played(run)[0].learner)
    batch = batch_of(16, members, 0)
    batch = batch._replace(mask=np.ones_like(batch.mask) if members == 1 else batch.mask)
    x, next_x = (part.reshape(16, -1).astype(float) for part in (batch.observation, batch.next_observation))

    def q_of(params: Any, at: np.ndarray) -> np.ndarray:
        return forward(params, at) + (prior * forward(state.values.prior, at) if prior else 0.0)

    target = batch.reward[:, None] + 0.99 * batch.continues[:, None] * q_of(state.values.target, next_x).max(-1)
    error = np.abs(q_of(state.values.params, x)[np.arange(16), :, batch.action] - target)
    huber = np.where(error < 1, error**2 / 2, error - 0.5)
    assert error.max() > 1
    update = jax.jit(run.loop.learner.update)
    after, metrics = update(state, batch, None, jax.random.key(0), run.knobs)
    assert float(metrics["loss"]) == pytest.approx((huber * batch.mask).sum(1).mean(), rel=1e-4)
    assert int(after.updates) == int(state.updates) + 1
    assert same_bits(state.u, after.u)
    if members > 1:
        masked = batch._replace(mask=batch.mask * (np.arange(members) != 3))
        fresh = jax.tree.map(jnp.zeros_like, state.values.optimiser)  # no momentum from before
        after, _ = update(
            state._replace(values=state.values._replace(optimiser=fresh)), masked, None, jax.random.key(0), run.knobs
        )
        for old, new in zip(jax.tree.leaves(state.values.params), jax.tree.leaves(after.values.params), strict=True):
            moved = np.moveaxis(np.asarray(old != new), -2, 0).reshape(members, -1).any(1)
            np.testing.assert_array_equal(moved, np.arange(members) != 3)


def test_u_regresses_on_what_follows_by_the_policy_of_now() -> None:
    run = session("ube-deep", beta=0.5, discount=0.8, beta_unit="returns", u_discount=0.7)
    learner = run.loop.learner
    state = with_other_targets(played(run)[0].learner)._replace(
        largest_return=jnp.float32(3.0), zeta=jnp.float32(-5.0), reward_range=jnp.array([0.0, 1.0])
    )  # a greedy episode: targets of u are optimistic all the same
    batch = batch_of(16, 1, 0)
    x, next_x = (part.reshape(16, -1).astype(np.float32) for part in (batch.observation, batch.next_observation))
    code, next_code = (learner.counts.code(state.counts, part, part) for part in (x, next_x))
    batch = batch._replace(code=code, next_code=next_code, mask=np.ones((16, 1), np.float32))
    most = 0.7**2 / (1 - 0.7**2)  # that can follow
    u_next = np.clip(forward(state.u_target, next_x)[:, 0], 0, most) + np.asarray(
        learner.counts.nu(state.counts, next_code)
    )
    a_next = (forward(state.values.target, next_x)[:, 0] + 0.5 * 3.0 * np.sqrt(u_next)).argmax(1)
    target = 0.7**2 * batch.continues * u_next[np.arange(16), a_next]
    error = target - forward(state.u, x)[np.arange(16), 0, batch.action]
    assert set(a_next) == {0, 1}
    update = jax.jit(learner.update)
    after, metrics = update(state, batch, None, jax.random.key(0), run.knobs)
    assert float(metrics["u_loss"]) == pytest.approx((error**2).mean(), rel=1e-4)
    blind, _ = update(state._replace(u=state.u_target), batch, None, jax.random.key(0), run.knobs)
    assert same_bits(after.values.params, blind.values.params)  # what u thinks does not reach Q


def test_members_of_an_ensemble_differ_and_see_different_data() -> None:
    carry, _ = played(session("boot"))
    q = forward(carry.learner.values.params, np.eye(64)) + 3.0 * forward(carry.learner.values.prior, np.eye(64))
    distance = np.abs(q[:, :, None] - q[:, None]).max((0, 3))
    assert distance[~np.eye(10, dtype=bool)].min() > 0.1
    mask = np.asarray(carry.replay.rows.mask[:100])
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert mask.mean() == pytest.approx(0.5, abs=0.07)
    assert np.abs(np.corrcoef(mask.T) - np.eye(10)).max() < 0.5


def test_rmsprop_is_centred_and_its_epsilon_is_that_of_a_summed_loss() -> None:
    config = dataclasses.replace(session("dqn").config, optimiser="rmsprop", batch_size=32)
    optimiser = Learner(config, SEA).values.optimiser
    state = optimiser.init(jnp.zeros(1))
    mean = square = 0.0
    for gradient in (0.3, -0.002, 0.01):
        mean, square = 0.95 * mean + 0.05 * gradient, 0.95 * square + 0.05 * gradient**2
        step, state = optimiser.update(jnp.array([gradient]), state)
        expected = 32 * gradient / (32**2 * (square - mean**2) + 0.01) ** 0.5  # Mnih et al. 2015, on the sum over 32
        np.testing.assert_allclose(step, [expected], rtol=1e-4)
