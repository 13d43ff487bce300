"""Compiled inner loops of the tabular half. Imported on first use: numba takes most of a second.

Rows, successors and nodes are laid out as in `graph.Graph`. A belief's parameters are held per *group*: rows that share
one posterior (the copies of an unrolled row) share a group, all other rows have one of their own.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ube import acting

compiled = njit(cache=True, nogil=True, error_model="numpy")
perturbed = compiled(acting.perturbed)

# How the variance of the next values enters (see `backward`).
LINEAR, POMBU, DIAGONAL, EXACT = range(4)
# Where the policy comes from (see `choose`).
GIVEN, GREEDY, ACTING, JOINT, SOFT = range(5)


class Problem(NamedTuple):
    """What stays fixed: the graph, which rows share a posterior, the discount."""

    order: Any  # (nodes that act,) each after its successors
    n_actions: int
    indptr: Any  # (rows + 1,)
    successor: Any  # (edges,)
    group: Any  # (rows,)
    alpha_start: Any  # (groups + 1,)
    slot: Any  # (nodes,)
    discount: float


class Posterior(NamedTuple):
    """Row means are alpha / total; total is Σ alpha for a Dirichlet row."""

    alpha: Any  # (entries,)
    total: Any  # (groups,)
    reward_mean: Any  # (groups,)
    reward_variance: Any  # (groups,)


class Rule(NamedTuple):
    """How uncertainty is measured and turned into a policy."""

    method: int
    mode: int
    beta: float
    zeta: Any  # (rows,) noise
    transition_scale: Any  # (rows,) Q_max² of LINEAR
    bonus: Any  # (rows,) added to the reward
    cap: Any  # (rows,) Q is never above this


class Tables(NamedTuple):
    """What a pass writes."""

    policy: Any  # (nodes, actions)
    q: Any  # (rows,)
    u: Any  # (rows,)
    value: Any  # (nodes,)
    value_variance: Any  # (nodes,)
    sampled: Any  # (nodes,) a joint sample of values
    covariance: Any  # (slots, slots)


@compiled
def empty_tables(n_nodes, n_actions, n_slots):
    return Tables(
        policy=np.zeros((n_nodes, n_actions)),
        q=np.zeros(n_nodes * n_actions),
        u=np.zeros(n_nodes * n_actions),
        value=np.zeros(n_nodes),
        value_variance=np.zeros(n_nodes),
        sampled=np.zeros(n_nodes),
        covariance=np.zeros((n_slots, n_slots)),
    )


@compiled
def postorder(n_nodes, n_actions, indptr, indices):
    """Every node after its successors, by depth-first search; False as second value if there is a cycle."""
    order = np.empty(n_nodes, dtype=np.int32)
    state = np.zeros(n_nodes, dtype=np.int8)  # 0 new, 1 on the stack, 2 done
    stack = np.empty(n_nodes, dtype=np.int32)
    edge = np.empty(n_nodes, dtype=np.int64)
    n_done = 0
    for root in range(n_nodes):
        if state[root] != 0:
            continue
        depth = 0
        stack[0] = root
        edge[0] = indptr[root * n_actions]
        state[root] = 1
        while depth >= 0:
            node = stack[depth]
            if edge[depth] < indptr[(node + 1) * n_actions]:
                child = indices[edge[depth]]
                edge[depth] += 1
                if state[child] == 1:
                    return order, False
                if state[child] == 0:
                    depth += 1
                    stack[depth] = child
                    edge[depth] = indptr[child * n_actions]
                    state[child] = 1
            else:
                state[node] = 2
                order[n_done] = node
                n_done += 1
                depth -= 1
    return order, True


@compiled
def assign_slots(n_nodes, n_actions, order, indptr, indices):
    """A slot per node that is given back once the last predecessor is done, and the number of slots."""
    last_use = np.full(n_nodes, -1, dtype=np.int64)
    for step in range(len(order)):
        last_use[order[step]] = step
        for edge in range(indptr[order[step] * n_actions], indptr[(order[step] + 1) * n_actions]):
            last_use[indices[edge]] = step
    slot = np.full(n_nodes, -1, dtype=np.int32)
    free = np.empty(len(order), dtype=np.int32)
    n_free = 0
    n_slots = 0
    for step in range(len(order)):
        node = order[step]
        if n_free > 0:
            n_free -= 1
            slot[node] = free[n_free]
        else:
            slot[node] = n_slots
            n_slots += 1
        if last_use[node] == step:
            free[n_free] = slot[node]
            n_free += 1
        for edge in range(indptr[node * n_actions], indptr[(node + 1) * n_actions]):
            child = indices[edge]
            if last_use[child] == step and slot[child] >= 0:
                last_use[child] = -1  # several rows may lead to it
                free[n_free] = slot[child]
                n_free += 1
    return slot, n_slots


@compiled
def depths(n_nodes, n_actions, order, indptr, indices):
    """The most decisions an episode can still take from each node."""
    depth = np.zeros(n_nodes, dtype=np.int64)
    for node in order:
        for edge in range(indptr[node * n_actions], indptr[(node + 1) * n_actions]):
            depth[node] = max(depth[node], 1 + depth[indices[edge]])
    return depth


@compiled
def row_moments(successor, alpha, first, start, count, total, value, value_variance, sampled):
    """Of one row: p̄·V̄, V̄ᵀ Sig V̄, p̄·U and p̄·(sampled V).

    V̄ᵀ Sig V̄ is taken about the first next value: Sig does not see a constant, and large values would cancel.
    """
    origin = value[successor[first]]
    mean = 0.0
    shift = 0.0
    square = 0.0
    spread = 0.0
    sample = 0.0
    for k in range(count):
        node = successor[first + k]
        p = alpha[start + k] / total
        v = value[node]
        mean += p * v
        shift += p * (v - origin)
        square += p * (v - origin) * (v - origin)
        sample += p * sampled[node]
        if value_variance[node] != 0.0:  # p may be 0 in an empirical model, and the variance infinite
            spread += p * value_variance[node]
    return mean, max(0.0, square - shift * shift) / (total + 1.0), spread, sample


@compiled
def through_next(problem, alpha, total, value_variance, covariance, diagonal, row_a, row_b):
    """p̄_aᵀ C p̄_b: the covariance of two Q-values that comes through the next values."""
    start_a = problem.alpha_start[problem.group[row_a]]
    start_b = problem.alpha_start[problem.group[row_b]]
    first_b = problem.indptr[row_b]
    result = 0.0
    for i in range(problem.indptr[row_a + 1] - problem.indptr[row_a]):
        node = problem.successor[problem.indptr[row_a] + i]
        place = problem.slot[node]
        if place < 0:
            continue
        inner = 0.0
        for j in range(problem.indptr[row_b + 1] - first_b):
            other = problem.successor[first_b + j]
            if diagonal:
                if other == node:
                    inner += alpha[start_b + j] * value_variance[node]
            elif problem.slot[other] >= 0:
                inner += alpha[start_b + j] * covariance[place, problem.slot[other]]
        result += alpha[start_a + i] * inner
    return result / (total[problem.group[row_a]] * total[problem.group[row_b]])


@compiled
def add_covariance(problem, alpha, total, probabilities, variance, covariance, node):
    """The row and column of C for a node just done: γ Σ π p̄ C with the others, its variance with itself."""
    own = problem.slot[node]
    n_slots = covariance.shape[0]
    for other in range(n_slots):
        covariance[own, other] = 0.0
    for action in range(problem.n_actions):
        row = node * problem.n_actions + action
        if probabilities[action] == 0.0:
            continue
        start = problem.alpha_start[problem.group[row]]
        weight = problem.discount * probabilities[action] / total[problem.group[row]]
        for k in range(problem.indptr[row + 1] - problem.indptr[row]):
            place = problem.slot[problem.successor[problem.indptr[row] + k]]
            if place >= 0:
                factor = weight * alpha[start + k]
                for other in range(n_slots):
                    covariance[own, other] += factor * covariance[place, other]
    for other in range(n_slots):
        covariance[other, own] = covariance[own, other]
    covariance[own, own] = variance


@compiled
def backward(problem, posterior, rule, tables):
    """One pass over an acyclic problem: Q̄, its variance u, and the policy if it is not given.

    The variance, by `rule.method`:
    LINEAR    u = ν + γ² Σ p̄ π u' with ν = Var μ + γ² Q_max² (K - 1)/(α₀ + 1)   (Lemma 1, Theorem 1)
    POMBU     the same with ν = Var μ + γ² V̄ᵀ Sig V̄
    EXACT     Var μ + γ² (V̄ᵀ Sig V̄ + tr(Sig C) + p̄ᵀ C p̄), `covariance` holding C of the nodes still needed
    DIAGONAL  the same with the off-diagonal of C left out

    The policy, by `rule.mode`: GIVEN; GREEDY in Q̄; ACTING, argmax Q̄ + βζ√u, so that Q̄ and u are those of the policy
    that acts; JOINT, greedy in one sample of all values; SOFT, K-learning: Boltzmann with temperature τ = β in
    Q̄ + (what the row adds to the variance) / 2τ, with log-sum-exp values.
    """
    # Tuples are taken apart outside the loops: inside them every access would count references.
    order, n_actions, indptr, successor, group, alpha_start, _, discount = problem
    alpha, total, reward_mean, reward_variance = posterior
    method, mode, beta, zeta, transition_scale, bonus, cap = rule
    policy, q, u, value, value_variance, sampled, covariance = tables
    squared = discount * discount
    for node in order:
        best = -1
        best_index = -np.inf
        for action in range(n_actions):
            row = node * n_actions + action
            first = indptr[row]
            count = indptr[row + 1] - first
            if count == 0:
                continue
            g = group[row]
            mean, local, through, sample = row_moments(
                successor, alpha, first, alpha_start[g], count, total[g], value, value_variance, sampled
            )
            q[row] = min(reward_mean[g] + bonus[row] + discount * mean, cap[row])
            if method == LINEAR:
                local = transition_scale[row] * (count - 1) / (total[g] + 1.0)
            elif method != POMBU:
                spread = through
                through = through_next(problem, alpha, total, value_variance, covariance, method == DIAGONAL, row, row)
                local += (spread - through) / (total[g] + 1.0) if count > 1 else 0.0
            own = reward_variance[g] + squared * local
            u[row] = own + squared * through if squared > 0.0 else own
            if mode == GIVEN:
                continue
            if mode == SOFT:
                q[row] += own / (2.0 * beta)
            index = q[row]
            if mode == ACTING:  # an action nothing is known about comes first
                index = np.inf if u[row] == np.inf else perturbed(q[row], u[row], zeta[row], beta)
            elif mode == JOINT:
                index = perturbed(reward_mean[g] + discount * sample, own, zeta[row], beta)
            if best < 0 or index > best_index:
                best = action
                best_index = index
        if mode == SOFT:
            value[node] = soften(indptr, q, policy[node], beta, node, best_index)
            continue
        if mode != GIVEN:
            for action in range(n_actions):
                policy[node, action] = 1.0 if action == best else 0.0
            sampled[node] = best_index
        value[node] = 0.0
        variance = 0.0
        for action in range(n_actions):
            weight = policy[node, action]
            if weight > 0.0:
                row = node * n_actions + action
                value[node] += weight * q[row]
                variance += weight * u[row] * (1.0 if method == LINEAR or method == POMBU else weight)
        if method == DIAGONAL or method == EXACT:
            if mode == GIVEN:
                variance += 2.0 * squared * between_actions(problem, posterior, tables, method == DIAGONAL, node)
            if method == EXACT:
                add_covariance(problem, alpha, total, policy[node], variance, covariance, node)
        value_variance[node] = variance


@compiled
def between_actions(problem, posterior, tables, diagonal, node):
    """Σ_{a<b} π_a π_b p̄_aᵀ C p̄_b: what a mixed policy's actions have in common."""
    result = 0.0
    for action in range(problem.n_actions):
        for other in range(action):
            weight = tables.policy[node, action] * tables.policy[node, other]
            if weight > 0.0:
                result += weight * through_next(
                    problem, posterior.alpha, posterior.total, tables.value_variance, tables.covariance, diagonal,
                    node * problem.n_actions + action, node * problem.n_actions + other,
                )  # fmt: skip
    return result


@compiled
def soften(indptr, q, probabilities, temperature, node, largest):
    """Writes the Boltzmann policy of a node and returns τ log Σ exp(Q / τ)."""
    total = 0.0
    for action in range(len(probabilities)):
        row = node * len(probabilities) + action
        probabilities[action] = 0.0
        if indptr[row + 1] > indptr[row]:
            probabilities[action] = np.exp((q[row] - largest) / temperature)
            total += probabilities[action]
    for action in range(len(probabilities)):
        probabilities[action] /= total
    return largest + temperature * np.log(total)


@compiled
def sweep(n_actions, indptr, successor, alpha, weight, base, value, new_value, first, last):
    """V ← base + Σ_a weight Σ_s' alpha V' for the nodes first..last; returns the least and the greatest change.

    weight (rows,) holds π · discount / α₀, so the row means are never stored.
    """
    # Time goes into waiting for value[successor]: the fewer instructions between two of these, the more are under way
    # at once. Unsigned indices spare numba's handling of negative ones.
    one = np.uint64(1)
    row = np.uint64(first * n_actions)
    edge = np.uint64(indptr[row])
    least = np.inf
    greatest = -np.inf
    for node in range(np.uint64(first), np.uint64(last)):
        result = base[node]
        for _ in range(n_actions):
            end = np.uint64(indptr[row + one])
            if weight[row] != 0.0:
                total = 0.0
                while edge < end:
                    total += alpha[edge] * value[np.uint32(successor[edge])]
                    edge += one
                result += weight[row] * total
            edge = end
            row += one
        new_value[node] = result
        change = result - value[node]
        least = min(least, change)
        greatest = max(greatest, change)
    return least, greatest


@compiled
def expected_next(indptr, successor, alpha, value, first, last, mean, local):
    """Per row: p̄·V, and (where `local` is not empty) V̄ᵀ Sig V̄ of the Dirichlet row."""
    for row in range(first, last):
        if indptr[row] == indptr[row + 1]:
            continue
        origin = value[successor[indptr[row]]]
        total = 0.0
        shift = 0.0
        square = 0.0
        for edge in range(indptr[row], indptr[row + 1]):
            v = value[successor[edge]] - origin
            total += alpha[edge]
            shift += alpha[edge] * v
            square += alpha[edge] * v * v
        shift /= total
        mean[row] = origin + shift
        if len(local):
            local[row] = max(0.0, square / total - shift * shift) / (total + 1.0)


@compiled
def find_edges(indptr, successor, rows, nodes):
    """The place of each node among its row's successors, -1 where it is not one of them."""
    place = np.full(len(rows), -1, dtype=np.int64)
    for i in range(len(rows)):
        for edge in range(indptr[rows[i]], indptr[rows[i] + 1]):
            if successor[edge] == nodes[i]:
                place[i] = edge - indptr[rows[i]]
                break
    return place
