"""What is watched is what is played, in JAX and outside of it, and every number is the agent's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.test_hosted import finished
from deep.test_hosted import session as hosted_session
from deep.tiny import session
from ube.deep.hosted_session import HostedSession
from ube.deep.session import Session
from ube.deep.watching import episodes


@pytest.fixture(scope="module")
def sea() -> Session:
    run = session("ube-1step")
    list(run.run(108, 100))
    return run


@pytest.fixture(scope="module")
def corridors() -> HostedSession:
    return finished(hosted_session("ube-nstep"), 80)


@pytest.mark.parametrize("own", [True, False])
def test_episodes_are_those_of_an_evaluation(sea: Session, own: bool) -> None:
    played = sea.play(sea.learner, 30, own=own, seed=5)
    seen = list(episodes(sea, sea.learner, 30, own=own, seed=5, observations=True))
    np.testing.assert_allclose([one.reward.sum() for one in seen], played.episode_return, atol=1e-6)
    assert all(len(one.action) == 8 and one.closes.tolist() == [False] * 7 + [True] for one in seen)
    assert {one.follows for one in seen} == {0.0}
    one = seen[-1]
    for t in range(8):
        choice = sea.loop.think(sea.learner, one.observation[t], jax.random.key(0), sea.knobs)
        for mine, theirs in ((one.q, choice.q), (one.u, choice.u), (one.nu, choice.nu)):
            np.testing.assert_allclose(mine[t], theirs, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(one.taken(one.q), [one.q[t, action] for t, action in enumerate(one.action)])


def test_a_cut_episode_says_what_q_expects_to_follow(sea: Session) -> None:
    whole = sea.instance
    sea.instance = whole._replace(limit=jnp.int32(3))
    try:
        cut = next(episodes(sea, sea.learner, 1, own=True, seed=0))
        assert (len(cut.action), cut.closes.any(), cut.observation.shape) == (3, False, (3, 0))
    finally:
        sea.instance = whole
    straight = next(episodes(sea, sea.learner, 1, own=True, seed=0))
    np.testing.assert_array_equal(cut.action, straight.action[:3])
    assert cut.follows == pytest.approx(straight.q[3].max(), rel=1e-5)


def test_an_episode_may_be_left_before_its_end(sea: Session) -> None:
    first, second = episodes(sea, sea.learner, 2, own=True, seed=0, longest=5)
    assert (len(first.action), len(second.action)) == (5, 3)
    assert (first.closes.any(), second.closes[-1]) == (False, True)


@pytest.mark.parametrize("own", [True, False])
def test_a_hosted_game(corridors: HostedSession, own: bool) -> None:
    """It ends after 13 decisions and loses a life every 5; the third is cut off at the 29th, and the 30th loses a life."""
    played = list(episodes(corridors, corridors.learner, 3, own=own, seed=2, observations=True))
    first, _, third = played
    np.testing.assert_array_equal(first.reward, np.where(first.action == 1, 2.5, 0.0))
    assert np.flatnonzero(first.closes).tolist() == [4, 9, 12]
    assert [len(one.action) for one in played] == [13, 13, 3]
    assert (first.follows, third.closes.tolist()) == (0.0, [False] * 3)
    assert first.observation.shape == (13, *corridors.env.observation_shape)
    np.testing.assert_array_equal(first.observation[1:, ..., 0], first.observation[:-1, ..., 1])
    assert first.observation[:, 0, 0, 1].tolist() == list(range(13))  # the clock in the corner of the newest frame
    assert np.isfinite(third.follows)
    assert third.follows != 0
