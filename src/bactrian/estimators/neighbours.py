"""How neighbours count where few labels of a graph are known: by edges alone, or by diffused features as well."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from bactrian.estimators.auto_prior import EDGES, NODES, prior_seconds, weights_beside
from bactrian.estimators.held_out import log_loss
from bactrian.estimators.labelled_graphs import has_few_labels
from bactrian.estimators.labels import evidence_of
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import graph_marginals
from bactrian.learners.diffusion import adjacency_matrix, agreement, diffused, smoothed
from bactrian.learners.findings import scores_of_nodes
from bactrian.learners.learn import matched_inference
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import ConvergenceWarning

#: What is tried: shares of a node's own features.
RESTARTS = (0.1, 0.3)
#: Known labels that are too few to hold some out.
_LEAST = 12
#: Entries of diffused features, which are dense: 400 MB.
_MOST = 50_000_000
#: Held-out labels of a part that are asked for, and sweeps of messages to them that tell how well edges do.
_ASKED, _SWEEPS = 500, 2


def may_diffuse(data: GraphData) -> bool:
    """Whether to consider diffusion: one graph, most of its labels unknown, enough known to compare."""
    enough = int(data.known.sum()) >= _LEAST
    return has_few_labels(data) and enough and math.prod(data.scores.inputs.shape) <= _MOST


def compared(crf: Any, data: GraphData) -> list[tuple[float | None, float]]:
    """Mean loss of held-out labels with edges alone (None) and for every restart.

    Weights are those of single nodes with known labels, given features and known neighbours, or diffused features;
    inference is the model's, on the whole graph. Where their time is up, nothing was compared.
    """
    labels, codec, deadline = data.truth, crf.codec_, Deadline(prior_seconds(crf.max_seconds))
    known, neighbours = np.flatnonzero(labels >= 0), adjacency_matrix(data.edges, data.n_nodes)
    method, options = matched_inference(crf.method)
    options = {**options, "max_iterations": _SWEEPS, "n_threads": crf.n_threads}

    def loss(restart: float | None) -> float:
        part = data if restart is None else diffused_data(data, restart)
        prior = codec.auto_prior if restart is None else diffused_prior(part, crf.n_features_in_)
        given = part.subset(labels >= 0), codec.block_names, crf.n_features_in_, prior, crf.n_threads, deadline
        losses = []
        for weights, held_out in weights_beside(*given, edges=restart is None):
            chosen = known[held_out[:: -(-held_out.size // _ASKED)]]
            seen, asked = labels.copy(), np.full(labels.size, -1)
            seen[known[held_out]], asked[chosen] = -1, labels[chosen]
            if restart is None:
                near = asked >= 0
                for _ in range(_SWEEPS):  # messages come from no farther
                    near |= neighbours @ near > 0.0
                around = data.subset(near)
                evidence = evidence_of(seen[near], around.node_pointer)
                found, asked = graph_marginals(around, weights, method, evidence, **options).nodes, asked[near]
            else:
                found = smoothed(scores_of_nodes(part, weights), seen, neighbours, agreement(data))
            losses.append(log_loss(found, asked))
        return float(np.mean(losses))

    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        found = [(restart, loss(restart)) for restart in (None, *RESTARTS)]
    return [(None, np.nan)] if deadline.has_passed else found


def diffused_data(data: GraphData, restart: float) -> GraphData:
    """The graphs with diffused features."""
    return GraphData(
        diffused(data.scores.inputs.rows(np.ones(data.n_nodes, dtype=bool)), data.edges, restart),
        data.edges,
        n_labels=data.n_labels,
        labels=data.truth,
        tables=[table.tying for table in data.tables],
        node_counts=np.diff(data.node_pointer),
        weights=data.weights,
    )


def diffused_prior(data: GraphData, n_features: int) -> dict[str, float]:
    """The prior of dense diffused features: the usual variance of scores, over what varies of a diffused row.

    Most of such a row is the mean of all. It is multiplied by the root of the share of labels that are known.
    """
    rows = np.asarray(data.scores.inputs.dense)[:, :n_features]
    total, common = float((rows**2).sum()), len(rows) * float((rows.mean(axis=0) ** 2).sum())
    varying = (total - common if common < (1.0 - 1e-9) * total else total) / len(rows) or 1.0
    share = float(data.known.mean() ** 0.5)
    return {"nodes": share * NODES / varying, "edges": share * EDGES}
