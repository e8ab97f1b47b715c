"""Marginals of packed graphs as stacked arrays: nothing per node or edge is a Python object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import infer
from bactrian.inference.result import InferenceResult, VariableMarginals

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GraphMarginals:
    """Marginals of all graphs of a :class:`bactrian.GraphData`."""

    nodes: Floats  #: (n_nodes, n_labels)
    edges: Floats | None  #: (n_edges, n_labels, n_labels) in the order in which the edges were given; None if not asked
    results: list[InferenceResult]  #: one per graph

    @property
    def converged(self) -> bool:
        """Whether inference converged on every graph."""
        return all(result.converged for result in self.results)


def graph_marginals(
    data: GraphData,
    weights: ArrayLike,
    method: str = "rbp",
    evidence: Sequence[Mapping[int, int] | None] | None = None,
    *,
    edges: bool = False,
    **options: Any,
) -> GraphMarginals:
    """Marginals by :func:`bactrian.infer`, whose options it takes; those of edges only where asked for."""
    results = infer(data, weights, method, evidence, **options)
    k = data.n_labels
    nodes = np.empty((data.n_nodes, k))
    sorted_edges = np.empty((data.edges.shape[0], k, k)) if edges else None
    first_edge = _edge_pointer(data)
    for m, result in enumerate(results):
        first, last = int(data.node_pointer[m]), int(data.node_pointer[m + 1])
        variables = result.variables
        if not isinstance(variables, VariableMarginals):
            raise TypeError(f"method {method!r} gives no stacked marginals")
        if last > first:
            nodes[first:last] = variables.stacked()
        start, stop = int(first_edge[m]), int(first_edge[m + 1])
        if sorted_edges is not None and stop > start:
            sorted_edges[start:stop] = variables.tables.pairs(start, stop).reshape(-1, k, k)
    if sorted_edges is None:
        return GraphMarginals(nodes, None, results)
    in_order = np.empty_like(sorted_edges)
    in_order[data.edge_order] = sorted_edges
    return GraphMarginals(nodes, in_order, results)


def _edge_pointer(data: GraphData) -> NDArray[np.int64]:
    """(n_graphs + 1,) edges of each graph; edges are sorted by graph."""
    graph = np.searchsorted(data.node_pointer, data.edges[:, 0], side="right") - 1
    return np.concatenate([[0], np.cumsum(np.bincount(graph, minlength=data.n_graphs))]).astype(np.int64)
