"""Building, updating, sampling and unrolling beliefs; and what each says about input that it cannot use."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from tabular.random_beliefs import dag, dirichlet, layers, reward_belief
from ube import UsageError
from ube.tabular import Belief, NormalGamma, ScaledBeta, solve, unroll

ONES = np.ones((2, 2, 1, 2))  # two layers, two states, one action
FLAT = np.ones((2, 2, 2))
LINE = np.array([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0]]])  # 0 -> 1 -> 2, the end


def layered(alpha=ONES, mean=0.0, var=1.0, **settings):
    return Belief.layered(alpha, mean, var, **settings)


def stationary(alpha=FLAT, mean=0.0, var=1.0, **settings):
    return Belief.stationary(alpha, mean, var, **{"discount": 0.9, **settings})


def altered(array, index, value):
    array = np.array(array, dtype=float)
    array[index] = value
    return array


def test_an_update_adds_counts_and_rewards_where_they_belong():
    belief = Belief.layered(ONES, 0.0, 1.0, noise_var=1.0)
    after = belief.updated([(1, 0, 0, 3.0, 1), (1, 0, 0, 1.0, 1), (0, 1, 0, -1.0, 0)])
    assert after.alpha.reshape(ONES.shape).tolist() == [[[[1, 1]], [[2, 1]]], [[[1, 3]], [[1, 1]]]]
    assert after.visits[:4].tolist() == [0, 1, 2, 0]
    np.testing.assert_allclose(after.rewards.mean[:4], [0.0, -1 / 2, 4 / 3, 0.0])
    np.testing.assert_allclose(after.rewards.variance[:4], [1.0, 1 / 2, 1 / 3, 1.0])
    np.testing.assert_allclose(after.total[:4], [2.0, 3.0, 4.0, 2.0])


def test_an_update_leaves_the_original_as_it_was():
    belief = stationary(r_max=5.0)
    before = (belief.alpha.copy(), belief.visits.copy(), belief.rewards.mean.copy(), belief.rewards.variance.copy())
    after = belief.updated([(0, 1, 2.0, 1)] * 3)
    for kept, now in zip(
        before, (belief.alpha, belief.visits, belief.rewards.mean, belief.rewards.variance), strict=True
    ):
        np.testing.assert_array_equal(kept, now)
    assert (after.discount, after.r_max) == (0.9, 5.0)
    assert after.alpha.sum() == belief.alpha.sum() + 3
    assert belief.updated([]) is belief


def test_building_copies_the_input():
    dense, sparse, mean = FLAT.copy(), sp.csr_array(FLAT.reshape(4, 2)), np.zeros((2, 2))
    beliefs = [stationary(dense, mean), stationary(sparse, mean)]
    dense[:], sparse.data[:], mean[:] = 7.0, 7.0, 1.0
    for belief in beliefs:
        assert belief.alpha.tolist() == [1.0] * 8
        assert belief.rewards.mean.tolist() == [0.0] * 4


@pytest.mark.parametrize("kind", ["layered", "acyclic", "stationary", "unrolled"])
@pytest.mark.parametrize("given", [list, np.array, iter])
def test_one_by_one_equals_all_at_once(kind, given):
    rng = np.random.default_rng(0)
    transitions = {
        "layered": [(1, 0, 0, 3.0, 1), (0, 1, 0, -1.0, 0), (1, 0, 0, 1.0, 0)],
        "acyclic": [(0, 0, 1.0, 1), (1, 0, 0.5, 2), (0, 0, -1.0, 1)],
        "stationary": [(0, 1, 1.0, 1), (1, 0, 0.5, 0), (0, 1, -1.0, 1)],
        "unrolled": [(2, 0, 1, 1.0, 1), (0, 1, 0, 0.5, 0), (1, 0, 1, -1.0, 1)],
    }[kind]
    prior = {
        "layered": layered(dirichlet(rng, 2, 2, 1, 2) + 1.0),
        "acyclic": Belief.acyclic(LINE, 0.0, 1.0, terminal=[2]),
        "stationary": stationary(dirichlet(rng, 2, 2, 2) + 1.0),
        "unrolled": stationary(dirichlet(rng, 2, 2, 2) + 1.0, horizon=3),
    }[kind]
    at_once = prior.updated(given(transitions))
    one_by_one = prior
    for transition in transitions:
        one_by_one = one_by_one.updated([transition])
    np.testing.assert_allclose(one_by_one.alpha, at_once.alpha, rtol=1e-14)
    np.testing.assert_allclose(one_by_one.rewards.mean, at_once.rewards.mean, rtol=1e-14)
    np.testing.assert_allclose(one_by_one.rewards.variance, at_once.rewards.variance, rtol=1e-14)
    np.testing.assert_array_equal(one_by_one.visits, at_once.visits)
    assert at_once.visits.sum() == 3


def test_layers_of_an_unrolled_belief_learn_together():
    flat = stationary()
    seen = [(0, 1, 2.0, 1), (0, 1, 0.0, 0), (1, 0, 1.0, 0)]
    together = unroll(flat, 3).updated([(h, *transition) for h, transition in enumerate(seen)])
    alone = unroll(flat.updated(seen), 3)
    np.testing.assert_array_equal(together.alpha, alone.alpha)
    np.testing.assert_array_equal(together.rewards.mean, alone.rewards.mean)
    np.testing.assert_array_equal(together.visits, alone.visits)
    assert together.is_tied
    assert not flat.is_tied


def test_draws_are_dirichlet():
    """Mean p̄ and variance p̄(1 - p̄)/(α₀ + 1) of every probability, rows that sum to 1, independent of each other."""
    rng = np.random.default_rng(0)
    belief = Belief.layered([np.array([[[1.0, 2.0, 5.0]], [[0.5, 0.25, 0.0]], [[3.0, 0.0, 0.0]]])], 0.0, 1.0)
    n = 200_000
    p, reward = belief.sample(rng, n)
    assert p.shape == (n, 6)
    mean = np.array([1 / 8, 2 / 8, 5 / 8, 2 / 3, 1 / 3, 1.0])
    variance = mean * (1 - mean) / np.array([9.0, 9.0, 9.0, 1.75, 1.75, 4.0])
    np.testing.assert_allclose(p[:, :3].sum(axis=1), 1.0)
    np.testing.assert_allclose(p[:, 3:5].sum(axis=1), 1.0)
    np.testing.assert_array_equal(p[:, 5], 1.0)
    assert (np.abs(p.mean(axis=0) - mean) <= 5 * np.sqrt(variance / n)).all()
    np.testing.assert_allclose(p.var(axis=0), variance, rtol=0.02)
    everything = np.column_stack([p[:, [0, 1, 3]], reward[:, :3]])
    correlation = np.corrcoef(everything.T)
    expected = np.eye(6)
    expected[0, 1] = expected[1, 0] = -np.sqrt(1 / 7 * 2 / 6)  # within a Dirichlet row
    assert np.abs(correlation - expected).max() < 5 / np.sqrt(n)


def test_draws_with_tiny_alpha_put_a_row_on_one_state():
    """Gamma draws underflow to 0 there: the mass goes to one state, chosen with p̄."""
    n = 2_000
    p, _ = Belief.layered([np.array([[[1e-7, 3e-7]]])], 0.0, 1.0).sample(np.random.default_rng(0), n)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert np.isin(p, [0.0, 1.0]).all()
    assert abs(p[:, 0].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n)


@pytest.mark.parametrize("rewards", ["normal", "scaled-beta"])
def test_sparse_input_is_dense_input(rewards):
    rng = np.random.default_rng(5)
    flat = dirichlet(rng, 5, 3, 5)
    prior = reward_belief(rng, rewards, (5, 3))
    dense = Belief.stationary(flat, rewards=prior, discount=0.9, terminal=[2])
    parts = layers(rng, [3, 4, 2], 2)
    dag_alpha, ends = dag(rng, 6, 2)
    pairs = [
        (Belief.layered(parts, 0.0, 1.0), [part.reshape(-1, part.shape[2]) for part in parts], "layered"),
        (Belief.acyclic(dag_alpha, 0.0, 1.0, terminal=ends), dag_alpha.reshape(12, 6), "acyclic"),
        (dense, flat.reshape(15, 5), "stationary"),
    ]
    for kind in (sp.csr_array, sp.coo_matrix, sp.csc_array):
        for expected, rows, structure in pairs:
            if structure == "layered":
                belief = Belief.layered([kind(part) for part in rows], 0.0, 1.0, n_actions=2)
            elif structure == "acyclic":
                belief = Belief.acyclic(kind(rows), 0.0, 1.0, terminal=ends)
            else:
                belief = Belief.stationary(kind(rows), rewards=prior, discount=0.9, terminal=[2])
            np.testing.assert_array_equal(belief.alpha, expected.alpha)
            np.testing.assert_array_equal(belief.graph.indices, expected.graph.indices)
            np.testing.assert_array_equal(belief.graph.indptr, expected.graph.indptr)


def test_duplicates_and_zeros_of_a_sparse_matrix():
    rows, columns, data = [0, 0, 0, 1, 1], [1, 1, 0, 0, 1], [1.0, 2.0, 4.0, 0.0, 5.0]
    belief = stationary(sp.coo_array((data, (rows, columns)), shape=(2, 2)))
    assert belief.alpha.tolist() == [4.0, 3.0, 5.0]
    assert belief.graph.indices.tolist() == [0, 1, 1]
    assert belief.graph.n_actions == 1


@pytest.mark.parametrize("terminal", [[1], (1,), np.array([1]), [False, True, False], np.array([False, True, False])])
def test_terminal_states_as_a_list_or_a_mask(terminal):
    belief = stationary(np.ones((3, 2, 3)), terminal=terminal)
    assert belief.graph.terminal.tolist() == [False, True, False]
    assert belief.graph.successors.tolist() == [3, 3, 0, 0, 3, 3]


def test_a_mask_of_the_wrong_length_is_not_taken_for_states():
    with pytest.raises(UsageError, match="terminal"):
        stationary(np.ones((3, 2, 3)), terminal=[True, False])


def test_what_follows_the_last_layer_is_worth_nothing():
    belief = layered([np.ones((2, 1, 3))], mean=[[[0.25], [0.5]]])
    np.testing.assert_array_equal(solve(belief, method="pombu").q_mean, [[[0.25], [0.5]]])


def test_q_max_of_the_paper():
    assert layered(r_max=2.0).largest_return(5) == 10.0
    np.testing.assert_allclose(layered(r_max=2.0, discount=0.5).largest_return(np.array([0, 1, 2, 3])), [0, 2, 3, 3.5])
    assert stationary(r_max=2.0, discount=0.75).largest_return(None) == 8.0
    assert layered(discount=0.0).largest_return(np.array([0, 1, 5])).tolist() == [0, 1, 1]


def test_default_r_max():
    assert layered().r_max == 1.0
    bounded = ScaledBeta(1.0, 1.0, low=-3.0, high=2.0)
    assert Belief.layered(ONES, rewards=bounded).r_max == 3.0
    assert Belief.layered(ONES, rewards=bounded, r_max=4.0).r_max == 4.0
    assert Belief.layered(ONES, rewards=NormalGamma(0.5, 1.0, 2.0, 1.0)).r_max == 1.0


def test_steps_left():
    assert layered().steps_left.tolist() == [2, 2, 1, 1, 0, 0]
    assert Belief.acyclic(LINE, 0.0, 1.0, terminal=[2]).steps_left.tolist() == [2, 1, 0]
    assert stationary().steps_left is None
    assert unroll(stationary(), 3).steps_left.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]


SPARSE = sp.csr_array(FLAT.reshape(4, 2))
ZERO_ROW = altered(FLAT, (1, 0), 0.0)
DIRICHLET = "Dirichlet parameters are finite and 0 or more"
EMPTY_ROW = "sums to 0: every (s, a) needs at least one reachable next state"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layered(FLAT),
            "alpha has shape (2, 2, 2): a layered belief takes (H, S, A, S), or a list of H arrays",
        ),
        (lambda: layered([]), "alpha is an empty list: a layered belief needs at least one layer"),
        (lambda: layered([np.ones((2, 2))]), "alpha[0] has shape (2, 2): expected (states, actions, next states)"),
        (
            lambda: layered(np.ones((2, 2, 0, 2))),
            "alpha[0] has shape (2, 0, 2): expected (states, actions, next states)",
        ),
        (
            lambda: layered([np.ones((1, 2, 2)), np.ones((2, 1, 2))]),
            "alpha[1] has 1 actions, alpha[0] has 2: they must agree",
        ),
        (
            lambda: layered([np.ones((1, 2, 3)), np.ones((2, 2, 2))]),
            "alpha[0] leads to 3 states, but layer 1 has 2",
        ),
        (lambda: layered([SPARSE]), "alpha[0] is sparse with 4 rows: give n_actions="),
        (lambda: layered([SPARSE], n_actions=3), "alpha[0] is sparse with 4 rows: give n_actions="),
        (lambda: stationary(ONES), "alpha has shape (2, 2, 1, 2): expected (S, A, S) or a sparse matrix (S * A, S)"),
        (lambda: stationary(np.ones((2, 2, 3))), "alpha has shape (2, 2, 3): expected (S, A, S)"),
        (lambda: stationary(sp.csr_array(np.ones((5, 2)))), "alpha has shape (5, 2): expected (S, A, S)"),
        (lambda: layered(altered(ONES, (1, 0, 0), 0.0)), f"alpha[1, 0, 0] {EMPTY_ROW}"),
        (lambda: stationary(ZERO_ROW), f"alpha[1, 0] {EMPTY_ROW}, or list the state in terminal="),
        (lambda: stationary(sp.csr_array(ZERO_ROW.reshape(4, 2))), f"alpha[1, 0] {EMPTY_ROW}, or list the state in"),
        (lambda: layered(altered(ONES, (1, 0, 0, 1), -0.5)), f"alpha[1, 0, 0, 1] is -0.5: {DIRICHLET}"),
        (lambda: layered(altered(ONES, (0, 1, 0, 0), np.nan)), f"alpha[0, 1, 0, 0] is nan: {DIRICHLET}"),
        (lambda: stationary(altered(FLAT, (1, 0, 1), -2)), f"alpha[1, 0, 1] is -2: {DIRICHLET}"),
        (lambda: stationary(altered(FLAT, (1, 1, 0), np.inf)), f"alpha[1, 1, 0] is inf: {DIRICHLET}"),
        (
            lambda: stationary(sp.csr_array(altered(FLAT, (1, 0, 1), -2).reshape(4, 2))),
            f"alpha[1, 0, 1] is -2: {DIRICHLET}",
        ),
        (
            lambda: stationary(sp.coo_array(altered(FLAT, (0, 1, 0), np.nan).reshape(4, 2))),
            f"alpha[0, 1, 0] is nan: {DIRICHLET}",
        ),
        (
            lambda: layered([SPARSE, sp.csr_array(altered(FLAT, (1, 0, 1), -2).reshape(4, 2))], n_actions=2),
            f"alpha[1, 1, 0, 1] is -2: {DIRICHLET}",
        ),
        (lambda: Belief.layered(ONES), "no rewards: give reward_mean and reward_var, or rewards="),
        (lambda: Belief.layered(ONES, 0.0), "no rewards: give reward_mean and reward_var, or rewards="),
        (
            lambda: layered(rewards=ScaledBeta(1.0, 1.0)),
            "rewards= is given as well as reward_mean or reward_var: give one of the two",
        ),
        (lambda: layered(mean=np.zeros(2)), "reward_mean has shape (2,): expected (2, 2, 1) (layers, states, actions)"),
        (lambda: stationary(var=np.zeros((2, 3))), "reward_var has shape (2, 3): expected (2, 2) (states, actions)"),
        (
            lambda: Belief.layered(ONES, rewards=ScaledBeta(np.ones((2, 2)), 1.0)),
            "ScaledBeta parameter has shape (2, 2): expected (2, 2, 1)",
        ),
        (
            lambda: layered(mean=altered(np.zeros((2, 2, 1)), (1, 0, 0), np.nan)),
            "reward_mean[1, 0, 0] is nan: it must be",
        ),
        (lambda: stationary(var=[[1.0, 1.0], [1.0, -1.0]]), "reward_var[1, 1] is -1: a variance is 0 or more"),
        (
            lambda: layered(mean=altered(np.zeros((2, 2, 1)), (1, 0, 0), -1.5)),
            "r_max=1 is below |mean reward[1, 0, 0]| = 1.5: pass r_max of at least 1.5",
        ),
        (
            lambda: stationary(mean=[[0.0, 0.5], [3.0, 1.0]], r_max=2.0),
            "r_max=2 is below |mean reward[1, 0]| = 3: pass r_max of at least 3",
        ),
        (lambda: layered(r_max=-1.0), "r_max=-1: it must be finite and 0 or more"),
        (lambda: layered(r_max=np.inf), "r_max=inf: it must be finite and 0 or more"),
        (lambda: layered(discount=1.5), "discount=1.5: it must be in [0, 1]"),
        (lambda: layered(discount=np.nan), "discount=nan: it must be in [0, 1]"),
        (lambda: stationary(discount=1.0), "discount=1 without a horizon: take a discount in [0, 1), or give horizon="),
        (lambda: stationary(discount=1.2), "discount=1.2 without a horizon: take a discount in [0, 1)"),
        (lambda: stationary(discount=-0.1), "discount=-0.1 without a horizon: take a discount in [0, 1)"),
        (lambda: stationary(discount=1.2, horizon=3), "discount=1.2: it must be in [0, 1]"),
        (lambda: stationary(horizon=0), "horizon=0: it must be a whole number, 1 or more"),
        (lambda: stationary(horizon=2.5), "horizon=2.5: it must be a whole number, 1 or more"),
        (lambda: unroll(layered(), 2), "this belief already has layers: only a stationary or acyclic one"),
        (lambda: stationary(terminal=[2]), "terminal state 2 is out of range: there are 2, counted from 0"),
        (lambda: stationary(terminal=[-1]), "terminal state -1 is out of range: there are 2, counted from 0"),
        (
            lambda: Belief.acyclic(FLAT, 0.0, 1.0, terminal=[]),
            "alpha has a cycle (or no terminal state): use Belief.stationary with a discount below 1",
        ),
        (lambda: Belief.acyclic(np.ones((3, 1, 3)), 0.0, 1.0, terminal=[2]), "alpha has a cycle"),
    ],
)
def test_bad_beliefs_are_named(make, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "transitions", "message"),
    [
        (stationary, [(0, 0, 1.0)], "transitions have shape (1, 3): each must be (state, action, reward, next_state)"),
        (stationary, (0, 0, 1.0, 0), "transitions have shape (4,): each must be (state, action, reward, next_state)"),
        (stationary, [(0, 0, 0, 1.0, 0)], "transitions have shape (1, 5): each must be (state, action, reward"),
        (
            layered,
            [(0, 0, 1.0, 0)],
            "transitions have shape (1, 4): each must be (layer, state, action, reward, next_s",
        ),
        (stationary, [(0, 0, 1.0, 0), (2, 0, 1.0, 0)], "state 2 is out of range: there are 2, counted from 0"),
        (stationary, [(-1, 0, 1.0, 0)], "state -1 is out of range: there are 2, counted from 0"),
        (stationary, [(0, 2, 1.0, 0)], "action 2 is out of range: there are 2, counted from 0"),
        (stationary, [(0, 0, 1.0, 5)], "next_state 5 is out of range: there are 2, counted from 0"),
        (layered, [(2, 0, 0, 1.0, 0)], "layer 2 is out of range: there are 2, counted from 0"),
        (layered, [(1, 2, 0, 1.0, 0)], "state 2 is out of range: there are 2, counted from 0"),
        (
            lambda: layered([np.ones((1, 1, 3)), np.ones((3, 1, 2))]),
            [(0, 0, 0, 1.0, 2), (1, 2, 0, 1.0, 2)],
            "next_state 2 is out of range: there are 2, counted from 0",
        ),
        (lambda: stationary(horizon=3), [(3, 0, 0, 1.0, 0)], "layer 3 is out of range: there are 3, counted from 0"),
        (stationary, [(0, 0, 1.0, 0), (0.5, 0, 1.0, 0)], "transition 1: state 0.5 is not a whole number"),
        (stationary, [(0, 0, 1.0, 0), (0, 1, np.nan, 0)], "transition 1: the reward is not finite"),
        (
            lambda: stationary(altered(FLAT, (1, 0, 1), 0.0)),
            [(0, 0, 1.0, 0), (1, 0, 1.0, 1)],
            "transition 1 goes from [1, 0] to state 1, which has alpha 0 (unreachable): give it a positive alpha",
        ),
        (
            lambda: layered(altered(ONES, (1, 0, 0, 1), 0.0)),
            [(1, 0, 0, 1.0, 1)],
            "transition 0 goes from [1, 0, 0] to state 1, which has alpha 0 (unreachable)",
        ),
        (
            lambda: Belief.acyclic(LINE, 0.0, 1.0, terminal=[2]),
            [(2, 0, 1.0, 2)],
            "transition 0 goes from [2, 0] to state 2",
        ),
        (
            lambda: Belief.layered(ONES, rewards=ScaledBeta(1.0, 1.0)),
            [(0, 0, 0, 1.5, 0)],
            "reward 1.5 is outside the interval of its ScaledBeta belief: widen low..high",
        ),
    ],
)
def test_bad_transitions_are_named(make, transitions, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        make().updated(transitions)


@pytest.mark.parametrize("transition", [(0, np.nan, 1.0, 0), (np.inf, 0, 1.0, 0)])
def test_states_and_actions_that_are_no_numbers(transition):
    with pytest.raises(UsageError, match=r"transition 0: .* is not a whole number"):
        stationary().updated([transition])


def test_transitions_of_unequal_length():
    with pytest.raises(UsageError, match=re.escape("(state, action, reward, next_state)")):
        stationary().updated([(0, 0, 1.0, 0), (0, 0, 1.0)])
