"""True visits: counts by hand, and states from the emulator's RAM on a real run."""

import numpy as np
import pytest

from ube.figures.visits import freeway_states, grouped, local_uncertainty, visits_of
from ube.runs.plan import Schedule, planned


def test_visits_by_hand() -> None:
    states, actions = np.array([5, 5, 5, 7, 5]), np.array([0, 1, 0, 0, 0])
    np.testing.assert_array_equal(visits_of(states, actions), [3, 1, 3, 1, 3])


def test_groups_of_visits_by_hand() -> None:
    visits = np.array([1] * 5 + [3, 4, 3, 4, 4] + [40])  # one decision is no group
    nu = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 1.0, 2.0, 3.0, 3.0, 9.0])
    assert grouped(visits, nu) == {
        "visits": [1.0, 3.6], "median": [0.3, 2.0], "low": [0.2, 1.0], "high": [0.4, 3.0],
    }  # fmt: skip


def test_nu_is_that_of_the_decisions_asked_for() -> None:
    """In a tree of 7 states each has a cell of its own in the finest grids, so ν falls with the visits of the action."""
    plan = planned(
        "Tree-v0", "ube-deep", 400, 0, frames=None, protocol="auto", env_args={"depth": 3},
        overrides={"noise": "known", "warmup": 10, "batch_size": 4}, schedule=Schedule(),
    )  # fmt: skip
    session = plan.session()
    for _ in session.run(400):
        pass
    rows = session.carry.replay.rows  # type: ignore[union-attr]
    observation, action = np.asarray(rows.observation)[:400], np.asarray(rows.action)[:400]
    states = observation.argmax(1)
    visits = visits_of(states, action)
    nu = local_uncertainty(session, observation, action)
    assert np.all(nu <= 1 / (1 + visits) + 1e-6)  # cells are shared by neighbours at most
    assert np.corrcoef(np.log(visits), np.log(nu))[0, 1] < -0.9


def test_states_come_from_the_emulator_that_played() -> None:
    pytest.importorskip("ale_py")
    plan = planned(
        "atari/freeway", "dqn", 240, 0, frames=None, protocol="auto", env_args={"noops": 1},
        overrides={"replay_size": 300, "warmup": 100, "batch_size": 4, "update_period": 40},
        schedule=Schedule(evaluate_every=240, evaluation_policy="none"),
    )  # fmt: skip
    session = plan.session()
    for _ in session.run(240):
        pass
    actions = session.actions[:240, 0].astype(int)  # type: ignore[union-attr]
    states = freeway_states(actions, session.replay)
    session.close()
    place = states // 16
    assert place[0] == 6  # the side of the road, where the game begins
    up, down = (np.diff(place)[actions[:-1] == action] for action in (1, 2))
    assert up.mean() > 0 > down.mean()
    session.replay.reward[0, 100] = 1.0  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="the emulator did not repeat the run"):
        freeway_states(actions, session.replay)
