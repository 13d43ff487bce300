"""The paper's scoring, from its 57 rows."""

import numpy as np
import pytest

from ube import UsageError
from ube.stats import atari

PRINTED = {
    "dqn": (688.60, 79.41, 21),
    "bonus": (472.93, 76.73, 24),
    "ube-1step": (776.40, 94.54, 26),
    "ube-nstep": (439.88, 126.41, 35),
}


def test_table_1_follows_from_the_57_rows() -> None:
    scores = atari.paper_scores()
    assert {len(of) for of in scores.values()} == {57}
    for agent, (mean, median, above) in PRINTED.items():
        found = atari.summary(scores[agent])
        assert found.mean == pytest.approx(mean, abs=0.0051)  # the rows have two digits
        assert (found.median, found.above_human) == (median, above)


def test_who_wins_and_how_that_depends_on_ties() -> None:
    scores = atari.paper_scores()
    assert atari.wins(scores) == ({"ube-nstep": 32, "ube-1step": 14, "dqn": 1, "bonus": 7}, 3)
    tied = [game for game, first in atari.leaders(scores).items() if len(first) > 1]
    assert tied == ["atlantis", "pitfall", "pong"]
    assert atari.wins(scores, tie=0.0) == ({"ube-nstep": 33, "ube-1step": 14, "dqn": 2, "bonus": 7}, 1)
    either = {game: max(scores["ube-1step"][game], scores["ube-nstep"][game]) for game in atari.games()}
    assert atari.better(either, scores["dqn"]) == (51, 1, 5)
    assert atari.better(scores["ube-nstep"], scores["dqn"]) == (49, 2, 6)
    assert atari.better(scores["ube-1step"], scores["dqn"]) == (41, 1, 15)


def test_the_medians_depend_on_the_constants() -> None:
    medians = [atari.summary(of).median for of in atari.paper_scores("no-op").values()]
    assert medians == pytest.approx([70.61, 71.92, 85.24, 115.85], abs=0.005)


def test_normalisation_by_hand() -> None:
    assert atari.players("pong", "human-starts") == (-18.0, 15.5)
    assert atari.normalised(15.5, "pong", "human-starts") == 100.0
    assert atari.normalised(-18.0, "pong", "human-starts") == 0.0
    random, human = atari.players("video_pinball", "human-starts")
    assert human < random  # so that dividing by human - random would turn the order around
    assert atari.normalised(random + 1, "video_pinball", "human-starts") > 0
    for game in atari.games():
        assert atari.normalised(atari.raw(37.0, game, "no-op"), game, "no-op") == pytest.approx(37.0)


def test_the_final_score_averages_seeds_before_it_takes_the_best_period() -> None:
    assert atari.final_score(np.array([[0.0, 10.0, 4.0], [10.0, 0.0, 8.0]])) == 6.0


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="no constants for the game 'pongg': did you mean pong"):
        atari.normalised(1.0, "pongg", "no-op")
    with pytest.raises(UsageError, match="constants='noop': choose human-starts or no-op"):
        atari.normalised(1.0, "pong", "noop")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"shape \(3,\): expected \(seeds, periods\)"):
        atari.final_score(np.zeros(3))
