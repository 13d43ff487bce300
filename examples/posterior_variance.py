"""How sure can I be of this value? A belief in, mean and variance of Q out, and a check by sampling."""

import numpy as np

from ube.tabular import Belief, monte_carlo, solve

rng = np.random.default_rng(0)
layers, states, actions = 5, 4, 2

# What we believe: a Dirichlet over next states (here: one pseudo-count each) and Normal mean rewards.
alpha = np.ones((layers, states, actions, states))
belief = Belief.layered(alpha, reward_mean=0.0, reward_var=0.25, r_max=2.0)

# What we saw: (layer, state, action, reward, next state).
data = [
    (h, int(rng.integers(states)), int(rng.integers(actions)), rng.normal(0.5), int(rng.integers(states)))
    for h in range(layers)
    for _ in range(20)
]
belief = belief.updated(data)

for method in ("ube", "ube-horizon", "pombu", "exact", "lower"):
    solution = solve(belief, "uniform", method)
    print(f"{method:12} std of Q at the first state: {solution.std[0, 0].round(3)}   {solution.guarantee}")

oracle = monte_carlo(belief, "uniform", samples=20_000, rng=rng)
print(f"{'sampling':12} std of Q at the first state: {np.sqrt(oracle.variance[0, 0]).round(3)}")
