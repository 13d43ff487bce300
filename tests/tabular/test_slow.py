"""The same promises over many more beliefs; `make test-slow`."""

import numpy as np
import pytest

from tabular.random_beliefs import REWARDS, flat, policy_for, random_belief
from ube.tabular import monte_carlo, solve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_no_bound_is_violated_in_ten_thousand_beliefs(structure: str) -> None:
    for seed in range(10_000):
        rng = np.random.default_rng([seed, 77])
        belief = random_belief(rng, structure, "scaled-beta", discount=float(rng.choice([1.0, 0.9])))
        policy = policy_for(rng, belief)
        variance = {
            m: flat(solve(belief, policy, m).variance) for m in ("lower", "exact", "pombu", "ube-horizon", "ube")
        }
        for smaller, larger in zip(list(variance)[:-1], list(variance)[1:], strict=True):
            assert (variance[larger] >= variance[smaller] * (1 - 1e-9) - 1e-15).all(), (seed, smaller, larger)


@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_exact_is_within_the_error_of_a_hundred_thousand_samples(structure: str, rewards: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng([seed, 78])
        belief = random_belief(rng, structure, rewards)
        policy = policy_for(rng, belief)
        oracle = monte_carlo(belief, policy, 100_000, rng=rng)
        error = np.maximum(flat(oracle.variance_se), 1e-12)
        z = (flat(solve(belief, policy).variance) - flat(oracle.variance)) / error
        assert np.nanmax(np.abs(z)) < 5, seed
