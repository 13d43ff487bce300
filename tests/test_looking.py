"""Pictures of a trained agent: their numbers are the agent's, and what cannot be drawn is said in a line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.test_hosted import ENV as CORRIDORS
from deep.test_hosted import SMALL as SMALL_CORRIDORS
from deep.tiny import SEA, SMALL
from ube import UsageError
from ube.envs import Environment, Step
from ube.figures.looking import GRID, u_and_visits
from ube.runs import Run, Schedule, load, train


def walk() -> Environment:
    """Three numbers: where one is within 0..4, what action was last, and a clock without bounds; cut off after 6 steps."""

    def observe(state: Any) -> jax.Array:
        return jnp.stack([state[0], state[1], state[2] * 10.0])

    def reset(key: jax.Array, instance: Any) -> tuple[Any, jax.Array]:
        state = (jnp.float32(2), jnp.float32(0), jnp.float32(0))
        return state, observe(state)

    def step(key: jax.Array, instance: Any, state: Any, action: jax.Array) -> tuple[Any, Step]:
        where = jnp.clip(state[0] + 2.0 * action - 1.0, 0.0, 4.0)
        state = (where, action.astype(jnp.float32), state[2] + 1.0)
        return state, Step(observe(state), where / 4, jnp.bool_(False), state[2] >= 6)

    low, high = np.array([0.0, -1.0, -np.inf]), np.array([4.0, 2.0, np.inf])
    return Environment("Walk", (3,), np.dtype(np.float32), low, high, 2, lambda key: (), reset, step)


@pytest.fixture(scope="module", autouse=True)
def made_here() -> Iterator[None]:
    places = {"sea": SEA, "walk": walk(), "corridors": CORRIDORS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ube.runs.plan.make", lambda env_id, **args: places[env_id])
        yield


def trained(folder: Path, env: str, agent: str, **overrides: Any) -> Run:
    small = SMALL_CORRIDORS if env == "corridors" else SMALL
    schedule = Schedule(evaluate_every=80, evaluation_policy="none")
    return train(
        env, agent, 108, 3, overrides=small | overrides, out=folder / f"{env}-{agent}", chunk=100, schedule=schedule
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("looking")


@pytest.fixture(scope="module")
def sea(folder: Path) -> Run:
    return trained(folder, "sea", "ube-1step", beta=0.5)


@pytest.fixture(scope="module")
def dqn(folder: Path) -> Run:
    return trained(folder, "sea", "dqn")


@pytest.fixture(scope="module")
def steps(folder: Path) -> Run:
    return trained(folder, "walk", "ube-deep", discount=0.5)


@pytest.fixture(scope="module")
def corridors(folder: Path) -> Run:
    return trained(folder, "corridors", "ube-nstep", n=3)


def is_picture(path: Path) -> bool:
    start = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[path.suffix]
    return path.read_bytes().startswith(start)


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_an_episode_is_drawn(kind: str, sea: Run, tmp_path: Path) -> None:
    assert is_picture(sea.plot_episode(tmp_path / f"e.{kind}", policy="greedy", seed=1))


def test_an_episode_needs_no_u(dqn: Run) -> None:
    assert dqn.plot_episode(longest=3) == dqn.path / "episode.png"
    assert is_picture(dqn.path / "episode.png")


def test_calibration_is_of_the_decisions_that_were_played(sea: Run, tmp_path: Path) -> None:
    numbers = sea.plot_calibration(tmp_path / "c.png", episodes=6, seed=4, bins=3)
    assert is_picture(tmp_path / "c.png")
    played = list(sea.agent.episodes(6, seed=4))
    errors, claims = [], []
    for one in played:
        for t, action in enumerate(one.action):
            later = sum(0.99 ** (k - t) * one.reward[k] for k in range(t, 8))
            errors.append(abs(one.q[t, action] - later))
            claims.append(0.5 * np.sqrt(one.u[t, action]))  # β = 0.5, in the unit 1
    assert numbers.decisions.sum() == 48
    np.testing.assert_allclose((numbers.error * numbers.decisions).sum(), sum(errors), rtol=1e-5)
    np.testing.assert_allclose((numbers.claimed * numbers.decisions).sum(), sum(claims), rtol=1e-5)
    assert (np.diff(numbers.claimed) > 0).all()
    assert ((numbers.low <= numbers.error) & (numbers.error <= numbers.high)).all()


def test_calibration_leaves_out_what_lies_before_a_cut(steps: Run) -> None:
    """6 decisions, then a cut; with γ = 1/2 the last two are left out, and max Q follows at the end."""
    numbers = steps.plot_calibration(episodes=5, bins=1)
    assert numbers.decisions.tolist() == [20]
    errors = []
    for one in steps.agent.episodes(5):
        rewards = [*one.reward, one.follows]
        for t in range(4):
            later = sum(0.5 ** (k - t) * rewards[k] for k in range(t, 7))
            errors.append(abs(one.q[t, one.action[t]] - later))
    np.testing.assert_allclose(numbers.error, np.mean(errors), rtol=1e-5)


def test_calibration_without_a_known_return_is_refused(sea: Run, tmp_path: Path) -> None:
    run = load(sea.path)
    run.agent.session.instance = run.agent.session.instance._replace(limit=jnp.int32(3))
    with pytest.raises(UsageError, match=r"discount=0\.99: every episode was cut off within 1 / \(1 - γ\) decisions"):
        run.plot_calibration(tmp_path / "c.png", episodes=3)
    assert not list(tmp_path.iterdir())


def test_a_hosted_run_is_looked_at_in_the_same_way(corridors: Run, tmp_path: Path) -> None:
    assert is_picture(corridors.plot_episode())
    numbers = corridors.plot_calibration(episodes=2, bins=2)
    assert numbers.decisions.sum() == 26
    errors = []
    for one in corridors.agent.episodes(2):
        for t, action in enumerate(one.action):
            end = t + int(one.closes[t:].argmax())  # where the next life is lost, or the game
            later = sum(0.99 ** (k - t) * (one.action[k] == 1) for k in range(t, end + 1))  # 2.5 is learned as 1
            errors.append(abs(one.q[t, action] - later))
    np.testing.assert_allclose((numbers.error * numbers.decisions).sum(), sum(errors), rtol=1e-5)
    with pytest.raises(UsageError, match=r"Corridors gives observations of shape \(6, 6, 2\): maps are of vectors"):
        corridors.plot_map(tmp_path / "m.png")


def test_a_map_of_cells(sea: Run) -> None:
    found = u_and_visits(sea.agent, (0, 1), 5, "own", 2)
    assert found.edges is None
    assert found.visits.sum(1).tolist() == [5] * 8  # every episode goes through every row
    assert found.visits[0, 0] == 5
    for row, column in ((0, 0), (3, 1), (7, 7)):
        observation = np.zeros((8, 8), bool)
        observation[row, column] = True
        u = sea.agent.uncertainty(observation).u.max()
        assert found.root_u[row, column] == pytest.approx(0.5 * np.sqrt(u), rel=1e-4)
    assert is_picture(sea.plot_map(episodes=2))


def test_states_that_are_numbered_through_lie_on_a_grid(sea: Run, steps: Run, tmp_path: Path) -> None:
    square = u_and_visits(sea.agent, (0, 1), 5, "own", 2)
    wide = u_and_visits(sea.agent, (0, 1), 5, "own", 2, grid=(4, 16))
    np.testing.assert_array_equal(wide.visits, square.visits.reshape(4, 16))
    np.testing.assert_array_equal(wide.root_u, square.root_u.reshape(4, 16))
    assert is_picture(sea.plot_map(tmp_path / "wide.png", grid=(4, 16), episodes=1))
    with pytest.raises(UsageError, match=r"grid=\(3, 5\): rows times columns must be 64, the states of DeepSea"):
        sea.plot_map(tmp_path / "m.png", grid=(3, 5))
    with pytest.raises(UsageError, match=r"grid=\(1, 3\): Walk shows numbers, not one-hot states"):
        steps.plot_map(tmp_path / "m.png", grid=(1, 3))


def test_a_map_over_two_numbers(steps: Run) -> None:
    found = u_and_visits(steps.agent, (0, 2), 4, "own", 0)
    assert found.edges is not None
    across, up = found.edges
    assert (across[0], across[-1]) == (0, 4)
    assert (up[0], up[-1]) == (-5, 55)  # seen: 0 to 50, and a tenth more
    assert found.visits.sum() == 24
    assert found.visits.sum(1).max() == 4  # the clock goes up: each time once in each episode
    seen = np.concatenate([one.observation for one in steps.agent.episodes(4)])
    row, column = 10, 40
    middle = np.median(seen, 0)
    middle[0], middle[2] = (across[column] + across[column + 1]) / 2, (up[row] + up[row + 1]) / 2
    expected = steps.agent.beta * np.sqrt(steps.agent.uncertainty(middle).u.max())
    assert found.root_u.shape == (GRID, GRID)
    assert found.root_u[row, column] == pytest.approx(expected, rel=1e-4)
    assert is_picture(steps.plot_map(dims=(2, 0), episodes=2))


def test_beta_is_in_the_unit_of_the_largest_reward(steps: Run) -> None:
    lowest, highest = steps.agent.state.reward_range
    assert max(-lowest, highest) > 0
    assert steps.agent.beta == pytest.approx(highest if highest > 0 else max(-lowest, 1.0))


@pytest.mark.parametrize("dims", [(0, 0), (0, 3), (-1, 0), (0, 1, 2)])
def test_dims_are_two_numbers_of_the_observation(dims: Any, steps: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dims=\(.*\): two different numbers within 0\.\.2"):
        steps.plot_map(tmp_path / "m.png", dims=dims)


@pytest.mark.parametrize("what", ["plot_calibration", "plot_map"])
def test_an_agent_without_u_says_so(what: str, dqn: Run) -> None:
    with pytest.raises(UsageError, match=r"^dqn has no u to look at: train an agent that has, such as ube-deep$"):
        getattr(dqn, what)()


SUFFIX = ({"path": "picture.gif"}, r"picture\.gif: a picture ends in \.png, \.svg, \.pdf")
POLICY = ({"policy": "best"}, "policy='best': choose greedy or own")
NUMBER = ({"episodes": 0}, "episodes=0: at least 1")


@pytest.mark.parametrize(
    ("what", "asked", "message"),
    [
        *(("plot_episode", *bad) for bad in (SUFFIX, POLICY, ({"longest": 0}, "longest=0: at least 1"))),
        *(("plot_calibration", *bad) for bad in (SUFFIX, POLICY, NUMBER, ({"bins": 0}, "bins=0: at least 1"))),
        *(("plot_map", *bad) for bad in (SUFFIX, POLICY, NUMBER)),
    ],
)
def test_bad_values_are_refused(what: str, asked: dict[str, Any], message: str, sea: Run) -> None:
    with pytest.raises(UsageError, match=message):
        getattr(sea, what)(**asked)
