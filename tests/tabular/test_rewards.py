"""Conjugate updates against numbers worked out by hand, and draws against the moments they should have."""

import re

import numpy as np
import pytest

from tabular.random_beliefs import REWARDS, reward_belief
from ube import UsageError
from ube.tabular import Normal, NormalGamma, ScaledBeta

PARAMETERS = {
    "normal": ("centre", "spread", "noise"),
    "normal-gamma": ("centre", "strength", "shape", "rate"),
    "scaled-beta": ("a", "b", "low", "high"),
}


@pytest.mark.parametrize(
    ("centre", "spread", "noise", "rewards", "mean", "variance"),
    [
        (0.0, 1.0, 1.0, [1.0, 2.0, 3.0], 6 / 4, 1 / 4),
        (1.0, 4.0, 2.0, [5.0], 11 / 3, 4 / 3),  # precisions 1/4 and 1/2
        (7.0, np.inf, 3.0, [2.0, 4.0], 3.0, 3 / 2),  # no prior: the sample mean, noise / n
        (7.0, np.inf, 0.0, [2.0], 2.0, 0.0),
        (7.0, 2.0, 0.0, [1.0, 3.0], 2.0, 0.0),
        (7.0, 0.0, 1.0, [100.0], 7.0, 0.0),  # known beforehand: nothing to learn
        (7.0, 0.0, 0.0, [7.0], 7.0, 0.0),
    ],
)
def test_normal_by_hand(centre, spread, noise, rewards, mean, variance):
    prior = Normal(np.full(3, centre), np.full(3, spread), np.full(3, noise))
    posterior = prior.updated(np.full(len(rewards), 1), np.array(rewards))
    np.testing.assert_allclose(posterior.mean, [centre, mean, centre], rtol=1e-15)
    np.testing.assert_allclose(posterior.variance, [spread, variance, spread], rtol=1e-15)
    np.testing.assert_array_equal(posterior.noise_variance, np.full(3, noise))


def test_normal_gamma_by_hand():
    """n = 2, average 2, scatter 2: strength 4 + 2, rate 1 + (2 + 4·2·2²/6)/2."""
    prior = NormalGamma(np.zeros(2), np.full(2, 4.0), np.full(2, 2.0), np.ones(2))
    posterior = prior.updated(np.array([1, 1]), np.array([1.0, 3.0]))
    np.testing.assert_allclose(posterior.mean, [0.0, 2 / 3])
    np.testing.assert_allclose(posterior.strength, [4.0, 6.0])
    np.testing.assert_allclose(posterior.shape, [2.0, 3.0])
    np.testing.assert_allclose(posterior.rate, [1.0, 14 / 3])
    np.testing.assert_allclose(posterior.variance, [1 / 4, 7 / 18])  # rate / (strength (shape - 1))
    np.testing.assert_allclose(posterior.noise_variance, [1.0, 7 / 3])


def test_scaled_beta_by_hand():
    """Rewards 3, -1 and 1 lie at 1, 0 and 1/2 of [-1, 3]: a = b = 2.5."""
    prior = ScaledBeta(np.ones(2), np.ones(2), low=-1.0, high=3.0)
    posterior = prior.updated(np.array([0, 0, 0]), np.array([3.0, -1.0, 1.0]))
    np.testing.assert_allclose(posterior.a, [2.5, 1.0])
    np.testing.assert_allclose(posterior.b, [2.5, 1.0])
    np.testing.assert_allclose(posterior.mean, [1.0, 1.0])
    np.testing.assert_allclose(posterior.variance, [16 * 6.25 / (25 * 6), 16 / 12])
    np.testing.assert_allclose(posterior.noise_variance, 4.0)  # at most (width / 2)²
    assert posterior.bound == 3.0
    assert ScaledBeta(1.0, 1.0, low=-5.0, high=3.0).bound == 5.0
    assert Normal(0.0, 1.0).bound == np.inf


@pytest.mark.parametrize("kind", REWARDS)
def test_one_by_one_equals_all_at_once(kind):
    rng = np.random.default_rng(1)
    prior = reward_belief(rng, kind, (4, 3))
    rows = rng.integers(12, size=40)
    rewards = prior.sample(rng, 40).reshape(40, -1)[np.arange(40), rows]  # within a ScaledBeta's interval
    at_once = prior.updated(rows, rewards)
    one_by_one = prior
    for row, reward in zip(rows, rewards, strict=True):
        one_by_one = one_by_one.updated(np.array([row]), np.array([reward]))
    for name in PARAMETERS[kind]:
        np.testing.assert_allclose(getattr(one_by_one, name), getattr(at_once, name), rtol=1e-12, err_msg=name)
    assert not np.allclose(at_once.variance, prior.variance)


@pytest.mark.parametrize("kind", REWARDS)
def test_draws_have_the_mean_and_the_variance(kind):
    rng = np.random.default_rng(2)
    belief = reward_belief(rng, kind, (5, 4))
    n = 100_000
    draws = belief.sample(rng, n)
    assert draws.shape == (n, 5, 4)
    z_mean = (draws.mean(axis=0) - belief.mean) / np.sqrt(belief.variance / n)
    squares = (draws - belief.mean) ** 2
    z_variance = (squares.mean(axis=0) - belief.variance) / (squares.std(axis=0) / np.sqrt(n))
    for z in (z_mean, z_variance):
        assert np.abs(z).max() < 5
        assert 0.5 < np.sqrt((z**2).mean()) < 1.5
    if kind == "scaled-beta":
        assert (draws >= belief.low).all()
        assert (draws <= belief.high).all()


@pytest.mark.parametrize("kind", REWARDS)
def test_arranged_puts_every_parameter_through(kind):
    belief = reward_belief(np.random.default_rng(3), kind, (2, 3))
    turned = belief.arranged(np.transpose)
    np.testing.assert_array_equal(turned.mean, belief.mean.T)
    np.testing.assert_array_equal(turned.variance, belief.variance.T)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal([0.0, np.nan], 1.0), "Normal centre[1] is nan: it must be finite"),
        (lambda: Normal(0.0, [[1.0], [-2.0]]), "Normal spread[1, 0] is -2: it must be a variance, 0 or more"),
        (lambda: Normal(0.0, np.nan), "Normal spread is nan: it must be a variance, 0 or more"),
        (lambda: Normal(0.0, 1.0, np.inf), "Normal noise is inf: it must be a variance, 0 or more and finite"),
        (lambda: NormalGamma(np.inf, 1.0, 2.0, 1.0), "NormalGamma centre is inf: it must be finite"),
        (lambda: NormalGamma(0.0, 0.0, 2.0, 1.0), "NormalGamma strength is 0: it must be above 0 and finite"),
        (lambda: NormalGamma(0.0, 1.0, [3.0, 1.0], 1.0), "NormalGamma shape[1] is 1: it must be above 1 and finite"),
        (lambda: NormalGamma(0.0, 1.0, 2.0, -1.0), "NormalGamma rate is -1: it must be above 0 and finite"),
        (lambda: ScaledBeta(0.0, 1.0), "ScaledBeta a is 0: it must be above 0 and finite"),
        (lambda: ScaledBeta(1.0, [1.0, np.inf]), "ScaledBeta b[1] is inf: it must be above 0 and finite"),
        (lambda: ScaledBeta(1.0, 1.0, low=-np.inf), "ScaledBeta low is -inf: it must be finite"),
        (lambda: ScaledBeta(1.0, 1.0, low=2.0, high=2.0), "ScaledBeta high is 2: it must be finite and above low"),
        (
            lambda: ScaledBeta(1.0, 1.0).updated(np.array([0]), np.array([1.5])),
            "reward 1.5 is outside the interval of its ScaledBeta belief: widen low..high",
        ),
        (
            lambda: Normal([0.0, 0.0], [1.0, np.inf]).sample(np.random.default_rng(0), 1),
            "infinite variance at flat index 1: an improper prior can be sampled only after one update there",
        ),
    ],
)
def test_bad_parameters_are_named(make, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


def test_a_high_for_all_below_one_of_several_lows_is_named():
    with pytest.raises(UsageError, match=re.escape("it must be finite and above low")):
        ScaledBeta(np.ones(2), np.ones(2), low=np.array([0.0, 2.0]), high=1.0)
