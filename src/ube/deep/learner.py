"""The one learner. Agents differ in how they act and what they regress on; every difference is a field of the config.

A decision in time (Algorithm 1):

    act         s_t -> Q, φ, ν, u -> a_t
    observe     the u-network regresses on the decision that is now n steps old; ν_t enters its window; then Σ sees φ_t
    (environment: a_t -> r, s_{t+1})
    close       at the end of an episode: targets still open are completed, noise is drawn anew
    update      every `update_period` decisions: Q, and u where it learns from replay, on a batch
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ube import backups
from ube.acting import perturbed
from ube.deep.config import AgentConfig
from ube.deep.counts import BinCounts, DenseCounts, WindowCounts
from ube.deep.networks import UncertaintyHead, ValueNetwork, input_scaling, make_trunk, n_features
from ube.deep.settings import Knobs
from ube.deep.values import Values, ValuesState
from ube.envs.contract import Interface

Params = Any
Key = jax.Array


class Choice(NamedTuple):
    """What the agent thinks at one observation."""

    action: jax.Array  # ()
    q: jax.Array  # (A,)
    u: jax.Array  # (A,) zeros without a u-network
    nu: jax.Array  # (A,) zeros without counts
    nu_taken: jax.Array  # () of the action; where only this is read, Σ of the other actions is not
    code: jax.Array  # what Σ knows of the observation
    gain: jax.Array  # what Σ needs to take the decision in
    u_input: jax.Array  # what the u-network reads


class Stream(NamedTuple):
    """Decisions on their way to their n-step target."""

    window: backups.Window
    inputs: jax.Array  # (n, …) u_input of each
    actions: jax.Array  # (n,)


class Awaited(NamedTuple):
    """The last decision, of which Q will know more at the next."""

    code: jax.Array
    action: jax.Array
    q: jax.Array  # () that was expected of it
    reward: jax.Array
    continues: jax.Array  # 0 if nothing follows
    valid: jax.Array  # 0 if there is none, or what follows was cut off


class LearnerState(NamedTuple):
    values: ValuesState
    u: Params
    u_target: Params  # () where u does not learn from replay
    u_optimiser: Any
    counts: Any
    stream: Any
    awaited: Any  # () where the noise is known
    member: jax.Array  # () of the ensemble, this episode
    zeta: jax.Array  # () noise of this episode
    greedy_debt: jax.Array  # () steps that greedy episodes still owe for the optimistic ones
    mean_u_root: jax.Array  # () running mean of √u, the size of unstructured noise
    largest_return: jax.Array  # () |discounted return| of an episode so far
    reward_range: jax.Array  # (2,) lowest and highest learned reward so far, and 0
    episode_return: jax.Array  # () discounted, so far
    episode_weight: jax.Array  # () γ^t
    steps: jax.Array  # () decisions
    updates: jax.Array  # () gradient steps


class Transition(NamedTuple):
    """What the replay keeps of a decision."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array  # clipped, bonus added
    continues: jax.Array  # 0 after termination
    next_observation: jax.Array
    code: jax.Array  # fixed features of both, where they are cheaper to store than to compute
    next_code: jax.Array
    mask: jax.Array  # (K,) which networks of the ensemble see it
    ended: Any = ()  # whether the episode ended or was cut off here; () where targets of Q span one step


class Ahead(NamedTuple):
    """What n-step targets of Q need: y = reward + discount · max_a Q(observation, a)."""

    reward: jax.Array  # (B,) the discounted sum of the rewards until then
    discount: jax.Array  # (B,) γⁿ, 0 after termination
    observation: jax.Array  # (B, …) where the target bootstraps


MEANS = ("q", "u", "nu", "nongreedy", "q_gap", "spread")
"""Metrics of decisions, averaged over a chunk: max Q; u and ν of the action taken; the share of actions that Q does not
favour; max Q - mean Q; and the spread of β√u, its largest value over actions less its smallest."""
LARGEST = ("q_largest", "u_largest")
"""Metrics of decisions of which a chunk keeps the largest: |Q| and u."""


class Targets(NamedTuple):
    """Of a batch."""

    q: jax.Array  # (B, K)
    u: jax.Array  # (B,) empty where u does not learn from replay


@dataclass(frozen=True)
class Learner:
    """Pure functions over LearnerState. `config` must be `filled`; what it holds of `Knobs` is not read here."""

    config: AgentConfig
    env: Interface

    # ---------------------------------------------------------------- parts

    @functools.cached_property
    def values(self) -> Values:
        return Values(self.config, self.env)

    @functools.cached_property
    def u_network(self) -> Any:
        config, n_actions = self.config, self.env.n_actions
        if config.u_network == "head":
            return UncertaintyHead(n_actions, config.u_width, config.initial_values)
        return ValueNetwork(make_trunk(config.network, config.hidden), n_actions, config.initial_values)

    @functools.cached_property
    def counts(self) -> DenseCounts | BinCounts | WindowCounts | None:
        config = self.config
        n_inputs = int(np.prod(self.env.observation_shape))
        if config.features == "none":
            return None
        if config.features == "bins":
            return BinCounts(self.env.n_actions, n_inputs, config.bin_tables, self.learns_noise)
        if config.features == "windows":
            return WindowCounts.over(self.env.n_actions, self.env.observation_shape, self.learns_noise)
        n_learned = self._n_learned if config.features in ("learned", "both") else 0
        n_random = config.random_features if config.features in ("random", "both") else 0
        return DenseCounts(
            self.env.n_actions, n_learned, n_random, n_inputs, config.normalise_features, config.forgetting,
            self.learns_noise,
        )  # fmt: skip

    @property
    def learns_noise(self) -> bool:
        return self.config.noise == "learned"

    @property
    def refreshes(self) -> bool:
        """Whether Σ is a matrix, to be computed anew every now and then."""
        return isinstance(self.counts, DenseCounts)

    @property
    def keeps_codes(self) -> bool:
        """Whether that takes the codes of all decisions."""
        return self.refreshes and self.config.sigma_from == "stream"

    @property
    def _n_learned(self) -> int:
        return n_features(self.config.network, self.config.hidden, self.env.observation_shape)

    @functools.cached_property
    def scaled(self) -> Any:
        return input_scaling(self.env.observation_dtype, self.env.low, self.env.high)

    @functools.cached_property
    def u_optimiser(self) -> optax.GradientTransformation:
        return optax.scale_by_rms(decay=0.95, eps=1e-8)

    # ---------------------------------------------------------------- start

    def init(self, key: Key, knobs: Knobs) -> LearnerState:
        q_key, prior_key, u_key, counts_key, episode_key = jax.random.split(key, 5)
        x = jnp.zeros((1, *self.env.observation_shape))
        values = self.values.init(q_key, prior_key, x)
        counts: Any = self.counts.init(counts_key, knobs.prior) if self.counts else ()
        u: Any = ()
        stream: Any = ()
        if self.config.uses_u:
            assert self.counts is not None
            phi = jnp.zeros((1, self._n_learned))
            u_input = self._u_input(x, phi)
            u = self.u_network.init(u_key, u_input)
            if self.config.u_data == "stream":
                n = self.config.n
                stream = Stream(
                    backups.empty_window(n), jnp.zeros((n, *u_input.shape[1:]), u_input.dtype), jnp.zeros(n, jnp.int32)
                )
        u_target = jax.tree.map(jnp.copy, u) if self.u_from_replay else ()
        zero = jnp.zeros(())
        member, zeta = self.draw_noise(episode_key)
        return LearnerState(
            values=values, u=u, u_target=u_target, u_optimiser=self.u_optimiser.init(u), counts=counts, stream=stream,
            awaited=self._nothing_awaited(counts, x),
            member=member, zeta=zeta, greedy_debt=zero, mean_u_root=zero, largest_return=zero,
            reward_range=jnp.zeros(2), episode_return=zero, episode_weight=jnp.ones(()), steps=jnp.zeros((), jnp.int32),
            updates=jnp.zeros((), jnp.int32),
        )  # fmt: skip

    def _nothing_awaited(self, counts: Any, x: jax.Array) -> Any:
        if not self.learns_noise:
            return ()
        code = self.counts.code(counts, jnp.zeros((1, self._n_learned)), x)[0]  # type: ignore[union-attr]
        zero = jnp.zeros(())
        return Awaited(jnp.zeros_like(code), jnp.zeros((), jnp.int32), zero, zero, zero, zero)

    def draw_noise(self, key: Key) -> tuple[jax.Array, jax.Array]:
        """What holds for a whole episode: the member of the ensemble, and ζ."""
        member_key, zeta_key = jax.random.split(key)
        return jax.random.randint(member_key, (), 0, self.config.ensemble), jax.random.normal(zeta_key)

    # ---------------------------------------------------------------- values

    def _u_input(self, x: jax.Array, phi: jax.Array) -> jax.Array:
        return {"head": phi, "own": x}[self.config.u_network]

    def _u_raw(self, params: Params, u_input: jax.Array) -> jax.Array:
        if self.config.u_network == "head":
            return self.u_network.apply(params, u_input)
        return self.u_network.apply(params, u_input)[0]

    def _u(self, params: Params, u_input: jax.Array, nu: jax.Array, knobs: Knobs) -> jax.Array:
        """Return u (B, A). The raw output is regressed as it is, and clipped wherever it is read: to 0 from below and, as a
        continuation, to the most that can follow, γ²μ / (1 - γ²), so that it cannot grow on itself where there is no data."""
        raw = jnp.maximum(self._u_raw(params, u_input), 0.0)
        if self.config.u_predicts == "total":
            return raw
        if self.config.nu_is_bounded:
            raw = jnp.minimum(raw, knobs.u_discount**2 * knobs.prior / (1 - knobs.u_discount**2))
        return nu + raw

    def codes(self, state: LearnerState, observations: jax.Array, knobs: Knobs) -> jax.Array:
        """What Σ knows of observations (B, …), with the features of now."""
        assert self.counts is not None
        x = self.scaled(observations)
        return self.counts.code(state.counts, self.values.mean(state.values, x, knobs)[1], x)

    # ---------------------------------------------------------------- acting

    def epsilon(self, steps: Any, knobs: Knobs) -> jax.Array:
        """Mnih 2015: constant in the warm-up (1 if that is random play), then linear."""
        done = jnp.clip((steps - knobs.warmup) / knobs.epsilon_steps, 0.0, 1.0)
        epsilon = knobs.epsilon_start + done * (knobs.epsilon_end - knobs.epsilon_start)
        return jnp.where(steps < knobs.warmup, 1.0, epsilon) if self.config.warmup_policy == "random" else epsilon

    def random_share(self, state: LearnerState, knobs: Knobs) -> jax.Array:
        """ε of this decision: none in optimistic episodes, which explore by themselves."""
        epsilon = self.epsilon(state.steps, knobs)
        if self.config.optimism == "full":
            return epsilon
        optimistic = self.level(state, knobs) > 0
        if self.config.warmup_policy == "random":
            optimistic &= state.steps >= knobs.warmup
        return jnp.where(optimistic, 0.0, epsilon)

    def unit(self, state: LearnerState) -> jax.Array:
        """Return the unit of β, in learned rewards."""
        if self.config.beta_unit == "one":
            return jnp.ones(())
        if self.config.beta_unit == "returns":
            return jnp.maximum(state.largest_return, 1.0)
        lowest, highest = state.reward_range
        # Costs alone do not tell what a success is worth: it may be more, as in DeepSea, so they count as 1 at least.
        return jnp.where(highest > 0, highest, jnp.maximum(-lowest, 1.0))

    def level(self, state: LearnerState, knobs: Knobs) -> Any:
        """Return the optimism of this episode, within 0..1."""
        if self.config.optimism == "full":
            return 1.0
        uniform = jax.scipy.stats.norm.cdf(state.zeta)
        level = jnp.maximum(uniform - knobs.greedy_share, 0.0) / (1 - knobs.greedy_share)
        return jnp.where(self._has_levels(state), level, 1.0)

    def _has_levels(self, state: LearnerState) -> jax.Array:
        """Return whether episodes differ in optimism by now."""
        lowest, highest = state.reward_range
        return (highest > 0) | (lowest <= -1) if self.config.levels_wait else jnp.bool_(True)

    def _greedy_debt(self, state: LearnerState, knobs: Knobs) -> jax.Array:
        """Return the debt after one more step. An optimistic step owes share / (1 - share) greedy ones, so that a search that
        goes on for long is followed by as much use of what is known; a surplus is not saved up."""
        share = knobs.greedy_share
        step = jnp.where(self.level(state, knobs) == 0, -1.0, share / (1 - share))
        return jnp.where(self._has_levels(state), jnp.maximum(state.greedy_debt + step, 0.0), 0.0)

    def score(
        self, state: LearnerState, q: jax.Array, u: jax.Array, key: Key, knobs: Knobs, level: Any = None
    ) -> jax.Array:
        """What the policy maximises, in the shape of q and u (…, A); `level` replaces the optimism of this episode."""
        policy = self.config.policy
        beta = knobs.beta * self.unit(state)
        if policy == "noise-per-step":
            return perturbed(q, u, jax.random.normal(key, q.shape), beta)
        if policy == "noise-per-episode":
            return perturbed(q, u, state.zeta, beta)
        if policy == "ucb":
            return perturbed(q, u, self.level(state, knobs) if level is None else level, beta)
        if policy == "unstructured-noise":
            return perturbed(q, state.mean_u_root**2, jax.random.normal(key, q.shape), beta)
        return q

    def act(
        self, state: LearnerState, observation: jax.Array, key: Key, knobs: Knobs, evaluation_epsilon: Any = None
    ) -> Choice:
        """a_t for one observation. With `evaluation_epsilon`, greedy in the mean of the ensemble but for that rate."""
        noise_key, random_key, epsilon_key, tie_key = jax.random.split(key, 4)
        x = self.scaled(observation)[None]
        evaluating = evaluation_epsilon is not None
        if evaluating:
            q, phi = self.values.mean(state.values, x, knobs)
        else:
            q, phi = self.values.of_member(state.values, state.member, x, knobs)
        nothing = jnp.zeros((1, self.env.n_actions))
        code, nu, u, u_input = jnp.zeros((1, 0)), nothing, nothing, jnp.zeros((1, 0))
        if self.counts:
            code = self.counts.code(state.counts, phi, x)
            nu = self.counts.nu(state.counts, code)
        if self.config.uses_u:
            u_input = self._u_input(x, phi)
            u = self._u(state.u, u_input, nu, knobs)
        score = q if evaluating else self.score(state, q, u, noise_key, knobs)
        random_action = jax.random.randint(random_key, (), 0, self.env.n_actions)
        epsilon = evaluation_epsilon if evaluating else self.random_share(state, knobs)
        action = jnp.where(jax.random.uniform(epsilon_key) < epsilon, random_action, any_best(score[0], tie_key))
        gain, nu_taken = (
            self.counts.look(state.counts, code[0], action) if self.counts else (jnp.zeros(0), jnp.zeros(()))
        )
        return Choice(action, q[0], u[0], nu[0], nu_taken, code[0], gain, u_input[0])

    def noted(self, state: LearnerState, choice: Choice, knobs: Knobs) -> jax.Array:
        """MEANS and LARGEST of a decision, in this order."""
        q, best = choice.q, choice.q.max()
        taken, roots = choice.q[choice.action], jnp.sqrt(choice.u)
        spread = knobs.beta * self.unit(state) * (roots.max() - roots.min())
        means = best, choice.u[choice.action], choice.nu_taken, taken < best, best - q.mean(), spread
        return jnp.stack([jnp.asarray(x, jnp.float32) for x in (*means, jnp.abs(q).max(), choice.u.max())])

    # ---------------------------------------------------------------- the stream

    def observe(self, state: LearnerState, choice: Choice, knobs: Knobs) -> tuple[LearnerState, jax.Array]:
        """Takes the decision into the u-stream and into Σ. Returns the loss of the u-network, 0 without one."""
        action, loss = choice.action, jnp.zeros(())
        if self.u_from_stream:
            state, loss = self._stream_step(state, choice, knobs)
        if self.config.policy == "unstructured-noise":
            root = jnp.sqrt(choice.u.mean())
            rate = jnp.maximum(1e-3, 1.0 / (state.steps + 1))
            state = state._replace(mean_u_root=state.mean_u_root + rate * (root - state.mean_u_root))
        if self.counts:
            if self.learns_noise:
                state = self._heard(state, choice, knobs)
            state = state._replace(counts=self.counts.add(state.counts, choice.code, choice.gain, action))
        return state._replace(steps=state.steps + 1), loss

    def _heard(self, state: LearnerState, choice: Choice, knobs: Knobs) -> LearnerState:
        """Tells the counts how the last decision turned out, in the unit of β; no worse than what was expected beforehand."""
        assert self.counts is not None
        last = state.awaited
        error = last.reward + last.continues * knobs.discount * choice.q.max() - last.q
        error = last.valid * jnp.clip(error / self.unit(state), -1.0, 1.0)
        error = jnp.where(
            choice.nu_taken < 0, 0.0, error
        )  # never; but so ν is read before it changes, and XLA need not copy
        zero = jnp.zeros(())
        return state._replace(
            counts=self.counts.hear(state.counts, last.code, last.action, error),
            awaited=Awaited(choice.code, choice.action, choice.q[choice.action], zero, zero, zero),
        )

    def _stream_step(self, state: LearnerState, choice: Choice, knobs: Knobs) -> tuple[LearnerState, jax.Array]:
        window, finished = backups.arrive(state.stream.window, choice.u[choice.action], knobs.trace_decay)
        inputs, actions = state.stream.inputs[finished.slot][None], state.stream.actions[finished.slot][None]
        target = finished.target - (finished.local if self.config.u_predicts == "continuation" else 0.0)
        state, loss = self._regress_u(state, inputs, actions, target[None], finished.valid, knobs)
        window = backups.enter(window, choice.nu_taken, knobs.u_discount)
        stream = Stream(
            window,
            state.stream.inputs.at[finished.slot].set(choice.u_input),
            state.stream.actions.at[finished.slot].set(choice.action),
        )
        return state._replace(stream=stream), loss

    def _regress_u(
        self, state: LearnerState, inputs: jax.Array, actions: jax.Array, targets: jax.Array, valid: Any, knobs: Knobs
    ) -> tuple[LearnerState, jax.Array]:
        """One step of the u-network towards targets (B,) at inputs (B, …) and actions (B,)."""

        def loss_of(params: Params) -> jax.Array:
            return (valid * (targets - backups.chosen(self._u_raw(params, inputs), actions)) ** 2).mean()

        loss, gradient = jax.value_and_grad(loss_of)(state.u)
        direction, optimiser = self.u_optimiser.update(gradient, state.u_optimiser)
        u = jax.tree.map(lambda p, d: p - knobs.u_learning_rate * d, state.u, direction)
        return state._replace(u=u, u_optimiser=optimiser), loss

    def learned_reward(self, reward: jax.Array, choice: Choice, knobs: Knobs) -> jax.Array:
        """Clipped, then the bonus on top."""
        if not self.config.bonus_scale:
            return _clipped(reward, knobs)
        return _clipped(reward, knobs) + knobs.bonus_scale * jnp.sqrt(choice.nu_taken)

    def u_at_end(self, state: LearnerState, last_observation: jax.Array, key: Key, knobs: Knobs) -> jax.Array:
        """What targets still open are completed with where an episode is cut off, since more would have followed."""
        choice = self.act(state, last_observation, key, knobs)
        return choice.u[choice.action]

    @property
    def u_from_stream(self) -> bool:
        return self.config.uses_u and self.config.u_data == "stream"

    def after_step(
        self, state: LearnerState, reward: jax.Array, u_at_end: jax.Array, ended: jax.Array, cut: jax.Array, key: Key,
        knobs: Knobs,
    ) -> LearnerState:  # fmt: skip
        """Keeps the unit of β, and closes the episode if it ended; if it was only `cut` off, with the u of what would have
        followed."""
        if self.u_from_stream:
            closed = backups.end_episode(state.stream.window, u_at_end)
            window = jax.tree.map(lambda new, old: jnp.where(ended, new, old), closed, state.stream.window)
            state = state._replace(stream=state.stream._replace(window=window))
        if self.learns_noise:
            awaited = state.awaited._replace(reward=_clipped(reward, knobs), continues=1.0 - ended, valid=1.0 - cut)
            state = state._replace(awaited=awaited)
        episode_return = state.episode_return + state.episode_weight * _clipped(reward, knobs)
        state = state._replace(episode_return=episode_return, episode_weight=state.episode_weight * knobs.discount)
        if self.config.beta_unit == "returns":
            largest = jnp.maximum(state.largest_return, jnp.where(ended, jnp.abs(episode_return), 0.0))
            state = state._replace(largest_return=largest)
        lowest, highest = state.reward_range
        learned = _clipped(reward, knobs)
        state = state._replace(reward_range=jnp.stack([jnp.minimum(lowest, learned), jnp.maximum(highest, learned)]))
        member, zeta = self.draw_noise(key)
        if self.config.optimism == "levels":
            debt = self._greedy_debt(state, knobs)
            state, zeta = state._replace(greedy_debt=debt), jnp.where(debt > 0, -jnp.inf, zeta)
        return state._replace(
            member=jnp.where(ended, member, state.member),
            zeta=jnp.where(ended, zeta, state.zeta),
            episode_return=jnp.where(ended, 0.0, state.episode_return),
            episode_weight=jnp.where(ended, 1.0, state.episode_weight),
        )

    # ---------------------------------------------------------------- the batch

    def update(
        self, state: LearnerState, batch: Transition, ahead: Ahead | None, key: Key, knobs: Knobs
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One gradient step on Q, and on u where it learns from replay."""
        state, metrics = self.improve(state, batch, self.targets(state, batch, ahead, key, knobs), knobs)
        return self.copied(state), metrics

    def targets(self, state: LearnerState, batch: Transition, ahead: Ahead | None, key: Key, knobs: Knobs) -> Targets:
        """Return what Q and u should become at the batch, by the target networks: all of an update that is no gradient.

        ahead: where targets of Q bootstrap if that is not the next observation (q_steps > 1).
        """
        next_x = self.scaled(batch.next_observation)
        values = state.values
        q_t: Any = None
        phi_t: Any = None
        if ahead is None or self.u_from_replay:
            q_t, phi_t = self.values.of_all(values.target, values.prior, next_x, knobs)
        if ahead is None:
            q = self.values.q_target(values, batch.reward, knobs.discount * batch.continues, q_t, next_x, knobs)
        else:
            x = self.scaled(ahead.observation)
            q_ahead, _ = self.values.of_all(values.target, values.prior, x, knobs)
            q = self.values.q_target(values, ahead.reward, ahead.discount, q_ahead, x, knobs)
        if not self.u_from_replay:
            return Targets(q, jnp.zeros(0))
        return Targets(q, self._u_target(state, batch, next_x, q_t[:, 0], phi_t, key, knobs))

    @property
    def improved(self) -> tuple[str, ...]:
        """Fields of LearnerState that `improve` changes; steps leave them alone."""
        return ("values", "updates", *(("u", "u_optimiser") if self.u_from_replay else ()))

    @property
    def fixed(self) -> tuple[str, ...]:
        """Fields of LearnerState that neither `improve` nor steps change."""
        return ("u_target",)

    @property
    def u_from_replay(self) -> bool:
        return self.config.uses_u and self.config.u_data == "replay"

    def _u_target(
        self, state: LearnerState, batch: Transition, next_x: jax.Array, q_t: jax.Array, phi_t: jax.Array, key: Key,
        knobs: Knobs,
    ) -> jax.Array:  # fmt: skip
        """γ²u(s', a') (plus ν, if u predicts all of it), a' by today's policy on the target networks."""
        assert self.counts is not None
        counts, stored = state.counts, self.counts.stores_code
        next_code = batch.next_code if stored else self.codes(state, batch.next_observation, knobs)
        u_t = self._u(state.u_target, self._u_input(next_x, phi_t), self.counts.nu(counts, next_code), knobs)
        a_t = self.score(state, q_t, u_t, key, knobs, level=1.0).argmax(-1)
        nu: Any = 0.0
        if self.config.u_predicts == "total":
            code = batch.code if stored else self.codes(state, batch.observation, knobs)
            nu = backups.chosen(self.counts.nu(counts, code), batch.action)
        return backups.ube_target(nu, batch.continues, knobs.u_discount, backups.chosen(u_t, a_t))

    def improve(
        self, state: LearnerState, batch: Transition, targets: Targets, knobs: Knobs
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """The gradient step towards the targets. Reads and changes what `improved` names."""
        x = self.scaled(batch.observation)
        values, phi, metrics = self.values.improve(state.values, x, batch.action, targets.q, batch.mask, knobs)
        state = state._replace(values=values, updates=state.updates + 1)
        if self.u_from_replay:
            state, metrics["u_loss"] = self._regress_u(
                state, self._u_input(x, phi), batch.action, targets.u, 1.0, knobs
            )
        return state, metrics

    def copied(self, state: LearnerState) -> LearnerState:
        """With target networks that are copies, if it is time."""
        q_period, u_period = self.config.target_period, self.config.u_target_period
        values = state.values
        target = optax.periodic_update(values.params, values.target, state.updates, q_period)
        state = state._replace(values=values._replace(target=target))
        if self.u_from_replay:
            state = state._replace(u_target=optax.periodic_update(state.u, state.u_target, state.updates, u_period))
        return state


def any_best(score: jax.Array, key: Key) -> jax.Array:
    """The argmax of score (A,), drawn uniformly among ties: values that start at zero are all equal."""
    return jnp.where(score == score.max(), jax.random.uniform(key, score.shape), -1.0).argmax()


def _clipped(reward: jax.Array, knobs: Knobs) -> jax.Array:
    return jnp.clip(reward / knobs.reward_unit, -knobs.reward_clip, knobs.reward_clip)
