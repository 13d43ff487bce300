"""The learning loop: plan from the belief, act for an episode, update the belief. Compiled, one seed at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ube.errors import UsageError
from ube.tabular.agents import KINDS, NOISES, Agent
from ube.tabular.belief import Belief
from ube.tabular.mdp import MDP
from ube.tabular.rewards import Floats, Normal
from ube.tabular.solver import compiled_problem, transition_scale


class Learner:
    """An agent, with its prior belief, ready to learn in an MDP. One learner serves any number of seeds."""

    def __init__(self, mdp: MDP, belief: Belief, agent: Agent) -> None:
        from ube.tabular import learning_kernels as compiled

        _check(mdp, belief, agent)
        self.mdp, self.belief, self.agent = mdp, belief, agent
        graph, steps = belief.graph, belief.steps_left
        assert steps is not None
        exact = agent.variance == "exact" and agent.kind in ("ube", "k-learning")
        slot, self._n_slots = graph.slots if exact else (np.where(graph.terminal, -1, 0).astype(np.int32), 0)
        self._problem = compiled_problem(belief, slot)
        self._truth = compiled.Truth(mdp.probability, mdp.reward_mean, mdp.reward_std, mdp.start)
        self._settings = compiled.Settings(
            kind=KINDS.index(agent.kind),
            method=compiled.METHOD_CODES[agent.variance],
            counted=agent.variance == "count",
            noise=NOISES.index(agent.noise),
            evaluate_acting=agent.evaluate == "acting",
            beta=float(agent.beta),
            epsilon=float(agent.epsilon),
            temperature=float(agent.temperature),
            prior_std=float(agent.prior_std),
            transition_scale=transition_scale(belief, agent.variance),
            largest_return=np.repeat(belief.largest_return(steps), graph.n_actions),
        )

    def run(
        self, episodes: int, rng: np.random.Generator, stop: Stop | None = None, *, evaluate_policy: bool = False
    ) -> Floats:
        """The sum of true mean rewards along each episode, (episodes,).

        With `evaluate_policy`, its expectation instead: the true value of the policy followed in that episode.
        """
        from ube.tabular import learning_kernels as compiled

        end, n_nodes = stop or Stop(np.inf, 0, 1), self.belief.graph.n_nodes
        return compiled.learn(
            self._problem, self._truth, self._prior(), self._settings, n_nodes, self._n_slots, int(episodes),
            bool(evaluate_policy), end.threshold, end.successes, end.window, rng,
        )  # fmt: skip

    def _prior(self) -> Any:
        """The belief as the compiled loop updates it, a fresh copy for each run."""
        from ube.tabular import learning_kernels as compiled

        belief = self.belief
        return compiled.State(
            alpha=belief.alpha.copy(),
            total=belief.total.copy(),
            reward_mean=belief.rewards.mean.copy(),
            reward_variance=belief.rewards.variance.copy(),
            noise_variance=belief.rewards.noise_variance,
            counts=np.zeros_like(belief.alpha),
            visits=belief.visits.copy(),
            reward_sum=np.zeros_like(belief.visits),
        )


def _check(mdp: MDP, belief: Belief, agent: Agent) -> None:
    """Compiled loops do not look where they reach: everything they rely on is checked here."""
    if not belief.is_acyclic or not isinstance(belief.rewards, Normal):
        raise UsageError("agents need a belief without cycles and with Normal rewards: unroll it, or see MDP.belief")
    expected = mdp.graph if mdp.horizon is None else mdp.belief().graph
    same = expected is belief.graph or (
        np.array_equal(expected.indptr, belief.graph.indptr) and np.array_equal(expected.indices, belief.graph.indices)
    )
    if not same or not np.array_equal(belief.alpha_start, mdp.graph.indptr):
        raise UsageError(f"the belief is about another MDP than {mdp.name}: make it with MDP.belief and Belief.updated")
    if agent.kind in ("rlsvi", "ucbvi") and belief.visits.any():
        raise UsageError(f"{agent.kind} learns from its own data alone: give it a belief without updates")
    if agent.variance == "count" and agent.kind in ("ube", "bonus", "k-learning") and belief.is_tied:
        raise UsageError(
            "variance='count' needs a visit count for each row: not offered where layers share a posterior"
        )
    rows = belief.graph.successors > 0
    improper = np.isinf(belief.rewards.variance[belief.group]) & rows
    if improper.any():
        if agent.kind in ("psrl", "k-learning") or (agent.kind == "ube" and agent.noise == "joint"):
            raise UsageError(f"agent {agent.name!r} cannot draw from an improper prior: give a finite reward_var")
        if (belief.graph.successors > 1).any():
            raise UsageError("an improper prior works only where transitions are known: give a finite reward_var")


@dataclass(frozen=True)
class Stop:
    """End a run after `successes` episodes with a return above `threshold` among the last `window`."""

    threshold: float = 0.5
    successes: int = 10
    window: int = 100


@dataclass(frozen=True)
class Cell:
    """One seed of one agent. Where the MDP is random, `learner` makes it from the seed's own generator."""

    learner: Learner | Callable[[np.random.Generator], Learner]
    episodes: int
    seed: int
    stop: Stop | None = None
    evaluate_policy: bool = False

    def run(self) -> Run:
        world, actions = (np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(2))
        learner = self.learner if isinstance(self.learner, Learner) else self.learner(world)
        return Run(learner.mdp, learner.run(self.episodes, actions, self.stop, evaluate_policy=self.evaluate_policy))


@dataclass(frozen=True, eq=False)
class Run:
    mdp: MDP
    returns: Floats

    @property
    def regret(self) -> Floats:
        """Of each episode, against the optimal policy."""
        return self.mdp.optimal_return - self.returns


def run_cells(cells: Sequence[Cell], threads: int | None = None) -> Iterator[Run]:
    """All cells in order, over threads (the compiled loop runs without the interpreter lock)."""
    if not cells:
        return
    yield cells[0].run()  # compiles once, before the threads would all do it
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        yield from pool.map(Cell.run, cells[1:])


def episodes_to_solve(returns: Floats, threshold: float = 0.5, successes: int = 10, window: int = 100) -> int | None:
    """The first successful episode, counted from 1, from which on `successes` of `window` succeed; None if there is none."""
    found = np.flatnonzero(returns > threshold)
    for i, episode in enumerate(found):
        if i + successes <= len(found) and found[i + successes - 1] - episode < window:
            return int(episode) + 1
    return None
