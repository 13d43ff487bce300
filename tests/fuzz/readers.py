"""Every reader of the package as one that can be tried: a good file to start from, and what is done with a bad one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import struct
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.mutate import NUMBERS, TEXTS, as_json, as_toml, changed_bytes, edited, edited_often, hostile
from ube.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs" / "results"


@dataclass(frozen=True)
class Reader:
    name: str
    make: Callable[[Random], Any]
    """A hostile file, or words."""
    read: Callable[[Path, Any, Random], None]
    """In a folder of its own. May raise the package's own errors, and nothing else."""
    share: float = 1.0
    """Of the tries, next to the others."""


def _json(*documents: Any) -> Callable[[Random], bytes]:
    return lambda rng: changed_bytes(as_json(edited_often(rng.choice(documents), rng)), rng)


# -------------------------------------------------------------------- models


def _models() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    alpha = rng.gamma(1.0, 1.0, (3, 2, 3)) + 0.1
    normal = {"reward_mean": rng.uniform(0, 0.5, (3, 2)), "reward_var": np.full((3, 2), 0.1)}
    chain = np.zeros((3, 1, 3))
    chain[0, 0, 1], chain[1, 0, 2] = 1.0, 2.0
    ones = np.ones((3, 2))
    csr = {
        "alpha_data": alpha.ravel(),
        "alpha_indices": np.tile([0, 1, 2], 6),
        "alpha_indptr": np.arange(7) * 3,
        "n_actions": 2,
    }
    return [
        {"alpha": np.ones((2, 2, 2, 2)), "reward_mean": np.zeros((2, 2, 2)), "reward_var": np.ones((2, 2, 2)), "r_max": 2.0},
        {"alpha": alpha, **normal, "discount": 0.9, "policy": np.full((3, 2), 0.5)},
        {"alpha": alpha, **normal, "horizon": 4, "noise_var": ones, "visits": ones},
        {"alpha": chain, "reward_mean": np.zeros((3, 1)), "reward_var": np.ones((3, 1)), "terminal": np.array([2])},
        {"alpha": alpha, "beta_a": ones, "beta_b": ones, "beta_low": -1.0, "beta_high": 1.0, "discount": 0.5},
        {"alpha": alpha, **{f"gamma_{part}": ones for part in ("centre", "strength", "shape", "rate")}, "discount": 0.5},
        {**csr, **normal, "discount": 0.9},
        {"alpha_0": alpha[:1, :, :2], "alpha_1": alpha[:2, :, :1], **normal},
    ]  # fmt: skip


def _array(value: Any, rng: Random) -> Any:
    """Changed in one entry, shape, type or all of it."""
    array, kind = np.array(value), rng.randrange(7)
    if kind < 2 and array.size:
        array = array.astype(float)
        array.flat[rng.randrange(array.size)] = float(rng.choice(NUMBERS))
    elif kind == 2:
        dtype = rng.choice(("f2", "f4", ">f8", "i1", "u8", "?", "c8", "S3", "U2", "M8[s]"))
        with contextlib.suppress(ValueError, TypeError):  # text that is no number
            array = array.astype(dtype)
    elif kind == 3:
        array = array[..., None] if rng.random() < 0.5 else array.reshape(-1)
    elif kind == 4:
        array = array[: rng.randrange(3)] if array.ndim else np.zeros((0,) * rng.randrange(1, 5))
    elif kind == 5:
        array = np.asarray(rng.choice(NUMBERS), float)
    else:
        array = np.asfortranarray(array)
    return array


def _model(rng: Random) -> bytes:
    arrays = dict(rng.choice(_the_models()))
    for _ in range(rng.choice((0, 1, 1, 2))):
        name, kind = rng.choice(list(arrays) or ["alpha"]), rng.random()
        if kind < 0.1:
            arrays.pop(name, None)
        elif kind < 0.2:
            arrays[rng.choice(("policy", "visits", "discount", "horizon", "terminal", "alpha_2", "x"))] = arrays.get(
                name, 1.0
            )
        else:
            arrays[name] = _array(arrays.get(name, 1.0), rng)
    file = io.BytesIO()
    with np.errstate(all="ignore"):
        np.savez(file, **arrays)
    return changed_bytes(file.getvalue(), rng)


_the_models = functools.cache(_models)


def _read_model(folder: Path, content: bytes, rng: Random) -> None:
    from ube.tabular import METHODS, solve
    from ube.tabular.model_file import read_model

    (folder / "model.npz").write_bytes(content)
    belief, policy = read_model(folder / "model.npz")
    solution = solve(belief, policy, rng.choice(list(METHODS)))
    assert solution.guarantee


# -------------------------------------------------------------------- runs

CONFIG = {
    "env": "DeepSea-v0", "env_args": {"size": 4}, "seed": 0, "steps": 1_000, "chunk": 100, "schedule": {}, "random_play": {},
    "command": "ube train", "versions": {"ube": "0.1"},
}  # fmt: skip
EPISODES = [{"step": 10 * i, "episode_return": 0.5 * i, "episode_length": 10} for i in range(1, 5)]
EVALUATIONS = [{"step": 10, "policy": "own", "episode_return": 0.5, "episode_length": 10}] * 3


@functools.cache
def _config() -> dict[str, Any]:
    import dataclasses

    from ube.deep.config import PRESETS

    agent = dataclasses.asdict(PRESETS["ube-deep"])
    return {**CONFIG, "agent": json.loads(json.dumps({**agent, "reward_clip": None}))}


def _run(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "config.json").write_bytes(as_json(_config()))
    return run


def _read_config(folder: Path, content: bytes, rng: Random) -> None:
    from ube.report.runs import read_runs, run_charts
    from ube.runs import load

    run = _run(folder)
    (run / "config.json").write_bytes(content)
    run_charts(read_runs(folder))
    load(run).plan()


def _rows(rng: Random) -> bytes:
    rows = rng.choice((EPISODES, EVALUATIONS))
    rows = [edited(row, rng) if rng.random() < 0.3 else row for row in rows]
    return changed_bytes(b"".join(as_json(row) + b"\n" for row in rows), rng)


def _read_rows(folder: Path, content: bytes, rng: Random) -> None:
    from ube.report.runs import read_runs, run_charts
    from ube.runs import load
    from ube.suite.status import _lately

    run = _run(folder)
    for name in ("episodes", "metrics", "evaluations"):
        (run / f"{name}.jsonl").write_bytes(content)
    run_charts(read_runs(folder))
    assert len(_lately(run / "metrics.jsonl")) == 2
    loaded = load(run)
    loaded.directory.finished(100)
    assert isinstance(loaded.episodes, dict)
    loaded.last_evaluation()


@functools.cache
def _tree() -> dict[str, np.ndarray]:
    return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(3)}


@functools.cache
def _state() -> bytes:
    from ube.runs.arrays import save_arrays

    return save_arrays(_tree())


def _hostile_state(rng: Random) -> bytes:
    length = struct.unpack("<Q", _state()[:8])[0]
    header = as_json(edited_often(json.loads(_state()[8 : 8 + length]), rng))
    size = rng.choice((len(header),) * 6 + (0, 2**40, 2**63 - 1, 10**8))
    return changed_bytes(struct.pack("<Q", size) + header + _state()[8 + length :], rng)


def _read_state(folder: Path, content: bytes, rng: Random) -> None:
    from ube.runs.arrays import load_arrays

    (folder / "state.safetensors").write_bytes(content)
    load_arrays(folder / "state.safetensors", _tree())


def _replay() -> Any:
    from ube.deep.frames import FrameReplay

    return FrameReplay(capacity=40, n_envs=2, frame_shape=(2,), dtype=np.uint8, stack=1)


FRAMES = bytes(range(40))


def _manifest(rng: Random) -> tuple[bytes, bytes]:
    """And the frames that it names."""
    frames = changed_bytes(FRAMES, rng) if rng.random() < 0.3 else FRAMES
    digest = hashlib.sha256(frames).hexdigest()
    good = {
        "step": 4, "facts": {"sizes": {"episodes": 9, "metrics": 9}},
        "files": {"state.safetensors": hashlib.sha256(_state()).hexdigest()},
        "segments": {rng.choice(("0-0-19.bin",) * 5 + ("5-0-1.bin", "0-7-1.bin", "../x-1-2.bin", "--.bin")): digest},
    }  # fmt: skip
    return changed_bytes(as_json(edited_often(good, rng)), rng), frames


def _read_manifest(folder: Path, content: tuple[bytes, bytes], rng: Random) -> None:
    from ube.runs.checkpoints import Checkpoints
    from ube.runs.directory import RunDirectory

    manifest, frames = content
    run = _run(folder)
    place = run / "checkpoints" / f"000000000004-{hashlib.sha256(manifest).hexdigest()[:16]}"
    (run / "checkpoints" / "frames").mkdir(parents=True, exist_ok=True)
    place.mkdir()
    try:
        (place / "manifest.json").write_bytes(manifest)
        (place / "state.safetensors").write_bytes(_state())
        (run / "checkpoints" / "frames" / "0-0-19.bin").write_bytes(frames)
        for name in ("episodes", "metrics", "evaluations"):
            (run / f"{name}.jsonl").write_bytes(b'{"a": 1}\n')
        found = Checkpoints(run).restore(_tree(), _replay(), str)
        assert found is not None
        RunDirectory(run).cut_back(found[1].get("sizes", {}))
    finally:
        for file in place.iterdir():
            file.unlink()
        place.rmdir()


# -------------------------------------------------------------------- suites


@functools.cache
def _suites() -> list[dict[str, Any]]:
    files = (resources.files("ube") / "data" / "suites").iterdir()
    small = {
        "about": "small",
        "cells": [
            {"envs": ["DeepSea-v0"], "agents": ["dqn", "ube-1step"], "seeds": [3, 5], "steps": 200,
             "set": {"hidden": [4], "env.size": 3}, "grid": {"beta": [0.1, 0.2]}, "cpus": 2, "gpus": 0.5},
            {"envs": ["atari/pong"], "agents": ["dqn"], "frames": 4_000, "evaluate_every": 2_000, "evaluation_frames": 400,
             "protocol": "dopamine", "evaluation_policy": "own", "evaluation_episodes": 2},
        ],
    }  # fmt: skip
    shipped = [tomllib.loads(file.read_text()) for file in files if file.name in ("demo.toml", "atari-small.toml")]
    return [small, small, *shipped]


def _read_suite(folder: Path, content: bytes, rng: Random) -> None:
    from ube.suite import read_suite, status
    from ube.suite.plan import costs, room_at_once
    from ube.suite.status import lines, seconds_left

    (folder / "suite.toml").write_bytes(content)
    suite = read_suite(str(folder / "suite.toml"))
    assert all(":" not in cell.env for cell in suite.cells), "a file chose a module"
    found = status(suite, folder / "suites")
    assert lines(found)
    seconds_left(found)
    costs(suite, 1_000.0)
    room_at_once(suite, 2)


@functools.cache
def _suite() -> Any:
    from ube.suite.cells import parsed

    return parsed(
        "one", '[[cells]]\nenvs = ["DeepSea-v0"]\nagents = ["dqn"]\nsteps = 100\nset = { "env.size" = 3 }', "one.toml"
    )


@functools.cache
def _done() -> dict[str, Any]:
    from ube.suite.work import columns

    (cell,) = _suite().cells
    row = {"step": 100, "policy": "training", "mean": 0.5, "episodes": 3}
    return json.loads(json.dumps({
        "cell": cell.spec, "config_digest": cell.config_digest, "versions": {"ube": "0.1"}, "resumed_with": [{"ube": "0.1"}],
        "training": columns([{**row, "step": 50}, row]),
        "evaluations": columns([{**row, "policy": name} for name in ("greedy", "own")]),
    }))  # fmt: skip


def _read_done(folder: Path, content: bytes, rng: Random) -> None:
    from ube.comparison.table import agent_rows, curves_of, scores_of, summary
    from ube.suite import collect, status, write_csv
    from ube.suite.collect import read_csv
    from ube.suite.work import folder_of

    (cell,) = _suite().cells
    place = folder_of(folder, cell)
    place.mkdir(parents=True, exist_ok=True)
    for name in ("done.json", "failed.json"):
        (place / name).write_bytes(content)
    status(_suite(), folder)
    (place / "done.json").unlink()
    status(_suite(), folder)
    (place / "done.json").write_bytes(content)
    found = collect(_suite(), folder)
    write_csv(_suite(), found, "ube", folder / "results.csv")
    read_csv(folder / "results.csv")
    scores = {"dqn": scores_of(found.rows, "dqn", 100)}
    summary(agent_rows(scores, {"dqn": 1}, 1))
    curves_of(found.rows, "dqn", 100)


def _read_kept(folder: Path, content: bytes, rng: Random) -> None:
    """rates.json, asked.json and the cells of an experiment: what cannot be used is measured or run again, or refused."""
    from ube.comparison.compare import _claim
    from ube.figures.workers import Workers

    (folder / "asked.json").write_bytes(content)
    (folder / "key.json").write_bytes(content)
    _rates_of(folder, content)

    class Cell:
        key, spec = "key", KEPT["cell"]

    found = Workers._kept(type("Here", (), {"folder": folder})(), Cell())  # type: ignore[arg-type]
    assert found is None or isinstance(found, dict)
    _claim(folder, {"env": "DeepSea-v0"})


def _rates_of(folder: Path, content: bytes) -> None:
    from ube.suite import plan

    class NoPool:
        def __init__(self, *options: Any, **more: Any) -> None: ...
        def __enter__(self) -> NoPool:
            return self

        def __exit__(self, *error: Any) -> None: ...
        def finish(self, tasks: Any) -> list[Any]:
            return []

    pool, plan.Pool = plan.Pool, NoPool  # type: ignore[assignment, misc]
    try:
        (folder / "rates.json").write_bytes(content)
        plan.measured(_suite(), folder, 1, anew=False, say=str)
    finally:
        plan.Pool = pool  # type: ignore[misc]
        (folder / "rates.json").unlink()


def _machine() -> str:
    import os
    import platform

    return f"{platform.node()}, {os.cpu_count()} cores, 1 threads each"


KEPT = {
    "cell": {"env": "x"}, "result": {"steps": 3}, "machine": _machine(), "rates": {"kind": [1.0, 2.0]}, "env": "DeepSea-v0",
}  # fmt: skip


# -------------------------------------------------------------------- results


def _trimmed(value: Any) -> Any:
    """Lists cut short, so that a try takes a millisecond."""
    if isinstance(value, dict):
        return {name: _trimmed(item) for name, item in value.items()}
    return [_trimmed(item) for item in value[:4]] if isinstance(value, list) else value


@functools.cache
def _results() -> list[dict[str, Any]]:
    """Real ones, and a comparison."""
    files = sorted(DOCS.glob("*/results.json"))
    found = [_trimmed(json.loads(file.read_text())) for file in files]
    curve = {"mean": [0.1, None], "low": [0.0, None], "high": [0.2, None]}
    rows = [{"agent": "dqn", "setting": {"of": 2}, "metric": "seeds_done", "value": 2, "low": None, "high": None}]
    comparison = found[0] | {
        "name": "comparison", "settings": {"agents": ["dqn"]}, "summary": rows,
        "data": {"length": 10, "unit": "steps", "scores": {}, "range": [0.0, 1.0], "curves": {"dqn": curve}},
    }  # fmt: skip
    return [*found, comparison]


def _read_results(folder: Path, content: bytes, rng: Random) -> None:
    from ube.report.page import read_results

    (folder / "one").mkdir(exist_ok=True)
    name = "comparison.json" if b'"comparison"' in content else "results.json"
    for other in ("comparison.json", "results.json"):
        (folder / "one" / other).unlink(missing_ok=True)
    (folder / "one" / name).write_bytes(content)
    (folder / "one" / "x.svg").write_text("<svg/>")
    read_results(folder)


def _csv(rng: Random) -> bytes:
    from ube.suite.collect import COLUMNS

    row = {
        "env": "atari/pong", "env_args": "{}", "agent": "dqn", "overrides": "{}", "seed": "0", "protocol": "mnih2015",
        "steps": "100", "evaluate_every": "50", "evaluation_steps": "10", "cell": "id", "step": "50", "frames": "200",
        "policy": "greedy", "mean": "1.5", "episodes": "3",
    }  # fmt: skip
    assert tuple(row) == COLUMNS
    rows = [row, {**row, "policy": "own"}, {**row, "seed": "1"}, {**row, "env": "atari/alien"}]
    for _ in range(rng.choice((0, 1, 2))):
        place = rng.randrange(len(rows))
        rows[place] = {**rows[place], rng.choice(COLUMNS): str(hostile(rng))}
    lines = ["# suite: one", "# versions: {}", ",".join(COLUMNS), *(",".join(one.values()) for one in rows)]
    return changed_bytes("\n".join(lines).encode("utf-8", "surrogatepass"), rng)


def _read_csv(folder: Path, content: bytes, rng: Random) -> None:
    from ube.figures.atari57 import _over_training, evaluations
    from ube.suite.collect import read_csv

    (folder / "results.csv").write_bytes(content)
    found = evaluations(read_csv(folder / "results.csv").rows, "results.csv")
    for of in found.values():
        _over_training(of)


# -------------------------------------------------------------------- words


def _words(rng: Random) -> list[str]:
    import dataclasses

    from ube.deep.config import AgentConfig

    fields = [field.name for field in dataclasses.fields(AgentConfig)] + ["env.size", "env.x", "env.", "", "nope"]
    return [
        f"{rng.choice(fields)}{rng.choice(('=', '=', '=', '', '=='))}{_word(rng)}" for _ in range(rng.randrange(1, 4))
    ]


def _word(rng: Random) -> str:
    return (
        str(hostile(rng)) if rng.random() < 0.7 else changed_bytes(b'{"a": [1, 2.5]}', rng).decode("utf-8", "replace")
    )


def _read_words(folder: Path, words: list[str], rng: Random) -> None:
    from ube.deep.config import agent_config, parse_overrides
    from ube.runs.plan import Schedule, planned

    overrides, env_args = parse_overrides(words)
    agent = rng.choice(("dqn", "ube-deep", "boot"))
    agent_config(agent, overrides)
    if not env_args or rng.random() < 0.3:
        planned("DeepSea-v0", agent, rng.choice((None, 1, 10)), 0, frames=None, protocol="auto", env_args=env_args,
                overrides=overrides, schedule=Schedule())  # fmt: skip


OPTIONS = {
    "variance": ("--method", "--policy", "--samples", "--seed", "--rows", "--json", "--arrays"),
    "report": ("--markdown",),
    "suite": ("--out", "--workers", "--rate", "--all", "--list", "--executor", "--modules"),
    "evaluate": ("--env", "--episodes", "--policy", "--seed", "--dims"),
    "train": (
        "--agent",
        "--steps",
        "--frames",
        "--set",
        "--seed",
        "--protocol",
        "--envs",
        "--evaluate-every",
        "--checkpoint-minutes",
    ),
    "reproduce": ("--scale", "--seeds", "--seed", "--collected"),
    "completion": (),
    "nope": ("--help",),
}


def _command(rng: Random) -> list[str]:
    command = rng.choice(list(OPTIONS))
    first = {
        "variance": ["model.npz"], "suite": [rng.choice(("plan", "status", "collect", "x")), "demo", "--rate", "5"],
        "train": ["--env", "DeepSea-v0", "--explain"], "reproduce": ["nope"], "completion": ["bash"], "report": ["."],
        "evaluate": ["run"],
    }  # fmt: skip
    words = [command, *first.get(command, [])]
    for _ in range(rng.randrange(4)):
        option = rng.choice(OPTIONS[command] or ("--x",))
        words += [option] if rng.random() < 0.2 else [option, _option_value(rng)]
    if rng.random() < 0.2:
        words[rng.randrange(len(words))] = _word(rng)
    return [word for word in words if "os:system" not in word]


def _option_value(rng: Random) -> str:
    return rng.choice(TEXTS) if rng.random() < 0.5 else str(rng.choice((*NUMBERS[:6], 0.5, -2.5, 1e300)))


def _read_command(folder: Path, words: list[str], rng: Random) -> None:
    """Exit codes 0, 1 and 2, and never a traceback. What would begin long work never gets that far."""
    import contextlib
    import os

    from ube.cli import main

    if not (folder / "model.npz").exists():
        np.savez(folder / "model.npz", **_the_models()[0])
        _run(folder)
    said, here = io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(words)
    except SystemExit as stop:
        assert "Traceback" not in said.getvalue()
        if stop.code in (1, 2):
            raise UsageError("refused, in words of its own") from None
        if stop.code not in (0, None):
            raise AssertionError(f"exit code {stop.code}") from None
    finally:
        os.chdir(here)
    assert "Traceback" not in said.getvalue()


READERS = {
    reader.name: reader
    for reader in (
        Reader("model.npz", _model, _read_model),
        Reader("config.json", lambda rng: _json(_config())(rng), _read_config),
        Reader("rows of a run", _rows, _read_rows),
        Reader("state.safetensors", _hostile_state, _read_state),
        Reader("checkpoint", _manifest, _read_manifest),
        Reader("suite.toml", lambda rng: changed_bytes(as_toml(edited_often(rng.choice(_suites()), rng)), rng), _read_suite),
        Reader("done.json", lambda rng: _json(_done())(rng), _read_done),
        Reader("kept cells, rates, asked", _json(KEPT, {"env": "DeepSea-v0"}), _read_kept),
        Reader("results.json", lambda rng: _json(*_results())(rng), _read_results),
        Reader("results.csv", _csv, _read_csv),
        Reader("--set", _words, _read_words),
        Reader("command line", _command, _read_command, share=0.05),
    )
}  # fmt: skip
