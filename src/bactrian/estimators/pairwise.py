"""Pairwise models from a few words: which variables are joined, and how their tables are tied."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.clusters.builders import grid_edges
from bactrian.clusters.graph import ClusterGraph
from bactrian.model.domain import rectangular
from bactrian.model.loglinear import LogLinearModel

Ints = NDArray[np.int64]

TABLES = ("full", "shared", "potts")


def checked_edges(edges: Any, shape: Any, n_variables: int) -> Ints:
    """Pairs of variables, shape (n_edges, 2), or an error that names ``edges`` or ``shape``."""
    if isinstance(edges, str):
        if edges == "complete":
            return np.stack(np.triu_indices(n_variables, 1), axis=1).astype(np.int64)
        if edges == "grid":
            height, width = _checked_shape(shape, n_variables)
            return grid_edges(height, width)
        raise ValueError(f"edges must be 'complete', 'grid' or pairs of variables, found {edges!r}")
    pairs = rectangular(edges, "edges")
    if pairs.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"edges must have shape (n_edges, 2), found {pairs.shape}")
    if pairs.dtype.kind not in "iu":
        raise TypeError(f"edges must hold integer variable numbers, found dtype {pairs.dtype}")
    pairs = pairs.astype(np.int64)
    wrong = ((pairs < 0) | (pairs >= n_variables)).any(axis=1) | (pairs[:, 0] == pairs[:, 1])
    if wrong.any():
        e = int(np.argmax(wrong))
        raise ValueError(
            f"edges[{e}] = {tuple(pairs[e].tolist())} must join two different variables of 0 to {n_variables - 1}"
        )
    _, first, counts = np.unique(np.sort(pairs, axis=1), axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        e = int(first[np.argmax(counts > 1)])
        raise ValueError(f"edges joins variables {tuple(pairs[e].tolist())} more than once")
    return pairs


def _checked_shape(shape: Any, n_variables: int) -> tuple[int, int]:
    sides = rectangular(() if shape is None else shape, "shape")
    if sides.shape != (2,) or sides.dtype.kind not in "iu" or (sides < 1).any() or int(sides.prod()) != n_variables:
        raise ValueError(
            f"shape must be (height, width) with height * width = {n_variables} variables for edges='grid', "
            f"found {shape!r}"
        )
    return int(sides[0]), int(sides[1])


def n_weights_of(tables: str, cardinalities: Ints, edges: Ints) -> int:
    """Number of weights of :func:`pairwise_model`."""
    if tables == "shared":
        k = int(cardinalities[0])
        return k + (k * k if edges.size else 0)
    per_edge = cardinalities[edges].prod(axis=1).sum() if tables == "full" else min(len(edges), 1)
    return int(cardinalities.sum() + per_edge)


def pairwise_model(tables: Any, cardinalities: Ints, edges: Ints) -> LogLinearModel:
    """A model with one singleton cluster per variable, then one pair per edge, every table of indicator features.

    ``tables``: ``"full"``, a table for every variable and edge; ``"shared"``, one for all variables and one for all
    edges, rows for the first variable of an edge; ``"potts"``, a table for every variable and one weight for agreement
    on any edge. Weights are in that order: variables, then edges; tables in C order.
    """
    if tables not in TABLES:
        raise ValueError(f"tables must be one of {', '.join(map(repr, TABLES))}, found {tables!r}")
    if tables == "shared" and (cardinalities != cardinalities[0]).any():
        v = int(np.argmax(cardinalities != cardinalities[0]))
        raise ValueError(
            f"tables='shared' needs variables with equally many states: variable 0 has {cardinalities[0]}, "
            f"variable {v} has {cardinalities[v]}"
        )
    n_weights = n_weights_of(tables, cardinalities, edges)
    sizes = cardinalities.tolist()
    pairs = edges.tolist()
    features: list[sp.csr_array] = []
    if tables == "shared":
        k = sizes[0]
        features = [_indicators(k, 0, n_weights)] * len(sizes)
        if pairs:
            features += [_indicators(k * k, k, n_weights)] * len(pairs)
    else:
        column = 0
        for k in sizes:
            features.append(_indicators(k, column, n_weights))
            column += k
        if tables == "full":
            for a, b in pairs:
                features.append(_indicators(sizes[a] * sizes[b], column, n_weights))
                column += sizes[a] * sizes[b]
        else:
            agreements: dict[tuple[int, int], sp.csr_array] = {}
            for a, b in pairs:
                key = sizes[a], sizes[b]
                if key not in agreements:
                    agreements[key] = _agreement(*key, n_weights)
                features.append(agreements[key])
    clusters: list[tuple[int, ...]] = [(v,) for v in range(len(sizes))]
    return LogLinearModel(ClusterGraph(cardinalities, clusters + [(a, b) for a, b in pairs]), features)


def _indicators(states: int, column: int, n_weights: int) -> sp.csr_array:
    """A weight of its own for every state, from ``column`` on."""
    parts = np.ones(states), column + np.arange(states), np.arange(states + 1)
    return sp.csr_array(parts, shape=(states, n_weights))


def _agreement(rows: int, columns: int, n_weights: int) -> sp.csr_array:
    """The last weight where two variables are in the same state."""
    same = np.arange(min(rows, columns)) * (columns + 1)
    parts = np.ones(same.size), (same, np.full(same.size, n_weights - 1))
    return sp.csr_array(parts, shape=(rows * columns, n_weights))


def is_forest(n_variables: int, edges: Ints) -> bool:
    """Whether the edges close no cycle."""
    adjacency = sp.csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n_variables, n_variables))
    components = sp.csgraph.connected_components(adjacency, directed=False, return_labels=False)
    return bool(len(edges) == n_variables - components)
