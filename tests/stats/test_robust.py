"""Statistics for few runs: by hand, and against numbers made by rliable (tests/stats/rliable.json says by which)."""

import json
from pathlib import Path

import numpy as np
import pytest

from ube import UsageError, stats

RLIABLE = json.loads((Path(__file__).parent / "rliable.json").read_text())
A, B = np.array(RLIABLE["a"]), np.array(RLIABLE["b"])  # 6 and 5 runs of 9 tasks


@pytest.mark.parametrize("name", RLIABLE["values"])
def test_points_are_those_of_rliable(name: str) -> None:
    statistic = getattr(stats, name)
    assert [statistic(A), statistic(B)] == pytest.approx(RLIABLE["values"][name], abs=1e-12)


def test_profiles_and_improvement_are_those_of_rliable() -> None:
    for scores, expected in zip((A, B), RLIABLE["profile"], strict=True):
        np.testing.assert_allclose(stats.profile(scores, RLIABLE["thresholds"]), expected, atol=1e-12)
    assert stats.probability_of_improvement(A, B) == pytest.approx(RLIABLE["probability_of_improvement"], abs=1e-12)
    swapped = stats.probability_of_improvement(B, A)
    assert swapped == pytest.approx(1 - RLIABLE["probability_of_improvement"], abs=1e-12)


@pytest.mark.parametrize(("name", "column"), [("iqm", 0), ("median", 1), ("optimality_gap", 2)])
def test_intervals_are_those_of_rliable(name: str, column: int) -> None:
    """Both are random, so they agree to a twentieth of their width or so."""
    for agent, scores in (("a", A), ("b", B)):
        low, high = (end[column] for end in RLIABLE["intervals"][agent])
        found = stats.bootstrap(getattr(stats, name), scores, rng=np.random.default_rng(1), resamples=5_000)
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.06 * (high - low))
        assert found.value == getattr(stats, name)(scores)


def test_the_interval_of_an_improvement_is_that_of_rliable() -> None:
    found = stats.bootstrap(stats.probability_of_improvement, A, B, rng=np.random.default_rng(2), resamples=5_000)
    assert (found.low, found.high) == pytest.approx(RLIABLE["improvement_interval"], abs=0.02)


def test_the_intervals_of_a_profile_are_those_of_each_threshold() -> None:
    thresholds = RLIABLE["thresholds"]
    shares, low, high = stats.profile_intervals(A, thresholds, rng=np.random.default_rng(5), resamples=300)
    np.testing.assert_array_equal(shares, stats.profile(A, thresholds))
    for i, threshold in enumerate(thresholds):
        alone = stats.bootstrap(
            lambda scores, at=threshold: stats.profile(scores, [at])[0], A, rng=np.random.default_rng(5), resamples=300
        )
        assert (shares[i], low[i], high[i]) == alone
    with pytest.raises(TypeError):  # one number: a whole profile has an interval at each threshold
        stats.bootstrap(lambda scores: stats.profile(scores, thresholds), A, rng=np.random.default_rng(5))  # type: ignore[arg-type,return-value]


def test_runs_are_drawn_within_tasks_from_the_generator_alone() -> None:
    constant = np.tile([1.0, 100.0], (4, 1))  # no spread within a task
    assert stats.bootstrap(stats.mean, constant, rng=np.random.default_rng(0), resamples=50) == (50.5, 50.5, 50.5)
    one, same, other = (
        stats.bootstrap(stats.iqm, A, rng=np.random.default_rng(seed), resamples=200) for seed in (3, 3, 4)
    )
    assert one == same != other


def test_mean_interval_by_hand() -> None:
    mean, low, high = stats.mean_interval(np.array([1.0, 3.0]))
    assert mean == 2.0
    assert high - mean == mean - low == pytest.approx(12.706, rel=1e-4)  # Student's t of one degree of freedom, √2/√2
    assert np.isnan(stats.mean_interval(np.array([1.0]))[1:]).all()


def test_mean_intervals_leave_out_what_is_not_there() -> None:
    mean, low, high = stats.mean_intervals(np.array([[1.0, 5.0, np.nan], [3.0, np.nan, np.nan]]))
    np.testing.assert_array_equal(mean, [2.0, 5.0, np.nan])
    assert high[0] - low[0] == pytest.approx(2 * 12.706, rel=1e-4)
    assert np.isnan([low[1:], high[1:]]).all()


def test_iqm_by_hand() -> None:
    assert stats.iqm(np.array([[100.0, 2.0], [3.0, -50.0]])) == 2.5
    assert stats.iqm(np.array([7.0, 1.0, 4.0])) == 4.0
    assert np.isnan(stats.iqm(np.zeros((0, 3))))


def test_small_numbers_by_hand() -> None:
    scores, rival = np.array([[0.0, 3.0], [1.0, 3.0]]), np.array([[0.5, 3.0]])
    assert (stats.mean(scores), stats.median(scores)) == (1.75, 1.75)
    assert stats.optimality_gap(scores) == 0.25
    assert stats.optimality_gap(scores, goal=2.0) == 0.75
    assert stats.probability_of_improvement(scores, rival) == 0.5
    np.testing.assert_array_equal(stats.profile(scores, [-1, 0, 1, 3]), [1.0, 0.75, 0.5, 0.0])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ((np.zeros(3),), r"shape \(3,\): expected \(runs, tasks\)"),
        ((np.zeros((0, 3)),), r"shape \(0, 3\): expected"),
        ((np.zeros((2, 3)), np.zeros((2, 4))), r"shape \(2, 4\): .* the tasks the same for all"),
        ((np.array([[1.0, np.nan]]),), "NaN or infinity: leave out"),
    ],
)
def test_bad_scores(scores: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stats.bootstrap(lambda *_: 0.0, *scores, rng=np.random.default_rng(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_there_is_no_score(bad: float) -> None:
    scores = np.array([[1.0, bad], [2.0, 3.0]])
    for statistic in (stats.iqm, lambda scores: stats.profile(scores, [0.5])):
        with pytest.raises(UsageError, match="NaN or infinity: leave out"):
            statistic(scores)


def test_counts_have_wilsons_interval() -> None:
    """Brown, Cai & DasGupta 2001; none of 10 and all of 10 by hand: n z² / (n + z²) = 2.775."""
    assert stats.wilson(0, 10) == pytest.approx((0, 0.0, 2.775), abs=1e-3)
    assert stats.wilson(10, 10) == pytest.approx((10, 7.225, 10.0), abs=1e-3)
    assert stats.wilson(5, 10) == pytest.approx((5, 2.366, 7.634), abs=1e-3)
