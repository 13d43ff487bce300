"""With a one-hot basis the learning agent is the tabular method: same ν, same u, same actions."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from deep.tiny import SEA, SMALL, counted
from ube import backups
from ube.deep.config import agent_config
from ube.deep.counts import DenseCounts
from ube.deep.learner import Learner
from ube.deep.settings import filled, split_knobs
from ube.tabular import Belief, solve

HORIZON, STATES, ACTIONS, DISCOUNT, PRIOR = 3, 2, 2, 0.9, 0.5
SHAPE = (HORIZON, STATES, ACTIONS)


def every_episode() -> np.ndarray:
    """From state 0, each action leads to either state: all (s, a) sequences once, (episodes·H, 3) as (h, s, a).

    So each next state and action follows each decision equally often, and averages are expectations.
    """
    choices = itertools.product(*[range(ACTIONS)] * HORIZON, *[range(STATES)] * (HORIZON - 1))
    rows = [(h, 0 if h == 0 else c[HORIZON + h - 1], c[h]) for c in choices for h in range(HORIZON)]
    return np.array(rows)


def local_uncertainty(visits: np.ndarray) -> np.ndarray:
    """ν of DenseCounts over one-hot features after so many visits, (H, S, A)."""
    size = HORIZON * STATES
    counts = DenseCounts(ACTIONS, size, 0, 1, normalise=True, forgetting=1.0)
    seen = [(node, a) for node in range(size) for a in range(ACTIONS) for _ in range(visits.reshape(size, -1)[node, a])]
    nodes, actions = np.random.default_rng(0).permutation(seen).T
    basis = np.eye(size, dtype=np.float32)

    @jax.jit
    def absorbed(state: Any) -> Any:
        return jax.lax.scan(lambda s, now: (counted(counts, s, *now), None), state, (basis[nodes], actions))[0]

    state = absorbed(counts.init(jax.random.key(0), jnp.float32(PRIOR)))
    return np.asarray(counts.nu(state, basis)).reshape(SHAPE)


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """ν by the learning agent's Σ, and u by the tabular solver from the same visits."""
    visits = np.random.default_rng(1).integers(1, 30, SHAPE)
    # ν = σ²/n alone: with so small an r_max the transition part of the count form vanishes
    belief = Belief.layered(
        np.ones((HORIZON, STATES, ACTIONS, STATES)), np.zeros(SHAPE), np.ones(SHAPE), r_max=1e-9, discount=DISCOUNT,
        noise_var=1.0, visits=visits + 1 / PRIOR,
    )  # fmt: skip
    return local_uncertainty(visits), solve(belief, "uniform", "count").variance


def test_nu_is_the_tabular_count_variance(problem: tuple[np.ndarray, np.ndarray]) -> None:
    nu, u = problem
    np.testing.assert_allclose(nu[-1], u[-1], rtol=1e-4)  # in the last layer u is ν
    assert not np.allclose(nu[0], u[0], rtol=0.5)


@functools.partial(jax.jit, static_argnums=0)
def targets(n: int, table: Any, nu: Any, decay: Any) -> backups.Finished:
    """The stream of all episodes, then n steps more so that the last decisions leave too."""
    rows = jnp.concatenate([jnp.asarray(every_episode()), jnp.zeros((n, 3), jnp.int32)])

    def step(window: backups.Window, row: Any) -> tuple[backups.Window, backups.Finished]:
        h, s, a = row
        window, finished = backups.arrive(window, table[h, s, a], decay)
        window = backups.enter(window, nu[h, s, a], DISCOUNT)
        closed = backups.end_episode(window, 0.0)
        return jax.tree.map(lambda new, old: jnp.where(h == HORIZON - 1, new, old), closed, window), finished

    return jax.lax.scan(step, backups.empty_window(n), rows)[1]


@pytest.mark.parametrize(("n", "decay"), [(1, 1.0), (2, 1.0), (2, 0.6), (3, 1.0), (150, 1.0), (150, 0.3)])
def test_the_stream_regression_is_the_tabular_solution(
    n: int, decay: float, problem: tuple[np.ndarray, np.ndarray]
) -> None:
    nu, u = problem
    rows = tuple(every_episode().T)
    table = np.zeros(SHAPE)
    rounds = 1 if n >= HORIZON and decay == 1 else HORIZON  # Monte Carlo targets need no bootstrap
    for _ in range(rounds):
        out = targets(n, table, nu, decay)
        total, count = np.zeros(SHAPE), np.zeros(SHAPE)
        np.add.at(total, rows, np.asarray(out.target[n:]))
        np.add.at(count, rows, 1)
        table = total / np.maximum(count, 1)  # the least-squares fit of a table
    reached = count > 0
    assert reached.sum() == ACTIONS * (1 + STATES * (HORIZON - 1))
    np.testing.assert_allclose(table[reached], u[reached], rtol=2e-5)


class Table(nn.Module):
    """Values of each action in each state of a one-hot observation, and that observation as the features."""

    head: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        flat = x.reshape(x.shape[0], -1)
        values = nn.Dense(ACTIONS, use_bias=False, kernel_init=nn.initializers.normal(1.0))(flat)
        return values if self.head else (values, flat)


@pytest.mark.parametrize("n", [1, 3])
def test_the_linear_agent_in_the_tabular_basis_is_the_tabular_agent(n: int) -> None:
    """Algorithm 1 with a table, written down plainly, makes the decisions of the learner and learns the same u."""
    config = filled(
        agent_config(
            "ube-1step", SMALL | {"hidden": (64,), "n": n, "beta": 2.0, "prior": PRIOR, "warmup_policy": "agent"}
        ),
        SEA,
    )
    shape, knobs = split_knobs(config)
    knobs = knobs._replace(u_learning_rate=0.5)  # of the squared error: a half makes the table the target
    learner = Learner(shape, SEA)
    learner.values.__dict__.update(network=Table(head=False))
    learner.__dict__.update(
        u_network=Table(head=True),
        u_optimiser=optax.identity(),  # instead of what it makes
    )
    act, observe, after_step = jax.jit(learner.act), jax.jit(learner.observe), jax.jit(learner.after_step)
    step, reset = jax.jit(SEA.step), jax.jit(SEA.reset)
    state, world = learner.init(jax.random.key(0), knobs), SEA.draw(jax.random.key(1))
    q, u = (np.array(params["params"]["Dense_0"]["kernel"], np.float64) for params in (state.values.params, state.u))
    visits, waiting = np.zeros((64, ACTIONS)), list[tuple[int, int, float]]()

    def finish(following: float, left: int) -> None:
        """Targets that are n steps old, or all where the episode ends."""
        while len(waiting) > left:
            s, a, _ = waiting[0]
            ahead = sum(knobs.discount ** (2 * i) * nu for i, (_, _, nu) in enumerate(waiting[:n]))
            u[s, a] = ahead + knobs.discount ** (2 * len(waiting[:n])) * following
            del waiting[0]

    place, observation = reset(jax.random.key(2), world)
    for t in range(120):
        keys = jax.random.split(jax.random.key(100 + t), 3)
        s = int(np.flatnonzero(observation)[0])
        zeta = np.asarray(jax.random.normal(jax.random.split(keys[0], 4)[0], (1, ACTIONS)))[0]
        choice = act(state, observation, keys[0], knobs)
        nu = 1 / (1 / PRIOR + visits[s])
        np.testing.assert_allclose(choice.nu, nu, rtol=1e-4)
        np.testing.assert_allclose(choice.u, np.maximum(u[s], 0), rtol=1e-3, atol=1e-5)
        a = int(np.argmax(q[s] + 2.0 * zeta * np.sqrt(np.maximum(u[s], 0))))
        assert choice.action == a
        finish(max(u[s, a], 0), n - 1)
        waiting.append((s, a, nu[a]))
        visits[s, a] += 1
        state, _ = observe(state, choice, knobs)
        place, after = step(keys[1], world, place, choice.action)
        if after.terminated:
            finish(0.0, 0)
        state = after_step(state, after.reward, 0.0, after.terminated, False, keys[2], knobs)
        observation = after.observation
        if after.terminated:
            place, observation = reset(keys[2], world)
    assert visits.max() > 5
