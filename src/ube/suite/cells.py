"""A suite is data: blocks of a small TOML file, each the product of its environments, agents, seeds and grid.

about = "what it is for"

[[cells]]
envs = ["atari/breakout", "atari/pong"]   # "atari/*" stands for all 57
agents = ["dqn", "ube-nstep"]
seeds = 3                                 # 0, 1, 2; or a list
frames = 200_000_000                      # of Atari; steps of anything else
set = { beta = 0.02, "env.max_frames" = 18_000 }
grid = { n = [1, 10, 150] }               # one cell for each value, times those above
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ube.deep.config import NETWORK_DEFAULTS, agent_config
from ube.deep.protocols import AUTO, PROTOCOLS, with_protocol
from ube.errors import UsageError, nearest
from ube.reading import LARGEST_TOML, parse_toml, read_bytes, refuse
from ube.stats import atari

ATARI = "atari/"
_NEEDS = ("cpus", "gpus", "memory_gb")
MOST_CELLS = 100_000
MOST_STEPS = 10**15
LONGEST_NAME = 100
"""Letters of an environment: it becomes part of a folder's name."""
FRAME_SKIP = 4
KNOBS = (
    "beta", "greedy_share", "u_discount", "epsilon_start", "epsilon_end", "epsilon_steps", "prior", "u_learning_rate",
    "trace_decay", "randomised_prior", "mask_probability", "discount", "learning_rate", "reward_unit", "reward_clip",
)  # fmt: skip
"""Fields of an agent that change neither its program nor how long a step takes."""


@dataclass(frozen=True)
class Cell:
    """One run of `ube.train`."""

    env: str
    agent: str
    """A preset."""
    seed: int
    steps: int
    """Decisions."""
    env_args: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    protocol: str = AUTO
    evaluate_every: int | None = None
    """Decisions outside of JAX between evaluations of `evaluation_steps` decisions, by `evaluation_policy`; None leaves it
    to the environment. Compiled environments are evaluated after training only."""
    evaluation_steps: int | None = None
    evaluation_policy: str = "both"
    evaluation_episodes: int = 10
    """After training, by `evaluation_policy`, where that was not evaluated at the end of training."""
    cpus: int = 1
    """Threads on a cluster; as `gpus` and `memory_gb`, no part of what is asked."""
    gpus: float = 0.0
    memory_gb: float | None = None
    """That it needs, where what is computed is not enough."""

    @property
    def is_atari(self) -> bool:
        return self.env.startswith(ATARI)

    @property
    def spec(self) -> dict[str, Any]:
        """All that decides the result."""
        asked = dataclasses.asdict(self)
        for name in _NEEDS:
            del asked[name]
        return asked

    @functools.cached_property
    def id(self) -> str:
        """Of the folder: equal only where all of the cell is."""
        digest = hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.env}-{self.agent}-seed{self.seed}-{digest}".replace("/", "_").replace(":", "_")

    @property
    def config_digest(self) -> str:
        """Of all fields of the agent, so that a preset that has changed is noticed."""
        return _config_digest(self.agent, json.dumps(self.overrides, sort_keys=True))

    @property
    def kind(self) -> str:
        """Cells alike in this share a program and take equally long: games of Atari are close enough."""
        env: Any = "atari" if self.is_atari else [self.env, self.env_args]
        shape = {name: value for name, value in self.overrides.items() if name not in KNOBS}
        return json.dumps([env, self.agent, shape, self.protocol])

    @property
    def replay_size(self) -> int:
        """Of an Atari cell."""
        config = agent_config(self.agent, self.overrides)
        _, config = with_protocol(self.protocol, {}, config, self.overrides, self.steps * FRAME_SKIP)
        return config.replay_size or NETWORK_DEFAULTS["nature"]["replay_size"]


@functools.cache
def _config_digest(agent: str, overrides: str) -> str:
    fields = dataclasses.asdict(agent_config(agent, json.loads(overrides)))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Suite:
    """Runs that belong together."""

    name: str
    about: str
    cells: tuple[Cell, ...]


def shipped() -> dict[str, str]:
    """Names of the suites that come with ube -> what they are for."""
    folder = resources.files("ube") / "data" / "suites"
    files = {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}
    return {name: tomllib.loads(files[name].read_text(encoding="utf-8"))["about"] for name in sorted(files)}


def read_suite(name: str, modules: tuple[str, ...] | None = ()) -> Suite:
    """A shipped suite by name, or one of your own by the path of its .toml file.

    modules: those that an environment or a network module:NAME may come from, since a file alone may not choose which module
    is run; None where nothing will be run, such as for `status`.
    """
    path = Path(name)
    if path.suffix == ".toml":
        try:
            text = read_bytes(path, remedy=_A_SUITE, most=LARGEST_TOML).decode("utf-8-sig")
        except FileNotFoundError as error:
            refuse(path, str(error.strerror), _A_SUITE)
        except UnicodeDecodeError as error:
            refuse(path, str(error), _A_SUITE)
        suite = parsed(path.stem, text, str(path))
        if modules is not None:
            _check_modules(suite, modules, path)
        return suite
    if name not in shipped():
        raise UsageError(f"no suite {name!r}: {nearest(name, list(shipped()))}; your own is a file that ends in .toml")
    return parsed(
        name, (resources.files("ube") / "data" / "suites" / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml"
    )


_A_SUITE = "give the path of a suite's file"


def _check_modules(suite: Suite, modules: tuple[str, ...], path: Path) -> None:
    for cell in suite.cells:
        for place in (cell.env.removeprefix("gym/"), cell.overrides.get("network", "")):
            module, colon, _ = place.partition(":")
            if colon and not module:
                raise UsageError(f"{path} asks for {place}: write module:NAME")
            if colon and module not in modules:
                raise UsageError(
                    f"{path} asks for {place}, and a file may not choose which module is run: if you trust {module!r}, say "
                    f"so (--modules {module}, or read_suite(path, modules=({module!r},)))"
                )


def parsed(name: str, text: str, where: str) -> Suite:
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{where} is not TOML: {error}") from None
    for key in content:
        if key not in ("about", "cells"):
            raise UsageError(
                f"{where}, {_line(text, key)}: {key!r} means nothing here: {nearest(key, ['about', 'cells'])}"
            )
    if not isinstance(content.get("about", ""), str):
        raise UsageError(f"{where}, {_line(text, 'about')}: about = {content['about']!r}: give text in quotes")
    blocks = content.get("cells")
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
        raise UsageError(f"{where}: a suite needs at least one block [[cells]]")
    cells: dict[str, Cell] = {}
    for number, block in enumerate(blocks):
        try:
            for cell in _block(block, MOST_CELLS - len(cells)):
                if cell.id in cells:
                    raise _Wrong("envs", f"{cell.env}, {cell.agent}, seed {cell.seed} is there twice")
                cells[cell.id] = cell
        except _Wrong as wrong:
            raise UsageError(f"{where}, {_line(text, *wrong.fields, block=number)}: {wrong}") from None
    return Suite(name, content.get("about", ""), tuple(cells.values()))


class _Wrong(Exception):
    """With a field of a block: a key of `set` or `grid`, if it stands on a line of its own, or else the table."""

    def __init__(self, fields: str | tuple[str, ...], message: str):
        self.fields = (fields,) if isinstance(fields, str) else fields
        super().__init__(message)


_TIMES = {"evaluate_every": "evaluate_every", "evaluation_frames": "evaluation_steps"}
"""Frames of Atari, or else steps, in the file -> decisions of a cell."""
_OF_ATARI = {"evaluate_every": 250_000, "evaluation_steps": 125_000}
_KEYS = (
    "envs", "agents", "seeds", "steps", "frames", "set", "grid", "protocol", "evaluation_policy", "evaluation_episodes",
    *_NEEDS, *_TIMES,
)  # fmt: skip


def _block(block: dict[str, Any], most: int) -> list[Cell]:
    for key in block:
        if key not in _KEYS:
            raise _Wrong(key, f"{key!r} means nothing in a block: {nearest(key, _KEYS)}")
    envs = [full for env in _names(block, "envs") for full in _expanded(env)]
    agents, seeds = _names(block, "agents"), _seeds(block)
    given = _table(block, "set")
    grid = {key: _values(key, values) for key, values in _table(block, "grid").items()}
    number = math.prod(map(len, (envs, agents, seeds, *grid.values())))
    if number > most:
        raise _Wrong(
            "grid" if grid else "seeds", f"{number:,} more cells: a suite has at most {MOST_CELLS:,}; make two of it"
        )
    common: dict[str, Any] = {key: _one_of(block, key) for key in _CHOICES if key in block}
    common |= {key: _whole(block, key, 1) for key in ("evaluation_episodes", "cpus") if key in block}
    if "gpus" in block:
        common["gpus"] = _number(block, "gpus", 0.0)
    if "memory_gb" in block:
        common["memory_gb"] = _number(block, "memory_gb", 0.1)
    cells = []
    for env, agent, chosen in itertools.product(envs, agents, itertools.product(*grid.values())):
        changes = given | dict(zip(grid, chosen, strict=True))
        env_args = {key.removeprefix("env."): value for key, value in changes.items() if key.startswith("env.")}
        overrides = {key: value for key, value in changes.items() if not key.startswith("env.")}
        try:
            agent_config(agent, overrides)
        except UsageError as error:
            fixed = {key: value for key, value in overrides.items() if key not in grid}
            raise _Wrong(_blamed(agent, fixed, overrides), str(error)) from None
        steps = _steps(block, env)
        asked = common | _times(block, env)
        cells += [Cell(env, agent, seed, steps, env_args, overrides, **asked) for seed in seeds]
    return cells


def _blamed(agent: str, fixed: dict[str, Any], overrides: dict[str, Any]) -> tuple[str, ...]:
    """The field that is wrong by itself. fixed: overrides that do not come from the grid."""
    if _refused(agent, {}):
        return ("agents",)
    alone = [key for key, value in overrides.items() if _refused(agent, {key: value})]
    return (*alone[:1], "set" if _refused(agent, fixed) else "grid")


def _refused(agent: str, changes: dict[str, Any]) -> bool:
    try:
        agent_config(agent, changes)
    except UsageError:
        return True
    return False


_CHOICES = {"protocol": (AUTO, *PROTOCOLS), "evaluation_policy": ("greedy", "own", "both", "none")}


def _one_of(block: dict[str, Any], key: str) -> str:
    if block[key] not in _CHOICES[key]:
        raise _Wrong(key, f"{key} = {block[key]!r}: choose one of {', '.join(_CHOICES[key])}")
    return block[key]


def _steps(block: dict[str, Any], env: str) -> int:
    wanted, other = ("frames", "steps") if env.startswith(ATARI) else ("steps", "frames")
    if other in block and wanted not in block:
        raise _Wrong(other, f"{env} is trained for {wanted}, not {other}")
    if wanted not in block:
        raise _Wrong("envs", f"for how long? give {wanted} = N")
    return _whole(block, wanted, FRAME_SKIP if wanted == "frames" else 1) // (FRAME_SKIP if wanted == "frames" else 1)


def _times(block: dict[str, Any], env: str) -> dict[str, int]:
    skip = FRAME_SKIP if env.startswith(ATARI) else 1
    given = {cell: _whole(block, key, skip) // skip for key, cell in _TIMES.items() if key in block}
    return (_OF_ATARI if env.startswith(ATARI) else {}) | given


def _expanded(env: str) -> list[str]:
    if env == f"{ATARI}*":
        return [ATARI + game for game in atari.games()]
    if not env.startswith(ATARI):
        return [env]
    game = env.removeprefix(ATARI)
    if game not in atari.games():
        raise _Wrong("envs", f"no Atari game {game!r}: {nearest(game, atari.games())}")
    return [env]


def _names(block: dict[str, Any], key: str) -> list[str]:
    names = block.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise _Wrong(key, f"{key} = {names!r}: give a list of names, such as {_EXAMPLES[key]}")
    for name in names:
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise _Wrong(key, f"{key}: {name!r} is no name of one line with at most {LONGEST_NAME} letters")
    return names


_EXAMPLES = {"envs": '["atari/pong"]', "agents": '["dqn", "ube-1step"]'}


def _seeds(block: dict[str, Any]) -> Sequence[int]:
    seeds = block.get("seeds", 1)
    if type(seeds) is int and 0 < seeds <= MOST_CELLS:
        return range(seeds)
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds):
        raise _Wrong(
            "seeds", f"seeds = {seeds!r}: give how many, at most {MOST_CELLS:,}, or a list of numbers from 0 on"
        )
    if len(set(seeds)) < len(seeds):
        raise _Wrong("seeds", f"seeds = {seeds!r}: each may be there once")
    return seeds


def _table(block: dict[str, Any], key: str) -> dict[str, Any]:
    table = block.get(key, {})
    if not isinstance(table, dict):
        raise _Wrong(key, f'{key} = {table!r}: give a table, such as {{ beta = 0.1, "env.size" = 20 }}')
    for name, value in table.items():
        if not _is_plain(value):
            raise _Wrong(
                (name, key), f"{name} = {value}: give a number, text, true or false, or a list of them; no date"
            )
    return table


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, (str, float)) and value == value


def _values(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise _Wrong((key, "grid"), f"{key} = {values!r}: a grid has lists of values")
    return values


def _whole(block: dict[str, Any], key: str, least: int) -> int:
    value = block[key]
    if type(value) is not int or not least <= value <= MOST_STEPS:
        raise _Wrong(key, f"{key} = {str(value)[:40]}: give a whole number, at least {least}, at most {MOST_STEPS:.0e}")
    return value


def _number(block: dict[str, Any], key: str, least: float) -> float:
    value = block[key]
    if type(value) not in (int, float) or not least <= value <= 100_000:
        raise _Wrong(key, f"{key} = {value!r}: give a number from {least:g} on, such as {least + 0.25:g}")
    return float(value)


def _line(text: str, *fields: str, block: int | None = None) -> str:
    """Where the first of the fields stands that has a line, or else their block."""
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[\[\s*cells\s*\]\]", line)] or [0]
    first = heads[block] if block is not None and block < len(heads) else 0
    last = heads[block + 1] if block is not None and block + 1 < len(heads) else len(lines)
    patterns = [re.compile(rf"\s*\[?\s*(cells\.)?[\"']?{re.escape(field)}[\"']?\s*[=\]]") for field in fields]
    found = [i for pattern in patterns for i in range(first, last) if pattern.match(lines[i])]
    return f"line {[*found, first][0] + 1}"
