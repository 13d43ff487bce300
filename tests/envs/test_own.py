"""Our compiled environments against the tabular MDPs, transition by transition; sparse MountainCar against its rules."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ube import UsageError
from ube.envs import Environment, environments, make
from ube.tabular.mdp import MDP, chain, deep_sea, tree


class Scripted:
    """Stands in for a Generator that draws action meanings: it deals them from a list."""

    def __init__(self, meanings: np.ndarray) -> None:
        self.dealt: Iterator[int] = iter(meanings.tolist())

    def integers(self, n: int) -> int:
        return next(self.dealt)


def tabular_deep_sea(right: np.ndarray) -> MDP:
    size = len(right)
    return deep_sea(size, Scripted(right[np.tril_indices(size)]))  # type: ignore[arg-type]


def deep_sea_node(observation: np.ndarray) -> int:
    size = len(observation)
    if not observation.any():
        return size * (size + 1) // 2
    ((row, column),) = np.argwhere(observation)
    return int(row * (row + 1) // 2 + column)


def tree_node(observation: np.ndarray) -> int:
    (place,) = np.flatnonzero(observation)
    depth = len(observation) // 2
    return depth if place % 2 else depth + 1 if place == 2 * depth else int(place // 2)


def chain_node(observation: np.ndarray) -> int:
    return int(np.flatnonzero(observation)[0]) if observation.any() else len(observation)


Case = tuple[Environment, Callable[[Any], MDP], Callable[[np.ndarray], int]]
CASES: dict[str, Case] = {
    "deep sea": (make("DeepSea-v0", size=4), lambda right: tabular_deep_sea(np.asarray(right)), deep_sea_node),
    "tree": (make("Tree-v0", depth=3), lambda onward: tree(3, Scripted(np.asarray(onward))), tree_node),  # type: ignore[arg-type]
    "chain": (make("Chain-v0", length=3, means=(1.5, 0.6), sigma=0.0), lambda _: chain(3, (1.5, 0.6), 0.0), chain_node),
}


@pytest.mark.parametrize("case", CASES)
def test_every_transition_is_the_tabular_one(case: str) -> None:
    env, tabular, node_of = CASES[case]
    rng = np.random.default_rng(0)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    seen: set[tuple[int, int]] = set()
    best = 0.0
    for run in range(5):
        instance = env.draw(jax.random.key(run))
        mdp = tabular(instance)
        for _ in range(40):
            state, observation = reset(jax.random.key(0), instance)
            node, total, ended = mdp.start, 0.0, False
            assert node_of(np.asarray(observation)) == node
            while not ended:
                action = int(rng.integers(2)) if mdp.graph.available[node, 1] else 0
                seen.add((node, action))
                state, played = step(jax.random.key(0), instance, state, jnp.int32(action))
                reward, node, ended = mdp.step(node, action, rng)
                assert played.reward == pytest.approx(reward, abs=1e-6)
                assert bool(played.terminated) == ended
                assert not played.truncated
                assert node_of(np.asarray(played.observation)) == node
                total += reward
            best = max(best, total)
    assert seen == {(n, a) for n, a in zip(*np.nonzero(mdp.graph.available), strict=True)}
    assert best == pytest.approx(mdp.optimal_return, abs=1e-6)
    assert env.success_return is None or 0 < env.success_return <= best + 1e-6


def test_deep_sea_without_random_actions_goes_right_by_one() -> None:
    env = make("DeepSea-v0", size=5, randomize_actions=False)
    instance = env.draw(jax.random.key(3))
    state, _ = env.reset(jax.random.key(0), instance)
    rewards = []
    for _ in range(5):
        state, played = env.step(jax.random.key(0), instance, state, jnp.int32(1))
        rewards.append(float(played.reward))
    assert rewards == pytest.approx([-0.002] * 4 + [0.998])
    assert played.terminated
    assert not played.observation.any()


def test_a_stochastic_deep_sea_slips_on_the_way_right() -> None:
    """By bsuite's rule: right costs all the same, but goes straight down once in `size` times; left never slips."""
    size, n = 4, 4_000
    env = make("DeepSea-v0", size=size, randomize_actions=False, stochastic=True)
    start = jnp.int32(1), jnp.int32(1)
    keys = jax.random.split(jax.random.key(0), n)
    for action, columns, cost in ((1, {1, 2}, 0.01 / size), (0, {0}, 0.0)):
        (_, column), played = jax.vmap(lambda key: env.step(key, jnp.ones((size, size)), start, action))(keys)  # noqa: B023
        assert set(np.unique(column).tolist()) == columns
        np.testing.assert_allclose(played.reward, -cost, rtol=1e-5)
        if action:
            assert float((column == 1).mean()) == pytest.approx(1 / size, abs=5 * (0.25 * 0.75 / n) ** 0.5)


def test_chain_rewards_are_normal_with_the_papers_moments() -> None:
    length, means, sigma, n = 4, (1.0, 2.0), 3.0, 4000
    env = make("Chain-v0", length=length, means=means, sigma=sigma)
    keys = jax.random.split(jax.random.key(0), n)
    expected = {(0, 0): (1.0, 3.0), (0, 1): (0.0, 0.0), (2, 0): (0.5, 1.5), (2, 1): (0.5, 1.5)}
    for (node, action), (mean, std) in expected.items():
        played = jax.vmap(lambda key: env.step(key, (), jnp.int32(node), jnp.int32(action))[1])(keys)  # noqa: B023
        assert float(played.reward.mean()) == pytest.approx(mean, abs=5 * std / n**0.5 + 1e-9)
        assert float(played.reward.std()) == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize("env", [make("DeepSea-v0"), make("Tree-v0", depth=40)])
def test_runs_differ_in_what_actions_mean(env: Environment) -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    instances = jax.jit(jax.vmap(env.draw))(keys)
    assert len({np.asarray(one).tobytes() for one in instances}) == 6
    assert 0.3 < float(instances.mean()) < 0.7
    np.testing.assert_array_equal(instances[2], env.draw(keys[2]))
    states, _ = jax.vmap(env.reset)(keys, instances)
    _, played = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, instances, states, jnp.int32(1))
    went_on = np.asarray(played.observation.reshape(6, -1).argmax(1))
    assert len(set(went_on)) == 2  # action 1 is right in some runs, wrong in others


def energy_play(env: Environment, steps: int) -> list[Any]:
    """Push where the car is going: it swings up and out."""
    state, observation = env.reset(jax.random.key(0), ())
    step, played = jax.jit(env.step), []
    for _ in range(steps):
        state, one = step(jax.random.key(0), (), state, jnp.where(observation[1] >= 0, 2, 0))
        observation = one.observation
        played.append(one)
    return played


def test_sparse_mountain_car_pays_at_the_goal_alone() -> None:
    env = make("MountainCarSparse-v0")
    played = energy_play(env, 200)
    ends = [bool(one.terminated) for one in played]
    assert any(ends)
    goal = ends.index(True)
    assert 80 < goal < 200
    assert [float(one.reward) for one in played[: goal + 1]] == [0.0] * goal + [1.0]
    assert not any(one.truncated for one in played[: goal + 1])
    assert played[goal].observation[0] >= 0.5
    assert env.success_return == 1


def test_sparse_mountain_car_is_truncated_at_the_limit() -> None:
    played = energy_play(make("MountainCarSparse-v0", max_steps=30), 30)
    assert [bool(one.truncated) for one in played] == [False] * 29 + [True]
    assert not any(one.terminated or one.reward for one in played)


@pytest.mark.parametrize(
    ("env_id", "env_args", "message"),
    [
        ("DeepSee-v0", {}, "no environment 'DeepSee-v0'; the nearest ids are DeepSea-v0"),
        ("DeepSea-v0", {"size": 1}, "size=1: it must be a whole number, 2 or more"),
        ("DeepSea-v0", {"size": 4.0}, "size=4.0"),
        ("DeepSea-v0", {"size": True}, "size=True"),
        ("DeepSea-v0", {"size": [4]}, r"size=\(4,\)"),
        ("DeepSea-v0", {"size": {}}, "must be numbers, words or tuples"),
        ("DeepSea-v0", {"sise": 4}, "no argument 'sise'; it takes size, randomize_actions, move_cost, stochastic"),
        ("DeepSea-v0", {"randomize_actions": 1}, "randomize_actions=1: it must be True or False"),
        ("DeepSea-v0", {"move_cost": 0.7}, "move_cost=0.7: below 0.5"),
        ("Tree-v0", {"depth": 0}, "depth=0"),
        ("Chain-v0", {"means": (1.0,)}, "means=.* two numbers"),
        ("Chain-v0", {"means": (1.0, "x")}, "means='x': it must be a finite number"),
        ("Chain-v0", {"sigma": -1.0}, "sigma=-1.0: it must be a finite number, 0 or more"),
        ("MountainCarSparse-v0", {"max_steps": 0}, "max_steps=0"),
    ],
)
def test_bad_arguments_name_the_value(env_id: str, env_args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(env_id, **env_args)


def test_the_same_id_and_arguments_give_the_same_object() -> None:
    assert make("DeepSea-v0") is make("DeepSea-v0", size=10)
    assert make("Chain-v0", means=[1.0, 0.0]) is make("Chain-v0", sigma=1.0)
    assert make("CartPole-v1") is make("CartPole-v1")
    assert make("DeepSea-v0", size=5) is not make("DeepSea-v0", size=6)


def test_the_list_names_what_can_be_made() -> None:
    listed = {entry.id: entry for entry in environments()}
    assert list(listed)[:5] == ["DeepSea-v0", "Tree-v0", "Chain-v0", "KeyDoor-v0", "MountainCarSparse-v0"]
    assert listed["Tree-v0"].args == {"depth": 10}
    assert listed["Catch-bsuite"].args == {"max_steps_in_episode": 1000, "rows": 10, "columns": 5}
    assert "Navix-DoorKey-5x5-v0" in listed
    assert not {"Pendulum-v1", "MNISTBandit-bsuite"} & set(listed)
