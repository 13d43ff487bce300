"""Seconds that a checkpoint of an Atari run with a full replay takes, next to the training between two of them.

The run is ube-nstep on Breakout with the paper's replay of a million frames, which are filled with noise: what is
written does not depend on them. Between two checkpoints as many frames are replaced as the run makes decisions in the
default ten minutes, at its own rate (--rate; benchmarks/atari_rate.py measures it). Everything is on the disk when the time
is taken. Needs 9 GB of memory and 9 GB of disk, in --folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import common
from ube.deep.config import agent_config
from ube.deep.hosted_session import HostedSession
from ube.envs import HostedEnvironment, make
from ube.runs.checkpoints import Checkpoints
from ube.runs.jax_setup import set_up_jax
from ube.runs.plan import Schedule

REPEATS = 3
SHARE = 0.02
"""Of the training between two checkpoints, at most."""


def session(replay_size: int) -> HostedSession:
    env = make("atari/breakout")
    assert isinstance(env, HostedEnvironment)
    made = HostedSession(env, agent_config("ube-nstep", {"replay_size": replay_size}), seed=0)
    for _ in made.run(100, 100):
        pass
    return made


def replaced(made: HostedSession, number: int, rng: np.random.Generator) -> None:
    """As if so many decisions had been made."""
    replay = made.replay
    for first in range(0, number, 10_000):
        slots = (replay.added[0] + np.arange(min(10_000, number - first))) % replay.slots
        replay.frames[0, slots] = rng.integers(0, 256, replay.frames[0, slots].shape, np.uint8)
        replay.added[0] += len(slots)


def seconds(action: Callable[[], object]) -> float:
    """Until all of it is on the disk."""
    return common.timed(lambda: (action(), os.sync()))[0]


def main() -> None:
    options = common.arguments(
        __doc__,
        "checkpoint_cost",
        rate={"type": float, "default": 150.0, "help": "decisions a second of the run"},
        replay={"type": int, "default": 1_000_000, "help": "frames"},
        folder={"default": None, "help": "on the disk to be measured (default: where temporary files go)"},
    )
    load = os.getloadavg()
    set_up_jax()
    made, rng, every = session(options.replay), np.random.default_rng(0), 60 * Schedule().checkpoint_minutes
    between = int(every * options.rate)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ube-checkpoints-") as folder:
        kept = Checkpoints(Path(folder))

        def save() -> None:
            kept.save(int(made.replay.added[0]), made.snapshot(), made.replay, {})

        replaced(made, options.replay, rng)
        os.sync()
        first = seconds(save)
        later = []
        for _ in range(REPEATS):
            replaced(made, between, rng)
            os.sync()
            later.append(seconds(save))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        again = seconds(lambda: kept.restore(made.like_snapshot(), made.replay, print))
    rows = [
        (f"the first, {options.replay:,} frames", first, float("nan")),
        (f"each later, {between:,} new frames", max(later), max(later) / every),
        ("going on from it", again, float("nan")),
    ]
    common.table(("checkpoint", "seconds", "share of the time between"), rows)
    demand = common.demand("worst later checkpoint to the training between", max(later) / every, SHARE, least=False)
    common.write(
        options.out, "checkpoint_cost", load,
        {
            "replay": options.replay, "frames_between": between, "seconds_between": every, "first_seconds": first,
            "later_seconds": later, "restore_seconds": again, "bytes": size, "demands": [demand],
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
