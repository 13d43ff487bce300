"""The real emulator: every default of ale-py that changes scores silently, and the timeline of frames."""

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")

from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from ube import UsageError
from ube.envs import HostedEnvironment, make
from ube.envs.atari import GAMES, AtariGames, rom_of

PLAIN = {"reward_clipping": False, "use_fire_reset": False, "autoreset_mode": AutoresetMode.SAME_STEP}


def opened(env_id: str, n_envs: int = 1, **args: Any) -> AtariGames:
    env = make(env_id, **args)
    assert isinstance(env, HostedEnvironment)
    return env.open(n_envs)  # type: ignore[return-value]


def random_play(game: AtariGames, steps: int, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    return [game.step(rng.integers(0, game.emulators.single_action_space.n, game.n_envs)) for _ in range(steps)]


def test_names() -> None:
    assert len(set(GAMES)) == 57
    assert [rom_of(f"atari/{name}") for name in ("SpaceInvaders", "space_invaders", "Space-Invaders")] == [
        "space_invaders"
    ] * 3
    with pytest.raises(UsageError, match="no Atari game 'Breakot': did you mean atari/breakout"):
        rom_of("atari/Breakot")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"sticky": 1.0}, "sticky=1.0"),
        ({"noops": 0}, "noops=0"),
        ({"max_frames": 3}, "max_frames=3"),
        ({"life_loss": 1}, "life_loss=1: it must be True or False"),
        ({"stick": 0.1}, "no argument 'stick'; it takes sticky"),
    ],
)
def test_bad_arguments(args: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opened("atari/pong", **args)


def test_the_score_is_not_clipped() -> None:
    game = opened("atari/ms_pacman")
    game.reset(0)
    assert max(step.reward[0] for step in random_play(game, 100)) >= 10


def test_a_lost_life_is_reported_and_the_game_goes_on() -> None:
    game = opened("atari/Breakout")
    game.reset(0)
    steps = random_play(game, 3_000)
    ends = np.flatnonzero([step.terminated[0] for step in steps])
    assert len(ends) > 3
    lost = np.array([step.life_lost[0] for step in steps])
    for start, end in itertools.pairwise(ends):
        assert lost[start + 1 : end].sum() == 4  # of five lives; the fifth ends the game
        assert not lost[end]


def test_a_lost_life_can_be_ignored() -> None:
    game = opened("atari/breakout", life_loss=False)
    game.reset(0)
    assert not any(step.life_lost[0] for step in random_play(game, 500))


def test_what_the_learner_is_told() -> None:
    env = make("atari/Breakout")
    assert (env.name, env.observation_shape, env.n_actions, env.defaults["reward_clip"]) == (
        "atari/breakout",
        (84, 84, 4),
        4,
        1.0,
    )
    assert make("atari/breakout", full_action_space=True).n_actions == 18


def test_nobody_presses_fire() -> None:
    """Breakout serves no ball until fire is pressed: doing nothing, nothing moves."""
    game = opened("atari/breakout")
    frame = game.reset(0)
    for _ in range(50):
        np.testing.assert_array_equal(game.step(np.zeros(1, int)).frame, frame)


def test_a_game_is_cut_off_by_its_frames_and_not_ended() -> None:
    game = opened("atari/pong", max_frames=400, noops=1)
    game.reset(0)
    steps = random_play(game, 250)
    assert np.flatnonzero([step.truncated[0] for step in steps]).tolist() == [99, 199]
    assert not any(step.terminated[0] or step.life_lost[0] for step in steps)


@pytest.mark.parametrize("game", ["space_invaders", "pong"])
def test_the_last_frame_of_a_game_that_is_cut_off_is_the_one_an_uncut_game_shows(game: str) -> None:
    """ale-py's own cut falls between the frames of a step, and shows the step before through the last one."""
    cut, uncut = opened(f"atari/{game}", n_envs=2, max_frames=300), opened(f"atari/{game}", n_envs=2)
    np.testing.assert_array_equal(cut.reset(4), uncut.reset(4))
    for number, (mine, theirs) in enumerate(zip(random_play(cut, 76), random_play(uncut, 76), strict=True), 1):
        assert mine.truncated.tolist() == [number == 75] * 2
        if number <= 75:
            np.testing.assert_array_equal(mine.last_frame, theirs.frame)
            assert (mine.reward == theirs.reward).all()
        assert np.array_equal(mine.frame, theirs.frame) == (number < 75)


def test_games_side_by_side_are_cut_off_each_after_its_own_frames() -> None:
    """In Breakout some games end before. A second play of the same actions, as after a stop, is the same."""
    games, again = (opened("atari/breakout", n_envs=3, max_frames=1_000) for _ in range(2))
    np.testing.assert_array_equal(games.reset(2), again.reset(2))
    length, cut_alone, ended_first = np.zeros(3, int), 0, 0
    for step, same in zip(random_play(games, 1_500), random_play(again, 1_500), strict=True):
        for mine, theirs in zip(step, same, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        length += 1
        np.testing.assert_array_equal(step.truncated, (length == 250) & ~step.terminated)
        cut_alone += 0 < step.truncated.sum() < 3
        ended_first += step.terminated.any()
        ended = step.truncated | step.terminated
        np.testing.assert_array_equal(step.frame[~ended], step.last_frame[~ended])
        length[ended] = 0
    assert min(cut_alone, ended_first) >= 2


def test_games_start_with_up_to_29_frames_of_nothing() -> None:
    game = opened("atari/pong")
    starts = set()
    for seed in range(40):
        game.reset(seed)
        starts.add(int(game.emulators.step(np.zeros(1, np.int32))[4]["episode_frame_number"][0]) - 4)
    assert 0 <= min(starts) < 5 < 24 < max(starts) <= 29


def test_the_timeline_of_frames_is_that_of_stacks_made_by_the_emulator() -> None:
    """Frames stacked by hand, older ones zero after a reset, equal ale-py's own stacks, and no step is a dummy."""
    game, seed = opened("atari/breakout"), 5
    stacks = AtariVectorEnv("breakout", 1, stack_num=4, **PLAIN)
    start, _ = stacks.reset(seed=np.random.SeedSequence(seed).generate_state(1).astype(np.int64) >> 1)
    stack = np.zeros((4, 84, 84), np.uint8)
    stack[-1] = game.reset(seed)[0, ..., 0]
    np.testing.assert_array_equal(stack, start[0])
    rng, n_ended = np.random.default_rng(0), 0
    for _ in range(600):
        action = rng.integers(0, 4, 1)
        step = game.step(action)
        observation, reward, terminated, _, info = stacks.step(action)
        last = np.concatenate([stack[1:], step.last_frame[..., 0]])
        assert (step.reward[0], step.terminated[0]) == (reward[0], terminated[0])
        if terminated[0]:
            np.testing.assert_array_equal(last, info["final_obs"][0])
            stack, n_ended = np.zeros_like(stack), n_ended + 1
            stack[-1] = step.frame[0, ..., 0]
        else:
            stack = last
        np.testing.assert_array_equal(stack, observation[0])
    assert n_ended >= 2


def test_the_score_of_a_game_is_the_sum_that_the_emulator_itself_pays() -> None:
    """Against ale-py's plain interface, driven frame by frame with the same actions."""
    from ale_py import ALEInterface, roms

    game = opened("atari/space_invaders", noops=1)
    game.reset(3)
    actions = np.random.default_rng(1).integers(0, 6, 3_000)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("space_invaders"))
    ale.reset_game()
    legal = ale.getMinimalActionSet()
    mine = theirs = 0.0
    for action in actions:
        step = game.step(np.array([action]))
        mine += step.reward[0]
        theirs += sum(ale.act(legal[action]) for _ in range(4))
        assert ale.game_over() == step.terminated[0]
        if step.terminated[0]:
            break
    assert step.terminated[0]
    assert mine == theirs > 0


def test_games_depend_on_the_seed_alone() -> None:
    one, two = opened("atari/space_invaders", sticky=0.25), opened("atari/space_invaders", sticky=0.25, n_envs=2)

    def played(game: AtariGames, seed: int) -> np.ndarray:
        first = game.reset(seed)
        rng = np.random.default_rng(9)
        actions = rng.integers(0, 6, 150)
        return np.stack([first, *(game.step(np.full(game.n_envs, action)).frame for action in actions)])

    first = played(one, 1)
    random_play(one, 77)
    np.testing.assert_array_equal(played(one, 1), first)  # whatever was played before
    pair = played(two, 1)
    np.testing.assert_array_equal(pair[:, 0], first[:, 0])
    assert (pair[:, 1] != pair[:, 0]).any()
    assert (played(one, 2) != first).any()
