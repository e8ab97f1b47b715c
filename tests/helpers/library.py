"""Problems of the judges as objects of the library."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp
from oracle import DenseModel
from random_models import Problem

import bactrian as bt


def library_model(model: DenseModel, edges: Any, sparse: bool = False) -> Any:
    """The same model in the library, with dense or sparse features."""
    graph = bt.ClusterGraph(cardinalities=model.cardinalities, clusters=model.clusters, edges=edges)
    features = [sp.csr_array(table) if sparse else table for table in model.features]
    return bt.LogLinearModel(graph, features, base_scores=model.base_scores)


def library_data(problem: Problem) -> Any:
    """Samples if the problem is generative, else a list of instances; every second instance has sparse features."""
    pairs = list(zip(problem.data, problem.edges, strict=True))
    if problem.generative:
        [(seen, edges)] = pairs
        return bt.Samples(library_model(seen.model, edges), seen.assignments)
    return [
        bt.Instance(library_model(seen.model, edges, sparse=m % 2 == 1), seen.assignments[0])
        for m, (seen, edges) in enumerate(pairs)
    ]
