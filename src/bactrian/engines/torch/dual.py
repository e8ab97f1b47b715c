"""The dual D on the device: parts of the data, their multipliers, value and gradient.

See :mod:`bactrian.camel.dual` for the formula. Graphs are independent given the weights, so the data may be cut
into parts of ``chunk`` graphs. A single part stays on the device; several are moved there in turn, which needs less
memory and more time, and changes nothing but the order of additions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bactrian.camel.prior import Prior
from bactrian.engines.torch.device import Needed, state_bytes
from bactrian.engines.torch.evaluation import StarValues, observed_counts
from bactrian.engines.torch.inputs import DeviceScores
from bactrian.engines.torch.star_state import NodeNumbers, Recording, node_numbers
from bactrian.engines.torch.stars import Stars, larger
from bactrian.engines.torch.structure import build_structure
from bactrian.graphs.graph_data import GraphData


class DeviceEvaluation(NamedTuple):
    """As :class:`bactrian.camel.dual.Evaluation`, with the gradient on the device."""

    value: float
    gradient: Tensor
    violation: float
    sweeps: int
    residual: float


class Size(NamedTuple):
    """What learning asks of the data besides its dual."""

    n_weights: int
    total_weight: float


class Part:
    """Some graphs of the data: structure, inputs, and the state that outlives an evaluation."""

    def __init__(self, data: GraphData, first: int, last: int) -> None:
        nodes = int(data.node_pointer[first]), int(data.node_pointer[last])
        # Edges are sorted by graph, so those of consecutive graphs are consecutive.
        graph = np.searchsorted(data.node_pointer, data.edges[:, 0], side="right") - 1
        edges = slice(*np.searchsorted(graph, [first, last]).tolist())
        own_tables = any(kind.inputs is not None for kind in data.scores.types)
        self.first_graph, self.first_node, self.first_edge = first, nodes[0], edges.start
        self.structure = build_structure(
            data.edges[edges] - nodes[0],
            data.edge_types[edges],
            np.diff(data.node_pointer[first : last + 1]),
            data.weights[first:last],
            n_types=len(data.tables),
            own_tables=own_tables,
            symmetric=all(table.tying != "full" for table in data.tables) and not own_tables,
        )
        before = np.bincount(data.edge_types[: edges.start], minlength=len(data.tables))
        self.scores = DeviceScores(data.scores, self.structure, nodes[0], before)
        self.n_labels = data.n_labels
        self.stars: Stars | None = None
        self.loading: Recording[Tensor] | None = None
        self.moments: dict[tuple[int, int], Recording[Tensor]] = {}

    def needed(self, dtype: torch.dtype) -> int:
        """Bytes that an evaluation takes, about."""
        s = self.structure
        single = dtype == torch.float32
        state = state_bytes(s.n_nodes, s.n_edges, self.n_labels, own_tables=s.own_tables, single=single)
        return s.nbytes + self.scores.nbytes + state


class DeviceMessages:
    """Scores, multipliers and beliefs of a data set under one entropy, on a device."""

    def __init__(
        self,
        data: GraphData,
        entropy: str,
        parts: list[Part],
        *,
        device: torch.device,
        dtype: torch.dtype,
        consistency: bool = True,
    ) -> None:
        self.graph_data, self.device, self.dtype, self.consistency = data, device, dtype, consistency
        self.data = Size(data.n_weights, float(data.weights.sum()))
        self.parts, self.resident = parts, len(parts) == 1
        hubs, linearised = [], []
        for part in self.parts:
            numbers = node_numbers(part.structure.degree, entropy, own=data.node_factors == "clusters")
            hubs.append(numbers.hub.cpu())
            linearised.append(numbers.linearised.cpu())
            if self.resident:
                part.structure, part.scores = part.structure.to(device), part.scores.to(device)
            numbers = numbers.to(part.structure.nodes.device)
            part.stars = Stars(
                part.structure,
                numbers,
                data.n_labels,
                dtype=dtype,
                consistency=consistency,
                first_edge=data.node_factors == "first-edge",
            )
        self.carving = NodeNumbers(torch.cat(hubs), torch.cat(linearised))
        self.relinearises = self.carving.relinearises
        self.has_saddle = bool((self.carving.hub < 0.0).any())
        self.is_forest = False  # not looked at: trees are swept like all else
        self._remembered: list[Tensor] | None = None
        self.beliefs_before: Tensor | None = None

    def loaded(self) -> Iterator[tuple[Part, Stars, DeviceScores]]:
        """Each part with its state on the device; changes of the state are kept."""
        for part in self.parts:
            assert part.stars is not None
            if self.resident:
                yield part, part.stars, part.scores
                continue
            stars, scores = part.stars.to(self.device), part.scores.to(self.device)
            yield part, stars, scores
            part.stars.take_state(stars)

    def stars(self) -> Iterator[Stars]:
        """The state of each part, wherever it is kept."""
        for part in self.parts:
            assert part.stars is not None
            yield part.stars

    def hub_beliefs(self) -> Tensor:
        """(n_nodes, K) beliefs at the last evaluation, in the order inside the parts."""
        return torch.cat([stars.node_log.exp() for stars in self.stars()])

    def belief_change(self) -> float:
        """Largest change of a belief since this was last asked; NaN the first time."""
        before, self.beliefs_before = self.beliefs_before, self.hub_beliefs()
        return np.nan if before is None else float((self.beliefs_before - before).abs().max())

    def remember(self) -> None:
        """Keep a copy of all multipliers."""
        if self._remembered is None:
            self._remembered = [stars.multipliers.clone() for stars in self.stars()]
        else:
            for kept, stars in zip(self._remembered, self.stars(), strict=True):
                kept.copy_(stars.multipliers)

    def remove_levels(self) -> None:
        """Nothing to do: messages on the device are normalised as they are read."""

    def recall(self) -> None:
        """Take up the multipliers that were last remembered, if any were."""
        if self._remembered is not None:
            for kept, stars in zip(self._remembered, self.stars(), strict=True):
                stars.multipliers.copy_(kept)


class DeviceDual(DeviceMessages):
    """D for a data set, an entropy and a Gaussian prior."""

    def __init__(self, data: GraphData, entropy: str, prior: Prior, parts: list[Part], **options: Any) -> None:
        super().__init__(data, entropy, parts, **options)
        self.prior = prior
        self.deadline = np.inf  #: after which no sweep begins
        self._precision: Any = prior.precision
        if not isinstance(self._precision, float):
            self._precision = torch.from_numpy(self._precision).to(self.device)
        self._weights = torch.zeros(self.data.n_weights, dtype=torch.float64, device=self.device)
        self.forget_recordings()  # those of an earlier dual on the same parts
        self.empirical = self._empirical()

    def _empirical(self) -> Tensor:
        """Weighted sum of observed features."""
        assert self.graph_data.labels is not None
        labels = torch.from_numpy(self.graph_data.labels)
        total = torch.zeros(self.data.n_weights, dtype=torch.float64, device=self.device)
        for part, stars, scores in self.loaded():
            observed = labels[part.first_node + part.structure.nodes.cpu()].to(self.device)
            total += scores.moments(*observed_counts(stars.structure, observed, self.graph_data.n_labels))
        return total

    @property
    def late(self) -> bool:
        """Whether the time limit has passed, so that sweeps were or will be cut short."""
        return time.perf_counter() >= self.deadline

    def evaluate(
        self, weights: Tensor, *, tolerance: float = 0.0, max_sweeps: int = 0, damping: float = 0.0
    ) -> DeviceEvaluation:
        """Value and gradient in w after sweeping the multipliers to ``tolerance`` (not at all: ``max_sweeps`` = 0)."""
        value, violation, residual, all_sweeps = 0.0, 0.0, 0.0, 0
        pull = self._precision * weights
        gradient = pull - self.empirical
        for part, stars, scores in self.loaded():
            self._set_weights(part, stars, scores, weights)
            values, sweeps, left = stars.solve(
                tolerance=tolerance, max_sweeps=max_sweeps, damping=damping, deadline=self.deadline
            )
            gradient += self._moments(part, scores, values, stars)
            value += float(values.value)
            violation = larger(violation, float(values.violation))
            residual = larger(residual, left)
            all_sweeps += sweeps * part.structure.n_graphs
        square = self._precision * (weights @ weights) if isinstance(self._precision, float) else pull @ weights
        value += float(0.5 * square - weights @ self.empirical)
        return DeviceEvaluation(value, gradient, violation, all_sweeps, residual)

    def _set_weights(self, part: Part, stars: Stars, scores: DeviceScores, weights: Tensor) -> None:
        """Scores at ``weights``; on a GPU that holds all of the data from a recording."""

        def load() -> Tensor:
            nodes, tables = scores.scores(self._weights)
            return stars.load(nodes + stars.bias, tables)

        if not (stars.records and self.resident and self.consistency):
            nodes, tables = scores.scores(weights)
            stars.set_scores(nodes + stars.bias, tables)
            return
        self._weights.copy_(weights)
        if part.loading is None:
            load()  # makes the tensors that are then written to in place
            part.loading = Recording(load)
        stars.check_range(float(part.loading()))

    def _moments(self, part: Part, scores: DeviceScores, values: StarValues, stars: Stars) -> Tensor:
        """Expected features; recorded like :meth:`_set_weights` where the counts are always the same tensors."""
        if not (stars.records and self.resident and self.consistency) or stars.wide:
            return scores.moments(values.node_counts, values.table_counts)
        key = values.node_counts.data_ptr(), values.table_counts.data_ptr()
        if key not in part.moments:
            part.moments[key] = Recording(lambda: scores.moments(values.node_counts, values.table_counts))
        return part.moments[key]()

    def forget_recordings(self) -> None:
        """Give back the device's memory that recordings hold."""
        for part in self.parts:
            part.loading, part.moments = None, {}
            if part.stars is not None:
                part.stars.forget_recordings()


def make_parts(data: GraphData, chunk: int | None) -> list[Part]:
    """The data cut into parts of ``chunk`` graphs, one part without it; graphs without nodes make no part."""
    step = data.n_graphs if chunk is None else min(chunk, data.n_graphs)
    bounds = [(first, min(first + step, data.n_graphs)) for first in range(0, data.n_graphs, step)]
    return [Part(data, *b) for b in bounds if data.node_pointer[b[0]] < data.node_pointer[b[1]]]


def needed(parts: list[Part], dtype: torch.dtype, n_vectors: int = 0) -> Needed:
    """What work takes on the largest of ``parts``, beside ``n_vectors`` of weights."""
    n_bytes, n_graphs = max((part.needed(dtype), part.structure.n_graphs) for part in parts)
    remedy = (
        f"give chunk= a smaller number of graphs per pass, such as chunk={max(1, n_graphs // 4)}"
        if n_graphs > 1
        else "a single graph cannot be cut further: use device='cpu' or dtype='float32'"
    )
    return Needed(n_bytes + 8 * n_vectors * parts[0].scores.bounds[-1], n_graphs, remedy)


class DeviceLinearisation:
    """Keeps the bias of the nodes at minus the linearisation g = -r log b of their carved entropies.

    ``extrapolate`` is as in :class:`bactrian.camel.linearisation.Linearisation`; of use where all of the data is on
    the device.
    """

    def __init__(
        self, dual: DeviceDual, extrapolate: Callable[[Tensor, Tensor, Tensor], Tensor | None] | None = None
    ) -> None:
        self.dual = dual
        self._extrapolate = extrapolate if dual.resident else None

    def update(self, log_beliefs: Tensor | None = None) -> float:
        """Relinearise at the beliefs of the last evaluation, or at one (K,) for all nodes; returns the change of g."""
        change = 0.0
        for stars in self.dual.stars():
            log_belief = stars.node_log if log_beliefs is None else log_beliefs.to(stars.node_log.device)[None]
            bias = stars.numbers.linearised[:, None] * log_belief
            moved = bias - stars.bias
            belief = stars.node_log.exp()
            moved -= (belief * moved).sum(1, keepdim=True)
            change = larger(change, float(moved.abs().max()))
            further = None
            if self._extrapolate is not None and log_beliefs is None:
                further = self._extrapolate((stars.bias + moved).ravel(), moved.ravel(), belief.ravel())
            stars.bias.copy_(bias if further is None else self._normalised(stars, further))
        return change

    def _normalised(self, stars: Stars, further: Tensor) -> Tensor:
        """The bias of the normalised beliefs that have this linearisation; they take the place of the last ones."""
        number = stars.numbers.linearised[:, None]
        used = number > 0.0
        logs = torch.where(used, further.view_as(stars.bias) / torch.where(used, number, 1.0), stars.node_log)
        logs = logs.log_softmax(1)
        self.dual.beliefs_before = logs.exp()
        return number * logs


def empirical_log_beliefs(data: GraphData) -> Tensor:
    """(K,) log of the observed distribution of labels over all nodes, smoothed by one pseudo-count."""
    assert data.labels is not None
    weights = np.repeat(data.weights, np.diff(data.node_pointer))
    pooled = np.bincount(data.labels, weights=weights, minlength=data.n_labels)
    return torch.from_numpy(np.log((pooled + 1.0 / data.n_labels) / (pooled.sum() + 1.0)))
