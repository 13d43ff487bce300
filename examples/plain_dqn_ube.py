"""plain_dqn.py with its exploration replaced: optimism about what is uncertain, Q + β√u, in the place of ε-greedy."""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from deep_sea import DeepSea, summary

from ube.acting import perturbed
from ube.backups import chosen, ube_target
from ube.linear import inverse_count, sherman_morrison

DISCOUNT, BATCH, LEARNING_RATE, TARGET_EVERY = 0.99, 64, 2e-3, 4
BETA, FEATURES = 2.0, 128

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


def phi(known, obs):
    """Fixed random Fourier features of length about 1, (…, FEATURES): nearby observations share their counts."""
    return (2 / FEATURES) ** 0.5 * jnp.cos(obs @ known["frequencies"] + known["phases"])


def values(params, known, obs):
    """Q and u of every action, (…, A): u is ν, how uncertain this step is, plus what the u-network says of later ones."""
    nu = inverse_count(known["sigma"], phi(known, obs)).T
    return forward(params["q"], obs), nu + jax.nn.relu(forward(params["u"], obs))


@jax.jit
def act(params, known, obs):
    """The optimistic action, and what is known once it has been counted."""
    action = perturbed(*values(params, known, obs), zeta=1.0, beta=BETA).argmax()
    sigma = sherman_morrison(known["sigma"][action], phi(known, obs))
    return action, {**known, "sigma": known["sigma"].at[action].set(sigma)}


def loss(params, target_params, known, batch):
    obs, action, reward, next_obs, continues = batch
    q_next, u_next = values(target_params, known, next_obs)
    target = reward + DISCOUNT * continues * q_next.max(-1)
    q = forward(params["q"], obs)[jnp.arange(BATCH), action]
    next_action = perturbed(q_next, u_next, zeta=1.0, beta=BETA).argmax(-1)
    later_target = ube_target(0.0, continues, DISCOUNT, chosen(u_next, next_action))
    later = forward(params["u"], obs)[jnp.arange(BATCH), action]
    return optax.huber_loss(q, target).mean() + optax.huber_loss(later, later_target).mean()


@jax.jit
def update(params, target_params, known, opt_state, batch):
    grads = jax.grad(loss)(params, target_params, known, batch)
    changes, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, changes), opt_state


def sample(replay, rng):
    """A batch of transitions, one array for each of their parts. Old ones are never dropped: runs are short here."""
    return [np.stack(part) for part in zip(*(replay[i] for i in rng.integers(len(replay), size=BATCH)), strict=True)]


def train(env, episodes, seed):
    """Returns of the episodes."""
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    n_inputs, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    params = {name: mlp(k, [n_inputs, 50, 50, n_actions]) for name, k in zip("qu", jax.random.split(key), strict=True)}
    known = {
        "frequencies": jnp.asarray(rng.normal(0.0, 2.0, (n_inputs, FEATURES))),  # length scale 1/2
        "phases": jnp.asarray(rng.uniform(0, 2 * np.pi, FEATURES)),
        "sigma": jnp.tile(jnp.eye(FEATURES), (n_actions, 1, 1)),
    }
    target_params, opt_state = params, optimizer.init(params)
    replay, returns, steps = [], [], 0
    for _ in range(episodes):
        obs, done, total = env.reset()[0], False, 0.0
        while not done:
            action, known = act(params, known, obs)
            action = int(action)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            replay.append((obs, action, np.float32(reward), next_obs, np.float32(not terminated)))
            if len(replay) >= BATCH:
                params, opt_state = update(params, target_params, known, opt_state, sample(replay, rng))
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
    print(f"DQN with UBE, DeepSea {args.size}, seed {args.seed}: {summary(returns)}")
