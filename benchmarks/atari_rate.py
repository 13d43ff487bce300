"""Frames per second of whole Atari training loops on two cores: ours against PyTorch's, UBE against DQN.

One game, the Nature network, batches of 32 every 4 decisions, replay of frames. Contenders are processes of their own that
take turns, each with as many threads as it likes. Ratios are medians over turns, of rates in the same turn: with two
threads on two cores whatever else the machine does counts, and bests would be of other moments. Beside them: how long the
gradient and the target pass take by themselves on one core, and how far that is from the machine's rate of matrix products.

Peers need an interpreter of their own (benchmarks/peers/__init__.py), given by --peers.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

from benchmarks import common
from benchmarks.training_rate import FASTEST_PEER, PEERS, peer_versions, show
from benchmarks.worker import Contender, Spec, race

AGENTS = ("dqn", "ube-1step", "ube-nstep", "ube-deep")
GAME: Spec = dict(
    task="atari", game="breakout", batch=32, replay=20_000, warmup=1_000, period=4, target=2_500, epsilon=0.1, chunk=400,
    threads=2,
)  # fmt: skip
REPEATS = 32
GROUP = "Breakout of Atari, Nature CNN, update every 4 decisions"
DEMANDS = (("dqn", FASTEST_PEER, 1.3), ("ube-1step", "dqn", 0.95), ("ube-nstep", "dqn", 0.95))


def paired(rates: dict[str, Any], who: str, other: str) -> float:
    turns = zip(*(rates[name]["steps_per_second"] for name in (who, other)), strict=True)
    return statistics.median(mine / theirs for mine, theirs in turns)


def main() -> None:
    options = common.arguments(
        __doc__,
        "atari_rate",
        peers={"metavar": "PYTHON", "help": "interpreter with the peers' packages"},
        seconds={"type": float, "default": 3.0, "help": "of each repeat, at least"},
        repeats={"type": int, "default": REPEATS},
        chunk={"type": int, "default": GAME["chunk"]},
    )
    load = os.getloadavg()
    versions = peer_versions(options.peers)
    game = GAME | {"chunk": options.chunk}
    contenders = {agent: Contender("benchmarks.atari_contenders", game | {"agent": agent}) for agent in AGENTS}
    if versions:
        contenders |= {name: Contender(module, game, options.peers) for name, module in PEERS.items()}
    rates = race(contenders, options.seconds, options.repeats)
    for r in rates.values():
        r["frames_per_second"] = 4 * r["best"]
    show(GROUP, rates)
    print("(steps/s are decisions, of four frames each)\n")
    parts = common.in_new_process("benchmarks.atari_parts")
    common.table(("one update, one core", "ms", "GFLOP/s"), [(name, *values) for name, values in parts.items()])
    demands: list[Any] = []
    for who, other, limit in DEMANDS:
        others = [peer for peer in PEERS if peer in rates] if other == FASTEST_PEER else [other]
        if others:
            ratio = min(paired(rates, who, one) for one in others)
            demands.append(common.demand(f"{who} to {other}, {GROUP}", ratio, limit, least=True))
    ratios = {name: paired(rates, name, "dqn") for name in rates}
    record = {"peers": versions, "rates": rates, "ratios_to_dqn": ratios, "parts": parts, "demands": demands}
    common.write(options.out, "atari_rate", load, record)


if __name__ == "__main__":
    main()
