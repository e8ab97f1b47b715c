"""Graphs as people have them give the model that plain pairs of numbers give."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt

EDGES = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]
WEIGHTS = [1.0, 0.5, 2.0, 1.5, 0.25]
NAMES = ["ann", "bob", "cai", "dee", "eve"]
X = np.random.default_rng(0).normal(size=(5, 2))
Y = [0, 0, 1, 1, 1]


def adjacency(weights=None):
    rows, columns = np.array(EDGES).T
    values = np.ones(len(EDGES)) if weights is None else np.array(weights)
    return sp.csr_array((np.tile(values, 2), (np.r_[rows, columns], np.r_[columns, rows])), shape=(5, 5))


def named_graph(weights=None):
    graph = nx.Graph()
    graph.add_nodes_from((name, {"x": row}) for name, row in zip(NAMES, X, strict=True))
    for e, (a, b) in enumerate(EDGES):
        graph.add_edge(NAMES[a], NAMES[b], **({} if weights is None else {"weight": weights[e]}))
    return graph


def data_of_geometric(weights=None):
    """What ``torch_geometric.data.Data`` has, with each edge in both directions."""
    index = np.array([*EDGES, *(edge[::-1] for edge in EDGES)]).T
    attributes = None if weights is None else np.tile(weights, 2)[:, None]
    return SimpleNamespace(x=X, edge_index=index, edge_attr=attributes, num_nodes=5)


def named_pairs():
    return [(NAMES[a], NAMES[b]) for a, b in EDGES]


GRAPHS = {
    "networkx": named_graph(),
    "features and networkx": (X, nx.Graph(EDGES)),
    "adjacency": (X, adjacency()),
    "directed adjacency": (X, sp.triu(adjacency())),
    "edge_index": (X, np.array(EDGES).T),
    "edge_index in both directions": (X, data_of_geometric().edge_index),
    "geometric": data_of_geometric(),
    "names": (dict(zip(NAMES, X, strict=True)), named_pairs()),
}
WEIGHTED = {
    "networkx": named_graph(WEIGHTS),
    "adjacency": (X, adjacency(WEIGHTS)),
    "triples": (X, [(a, b, w) for (a, b), w in zip(EDGES, WEIGHTS, strict=True)]),
    "geometric": data_of_geometric(WEIGHTS),
    "flat": (X, EDGES, WEIGHTS),
}


@pytest.fixture(scope="module")
def plain():
    crf = bt.GraphCRF(neighbours="edges")
    weighted = np.array(WEIGHTS)[:, None]
    return {None: crf.fit([(X, EDGES)], [Y]).weights_, "weights": crf.fit([(X, EDGES, weighted)], [Y]).weights_}


@pytest.mark.parametrize("form", GRAPHS)
def test_forms_of_a_graph(plain, form):
    crf = bt.GraphCRF(neighbours="edges").fit([GRAPHS[form]], [Y])
    np.testing.assert_allclose(crf.weights_, plain[None], atol=1e-9)
    assert crf.predict([GRAPHS[form]])[0].shape == (5,)


@pytest.mark.parametrize("form", WEIGHTED)
def test_forms_of_a_weighted_graph(plain, form):
    crf = bt.GraphCRF(neighbours="edges").fit([WEIGHTED[form]], [Y])
    np.testing.assert_allclose(crf.weights_, plain["weights"], atol=1e-9)


def test_tensors(plain):
    torch = pytest.importorskip("torch")
    graph = (torch.tensor(X), torch.tensor(data_of_geometric().edge_index))
    np.testing.assert_allclose(bt.GraphCRF(neighbours="edges").fit([graph], [Y]).weights_, plain[None], atol=1e-9)


def test_frames_whose_rows_have_names(plain):
    pandas = pytest.importorskip("pandas")
    graph = (pandas.DataFrame(X, index=NAMES), named_pairs())
    np.testing.assert_allclose(bt.GraphCRF(neighbours="edges").fit([graph], [Y]).weights_, plain[None], atol=1e-9)


def test_labels_by_name(plain):
    graph = named_graph()
    crf = bt.GraphCRF(neighbours="edges").fit([graph], [dict(reversed(list(zip(NAMES, Y, strict=True))))])
    np.testing.assert_allclose(crf.weights_, plain[None], atol=1e-9)
    assert crf.predict([graph], known=[{"eve": 0}])[0][4] == 0
    assert crf.score([graph], [{"ann": 0}]) == float(crf.predict([graph])[0][0] == 0)
    with pytest.raises(ValueError, match=r"y\[0\] has a label of 'zoe', which is not a node"):
        crf.fit([graph], [{"zoe": 1}])


def test_nodes_without_features():
    names = list("abcdef")
    pairs = [("a", "b"), ("b", "c"), ("d", "e"), ("e", "f")]
    crf = bt.GraphCRF(neighbours="edges").fit([(None, pairs)], [dict(zip(names, [0, 0, 0, 1, 1, 1], strict=True))])
    assert crf.n_features_in_ == 0
    assert crf.predict([(None, pairs)], known=[{"a": 0, "f": 1}])[0].tolist() == [0, 0, 0, 1, 1, 1]
    numbers = [(names.index(a), names.index(b)) for a, b in pairs]
    again = bt.GraphCRF(neighbours="edges").fit([(None, numbers)], [[0, 0, 0, 1, 1, 1]])
    np.testing.assert_allclose(again.weights_, crf.weights_, atol=1e-9)


def test_edges_from_a_node_to_itself_are_left_out():
    weights = np.array([*WEIGHTS[:2], 9.0, *WEIGHTS[2:]])[:, None]
    looped = (X, [*EDGES[:2], (4, 4), *EDGES[2:]], weights)
    with pytest.warns(UserWarning, match=r"X: ignored edges from a node to itself \(1 in all, the first in X\[1\]\)"):
        crf = bt.GraphCRF().fit([(X, EDGES, WEIGHTS), looped], [Y, Y[::-1]])
    expected = bt.GraphCRF().fit([(X, EDGES, WEIGHTS), (X, EDGES, WEIGHTS)], [Y, Y[::-1]])
    np.testing.assert_allclose(crf.weights_, expected.weights_, atol=1e-9)


def test_scores_of_what_is_known():
    crf = bt.GraphCRF(neighbours="edges").fit([(X, EDGES)], [Y])
    right = crf.predict([(X, EDGES)])[0] == Y
    assert crf.score([(X, EDGES)], [[-1, 0, 1, -1, -1]]) == right[1:3].mean()
    assert crf.neighbour_scores_ == []
    with pytest.raises(ValueError, match="y holds no known label"):
        crf.score([(X, EDGES)], [[-1] * 5])


@pytest.mark.parametrize(
    "single", [(X, EDGES), (X.tolist(), EDGES), (sp.csr_array(X), EDGES), (None, EDGES), named_graph(), adjacency()]
)
def test_a_single_graph_needs_a_list(single):
    with pytest.raises(ValueError, match="X is a single graph; pass a list of graphs"):
        bt.GraphCRF().fit(single, Y)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ((X, named_pairs()), r"X\[0\]: edges must hold integer node numbers, .* \('ann', 'bob'\)"),
        ((dict(zip(NAMES, X, strict=True)), [("ann", "zoe")]), r"X\[0\]: edges name 'zoe', which is not a node"),
        ((X, nx.Graph([*EDGES[::-1]])), r"X\[0\]: node_features has rows, and the nodes .* in another order"),
        ((X, sp.csr_array((5, 4))), r"X\[0\]: an adjacency must be square, found shape \(5, 4\)"),
        ((X, adjacency().toarray()), r"X\[0\]: edges have shape \(5, 5\); pass an adjacency as scipy.sparse.csr_array"),
        ((X, EDGES, [1.0]), r"X\[0\]: edge_features must have one row per edge: expected 5, found 1"),
        (3, r"X\[0\] must be \(node_features, edges\) or .*, or a graph of networkx, SciPy or PyTorch Geometric"),
    ],
)
def test_refusals(graph, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bt.GraphCRF().fit([graph], [Y])


def test_a_single_picture_and_volumes():
    rng = np.random.default_rng(0)
    picture, labels = rng.normal(size=(6, 5, 3)), rng.integers(0, 2, (6, 5))
    for single in (picture, picture[..., 0], picture.tolist()):
        with pytest.raises(ValueError, match=r"y is of a single grid; pass lists: fit\(\[X\], \[y\]\)"):
            bt.GridCRF().fit(single, labels)
    with pytest.raises(ValueError, match="y is of a single grid"):
        bt.GridCRF().fit([picture], labels)
    with pytest.raises(ValueError, match="X is of a single grid"):
        bt.GridCRF().fit(picture, [labels])
    crf = bt.GridCRF().fit([picture], [labels])
    with pytest.raises(ValueError, match=r"X is of a single grid; pass lists: .*, predict\(\[X\]\)"):
        crf.predict(picture)
    with pytest.raises(ValueError, match=r"y\[0\] is a volume, with three axes; pass connectivity=6"):
        bt.GridCRF().fit([picture], [rng.integers(0, 2, (6, 5, 3))])
    with pytest.raises(ValueError, match=r"X\[0\] must have shape .*; for volumes pass connectivity=6"):
        crf.predict([picture[..., None]])
