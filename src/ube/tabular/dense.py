"""Variances that take linear algebra: the delta method, and the covariance recursion over cycles."""

from __future__ import annotations

import numpy as np

from ube.errors import UsageError
from ube.tabular.belief import Belief
from ube.tabular.rewards import Floats

_LARGEST_BYTES = 8e9  # of a dense covariance
_MOST_WORK = 1e11  # transitions that the delta method follows: some twenty minutes


def delta_variance(belief: Belief, table: Floats, value: Floats) -> Floats:
    """Σ_g [occ_g² Var μ_g + w_gᵀ Sig_g w_g], w_g = γ Σ_rows occ_row V̄(successors): gradients through every use of g.

    occ is the expected discounted number of uses of each row, from each starting row. O(rows²) time.
    """
    from scipy.sparse import csr_array, eye_array
    from scipy.sparse.linalg import splu

    graph, discount = belief.graph, belief.discount
    rows = np.flatnonzero(graph.successors > 0)
    entry = belief.alpha_start[belief.group[rows]]
    counts = graph.successors[rows]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    edges = np.repeat(graph.indptr[rows], counts) + within
    entries = np.repeat(entry, counts) + within
    if len(rows) * len(entries) > _MOST_WORK:
        raise UsageError(
            f"method 'delta' follows {len(entries):,} transitions from each of {len(rows):,} rows, which takes more than "
            "twenty minutes: shorten the horizon or give a discount instead, or use method pombu"
        )
    groups = belief.group[rows]
    total = belief.total[groups]
    p = belief.alpha[entries] / np.repeat(total, counts)
    edge_row = np.repeat(np.arange(len(rows)), counts)
    successor = graph.indices[edges]
    move = csr_array((p, (edge_row, successor)), shape=(len(rows), graph.n_nodes))
    take = csr_array(
        (table.reshape(-1)[rows], (np.arange(len(rows)), rows // graph.n_actions)), (len(rows), graph.n_nodes)
    )
    # occᵀ = (I - γ Πᵀ P̄ᵀ)⁻¹ column by column: occupancy of all rows from one starting row.
    factor = splu((eye_array(len(rows)) - discount * (take @ move.T)).tocsc())
    u = np.zeros(graph.n_rows)
    n_groups = len(belief.alpha_start) - 1
    reward_variance = belief.rewards.variance
    weights = discount * value[successor]
    group_total = belief.total
    group_mean = belief.alpha / np.repeat(group_total, np.diff(belief.alpha_start))
    group_of_entry = np.repeat(np.arange(n_groups), np.diff(belief.alpha_start))
    for i, row in enumerate(rows):
        start = np.zeros(len(rows))
        start[i] = 1.0
        occ = factor.solve(start)
        use = np.bincount(groups, weights=occ, minlength=n_groups)
        w = np.bincount(entries, weights=occ[edge_row] * weights, minlength=len(belief.alpha))
        first = np.bincount(group_of_entry, weights=group_mean * w, minlength=n_groups)
        spread = np.bincount(group_of_entry, weights=group_mean * (w - first[group_of_entry]) ** 2, minlength=n_groups)
        u[row] = (use**2 * reward_variance + spread / (group_total + 1.0)).sum()
    return u


def untied_variance(belief: Belief, table: Floats, nu: Floats, *, diagonal: bool, tolerance: float) -> Floats:
    """The covariance recursion solved on a belief with cycles, as if each visit had a posterior of its own.

    C = γ² A C Aᵀ + diag_s Σ_a π² (ν + γ² tr(Sig C)): a Lyapunov equation, but for the trace, which is iterated.
    """
    from scipy.linalg import solve_discrete_lyapunov

    graph, squared = belief.graph, belief.discount**2
    check_memory(graph.n_rows * graph.n_nodes, "with cycles", belief)
    move = np.zeros((graph.n_rows, graph.n_nodes))
    rows = np.repeat(np.arange(graph.n_rows), graph.successors)
    move[rows, graph.indices] = belief.alpha / np.repeat(belief.total, graph.successors)
    mixed = np.einsum("na,nat->nt", table, move.reshape(*table.shape, -1))

    def terms(covariance: Floats) -> tuple[Floats, Floats]:
        """What each row adds to the variance of its Q, and p̄ᵀCp̄."""
        through = np.einsum("rs,rs->r", move @ covariance, move)
        return nu + squared * (move @ np.diagonal(covariance) - through) / (belief.total + 1.0), through

    covariance = np.zeros((graph.n_nodes, graph.n_nodes))
    while True:
        source = (table**2 * terms(covariance)[0].reshape(table.shape)).sum(axis=1)
        if diagonal:
            following = np.diag(np.linalg.solve(np.eye(graph.n_nodes) - squared * mixed**2, source))
        else:
            following = solve_discrete_lyapunov(belief.discount * mixed, np.diag(source))
        change = np.abs(following - covariance).max()
        covariance = following
        if change <= tolerance * max(np.abs(covariance).max(), np.finfo(float).tiny):
            own, through = terms(covariance)
            return np.where(graph.successors > 0, own + squared * through, 0.0)


def check_memory(entries: int, what: str, belief: Belief) -> None:
    """Covariances are dense: say so before the machine does."""
    if entries * 8 > _LARGEST_BYTES:
        raise UsageError(
            f"{belief.graph.n_nodes:,} states {what} need a covariance of {entries * 8 / 1e9:.0f} GB: "
            "use method 'pombu', which needs none"
        )
