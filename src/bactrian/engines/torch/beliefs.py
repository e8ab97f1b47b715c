"""Beliefs of graphs in the order of the data, copied to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bactrian.arrays import Floats, Ints
from bactrian.engines.torch.dual import DeviceMessages, Part
from bactrian.engines.torch.evaluation import joint_beliefs


def node_values(messages: DeviceMessages, name: str) -> Floats:
    """(n_nodes, K) a state of the nodes, such as ``node_log`` or ``bias``, in the order of the data."""
    out = np.empty((messages.graph_data.n_nodes, messages.graph_data.n_labels))
    for part in messages.parts:
        out[part.first_node + part.structure.nodes.cpu().numpy()] = getattr(part.stars, name).cpu().numpy()
    return out


def multipliers_by_node(messages: DeviceMessages) -> Floats:
    """All multipliers in the order of the packed data on the CPU: links sorted by node, then by edge."""
    edges = messages.graph_data.edges
    by_end = np.empty((edges.size, messages.graph_data.n_labels))
    for part in messages.parts:
        assert part.stars is not None
        ends = 2 * (part.first_edge + part.structure.edges.cpu().numpy())[:, None] + np.arange(2)
        by_end[ends] = part.stars.multipliers[part.structure.links].cpu().numpy()
    return by_end[np.argsort(edges.ravel(), kind="stable")].ravel()


def take_multipliers(messages: DeviceMessages, multipliers: Floats) -> None:
    """The inverse of :func:`multipliers_by_node`."""
    edges = messages.graph_data.edges
    by_end = np.empty((edges.size, messages.graph_data.n_labels))
    by_end[np.argsort(edges.ravel(), kind="stable")] = multipliers.reshape(by_end.shape)
    for part in messages.parts:
        assert part.stars is not None
        ends = 2 * (part.first_edge + part.structure.edges.cpu().numpy())[:, None] + np.arange(2)
        found = torch.from_numpy(by_end[ends]).to(part.stars.multipliers)
        part.stars.multipliers[part.structure.links] = found


def take_node_values(messages: DeviceMessages, name: str, values: Floats) -> None:
    """The inverse of :func:`node_values`."""
    table = values.reshape(-1, messages.graph_data.n_labels)
    for part in messages.parts:
        chosen = part.first_node + part.structure.nodes.cpu().numpy()
        getattr(part.stars, name).copy_(torch.from_numpy(table[chosen]))


class GraphBeliefs(Sequence["OneGraph"]):
    """``beliefs[m][i]``: nodes of graph m in their order, then its edges; edges are computed when asked for.

    Holds copies on the host, so that learning may go on with the device's memory.
    """

    def __init__(self, messages: DeviceMessages) -> None:
        data = messages.graph_data
        self.node_pointer = data.node_pointer
        graph = np.searchsorted(data.node_pointer, data.edges[:, 0], side="right") - 1
        self.edge_pointer = np.searchsorted(graph, np.arange(data.n_graphs + 1))
        self.nodes = np.exp(node_values(messages, "node_log"))
        self._rows, self._columns = (np.empty((data.edges.shape[0], data.n_labels)) for _ in range(2))
        self._tables: list[Floats] = []
        self._table = np.empty(data.edges.shape[0], dtype=np.int64)
        filled = 0
        for part in messages.parts:
            filled += self._copy(part, filled)

    def _copy(self, part: Part, filled: int) -> int:
        assert part.stars is not None
        structure, stars = part.structure, part.stars
        edges = part.first_edge + structure.edges.cpu().numpy()
        for end, out in enumerate((self._rows, self._columns)):
            out[edges] = stars.multipliers[structure.links[:, end]].cpu().numpy()
        tables = stars.tables.cpu().numpy()
        self._table[edges] = filled + structure.table_of(torch.arange(edges.size)).numpy()
        self._tables.append(tables)
        return int(tables.shape[0])

    def edge_tables(self, edges: Ints) -> Floats:
        """(n, K, K) belief tables of some edges of the data."""
        if len(self._tables) > 1:
            self._tables = [np.concatenate(self._tables)]
        chosen = self._tables[0][self._table[edges]], self._rows[edges], self._columns[edges]
        beliefs: Floats = joint_beliefs(*map(torch.from_numpy, chosen)).numpy()
        return beliefs

    def __len__(self) -> int:
        return int(self.node_pointer.size - 1)

    def __getitem__(self, graph: Any) -> Any:
        if isinstance(graph, slice):
            return [self[m] for m in range(*graph.indices(len(self)))]
        return OneGraph(self, range(len(self))[graph])


class OneGraph(Sequence[Floats]):
    """Belief tables of one graph."""

    def __init__(self, beliefs: GraphBeliefs, graph: int) -> None:
        self._beliefs = beliefs
        self._nodes = slice(*(int(n) for n in beliefs.node_pointer[graph : graph + 2]))
        self._edges = slice(*(int(e) for e in beliefs.edge_pointer[graph : graph + 2]))

    def __len__(self) -> int:
        return int(self._nodes.stop - self._nodes.start + self._edges.stop - self._edges.start)

    def __getitem__(self, cluster: Any) -> Any:
        if isinstance(cluster, slice):
            return [self[i] for i in range(*cluster.indices(len(self)))]
        i = range(len(self))[cluster]
        n_nodes = self._nodes.stop - self._nodes.start
        if i < n_nodes:
            return self._beliefs.nodes[self._nodes.start + i].copy()
        return self._beliefs.edge_tables(np.array([self._edges.start + i - n_nodes]))[0]

    def __iter__(self) -> Iterator[Floats]:
        return (self[i] for i in range(len(self)))
