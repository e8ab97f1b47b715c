"""Graphs as people have them, stacked into the arrays of :class:`bactrian.GraphData`.

A graph may be one of networkx, SciPy's sparse adjacency, PyTorch Geometric's data, and its nodes may have names. Each
becomes node features, pairs of node numbers and, or None, features of edges. In adjacencies, ``edge_index`` and graphs
of networkx, an edge that is there in both directions is one edge, with the mean of its features. Edges from a node to
itself are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, nonnegative, number_pairs, real_numbers, rectangular
from bactrian.errors import ArgumentError, about, check_count, warn
from bactrian.estimators.labels import checked_list
from bactrian.graphs.inputs import checked_rows
from bactrian.graphs.ragged import pointer, ranges

#: What a graph may be, in words.
FORMS = "(node_features, edges) or (node_features, edges, edge_features)"
#: Attribute of networkx's nodes that holds their features, and of its edges that holds their weight.
_FEATURES, _WEIGHT = "x", "weight"
#: Different weights that the nodes of one graph may have.
_MOST_LAYERS = 32

# --- stacked ---


@dataclass(frozen=True)
class StackedGraphs:
    """Stacked graphs: what :class:`bactrian.GraphData` takes, without labels."""

    inputs: Any  #: (n_nodes, n_inputs) dense or sparse
    edges: Ints  #: (n_edges, 2) in the stacked numbering
    edge_types: Ints | None  #: (n_edges,)
    edge_inputs: Any  #: (n_edges, n_edge_inputs) dense or sparse, or None
    shapes: list[tuple[int, ...]]  #: of each graph's array of nodes: (n_nodes,), or (height, width)
    edge_counts: Ints  #: (n_graphs,)
    names: Sequence[Sequence[Any]] = ()  #: of the nodes of each graph, numbers where they have no others

    @property
    def node_counts(self) -> Ints:
        """(n_graphs,) nodes of each graph."""
        return np.array([math.prod(shape) for shape in self.shapes], dtype=np.int64)

    @property
    def node_pointer(self) -> Ints:
        """(n_graphs + 1,) first node of each graph."""
        return pointer(self.node_counts)

    @property
    def edge_pointer(self) -> Ints:
        """(n_graphs + 1,) first edge of each graph."""
        return pointer(self.edge_counts)

    def per_graph(self, of_nodes: NDArray[Any]) -> list[NDArray[Any]]:
        """What nodes have, (n_nodes, ...), as an array for each graph in the shape of its nodes."""
        parts = np.split(of_nodes, self.node_pointer[1:])[:-1]
        return [part.reshape(*shape, *of_nodes.shape[1:]) for part, shape in zip(parts, self.shapes, strict=True)]

    def taken(self, graphs: Ints) -> tuple[Ints, StackedGraphs]:
        """The graphs with the given numbers, each as often as it is named, and which nodes they have."""
        node_counts, edge_counts = self.node_counts[graphs], self.edge_counts[graphs]
        nodes, edges = ranges(self.node_pointer[graphs], node_counts), ranges(self.edge_pointer[graphs], edge_counts)
        shift = pointer(node_counts)[:-1] - self.node_pointer[graphs]
        return nodes, replace(
            self,
            inputs=self.inputs[nodes],
            edges=self.edges[edges] + np.repeat(shift, edge_counts)[:, None],
            edge_types=None if self.edge_types is None else self.edge_types[edges],
            edge_inputs=None if self.edge_inputs is None else self.edge_inputs[edges],
            shapes=[self.shapes[g] for g in graphs],
            edge_counts=edge_counts,
        )


#: Shape of rows of which there are none, nor a number of columns: they have as many as others have.
_NOTHING = (0, 0)


def _feature_rows(rows: Any, name: str, n_columns: int | None) -> Any:
    """Dense float64 or sparse CSR rows, with the number of columns that others have."""
    checked = checked_rows(rows, name)
    if n_columns is not None and checked.shape not in (_NOTHING, (checked.shape[0], n_columns)):
        raise ValueError(f"{name} has {checked.shape[1]} features, expected {n_columns}")
    return checked


def stack_rows(parts: list[Any], intercept: bool) -> Any:
    """Rows of all graphs, sparse where any part is, with a last column of ones where asked for."""
    n_rows = sum(part.shape[0] for part in parts)
    if any(sp.issparse(part) for part in parts):
        stacked = sp.vstack([sp.csr_array(part) for part in parts], format="csr", dtype=np.float64)
        return sp.csr_array(sp.hstack([stacked, np.ones((n_rows, 1))], format="csr")) if intercept else stacked
    width = parts[0].shape[1]
    stacked = np.ones((n_rows, width + intercept))
    np.concatenate(parts, axis=0, out=stacked[:, :width])
    return stacked


def node_weights(sample_weight: Any, shapes: list[tuple[int, ...]]) -> Floats | None:
    """Weights of all nodes, stacked, where ``sample_weight`` has an array for each graph; None where it has not."""
    if not isinstance(sample_weight, Sequence | np.ndarray) or not len(sample_weight) or not np.ndim(sample_weight[0]):
        return None
    check_count("sample_weight", len(sample_weight), len(shapes), "number, or one array, per graph")
    parts = []
    for i, (given, shape) in enumerate(zip(sample_weight, shapes, strict=True)):
        with about("sample_weight", i):
            part = real_numbers(given, "")
            check_count("", part.shape, shape, "weight per node")
            parts.append(nonnegative(part.ravel(), ""))
    return np.concatenate(parts)


def weight_layers(weights: Floats, pointer: Ints) -> tuple[Ints, Floats, Floats]:
    """Graph, threshold and weight of every layer of nodes at least as heavy as its threshold.

    The layers' weights add up to the weight w of each node: w = sum over layers l of weight_l [w >= threshold_l].
    """
    graphs, thresholds, heights = [], [], []
    for g, (first, last) in enumerate(pairwise(pointer.tolist())):
        levels = np.unique(weights[first:last])
        levels = levels[levels > 0.0]
        if levels.size > _MOST_LAYERS:
            raise ValueError(
                f"sample_weight[{g}] has {levels.size} different weights; each costs as much as a graph, so round "
                f"them to {_MOST_LAYERS} or fewer"
            )
        graphs.append(np.full(levels.size, g))
        thresholds.append(levels)
        heights.append(np.diff(levels, prepend=0.0))
    if not sum(map(len, graphs)):
        raise ValueError("sample_weight is 0 everywhere; learning needs a node that counts")
    return np.concatenate(graphs), np.concatenate(thresholds), np.concatenate(heights)


@dataclass(frozen=True)
class GraphReader:
    """Stacks graphs of any form."""

    intercepts: tuple[bool, bool]  #: whether nodes, and edges that have features, get one that is 1
    n_features: int | None = None  #: of a node; of the first graph that has any where there is none yet
    n_edge_features: int | None = None  #: of an edge, likewise; None where edges have none

    def read(self, X: Any) -> tuple[Self, StackedGraphs]:
        """The graphs, and a reader of others with the same numbers of features."""
        check_not_single(X)
        graphs = checked_list(X, "X", FORMS, may_be_empty=self.n_features is not None)
        n_features, n_edge_features = self.n_features, self.n_edge_features
        parts: list[GraphParts] = []
        is_fixed = n_features is not None  # whether edges have features
        for i, graph in enumerate(graphs):
            with about("X", i):
                part = graph_parts(graph)
                rows = _feature_rows(part.nodes, ": node_features", n_features)
                n_features = n_features if rows.shape == _NOTHING else int(rows.shape[1])
                given, has_edges = part.edge_features, len(part.edges) > 0
                given = None if given is None else _feature_rows(given, ": edge_features", n_edge_features)
                given = None if given is not None and given.shape == _NOTHING and not has_edges else given
                if not is_fixed and (given is not None or has_edges):
                    is_fixed, n_edge_features = True, None if given is None else int(given.shape[1])
                if (given is None) != (n_edge_features is None) and (given is not None or has_edges):
                    expected = "no edge_features" if n_edge_features is None else f"{n_edge_features} edge_features"
                    found = f"has {'no ' if given is None else ''}edge_features"
                    raise ValueError(f"{found}, expected {expected} as elsewhere")
                parts.append(part._replace(nodes=rows, edge_features=given))
        first = next((i for i, part in enumerate(parts) if part.n_loops), None)
        if first is not None:
            n_loops = sum(part.n_loops for part in parts)
            warn(f"X: ignored edges from a node to itself ({n_loops} in all, the first in X[{first}])")
        counts = np.array([part.nodes.shape[0] for part in parts], dtype=np.int64)
        if self.n_features is None and not counts.any():
            raise ValueError("X has no nodes at all; expected at least one")
        assert n_features is not None
        nodes = [np.zeros((0, n_features)), *(part.nodes for part in parts if part.nodes.shape[0])]
        edges, edge_inputs = [np.zeros((0, 2), dtype=np.int64), *(part.edges for part in parts)], None
        if n_edge_features is not None:
            edge_rows = (part.edge_features for part in parts if part.edge_features is not None)
            edge_inputs = stack_rows([np.zeros((0, n_edge_features)), *edge_rows], self.intercepts[1])
        edge_counts = np.array([len(part.edges) for part in parts], dtype=np.int64)
        shift = np.repeat(pointer(counts)[:-1], edge_counts)[:, None]
        stacked = StackedGraphs(
            inputs=stack_rows(nodes, self.intercepts[0]),
            edges=np.concatenate(edges) + shift,
            edge_types=None,
            edge_inputs=edge_inputs,
            shapes=[(int(n),) for n in counts],
            edge_counts=edge_counts,
            names=[range(part.nodes.shape[0]) if part.names is None else part.names for part in parts],
        )
        return replace(self, n_features=n_features, n_edge_features=n_edge_features), stacked


# --- of any form ---


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
