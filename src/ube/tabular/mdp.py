"""Explicit MDPs: known to the experimenter, steppable, and the source of a matching prior belief for agents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ube.errors import UsageError
from ube.tabular.belief import Belief, unroll
from ube.tabular.graph import Graph
from ube.tabular.rewards import Floats, Normal
from ube.tabular.solver import Solution, solve


@dataclass(frozen=True, eq=False)
class MDP:
    """True transition probabilities and rewards, laid out as in `Belief`: one entry per group of rows that share them.

    Rewards are Normal with the given mean and standard deviation (0: deterministic). The graph holds every transition
    that an agent should think possible; those that never happen have probability 0.
    """

    name: str
    graph: Graph
    probability: Floats
    reward_mean: Floats
    reward_std: Floats
    r_max: float
    start: int = 0
    discount: float = 1.0
    horizon: int | None = None
    """Unrolled over so many decisions, if stationary; agents then share what they learn between layers."""

    def belief(
        self, *, alpha: float = 1.0, reward_mean: float = 0.0, reward_var: float = 1.0, noise_var: float | None = None
    ) -> Belief:
        """The same prior for every row: Dirichlet(alpha, …, alpha) over its successors, Normal mean rewards.

        noise_var is what agents take as the variance of one reward; by default the true one.
        """
        if not 0 < alpha < np.inf:
            raise UsageError(f"alpha={alpha:g}: a Dirichlet prior needs a positive, finite alpha")
        noise = self.reward_std**2 if noise_var is None else np.full(self.graph.n_rows, float(noise_var))
        spread = np.where(self.graph.successors > 0, float(reward_var), 0.0)  # of actions that exist
        rewards = Normal(np.full(self.graph.n_rows, reward_mean), spread, noise)
        prior = Belief.over(
            self.graph,
            np.full(len(self.graph.indices), float(alpha)),
            rewards,
            r_max=self.r_max,
            discount=self.discount,
        )
        return prior if self.horizon is None else unroll(prior, self.horizon)

    @cached_property
    def optimal(self) -> Solution:
        """The optimal policy and its values: the greedy solution of a belief without doubt."""
        certain = Belief.over(
            _only_possible(self.graph, self.probability), self.probability[self.probability > 0],
            Normal(self.reward_mean, np.zeros(self.graph.n_rows)), r_max=self.r_max, discount=self.discount,
        )  # fmt: skip
        return solve(certain if self.horizon is None else unroll(certain, self.horizon), "greedy", "pombu")

    @property
    def optimal_return(self) -> float:
        value = self.optimal.value_mean
        first = value[0] if self.graph.layers is not None or self.horizon is not None else value
        return float(first[self.start])

    def step(self, node: int, action: int, rng: np.random.Generator) -> tuple[float, int, bool]:
        """(reward, next node, has the episode ended) from a node of the graph; the horizon is the caller's to count."""
        exists = 0 <= node < self.graph.n_nodes and 0 <= action < self.graph.n_actions
        if not exists or not self.graph.available[node, action]:
            raise UsageError(f"{self.name}: action {action} does not exist in state {node}")
        row = node * self.graph.n_actions + action
        successors = self.graph.indices[self.graph.indptr[row] : self.graph.indptr[row + 1]]
        p = self.probability[self.graph.indptr[row] : self.graph.indptr[row + 1]]
        following = int(successors[rng.choice(len(successors), p=p)])
        reward = self.reward_mean[row] + self.reward_std[row] * rng.standard_normal()
        return float(reward), following, bool(self.graph.terminal[following])


def _only_possible(graph: Graph, probability: Floats) -> Graph:
    kept = probability > 0
    indptr = np.r_[0, np.cumsum(kept)][graph.indptr]
    return Graph(graph.n_nodes, graph.n_actions, indptr, graph.indices[kept], graph.layers)


class _Builder:
    """Collects rows in order: `row(successors, probabilities, mean, std)` for each state and action in turn."""

    def __init__(self, n_actions: int) -> None:
        self.n_actions = n_actions
        self.indptr, self.indices, self.probability = [0], [], []  # type: ignore[var-annotated]
        self.mean: list[float] = []
        self.std: list[float] = []

    def row(self, successors: dict[int, float], mean: float = 0.0, std: float = 0.0) -> None:
        self.indices += successors.keys()
        self.probability += successors.values()
        self.indptr.append(len(self.indices))
        self.mean.append(mean)
        self.std.append(std)

    def ending(self, n: int) -> None:
        for _ in range(n * self.n_actions):
            self.row({})

    def build(
        self, name: str, r_max: float, *, layers: tuple[int, ...] | None = None, horizon: int | None = None
    ) -> MDP:
        n_nodes = len(self.mean) // self.n_actions
        graph = Graph(
            n_nodes, self.n_actions, np.array(self.indptr, np.int64), np.array(self.indices, np.int32), layers
        )  # fmt: skip
        probability, mean, std = (np.array(x, dtype=np.float64) for x in (self.probability, self.mean, self.std))
        return MDP(name, graph, probability, mean, std, r_max=r_max, horizon=horizon)


def chain(length: int = 10, means: tuple[float, float] = (1.0, 0.0), sigma: float = 1.0) -> MDP:
    """The paper's Figure 1. Action 0 at the root pays N(μ1, σ²) and ends; action 1 leads down `length` states, each
    paying N(μ2 / H, σ² / H). Optimum: max(μ1, μ2). Entering the chain itself pays nothing, and that is known.
    """
    _at_least(length, 1, "length")
    if not 0 <= sigma < np.inf:
        raise UsageError(f"sigma={sigma:g}: a standard deviation is finite and 0 or more")
    end = length + 1
    rows = _Builder(n_actions=2)
    rows.row({end: 1.0}, means[0], sigma)
    rows.row({1: 1.0})
    for state in range(1, length + 1):
        rows.row({state + 1: 1.0}, means[1] / length, sigma / length**0.5)
        rows.row({})
    rows.ending(1)
    return rows.build(f"chain-{length}", r_max=max(1.0, *map(abs, means)))


def deep_sea(
    size: int,
    rng: np.random.Generator,
    *,
    known_transitions: bool = False,
    stochastic: bool = False,
    move_cost: float = 0.01,
) -> MDP:
    """DeepSea (Osband et al. 2019, rules of bsuite): a triangle of `size` layers, one step right or left each time.

    Which action means right is drawn for every cell. Right costs move_cost / size; right in the last column pays 1 and
    is found only by going right all the way. Optimum: 1 - move_cost. With `stochastic`, right fails to move with
    probability 1 / size, and the two lower corners pay N(0, 1) on top. Agents think that each action may lead to either
    neighbour (or, if stochastic, nowhere), unless the transitions are known.
    """
    _at_least(size, 2, "size")
    layers = tuple(int(first) for first in np.r_[0, np.cumsum(np.arange(1, size + 1))])
    rows = _Builder(n_actions=2)
    for depth in range(size):
        last = depth == size - 1
        following = layers[depth + 1]
        for column in range(depth + 1):
            right_action = int(rng.integers(2))
            corner = last and column in (0, size - 1)
            for action in range(2):
                right = action == right_action
                mean = (float(column == size - 1) - move_cost / size) if right else 0.0
                std = 1.0 if stochastic and corner else 0.0
                if last:
                    rows.row({following: 1.0}, mean, std)
                    continue
                moves = {following + max(column - 1, 0): 0.0, following + column + 1: 0.0}
                if stochastic:
                    moves.setdefault(following + column, 0.0)
                slip = 1.0 / size if stochastic and right else 0.0
                moves[following + (column + 1 if right else max(column - 1, 0))] = 1.0 - slip
                if slip:
                    moves[following + column] += slip
                if known_transitions:
                    moves = {node: p for node, p in moves.items() if p > 0}
                rows.row(dict(sorted(moves.items())), mean, std)
    rows.ending(1)
    return rows.build(f"deepsea-{size}", r_max=1.0, layers=layers)


def tree(depth: int, rng: np.random.Generator) -> MDP:
    """The binary tree of Janz et al. 2019: at each of `depth` junctions one action, drawn at random, ends the episode
    with nothing, the other goes on; 1 after the last. Optimum: 1. Uniform play finds it with probability 2^-depth.
    """
    _at_least(depth, 1, "depth")
    dead, found = depth, depth + 1
    rows = _Builder(n_actions=2)
    for junction in range(depth):
        good = int(rng.integers(2))
        onward = junction + 1 if junction + 1 < depth else found
        for action in range(2):
            moves = dict(sorted({onward: float(action == good), dead: float(action != good)}.items()))
            rows.row(moves, float(action == good and onward == found))
    rows.ending(2)
    return rows.build(f"tree-{depth}", r_max=1.0)


def river_swim(n_states: int = 6, horizon: int = 20) -> MDP:
    """RiverSwim (Strehl & Littman 2008, in the episodes and numbers of Osband et al. 2013).

    Left always works and pays 0.005 at the left end; right works with 0.35 against the current and pays 1 at the right
    end. The same in every layer. Agents think that either action may lead to either neighbour or nowhere.
    """
    _at_least(n_states, 2, "n_states")
    last = n_states - 1
    rows = _Builder(n_actions=2)
    for state in range(n_states):
        near = dict.fromkeys(range(max(state - 1, 0), min(state + 1, last) + 1), 0.0)
        rows.row(near | {max(state - 1, 0): 1.0}, 0.005 if state == 0 else 0.0)
        if state == 0:
            right = {0: 0.4, 1: 0.6}
        elif state == last:
            right = {last - 1: 0.4, last: 0.6}
        else:
            right = {state - 1: 0.05, state: 0.6, state + 1: 0.35}
        rows.row(near | right, float(state == last))
    return rows.build(f"riverswim-{n_states}", r_max=1.0, horizon=horizon)


def random_layered(
    horizon: int, n_states: int, n_actions: int, rng: np.random.Generator, *, concentration: float = 1.0
) -> MDP:
    """Dirichlet transitions between layers of `n_states`, mean rewards uniform on [0, 1] with unit noise."""
    for name, value in (("horizon", horizon), ("n_states", n_states), ("n_actions", n_actions)):
        _at_least(value, 1, name)
    layers = tuple(range(0, (horizon + 1) * n_states, n_states))
    rows = _Builder(n_actions)
    for layer in range(horizon):
        for _ in range(n_states * n_actions):
            p = rng.dirichlet(np.full(n_states, concentration))
            following = range((layer + 1) * n_states, (layer + 2) * n_states)
            rows.row(dict(zip(following, p.tolist(), strict=True)), float(rng.random()), 1.0)
    rows.ending(n_states)
    return rows.build(f"random-{horizon}x{n_states}x{n_actions}", r_max=1.0, layers=layers)


def _at_least(value: int, least: int, name: str) -> None:
    if value != int(value) or value < least:
        raise UsageError(f"{name}={value}: it must be a whole number, {least} or more")
