"""What can be reproduced, and the one way to do it."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from pathlib import Path

from ube.errors import UsageError
from ube.figures import (
    ablation,
    atari,
    atari57,
    bound,
    chain,
    deepsea,
    deepsea_tabular,
    held_out,
    minatar,
    riverswim,
    sparse,
    tree,
    untried,
    visits,
)
from ube.figures.experiment import Experiment, Progress, Results
from ube.figures.style import save
from ube.files import to_json, versions, write_atomically

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        chain.EXPERIMENT, bound.EXPERIMENT, tree.EXPERIMENT, deepsea_tabular.EXPERIMENT, riverswim.EXPERIMENT,
        deepsea.EXPERIMENT, sparse.EXPERIMENT, minatar.EXPERIMENT, held_out.DEVELOPMENT,
        held_out.CONFIRMATION, ablation.EXPERIMENT, atari.DOPAMINE, atari.EXPERIMENT,
        untried.EXPERIMENT, visits.EXPERIMENT, atari57.EXPERIMENT, atari57.MONTEZUMA_EXPERIMENT,
    )
}  # fmt: skip


def reproduce(
    name: str, out: Path, *, scale: str = "quick", seeds: int | None = None, seed: int = 0, progress: Progress,
    collected: Path | None = None,
) -> Results:  # fmt: skip
    """Runs an experiment and writes out/name/results.json and its figures. Returns the results.

    collected: for experiments that run nothing themselves, a file of `ube suite collect`.
    """
    if name not in EXPERIMENTS:
        raise UsageError(f"unknown experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}, or quick for all")
    experiment = EXPERIMENTS[name]
    if scale not in experiment.scales:
        raise UsageError(f"unknown scale {scale!r}: choose one of {', '.join(experiment.scales)}")
    settings = dict(experiment.scales[scale])
    if seeds is not None:
        if seeds < 2:
            raise UsageError(f"seeds={seeds}: at least 2, or there is no spread to report")
        settings["seeds"] = seeds
    if collected is not None:
        if not experiment.reads_collected:
            able = ", ".join(e.name for e in EXPERIMENTS.values() if e.reads_collected)
            raise UsageError(f"{name} makes its own runs: only {able} take a collected suite")
        settings["collected"] = str(collected)
    if seed < 0:
        raise UsageError(f"seed={seed}: it must be 0 or more")
    folder = out / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # before hours of work, not after
            pass
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another --out") from error
    if (folder / "results.json").is_dir():
        raise UsageError(f"{folder / 'results.json'} is a folder: move it away, or choose another --out")
    started = time.perf_counter()
    kept = (folder / "cells",) if experiment.keeps_cells else ()
    outcome = experiment.job(settings, seed, progress, *kept)
    words = ["ube", "reproduce", name, "--scale", scale]
    words += ["--seeds", str(seeds)] if seeds is not None else []
    words += ["--seed", str(seed)] if seed else []
    words += ["--collected", str(collected)] if collected is not None else []
    results = {
        "name": name,
        "title": experiment.title,
        "note": experiment.note,
        "command": shlex.join(words),
        "scale": scale,
        "settings": settings,
        "seeds": {"first": seed, "count": outcome.get("seeds", settings["seeds"])},
        "versions": versions(),
        "seconds": round(time.perf_counter() - started, 1),
        "figures": list(experiment.plots),
        "summary": outcome["summary"],
        "data": outcome["data"],
    }
    text = to_json(results, experiment.digits)
    results = json.loads(text)  # what is drawn and printed is what is written
    draw_figures(results, folder)
    write_atomically(folder / "results.json", text)
    return results


def draw_figures(results: Results, folder: Path) -> None:
    """The figures of a results file, from its numbers alone."""
    for file, plot in EXPERIMENTS[results["name"]].plots.items():
        with plot(results) as figure:
            save(figure, folder / file)
