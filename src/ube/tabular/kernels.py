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
def through_next(problem, posterior, tables, diagonal, row_a, row_b):
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
                    inner += posterior.alpha[start_b + j] * tables.value_variance[node]
            elif problem.slot[other] >= 0:
                inner += posterior.alpha[start_b + j] * tables.covariance[place, problem.slot[other]]
        result += posterior.alpha[start_a + i] * inner
    return result / (posterior.total[problem.group[row_a]] * posterior.total[problem.group[row_b]])


@compiled
def evaluate_row(problem, posterior, rule, tables, row):
    """Q̄ and its variance u for one row; returned is the part of u that the row's own belief adds, and p̄·sample."""
    g = problem.group[row]
    first = problem.indptr[row]
    count = problem.indptr[row + 1] - first
    start = problem.alpha_start[g]
    total = posterior.total[g]
    mean = 0.0
    square = 0.0
    spread = 0.0
    sampled = 0.0
    for k in range(count):
        node = problem.successor[first + k]
        p = posterior.alpha[start + k] / total
        v = tables.value[node]
        mean += p * v
        square += p * v * v
        sampled += p * tables.sampled[node]
        if tables.value_variance[node] != 0.0:  # p may be 0 in an empirical model, the variance infinite
            spread += p * tables.value_variance[node]
    q = posterior.reward_mean[g] + rule.bonus[row] + problem.discount * mean
    tables.q[row] = min(q, rule.cap[row])

    squared = problem.discount * problem.discount
    local = max(0.0, square - mean * mean) / (total + 1.0)
    if rule.method == LINEAR:
        local = rule.transition_scale[row] * (count - 1) / (total + 1.0)
        through = spread
    elif rule.method == POMBU:
        through = spread
    else:
        through = through_next(problem, posterior, tables, rule.method == DIAGONAL, row, row)
        if count > 1:
            local += (spread - through) / (total + 1.0)
    own = posterior.reward_variance[g] + squared * local
    tables.u[row] = own + squared * through
    return own, sampled


@compiled
def choose(rule, q, u, own, continuation, row):
    """The index of which a state's action is the argmax."""
    if rule.mode == ACTING:  # an action nothing is known about comes first
        return np.inf if u == np.inf else perturbed(q, u, rule.zeta[row], rule.beta)
    if rule.mode == JOINT:
        return perturbed(continuation, own, rule.zeta[row], rule.beta)
    return q


@compiled
def backward(problem, posterior, rule, tables):
    """One pass over an acyclic problem: Q̄, its variance u, and the policy if it is not given.

    The variance, by `rule.method`:
    LINEAR    u = ν + γ² Σ p̄ π u' with ν = Var μ + γ² Q_max² (K - 1)/(α₀ + 1)   (Lemma 1, Theorem 1)
    POMBU     the same with ν = Var μ + γ² V̄ᵀ Sig V̄
    EXACT     Var μ + γ² (V̄ᵀ Sig V̄ + tr(Sig C) + p̄ᵀ C p̄), `covariance` holding C of the nodes still needed
    DIAGONAL  the same with the off-diagonal of C left out

    The policy, by `rule.mode`: GIVEN; GREEDY in Q̄; ACTING, argmax Q̄ + βζ√u, so that Q̄ and u are those of the policy
    that acts; JOINT, greedy in one sample of all values; SOFT, Boltzmann with log-sum-exp values (temperature β).
    """
    n_actions = problem.n_actions
    for node in problem.order:
        best = -1
        best_index = -np.inf
        for action in range(n_actions):
            row = node * n_actions + action
            if problem.indptr[row + 1] == problem.indptr[row]:
                continue
            own, sampled = evaluate_row(problem, posterior, rule, tables, row)
            if rule.mode == GIVEN:
                continue
            continuation = posterior.reward_mean[problem.group[row]] + problem.discount * sampled
            index = choose(rule, tables.q[row], tables.u[row], own, continuation, row)
            if best < 0 or index > best_index:
                best = action
                best_index = index
        if rule.mode == SOFT:
            tables.value[node] = soften(problem, tables, rule.beta, node, best_index)
        else:
            if rule.mode != GIVEN:
                tables.policy[node, :] = 0.0
                tables.policy[node, best] = 1.0
                tables.sampled[node] = best_index
            summarise_value(problem, posterior, rule, tables, node)


@compiled
def soften(problem, tables, temperature, node, largest):
    """Writes the Boltzmann policy of a node and returns τ log Σ exp(Q / τ)."""
    total = 0.0
    for action in range(problem.n_actions):
        row = node * problem.n_actions + action
        tables.policy[node, action] = 0.0
        if problem.indptr[row + 1] > problem.indptr[row]:
            tables.policy[node, action] = np.exp((tables.q[row] - largest) / temperature)
            total += tables.policy[node, action]
    tables.policy[node] /= total
    return largest + temperature * np.log(total)


@compiled
def summarise_value(problem, posterior, rule, tables, node):
    """V̄ = Σ π Q̄, its variance, and (EXACT) its covariance with every value still needed."""
    n_actions = problem.n_actions
    squared = problem.discount * problem.discount
    value = 0.0
    variance = 0.0
    for action in range(n_actions):
        weight = tables.policy[node, action]
        if weight == 0.0:
            continue
        row = node * n_actions + action
        value += weight * tables.q[row]
        if rule.method == LINEAR or rule.method == POMBU:
            variance += weight * tables.u[row]
            continue
        variance += weight * weight * tables.u[row]
        for other in range(action):
            if tables.policy[node, other] > 0.0:
                shared = through_next(
                    problem, posterior, tables, rule.method == DIAGONAL, row, node * n_actions + other
                )
                variance += 2.0 * weight * tables.policy[node, other] * squared * shared
    tables.value[node] = value
    tables.value_variance[node] = variance
    if rule.method != EXACT:
        return
    own = problem.slot[node]
    with_others = np.zeros(tables.covariance.shape[0])
    for action in range(n_actions):
        row = node * n_actions + action
        start = problem.alpha_start[problem.group[row]]
        weight = problem.discount * tables.policy[node, action] / posterior.total[problem.group[row]]
        if weight == 0.0:
            continue
        for k in range(problem.indptr[row + 1] - problem.indptr[row]):
            place = problem.slot[problem.successor[problem.indptr[row] + k]]
            if place >= 0:
                with_others += weight * posterior.alpha[start + k] * tables.covariance[place]
    tables.covariance[own, :] = with_others
    tables.covariance[:, own] = with_others
    tables.covariance[own, own] = variance


@compiled
def sweep(n_actions, indptr, successor, alpha, weight, base, value, new_value, first, last):
    """V ← base + Σ_a weight Σ_s' alpha V' for the nodes first..last; returns the least and the greatest change.

    weight (rows,) holds π · discount / α₀, so the row means are never stored.
    """
    least = np.inf
    greatest = -np.inf
    for node in range(first, last):
        result = base[node]
        for row in range(node * n_actions, (node + 1) * n_actions):
            if weight[row] != 0.0:
                total = 0.0
                for edge in range(indptr[row], indptr[row + 1]):
                    total += alpha[edge] * value[successor[edge]]
                result += weight[row] * total
        new_value[node] = result
        change = result - value[node]
        least = min(least, change)
        greatest = max(greatest, change)
    return least, greatest


@compiled
def expected_next(indptr, successor, alpha, value, first, last, mean, local):
    """Per row: p̄·V, and (where `local` is not empty) V̄ᵀ Sig V̄ of the Dirichlet row."""
    for row in range(first, last):
        total = 0.0
        weighted = 0.0
        square = 0.0
        for edge in range(indptr[row], indptr[row + 1]):
            v = value[successor[edge]]
            total += alpha[edge]
            weighted += alpha[edge] * v
            square += alpha[edge] * v * v
        if total > 0.0:
            weighted /= total
            if len(local):
                local[row] = max(0.0, square / total - weighted * weighted) / (total + 1.0)
        mean[row] = weighted


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
