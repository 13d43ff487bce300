"""`ube compare` and `ube.compare`: numbers by hand, going on, refusing to mix, bad input."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import ube
from ube.cli import main
from ube.comparison import compare as module
from ube.comparison.table import agent_rows, curves_of, scores_of, summary
from ube.errors import UsageError
from ube.report import write_markdown
from ube.suite import Outcome, Suite
from ube.suite.work import _unseen

SMALL = ["hidden=4", "batch_size=4", "warmup=8", "env.size=3"]
SET: dict[str, Any] = {"hidden": (4,), "batch_size": 4, "warmup": 8}
AGENTS = ["dqn", "dqn-small-epsilon"]


def words(out: Path, *more: str, agents: str = "dqn,dqn-small-epsilon") -> list[str]:
    asked = ["--env", "DeepSea-v0", "--agents", *agents.split(), "--seeds", "3", "--steps", "240"]
    return ["compare", *asked, "--set", *SMALL, "--out", str(out), *more]


def again(out: Path, agents: Any = AGENTS, seeds: int = 3, **changed: Any) -> module.Comparison:
    options: dict[str, Any] = {"steps": 240, "env_args": {"size": 3}, "overrides": SET, **changed}
    return ube.compare("DeepSea-v0", agents, seeds=seeds, out=out, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents, three seeds, by the command."""
    out = tmp_path_factory.mktemp("compare") / "done"
    main([*words(out), "--workers", "2"])
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def last_tenths(out: Path, agent: str) -> list[float]:
    """From the episodes of each run."""
    found = []
    for seed in range(3):
        (run,) = out.glob(f"cells/DeepSea-v0-{agent}-seed{seed}-*/run")
        episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
        found.append(np.mean([e["episode_return"] for e in episodes if e["step"] > 216]))
    return found


def test_the_table_is_what_the_runs_say(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(words(finished, agents="dqn dqn-small-epsilon"))  # all is there: nothing is trained
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.rstrip().endswith(f"Open {finished / 'index.html'}")
    results = json.loads((finished / "comparison.json").read_text())
    for agent in AGENTS:
        (row,) = [r for r in results["summary"] if r["agent"] == agent and r["metric"] == "training_return"]
        returns = last_tenths(finished, agent)
        half = 4.302652729911275 * np.std(returns, ddof=1) / np.sqrt(3)  # Student, two degrees of freedom
        assert row["value"] == pytest.approx(np.mean(returns), rel=1e-5)
        assert row["high"] - row["value"] == pytest.approx(half, rel=1e-4, abs=1e-7)
        assert re.search(rf"│ {agent} +│ 3 of 3 ", shown.out)
    assert results["settings"] == {
        "env": "DeepSea-v0", "steps": 240, "env_args": {"size": 3}, "evaluation_episodes": 10, "agents": AGENTS,
        "overrides": {"hidden": [4], "batch_size": 4, "warmup": 8},
    }  # fmt: skip
    assert results["versions"]["ube"] == ube.__version__
    assert results["command"].startswith(
        "ube compare --env DeepSea-v0 --agents dqn,dqn-small-epsilon --seeds 3 --steps 240"
    )
    assert (finished / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (finished / "comparison.svg").read_text()


def test_the_page_has_the_table_the_curves_and_each_run(finished: Path) -> None:
    text = (finished / "index.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    (chart,) = data["charts"]["0"]
    assert [series["name"] for series in chart["series"]] == AGENTS
    lowest, highest = json.loads((finished / "comparison.json").read_text())["data"]["range"]
    for series in chart["series"]:
        assert len(series["x"]) == 80  # an episode is 3 of 240 steps
        assert lowest <= min(series["low"]) <= max(series["high"]) <= highest
    assert "<th>better than dqn in training</th>" in text
    assert "<td>3 of 3</td>" in text
    assert text.count("-seed2-") >= 2


def test_markdown_links_to_the_files_of_a_comparison(finished: Path, tmp_path: Path) -> None:
    write_markdown(finished, tmp_path / "all.md")
    text = (tmp_path / "all.md").read_text()
    for name in ("comparison.png", "comparison.json"):
        (link,) = re.findall(rf"\]\((\S*{name})\)", text)
        assert (tmp_path / link).resolve() == (finished / name).resolve()


@pytest.mark.slow
def test_a_script_without_a_guard_goes_on_where_it_was(copy: Path, finished: Path, tmp_path: Path) -> None:
    """Its processes must not begin it again, and what is done is not done again."""
    (gone,) = copy.glob("cells/DeepSea-v0-dqn-seed1-*")
    shutil.rmtree(gone)
    kept = {path: path.stat().st_mtime_ns for path in copy.glob("cells/*/done.json")}
    script = tmp_path / "script.py"
    script.write_text(
        "import ube\nprint('began')\n"
        f"found = ube.compare('DeepSea-v0', {AGENTS}, steps=240, seeds=3, env_args={{'size': 3}}, overrides={SET},\n"
        f"                    out={str(copy)!r}, workers=1)\n"
        "print([row.seeds_done for row in found.table], found.path == found.page.parent)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["began", f"{gone.name} is done", "[3, 3] True"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    here, there = (json.loads((out / "comparison.json").read_text()) for out in (copy, finished))
    assert (here["summary"], here["data"]) == (there["summary"], there["data"])


def test_agents_and_seeds_may_be_added_and_left_out(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = again(copy, "dqn", seeds=2)
    assert [(row.agent, row.seeds_done, row.seeds) for row in found.table] == [("dqn", 2, 2)]
    assert found.results["data"]["scores"]["dqn"]["training_return"].keys() == {"0", "1"}
    asked: list[Suite] = []

    def none_trained(suite: Suite, folder: Path, **_: Any) -> Outcome:
        asked.append(suite)
        return Outcome(3, {suite.cells[-1].id: "Traceback\nValueError: why"})

    monkeypatch.setattr(module, "run_suite", none_trained)
    found = again(copy, ["dqn", "boot"], seeds=4)
    assert [(row.agent, row.seeds_done, row.seeds) for row in found.table] == [("dqn", 3, 4), ("boot", 0, 4)]
    assert found.table[1].training_return is None
    assert not found.finished
    assert list(found.failures.values()) == ["Traceback\nValueError: why"]
    assert len(asked[0].cells) == 8
    assert {cell.id for cell in asked[0].cells} > {path.name for path in copy.glob("cells/*-dqn-seed*")}


def test_what_failed_is_said_at_the_end(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (gone,) = copy.glob("cells/DeepSea-v0-dqn-seed1-*")
    shutil.rmtree(gone)
    monkeypatch.setattr(module, "run_suite", lambda *_, **__: Outcome(5, {gone.name: "Traceback\nValueError: why"}))
    with pytest.raises(SystemExit) as stop:
        main(words(copy))
    shown = capsys.readouterr()
    assert stop.value.code == 1
    assert f"{gone.name} failed: ValueError: why\nube: 1 runs failed; the same command tries them again" in shown.err
    assert re.search(r"│ dqn +│ 2 of 3 ", shown.out)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 300}, "compares with steps=240, not 300: only agents and seeds may be added; choose another place"),
        ({"overrides": {**SET, "discount": 0.5}}, r"compares with overrides=.* not .*'discount': 0.5"),
        ({"env_args": {"size": 4}}, r"compares with env_args=\{'size': 3\}, not \{'size': 4\}"),
        ({"episodes": 20}, "compares with evaluation_episodes=10, not 20"),
    ],
)
def test_another_comparison_is_not_mixed_in(finished: Path, changed: dict[str, Any], message: str) -> None:
    before = (finished / "comparison.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        again(finished, **changed)
    assert (finished / "comparison.json").read_bytes() == before


def test_folders_that_are_not_ours_or_of_other_versions(copy: Path, tmp_path: Path) -> None:
    (gone,) = copy.glob("cells/DeepSea-v0-dqn-seed1-*")
    shutil.rmtree(gone)
    for path in copy.glob("cells/*/done.json"):
        path.write_text(path.read_text().replace('"jax": "', '"jax": "9.'))
    with pytest.raises(UsageError, match="holds runs of other versions of ube or its packages than these"):
        again(copy)
    (copy / "asked.json").unlink()
    with pytest.raises(UsageError, match="holds runs that are not of a comparison: choose another place"):
        again(copy)
    (copy / "asked.json").write_text("{")
    with pytest.raises(UsageError, match=r"asked.json cannot be read"):
        again(copy)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--agents", "dqn,ube-dep"], "agent 'ube-dep' does not exist: did you mean ube-deep"),
        (["--agents", ","], "which agents? name at least one"),
        (["--env", "DeepSee-v0"], "no environment 'DeepSee-v0'; the nearest ids are DeepSea-v0"),
        (["--seeds", "0"], "seeds=0: at least 1"),
        (["--seed", "-1"], "seed=-1: within 0.."),
        (["--workers", "0"], "workers=0: at least 1"),
        (["--steps", "0"], "steps=0: at least 1"),
        (["--frames", "4"], "give one of them"),
        (["--episodes", "0"], "episodes=0: at least 1"),
        (["--set", "bta=1"], "'bta' is not a field of an agent: did you mean beta"),
        (["--agents", "dqn,ube-deep", "--set", "n=5"], "ube-deep: n=5"),
        (["--protocol", "dopamine"], "only of Atari, not DeepSea-v0"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words(tmp_path / "out", *more))
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert message in said.err
    assert not (tmp_path / "out").exists()


def test_a_class_is_found_again_by_its_module() -> None:
    assert module._found_again("env", CartPoleEnv) == "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    assert module._found_again("env", "gym/CartPole-v1") == "gym/CartPole-v1"
    for env in (lambda: CartPoleEnv(), CartPoleEnv(), 3):
        with pytest.raises(
            UsageError, match="trained in processes of their own; give its name, module:NAME, or a class"
        ):
            ube.compare(env)


def row(agent: str, seed: int, policy: str, step: int, mean: float, episodes: int = 1) -> dict[str, Any]:
    return {"agent": agent, "seed": seed, "policy": policy, "step": step, "mean": mean, "episodes": episodes}


def test_scores_by_hand() -> None:
    rows = [
        row("a", 0, "training", 900, 100.0), row("a", 0, "training", 910, 1.0, 3), row("a", 0, "training", 1000, 5.0, 1),
        row("a", 1, "training", 400, 7.0), row("a", 1, "training", 500, 8.0),  # no episode ended later
        row("a", 0, "greedy", 500, 1.0), row("a", 0, "greedy", 1000, 2.0), row("a", 0, "own", 1000, 3.0),
        row("b", 0, "training", 1000, 9.0),
    ]  # fmt: skip
    assert scores_of(rows, "a", 1000) == {
        "training_return": {0: 2.0, 1: 8.0}, "evaluation_return": {0: 2.0}, "own_policy_return": {0: 3.0},
    }  # fmt: skip
    curve = curves_of(rows, "a", 1000)
    assert (curve["mean"][49], curve["mean"][89], curve["mean"][99], curve["mean"][0]) == (8.0, 100.0, 5.0, None)
    assert set(curve["low"]) == {None}


def test_who_is_better_by_hand() -> None:
    def scores(*values: float) -> dict[str, dict[int, float]]:
        by_seed = dict(enumerate(values))
        return {
            "training_return": by_seed,
            "evaluation_return": dict(list(by_seed.items())[:2]),
            "own_policy_return": {},
        }

    first, second = agent_rows({"a": scores(1, 2, 3), "b": scores(2, 3, 4)}, {"a": 3, "b": 3}, 5)
    assert first.better_in_training is None
    assert second.better_in_training is not None
    assert second.better_in_training.value == pytest.approx(7 / 9)  # of 9 pairs, 6 are won and 2 tied
    assert second.better_in_evaluation is None  # two seeds are not enough
    assert second.own_policy_return is None
    metrics = [(r["agent"], r["metric"], r["value"], r["setting"]) for r in summary([first, second])]
    assert metrics[:2] == [("a", "seeds_done", 3, {"of": 5}), ("a", "training_return", 2.0, {})]
    assert metrics[-1][1:2] + metrics[-1][3:] == ("better_in_training", {"than": "a"})


def test_what_training_evaluated_at_its_end_is_not_evaluated_again() -> None:
    seen = [row("a", 0, "greedy", 1000, 1.0), row("a", 0, "own", 500, 1.0)]
    assert _unseen(seen, 1000) == ["own"]
    assert _unseen([], 1000) == ["greedy", "own"]
    assert _unseen(seen, 1000, ("greedy",)) == []


def test_short_runs_of_atari_are_evaluated_at_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    asked: list[Suite] = []

    def stop(suite: Suite, folder: Path, **_: Any) -> Outcome:
        asked.append(suite)
        return Outcome(0, {"x": "why"})

    monkeypatch.setattr(module, "run_suite", stop)
    for frames, every, evaluation in ((4_040, 1_012, 505), (40_000_000, 250_000, 125_000)):
        with pytest.raises(ube.RunError, match="was finished: why"):
            ube.compare("atari/Pong", "dqn", frames=frames, seeds=1, out=tmp_path / str(frames))
        (cell,) = asked[-1].cells
        assert (cell.steps, cell.evaluate_every, cell.evaluation_steps) == (frames // 4, every, evaluation)
    with pytest.raises(UsageError, match="how long"):
        ube.compare("atari/Pong", "dqn", seeds=1, out=tmp_path / "none")
