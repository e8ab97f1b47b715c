"""The graphs of a mini-batch, and how those of a layer follow from the shape of its scores, a mask and edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bactrian.arrays import Bools, Ints, integers, number_pairs, rectangular
from bactrian.camel.entropy import pairwise_numbers
from bactrian.engines.torch.device import moved
from bactrian.engines.torch.stars import NodeNumbers
from bactrian.engines.torch.structure import Structure, build_structure
from bactrian.errors import ArgumentError
from bactrian.graphs.graph import neighbours
from bactrian.graphs.ragged import pointer

#: Batches of a layer whose layout is kept.
_KEPT = 64


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


# --- from what a layer is given to graphs ---


@dataclass
class Layout:
    """Graphs of a batch, laid out once, with what scores and labels on a device are indexed by."""

    graphs: GraphBatch
    shape: tuple[int, ...]  #: of the scores but for the labels
    kept: Tensor  #: numbers of the nodes that the mask leaves, graph after graph
    pairs: Tensor  #: (E, 2) ends of the edges of ``graphs``, as numbers of kept nodes
    types: Tensor  #: (E,) their types
    given: Tensor  #: (E, 2) which edge of those given an edge is, and which is its mirror image, or the same again
    degrees: Tensor  #: (N, 1) edges around a kept node, 1 where there are none
    mirrored: str  #: "none", "all" or "some" of the edges come both ways
    recorded: dict[Any, tuple[Any, Any]] = field(default_factory=dict)  #: of calls that came before, by what they are

    def tables(self, by_type: Tensor, by_edge: Tensor | None) -> Tensor:
        """Tables of the types or edges of ``graphs``, from (T, K, K) and (E', K, K): means over both ways."""
        if by_edge is None:
            if self.mirrored == "none":
                return by_type
            means = 0.5 * (by_type + by_type.transpose(1, 2))
            return means if self.mirrored == "all" else torch.cat([by_type, means])
        there, back = self.given.T
        shared = by_type[self.types % len(by_type)]
        own, turned = shared + by_edge[there], (shared + by_edge[back]).transpose(1, 2)
        return torch.where((there != back)[:, None, None], 0.5 * (own + turned), own)

    def by_type_and_edge(self, tables: Tensor, n_types: int, n_edges: int | None) -> tuple[Tensor, Tensor]:
        """The transpose of :meth:`tables`."""
        if n_edges is None:
            if self.mirrored != "none":
                means = 0.5 * (tables[-n_types:] + tables[-n_types:].transpose(1, 2))
                tables = means if self.mirrored == "all" else tables[:n_types] + means
            return tables, tables.new_empty(0)
        there, back = self.given.T
        two = (there != back)[:, None, None]
        own, turned = torch.where(two, 0.5 * tables, tables), torch.where(two, 0.5 * tables.transpose(1, 2), 0.0)
        of_type = (self.types % n_types == torch.arange(n_types, device=tables.device)[:, None]).to(tables.dtype)
        by_type = of_type @ (own + turned).flatten(1)
        by_edge = tables.new_zeros(n_edges, *tables.shape[1:]).index_add_(0, there, own).index_add_(0, back, turned)
        return by_type.view(n_types, *tables.shape[1:]), by_edge


def laid_out(
    shape: tuple[int, ...],
    connectivity: int,
    n_types: int,
    device: torch.device,
    *,
    mask: Tensor | None,
    edges: Tensor | None,
    edge_types: Tensor | None,
    batch: Tensor | None,
) -> Layout:
    """The layout of a batch, from a cache where the same was seen before; edges that come both ways are one.

    ``connectivity`` are the neighbours of an inner pixel, 2 in chains and 0 in graphs; the types of edges given come
    behind those of the grid or chain. For a mask, edges and the like on a GPU the host waits, once for all of them.
    """
    parts = [None if mask is None else mask.to(torch.bool), *(
        None if part is None else part.to(torch.int64) for part in (edges, edge_types, batch)
    )]  # fmt: skip
    flat = [None if part is None else part.detach().reshape(-1).view(torch.uint8) for part in parts]
    far = [part for part in flat if part is not None and part.device.type != "cpu"]
    fetched = iter(torch.cat(far).cpu().split([len(part) for part in far]) if far else ())
    there = [part if part is None or part.device.type == "cpu" else next(fetched) for part in flat]
    content = tuple(None if part is None else part.numpy().tobytes() for part in there)
    n_edges = 0 if edges is None else edges.shape[1]
    return _laid_out(shape, connectivity, n_types, device, n_edges, content)


@lru_cache(_KEPT)
def _laid_out(
    shape: tuple[int, ...],
    connectivity: int,
    n_types: int,
    device: torch.device,
    n_edges: int,
    content: tuple[bytes | None, ...],
) -> Layout:
    n_nodes, mask = int(np.prod(shape)), content[0]
    inside = np.ones(n_nodes, dtype=np.bool_) if mask is None else np.frombuffer(mask, np.bool_)
    edges, types, batch = (None if part is None else np.frombuffer(part, np.int64) for part in content[1:])
    if not inside.any():
        raise ArgumentError(
            *("scores", "must have at least one node") if mask is None else ("mask", "must keep at least one node")
        )
    if connectivity:
        pairs, kinds, graph = _regular(shape, connectivity, inside)
    else:
        pairs, kinds = np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64)
        graph = np.zeros(n_nodes, dtype=np.int64) if batch is None else integers(batch, "batch", n_nodes)
    if edges is not None:
        own = number_pairs(edges.reshape(2, n_edges).T, n_nodes, "edges")
        apart = graph[own[:, 0]] != graph[own[:, 1]]
        if apart.any():
            e = int(np.argmax(apart))
            raise ArgumentError(
                "edges", f"[:, {e}] = {tuple(own[e].tolist())} must join two different nodes of one graph"
            )
        first = connectivity // 2
        which = np.zeros(len(own), dtype=np.int64)
        if types is not None:
            which = integers(types, "edge_types", len(own), below=n_types - first)
        pairs, kinds = np.concatenate([pairs, own]), np.concatenate([kinds, first + which])
    chosen = np.flatnonzero(inside[pairs].all(1))
    low, high = np.sort(pairs[chosen], 1).T
    keys = (low * n_nodes + high) * n_types + kinds[chosen]
    _, seen, number = np.unique(keys, return_index=True, return_inverse=True)
    given = np.stack([chosen[seen]] * 2, 1)
    turned = pairs[chosen, 0] != pairs[given[number, 0], 0]
    repeated = ~turned & (chosen != given[number, 0])
    if repeated.any():
        raise ArgumentError("edges", f"have {tuple(pairs[chosen[np.argmax(repeated)]].tolist())} more than once")
    given[number[turned], 1] = chosen[turned]
    given = given[np.argsort(graph[pairs[given[:, 0], 0]], kind="stable")]
    both = given[:, 0] != given[:, 1]
    mirrored = "none" if not both.any() else "all" if both.all() else "some"
    kept = np.flatnonzero(inside)
    kept = kept[np.argsort(graph[kept], kind="stable")]
    renumbered = np.empty(n_nodes, dtype=np.int64)
    renumbered[kept] = np.arange(len(kept))
    graphs = GraphBatch(
        renumbered[pairs[given[:, 0]]],
        np.bincount(graph[kept], minlength=shape[0] if connectivity else int(graph.max()) + 1),
        edge_types=kinds[given[:, 0]] + (n_types * both if mirrored == "some" else 0),
        n_types=2 * n_types if mirrored == "some" else n_types,
    )
    degrees = np.maximum(1.0, np.bincount(graphs.edges.ravel(), minlength=graphs.n_nodes))[:, None]
    arrays = (kept, graphs.edges, graphs.edge_types, given, degrees)
    ends, pairs, types, given_on, around = (moved(torch.from_numpy(part), device) for part in arrays)
    return Layout(graphs, shape, ends, pairs, types, given_on, around, mirrored)


def _regular(shape: tuple[int, ...], connectivity: int, inside: Bools) -> tuple[Ints, Ints, Ints]:
    """Edges of chains or grids, their types, and the graph of each node; in chains across what the mask leaves out."""
    graph = np.repeat(np.arange(shape[0]), inside.size // shape[0])
    if connectivity == 2:
        kept = np.flatnonzero(inside)
        pairs = np.stack([kept[:-1], kept[1:]], 1)[graph[kept[:-1]] == graph[kept[1:]]]
        return pairs, np.zeros(len(pairs), dtype=np.int64), graph
    pairs, kinds = neighbours(shape[1:], connectivity)
    stacked = pairs + (inside.size // shape[0]) * np.arange(shape[0])[:, None, None]
    return stacked.reshape(-1, 2), np.tile(kinds, shape[0]), graph
