"""What nodes say without their edges: labels, residuals, and whether residuals of neighbours go together."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import chdtrc, ndtr, softmax

from bactrian.arrays import Floats, Ints
from bactrian.camel.prior import Prior
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.learn import learn
from bactrian.solvers.solution import ConvergenceWarning

#: Folds of nodes whose labels are predicted without edges.
FOLDS = 5


def scores_of_nodes(data: GraphData, weights: Floats) -> Floats:
    """(n_nodes, n_labels) scores without edges."""
    node, _ = data.scores.split(weights)
    scores = np.empty((data.n_nodes, data.n_labels))
    data.scores.inputs.times(node, scores, Workers(1))
    return scores


def labels_of_nodes(data: GraphData, weights: Floats) -> Ints:
    """Labels by the scores of nodes alone."""
    return np.asarray(scores_of_nodes(data, weights).argmax(axis=1), dtype=np.int64)


def residuals_without_edges(data: GraphData, prior: Prior, seed: int, n_threads: int | None) -> Floats:
    """(n_nodes, n_labels) observed indicators minus probabilities by the node's inputs, learned from other nodes."""
    assert data.labels is not None
    n_node = int(data.scores.bounds[1])
    precision = np.append(np.broadcast_to(prior.precision, (data.n_weights,))[:n_node], 1.0)
    variance = 1.0 / np.where(precision > 0.0, precision, 0.1)
    fold = np.random.default_rng(seed).permutation(data.n_nodes) % FOLDS
    residuals = np.eye(data.n_labels)[data.labels]
    for f in range(FOLDS):
        out = fold == f
        train, test = (
            GraphData(
                data.scores.inputs.rows(chosen),
                np.empty((0, 2), dtype=np.int64),
                n_labels=data.n_labels,
                labels=data.labels[chosen],
                tables="potts",
            )
            for chosen in (~out, out)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            learned = learn(
                train, "piecewise", prior_variance=variance, tolerance=1e-3, max_iterations=100, n_threads=n_threads
            )
        residuals[out] -= softmax(scores_of_nodes(test, learned.weights), axis=1)
    return residuals


def chance_of_neighbours(data: GraphData, residuals: Floats) -> float:
    """Probability that residuals of neighbours go together as they do where they are independent.

    Products of independent residuals with mean 0 have mean 0 and are uncorrelated over edges. Of every edge type and
    edge input two sums of them are tested, both in units of their standard errors: that of agreement, normal, and the
    squares of all pairs of labels, chi-squared; the smaller probability counts, times the number of tests.
    """
    size, axes = np.linalg.eigh(residuals.T @ residuals / data.n_nodes)
    kept = size > 1e-9 * size.max(initial=0.0)
    whitened = residuals @ axes[:, kept] / np.sqrt(size[kept])
    least, n_tests = 1.0, 0
    for t, kind in enumerate(data.scores.types):
        first, second = (whitened[data.edges[data.edge_types == t, end]] for end in (0, 1))
        every = np.ones(len(first), dtype=bool)
        columns: Any = every[:, None] if kind.inputs is None else kind.inputs.rows(every)
        columns = columns.toarray() if issparse(columns) else columns
        for column in columns.T:
            weighted = column[:, None] * first
            together = (weighted * second).sum(axis=1)
            sums, squares = weighted.T @ second, (weighted**2).T @ second**2
            if kind.table.tying != "full":
                upper = np.triu_indices(len(sums), 1)
                both = np.diag(sums), (sums + sums.T)[upper]
                sums, squares = np.concatenate(both), np.concatenate([np.diag(squares), (squares + squares.T)[upper]])
            if not (squares > 0.0).all():
                continue
            normal = float(together.sum() / np.sqrt((together**2).sum()))
            chances = 2.0 * ndtr(-abs(normal)), chdtrc(sums.size, float((sums**2 / squares).sum()))
            least, n_tests = min(least, *map(float, chances)), n_tests + 2
    return min(1.0, n_tests * least)
