"""The graphs of a mini-batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bactrian.engines.torch.structure import Structure, build_structure
from bactrian.graphs.domain import rectangular

Ints = NDArray[np.int64]


class GraphBatch:
    """Graphs whose nodes and edges are stacked, graph after graph.

    Building one colours the nodes, so keep it where the same graphs, or graphs of the same shape, come again.

    Parameters
    ----------
    edges : (E, 2) ints
        Node numbers in the stacked order, sorted by graph.
    node_counts : sequence of ints
        Nodes of each graph.
    edge_types : (E,) ints, optional
        Type of each edge, for scores that are one table a type.
    """

    def __init__(self, edges: ArrayLike, node_counts: ArrayLike, *, edge_types: ArrayLike | None = None) -> None:
        pairs = rectangular(edges, "edges")
        self.edges: Ints = pairs.astype(np.int64) if pairs.size else np.zeros((0, 2), dtype=np.int64)
        self.node_counts: Ints = rectangular(node_counts, "node_counts").astype(np.int64)
        self.node_pointer: Ints = np.concatenate([[0], np.cumsum(self.node_counts)]).astype(np.int64)
        self.n_nodes = int(self.node_pointer[-1])
        if self.node_counts.ndim != 1 or self.n_nodes < 1 or (self.node_counts < 0).any():
            raise ValueError("node_counts must be a flat sequence of integers, none negative, with a node at least")
        if self.edges.ndim != 2 or self.edges.shape[1] != 2:
            raise ValueError(f"edges must have shape (n_edges, 2), found {self.edges.shape}")
        wrong = (self.edges < 0).any(axis=1) | (self.edges >= self.n_nodes).any(axis=1)
        wrong |= self.edges[:, 0] == self.edges[:, 1]
        graph = np.searchsorted(self.node_pointer, self.edges, side="right") - 1
        wrong |= graph[:, 0] != graph[:, 1]
        if wrong.any():
            e = int(np.argmax(wrong))
            raise ValueError(
                f"edges[{e}] = {tuple(self.edges[e].tolist())} must join two different nodes of one graph, of 0 to "
                f"{self.n_nodes - 1}"
            )
        if (np.diff(graph[:, 0]) < 0).any():
            raise ValueError("edges must be sorted by graph")
        types = (
            np.zeros(len(self.edges), dtype=np.int64) if edge_types is None else rectangular(edge_types, "edge_types")
        )
        if types.shape != (len(self.edges),) or types.min(initial=0) < 0:
            raise ValueError(f"edge_types must be {len(self.edges)} integers, none negative")
        self.edge_types: Ints = types.astype(np.int64)
        self.edge_pointer: Ints = np.searchsorted(graph[:, 0], np.arange(self.n_graphs + 1))
        self._structures: dict[tuple[Any, bool], Structure] = {}

    @staticmethod
    def copies(edges: ArrayLike, n_nodes: int, n_graphs: int, *, edge_types: ArrayLike | None = None) -> GraphBatch:
        """``n_graphs`` copies of one graph, such as the grid of a batch of images of one size."""
        pairs = rectangular(edges, "edges").reshape(-1, 2)
        stacked = (pairs[None] + n_nodes * np.arange(n_graphs)[:, None, None]).reshape(-1, 2)
        types = None if edge_types is None else np.tile(rectangular(edge_types, "edge_types"), n_graphs)
        return GraphBatch(stacked, np.full(n_graphs, n_nodes), edge_types=types)

    @property
    def n_graphs(self) -> int:
        """Number of graphs."""
        return int(self.node_counts.size)

    @property
    def n_types(self) -> int:
        """Number of edge types."""
        return int(self.edge_types.max(initial=0)) + 1

    def nodes_of(self, graph: int) -> slice:
        """Nodes of one graph."""
        return slice(*self.node_pointer[graph : graph + 2].tolist())

    def edges_of(self, graph: int) -> slice:
        """Edges of one graph."""
        return slice(*self.edge_pointer[graph : graph + 2].tolist())

    def structure(self, device: Any, *, own_tables: bool) -> Structure:
        """The index tensors of the batch on a device; made once."""
        key = (torch.device(device), own_tables)
        if key not in self._structures:
            self._structures[key] = build_structure(
                self.edges,
                self.edge_types,
                self.node_counts,
                np.ones(self.n_graphs),
                n_types=self.n_types,
                own_tables=own_tables,
            ).to(device)
        return self._structures[key]

    def checked_scores(self, node_scores: Tensor, edge_scores: Tensor) -> tuple[Tensor, bool]:
        """Tables of three axes, and whether there is one an edge."""
        if node_scores.ndim != 2 or node_scores.shape[0] != self.n_nodes:
            raise ValueError(
                f"node_scores must have shape ({self.n_nodes}, n_labels), found {tuple(node_scores.shape)}"
            )
        k, n_edges = node_scores.shape[1], len(self.edges)
        tables = edge_scores[None] if edge_scores.ndim == 2 else edge_scores
        if tables.ndim != 3 or tuple(tables.shape[1:]) != (k, k):
            raise ValueError(f"edge_scores must have shape (..., {k}, {k}), found {tuple(edge_scores.shape)}")
        shared = len(tables) == self.n_types
        if not shared and len(tables) != n_edges:
            raise ValueError(
                f"edge_scores must be one table for all edges of one type, {self.n_types} (one a type) or {n_edges} "
                f"(one an edge), found shape {tuple(edge_scores.shape)}"
            )
        for name, scores in (("node_scores", node_scores), ("edge_scores", edge_scores)):
            if not bool(torch.isfinite(scores).all()):
                raise ValueError(f"{name} holds NaN or infinite values")
        return tables, not shared

    def check_labels(self, labels: Tensor, n_labels: int) -> None:
        """Refuse labels of another shape or outside the range."""
        if tuple(labels.shape) != (self.n_nodes,) or labels.is_floating_point():
            raise ValueError(f"labels must be {self.n_nodes} integers, found shape {tuple(labels.shape)}")
        if int(labels.min()) < 0 or int(labels.max()) >= n_labels:
            raise ValueError(f"labels must be between 0 and {n_labels - 1}")
