"""The compiled learning loop behind `simulate.learn`; planning itself is `kernels.backward`."""

from typing import Any, NamedTuple

import numpy as np

from ube.tabular.agents import KINDS, NOISES
from ube.tabular.kernels import (
    ACTING,
    DIAGONAL,
    EXACT,
    GREEDY,
    JOINT,
    LINEAR,
    POMBU,
    SOFT,
    Posterior,
    Rule,
    backward,
    compiled,
    empty_tables,
    perturbed,
    soften,
)

METHOD_CODES = {
    "ube": LINEAR, "ube-horizon": LINEAR, "count": LINEAR, "pombu": POMBU, "exact": EXACT, "lower": DIAGONAL
}  # fmt: skip
UBE, BONUS, EPSILON, BOLTZMANN, PSRL, RLSVI, UCBVI, K_LEARNING = range(len(KINDS))
STEP, EPISODE, UCB, JOINT_NOISE = range(len(NOISES))


class Truth(NamedTuple):
    probability: Any
    reward_mean: Any
    reward_std: Any
    start: int


class State(NamedTuple):
    """The belief, updated in place, and the raw data that agents without a prior use."""

    alpha: Any
    total: Any
    reward_mean: Any
    reward_variance: Any
    noise_variance: Any
    counts: Any  # of each transition
    visits: Any
    reward_sum: Any


class Settings(NamedTuple):
    kind: int
    method: int
    counted: bool  # the count form of ν
    noise: int
    evaluate_acting: bool
    beta: float
    epsilon: float
    temperature: float
    prior_std: float
    transition_scale: Any  # (rows,) Q_max²
    largest_return: Any  # (rows,) from this node on


@compiled
def local_uncertainty(problem, state, settings, row):
    """ν of Lemma 1, or its count form."""
    g = problem.group[row]
    count = problem.indptr[row + 1] - problem.indptr[row]
    scale = problem.discount * problem.discount * settings.transition_scale[row]
    if settings.counted:  # n = 0 as 1: an infinite ν would make all paths to anything new look alike
        return (state.noise_variance[g] + scale * count) / max(state.visits[g], 1.0)
    return state.reward_variance[g] + scale * (count - 1) / (state.total[g] + 1.0)


@compiled
def sample_model(problem, state, alpha, reward, rng):
    """One MDP from the belief (PSRL); rows that share a posterior share the draw."""
    for g in range(len(state.visits)):
        reward[g] = state.reward_mean[g] + np.sqrt(state.reward_variance[g]) * rng.standard_normal()
        total = 0.0
        for entry in range(problem.alpha_start[g], problem.alpha_start[g + 1]):
            alpha[entry] = rng.standard_gamma(state.alpha[entry])
            total += alpha[entry]
        if total == 0.0 and problem.alpha_start[g] < problem.alpha_start[g + 1]:  # tiny alpha: all mass on one entry
            pick = rng.random() * state.total[g]
            entry = problem.alpha_start[g]
            while entry < problem.alpha_start[g + 1] - 1 and pick >= state.alpha[entry]:
                pick -= state.alpha[entry]
                entry += 1
            alpha[entry] = total = 1.0
        for entry in range(problem.alpha_start[g], problem.alpha_start[g + 1]):
            alpha[entry] /= total


class Scratch(NamedTuple):
    """Reused from episode to episode; the zeros stay zero."""

    zeta: Any  # (rows,)
    bonus: Any  # (rows,)
    cap: Any  # (rows,)
    alpha: Any  # (entries,) of a sampled or empirical model
    total: Any  # (groups,)
    reward_mean: Any  # (groups,)
    reward_variance: Any  # (groups,)
    ones: Any  # (groups,)
    no_variance: Any  # (groups,)
    no_scale: Any  # (rows,)


@compiled
def empty_scratch(n_rows, n_groups, n_entries):
    return Scratch(
        zeta=np.zeros(n_rows),
        bonus=np.zeros(n_rows),
        cap=np.full(n_rows, np.inf),
        alpha=np.zeros(n_entries),
        total=np.zeros(n_groups),
        reward_mean=np.zeros(n_groups),
        reward_variance=np.zeros(n_groups),
        ones=np.ones(n_groups),
        no_variance=np.zeros(n_groups),
        no_scale=np.zeros(n_rows),
    )


@compiled
def draw_noise(noise, zeta, rng):
    """ζ of eq. 3. A state is seen at most once an episode, so one draw per row is one per action and step."""
    shared = rng.standard_normal() if noise == EPISODE else 1.0
    for row in range(len(zeta)):
        zeta[row] = rng.standard_normal() if noise == STEP or noise == JOINT_NOISE else shared


@compiled
def empirical_model(problem, state, prior_visits, scratch):
    """Mean rewards and transitions from the data alone, as if so many visits had led to nothing.

    A row with one successor is a known transition, here as for every agent.
    """
    for g in range(len(state.visits)):
        n = state.visits[g] + prior_visits
        scratch.total[g] = n if n > 0.0 else 1.0
        scratch.reward_mean[g] = state.reward_sum[g] / scratch.total[g]
        known = problem.alpha_start[g + 1] - problem.alpha_start[g] == 1
        for entry in range(problem.alpha_start[g], problem.alpha_start[g + 1]):
            scratch.alpha[entry] = scratch.total[g] if known else state.counts[entry]
    return Posterior(scratch.alpha, scratch.total, scratch.reward_mean, scratch.no_variance)


@compiled
def plan(problem, state, settings, scratch, tables, episode, rng):
    """Q, u and the policy for the coming episode."""
    kind, beta, bonus = settings.kind, settings.beta, scratch.bonus
    posterior = Posterior(state.alpha, state.total, state.reward_mean, scratch.no_variance)
    method, mode, scale = LINEAR, GREEDY, scratch.no_scale
    if kind == UBE or kind == K_LEARNING:
        variance = state.reward_variance
        method, scale = settings.method, settings.transition_scale
        if settings.counted:
            for row in range(len(bonus)):
                scratch.reward_variance[problem.group[row]] = local_uncertainty(problem, state, settings, row)
            variance, scale = scratch.reward_variance, scratch.no_scale
        posterior = Posterior(state.alpha, state.total, state.reward_mean, variance)
        if kind == K_LEARNING:
            mode, beta = SOFT, settings.beta / np.sqrt(episode + 1.0)
        else:
            if settings.evaluate_acting:
                mode = JOINT if settings.noise == JOINT_NOISE else ACTING
            draw_noise(settings.noise, scratch.zeta, rng)
    elif kind == BONUS:
        for row in range(len(bonus)):
            nu = local_uncertainty(problem, state, settings, row)
            bonus[row] = np.inf if nu == np.inf else beta * np.log(episode + 1.0) * np.sqrt(nu)
    elif kind == PSRL:
        sample_model(problem, state, scratch.alpha, scratch.reward_mean, rng)
        posterior = Posterior(scratch.alpha, scratch.ones, scratch.reward_mean, scratch.no_variance)
    elif kind == RLSVI:  # ridge regression: noise variance β² against a prior variance of prior_std²
        ridge = (beta / settings.prior_std) ** 2
        posterior = empirical_model(problem, state, ridge, scratch)
        for row in range(len(bonus)):
            bonus[row] = beta * rng.standard_normal() / np.sqrt(state.visits[problem.group[row]] + ridge)
    elif kind == UCBVI:
        posterior = empirical_model(problem, state, 0.0, scratch)
        for row in range(len(bonus)):
            n = state.visits[problem.group[row]]
            bonus[row] = np.inf if n == 0 else beta / np.sqrt(n)
    backward(problem, posterior, Rule(method, mode, beta, scratch.zeta, scale, bonus, scratch.cap), tables)


@compiled
def act_on_values(problem, settings, scratch, tables):
    """Overwrites the policy for agents that plan greedily and choose differently."""
    for node in problem.order:
        first = node * problem.n_actions
        n_available = 0
        largest = -np.inf
        best = -1
        for action in range(problem.n_actions):
            row = first + action
            if problem.indptr[row + 1] == problem.indptr[row]:
                continue
            n_available += 1
            index = tables.q[row]
            if settings.kind == UBE:
                unknown = tables.u[row] == np.inf
                index = np.inf if unknown else perturbed(index, tables.u[row], scratch.zeta[row], settings.beta)
            if best < 0 or index > largest:
                best, largest = action, index
        if settings.kind == BOLTZMANN:
            soften(problem.indptr, tables.q, tables.policy[node], settings.temperature, node, largest)
            continue
        dithering = settings.epsilon / n_available if settings.kind == EPSILON else 0.0
        for action in range(problem.n_actions):
            exists = problem.indptr[first + action + 1] > problem.indptr[first + action]
            tables.policy[node, action] = dithering if exists else 0.0
        tables.policy[node, best] += 1.0 - n_available * dithering


@compiled
def draw(probabilities, first, count, rng):
    """An index in 0..count-1 with the probabilities that begin at `first`."""
    pick = rng.random()
    for k in range(count - 1):
        pick -= probabilities[first + k]
        if pick < 0.0:
            return k
    return count - 1


@compiled
def true_value(problem, truth, policy, value):
    """Of the policy from the start, by Bellman's equation on the true MDP."""
    for node in problem.order:
        value[node] = 0.0
        for action in range(problem.n_actions):
            if policy[node, action] > 0.0:
                row = node * problem.n_actions + action
                g = problem.group[row]
                q = truth.reward_mean[g]
                for k in range(problem.indptr[row + 1] - problem.indptr[row]):
                    following = value[problem.successor[problem.indptr[row] + k]]
                    q += problem.discount * truth.probability[problem.alpha_start[g] + k] * following
                value[node] += policy[node, action] * q
    return value[truth.start]


@compiled
def observe(state, g, entry, reward):
    """The conjugate update of one group, in place."""
    state.counts[entry] += 1.0
    state.visits[g] += 1.0
    state.reward_sum[g] += reward
    state.alpha[entry] += 1.0
    state.total[g] += 1.0
    prior = state.reward_variance[g]
    if prior > 0.0:
        gain = 1.0 if prior == np.inf else prior / (prior + state.noise_variance[g])
        state.reward_mean[g] += gain * (reward - state.reward_mean[g])
        state.reward_variance[g] = gain * state.noise_variance[g]


@compiled
def learn(
    problem, truth, state, settings, n_nodes, n_slots, episodes, evaluate_policy, threshold, successes, window, rng
):  # fmt: skip
    """The return of each episode (see `simulate.Learner.run`); ends early after enough successes in a window."""
    true_values = np.zeros(n_nodes)
    tables = empty_tables(n_nodes, problem.n_actions, n_slots)
    scratch = empty_scratch(len(problem.group), len(state.visits), len(state.alpha))
    if settings.kind == UCBVI:
        scratch.cap[:] = settings.largest_return
    reacts = settings.kind == EPSILON or settings.kind == BOLTZMANN
    reacts = reacts or (settings.kind == UBE and not settings.evaluate_acting)
    returns = np.zeros(episodes)
    recent = np.zeros(window, dtype=np.bool_)
    for episode in range(episodes):
        plan(problem, state, settings, scratch, tables, episode, rng)
        if reacts:
            act_on_values(problem, settings, scratch, tables)
        if evaluate_policy:
            returns[episode] = true_value(problem, truth, tables.policy, true_values)
        node = truth.start
        while problem.indptr[node * problem.n_actions] < problem.indptr[(node + 1) * problem.n_actions]:
            row = node * problem.n_actions + draw(tables.policy[node], 0, problem.n_actions, rng)
            first = problem.indptr[row]
            g = problem.group[row]
            entry = problem.alpha_start[g] + draw(
                truth.probability, problem.alpha_start[g], problem.indptr[row + 1] - first, rng
            )
            reward = truth.reward_mean[g] + truth.reward_std[g] * rng.standard_normal()
            if not evaluate_policy:
                returns[episode] += truth.reward_mean[g]
            observe(state, g, entry, reward)
            node = problem.successor[first + entry - problem.alpha_start[g]]
        if successes > 0:
            recent[episode % window] = returns[episode] > threshold
            if np.sum(recent) >= successes:
                return returns[: episode + 1]
    return returns
