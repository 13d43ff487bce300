"""The key-and-door grid: a plan found by search in its own description reaches the goal, and nothing else pays."""

import jax
import numpy as np
import pytest

from ube import UsageError
from ube.envs import Environment, make

UP, DOWN, LEFT, RIGHT, USE = range(5)


def walk(start: tuple[int, int], goal: tuple[int, int]) -> list[int]:
    """Along the row first when leaving the wall's column, else along the column."""
    rows, columns = goal[0] - start[0], goal[1] - start[1]
    return [DOWN if rows > 0 else UP] * abs(rows) + [RIGHT if columns > 0 else LEFT] * abs(columns)


def play(
    env: Environment, instance: np.ndarray, actions: list[int]
) -> tuple[list[float], list[bool], list[np.ndarray]]:
    state, observation = env.reset(jax.random.key(0), instance)
    rewards, ended, seen = [], [], [np.asarray(observation)]
    step = jax.jit(env.step)
    for action in actions:
        state, after = step(jax.random.key(0), instance, state, np.int32(action))
        rewards.append(float(after.reward))
        ended.append(bool(after.terminated))
        seen.append(np.asarray(after.observation))
    return rewards, ended, seen


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("observation", ["dictionary", "one-hot", "image"])
def test_key_then_door_then_goal(size: int, observation: str) -> None:
    env = make("KeyDoor-v0", size=size, observation=observation)
    assert isinstance(env, Environment)
    for seed in range(6):
        instance = np.asarray(env.draw(jax.random.key(seed)))
        start, key, door, goal = (tuple(int(x) for x in place) for place in instance)
        before, behind = (door[0], door[1] - 1), (door[0], door[1] + 1)
        assert start != key
        assert start[1] < size // 2
        assert key[1] < size // 2
        assert door[1] == size // 2
        assert goal[1] > size // 2
        plan = [*walk(start, key), USE, *walk(key, before), USE, RIGHT, RIGHT, *walk(behind, goal)]
        rewards, ended, seen = play(env, instance, plan)
        arrival = ended.index(True)
        assert rewards[arrival] == 1.0
        assert sum(rewards[:arrival]) == 0.0
        assert plan.index(USE) < arrival
        if observation == "dictionary":
            bits = np.array([one[-2:] for one in seen])
            assert bits[0].tolist() == [False, False]
            assert bits[arrival + 1].tolist() == [True, True]
            assert all(one[:-2].sum() == 1 for one in seen)
        elif observation == "image":
            first, last = seen[0], seen[arrival + 1]
            assert first.sum() == 4 + size - 1  # four things, and a wall with a gap
            assert [first[(*place, plane)] for place, plane in ((start, 0), (key, 1), (door, 3), (goal, 4))] == [1] * 4
            assert first[:, size // 2, 2].sum() == size - 1
            assert not first[(*door, 2)]
            assert last[(*goal, 0)]
            assert last[0, size - 1, 1]  # the key, once it was taken
            assert not last[..., 3].any()  # the door is open
        else:
            assert all(one.sum() == 1 for one in seen)
            assert [int(np.argmax(one)) // size**2 for one in (seen[0], seen[arrival + 1])] == [0, 2]


def test_new_layouts_are_drawn_for_every_episode() -> None:
    env = make("KeyDoor-v0", size=6, observation="image", new_layouts=True)
    same = make("KeyDoor-v0", size=6, observation="image")
    assert isinstance(env, Environment)
    assert isinstance(same, Environment)

    def first_images(env: Environment) -> set[bytes]:
        instance = env.draw(jax.random.key(0))
        return {np.asarray(env.reset(jax.random.key(seed), instance)[1]).tobytes() for seed in range(8)}

    assert len(first_images(env)) == 8
    assert len(first_images(same)) == 1


def test_without_the_key_the_door_stays_locked() -> None:
    env = make("KeyDoor-v0", size=7)
    assert isinstance(env, Environment)
    instance = np.array([[3, 0], [0, 0], [3, 3], [3, 4]])
    rewards, ended, seen = play(env, instance, [RIGHT, RIGHT, USE, RIGHT, RIGHT, RIGHT])
    assert not any(ended)
    assert int(np.argmax(seen[-1][:-2])) == 3 * 7 + 2  # stands before the door
    rewards, ended, _ = play(
        env, instance, [USE, RIGHT, RIGHT, UP, RIGHT]
    )  # there is no key here, and a wall above the door
    assert sum(rewards) == 0


def test_an_episode_is_cut_off_after_its_steps() -> None:
    env = make("KeyDoor-v0", size=5, max_steps=3)
    assert isinstance(env, Environment)
    instance = env.draw(jax.random.key(0))
    state, _ = env.reset(jax.random.key(0), instance)
    cut = []
    for _ in range(3):
        state, after = env.step(jax.random.key(0), instance, state, np.int32(USE))
        cut.append((bool(after.terminated), bool(after.truncated)))
    assert cut == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"size": 4}, "size=4"),
        ({"observation": "picture"}, "observation='picture': choose one of dictionary, one-hot, image"),
        (
            {"new_layouts": True},
            "new_layouts=True, observation='dictionary': only observation='image' shows the layout",
        ),
    ],
)
def test_bad_arguments(args: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("KeyDoor-v0", **args)
