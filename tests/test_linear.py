import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ube.linear import InverseCounts, inverse_count, least_squares_values, sherman_morrison, woodbury

PAIR = np.random.default_rng(0).normal(size=(50, 2))
NEARLY_DEPENDENT = np.column_stack([PAIR, PAIR @ [0.3, 0.7]])  # singular only up to rounding

problems = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 40), st.sampled_from([0.1, 1.0, 100.0])
)


def unit_features(rng: np.random.Generator, n: int, rank: int, n_features: int) -> np.ndarray:
    features = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, n_features))
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def direct(features: np.ndarray, prior: float) -> np.ndarray:
    return np.linalg.inv(features.T @ features + np.eye(features.shape[1]) / prior)


def test_one_sample_by_hand() -> None:
    # Σ⁻¹ = I gives Σ⁻¹ + φφᵀ = [[2, 1], [1, 2]] for φ = (1, 1), whose inverse is [[2, -1], [-1, 2]] / 3.
    np.testing.assert_allclose(sherman_morrison(np.eye(2), np.array([1.0, 1.0])), np.array([[2, -1], [-1, 2]]) / 3)


def test_inverse_count_by_hand() -> None:
    sigma = np.array([[2.0, 1.0], [1.0, 3.0]])
    assert inverse_count(sigma, np.array([1.0, 2.0])) == 18.0
    np.testing.assert_array_equal(inverse_count(sigma, np.array([[1.0, 2.0], [1.0, -1.0]])), [18.0, 3.0])


def test_two_samples_by_hand() -> None:
    # I + (1, 0)(1, 0)ᵀ + (1, 1)(1, 1)ᵀ = [[3, 1], [1, 2]], of determinant 5.
    sigma = woodbury(np.eye(2), np.array([[1.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(sigma, np.array([[2, -1], [-1, 3]]) / 5)


@settings(deadline=None)
@given(problems)
def test_updates_equal_the_direct_inverse(problem: tuple[int, int, int, float]) -> None:
    seed, n_features, n, prior = problem
    features = np.random.default_rng(seed).normal(size=(n, n_features))
    in_turn = prior * np.eye(n_features)
    for phi in features:
        in_turn = sherman_morrison(in_turn, phi)
    at_once = woodbury(prior * np.eye(n_features), features)
    expected = direct(features, prior)
    np.testing.assert_allclose(in_turn, expected, rtol=1e-9, atol=1e-10 * prior)
    np.testing.assert_allclose(at_once, expected, rtol=1e-9, atol=1e-10 * prior)
    np.testing.assert_array_equal(in_turn, in_turn.T)
    np.testing.assert_array_equal(at_once, at_once.T)


@settings(deadline=None)
@given(problems, st.sampled_from([1, 3, 32]), st.sampled_from([None, 5]))
def test_in_place_updates_equal_the_direct_inverse(
    problem: tuple[int, int, int, float], block: int, refresh_every: int | None
) -> None:
    seed, n_features, n, prior = problem
    rng = np.random.default_rng(seed)
    features, actions = rng.normal(size=(n, n_features)), rng.integers(3, size=n)
    in_turn = InverseCounts(n_features, 3, prior, refresh_every=refresh_every)
    blocks = InverseCounts(n_features, 3, prior, block=block, refresh_every=refresh_every)
    for phi, action in zip(features, actions, strict=True):
        in_turn.update(phi, action)
    blocks.update_batch(features, actions)
    expected = np.stack([direct(features[actions == a], prior) for a in range(3)])
    for counts in (in_turn, blocks):
        np.testing.assert_allclose(counts.sigma, expected, rtol=1e-9, atol=1e-10 * prior)
        np.testing.assert_array_equal(counts.visits, np.bincount(actions, minlength=3))


def test_local_uncertainty_is_beta_squared_times_the_inverse_count_of_each_action() -> None:
    counts = InverseCounts(2, 2, prior=2.0)
    counts.update([1.0, 1.0], 1)
    # Σ_0 = 2I; Σ_1⁻¹ = [[1.5, 1], [1, 1.5]], so Σ_1 = [[1.5, -1], [-1, 1.5]] / 1.25.
    np.testing.assert_allclose(counts.local_uncertainty([1.0, 0.0]), [2.0, 1.2])
    np.testing.assert_allclose(counts.local_uncertainty([1.0, 2.0], beta=3.0), [90.0, 9 * 2.8])
    np.testing.assert_allclose(
        counts.local_uncertainty([[1.0, 0.0], [1.0, 2.0], [0.0, 0.0]]), [[2, 1.2], [10, 2.8], [0, 0]]
    )
    assert counts.local_uncertainty(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize("prior", [0.5, 1.0, 1e6])
def test_one_hot_features_count_visits(prior: float) -> None:
    states = np.repeat(np.arange(4), [1, 2, 5, 40])
    counts = InverseCounts(5, 1, prior)
    counts.update_batch(np.eye(5)[states], np.zeros(len(states), dtype=int))
    expected = 1 / (np.array([1, 2, 5, 40, 0]) + 1 / prior)
    np.testing.assert_allclose(counts.local_uncertainty(np.eye(5))[:, 0], expected, rtol=1e-8)


def test_one_hot_least_squares_is_the_mean_with_variance_one_over_n() -> None:
    states = np.repeat(np.arange(3), [1, 2, 5])
    weights, covariance = least_squares_values(np.eye(3)[states], np.array([7.0, 1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
    np.testing.assert_allclose(weights, [7.0, 1.5, 3.0], rtol=1e-14)
    np.testing.assert_allclose(covariance, np.diag([1.0, 1 / 2, 1 / 5]), rtol=1e-14)


@settings(deadline=None)
@given(problems)
def test_least_squares_equals_the_normal_equations_and_the_updates(problem: tuple[int, int, int, float]) -> None:
    seed, n_features, n, prior = problem
    rng = np.random.default_rng(seed)
    features, targets = rng.normal(size=(n, n_features)), rng.normal(size=n)
    weights, covariance = least_squares_values(features, targets, prior)
    np.testing.assert_allclose(covariance, direct(features, prior), rtol=1e-9, atol=1e-10 * prior)
    np.testing.assert_allclose(
        covariance, woodbury(prior * np.eye(n_features), features), rtol=1e-9, atol=1e-10 * prior
    )
    np.testing.assert_allclose(weights, direct(features, prior) @ (features.T @ targets), rtol=1e-8, atol=1e-8)


def test_least_squares_without_ridge_matches_lstsq() -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(20, 4)), rng.normal(size=20)
    np.testing.assert_allclose(least_squares_values(features, targets).weights, np.linalg.lstsq(features, targets)[0])


@pytest.mark.parametrize("rank", [8, 4])
def test_float64_stays_positive_definite_and_accurate(rank: int) -> None:
    features = unit_features(np.random.default_rng(0), 20_000, rank, 8)
    counts = InverseCounts(8, 1, prior=1e3)
    for phi in features:
        counts.update(phi, 0)
    sigma, expected = counts.sigma[0], direct(features, 1e3)
    np.testing.assert_array_equal(sigma, sigma.T)
    assert np.linalg.eigvalsh(sigma).min() > 0
    np.testing.assert_allclose(inverse_count(sigma, features[:200]), inverse_count(expected, features[:200]), rtol=1e-6)


def test_refresh_restores_float32() -> None:
    n, prior = 20_000, 1e3
    features = unit_features(np.random.default_rng(0), n, 16, 32).astype(np.float32)
    queries = features[:200].astype(np.float64)
    counts = InverseCounts(32, 1, prior, dtype=np.float32, refresh_every=n)

    def error(n_seen: int) -> float:
        expected = inverse_count(direct(features[:n_seen].astype(np.float64), prior), queries)
        return float(np.abs(inverse_count(counts.sigma[0].astype(np.float64), queries) / expected - 1).max())

    for phi in features[:-1]:
        counts.update(phi, 0)
    assert error(n - 1) > 1.0
    counts.update(features[-1], 0)
    assert error(n) < 0.05


def hard_features() -> np.ndarray:
    return unit_features(np.random.default_rng(0), 64, 32, 32)


@pytest.mark.parametrize("block", [1, 16])
def test_lost_positive_definiteness_is_an_error(block: int) -> None:
    counts = InverseCounts(32, 1, prior=1e8, dtype=np.float32, block=block)
    message = (
        r"action 0 failed .*φᵀΣφ = -.* use float64 \(dtype is float32\), a smaller prior \(prior is 100000000.0\), "
    )
    with pytest.raises(np.linalg.LinAlgError, match=message):
        counts.update_batch(hard_features(), np.zeros(64, dtype=int))


@pytest.mark.parametrize("block", [1, 16])
def test_lost_positive_definiteness_is_refreshed_away(block: int) -> None:
    counts = InverseCounts(32, 1, prior=1e8, dtype=np.float32, block=block, refresh_every=10**9)
    features = hard_features()
    counts.update_batch(features, np.zeros(64, dtype=int))
    assert np.linalg.eigvalsh(counts.sigma[0].astype(np.float64)).min() > 0
    expected = inverse_count(direct(features, 1e8), features)
    np.testing.assert_allclose(counts.local_uncertainty(features)[:, 0], expected, rtol=0.05)


def test_a_negative_direction_between_the_rows_of_a_block_is_found() -> None:
    rows = np.array([[4.0, 1.0], [4.0, -1.0]])  # φᵀΣφ = 6 for each, yet I + FΣFᵀ = [[7, 26], [26, 7]]
    broken, kept = InverseCounts(2, 1), InverseCounts(2, 1, refresh_every=10**9)
    for counts in (broken, kept):
        counts._half[0] = np.diag([1.0, -10.0])
    with pytest.raises(np.linalg.LinAlgError, match="after 1 updates"):
        broken.update_batch(rows, [0, 0])
    kept.update_batch(rows, [0, 0])
    np.testing.assert_allclose(kept.sigma[0], np.diag([1 / 33, 1 / 3]), atol=1e-15)


@pytest.mark.parametrize("refresh_every", [None, 5])
def test_a_feature_too_large_to_square_is_an_error(refresh_every: int | None) -> None:
    counts = InverseCounts(2, 1, refresh_every=refresh_every)
    with pytest.raises(np.linalg.LinAlgError, match=r"\(φᵀΣφ = inf\).*features of norm near 1"):
        counts.update([1e200, 0.0], 0)
    np.testing.assert_array_equal(counts.visits, [0])


def test_a_singular_sigma_is_an_error_though_no_reading_is_negative() -> None:
    counts = InverseCounts(2, 1, prior=1e17)
    counts.update([1.0, 0.0], 0)  # 1 + 1e17 rounds to 1e17, so Σ[0, 0] becomes 0 in the place of 1
    with pytest.raises(np.linalg.LinAlgError, match=r"after 1 updates \(φᵀΣφ = 0\)"):
        counts.local_uncertainty([1.0, 0.0])


def test_a_negative_direction_that_no_sample_meets_is_found_by_the_audit() -> None:
    counts = InverseCounts(2, 1)
    counts._half[0, 1, 1] = -1.0
    for _ in range(255):
        counts.update([1.0, 0.0], 0)
    with pytest.raises(np.linalg.LinAlgError, match=r"after 256 updates \(its Cholesky factor does not exist\)"):
        counts.update([1.0, 0.0], 0)


def test_a_refresh_that_cannot_help_says_so() -> None:
    counts = InverseCounts(2, 1, prior=1e17, refresh_every=2)
    counts.update([1.0, 1.0], 0)
    with pytest.raises(np.linalg.LinAlgError, match=r"no Cholesky factor even in float64.*\(refresh_every is 2\)"):
        counts.update([1.0, 1.0], 0)


def test_float32_that_cannot_hold_sigma_is_an_error_after_the_refresh() -> None:
    counts = InverseCounts(2, 1, prior=1e10, dtype=np.float32, refresh_every=10**9)
    counts.update([1.0, 1.0], 0)
    with pytest.raises(np.linalg.LinAlgError, match=r"also after a refresh"):
        counts.local_uncertainty([1.0, 1.0])


def test_counts_survive_pickling_and_do_not_share_memory() -> None:
    counts = InverseCounts(2, 1)
    counts.update([1.0, 1.0], 0)
    copy = pickle.loads(pickle.dumps(counts))
    copy.update([1.0, 1.0], 0)
    np.testing.assert_allclose(counts.sigma[0], np.array([[2, -1], [-1, 2]]) / 3)
    np.testing.assert_allclose(copy.sigma[0], np.array([[3, -2], [-2, 3]]) / 5)
    counts.visits[0] = 9
    counts.sigma[0] = 9
    assert counts.visits[0] == 1
    assert counts.sigma[0, 0, 0] == pytest.approx(2 / 3)


def test_a_rejected_batch_changes_nothing() -> None:
    counts = InverseCounts(2, 2)
    with pytest.raises(ValueError, match=re.escape("actions[1] is 2: it must be within 0..1")):
        counts.update_batch(np.ones((2, 2)), [0, 2])
    np.testing.assert_array_equal(counts.sigma, [np.eye(2)] * 2)
    counts.update_batch(np.zeros((0, 2)), [])
    np.testing.assert_array_equal(counts.visits, [0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.update([1.0, 2.0], 0), "phi has shape (2,): expected (3,), for n_features = 3"),
        (lambda c: c.update(np.ones((1, 3)), 0), "phi has shape (1, 3): expected (3,), for n_features = 3"),
        (lambda c: c.local_uncertainty([1.0]), "phi has shape (1,): expected (3,) or (N, 3), for n_features = 3"),
        (lambda c: c.update_batch(np.ones(3), [0]), "features has shape (3,): expected (N, 3), for n_features = 3"),
        (lambda c: c.update([1.0, np.nan, 0.0], 0), "phi[1] is nan: drop or repair this sample"),
        (lambda c: c.update_batch([[0, 0, 0], [0, 0, np.inf]], [0, 0]), "features[1, 2] is inf: drop or repair"),
        (lambda c: c.update(np.ones(3), 2), "action is 2: it must be within 0..1"),
        (lambda c: c.update(np.ones(3), -1), "action is -1: it must be within 0..1"),
        (lambda c: c.update_batch(np.ones((1, 3)), [-1]), "actions[0] is -1: it must be within 0..1"),
        (lambda c: c.update_batch(np.ones((2, 3)), [0]), "actions must be (2,) integers, got (1,) of int64"),
        (lambda c: c.update_batch(np.ones((1, 3)), [0.0]), "actions must be (1,) integers, got (1,) of float64"),
        (lambda c: InverseCounts(3, 2, prior=0.0), "prior is 0.0: it must be positive and finite"),
        (lambda c: InverseCounts(3, 2, prior=np.inf), "prior is inf: it must be positive and finite"),
        (lambda c: InverseCounts(3, 2, prior=np.nan), "prior is nan: it must be positive and finite"),
        (lambda c: InverseCounts(0, 2), "n_features is 0: it must be at least 1"),
        (lambda c: InverseCounts(3, 0), "n_actions is 0: it must be at least 1"),
        (lambda c: InverseCounts(3, 2, block=0), "block is 0: it must be at least 1"),
        (lambda c: InverseCounts(3, 2, refresh_every=0), "refresh_every is 0: it must be at least 1"),
        (lambda c: InverseCounts(3, 2, dtype=np.float16), "dtype is float16: use float64, or float32"),
        (lambda c: least_squares_values(np.ones((4, 3)), np.ones(4)), "rank 1 with D = 3 columns"),
        (lambda c: least_squares_values(NEARLY_DEPENDENT, np.ones(50)), "rank 2 with D = 3 columns"),
        (lambda c: least_squares_values(np.eye(3)[:2], np.ones(2)), "rank 2 with D = 3 columns"),
        (
            lambda c: least_squares_values(np.zeros((0, 3)), np.ones(0)),
            "pass a finite prior such as 1.0 (prior is inf)",
        ),
        (lambda c: least_squares_values(np.eye(3), np.ones(2)), "got (3, 3) and (2,)"),
        (lambda c: least_squares_values(np.eye(3), np.ones(3), prior=-1.0), "prior is -1.0: it must be positive"),
        (lambda c: least_squares_values(np.eye(3), np.array([0, np.nan, 0])), "targets[1] is nan: drop or repair"),
    ],
)
def test_errors_name_the_value_and_the_remedy(call, message: str) -> None:
    counts = InverseCounts(3, 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(counts)
    np.testing.assert_array_equal(counts.visits, [0, 0])


def test_jax_counts_as_numpy_does() -> None:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def counted(sigma: jax.Array, phi: jax.Array, action: jax.Array) -> jax.Array:
        return sigma.at[action].set(sherman_morrison(sigma[action], phi))

    rng = np.random.default_rng(0)
    features = jnp.asarray(unit_features(rng, 40, 6, 6), jnp.float32)
    actions = jnp.asarray(rng.integers(3, size=40))
    sigma, in_turn, at_once = jnp.tile(jnp.eye(6), (3, 1, 1)), InverseCounts(6, 3), InverseCounts(6, 3)
    for phi, action in zip(features, actions, strict=True):
        sigma = counted(sigma, phi, action)
        in_turn.update(phi, action)
    at_once.update_batch(features, actions)
    for counts in (in_turn, at_once):
        np.testing.assert_allclose(counts.sigma, sigma, atol=1e-6)
        np.testing.assert_allclose(
            counts.local_uncertainty(features), jax.jit(inverse_count)(sigma, features).T, atol=1e-6
        )
        np.testing.assert_allclose(counts.local_uncertainty(features[7]), inverse_count(sigma, features[7]), atol=1e-6)


def test_import_is_light() -> None:
    code = "import sys, ube.linear; print([m for m in ('scipy', 'jax') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
