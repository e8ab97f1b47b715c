"""What data say of edges: what nodes say without them, whether residuals of neighbours go together, unseen weights."""

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
from bactrian.graphs.packed import PackedData
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


# --- weights that the data say hardly anything about ---

#: Edges per weight below which a table has few, and edges below which a pair is seldom seen.
_FEW_EDGES, _SELDOM = 10, 5


def unseen_weights(data: Any, packed: PackedData, label_names: list[str] | None = None) -> tuple[Ints, list[str]]:
    """Weights whose observed feature sum is 0 but not that under uniform beliefs, and the label pairs among them.

    For features that are never negative, such as indicators, the likelihood pulls these weights to minus infinity.
    Label pairs are named where ``data`` is a GraphData, by ``label_names`` or by number.
    """
    if packed.empirical is None:
        raise ValueError("diagnose needs the label of every node" if packed.holes else "the data has no labels")
    layout = packed.layout
    instance = np.repeat(np.arange(layout.n_instances), np.diff(layout.instance_clusters))
    users = np.bincount(layout.cluster_table, weights=packed.weights[instance], minlength=layout.n_tables)
    sizes = np.diff(layout.table_offset)
    counts = np.repeat(users / np.maximum(sizes, 1), sizes)
    states = np.diff(layout.hub_offset)
    hub_instance = np.repeat(np.arange(layout.n_instances), np.diff(layout.instance_hubs))
    hub_counts = np.repeat(packed.weights[hub_instance] / np.maximum(states, 1), states)
    uniform = packed.scores.moments(counts, hub_counts, Workers(1))
    unseen = np.flatnonzero((packed.empirical == 0.0) & (uniform > 0.0))
    names = _label_pairs(data, set(unseen.tolist()), label_names) if isinstance(data, GraphData) else []
    return unseen, names


def seldom_pairs(
    data: GraphData, precision: float | Floats, label_names: list[str] | None = None
) -> tuple[int, int, list[str]]:
    """Edges, weights of label pairs that they teach, and the pairs seen seldom, of tables with too few edges.

    Those are tables with fewer than ten edges per weight; a pair is seldom seen if fewer than five edges have it and
    the prior on its weight counts for less than one more.
    """
    assert data.labels is not None
    precision = np.broadcast_to(precision, (data.n_weights,))
    ends = data.labels[data.edges] @ np.array([data.n_labels, 1])
    n_edges, n_weights, seldom = 0, 0, set[int]()
    for t, (kind, first) in enumerate(zip(data.scores.types, data.scores.bounds[1:].tolist(), strict=False)):
        pairs = ends[data.edge_types == t]
        table = kind.table
        if table.tying in ("potts", "pooled") or pairs.size >= _FEW_EDGES * table.n_tied:
            continue
        seen = table.reduce(np.bincount(pairs, minlength=data.n_labels**2).astype(np.float64))
        own = np.flatnonzero((seen < _SELDOM) & (precision[first : first + table.n_tied] < 1.0))
        if own.size:
            n_edges, n_weights = n_edges + int(pairs.size), n_weights + table.n_tied
            seldom |= set((first + own).tolist())
    return n_edges, n_weights, _label_pairs(data, seldom, label_names)


def weight_name(data: Any, weight: int, label_names: list[str] | None = None) -> str:
    """What a weight belongs to, in words."""
    if not isinstance(data, GraphData):
        return f"weight {weight}"
    called = label_names or [str(label) for label in range(data.n_labels)]
    scores = data.scores
    if weight < scores.bounds[1]:
        return f"input {weight // data.n_labels} with label {called[weight % data.n_labels]}"
    t = int(np.searchsorted(scores.bounds, weight, side="right")) - 2
    table = scores.types[t].table
    row, tied = divmod(weight - int(scores.bounds[t + 1]), table.n_tied)
    places = np.argwhere(table.index == tied)
    agreement = table.tying == "potts" or (table.is_pooled and tied == 0)
    name = "agreement" if agreement else "-".join(called[label] for label in places[0].tolist())
    with_type = name if len(scores.types) == 1 else f"{name} on edges of type {t}"
    return with_type if scores.types[t].inputs is None else f"edge input {row} with {with_type}"


def _label_pairs(data: GraphData, unseen: set[int], label_names: list[str] | None) -> list[str]:
    called = label_names or [str(label) for label in range(data.n_labels)]
    names = []
    for kind, first in zip(data.scores.types, data.scores.bounds[1:], strict=False):
        if kind.table.tying == "potts":
            continue
        for a in range(data.n_labels):
            for b in range(a if kind.table.tying != "full" else 0, data.n_labels):
                weight = int(kind.table.index[a, b])
                if weight >= 0 and int(first) + weight in unseen:
                    names.append(f"{called[a]}-{called[b]}")
    return list(dict.fromkeys(names))
