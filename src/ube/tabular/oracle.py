"""The oracle: sample MDPs from the belief, solve each, look at the spread of the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.tabular.belief import Belief
from ube.tabular.rewards import Floats
from ube.tabular.solver import Acyclic, Cyclic

_CHUNK_ENTRIES = 4_000_000


@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """Arrays have the shape of the belief, as in `Solution`."""

    samples: int
    q_mean: Any
    variance: Any
    q_mean_se: Any
    """Standard error of q_mean."""
    variance_se: Any
    """Standard error of variance, from the fourth moment (no assumption of normality)."""


def monte_carlo(
    belief: Belief, policy: Any = "uniform", samples: int = 10_000, *, rng: np.random.Generator
) -> MonteCarlo:
    """Q-values of `samples` MDPs drawn from the belief, rows that share a posterior sharing their draw."""
    if samples < 2 or samples != int(samples):
        raise UsageError(f"samples={samples}: a variance needs at least 2, a whole number")
    samples = int(samples)
    graph = belief.graph
    engine = Acyclic(belief) if belief.is_acyclic else Cyclic(belief, 1e-10, 1)
    table = engine.policy(policy)
    centre = engine.solve(table.copy(), "pombu")[0]  # moments about it lose nothing to cancellation
    sums = np.zeros((4, graph.n_rows))
    chunk = max(1, min(samples, _CHUNK_ENTRIES // max(len(graph.indices), graph.n_rows)))
    done = 0
    while done < samples:
        n = min(chunk, samples - done)
        probability, reward = belief.sample(rng, n)
        q = _q_of_samples(belief, table, probability, reward) - centre
        power = q.copy()
        for moment in sums:
            moment += power.sum(axis=0)
            power *= q
        done += n
    m1, m2, m3, m4 = sums / samples
    second = np.maximum(m2 - m1**2, 0.0)
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return MonteCarlo(
        samples=samples,
        q_mean=graph.shown(centre + m1, missing=np.nan),
        variance=graph.shown(second * samples / (samples - 1), missing=np.nan),
        q_mean_se=graph.shown(np.sqrt(second / samples), missing=np.nan),
        variance_se=graph.shown(np.sqrt(np.maximum(fourth - second**2, 0.0) / samples), missing=np.nan),
    )


def _q_of_samples(belief: Belief, table: Floats, probability: Floats, reward: Floats) -> Floats:
    """Q (n, rows) of n sampled MDPs: Bellman's equation, node by node or, with cycles, as a linear system."""
    graph, n = belief.graph, len(reward)
    q = np.zeros((n, graph.n_rows))
    value = np.zeros((n, graph.n_nodes))
    if graph.order is not None:
        for node in graph.order:
            for row in range(node * graph.n_actions, (node + 1) * graph.n_actions):
                successors = graph.indices[graph.indptr[row] : graph.indptr[row + 1]]
                if len(successors):
                    start = belief.alpha_start[belief.group[row]]
                    p = probability[:, start : start + len(successors)]
                    following = np.einsum("nk,nk->n", p, value[:, successors])
                    q[:, row] = reward[:, belief.group[row]] + belief.discount * following
            value[:, node] = q[:, node * graph.n_actions : (node + 1) * graph.n_actions] @ table[node]
        return q
    rows = np.repeat(np.arange(graph.n_rows), graph.successors)
    pi = table.reshape(-1)
    for i in range(n):
        move = np.zeros((graph.n_rows, graph.n_nodes))
        move[rows, graph.indices] = probability[i]
        mixed = (pi[:, None] * move).reshape(graph.n_nodes, graph.n_actions, -1).sum(axis=1)
        mean = np.where(graph.successors > 0, reward[i], 0.0)
        base = (pi * mean).reshape(graph.n_nodes, -1).sum(axis=1)
        value[i] = np.linalg.solve(np.eye(graph.n_nodes) - belief.discount * mixed, base)
        q[i] = mean + belief.discount * (move @ value[i])
    return q
