"""Weights of features that never occur in the data though the model gives them a chance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.threads import Workers
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData

Ints = NDArray[np.int64]


def unseen_weights(data: Any, packed: PackedData, label_names: list[str] | None = None) -> tuple[Ints, list[str]]:
    """Weights whose observed feature sum is 0 but not that under uniform beliefs, and the label pairs among them.

    For features that are never negative, such as indicators, the likelihood pulls these weights to minus infinity.
    Label pairs are named where ``data`` is a GraphData, by ``label_names`` or by number.
    """
    if packed.empirical is None:
        raise ValueError("the data has no labels")
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
