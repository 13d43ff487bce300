"""The package as users install it: built as a wheel, in an empty environment, with nothing but its base dependencies."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel
ROOT = Path(__file__).parent.parent
NOT_IN_BASE = ("torch", "tensorflow", "ray", "wandb", "ale-py", "navix", "tensorboardX", "stable-baselines3", "pytest")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Without what the environment of the tests would add."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX_DISABLE"))}
    return subprocess.run([str(word) for word in command], cwd=cwd, env=kept, capture_output=True, text=True)


def good(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "source" / "src", ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    good(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        folder,
        folder / "source",
        cwd=folder,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def place(wheel: Path) -> Path:
    """A folder with an environment in .venv, and the wheel in it."""
    place = wheel.parent / "user"
    place.mkdir()
    good(sys.executable, "-m", "venv", ".venv", cwd=place)
    pip = [place / ".venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    good(*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=place)
    good(*pip, "check", cwd=place)
    return place


def ube(place: Path, *words: str) -> str:
    return good(place / ".venv" / "bin" / "ube", *words, cwd=place)


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    here = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "ube").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert there == here
    assert {"ube/data/suites/demo.toml", "ube/data/atari57.csv", "ube/report/page.html.j2", "ube/py.typed"} <= there


def test_the_base_is_light(place: Path) -> None:
    listed = json.loads(good(place / ".venv/bin/python", "-m", "pip", "list", "--format", "json", cwd=place))
    names = {one["name"].lower() for one in listed}
    assert not names & {name.lower() for name in NOT_IN_BASE}


def test_it_says_what_it_is_and_has(place: Path) -> None:
    assert ube(place, "--version").startswith("ube 0.")
    assert "deepsea-tabular" in ube(place, "reproduce", "--list")
    assert "atari57" in ube(place, "suite", "plan", "--list")
    assert "breakout" in ube(place, "envs")
    assert "complete -o default -F _ube ube" in ube(place, "completion", "bash")


def test_it_trains_and_shows(place: Path) -> None:
    small = ["--set", "env.size=3", "hidden=4", "warmup=8", "batch_size=4"]
    shown = ube(place, "train", "--env", "DeepSea-v0", "--agent", "dqn", "--steps", "120", *small, "--out", "runs/one")
    assert shown.startswith("40 episodes; return of the last 4: ")
    assert (place / "runs/one/learning.png").stat().st_size > 1_000
    assert "Open runs/index.html" in ube(place, "report", "runs")


def test_the_doctor_finds_nothing_wrong_and_says_how_to_add_extras(place: Path) -> None:
    content = json.loads(ube(place, "doctor", "--json"))
    assert content["ok"]
    assert {one["what"] for one in content["works"]} >= {"numba", "jax", "training", "matplotlib", "gymnasium"}
    extras = {one["what"]: one for one in content["installed"] if one["what"].startswith("extra ")}
    for extra in ("atari", "grids", "tensorboard", "cluster", "wandb", "sb3"):
        assert extras[f"extra {extra}"]["state"] == "absent"
        assert extras[f"extra {extra}"]["remedy"] == f"pip install 'ube-rl[{extra}]'"


def test_the_tabular_half_loads_no_jax(place: Path) -> None:
    program = (
        "import sys, ube.tabular; print([name for name in ('jax', 'gymnasium', 'matplotlib') if name in sys.modules])"
    )
    assert good(place / ".venv/bin/python", "-c", program, cwd=place) == "[]\n"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("atari", ["train", "--env", "atari/pong", "--frames", "4", "--out", "a"]),
        ("grids", ["train", "--env", "Navix-DoorKey-5x5-v0", "--steps", "4", "--out", "g"]),
        ("tensorboard", ["train", "--env", "DeepSea-v0", "--steps", "4", "--tensorboard", "--out", "t"]),
        ("cluster", ["suite", "run", "demo", "--executor", "ray"]),
    ],
)
def test_an_extra_that_is_not_there_is_explained_in_one_line(place: Path, extra: str, words: list[str]) -> None:
    done = run(place / ".venv" / "bin" / "ube", *words, cwd=place)
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line != "compiling …"]
    assert said.endswith(f"pip install 'ube-rl[{extra}]'")


SMALL = ("--set", "env.size=3", "hidden=4", "warmup=8", "batch_size=4")
DEEP_SEA = ("train", "--env", "DeepSea-v0", "--steps", "40", *SMALL)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("atari", ("train", "--env", "atari/pong", "--frames", "400", "--set", "replay_size=1000")),
        ("grids", ("train", "--env", "Navix-Empty-5x5-v0", "--steps", "40", "--set", "warmup=8", "hidden=4")),
        ("tensorboard", (*DEEP_SEA, "--tensorboard")),
        ("wandb", (*DEEP_SEA, "--wandb")),
        ("cluster", ("suite", "run", "tiny.toml", "--executor", "ray")),
    ],
)
def test_each_extra_works_alone(
    request: pytest.FixtureRequest, place: Path, wheel: Path, extra: str, words: tuple[str, ...]
) -> None:
    """With the base, and nothing that the tests or another extra need."""
    folder = place / extra
    good(sys.executable, "-m", "venv", folder / ".venv", cwd=place)
    (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (base,) = (place / ".venv" / "lib").glob("python*/site-packages")
    (packages / "base.pth").write_text(f"{base}\n")
    python = folder / ".venv" / "bin" / "python"
    constraints = ("--constraint", ROOT / "constraints.txt")
    good(python, "-m", "pip", "install", "--quiet", *constraints, f"ube-rl[{extra}] @ {wheel.as_uri()}", cwd=folder)
    (folder / "tiny.toml").write_text(
        '[[cells]]\nenvs = ["DeepSea-v0"]\nagents = ["dqn"]\nseeds = 2\nsteps = 40\n'
        'set = { "env.size" = 3, hidden = [4], warmup = 8, batch_size = 4 }\n'
    )
    if extra == "cluster":
        ray = python.with_name("ray")
        good(ray, "start", "--head", "--node-ip-address=127.0.0.1", "--include-dashboard=false", cwd=folder)
        request.addfinalizer(lambda: good(ray, "stop", cwd=folder))
    shown = good("env", "WANDB_MODE=offline", python, "-m", "ube", *words, cwd=folder)
    assert "Open " in shown or "100.0 %" in shown, shown
