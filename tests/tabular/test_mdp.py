"""Explicit MDPs: their optima are known in closed form, and stepping them agrees with their matrices."""

import numpy as np
import pytest

from ube import UsageError
from ube.tabular import solve
from ube.tabular.mdp import MDP, chain, deep_sea, random_layered, river_swim, tree


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("mdp", "optimum"),
    [
        (chain(10, (1.0, 0.0)), 1.0),
        (chain(10, (0.0, 2.5)), 2.5),
        (chain(1, (-1.0, -2.0)), -1.0),
        (tree(7, rng()), 1.0),
        (deep_sea(8, rng()), 0.99),
        (deep_sea(8, rng(), move_cost=0.0), 1.0),
        (deep_sea(8, rng(), known_transitions=True), 0.99),
        # right until it slips (then nothing is to be had): seven moves must succeed, each try costs 0.01 / 8
        (deep_sea(8, rng(), stochastic=True), (7 / 8) ** 7 - 0.01 / 8 * sum((7 / 8) ** k for k in range(8))),
    ],
)
def test_optimum(mdp: MDP, optimum: float) -> None:
    assert mdp.optimal_return == pytest.approx(optimum, abs=1e-12)


def test_river_swim_optimum_by_backward_induction() -> None:
    n, horizon = 6, 20
    left, right = np.zeros((n, n)), np.zeros((n, n))
    for s in range(n):
        left[s, max(s - 1, 0)] = 1.0
    right[0, :2] = 0.4, 0.6
    right[-1, -2:] = 0.4, 0.6
    for s in range(1, n - 1):
        right[s, s - 1 : s + 2] = 0.05, 0.6, 0.35
    value = np.zeros(n)
    for _ in range(horizon):
        value = np.maximum(0.005 * (np.arange(n) == 0) + left @ value, 1.0 * (np.arange(n) == n - 1) + right @ value)
    assert river_swim(n, horizon).optimal_return == pytest.approx(value[0], abs=1e-12)


def test_uniform_play_finds_the_end_of_the_tree_with_probability_two_to_the_minus_depth() -> None:
    mdp = tree(6, rng(3))
    certain = mdp.belief(alpha=1e-9)
    row = np.arange(len(certain.alpha))
    certain.alpha[row] = np.where(mdp.probability > 0, 1e12, 1e-12)
    certain.rewards.centre[:] = mdp.reward_mean
    assert solve(certain, "uniform", "pombu").value_mean[0] == pytest.approx(2.0**-6, rel=1e-6)


@pytest.mark.parametrize("mdp", [deep_sea(5, rng(), stochastic=True), river_swim(4), random_layered(3, 4, 2, rng())])
def test_steps_follow_the_matrices(mdp: MDP) -> None:
    generator, draws = rng(1), 4000
    for node, action in [(0, 0), (0, 1), (2, 1)]:
        row = node * mdp.graph.n_actions + action
        edges = slice(mdp.graph.indptr[row], mdp.graph.indptr[row + 1])
        steps = [mdp.step(node, action, generator) for _ in range(draws)]
        seen = np.array([[following == n for n in mdp.graph.indices[edges]] for _, following, _ in steps]).mean(axis=0)
        p = mdp.probability[edges]
        assert np.abs(seen - p).max() < 5 * np.sqrt(0.25 / draws)
        rewards = np.array([reward for reward, _, _ in steps])
        assert rewards.mean() == pytest.approx(mdp.reward_mean[row], abs=5 * mdp.reward_std[row] / draws**0.5 + 1e-12)
        assert rewards.std() == pytest.approx(mdp.reward_std[row], rel=0.1, abs=1e-12)


def test_an_episode_ends_where_the_graph_does() -> None:
    mdp, generator, node, steps = deep_sea(6, rng()), rng(), 0, 0
    done = False
    while not done:
        _, node, done = mdp.step(node, int(generator.integers(2)), generator)
        steps += 1
    assert steps == 6
    assert mdp.graph.terminal[node]


def test_action_meaning_is_drawn_per_cell_and_from_the_generator() -> None:
    first, again, other = (deep_sea(10, rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first.probability, again.probability)
    assert not np.array_equal(first.probability, other.probability)
    goes_right = first.reward_mean.reshape(-1, 2)[:55].argmin(axis=1)  # right costs, but for the corner
    assert 10 < goes_right.sum() < 45


def test_unknown_transitions_have_both_neighbours_and_known_ones_only_the_true() -> None:
    unknown, known = deep_sea(6, rng()), deep_sea(6, rng(), known_transitions=True)
    assert set(unknown.graph.successors[: 15 * 2]) == {2}
    assert set(known.graph.successors[: 15 * 2]) == {1}


def test_bad_arguments_name_the_value() -> None:
    with pytest.raises(UsageError, match="size=1: it must be a whole number, 2 or more"):
        deep_sea(1, rng())
    with pytest.raises(UsageError, match="depth=0"):
        tree(0, rng())
    with pytest.raises(UsageError, match=r"alpha=0: a Dirichlet prior needs a positive"):
        chain(3).belief(alpha=0)
    with pytest.raises(UsageError, match="action 1 does not exist in state 1"):
        chain(3).step(1, 1, rng())
