"""Graphs as people have them: networkx, SciPy's sparse adjacency, PyTorch Geometric's data, and nodes with names.

Each becomes node features, pairs of node numbers and, or None, features of edges. In adjacencies, ``edge_index`` and
graphs of networkx, an edge that is there in both directions is one edge, with the mean of its features. Edges from a
node to itself are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Ints, number_pairs, rectangular
from bactrian.errors import ArgumentError, check_count

#: What a graph may be, in words.
FORMS = "(node_features, edges) or (node_features, edges, edge_features)"
#: Attribute of networkx's nodes that holds their features, and of its edges that holds their weight.
_FEATURES, _WEIGHT = "x", "weight"


class GraphParts(NamedTuple):
    """A graph in numbers."""

    nodes: Any  #: (n_nodes, d) features
    edges: Ints  #: (n_edges, 2)
    edge_features: Any  #: (n_edges, e), or None
    n_loops: int  #: edges from a node to itself, which were dropped
    names: Sequence[Any] | None  #: of nodes, where they have any


class _Given(NamedTuple):
    """Edges as they were given."""

    ends: Any  #: (n_edges, 2) numbers or names of nodes
    features: Any = None
    both: bool = True  #: whether an edge may be there in both directions
    names: Sequence[Any] | None = None
    n_nodes: int | None = None
    nodes: Any = None  #: features that come with the edges


def is_graph(given: Any) -> bool:
    """Whether it is a graph of another library."""
    return sp.issparse(given) or _is_networkx(given) or hasattr(given, "edge_index")


def check_not_single(X: Any) -> None:
    """Refuse a single graph, or features and edges of one, where a list of graphs is expected."""
    parts = isinstance(X, tuple) and len(X) in (2, 3)
    if is_graph(X) or (parts and (X[0] is None or sp.issparse(X[0]) or isinstance(X[0], Mapping) or _is_table(X[0]))):
        raise ArgumentError(
            "X", "is a single graph; pass a list of graphs and a list of labels: fit([X], [y]), predict([X])"
        )


def graph_parts(graph: Any) -> GraphParts:
    """A graph in numbers, whatever it was made with; errors are what comes behind its name."""
    nodes, edges, features = (None, graph, None) if is_graph(graph) else _parts_of(graph)
    given = _given_edges(edges)
    nodes = given.nodes if nodes is None else nodes
    features = given.features if features is None else features
    names, nodes = _named_nodes(nodes, given)
    ends = given.ends
    if names is not None:
        number = {name: i for i, name in enumerate(names)}
        strangers = [name for pair in ends for name in pair if name not in number]
        if strangers:
            raise ValueError(f": edges name {strangers[0]!r}, which is not a node")
        ends = [[number[a], number[b]] for a, b in ends]
    if nodes is None:
        n = given.n_nodes if names is None else len(names)
        nodes = np.zeros(((int(np.max(ends)) + 1 if len(ends) else 0) if n is None else n, 0))
    n = nodes.shape[0] if hasattr(nodes, "shape") else len(nodes)
    return GraphParts(nodes, *_single_edges(ends, features, n, given.both), names)


def by_node(given: Any, names: Sequence[Sequence[Any]], name: str) -> Any:
    """Label arrays of graphs in the order of their nodes, from those that map nodes to labels; others as they are."""
    if not isinstance(given, Sequence) or not any(isinstance(labels, Mapping) for labels in given):
        return given
    check_count(name, len(given), len(names), "array per graph")
    ordered = []
    for i, (labels, nodes) in enumerate(zip(given, names, strict=True)):
        if isinstance(labels, Mapping):
            strangers = set(labels) - set(nodes)
            if strangers:
                raise ArgumentError(name, f"has a label of {strangers.pop()!r}, which is not a node", i)
            labels = [labels.get(node) for node in nodes]
        ordered.append(labels)
    return ordered


def _is_networkx(given: Any) -> bool:
    return hasattr(given, "adj") and hasattr(given, "is_directed")


def _is_table(given: Any) -> bool:
    """Whether it is an array of two axes, or rows of numbers."""
    if hasattr(given, "shape"):
        return len(given.shape) == 2
    rows = isinstance(given, list | tuple) and len(given) > 0 and isinstance(given[0], list | tuple | np.ndarray)
    return rows and len(given[0]) > 0 and all(np.ndim(entry) == 0 for entry in given[0])


def _parts_of(graph: Any) -> tuple[Any, Any, Any]:
    """Node features, edges and, or None, edge features."""
    # An object array of tuples of equal length comes apart into rows that are arrays themselves.
    is_row = isinstance(graph, np.ndarray) and graph.dtype == object and graph.ndim == 1
    if not (isinstance(graph, tuple | list) or is_row) or len(graph) not in (2, 3):
        found = f"{len(graph)} parts" if isinstance(graph, tuple | list) else type(graph).__name__
        raise TypeError(f"must be {FORMS}, or a graph of networkx, SciPy or PyTorch Geometric, found {found}")
    return graph[0], graph[1], graph[2] if len(graph) == 3 else None


def _given_edges(edges: Any) -> _Given:
    """Edges of any form."""
    if _is_networkx(edges):
        nodes, listed = list(edges), list(edges.edges(data=True))
        rows = [of[_FEATURES] for _, of in edges.nodes(data=True) if _FEATURES in of]
        if len(rows) not in (0, len(nodes)):
            raise ValueError(f": {len(rows)} of {len(nodes)} nodes have features {_FEATURES!r}; expected all or none")
        weights = [of[_WEIGHT] for *_, of in listed if _WEIGHT in of]
        if len(weights) not in (0, len(listed)):
            raise ValueError(f": {len(weights)} of {len(listed)} edges have a {_WEIGHT!r}; expected all or none")
        pairs = [(a, b) for a, b, _ in listed]
        return _Given(pairs, weights or None, names=nodes, nodes=np.reshape(rows, (len(rows), -1)) if rows else None)
    if sp.issparse(edges):
        if edges.shape[0] != edges.shape[1]:
            raise ValueError(f": an adjacency must be square, found shape {edges.shape}")
        row, column, values = sp.find(edges)
        ends = np.stack([row, column], axis=1).astype(np.int64)
        return _Given(ends, None if (values == 1).all() else values, n_nodes=edges.shape[0])
    if hasattr(edges, "edge_index"):
        found = (getattr(edges, name, None) for name in ("edge_attr", "edge_weight"))
        features = next((_array(of) for of in found if of is not None), None)
        own, n_nodes = _array(getattr(edges, "x", None)), getattr(edges, "num_nodes", None)
        return _Given(_array(edges.edge_index).T, features, n_nodes=n_nodes, nodes=own)
    if isinstance(edges, list) and edges and all(isinstance(edge, tuple) and len(edge) == 3 for edge in edges):
        return _Given([edge[:2] for edge in edges], [edge[2] for edge in edges], both=False)
    index = rectangular(_array(edges), ": edges")
    if index.ndim == 2 and index.shape[0] == index.shape[1] > 2:
        raise ValueError(f": edges have shape {index.shape}; pass an adjacency as scipy.sparse.csr_array(edges)")
    is_index = index.shape[:1] == (2,) and index.ndim == 2 and (index.shape[1] != 2 or hasattr(edges, "detach"))
    return _Given(index.T) if is_index else _Given(edges if index.dtype.kind in "OU" else index, both=False)


def _array(given: Any) -> Any:
    """A tensor as an array; other things as they are."""
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def _named_nodes(nodes: Any, given: _Given) -> tuple[Sequence[Any] | None, Any]:
    """Names of nodes, where they have any, and their features in this order."""
    index: Any = getattr(nodes, "index", ())
    if isinstance(nodes, Mapping):
        names = list(nodes) if given.names is None else given.names
        strangers = [name for name in names if name not in nodes]
        if strangers:
            raise ValueError(f": node_features has no entry for {strangers[0]!r}")
        return names, np.array([nodes[name] for name in names])
    if given.names is None and hasattr(nodes, "iloc") and all(isinstance(name, str) for name in index):
        return list(index), nodes.to_numpy()
    if given.names is None and nodes is None and not isinstance(given.ends, np.ndarray):
        return list(dict.fromkeys(name for pair in given.ends for name in pair)), None
    if nodes is not given.nodes and given.names is not None:
        numbers = list(range(len(given.names)))
        if list(given.names) != numbers and set(given.names) == set(numbers):
            raise ValueError(
                ": node_features has rows, and the nodes of the graph are numbers in another order; give features by "
                f"node, in a dict, or as the attribute {_FEATURES!r} of the nodes"
            )
    return given.names, _array(nodes)


def _single_edges(ends: Any, features: Any, n: int, both: bool) -> tuple[Ints, Any, int]:
    """Each edge once, and none from a node to itself; with their features, and how many of the latter there were."""
    pairs, features = rectangular(ends, ": edges"), _array(features)
    if features is not None:
        features = features if sp.issparse(features) else rectangular(features, ": edge_features")
        features = features[:, None] if features.ndim == 1 else features
        check_count(": edge_features", features.shape[0], len(pairs), "row per edge")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        return number_pairs(pairs, n, ": edges"), features, 0
    proper = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    n_loops, pairs = len(pairs) - proper.size, number_pairs(pairs[proper], n, ": edges")
    if features is not None and n_loops:
        features = features[proper]
    if not both:
        return pairs, features, n_loops
    _, first, which = np.unique(np.sort(pairs, axis=1), axis=0, return_index=True, return_inverse=True)
    if features is not None and first.size < len(pairs):
        which = which.ravel()
        shares = 1.0 / np.bincount(which)[which]
        features = sp.csr_array((shares, (which, np.arange(which.size))), shape=(first.size, which.size)) @ features
    order = np.argsort(first)
    return pairs[first[order]], None if features is None else features[order], n_loops
