"""Corners that once gave wrong numbers: large values, no discount, agents at the edge of what they can do."""

import numpy as np
import pytest

from ube import UsageError
from ube.tabular import Belief, ScaledBeta, monte_carlo, solve, unroll
from ube.tabular.agents import AGENTS, Agent
from ube.tabular.mdp import chain, deep_sea, random_layered, river_swim
from ube.tabular.simulate import Learner, episodes_to_solve


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("offset", [0.0, 1e8, 1e12])
@pytest.mark.parametrize("method", ["pombu", "exact", "lower", "delta"])
def test_a_constant_added_to_all_values_changes_no_variance(method: str, offset: float) -> None:
    """A uniform row over values b and b + 1: Var = p(1 - p)/(α₀ + 1) = 1/12 whatever b is."""
    mean = np.zeros((2, 2, 1))
    mean[1, :, 0] = offset, offset + 1
    belief = Belief.layered(np.ones((2, 2, 1, 2)), mean, 0.0, r_max=2 * offset + 1)
    assert solve(belief, "uniform", method).variance[0, 0, 0] == pytest.approx(1 / 12, rel=1e-3)


@pytest.mark.parametrize("method", ["pombu", "exact", "delta"])
def test_with_cycles_too(method: str) -> None:
    alpha = np.ones((2, 1, 2))
    small, large = (
        solve(Belief.stationary(alpha, [[b], [b + 1.0]], 0.0, discount=0.5, r_max=2e8), "uniform", method).variance
        for b in (0.0, 1e8)
    )
    assert small == pytest.approx(large, rel=1e-6)
    assert small.min() > 0


@pytest.mark.parametrize("method", ["ube", "ube-horizon", "count", "pombu"])
def test_discount_0_stops_even_infinite_uncertainty(method: str) -> None:
    belief = Belief.layered(np.ones((3, 2, 2, 2)), 0.0, 1.0, discount=0.0, visits=4.0).updated([(0, 0, 0, 0.5, 1)])
    solution = solve(belief, "uniform", method)
    assert np.isfinite(solution.variance).all()
    improper = Belief.layered(np.ones((3, 2, 2, 2)), 0.0, np.inf, discount=0.0)
    assert not np.isnan(solve(improper, "uniform", method).variance).any()


def test_count_names_its_own_reason_and_takes_visits() -> None:
    belief = Belief.layered(
        np.full((2, 2, 1, 2), 3.0), rewards=ScaledBeta(np.full((2, 2, 1), 3.0), 3.0), visits=np.full((2, 2, 1), 5.0)
    )
    solution = solve(belief, "uniform", "count")
    # (σ² + Q_max² K)/n at both layers: (1/4 + 4·2)/5 each
    assert solution.variance[0, 0, 0] == pytest.approx(2 * (0.25 + 8) / 5)
    assert solution.guarantee == "upper bound"
    assert "a count of visits leaves the prior out" in solution.why
    liar = Belief.layered(np.full((2, 2, 1, 2), 0.1), 0.0, 5.0, visits=1e9)
    assert solve(liar, "uniform", "count").guarantee == "none"


def test_an_action_the_policy_never_takes_may_be_unknown() -> None:
    belief = Belief.stationary(np.ones((2, 2, 2)), 0.0, [[1.0, np.inf], [1.0, np.inf]], discount=0.9)
    solution = solve(belief, [[1, 0], [1, 0]], "pombu")
    assert solution.variance[:, 0] == pytest.approx([1 / (1 - 0.81)] * 2)
    assert np.isinf(solution.variance[:, 1]).all()
    with pytest.raises(UsageError, match="a row that the policy uses has infinite variance"):
        solve(belief, "uniform", "pombu")


def test_one_unrolled_layer_is_not_tied() -> None:
    belief = Belief.stationary(np.ones((2, 1, 2)), 0.0, 1.0, discount=0.9)
    assert solve(unroll(belief, 1)).guarantee == "exact"
    assert solve(unroll(belief, 2)).guarantee == "none"


def test_exact_with_cycles_does_not_wait_for_slow_discounts() -> None:
    """A ring at γ = 0.9999: the Lyapunov equation is solved, not iterated."""
    n = 50
    alpha = np.zeros((n, 1, n))
    alpha[np.arange(n), 0, (np.arange(n) + 1) % n] = 1.0
    belief = Belief.stationary(alpha, 0.0, 1.0, discount=0.9999)
    # independent visits: Σ γ^{2t} = 1/(1 - γ²)
    assert solve(belief).variance == pytest.approx(np.full((n, 1), 1 / (1 - 0.9999**2)), rel=1e-8)


def test_dense_covariances_that_cannot_fit_are_refused_before_they_are_made() -> None:
    from scipy.sparse import csr_array

    n = 200_000
    alpha = csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    belief = Belief.stationary(alpha, 0.0, 1.0, discount=0.9)
    with pytest.raises(UsageError, match=r"200,000 states with cycles need a covariance of 320 GB: use method 'pombu'"):
        solve(belief, method="exact")
    assert solve(belief, method="pombu").variance[0, 0] == pytest.approx(1 / (1 - 0.81))


def test_ragged_layers_take_every_kind_of_reward_as_a_list() -> None:
    alpha = [np.ones((1, 2, 3)), np.ones((3, 2, 1))]
    a = [np.full((1, 2), 2.0), np.full((3, 2), 4.0)]
    belief = Belief.layered(alpha, rewards=ScaledBeta(a, 2.0))
    oracle = monte_carlo(belief, samples=20_000, rng=rng())
    for exact, drawn, error in zip(solve(belief).variance, oracle.variance, oracle.variance_se, strict=True):
        assert np.abs((exact - drawn) / error).max() < 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Belief.layered([["a"]], 0.0, 1.0), "is no array of numbers"),
        (lambda: Belief.stationary([[[1, 2]], [[1]]], 0.0, 1.0, discount=0.5), "alpha is no array of numbers"),
        (lambda: Belief.stationary(np.ones((2, 1, 2)) * 1j, 0.0, 1.0, discount=0.5), "alpha is no array of numbers"),
        (lambda: Belief.layered(np.full((1, 1, 1, 2), 1e308), 0.0, 1.0), "Dirichlet parameters are finite"),
        (lambda: Belief.layered(np.ones((1, 1, 1, 1)), rewards=3.0), "rewards=3.0: give a Normal"),
        (lambda: Belief.acyclic(np.ones((3, 1, 3)), 0.0, 1.0, terminal=[0, 0, 1]), "looks like a mask of 0 and 1"),
        (lambda: Belief.acyclic(np.ones((3, 1, 3)), 0.0, 1.0, terminal=[1.7]), "give states as whole numbers"),
        (lambda: Belief.layered(np.ones((1, 1, 1, 1)), 0.0, 1.0, visits=-1.0), r"visits\[0, 0, 0\] is -1"),
        (lambda: unroll(Belief.stationary(np.ones((1, 1, 1)), 0.0, 1.0, discount=0.5), np.nan), "horizon=nan"),
        (lambda: chain(3, sigma=-1.0), "sigma=-1: a standard deviation"),
        (lambda: chain(3).step(99, 0, rng()), "action 0 does not exist in state 99"),
    ],
)
def test_odd_input_is_named(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()  # type: ignore[operator]


def test_learners_refuse_what_their_loops_could_not_survive() -> None:
    sea, other = deep_sea(4, rng()), deep_sea(6, rng())
    with pytest.raises(UsageError, match="another MDP than deepsea-4"):
        Learner(sea, other.belief(), AGENTS["psrl"])
    with pytest.raises(UsageError, match="'count' needs a visit count for each row"):
        Learner(river_swim(), river_swim().belief(), AGENTS["ube-ucb"].but(variance="count"))
    with pytest.raises(UsageError, match="learns from its own data alone"):
        Learner(sea, sea.belief().updated([(0, 0, 0, 0.0, 0)]), AGENTS["ucbvi"])
    for name in ("psrl", "k-learning", "ube-joint"):
        with pytest.raises(UsageError, match="cannot draw from an improper prior"):
            Learner(chain(3), chain(3).belief(reward_var=np.inf), AGENTS[name])
    with pytest.raises(UsageError, match="only where transitions are known"):
        Learner(sea, sea.belief(reward_var=np.inf), AGENTS["ube-ucb"])


@pytest.mark.parametrize("noise", ["episode", "ucb"])
@pytest.mark.parametrize("variance", ["ube", "ube-horizon", "count", "pombu", "exact", "lower"])
def test_every_variance_explores_a_small_sea(variance: str, noise: str) -> None:
    mdp = deep_sea(6, rng(3))
    agent = Agent("any", variance=variance, noise=noise, beta=0.3)
    assert episodes_to_solve(Learner(mdp, mdp.belief(), agent).run(1000, rng())) is not None


@pytest.mark.parametrize("variance", ["ube", "count", "pombu", "exact"])
def test_k_learning_stays_finite_with_every_variance(variance: str) -> None:
    mdp = random_layered(3, 3, 2, rng(1))
    agent = AGENTS["k-learning"].but(variance=variance, beta=3.0)
    regret = mdp.optimal_return - Learner(mdp, mdp.belief(), agent).run(2000, rng(), evaluate_policy=True)
    assert np.isfinite(regret).all()
    assert regret[-200:].mean() < regret[:200].mean()


def test_known_transitions_are_known_to_ucbvi_and_rlsvi_too() -> None:
    """With costs paid but transitions known, RLSVI need not shrink what follows: fewer episodes than without."""
    times = {}
    for known in (False, True):
        runs = []
        for seed in range(6):
            mdp = deep_sea(15, rng(seed), known_transitions=known)
            learner = Learner(mdp, mdp.belief(), AGENTS["rlsvi"].but(beta=0.01))
            runs.append(episodes_to_solve(learner.run(1000, rng(seed))))
        times[known] = np.mean(runs)
    assert times[True] < times[False]
