"""Which weights the data say nothing, or hardly anything, about, and what a weight is called."""

from __future__ import annotations

from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData

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
