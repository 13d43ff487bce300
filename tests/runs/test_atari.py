"""Atari as a user meets it: one small real run, what is made of it, and bad input. All 57 games: `make test-games`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("ale_py")

from ube.cli import main
from ube.deep.config import agent_config
from ube.deep.networks import n_features
from ube.deep.protocols import with_protocol
from ube.envs.atari import GAMES, _vector_env
from ube.figures.atari import _rows, _training
from ube.runs import Run, Schedule, load
from ube.runs.plan import planned
from ube.stats import atari

SMALL = ["replay_size=300", "warmup=40", "batch_size=4", "env.max_frames=200"]


def command(game: str, out: Path, *words: str) -> list[str]:
    asked = ["train", "--env", f"atari/{game}", "--agent", "ube-1step", "--frames", "640", "--out", str(out)]
    return [*asked, "--evaluate-every", "640", "--evaluation-frames", "1600", *words, "--set", *SMALL]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("atari") / "run"
    main(command("SpaceInvaders", out, "--tensorboard"))
    return load(out)


def test_a_run_keeps_scores_and_says_how_it_went(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.config["steps"] == 160
    assert (run.config["agent"]["reward_clip"], run.config["agent"]["network"]) == (1.0, "nature")
    assert run.episodes["episode_length"].tolist() == [50, 50, 50]  # games cut off after 200 frames
    np.testing.assert_array_equal(run.episodes["episode_return"] % 5, 0)  # an invader scores 5 and more: not clipped
    assert run.metrics["step"].tolist() == [160]
    assert {"q", "u", "nu", "loss", "frames_per_second"} <= set(run.metrics)
    last = run.last_evaluation()
    assert {policy: len(scores) for policy, scores in last.items()} == {"greedy": 8, "own": 8}
    assert run.plot().is_file()


def test_metrics_go_to_tensorboard_if_asked(run: Run) -> None:
    (file,) = (run.path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert all(name.encode() in content for name in ("loss", "u", "frames_per_second", "evaluation_own"))


def test_a_trained_agent_plays_thinks_and_is_filmed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    belief = run.agent.uncertainty(np.zeros((84, 84, 4), np.uint8))
    assert belief.u.shape == belief.nu.shape == (6,)
    main(["evaluate", str(run.path), "--episodes", "2", "--out", str(tmp_path / "e.json")])
    assert json.loads((tmp_path / "e.json").read_text())["episode_length"] == [50, 50]
    main(["evaluate", str(run.path), "--video", str(tmp_path / "game.gif"), "--policy", "own"])
    assert "Open" in capsys.readouterr().out
    with Image.open(tmp_path / "game.gif") as film:
        assert film.size == (320, 420 + 90)
        assert film.n_frames > 25  # equal pictures in a row are one frame
    with pytest.raises(SystemExit):
        main(["evaluate", str(run.path), "--video", str(tmp_path / "game.mpg")])
    assert "a video ends in .gif" in capsys.readouterr().err


def test_what_is_filmed_is_what_was_played(run: Run) -> None:
    """The screen before each action, in grey and small, is what the agent saw."""
    env = run.agent.env
    actions = np.random.default_rng(0).integers(0, 6, 30)
    games = env.open(1)  # type: ignore[union-attr]
    seen = [games.reset(5)[0], *(games.step(np.array([action])).frame[0] for action in actions[:-1])]
    screens = env.screens(5, actions)  # type: ignore[union-attr]
    assert screens.shape == (30, 210, 160, 3)
    for small, screen in zip(seen, screens, strict=True):
        grey = np.asarray(Image.fromarray(screen).convert("L").resize((84, 84), Image.Resampling.BOX), float)
        assert np.corrcoef(grey.ravel(), small.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env", "atari/Breakot"], "no Atari game 'Breakot': did you mean atari/breakout"),
        (["--steps", "100"], "steps=100, frames=640: give one of them"),
        (["--protocol", "mine"], "protocol 'mine': choose one of auto, mnih2015, short, machado2018, dopamine"),
        (["--envs", "3"], "n_envs=3: a divisor or a multiple of update_period=4"),
        (["--evaluation-policy", "best"], "evaluation_policy='best': choose one of greedy"),
        (["--checkpoint-minutes", "0"], "checkpoint_minutes=0.0: it must be positive"),
        (["--evaluate-every", "8"], "evaluate_every=2 decisions: whole rounds are 4; take 4"),
        (["--set", "replay_size=2000000000"], "replay_size"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command("pong", tmp_path / "run"), *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_how_long_must_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--env", "atari/pong", "--out", str(tmp_path / "run")])
    assert "how long? give --frames N" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--env", "DeepSea-v0", "--frames", "40", "--out", str(tmp_path / "run")])
    assert "frames=40: DeepSea" in capsys.readouterr().err


def test_protocols_are_below_what_is_said_explicitly() -> None:
    dqn, ube = agent_config("dqn"), agent_config("ube-1step")
    env_args, config = with_protocol("dopamine", {"sticky": 0.1}, dqn, {})
    assert env_args == {"sticky": 0.1, "noops": 1, "life_loss": False}
    assert (config.epsilon_start, config.epsilon_end, config.epsilon_steps, config.target_period) == (
        1,
        0.01,
        250_000,
        2_000,
    )
    _, config = with_protocol("dopamine", {}, agent_config("dqn", {"warmup": 7}), {"warmup": 7})
    assert config.warmup == 7
    assert with_protocol("dopamine", {}, ube, {})[1].epsilon_end == 0.0  # its own policy, no ε
    assert with_protocol("short", {}, dqn, {}) == ({}, dqn)
    short, long = (with_protocol("auto", {}, dqn, {}, frames)[1] for frames in (10_000_000, 10_000_001))
    assert short == dqn
    assert long == with_protocol("mnih2015", {}, dqn, {})[1]
    assert (long.optimiser, long.learning_rate, long.warmup) == ("rmsprop", 0.00025, 50_000)


@pytest.mark.parametrize(
    ("protocol", "sticky", "noops", "n_actions"),
    [("mnih2015", 0.0, 30, 6), ("machado2018", 0.25, 1, 18), ("dopamine", 0.25, 1, 6)],
)
def test_protocols_reach_the_emulator(
    protocol: str, sticky: float, noops: int, n_actions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def watched(rom: str, n_envs: int, **choices: Any) -> Any:
        given.update(choices)
        return _vector_env(rom, n_envs, **choices)

    monkeypatch.setattr("ube.envs.atari._vector_env", watched)
    plan = planned(
        "atari/pong",
        "dqn",
        None,
        0,
        frames=4_000_000,
        protocol=protocol,
        env_args=None,
        overrides=None,
        schedule=Schedule(),
    )
    plan.env.open(1).close()  # type: ignore[union-attr]
    assert given == {
        "repeat_action_probability": sticky, "noop_max": noops, "full_action_space": n_actions == 18,
        "max_num_frames_per_episode": 108_000 + noops + 4,  # never reached: games are cut after 27,000 decisions
    }  # fmt: skip
    assert (plan.env.n_actions, plan.env.longest) == (n_actions, 27_000)  # type: ignore[union-attr]


def test_the_paper_learns_as_mnih_et_al_do() -> None:
    plan = planned(
        "atari/pong", "ube-nstep", None, 0, frames=4_000_000, protocol="mnih2015", env_args=None, overrides=None,
        schedule=Schedule(),
    )  # fmt: skip
    asked = {
        "network": "nature", "replay_size": 1_000_000, "batch_size": 32, "update_period": 4, "target_period": 2_500,
        "warmup": 50_000, "epsilon_steps": 1_000_000, "optimiser": "rmsprop", "learning_rate": 0.00025, "discount": 0.99,
        "reward_clip": 1.0, "beta": 0.01, "n": 150, "u_learning_rate": 0.001, "features": "learned", "q_steps": 1,
    }  # fmt: skip
    assert {name: getattr(plan.config, name) for name in asked} == asked
    assert (plan.schedule.evaluate_every, plan.schedule.evaluation_steps) == (250_000, 125_000)
    assert n_features("nature", (), plan.env.observation_shape) == 512


def test_without_the_extra_its_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py.vector_env", None)
    with pytest.raises(SystemExit) as stop:
        main(command("zaxxon", tmp_path / "run"))  # which no other test has made
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("ube: atari/zaxxon needs ale-py: pip install 'ube-rl[atari]'\n")


def test_scores_by_hand() -> None:
    millions, returns = atari.public_dqn("breakout")  # type: ignore[misc]
    assert millions[[0, 9, 10]].tolist() == [1, 10, 20]
    np.testing.assert_array_equal(returns[0], [1.571, 1.651, 1.647, 1.636, 1.699])
    assert atari.public_dqn("defender") is None
    bins = {"episodes": [0] * 17 + [2, 1, 1], "returns": [0.0] * 17 + [10.0, 4.0, 8.0]}
    one = {"bins": bins, "greedy_returns": [1.0, 3.0], "own_returns": [5.0], "first_score_step": 500}
    never = one | {"first_score_step": None}
    assert (_training(one, 1.0), _training(one, 0.1)) == (22 / 4, 6.0)
    rows = {row["metric"]: row["value"] for row in _rows("dqn", {}, [one, one])}
    (first,) = [row for row in _rows("dqn", {}, [never, one, one]) if row["metric"] == "frames_to_first_score"]
    assert (first["value"], first["low"], first["high"]) == (2_000, 2_000, None)  # four frames a decision
    assert rows == {
        "training_return": 5.5, "training_return_last_tenth": 6.0, "evaluation_return": 2.0, "own_policy_return": 5.0,
        "frames_to_first_score": 2_000,
    }  # fmt: skip


@pytest.mark.games
@pytest.mark.parametrize("game", GAMES)
def test_every_game_trains_and_is_evaluated(game: str, tmp_path: Path) -> None:
    main(command(game, tmp_path / "run"))
    run = load(tmp_path / "run")
    assert int(run.agent.state.updates) == 30
    assert np.isfinite(run.metrics["loss"]).all()
    assert {policy: len(scores) for policy, scores in run.last_evaluation().items()} == {"greedy": 8, "own": 8}
