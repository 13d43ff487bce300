"""The exact posterior beside u: against the standard deviation of what sampled MDPs are worth."""

import numpy as np

from ube.figures.deepsea_maps import posterior_deviation

SIZE = 3


def one_hot(row: int, column: int) -> np.ndarray:
    cells = np.zeros((SIZE, SIZE), bool)
    if row < SIZE:
        cells[row, column] = True
    return cells


def test_the_posterior_deviation_of_q_is_that_of_sampled_mdps() -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(2, size=(SIZE, SIZE))
    policy = rng.integers(2, size=(SIZE, SIZE))
    seen = []
    for _ in range(4):
        column = 0
        for row in range(SIZE):
            action = int(rng.integers(2))
            below = column + 1 if action == right[row, column] else max(column - 1, 0)
            seen.append((row, column, action, float(rng.normal()), below))
            column = below
    found = posterior_deviation(
        SIZE,
        np.array([one_hot(row, column) for row, column, *_ in seen]),
        np.array([action for _, _, action, *_ in seen]),
        np.array([reward for *_, reward, _ in seen]),
        np.array([one_hot(row + 1, min(below, SIZE - 1)) for row, *_, below in seen]),
        policy,
    )
    draws = 20_000
    expected = np.zeros((SIZE, SIZE))
    value = np.zeros((SIZE + 1, draws))
    for row in reversed(range(SIZE)):
        new = np.zeros((SIZE + 1, draws))
        for column in range(row + 1):
            q = []
            for action in range(2):
                mine = [(reward, below) for r, c, a, reward, below in seen if (r, c, a) == (row, column, action)]
                n = len(mine)
                q.append(rng.normal(sum(reward for reward, _ in mine) / (n + 1), (n + 1) ** -0.5, draws))
                if row < SIZE - 1:
                    went = sum(below == column + 1 for _, below in mine)
                    p = rng.beta(1 + went, 1 + n - went, draws)
                    q[action] += p * value[column + 1] + (1 - p) * value[max(column - 1, 0)]
            expected[row, column] = max(np.std(q[0]), np.std(q[1]))
            new[column] = q[policy[row, column]]
        value = new
    np.testing.assert_allclose(found, expected, rtol=0.03)
    assert (found[np.tril_indices(SIZE)] > 0).all()
