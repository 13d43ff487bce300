"""The frame replay against a plain list of transitions, and its edges by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ube import UsageError
from ube.deep.frames import FrameReplay

STACK = 3


def unstacked(sample: Any) -> list[tuple[Any, ...]]:
    """(observation, action, reward, continues, next observation or None) of each row, with what is too old as zero."""
    rows = []
    for frames, age, action, reward, continues, _ in zip(*sample[:6], strict=True):
        values = frames[:, 0]
        observation = tuple(int(v) if STACK - 1 - i <= age else 0 for i, v in enumerate(values[:STACK]))
        following = tuple(int(v) if STACK - 2 - i <= age else 0 for i, v in enumerate(values[1:]))
        rows.append((observation, int(action), float(reward), bool(continues), following if continues else None))
    return rows


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.sampled_from(["on", "on", "on", "life", "end", "cut"]), min_size=1, max_size=60),
    slots=st.integers(STACK + 2, 30),
    n_envs=st.integers(1, 2),
)
def test_every_sample_is_a_transition_that_happened_and_is_still_held(ends: list[str], slots: int, n_envs: int) -> None:
    replay = FrameReplay(slots * n_envs, (1,), STACK, n_envs)
    happened: list[tuple[int, int, tuple[Any, ...]]] = []  # (env, first slot needed, row)
    frame = 0
    episode: list[list[int]] = [[] for _ in range(n_envs)]
    written = [0] * n_envs
    waiting: list[Any] = [None] * n_envs
    for t, end in enumerate(ends):
        env = t % n_envs
        frame = frame % 250 + 1
        episode[env].append(frame)
        seen = tuple([0] * STACK + episode[env])[-STACK:]
        if waiting[env] is not None:
            first, row = waiting[env]
            happened.append((env, first, (*row, seen)))
            waiting[env] = None
        first = written[env] - min(len(episode[env]), STACK) + 1
        action, reward = t % 5, float(t % 7)
        replay.add(env, np.array([frame]), action, reward, end in ("on", "cut"))
        written[env] += 1
        row = (seen, action, reward, end in ("on", "cut"))
        if end == "on":
            waiting[env] = (first, row)
        elif end == "cut":
            frame = frame % 250 + 1
            replay.cut(env, np.array([frame]))
            written[env] += 1
            happened.append((env, first, (*row, tuple([0] * STACK + episode[env] + [frame])[-STACK:])))
        else:
            happened.append((env, first, (*row, None)))
        if end in ("end", "cut"):
            replay.begin(env)
            episode[env] = []
    expected = {row for env, first, row in happened if first >= written[env] - slots}
    if not expected:
        with pytest.raises(RuntimeError, match="nothing to sample"):
            replay.sample(1, np.random.default_rng(0))
        return
    sample = replay.sample(600, np.random.default_rng(0))
    got = set(unstacked(sample))
    assert got <= expected
    assert len(got) >= 0.9 * len(expected)  # 600 draws of at most 60 miss hardly any


def test_every_decision_has_a_number_of_its_own_for_ever() -> None:
    replay = FrameReplay(20, (1,), STACK, n_envs=2)
    for t in range(100):
        replay.add(t % 2, np.array([t]), 0, float(t), True)
        if t % 2 and t > 10:
            sample = replay.sample(50, np.random.default_rng(t))
            np.testing.assert_array_equal(sample.number, sample.reward)  # the t-th decision in all, whatever its slot


def test_samples_are_uniform_and_repeatable() -> None:
    replay = FrameReplay(40, (1,), STACK)
    for t in range(40):
        replay.add(0, np.array([t]), t % 4, float(t), True)
    sample = replay.sample(38_000, np.random.default_rng(3))
    counts = np.bincount(sample.reward.astype(int), minlength=40)
    assert counts[39] == 0  # the frame after it is not there yet
    assert counts[:39].min() > 850
    assert counts[:39].max() < 1120
    again = replay.sample(38_000, np.random.default_rng(3))
    np.testing.assert_array_equal(sample.frames, again.frames)


def test_a_million_steps_fit() -> None:
    assert FrameReplay.bytes_needed(1_000_000, (84, 84)) < 7.5e9
    replay = FrameReplay(100, (84, 84), 4)
    assert sum(array.nbytes for array in replay.arrays().values()) - 9 == FrameReplay.bytes_needed(100, (84, 84))
    with pytest.raises(UsageError, match="replay_size=5 is too small: at least 6"):
        FrameReplay(5, (84, 84), 4)


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.sampled_from(["on", "on", "on", "on", "life", "end", "cut"]), min_size=12, max_size=80),
    slots=st.integers(8, 40),
    n=st.integers(2, 5),
)
def test_targets_of_several_steps_are_those_of_a_plain_list(ends: list[str], slots: int, n: int) -> None:
    """Every frame and every reward is another number, so that a decision is known by its reward."""
    replay, discount = FrameReplay(slots, (1,), STACK, dtype=np.int32), 0.9
    frames: list[int] = []  # of the slots, with the last frames of episodes that were cut off
    decisions: list[tuple[int, str]] = []  # (index into frames, how it ended)
    began: list[int] = []  # for each slot, the first slot of its episode
    first = 0
    for t, end in enumerate(ends):
        replay.add(0, np.array([100 + t]), 0, float(t), end not in ("life", "end"))
        decisions.append((len(frames), end))
        frames.append(100 + t)
        began.append(first)
        if end == "cut":
            replay.cut(0, np.array([1_000 + t]))
            frames.append(1_000 + t)
            began.append(first)
        if end in ("end", "cut"):
            replay.begin(0)
            first = len(frames)
    if not any(at >= len(frames) - slots + STACK and at + 1 < len(frames) for at, _ in decisions):
        return
    sample = replay.sample(100, np.random.default_rng(0), n, discount)
    for reward, total, weight, seen, age in zip(sample.reward, *sample.ahead, strict=True):
        t, expected, steps = int(reward), 0.0, 0
        while True:
            expected += discount**steps * t
            at, end = decisions[t]
            steps += 1
            known = t + 1 < len(decisions) and (
                decisions[t + 1][0] + 1 < len(frames) or decisions[t + 1][1] in ("life", "end")
            )
            if end != "on" or steps == n or not known:
                break
            t += 1
        assert total == pytest.approx(expected)
        assert weight == pytest.approx(0.0 if end in ("life", "end") else discount**steps)
        if weight:
            stack = [frames[i] if i >= began[at + 1] else 0 for i in range(at + 2 - STACK, at + 2)]
            got = [int(v) if STACK - 1 - i <= age else 0 for i, v in enumerate(seen[:, 0])]
            assert got == stack
