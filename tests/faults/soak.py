"""The long mode: `make soak`, or PYTHONPATH=tests python -m faults.soak kills --number 100 --seed 0.

Each part writes how often it tried what to docs/results/reliability/PART.json; tools/reliability.py brings that into the
docs. A part that fails raises, and writes nothing.
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "reliability"


def kills(folder: Path, number: int, seed: int) -> dict[str, Any]:
    from faults.kills import Killer, killed_runs, killed_suites

    killer = Killer(folder, seed)
    each = -(-number // 4)
    found = [killed_runs(killer, kind, each) for kind in ("deepsea", "minatar", "atari")]
    found.append(killed_suites(killer, each))
    return {
        "tries": killer.kills.total(), "by_phase": dict(killer.kills), "runs": found,
        "what": "kill -9, each run or suite then equal to the uninterrupted one",
    }  # fmt: skip


def writes(folder: Path, number: int, seed: int) -> dict[str, Any]:
    """number: 500 for every operation of a run in JAX and a quarter of those of one outside, which takes seconds; fewer for
    a share of them. Single files, checkpoints and cells meet every fault in any case."""
    from deep.test_hosted import ENV
    from deep.tiny import SEA
    from faults import writes as tried
    from ube.runs import checkpoints

    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ube.runs.plan.make", lambda env_id, **args: {"sea": SEA, "corridors": ENV}[env_id])
        patch.setattr(checkpoints, "SEGMENT", 32)
        share = number / 2_000
        met = {
            "files": tried.files(folder / "files"), "checkpoints": tried.checkpointing(folder / "checkpoints"),
            "cells": tried.cells(folder / "cells"),
            "compiled runs": tried.runs(folder / "compiled", "compiled", lambda at, fault: rng.random() < 4 * share),
            "hosted runs": tried.runs(folder / "hosted", "hosted", lambda at, fault: rng.random() < share),
        }  # fmt: skip
    total = sum(sum(one.values()) for one in met.values())
    return {
        "tries": total,
        "by_fault": met,
        "what": "file operations that failed, came short, or were the last before death",
    }


def damage(folder: Path, number: int, seed: int) -> dict[str, Any]:
    from faults.damage import damaged

    return {
        "tries": number, "served": damaged(folder, number, seed),
        "what": "checkpoints with files cut, flipped, lost or exchanged",
    }  # fmt: skip


def numbers(folder: Path, number: int, seed: int) -> dict[str, Any]:
    from faults.numbers import FEATURES, OF_LEARNER, soaked

    pairs = [(kind, of) for of in ("linear", "learner") for kind in (FEATURES if of == "linear" else OF_LEARNER)]
    found = [soaked(kind, of, -(-number // len(pairs)), seed) for kind, of in pairs]
    return {
        "tries": sum(one["updates"] for one in found), "largest_error": max(one["largest_error"] for one in found),
        "runs": found, "what": "Sherman-Morrison updates, Σ positive definite and near float64 after every 10,000",
    }  # fmt: skip


def load(folder: Path, number: int, seed: int) -> dict[str, Any]:
    from faults.load import loaded

    return {
        "tries": number,
        "runs": [loaded(folder, number)],
        "what": "cells, run by two executors under many looks, once each",
    }


PARTS: dict[str, tuple[Callable[[Path, int, int], dict[str, Any]], int]] = {
    "kills": (kills, 120), "writes": (writes, 500), "damage": (damage, 5_000), "numbers": (numbers, 10_000_000),
    "load": (load, 2_000),
}  # fmt: skip


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    given.add_argument("--number", type=int, help="of tries, instead of each part's own")
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--out", type=Path, default=RESULTS)
    asked = given.parse_args()
    os.environ |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # most of the time is the compiler's
    from ube.files import to_json, versions, write_atomically

    for name in asked.parts or PARTS:
        part, usual = PARTS[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ube-soak-") as folder:
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "cache")
            found = part(Path(folder), asked.number or usual, asked.seed)
        about = {"command": shlex.join(["python", "-m", "faults.soak", *sys.argv[1:]]), "seed": asked.seed}
        content = about | {"versions": versions(), "seconds": round(time.monotonic() - began)} | found
        write_atomically(asked.out / f"{name}.json", to_json(content))
        print(f"{name}: {found['tries']:,} {found['what']}", flush=True)


if __name__ == "__main__":
    main()
