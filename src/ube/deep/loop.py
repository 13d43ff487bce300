"""The compiled loop: environment, acting, replay and learning in one `lax.scan`, a chunk of steps at a time."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ube.deep import replay as ring
from ube.deep.config import AgentConfig
from ube.deep.learner import LARGEST, MEANS, Ahead, Choice, Learner, LearnerState, Transition
from ube.deep.settings import Knobs
from ube.envs.contract import Environment, Step

Key = jax.Array
RECOUNTED = 4096
"""Decisions drawn from the replay to compute Σ anew."""


class Place(NamedTuple):
    """Where an episode stands."""

    env_state: Any
    observation: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array


class Carry(NamedTuple):
    key: Key
    instance: Any
    place: Place
    learner: LearnerState
    replay: ring.Replay


class Log(NamedTuple):
    """Of each step of a chunk."""

    ended: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    bad: jax.Array  # the environment gave a number that is not finite
    noted: jax.Array  # (len(MEANS) + len(LARGEST),); empty in evaluations
    u_loss: jax.Array
    action: jax.Array
    code: jax.Array  # empty where no one will ask

    def column(self, name: str) -> jax.Array:
        """A metric of MEANS or LARGEST at every step."""
        return self.noted[..., (*MEANS, *LARGEST).index(name)]


class Game(NamedTuple):
    """An evaluation in progress."""

    key: Key
    place: Place
    member: jax.Array
    zeta: jax.Array


class Seen(NamedTuple):
    """Of a decision without learning, for those who look."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    q: jax.Array  # (A,)
    u: jax.Array  # (A,)
    nu: jax.Array  # (A,)
    terminated: jax.Array
    truncated: jax.Array
    reached: jax.Array  # the observation that followed, also at an end
    member: jax.Array
    zeta: jax.Array


class Loop:
    """The functions of a run, compiled once for an environment and the shape of a config."""

    def __init__(self, env: Environment, shape: AgentConfig):
        self.env, self.config = env, shape
        self.learner = Learner(shape, env)
        self.start = jax.jit(self._start)
        # The same over a batch of seeds.
        self.start_seeds = jax.jit(jax.vmap(self._start, (0, None)))
        self.chunk: Any = jax.jit(self._chunk, static_argnums=(2, 3), donate_argnums=0)
        self.chunk_seeds = jax.jit(self._chunk_seeds, static_argnums=(2, 3), donate_argnums=0)
        self.begin = jax.jit(self._begin)
        self.evaluate = jax.jit(self._evaluate, static_argnums=(5, 6))
        self.watch = jax.jit(self._watch, static_argnums=(5, 6))
        self.think = jax.jit(self.learner.act)
        self.drawn_codes = jax.jit(self._drawn_codes)

    def _start(self, key: Key, knobs: Knobs) -> Carry:
        run_key, instance_key, reset_key, learner_key = jax.random.split(key, 4)
        instance = self.env.draw(instance_key)
        place = self._place(reset_key, instance)
        learner = self.learner.init(learner_key, knobs)

        def first_row() -> Transition:
            choice = self.learner.act(learner, place.observation, key, knobs)
            _, after = self.env.step(key, instance, place.env_state, choice.action)
            return self._row(learner, place.observation, choice, after, key, knobs)

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(first_row))
        return Carry(run_key, instance, place, learner, ring.empty_replay(zeros, self.config.replay_size))

    def _place(self, key: Key, instance: Any) -> Place:
        return Place(*self.env.reset(key, instance), jnp.zeros(()), jnp.zeros((), jnp.int32))

    # ---------------------------------------------------------------- training

    def _chunk(self, carry: Carry, knobs: Knobs, n_updates: int, learning: bool) -> tuple[Carry, Log, dict[str, Any]]:
        """n_updates · update_period steps. Without `learning` the replay only fills."""

        def body(carry: Carry, _: None) -> tuple[Carry, tuple[Log, dict[str, Any]]]:
            carry, log, metrics = self._round(carry, knobs, learning)
            return carry, (log, metrics)

        carry, (log, metrics) = jax.lax.scan(body, carry, None, n_updates)
        return carry, jax.tree.map(jnp.concatenate, log), jax.tree.map(jnp.mean, metrics)

    def _chunk_seeds(self, carry: Carry, knobs: Knobs, n_updates: int, learning: bool) -> Any:
        return jax.vmap(lambda one: self._chunk(one, knobs, n_updates, learning))(carry)

    def _round(self, carry: Carry, knobs: Knobs, learning: bool) -> tuple[Carry, Log, dict[str, Any]]:
        """`update_period` steps and an update."""
        period = self.config.update_period
        example = jax.eval_shape(lambda: self._step(carry, knobs)[1])
        log = jax.tree.map(lambda leaf: jnp.zeros((period, *leaf.shape), leaf.dtype), example)

        def step(i: Any, done: tuple[Carry, Log]) -> tuple[Carry, Log]:
            carry, log = done
            carry, entry = self._step(carry, knobs)
            return carry, jax.tree.map(lambda column, value: column.at[i].set(value), log, entry)

        # A number of steps that XLA cannot know: it would inline a loop of one step, and then copy the replay each time.
        steps = jnp.where(knobs.discount < 0, 0, period)
        carry, log = jax.lax.fori_loop(0, steps, step, (carry, log))
        metrics: dict[str, Any] = {}
        if learning:
            key, sample_key, update_key = jax.random.split(carry.key, 3)
            batch, slots = ring.sample(carry.replay, sample_key, self.config.batch_size)
            ahead = None
            if self.config.q_steps > 1:
                reward, discount, last = ring.look_ahead(carry.replay, slots, self.config.q_steps, knobs.discount)
                ahead = Ahead(reward, discount, carry.replay.rows.next_observation[last])
            learner, metrics = self.learner.update(carry.learner, batch, ahead, update_key, knobs)
            carry = carry._replace(key=key, learner=learner)
        return carry, log, metrics

    def _step(self, carry: Carry, knobs: Knobs) -> tuple[Carry, Log]:
        key, act_key, env_key, reset_key, close_key, mask_key = jax.random.split(carry.key, 6)
        observation = carry.place.observation
        choice = self.learner.act(carry.learner, observation, act_key, knobs)
        place, after, log = self._move(carry.place, choice, carry.instance, env_key, reset_key)
        state, u_loss = self.learner.observe(carry.learner, choice, knobs)
        row = self._row(state, observation, choice, after, mask_key, knobs)
        state = self._after_step(state, after, close_key, knobs)
        carry = carry._replace(key=key, place=place, learner=state, replay=ring.add(carry.replay, row))
        log = log._replace(noted=self.learner.noted(state, choice, knobs), u_loss=u_loss)
        return carry, log._replace(code=choice.code) if self.learner.keeps_codes else log

    def _after_step(self, state: LearnerState, after: Step, key: Key, knobs: Knobs) -> LearnerState:
        last_key, episode_key = jax.random.split(key)
        u_at_end, cut = jnp.zeros(()), after.truncated & ~after.terminated
        if self.learner.u_from_stream:
            # Only what is small goes through the branches: XLA may copy every operand of a `cond`.
            u_at_end = jax.lax.cond(
                cut,
                lambda: self.learner.u_at_end(state, after.observation, last_key, knobs),
                lambda: jnp.zeros(()),
            )
        ended = after.terminated | after.truncated
        return self.learner.after_step(state, after.reward, u_at_end, ended, cut, episode_key, knobs)

    def _move(
        self, place: Place, choice: Choice, instance: Any, env_key: Key, reset_key: Key
    ) -> tuple[Place, Step, Log]:
        """One step of the environment, and a new episode where it ended this one."""
        env_state, after = self.env.step(env_key, instance, place.env_state, choice.action)
        ended = after.terminated | after.truncated
        total, length = place.episode_return + after.reward, place.episode_length + 1
        on = Place(env_state, after.observation, total, length)
        place = jax.lax.cond(ended, lambda: self._place(reset_key, instance), lambda: on)
        seen = (after.reward, after.observation, place.observation)
        finite = jnp.array([jnp.isfinite(leaf).all() for leaf in seen if leaf.dtype != jnp.bool_]).all()
        log = Log(ended, total, length, ~finite, jnp.zeros(0), jnp.zeros(()), choice.action, jnp.zeros(0))
        return place, after, log

    def _row(
        self, state: LearnerState, observation: jax.Array, choice: Choice, after: Step, mask_key: Key, knobs: Knobs
    ) -> Transition:
        code = next_code = jnp.zeros(0)
        counts = self.learner.counts
        if counts is not None and counts.stores_code:
            x = self.learner.scaled(after.observation)[None]
            code, next_code = choice.code, counts.code(state.counts, x, x)[0]
        mask = self.learner.values.draw_mask(mask_key, knobs)
        return Transition(
            observation, choice.action, self.learner.learned_reward(after.reward, choice, knobs),
            1.0 - after.terminated, after.observation, code, next_code, mask,
            after.terminated | after.truncated if self.config.q_steps > 1 else (),
        )  # fmt: skip

    def _drawn_codes(
        self, learner: LearnerState, replay: ring.Replay, key: Key, knobs: Knobs
    ) -> tuple[jax.Array, jax.Array]:
        """Of decisions from the replay, with the features of now: codes and actions."""
        batch, _ = ring.sample(replay, key, min(RECOUNTED, self.config.replay_size))
        return self.learner.codes(learner, batch.observation, knobs), batch.action

    # ---------------------------------------------------------------- evaluation

    def _begin(self, key: Key, instance: Any) -> Game:
        game_key, reset_key, noise_key = jax.random.split(key, 3)
        return Game(game_key, self._place(reset_key, instance), *self.learner.draw_noise(noise_key))

    def _evaluate(
        self, game: Game, learner: LearnerState, instance: Any, knobs: Knobs, epsilon: jax.Array, steps: int, own: bool
    ) -> tuple[Game, Log]:
        """Without learning, Σ frozen: greedy but for ε, or by the agent's own policy."""

        def step(game: Game, _: Any) -> tuple[Game, Log]:
            game, log, _ = self._play(game, learner, instance, knobs, epsilon, own)
            return game, log

        return jax.lax.scan(step, game, None, steps)

    def _watch(
        self, game: Game, learner: LearnerState, instance: Any, knobs: Knobs, epsilon: jax.Array, steps: int, own: bool
    ) -> tuple[Game, Seen]:
        """What `evaluate` plays, with all that is to be seen of it."""

        def step(game: Game, _: Any) -> tuple[Game, Seen]:
            game, _, seen = self._play(game, learner, instance, knobs, epsilon, own)
            return game, seen

        return jax.lax.scan(step, game, None, steps)

    def _play(
        self, game: Game, learner: LearnerState, instance: Any, knobs: Knobs, epsilon: jax.Array, own: bool
    ) -> tuple[Game, Log, Seen]:
        key, act_key, env_key, reset_key, episode_key = jax.random.split(game.key, 5)
        state = learner._replace(member=game.member, zeta=game.zeta)
        choice = self.learner.act(state, game.place.observation, act_key, knobs, None if own else epsilon)
        place, after, log = self._move(game.place, choice, instance, env_key, reset_key)
        seen = Seen(
            game.place.observation, choice.action, after.reward, choice.q, choice.u, choice.nu, after.terminated,
            after.truncated, after.observation, game.member, game.zeta,
        )  # fmt: skip
        member, zeta = self.learner.draw_noise(episode_key)
        member, zeta = jnp.where(log.ended, member, game.member), jnp.where(log.ended, zeta, game.zeta)
        return Game(key, place, member, zeta), log, seen


@functools.lru_cache(maxsize=64)
def compiled(env: Environment, shape: AgentConfig) -> Loop:
    return Loop(env, shape)
