"""Every number in the README's results table is the one in the results file it names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ube.deep.config import PRESETS
from ube.deep.frames import FrameReplay
from ube.machine import ATARI_FRAME, gigabytes, room_needed
from ube.report.tables import cell, number

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def value(experiment: str, agent: str, metric: str, **setting: Any) -> str:
    results = json.loads((ROOT / "docs" / "results" / experiment / "results.json").read_text())
    (row,) = [
        r
        for r in results["summary"]
        if r["agent"] == agent and r["metric"] == metric and setting.items() <= r["setting"].items()
    ]
    return cell(row)


def best_bonus(case: str) -> float:
    results = json.loads((ROOT / "docs" / "results" / "chain" / "results.json").read_text())
    return float(results["data"]["best_bonus"][case].split("=")[1])


SPARSE = ("ube-deep", "boot", "bonus", "dqn", "dqn-small-epsilon", "ube-1step", "ube-nstep", "unstructured-noise")
TABLE = [
    ("chain, regret", "chain", "regret", {"case": "paper"}, {"ube-thompson": {}, "bonus": {"beta": best_bonus("paper")}}),
    ("chain of length 100", "chain", "regret", {"case": "growth", "length": 100}, {"ube-thompson": {}, "bonus": {}}),
    ("chain, means swapped", "chain", "regret", {"case": "swapped"},
     {"ube-thompson": {}, "bonus": {"beta": best_bonus("swapped")}}),
    ("chain, random means", "chain", "regret", {"case": "random means"},
     {"ube-thompson": {}, "ube-episode": {}, "ube-ucb": {}, "bonus": {"beta": best_bonus("random means")}}),
    ("looseness", "bound", "ratio_to_true_variance", {"belief": "layered"}, {"ube": {}, "ube-horizon": {}, "pombu": {}}),
    ("tied layers", "bound", "ratio_to_true_variance", {"belief": "tied"}, {"pombu": {}, "exact": {}, "delta": {}}),
    ("tree of depth 100", "tree", "episodes_to_solve", {"depth": 100},
     {"ube-thompson": {}, "ube-ucb": {}, "ube-episode": {}, "psrl": {}, "ucbvi": {}, "bonus": {}}),
    ("DeepSea 50, noise known", "deepsea-tabular", "episodes_to_solve", {"size": 50, "case": "noise known"},
     {"ube-thompson": {}, "ube-ucb": {}, "ube-episode": {}, "ucbvi": {}, "psrl": {}, "rlsvi": {}}),
    ("DeepSea 50, noise overrated", "deepsea-tabular", "episodes_to_solve", {"size": 50, "case": "noise overrated"},
     {"ube-ucb": {}, "ucbvi": {}, "rlsvi": {}, "psrl": {}}),
    ("RiverSwim, regret", "riverswim", "regret", {"case": "noise known"},
     {a: {} for a in ("ube-joint", "ube-ucb", "ube-episode", "ucbvi", "bonus", "rlsvi", "psrl", "ube-thompson")}),
    ("DeepSea 15, learning", "deepsea", "episodes_to_solve", {"size": 15},
     {a: {} for a in ("ube-deep", "boot", "boot-2", "ube-1step", "ube-nstep", "bonus", "dqn", "unstructured-noise")}),
    ("DeepSea 20, learning", "deepsea", "episodes_to_solve", {"size": 20},
     {a: {} for a in ("ube-deep", "boot", "ube-nstep", "bonus")}),
    ("DeepSea 30, learning", "deepsea", "episodes_to_solve", {"size": 30}, {"ube-deep": {}, "boot": {}}),
    ("DeepSea 50, learning", "deepsea", "episodes_to_solve", {"size": 50}, {"ube-deep": {}}),
    *(
        (start, "sparse", metric, {"env": env}, {a: {} for a in SPARSE})
        for start, metric, env in (
            ("tree of depth 50, learning", "first_success_step", "Tree-v0"),
            ("sparse MountainCar, steps", "first_success_step", "MountainCarSparse-v0"),
            ("DoorKey-8x8, seeds", "seeds_with_success", "Navix-DoorKey-8x8-v0"),
        )
    ),
    ("sparse MountainCar, successes", "sparse", "successes", {"env": "MountainCarSparse-v0"},
     {a: {} for a in ("ube-deep", "boot", "dqn", "dqn-small-epsilon", "greedy", "unstructured-noise")}),
    ("MinAtar, training", "minatar", "iqm_training", {}, {a: {} for a in PRESETS}),
    ("MinAtar, evaluation", "minatar", "iqm_evaluation", {}, {a: {} for a in PRESETS}),
    *(
        (f"MinAtar's {game}", "minatar", metric, {"env": f"{game}-MinAtar"}, {a: {} for a in PRESETS})
        for game, metric in (("Breakout", "training_return"), ("SpaceInvaders", "evaluation_return"))
    ),
    *(
        (start, "atari-dopamine", "training_return", {"game": game}, {"dqn": {}, "dopamine, public": {}})
        for start, game in (("Atari, our `dqn` in its first million frames", "breakout"), ("the same: Pong", "pong"))
    ),
    *(
        (start, "atari", metric, {"game": game}, {a: {} for a in ("dqn", "ube-1step", "ube-nstep", "ube-deep")})
        for start, metric, game in (
            ("Atari, training score over 300,000 frames", "training_return", "freeway"),
            ("Atari, the same in Breakout", "training_return", "breakout"),
            ("Atari, evaluation after that", "evaluation_return", "freeway"),
            ("Atari, evaluation in Breakout", "evaluation_return", "breakout"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("start", "experiment", "metric", "setting", "agents"), TABLE, ids=[row[0] for row in TABLE])
def test_results_table(start: str, experiment: str, metric: str, setting: dict, agents: dict) -> None:
    (line,) = [x for x in README.splitlines() if x.startswith(f"| {start}")]
    for agent, extra in agents.items():
        assert f"{agent} {value(experiment, agent, metric, **setting, **extra)}" in line


def test_no_violation_in_as_many_beliefs_as_the_readme_says() -> None:
    results = json.loads((ROOT / "docs" / "results" / "bound" / "results.json").read_text())
    broken = [r for r in results["summary"] if r["metric"] == "beliefs_with_a_violation"]
    assert all(r["value"] == 0 for r in broken if r["setting"]["belief"] == "layered")
    assert f"no violation in {number(results['settings']['seeds'])} beliefs" in README
    (pombu,) = [r for r in broken if r["setting"]["belief"] == "tied" and r["agent"] == "pombu"]
    assert f"pombu below the truth in {pombu['value']} of {pombu['setting']['beliefs']}" in README


def test_what_is_said_of_deep_exploration() -> None:
    def solved(agent: str, size: int) -> str:
        return value("deepsea", agent, "solved_seeds", size=size)

    assert solved("ube-deep", 50) == "10"
    assert f"({solved('ube-1step', 10)} against {solved('unstructured-noise', 10)} of 10 seeds at N = 10" in README
    assert solved("ube-1step", 15) == solved("unstructured-noise", 15) == "0"
    summary = json.loads((ROOT / "docs" / "results" / "deepsea" / "results.json").read_text())["summary"]
    variants = {r["agent"].removeprefix("ube-deep: ") for r in summary if r["agent"].startswith("ube-deep: ")}
    lost = {name for name in variants if value("deepsea", f"ube-deep: {name}", "episodes_to_solve", size=20) == "never"}
    assert variants - lost == {"as it is", "noise per episode", "noise known", "u learns from the stream"}
    assert all(value("deepsea", f"ube-deep: {name}", "solved_seeds", size=20) == "0" for name in lost)
    assert value("deepsea", "ube-deep: u learns from the stream", "solved_seeds", size=20) == "7"


def test_what_is_said_of_bootstrapped_dqn() -> None:
    results = json.loads((ROOT / "docs" / "results" / "deepsea" / "results.json").read_text())
    times = {
        (r["agent"], r["setting"]["size"]): r["value"]
        for r in results["summary"]
        if r["metric"] == "episodes_to_solve" and "case" not in r["setting"]
    }
    ratios = [times["boot", size] / times["ube-deep", size] for size in (10, 15, 20, 30)]
    assert f"`boot` takes {min(ratios):.1f} to {max(ratios):.1f} times as many episodes from N = 10 to 30" in README
    assert [value("deepsea", "boot-2", "solved_seeds", size=size) for size in (10, 15)] == ["3", "0"]
    training = json.loads((ROOT / "docs" / "results" / "benchmarks" / "training_rate.json").read_text())
    small, large = (
        training["ratios"][f"DeepSea-{size}, MLP 64-64, update every step"]["ube-deep"] for size in (20, 50)
    )
    said = (
        f"With ten networks, {number(small['boot'])} times the work of `ube-deep` in a step at N = 20 and "
        f"{number(large['boot'])} at N = 50",
        f"With two, which is still {number(small['boot-2'])} and {number(large['boot-2'])} times the work",
    )
    text = " ".join(README.split())
    for words in said:
        assert words in text
    rate = training["rates"]["DeepSea-50, MLP 64-64, update every step"]["boot"]["best"]
    assert f"it makes {rate:.0f} steps a second" in README


def test_what_is_said_of_sparse_rewards() -> None:
    results = json.loads((ROOT / "docs" / "results" / "sparse" / "results.json").read_text())
    firsts = results["data"]["first_success_steps"]

    def median(steps: list[int | None]) -> float:
        return sorted(float("inf") if step is None else step for step in steps)[len(steps) // 2]

    first = ("Tree-v0, depth 50", "MountainCarSparse-v0", "Navix-DoorKey-6x6-v0", "Navix-DoorKey-8x8-v0")
    for task in first:
        assert min(firsts[task], key=lambda agent, task=task: median(firsts[task][agent])) == "ube-deep"
    for task in first[2:]:
        assert [agent for agent, steps in firsts[task].items() if None not in steps] == ["ube-deep"]
    car = firsts["MountainCarSparse-v0"]
    last = max(car["ube-deep"])
    assert f"after {last:,} steps, when none of `dqn`'s has, and 2 of 5 of `ube-1step`'s" in README.replace("\n ", "")
    assert [sum(step is not None and step <= last for step in car[agent]) for agent in ("dqn", "ube-1step")] == [0, 2]
    often = {agent: float(value("sparse", agent, "seeds_with_success", env=first[1])) for agent in firsts[first[1]]}
    assert min(often.values()) == 3
    grids = [rates for task, rates in results["data"]["curves"].items() if task.startswith("Navix")]
    assert max(max(rate["mean"][-5:]) for rates in grids for rate in rates.values()) < 0.15


def test_what_is_said_of_minatar() -> None:
    results = json.loads((ROOT / "docs" / "results" / "minatar" / "results.json").read_text())

    def intervals(metric: str, **setting: Any) -> dict[str, tuple[float, float]]:
        rows = [r for r in results["summary"] if r["metric"] == metric and setting.items() <= r["setting"].items()]
        return {r["agent"]: (r["low"], r["high"]) for r in rows}

    training, evaluation = intervals("iqm_training"), intervals("iqm_evaluation")
    for agent in ("ube-1step", "unstructured-noise"):
        for low, high in (training[agent], evaluation[agent]):
            assert low < 1 < high
    assert max(training["ube-nstep"][1], training["boot"][1], evaluation["boot"][1], evaluation["ube-deep"][1]) < 1
    assert len(results["data"]["games_of_iqm"]) == 3
    invaders = intervals("evaluation_return", env="SpaceInvaders-MinAtar")
    assert invaders["ube-deep"][1] < 0.6 * invaders["dqn"][0]
    means = {
        (r["agent"], r["setting"]["env"]): r["value"] for r in results["summary"] if r["metric"] == "training_return"
    }
    assert means["ube-deep", "Breakout-MinAtar"] > 2 * means["dqn", "Breakout-MinAtar"]
    assert 0.45 < means["ube-deep", "Seaquest-MinAtar"] / means["ube-1step", "Seaquest-MinAtar"] < 0.55
    assert results["settings"]["tuning"]["game"] == "Breakout-MinAtar"


def test_measured_speed() -> None:
    sweep, exact, training = (
        json.loads((ROOT / "docs" / "results" / "benchmarks" / f"{name}.json").read_text())
        for name in ("sparse_sweep", "exact_variance", "training_rate")
    )
    for demand in (*sweep["demands"], *exact["demands"], *training["demands"]):
        assert demand["met"], demand["what"]
        assert number(demand["value"]) in README, demand["what"]
    groups = [group for group in training["rates"].values() if "dqn" in group]
    spread = [min(r["steps_per_second"]) / r["best"] for group in groups for r in group.values()]
    assert f"the worst of a contender is {min(spread):.2f} to {max(spread):.2f} of its best" in README
    one, two = (sweep["sweeps"][f"stochastic, {threads}"]["median_ratio"] for threads in ("1 thread", "2 threads"))
    assert f"by the median {number(one)} and {number(two)} of SciPy's" in README


def test_what_is_said_of_the_rate_on_atari() -> None:
    filed = json.loads((ROOT / "docs" / "results" / "benchmarks" / "atari_rate.json").read_text())
    assert all(demand["met"] for demand in filed["demands"])
    turns = {name: np.array(rate["steps_per_second"]) for name, rate in filed["rates"].items()}
    text = " ".join((ROOT / "docs" / "atari.md").read_text().split())
    dqn = turns["dqn"]
    assert (
        f"medians of {len(dqn)} turns: `dqn` makes {np.median(dqn):.0f} decisions a second ({dqn.max():.0f} at best)"
        in text
    )
    assert f"{np.median(dqn / turns['plain PyTorch']):.2f} times the plain PyTorch" in text
    assert f"{np.median(dqn / turns['SB3']):.2f} times Stable-Baselines3" in text
    for agent in ("ube-1step", "ube-nstep", "ube-deep"):
        assert f"`{agent}` {np.median(turns[agent] / dqn):.2f}" in text
    gradient, targets = (filed["parts"][name] for name in ("gradient and step", "target pass"))
    fastest = filed["parts"]["product of two 512 x 512 matrices"][1]
    assert f"takes {gradient[0]:.1f} ms of the round's work at {gradient[1] / fastest:.2f} of this" in text
    assert f"the target pass {targets[0]:.1f} ms at {targets[1] / fastest:.2f} of it" in text


def test_our_dqn_lies_within_the_spread_of_the_public_seeds() -> None:
    filed = json.loads((ROOT / "docs" / "results" / "atari-dopamine" / "results.json").read_text())
    assert (filed["settings"]["seeds"], filed["settings"]["games"]) == (1, ["breakout", "pong"])
    text = " ".join((ROOT / "docs" / "atari.md").read_text().split())
    for game in ("breakout", "pong"):
        assert value("atari-dopamine", "dqn", "seeds_within_public_spread", game=game, frames=1_000_000) == "1"
        ours, public = (
            value("atari-dopamine", agent, "training_return", game=game) for agent in ("dqn", "dopamine, public")
        )
        assert f"{game.title()} {ours}, public {public}" in text
    pong = {
        row["agent"]: row
        for row in filed["summary"]
        if row["setting"]["game"] == "pong" and row["metric"] == "training_return"
    }
    ends = f"{pong['dqn']['value']:.2f} near its upper end, {pong['dopamine, public']['high']:.2f}"
    assert f"Pong with {ends}" in text
    first = [filed["data"]["curves"][game]["dqn"]["mean"][0] for game in ("breakout", "pong")]
    assert f"our first twentieth, all of it random, scores {first[0]:.2f} and {first[1]:.1f}" in text


def test_what_is_said_of_four_agents_on_atari() -> None:
    text = " ".join((ROOT / "docs" / "atari.md").read_text().split())

    def found(agent: str, metric: str, game: str) -> str:
        return value("atari", agent, metric, game=game)

    curves = json.loads((ROOT / "docs" / "results" / "atari" / "results.json").read_text())["data"]["curves"]
    for agent in ("dqn", "ube-1step", "ube-nstep"):
        assert found(agent, "training_return", "freeway") == "0 (0 to 0)"
    for agent in ("ube-1step", "ube-nstep"):
        assert found(agent, "training_return", "breakout") == "0 (0 to 0)"
    best = max(high for high in curves["freeway"]["ube-deep"]["high"] if high is not None)
    crossed = found("ube-deep", "training_return", "freeway")
    assert f"only `ube-deep` ever did: {crossed} points a game over all of training, {best:.3g} at best" in text
    last, evaluation = (
        found("ube-deep", metric, "freeway") for metric in ("training_return_last_tenth", "evaluation_return")
    )
    assert f"does not keep that: {last} in the last tenth, and {evaluation} in evaluation" in text
    assert f"where `dqn` has {found('dqn', 'evaluation_return', 'freeway')}." in text
    training, evaluation = (
        [found(agent, metric, "breakout") for agent in ("dqn", "ube-deep")]
        for metric in ("training_return", "evaluation_return")
    )
    assert f"`dqn` has {training[0]} and `ube-deep` {training[1]}, where" in text
    assert f"first twentieth, all of it random, has {curves['breakout']['dqn']['mean'][0]:.2f};" in text
    ours = ("ube-1step", "ube-nstep")
    assert {found(agent, "own_policy_return", "breakout") for agent in ours} == {"0 (0 to 0)"}
    greedy = " and ".join(found(agent, "evaluation_return", "breakout") for agent in ours)
    assert f"what they have greedily, {greedy}, came with ε = 0.05" in text
    for agent in ours:  # where a game of both seeds ended, there is a range
        assert sum(low is not None for low in curves["breakout"][agent]["low"]) == 2
    assert f"in evaluation {evaluation[0]} and {evaluation[1]}, a seed below both of `dqn`'s and one above" in text


def test_the_room_that_a_run_asks_for() -> None:
    replay = FrameReplay.bytes_needed(1_000_000, ATARI_FRAME)
    often, never = room_needed(1_000_000), room_needed(1_000_000, checkpoint_minutes=1e9)
    text = " ".join((ROOT / "docs" / "atari.md").read_text().split())
    assert f"asks for {gigabytes(often.memory)} of memory, {replay / 1e9:.1f} of them frames" in text
    assert f"and {gigabytes(often.disk)} of disk for checkpoints every ten minutes" in text
    assert never.disk == 1e9 + 3 * replay
    assert replay <= 7.5e9


def test_what_a_checkpoint_costs() -> None:
    cost = json.loads((ROOT / "docs" / "results" / "benchmarks" / "checkpoint_cost.json").read_text())
    assert all(demand["met"] for demand in cost["demands"])
    worst = max(cost["later_seconds"])
    said = f"takes {cost['first_seconds']:.1f} s, and each later one at most {worst:.1f} s, "
    said += f"{100 * worst / cost['seconds_between']:.2f} % of the ten minutes"
    assert said in " ".join((ROOT / "docs" / "atari.md").read_text().split())


def test_the_five_lines_run() -> None:
    code = README.split("```python")[1].split("```")[0]
    scope: dict[str, Any] = {}
    exec(compile(code, "README", "exec"), scope)
    assert scope["solution"].guarantee == "exact"
    assert scope["solution"].variance.shape == (5, 4, 2)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    source = ROOT / "examples" / "posterior_variance.py"
    exec(compile(source.read_text(), str(source), "exec"), {"__name__": "__main__"})
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["exact"].endswith("exact")
    assert lines["ube"].endswith("upper bound")
    assert set(lines) == {"ube", "ube-horizon", "pombu", "exact", "lower", "sampling"}


def test_fresh_seeds_of_the_protocol() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text().replace("\n", " ")
    fresh = json.loads((ROOT / "docs" / "results" / "confirmation" / "deepsea-tabular.json").read_text())
    published = json.loads((ROOT / "docs" / "results" / "deepsea-tabular" / "results.json").read_text())
    assert fresh["settings"] == published["settings"]
    assert fresh["seeds"] == {"first": 1000, "count": 30}

    def median(results: dict[str, Any], agent: str, case: str) -> str:
        wanted = {"size": 50, "case": case}.items()
        rows = [r for r in results["summary"] if r["metric"] == "episodes_to_solve" and r["agent"] == agent]
        return number(next(r["value"] for r in rows if wanted <= r["setting"].items()))

    for case, agents in {
        "noise known": ("ube-ucb", "ucbvi", "psrl", "rlsvi"),
        "noise overrated": ("ube-ucb", "rlsvi"),
    }.items():
        for agent in agents:
            assert f"{agent} {median(published, agent, case)} / {median(fresh, agent, case)}" in text
