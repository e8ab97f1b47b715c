"""Packed data: thousands of labelled graphs in a few arrays.

Every node has one of ``n_labels`` labels and a row of input features; every edge has a type whose label table is tied
in one way. There are no Python objects per node or edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bactrian.arrays import Bools, Floats, Ints, integers, nonnegative_weights, number_pairs, rectangular
from bactrian.errors import check_choice, check_count, check_number
from bactrian.graphs.inputs import Inputs, checked_rows
from bactrian.graphs.ragged import pointer
from bactrian.graphs.scores import TYINGS, EdgeType, StructuredScores, TiedTable

#: Where node scores may sit.
NODE_FACTORS = ("clusters", "edges", "first-edge")


class GraphData:
    """Labelled graphs with node inputs, typed edges and tied tables.

    Parameters
    ----------
    inputs : array, scipy.sparse or BundledRows, (n_nodes, n_inputs)
        Input features of nodes; all graphs stacked.
    edges : (n_edges, 2) ints
        Node numbers in the stacked order. Direction matters for ``full`` tables: rows belong to the first node.
    n_labels : int
        Number of labels.
    labels : (n_nodes,) ints, optional
        True labels, from 0; booleans are 0 and 1; -1 for an unknown label. Required for learning.
    tables : str or sequence of str
        How each edge type's table is tied: ``full``, ``symmetric``, ``diagonal``, ``potts`` or ``pooled``
        (an attraction that all labels share, and deviations from it).
    edge_types : (n_edges,) ints, optional
        Type of each edge; all 0 by default.
    edge_inputs : array or scipy.sparse, (n_edges, n_edge_inputs), or dict of these by edge type, optional
        Input features of edges. An edge's table is then a sum of its type's tables weighted by its inputs. A dict gives
        inputs to the edges of some types, a row for each of the type's edges in their order; others share one table.
    node_counts : sequence of ints, optional
        Number of nodes of each graph; a single graph by default.
    node_factors : {"clusters", "edges", "first-edge"}
        Whether node scores are clusters of their own (counting number 1 in clusters-only entropies) or absorbed into
        the incident edges, in equal parts or wholly into the first of them (number 0; a node without edges keeps its
        own). Piecewise training depends on all three, CAMEL(0) on whether they are clusters; CCCP does not.
    weights : (n_graphs,) floats, optional
        Weight of each graph's term of the log-likelihood.
    class_weight : "balanced" or (n_labels,) floats, optional
        Weight of each label. A joint likelihood is not a sum over nodes, so a graph is weighted by the mean weight of
        its nodes' labels, times ``weights``. "balanced" weights a label by n_nodes / (n_labels * its count).
    active : (n_weights,) bools, optional
        The weights to learn, all by default; the others stay 0.
    """

    def __init__(
        self,
        inputs: Any,
        edges: ArrayLike,
        *,
        n_labels: int,
        labels: ArrayLike | None = None,
        tables: str | Sequence[str] = "symmetric",
        edge_types: ArrayLike | None = None,
        edge_inputs: Any = None,
        node_counts: ArrayLike | None = None,
        node_factors: str = "clusters",
        weights: ArrayLike | None = None,
        class_weight: str | ArrayLike | None = None,
        active: ArrayLike | None = None,
    ) -> None:
        check_number("n_labels", n_labels, least=1, whole=True)
        check_choice("node_factors", node_factors, NODE_FACTORS)
        self.n_labels = int(n_labels)
        self.node_factors = node_factors
        node_rows = checked_rows(inputs, "inputs")
        n_nodes = int(node_rows.shape[0])
        self.node_pointer = _checked_pointer(node_counts, n_nodes, labels is not None)
        self.edges, order = self._checked_edges(edges, n_nodes)
        n_edges = self.edges.shape[0]
        self.edge_order: Ints = order
        self.tables: tuple[TiedTable, ...] = _checked_tables(tables, self.n_labels)
        types = np.zeros(n_edges, dtype=np.int64) if edge_types is None else edge_types
        self.edge_types = integers(types, "edge_types", n_edges, below=len(self.tables))[order]
        rows_of_type = self._checked_edge_inputs(edge_inputs)
        codes = rectangular(labels, "labels") if labels is not None else None
        if codes is not None and codes.dtype.kind == "b":
            codes = codes.astype(np.int64)
        self.labels = None if codes is None else integers(codes, "labels", n_nodes, least=-1, below=self.n_labels)
        self.weights = nonnegative_weights(weights, "weights", self.n_graphs)
        if class_weight is not None:
            self.weights = self.weights * self._label_weights(class_weight)
        self.scores = StructuredScores(Inputs(node_rows), self.n_labels, self._types(rows_of_type))
        if active is not None:
            self.scores.active = _checked_active(active, self.n_weights)

    @property
    def n_graphs(self) -> int:
        """Number of graphs."""
        return int(self.node_pointer.size - 1)

    @property
    def n_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return int(self.node_pointer[-1])

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        return self.scores.n_weights

    @property
    def truth(self) -> Ints:
        """(n_nodes,) labels, of data that has them; -1 for an unknown one."""
        assert self.labels is not None
        return self.labels

    @property
    def known(self) -> Bools:
        """(n_nodes,) which labels are known."""
        return self.truth >= 0

    def by_node(self, of_graphs: NDArray[Any]) -> NDArray[Any]:
        """What graphs have, for each of their nodes."""
        return np.repeat(of_graphs, np.diff(self.node_pointer))

    def mean_squares(self, n_features: int) -> list[float]:
        """Mean squared norm of the first inputs of a node, and of all of an edge of each type: 1 where it has none."""
        weights = self.by_node(self.weights)
        of_edges = weights[self.edges[:, 0]]
        edges = [
            1.0 if kind.inputs is None else kind.inputs.mean_square(of_edges[self.edge_types == t])
            for t, kind in enumerate(self.scores.types)
        ]
        return [self.scores.inputs.mean_square(weights, n_features), *edges]

    def _label_weights(self, class_weight: str | ArrayLike) -> Floats:
        """Mean label weight of each graph; 1 for a graph without nodes."""
        if self.labels is None:
            raise ValueError("class_weight needs labels=")
        known = self.labels >= 0
        if isinstance(class_weight, str):
            if class_weight != "balanced":
                raise ValueError(f"class_weight must be 'balanced' or one weight per label, found {class_weight!r}")
            counts = np.bincount(self.labels[known], minlength=self.n_labels)
            per_label = known.sum() / (self.n_labels * np.maximum(counts, 1))
        else:
            per_label = nonnegative_weights(class_weight, "class_weight", self.n_labels)
        total = np.concatenate([[0.0], np.cumsum(np.where(known, per_label[self.labels], 0.0))])[self.node_pointer]
        sizes = np.diff(pointer(known)[self.node_pointer])
        return np.where(sizes > 0, np.diff(total) / np.maximum(sizes, 1), 1.0)

    def subset(self, nodes: ArrayLike) -> GraphData:
        """The graphs with the chosen nodes (n_nodes bools) alone, and the edges among them; graphs left empty go."""
        chosen = np.asarray(nodes, dtype=bool)
        if chosen.shape != (self.n_nodes,):
            raise ValueError(f"nodes must have shape ({self.n_nodes},), found {chosen.shape}")
        number = np.cumsum(chosen) - 1
        counts = np.diff(pointer(chosen)[self.node_pointer])
        inside = chosen[self.edges[:, 0]] & chosen[self.edges[:, 1]]
        edge_inputs = {
            t: kind.inputs.rows(inside[self.edge_types == t])
            for t, kind in enumerate(self.scores.types)
            if kind.inputs is not None
        }
        return GraphData(
            self.scores.inputs.rows(chosen),
            number[self.edges[inside]],
            n_labels=self.n_labels,
            labels=None if self.labels is None else self.labels[chosen],
            tables=[table.tying for table in self.tables],
            edge_types=self.edge_types[inside],
            edge_inputs=edge_inputs or None,
            node_counts=counts[counts > 0],
            node_factors=self.node_factors,
            weights=self.weights[counts > 0],
            active=self.scores.active,
        )

    def with_labels(self, labels: Ints) -> GraphData:
        """The same graphs with other labels."""
        other = copy(self)
        other.labels = labels
        return other

    def split_weights(self, weights: ArrayLike) -> tuple[Floats, list[Floats]]:
        """Node weights (n_inputs, n_labels), and per edge type its table (n_labels, n_labels).

        Of a type with edge inputs the tables have shape (n_edge_inputs, n_labels, n_labels).
        """
        node, tied = self.scores.split(np.asarray(weights, dtype=np.float64))
        square = (self.n_labels, self.n_labels)
        tables = []
        for kind, part in zip(self.scores.types, tied, strict=True):
            expanded = kind.table.expand(part).reshape(-1, *square)
            tables.append(expanded[0] if kind.inputs is None else expanded)
        return node, tables

    def _checked_edge_inputs(self, edge_inputs: Any) -> list[Any]:
        """Input rows of each type's edges, in the order of ``self.edges``; None for types without."""
        n_types, order = len(self.tables), self.edge_order
        if edge_inputs is None:
            return [None] * n_types
        if not isinstance(edge_inputs, Mapping):
            rows = checked_rows(edge_inputs, "edge_inputs")
            check_count("edge_inputs", rows.shape[0], order.size, "row per edge")
            sorted_rows = rows[order]
            return [sorted_rows[np.flatnonzero(self.edge_types == t)] for t in range(n_types)]
        found: list[Any] = [None] * n_types
        for t, given in edge_inputs.items():
            if t not in range(n_types):
                raise ValueError(f"edge_inputs names edge type {t!r}; the types are 0 to {n_types - 1}")
            rows = checked_rows(given, f"edge_inputs[{t}]")
            places = order[self.edge_types == t]  # in the caller's order of edges
            check_count("edge_inputs", rows.shape[0], places.size, f"row per edge of type {t}", t)
            rank = np.empty(places.size, dtype=np.int64)
            rank[np.argsort(places, kind="stable")] = np.arange(places.size)
            found[t] = rows[rank]
        return found

    def _types(self, rows_of_type: Sequence[Any]) -> tuple[EdgeType, ...]:
        """Edge types, with the table of each edge: shared ones come first, then the edges' own in the edges' order."""
        has_own = np.array([rows is not None for rows in rows_of_type])
        number = np.cumsum(~has_own) - 1  # of the table that the edges of a type share
        self.n_shared_tables = int(number[-1]) + 1
        self.table_of_edge: Ints = number[self.edge_types]
        own = has_own[self.edge_types]
        self.table_of_edge[own] = self.n_shared_tables + np.arange(int(own.sum()))
        return tuple(
            EdgeType(table, None, number[t : t + 1])
            if rows is None
            else EdgeType(table, Inputs(rows), self.table_of_edge[self.edge_types == t])
            for t, (table, rows) in enumerate(zip(self.tables, rows_of_type, strict=True))
        )

    def _checked_edges(self, edges: ArrayLike, n_nodes: int) -> tuple[Ints, Ints]:
        """Edges sorted by graph, and the order that sorts them."""
        array = number_pairs(edges, n_nodes, "edges")
        graph = np.searchsorted(self.node_pointer, array, side="right") - 1
        if (graph[:, 0] != graph[:, 1]).any():
            e = int(np.argmax(graph[:, 0] != graph[:, 1]))
            raise ValueError(f"edges[{e}] = {tuple(array[e].tolist())} joins nodes of two graphs")
        order = np.argsort(graph[:, 0], kind="stable")
        return array[order], order


def _checked_tables(tables: Any, n_labels: int) -> tuple[TiedTable, ...]:
    names = (tables,) if isinstance(tables, str) else tuple(tables) if isinstance(tables, Iterable) else ()
    if not names:
        raise ValueError(f"tables must name how at least one edge type is tied, found {tables!r}")
    for t, name in enumerate(names):
        check_choice("tables" if isinstance(tables, str) else f"tables[{t}]", name, TYINGS)
    return tuple(TiedTable.make(name, n_labels) for name in names)


def _checked_pointer(node_counts: ArrayLike | None, n_nodes: int, is_labelled: bool) -> Ints:
    if n_nodes == 0 and is_labelled:  # there is nothing to learn; predictions of nothing are empty
        raise ValueError("inputs has no rows; the data needs at least one node")
    if node_counts is None:
        return np.array([0, n_nodes], dtype=np.int64)
    counts = integers(node_counts, "node_counts")
    if counts.sum() != n_nodes:
        raise ValueError(f"node_counts must add up to the {n_nodes} rows of inputs, found {int(counts.sum())}")
    return pointer(counts)


def _checked_active(active: ArrayLike, n_weights: int) -> Bools:
    array = rectangular(active, "active")
    if array.shape != (n_weights,) or array.dtype != np.bool_:
        raise ValueError(f"active must be {n_weights} booleans, found shape {array.shape} of {array.dtype}")
    return array
