"""How neighbours count where few labels of a graph are known: by edges alone, or by diffused features as well."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.estimators.auto_prior import EDGES, NODES, held_out_loss
from bactrian.estimators.labelled_graphs import has_few_labels, learned_part
from bactrian.estimators.priors import ROUGHLY, graph_folds
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import graph_marginals
from bactrian.learners.diffusion import diffused, learn_diffused
from bactrian.learners.learn import learn
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import ConvergenceWarning

#: What is tried: shares of a node's own features.
RESTARTS = (0.1, 0.3)
#: Parts into which known labels are divided, and how few of them are too few for that.
_N_FOLDS, _LEAST = 3, 12
#: Nodes beyond which candidates are compared without fits.
_LARGE = 20_000
#: Entries of diffused features, which are dense: 400 MB.
_MOST = 50_000_000


def may_diffuse(data: GraphData) -> bool:
    """Whether to think of diffusion: one graph, most of its labels unknown, enough known to compare."""
    assert data.labels is not None
    enough = int((data.labels >= 0).sum()) >= _LEAST
    return has_few_labels(data) and enough and math.prod(data.scores.inputs.shape) <= _MOST


def compared(
    crf: Any,
    marginals: Callable[[GraphData, Any], Floats],
    data: GraphData,
    options: dict[str, Any],
    prior: Callable[[GraphData], Floats],
) -> list[tuple[float | None, float]]:
    """Mean loss of held-out labels, the others known, with edges alone (None) and for every restart.

    Every model learns from two thirds of the labels; that of edges as roughly as priors are compared, with ``options``.
    ``marginals(data, evidence)`` are those of nodes at the adopted weights, and ``prior(data)`` gives the variances for
    diffused features. Where half of the time is up nothing was compared.
    """
    assert data.labels is not None
    if data.n_nodes > _LARGE:
        return compared_by_nodes(crf, data)
    labels, deadline = data.labels, Deadline(options["max_seconds"]).half()
    total: dict[float | None, float] = dict.fromkeys([None, *RESTARTS], 0.0)
    rough = options | {name: times * options[name] for name, times in ROUGHLY.items() if name in options}
    diffused_to = {restart: diffused_data(data, restart) for restart in RESTARTS}
    for fold in graph_folds(data, marginals, crf.seed, "graph", _N_FOLDS):
        train = fold.train.labels
        out = np.flatnonzero((labels >= 0) & (train < 0))
        seen = np.flatnonzero(train >= 0)
        evidence = [dict(zip(seen.tolist(), train[seen].tolist(), strict=True))]
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            crf.adopt(learn(learned_part(crf, fold.train), **rough | {"max_seconds": deadline.left}))
            total[None] += fold.loss()
            for restart, test in diffused_to.items():
                found = learn_diffused(
                    fold.train, restart, prior(test), tolerance=crf.tolerance, max_seconds=deadline.left
                )
                q = graph_marginals(test, found.weights, "mean-field", evidence, tolerance=1e-3).nodes
                total[restart] -= float(np.log(np.maximum(q[out, labels[out]], 1e-12)).sum())
    if deadline.has_passed:
        return [(None, np.nan)]
    return [(restart, loss / int((labels >= 0).sum())) for restart, loss in total.items()]


def compared_by_nodes(crf: Any, data: GraphData) -> list[tuple[float | None, float]]:
    """The same by regressions of single nodes: on features and known neighbours, or on diffused features."""
    assert data.labels is not None
    n_features, codec = crf.n_features_in_, crf.codec_
    alone = data.subset(data.labels >= 0)
    found: list[tuple[float | None, float]] = [
        (None, held_out_loss(alone, codec.block_names, n_features, codec.auto_prior, crf.n_threads))
    ]
    for restart in RESTARTS:
        part = diffused_data(data, restart)
        prior = diffused_prior(part, n_features)
        rows = part.scores.inputs.rows(data.labels >= 0)
        nodes = GraphData(rows, np.zeros((0, 2), dtype=np.int64), n_labels=data.n_labels, labels=alone.labels)
        found.append((restart, held_out_loss(nodes, ("nodes", "edges"), n_features, prior, crf.n_threads)))
    return found


def diffused_data(data: GraphData, restart: float) -> GraphData:
    """The graphs with diffused features."""
    return GraphData(
        diffused(data.scores.inputs.rows(np.ones(data.n_nodes, dtype=bool)), data.edges, restart),
        data.edges,
        n_labels=data.n_labels,
        labels=data.labels,
        tables=[table.tying for table in data.tables],
        node_counts=np.diff(data.node_pointer),
        weights=data.weights,
    )


def diffused_prior(data: GraphData, n_features: int) -> dict[str, float]:
    """The prior of dense diffused features: the usual variance of scores, over what varies of a diffused row.

    Most of such a row is the mean of all. It is multiplied by the root of the share of labels that are known.
    """
    assert data.labels is not None
    rows = np.asarray(data.scores.inputs.dense)[:, :n_features]
    total, common = float((rows**2).sum()), len(rows) * float((rows.mean(axis=0) ** 2).sum())
    varying = (total - common if common < (1.0 - 1e-9) * total else total) / len(rows) or 1.0
    share = float((data.labels >= 0).mean() ** 0.5)
    return {"nodes": share * NODES / varying, "edges": share * EDGES}
