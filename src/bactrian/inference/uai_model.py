"""Models of UAI files as log-linear models, ready for ``infer`` and ``decode``."""

from __future__ import annotations

import numpy as np

from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.inference.arguments import check_free_variables
from bactrian.inference.uai import UaiModel


def to_model(model: UaiModel, memory_budget: int = 4 * 2**30) -> LogLinearModel:
    """The product of the tables as a model without weights, whose fixed scores are their logarithms.

    Clusters are the scopes in their order, less those of no variable; the logarithms of such constant tables are added
    to the scores of the first cluster, so that log Z and the scores of assignments count them. Where no scope holds a
    variable there is one cluster, of variable 0. ``memory_budget`` is that of :func:`bactrian.infer`.

    Raises
    ------
    ValueError
        Where there is no variable, a table of nothing but zeros, or more states than fit in the budget.

    Examples
    --------
    >>> import bactrian as bt
    >>> coin = to_model(UaiModel([2], [(0,), ()], [[1.0, 3.0], 2.0]))
    >>> result = bt.infer(coin, [], method="exact")
    >>> result.variables[0].round(6).tolist(), round(np.exp(result.log_partition).item(), 6)
    ([0.25, 0.75], 8.0)
    """
    if not model.cardinalities.size:
        raise ValueError("the model has no variables")
    check_free_variables(model.cardinalities, model.scopes, memory_budget)
    for i, table in enumerate(model.tables):
        if not table.any():
            raise ValueError(f"table {i} is zero everywhere: no joint state has positive probability")
    with np.errstate(divide="ignore"):
        logs = [np.log(table).ravel() for table in model.tables]
    kept = [i for i, scope in enumerate(model.scopes) if scope]
    scopes = [model.scopes[i] for i in kept] or [(0,)]
    scores = [logs[i] for i in kept] or [np.zeros(int(model.cardinalities[0]))]
    scores[0] = scores[0] + sum(float(logs[i][0]) for i, scope in enumerate(model.scopes) if not scope)
    features = [np.zeros((scores[0].size, 0)), *[None] * (len(scopes) - 1)]
    return LogLinearModel(ClusterGraph(model.cardinalities, scopes), features, scores)
