"""The navix adapter: what networks see is the whole state, and episodes end as they should."""

import importlib.util
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ube import UsageError
from ube.envs import Environment, make

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("navix") is None, reason="needs the extra `grids`"),
    pytest.mark.filterwarnings("ignore:jax.core.pytype_aval_mappings is deprecated:DeprecationWarning"),
]
LEFT, RIGHT, FORWARD, PICK_UP, DROP, OPEN, DONE = range(7)
WALL, DOOR, KEY, GOAL = 1, 2, 3, 6  # planes of objects
COLOURS, DOOR_STATES, DIRECTIONS = slice(8, 14), slice(14, 17), slice(17, 21)


def player(observation: np.ndarray) -> tuple[int, int, int]:
    ((row, column, direction),) = np.argwhere(observation[..., DIRECTIONS])
    return int(row), int(column), int(direction)


class Walk:
    """Plays one episode of an environment by hand."""

    def __init__(self, env: Environment, seed: int) -> None:
        self.step = jax.jit(env.step)
        self.state, first = jax.jit(env.reset)(jax.random.key(seed), ())
        self.seen, self.rewards, self.last = np.asarray(first), [], None  # type: ignore[var-annotated]

    def do(self, *actions: int) -> Any:
        for action in actions:
            self.state, self.last = self.step(jax.random.key(0), (), self.state, jnp.int32(action))
            self.seen = np.asarray(self.last.observation)
            self.rewards.append(float(self.last.reward))
        return self.last

    def face(self, direction: int) -> None:
        while player(self.seen)[2] != direction:
            self.do(RIGHT)

    def beside(self, row: int, column: int) -> None:
        """Go next to a cell and face it, by breadth-first search over cells without a wall or an object."""
        free = ~self.seen[..., [WALL, DOOR, KEY]].any(-1) | self.seen[..., DOOR_STATES][..., 0]
        moves = ((0, 1), (1, 0), (0, -1), (-1, 0))
        start = player(self.seen)[:2]
        paths: dict[tuple[int, int], list[int]] = {start: []}
        frontier = [start]
        for cell in frontier:
            for direction, (down, along) in enumerate(moves):
                following = (cell[0] + down, cell[1] + along)
                if following == (row, column):
                    for turn in [*paths[cell], direction]:
                        self.face(turn)
                        if turn != direction or player(self.seen)[:2] != cell:
                            self.do(FORWARD)
                    return
                if free[following] and following not in paths:
                    paths[following] = [*paths[cell], direction]
                    frontier.append(following)
        raise AssertionError("no way")


def test_the_door_is_opened_with_the_key_and_the_goal_pays() -> None:
    walk = Walk(make("Navix-DoorKey-6x6-v0"), seed=2)
    assert player(walk.seen) == (1, 1, 0)
    (door,), (key,), (goal,) = (np.argwhere(walk.seen[..., plane]) for plane in (DOOR, KEY, GOAL))
    assert walk.seen[(*door, slice(14, 17))].tolist() == [False, False, True]  # locked
    walk.beside(*door)
    walk.do(OPEN)
    assert walk.seen[(*door, slice(14, 17))].tolist() == [False, False, True]  # still, without the key
    walk.beside(*key)
    walk.do(PICK_UP)
    assert np.argwhere(walk.seen[..., KEY]).tolist() == [[0, 5]]  # carried: shown in the corner
    walk.beside(*door)
    walk.do(OPEN)
    assert walk.seen[(*door, slice(14, 17))].tolist() == [True, False, False]
    walk.do(FORWARD)
    assert player(walk.seen)[:2] == tuple(door)
    assert walk.seen[(*door, DOOR)]  # both are seen: navix's own view shows one of them
    walk.beside(*goal)
    played = walk.do(FORWARD)
    assert walk.rewards == [0.0] * (len(walk.rewards) - 1) + [1.0]
    assert played.terminated
    assert not played.truncated
    assert player(walk.seen)[:2] == tuple(goal)
    assert walk.seen[(*goal, GOAL)]


def test_the_limit_truncates_and_no_step_resets() -> None:
    env = make("Navix-DoorKey-5x5-v0", max_steps=3)
    walk = Walk(env, seed=0)
    key = np.argwhere(walk.seen[..., KEY])
    ends = []
    for action in (LEFT, RIGHT, RIGHT, DONE):
        played = walk.do(action)
        ends.append((bool(played.terminated), bool(played.truncated)))
    assert ends == [(False, False), (False, False), (False, True), (False, True)]
    assert player(walk.seen) == (1, 1, 1)  # a reset would have turned the player back to 0
    np.testing.assert_array_equal(np.argwhere(walk.seen[..., KEY]), key)


@pytest.mark.parametrize("env_id", ["Navix-DoorKey-5x5-v0", "Navix-GoToDoor-6x6-v0", "Navix-Dynamic-Obstacles-5x5-v0"])
def test_random_play_keeps_to_the_declared_observation(env_id: str) -> None:
    env = make(env_id)

    def one(state: Any, key: jax.Array) -> Any:
        key_action, key_step, key_reset = jax.random.split(key, 3)
        state, played = env.step(key_step, (), state, jax.random.randint(key_action, (), 0, env.n_actions))
        fresh, _ = env.reset(key_reset, ())
        done = played.terminated | played.truncated
        return jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh, state), played

    state, first = jax.jit(env.reset)(jax.random.key(0), ())
    _, played = jax.jit(lambda s: jax.lax.scan(one, s, jax.random.split(jax.random.key(1), 400)))(state)
    for observation in (first, played.observation[7]):
        assert observation.shape == env.observation_shape
        assert observation.dtype == env.observation_dtype == np.dtype(bool)
    seen = np.asarray(played.observation)
    assert (seen[..., :8].sum(-1) == 1).all()  # one object a cell
    assert (seen[..., COLOURS].sum(-1) == 1).all()
    assert (seen[..., DIRECTIONS].sum((1, 2, 3)) == 1).all()  # one player, in one direction
    assert (seen[..., DOOR_STATES].sum(-1) == seen[..., DOOR]).all()  # every door has one state
    assert set(np.unique(played.reward)) <= {0.0, 1.0}
    np.testing.assert_array_equal(np.asarray(played.reward) > 0, np.asarray(played.reward) >= env.success_return)
    assert (played.terminated | played.truncated).any()
    if "GoToDoor" in env_id:
        assert (seen[..., 21].sum((1, 2)) == 1).all()
        assert (seen[..., 21] & seen[..., DOOR]).sum() == len(seen)


def test_obstacles_move_by_the_key_of_the_step() -> None:
    env = make("Navix-Dynamic-Obstacles-8x8-v0")
    state, _ = jax.jit(env.reset)(jax.random.key(0), ())
    step = jax.jit(jax.vmap(lambda key: env.step(key, (), state, jnp.int32(DONE))[1].observation))
    after = np.asarray(step(jnp.stack([jax.random.key(n) for n in (1, 1, 2, 3, 4)])))
    np.testing.assert_array_equal(after[0], after[1])
    assert len({one.tobytes() for one in after}) > 1


def test_layouts_are_drawn_by_reset() -> None:
    env = make("Navix-DoorKey-6x6-v0")
    _, observations = jax.jit(jax.vmap(lambda key: env.reset(key, ())))(jax.random.split(jax.random.key(0), 10))
    assert len({np.asarray(one).tobytes() for one in observations}) > 3


@pytest.mark.parametrize(
    ("env_id", "env_args", "message"),
    [
        ("Navix-DoorKy-5x5-v0", {}, "the nearest ids are Navix-DoorKey-5x5-v0"),
        ("Navix-KeyCorridorS3R3-v0", {}, "never pays a reward"),
        ("Navix-Empty-5x5-v0", {"size": 3}, "no argument 'size'; it takes max_steps"),
        ("Navix-Empty-5x5-v0", {"max_steps": 0}, "max_steps=0"),
    ],
)
def test_bad_ids_and_arguments_name_the_value(env_id: str, env_args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(env_id, **env_args)


def test_without_navix_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "navix", None)
    with pytest.raises(UsageError, match=r"pip install 'ube-rl\[grids\]'"):
        make("Navix-Empty-6x6-v0", max_steps=17)
