"""The dual D on the device: parts of the data, their multipliers, value and gradient.

See :mod:`bactrian.objective.dual` for the formula. Graphs are independent given the weights, so the data may be cut
into parts of ``chunk`` graphs. One part stays on the device; several are moved there in turn, which needs less memory
and more time, and changes nothing but the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

from bactrian.model.graph_data import GraphData
from bactrian.torch.inputs import DeviceScores
from bactrian.torch.memory import explain_memory
from bactrian.torch.numbers import node_numbers
from bactrian.torch.stars import Stars, StarValues
from bactrian.torch.structure import Structure, build_structure

Tensor = torch.Tensor
Result = TypeVar("Result")


class Part:
    """Some graphs of the data: structure, scores, and the state that outlives an evaluation."""

    def __init__(self, data: GraphData, first: int, last: int) -> None:
        nodes = int(data.node_pointer[first]), int(data.node_pointer[last])
        edges = tuple(np.searchsorted(data.edges[:, 0], nodes)) if _sorted_by_node(data) else _edge_range(data, *nodes)
        chosen = slice(int(edges[0]), int(edges[1]))
        self.first_graph, self.first_node, self.first_edge = first, nodes[0], chosen.start
        self.structure: Structure = build_structure(
            data.edges[chosen] - nodes[0],
            data.edge_types[chosen],
            np.diff(data.node_pointer[first : last + 1]),
            data.weights[first:last],
            n_types=len(data.tables),
            own_tables=data.scores.edge_inputs is not None,
            symmetric=all(table.tying != "full" for table in data.tables) and data.scores.edge_inputs is None,
        )
        self.scores = DeviceScores(data.scores, self.structure, nodes[0], chosen.start)

    @property
    def nbytes(self) -> int:
        """Bytes of the structure and the inputs."""
        return self.structure.nbytes + self.scores.nbytes


def _edge_range(data: GraphData, first_node: int, last_node: int) -> tuple[int, int]:
    """Edges are sorted by graph, so those of consecutive graphs are consecutive."""
    inside = np.flatnonzero((data.edges[:, 0] >= first_node) & (data.edges[:, 0] < last_node))
    return (int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0)
