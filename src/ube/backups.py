"""Targets of Bellman equations, pure and on arrays of any shape; NumPy and JAX alike (`Window` is JAX only, and loads it).

The uncertainty Bellman equation is SARSA with the local uncertainty ν in the place of the reward and γ² in the place of γ,
so both share `bootstrapped`. Time in names: x_tm1 led to x_t.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any
"""Of NumPy or of JAX."""


def bootstrapped(signal: Array, discount_t: Array, value_t: Array) -> Array:
    """signal + discount·value. The discount is 0 after a terminal state, but not at a time limit."""
    return signal + discount_t * value_t


def q_learning_target(r_t: Array, discount_t: Array, q_t: Array, choosing_q_t: Array | None = None) -> Array:
    """r + γ Q(s', argmax_b Q'(s', b)). q_t (…, A); the rest (…). discount_t is 0 where nothing follows.

    choosing_q_t: Q', another network's values, for double Q-learning; by default q_t itself, whose maximum it then is. With a
    discounted sum of n rewards, γⁿ and the values n steps ahead it is the n-step target.
    """
    value_t = q_t.max(-1) if choosing_q_t is None or choosing_q_t is q_t else chosen(q_t, choosing_q_t.argmax(-1))
    return bootstrapped(r_t, discount_t, value_t)


def ube_target(nu_tm1: Array, continues_t: Array, discount: Array, u_t: Array) -> Array:
    """y = ν(s, a) + γ² u(s', a') (Algorithm 1): `discount` is γ, and is squared here."""
    return bootstrapped(nu_tm1, discount**2 * continues_t, u_t)


def chosen(values: Array, actions: Array) -> Array:
    """values (…, A) at actions (…)."""
    return values.__array_namespace__().take_along_axis(values, actions[..., None], -1)[..., 0]


class Window(NamedTuple):
    """The last n decisions of a stream, each waiting for its n-step target

        y_t = Σ_{i<m} γ^{2i} ν_{t+i} + γ^{2m} u(s_{t+m}, a_{t+m})·1[not terminal],   m = min(n, T - t).

    A decision leaves n steps after it entered, also if its episode ended before: so every step regresses one decision,
    each decision once, in order, at a constant cost. `decay` λ < 1 mixes the shorter targets in (λ-return cut at n).
    """

    total: Array  # (n,) discounted ν so far
    weight: Array  # (n,) of the next ν or bootstrap; 0 once the target is complete
    seen: Array  # () decisions entered so far
    local: Array  # (n,) ν of the decision itself


def empty_window(n: int) -> Window:
    """Of n decisions, none of which has entered."""
    import jax.numpy as jnp

    return Window(jnp.zeros(n), jnp.zeros(n), jnp.zeros((), jnp.int32), jnp.zeros(n))


class Finished(NamedTuple):
    """The decision that `arrive` completes: regress u on `target` there, if `valid`."""

    slot: Array  # where the caller stored what belongs to the decision
    target: Array  # y
    local: Array  # its own ν, the first term of y
    valid: Array  # False until n decisions have entered


def arrive(window: Window, u_t: Array, decay: Array = 1.0) -> tuple[Window, Finished]:
    """Before (s_t, a_t) enters: the decision of n steps ago bootstraps from u(s_t, a_t), unless its episode is over."""
    n = window.total.shape[0]
    slot = window.seen % n
    target = window.total[slot] + window.weight[slot] * u_t
    finished = Finished(slot, target, window.local[slot], window.seen >= n)
    mixed = window._replace(
        total=window.total + (1 - decay) * window.weight * u_t,
        weight=window.weight * decay,
    )
    return mixed, finished


def enter(window: Window, nu_t: Array, discount: Array) -> Window:
    """(s_t, a_t) enters with ν_t, which also counts for the decisions before it in the same episode."""
    slot = window.seen % window.total.shape[0]
    weight = window.weight.at[slot].set(1.0)
    total = window.total.at[slot].set(0.0) + weight * nu_t
    return Window(total, weight * discount**2, window.seen + 1, window.local.at[slot].set(nu_t))


def end_episode(window: Window, u_last: Array) -> Window:
    """Completes all targets. u_last is 0 after termination, and u(s_T, a_T) where a time limit cut the episode."""
    import jax.numpy as jnp

    return window._replace(total=window.total + window.weight * u_last, weight=jnp.zeros_like(window.weight))
