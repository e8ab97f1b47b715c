"""The graphs of a mini-batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bactrian.arrays import Ints, integers, number_pairs, rectangular
from bactrian.camel.entropy import pairwise_numbers
from bactrian.engines.torch.stars import NodeNumbers
from bactrian.engines.torch.structure import Structure, build_structure
from bactrian.graphs.ragged import pointer


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
        Type of each edge, for scores that are one table per type. Leave it out for scores that are one table per edge.
    n_types : int, optional
        Number of types, where not every batch has edges of all of them. By default it follows from the scores.
    """

    def __init__(
        self,
        edges: ArrayLike,
        node_counts: ArrayLike,
        *,
        edge_types: ArrayLike | None = None,
        n_types: int | None = None,
    ) -> None:
        self.node_counts: Ints = integers(node_counts, "node_counts")
        self.node_pointer: Ints = pointer(self.node_counts)
        self.n_nodes = int(self.node_pointer[-1])
        if self.n_nodes < 1:
            raise ValueError("node_counts must add up to at least one node")
        self.edges: Ints = number_pairs(edges, self.n_nodes, "edges")
        graph = np.searchsorted(self.node_pointer, self.edges, side="right") - 1
        apart = graph[:, 0] != graph[:, 1]
        if apart.any():
            e = int(np.argmax(apart))
            raise ValueError(f"edges[{e}] = {tuple(self.edges[e].tolist())} must join two different nodes of one graph")
        if (np.diff(graph[:, 0]) < 0).any():
            raise ValueError("edges must be sorted by graph")
        types = np.zeros(len(self.edges), dtype=np.int64) if edge_types is None else edge_types
        self.edge_types: Ints = integers(types, "edge_types", len(self.edges))
        self.typed = edge_types is not None or n_types is not None
        least = int(self.edge_types.max(initial=-1)) + 1
        if n_types is not None and n_types < max(least, 1):
            raise ValueError(f"n_types must be at least {max(least, 1)} for these edge_types, found {n_types}")
        self.n_types = n_types  #: None where it follows from the scores
        self.edge_pointer: Ints = np.searchsorted(graph[:, 0], np.arange(self.n_graphs + 1))
        self._structures: dict[tuple[Any, int | None], Structure] = {}
        self._degrees: Ints = np.zeros(0, dtype=np.int64)  # of the nodes, as structures number them
        self._numbers: dict[tuple[Any, str, bool], NodeNumbers] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without index tensors, which a worker process could not send: those on a GPU stay where they were made."""
        return self.__dict__ | {"_structures": {}, "_numbers": {}}

    @staticmethod
    def copies(
        edges: ArrayLike,
        n_nodes: int,
        n_graphs: int,
        *,
        edge_types: ArrayLike | None = None,
        n_types: int | None = None,
    ) -> GraphBatch:
        """``n_graphs`` copies of one graph, such as the grid of a batch of images of one size."""
        pairs = rectangular(edges, "edges").reshape(-1, 2)
        stacked = (pairs[None] + n_nodes * np.arange(n_graphs)[:, None, None]).reshape(-1, 2)
        types = None if edge_types is None else np.tile(rectangular(edge_types, "edge_types"), n_graphs)
        return GraphBatch(stacked, np.full(n_graphs, n_nodes), edge_types=types, n_types=n_types)

    def to(self, device: Any) -> GraphBatch:
        """The batch itself, for code that moves batches: index tensors are made on the device of the scores."""
        return self

    @property
    def n_graphs(self) -> int:
        """Number of graphs."""
        return int(self.node_counts.size)

    def nodes_of(self, graph: int) -> slice:
        """Nodes of one graph."""
        return slice(*self.node_pointer[graph : graph + 2].tolist())

    def edges_of(self, graph: int) -> slice:
        """Edges of one graph."""
        return slice(*self.edge_pointer[graph : graph + 2].tolist())

    def structure(self, device: Any, *, n_types: int | None) -> Structure:
        """The index tensors of the batch on a device, for tables of ``n_types`` types or, with None, of each edge."""
        key = (torch.device(device), n_types)
        if key not in self._structures:
            built = build_structure(
                self.edges,
                self.edge_types,
                self.node_counts,
                np.ones(self.n_graphs),
                n_types=int(self.edge_types.max(initial=0)) + 1 if n_types is None else n_types,
                own_tables=n_types is None,
            )
            self._degrees, self._structures[key] = built.degree.numpy(), built.to(device)
        return self._structures[key]

    def numbers(self, structure: Structure, entropy: str, *, own: bool) -> NodeNumbers:
        """Counting numbers of the nodes; ``own`` says whether their scores are clusters of their own."""
        key = (structure.nodes.device, entropy, own)
        if key not in self._numbers:
            numbers = NodeNumbers.of(*pairwise_numbers(entropy, self._degrees, own))
            self._numbers[key] = numbers.to(structure.nodes.device)
        return self._numbers[key]

    def checked_scores(self, node_scores: Tensor, edge_scores: Tensor) -> tuple[Tensor, Structure]:
        """Tables of three axes, and the index tensors that fit them."""
        if node_scores.ndim != 2 or node_scores.shape[0] != self.n_nodes:
            raise ValueError(
                f"node_scores must have shape ({self.n_nodes}, n_labels), found {tuple(node_scores.shape)}"
            )
        k = node_scores.shape[1]
        if edge_scores.ndim not in (2, 3) or tuple(edge_scores.shape[-2:]) != (k, k):
            raise ValueError(
                f"edge_scores must have shape (..., {k}, {k}), with at most one more axis, found "
                f"{tuple(edge_scores.shape)}"
            )
        for name, scores in (("node_scores", node_scores), ("edge_scores", edge_scores)):
            if not scores.is_floating_point():
                raise TypeError(f"{name} must be floating-point numbers, found {scores.dtype}")
            if not bool(torch.isfinite(scores).all()):
                raise ValueError(f"{name} holds NaN or infinite values")
        if edge_scores.ndim == 2:
            edge_scores = edge_scores.expand(self.n_types or int(self.edge_types.max(initial=0)) + 1, k, k)
            return edge_scores, self.structure(node_scores.device, n_types=len(edge_scores))
        own = self._are_per_edge(len(edge_scores))
        return edge_scores, self.structure(node_scores.device, n_types=None if own else len(edge_scores))

    def _are_per_edge(self, n_tables: int) -> bool:
        """Whether so many tables are one per edge instead of one per type; an error where they may be either."""
        n_edges = len(self.edges)
        if not self.typed:
            if n_tables not in (1, n_edges):
                raise ValueError(
                    f"edge_scores must be one table for all edges or {n_edges}, one per edge, found {n_tables}; tables "
                    "per type need a GraphBatch with edge_types"
                )
            return n_tables == n_edges
        least = int(self.edge_types.max(initial=-1)) + 1
        if n_tables != self.n_types if self.n_types is not None else n_tables < least:
            wanted = f"{self.n_types}" if self.n_types is not None else f"at least {least}"
            raise ValueError(
                f"edge_scores must be {wanted} tables, one per type, since the batch has edge_types, found {n_tables}; "
                "tables per edge need a GraphBatch without edge_types"
            )
        same = np.array_equal(self.edge_types, np.arange(n_edges))
        if self.n_types is None and n_tables == n_edges and not same:
            raise ValueError(
                f"edge_scores holds {n_tables} tables for {n_edges} edges with edge_types, which may be one per type "
                f"or one per edge; give GraphBatch(n_types={n_tables}) for tables per type, or leave edge_types out "
                "for tables per edge"
            )
        return n_tables == 0

    def checked_labels(self, labels: Tensor, n_labels: int) -> Tensor:
        """Labels as int64; refuses those of another shape or outside the range."""
        if tuple(labels.shape) != (self.n_nodes,) or labels.is_floating_point():
            raise ValueError(f"labels must be {self.n_nodes} integers, found shape {tuple(labels.shape)}")
        labels = labels.to(torch.int64)
        if bool(((labels < 0) | (labels >= n_labels)).any()):
            raise ValueError(f"labels must be between 0 and {n_labels - 1}")
        return labels
