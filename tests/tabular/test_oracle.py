"""Monte Carlo: calibrated where the answer is known, and the judge of the exact recursion where it is not."""

import re

import numpy as np
import pytest

from tabular.random_beliefs import REWARDS, dirichlet, flat, policy_for, random_belief, random_policy, reward_belief
from ube import UsageError
from ube.tabular import Belief, Normal, ScaledBeta, monte_carlo, oracle, solve
from ube.tabular.mdp import chain

SAMPLES = 100_000


def z_scores(estimate, truth, error):
    """How many standard errors off, where there is any error at all."""
    estimate, truth, error = (flat(values) for values in (estimate, truth, error))
    fixed = error < 1e-12
    np.testing.assert_allclose(estimate[fixed], truth[fixed], atol=1e-12)
    return (estimate[~fixed] - truth[~fixed]) / error[~fixed]


def z_of(sampled, solution):
    return (
        z_scores(sampled.q_mean, solution.q_mean, sampled.q_mean_se),
        z_scores(sampled.variance, solution.variance, sampled.variance_se),
    )


@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_exact_is_the_variance_of_sampled_mdps(structure, discount, rewards):
    rng = np.random.default_rng([REWARDS.index(rewards), int(10 * discount), len(structure)])
    for _ in range(2):
        belief = random_belief(rng, structure, rewards, discount)
        policy = policy_for(rng, belief)
        for z in z_of(monte_carlo(belief, policy, SAMPLES, rng=rng), solve(belief, policy, "exact")):
            assert np.abs(z).max() < 5


def test_exact_on_larger_layers():
    """Many z-scores: none beyond 5, and as spread as they should be. The tighter of the bounds would fail by far."""
    rng = np.random.default_rng(0)
    alpha = dirichlet(rng, 5, 5, 2, 5)
    belief = Belief.layered(alpha, rewards=reward_belief(rng, "scaled-beta", (5, 5, 2)))
    policy = random_policy(rng, (5, 5, 2))
    sampled = monte_carlo(belief, policy, SAMPLES, rng=rng)
    for z in z_of(sampled, solve(belief, policy, "exact")):
        assert np.abs(z).max() < 5
        assert 0.5 < np.sqrt((z**2).mean()) < 1.5
    assert z_of(sampled, solve(belief, policy, "pombu"))[1].min() < -20
    assert z_of(sampled, solve(belief, policy, "lower"))[1].max() > 20


@pytest.mark.parametrize("policy", ["uniform", "greedy"])
def test_named_policies(policy):
    rng = np.random.default_rng(1)
    belief = Belief.layered(dirichlet(rng, 3, 3, 2, 3), rewards=reward_belief(rng, "normal", (3, 3, 2)))
    for z in z_of(monte_carlo(belief, policy, 20_000, rng=rng), solve(belief, policy, "exact")):
        assert np.abs(z).max() < 5


def test_covariance_is_that_of_sampled_values():
    """Values of MDPs drawn with NumPy's own Dirichlet, all pairs of states, also of different layers."""
    rng = np.random.default_rng(2)
    size, n, discount = (2, 3, 2), 50_000, 0.9
    alpha = rng.uniform(0.3, 3.0, (*size, 3))
    mean, var = rng.uniform(-1, 1, size), rng.uniform(0.01, 0.3, size)
    policy = random_policy(rng, size)
    value, values = np.zeros((n, 3)), np.zeros((n, 2, 3))
    for h in (1, 0):
        for s in range(3):
            for a in range(2):
                reward = rng.normal(mean[h, s, a], np.sqrt(var[h, s, a]), n)
                following = (rng.dirichlet(alpha[h, s, a], n) * value).sum(axis=1)
                values[:, h, s] += policy[h, s, a] * (reward + discount * following)
        value = values[:, h].copy()
    flat_values = values.reshape(n, 6)
    centred = flat_values - flat_values.mean(axis=0)
    products = np.einsum("ni,nj->nij", centred, centred)
    solution = solve(Belief.layered(alpha, mean, var, discount=discount), policy, covariance=True)
    truth = solution.value_covariance.reshape(6, 6)
    assert np.abs(z_scores(products.mean(axis=0), truth, products.std(axis=0) / np.sqrt(n))).max() < 5
    assert truth[0, 3] > 0.005  # between layers, from a shared reward: far above the error of about 0.0005
    mean_z = (flat_values.mean(axis=0) - solution.value_mean.reshape(-1)) / (flat_values.std(axis=0) / np.sqrt(n))
    assert np.abs(mean_z).max() < 5


@pytest.mark.parametrize("horizon", [2, 10])
def test_copies_of_one_unknown_reward(horizon):
    """Tied rows share their draw: Var = H² s² for one state and one action, of which a layered bound sees H s²."""
    belief = Belief.stationary(np.ones((1, 1, 1)), 0.0, 0.3, discount=1.0, horizon=horizon)
    sampled = monte_carlo(belief, samples=20_000, rng=np.random.default_rng(3))
    steps = np.arange(horizon, 0, -1).reshape(-1, 1, 1)
    assert np.abs(z_scores(sampled.variance, steps**2 * 0.3, sampled.variance_se)).max() < 5
    assert sampled.variance[0, 0, 0] > 1.5 * horizon * 0.3


def test_tied_transitions_share_their_draw():
    """p ~ U(0, 1) to stay and earn 1 twice more: 1 + p + p², variance 1/12 + 4/45 + 2·(1/4 - 1/6)."""
    alpha = np.array([[[1.0, 1.0]], [[0.0, 0.0]]])
    belief = Belief.stationary(alpha, 1.0, 0.0, discount=1.0, horizon=3, terminal=[1])
    sampled = monte_carlo(belief, samples=SAMPLES, rng=np.random.default_rng(4))
    truth = np.array([1 / 12 + 4 / 45 + 1 / 6, 1 / 12, 0.0])
    assert np.abs(z_scores(sampled.variance[:, 0, 0], truth, sampled.variance_se[:, 0, 0])).max() < 5
    means = np.array([1 + 1 / 2 + 1 / 3, 1.5, 1.0])
    assert np.abs(z_scores(sampled.q_mean[:, 0, 0], means, sampled.q_mean_se[:, 0, 0])).max() < 5


def test_tied_rewards_share_their_draw():
    """Two states in turn, three decisions: 2 μ_s + μ_t, variance 4 Var μ_s + Var μ_t; then μ_s + μ_t; then μ_s."""
    alpha = np.array([[[0.0, 1.0]], [[1.0, 0.0]]])
    belief = Belief.stationary(alpha, 0.0, [[0.1], [1.0]], discount=1.0, horizon=3)
    sampled = monte_carlo(belief, samples=SAMPLES, rng=np.random.default_rng(13))
    truth = np.array([[1.4, 4.1], [1.1, 1.1], [0.1, 1.0]])
    assert np.abs(z_scores(sampled.variance[:, :, 0], truth, sampled.variance_se[:, :, 0])).max() < 5
    np.testing.assert_allclose(solve(belief, method="delta").variance[:, :, 0], truth, rtol=1e-12)


def test_cycles_by_hand():
    """Q = 1/(1 - γp) with p ~ U(0, 1): E Q = -ln(1 - γ)/γ and E Q² = 1/(1 - γ). The end is worth nothing."""
    discount = 0.8
    alpha = np.array([[[1.0, 1.0]], [[1.0, 1.0]]])
    belief = Belief.stationary(alpha, 1.0, 0.0, discount=discount, terminal=[1])
    sampled = monte_carlo(belief, samples=5_000, rng=np.random.default_rng(5))
    mean = -np.log(1 - discount) / discount
    truth = 1 / (1 - discount) - mean**2
    assert abs(sampled.q_mean[0, 0] - mean) < 5 * sampled.q_mean_se[0, 0]
    assert abs(sampled.variance[0, 0] - truth) < 5 * sampled.variance_se[0, 0]
    assert 0 < sampled.variance_se[0, 0] < 0.1 * truth
    assert sampled.q_mean[1, 0] == sampled.variance[1, 0] == 0


def test_cycles_with_an_unknown_reward():
    """μ/(1 - γ) with one state: 25 Var μ at γ = 0.8, which the delta method gets right as Q is linear in μ."""
    belief = Belief.stationary(np.ones((1, 1, 1)), 0.0, 0.3, discount=0.8)
    sampled = monte_carlo(belief, samples=5_000, rng=np.random.default_rng(6))
    assert abs(sampled.variance[0, 0] - 25 * 0.3) < 5 * sampled.variance_se[0, 0]
    assert solve(belief, method="delta").variance[0, 0] == pytest.approx(25 * 0.3)


@pytest.mark.parametrize(
    "rewards",
    [Normal(0.3, 2.0), ScaledBeta(0.5, 0.5, low=-1.0, high=3.0), ScaledBeta(20.0, 1.0)],
    ids=["normal", "two-sided", "skewed"],
)
def test_standard_errors_are_calibrated(rewards):
    """400 states, one decision: 400 independent estimates of one known variance."""
    belief = Belief.layered([np.ones((400, 1, 1))], rewards=rewards, r_max=3.0)
    samples = 5_000
    sampled = monte_carlo(belief, samples=samples, rng=np.random.default_rng(7))
    z_mean = z_scores(sampled.q_mean, np.full(400, rewards.mean), sampled.q_mean_se)
    z_variance = z_scores(sampled.variance, np.full(400, rewards.variance), sampled.variance_se)
    for z in (z_mean, z_variance):
        assert abs(z.mean()) < 4 / np.sqrt(400)
        assert z.std() == pytest.approx(1.0, abs=4 / np.sqrt(800))
    np.testing.assert_allclose(sampled.q_mean_se, np.sqrt(rewards.variance / samples), rtol=0.1)
    if isinstance(rewards, Normal):  # the variance of a sample variance is 2σ⁴/n
        np.testing.assert_allclose(sampled.variance_se, rewards.variance * np.sqrt(2 / samples), rtol=0.2)


def test_variance_of_few_samples_is_unbiased():
    """With two samples the biased estimate would be half the truth."""
    belief = Belief.layered([np.ones((4_000, 1, 1))], 0.0, 2.0)
    sampled = monte_carlo(belief, samples=2, rng=np.random.default_rng(8))
    assert sampled.variance.mean() == pytest.approx(2.0, abs=5 * 2.0 * np.sqrt(2 / 4_000))


def test_moments_of_the_very_draws():
    """One decision: Q is the reward drawn. Five samples, so that no term of the moments is small."""
    belief = Belief.layered([np.ones((30, 1, 1))], 0.5, 2.0)
    sampled = monte_carlo(belief, samples=5, rng=np.random.default_rng(14))
    q = belief.sample(np.random.default_rng(14), 5)[1][:, :30]
    second, fourth = q.var(axis=0), ((q - q.mean(axis=0)) ** 4).mean(axis=0)
    np.testing.assert_allclose(sampled.q_mean.reshape(-1), q.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(sampled.q_mean_se.reshape(-1), np.sqrt(second / 5), rtol=1e-12)
    np.testing.assert_allclose(sampled.variance.reshape(-1), q.var(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(sampled.variance_se.reshape(-1), np.sqrt((fourth - second**2) / 5), rtol=1e-9)


@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_the_generator_alone_decides(structure):
    belief = random_belief(np.random.default_rng(9), structure)
    first, again, other = (monte_carlo(belief, samples=200, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    for name in ("q_mean", "variance", "q_mean_se", "variance_se"):
        np.testing.assert_array_equal(flat(getattr(first, name)), flat(getattr(again, name)))
    assert not np.array_equal(flat(first.variance), flat(other.variance))
    assert first.samples == 200


def test_many_samples_are_taken_in_chunks(monkeypatch):
    rng = np.random.default_rng(10)
    belief = Belief.layered(dirichlet(rng, 2, 3, 2, 3), rewards=reward_belief(rng, "normal", (2, 3, 2)))
    monkeypatch.setattr(oracle, "_CHUNK_ENTRIES", 3_000)
    asked = []
    draw = Belief.sample
    monkeypatch.setattr(Belief, "sample", lambda self, rng, n: asked.append(n) or draw(self, rng, n))
    sampled = monte_carlo(belief, samples=10_000, rng=rng)
    assert len(asked) > 1
    assert sum(asked) == 10_000
    for z in z_of(sampled, solve(belief)):
        assert np.abs(z).max() < 5


def test_means_far_from_zero_lose_nothing_to_cancellation():
    """Mean 10⁶, variance 10⁻⁶: moments about 0 would be noise."""
    belief = Belief.layered(np.ones((1, 2, 1, 1)), 1e6, 1e-6, r_max=1e6)
    sampled = monte_carlo(belief, samples=10_000, rng=np.random.default_rng(11))
    np.testing.assert_allclose(sampled.variance, 1e-6, rtol=0.1)


@pytest.mark.parametrize("samples", [1, 0, -3])
def test_too_few_samples(samples):
    belief = Belief.layered(np.ones((1, 1, 1, 1)), 0.0, 1.0)
    with pytest.raises(UsageError, match=re.escape(f"samples={samples}: a variance needs at least 2")):
        monte_carlo(belief, samples=samples, rng=np.random.default_rng(0))


def test_an_improper_prior_cannot_be_sampled():
    belief = Belief.layered(np.ones((1, 2, 1, 1)), 0.0, [[[1.0], [np.inf]]])
    with pytest.raises(UsageError, match="infinite variance at flat index 1: an improper prior"):
        monte_carlo(belief, samples=10, rng=np.random.default_rng(0))
    sampled = monte_carlo(belief.updated([(0, 1, 0, 0.5, 0)]), samples=10, rng=np.random.default_rng(0))
    assert np.isfinite(sampled.variance).all()


def test_an_improper_prior_is_proper_once_every_action_was_tried():
    """The chain after one look at both branches: σ² = 1 each. Actions that do not exist can never be tried."""
    belief = chain(2).belief(reward_var=np.inf)
    belief = belief.updated([(0, 0, 1.0, 3), (0, 1, 0.0, 1), (1, 0, 0.5, 2), (2, 0, 0.5, 3)])
    sampled = monte_carlo(belief, samples=10_000, rng=np.random.default_rng(12))
    assert np.abs(z_scores(sampled.variance[0], np.ones(2), sampled.variance_se[0])).max() < 5


def test_bad_policies_are_named_here_too():
    belief = Belief.layered(np.ones((1, 1, 2, 1)), 0.0, 1.0)
    with pytest.raises(UsageError, match=re.escape("policy[0, 0] sums to 0.5")):
        monte_carlo(belief, [[[0.25, 0.25]]], 10, rng=np.random.default_rng(0))


def test_actions_that_do_not_exist_are_not_numbers():
    belief = chain(2).belief()
    sampled = monte_carlo(belief, samples=10, rng=np.random.default_rng(0))
    for name in ("q_mean", "variance"):
        np.testing.assert_array_equal(np.isnan(getattr(sampled, name)), np.isnan(getattr(solve(belief), name)))
