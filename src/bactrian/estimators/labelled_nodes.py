"""What estimators share that label the nodes of graphs, be they tokens, nodes or pixels: marginals, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.run import NoBeliefs
from bactrian.errors import check_choice, warn
from bactrian.estimators.labels import check_class_weight
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.graphs.graph_data import NODE_FACTORS, GraphData
from bactrian.inference.infer import StackedMarginals, graph_marginals
from bactrian.learners.agreement import APART, UNATTAINED, depends_on_start
from bactrian.solvers.solution import AttainmentWarning, ConvergenceWarning, Solution

#: Nodes of the training graphs that a fitted model is judged on, in whole graphs, and what its edges may cost.
_JUDGED_NODES, _TWO_POINTS = 20_000, 0.02


def check_labelling(estimator: Any) -> None:
    """Refuse parameters of labels and nodes that make no sense."""
    check_choice("node_factors", estimator.node_factors, NODE_FACTORS)
    check_class_weight(estimator.class_weight)


def node_marginals(
    data: GraphData,
    weights: Floats,
    method: str,
    evidence: Any,
    edges: bool,
    *,
    solution: Solution,
    matched: bool,
    **options: Any,
) -> StackedMarginals:
    """Marginals; by belief propagation where exact inference was only ``matched`` to the learner and does not fit.

    Where learning did not end at what belief propagation finds, two more starts tell whether labels depend on them.
    """
    try:
        found = graph_marginals(data, weights, method, evidence, edges=edges, **options)
    except MemoryBudgetError:
        if not matched:
            raise
        method, options = "rbp", {name: value for name, value in options.items() if name != "memory_budget"}
        found = graph_marginals(data, weights, method, evidence, edges=edges, **options)
    doubtful = method in ("bp", "rbp") and (solution.attained is None or solution.attained < 1.0 - UNATTAINED)
    if doubtful and data.labels is None and data.edges.size:  # labelled graphs are those of fit
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            moved = depends_on_start(data, weights, method, evidence, found, **options)
        if moved > _TWO_POINTS:
            warn(
                f"the labels of {100 * moved:.1f} % of the nodes depend on the messages that belief propagation "
                "starts from: use inference='matched', method='convex', or a stronger prior on the edges",
                AttainmentWarning,
            )
    return found


def judge_labels(
    data: GraphData,
    solution: Solution,
    weights: Floats,
    predicted: Callable[[GraphData], Ints],
    *,
    same: bool,
    advice: str,
) -> None:
    """Warn where edges make the ``predicted`` labels worse by two points, in a sample of the graphs of learning.

    ``same`` says whether predictions are what inference with the entropy of the learner says.
    """
    from bactrian.learners.findings import labels_of_nodes  # takes a while to import

    assert data.labels is not None
    nodes = np.repeat(data.node_pointer[:-1] < _JUDGED_NODES, np.diff(data.node_pointer))
    part = data if nodes.all() else data.subset(nodes)
    known = data.labels[nodes] >= 0
    if part.edges.size == 0 or not known.any():
        return
    found = _learned_labels(data, part, solution) if same else None
    if found is None:
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            found = predicted(part)
    right, alone = (
        float(np.mean(labels[known] == data.labels[nodes][known])) for labels in (found, labels_of_nodes(part, weights))
    )
    if right < alone - _TWO_POINTS:
        warn(
            f"{solution.method}: inference gets {100 * right:.1f} % of the training labels right, the scores "
            f"of the nodes alone {100 * alone:.1f} %: {advice}",
            AttainmentWarning,
        )


def _learned_labels(data: GraphData, part: GraphData, solution: Any) -> Ints | None:
    """Labels of the first graphs by the beliefs of learning, where it is known that prediction finds the same."""
    whole = data.labels is not None and bool((data.labels >= 0).all())
    attained = solution.converged and solution.attained is not None and solution.attained >= 1.0 - APART
    if not (whole and attained) or isinstance(solution.beliefs, NoBeliefs):
        return None
    ends = data.node_pointer
    graphs = np.flatnonzero((ends[1:] > ends[:-1]) & (ends[1:] <= part.n_nodes)).tolist()
    beliefs = [solution.beliefs[m].hubs() for m in graphs]
    return np.asarray(np.concatenate(beliefs).argmax(axis=1), dtype=np.int64)
