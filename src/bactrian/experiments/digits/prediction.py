"""Marginals for prediction, the same method of inference for every learner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import infer

Floats = NDArray[np.float64]


def node_marginals(data: GraphData, weights: Floats, n_threads: int | None = None) -> Floats:
    """Marginals (n_nodes, n_labels) of all nodes, by belief propagation.

    Graphs on which it does not converge are finished by the double loop, which minimises the same free energy.
    """
    results = infer(data, weights, method="bp", tolerance=1e-6, fallback="double-loop", n_threads=n_threads)
    return np.array([marginal for result in results for marginal in result.variables])
