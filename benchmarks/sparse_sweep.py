"""A sweep over 10⁶ states x 4 actions x 4 next states against SciPy's product of the same matrix with a vector.

Both read every Dirichlet parameter and gather one value for each. The sweep also averages over the policy and tracks the
change that its stopping rule needs. Measured: seconds of a sweep on one and on two threads, what bounds it, seconds and
sweeps of a whole solution by the paper's bound at discount 0.95, and the peak of memory against the size of the model:
alpha with its indices, reward means and variances, as a user holds them before the belief copies them.

What bounds it: compare the sweep with *the same with next states close by*, which moves the same bytes but finds the
values in the nearest cache, and with the rate at which one thread reads memory in order. Where the first gap is wide and
the GB/s far below the reading rate, time goes into waiting for gathered values, not into memory traffic.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from benchmarks import common
from ube.tabular import Belief, kernels, solve

STATES, ACTIONS, NEXT = 1_000_000, 4, 4
DISCOUNT = 0.95
REPEATS = 25
MIB = 2**20


def model(n_states: int, rng: np.random.Generator) -> dict[str, Any]:
    """What a user would pass to `Belief.stationary`; drawn in pieces so that no temporary shows in the peak.

    Each row leads to one random state of each quarter: random, sorted and without duplicates.
    """
    n_rows = n_states * ACTIONS
    successor = np.empty((n_rows, NEXT), dtype=np.int32)
    for first in range(0, n_rows, 100_000):
        piece = successor[first : first + 100_000]
        for k in range(NEXT):
            piece[:, k] = rng.integers(k * n_states // NEXT, (k + 1) * n_states // NEXT, len(piece), dtype=np.int32)
    data = np.empty(n_rows * NEXT)
    rng.random(out=data)
    data += 0.5
    indptr = np.arange(0, n_rows * NEXT + 1, NEXT, dtype=np.int32)
    reward_mean = np.empty((n_states, ACTIONS))
    rng.random(out=reward_mean)
    return {
        "alpha": csr_array((data, successor.reshape(-1), indptr), shape=(n_rows, n_states)),
        "reward_mean": reward_mean,
        "reward_var": np.full((n_states, ACTIONS), 0.25),
    }


def size(given: dict[str, Any]) -> int:
    alpha = given["alpha"]
    arrays = (alpha.data, alpha.indices, alpha.indptr, given["reward_mean"], given["reward_var"])
    return sum(array.nbytes for array in arrays)


def policies(n_states: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    stochastic = np.empty((n_states, ACTIONS))
    rng.random(out=stochastic)
    stochastic /= stochastic.sum(axis=1, keepdims=True)
    deterministic = np.zeros((n_states, ACTIONS))
    deterministic[np.arange(n_states), rng.integers(0, ACTIONS, n_states)] = 1.0
    return {"stochastic": stochastic, "deterministic": deterministic}


def measure_sweeps(belief: Belief, tables: dict[str, np.ndarray]) -> dict[str, Any]:
    graph = belief.graph
    matrix = csr_array(
        (belief.alpha, graph.indices, graph.indptr.astype(np.int32)), shape=(graph.n_rows, graph.n_nodes)
    )
    value, new_value = np.linspace(0.0, 1.0, graph.n_nodes), np.empty(graph.n_nodes)
    base = np.ones(graph.n_nodes)
    node = np.repeat(np.arange(graph.n_nodes, dtype=np.int32), ACTIONS * NEXT)
    close = (node + np.tile(np.arange(ACTIONS * NEXT, dtype=np.int32), graph.n_nodes)) % graph.n_nodes
    weights = {name: table.reshape(-1) * DISCOUNT / belief.total for name, table in tables.items()}

    with ThreadPoolExecutor(2) as pool:

        def sweep(policy: str, threads: int, successor: np.ndarray = graph.indices) -> None:
            cuts = np.linspace(0, graph.n_nodes, threads + 1).astype(int)

            def one(i: int) -> tuple[float, float]:
                return kernels.sweep(
                    graph.n_actions, graph.indptr, successor, belief.alpha, weights[policy], base, value, new_value,
                    cuts[i], cuts[i + 1],
                )  # fmt: skip

            if threads == 1:
                one(0)
            else:
                list(pool.map(one, range(threads)))

        sweep("stochastic", 1)
        product = (matrix @ value).reshape(-1, ACTIONS)
        agrees = base + (weights["stochastic"].reshape(-1, ACTIONS) * product).sum(axis=1)
        np.testing.assert_allclose(new_value, agrees, rtol=1e-12)
        seconds = common.interleaved(
            {
                "scipy": lambda: matrix @ value,
                "stochastic, 1 thread": lambda: sweep("stochastic", 1),
                "stochastic, 2 threads": lambda: sweep("stochastic", 2),
                "deterministic, 1 thread": lambda: sweep("deterministic", 1),
                "deterministic, 2 threads": lambda: sweep("deterministic", 2),
                "next states close by, 1 thread": lambda: sweep("stochastic", 1, close),
                "reading in order, 1 thread": lambda: belief.alpha @ belief.alpha,
            },
            REPEATS,
        )
    per_entry = belief.alpha.itemsize + graph.indices.itemsize
    vectors = 4 * value.nbytes  # base, value, and new_value, which is read into the cache before it is written
    streamed = {
        "scipy": matrix.nnz * per_entry + matrix.indptr.nbytes + 2 * 8 * graph.n_rows + value.nbytes,
        "reading in order, 1 thread": belief.alpha.nbytes,
    }
    for name in seconds:
        # A row that the policy never takes costs its place in indptr and weight, not its entries.
        share = 1 / ACTIONS if name.startswith("deterministic") else 1.0
        rows = graph.indptr.nbytes + 8 * graph.n_rows
        streamed.setdefault(name, int(share * len(belief.alpha)) * per_entry + rows + vectors)
    peer = seconds["scipy"]
    return {
        name: {
            "best_seconds": float(times.min()),
            "median_seconds": float(np.median(times)),
            "ratio_of_best": float(times.min() / peer.min()),
            "median_ratio": float(np.median(times / peer)),
            "bytes": streamed[name],
            "gb_per_second": streamed[name] / float(times.min()) / 1e9,
            "seconds": times.tolist(),
        }
        for name, times in seconds.items()
    }


def measure_solve(belief: Belief, tables: dict[str, np.ndarray]) -> dict[str, Any]:
    results = {}
    for name, table in tables.items():
        for threads in (1, 2):
            seconds, solution = common.timed(lambda t=table, n=threads: solve(belief, t, "ube", threads=n))
            key = f"{name}, {threads} thread{'s' * (threads > 1)}"
            results[key] = {"seconds": seconds, "sweeps": solution.sweeps, "error": solution.error}
    return results


def measure_memory(free_input: bool) -> dict[str, Any]:
    """Peaks in bytes above a process that has solved a small belief; run in a process of its own.

    free_input: forget what the belief was built from before solving, as in `solve(Belief.stationary(*load()), …)`.
    """
    rng = np.random.default_rng(0)
    solve(Belief.stationary(**model(1_000, rng), discount=DISCOUNT), "uniform", "ube")
    start = common.resident_bytes()
    given = model(STATES, rng)
    table = policies(STATES, rng)["stochastic"]
    sizes = {"model": size(given), "input": common.resident_bytes() - start}
    belief = Belief.stationary(**given, discount=DISCOUNT)
    sizes["build"] = common.resident_bytes(peak=True) - start
    if free_input:
        del given
    solve(belief, table, "ube")
    return sizes | {"solve": common.resident_bytes(peak=True) - start}


def main() -> None:
    options = common.arguments(__doc__, "sparse_sweep", memory={"choices": ("kept", "freed")})
    if options.memory:
        print(json.dumps(measure_memory(options.memory == "freed")))
        return
    load = os.getloadavg()
    memory = {what: common.in_new_process("benchmarks.sparse_sweep", "--memory", what) for what in ("kept", "freed")}
    rng = np.random.default_rng(0)
    belief = Belief.stationary(**model(STATES, rng), discount=DISCOUNT)
    tables = policies(STATES, rng)
    sweeps = measure_sweeps(belief, tables)
    solutions = measure_solve(belief, tables)

    print(f"one sweep, {STATES:,} states x {ACTIONS} actions x {NEXT} next states, of {REPEATS} interleaved\n")
    common.table(
        ("", "best ms", "median ms", "to scipy (best)", "to scipy (median)", "MB", "GB/s"),
        [
            (
                name, 1e3 * r["best_seconds"], 1e3 * r["median_seconds"], r["ratio_of_best"], r["median_ratio"],
                round(r["bytes"] / 1e6), r["gb_per_second"],
            )
            for name, r in sweeps.items()
        ],
    )  # fmt: skip
    common.table(
        (f"solve 'ube', discount {DISCOUNT}", "seconds", "sweeps", "ms a sweep"),
        [(name, r["seconds"], r["sweeps"], 1e3 * r["seconds"] / r["sweeps"]) for name, r in solutions.items()],
    )
    kept, freed = memory["kept"], memory["freed"]
    whole = {
        "building the belief": kept["build"],
        "and solving, input kept": kept["solve"],
        "and solving, input freed when built": freed["solve"],
    }
    common.table(
        (
            f"peak of memory, model {kept['model'] / MIB:.0f} MiB, input {kept['input'] / MIB:.0f} MiB",
            "MiB",
            "to the model",
        ),
        [(words, peak / MIB, peak / kept["model"]) for words, peak in whole.items()],
    )
    one, two = sweeps["stochastic, 1 thread"], sweeps["stochastic, 2 threads"]
    demands = [
        common.demand("sweep to SciPy, 1 thread", one["ratio_of_best"], 1.5),
        common.demand(
            "sweep to SciPy, 1 thread, deterministic", sweeps["deterministic, 1 thread"]["ratio_of_best"], 1.5
        ),
        common.demand("sweep on 2 threads to 1 thread", two["best_seconds"] / one["best_seconds"], 1.0),
    ]
    own = (kept["solve"] - kept["input"]) / kept["model"]
    demands += [
        common.demand("peak of building and solving beyond the input, to the model", own, 3.0),
        common.demand("whole peak, input freed when built, to the model", freed["solve"] / freed["model"], 3.0),
    ]
    common.write(
        options.out,
        "sparse_sweep",
        load,
        {"sweeps": sweeps, "solutions": solutions, "memory": memory, "demands": demands},
    )


if __name__ == "__main__":
    main()
