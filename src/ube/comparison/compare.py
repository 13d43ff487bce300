"""`ube.compare`: a suite of agents times seeds, its table, figure and page."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ube.comparison.table import ENOUGH, AgentRow, agent_rows, curves_of, scores_of, summary
from ube.errors import RunError, UsageError
from ube.figures.comparison import FILE, draw_comparison
from ube.files import to_json, versions, write_atomically
from ube.reading import read_table
from ube.suite import Cell, Collected, Suite, collect, run_suite

AGENTS = ("dqn", "ube-deep", "boot")
ASKED = "asked.json"
"""What all cells of a folder have in common: all but agent and seed."""
Watch = Callable[[Suite, Path], AbstractContextManager[Callable[[str], None]]]


@dataclass(frozen=True)
class Comparison:
    path: Path
    """The folder: comparison.json, comparison.svg and .png, index.html, and a run directory for each cell."""
    table: list[AgentRow]
    results: dict[str, Any]
    """As in comparison.json: settings, seeds, versions, command, summary, curves."""
    failures: dict[str, str]
    """Cell -> why it failed."""

    @property
    def page(self) -> Path:
        return self.path / "index.html"

    @property
    def finished(self) -> bool:
        return all(row.seeds_done == row.seeds for row in self.table)


def compare(
    env: Any,
    agents: Iterable[str] = AGENTS,
    steps: int | None = None,
    seeds: int = 5,
    *,
    frames: int | None = None,
    seed: int = 0,
    protocol: str = "auto",
    env_args: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    episodes: int = 10,
    evaluation_frames: int | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    checkpoint_minutes: float = 10.0,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
) -> Comparison:
    """Trains every agent with every seed, and compares them; all of it lands in `out`, by default compare/ENV.

    env: an id, module:NAME, or a class or function of a module. agents: presets of `ube agents`; the others are measured by
    the first. steps, frames, env_args, overrides, protocol: as of `ube.train`, the same for all. seeds: how many, from
    `seed` on. episodes: of the evaluation after training, by each policy. evaluation_frames: of Atari, where evaluation is
    part of training; half of `frames`, and 500,000 at most, if not given. workers: processes side by side, one for each
    core if not given.

    What is done is not done again: the same call goes on after Ctrl-C, and more agents or seeds join those that are there.
    Anything else that differs from what the folder was begun with is refused. say: is told of each run that ends.
    watch: instead of `say`, a context in which to run, given the suite and its folder.
    """
    began = time.perf_counter()
    env, overrides = _found_again("env", env), dict(overrides or {})
    if "network" in overrides:
        overrides["network"] = _found_again("network", overrides["network"])
    asked = _asked(env, steps, frames, protocol, env_args or {}, overrides, episodes, evaluation_frames)
    names = _names(agents, asked)
    if seeds < 1:
        raise UsageError(f"seeds={seeds}: at least 1, and 3 or more for a word on who is better")
    if seed < 0 or seed + seeds > 2**32:
        raise UsageError(f"seed={seed}: within 0..{2**32 - seeds}")
    if workers is not None and workers < 1:
        raise UsageError(f"workers={workers}: at least 1")
    cells = tuple(Cell(agent=name, seed=seed + i, **asked) for name in names for i in range(seeds))
    suite = Suite("comparison", _title(asked), cells)
    folder = Path(out) if out is not None else Path("compare") / env.replace("/", "_").replace(":", "_")
    _claim(folder, asked)
    before = collect(suite, folder)
    if before.missing and before.versions not in ({}, versions()):
        raise UsageError(
            f"{folder} holds runs of other versions of ube or its packages than these: go on with those, or begin in "
            "another place (--out)"
        )
    with watch(suite, folder) if watch else contextlib.nullcontext(say) as said:
        outcome = run_suite(suite, folder, workers=workers, checkpoint_minutes=checkpoint_minutes, said=said)
    found = collect(suite, folder)
    if not found.rows:
        why = "; ".join(dict.fromkeys(text.strip().splitlines()[-1] for text in outcome.failures.values()))
        raise RunError(f"no run of {folder} was finished: {why or 'another process is at all of them'}")
    table, results = _results(asked, names, seed, seeds, found)
    results |= {
        "command": _command(asked, names, seed, seeds, folder),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return _written(folder, table, results, outcome.failures)


def _found_again(what: str, value: Any) -> str:
    """The name by which other processes find it."""
    if isinstance(value, str):
        return value
    from ube.envs.gymnasium_adapter import name_of

    name = name_of(value) if callable(value) else ""
    if ":" not in name:
        raise UsageError(
            f"{what}={value!r}: runs are trained in processes of their own; give its name, module:NAME, or a class or "
            "function of a module, not of this script"
        )
    return name


def _asked(
    env: str, steps: int | None, frames: int | None, protocol: str, env_args: dict[str, Any], overrides: dict[str, Any],
    episodes: int, evaluation_frames: int | None,
) -> dict[str, Any]:  # fmt: skip
    """What the cells have in common, checked."""
    from ube.deep.config import OwnNetwork
    from ube.deep.networks import found_network, n_features
    from ube.deep.protocols import AUTO, PROTOCOLS
    from ube.envs import make
    from ube.runs.plan import decisions

    made = make(env, **env_args)
    network = found_network(overrides.get("network", "auto"))
    if isinstance(network, OwnNetwork):  # a mistake is said at once
        n_features(network, (), made.observation_shape)
    steps = decisions(made, steps, frames)
    if episodes < 1:
        raise UsageError(f"episodes={episodes}: at least 1")
    asked: dict[str, Any] = {
        "env": env, "steps": steps, "env_args": env_args, "overrides": overrides, "evaluation_episodes": episodes,
    }  # fmt: skip
    if not Cell(agent="", seed=0, **asked).is_atari:
        if protocol != AUTO or evaluation_frames is not None:
            raise UsageError(f"protocol {protocol!r}, evaluation_frames={evaluation_frames}: only of Atari, not {env}")
        return asked
    if protocol not in (AUTO, *PROTOCOLS):
        raise UsageError(f"protocol {protocol!r}: choose one of {', '.join([AUTO, *PROTOCOLS])}")
    skip, period = made.frame_skip, overrides.get("update_period") or 4  # type: ignore[union-attr]
    least = min(125_000, -(-steps // 2)) if evaluation_frames is None else evaluation_frames // skip
    if least < 1:
        raise UsageError(f"evaluation_frames={evaluation_frames}: at least {skip}")
    every = min(250_000, -(-steps // period) * period)  # so that short runs are evaluated at their end
    return asked | {"protocol": protocol, "evaluate_every": every, "evaluation_steps": least}


def _names(agents: Iterable[str], asked: dict[str, Any]) -> list[str]:
    from ube.deep.config import agent_config

    listed = agents.replace(",", " ").split() if isinstance(agents, str) else list(agents)
    names = list(dict.fromkeys(listed))
    if not names:
        raise UsageError("which agents? name at least one of `ube agents`, such as dqn,ube-deep")
    for name in names:
        agent_config(name)
        try:
            agent_config(name, asked["overrides"])
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
    return names


def _claim(folder: Path, asked: dict[str, Any]) -> None:
    """Says in the folder what it is for; raises if it is for something else."""
    path, mine = folder / ASKED, json.loads(to_json(asked, digits=17))
    try:
        theirs = read_table(path, inside=folder, remedy=f"remove {folder}, or choose another place (--out)")
    except FileNotFoundError:
        if (folder / "cells").exists():
            raise UsageError(
                f"{folder} holds runs that are not of a comparison: choose another place (--out)"
            ) from None
        write_atomically(path, to_json(asked, digits=17))
        return
    for name in theirs | mine:
        if theirs.get(name) != mine.get(name):
            raise UsageError(
                f"{folder} compares with {name}={theirs.get(name)}, not {mine.get(name)}: only agents and seeds may be "
                "added; choose another place (--out)"
            )


def _results(
    asked: dict[str, Any], names: list[str], seed: int, seeds: int, found: Collected
) -> tuple[list[AgentRow], dict[str, Any]]:
    steps = asked["steps"]
    scores = {name: scores_of(found.rows, name, steps) for name in names}
    left = [cell.agent for cell in found.missing]
    table = agent_rows(scores, {name: seeds - left.count(name) for name in names}, seeds)
    atari = found.rows[0]["frames"] != ""
    reached = [one["mean"] for one in found.rows if one["policy"] == "training"] or [0.0]
    return table, {
        "name": "comparison", "title": f"{', '.join(names)} on {_title(asked)}", "note": _note(names[0]),
        "settings": asked | {"agents": names}, "seeds": {"first": seed, "count": seeds}, "versions": found.versions,
        "figures": ["comparison"], "summary": summary(table),
        "data": {
            "length": steps * (4 if atari else 1), "unit": "frames" if atari else "steps", "scores": scores,
            "range": [min(reached), max(reached)],
            "curves": {name: curves_of(found.rows, name, steps) for name in names},
        },
    }  # fmt: skip


def _note(first: str) -> str:
    return (
        "Means over seeds with 95 % intervals (Student). Training: episodes that ended in the last tenth. Evaluation: after "
        "training, greedy but for a small ε, or by the agent's own exploring policy. Better: the probability that a run "
        f"beats one of {first}, a tie counting half, with a 95 % bootstrap interval; from {ENOUGH} seeds on. In the chart, "
        "bands are cut at the lowest and highest that any run reached."
    )


def _title(asked: dict[str, Any]) -> str:
    changed = [f"env.{key}={value}" for key, value in asked["env_args"].items()]
    changed += [f"{key}={value}" for key, value in asked["overrides"].items()]
    return f"{asked['env']} ({', '.join(changed)})" if changed else asked["env"]


def _command(asked: dict[str, Any], names: list[str], seed: int, seeds: int, folder: Path) -> str:
    """That makes the same again, whoever calls."""
    words = ["ube", "compare", "--env", asked["env"], "--agents", ",".join(names), "--seeds", str(seeds)]
    words += ["--seed", str(seed)] if seed else []
    if "evaluate_every" in asked:
        words += ["--frames", str(4 * asked["steps"]), "--evaluation-frames", str(4 * asked["evaluation_steps"])]
        words += ["--protocol", asked["protocol"]]
    else:
        words += ["--steps", str(asked["steps"])]
    words += ["--episodes", str(asked["evaluation_episodes"])] if asked["evaluation_episodes"] != 10 else []
    changes = [f"{key}={_word(value)}" for key, value in asked["overrides"].items()]
    changes += [f"env.{key}={_word(value)}" for key, value in asked["env_args"].items()]
    words += ["--set", *changes] if changes else []
    return shlex.join([*words, "--out", folder.name])


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _written(folder: Path, table: list[AgentRow], results: dict[str, Any], failures: dict[str, str]) -> Comparison:
    from ube.report import write_page

    text = to_json(results)
    results = json.loads(text)  # what is drawn is what is written
    draw_comparison(results, folder)
    write_atomically(folder / FILE, text)
    write_page(folder)
    return Comparison(folder, table, results, failures)
