"""`ube doctor`: what is installed, what works (each thing is tried), and what the machine has."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import arg

from ube._version import __version__
from ube.errors import RunError

BASE = ("numpy", "scipy", "numba", "matplotlib", "jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "safetensors")
EXTRAS = {
    "atari": "ale-py", "grids": "navix", "tensorboard": "tensorboardX", "wandb": "wandb", "cluster": "ray",
    "sb3": "stable-baselines3",
}  # fmt: skip
"""Extra -> the package that it brings."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "XLA_FLAGS", "JAX_PLATFORMS")
PATIENCE = 120.0
"""Seconds that all checks may take together."""
MARK = "ube-doctor "
"""Begins the lines of the process that tries things: packages print what they like."""


class Check(NamedTuple):
    run: Callable[[], str]
    """Gives what to say; raises where it does not work."""
    remedy: str
    needs: str = ""
    """A package without which there is nothing to try."""


@dataclass(frozen=True)
class Finding:
    what: str
    state: str
    """ok, absent (and need not be there), or fails."""
    detail: str
    remedy: str = ""
    seconds: float | None = None
    """That trying it took."""


@dataclass
class Doctor:
    """What is installed, what works, and what the machine has; exits with 1 if something that is installed does not work."""

    json: bool = False
    """Print JSON instead of the table."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs")
    """Where runs would go: whether there is room."""

    def run(self) -> None:
        installed, works = packages(), tried(names())
        facts = machine(self.out, works)
        failing = [one.what for one in (*installed, *works) if one.state == "fails"]
        if self.json:
            content = {"ok": not failing, "installed": installed, "works": works}
            print(json.dumps({k: [asdict(one) for one in v] if isinstance(v, list) else v for k, v in content.items()}
                             | {"machine": facts}, indent=1))  # fmt: skip
        else:
            _show(installed, works, facts)
        if failing:
            raise RunError(
                f"{len(failing)} of what is installed do not work: {', '.join(failing)}; remedies stand beside"
            )


def _show(installed: list[Finding], works: list[Finding], facts: dict[str, str]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for title, found in (("installed", installed), ("tried", works)):
        timed = any(one.seconds is not None for one in found)
        columns = ("what", "state", "detail", *(["seconds"] if timed else []), "remedy")
        table = Table(*columns, title=title, title_justify="left")
        for one in found:
            seconds = ["" if one.seconds is None else f"{one.seconds:.1f}"] if timed else []
            words = (one.what, one.state, one.detail, *seconds, one.remedy)
            table.add_row(
                *map(escape, words), style="bold red" if one.state == "fails" else None
            )  # [atari] is no markup
        console.print(table)
    table = Table("machine", "", title="machine", title_justify="left")
    for name, value in facts.items():
        table.add_row(name, escape(value))
    console.print(table)


def packages() -> list[Finding]:
    """Versions, without importing anything."""
    found = [Finding("ube", "ok", f"{__version__} in Python {platform.python_version()}")]
    for name in BASE:
        version = _version(name)
        remedy = "" if version else f"pip install '{name}', or ube-rl again"
        found.append(Finding(name, "ok" if version else "fails", version or "missing", remedy))
    for extra, name in EXTRAS.items():
        version = _version(name)
        detail = f"{name} {version}" if version else f"no {name}"
        found.append(Finding(f"extra {extra}", "ok" if version else "absent", detail, "" if version else _pip(extra)))
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _pip(extra: str) -> str:
    return f"pip install 'ube-rl[{extra}]'"


def machine(out: Path, works: list[Finding]) -> dict[str, str]:
    from ube.machine import free_disk, free_memory, gigabytes

    free = free_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = next((one.detail for one in works if one.what == "jax" and one.state == "ok"), "none that works")
    return {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {cores} for this process",
        "memory": f"{gigabytes(free)} free" if free is not None else "nobody says",
        "disk": f"{gigabytes(free_disk(out))} free for {out}",
        "device": device,
        "threads": ", ".join(f"{name}={os.environ[name]}" for name in THREADS if name in os.environ) or "no limits set",
    }


# ------------------------------------------------------------------ checks


def _numba() -> str:
    import numba

    double = numba.njit(lambda x: 2 * x)
    assert double(21) == 42
    return f"compiles, {numba.get_num_threads()} threads"


def _jax() -> str:
    import jax
    import jax.numpy as jnp

    total = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
    assert total == 512.0, f"8·8·8 came out as {total}"
    devices = jax.devices()
    return f"{len(devices)} × {devices[0].platform} ({devices[0].device_kind})"


def _training() -> str:
    from ube.runs import train

    with tempfile.TemporaryDirectory() as folder:
        small: dict[str, Any] = {"hidden": (8,), "warmup": 16, "batch_size": 8, "replay_size": 256}
        run = train("DeepSea-v0", "dqn", 200, env_args={"size": 4}, overrides=small, out=Path(folder) / "run")
        assert len(run.episodes["step"]) == 50
    return "200 steps of dqn on DeepSea 4"


def _gymnasium() -> str:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.step(0)
    env.close()
    return "one step of CartPole-v1"


def _atari() -> str:
    import numpy as np

    from ube.envs import HostedEnvironment, make

    env = make("atari/pong")
    assert isinstance(env, HostedEnvironment)
    games = env.open(1)
    games.reset(0)
    games.step(np.zeros(1, int))
    games.close()
    return "one step of Pong"


def _figure() -> str:
    from ube.figures.style import canvas, save

    with tempfile.TemporaryDirectory() as folder, canvas() as (figure, axes):
        axes[0, 0].plot([0, 1], [0, 1])
        save(figure, Path(folder) / "line")
    return "one figure, as SVG and PNG"


def _tensorboard() -> str:
    from ube.runs.trackers import trackers

    with tempfile.TemporaryDirectory() as folder, trackers(["tensorboard"], Path(folder), {}, 0) as write:
        write(1, {"x": 1.0})
    return "one number was written"


def _imports(module: str) -> Callable[[], str]:
    def check() -> str:
        __import__(module)
        return "can be imported"

    return check


def _cache() -> str:
    """Where compiled programs are kept."""
    import jax

    from ube.runs.jax_setup import set_up_jax

    set_up_jax()
    path = jax.config.values.get("jax_compilation_cache_dir")
    if not path:
        return "off (JAX_COMPILATION_CACHE_DIR is empty): every start compiles anew"
    Path(path).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        return f"can be written ({sum(1 for _ in Path(path).iterdir())} files)"


CHECKS = {
    "numba": Check(_numba, "pip install -U numba llvmlite"),
    "jax": Check(_jax, "pip install -U jax jaxlib of one version; JAX_PLATFORMS=cpu leaves a broken GPU alone"),
    "compilation cache": Check(_cache, "JAX_COMPILATION_CACHE_DIR=DIR moves it to where you can write"),
    "training": Check(_training, "mend jax first; else pip install -U 'ube-rl' with its constraints.txt"),
    "matplotlib": Check(_figure, "pip install -U matplotlib; MPLCONFIGDIR=DIR if your home cannot be written to"),
    "gymnasium": Check(_gymnasium, "pip install -U 'gymnasium>=1.1'"),
    "atari": Check(_atari, f"{_pip('atari')} again", "ale-py"),
    "grids": Check(_imports("navix"), f"{_pip('grids')} again", "navix"),
    "tensorboard": Check(_tensorboard, f"{_pip('tensorboard')} again", "tensorboardX"),
    "wandb": Check(_imports("wandb"), f"{_pip('wandb')} again", "wandb"),
    "cluster": Check(_imports("ray"), f"{_pip('cluster')} again", "ray"),
    "sb3": Check(_imports("stable_baselines3"), f"{_pip('sb3')} again", "stable-baselines3"),
}


def names() -> list[str]:
    """Of the checks for which there is something to try."""
    return [name for name, check in CHECKS.items() if not check.needs or _version(check.needs)]


def tried(asked: Sequence[str], patience: float = PATIENCE) -> list[Finding]:
    """In a process of its own: a package that takes the process with it fails, and the others are still tried."""
    found: list[Finding] = []
    end = time.monotonic() + patience
    left = list(asked)
    while left:
        before = len(left)
        for what, ok, detail, seconds in _answers(left, end):
            left.remove(what)
            found.append(Finding(what, "ok" if ok else "fails", detail, "" if ok else CHECKS[what].remedy, seconds))
        if left:
            late = time.monotonic() > end
            why = f"not done after {patience:g} s" if late else "took the process with it"
            lost = left if late else left[:1]
            found += [Finding(what, "fails", why, CHECKS[what].remedy) for what in lost]
            left = left[len(lost) :]
        assert len(left) < before
    return found


def _answers(asked: list[str], end: float) -> Iterator[tuple[str, bool, str, float]]:
    """Of one process, as far as it gets."""
    program = "import sys; from ube.doctor import answer; answer(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *asked], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    timer = threading.Timer(max(0.0, end - time.monotonic()), process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                yield json.loads(line.removeprefix(MARK))
        process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def answer(asked: list[str]) -> None:
    """The life of that process."""
    for name in asked:
        began = time.perf_counter()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            try:
                ok, detail = True, CHECKS[name].run()
            except (Exception, SystemExit) as error:
                ok, detail = False, f"{type(error).__name__}: {error}".strip().splitlines()[0]
        print(MARK + json.dumps([name, ok, detail, round(time.perf_counter() - began, 1)]), flush=True)
