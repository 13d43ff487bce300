"""Learning cells: the stop rule against a naive loop, results kept and never computed twice, failures with a name."""

import dataclasses
import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ube import RunError, UsageError
from ube.figures.learning import mean_evaluations, plot_run, running_mean
from ube.figures.learning_cells import LearningCell, binned, run_cell, solved_at, successes
from ube.figures.workers import Workers
from ube.files import to_json
from ube.suite.pool import Pool

TINY = LearningCell(
    "DeepSea-v0", "dqn", 0, 60, env_args={"size": 3}, overrides={"hidden": [4], "warmup": 8, "batch_size": 4},
    chunk=30, bins=4, max_episodes=18, evaluation_episodes=2,
)  # fmt: skip


def silent(what: str, done: int, total: int) -> None:
    pass


def naive_solved_at(returns: np.ndarray, goal: float) -> int | None:
    for start in range(len(returns)):
        if returns[start] >= goal and sum(r >= goal for r in returns[start : start + 100]) >= 10:
            return start + 1
    return None


@pytest.mark.parametrize("rate", [0.0, 0.03, 0.08, 0.1, 0.12, 0.5])
def test_the_stop_rule_is_the_naive_loop(rate: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        returns = np.where(rng.random(400) < rate, 0.5, -0.01)
        assert solved_at(returns, 0.5) == naive_solved_at(returns, 0.5)


def test_the_stop_rule_by_hand() -> None:
    returns = np.zeros(300)
    returns[[3, 150, 160, 170, 180, 190, 200, 210, 220, 230]] = 1.0
    assert solved_at(returns, 1.0) is None  # the nine after 150 are too few, and 3 is too far from them
    returns[249] = 1.0
    assert solved_at(returns, 1.0) == 151
    assert solved_at(returns[:249], 1.0) is None
    returns[249], returns[250] = 0.0, 1.0  # the 101st from 150
    assert solved_at(returns, 1.0) is None
    assert solved_at(returns, None) is None


def test_sums_by_hand() -> None:
    step, returns = np.array([2, 5, 6, 10]), np.array([1.0, 0.0, 2.0, 3.0])
    assert binned(step, returns, 2.0, steps=10, bins=2) == {
        "episodes": [2, 2],
        "returns": [1.0, 5.0],
        "successes": [0.0, 2.0],
    }
    assert successes(step, returns, 2.0) == {
        "successes": 2,
        "first_success_episode": 3,
        "first_success_step": 6,
        "episodes_to_solve": None,
    }
    assert successes(step, returns, 9.0)["first_success_step"] is None


def test_a_key_follows_all_that_decides_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"seed": 1, "steps": 61, "bins": 5, "agent": "greedy", "overrides": {}, "env_args": {"size": 4}}
    keys = {TINY.key, *(dataclasses.replace(TINY, **{name: value}).key for name, value in changes.items())}
    assert len(keys) == 1 + len(changes)
    again = dataclasses.replace(TINY)
    assert again.key == TINY.key
    monkeypatch.setattr("ube.figures.learning_cells.code_digest", lambda: "other code")
    assert dataclasses.replace(TINY).key != TINY.key


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    """Two real cells, run once for the tests below."""
    folder = tmp_path_factory.mktemp("cells")
    cells = [TINY, dataclasses.replace(TINY, seed=1)]
    with Workers(folder, silent, processes=1) as workers:
        return folder, workers.run("tiny", cells)


def test_a_real_cell(finished: tuple[Path, list]) -> None:
    folder, (first, second) = finished
    assert first["steps"] >= 60
    assert first["episodes"] == 18  # three steps each, and no more are counted
    assert sum(first["bins"]["episodes"]) == 18
    assert first["successes"] == sum(first["bins"]["successes"])
    assert len(first["greedy_returns"]) == len(first["own_returns"]) == 2
    assert first["bins"] != second["bins"]
    assert len(list(folder.iterdir())) == 2


def test_a_cell_repeats_to_the_bit_in_another_process(finished: tuple[Path, list]) -> None:
    _, (there, _) = finished
    here = json.loads(to_json(run_cell(TINY), 9))
    assert here | {"seconds": 0} == there | {"seconds": 0}


def test_a_finished_cell_is_not_run_again(finished: tuple[Path, list], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, results = finished

    def refuse(self: Pool) -> None:
        raise AssertionError("nothing was left to run")

    monkeypatch.setattr(Pool, "_start", refuse)
    seen = []
    with Workers(folder, lambda *step: seen.append(step)) as workers:
        assert workers.run("again", [dataclasses.replace(TINY, seed=1), TINY]) == results[::-1]
        assert seen == [("again", 2, 2)]
        with pytest.raises(AssertionError, match="nothing was left"):
            workers.run("more", [TINY, dataclasses.replace(TINY, seed=2)])


def test_a_damaged_or_foreign_file_is_not_taken_for_a_result(finished: tuple[Path, list], tmp_path: Path) -> None:
    folder, results = finished
    whole = (folder / f"{TINY.key}.json").read_text()
    workers = Workers(tmp_path, silent)
    (tmp_path / f"{TINY.key}.json").write_text(whole)
    assert workers._kept(TINY) == results[0]
    (tmp_path / f"{TINY.key}.json").write_text(whole[: len(whole) // 2])
    assert workers._kept(TINY) is None
    foreign = json.loads(whole)
    foreign["cell"]["seed"] = 5
    (tmp_path / f"{TINY.key}.json").write_text(json.dumps(foreign))
    assert workers._kept(TINY) is None


def die(session: object, chunk: object) -> None:
    os._exit(3)


def stumble(session: object, chunk: object) -> None:
    raise ZeroDivisionError("over a stone")


def test_a_failing_cell_names_itself_and_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    name = "dqn, hidden=[4], warmup=8, batch_size=4 on DeepSea-v0, size=3, seed 0"
    bare = dataclasses.replace(TINY, evaluation_episodes=0)
    with Workers(tmp_path, silent, processes=1) as workers:
        with pytest.raises(UsageError, match="on Nope-v0, seed 0: no environment 'Nope-v0'"):
            workers.run("bad", [bare, dataclasses.replace(bare, env="Nope-v0", env_args={})])
        assert [f.name for f in tmp_path.iterdir()] == [f"{bare.key}.json"]
        with pytest.raises(RunError, match="over a stone") as failure:
            workers.run("bad", [dataclasses.replace(bare, watch=stumble)])
        assert str(failure.value).startswith(name)
        with pytest.raises(RunError, match=r"its process died \(exit code 3") as failure:
            workers.run("bad", [dataclasses.replace(bare, watch=die)])
        assert str(failure.value).startswith(name)
    assert [f.name for f in tmp_path.iterdir()] == [f"{bare.key}.json"]
    assert multiprocessing.active_children() == []


def test_code_that_changes_under_a_running_experiment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ube.figures.workers.code_digest", lambda: "of an hour ago")
    with (
        Workers(tmp_path, silent, processes=1) as workers,
        pytest.raises(UsageError, match="the code of ube was changed"),
    ):
        workers.run("mixed", [TINY])
    assert list(tmp_path.iterdir()) == []


def test_describing_experiments_needs_no_jax() -> None:
    program = (
        "import sys; from ube.figures import EXPERIMENTS; from ube.figures.deepsea import cell\n"
        "cell('ube-deep', {}, 10, 100, 0).key; print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_run_is_plotted_with_uncertainty_only_where_there_is_some(tmp_path: Path) -> None:
    episodes = {"step": np.arange(1, 41), "episode_return": np.arange(40.0), "episode_length": np.ones(40)}
    agent = {"env": "Tree-v0", "env_args": {"depth": 3}, "agent": {"name": "dqn"}, "seed": 0}
    step = np.array([10, 20])
    for name, u in {"without": np.zeros(2), "with": np.array([4.0, 1.0])}.items():
        metrics = {"step": step, "u": u, "nu": u / 4}
        run = SimpleNamespace(episodes=episodes, metrics=metrics, config=agent, evaluations={})
        plot_run(run, tmp_path / f"{name}.svg")  # type: ignore[arg-type]
    heights = {
        name: float(re.search(r'height="([\d.]+)pt"', (tmp_path / f"{name}.svg").read_text())[1])  # type: ignore[index]
        for name in ("without", "with")
    }
    assert heights["with"] == 2 * heights["without"]
    with pytest.raises(UsageError, match=r"curve.txt: a picture ends in .png, .svg, .pdf"):
        plot_run(run, tmp_path / "curve.txt")  # type: ignore[arg-type]
    assert "evaluation" not in (tmp_path / "with.svg").read_text()
    rows = {
        "step": [10, 10, 20, 20],
        "policy": ["greedy", "greedy", "greedy", "own"],
        "episode_return": [1.0, 4.0, 3.0, 7.0],
    }
    run.evaluations = {name: np.array(column) for name, column in rows.items()}
    greedy, own = (mean_evaluations(run.evaluations, policy) for policy in ("greedy", "own"))
    assert (greedy[0].tolist(), greedy[1].tolist()) == ([10, 20], [2.5, 3.0])
    assert (own[0].tolist(), own[1].tolist()) == ([20], [7.0])
    plot_run(run, tmp_path / "evaluated.svg")  # type: ignore[arg-type]
    assert "evaluation, own policy" in (tmp_path / "evaluated.svg").read_text()
    assert running_mean(np.array([1.0, 2.0, 6.0, 0.0]), 2).tolist() == [1.0, 1.5, 4.0, 3.0]
