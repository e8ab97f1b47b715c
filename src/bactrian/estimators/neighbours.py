"""How neighbours count where few labels of a graph are known: by edges alone, or by diffused features as well."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bactrian.estimators.auto_prior import EDGES, NODES, held_out_loss, prior_seconds
from bactrian.estimators.labelled_graphs import has_few_labels
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.diffusion import diffused
from bactrian.parallel.threads import Deadline

#: What is tried: shares of a node's own features.
RESTARTS = (0.1, 0.3)
#: Known labels that are too few to hold some out.
_LEAST = 12
#: Entries of diffused features, which are dense: 400 MB.
_MOST = 50_000_000


def may_diffuse(data: GraphData) -> bool:
    """Whether to consider diffusion: one graph, most of its labels unknown, enough known to compare."""
    assert data.labels is not None
    enough = int((data.labels >= 0).sum()) >= _LEAST
    return has_few_labels(data) and enough and math.prod(data.scores.inputs.shape) <= _MOST


def compared(crf: Any, data: GraphData) -> list[tuple[float | None, float]]:
    """Mean loss of held-out labels with edges alone (None) and for every restart, by regressions of single nodes.

    They are on features and known neighbours, or on diffused features, and need no messages. Where their time is up,
    nothing was compared.
    """
    assert data.labels is not None
    n_features, codec, deadline = crf.n_features_in_, crf.codec_, Deadline(prior_seconds(crf.max_seconds))
    alone = data.subset(data.labels >= 0)
    edges = held_out_loss(alone, codec.block_names, n_features, codec.auto_prior, crf.n_threads, deadline)
    found: list[tuple[float | None, float]] = [(None, edges)]
    for restart in RESTARTS:
        part = diffused_data(data, restart)
        prior = diffused_prior(part, n_features)
        rows = part.scores.inputs.rows(data.labels >= 0)
        nodes = GraphData(rows, np.zeros((0, 2), dtype=np.int64), n_labels=data.n_labels, labels=alone.labels)
        loss = held_out_loss(nodes, ("nodes", "edges"), n_features, prior, crf.n_threads, deadline)
        found.append((restart, loss))
    return [(None, np.nan)] if deadline.has_passed else found


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
