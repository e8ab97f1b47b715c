"""The packed structure of many graphs beside plain loops over their clusters, and rows of different lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.graph import junction_tree_graph
from bactrian.graphs.packing import TablePlan, build_layout, pack_models
from bactrian.graphs.ragged import Ragged, first_of, kinds_of_rows, numbered
from bactrian.graphs.structure import structure_of


def random_graph(rng: np.random.Generator) -> bt.ClusterGraph:
    n = int(rng.integers(1, 7))
    sizes = rng.integers(1, 4, n).tolist()
    clusters = [tuple(rng.permutation(n)[: rng.integers(1, min(n, 4) + 1)].tolist()) for _ in range(rng.integers(1, 8))]
    return junction_tree_graph(sizes, clusters) if rng.random() < 0.4 else bt.ClusterGraph(sizes, clusters)


@pytest.mark.parametrize("seed", range(20))
def test_links_beside_the_edges_of_each_graph(seed: int) -> None:
    """Every edge is a link (a hub with two links, on explicit graphs), with the map from table to hub states."""
    rng = np.random.default_rng(seed)
    graphs = [random_graph(rng) for _ in range(rng.integers(1, 5))]
    structure = structure_of(graphs)
    layout = build_layout(structure, TablePlan.own(structure))
    for m, graph in enumerate(graphs):
        first, last = layout.hub_links[layout.instance_hubs[m : m + 2]].tolist()
        base = int(layout.instance_clusters[m])
        found = []
        for link in range(first, last):
            given = int(structure.cluster_given[layout.link_cluster[link]])
            (sepset,) = structure.hub_scopes.tuples(
                int(layout.link_hub[link]), int(layout.link_hub[link]) + 1, int(structure.instance_variables[m])
            )
            found.append((int(structure.link_edge[link]), given, sepset))
            scope = graph.clusters[given]
            states = np.indices(graph.shape(scope)).reshape(len(scope), -1)
            inside = np.ravel_multi_index([states[scope.index(v)] for v in sepset], graph.shape(sepset))
            start = int(layout.link_projection[link])
            np.testing.assert_array_equal(layout.projection[start : start + inside.size], inside)
            assert base <= layout.link_cluster[link] < layout.instance_clusters[m + 1]
        expected = []
        for e, (i, j, sepset) in enumerate(graph.edges):
            expected += [(e, i, sepset)] if graph.is_bethe else [(e, i, sepset), (e, j, sepset)]
        assert found == expected
        hubs = slice(*layout.instance_hubs[m : m + 2].tolist())
        assert np.diff(layout.hub_offset)[hubs].tolist() == [
            math.prod(graph.shape(scope))
            for scope in structure.hub_scopes.tuples(hubs.start, hubs.stop, int(structure.instance_variables[m]))
        ]


def test_edges_of_a_bethe_graph() -> None:
    """The first singleton of a variable is its hub, a second one is linked to it, and others get a hub appended."""
    graph = bt.ClusterGraph([2, 3, 2], [(1, 0), (1,), (1,), (2, 1)])
    assert graph.all_clusters == ((1, 0), (1,), (1,), (2, 1), (0,), (2,))
    assert graph.edges == ((0, 4, (0,)), (0, 1, (1,)), (2, 1, (1,)), (3, 1, (1,)), (3, 5, (2,)))


@pytest.mark.parametrize("clusters", [np.array([[0, 1], [2, 1]]), [np.array([0, 1]), (np.int32(2), np.uint8(1))]])
def test_scopes_of_any_integers(clusters: object) -> None:
    """Scopes given as arrays or with NumPy's integers are tuples of Python's."""
    graph = bt.ClusterGraph([2, 2, 2], clusters)  # type: ignore[arg-type]
    assert graph.clusters == ((0, 1), (2, 1))
    assert {type(v) for scope in graph.clusters for v in scope} == {int}


def test_tables_are_shared_by_object() -> None:
    """The same object is one table, an equal one another; the same model in two instances shares all of its tables."""
    table, scores = np.eye(4), np.arange(4.0)
    graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])
    model = bt.LogLinearModel(graph, [table, table, table.copy()], [scores, scores, None])
    assert pack_models([model]).layout.cluster_table.tolist() == [0, 0, 1]
    assert pack_models([model]).layout.table_shared == 1
    assert pack_models([model, model]).layout.table_shared == 2
    assert model.features[0] is model.features[1]
    assert model.features[2] is not None
    np.testing.assert_array_equal(model.features[2].toarray(), table)
    assert model.base_scores[2] is None


def test_a_model_is_independent_of_what_it_was_made_from() -> None:
    """Later changes of the arrays that were given change nothing."""
    table, scores = np.eye(2), np.zeros(2)
    model = bt.LogLinearModel(bt.ClusterGraph([2], [(0,)]), [table], [scores])
    table[:], scores[:] = 7.0, 7.0
    result = bt.infer(model, [0.0, 0.0])
    assert result.log_partition == pytest.approx(math.log(2.0), abs=1e-12)


def test_rows_of_different_lengths() -> None:
    """Kinds, strides and products of rows beside loops."""
    rng = np.random.default_rng(0)
    rows = [tuple(rng.integers(0, 3, rng.integers(1, 4)).tolist()) for _ in range(60)]
    ragged, sizes = Ragged.of(rows), np.array([2, 3, 5])
    kinds = ragged.kinds()
    assert [[rows[i] == rows[j] for j in range(60)] for i in range(60)] == (kinds[:, None] == kinds).tolist()
    assert [rows[i] for i in first_of(kinds).tolist()] == [rows[kinds.tolist().index(k)] for k in range(max(kinds) + 1)]
    assert ragged.products(sizes).tolist() == [math.prod(int(sizes[v]) for v in row) for row in rows]
    strides = [math.prod(int(sizes[w]) for w in row[place + 1 :]) for row in rows for place in range(len(row))]
    assert ragged.strides(sizes).tolist() == strides
    assert ragged.take(np.array([5, 2])).tuples(0, 2) == [rows[5], rows[2]]
    assert Ragged.of([range(70)]).products(np.full(70, 2)).tolist() == [2**62]
    assert numbered(np.array([10**12, 3, 10**12, 4])).tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize("n", [0, 3, 32, 33, 70])
def test_kinds_of_rows_are_those_of_equal_rows(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = (rng.random((40, n)) < 0.5)[rng.integers(40, size=200)]
    rows[:20] ^= np.arange(n) == n - 1  # which differ in the last flag alone
    equal = (rows[:, None] == rows[None]).all(axis=2)
    kind = kinds_of_rows(rows.T, len(rows))
    np.testing.assert_array_equal(kind[:, None] == kind[None], equal)
    assert set(kind.tolist()) == set(range(int(kind.max()) + 1))
