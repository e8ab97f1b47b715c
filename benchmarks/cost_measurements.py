"""Measurements for :mod:`cost_model` on random graphs of given sizes, on one thread.

Times are those of the processor that this process had, not of the clock, so that other work on the machine disturbs
them less; on one thread of a quiet machine both are the same. Memory is what Python's tracer saw at its peak.
"""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import scipy.sparse as sp

from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.engines.long_memory import make_memory
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packing import pack
from bactrian.learners.learn import learn
from bactrian.parallel.threads import Context, Workers, single_threaded_blas
from bactrian.solvers.solution import ConvergenceWarning
from cost_model import (
    CostModel,
    Floats,
    Size,
    fit,
    fit_times,
    memory_terms,
    relative_errors,
)

#: Nodes of each graph.
GRAPH = 300
SWEEPS = (1, 2, 5)
#: Differences of node numbers that are joined, for a chain and for about three edges a node.
_CHAIN, _MESH = (1,), (1, 17, 18)


@dataclass(frozen=True)
class Shape:
    """A kind of data: labels, chain or mesh, dense or sparse inputs and how many columns they have."""

    labels: int
    mesh: bool
    inputs: int
    columns: int
    sparse: bool


SHAPES = tuple(
    Shape(labels, mesh, *inputs)
    for labels in (3, 7, 12)
    for mesh in (False, True)
    for inputs in ((8, 8, False), (40, 40, False), (20, 2_000, True), (70, 30_000, True))
)


@dataclass(frozen=True)
class Measured:
    """Sizes with what they took."""

    times: list[tuple[Size, float]]  #: seconds of an evaluation
    memory: list[tuple[Size, float]]  #: bytes of training
    steps: list[tuple[float, float]]  #: weights, and seconds of a step


def random_graphs(shape: Shape, n_nodes: int, seed: int = 0) -> tuple[GraphData, Size]:
    """Graphs of :data:`GRAPH` nodes with random inputs and labels, and what the model knows of them."""
    rng = np.random.default_rng(seed)
    n_graphs = max(1, n_nodes // GRAPH)
    n = n_graphs * GRAPH
    first = np.arange(n).reshape(n_graphs, GRAPH)
    edges = [
        np.stack([first[:, :-offset].ravel(), first[:, offset:].ravel()], axis=1)
        for offset in (_MESH if shape.mesh else _CHAIN)
    ]
    inputs: Any
    if shape.sparse:
        # Few columns are common and most are rare, as words are.
        columns = (shape.columns * rng.random((n, shape.inputs)) ** 3).astype(np.int32)
        inputs = sp.csr_array(
            (np.ones(columns.size), columns.ravel(), shape.inputs * np.arange(n + 1)), shape=(n, shape.columns)
        )
        inputs.sum_duplicates()
    else:
        inputs = rng.normal(size=(n, shape.columns))
    labels = rng.integers(0, shape.labels, size=n)
    data = GraphData(
        inputs, np.concatenate(edges), n_labels=shape.labels, labels=labels, node_counts=[GRAPH] * n_graphs
    )
    nonzeros = inputs.nnz / n if shape.sparse else shape.columns
    return data, Size(n, len(data.edges), shape.labels, nonzeros, data.n_weights, sparse=shape.sparse)


def best_seconds(function: Callable[[], object], repeats: int) -> float:
    """Least processor time of several calls, after one that is not counted."""
    function()
    found = []
    for _ in range(repeats):
        begun = time.process_time()
        function()
        found.append(time.process_time() - begun)
    return min(found)


def evaluation_times(data: GraphData, size: Size, repeats: int = 4) -> Iterator[tuple[Size, float]]:
    """Seconds of an evaluation, for several numbers of sweeps."""
    packed = pack(data)
    dual = Dual(packed, carve(packed, "bethe"), Prior(10.0), Context(Workers(1)))
    weights = 0.1 * np.random.default_rng(0).normal(size=data.n_weights)
    for sweeps in SWEEPS:
        with single_threaded_blas():
            seconds = best_seconds(partial(dual.evaluate, weights, max_sweeps=sweeps, tolerance=-1.0), repeats)
        yield replace(size, sweeps=sweeps), seconds


def training_memory(shape: Shape, n_nodes: int) -> tuple[Size, float]:
    """Bytes at the peak of making the data and a few relinearisations of training."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    data, size = random_graphs(shape, n_nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learn(data, "cccp", tolerance=1e-9, max_relinearisations=8, max_iterations=60, n_threads=1)
    peak = tracemalloc.get_traced_memory()[1] - before
    if not was_tracing:
        tracemalloc.stop()
    return size, float(peak)


def step_time(n_weights: int, repeats: int = 4) -> tuple[float, float]:
    """Weights, and seconds of the optimiser's own work for a step: a direction, a trial and a new pair."""
    rng = np.random.default_rng(0)
    memory = make_memory(n_weights, Workers(1))
    x, gradient, noise = (rng.normal(size=n_weights) for _ in range(3))
    steps = count(1)

    def step() -> None:
        direction = memory.direction(gradient)
        memory.inner(direction[None], gradient[None])
        trial = 1.0 * direction
        trial += x
        memory.inner(direction[None], gradient[None])
        # Another pair each time: a memory of copies of one could not be solved for.
        k = next(steps)
        memory.add(np.roll(noise, k), np.roll(noise, k) + 0.1 * np.roll(noise, 7 * k))

    for _ in range(10):
        step()
    return float(n_weights), best_seconds(step, repeats)


def measure(
    n_nodes: Sequence[int],
    shapes: Sequence[Shape] = SHAPES,
    *,
    n_weights: Sequence[int] = (),
    times: bool = True,
    memory: bool = True,
    follow: Callable[[str, Size, float], None] | None = None,
) -> Measured:
    """Measure every shape at every number of nodes, and the optimiser at every number of weights."""
    found = Measured([], [], [])
    for shape in shapes:
        for n in n_nodes:
            for size, seconds in evaluation_times(*random_graphs(shape, n)) if times else ():
                found.times.append((size, seconds))
                if follow is not None:
                    follow("seconds", size, seconds)
            if memory:
                size, peak = training_memory(shape, n)
                found.memory.append((size, peak))
                if follow is not None:
                    follow("bytes", size, peak)
    found.steps.extend(step_time(n) for n in n_weights)
    return found


def fitted(measured: Measured) -> CostModel:
    """The model of some measurements."""
    constants, cache = fit_times([size for size, _ in measured.times], [seconds for _, seconds in measured.times])
    return CostModel(
        time=constants,
        cache=cache,
        step=float(fit([np.array([n]) for n, _ in measured.steps], [seconds for _, seconds in measured.steps])[0]),
        memory=fit([memory_terms(size) for size, _ in measured.memory], [peak for _, peak in measured.memory]),
    )


def errors(model: CostModel, measured: Measured) -> dict[str, Floats]:
    """Relative errors of the model on measurements."""
    return {
        "time": relative_errors(
            [model.evaluation_seconds(size) for size, _ in measured.times], [s for _, s in measured.times]
        ),
        "step": relative_errors([model.step_seconds(n) for n, _ in measured.steps], [s for _, s in measured.steps]),
        "memory": relative_errors([model.bytes(size) for size, _ in measured.memory], [b for _, b in measured.memory]),
    }
