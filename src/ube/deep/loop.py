"""The compiled loop: environment, acting, replay and learning in one `lax.scan`, a chunk of steps at a time."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ube.deep import replay as ring
from ube.deep.config import AgentConfig
from ube.deep.learner import Choice, Knobs, Learner, LearnerState, Transition
from ube.envs.contract import Environment

Key = jax.Array
RECOUNTED = 4096
"""Decisions drawn from the replay to compute Σ anew."""


class Carry(NamedTuple):
    key: Key
    instance: Any
    env_state: Any
    observation: jax.Array
    learner: LearnerState
    replay: ring.Replay
    episode_return: jax.Array
    episode_length: jax.Array


class Log(NamedTuple):
    """Of each step of a chunk."""

    ended: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    bad: jax.Array  # the environment gave a number that is not finite
    q: jax.Array
    u: jax.Array
    nu: jax.Array
    u_loss: jax.Array


class Game(NamedTuple):
    """An evaluation in progress."""

    key: Key
    env_state: Any
    observation: jax.Array
    member: jax.Array
    zeta: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array


class Loop:
    """The functions of a run, compiled once for an environment and the shape of a config."""

    def __init__(self, env: Environment, shape: AgentConfig):
        self.env, self.config = env, shape
        self.learner = Learner(shape, env)
        self.start = jax.jit(self._start)
        self.chunk = jax.jit(self._chunk, static_argnums=(2, 3), donate_argnums=0)
        # The same over a batch of seeds.
        self.start_seeds = jax.jit(jax.vmap(self._start, (0, None)))
        self.chunk_seeds = jax.jit(self._chunk_seeds, static_argnums=(2, 3), donate_argnums=0)
        self.begin = jax.jit(self._begin)
        self.evaluate = jax.jit(self._evaluate, static_argnums=(5, 6))
        self.think = jax.jit(self.learner.act)
        self.recount = jax.jit(self._recount)

    def _start(self, key: Key, knobs: Knobs) -> Carry:
        run_key, instance_key, reset_key, learner_key = jax.random.split(key, 4)
        instance = self.env.draw(instance_key)
        env_state, observation = self.env.reset(reset_key, instance)
        learner = self.learner.init(learner_key, knobs)
        example = jax.eval_shape(lambda: self._transition(learner, observation, knobs))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), example)
        capacity = self.config.replay_size
        return Carry(
            run_key, instance, env_state, observation, learner, ring.empty_replay(zeros, capacity), jnp.zeros(()),
            jnp.zeros((), jnp.int32),
        )  # fmt: skip

    def _transition(self, learner: LearnerState, observation: jax.Array, knobs: Knobs) -> Transition:
        choice = self.learner.act(learner, observation, jax.random.key(0), knobs)
        code = choice.code if self._stores_code else jnp.zeros(0)
        zero = jnp.zeros(())
        return Transition(
            observation, choice.action, zero, zero, observation, code, code, jnp.zeros(self.config.ensemble)
        )

    @property
    def _stores_code(self) -> bool:
        return self.learner.counts is not None and self.learner.counts.stores_code

    def _chunk(self, carry: Carry, knobs: Knobs, n_updates: int, learning: bool) -> tuple[Carry, Log, dict[str, Any]]:
        """n_updates · update_period steps. Without `learning` the replay only fills."""
        period = self.config.update_period

        def step(carry: Carry, _: None) -> tuple[Carry, Log]:
            return self._step(carry, knobs)

        def round_(carry: Carry, _: None) -> tuple[Carry, tuple[Log, dict[str, Any]]]:
            carry, log = jax.lax.scan(step, carry, None, period)
            metrics: dict[str, Any] = {}
            if learning:
                key, sample_key, update_key = jax.random.split(carry.key, 3)
                batch = ring.sample(carry.replay, sample_key, self.config.batch_size)
                learner, metrics = self.learner.update(carry.learner, batch, update_key, knobs)
                carry = carry._replace(key=key, learner=learner)
            return carry, (log, metrics)

        carry, (log, metrics) = jax.lax.scan(round_, carry, None, n_updates)
        return carry, jax.tree.map(lambda leaf: leaf.reshape(-1), log), jax.tree.map(jnp.mean, metrics)

    def _chunk_seeds(self, carry: Carry, knobs: Knobs, n_updates: int, learning: bool) -> Any:
        return jax.vmap(lambda one: self._chunk(one, knobs, n_updates, learning))(carry)

    def _step(self, carry: Carry, knobs: Knobs) -> tuple[Carry, Log]:
        key, act_key, env_key, reset_key, close_key, mask_key = jax.random.split(carry.key, 6)
        learner = self.learner
        choice = learner.act(carry.learner, carry.observation, act_key, knobs)
        env_state, after = self.env.step(env_key, carry.instance, carry.env_state, choice.action)
        state, u_loss = learner.observe(carry.learner, choice, knobs)
        ended = after.terminated | after.truncated
        transition = self._row(state, carry.observation, choice, after, mask_key, knobs)
        state = learner.after_step(
            state, after.reward, after.observation, after.terminated, after.truncated, close_key, knobs
        )
        env_state, observation = jax.lax.cond(
            ended,
            lambda: self.env.reset(reset_key, carry.instance),
            lambda: (env_state, after.observation),
        )
        total, length = carry.episode_return + after.reward, carry.episode_length + 1
        finite = jnp.isfinite(after.reward) & jnp.isfinite(after.observation.astype(jnp.float32)).all()
        log = Log(
            ended, total, length, ~finite, choice.q.max(), choice.u[choice.action], choice.nu[choice.action], u_loss
        )
        carry = Carry(
            key, carry.instance, env_state, observation, state, ring.add(carry.replay, transition),
            jnp.where(ended, 0.0, total), jnp.where(ended, 0, length),
        )  # fmt: skip
        return carry, log

    def _row(
        self, state: LearnerState, observation: jax.Array, choice: Choice, after: Any, mask_key: Key, knobs: Knobs
    ) -> Transition:
        code = next_code = jnp.zeros(0)
        if self._stores_code:
            x = self.learner.scaled(after.observation)[None]
            code, next_code = choice.code, self.learner.counts.code(state.counts, x, x)[0]  # type: ignore[union-attr]
        members = self.config.ensemble
        mask = jnp.ones(members)
        if members > 1:
            mask = jax.random.bernoulli(mask_key, knobs.mask_probability, (members,)).astype(jnp.float32)
        return Transition(
            observation, choice.action, self.learner.learned_reward(after.reward, choice, knobs),
            1.0 - after.terminated, after.observation, code, next_code, mask,
        )  # fmt: skip

    def _recount(self, learner: LearnerState, replay: ring.Replay, key: Key, knobs: Knobs) -> Any:
        """Counts as if every decision had been seen with the features of now."""
        batch = ring.sample(replay, key, min(RECOUNTED, self.config.replay_size))
        codes = self.learner.codes(learner, batch.observation, knobs)
        return self.learner.counts.recounted(learner.counts, codes, batch.action)  # type: ignore[union-attr]

    def _evaluate(
        self, game: Game, learner: LearnerState, instance: Any, knobs: Knobs, epsilon: jax.Array, steps: int, own: bool
    ) -> tuple[Game, Log]:
        """Without learning, Σ frozen: greedy but for ε, or by the agent's own policy."""

        def step(game: Game, _: None) -> tuple[Game, Log]:
            key, act_key, env_key, reset_key, episode_key = jax.random.split(game.key, 5)
            state = learner._replace(member=game.member, zeta=game.zeta)
            choice = self.learner.act(state, game.observation, act_key, knobs, None if own else epsilon)
            env_state, after = self.env.step(env_key, instance, game.env_state, choice.action)
            ended = after.terminated | after.truncated
            env_state, observation = jax.lax.cond(
                ended, lambda: self.env.reset(reset_key, instance), lambda: (env_state, after.observation)
            )
            member, zeta = self.learner.draw_noise(episode_key)
            total, length = game.episode_return + after.reward, game.episode_length + 1
            log = Log(
                ended, total, length, ~jnp.isfinite(after.reward), choice.q.max(), choice.u[choice.action],
                choice.nu[choice.action], jnp.zeros(()),
            )  # fmt: skip
            game = Game(
                key, env_state, observation, jnp.where(ended, member, game.member), jnp.where(ended, zeta, game.zeta),
                jnp.where(ended, 0.0, total), jnp.where(ended, 0, length),
            )  # fmt: skip
            return game, log

        return jax.lax.scan(step, game, None, steps)

    def _begin(self, key: Key, instance: Any) -> Game:
        game_key, reset_key, noise_key = jax.random.split(key, 3)
        env_state, observation = self.env.reset(reset_key, instance)
        return Game(
            game_key,
            env_state,
            observation,
            *self.learner.draw_noise(noise_key),
            jnp.zeros(()),
            jnp.zeros((), jnp.int32),
        )


@functools.lru_cache(maxsize=64)
def compiled(env: Environment, shape: AgentConfig) -> Loop:
    return Loop(env, shape)
