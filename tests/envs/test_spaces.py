"""Spaces of Gymnasium as arrays, on hand-made observations."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from ube import UsageError
from ube.envs.spaces import WrongObservation, actions, encoding


def test_numbers_are_laid_flat_and_keep_their_bounds() -> None:
    found = encoding(spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, np.inf]]), dtype=np.float64), "X")
    assert (found.shape, found.dtype) == ((2,), np.float32)
    np.testing.assert_array_equal(found.encode([[0.5, 2.0]]), np.array([0.5, 2.0], np.float32))
    np.testing.assert_array_equal(found.high, [1.0, np.inf])


@pytest.mark.parametrize(
    ("shape", "expected", "words"),
    [
        ((64, 48, 3), (64, 48, 3), "a picture"),
        ((3, 64, 48), (64, 48, 3), "moved to the end"),
        ((64, 48), (64, 48, 1), "grey"),
        ((7, 7, 3), (7, 7, 3), "a picture"),
        ((3, 3, 3), (3, 3, 3), "a picture"),
        ((8, 8), (64,), "64 numbers"),
    ],
)
def test_pictures_have_their_channels_last(shape: tuple[int, ...], expected: tuple[int, ...], words: str) -> None:
    found = encoding(spaces.Box(0, 255, shape, np.uint8), "X")
    assert (found.shape, found.dtype) == (expected, np.uint8)
    assert words in found.words
    picture = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    encoded = found.encode(picture)
    assert encoded.shape == expected
    if shape[0] == 3 and len(shape) == 3 and shape[2] != 3:
        np.testing.assert_array_equal(encoded[..., 1], picture[1])
    else:
        np.testing.assert_array_equal(encoded.ravel(), picture.ravel())


@pytest.mark.parametrize(
    ("space", "seen", "ones"),
    [
        (spaces.Discrete(4), 2, [2]),
        (spaces.Discrete(4, start=-1), -1, [0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 4]),
        (spaces.MultiDiscrete([2, 3], start=[5, 1]), [5, 1], [0, 2]),
        (spaces.MultiBinary(3), [1, 0, 1], [0, 2]),
        (spaces.MultiBinary([2, 2]), [[0, 1], [0, 0]], [1]),
        (spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))), (1, [0, 1]), [1, 3]),
    ],
)
def test_categories_are_one_hot(space: Any, seen: Any, ones: list[int]) -> None:
    found = encoding(space, "X")
    assert found.dtype == bool
    assert np.flatnonzero(found.encode(seen)).tolist() == ones


def test_dicts_are_side_by_side_by_key_and_text_is_left_out() -> None:
    space = spaces.Dict({"b": spaces.Box(0, 255, (2, 2, 1), np.uint8), "a": spaces.Discrete(2), "say": spaces.Text(5)})
    found = encoding(space, "X")
    seen = found.encode({"a": 1, "b": np.arange(4, dtype=np.uint8).reshape(2, 2, 1), "say": "hi"})
    np.testing.assert_array_equal(seen, np.array([0, 1, 0, 1, 2, 3], np.float32))
    assert found.whole.tolist() == [False, False, True, True, True, True]
    assert "say is text, and left out" in found.words
    alone = encoding(spaces.Dict({"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "say": spaces.Text(5)}), "X")
    assert (alone.shape, alone.dtype) == ((8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), "X shows only text"),
        (spaces.Sequence(spaces.Discrete(2)), "observations of Sequence, which cannot be read"),
        (spaces.Discrete(20_000), "X has 20,000 states, more than the 10,000"),
    ],
)
def test_what_cannot_be_read(space: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        encoding(space, "X")


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (spaces.Box(0, 1, (2,)), [0.0, 0.0, 0.0]),
        (spaces.Box(0, 255, (2,), np.uint8), [0.5, 0.1]),
        (spaces.Discrete(3), 3),
        (spaces.MultiDiscrete([2, 2]), [0]),
        (spaces.MultiBinary(3), [1, 0]),
        (spaces.MultiBinary(2), [1, 2]),
    ],
)
def test_what_its_space_had_not_said(space: Any, seen: Any) -> None:
    with pytest.raises(WrongObservation):
        encoding(space, "X").encode(seen)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_combination_of_actions_has_one_number(sizes: list[int]) -> None:
    space = spaces.MultiDiscrete(sizes, start=[3] * len(sizes))
    number, decode = actions(space, "X")
    decoded = [tuple(decode(i).tolist()) for i in range(number)]
    assert len(set(decoded)) == number == np.prod(sizes)
    assert all(space.contains(np.array(one, space.dtype)) for one in decoded)


def test_other_action_spaces() -> None:
    number, decode = actions(spaces.Discrete(3, start=5), "X")
    assert (number, [int(decode(i)) for i in range(3)]) == (3, [5, 6, 7])
    number, decode = actions(spaces.MultiBinary([2, 1]), "X")
    assert [decode(i).ravel().tolist() for i in range(number)] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    with pytest.raises(UsageError, match="X has continuous actions"):
        actions(spaces.Box(0, 1, (1,)), "X")
    with pytest.raises(UsageError, match="1,048,576 combinations of actions"):
        actions(spaces.MultiBinary(20), "X")
