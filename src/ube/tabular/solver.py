"""From a belief and a policy to the mean and the variance of the Q-values, and what that variance is worth."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ube.errors import UsageError
from ube.tabular.belief import Belief
from ube.tabular.dense import check_memory, delta_variance, untied_variance
from ube.tabular.guarantee import guarantee
from ube.tabular.rewards import Floats

METHODS = {
    "ube": "the paper's bound (Lemma 1, Theorem 1): ν = Var μ + Q_max² Σ Var P / E P",
    "ube-horizon": "the same with the Q_max of the decisions that are left",
    "count": "the paper's count form: ν = (σ_r² + Q_max² |S|) / n",
    "pombu": "ν = Var μ + γ² V̄ᵀ Sig V̄, no Q_max (Zhou et al. 2020)",
    "exact": "the posterior variance itself, by a recursion over covariances",
    "lower": "the exact recursion with independent next values",
    "delta": "first-order error propagation; the one for tied rows and cycles",
}
"""Of `solve`, and what each puts in the place of the variance."""
Q_MAX_METHODS = ("ube", "ube-horizon", "count")
_PARALLEL_FROM = 50_000  # nodes below which threads cost more than they bring


@dataclass(frozen=True, eq=False)
class Solution:
    """Arrays have the shape of the belief: (H, S, A), (S, A), or a list of layers where their widths differ."""

    method: str
    q_mean: Any
    """E Q under the posterior."""
    variance: Any
    """Var Q, or what `method` puts in its place."""
    policy: Any
    guarantee: str
    """"exact", "upper bound", "lower bound" or "none"."""
    why: str
    """The reason for `guarantee`, in words."""
    value_mean: Any
    """E V, (H, S), (S,) or a list of layers."""
    value_covariance: Floats | None = None
    """Cov[V, V'], (H, S, H, S) or (S, S) ((nodes, nodes) where widths differ); with `covariance=True` only."""
    sweeps: int = 1
    """Sweeps over the states that the solution took."""
    error: float = 0.0
    """A bound on what stopping the sweeps left, relative to the largest entry: of q_mean, and of variance given q_mean."""

    @property
    def std(self) -> Any:
        """√variance."""
        return [np.sqrt(v) for v in self.variance] if isinstance(self.variance, list) else np.sqrt(self.variance)


def solve(
    belief: Belief,
    policy: Any = "uniform",
    method: str = "exact",
    *,
    covariance: bool = False,
    tolerance: float = 1e-10,
    threads: int | None = None,
) -> Solution:
    """Q̄ and the variance of Q under `belief` for a fixed policy.

    policy: probabilities of the belief's shape, "uniform", or "greedy" (in Q̄).
    method: one of `METHODS`.
    covariance: with "exact" on an acyclic belief, also return the covariance of all values.
    tolerance: relative error at which the sweeps over a belief with cycles stop.
    threads: how many to use on large beliefs with cycles; all cores by default. The result does not depend on it.
    """
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    if covariance and not (method == "exact" and belief.is_acyclic):
        raise UsageError("covariance=True needs method='exact' and a belief without cycles")
    improper = ~np.isfinite(belief.rewards.variance[belief.group]) & (belief.graph.successors > 0)
    if method in ("exact", "lower", "delta") and improper.any():
        where = belief.graph.entry(int(np.argmax(improper)))
        raise UsageError(
            f"reward{where} has infinite variance: method {method!r} needs a proper prior or an update there"
        )
    engine = Acyclic(belief) if belief.is_acyclic else Cyclic(belief, tolerance, threads)
    table = engine.policy(policy)
    if method == "delta":
        q, _ = engine.solve(table, "pombu")
        u = delta_variance(belief, table, engine.value)
    else:
        q, u = engine.solve(table, method, keep_covariance=covariance)
    worth, why = guarantee(belief, method, u, tight=lambda: Acyclic(belief).solve(table.copy(), "pombu")[1])
    graph = belief.graph
    return Solution(
        method=method,
        q_mean=graph.shown(q, missing=np.nan),
        variance=graph.shown(u, missing=np.nan),
        policy=graph.shown(table.reshape(-1)),
        guarantee=worth,
        why=why,
        value_mean=_shown_values(belief, engine.value),
        value_covariance=engine.covariance if covariance else None,
        sweeps=engine.sweeps,
        error=engine.error,
    )


class Acyclic:
    """One backward pass gives everything."""

    sweeps = 1
    error = 0.0

    def __init__(self, belief: Belief) -> None:
        self.belief = belief
        self.value: Floats = np.zeros(0)
        self.covariance: Floats = np.zeros((0, 0))

    def policy(self, policy: Any) -> Floats:
        if isinstance(policy, str) and policy == "greedy":
            table = np.zeros((self.belief.graph.n_nodes, self.belief.graph.n_actions))
            self.solve(table, "pombu", greedy=True)
            return table
        return _policy_table(self.belief, policy)

    def solve(
        self, table: Floats, method: str, *, greedy: bool = False, keep_covariance: bool = False
    ) -> tuple[Floats, Floats]:
        from ube.tabular import kernels

        belief, graph = self.belief, self.belief.graph
        assert graph.order is not None
        exact = method == "exact"
        slot, n_slots = graph.slots if exact else (np.where(graph.terminal, -1, 0).astype(np.int32), 0)
        if keep_covariance:
            slot, n_slots = np.where(graph.terminal, -1, np.arange(graph.n_nodes)).astype(np.int32), graph.n_nodes
        check_memory(n_slots**2, "at a time", belief)
        variance, scale = _local_terms(belief, method)
        n = graph.n_rows
        tables = kernels.empty_tables(graph.n_nodes, graph.n_actions, n_slots)
        tables.policy[:] = table
        codes = {"pombu": kernels.POMBU, "exact": kernels.EXACT, "lower": kernels.DIAGONAL}
        kernels.backward(
            compiled_problem(belief, slot),
            kernels.Posterior(belief.alpha, belief.total, belief.rewards.mean, variance),
            kernels.Rule(
                codes.get(method, kernels.LINEAR),
                kernels.GREEDY if greedy else kernels.GIVEN,
                0.0,
                zeta=np.zeros(n),
                transition_scale=scale,
                bonus=np.zeros(n),
                cap=np.full(n, np.inf),
            ),
            tables,
        )
        table[:] = tables.policy
        self.value = tables.value
        if keep_covariance:
            shown = tables.covariance[: graph.n_decisions, : graph.n_decisions]
            sides = graph.shape[:-1]
            self.covariance = shown.reshape(sides + sides)
        return tables.q, tables.u


class Cyclic:
    """Sweeps to the fixed point: Q̄ with the mean rewards and γ, u with ν and γ². The same recursion twice."""

    covariance = np.zeros((0, 0))

    def __init__(self, belief: Belief, tolerance: float, threads: int | None) -> None:
        self.belief = belief
        self.tolerance = tolerance
        self.threads = 1 if belief.graph.n_nodes < _PARALLEL_FROM else (threads or os.cpu_count() or 1)
        self.value: Floats = np.zeros(0)
        self.sweeps = 0
        self.error = 0.0

    def policy(self, policy: Any) -> Floats:
        if not (isinstance(policy, str) and policy == "greedy"):
            return _policy_table(self.belief, policy)
        graph = self.belief.graph
        table = _policy_table(self.belief, "uniform")
        while True:  # policy iteration: each policy is better than the last, and there are finitely many
            q, _ = self._fixed_point(table, self.belief.rewards.mean, self.belief.discount)
            ranked = np.where(graph.available, q.reshape(table.shape), -np.inf)
            best = ranked.max(axis=1)
            current = (table * np.where(graph.available, ranked, 0.0)).sum(axis=1)
            margin = 10 * self.tolerance * max(1.0, float(np.abs(q).max()))
            better = ~graph.terminal & ((best > current + margin) | (table.max(axis=1) < 1.0))
            if not better.any():
                return table
            table[better] = 0.0
            table[better, ranked[better].argmax(axis=1)] = 1.0

    def solve(self, table: Floats, method: str, *, keep_covariance: bool = False) -> tuple[Floats, Floats]:
        belief, discount = self.belief, self.belief.discount
        q, self.value = self._fixed_point(table, belief.rewards.mean, discount)
        variance, scale = _local_terms(belief, method)
        if method in Q_MAX_METHODS:
            nu = scale  # in place, as below: a million states are worth some care
            nu *= np.maximum(belief.graph.successors - 1, 0)
            nu /= belief.total + 1.0
        else:
            nu = _expected_next(belief, self.value)[1]
        nu *= discount**2
        nu += variance
        if method in ("exact", "lower"):
            return q, untied_variance(belief, table, nu, diagonal=method == "lower", tolerance=self.tolerance)
        return q, self._fixed_point(table, nu, discount**2)[0]

    def _fixed_point(self, table: Floats, rhs: Floats, discount: float) -> tuple[Floats, Floats]:
        """x = rhs + discount Σ p̄ π x' over rows, and Σ π x over nodes."""
        value = self._sweep_to_the_end(table, rhs, discount)
        x = _expected_next(self.belief, value, need_local=False)[0]
        x *= discount
        x += rhs
        x[self.belief.graph.successors == 0] = 0.0
        return x, value

    def _sweep_to_the_end(self, table: Floats, rhs: Floats, discount: float) -> Floats:
        from ube.tabular import kernels

        graph, belief = self.belief.graph, self.belief
        weight = table.reshape(-1) * discount
        weight /= belief.total
        base = np.zeros(graph.n_nodes)
        for action, share in enumerate(table.T):  # what is never done may be infinite
            base += np.where(share > 0, rhs[action :: graph.n_actions], 0.0) * share
        if not np.isfinite(base).all():
            raise UsageError(
                "a row that the policy uses has infinite variance (an improper prior, or no visits for method 'count'): "
                "with cycles that spreads everywhere; update the belief there first"
            )
        value, following = base.copy(), np.empty_like(base)
        cuts = np.linspace(0, graph.n_nodes, self.threads + 1).astype(int)
        ending = bool(graph.terminal.any())
        reach = discount / (1.0 - discount)
        with ThreadPoolExecutor(self.threads) as pool:

            def one(i: int) -> tuple[float, float]:
                return kernels.sweep(
                    graph.n_actions, graph.indptr, graph.indices, belief.alpha, weight, base, value, following,
                    cuts[i], cuts[i + 1],
                )  # fmt: skip

            while True:
                changes = list(pool.map(one, range(self.threads))) if self.threads > 1 else [one(0)]
                value, following = following, value
                self.sweeps += 1
                # MacQueen's bounds: the solution lies between value + reach*least and value + reach*greatest.
                least, greatest = min(c[0] for c in changes), max(c[1] for c in changes)
                if ending:
                    least, greatest = min(least, 0.0), max(greatest, 0.0)
                largest = max(float(np.abs(value).max()), np.finfo(float).tiny)
                error = 0.5 * reach * (greatest - least) / largest
                if error <= self.tolerance or greatest - least <= 8 * np.finfo(float).eps * largest:
                    break
        self.error = max(self.error, error)
        return np.where(graph.terminal, 0.0, value + 0.5 * reach * (least + greatest))


def _expected_next(belief: Belief, value: Floats, *, need_local: bool = True) -> tuple[Floats, Floats]:
    from ube.tabular import kernels

    graph = belief.graph
    mean, local = np.zeros(graph.n_rows), np.zeros(graph.n_rows if need_local else 0)
    kernels.expected_next(graph.indptr, graph.indices, belief.alpha, value, 0, graph.n_rows, mean, local)
    return mean, local


def compiled_problem(belief: Belief, slot: NDArray[np.int32]) -> Any:
    from ube.tabular import kernels

    graph = belief.graph
    return kernels.Problem(
        graph.order,
        graph.n_actions,
        graph.indptr,
        graph.indices,
        belief.group,
        belief.alpha_start,
        slot,
        belief.discount,
    )


def transition_scale(belief: Belief, method: str) -> Floats:
    """Q_max² of the value that follows each row, (rows,)."""
    graph, left = belief.graph, belief.steps_left
    if left is None:
        largest = float(belief.largest_return(None))
        return np.full(graph.n_rows, largest**2 if largest < 1e154 else np.inf)  # Python raises where NumPy overflows
    steps = np.maximum(left - 1, 0) if method == "ube-horizon" else np.full(graph.n_nodes, left.max(initial=0))
    return np.repeat(belief.largest_return(steps) ** 2, graph.n_actions)


def _local_terms(belief: Belief, method: str) -> tuple[Floats, Floats]:
    """Variance of the mean reward (groups,), and Q_max² (rows,): what ν is made of."""
    variance = belief.rewards.variance
    scale = transition_scale(belief, method) if method in Q_MAX_METHODS else np.zeros(belief.graph.n_rows)
    if method == "count":
        # (σ_r² + γ² Q_max² K) / n as a whole takes the place of the reward variance.
        if belief.is_tied:
            raise UsageError(
                "method 'count' needs a visit count for each row: it is not offered for an unrolled belief"
            )
        n, rows = belief.visits, np.flatnonzero(belief.graph.successors)
        whole = np.array(belief.rewards.noise_variance)
        whole[belief.group[rows]] += belief.discount**2 * scale[rows] * belief.graph.successors[rows]
        variance = np.divide(whole, n, out=np.full(len(n), np.inf), where=n > 0)
        scale = np.zeros_like(scale)
    return variance, scale


def _policy_table(belief: Belief, policy: Any) -> Floats:
    """(nodes, actions) probabilities, checked; 0 at terminal nodes."""
    graph = belief.graph
    if isinstance(policy, str):
        if policy != "uniform":
            raise UsageError(f"unknown policy {policy!r}: give probabilities, 'uniform' or 'greedy'")
        return graph.available / np.maximum(graph.available.sum(axis=1, keepdims=True), 1)
    flat = graph.per_row(policy, "policy")
    acts = np.repeat(~graph.terminal, graph.n_actions)
    wrong = ~((flat >= 0) & (flat <= 1 + 1e-9)) & acts
    if wrong.any():
        row = int(np.argmax(wrong))
        raise UsageError(f"policy{graph.entry(row)} is {flat[row]:g}: probabilities are between 0 and 1")
    wrong = (flat > 0) & (graph.successors == 0) & acts
    if wrong.any():
        raise UsageError(f"policy{graph.entry(int(np.argmax(wrong)))} takes an action that does not exist there")
    table = np.where(acts, flat, 0.0).reshape(graph.n_nodes, graph.n_actions)
    total = table.sum(axis=1)
    wrong = (np.abs(total - 1.0) > 1e-6) & ~graph.terminal
    if wrong.any():
        node = int(np.argmax(wrong))
        where = graph.entry(node * graph.n_actions).rsplit(",", 1)[0] + "]"
        raise UsageError(f"policy{where} sums to {total[node]:g}: the probabilities of a state's actions must sum to 1")
    return table


def _shown_values(belief: Belief, value: Floats) -> Any:
    graph = belief.graph
    shown = value[: graph.n_decisions]
    if graph.is_ragged:
        assert graph.layers is not None
        return np.split(shown, graph.layers[1:-1])
    return shown.reshape(graph.shape[:-1])
