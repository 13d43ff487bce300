"""kill -9 at random moments, again and again, until the run is done: it must be the run that nobody killed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faults import driver
from runs.test_checkpoints import contents
from ube.runs import load

TESTS = Path(__file__).parents[1]
KEEP = ["--checkpoint-minutes", "1e-9"]
WORDS = {
    "deepsea": [
        "--env", "DeepSea-v0", "--agent", "ube-deep", "--steps", "1600", "--set", "env.size=6", "hidden=8",
        "batch_size=8", "warmup=40", "replay_size=400",
    ],
    "minatar": [
        "--env", "Breakout-MinAtar", "--agent", "ube-1step", "--steps", "1200", "--set", "batch_size=4", "warmup=40",
        "replay_size=400",
    ],
    "atari": [
        "--env", "atari/Pong", "--agent", "ube-nstep", "--frames", "480", "--evaluate-every", "240", "--evaluation-frames",
        "4", "--set", "replay_size=90", "warmup=40", "batch_size=8", "env.max_frames=80",
    ],
}  # fmt: skip
LASTS = {"training": 0.5, "checkpointing": 0.03, "evaluation": 0.5, "collecting": 0.01}
"""Seconds, about."""
SUITE = """
[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn"]
seeds = 4
steps = 1_600
evaluation_episodes = 2
set = { hidden = [4], batch_size = 4, warmup = 8, "env.size" = 3 }
"""


@dataclass
class Killer:
    """Starts commands in `folder`, and kills them. Compiled programs are kept there too: a process that is killed while it
    writes one would leave half of it to others."""

    folder: Path
    seed: int

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.kills = Counter[str]()
        self.missed = 0

    def start(self, words: list[str]) -> "subprocess.Popen[bytes]":
        self.notes.unlink(missing_ok=True)
        own = {driver.NOTES: str(self.notes), "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache")}
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, "-m", "faults.driver", *words], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env=os.environ | own | {"PYTHONPATH": paths},
        )  # fmt: skip

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def finish(self, words: list[str]) -> None:
        _, said = (process := self.start(words)).communicate()
        assert process.returncode == 0, said.decode()

    def kill(self, words: list[str], phases: tuple[str, ...]) -> bool:
        """At a random moment of one of `phases`, after it was entered a few times. Whether it was still there."""
        phase, times = str(self.rng.choice(phases)), int(self.rng.integers(1, 6))
        process = self.start(words)
        while process.poll() is None:
            now, entered = driver.read(self.notes)
            if now == phase and entered >= times:
                break
            time.sleep(0.0005)
        time.sleep(self.rng.uniform(0, LASTS[phase]))
        for child in children(process.pid) if self.rng.random() < 0.5 else []:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()
        killed = process.returncode == -signal.SIGKILL
        if killed:
            self.kills[driver.read(self.notes)[0]] += 1
        self.missed += not killed
        return killed


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def digest(run: Path) -> str:
    """Of all that a run leaves, its checkpoint included, but for how fast it was."""
    last = max((run / "checkpoints").glob("*-*"))
    kept = json.loads((last / "manifest.json").read_text())
    manifest = json.dumps((kept["step"], kept["files"], kept["segments"]), sort_keys=True)
    return hashlib.sha256(repr((contents(load(run)), manifest)).encode()).hexdigest()


def killed_runs(killer: Killer, kind: str, kills: int, each: int = 5) -> dict[str, Any]:
    """Runs of a kind, each killed up to `each` times and then let go on to its end, until so many kills were made."""
    phases = ("training", "checkpointing", "evaluation") if kind == "atari" else ("training", "checkpointing")

    def words(out: Path) -> list[str]:
        return ["train", *WORDS[kind], *KEEP, "--resume", "--out", str(out)]

    whole = killer.folder / f"{kind}-whole"
    killer.finish(words(whole))
    expected, before, runs = digest(whole), killer.kills.total(), 0
    while (made := killer.kills.total() - before) < kills:
        out, runs = killer.folder / f"{kind}-{runs}", runs + 1
        for _ in range(min(each, kills - made)):
            if not killer.kill(words(out), phases):
                break
        killer.finish(words(out))
        assert digest(out) == expected, f"{out} is another run than {whole}"
    return {"kind": kind, "kills": killer.kills.total() - before, "runs": runs, "digest": expected}


def killed_suites(killer: Killer, kills: int) -> dict[str, Any]:
    """A suite whose processes are killed as it runs, and as its results are collected."""
    file, whole = killer.folder / "sea.toml", killer.folder / "whole-suite"
    file.write_text(SUITE)

    def words(verb: str, out: Path) -> list[str]:
        run = ["--workers", "2", *KEEP] if verb == "run" else []
        return ["suite", verb, str(file), *run, "--out", str(out)]

    for verb in ("run", "collect"):
        killer.finish(words(verb, whole))
    expected, before, runs = rows(whole), killer.kills.total(), 0
    while (made := killer.kills.total() - before) < kills:
        out, runs = killer.folder / f"suite-{runs}", runs + 1
        for verb, times, phases in (
            ("run", 2, ("training", "checkpointing", "collecting")),
            ("collect", 2, ("collecting",)),
        ):
            for _ in range(min(times, kills - made)):
                killer.kill(words(verb, out), phases)
            killer.finish(words(verb, out))
        assert rows(out) == expected, f"{out} is another suite than {whole}"
    return {"kind": "suite", "kills": killer.kills.total() - before, "suites": runs}


def rows(out: Path) -> list[str]:
    return [line for line in (out / "sea" / "results.csv").read_text().splitlines() if not line.startswith("# command")]
