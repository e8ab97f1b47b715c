"""The graph as index tensors: nodes sorted by colour, links sorted by node.

No edge joins two nodes of one colour, so the star updates of a colour's nodes touch different multipliers and may be
made all at once: colour after colour is an exact sequential sweep in another order (see
:mod:`bactrian.engines.numba.stars`). An edge has two links, one to the node of its table's rows and one to that of its
columns. Inside the engine nodes are numbered colour by colour and links node by node, so that whatever a colour needs
is one contiguous slice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.orders import greedy_colours, stable_order
from bactrian.engines.torch.device import Movable
from bactrian.graphs.ragged import pointer


@dataclass(frozen=True)
class Structure(Movable):
    """Nodes, links and edges of a set of graphs; ``N`` nodes, ``E`` edges, ``2E`` links."""

    nodes: Tensor  #: (N,) number of a node among those given, by its number inside
    pointer: Tensor  #: (N + 1,) links of a node
    link_node: Tensor  #: (2E,) node of a link
    partner: Tensor  #: (2E,) the other link of the edge
    kind: Tensor  #: (2E,) which of the oriented tables a link's message is multiplied with
    edges: Tensor  #: (E,) number of an edge among those given, by its number inside (sorted by type)
    links: Tensor  #: (E, 2) row link and column link of an edge
    edge_table: Tensor  #: (E,) which table an edge has
    node_weight: Tensor  #: (N,) weight of the graph in the objective
    edge_weight: Tensor  #: (E,)
    node_graph: Tensor  #: (N,) graph of a node
    edge_graph: Tensor  #: (E,)
    node_bounds: Tensor  #: (M + 1,) nodes of a graph, by the order given
    edge_bounds: Tensor  #: (M + 1,)
    degree: Tensor  #: (N,)
    first_link: Tensor  #: (N,) first link of a node; 0 where it has none
    colour_nodes: tuple[int, ...]  #: bounds of the colours' nodes
    colour_links: tuple[int, ...]  #: bounds of the colours' links
    type_edges: tuple[int, ...]  #: bounds of the types' edges
    own_tables: bool  #: every edge has a table of its own, instead of one a type
    symmetric: bool  #: all tables are symmetric
    n_graphs: int

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.colour_nodes[-1]

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return self.colour_links[-1] // 2

    @property
    def n_colours(self) -> int:
        """Number of colours."""
        return len(self.colour_nodes) - 1

    def by_graph(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """(M,) sums of what nodes (N,) and edges (E,) have, as numbered inside, over each graph."""
        total = nodes.new_zeros(self.n_graphs)
        of_nodes, of_edges = (nodes, self.nodes, self.node_bounds), (edges, self.edges, self.edge_bounds)
        for values, order, bounds in (of_nodes, of_edges):
            in_order = torch.empty_like(values).index_copy_(0, order, values)
            total += torch.segment_reduce(in_order, "sum", offsets=bounds, axis=0, unsafe=True)
        return total

    @property
    def nbytes(self) -> int:
        """Bytes of the index tensors."""
        values = [getattr(self, f.name) for f in fields(self)]
        return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


def build_structure(
    edges: Ints,
    edge_types: Ints,
    node_counts: Ints,
    weights: Floats,
    *,
    n_types: int,
    own_tables: bool = False,
    symmetric: bool = False,
) -> Structure:
    """Structure, on the CPU, of graphs given as stacked nodes and ``edges`` (E, 2).

    ``symmetric`` promises that all tables are, so that a link's message does not depend on which end it is.
    """
    n_nodes = int(node_counts.sum())
    ends = edges.ravel()
    node_links = pointer(np.bincount(ends, minlength=n_nodes))
    by_node = stable_order(ends, n_nodes)
    colours = greedy_colours(node_links, ends[by_node ^ 1])
    nodes = stable_order(colours, n_nodes)
    inside = np.empty_like(nodes)
    inside[nodes] = np.arange(n_nodes)
    # Ends are numbered 2 e + axis, links in the order of their nodes inside.
    order = stable_order(inside[ends], n_nodes)
    link_of_end = np.empty_like(order)
    link_of_end[order] = np.arange(order.size)
    degree = np.diff(node_links)[nodes]
    link_pointer = pointer(degree)
    colour_nodes = pointer(np.bincount(colours))
    edge_order = stable_order(edge_types, n_types)
    graph = np.repeat(np.arange(node_counts.size), node_counts)
    edge_graph = graph[edges[edge_order, 0]]
    return Structure(
        nodes=torch.from_numpy(nodes),
        pointer=torch.from_numpy(link_pointer),
        link_node=torch.from_numpy(inside[ends[order]]),
        partner=torch.from_numpy(link_of_end[order ^ 1]),
        kind=torch.from_numpy(edge_types[order // 2] if symmetric else 2 * edge_types[order // 2] + order % 2),
        edges=torch.from_numpy(edge_order),
        links=torch.from_numpy(link_of_end.reshape(-1, 2)[edge_order]),
        edge_table=torch.from_numpy(np.arange(len(edges)) if own_tables else edge_types[edge_order]),
        node_weight=torch.from_numpy(weights[graph[nodes]]),
        edge_weight=torch.from_numpy(weights[edge_graph]),
        node_graph=torch.from_numpy(graph[nodes]),
        edge_graph=torch.from_numpy(edge_graph),
        node_bounds=torch.from_numpy(pointer(node_counts)),
        edge_bounds=torch.from_numpy(np.searchsorted(graph[edges[:, 0]], np.arange(node_counts.size + 1))),
        degree=torch.from_numpy(degree),
        first_link=torch.from_numpy(np.where(degree > 0, link_pointer[:-1], 0)),
        colour_nodes=tuple(colour_nodes.tolist()),
        colour_links=tuple(link_pointer[colour_nodes].tolist()),
        type_edges=tuple(pointer(np.bincount(edge_types, minlength=n_types)).tolist()),
        own_tables=own_tables,
        symmetric=symmetric,
        n_graphs=int(node_counts.size),
    )
