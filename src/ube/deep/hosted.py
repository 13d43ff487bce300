"""The loop for environments outside of JAX: acting, emulation and the target pass overlap the gradient, repeatably.

A round is `update_period` decisions and the updates they ask for. The gradient of a round starts first, on a thread of its
own, with a batch that was drawn before the round; meanwhile the round is played with the networks as they were before, and
the next batch is drawn with its targets. Nothing depends on which of the two is done first.

All randomness is a function of the seed and of counters, so counters are all there is to save of it. The emulator cannot be
saved: it is started anew from its seed, and played the same actions again.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ube.deep.config import AgentConfig
from ube.deep.learner import Ahead, Learner, LearnerState, Targets, Transition
from ube.deep.settings import Knobs
from ube.envs.contract import HostedEnvironment

Key = jax.Array
Fields = dict[str, Any]
OF_EACH = ("stream", "awaited", "member", "zeta", "greedy_debt", "episode_return", "episode_weight")
"""Fields of LearnerState that each environment has its own of."""


class Heard(NamedTuple):
    """What the learner hears of the last step, (E,)."""

    reward: np.ndarray
    u_at_end: np.ndarray
    ended: np.ndarray  # the return ends: the episode did, or a life was lost
    cut: np.ndarray  # it would have gone on


class Decision(NamedTuple):
    action: jax.Array  # (E,)
    bonus: jax.Array  # (E,) on top of the clipped reward
    noted: jax.Array  # (E, len(MEANS) + len(LARGEST) + 1): the last is the loss of the u-network
    code: jax.Array  # (E, D) empty where no one will ask


class HostedLoop:
    """The functions of a run, compiled once for an environment and the shape of a config.

    LearnerState is held as two dicts of its fields: `trained`, all that updates read or change, and `lived`, which steps
    change.
    """

    def __init__(self, env: HostedEnvironment, shape: AgentConfig, n_envs: int):
        self.env, self.config, self.n_envs = env, shape, n_envs
        self.learner = Learner(shape, env)
        self.start = jax.jit(self._start)
        self.step = jax.jit(self._step, donate_argnums=1)
        self.u_at_end = jax.jit(self._u_at_end)
        self.targets = jax.jit(self._targets)
        self.improve = jax.jit(self._improve)
        self.think = jax.jit(self.learner.act)
        self.think_each = jax.jit(self._think_each, static_argnums=7)
        self.draw_noise = jax.jit(jax.vmap(self.learner.draw_noise))
        self.codes = jax.jit(self._codes)

    def _start(self, key: Key, knobs: Knobs) -> tuple[Fields, Fields]:
        state = self.learner.init(key, knobs)
        each = {name: getattr(state, name) for name in OF_EACH}
        each = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.n_envs), each)
        noise_key = jax.random.fold_in(key, 1)
        each["member"], each["zeta"] = jax.vmap(self.learner.draw_noise)(jax.random.split(noise_key, self.n_envs))
        return self.split(state._replace(**each))

    def split(self, state: LearnerState) -> tuple[Fields, Fields]:
        fields = state._asdict()
        return {name: fields.pop(name) for name in (*self.learner.improved, *self.learner.fixed)}, fields

    def of_first(self, trained: Fields, lived: Fields) -> LearnerState:
        """The learner as the first environment has it."""
        own = {name: jax.tree.map(lambda leaf: leaf[0], lived[name]) for name in OF_EACH}
        return LearnerState(**trained, **(lived | own))

    # ---------------------------------------------------------------- a step

    def _step(
        self, trained: Fields, lived: Fields, heard: Heard, observations: jax.Array, key: Key, count: Any, knobs: Knobs,
        idle: tuple[Any, Any] | None = None,
    ) -> tuple[Fields, Decision]:  # fmt: skip
        """Hears of the last step, decides, and takes the decisions in, those of one environment after the other.

        idle: which environments only began anew in the last step, and which will in this one; there nothing is heard or taken
        in. None where that never happens.
        """
        shared = {name: leaf for name, leaf in lived.items() if name not in OF_EACH}
        own = {name: lived[name] for name in OF_EACH}
        keys = jax.random.split(jax.random.fold_in(key, count), (self.n_envs, 2))

        was_idle, is_idle = idle or (None, None)

        def decide(own: Fields, heard: Any, observation: jax.Array, keys: Key, idle: Any) -> Any:
            before = state = LearnerState(**trained, **shared, **own)
            state = self.learner.after_step(state, heard.reward, heard.u_at_end, heard.ended, heard.cut, keys[0], knobs)
            state = _unless(idle, state, before)
            choice = self.learner.act(state, observation, keys[1], knobs)
            return {name: getattr(state, name) for name in OF_EACH}, (state.largest_return, state.reward_range), choice

        own, (largest, rewards), choices = self._each(decide)(own, heard, joined(observations), keys, was_idle)
        shared["largest_return"] = largest.max()
        shared["reward_range"] = jnp.stack([rewards[:, 0].min(), rewards[:, 1].max()])

        def take_in(shared: Fields, of_one: Any) -> tuple[Fields, Any]:
            own, choice, idle = of_one
            if self.learner.counts and self.n_envs > 1:  # Σ has changed since
                gain, _ = self.learner.counts.look(shared["counts"], choice.code, choice.action)
                choice = choice._replace(gain=gain)
            before = LearnerState(**trained, **shared, **own)
            state, u_loss = self.learner.observe(before, choice, knobs)
            state = _unless(idle, state, before)
            bonus = self.learner.learned_reward(jnp.zeros(()), choice, knobs)
            noted = jnp.append(self.learner.noted(before, choice, knobs), u_loss)
            code = choice.code if self.learner.keeps_codes else jnp.zeros(0)
            fields = state._asdict()
            own = {name: fields[name] for name in OF_EACH}
            return {name: fields[name] for name in shared}, (own, Decision(choice.action, bonus, noted, code))

        shared, (own, decision) = jax.lax.scan(take_in, shared, (own, choices, is_idle))
        return shared | own, decision

    def _each(self, function: Any) -> Any:
        """Over environments, without what `vmap` costs where there is only one."""
        if self.n_envs > 1:
            return jax.vmap(function)

        def alone(*args: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], function(*jax.tree.map(lambda leaf: leaf[0], args)))

        return alone

    def _u_at_end(
        self, trained: Fields, lived: Fields, observations: jax.Array, key: Key, count: Any, knobs: Knobs
    ) -> jax.Array:
        keys = jax.random.split(jax.random.fold_in(key, count), self.n_envs)
        state = LearnerState(**trained, **lived)

        def one(member: jax.Array, zeta: jax.Array, observation: jax.Array, key: Key) -> jax.Array:
            return self.learner.u_at_end(state._replace(member=member, zeta=zeta), observation, key, knobs)

        return jax.vmap(one)(lived["member"], lived["zeta"], joined(observations), keys)

    # ---------------------------------------------------------------- an update

    def _targets(
        self, trained: Fields, lived: Fields, sample: Any, key: Key, count: Any, knobs: Knobs
    ) -> tuple[Transition, Targets]:
        """The batch of a `frames.Sample`, and what it should become by the policy as the first environment has it."""
        mask_key, target_key = jax.random.split(key)
        observation, following = stacked(sample.frames, sample.age, self.env.stack)
        code = next_code = jnp.zeros((len(sample.action), 0))
        counts = self.learner.counts
        if counts is not None and counts.stores_code:
            x, next_x = self.learner.scaled(observation), self.learner.scaled(following)
            code, next_code = counts.code(lived["counts"], x, x), counts.code(lived["counts"], next_x, next_x)

        def mask_of(number: jax.Array) -> jax.Array:
            return self.learner.values.draw_mask(jax.random.fold_in(mask_key, number), knobs)

        mask = jax.vmap(mask_of)(sample.number)
        batch = Transition(
            observation, sample.action, sample.reward, sample.continues, following, code, next_code, mask
        )
        state, ahead = self.of_first(trained, lived), None
        if sample.ahead is not None:
            reward, discount, frames, age = sample.ahead
            ahead = Ahead(reward, discount, stacked_at(frames, age))
        targets = self.learner.targets(state, batch, ahead, jax.random.fold_in(target_key, count), knobs)
        done_with = jnp.zeros(0)
        return batch._replace(next_observation=done_with, code=done_with, next_code=done_with), targets

    def _improve(
        self, trained: Fields, batch: Transition, targets: Targets, knobs: Knobs
    ) -> tuple[Fields, dict[str, jax.Array]]:
        """What is new of `trained`."""
        others: Fields = dict.fromkeys(LearnerState._fields, ())
        state, metrics = self.learner.improve(LearnerState(**(others | trained)), batch, targets, knobs)
        return {name: getattr(state, name) for name in self.learner.improved}, metrics

    def copied(self, trained: Fields, updates: int) -> Fields:
        """With target networks that are the networks themselves, if it is time: arrays never change, so nothing is copied.

        updates: how many were made, known without waiting for them.
        """
        targets = {}
        if updates % self.config.target_period == 0:
            targets["values"] = trained["values"]._replace(target=trained["values"].params)
        if self.learner.u_from_replay and updates % self.config.u_target_period == 0:
            targets["u_target"] = trained["u"]
        return trained | targets

    def _codes(self, trained: Fields, lived: Fields, sample: Any, knobs: Knobs) -> jax.Array:
        """Of a `frames.Sample`, with the features of now."""
        observation, _ = stacked(sample.frames, sample.age, self.env.stack)
        return self.learner.codes(LearnerState(**trained, **lived), observation, knobs)

    # ---------------------------------------------------------------- evaluation

    def _think_each(
        self, state: LearnerState, member: jax.Array, zeta: jax.Array, observations: jax.Array, key: Key, count: Any,
        knobs: Knobs, own: bool, epsilon: Any,
    ) -> Any:  # fmt: skip
        """What the agent does in each of several games, without learning."""
        keys = jax.random.split(jax.random.fold_in(key, count), len(observations))

        def one(member: jax.Array, zeta: jax.Array, observation: jax.Array, key: Key) -> Any:
            playing = state._replace(member=member, zeta=zeta)
            return self.learner.act(playing, observation, key, knobs, None if own else epsilon)

        return jax.vmap(one)(member, zeta, joined(observations), keys)


def _unless(idle: jax.Array | None, after: LearnerState, before: LearnerState) -> LearnerState:
    if idle is None:
        return after
    return jax.tree.map(lambda new, old: jnp.where(idle, old, new), after, before)


def joined(frames: jax.Array) -> jax.Array:
    """(B, stack, …, C) -> (B, …, stack·C)"""
    last = jnp.moveaxis(frames, 1, -2)
    return last.reshape(*last.shape[:-2], -1)


def stacked(frames: jax.Array, age: jax.Array, stack: int) -> tuple[jax.Array, jax.Array]:
    """(B, stack + 1, …, C) -> the observation and the next one, (B, …, stack·C); frames of other episodes are zero."""
    return stacked_at(frames[:, :stack], age), stacked_at(frames[:, 1:], age + 1)


def stacked_at(frames: jax.Array, age: jax.Array) -> jax.Array:
    """(B, stack, …, C) -> the observation (B, …, stack·C) at the last frame, the age-th of its episode."""
    back = jnp.arange(frames.shape[1] - 1, -1, -1)  # steps before the newest
    mask = back <= age[:, None]
    return joined(jnp.where(mask.reshape(*mask.shape, *[1] * (frames.ndim - 2)), frames, 0))


@functools.lru_cache(maxsize=16)
def compiled_hosted(env: HostedEnvironment, shape: AgentConfig, n_envs: int) -> HostedLoop:
    return HostedLoop(env, shape, n_envs)
