"""A few kills of what `make soak` does a hundred times and more."""

from pathlib import Path

import pytest

from faults.kills import Killer, killed_runs, killed_suites


def test_kill_9_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    killer = Killer(tmp_path, seed=0)
    assert killed_runs(killer, "deepsea", 2)["kills"] == 2
    assert killer.kills.total() == 2


def test_kill_9_changes_nothing_in_real_games(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    assert killed_runs(Killer(tmp_path, seed=1), "atari", 1)["kills"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minatar", "atari"])
def test_kill_9_changes_nothing_however_often(tmp_path: Path, kind: str) -> None:
    assert killed_runs(Killer(tmp_path, seed=2), kind, 5)["kills"] == 5


@pytest.mark.slow
def test_kill_9_costs_a_suite_nothing(tmp_path: Path) -> None:
    assert killed_suites(Killer(tmp_path, seed=3), 4)["kills"] >= 4
