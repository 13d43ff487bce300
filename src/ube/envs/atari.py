"""Atari games: the emulator of ale-py with the preprocessing of Mnih et al. 2015.

Several defaults of ale-py's vector environment change scores silently, so every choice is made here:

- its `episodic_life` restarts the whole game at each lost life: off; a lost life is reported, and the game goes on
- its `life_loss_info` reports lost lives as ends of games: off
- its `reward_clipping` hides the score: off; learners clip
- its `use_fire_reset` presses fire for the player, which Mnih et al. do not: off
- its default autoreset spends a step on the reset, with an action that does nothing: SAME_STEP does not
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from ube.envs.contract import HostedStep, Interface
from ube.errors import UsageError

PREFIX = "atari/"
REMEDY = "pip install 'ube-rl[atari]'"
GAMES = tuple(
    """alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout
    centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite gopher
    gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix
    pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders star_gunner surround
    tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon""".split()  # noqa: SIM905
)
"""The 57 of the paper, as ale-py names them."""

SIDE, STACK, FRAME_SKIP = 84, 4, 4


def rom_of(env_id: str) -> str:
    """atari/SpaceInvaders, atari/space_invaders or atari/space-invaders -> space_invaders"""
    asked = env_id.removeprefix(PREFIX)
    plain = {game.replace("_", ""): game for game in GAMES}
    found = plain.get(asked.lower().replace("_", "").replace("-", ""))
    if found is None:
        near = difflib.get_close_matches(asked.lower(), GAMES, n=3, cutoff=0.3) or ("breakout", "pong")
        raise UsageError(f"no Atari game {asked!r}: did you mean {' or '.join(PREFIX + game for game in near)}?")
    return found


class AtariGame:
    """`n_envs` games side by side. Each step is four frames of the emulator, the last two of which are maxed.

    sticky: probability that an action is ignored and the last one repeated. noops: games begin with fewer than this
    many frames of doing nothing. max_frames: a game is cut off (truncated) there.
    """

    frame_skip = FRAME_SKIP
    stack = STACK
    frame_shape = (SIDE, SIDE)

    def __init__(
        self, game: str, *, n_envs: int = 1, sticky: float = 0.0, noops: int = 30, max_frames: int = 108_000,
        full_action_space: bool = False,
    ):  # fmt: skip
        if n_envs < 1:
            raise UsageError(f"n_envs={n_envs}: at least 1")
        if not 0 <= sticky < 1:
            raise UsageError(f"sticky={sticky}: within 0..1")
        if noops < 1:
            raise UsageError(f"noops={noops}: at least 1, which is none")
        if max_frames < FRAME_SKIP:
            raise UsageError(f"max_frames={max_frames}: at least {FRAME_SKIP}, one step")
        self.emulators: Any = _vector_env(rom_of(game), n_envs, sticky, noops, max_frames, full_action_space)
        self.n_envs = n_envs
        shape = (SIDE, SIDE, STACK)
        self.interface = Interface(
            f"{PREFIX}{rom_of(game)}", shape, np.dtype(np.uint8), np.zeros(shape), np.full(shape, 255.0),
            int(self.emulators.single_action_space.n),
        )  # fmt: skip
        self._lives = np.zeros(n_envs, np.int32)

    def reset(self, seed: int) -> np.ndarray:
        """New games, which depend on the seed and on nothing that happened before. Their first frames, (E, 84, 84)."""
        observation, info = self.emulators.reset(
            seed=np.random.SeedSequence(seed).generate_state(self.n_envs).astype(np.int64) >> 1
        )
        self._lives = info["lives"].copy()
        return observation[:, -1].copy()

    def step(self, actions: np.ndarray) -> HostedStep:
        observation, reward, terminated, truncated, info = self.emulators.step(np.asarray(actions, np.int32))
        ended = terminated | truncated
        frame = observation[:, -1].copy()
        last = frame
        if ended.any():
            last = np.where(ended[:, None, None], info["final_obs"][:, -1], frame)
        lost = ~ended & (info["lives"] < self._lives)
        self._lives = info["lives"].copy()
        return HostedStep(frame, last, reward.astype(np.float64), terminated.copy(), truncated & ~terminated, lost)

    def close(self) -> None:
        self.emulators.close()


def _vector_env(rom: str, n_envs: int, sticky: float, noops: int, max_frames: int, full_action_space: bool) -> Any:
    try:
        from ale_py.vector_env import AtariVectorEnv
        from gymnasium.vector import AutoresetMode
    except ImportError as error:
        raise UsageError(f"{PREFIX}{rom} needs ale-py: {REMEDY}") from error
    return AtariVectorEnv(
        rom, n_envs, max_num_frames_per_episode=max_frames, repeat_action_probability=sticky,
        full_action_space=full_action_space, autoreset_mode=AutoresetMode.SAME_STEP, img_height=SIDE, img_width=SIDE,
        grayscale=True, stack_num=1, frameskip=FRAME_SKIP, maxpool=True, noop_max=noops, episodic_life=False,
        life_loss_info=False, reward_clipping=False, use_fire_reset=False,
    )  # fmt: skip
