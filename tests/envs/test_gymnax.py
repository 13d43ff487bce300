"""The gymnax adapter plays as gymnax does, but for the reset, and tells the two endings apart."""

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ube import UsageError
from ube.envs import Environment, make
from ube.envs.gymnax_adapter import gymnax_arguments

SHORT: dict[str, dict[str, Any]] = {
    env_id: {"max_steps_in_episode": 12}
    for env_id in ("Acrobot-v1", "Breakout-MinAtar", "CartPole-v1", "FourRooms-misc", "Pong-misc")
}
"""Limits low enough that 60 steps meet them, and in Breakout and CartPole also an episode that ends before."""

QUICK: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiling is all that takes time here."""


def play(env: Environment, theirs: Any, params: Any, key: jax.Array, steps: int) -> dict[str, jax.Array]:
    """Random play of gymnax's own auto-resetting step and, from each of its states with the same keys, one of ours."""
    state, observation = env.reset(key, ())
    their_observation, _ = theirs.reset(key, params)

    def one(state: Any, key: jax.Array) -> Any:
        key_action, key = jax.random.split(key)
        key_step, key_reset = jax.random.split(key)  # as gymnax splits within its step
        action = jax.random.randint(key_action, (), 0, env.n_actions)
        their_next, their_state, reward, terminated, truncated, info = theirs.step(key, state, action, params)
        our_state, played = env.step(key_step, (), state, action)
        fresh_state, fresh = env.reset(key_reset, ())
        done = played.terminated | played.truncated
        our_state = jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh_state, our_state)
        their_state = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), their_state, our_state)
        differing = jax.tree.map(lambda a, b: jnp.any(a != b), our_state, their_state)
        return their_state, {
            "last": played.observation, "their_last": info["final_observation"],
            "next": jnp.where(done, fresh, played.observation), "their_next": their_next,
            "reward": played.reward, "their_reward": reward,
            "terminated": played.terminated, "their_terminated": terminated,
            "truncated": played.truncated, "their_truncated": truncated,
            "differing": jnp.any(jnp.stack(jax.tree.leaves(differing))),
        }  # fmt: skip

    _, out = jax.lax.scan(one, state, jax.random.split(key, steps))
    return out | {"first": observation, "their_first": their_observation}


def carried(env: Environment) -> str:
    """Whether a loop can carry the state: a step returns the types that a reset does, and none of them weak."""
    key = jax.random.key(0)
    after_reset, _ = jax.eval_shape(env.reset, key, ())
    after_step, _ = jax.eval_shape(env.step, key, (), after_reset, jnp.int32(0))
    types = [[(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)] for state in (after_reset, after_step)]
    return "the same" if types[0] == types[1] and not any(weak for _, weak in types[0]) else f"not: {types}"


@pytest.mark.parametrize("env_id", gymnax_arguments())
def test_plays_as_gymnax_does(env_id: str) -> None:
    env = make(env_id, **SHORT.get(env_id, {}))
    theirs, params = gymnax.make(env_id)
    params = params.replace(**SHORT.get(env_id, {}))
    assert carried(env) == "the same"
    traced = jax.jit(lambda key: play(env, theirs, params, key, 60), compiler_options=QUICK)(jax.random.key(1))
    out = {name: np.asarray(value) for name, value in traced.items()}
    for name in ("first", "last", "next"):
        ours, original = out[name], out[f"their_{name}"]
        if env_id == "FrozenLake-misc":
            original = np.eye(16)[original]
        assert ours.dtype == env.observation_dtype
        assert ours.shape[-len(env.observation_shape) :] == env.observation_shape
        np.testing.assert_array_equal(ours, original)
        assert (ours >= env.low).all()
        assert (ours <= env.high).all()
    assert out["reward"].dtype == np.float32
    np.testing.assert_array_equal(out["reward"], out["their_reward"])
    np.testing.assert_array_equal(out["terminated"], out["their_terminated"])
    np.testing.assert_array_equal(out["truncated"], out["their_truncated"] & ~out["their_terminated"])
    if env_id != "DeepSea-bsuite":  # whose step carries counters over to the next episode
        assert not out["differing"].any()
    if env_id in SHORT:
        assert out["truncated"].any()
    if env_id in ("Breakout-MinAtar", "Catch-bsuite", "DeepSea-bsuite", "FrozenLake-misc", "SimpleBandit-bsuite"):
        assert out["terminated"].any()


@pytest.mark.parametrize(
    ("game", "limit"),
    [("Asterix", 1000), ("Breakout", 1000), ("Freeway", 2500), ("Seaquest", 1000), ("SpaceInvaders", 1000)],
)
def test_the_limit_of_a_minatar_game_is_a_truncation(game: str, limit: int) -> None:
    env = make(f"{game}-MinAtar")
    state, _ = jax.jit(env.reset, compiler_options=QUICK)(jax.random.key(0), ())
    step = jax.jit(
        lambda time: env.step(jax.random.key(0), (), state.replace(time=time), jnp.int32(0))[1], compiler_options=QUICK
    )
    before, at = step(jnp.int32(limit - 2)), step(jnp.int32(limit - 1))
    assert (bool(before.truncated), bool(before.terminated)) == (False, False)
    assert (bool(at.truncated), bool(at.terminated)) == (True, False)
    assert at.observation.any()


def test_a_step_at_the_end_keeps_the_last_observation() -> None:
    env = make("Catch-bsuite", rows=4)
    state, observation = env.reset(jax.random.key(0), ())
    for _ in range(3):
        state, played = env.step(jax.random.key(0), (), state, jnp.int32(1))
    assert played.terminated
    assert abs(float(played.reward)) == 1
    assert played.observation[-1].sum() == (1 if played.reward > 0 else 2)  # ball and paddle, both in the last row
    assert observation[0].sum() == 1


def test_arguments_reach_the_constructor_and_the_parameters() -> None:
    assert make("Catch-bsuite", rows=7, columns=3).observation_shape == (7, 3)
    assert make("Breakout-MinAtar", use_minimal_action_set=False).n_actions == 6
    assert make("FrozenLake-misc", map_name="8x8").observation_shape == (64,)
    env = make("MountainCar-v0", max_steps_in_episode=1, max_speed=0.01)
    _, played = env.step(jax.random.key(0), (), env.reset(jax.random.key(0), ())[0], jnp.int32(1))
    assert played.truncated
    np.testing.assert_allclose(env.high, [0.6, 0.01], rtol=1e-6)


def test_bounds_are_infinite_where_there_are_none() -> None:
    np.testing.assert_array_equal(np.isinf(make("CartPole-v1").high), [False, True, False, True])
    assert make("GaussianBandit-misc").low.min() == -np.inf


def test_vmapped_episodes_differ() -> None:
    env = make("Catch-bsuite")
    _, observations = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), 20), ())
    assert len({np.asarray(one).tobytes() for one in observations}) == 5  # the ball starts in any of five columns


@pytest.mark.parametrize(
    ("env_id", "env_args", "message"),
    [
        ("Pendulum-v1", {}, "Pendulum-v1 has continuous actions .* use another environment"),
        ("CartPole-v1", {"rows": 3}, "CartPole-v1 has no argument 'rows'; it takes max_steps_in_episode, gravity"),
        ("CartPole-v1", {"gravity": "low"}, "gravity='low': it must be a finite number"),
        ("Catch-bsuite", {"rows": "many"}, "rows='many': it must be a whole number"),
        ("MetaMaze-misc", {"maze_size": 4}, "MetaMaze-misc does not accept maze_size=4: see its gymnax class"),
        ("Breakout-MinAtr", {}, "the nearest ids are Breakout-MinAtar"),
    ],
)
def test_bad_ids_and_arguments_name_the_value(env_id: str, env_args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(env_id, **env_args)


def test_observations_that_are_no_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    space = gymnax.environments.spaces.Dict({"a": gymnax.environments.spaces.Discrete(2)})
    monkeypatch.setattr(type(gymnax.make("Acrobot-v1")[0]), "observation_space", lambda self, params: space)
    with pytest.raises(UsageError, match=r"Acrobot-v1 observes Dict.* needs one array"):
        make("Acrobot-v1", max_steps_in_episode=77)
