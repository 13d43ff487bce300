"""The solver against plain loops, dense linear algebra and hand-computed numbers; what it promises, and whether it holds.

Monte Carlo comparisons are in test_oracle.py.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tabular.random_beliefs import (
    REWARDS,
    as_acyclic,
    covariance_of_row,
    dag,
    dirichlet,
    flat,
    layers,
    naive,
    naive_delta,
    policy_for,
    random_belief,
    random_policy,
    reward_belief,
)
from ube import UsageError
from ube.tabular import METHODS, Belief, ScaledBeta, solve, solver, unroll
from ube.tabular.mdp import chain

LADDER = ("lower", "exact", "pombu", "ube-horizon", "ube")
SIZES = [(1, 1, 1), (1, 3, 2), (4, 1, 2), (3, 4, 1), (5, 3, 2)]


def climbs(solutions):
    """Is each variance at most the next, at every (state, action), to rounding?"""
    rungs = [flat(solution.variance) for solution in solutions]
    return all((low <= high * (1 + 1e-9) + 1e-13).all() for low, high in pairwise(rungs))


# The formulas


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", LADDER)
def test_layered_agrees_with_plain_loops(method, size, rewards, discount):
    horizon, n_states, n_actions = size
    rng = np.random.default_rng([horizon, n_states, n_actions])
    alpha = dirichlet(rng, *size, n_states)
    prior = reward_belief(rng, rewards, size)
    policy = random_policy(rng, size)
    belief = Belief.layered(alpha, rewards=prior, r_max=1.5, discount=discount)
    q, u, _ = naive(alpha, prior.mean, prior.variance, policy, method, discount, r_max=1.5)
    solution = solve(belief, policy, method)
    np.testing.assert_allclose(solution.q_mean, q, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(solution.variance, u, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(solution.std, np.sqrt(u), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(solution.value_mean, (policy * q).sum(-1), rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(solution.policy, policy)


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("size", SIZES)
def test_delta_on_unrolled_beliefs_agrees_with_plain_loops(size, discount):
    horizon, n_states, n_actions = size
    rng = np.random.default_rng([7, *size])
    alpha = dirichlet(rng, n_states, n_actions, n_states)
    prior = reward_belief(rng, "normal", (n_states, n_actions))
    policy = random_policy(rng, size)
    belief = Belief.stationary(alpha, rewards=prior, discount=discount, horizon=horizon)
    expected = naive_delta(alpha, prior.mean, prior.variance, policy, discount)
    np.testing.assert_allclose(solve(belief, policy, "delta").variance, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("method", ["ube", "ube-horizon", "pombu", "exact", "lower", "delta"])
@pytest.mark.parametrize("widths", [[2, 3, 1, 2], [1, 4, 2, 3, 1], [3, 3, 3]])
def test_layers_are_a_special_case_of_an_acyclic_graph(method, widths):
    rng = np.random.default_rng(len(widths))
    parts = layers(rng, widths, 2)
    prior = reward_belief(rng, "normal", (sum(widths), 2))
    policy = random_policy(rng, (sum(widths), 2))
    n = sum(widths[:-1])
    alpha, terminal = as_acyclic(parts)
    cuts = np.cumsum(widths[:-2])
    layered = Belief.layered(
        parts, np.split(prior.mean[:n], cuts), np.split(prior.variance[:n], cuts), discount=0.9, r_max=1.5
    )
    acyclic = Belief.acyclic(alpha, prior.mean, prior.variance, terminal=terminal, discount=0.9, r_max=1.5)
    by_layer = solve(layered, np.split(policy[:n], cuts), method)
    by_node = solve(acyclic, policy, method)
    assert isinstance(by_layer.variance, list) == (len(set(widths[:-1])) > 1)
    for name in ("q_mean", "variance", "value_mean", "std"):
        values = flat(getattr(by_node, name))
        expected = flat(getattr(by_layer, name))
        np.testing.assert_allclose(values[: len(expected)], expected, rtol=1e-12, atol=1e-14, err_msg=name)
        assert (values[len(expected) :] == 0).all()  # the ends


@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_delta_without_tied_rows_leaves_out_the_second_order_only(structure):
    """Exact = delta + Σ tr(Sig C) terms: below it, and equal where transitions are known."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        belief = random_belief(rng, structure, discount=0.9)
        policy = policy_for(rng, belief)
        delta, exact = solve(belief, policy, "delta"), solve(belief, policy, "exact")
        assert climbs([delta, exact])
    parts = layers(rng, [3, 2, 4], 2)
    certain = Belief.layered([part * 1e12 for part in parts], 0.3, 0.7)
    delta, exact = (flat(solve(certain, method=method).variance) for method in ("delta", "exact"))
    np.testing.assert_allclose(delta, exact, rtol=1e-9)


def test_count_form_by_hand():
    """(σ_r² + Q_max² K)/n: K = 2 successors, Q_max = H r_max = 4, σ_r² = 3; infinite where nothing was seen."""
    alpha = np.ones((2, 2, 1, 2))
    prior = Belief.layered(alpha, 0.0, 1.0, noise_var=3.0, r_max=2.0)
    seen = [(0, 0, 0, 0.0, 0)] * 5 + [(1, 0, 0, 0.0, 0)] * 7 + [(1, 1, 0, 0.0, 0)] * 2
    solution = solve(prior.updated(seen), method="count")
    nu = [35 / 5, 35 / 7, 35 / 2]
    p = [6 / 7, 1 / 7]  # alpha 1 + 5 and 1 + 0
    assert solution.variance[0, 0, 0] == pytest.approx(nu[0] + p[0] * nu[1] + p[1] * nu[2])
    assert solution.variance[1, :, 0] == pytest.approx(nu[1:])
    assert solution.variance[0, 1, 0] == np.inf
    assert (solve(prior, method="count").variance == np.inf).all()
    discounted = Belief.layered(alpha, 0.0, 1.0, noise_var=3.0, r_max=2.0, discount=0.5).updated(seen)
    last = solve(discounted, method="count").variance[1, 0, 0]
    assert last == pytest.approx((3 + 0.25 * 3.0**2 * 2) / 7)  # Q_max = 2 (1 + 0.5), and γ² on the transition term


def paper_chain(length, sigma):
    """The chain with dense arrays and flat priors: every action 1 but the root's repeats action 0, its reward known."""
    alpha = np.zeros((length + 2, 2, length + 2))
    for state in range(length + 1):
        alpha[state, :, state + 1] = 1.0
    alpha[0, 0] = np.eye(length + 2)[-1]
    unknown, noise = np.zeros((length + 2, 2)), np.zeros((length + 2, 2))
    unknown[: length + 1, 0] = np.inf
    noise[0, 0], noise[1 : length + 1, 0] = sigma**2, sigma**2 / length
    return Belief.acyclic(alpha, 0.0, unknown, terminal=[length + 1], noise_var=noise)


@pytest.mark.parametrize("ready_made", [False, True])
@pytest.mark.parametrize("method", [*LADDER, "delta"])
@pytest.mark.parametrize(("length", "sigma", "visits"), [(10, 1.0, 1), (10, 2.0, 7), (3, 0.5, 1000)])
def test_chain_of_the_paper(method, ready_made, length, sigma, visits):
    """n looks at both branches: u1 = u2 = σ²/n, however long the chain is."""
    prior = chain(length, sigma=sigma).belief(reward_var=np.inf) if ready_made else paper_chain(length, sigma)
    rng = np.random.default_rng(0)
    once = [(0, 0, length + 1), (0, 1, 1), *((state, 0, state + 1) for state in range(1, length + 1))]
    posterior = prior.updated(
        (state, action, 0.0 if (state, action) == (0, 1) else rng.normal(), following)
        for _ in range(visits)
        for state, action, following in once
    )
    first_action = np.eye(2)[np.zeros(length + 2, dtype=int)]
    u = solve(posterior, first_action, method).variance
    np.testing.assert_allclose(u[0], np.full(2, sigma**2 / visits), rtol=1e-12)


# The promises


@pytest.mark.parametrize("batch", range(5))
def test_the_ladder_of_bounds_never_breaks(batch):
    """800 beliefs a batch, means and variances of any size within r_max: the paper's bound and all tighter ones."""
    rng = np.random.default_rng([11, batch])
    worst = np.inf
    for _ in range(800):
        size = tuple(rng.integers(1, 5, size=3))
        alpha = dirichlet(rng, *size, size[1]) * 10 ** rng.uniform(-3, 2)
        belief = Belief.layered(
            alpha, rewards=reward_belief(rng, "scaled-beta", size), r_max=1.0, discount=rng.choice([1.0, 0.9, 0.3])
        )
        policy = random_policy(rng, size)
        solutions = [solve(belief, policy, method) for method in LADDER]
        assert climbs(solutions)
        worst = min(worst, (solutions[-1].variance / solutions[1].variance).min())
    assert 1 <= worst * (1 + 1e-9) < 1.01  # and the bound is reached: a looser solver would show


@st.composite
def structures(draw):
    """Layers of any widths or an acyclic graph, certain to very uncertain, bounded mean rewards."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_actions = draw(st.integers(1, 3))
    scale = 10.0 ** draw(st.integers(-4, 4))
    discount = draw(st.sampled_from([1.0, 0.95, 0.5, 0.0]))
    if draw(st.booleans()):
        widths = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
        parts = [part * scale for part in layers(rng, widths, n_actions)]
        prior = reward_belief(rng, "scaled-beta", Belief.layered(parts, 0.0, 0.0).graph.shape)
        belief = Belief.layered(parts, rewards=prior, discount=discount)
    else:
        n_states = draw(st.integers(2, 8))
        alpha, terminal = dag(rng, n_states, n_actions, draw(st.integers(1, n_states - 1)))
        prior = reward_belief(rng, "scaled-beta", (n_states, n_actions))
        belief = Belief.acyclic(alpha * scale, terminal=terminal, rewards=prior, discount=discount)
    return belief, draw(st.sampled_from(["uniform", "greedy", policy_for(rng, belief)]))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(structures())
def test_the_ladder_on_any_structure(case):
    belief, policy = case
    assert climbs([solve(belief, policy, method) for method in LADDER])


@pytest.mark.parametrize("method", ["ube", "ube-horizon"])
def test_an_upper_bound_is_claimed_only_where_it_holds(method):
    """Normal beliefs of any variance; rewards seen beyond r_max may carry the means out of the theorem's reach."""
    rng = np.random.default_rng(12)
    claims = {"upper bound": 0, "none": 0}
    for i in range(300):
        size = tuple(rng.integers(1, 4, size=3))
        prior = Belief.layered(dirichlet(rng, *size, size[1]) + 0.1, rng.uniform(-1, 1, size), 10 ** rng.uniform(-2, 3))
        policy = random_policy(rng, size)
        seen = [(*(rng.integers(n) for n in size), 10 * rng.normal(), rng.integers(size[1])) for _ in range(i % 10)]
        belief = prior.updated(seen)
        bound, exact = solve(belief, policy, method), solve(belief, policy)
        claims[bound.guarantee] += 1
        if bound.guarantee == "upper bound":
            assert climbs([exact, bound])
        else:
            assert seen
    assert min(claims.values()) > 10


def kinds():
    alpha = np.ones((2, 2, 1, 2))
    flat_alpha, terminal = dag(np.random.default_rng(0), 5, 1)
    seen = [(s, 0, 0.0, t) for s in range(2) for t in range(2)]
    return {
        "layered": Belief.layered(alpha, 0.5, 1.0),
        "bounded": Belief.layered(alpha, rewards=ScaledBeta(1.0, 2.0, low=-1.0)),
        "ragged": Belief.layered([np.ones((1, 1, 3)), np.ones((3, 1, 2))], 0.5, 1.0),
        "acyclic": Belief.acyclic(flat_alpha, 0.5, 1.0, terminal=terminal),
        "stationary that ends": Belief.stationary(flat_alpha, 0.5, 1.0, terminal=terminal, discount=0.9),
        "stationary": Belief.stationary(alpha[0], 0.5, 1.0, discount=0.9).updated(seen),
        "unrolled": Belief.stationary(alpha[0], 0.5, 1.0, discount=1.0, horizon=3),
    }


PROMISES = {
    "ube": ("upper bound", "r_max=1"),
    "ube-horizon": ("upper bound", "r_max=1"),
    "count": ("upper bound", "r_max=1"),
    "pombu": ("upper bound", "for any rewards"),
    "exact": ("exact", "to rounding"),
    "lower": ("lower bound", "leaves them out"),
    "delta": ("none", "neither an upper nor a lower bound"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", kinds())
def test_promise_and_reason(kind, method):
    belief = kinds()[kind]
    if (kind, method) == ("unrolled", "count"):
        with pytest.raises(UsageError, match="not offered for an unrolled belief"):
            solve(belief, method=method)
        return
    solution = solve(belief, method=method)
    promise, reason = PROMISES[method]
    if kind == "stationary":
        promise, reason = "none", "the belief has cycles"
    elif kind == "unrolled":
        promise, reason = "none", "rows are tied"
    elif kind == "bounded" and method in ("ube", "ube-horizon"):
        reason = "mean rewards are within r_max=1: Theorem 1 holds"
    elif method in ("ube", "ube-horizon", "count"):
        reason = "checked to be above the 'pombu' bound"
    assert solution.guarantee == promise
    assert reason in solution.why


@pytest.mark.parametrize("method", ["ube", "ube-horizon"])
def test_rewards_beyond_r_max_void_the_promise(method):
    """Reward 100 at layer 1, state 0: V̄ = (50, 0) there, so the local term is 50²/4 · 1/3, but Q_max allows 2² · 1/3."""
    prior = Belief.layered(np.ones((2, 2, 1, 2)), 0.0, 1.0, r_max=1.0)
    assert solve(prior, method=method).guarantee == "upper bound"
    after = prior.updated([(1, 0, 0, 100.0, 0)])
    solution = solve(after, method=method)
    assert solution.guarantee == "none"
    rewards = 1 + 0.5 * (1 / 2 + 1)  # Var μ here and in the two states that follow
    result = {"ube": rewards + 4 / 3 + 0.5 * (4 / 4 + 4 / 3), "ube-horizon": rewards + 1 / 3}[method]
    tight = rewards + 625 / 3
    assert (
        f"beyond r_max=1, and at [0, 0, 0] the result {result:.4g} is below the 'pombu' bound {tight:.4g}: raise r_max"
        in solution.why
    )
    assert solve(after, method="pombu").variance[0, 0, 0] == pytest.approx(tight)
    generous = Belief.layered(np.ones((2, 2, 1, 2)), 0.0, 1.0, r_max=50.0).updated([(1, 0, 0, 100.0, 0)])
    assert solve(generous, method=method).guarantee == "upper bound"


# Tied rows


@pytest.mark.parametrize("horizon", [1, 2, 10])
def test_copies_of_one_unknown_reward(horizon):
    """One state, one action, mean reward of variance s²: Var = H² s², the paper's recursion gives H s²."""
    belief = Belief.stationary(np.ones((1, 1, 1)), 0.0, 0.3, discount=1.0, horizon=horizon)
    assert solve(belief, method="delta").variance[0, 0, 0] == pytest.approx(horizon**2 * 0.3)
    for method in LADDER:
        solution = solve(belief, method=method)
        assert solution.variance[0, 0, 0] == pytest.approx(horizon * 0.3)
        assert (solution.guarantee == "none") == ("rows are tied" in solution.why) == (horizon > 1)


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("method", LADDER)
def test_unrolling_makes_copies_but_no_promise(method, discount):
    rng = np.random.default_rng(4)
    alpha, horizon = dirichlet(rng, 3, 2, 3), 4
    mean, var = rng.uniform(-1, 1, (3, 2)), rng.uniform(0, 1, (3, 2))
    policy = random_policy(rng, (horizon, 3, 2))
    untied = Belief.layered(
        *(np.broadcast_to(x, (horizon, *x.shape)) for x in (alpha, mean, var)), discount=discount
    )  # fmt: skip
    expected = solve(untied, policy, method)
    assert expected.guarantee != "none"
    direct = Belief.stationary(alpha, mean, var, discount=discount, horizon=horizon)
    later = unroll(Belief.stationary(alpha, mean, var, discount=min(discount, 0.999)), horizon)
    for belief in (direct, later) if discount < 1 else (direct,):
        solution = solve(belief, policy, method)
        np.testing.assert_allclose(solution.q_mean, expected.q_mean, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(solution.variance, expected.variance, rtol=1e-13)
        assert solution.guarantee == "none"


def test_unrolled_episodes_end_in_terminal_states():
    alpha = np.array([[[1.0, 1.0]], [[1.0, 1.0]]])
    belief = Belief.stationary(alpha, 1.0, 0.0, discount=1.0, horizon=3, terminal=[1])
    np.testing.assert_allclose(solve(belief).q_mean[:, :, 0], [[1.75, 0.0], [1.5, 0.0], [1.0, 0.0]])


# Covariance


def test_covariance_of_values():
    rng = np.random.default_rng(6)
    size = (3, 4, 2)
    alpha = dirichlet(rng, *size, 4)
    prior = reward_belief(rng, "normal", size)
    policy = random_policy(rng, size)
    belief = Belief.layered(alpha, rewards=prior, discount=0.9)
    solution = solve(belief, policy, covariance=True)
    plain = solve(belief, policy)
    np.testing.assert_allclose(solution.variance, plain.variance, rtol=1e-13)
    assert plain.value_covariance is None
    assert solution.value_covariance.shape == (3, 4, 3, 4)
    matrix = solution.value_covariance.reshape(12, 12)
    np.testing.assert_array_equal(matrix, matrix.T)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues.min() > -1e-12 * eigenvalues.max()
    for h in range(3):
        cov = naive(alpha[h:], prior.mean[h:], prior.variance[h:], policy[h:], "exact", 0.9)[2]
        np.testing.assert_allclose(solution.value_covariance[h, :, h], cov, rtol=1e-10, atol=1e-14)


def test_covariance_of_a_pure_policy_has_the_variances_on_its_diagonal():
    rng = np.random.default_rng(8)
    alpha, terminal = dag(rng, 7, 2)
    belief = Belief.acyclic(alpha, rewards=reward_belief(rng, "normal", (7, 2)), terminal=terminal)
    solution = solve(belief, "greedy", covariance=True)
    assert solution.value_covariance.shape == (7, 7)
    chosen = solution.variance[np.arange(7), solution.policy.argmax(axis=1)]
    np.testing.assert_allclose(np.diagonal(solution.value_covariance), chosen, rtol=1e-13)
    assert (chosen[terminal] == 0).all()
    parts = layers(rng, [1, 3, 2, 2], 2)
    ragged = solve(Belief.layered(parts, 0.0, 1.0), "greedy", covariance=True)
    node_alpha, ends = as_acyclic(parts)
    by_node = solve(Belief.acyclic(node_alpha, 0.0, 1.0, terminal=ends), "greedy", covariance=True)
    np.testing.assert_allclose(ragged.value_covariance, by_node.value_covariance[:6, :6], rtol=1e-13, atol=1e-15)


# Cycles


def dense_means(alpha, terminal):
    p = np.array([[covariance_of_row(row)[0] for row in rows] for rows in alpha])
    p[list(terminal)] = 0.0
    return p


def dense_solution(p, policy, rhs, discount):
    """x = rhs + discount Σ p̄ π x', by one linear system in the values."""
    base = (policy * rhs).sum(axis=1)
    value = np.linalg.solve(np.eye(len(p)) - discount * np.einsum("sa,sat->st", policy, p), base)
    return rhs + discount * p @ value, value


def cyclic_case(seed, terminal, discount=0.9):
    rng = np.random.default_rng(seed)
    alpha = dirichlet(rng, 6, 3, 6)
    prior = reward_belief(rng, "normal", (6, 3))
    belief = Belief.stationary(alpha, rewards=prior, discount=discount, terminal=terminal, r_max=2.0)
    policy = random_policy(rng, (6, 3))
    alive = np.ones((6, 1))
    alive[list(terminal)] = 0.0
    return belief, policy, alpha, prior.mean * alive, prior.variance * alive


@pytest.mark.parametrize("discount", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("terminal", [(), (2,), (0, 5)])
@pytest.mark.parametrize("method", ["ube", "ube-horizon", "pombu", "count"])
def test_stationary_agrees_with_a_linear_system(method, terminal, discount):
    belief, policy, alpha, mean, var = cyclic_case(len(terminal), terminal, discount)
    p = dense_means(alpha, terminal)
    if method == "count":
        seen = [(s, a, 0.1, int(alpha[s, a].argmax())) for s in range(6) if s not in terminal for a in (0, 1, 1, 2)]
        belief = belief.updated(seen)
        for s, a, _, t in seen:
            alpha[s, a, t] += 1.0
        mean = belief.rewards.mean.reshape(6, 3) * (mean != 0)
        p = dense_means(alpha, terminal)
    q, value = dense_solution(p, policy, mean, discount)
    q_max = 2.0 / (1 - discount)
    nu = np.zeros((6, 3))
    for s, a in np.ndindex(6, 3):
        if s not in terminal:
            row, sig = covariance_of_row(alpha[s, a])
            spread = sum(sig[t, t] / row[t] for t in range(6) if row[t] > 0) * q_max**2
            if method == "pombu":
                spread = value @ sig @ value
            nu[s, a] = var[s, a] + discount**2 * spread
            if method == "count":
                noise = belief.rewards.noise.reshape(6, 3)[s, a]
                nu[s, a] = (noise + discount**2 * q_max**2 * (row > 0).sum()) / (1, 2, 1)[a]
    u, _ = dense_solution(p, policy, nu, discount**2)
    solution = solve(belief, policy, method)
    np.testing.assert_allclose(solution.q_mean, q, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(solution.variance, u, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(solution.value_mean, value, rtol=1e-8, atol=1e-9)
    assert solution.error <= 1e-10


@pytest.mark.parametrize("terminal", [(), (2,)])
@pytest.mark.parametrize("method", ["exact", "lower"])
def test_recursion_over_cycles_is_that_of_endless_untied_layers(method, terminal):
    """With cycles 'exact' and 'lower' treat every visit as a posterior of its own: 250 layers at γ = 0.8."""
    belief, policy, alpha, mean, var = cyclic_case(9, terminal, discount=0.8)
    for state in terminal:
        alpha[state] = np.eye(6)[state]  # for ever there, for nothing
    shape = (250, 6, 3)
    many = (np.broadcast_to(x, shape + x.shape[2:]) for x in (alpha, mean, var, policy))
    _, u, _ = naive(*many, method, 0.8)
    if terminal:  # a self-loop with p̄ = 1 has no variance of its own
        assert (u[0, list(terminal)] == 0).all()
    np.testing.assert_allclose(solve(belief, policy, method).variance, u[0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("terminal", [(), (2,)])
def test_delta_over_cycles_is_error_propagation(terminal):
    """Σ (∂Q/∂μ)² Var μ + ∇ᵀ Sig ∇, the gradients by the complex step."""
    belief, policy, alpha, mean, var = cyclic_case(10, terminal)
    p, step = dense_means(alpha, terminal), 1e-30

    def slope(of, index):
        moved = {"p": p.astype(complex), "mean": mean.astype(complex)}
        moved[of][index] += 1j * step
        return dense_solution(moved["p"], policy, moved["mean"], 0.9)[0].imag / step

    expected = np.zeros((6, 3))
    for s, a in np.ndindex(6, 3):
        if s not in terminal:
            expected += slope("mean", (s, a)) ** 2 * var[s, a]
            gradient = np.array([slope("p", (s, a, t)) for t in range(6)])
            expected += np.einsum("tsa,tr,rsa->sa", gradient, covariance_of_row(alpha[s, a])[1], gradient)
    expected[list(terminal)] = 0.0
    np.testing.assert_allclose(solve(belief, policy, "delta").variance, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("terminal", [(), (4,)])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
def test_the_stated_error_covers_the_real_one(tolerance, terminal):
    for seed in range(6):
        belief, policy, *_ = cyclic_case(seed, terminal, discount=0.95)
        exact, rough = (solve(belief, policy, "ube", tolerance=t) for t in (1e-14, tolerance))
        assert 0 < rough.error <= tolerance
        assert rough.sweeps < exact.sweeps
        for name in ("q_mean", "variance"):
            truth = getattr(exact, name)
            error = np.abs(getattr(rough, name) - truth).max() / np.abs(truth).max()
            assert error <= rough.error * (1 + 1e-9), f"{name}, seed {seed}"


@pytest.mark.parametrize("terminal", [(), (1, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_policy_is_that_of_value_iteration(seed, terminal):
    belief, _, alpha, mean, _ = cyclic_case(seed, terminal)
    p = dense_means(alpha, terminal)
    q = np.zeros((6, 3))
    for _ in range(500):
        q = mean + 0.9 * p @ q.max(axis=1)
    solution = solve(belief, "greedy", "pombu")
    alive = [s for s in range(6) if s not in terminal]
    np.testing.assert_array_equal(solution.policy[alive], np.eye(3)[q.argmax(axis=1)][alive])
    assert (solution.policy[list(terminal)] == 0).all()
    np.testing.assert_allclose(solution.q_mean, q, rtol=1e-8, atol=1e-9)


def test_greedy_policy_of_layers_is_that_of_backward_induction():
    rng = np.random.default_rng(13)
    alpha = dirichlet(rng, 4, 3, 3, 3)
    mean = rng.uniform(-1, 1, (4, 3, 3))
    value, q = np.zeros(3), np.zeros((4, 3, 3))
    for h in reversed(range(4)):
        q[h] = mean[h] + 0.9 * alpha[h] / alpha[h].sum(-1, keepdims=True) @ value
        value = q[h].max(axis=1)
    greedy = np.eye(3)[q.argmax(axis=-1)]
    belief = Belief.layered(alpha, mean, 1.0, discount=0.9)
    for method in ("exact", "ube"):
        solution = solve(belief, "greedy", method)
        np.testing.assert_allclose(solution.q_mean, q, rtol=1e-12)
        np.testing.assert_array_equal(solution.policy, greedy)
        np.testing.assert_allclose(solution.variance, solve(belief, greedy, method).variance, rtol=1e-14)


def test_results_do_not_depend_on_threads(monkeypatch):
    pools = []

    class Counted(ThreadPoolExecutor):
        def __init__(self, workers):
            pools.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(solver, "_PARALLEL_FROM", 0)
    monkeypatch.setattr(solver, "ThreadPoolExecutor", Counted)
    rng = np.random.default_rng(14)
    for terminal in ((), (3, 30)):
        belief = Belief.stationary(dirichlet(rng, 41, 2, 41), 0.5, 1.0, discount=0.9, terminal=terminal)
        for policy in ("uniform", "greedy"):
            one, two, three = (solve(belief, policy, "pombu", threads=n) for n in (1, 2, 3))
            for other in (two, three):
                np.testing.assert_array_equal(one.q_mean, other.q_mean)
                np.testing.assert_array_equal(one.variance, other.variance)
                assert (one.sweeps, one.error) == (other.sweeps, other.error)
    assert set(pools) == {1, 2, 3}


@pytest.mark.parametrize("method", ["pombu", "exact", "delta"])
def test_sparse_input_gives_the_same_numbers(method):
    rng = np.random.default_rng(15)
    alpha = dirichlet(rng, 6, 2, 6)
    dense = solve(Belief.stationary(alpha, 0.2, 0.5, discount=0.9), method=method)
    sparse = solve(Belief.stationary(sp.csr_array(alpha.reshape(12, 6)), 0.2, 0.5, discount=0.9), method=method)
    np.testing.assert_array_equal(sparse.q_mean, dense.q_mean)
    np.testing.assert_array_equal(sparse.variance, dense.variance)


def test_a_hundred_thousand_states():
    """The result satisfies Bellman's equation and its counterpart for the variance."""
    rng = np.random.default_rng(16)
    n_states, n_actions, width, discount = 120_000, 2, 4, 0.9
    rows = n_states * n_actions
    alpha = sp.csr_array(
        (rng.uniform(0.1, 3.0, rows * width), rng.integers(n_states, size=rows * width), np.arange(rows + 1) * width),
        shape=(rows, n_states),
    )
    mean, var = rng.uniform(-1, 1, (n_states, n_actions)), rng.uniform(0, 1, (n_states, n_actions))
    solution = solve(Belief.stationary(alpha, mean, var, discount=discount), method="pombu")
    total = alpha.sum(axis=1)
    p = sp.diags_array(1 / total) @ alpha
    value, spread = solution.q_mean.mean(axis=1), solution.variance.mean(axis=1)
    q = mean.reshape(-1) + discount * (p @ value)
    local = (p @ value**2 - (p @ value) ** 2) / (total + 1)
    u = var.reshape(-1) + discount**2 * (local + p @ spread)
    np.testing.assert_allclose(solution.q_mean.reshape(-1), q, rtol=0, atol=1e-8)
    np.testing.assert_allclose(solution.variance.reshape(-1), u, rtol=0, atol=1e-8)


def test_a_line_of_a_hundred_thousand_states_exactly():
    """Known transitions: the variances of the mean rewards add up."""
    n = 100_000
    alpha = sp.diags_array(np.ones(n), offsets=1, shape=(n + 1, n + 1))
    solution = solve(Belief.acyclic(alpha, 0.0, 0.25, terminal=[n]), method="exact")
    np.testing.assert_allclose(solution.variance[:, 0], 0.25 * np.arange(n, -1, -1), rtol=1e-12)
    assert solution.guarantee == "exact"


# What is missing, and what is wrong


def test_actions_that_do_not_exist_are_not_numbers():
    solution = solve(chain(2, sigma=2.0).belief(reward_var=1.0), method="exact")
    np.testing.assert_array_equal(solution.variance, [[1, 3], [2, np.nan], [1, np.nan], [0, 0]])
    np.testing.assert_array_equal(np.isnan(solution.q_mean), np.isnan(solution.variance))
    np.testing.assert_array_equal(solution.policy, [[0.5, 0.5], [1, 0], [1, 0], [0, 0]])


@pytest.mark.parametrize("method", ["exact", "lower", "delta"])
def test_an_improper_prior_has_no_exact_variance(method):
    var = np.ones((2, 2, 1))
    var[1, 0, 0] = np.inf
    belief = Belief.layered(np.ones((2, 2, 1, 2)), 0.0, var)
    with pytest.raises(UsageError, match=re.escape("reward[1, 0, 0] has infinite variance: method")):
        solve(belief, method=method)
    assert solve(belief, method="pombu").variance[:, 0, 0].tolist() == [np.inf, np.inf]
    assert np.isfinite(solve(belief.updated([(1, 0, 0, 0.5, 1)]), method=method).variance).all()


def test_an_improper_prior_over_cycles():
    belief = Belief.stationary(np.ones((2, 1, 2)), 0.0, np.inf, discount=0.9)
    with pytest.raises(UsageError, match="a row that the policy uses has infinite variance"):
        solve(belief, method="pombu")


CYCLIC = Belief.stationary(np.ones((2, 2, 2)), 0.0, 1.0, discount=0.9)
LAYERED = Belief.layered(np.ones((2, 2, 2, 2)), 0.0, 1.0)
RAGGED = Belief.layered([np.ones((1, 2, 2)), np.ones((2, 2, 1))], 0.0, 1.0)
HALF = np.full((2, 2), 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"method": "Exact"},
            "unknown method 'Exact': choose one of ube, ube-horizon, count, pombu, exact, lower, delta",
        ),
        ({"policy": "best"}, "unknown policy 'best': give probabilities, 'uniform' or 'greedy'"),
        ({"policy": np.ones((2, 2, 2))}, "policy has shape (2, 2, 2): expected (2, 2) (states, actions)"),
        ({"policy": [[0.5, 0.5], [0.5, 0.25]]}, "policy[1] sums to 0.75: the probabilities of a state's actions must"),
        ({"policy": [[0.5, 0.5], [1.25, -0.25]]}, "policy[1, 0] is 1.25: probabilities are between 0 and 1"),
        ({"policy": [[-0.25, 0.75], [0.5, 0.5]]}, "policy[0, 0] is -0.25: probabilities are between 0 and 1"),
        ({"policy": [[np.nan, 0.5], [0.5, 0.5]]}, "policy[0, 0] is nan: probabilities are between 0 and 1"),
        ({"belief": LAYERED, "policy": HALF}, "policy has shape (2, 2): expected (2, 2, 2) (layers, states, actions)"),
        ({"belief": LAYERED, "policy": [HALF, HALF[:1]]}, "policy[1] has shape (1, 2): layer 1 needs (2, 2)"),
        ({"belief": LAYERED, "policy": [HALF, 0.4 * HALF]}, "policy[1, 0] sums to 0.4: the probabilities"),
        ({"belief": LAYERED, "policy": [HALF, -HALF]}, "policy[1, 0, 0] is -0.5: probabilities are between 0 and 1"),
        ({"belief": RAGGED, "policy": [HALF[:1], HALF[:1]]}, "policy[1] has shape (1, 2): layer 1 needs (2, 2)"),
        ({"belief": RAGGED, "policy": np.ones((2, 2, 2))}, "policy has shape (2, 2, 2): expected a list of 2 arrays"),
        (
            {"belief": chain(2).belief(), "policy": [[1, 0], [0, 1], [1, 0], [1, 0]]},
            "policy[1, 1] takes an action that does not exist there",
        ),
        ({"covariance": True}, "covariance=True needs method='exact' and a belief without cycles"),
        *(
            ({"belief": LAYERED, "method": method, "covariance": True}, "covariance=True needs method='exact'")
            for method in METHODS
            if method != "exact"
        ),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        solve(**{"belief": CYCLIC, **arguments})


def test_usage_errors_are_value_errors():
    assert issubclass(UsageError, ValueError)


def test_counts_of_a_belief_that_is_unrolled_for_one_decision():
    """Its rows are more than its posteriors, though none is shared."""
    alpha = np.array([[[1.0, 2.0], [3.0, 1.0]], [[2.0, 0.0], [1.0, 1.0]]])
    known = {"noise_var": 0.5, "visits": np.array([[1.0, 2.0], [4.0, 5.0]]), "r_max": 1.0}
    once = Belief.stationary(alpha, np.zeros((2, 2)), np.ones((2, 2)), discount=1.0, horizon=1, **known)
    layered = Belief.layered(
        alpha[None], np.zeros((1, 2, 2)), np.ones((1, 2, 2)), **(known | {"visits": known["visits"][None]})
    )
    found, expected = (solve(belief, "uniform", method="count").variance for belief in (once, layered))
    np.testing.assert_allclose(np.ravel(found)[:4], np.ravel(expected)[:4])


def test_a_delta_method_that_would_take_too_long_is_refused():
    once = Belief.stationary(np.ones((3, 2, 3)), np.zeros((3, 2)), np.ones((3, 2)), discount=1.0, horizon=60_000)
    with pytest.raises(
        UsageError, match=r"follows 1,\d+,\d+ transitions from each of 3\d\d,\d+ rows, .* use method pombu"
    ):
        solve(once, "uniform", method="delta")
