"""Atari games: the emulator of ale-py with the preprocessing of Mnih et al. 2015.

Several defaults of ale-py's vector environment change scores silently, so every choice is made here:

- its `episodic_life` restarts the whole game at each lost life: off; a lost life is reported, and the game goes on
- its `life_loss_info` reports lost lives as ends of games: off
- its `reward_clipping` hides the score: off; learners clip
- its `use_fire_reset` presses fire for the player, which Mnih et al. do not: off
- its default autoreset spends a step on the reset, with an action that does nothing: SAME_STEP does not
- its `max_num_frames_per_episode` cuts a game off between the frames of a step, and shows the screen of the step before
  through the last one: games are cut here, and its own limit is never reached
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from ube.envs.arguments import flag, number, whole
from ube.envs.contract import HostedEnvironment, HostedStep
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
EVALUATE_EVERY, EVALUATION_STEPS = 1_000_000 // FRAME_SKIP, 500_000 // FRAME_SKIP


def rom_of(env_id: str) -> str:
    """atari/SpaceInvaders, atari/space_invaders or atari/space-invaders -> space_invaders"""
    asked = env_id.removeprefix(PREFIX)
    plain = {game.replace("_", ""): game for game in GAMES}
    found = plain.get(asked.lower().replace("_", "").replace("-", ""))
    if found is None:
        near = difflib.get_close_matches(asked.lower(), GAMES, n=3, cutoff=0.3) or ("breakout", "pong")
        raise UsageError(f"no Atari game {asked!r}: did you mean {' or '.join(PREFIX + game for game in near)}?")
    return found


def atari(
    env_id: str, *, sticky: float = 0.0, noops: int = 30, life_loss: bool = True, max_frames: int = 108_000,
    full_action_space: bool = False,
) -> HostedEnvironment:  # fmt: skip
    """Each step is four frames of the emulator, the last two of which are maxed.

    sticky: probability that an action is ignored and the last one repeated. noops: games begin with fewer than this
    many frames of doing nothing. life_loss: a lost life ends the return that is learned, but not the game. max_frames:
    a game is cut off (truncated) after so many, those of doing nothing at its start not counted.
    """
    rom = rom_of(env_id)
    if not 0 <= number("sticky", sticky) < 1:
        raise UsageError(f"sticky={sticky}: within 0..1, and not 1")
    whole("noops", noops, 1)
    whole("max_frames", max_frames, FRAME_SKIP)
    flag("life_loss", life_loss)
    flag("full_action_space", full_action_space)
    rules: dict[str, Any] = dict(
        repeat_action_probability=sticky, noop_max=noops, full_action_space=full_action_space,
        max_num_frames_per_episode=min(max_frames + noops + FRAME_SKIP, 2**31 - 1),
    )  # fmt: skip
    shape = (SIDE, SIDE, STACK)
    longest = max_frames // FRAME_SKIP

    def games(n_envs: int) -> AtariGames:
        return AtariGames(_vector_env(rom, n_envs, **rules), n_envs, life_loss, longest)

    def screens(seed: int, actions: np.ndarray) -> np.ndarray:
        emulator = _vector_env(rom, 1, **rules, grayscale=False, img_height=210, img_width=160)
        seen = [emulator.reset(seed=_seeds(seed, 1))[0]]
        seen += [emulator.step(np.array([action], np.int32))[0] for action in actions[:-1]]
        emulator.close()
        return np.stack(seen)[:, 0, -1]

    one = games(1)
    n_actions = int(one.emulators.single_action_space.n)
    one.close()
    return HostedEnvironment(
        f"{PREFIX}{rom}", shape, np.dtype(np.uint8), np.zeros(shape), np.full(shape, 255.0), n_actions, games,
        (SIDE, SIDE, 1), STACK, FRAME_SKIP, screens, longest, EVALUATE_EVERY, EVALUATION_STEPS, defaults={"reward_clip": 1.0},
    )  # fmt: skip


class AtariGames:
    def __init__(self, emulators: Any, n_envs: int, life_loss: bool, longest: int):
        self.emulators, self.n_envs, self.life_loss, self.longest = emulators, n_envs, life_loss, longest
        self._lives = np.zeros(n_envs, np.int32)
        self._decisions = np.zeros(n_envs, np.int64)
        """Of each game so far."""

    def reset(self, seed: int) -> np.ndarray:
        observation, info = self.emulators.reset(seed=_seeds(seed, self.n_envs))
        self._lives = info["lives"].copy()
        self._decisions[:] = 0
        return observation[:, -1, ..., None].copy()

    def step(self, actions: np.ndarray) -> HostedStep:
        observation, reward, terminated, _, info = self.emulators.step(np.asarray(actions, np.int32))
        self._decisions += 1
        truncated = ~terminated & (self._decisions >= self.longest)
        frame = last = observation[:, -1, ..., None].copy()
        if terminated.any():
            last = np.where(terminated[:, None, None, None], info["final_obs"][:, -1, ..., None], frame)
        lost = self.life_loss & ~(terminated | truncated) & (info["lives"] < self._lives)
        self._lives = info["lives"].copy()
        self._decisions[terminated] = 0
        if truncated.any():
            frame = frame.copy()
        for env in np.flatnonzero(truncated).tolist():
            frame[env] = self.restart(env)
        return HostedStep(frame, last, reward.astype(np.float64), terminated.copy(), truncated, lost)

    def restart(self, env: int) -> np.ndarray:
        observation, info = self.emulators.reset(options={"reset_mask": np.arange(self.n_envs) == env})
        self._lives[env], self._decisions[env] = info["lives"][env], 0
        return observation[env, -1, ..., None].copy()

    def close(self) -> None:
        self.emulators.close()


def _seeds(seed: int, n_envs: int) -> np.ndarray:
    """Of each game; ale-py takes those below 2³¹."""
    return np.random.SeedSequence(seed).generate_state(n_envs).astype(np.int64) >> 1


def _vector_env(rom: str, n_envs: int, **choices: Any) -> Any:
    try:
        from ale_py.vector_env import AtariVectorEnv
        from gymnasium.vector import AutoresetMode
    except ImportError as error:
        raise UsageError(f"{PREFIX}{rom} needs ale-py: {REMEDY}") from error
    ours: dict[str, Any] = dict(
        autoreset_mode=AutoresetMode.SAME_STEP, img_height=SIDE, img_width=SIDE, grayscale=True, stack_num=1,
        frameskip=FRAME_SKIP, maxpool=True, episodic_life=False, life_loss_info=False, reward_clipping=False,
        use_fire_reset=False,
    )  # fmt: skip
    return AtariVectorEnv(rom, n_envs, **(ours | choices))
