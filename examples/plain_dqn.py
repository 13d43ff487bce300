"""A plain DQN on DeepSea, exploring by ε-greedy: nothing of `ube` in it. plain_dqn_ube.py is this file with UBE added."""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from deep_sea import DeepSea, summary

DISCOUNT, BATCH, LEARNING_RATE, TARGET_EVERY = 0.99, 64, 2e-3, 4
EPSILON = 0.1

optimizer = optax.adam(LEARNING_RATE)


def mlp(key, sizes):
    """Weights and biases of each layer."""
    layers = zip(jax.random.split(key, len(sizes) - 1), itertools.pairwise(sizes), strict=True)
    return [(jax.random.normal(k, shape) * (2 / shape[0]) ** 0.5, jnp.zeros(shape[1])) for k, shape in layers]


def forward(layers, x):
    """x (…, inputs) gives (…, outputs)."""
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def values(params, obs):
    """Q of every action, (…, A)."""
    return forward(params["q"], obs)


@jax.jit
def act(params, obs):
    """The greedy action."""
    return values(params, obs).argmax()


def loss(params, target_params, batch):
    obs, action, reward, next_obs, continues = batch
    q_next = values(target_params, next_obs)
    target = reward + DISCOUNT * continues * q_next.max(-1)
    q = forward(params["q"], obs)[jnp.arange(BATCH), action]
    return optax.huber_loss(q, target).mean()


@jax.jit
def update(params, target_params, opt_state, batch):
    grads = jax.grad(loss)(params, target_params, batch)
    changes, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, changes), opt_state


def sample(replay, rng):
    """A batch of transitions, one array for each of their parts. Old ones are never dropped: runs are short here."""
    return [np.stack(part) for part in zip(*(replay[i] for i in rng.integers(len(replay), size=BATCH)), strict=True)]


def train(env, episodes, seed):
    """Returns of the episodes."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    n_inputs, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    params = {"q": mlp(key, [n_inputs, 50, 50, n_actions])}
    target_params, opt_state = params, optimizer.init(params)
    replay, returns, steps = [], [], 0
    for _ in range(episodes):
        obs, done, total = env.reset()[0], False, 0.0
        while not done:
            action = rng.integers(n_actions) if rng.random() < EPSILON else act(params, obs)
            action = int(action)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            replay.append((obs, action, np.float32(reward), next_obs, np.float32(not terminated)))
            if len(replay) >= BATCH:
                params, opt_state = update(params, target_params, opt_state, sample(replay, rng))
                if steps % TARGET_EVERY == 0:
                    target_params = params
            obs, done, total, steps = next_obs, terminated or truncated, total + reward, steps + 1
        returns.append(total)
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10, help="rows and columns of DeepSea")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="decides the environment, the weights and the exploration")
    args = parser.parse_args()
    returns = train(DeepSea(args.size, args.seed), args.episodes, args.seed)
    print(f"plain DQN, DeepSea {args.size}, seed {args.seed}: {summary(returns)}")
