"""Random beliefs, and the theory's formulas in plain loops over dense arrays, to hold the solver against."""

from itertools import pairwise

import numpy as np

from ube.tabular import Belief, Normal, NormalGamma, ScaledBeta

REWARDS = ("normal", "normal-gamma", "scaled-beta")


def dirichlet(rng, *shape):
    """Dirichlet parameters from 0.05 to 20, about a third of the successors unreachable but never all of a row."""
    alpha = np.exp(rng.uniform(np.log(0.05), np.log(20.0), shape)) * (rng.random(shape) < 0.7)
    kept = rng.integers(shape[-1], size=(*shape[:-1], 1))
    np.put_along_axis(alpha, kept, np.maximum(np.take_along_axis(alpha, kept, -1), 0.05), -1)
    return alpha


def layers(rng, widths, n_actions):
    """Dirichlet parameters of a layered belief whose layers have these widths, the last of them after the horizon."""
    return [dirichlet(rng, n, n_actions, following) for n, following in pairwise(widths)]


def dag(rng, n_states, n_actions, n_terminal=2):
    """Dirichlet parameters (S, A, S) of an acyclic graph whose numbering is no topological order, and its ends."""
    rank = rng.permutation(n_states)
    alpha = np.zeros((n_states, n_actions, n_states))
    terminal = np.flatnonzero(rank >= n_states - n_terminal)
    for state in np.flatnonzero(rank < n_states - n_terminal):
        later = np.flatnonzero(rank > rank[state])
        alpha[state][:, later] = dirichlet(rng, n_actions, len(later))
    return alpha, terminal


def reward_belief(rng, kind, shape):
    """Random parameters of this shape; mean rewards are within [-1, 1]."""
    mean = rng.uniform(-1.0, 1.0, shape)
    if kind == "normal":
        return Normal(mean, rng.uniform(0.01, 0.5, shape), rng.uniform(0.5, 2.0, shape))
    if kind == "normal-gamma":  # shape from 6: the standard error of a variance needs the fourth moment
        return NormalGamma(
            mean, rng.uniform(1.0, 4.0, shape), rng.uniform(6.0, 9.0, shape), rng.uniform(1.0, 5.0, shape)
        )
    low = rng.uniform(-1.0, 0.8, shape)
    high = rng.uniform(low + 0.1, 1.0)
    return ScaledBeta(rng.uniform(0.3, 5.0, shape), rng.uniform(0.3, 5.0, shape), low, high)


def random_belief(rng, structure, rewards="normal", discount=1.0, r_max=1.0):
    """A small belief without cycles: 'layered', 'ragged' or 'acyclic'."""
    n_actions = int(rng.integers(1, 4))
    settings = {"discount": discount, "r_max": r_max}
    if structure == "layered":
        horizon, n_states = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        alpha = dirichlet(rng, horizon, n_states, n_actions, n_states)
        return Belief.layered(alpha, rewards=reward_belief(rng, rewards, alpha.shape[:-1]), **settings)
    if structure == "ragged":
        widths = [*rng.integers(1, 5, size=int(rng.integers(2, 5))).tolist(), 5, 2]  # 5 and 1..4: never all equal
        parts = layers(rng, widths, n_actions)
        return Belief.layered(parts, rewards=reward_belief(rng, rewards, (sum(widths[:-1]), n_actions)), **settings)
    alpha, terminal = dag(rng, int(rng.integers(4, 9)), n_actions)
    shape = alpha.shape[:-1]
    return Belief.acyclic(alpha, terminal=terminal, rewards=reward_belief(rng, rewards, shape), **settings)


def random_policy(rng, shape):
    """Probabilities (…, actions), a third of them deterministic."""
    mixed = rng.dirichlet(np.ones(shape[-1]), shape[:-1])
    pure = np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]
    return np.where(rng.random((*shape[:-1], 1)) < 1 / 3, pure, mixed)


def policy_for(rng, belief):
    """A random policy in the shape that the belief takes."""
    table = random_policy(rng, (belief.graph.n_decisions, belief.graph.n_actions))
    return belief.graph.shown(table.reshape(-1))


def flat(values):
    """An array, or a list of one array per layer, as one vector."""
    return np.concatenate([np.ravel(part) for part in values]) if isinstance(values, list) else np.ravel(values)


def covariance_of_row(alpha):
    """Mean and covariance of one Dirichlet row: p̄ = α/α₀, Sig = (diag p̄ - p̄p̄ᵀ)/(α₀ + 1)."""
    p = alpha / alpha.sum()
    return p, (np.diag(p) - np.outer(p, p)) / (alpha.sum() + 1.0)


def naive(alpha, mean, var, policy, method, discount=1.0, r_max=1.0):
    """Q̄, the variance (H, S, A) and the covariance of the first layer's V, for alpha (H, S, A, S), row by row."""
    horizon, n_states, n_actions, _ = alpha.shape
    q, u = np.zeros(mean.shape), np.zeros(mean.shape)
    value, spread = np.zeros(n_states), np.zeros(n_states)  # of the layer that follows: V̄ and Σ π u
    cov = np.zeros((n_states, n_states))  # and the covariance of its V
    for h in reversed(range(horizon)):
        steps = horizon if method == "ube" else horizon - h - 1
        q_max = r_max * sum(discount**i for i in range(steps))
        p, own = np.zeros(alpha.shape[1:]), np.zeros((n_states, n_actions))
        for s, a in np.ndindex(n_states, n_actions):
            p[s, a], sig = covariance_of_row(alpha[h, s, a])
            q[h, s, a] = mean[h, s, a] + discount * p[s, a] @ value
            if method in ("ube", "ube-horizon"):
                ratios = [sig[t, t] / p[s, a, t] for t in range(n_states) if p[s, a, t] > 0]
                own[s, a] = var[h, s, a] + discount**2 * q_max**2 * sum(ratios)
            else:
                own[s, a] = var[h, s, a] + discount**2 * value @ sig @ value
            if method in ("exact", "lower"):
                own[s, a] += discount**2 * np.trace(sig @ cov)
                u[h, s, a] = own[s, a] + discount**2 * p[s, a] @ cov @ p[s, a]
            else:
                u[h, s, a] = own[s, a] + discount**2 * p[s, a] @ spread
        mixed = np.array([policy[h, s] @ p[s] for s in range(n_states)])
        cov = discount**2 * mixed @ cov @ mixed.T
        cov += np.diag([sum(policy[h, s, a] ** 2 * own[s, a] for a in range(n_actions)) for s in range(n_states)])
        if method == "lower":
            cov = np.diag(np.diagonal(cov))
        value = np.array([policy[h, s] @ q[h, s] for s in range(n_states)])
        spread = np.array([policy[h, s] @ u[h, s] for s in range(n_states)])
    return q, u, cov


def naive_delta(alpha, mean, var, policy, discount):
    """Σ_x [occ_x² Var μ_x + w_xᵀ Sig_x w_x] (H, S, A) where H layers share alpha (S, A, S); policy (H, S, A)."""
    horizon, n_states, n_actions = policy.shape
    rows = list(np.ndindex(n_states, n_actions))
    p = np.array([[covariance_of_row(alpha[s, a])[0] for a in range(n_actions)] for s in range(n_states)])
    value = np.zeros((horizon + 1, n_states))
    for t in reversed(range(horizon)):
        value[t] = [sum(policy[t, s] * (mean[s] + discount * p[s] @ value[t + 1])) for s in range(n_states)]
    u = np.zeros(policy.shape)
    for h, s, a in np.ndindex(u.shape):
        reached, occ, w = np.zeros((n_states, n_actions)), np.zeros((n_states, n_actions)), np.zeros(alpha.shape)
        reached[s, a] = 1.0
        for t in range(h, horizon):
            occ += discount ** (t - h) * reached
            for x in rows:
                w[x] += discount ** (t - h) * reached[x] * discount * value[t + 1]
            if t + 1 < horizon:
                arrived = sum(reached[x] * p[x] for x in rows)
                reached = arrived[:, None] * policy[t + 1]
        u[h, s, a] = sum(occ[x] ** 2 * var[x] + w[x] @ covariance_of_row(alpha[x])[1] @ w[x] for x in rows)
    return u


def as_acyclic(parts):
    """The same layers as one graph: alpha (S, A, S) over all nodes, and the nodes after the horizon."""
    first = np.cumsum([0, *(len(part) for part in parts)])
    n_nodes = first[-1] + parts[-1].shape[-1]
    alpha = np.zeros((n_nodes, parts[0].shape[1], n_nodes))
    for start, part in zip(first[:-1], parts, strict=True):
        n, _, following = part.shape
        alpha[start : start + n, :, start + n : start + n + following] = part
    return alpha, np.arange(first[-1], n_nodes)
