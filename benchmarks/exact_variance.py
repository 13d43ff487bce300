"""The exact posterior variance of DeepSea's root against Monte Carlo that is as good as 1 %, and its cost at larger sizes.

Monte Carlo's standard error falls with √samples: a pilot run gives the number of samples at which it is 1 % of the
variance, and that many are then drawn and timed in full, nothing is scaled. Two of them, both on one thread:
*vectorised*, `ube.tabular.monte_carlo`, which moves thousands of MDPs at once through NumPy and returns all (s, a), as
`exact` does; and *compiled*, written for this benchmark, which draws and solves one MDP after the other and returns the
variance of one Q at the root only. The demand is against the first; the second shows what a special-purpose one gains.

`exact` is timed after compilation: *first* on a graph not seen before, *again* on one whose order of states is kept.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import numpy as np
from numba import njit

from benchmarks import common
from ube.tabular import Belief, monte_carlo, solve
from ube.tabular.mdp import MDP, deep_sea

SIZE, LARGER = 20, (100, 200)
EPISODES = 100
PILOT = 20_000
REPEATS = 15
TARGET = 0.01  # relative standard error


@njit(nogil=True, error_model="numpy")
def compiled_monte_carlo(
    order, n_actions, indptr, successor, alpha, reward_mean, reward_std, policy, root_row, samples, rng
):
    """Variance of Q at one row of the root: no ties, no discount, the root last in `order`. Welford's update."""
    value = np.zeros(len(policy))
    mean = 0.0
    scatter = 0.0
    for sample in range(samples):
        q_root = 0.0
        for node in order:
            value[node] = 0.0
            for action in range(n_actions):
                row = node * n_actions + action
                if policy[node, action] == 0.0 and row != root_row:
                    continue
                total = 0.0
                following = 0.0
                for edge in range(indptr[row], indptr[row + 1]):
                    weight = rng.standard_exponential() if alpha[edge] == 1.0 else rng.standard_gamma(alpha[edge])
                    total += weight
                    following += weight * value[successor[edge]]
                q = reward_mean[row] + reward_std[row] * rng.standard_normal() + following / total
                value[node] += policy[node, action] * q
                if row == root_row:
                    q_root = q
                    break  # nothing needs the root's other actions
        change = q_root - mean
        mean += change / (sample + 1)
        scatter += change * (q_root - mean)
    return scatter / (samples - 1)


def posterior(mdp: MDP, episodes: int, rng: np.random.Generator) -> Belief:
    """The prior updated with so many episodes of uniformly random actions."""
    starts = mdp.graph.layers
    assert starts is not None
    transitions = []
    for _ in range(episodes):
        node = mdp.start
        for layer in range(len(starts) - 1):
            action = int(rng.integers(2))
            reward, following, _ = mdp.step(node, action, rng)
            transitions.append((layer, node - starts[layer], action, reward, following - starts[layer + 1]))
            node = following
    return mdp.belief(noise_var=1.0).updated(transitions)


def forgetful(belief: Belief) -> Belief:
    """The same belief without anything that an earlier solution left behind in it."""
    return dataclasses.replace(belief, graph=dataclasses.replace(belief.graph))


def time_exact(belief: Belief) -> dict[str, Any]:
    again = common.best(lambda: solve(belief, "uniform", "exact"), repeats=REPEATS)
    fresh = iter([forgetful(belief) for _ in range(REPEATS + 1)])
    first = common.best(lambda: solve(next(fresh), "uniform", "exact"), repeats=REPEATS)
    solution = solve(belief, "uniform", "exact")
    assert solution.guarantee == "exact"
    return {"first_seconds": first, "again_seconds": again, "variance": float(solution.variance[0][0, 0])}


def compare(belief: Belief, rng: np.random.Generator) -> dict[str, Any]:
    exact = time_exact(belief)
    pilot = monte_carlo(belief, "uniform", PILOT, rng=rng)
    relative = float(pilot.variance_se[0][0, 0] / pilot.variance[0][0, 0])
    samples = math.ceil(PILOT * (relative / TARGET) ** 2)
    runs = [common.timed(lambda: monte_carlo(belief, "uniform", samples, rng=rng)) for _ in range(3)]
    estimate = runs[-1][1]
    graph, rewards = belief.graph, belief.rewards
    policy = solve(belief, "uniform", "pombu").policy
    table = np.concatenate([*policy, np.zeros((graph.n_nodes - graph.n_decisions, graph.n_actions))])

    def compiled(n: int) -> float:
        return compiled_monte_carlo(
            graph.order, graph.n_actions, graph.indptr, graph.indices, belief.alpha, rewards.mean,
            np.sqrt(rewards.variance), table, 0, n, rng,
        )  # fmt: skip

    compiled(2)
    compiled_runs = [common.timed(lambda: compiled(samples)) for _ in range(3)]
    vectorised_seconds = min(seconds for seconds, _ in runs)
    compiled_seconds = min(seconds for seconds, _ in compiled_runs)
    return {
        "exact": exact,
        "samples": samples,
        "vectorised": {
            "seconds": vectorised_seconds,
            "ratio": vectorised_seconds / exact["again_seconds"],
            "ratio_to_first": vectorised_seconds / exact["first_seconds"],
            "variance": float(estimate.variance[0][0, 0]),
            "standard_error": float(estimate.variance_se[0][0, 0]),
        },
        "compiled": {
            "seconds": compiled_seconds,
            "ratio": compiled_seconds / exact["again_seconds"],
            "ratio_to_first": compiled_seconds / exact["first_seconds"],
            "variance": float(compiled_runs[-1][1]),
        },
    }


def main() -> None:
    options = common.arguments(__doc__, "exact_variance")
    load = os.getloadavg()
    rng = np.random.default_rng(0)
    mdp = deep_sea(SIZE, rng)
    beliefs = {
        "prior": mdp.belief(noise_var=1.0),
        f"after {EPISODES} episodes": posterior(mdp, EPISODES, rng),
    }
    results = {name: compare(belief, rng) for name, belief in beliefs.items()}
    larger = {size: time_exact(deep_sea(size, rng).belief(noise_var=1.0)) for size in LARGER}

    rows: list[tuple[Any, ...]] = []
    for name, r in results.items():
        exact = r["exact"]
        rows.append((f"{name}: exact", "", 1e3 * exact["again_seconds"], 1.0, exact["variance"], ""))
        for kind in ("vectorised", "compiled"):
            error = r[kind]["variance"] / exact["variance"] - 1
            rows.append(
                (f"{name}: {kind}", r["samples"], 1e3 * r[kind]["seconds"], r[kind]["ratio"], r[kind]["variance"],
                 f"{100 * error:+.2f} %")
            )  # fmt: skip
    print(
        f"variance of the root's Q on DeepSea-{SIZE}, Monte Carlo with a standard error of {TARGET:.0%}, one thread\n"
    )
    common.table(("", "samples", "ms", "times exact", "variance", "off by"), rows)
    common.table(
        ("exact on", "first, ms", "again, ms", "variance at the root"),
        [
            (f"DeepSea-{size}", 1e3 * r["first_seconds"], 1e3 * r["again_seconds"], r["variance"])
            for size, r in {SIZE: results["prior"]["exact"], **larger}.items()
        ],
    )
    demands = [
        common.demand(f"vectorised Monte Carlo to exact, {name}", r["vectorised"]["ratio"], 1000.0, least=True)
        for name, r in results.items()
    ]
    record = {"deep_sea": SIZE, "target": TARGET, "beliefs": results, "larger": larger, "demands": demands}
    common.write(options.out, "exact_variance", load, record)


if __name__ == "__main__":
    main()
