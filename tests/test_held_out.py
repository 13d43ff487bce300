"""What the tables of development and held-out tasks say, by hand."""

import math
from typing import Any

import numpy as np
import pytest

from ube.deep.config import agent_config
from ube.deep.settings import filled
from ube.envs import Environment, make
from ube.figures.ablation import VARIANTS as ABLATED
from ube.figures.held_out import EPSILONS, REFERENCE, _checkpoints, _means_over_games, _over_games, task_rows


def result(returns: list[list[float]], training: float, **more: Any) -> dict[str, Any]:
    """A run evaluated at each checkpoint with each ε, whose training return was the same in all of its four bins."""
    checkpoints = [{"step": 10 * i, "returns": pair} for i, pair in enumerate(returns, 1)]
    bins = {"returns": [training] * 4, "episodes": [1] * 4, "successes": [0] * 4}
    return {"checkpoints": checkpoints, "bins": bins, "successes": None, **more}


TASK = {"env": "Tree-v0", "env_args": {"depth": 3}, "steps": 60, "kind": "sparse"}


def test_rows_of_a_sparse_task_by_hand() -> None:
    flat = [[0.9, 0.8]] * 5
    runs = [
        result([[0.0, 0.0], *flat], 0.5, successes=7, first_success_step=20, episodes_to_solve=None),
        result([[1.0, 1.0], *flat[1:], [0.0, 0.9]], 0.7, successes=9, first_success_step=None, episodes_to_solve=None),
    ]
    rows = {(row["metric"], row["setting"].get("case")): row for row in task_rows("dqn", TASK, runs)}
    assert rows["seeds_with_success", None]["value"] == 1
    assert rows["latest_first_success_step", None]["value"] is None  # one seed never got there
    assert rows["successes", None]["value"] == 8
    assert rows["training_return", None]["value"] == pytest.approx(0.6)
    assert rows["evaluation_return", "ε = 0"]["value"] == pytest.approx(
        (0.9 + 0.9 * 4 / 5) / 2
    )  # the last five checkpoints
    assert rows["evaluation_return_at_the_end", "ε = 0"]["value"] == 0.45
    assert rows["seeds_that_learned", "ε = 0"]["value"] == 1  # 0.9 at the end is enough


def test_a_run_that_stopped_early_repeats_its_last_evaluation() -> None:
    table = _checkpoints([result([[1.0, 2.0]], 0), result([[3.0, 4.0], [5.0, 6.0]], 0), result([], 0)])
    assert table.shape == (3, 2, len(EPSILONS))
    np.testing.assert_array_equal(table[0], [[1, 2], [1, 2]])
    np.testing.assert_array_equal(table[1], [[3, 4], [5, 6]])
    assert np.isnan(table[2]).all()


@pytest.mark.parametrize("name", ABLATED)
def test_every_variant_of_the_ablation_is_an_agent(name: str) -> None:
    env = make("KeyDoor-v0", size=5)
    assert isinstance(env, Environment)
    changed = filled(agent_config("ube-deep", ABLATED[name]), env, 10_000)
    as_it_is = filled(agent_config("ube-deep"), env, 10_000)
    assert (changed == as_it_is) == (name == "as it is")


def test_games_that_settings_were_chosen_on_are_left_out_of_a_second_mean() -> None:
    def runs(score: float) -> list[dict[str, Any]]:
        return [result([[score, score]], score)] * 2

    games = {name: {REFERENCE: runs(1), "other": runs(score)} for name, score in (("a", 1), ("b", 3), ("tuned", 8))}

    def training(seen: set[str]) -> list[tuple[int, float]]:
        rows = [row for row in _means_over_games(games, seen, 0) if row["setting"]["case"] == "training"]
        return [(row["setting"]["games"], row["value"]) for row in rows]

    assert training({"tuned"}) == [(3, 4.0), (2, 2.0)]
    assert training(set()) == [(3, 4.0)]
    assert training({"a", "tuned"}) == [(3, 4.0)]  # no mean over a single game


def test_scores_over_the_reference_are_ratios_of_means_averaged_over_games() -> None:
    def runs(*training: float) -> list[dict[str, Any]]:
        return [result([[2 * score, score]], score) for score in training]

    games = {
        "one": {REFERENCE: runs(1, 3), "other": runs(4, 4)},  # 2
        "two": {REFERENCE: runs(10, 10), "other": runs(5, 15)},  # 1
        "unscored": {REFERENCE: runs(0, 0), "other": runs(9, 9)},  # nothing to divide by
    }
    rows = {row["setting"]["case"]: row for row in _over_games(games, np.random.default_rng(0))}
    for case in ("training", "evaluation, ε = 0", "evaluation, ε = 0.05"):
        assert rows[case]["value"] == pytest.approx(1.5)
        assert rows[case]["setting"]["games"] == 2
        assert rows[case]["low"] < 1.5 < rows[case]["high"] < math.inf
