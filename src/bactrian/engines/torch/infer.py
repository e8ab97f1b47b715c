"""Marginals on the device: belief propagation and its convex relative, in parallel over the nodes of a colour."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, Ints
from bactrian.camel.dual import larger
from bactrian.camel.entropy import carve
from bactrian.engines.torch.device import checked_data, checked_device, checked_dtype, explain_memory
from bactrian.engines.torch.parts import DeviceGraphs, DeviceTables
from bactrian.engines.torch.stars import FINEST, settle
from bactrian.errors import check_choice, check_count, check_number, warn
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import BeliefTables
from bactrian.inference.problem import checked_evidence, checked_weights
from bactrian.parallel.threads import Context
from bactrian.solvers.solution import ConvergenceWarning

METHODS = ("bp", "convex", "replay")


@dataclass(frozen=True)
class GraphMarginals:
    """Marginals of all graphs of a data set, in the order of the data."""

    nodes: Floats = field(repr=False)  #: (n_nodes, n_labels)
    log_partition: Floats = field(repr=False)  #: (n_graphs,) the method's approximation; D, for a replay
    converged: bool
    iterations: int  #: sweeps made
    residual: float  #: larger of the last change of a belief and the disagreement left
    violation: float  #: largest disagreement between an edge and its node
    method: str
    seconds: float
    beliefs: BeliefTables = field(repr=False)  #: ``beliefs[m][i]``: nodes of graph m, then its edges
    _tables: DeviceTables = field(repr=False)

    def edges(self, chosen: ArrayLike | None = None) -> Floats:
        """(n, n_labels, n_labels) belief tables of all edges, or of some, in the order of ``data.edges``."""
        return self._tables.edges(slice(None) if chosen is None else np.asarray(chosen, dtype=np.int64))

    def predict(self) -> Ints:
        """The most probable label of each node."""
        return self.nodes.argmax(axis=1)


def infer(
    data: GraphData,
    weights: ArrayLike,
    method: str = "bp",
    evidence: Sequence[Mapping[int, int] | None] | None = None,
    *,
    device: str | torch.device = "cuda",
    dtype: str | torch.dtype = "float64",
    chunk: int | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
    damping: float | None = None,
    counting_numbers: str = "convex",
) -> GraphMarginals:
    """Marginals of pairwise graphs at given weights.

    Parameters
    ----------
    data : GraphData
        Graphs; labels are not needed.
    weights : (n_weights,), for ``"replay"`` (n_steps, n_weights)
        Weights of the features.
    method : {"bp", "convex", "replay"}
        Loopy belief propagation, message passing with the concave entropy of :func:`bactrian.infer`, or its replay.
    evidence : list of mappings, optional
        For each graph the nodes whose labels are known.
    device, dtype, chunk
        As in :func:`bactrian.torch.learn`.
    tolerance : float
        Largest change of a belief, and largest disagreement between an edge and its nodes, at which sweeps stop.
    max_iterations : int
        Sweeps at most. Graphs that have not converged by then give a :class:`bactrian.ConvergenceWarning`.
    damping : float, optional
        Part of the old messages that an update keeps, in log space, from 0 to below 1. By default none; ``"convex"``
        damps where its updates oscillate.
    counting_numbers : {"convex", "clusters"}
        Entropy of ``"convex"``.

    Returns
    -------
    GraphMarginals
    """
    began = time.perf_counter()
    checked_data(data, need_labels=False)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))} on this engine, found {method!r}")
    check_number("tolerance", tolerance, least=0)
    check_number("max_iterations", max_iterations, least=1, whole=True)
    if damping is not None and not 0.0 <= damping < 1.0:
        raise ValueError(f"damping must be at least 0 and below 1, found {damping}")
    check_number("chunk", chunk, least=1, whole=True, optional=True)
    check_choice("counting_numbers", counting_numbers, ("convex", "clusters"))
    replays = method == "replay"
    path = np.atleast_2d(checked_weights(weights, data.n_weights, is_path=replays))
    place, precision = checked_device(device), checked_dtype(dtype)
    graphs = DeviceGraphs(data, place, precision, chunk, need_labels=False)
    if evidence is not None:
        check_count("evidence", len(evidence), data.n_graphs, "entry per graph")
        known = zip(evidence, np.diff(data.node_pointer).tolist(), strict=True)
        graphs.observe([checked_evidence(e, [data.n_labels] * n, f"evidence[{m}]") for m, (e, n) in enumerate(known)])
    with torch.no_grad(), explain_memory(place, graphs.needed):
        carving = carve(graphs.packed, counting_numbers if method == "convex" else "bethe")
        parts = graphs.parts(carving if replays else carving.whole, Context())
        log_partition, sweeps, residual, violation = np.zeros(data.n_graphs), 0, 0.0, 0.0
        for part in parts:
            with part:
                stars, scores = part.working
                tame, made, left = method == "convex" and damping is None, 0, 0.0
                for step, row in enumerate(torch.from_numpy(path).to(place)):
                    if step:
                        stars.linearisation.copy_(-stars.numbers.linearised[:, None] * stars.node_log)
                    nodes, entries = scores.scores(row)
                    stars.set_scores(nodes - stars.linearisation, entries)
                    found = settle(stars, tolerance, max_iterations, damping=damping or 0.0, tame=tame)
                    values, made, left = found[0], made + found[1], larger(left, found[2])
                log_partition[part.piece.graphs] = (
                    stars.structure.by_graph(values.node_value, values.edge_value).cpu().numpy()
                )
            sweeps, residual = max(sweeps, made), larger(residual, left)
            violation = larger(violation, float(values.violation))
        tables = DeviceTables(graphs, parts)
    converged = residual <= max(tolerance, FINEST[precision])
    if not converged:
        message = f"{method} did not converge in {sweeps} sweeps: residual {residual:.1e}"
        warn(message, ConvergenceWarning)
    return GraphMarginals(
        nodes=tables.nodes,
        log_partition=log_partition,
        converged=converged,
        iterations=sweeps,
        residual=residual,
        violation=violation,
        method=method,
        seconds=time.perf_counter() - began,
        beliefs=BeliefTables(graphs.packed, tables),
        _tables=tables,
    )
