"""Σ of learning agents: against the direct inverse in float64, and the binned counts against their definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.tiny import counted
from ube.deep.counts import BinCounts, BinState, DenseCounts, DenseState
from ube.linear import InverseCounts

D = 32


def dense(size: int = D, forgetting: float = 1.0, n_actions: int = 2) -> DenseCounts:
    return DenseCounts(n_actions, size, 0, 1, normalise=True, forgetting=forgetting)


@functools.partial(jax.jit, static_argnums=0)
def absorbed(counts: DenseCounts, state: DenseState, features: jax.Array, actions: jax.Array) -> DenseState:
    return jax.lax.scan(lambda s, now: (counted(counts, s, *now), None), state, (features, actions))[0]


def unit_rows(rng: np.random.Generator, n: int, rank: int = D) -> np.ndarray:
    """Unit vectors, within one and the same subspace if rank < D."""
    basis = np.linalg.qr(np.random.default_rng(99).normal(size=(D, D)))[0][:rank]
    rows = rng.normal(size=(n, rank)) @ basis
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def direct(features: np.ndarray, actions: np.ndarray, prior: float) -> np.ndarray:
    wide = features.astype(np.float64)
    grams = [wide[actions == a].T @ wide[actions == a] for a in range(2)]
    return np.stack([np.linalg.inv(gram + np.eye(D) / prior) for gram in grams])


def soak(updates: int, rank: int, chunk: int, prior: float = 1.0) -> tuple[np.ndarray, np.ndarray, float]:
    """Σ just before the last refresh, the direct inverse, and the largest error after any refresh."""
    rng = np.random.default_rng(0)
    counts = dense()
    state = counts.init(jax.random.key(0), jnp.float32(prior))
    gram, worst = np.tile(np.eye(D) / prior, (2, 1, 1)), 0.0
    for _ in range(updates // chunk):
        features, actions = unit_rows(rng, chunk, rank), rng.integers(0, 2, chunk)
        state = absorbed(counts, state, features, actions)
        wide = features.astype(np.float64)
        gram += np.stack([wide[actions == a].T @ wide[actions == a] for a in range(2)])
        before, exact = np.asarray(state.sigma, np.float64), np.linalg.inv(gram)
        state = counts.refresh(state, features, actions, prior)
        worst = max(worst, float(np.abs(np.asarray(state.sigma) - exact).max() / np.abs(exact).max()))
    np.testing.assert_array_equal(np.asarray(state.visits).sum(), updates)
    return before, exact, worst


def assert_inverse(sigma: np.ndarray, exact: np.ndarray, rank: int, anywhere: float, seen: float = 0.1) -> None:
    """Σ as it grew: symmetric, positive definite, and right where it was seen (ν about 1/n) and anywhere (ν up to μ)."""
    np.testing.assert_allclose(sigma, sigma.swapaxes(1, 2), rtol=0, atol=1e-6 * np.abs(exact).max())
    assert np.linalg.eigvalsh(sigma).min() > 0
    for which, close in ((rank, seen), (D, anywhere)):
        rows = unit_rows(np.random.default_rng(5), 50, which).astype(np.float64)
        nu, nu_exact = (np.einsum("bd,ade,be->ba", rows, part, rows) for part in (sigma, exact))
        np.testing.assert_allclose(nu, nu_exact, rtol=close)


@pytest.mark.parametrize("rank", [D, D // 2])
def test_a_hundred_thousand_updates_against_the_inverse(rank: int) -> None:
    before, exact, worst = soak(100_000, rank, 10_000)
    assert_inverse(before, exact, rank, anywhere=0.005)
    assert worst < 1e-6
    assert np.sum(np.linalg.eigvalsh(exact[0]) > 0.999) == D - rank  # these directions were never seen


def test_where_one_observation_is_all_there_is() -> None:
    """As at the root of a deep tree. Summed in float32, 60,000 equal φφᵀ would leave Σ⁻¹ without its prior."""
    before, exact, worst = soak(60_000, 1, 10_000)
    assert np.isclose(exact[0].max(), 1.0, rtol=0.2)
    assert_inverse(before, exact, 1, anywhere=0.005, seen=0.3)  # ν = 3e-5 there, the rounding of Σ 1e-7 at each entry
    assert worst < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("rank", [D, D // 2, 1])
def test_soak_of_two_million_updates(rank: int) -> None:
    before, exact, worst = soak(2_000_000, rank, 10_000)
    assert_inverse(before, exact, rank, anywhere=0.02, seen=np.inf if rank == 1 else 0.1)
    assert worst < 1e-6


@pytest.fixture(scope="module")
def grown() -> tuple[DenseCounts, DenseState, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    counts = dense()
    features, actions = unit_rows(rng, 200), rng.integers(0, 2, 200)
    return (
        counts,
        absorbed(counts, counts.init(jax.random.key(0), jnp.float32(0.5)), features, actions),
        features,
        actions,
    )


def test_nu_of_a_batch_is_nu_of_each(grown: tuple[DenseCounts, DenseState, np.ndarray, np.ndarray]) -> None:
    counts, state, features, actions = grown
    batch = np.asarray(counts.nu(state, features[:20]))
    assert batch.shape == (20, 2)
    each = np.array([[counts.look(state, row, jnp.int32(a))[1] for a in range(2)] for row in features[:20]])
    np.testing.assert_allclose(np.concatenate([counts.nu(state, row[None]) for row in features[:20]]), each, rtol=1e-5)
    np.testing.assert_allclose(batch, each, rtol=1e-5)
    exact = np.einsum("bd,ade,be->ba", features[:20], direct(features, actions, 0.5), features[:20])
    np.testing.assert_allclose(each, exact, rtol=1e-4)
    reference = InverseCounts(D, 2, prior=0.5)
    reference.update_batch(features, actions)
    np.testing.assert_allclose(each, reference.local_uncertainty(features[:20]), rtol=1e-4)


def test_only_the_action_taken_is_counted() -> None:
    counts = dense()
    state = counts.init(jax.random.key(0), jnp.float32(2.0))
    row = unit_rows(np.random.default_rng(2), 1)
    np.testing.assert_allclose(counts.nu(state, row), [[2.0, 2.0]], rtol=1e-5)
    state = counted(counts, state, row[0], jnp.int32(1))
    np.testing.assert_allclose(counts.nu(state, row), [[2.0, 1 / (1 / 2 + 1)]], rtol=1e-5)


def test_one_hot_features_count_visits() -> None:
    rng = np.random.default_rng(3)
    counts, prior = dense(), 0.7
    states, actions = rng.integers(0, D, 2_000), rng.integers(0, 2, 2_000)
    eye = np.eye(D, dtype=np.float32)
    state = absorbed(counts, counts.init(jax.random.key(0), jnp.float32(prior)), eye[states], actions)
    visits = np.zeros((D, 2))
    np.add.at(visits, (states, actions), 1)
    codes = counts.code(state, 5.0 * eye, jnp.zeros((D, 1)))  # the length of learned features does not matter
    np.testing.assert_allclose(counts.nu(state, codes), 1 / (visits + 1 / prior), rtol=1e-4)


def test_recounted_is_the_direct_sum_scaled_up(grown: tuple[DenseCounts, DenseState, np.ndarray, np.ndarray]) -> None:
    counts, state, features, actions = grown
    sample = np.arange(0, 200, 2)
    again = counts.recounted(state, features[sample], actions[sample], 0.5)
    for a in range(2):
        mine = features[sample][actions[sample] == a].astype(np.float64)
        share = (actions == a).sum() / len(mine)
        exact = np.linalg.inv(share * mine.T @ mine + np.eye(D) / 0.5)
        np.testing.assert_allclose(again.sigma[a], exact, atol=1e-5)
    none_of_one = counts.recounted(counts.refresh(state, features, actions, 0.5), features, np.ones_like(actions), 0.5)
    np.testing.assert_allclose(none_of_one.sigma[0], direct(features, actions, 0.5)[0], atol=1e-5)
    all_of_them = counts.recounted(state, features, actions, 0.5)
    np.testing.assert_allclose(all_of_them.sigma, direct(features, actions, 0.5), atol=1e-5)


def test_forgetting_fades_what_was_seen_and_leaves_the_prior() -> None:
    counts, prior = dense(forgetting=0.3), 2.0
    features = unit_rows(np.random.default_rng(4), 10_000).astype(np.float32)
    state = counts.init(jax.random.key(0), jnp.float32(prior))
    seen = np.zeros((D, D))
    for part in (features[:2_000], features[2_000:]):
        actions = np.zeros(len(part), int)
        state = counts.refresh(absorbed(counts, state, part, actions), part, actions, prior)
        seen = 0.3 ** (len(part) / 10_000) * (seen + part.astype(np.float64).T @ part)
    np.testing.assert_allclose(state.sigma[0], np.linalg.inv(seen + np.eye(D) / prior), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state.sigma[1], prior * np.eye(D), rtol=1e-6)


def test_both_features_share_the_length_and_fourier_features_have_the_gaussian_kernel() -> None:
    counts = DenseCounts(1, 3, 2_048, 3, normalise=True, forgetting=1.0)
    state = jax.jit(counts.init)(jax.random.key(0), jnp.float32(1.0))
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    codes = np.asarray(counts.code(state, jnp.tile(jnp.array([3.0, 0.0, 4.0]), (6, 1)), x))
    np.testing.assert_allclose(codes[:, :3], np.tile([0.6, 0.0, 0.8], (6, 1)) / 2**0.5, rtol=1e-6)
    fourier = 2**0.5 * codes[:, 3:]
    distances = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(fourier @ fourier.T, np.exp(-distances / 2), atol=0.1)


def test_nu_is_scaled_by_the_noise_of_each_action() -> None:
    counts = DenseCounts(2, D, 0, 1, normalise=True, forgetting=1.0, learns_noise=True)
    state = counts.init(jax.random.key(0), jnp.float32(0.5))
    row = unit_rows(np.random.default_rng(6), 1)
    np.testing.assert_allclose(counts.nu(state, row), [[0.5, 0.5]], rtol=1e-5)  # one error of 1 is expected beforehand
    for error in (0.5, -2.0, 0.0):
        state = counts.hear(counted(counts, state, row[0], jnp.int32(1)), row[0], jnp.int32(1), jnp.float32(error))
    expected = [[0.5, (10 + 0.25 + 4.0) / 13 / (2 + 3)]]
    np.testing.assert_allclose(counts.nu(state, row), expected, rtol=1e-5)
    np.testing.assert_allclose(counts.nu(state, np.tile(row, (2, 1))), expected * 2, rtol=1e-5)
    assert float(counts.look(state, row[0], jnp.int32(1))[1]) == pytest.approx(expected[0][1], rel=1e-5)


@pytest.mark.parametrize("error", [0.0, 0.7])
def test_nu_of_bins_falls_with_the_square_of_visits_only_where_outcomes_repeat(error: float) -> None:
    bins = BinCounts(n_actions=2, n_inputs=3, tables=4, learns_noise=True)
    state = bins.init(jax.random.key(0), jnp.float32(1.0))
    x = np.array([[0.1, 0.2, 0.3]], np.float32)
    (code,) = bins.code(state, x, x)

    def again(state: BinState, _: None) -> tuple[BinState, None]:
        return bins.hear(counted(bins, state, code, jnp.int32(0)), code, jnp.int32(0), jnp.float32(error)), None

    for n in (10, 100, 1_000):
        after = jax.lax.scan(again, state, None, n)[0]
        nu = np.asarray(bins.nu(after, code[None]))[0]
        np.testing.assert_allclose(nu, [(10 + n * error**2) / (10 + n) / (1 + n), 1.0], rtol=1e-4)


BINS = BinCounts(n_actions=2, n_inputs=64, tables=16)
begin, code_of, nu_of, bin_counted = (
    jax.jit(f) for f in (BINS.init, BINS.code, BINS.nu, functools.partial(counted, BINS))
)


def test_binned_nu_is_the_mean_of_inverse_counts() -> None:
    state = begin(jax.random.key(0), jnp.float32(0.5))
    near = 0.03 * np.random.default_rng(0).normal(size=(5, 64))  # they share coarse cells, not fine ones
    x = near.astype(np.float32)
    codes = np.asarray(code_of(state, x, x))
    assert codes.shape == (5, 16)
    assert 0.1 < (codes[0] == codes[1]).mean() < 0.9
    visits = np.zeros((16, 1 << 14, 2))
    rng = np.random.default_rng(1)
    last = np.full(2, np.inf)
    for _ in range(30):
        i, action = rng.integers(5), rng.integers(2)
        state = bin_counted(state, codes[i], jnp.int32(action))
        visits[np.arange(16), codes[i], action] += 1
        nu = np.asarray(nu_of(state, codes))
        assert (nu[0] <= last).all()
        last = nu[0]
    expected = [(1 / (1 / 0.5 + visits[np.arange(16), code])).mean(0) for code in codes]
    np.testing.assert_allclose(nu, expected, rtol=1e-5)
    assert not np.allclose(nu[:, 0], nu[:, 1])


def test_cells_are_near_for_what_is_near() -> None:
    state = begin(jax.random.key(0), jnp.float32(1.0))
    x = np.random.default_rng(2).normal(size=(200, 64)).astype(np.float32)
    codes = np.asarray(code_of(state, x, x))
    np.testing.assert_array_equal(codes, np.asarray(code_of(state, x[::-1], x[::-1]))[::-1])
    assert ((codes >= 0) & (codes < 1 << 14)).all()
    different = ~np.eye(200, dtype=bool)
    shared = (codes[:, None] == codes[None]).mean(-1)
    assert shared[different].mean() < 0.005
    assert (code_of(state, x, x + 1e-3) == codes).mean() > 0.9
    assert 0.02 < (code_of(state, x, x + 0.1) == codes).mean() < 0.8


def test_binned_cells_are_fixed_by_the_key() -> None:
    x = np.random.default_rng(3).normal(size=(50, 64)).astype(np.float32)
    one, same, other = (begin(jax.random.key(k), jnp.float32(1.0)) for k in (0, 0, 1))
    np.testing.assert_array_equal(code_of(one, x, x), code_of(same, x, x))
    assert (code_of(one, x, x) == code_of(other, x, x)).mean() < 0.01


@pytest.mark.parametrize("key", range(5))
def test_the_cells_of_deep_sea_are_mostly_told_apart(key: int) -> None:
    state = begin(jax.random.key(key), jnp.float32(1.0))
    codes = np.asarray(code_of(state, np.zeros((64, 0)), np.eye(64, dtype=np.float32).reshape(64, 8, 8)))
    shared = (codes[:, None] == codes[None]).mean(-1)
    assert shared[~np.eye(64, dtype=bool)].mean() < 0.2
    for code in codes[:-1]:  # all else was seen: the last cell still looks new
        for _ in range(5):
            state = bin_counted(state, code, jnp.int32(0))
    nu = np.asarray(nu_of(state, codes))[:, 0]
    assert nu[-1] > 2 * nu[:-1].max()
