"""A belief about an MDP: a Dirichlet over next states and a belief about the mean reward for each (state, action)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ube.errors import UsageError
from ube.tabular.graph import Graph, numbers
from ube.tabular.rewards import Floats, Normal, RewardBelief
from ube.tabular.rows import is_sparse, read_rows, read_terminal, read_transitions

_LAYERED_ALPHA = "(H, S, A, S), or a list of H arrays (states, actions, states of the next layer)"
_FLAT_ALPHA = "(S, A, S) or a sparse matrix (S * A, S)"


@dataclass(frozen=True, eq=False)
class Belief:
    """Build one with `layered`, `acyclic` or `stationary`; the fields are the flat form that solvers read.

    Rows that share one posterior are a *group* (only `unroll` makes such). Group g holds the Dirichlet parameters
    `alpha[alpha_start[g]:alpha_start[g + 1]]`, in the order of its rows' successors.
    """

    graph: Graph
    alpha: Floats
    rewards: RewardBelief
    discount: float
    r_max: float
    visits: Floats
    group: NDArray[np.int32]
    alpha_start: NDArray[np.int64]

    @classmethod
    def layered(
        cls,
        alpha: Any,
        reward_mean: Any = None,
        reward_var: Any = None,
        *,
        rewards: RewardBelief | None = None,
        r_max: float | None = None,
        discount: float = 1.0,
        noise_var: Any = 1.0,
        visits: Any = 0.0,
        n_actions: int | None = None,
    ) -> Belief:
        """H decisions, each layer with a posterior of its own.

        alpha: (H, S, A, S), Dirichlet parameters, 0 = unreachable; or a list of H arrays (S_h, A, S_{h+1}), dense, or
            sparse (S_h * A, S_{h+1}) together with `n_actions`. What follows the last layer is worth 0.
        reward_mean, reward_var: (H, S, A) or lists of layers: a Normal belief; `noise_var` is the variance of one
            reward. Or `rewards=`, a `Normal`, `NormalGamma` or `ScaledBeta` with parameters of that shape.
        r_max: bound on |mean reward|, used by the methods with a Q_max only. Default 1, or what a ScaledBeta implies.
        visits: how often each (state, action) has been seen so far, used by method "count" only.
        """
        if not (isinstance(alpha, (list, tuple)) or np.ndim(alpha) == 4):
            raise UsageError(f"alpha has shape {np.shape(alpha)}: a layered belief takes {_LAYERED_ALPHA}")
        parts = [read_rows(part, f"alpha[{h}]", n_actions) for h, part in enumerate(alpha)]
        if not parts:
            raise UsageError("alpha is an empty list: a layered belief needs at least one layer")
        n_acts = parts[0].n_actions
        for h, part in enumerate(parts):
            if part.n_actions != n_acts:
                raise UsageError(f"alpha[{h}] has {part.n_actions} actions, alpha[0] has {n_acts}: they must agree")
        widths = [part.n_rows // n_acts for part in parts]
        for h, (part, width) in enumerate(zip(parts, widths[1:], strict=False)):
            if part.n_columns != width:
                raise UsageError(f"alpha[{h}] leads to {part.n_columns} states, but layer {h + 1} has {width}")
        layers = np.r_[0, np.cumsum(widths)]
        n_last = parts[-1].n_columns
        ends = np.cumsum([len(part.data) for part in parts])
        indptr = [part.indptr[:-1] + shift for part, shift in zip(parts, np.r_[0, ends[:-1]], strict=True)]
        graph = Graph(
            n_nodes=int(layers[-1] + n_last),
            n_actions=n_acts,
            indptr=np.concatenate([*indptr, np.full(n_last * n_acts + 1, ends[-1])]).astype(np.int64),
            indices=np.concatenate([p.indices + layers[h + 1] for h, p in enumerate(parts)]).astype(np.int32),
            layers=tuple(int(first) for first in layers),
        )
        return _assemble(
            cls, graph, np.concatenate([part.data for part in parts]), reward_mean, reward_var, rewards, r_max, discount,
            noise_var, visits,
        )  # fmt: skip

    @classmethod
    def acyclic(
        cls,
        alpha: Any,
        reward_mean: Any = None,
        reward_var: Any = None,
        *,
        terminal: Any,
        rewards: RewardBelief | None = None,
        r_max: float | None = None,
        discount: float = 1.0,
        noise_var: Any = 1.0,
        visits: Any = 0.0,
    ) -> Belief:
        """Any graph in which no state can be seen twice in an episode.

        alpha: (S, A, S), dense, or sparse (S * A, S) with row s * A + a. terminal: the states that end the episode, as
        a list or a mask; their rows are ignored. Rewards as in `layered`, of shape (S, A).
        """
        belief = cls._flat(alpha, reward_mean, reward_var, terminal, rewards, r_max, discount, noise_var, visits)
        if belief.graph.order is None:
            raise UsageError("alpha has a cycle (or no terminal state): use Belief.stationary with a discount below 1")
        return belief

    @classmethod
    def stationary(
        cls,
        alpha: Any,
        reward_mean: Any = None,
        reward_var: Any = None,
        *,
        discount: float,
        horizon: int | None = None,
        terminal: Any = (),
        rewards: RewardBelief | None = None,
        r_max: float | None = None,
        noise_var: Any = 1.0,
        visits: Any = 0.0,
    ) -> Belief:
        """One posterior for all times: discounted for ever, or with `horizon` for so many decisions (see `unroll`).

        alpha: (S, A, S), dense, or sparse (S * A, S) with row s * A + a; rewards of shape (S, A). `terminal` as in
        `acyclic`, none by default.
        """
        if horizon is None and not 0.0 <= discount < 1.0:
            raise UsageError(f"discount={discount:g} without a horizon: take a discount in [0, 1), or give horizon=")
        belief = cls._flat(alpha, reward_mean, reward_var, terminal, rewards, r_max, discount, noise_var, visits)
        return belief if horizon is None else unroll(belief, horizon)

    @classmethod
    def _flat(
        cls, alpha: Any, reward_mean: Any, reward_var: Any, terminal: Any, rewards: RewardBelief | None,
        r_max: float | None, discount: float, noise_var: Any, visits: Any,
    ) -> Belief:  # fmt: skip
        alpha = alpha if is_sparse(alpha) else numbers(alpha, "alpha")
        if not (is_sparse(alpha) or alpha.ndim == 3):
            raise UsageError(f"alpha has shape {alpha.shape}: expected {_FLAT_ALPHA}")
        n_states = alpha.shape[-1]
        if n_states == 0 or (alpha.shape[0] % n_states if is_sparse(alpha) else alpha.shape[0] != n_states):
            raise UsageError(f"alpha has shape {alpha.shape}: expected {_FLAT_ALPHA}")
        part = read_rows(
            alpha, "alpha", alpha.shape[0] // n_states if is_sparse(alpha) else None, read_terminal(terminal, n_states)
        )
        graph = Graph(n_states, part.n_actions, part.indptr.astype(np.int64), part.indices.astype(np.int32, copy=False))
        return _assemble(cls, graph, part.data, reward_mean, reward_var, rewards, r_max, discount, noise_var, visits)

    @classmethod
    def over(cls, graph: Graph, alpha: Floats, rewards: RewardBelief, *, r_max: float, discount: float = 1.0) -> Belief:
        """From a graph: alpha per edge, reward parameters per row. No checks: for code, not for data."""
        return cls(
            graph=graph,
            alpha=alpha,
            rewards=rewards,
            discount=float(discount),
            r_max=float(r_max),
            visits=np.zeros(graph.n_rows),
            group=np.arange(graph.n_rows, dtype=np.int32),
            alpha_start=graph.indptr,
        )

    @cached_property
    def total(self) -> Floats:
        """α₀ of each group; 1 where there is none (actions that do not exist)."""
        width = np.diff(self.alpha_start)
        filled = np.flatnonzero(width)
        total = np.ones(len(width))
        total[filled] = np.add.reduceat(self.alpha, self.alpha_start[filled])
        return total

    @cached_property
    def is_tied(self) -> bool:
        """Does one posterior stand behind several rows?"""
        used = self.group[self.graph.successors > 0]
        return bool(len(used)) and int(np.bincount(used).max()) > 1

    @property
    def is_acyclic(self) -> bool:
        """Can no state be seen twice in an episode?"""
        return self.graph.order is not None

    @cached_property
    def steps_left(self) -> NDArray[np.int64] | None:
        """The most decisions still possible from each node; None where there is no end."""
        from ube.tabular import kernels

        graph = self.graph
        if graph.order is None:
            return None
        return kernels.depths(graph.n_nodes, graph.n_actions, graph.order, graph.indptr, graph.indices)

    def largest_return(self, steps: NDArray[np.int64] | int | None) -> Floats:
        """r_max (1 + γ + … ) over so many steps: the Q_max of the paper, H·R_max without a discount."""
        if steps is None:
            return np.asarray(self.r_max / (1.0 - self.discount))
        if self.discount == 1.0:
            return self.r_max * np.asarray(steps, dtype=np.float64)
        return self.r_max * (1.0 - self.discount ** np.asarray(steps, dtype=np.float64)) / (1.0 - self.discount)

    def updated(self, transitions: Iterable[Sequence[float]]) -> Belief:
        """The posterior after these transitions, as a new belief.

        Each is (state, action, reward, next_state), with the layer in front for a layered or unrolled belief:
        (layer, state, action, reward, next_state), all counted from 0.
        """
        rows, place, reward = read_transitions(self.graph, transitions)
        if len(rows) == 0:
            return self
        groups = self.group[rows].astype(np.int64)
        alpha = self.alpha + np.bincount(self.alpha_start[groups] + place, minlength=len(self.alpha))
        visits = self.visits + np.bincount(groups, minlength=len(self.visits))
        return dataclasses.replace(self, alpha=alpha, visits=visits, rewards=self.rewards.updated(groups, reward))

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        """n draws of the MDP: probabilities (n, entries of alpha) and mean rewards (n, groups)."""
        weight = rng.standard_gamma(self.alpha, (n, len(self.alpha)))
        width = np.diff(self.alpha_start)
        filled = np.flatnonzero(width)
        total = np.add.reduceat(weight, self.alpha_start[filled], axis=1)
        # Gamma draws with tiny alpha can all be 0: a row then has its mass on one entry, chosen by the means.
        for draw, at in np.argwhere(total == 0.0):
            entries = slice(self.alpha_start[filled[at]], self.alpha_start[filled[at] + 1])
            chosen = rng.choice(width[filled[at]], p=self.alpha[entries] / self.alpha[entries].sum())
            weight[draw, self.alpha_start[filled[at]] + chosen] = total[draw, at] = 1.0
        return weight / np.repeat(total, width[filled], axis=1), self.rewards.sample(rng, n)


def unroll(belief: Belief, horizon: int) -> Belief:
    """A stationary belief as `horizon` layers of copies that share its posteriors.

    The copies are *not* independent, so no method's guarantee survives (`solution.guarantee` says so): with one state,
    one action and an unknown mean reward of variance σ², the return has variance H²σ², Theorem 1 gives Hσ².
    """
    graph = belief.graph
    if graph.layers is not None:
        raise UsageError("this belief already has layers: only a stationary or acyclic one can be unrolled")
    if not 1 <= horizon < np.inf or horizon != int(horizon):
        raise UsageError(f"horizon={horizon}: it must be a whole number, 1 or more")
    horizon = int(horizon)
    n, edges = graph.n_nodes, len(graph.indices)
    layer = np.arange(horizon)[:, None]
    indptr = np.concatenate(
        [(graph.indptr[:-1] + layer * edges).reshape(-1), np.full(graph.n_rows + 1, horizon * edges)]
    )
    indices = (graph.indices + (layer + 1) * n).reshape(-1).astype(np.int32)
    group = np.tile(belief.group, horizon + 1)
    layers = tuple(range(0, (horizon + 1) * n, n))
    copies = Graph((horizon + 1) * n, graph.n_actions, indptr, indices, layers)
    return dataclasses.replace(belief, graph=copies, group=group)


def _assemble(
    cls: type[Belief], graph: Graph, alpha: Floats, reward_mean: Any, reward_var: Any,
    rewards: RewardBelief | None, r_max: float | None, discount: float, noise_var: Any, visits: Any,
) -> Belief:  # fmt: skip
    if rewards is None:
        if reward_mean is None or reward_var is None:
            raise UsageError("no rewards: give reward_mean and reward_var, or rewards=")
        mean = graph.per_row(reward_mean, "reward_mean")
        spread = graph.per_row(reward_var, "reward_var")
        _check_rows(graph, mean, np.isfinite(mean), "reward_mean", "it must be finite")
        _check_rows(graph, spread, spread >= 0, "reward_var", "a variance is 0 or more")
        rewards = Normal(mean, spread, graph.per_row(noise_var, "noise_var"))
    elif not isinstance(rewards, RewardBelief):
        raise UsageError(
            f"rewards={rewards!r}: give a Normal, NormalGamma or ScaledBeta, or reward_mean and reward_var"
        )
    elif reward_mean is not None or reward_var is not None:
        raise UsageError("rewards= is given as well as reward_mean or reward_var: give one of the two")
    else:
        shown = graph.n_decisions * graph.n_actions
        kind = type(rewards).__name__

        def arrange(values: Any) -> Floats:
            flat = graph.per_row(values, f"{kind} parameter")
            flat[shown:] = flat[0]  # rows of terminal nodes are never read, but parameters must be valid
            return flat

        rewards = rewards.arranged(arrange)
    if not 0.0 <= discount <= 1.0:
        raise UsageError(f"discount={discount:g}: it must be in [0, 1]")
    mean = np.where(graph.successors > 0, np.abs(rewards.mean), 0.0)
    bound = r_max if r_max is not None else (rewards.bound if np.isfinite(rewards.bound) else 1.0)
    if not 0 <= bound < np.inf:
        raise UsageError(f"r_max={bound:g}: it must be finite and 0 or more")
    worst = int(np.argmax(mean))
    if mean[worst] > bound:
        raise UsageError(
            f"r_max={bound:g} is below |mean reward{graph.entry(worst)}| = {mean[worst]:g}: "
            f"pass r_max of at least {mean[worst]:g}"
        )
    counts = graph.per_row(visits, "visits")
    _check_rows(graph, counts, (counts >= 0) & (counts < np.inf), "visits", "a count is 0 or more")
    belief = cls.over(graph, alpha, rewards, r_max=bound, discount=discount)
    return dataclasses.replace(belief, visits=counts)


def _check_rows(graph: Graph, values: Floats, holds: NDArray[np.bool_], name: str, remedy: str) -> None:
    if not holds.all():
        row = int(np.argmin(holds))
        raise UsageError(f"{name}{graph.entry(row)} is {values[row]:g}: {remedy}")
