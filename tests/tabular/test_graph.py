"""The sparse skeleton: order, slots, shapes and the names of rows."""

import re

import numpy as np
import pytest

from tabular.random_beliefs import dag, layers, random_belief
from ube import UsageError
from ube.tabular import Belief
from ube.tabular.graph import Graph
from ube.tabular.mdp import chain, deep_sea


def diamond():
    """0 -> {1, 2} -> 3 with two actions; action 1 exists in state 0 only."""
    indptr = [0, 2, 3, 4, 4, 5, 5, 5, 5]
    return Graph(4, 2, np.array(indptr, np.int64), np.array([1, 2, 2, 3, 3], np.int32))


def loop():
    """0 -> 1 -> 0, and 1 -> 2, the end."""
    return Graph(3, 1, np.array([0, 1, 3, 3], np.int64), np.array([1, 0, 2], np.int32))


def edges(graph):
    for row in range(graph.n_rows):
        for child in graph.indices[graph.indptr[row] : graph.indptr[row + 1]]:
            yield row // graph.n_actions, int(child)


def test_what_exists_in_the_diamond():
    graph = diamond()
    assert (graph.n_rows, graph.n_decisions, graph.shape) == (8, 4, (4, 2))
    assert graph.successors.tolist() == [2, 1, 1, 0, 1, 0, 0, 0]
    assert graph.available.tolist() == [[True, True], [True, False], [True, False], [False, False]]
    assert graph.terminal.tolist() == [False, False, False, True]
    assert graph.order.tolist() in ([1, 2, 0], [2, 1, 0])


def test_a_cycle_has_no_order():
    assert loop().order is None
    assert Graph(1, 1, np.array([0, 1], np.int64), np.array([0], np.int32)).order is None  # nothing ends it


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_order_puts_successors_first(structure, seed):
    graph = random_belief(np.random.default_rng(seed), structure).graph
    place = {int(node): i for i, node in enumerate(graph.order)}
    assert sorted(place) == np.flatnonzero(~graph.terminal).tolist()
    for node, child in edges(graph):
        assert graph.terminal[child] or place[child] < place[node]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("structure", ["layered", "ragged", "acyclic"])
def test_nodes_that_are_needed_together_have_different_slots(structure, seed):
    graph = random_belief(np.random.default_rng(100 + seed), structure).graph
    slot, n_slots = graph.slots
    step = {int(node): i for i, node in enumerate(graph.order)}
    last_use = dict(step)
    for node, child in edges(graph):
        if child in step:
            last_use[child] = max(last_use[child], step[node])
    assert (slot[graph.terminal] == -1).all()
    assert {int(slot[node]) for node in step} == set(range(n_slots))
    for node in step:
        for other in step:
            if node != other and step[other] <= step[node] <= last_use[other]:
                assert slot[node] != slot[other], f"{node} would overwrite {other}"


def test_slots_of_a_layered_problem_do_not_grow_with_the_horizon():
    size = 30
    assert deep_sea(size, np.random.default_rng(0)).graph.slots[1] <= 2 * size
    assert chain(200).graph.slots[1] == 2


def test_rows_are_named_as_users_index_them():
    assert diamond().entry(5) == "[2, 1]"
    rng = np.random.default_rng(0)
    graph = Belief.layered(layers(rng, [2, 3, 1, 4], 2), 0.0, 1.0).graph
    assert graph.layers == (0, 2, 5, 6)
    assert [graph.entry(row) for row in (0, 3, 4, 9, 10, 11)] == [
        "[0, 0, 0]", "[0, 1, 1]", "[1, 0, 0]", "[1, 2, 1]", "[2, 0, 0]", "[2, 0, 1]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("widths", "ragged", "shape"),
    [
        ([2, 2, 2], False, (2, 2, 3)),
        ([2, 2, 1], False, (2, 2, 3)),  # what follows the horizon does not count
        ([2, 1, 2], True, (3, 3)),
    ],
)
def test_shown_is_the_inverse_of_per_row(widths, ragged, shape):
    graph = Belief.layered(layers(np.random.default_rng(0), widths, 3), 0.0, 1.0).graph
    assert (graph.is_ragged, graph.shape) == (ragged, shape)
    rows = np.arange(1.0, graph.n_rows + 1)
    rows[graph.n_decisions * graph.n_actions :] = 0.0
    shown = graph.shown(rows)
    np.testing.assert_array_equal(graph.per_row(shown, "x"), rows)
    np.testing.assert_array_equal(graph.per_row(list(shown), "x"), rows)  # a list of layers is always welcome
    if ragged:
        assert [part.shape for part in shown] == [(2, 3), (1, 3)]
    else:
        assert shown.shape == shape
    np.testing.assert_array_equal(graph.per_row(4.0, "x"), np.where(rows > 0, 4.0, 0.0))


def test_a_graph_without_layers_shows_every_node():
    alpha, terminal = dag(np.random.default_rng(0), 5, 2)
    graph = Belief.acyclic(alpha, 0.0, 1.0, terminal=terminal).graph
    rows = np.arange(10.0)
    assert graph.shown(rows).shape == (5, 2)
    np.testing.assert_array_equal(graph.per_row(graph.shown(rows), "x"), rows)


@pytest.mark.parametrize(
    ("widths", "values", "message"),
    [
        (
            [2, 2, 2],
            np.zeros((2, 2)),
            "x has shape (2, 2): expected (2, 2, 3) (layers, states, actions), or one number",
        ),
        ([2, 2, 2], [np.zeros((2, 3)), np.zeros((3, 3))], "x[1] has shape (3, 3): layer 1 needs (2, 3)"),
        ([2, 1, 2], [np.zeros((2, 3)), np.zeros((2, 3))], "x[1] has shape (2, 3): layer 1 needs (1, 3)"),
        ([2, 1, 2], np.zeros((2, 2, 3)), "x has shape (2, 2, 3): expected a list of 2 arrays, one per layer"),
        (
            [2, 1, 2],
            [np.zeros((2, 3)), np.zeros((1, 3)), np.zeros((2, 3))],
            "expected a list of 2 arrays",
        ),
    ],
)
def test_wrong_shapes_are_named(widths, values, message):
    graph = Belief.layered(layers(np.random.default_rng(0), widths, 3), 0.0, 1.0).graph
    with pytest.raises(UsageError, match=re.escape(message)):
        graph.per_row(values, "x")
