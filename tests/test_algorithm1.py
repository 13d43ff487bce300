"""examples/algorithm1.py and the agents of the paper decide the same, from the same random draws, and learn the same."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.tiny import session
from ube.deep import replay as ring

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS, WARMUP = 400, 20


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "algorithm1", raising=False)
    import algorithm1

    return algorithm1


def layers(tree: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Dense layers of a network of Flax, in their order."""
    if "kernel" in tree:
        return [(jnp.array(tree["kernel"]), jnp.array(tree["bias"]))]  # copies: the agent gives its own away
    return [layer for name in sorted(tree, key=lambda name: (name != "trunk", name)) for layer in layers(tree[name])]


@pytest.mark.parametrize(("agent", "n"), [("ube-1step", 1), ("ube-nstep", 6)])
def test_the_example_decides_and_learns_as_the_agent(example: Any, agent: str, n: int) -> None:
    run = session(
        agent, n=n, beta=0.5, normalise_features=False, initial_values="random", warmup_policy="agent", q_steps=1,
        target_period=example.TARGET_PERIOD, learning_rate=1e-3,
    )  # fmt: skip
    learner, knobs = run.loop.learner, run.knobs
    carry = run.loop.start(jax.random.key(0), knobs)

    def state_and_zeta(carry: Any) -> tuple[jax.Array, jax.Array]:
        """s and ζ of the next decision, from the agent's own random numbers."""
        act_key = jax.random.split(carry.key, 6)[1]
        s = jnp.array(learner.scaled(carry.place.observation).reshape(-1))
        return s, jax.random.normal(jax.random.split(act_key, 4)[0], (1, 2))[0]

    same = example.Algorithm1(
        *map(layers, (carry.learner.values.params["params"], carry.learner.u["params"])), 2, 0.5, n
    )
    decided = [same.begin(*state_and_zeta(carry))]
    taken, ends = [], 0
    for t in range(STEPS):
        key = jax.random.split(carry.key, 6)[0]
        carry, log, _ = run.loop.chunk(carry, knobs, 1, t >= WARMUP)
        taken.append(int(log.action[0]))
        batch: Any = ()
        if t >= WARMUP:
            drawn, _ = ring.sample(carry.replay, jax.random.split(key, 3)[1], run.config.batch_size)
            s, s_next = (learner.scaled(x).reshape(len(x), -1) for x in (drawn.observation, drawn.next_observation))
            batch = s, drawn.action, drawn.reward, s_next, drawn.continues
        ends, u_network = ends + int(log.ended[0]), same.u_network  # the agent takes this step on u when it acts next
        decided.append(same.step(state_and_zeta(carry)[0], bool(log.ended[0]), batch, state_and_zeta(carry)[1]))
    assert decided[:-1] == taken
    assert ends == STEPS // 8
    assert 0.1 < np.mean(taken) < 0.9
    cells = jnp.eye(64)
    q, phi = learner.values.network.apply(carry.learner.values.params, cells)
    np.testing.assert_allclose(example.forward(same.q_network, cells)[0], q, rtol=0, atol=1e-4)
    u = learner.u_network.apply(carry.learner.u, phi)
    assert float(jnp.ptp(u)) > 0.1
    np.testing.assert_allclose(example.forward(u_network, phi)[0], u, rtol=0, atol=1e-3)
    np.testing.assert_allclose(jnp.stack(same.Sigma), carry.learner.counts.sigma, rtol=0, atol=1e-3)
