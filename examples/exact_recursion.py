"""The posterior variance of Q three ways: by the recursion of docs/derivation.md written out, by `solve`, by sampling."""

import numpy as np

from ube.tabular import Belief, monte_carlo, solve

rng = np.random.default_rng(0)
H, S, A, discount = 4, 3, 2, 0.9

# A belief drawn at random: each row reaches some next states, each mean reward is Normal. And a policy.
alpha = rng.uniform(0.2, 3.0, (H, S, A, S)) * (rng.random((H, S, A, S)) < 0.7)
alpha[..., 0] += 0.1
reward_mean, reward_var = rng.normal(size=(H, S, A)), rng.uniform(0.0, 1.0, (H, S, A))
policy = rng.dirichlet(np.ones(A), (H, S))

q_mean, variance = np.zeros((H, S, A)), np.zeros((H, S, A))
covariances = np.zeros((H, S, S))
value, covariance = np.zeros(S), np.zeros((S, S))  # V̄ and C after the last decision: nothing follows
for h in reversed(range(H)):
    rows = alpha[h].reshape(S * A, S)  # row x = (s, a)
    total = rows.sum(axis=1)  # α₀
    p = rows / total[:, None]  # p̄
    mean = reward_mean[h].reshape(-1) + discount * p @ value  # (3)
    local = np.zeros(S * A)
    for x in range(S * A):
        sig = (np.diag(p[x]) - np.outer(p[x], p[x])) / (total[x] + 1)  # (4)
        about_means, about_values = value @ sig @ value, np.trace(sig @ covariance)
        local[x] = reward_var[h].reshape(-1)[x] + discount**2 * (about_means + about_values)  # (6)
    covariance_of_q = np.diag(local) + discount**2 * p @ covariance @ p.T  # (7) on the diagonal, (8) off it
    pi = np.zeros((S, S * A))  # π as a matrix: V = pi Q
    for s in range(S):
        pi[s, s * A : (s + 1) * A] = policy[h, s]
    q_mean[h], variance[h] = mean.reshape(S, A), np.diag(covariance_of_q).reshape(S, A)
    value, covariance = pi @ mean, pi @ covariance_of_q @ pi.T  # (9): what the layer before needs, and all it needs
    covariances[h] = covariance

belief = Belief.layered(alpha, reward_mean, reward_var, discount=discount, r_max=10.0)
solution = solve(belief, policy, method="exact", covariance=True)
np.testing.assert_allclose(solution.q_mean, q_mean, rtol=1e-12)
np.testing.assert_allclose(solution.variance, variance, rtol=1e-12)
np.testing.assert_allclose(np.einsum("hsht->hst", solution.value_covariance), covariances, rtol=1e-10, atol=1e-14)

oracle = monte_carlo(belief, policy, samples=40_000, rng=rng)
errors = (oracle.variance - variance) / oracle.variance_se
assert np.abs(errors).max() < 4, errors

print("action  recursion   solve       sampling (standard error)")
for a in range(A):
    sampled = f"{oracle.variance[0, 0, a]:.4f} ({oracle.variance_se[0, 0, a]:.4f})"
    print(f"{a:6}  {variance[0, 0, a]:.8f}  {solution.variance[0, 0, a]:.8f}  {sampled}")
print(f"all {errors.size} variances agree; the largest error of sampling is {np.abs(errors).max():.1f} standard errors")
