"""Builders of common cluster graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bactrian.graphs.elimination import junction_tree
from bactrian.graphs.graph import ClusterGraph


def chain_graph(cardinalities: Sequence[int]) -> ClusterGraph:
    """A chain: a singleton cluster per variable, then a pair per step.

    >>> chain_graph([2, 3, 2]).clusters
    ((0,), (1,), (2,), (0, 1), (1, 2))
    """
    return skip_chain_graph(cardinalities, [])


def skip_chain_graph(cardinalities: Sequence[int], skips: Sequence[tuple[int, int]]) -> ClusterGraph:
    """A chain with further pairs between distant positions, after the pairs of the chain.

    >>> skip_chain_graph([2, 2, 2], [(0, 2)]).clusters[3:]
    ((0, 1), (1, 2), (0, 2))
    """
    n = len(cardinalities)
    singles: list[tuple[int, ...]] = [(v,) for v in range(n)]
    pairs: list[tuple[int, ...]] = [(v, v + 1) for v in range(n - 1)]
    return ClusterGraph(cardinalities, singles + pairs + [tuple(skip) for skip in skips])


def grid_graph(height: int, width: int, cardinality: int) -> ClusterGraph:
    """A 4-connected grid, variables in row order: singletons, then horizontal pairs, then vertical pairs.

    >>> grid_graph(2, 2, 3).clusters[4:]
    ((0, 1), (2, 3), (0, 2), (1, 3))
    """
    if height < 1 or width < 1:
        raise ValueError(f"height and width must be at least 1, found {height} and {width}")
    singles: list[tuple[int, ...]] = [(v,) for v in range(height * width)]
    return ClusterGraph(
        [cardinality] * (height * width), singles + [tuple(e) for e in grid_edges(height, width).tolist()]
    )


def grid_edges(height: int, width: int) -> NDArray[np.int64]:
    """Edges (n_edges, 2) of a 4-connected grid in row order: all horizontal ones, then all vertical ones."""
    index = np.arange(height * width, dtype=np.int64).reshape(height, width)
    horizontal = np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1)
    vertical = np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1)
    return np.concatenate([horizontal, vertical])


def junction_tree_graph(cardinalities: Sequence[int], clusters: Sequence[Sequence[int]]) -> ClusterGraph:
    """The given clusters followed by the cliques of a junction tree over them, each cluster tied to one clique.

    The cliques carry no features of their own; sepsets join cliques along the tree and each cluster to the clique that
    contains it, so Bethe's entropy is exact on this graph. Clusters come first, so features keep their places; give
    ``None`` for the cliques.

    >>> graph = junction_tree_graph([2, 2, 2, 2], [(0, 1), (1, 2), (2, 3), (0, 3)])
    >>> len(graph.clusters), sorted(len(scope) for scope in graph.clusters[4:])
    (6, [3, 3])
    """
    tree = junction_tree(np.asarray(cardinalities), [tuple(scope) for scope in clusters])
    n = len(clusters)
    edges = [(n + i, n + j, sepset) for i, j, sepset in tree.edges]
    edges += [(i, n + clique, tuple(clusters[i])) for i, clique in enumerate(tree.assignment)]
    return ClusterGraph(cardinalities, [*map(tuple, clusters), *tree.cliques], edges)
