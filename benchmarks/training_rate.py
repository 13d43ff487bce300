"""Steps per second of whole training loops on one core: ours against PyTorch's, UBE against DQN, many seeds at once.

Every contender is a process of its own with one thread, all on the same core, and all of a group take turns; the best of
the repeats counts, after compilation. A `core share` below 1 says that others used the core meanwhile. Contenders of a
group share the network, the batch, the rate of updates, the optimiser, the loss and the ε = 0.1 of ε-greedy agents.
`start` is what comes before: building, filling the replay, compiling.

Peers need an interpreter of their own (benchmarks/peers/__init__.py says what is in it), given by --peers: DQN of
Stable-Baselines3, and a single file of PyTorch and NumPy in the manner of CleanRL. Without it only our ratios are printed.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from benchmarks import common
from benchmarks.worker import Contender, Spec, race

OURS = "benchmarks.training_contenders"
PEERS = {"SB3": "benchmarks.peers.sb3", "plain PyTorch": "benchmarks.peers.plain_torch"}
FASTEST_PEER = "the faster peer"
REPEATS, REPEATS_OF_SEEDS = 10, 4

DEEP_SEA: Spec = dict(task="deep_sea", batch=32, replay=20_000, warmup=1_000, period=1, target=4, epsilon=0.1)
BREAKOUT: Spec = dict(task="breakout", batch=32, replay=100_000, warmup=1_000, period=1, target=1_000, epsilon=0.1)
FRAMES: Spec = dict(task="frames", batch=32, replay=2_000, warmup=1_000, period=4, target=2_500, epsilon=0.1)

# name: (task, steps of a chunk of ours, our agents, whether peers take part)
GROUPS: dict[str, tuple[Spec, int, tuple[str, ...], bool]] = {
    "DeepSea-20, MLP 64-64, update every step": (DEEP_SEA, 2_000, ("dqn", "ube-1step", "ube-deep", "boot-2", "boot"), True),
    "DeepSea-50, MLP 64-64, update every step": (
        DEEP_SEA | {"task": "deep_sea_50"}, 500, ("ube-deep", "boot-2", "boot"), False,
    ),
    "Breakout, MinAtar CNN, update every step": (BREAKOUT, 1_000, ("dqn", "ube-1step", "ube-deep"), True),
    "Breakout, MinAtar CNN, update every 4 steps": (
        BREAKOUT | {"period": 4, "target": 250}, 2_000, ("dqn", "ube-1step", "ube-deep"), True,
    ),
    "84x84x4 frames, Nature CNN, update every 4 steps": (FRAMES, 800, ("dqn", "ube-1step", "ube-deep"), False),
}  # fmt: skip

DEMANDS = (
    ("DeepSea-20, MLP 64-64, update every step", "dqn", "SB3", 6.0),
    ("DeepSea-20, MLP 64-64, update every step", "ube-deep", "boot-2", 1.0),
    ("DeepSea-50, MLP 64-64, update every step", "ube-deep", "boot-2", 1.0),
    ("Breakout, MinAtar CNN, update every step", "dqn", FASTEST_PEER, 3.0),
    ("Breakout, MinAtar CNN, update every step", "ube-1step", "dqn", 0.9),
    ("Breakout, MinAtar CNN, update every step", "ube-deep", "dqn", 0.8),
    ("84x84x4 frames, Nature CNN, update every 4 steps", "ube-1step", "dqn", 0.95),
)
"""(group, whose rate, over whose, at least)"""

SEEDS = (1, 4, 8)
SEED_TASKS = {
    "DeepSea-20, dqn, many seeds": (DEEP_SEA, 2_000),
    "Breakout, dqn, many seeds": (BREAKOUT | {"replay": 20_000}, 1_000),
}


def peer_versions(python: str | None) -> dict[str, str]:
    """Empty where they cannot take part."""
    if python is None:
        print("no --peers PYTHON: only our own loops take part\n")
        return {}
    packages = ("torch", "stable_baselines3", "gymnasium", "minatar", "numpy")
    code = (
        f"import importlib, json, platform; from importlib.metadata import version\n"
        f"for name in {packages}: importlib.import_module(name)\n"
        f"print(json.dumps({{'python': platform.python_version()}} | {{name: version(name) for name in {packages}}}))"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError as error:
        print(f"--peers {python}: {error}; only our own loops take part\n")
        return {}
    if done.returncode:
        print(f"--peers {python}: {done.stderr.strip().splitlines()[-1]}; only our own loops take part\n")
        return {}
    return json.loads(done.stdout)


def contenders(task: Spec, chunk: int, agents: tuple[str, ...], peers: str | None) -> dict[str, Contender]:
    ours = {agent: Contender(OURS, task | {"agent": agent, "chunk": chunk}) for agent in agents}
    if peers is None:
        return ours
    # Eager loops gain nothing from long chunks.
    small = task | {"chunk": min(chunk, 500)}
    return ours | {name: Contender(module, small, peers) for name, module in PEERS.items()}


def seed_contenders(task: Spec, chunk: int) -> dict[str, Contender]:
    return {
        f"{seeds} {'vmapped' if vmapped else 'in turn'}": Contender(
            OURS, task | {"agent": "dqn", "chunk": chunk, "seeds": seeds, "vmapped": vmapped}
        )
        for seeds in SEEDS
        for vmapped in (True, False)
    }


def rate(group: dict[str, Any], name: str) -> float | None:
    if name == FASTEST_PEER:
        return max((group[peer]["best"] for peer in PEERS if peer in group), default=None)
    return group[name]["best"] if name in group else None


def show(name: str, group: dict[str, Any]) -> None:
    columns = [column for column in ("dqn", *PEERS) if column in group]
    rows = [
        (
            who,
            r["best"],
            min(r["steps_per_second"]) / r["best"],
            r["core_share"],
            r["start_seconds"],
            *(r["best"] / group[c]["best"] for c in columns),
        )
        for who, r in group.items()
    ]
    head = (name, "steps/s", "worst/best", "core share", "start, s", *(f"to {column}" for column in columns))
    common.table(head, rows)


def main() -> None:
    options = common.arguments(
        __doc__,
        "training_rate",
        peers={"metavar": "PYTHON", "help": "interpreter with the peers' packages"},
        core={"type": int, "help": "run on this core (default: the last)"},
        seconds={"type": float, "default": 1.0, "help": "of each repeat, at least"},
        only={"default": "", "help": "only groups with this in their name"},
        chunk={"type": int},  # tiny, to try the benchmark itself
    )
    load = os.getloadavg()
    core = max(os.sched_getaffinity(0)) if options.core is None else options.core
    os.sched_setaffinity(0, {core})  # the contenders inherit it
    versions = peer_versions(options.peers)
    peers = options.peers if versions else None

    groups: dict[str, dict[str, Contender]] = {
        name: contenders(task, options.chunk or chunk, agents, peers if with_peers else None)
        for name, (task, chunk, agents, with_peers) in GROUPS.items()
    } | {name: seed_contenders(task, options.chunk or chunk) for name, (task, chunk) in SEED_TASKS.items()}
    rates: dict[str, dict[str, Any]] = {}
    for name, group in groups.items():
        if options.only in name:
            rates[name] = race(group, options.seconds, REPEATS_OF_SEEDS if name in SEED_TASKS else REPEATS)
            show(name, rates[name])

    ratios = {
        name: {who: {other: r["best"] / o["best"] for other, o in group.items()} for who, r in group.items()}
        for name, group in rates.items()
    }
    for name in SEED_TASKS.keys() & rates.keys():
        gains = {seeds: ratios[name][f"{seeds} vmapped"][f"{seeds} in turn"] for seeds in SEEDS}
        words = ", ".join(f"{gain:.2f} for {seeds}" for seeds, gain in gains.items())
        print(f"{name}: vmapped to in turn {words}; {'vmapping' if gains[max(SEEDS)] > 1 else 'in turn'} pays")
    demands = []
    for name, who, other, limit in DEMANDS:
        group = rates.get(name, {})
        over = rate(group, other)
        if over is not None:
            demands.append(common.demand(f"{who} to {other}, {name}", group[who]["best"] / over, limit, least=True))
    record = {"core": core, "peers": versions, "rates": rates, "ratios": ratios, "demands": demands}
    common.write(options.out, "training_rate", load, record)


if __name__ == "__main__":
    main()
