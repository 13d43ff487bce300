"""The paper's tables and figures of 57 games: its own numbers again, and a small collected suite scored by hand."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from ube.errors import UsageError
from ube.figures import EXPERIMENTS, reproduce
from ube.figures.results import rows_of
from ube.report.tables import summary_tables
from ube.stats import atari
from ube.suite.collect import COLUMNS

FRAMES = (1_000_000, 2_000_000)
SCORES = {  # agent, game, policy -> a line for each seed, a score for each evaluation
    ("dqn", "breakout", "greedy"): ((10.0, 30.0), (20.0, 10.0)),  # averages 15 and 20
    ("dqn", "pong", "greedy"): ((-20.0, 21.0), (-20.0, 19.0)),
    ("ube-nstep", "breakout", "greedy"): ((2.0, 4.0), (2.0, 2.0)),
    ("ube-nstep", "breakout", "own"): ((1.0, 1.0), (1.0, 1.0)),
    ("dqn", "breakout", "training"): ((500.0, 500.0), (500.0, 500.0)),  # not an evaluation
}


def line(agent: str, game: str, policy: str, seed: int, frames: int, score: float, **other: Any) -> dict[str, Any]:
    return {
        "env": f"atari/{game}", "env_args": "{}", "agent": agent, "overrides": "{}", "seed": seed, "protocol": "mnih2015",
        "steps": 500_000, "evaluate_every": 250_000, "evaluation_steps": 125_000, "step": frames // 4, "frames": frames,
        "policy": policy, "mean": score, "episodes": 3, "cell": f"{agent}-{seed}",
    } | other  # fmt: skip


def write(path: Path, *more: dict[str, Any]) -> Path:
    rows = [
        line(agent, game, policy, seed, frames, score)
        for (agent, game, policy), seeds in SCORES.items()
        for seed, scores in enumerate(seeds)
        for frames, score in zip(FRAMES, scores, strict=True)
    ]
    return write_rows(path, [*rows, *more])


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO()
    text.write('# suite: mine\n# versions: {"ube": "0"}\n')
    table = csv.DictWriter(text, COLUMNS)
    table.writeheader()
    table.writerows(rows)
    path.write_text(text.getvalue())
    return path


def run(out: Path, name: str = "atari57", collected: Path | None = None) -> dict[str, Any]:
    return reproduce(name, out, progress=lambda *step: None, collected=collected)


def scored(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Without drawing."""
    experiment = EXPERIMENTS["atari57"]
    settings = experiment.scales["quick"] | {"collected": str(write_rows(path, rows))}
    return {**experiment.job(settings, 0, lambda *step: None)}


def test_without_runs_the_papers_tables_come_out_again(tmp_path: Path) -> None:
    results = run(tmp_path)
    first = {"case": "human-starts constants"}

    def total(agent: str, statistic: str) -> float:
        (found,) = rows_of(results, "percent_of_human", f"{agent} (paper)", statistic=statistic, **first)
        return found["value"]

    assert [round(total(agent, "median"), 2) for agent in atari.AGENTS] == [79.41, 76.73, 94.54, 126.41]
    assert [total(agent, "above human") for agent in atari.AGENTS] == [21, 24, 26, 35]
    assert round(total("dqn", "mean"), 2) == 688.60
    led = {r["agent"]: r["value"] for r in rows_of(results, "wins", statistic="games led (ties: within 0.1 %)")}
    assert list(led.values()) == [1, 7, 14, 32, 3]
    both = [r["value"] for r in rows_of(results, "wins", "better of both ube (paper)")]
    assert both == [51, 1, 5]
    assert len(rows_of(results, "score_percent", "dqn (paper)", **first)) == 57
    table = next(t for t in summary_tables(EXPERIMENTS["atari57"].headline(results)) if "percent" in t.title)
    assert table.columns == ["games", "mean", "median", "above human"]
    assert table.rows[0] == ["dqn (paper)", "57", "688.60", "79.41", "21"]  # as the paper prints it
    second = next(t for t in summary_tables(EXPERIMENTS["atari57"].headline(results)) if t.corner == "game")
    printed = {cells[0]: cells[1:] for cells in second.rows}
    assert printed["alien"] == ["40.96", "28.13", "46.90", "43.61"]
    assert printed["atlantis"] == ["28,662.58", "14,382.27", "28,655.71", "6,889.77"]
    assert EXPERIMENTS["atari57"].charts(results) == []
    assert results["seeds"]["count"] == 0


def test_a_partial_suite_is_scored_shown_and_said_to_be_partial(tmp_path: Path) -> None:
    results = run(tmp_path, collected=write(tmp_path / "r.csv"))
    assert results["command"] == f"ube reproduce atari57 --scale quick --collected {tmp_path / 'r.csv'}"
    first = {"case": "human-starts constants"}
    (breakout,) = rows_of(results, "score_percent", "dqn", game="breakout", **first)
    random, human = atari.players("breakout", "human-starts")
    assert breakout["value"] == pytest.approx(100 * (20 - random) / (human - random), rel=1e-5)
    (own,) = rows_of(results, "score_percent", "ube-nstep, own policy", game="breakout", **first)
    assert own["value"] < rows_of(results, "score_percent", "ube-nstep", game="breakout", **first)[0]["value"]
    (above,) = rows_of(results, "percent_of_human", "dqn", statistic="above human", **first)
    pong = atari.normalised(20.0, "pong", "human-starts")
    assert above["value"] == (breakout["value"] > 100) + (pong > 100)
    theirs = atari.paper_scores()
    for agent, games in (("dqn", ("breakout", "pong")), ("ube-nstep", ("breakout",))):
        (paper,) = rows_of(results, "percent_of_human", f"{agent} (paper, same games)", statistic="mean", **first)
        assert paper["value"] == pytest.approx(sum(theirs[agent][game] for game in games) / len(games), rel=1e-5)
        for whose in ("", " (paper, same games)"):
            (number,) = rows_of(results, "percent_of_human", agent + whose, statistic="games", **first)
            assert number["value"] == len(games)
    over = results["data"]["over_training"]["dqn"]
    assert over["frames"] == list(FRAMES)
    assert over["above_human"][1] == above["value"]
    early = [atari.normalised(s, g, "human-starts") for g, s in (("breakout", 15.0), ("pong", -20.0))]
    assert over["median"][0] == pytest.approx(sum(early) / 2, rel=1e-5)
    missing = results["data"]["missing"]
    assert {agent: of["there"] for agent, of in missing.items()} == {
        "dqn": 4, "bonus": 0, "ube-1step": 0, "ube-nstep": 2,
    }  # fmt: skip
    assert sum(of["missing"] for of in missing.values()) == 684 - 6
    assert "breakout" in missing["dqn"]["games"]  # two of three seeds
    assert rows_of(results, "runs", "ube-nstep", statistic="missing")[0]["value"] == 171 - 2
    assert results["seeds"]["count"] == 2
    assert rows_of(results, "percent_of_human", "dqn", statistic="interquartile mean", **first)[0]["low"] is not None
    charts = {chart.title: chart for chart in EXPERIMENTS["atari57"].charts(results)}
    assert list(charts) == ["games above human", "median score, percent of human", "breakout", "pong"]
    shown = {one.name: one for one in charts["breakout"].series}
    assert list(shown)[:3] == ["dqn", "ube-nstep", "ube-nstep, own policy"]
    assert shown["ube-1step (paper)"].y[0] == pytest.approx(atari.raw(2044.76, "breakout", "human-starts"), rel=0.01)
    assert list(shown)[-1].startswith("DQN of Dopamine")
    assert shown[list(shown)[-1]].x == list(FRAMES)
    drawn = (tmp_path / "atari57" / "atari57.svg").read_text()
    assert "6 runs, 678 missing" in drawn
    assert "ube-nstep (paper, same games)" in drawn
    assert "bonus (paper" not in drawn  # nothing of it was run


def test_games_that_were_never_evaluated_at_the_same_frames_have_no_curve_over_all(tmp_path: Path) -> None:
    rows = [
        line("dqn", game, "greedy", 0, frames, 1.0) for game, frames in zip(("pong", "breakout"), FRAMES, strict=True)
    ]
    results = scored(tmp_path / "r.csv", rows)
    assert results["data"]["over_training"]["dqn"]["frames"] == []
    assert [chart.title for chart in EXPERIMENTS["atari57"].charts(results)] == ["breakout", "pong"]


def test_runs_of_the_own_policy_alone_are_there_and_nobody_beats_a_dqn_that_is_not(tmp_path: Path) -> None:
    rows = [line(agent, "pong", "own", 0, FRAMES[0], 1.0) for agent in ("bonus", "ube-1step")]
    rows += [line(agent, "pong", "greedy", 0, FRAMES[0], 1.0) for agent in ("ube-1step", "ube-nstep")]
    results = scored(tmp_path / "r.csv", rows)
    assert {agent: of["there"] for agent, of in results["data"]["missing"].items()} == {
        "dqn": 0, "bonus": 1, "ube-1step": 1, "ube-nstep": 1,
    }  # fmt: skip
    assert rows_of(results, "wins", "ube-1step", statistic="games led (ties: equal)")
    assert not rows_of(results, "wins", "ube-1step", statistic="won against dqn")


def test_montezuma_is_drawn_in_raw_scores(tmp_path: Path) -> None:
    rows = [line("ube-nstep", "montezuma_revenge", "greedy", 0, frames, 400.0) for frames in FRAMES]
    results = run(tmp_path, "montezuma", write(tmp_path / "r.csv", *rows))
    assert results["data"]["curves"]["montezuma_revenge"]["ube-nstep"]["mean"] == [400.0, 400.0]
    assert list(results["data"]["curves"]) == ["montezuma_revenge"]


def test_files_that_will_not_do_are_named(tmp_path: Path) -> None:
    other = line("dqn", "pong", "greedy", 0, FRAMES[0], 1.0, overrides='{"beta": 1}')
    with pytest.raises(UsageError, match="dqn was run with 2 settings"):
        run(tmp_path, collected=write(tmp_path / "r.csv", other))
    twice = line("dqn", "pong", "greedy", 0, 4_000_000, 1.0, steps=1_000_000, cell="dqn-0-longer")
    with pytest.raises(UsageError, match=r"row 21: dqn, pong, seed 0 was run as dqn-0 and as dqn-0-longer"):
        run(tmp_path, collected=write(tmp_path / "r.csv", twice))
    with pytest.raises(UsageError, match=r"none.csv"):
        run(tmp_path, collected=tmp_path / "none.csv")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"x.csv cannot be read .its columns are a, b.: give a file of `ube"):
        run(tmp_path, collected=tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(UsageError, match="no evaluation of an Atari game"):
        run(tmp_path, collected=tmp_path / "x.csv")
    wrong = {
        "no constants for the game 'pongg': did you mean pong": {"env": "atari/pongg"},
        "row 1: could not convert string to float": {"mean": ""},
        "row 1: invalid literal": {"frames": "1e6"},
        "row 1: mean nan is no score": {"mean": "nan"},
    }
    for message, change in wrong.items():
        rows = [line("dqn", "pong", "greedy", 0, FRAMES[0], 1.0) | change]
        with pytest.raises(UsageError, match=message):
            run(tmp_path, collected=write_rows(tmp_path / "x.csv", rows))
    rows = [line("dqn", "pong", "greedy", seed, FRAMES[seed], 1.0) for seed in range(2)]
    with pytest.raises(UsageError, match="seeds of dqn in pong were never evaluated after the same frames"):
        run(tmp_path, collected=write_rows(tmp_path / "x.csv", rows))
    with pytest.raises(UsageError, match="no evaluation of montezuma_revenge in it"):
        run(tmp_path, "montezuma", write(tmp_path / "r.csv"))
    with pytest.raises(UsageError, match="only atari57, montezuma take a collected suite"):
        run(tmp_path, "chain", tmp_path / "x.csv")
