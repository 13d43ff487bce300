"""Targets on hand-computed numbers, the window of the stream against a naive loop, and both inside the real learner."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.tiny import session
from ube import backups
from ube.deep.learner import LearnerState
from ube.envs.contract import Step

OBSERVATION = np.zeros((8, 8), bool)
OBSERVATION[0, 0] = True


@pytest.mark.parametrize("of", [np.array, jnp.array])
def test_targets_by_hand(of: Any) -> None:
    q_t = of([[1.0, 3.0], [5.0, -2.0], [-4.0, -1.0]])
    y = backups.q_learning_target(of([1.0, 1.0, 2.0]), of([0.5, 0.0, 0.5]), q_t)
    np.testing.assert_allclose(y, [1 + 0.5 * 3, 1.0, 2 - 0.5])
    other = of([[2.0, 1.0], [0.0, 1.0], [0.0, 1.0]])  # which chooses the actions 0, 1, 1
    y = backups.q_learning_target(of([1.0, 1.0, 2.0]), of([0.5, 0.0, 0.5]), q_t, other)
    np.testing.assert_allclose(y, [1 + 0.5 * 1, 1.0, 2 - 0.5])
    y = backups.ube_target(of([0.25, 0.25]), of([1.0, 0.0]), 0.5, of([8.0, 8.0]))
    np.testing.assert_allclose(y, [0.25 + 0.25 * 8, 0.25])  # γ² = 0.25
    np.testing.assert_array_equal(backups.chosen(of(q_t), of([1, 0, 1])), [3.0, 5.0, -1.0])


class Episodes:
    """A random stream: ν and u of each decision, where episodes end, and u at the end of those that are cut."""

    def __init__(self, seed: int, steps: int, end: float) -> None:
        rng = np.random.default_rng(seed)
        self.nu, self.u, self.u_last = rng.uniform(0.1, 2.0, (3, steps))
        self.ended = rng.random(steps) < end
        self.cut = rng.random(steps) < 0.5

    def naive_target(self, t: int, n: int, discount: float, decay: float) -> float:
        """Of decision t, once step t + n is there: every m-step target, mixed with the weights of the λ-return."""
        total, m_step = 0.0, []
        for i in range(n):
            total += discount ** (2 * i) * self.nu[t + i]
            if self.ended[t + i]:
                last = self.u_last[t + i] if self.cut[t + i] else 0.0
                m_step.append(total + discount ** (2 * i + 2) * last)
                break
            m_step.append(total + discount ** (2 * i + 2) * self.u[t + i + 1])
        weights = [(1 - decay) * decay**i for i in range(len(m_step) - 1)]
        return float(np.dot([*weights, 1 - sum(weights)], m_step))


@functools.partial(jax.jit, static_argnums=0)
def streamed(n: int, nu: Any, u: Any, ended: Any, last: Any, discount: Any, decay: Any) -> backups.Finished:
    def step(window: backups.Window, now: Any) -> tuple[backups.Window, backups.Finished]:
        nu_t, u_t, ended_t, last_t = now
        window, finished = backups.arrive(window, u_t, decay)
        window = backups.enter(window, nu_t, discount)
        closed = backups.end_episode(window, last_t)
        return jax.tree.map(lambda a, b: jnp.where(ended_t, a, b), closed, window), finished

    return jax.lax.scan(step, backups.empty_window(n), (nu, u, ended, last))[1]


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_the_window_is_the_naive_loop(n: int) -> None:
    steps = 200
    for seed, end in enumerate((0.0, 0.05, 0.3, 1.0)):  # no end, n shorter than episodes, longer, episodes of one step
        stream = Episodes(seed, steps, end)
        last = np.where(stream.cut, stream.u_last, 0.0)
        for discount, decay in ((0.9, 1.0), (1.0, 1.0), (0.9, 0.7), (0.8, 0.0), (0.0, 1.0)):
            out = streamed(n, stream.nu, stream.u, stream.ended, last, discount, decay)
            naive = [stream.naive_target(t, n, discount, decay) for t in range(steps - n)]
            np.testing.assert_allclose(out.target[n:], naive, rtol=2e-5)
            np.testing.assert_allclose(out.local[n:], stream.nu[: steps - n], rtol=1e-6)
            np.testing.assert_array_equal(out.valid, np.arange(steps) >= n)  # each once, in order
            np.testing.assert_array_equal(out.slot, np.arange(steps) % n)


class Constant:
    """A real learner that always takes action 1, where u = 2, at one observation: its ν is 1, 1/2, 1/3, … of the visits."""

    def __init__(self, n: int, predicts: str = "total", **overrides: Any) -> None:
        run = session(
            "ube-1step", n=n, policy="ucb", features="bins", u_predicts=predicts, discount=0.5, u_learning_rate=1e-30,
            warmup_policy="agent", **overrides,
        )  # fmt: skip
        learner, knobs = run.loop.learner, run.knobs
        shapes = jax.eval_shape(learner.init, jax.random.key(0), knobs)
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        state.u["params"]["Dense_1"]["bias"] = jnp.array([0.5, 2.0])
        self.start = state._replace(episode_weight=1.0, counts=state.counts._replace(prior=jnp.float32(1.0)))

        def step(state: LearnerState, end: tuple[jax.Array, jax.Array]) -> tuple[LearnerState, Any]:
            choice = learner.act(state, OBSERVATION, jax.random.key(1), knobs)
            state, loss = learner.observe(state, choice, knobs)
            after = run.loop._after_step(state, Step(OBSERVATION, jnp.float32(0), *end), jax.random.key(2), knobs)
            return after, (loss, choice.action, choice.nu, state.stream.window.local, choice.u)

        self.scan = jax.jit(functools.partial(jax.lax.scan, step))

    def walk(self, ends: str) -> Any:
        """Five decisions. After each the episode goes on (-), terminates (T) or is cut (c)."""
        flags = [np.array([end == kind for end in ends]) for kind in "Tc"]
        _, (loss, action, nu, local, u) = self.scan(self.start, tuple(flags))
        assert np.all(action == 1)
        return loss, nu, local, u

    def losses(self, ends: str) -> list[float]:
        """(target - 2)² of each step."""
        return self.walk(ends)[0].tolist()


@pytest.fixture(scope="module")
def one_step() -> Constant:
    return Constant(1)


@pytest.fixture(scope="module")
def three_step() -> Constant:
    return Constant(3)


def test_one_step_targets_of_the_learner(one_step: Constant) -> None:
    # γ² = 1/4: y0 = 1 + 2/4, y1 = 1/2 + 2/4, y2 = 1/3 + 2/4, …
    expected = [0.0] + [(1 / k + 2 / 4 - 2) ** 2 for k in range(1, 5)]
    assert one_step.losses("-----") == pytest.approx(expected, rel=1e-5)
    assert one_step.losses("T----") == pytest.approx([0.0, (1 - 2) ** 2, *expected[2:]], rel=1e-5)
    assert one_step.losses("c----") == pytest.approx(expected, rel=1e-5)  # the same u, from the last observation


def test_n_step_targets_of_the_learner(three_step: Constant) -> None:
    y0 = 1 + 1 / 4 / 2 + 1 / 16 / 3 + 2 / 64
    y1 = 1 / 2 + 1 / 4 / 3 + 1 / 16 / 4 + 2 / 64
    assert three_step.losses("-----") == pytest.approx([0.0] * 3 + [(y0 - 2) ** 2, (y1 - 2) ** 2], rel=1e-5)
    terminated = [(1 + 1 / 8 - 2) ** 2, (1 / 2 - 2) ** 2]  # after two decisions
    assert three_step.losses("-T---") == pytest.approx([0.0] * 3 + terminated, rel=1e-5)
    cut = [(1 + 1 / 8 + 2 / 16 - 2) ** 2, (1 / 2 + 2 / 4 - 2) ** 2]
    assert three_step.losses("-c---") == pytest.approx([0.0] * 3 + cut, rel=1e-5)


def test_nu_is_taken_before_sigma_sees_the_decision(one_step: Constant) -> None:
    _, nu, local, _ = one_step.walk("-----")
    visits = np.arange(5)
    np.testing.assert_allclose(nu, np.stack([np.ones(5), 1 / (1 + visits)], 1), rtol=1e-6)
    np.testing.assert_allclose(local[:, 0], 1 / (1 + visits), rtol=1e-6)


def test_the_u_network_may_predict_what_follows_alone() -> None:
    # The output is 2 as before, u = ν + 2, and what is regressed on is y - ν = γ² (ν' + 2).
    expected = [0.0] + [((1 / k + 2) / 4 - 2) ** 2 for k in range(2, 6)]
    assert Constant(1, "continuation", prior=9.0).losses("-----") == pytest.approx(expected, rel=1e-5)


def test_what_follows_is_clipped_to_the_most_there_can_be() -> None:
    # With μ = 4.5 no ν exceeds 4.5, so at most γ²·4.5 / (1 - γ²) = 1.5 can follow, although the output is 2.
    _, nu, _, u = Constant(1, "continuation", prior=4.5).walk("-----")
    np.testing.assert_allclose(u[:, 1], nu[:, 1] + 1.5, rtol=1e-6)
