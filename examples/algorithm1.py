"""Algorithm 1 of "The Uncertainty Bellman Equation and Exploration" (O'Donoghue et al. 2018), one-step and n-step.

Read it next to the paper: `Algorithm1.step` is the body of the paper's loop, in its order and its symbols. The agents
`ube-1step` and `ube-nstep` compute the same, compiled; a test feeds both the same random draws and compares every decision.
The environment is DeepSea. With the paper's β = 0.01 the one-step algorithm does not find its treasure; compare

    python examples/algorithm1.py --n 150 --beta 1
"""

import argparse
import itertools
from collections import deque
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from deep_sea import DeepSea, summary

GAMMA, MU = 0.99, 1.0
Q_OPTIMISER, U_OPTIMISER = optax.adam(1e-3), optax.rmsprop(1e-3, decay=0.95)
BATCH, REPLAY, WARMUP, TARGET_PERIOD = 32, 100_000, 100, 50


def network(key, sizes):
    """Weights and biases of each layer."""
    shapes = zip(jax.random.split(key, len(sizes) - 1), itertools.pairwise(sizes), strict=True)
    return [(jax.random.normal(k, shape) / shape[0] ** 0.5, jnp.zeros(shape[1])) for k, shape in shapes]


def forward(layers, x):
    """The output, and the input to the last layer."""
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias, x


@jax.jit
def thompson(q_network, u_network, s, zeta, beta):
    """a' = argmax_b Q(s', b) + β ζ_b u(s', b)^½ (eq. 3), with u(s', a') and φ(s')."""
    Q, phi = forward(q_network, s)  # φ: the input to the last layer of Q
    u = jnp.maximum(forward(u_network, phi)[0], 0.0)  # a variance
    a = (Q + beta * zeta * u**0.5).argmax()
    return a, u[a], phi


@jax.jit
def sherman_morrison(Sigma, phi):
    """(Σ⁻¹ + φφᵀ)⁻¹ (eq. 5)."""
    Sigma_phi = Sigma @ phi
    return Sigma - jnp.outer(Sigma_phi, Sigma_phi) / (1.0 + phi @ Sigma_phi)


@jax.jit
def u_step(u_network, optimiser, phi, a, y):
    """A gradient step on (y - u(s, a))². Nothing reaches Q: φ is a constant here."""
    gradient = jax.grad(lambda layers: (y - forward(layers, phi)[0][a]) ** 2)(u_network)
    change, optimiser = U_OPTIMISER.update(gradient, optimiser)
    return optax.apply_updates(u_network, change), optimiser


@jax.jit
def qlearn(q_network, target, optimiser, batch):
    """A step of DQN (Mnih et al. 2015) on a batch from the replay."""
    s, a, r, s_next, continues = batch
    y = r + GAMMA * continues * forward(target, s_next)[0].max(-1)

    def loss(layers):
        Q = jnp.take_along_axis(forward(layers, s)[0], a[:, None], -1)[:, 0]
        return optax.huber_loss(Q, y).mean()

    change, optimiser = Q_OPTIMISER.update(jax.grad(loss)(q_network), optimiser)
    return optax.apply_updates(q_network, change), optimiser


@dataclass
class Decision:
    """A visit to (s, a) whose target is not complete yet: y = Σ_i γ²ⁱ ν_i so far, and the weight of the next term."""

    phi: jax.Array
    a: int
    y: float = 0.0
    weight: float = 1.0


class Algorithm1:
    def __init__(self, q_network, u_network, n_actions, beta=0.01, n=1):
        self.q_network, self.u_network, self.beta, self.n = q_network, u_network, beta, n
        self.target, self.q_steps = q_network, 0
        self.q_optimiser, self.u_optimiser = Q_OPTIMISER.init(q_network), U_OPTIMISER.init(u_network)
        self.Sigma = [MU * jnp.eye(len(q_network[-1][0]))] * n_actions  # Initialize Σ_a = μI for each a
        self.pending = deque()

    def begin(self, s, zeta):
        """Get initial state s, take initial action a."""
        self.a, _, self.phi = thompson(self.q_network, self.u_network, s, zeta, self.beta)
        return int(self.a)

    def step(self, s_next, terminated, batch, zeta):
        """After action a: s_next is s', or where the episode ended the first state of the next. Returns a'."""
        phi, a = self.phi, int(self.a)  # Retrieve φ(s)
        nu = phi @ self.Sigma[a] @ phi
        self.pending.append(Decision(phi, a))
        for d in self.pending:  # with n = 1, only this one
            d.y, d.weight = d.y + d.weight * nu, 0.0 if terminated else d.weight * GAMMA**2
        if batch:  # Update Q-values using qlearn (which the paper does after choosing a')
            self.q_network, self.q_optimiser = qlearn(self.q_network, self.target, self.q_optimiser, batch)
            self.q_steps += 1
            self.target = self.target if self.q_steps % TARGET_PERIOD else self.q_network
        # Calculate Q(s', b) and u(s', b), sample ζ, choose a'
        self.a, u_next, self.phi = thompson(self.q_network, self.u_network, s_next, zeta, self.beta)
        if len(self.pending) == self.n:
            d = self.pending.popleft()
            y = d.y + d.weight * u_next  # n = 1: φᵀΣφ if the episode ended, else φᵀΣφ + γ² u(s', a')
            self.u_network, self.u_optimiser = u_step(self.u_network, self.u_optimiser, d.phi, d.a, y)
        self.Sigma[a] = sherman_morrison(self.Sigma[a], phi)  # Update Σ_a according to eq. 5
        return int(self.a)  # Take action a'; s ← s', a ← a'


def train(env, episodes, seed, beta=0.01, n=1):
    """Returns of the episodes."""
    q_key, u_key = jax.random.split(jax.random.key(seed))
    rng, A, inputs = np.random.default_rng(seed), int(env.action_space.n), env.observation_space.shape[0]
    agent = Algorithm1(network(q_key, [inputs, 64, 64, A]), network(u_key, [64, 512, A]), A, beta, n)
    replay, returns, total = deque(maxlen=REPLAY), [], 0.0
    s = env.reset()[0]
    a = agent.begin(s, rng.normal(size=A))
    while len(returns) < episodes:
        s_next, r, terminated, truncated, _ = env.step(a)  # Receive new state s' and reward r
        replay.append((s, a, np.float32(r), s_next, np.float32(not terminated)))
        total += r
        if terminated or truncated:
            returns.append(total)
            s_next, total = env.reset()[0], 0.0
        batch = [replay[i] for i in rng.integers(len(replay), size=BATCH)] if len(replay) >= WARMUP else []
        a = agent.step(s_next, terminated, [np.stack(part) for part in zip(*batch, strict=True)], rng.normal(size=A))
        s = s_next
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1, help="terms of ν in a target; the paper has 1 and 150")
    parser.add_argument("--beta", type=float, default=0.01, help="scale of the noise; the paper's on Atari")
    parser.add_argument("--size", type=int, default=6, help="rows and columns of DeepSea")
    parser.add_argument("--episodes", type=int, default=300)
    args = parser.parse_args()
    print(f"Algorithm 1, n = {args.n}: {summary(train(DeepSea(args.size, 0), args.episodes, 0, args.beta, args.n))}")
