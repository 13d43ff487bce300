"""Returns that followed, which of them count, and bins of |Q - G|: against numbers by hand."""

import numpy as np
import pytest

from ube.stats.calibration import calibration, returns_that_followed, settled

NO, YES = False, True


@pytest.mark.parametrize(
    ("reward", "closes", "follows", "expected"),
    [
        ([1, 0, 2], [NO, NO, YES], 0.0, [1.5, 1, 2]),
        ([1, 0, 2], [NO, NO, NO], 4.0, [2, 2, 4]),
        ([1, 3, 2], [NO, YES, NO], 4.0, [2.5, 3, 4]),  # a life was lost in the middle
    ],
)
def test_returns_by_hand(reward: list[float], closes: list[bool], follows: float, expected: list[float]) -> None:
    found = returns_that_followed(np.array(reward), np.array(closes), follows, discount=0.5)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("closes", "discount", "expected"),
    [
        ([NO, NO, NO, NO, NO], 0.5, [YES, YES, YES, NO, NO]),  # 1 / (1 - γ) = 2
        ([NO, NO, NO, YES, NO], 0.5, [YES, YES, YES, YES, NO]),
        ([NO, NO, NO, NO, YES], 1.0, [YES] * 5),
        ([NO, NO, NO, NO, NO], 1.0, [NO] * 5),
    ],
)
def test_returns_close_to_a_cut_are_not_settled(closes: list[bool], discount: float, expected: list[bool]) -> None:
    assert settled(np.array(closes), discount).tolist() == expected


def test_bins_by_hand() -> None:
    claimed = [np.array([1.0, 1.0, 3.0]), np.array([1.0, 3.0, 3.2])]
    errors = [np.array([0.5, -1.5, 2.0]), np.array([1.0, 4.0, -3.0])]
    found = calibration(claimed, errors, bins=2, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.claimed, [1.0, 9.2 / 3])
    np.testing.assert_allclose(found.error, [1.0, 3.0])
    # each episode alone, or both: 1, 1, 1 in the first bin and 2, 3.5, 3 in the second
    np.testing.assert_allclose(found.low, [1.0, 2.0])
    np.testing.assert_allclose(found.high, [1.0, 3.5])
    assert found.decisions.tolist() == [3, 3]


def test_equal_claims_are_one_bin() -> None:
    found = calibration([np.full(5, 0.2)], [np.arange(5.0)], bins=10, rng=np.random.default_rng(0))
    assert [column.tolist() for column in found] == [[0.2], [2.0], [2.0], [2.0], [5]]


def test_an_episode_that_says_nothing_is_no_harm() -> None:
    found = calibration(
        [np.zeros(0), np.array([1.0, 2.0])], [np.zeros(0), np.ones(2)], bins=2, rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(found.error, [1.0, 1.0])
    np.testing.assert_allclose(found.low, [1.0, 1.0])
