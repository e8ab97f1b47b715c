"""Lists of graphs, checked and stacked into the arrays of :class:`bactrian.GraphData`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, real_numbers
from bactrian.errors import about, check_count, warn
from bactrian.estimators.graph_inputs import FORMS, check_not_single, graph_parts
from bactrian.estimators.labels import checked_list
from bactrian.graphs.inputs import checked_rows
from bactrian.graphs.ragged import pointer

#: Different weights that the nodes of one graph may have.
_MOST_LAYERS = 32


@dataclass(frozen=True)
class StackedGraphs:
    """Graphs one after the other: what :class:`bactrian.GraphData` takes, but for labels."""

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
        parts = np.split(of_nodes, self.node_pointer[1:-1])
        return [part.reshape(*shape, *of_nodes.shape[1:]) for part, shape in zip(parts, self.shapes, strict=True)]

    def taken(self, graphs: Ints) -> StackedGraphs:
        """The graphs with the given numbers, each as often as it is named."""
        nodes = np.concatenate([np.arange(*self.node_pointer[g : g + 2]) for g in graphs])
        edges = np.concatenate([np.arange(*self.edge_pointer[g : g + 2]) for g in graphs])
        edge_counts = self.edge_counts[graphs]
        shift = pointer(self.node_counts[graphs])[:-1] - self.node_pointer[graphs]
        return replace(
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
            if not (np.isfinite(part).all() and (part >= 0.0).all()):
                raise ValueError("must hold finite numbers, none negative")
        parts.append(part.ravel())
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
    """Stacks graphs of any form (:mod:`bactrian.estimators.graph_inputs`)."""

    intercepts: tuple[bool, bool]  #: whether nodes, and edges that have features, get one that is 1
    n_features: int | None = None  #: of a node; of the first graph that has any where there is none yet
    n_edge_features: int | None = None  #: of an edge, likewise; None where edges have none

    def read(self, X: Any) -> tuple[Self, StackedGraphs]:
        """The graphs, and a reader of others with the same numbers of features."""
        check_not_single(X)
        graphs = checked_list(X, "X", FORMS)
        n_features, n_edge_features = self.n_features, self.n_edge_features
        nodes, edges, edge_rows, names, loops = [], [], [], [], []
        is_fixed = n_features is not None  # whether edges have features
        for i, graph in enumerate(graphs):
            with about("X", i):
                parts = graph_parts(graph)
                rows = _feature_rows(parts.nodes, ": node_features", n_features)
                n_features = n_features if rows.shape == _NOTHING else int(rows.shape[1])
                pairs, given = parts.edges, parts.edge_features
                given = None if given is None else _feature_rows(given, ": edge_features", n_edge_features)
                given = None if given is not None and given.shape == _NOTHING and not len(pairs) else given
                if not is_fixed and (given is not None or len(pairs)):
                    is_fixed, n_edge_features = True, None if given is None else int(given.shape[1])
                if (given is None) != (n_edge_features is None) and (given is not None or len(pairs)):
                    expected = "no edge_features" if n_edge_features is None else f"{n_edge_features} edge_features"
                    found = f"has {'no ' if given is None else ''}edge_features"
                    raise ValueError(f"{found}, expected {expected} as elsewhere")
                nodes.append(rows)
                names.append(range(rows.shape[0]) if parts.names is None else parts.names)
                loops.append(parts.n_loops)
                edges.append(pairs)
                edge_rows.append(given)
        if any(loops):
            first = int(np.argmax(np.array(loops) > 0))
            warn(f"X: ignored edges from a node to itself ({sum(loops)} in all, the first in X[{first}])", UserWarning)
        counts = np.array([rows.shape[0] for rows in nodes], dtype=np.int64)
        if self.n_features is None and not counts.any():
            raise ValueError("X has no nodes at all; expected at least one")
        assert n_features is not None
        nodes = [rows if rows.shape[0] else np.zeros((0, n_features)) for rows in nodes]
        if n_edge_features is not None:
            edge_rows = [np.zeros((0, n_edge_features)) if rows is None else rows for rows in edge_rows]
        edge_counts = np.array([len(pairs) for pairs in edges], dtype=np.int64)
        stacked = StackedGraphs(
            inputs=stack_rows(nodes, self.intercepts[0]),
            edges=np.concatenate(edges) + np.repeat(pointer(counts)[:-1], edge_counts)[:, None],
            edge_types=None,
            edge_inputs=None if n_edge_features is None else stack_rows(edge_rows, self.intercepts[1]),
            shapes=[(int(n),) for n in counts],
            edge_counts=edge_counts,
            names=names,
        )
        return replace(self, n_features=n_features, n_edge_features=n_edge_features), stacked


def is_empty(graph: Any) -> bool:
    """Whether a graph is (node_features, ...) without any node."""
    rows: Any = graph[0] if isinstance(graph, tuple | list) and len(graph) in (2, 3) else None
    return bool((rows.shape if sp.issparse(rows) else np.shape(rows))[:1] == (0,))
