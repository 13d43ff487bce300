"""`ube train`, `evaluate`, `agents` and `envs` as a user meets them."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ube.cli import _live, main
from ube.deep.config import PRESETS
from ube.errors import RunError
from ube.runs import Progress
from ube.runs.training import Episodes

SMALL = ["hidden=8", "replay_size=100", "batch_size=4", "warmup=10", "env.size=4"]


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a failing command, but for a word on the compiler before it."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line != "compiling …"]
    assert len(lines) == 1
    return lines[0]


def train(out: Path, *words: str, steps: int = 110) -> None:
    main(["train", "--env", "DeepSea-v0", "--agent", "dqn", "--steps", str(steps), "--out", str(out), *words])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    train(out, "--set", *SMALL, "--seed", "2")
    return out


def test_train_keeps_what_was_asked_and_what_happened(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"config.json", "episodes.jsonl", "metrics.jsonl", "state.safetensors", "learning.png", ".lock"}
    assert {path.name for path in run.iterdir()} == names
    config = json.loads((run / "config.json").read_text())
    assert (config["env_args"], config["seed"], config["agent"]["hidden"]) == ({"size": 4}, 2, [8])
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert [episode["step"] for episode in episodes] == list(range(4, 110, 4))
    assert (run / "learning.png").read_bytes()[:4] == b"\x89PNG"


def test_train_reports_and_is_repeated_by_its_seed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "again", "--set", *SMALL, "--seed", "2")
    shown = capsys.readouterr()
    episodes = (run / "episodes.jsonl").read_bytes()
    assert (tmp_path / "again" / "episodes.jsonl").read_bytes() == episodes
    assert (tmp_path / "again" / "state.safetensors").read_bytes() == (run / "state.safetensors").read_bytes()
    paid = np.array([json.loads(line)["episode_return"] for line in episodes.splitlines()])
    assert f"27 episodes; return of the last 2: {paid[-2:].mean():.4g} (all: {paid.mean():.4g})" in shown.out
    assert "step 110 of 110" in shown.err
    train(tmp_path / "other", "--set", *SMALL, "--seed", "3")
    assert (tmp_path / "other" / "episodes.jsonl").read_bytes() != episodes


def test_evaluate_prints_and_writes_returns(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--episodes", "5", "--policy", "own", "--out", str(tmp_path / "e.json")])
    written = json.loads((tmp_path / "e.json").read_text())
    assert len(written["episode_return"]) == 5
    assert written["episode_length"] == [4] * 5
    assert (written["policy"], written["run"]["seed"]) == ("own", 2)
    shown = capsys.readouterr().out
    assert f"{np.mean(written['episode_return']):.4g}" in shown
    for word in ("5", "mean return", "highest"):
        assert word in shown


def test_agents_and_envs_list_what_can_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    main(["agents"])
    shown = capsys.readouterr().out
    for name in PRESETS:
        assert f" {name} " in shown
    assert "n=150" in shown
    assert "bonus_scale=0.1" in shown
    main(["envs"])
    shown = capsys.readouterr().out
    for env_id in ("DeepSea-v0", "Tree-v0", "Chain-v0", "MountainCarSparse-v0", "Catch-bsuite", "Navix-DoorKey-5x5-v0"):
        assert env_id in shown
    assert "size=10" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "beta=0"], "beta=0.0: β must be positive"),
        (["--set", "beta"], "write KEY=VALUE"),
        (["--set", "bta=1"], "did you mean beta"),
        (["--set", "n=0"], "n=0: n must be at least 1"),
        (["--set", "prior=-1"], "prior=-1.0: μ must be positive"),
        (["--set", "hidden=a"], "hidden=a: expected numbers"),
        (["--set", "env.size=1"], "size=1"),
        (["--set", "env.sise=4"], "no argument 'sise'"),
        (["--set", "policy=ucb"], "acts on u"),
        (["--agent", "dqm"], "agent 'dqm' does not exist: did you mean dqn"),
        (["--env", "DeepSee-v0"], "no environment 'DeepSee-v0'"),
        (["--steps", "0"], "steps=0"),
        (["--seed", "-1"], "seed=-1"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--env", "DeepSea-v0", "--agent", "dqn", "--out", str(tmp_path / "run"), *words]
    said = failure(capsys, *command)
    assert message in said
    assert not (tmp_path / "run").exists()


def test_a_full_folder_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--env", "DeepSea-v0", "--agent", "dqn", "--out", str(run), "--set", *SMALL]
    assert "exists and is not empty: --resume goes on with it, --out chooses another place" in failure(capsys, *command)


def test_pictures_come_instead_of_the_table(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--episode", str(tmp_path / "e.png"), "--seed", "3"])
    assert capsys.readouterr().out == f"Open {tmp_path / 'e.png'}\n"
    assert (tmp_path / "e.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", "0"], "episodes=0: at least 1"),
        (["--policy", "best"], "policy='best': choose greedy or own"),
        (["--episode", "e.txt"], "e.txt: a picture ends in .png, .svg, .pdf"),
        (["--calibration", "c.png"], "dqn has no u to look at"),
        (["--map", "m.png", "--dims", "1", "2"], "dqn has no u to look at"),
    ],
)
def test_evaluate_refuses_bad_input(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failure(capsys, "evaluate", str(run), *words)


def test_evaluate_refuses_what_is_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a run: it has no config.json" in failure(capsys, "evaluate", str(tmp_path))


def test_a_run_that_stops_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(*_: object, **__: object) -> None:
        raise RunError("the run diverged before step 7: lower learning_rate")

    monkeypatch.setattr("ube.runs.train", diverges)
    with pytest.raises(SystemExit) as stop:
        train(tmp_path / "run", "--set", *SMALL)
    assert stop.value.code == 1
    assert "ube: the run diverged before step 7: lower learning_rate\n" in capsys.readouterr().err


def test_on_a_terminal_a_bar_shows_the_numbers_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("ube.cli.Console", lambda **more: Console(**more, file=screen, force_terminal=True, width=150))
    empty = Episodes(*(np.zeros(0) for _ in Episodes._fields))
    with _live() as (move, say):
        first = {"return": 7.0, "q": 0.5, "u": 0.25, "loss": 0.125, "frames_per_second": 812.0}
        move(Progress(10, 40, first, empty, agent=None))  # type: ignore[arg-type]
        move(Progress(20, 40, {"q": 0.75}, empty, agent=None))  # type: ignore[arg-type]
        say("going on from step 10")
    shown = screen.getvalue()
    assert "going on from step 10" in shown
    assert "20/40" in shown
    assert "return 7  q 0.75  u 0.25  loss 0.125  frames/s 812" in shown  # what the second chunk lacks is the first's
