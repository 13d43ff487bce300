"""Q-values: one network or an ensemble, what they learn from a batch, and their target network."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ube import backups
from ube.deep.config import AgentConfig
from ube.deep.networks import ValueNetwork, make_trunk
from ube.deep.settings import Knobs
from ube.envs.contract import Interface

Params = Any
Key = jax.Array


class ValuesState(NamedTuple):
    params: Params
    target: Params
    optimiser: Any
    prior: Params  # the fixed networks of randomised priors; () without an ensemble


@dataclass(frozen=True)
class Values:
    """K members of an ensemble, as networks of their own or as heads on one trunk; most agents have K = 1."""

    config: AgentConfig
    env: Interface

    @functools.cached_property
    def network(self) -> ValueNetwork:
        outputs = self.env.n_actions * (self.config.ensemble if self.config.ensemble_of == "heads" else 1)
        return ValueNetwork(make_trunk(self.config.network, self.config.hidden), outputs, self.config.initial_values)

    @functools.cached_property
    def prior_network(self) -> ValueNetwork:
        """Return the network of randomised priors: that of Q, but always with random outputs."""
        return self.network.clone(starts_at="random")

    @functools.cached_property
    def optimiser(self) -> optax.GradientTransformation:
        if self.config.optimiser == "adam":
            return optax.scale_by_adam()
        # Mnih 2015 sums the loss over the batch; with the mean, its 0.01 becomes 0.01 / batch².
        return optax.scale_by_stddev(decay=0.95, eps=0.01 / self.config.batch_size**2)

    @property
    def separate_networks(self) -> bool:
        """Whether members are networks of their own. Their parameters are then stacked along the axis before the last."""
        return self.config.ensemble > 1 and self.config.ensemble_of == "networks"

    def init(self, key: Key, prior_key: Key, x: jax.Array) -> ValuesState:
        params = self._init(self.network, key, x)
        prior = self._init(self.prior_network, prior_key, x) if self.config.ensemble > 1 else ()
        return ValuesState(params, jax.tree.map(jnp.copy, params), self.optimiser.init(params), prior)

    def _init(self, network: ValueNetwork, key: Key, x: jax.Array) -> Params:
        if not self.separate_networks:
            return network.init(key, x)
        return jax.vmap(lambda k: network.init(k, x), out_axes=-2)(jax.random.split(key, self.config.ensemble))

    # ---------------------------------------------------------------- Q

    def of_all(self, params: Params, prior: Params, x: jax.Array, knobs: Knobs) -> tuple[jax.Array, jax.Array]:
        """Return Q of every member (B, K, A), and the features φ (B, D) of the first."""
        if not self.separate_networks:
            return self._of_network(params, prior, x, knobs)
        q, phi = jax.vmap(lambda one, fixed: self._of_network(one, fixed, x, knobs), in_axes=-2)(params, prior)
        return q[:, :, 0].swapaxes(0, 1), phi[0]

    def of_member(
        self, state: ValuesState, member: jax.Array, x: jax.Array, knobs: Knobs
    ) -> tuple[jax.Array, jax.Array]:
        """Return Q (B, A) and φ (B, D) of the member that acts in this episode."""
        if self.separate_networks:
            one, fixed = jax.tree.map(lambda leaf: jnp.take(leaf, member, -2), (state.params, state.prior))
            q, phi = self._of_network(one, fixed, x, knobs)
            return q[:, 0], phi
        q, phi = self.of_all(state.params, state.prior, x, knobs)
        return q[:, member if self.config.ensemble > 1 else 0], phi

    def mean(self, state: ValuesState, x: jax.Array, knobs: Knobs) -> tuple[jax.Array, jax.Array]:
        """Return the mean Q of the ensemble (B, A), and φ (B, D)."""
        q, phi = self.of_all(state.params, state.prior, x, knobs)
        return q.mean(1), phi

    def _of_network(self, params: Params, prior: Params, x: jax.Array, knobs: Knobs) -> tuple[jax.Array, jax.Array]:
        """Return Q (B, heads, A) and φ (B, D)."""
        q: Any
        phi: Any
        q, phi = self.network.apply(params, x)
        if prior:
            q = q + knobs.randomised_prior * self.prior_network.apply(prior, x)[0]
        return q.reshape(x.shape[0], -1, self.env.n_actions), phi

    # ---------------------------------------------------------------- learning

    def draw_mask(self, key: Key, knobs: Knobs) -> jax.Array:
        """Draw which members learn from a decision, (K,)."""
        members = self.config.ensemble
        if members == 1:
            return jnp.ones(1)
        return jax.random.bernoulli(key, knobs.mask_probability, (members,)).astype(jnp.float32)

    def q_target(
        self, state: ValuesState, reward: jax.Array, discount: jax.Array, q_t: jax.Array, x: jax.Array, knobs: Knobs
    ) -> jax.Array:
        """Return r + γ max_b Q(s', b), (B, K); with `double_q` the online network chooses b.

        q_t (B, K, A): Q of the target network at s', whose observation is x.
        """
        choosing = self.of_all(state.params, state.prior, x, knobs)[0] if self.config.double_q else q_t
        return backups.q_learning_target(reward[:, None], discount[:, None], q_t, choosing)

    def improve(
        self, state: ValuesState, x: jax.Array, actions: jax.Array, targets: jax.Array, mask: jax.Array, knobs: Knobs
    ) -> tuple[ValuesState, jax.Array, dict[str, jax.Array]]:
        """Take a gradient step towards `targets` (B, K) and return φ (B, D) from before it, and metrics."""

        def loss_of(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q, phi = self.of_all(params, state.prior, x, knobs)
            errors = optax.huber_loss(backups.chosen(q, actions[:, None]), targets)
            shares = self.config.ensemble if self.config.ensemble_of == "heads" else 1
            return (errors * mask).sum(1).mean() / shares, (q, phi)

        (loss, (q, phi)), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        direction, optimiser = self.optimiser.update(gradient, state.optimiser)
        params = jax.tree.map(lambda p, d: p - knobs.learning_rate * d, state.params, direction)
        return state._replace(params=params, optimiser=optimiser), phi, {"loss": loss, "q": q.max(-1).mean()}
