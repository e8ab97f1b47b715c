"""What an evaluation and a training run cost on data and machines of any size: a model with fitted constants.

For graphs of V nodes and E edges with K labels, z inputs a node that are not zero, W weights and S >= 1 sweeps, an
evaluation multiplies inputs by weights and transposed inputs by beliefs (2 z V K multiply-adds) and makes S passes over
the edges, each of two messages an edge (K^2 multiply-adds each); beliefs and counts come with the last (K^2 an edge).
Its time is a sum of such counts, each times a constant. Constants are not negative, and fitted to measured times by
least squares of relative errors. Memory is modelled in the same way.

N ranks share nodes and edges, hence their time and memory, but each holds all weights and the optimiser's vectors. In
an evaluation they add up W numbers by a ring: 2 (N - 1) messages in turn, in all 2 (N - 1) / N times the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """A data set and the work on it; ``sparse`` says how inputs are stored."""

    nodes: float
    edges: float
    labels: int
    inputs: float  #: of a node, those that are not zero
    weights: float
    sweeps: float = 1.0  #: over all edges in an evaluation, at least one
    sparse: bool = False

    @property
    def clusters(self) -> float:
        """Tables of pairs: one an edge."""
        return self.edges

    def part(self, ranks: int) -> Size:
        """What one of several ranks holds; all weights, and an even share of the rest."""
        return replace(self, nodes=self.nodes / ranks, edges=self.edges / ranks)


class Counts(NamedTuple):
    """Operations, bytes to and from memory, and bytes sent by each rank."""

    flops: float
    bytes: float
    messages: float
    bytes_sent: float


def sweep_counts(size: Size) -> Counts:
    """One pass of messages over all edges: reads and writes multipliers and beliefs of both ends of every edge."""
    links = 2.0 * size.edges
    flops = links * (2.0 * size.labels**2 + 6.0 * size.labels)
    return Counts(flops, links * (3.0 * 8.0 * size.labels + 4.0 * 8.0), 0.0, 0.0)


def evaluation_counts(size: Size, ranks: int = 1) -> Counts:
    """An evaluation of the dual on one of so many ranks, all of its sweeps included."""
    own = size.part(ranks)
    products = 4.0 * own.inputs * own.nodes * own.labels
    stored = (12.0 if own.sparse else 8.0) * own.inputs * own.nodes
    sweep = sweep_counts(own)
    last = own.edges * 4.0 * own.labels**2
    states = 8.0 * own.labels * (4.0 * own.nodes + 4.0 * own.edges)
    return Counts(
        flops=products + own.sweeps * sweep.flops + last + 6.0 * own.weights,
        bytes=2.0 * stored + own.sweeps * sweep.bytes + states + 4.0 * 8.0 * own.weights,
        messages=2.0 * (ranks - 1),
        bytes_sent=2.0 * (ranks - 1) / ranks * 8.0 * (own.weights + 2.0 + 2.0 * ranks),
    )


# --- the fit ---

#: Bytes of an array from which reads at random places wait for main memory: the fit takes the best of these.
CACHES = (1e6, 2e6, 4e6, 8e6, 16e6)

TIME_TERMS = (
    "call",
    "node x label",
    "dense input x label",
    "sparse input x label",
    "sparse input beyond the cache",
    "edge",
    "edge x label^2",
    "node x label, a sweep",
    "edge x label, a sweep",
    "edge x label^2, a sweep",
    "weight",
)
MEMORY_TERMS = ("process", "node", "node x label", "dense input", "sparse input", "edge", "edge x label", "weight")


def missing(n_bytes: float, cache: float) -> float:
    """Part of the reads from random places of an array that the cache cannot serve."""
    return max(0.0, 1.0 - cache / n_bytes)


def time_terms(size: Size, cache: float = CACHES[1]) -> Floats:
    """Counts whose weighted sum is the time of an evaluation."""
    inputs = size.nodes * size.inputs
    edge_states, node_states = size.edges * size.labels, size.nodes * size.labels
    # A sparse input fetches a row of weights in one product, and a node's beliefs in the other.
    fetched = missing(8.0 * size.weights, cache) + missing(8.0 * node_states, cache)
    return np.array(
        [
            1.0,
            node_states,
            0.0 if size.sparse else inputs * size.labels,
            inputs * size.labels if size.sparse else 0.0,
            inputs * fetched if size.sparse else 0.0,
            size.edges,
            edge_states * size.labels,
            size.sweeps * node_states,
            size.sweeps * edge_states,
            size.sweeps * edge_states * size.labels,
            size.weights,
        ]
    )


def memory_terms(size: Size) -> Floats:
    """Counts whose weighted sum is the memory of a training run in bytes, its data included."""
    inputs = size.nodes * size.inputs
    return np.array(
        [
            1.0,
            size.nodes,
            size.nodes * size.labels,
            0.0 if size.sparse else inputs,
            inputs if size.sparse else 0.0,
            size.edges,
            size.edges * size.labels,
            size.weights,
        ]
    )


def fit(terms: Sequence[Floats], measured: Sequence[float]) -> Floats:
    """Constants of at least 0 with the least squares of relative errors."""
    values = np.asarray(measured, dtype=np.float64)
    if values.size == 0 or not (values > 0.0).all():
        raise ValueError("measured must hold positive numbers, at least one")
    matrix = np.stack(list(terms)) / values[:, None]
    scale = np.maximum(matrix.max(axis=0), 1e-300)  # columns of like size keep the solver accurate
    constants, _ = nnls(matrix / scale, np.ones(values.size))
    found: Floats = constants / scale
    return found


def fit_times(sizes: Sequence[Size], measured: Sequence[float]) -> tuple[Floats, float]:
    """Constants of :data:`TIME_TERMS`, and the size of the cache, that fit measured times best."""
    found = []
    for cache in CACHES:
        rows = [time_terms(size, cache) for size in sizes]
        constants = fit(rows, measured)
        squares = relative_errors([float(constants @ row) for row in rows], measured) ** 2
        found.append((float(squares.sum()), cache, constants))
    _, cache, constants = min(found, key=lambda one: one[:2])
    return constants, cache


@dataclass(frozen=True)
class CostModel:
    """Fitted constants: seconds of one thread, and bytes."""

    time: Floats  #: by :data:`TIME_TERMS`, of an evaluation
    step: float  #: a weight's part of the optimiser's own work for a step
    memory: Floats  #: by :data:`MEMORY_TERMS`, of training
    cache: float = CACHES[1]

    def evaluation_seconds(self, size: Size) -> float:
        """Of one thread, without the optimiser."""
        return float(self.time @ time_terms(size, self.cache))

    def step_seconds(self, weights: float) -> float:
        """Of one thread for the optimiser's vectors."""
        return self.step * weights

    def bytes(self, size: Size) -> float:
        """Of a process that trains on all of the data."""
        return float(self.memory @ memory_terms(size))


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> Floats:
    """(predicted - measured) / measured."""
    judge = np.asarray(measured, dtype=np.float64)
    errors: Floats = (np.asarray(predicted) - judge) / judge
    return errors


# --- predictions ---


@dataclass(frozen=True)
class Machine:
    """A node of a cluster, and the network between nodes. None of its numbers is measured: they are assumptions."""

    cores: int = 32
    efficiency: float = 0.8  #: of all cores together, against as many times one core
    bandwidth_cores: float = 8.0  #: cores' worth of speed at which passes over long vectors saturate memory
    latency: float = 20e-6  #: seconds for a message
    bandwidth: float = 3e9  #: bytes a second between nodes, each way

    def all_reduce_seconds(self, n_bytes: float, nodes: int) -> float:
        """A ring over all nodes."""
        if nodes == 1:
            return 0.0
        return 2.0 * (nodes - 1) * self.latency + 2.0 * (nodes - 1) / nodes * n_bytes / self.bandwidth


@dataclass(frozen=True)
class Prediction:
    """An evaluation with its step of the optimiser on a cluster of equal nodes, one process a node."""

    nodes: int
    seconds: float  #: everything together
    network_seconds: float
    optimiser_seconds: float  #: and other passes over all weights
    bytes: float  #: of each node's memory

    @property
    def efficiency(self) -> float:
        """The part of the time that is spent on the data."""
        return 1.0 - (self.network_seconds + self.optimiser_seconds) / self.seconds


def predict(model: CostModel, size: Size, nodes: int, machine: Machine | None = None) -> Prediction:
    """Time of an evaluation and memory a node."""
    if nodes < 1:
        raise ValueError(f"nodes must be at least 1, found {nodes}")
    machine = machine or Machine()
    own = size.part(nodes)
    # The weights' part of an evaluation, and the optimiser, run over long vectors, which memory limits, not cores.
    on_weights = model.time[-1] * size.weights
    compute = (model.evaluation_seconds(own) - on_weights) / (machine.cores * machine.efficiency)
    optimiser = (on_weights + model.step_seconds(size.weights)) / min(machine.bandwidth_cores, machine.cores)
    network = machine.all_reduce_seconds(8.0 * (size.weights + 2.0 + 2.0 * nodes), nodes)
    return Prediction(nodes, compute + optimiser + network, network, optimiser, model.bytes(own))
