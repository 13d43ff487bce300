"""The same number of settings for each line of a figure, tried on seeds of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ube.tabular.agents import AGENTS, Agent

_SCALES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
CANDIDATES: dict[str, list[Agent]] = {
    "ube-thompson": [AGENTS["ube-thompson"].but(beta=b) for b in _SCALES],
    "ube-ucb": [AGENTS["ube-ucb"].but(beta=b) for b in _SCALES],
    "ube-ucb-exact": [AGENTS["ube-ucb"].but(variance="exact", beta=b) for b in _SCALES],
    "ube-ucb-horizon": [AGENTS["ube-ucb"].but(variance="ube-horizon", beta=b) for b in _SCALES],
    "ube-episode": [AGENTS["ube-episode"].but(beta=b) for b in _SCALES],
    "ube-joint": [AGENTS["ube-joint"].but(beta=b) for b in _SCALES],
    "bonus": [AGENTS["bonus"].but(beta=b) for b in (0.0001, 0.001, 0.01, 0.03, 0.1, 1.0)],
    "ucbvi": [AGENTS["ucbvi"].but(beta=b) for b in _SCALES],
    "rlsvi": [AGENTS["rlsvi"].but(beta=b) for b in _SCALES],
    "psrl": [AGENTS["psrl"].but(prior_alpha=a) for a in (0.03, 0.1, 0.3, 0.5, 1.0, 2.0)],
    "k-learning": [AGENTS["k-learning"].but(beta=b) for b in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)],
    "epsilon-greedy": [AGENTS["epsilon-greedy"].but(epsilon=e) for e in (0.01, 0.03, 0.1, 0.2, 0.5, 1.0)],
    "boltzmann": [AGENTS["boltzmann"].but(temperature=t) for t in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)],
}
FIRST_TUNING_SEED = 1_000_000  # far from the seeds that are reported


def tune(
    costs: Callable[[dict[tuple[str, int], Agent], range], Mapping[tuple[str, int], float]], n_seeds: int
) -> dict[str, Agent]:
    """The best candidate of each name, by `costs` of all candidates on the tuning seeds."""
    options = {(name, i): agent for name, agents in CANDIDATES.items() for i, agent in enumerate(agents)}
    cost = costs(options, range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + n_seeds))
    return {
        name: agents[middle_of_best([cost[name, i] for i in range(len(agents))])] for name, agents in CANDIDATES.items()
    }


def middle_of_best(costs: Sequence[float]) -> int:
    """The middle one of the settings that tie for the lowest cost (within 1 %): the edge of a plateau is a poor bet."""
    best = [i for i, cost in enumerate(costs) if cost <= 1.01 * min(costs)]
    return best[len(best) // 2]
