"""Cluster graphs: clusters of variables, tied together by sepsets.

Running intersection is not demanded; every sepset must lie in the scopes of both clusters it joins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Bools, Ints
from bactrian.graphs.domain import Domain, pointer, strides
from bactrian.graphs.elimination import junction_tree

Scope = tuple[int, ...]
Edge = tuple[int, int, Scope]


class ClusterGraph(Domain):
    """Clusters over discrete variables and the edges along which they must agree.

    Parameters
    ----------
    cardinalities : sequence of int
        Number of states of each variable, at least 1.
    clusters : sequence of tuples of int
        Scope of each cluster.
    edges : "bethe" or sequence of (i, j, sepset)
        ``"bethe"``: one hub per variable, linked to every other cluster that contains it. The first singleton cluster
        given for a variable is its hub; where there is none a featureless hub is appended after the given clusters.
        Otherwise explicit edges between clusters ``i`` and ``j`` with a tuple of variables on which they must agree.

    Attributes
    ----------
    clusters : tuple of tuples
        The clusters given.
    all_clusters : tuple of tuples
        The clusters given, then the hubs appended.
    edges : tuple of (i, j, sepset)
        All edges; on a Bethe graph (cluster, hub, (variable,)).

    Examples
    --------
    >>> graph = ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])
    >>> graph.all_clusters
    ((0, 1), (1, 2), (0, 2), (0,), (1,), (2,))
    >>> graph.edges[:2]
    ((0, 3, (0,)), (2, 3, (0,)))
    """

    def __init__(
        self,
        cardinalities: Sequence[int] | NDArray[np.integer],
        clusters: Iterable[Sequence[int]],
        edges: str | Iterable[tuple[int, int, Sequence[int]]] = "bethe",
    ) -> None:
        super().__init__(cardinalities, clusters)
        if isinstance(edges, str):
            if edges != "bethe":
                raise ValueError(f"edges must be 'bethe' or a list of (i, j, sepset), found {edges!r}")
            self.is_bethe = True
            self.hub_of_variable, appended = self._find_hubs()
            self.all_clusters = self.clusters + tuple((v,) for v in appended)
            self.edges = self._bethe_edges()
        elif not isinstance(edges, Iterable):
            raise TypeError(f"edges must be 'bethe' or a list of (i, j, sepset), found {type(edges).__name__}")
        else:
            self.is_bethe = False
            self.all_clusters = self.clusters
            self.edges = tuple(self._checked_edge(e, edge) for e, edge in enumerate(edges))

    def __repr__(self) -> str:
        kind = "Bethe" if self.is_bethe else "explicit"
        return (
            f"ClusterGraph({self.n_variables} variables, {len(self.clusters)} clusters, {len(self.edges)} {kind} edges)"
        )

    def _find_hubs(self) -> tuple[Ints, list[int]]:
        hubs = np.full(self.n_variables, -1, dtype=np.int64)
        for i, scope in enumerate(self.clusters):
            if len(scope) == 1 and hubs[scope[0]] < 0:
                hubs[scope[0]] = i
        appended = np.flatnonzero(hubs < 0)
        hubs[appended] = len(self.clusters) + np.arange(appended.size)
        return hubs, appended.tolist()

    def _bethe_edges(self) -> tuple[Edge, ...]:
        around: list[list[Edge]] = [[] for _ in range(self.n_variables)]
        for i, scope in enumerate(self.clusters):
            for v in scope:
                hub = int(self.hub_of_variable[v])
                if hub != i:
                    around[v].append((i, hub, (v,)))
        return tuple(edge for edges in around for edge in edges)

    def _checked_edge(self, e: int, edge: tuple[int, int, Sequence[int]]) -> Edge:
        name = f"edges[{e}]"
        if not (isinstance(edge, tuple | list) and len(edge) == 3):
            raise ValueError(f"{name} must be (i, j, sepset), found {edge!r}")
        i, j, sepset = edge
        for end in (i, j):
            if not (isinstance(end, int | np.integer) and 0 <= end < len(self.clusters)):
                raise ValueError(f"{name} names cluster {end!r}; clusters are 0 to {len(self.clusters) - 1}")
        if i == j:
            raise ValueError(f"{name} joins cluster {i} to itself")
        scope = self.checked_scope(sepset, f"the sepset of {name}")
        for end in (i, j):
            outside = sorted(set(scope) - set(self.clusters[end]))
            if outside:
                raise ValueError(
                    f"the sepset of {name} holds variable {outside[0]}, which is not in the scope "
                    f"{self.clusters[end]} of cluster {end}"
                )
        return int(i), int(j), scope

    @cached_property
    def structure(self) -> GraphStructure:
        """The graph as hubs, links and table clusters."""
        return _build_structure(self)


@dataclass(frozen=True)
class GraphStructure:
    """One graph in the form of :class:`bactrian.engines.numba.layout.Layout`, before packing.

    ``positions[i]`` says where cluster ``i`` of ``all_clusters`` went: table cluster ``p``, or hub ``-1 - p``.
    """

    hub_scopes: tuple[tuple[int, ...], ...]
    hub_cluster: Ints  #: (H,) index in all_clusters, or -1 for the sepset of an explicit edge
    hub_given: Bools  #: (H,) the hub is a singleton cluster that the user gave
    hub_sizes: Ints
    hub_links: Ints
    link_hub: Ints
    link_cluster: Ints  #: (L,) table cluster
    link_edge: Ints  #: (L,) index in graph.edges
    link_projection: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  #: (shape, axes) of each link
    cluster_given: Ints  #: (C,) index in graph.clusters of each table cluster
    cluster_sizes: Ints
    cluster_rows: Ints  #: (C,) rows of a pair with one link for each of its variables, else 0
    cluster_links: Ints
    cluster_link: Ints
    positions: Ints
    table_strides: sp.csr_array  #: (C, n_variables): times a joint state, the state of each table cluster
    hub_strides: sp.csr_array
    hub_numbers: NDArray[np.float64] | None = None  #: (H,) total counting numbers where they are not Bethe's


def _build_structure(graph: ClusterGraph) -> GraphStructure:
    positions = np.empty(len(graph.all_clusters), dtype=np.int64)
    if graph.is_bethe:
        hub_cluster = graph.hub_of_variable
        hub_scopes: tuple[tuple[int, ...], ...] = tuple((v,) for v in range(graph.n_variables))
        positions[hub_cluster] = -1 - np.arange(hub_cluster.size)
        table_clusters = np.setdiff1d(np.arange(len(graph.clusters)), hub_cluster)
        ends: list[tuple[int, int, int, tuple[int, ...]]] = [
            (i, v, e, (v,)) for e, (i, _, (v,)) in enumerate(graph.edges)
        ]
    else:
        covered = {v for scope in graph.clusters for v in scope}
        free = [v for v in range(graph.n_variables) if v not in covered]
        hub_scopes = tuple(sepset for _, _, sepset in graph.edges) + tuple((v,) for v in free)
        hub_cluster = np.full(len(hub_scopes), -1, dtype=np.int64)
        table_clusters = np.arange(len(graph.clusters))
        ends = [(end, e, e, sepset) for e, (i, j, sepset) in enumerate(graph.edges) for end in (i, j)]
    positions[table_clusters] = np.arange(table_clusters.size)
    scopes = [graph.clusters[i] for i in table_clusters]
    links = [
        (hub, int(positions[end]), tuple(graph.clusters[end].index(v) for v in sepset)) for end, hub, _, sepset in ends
    ]
    return structure_of(
        graph,
        hub_scopes,
        scopes,
        links,
        hub_cluster=hub_cluster,
        hub_given=(hub_cluster >= 0) & (hub_cluster < len(graph.clusters)),
        link_edge=np.array([e for _, _, e, _ in ends], dtype=np.int64),
        cluster_given=table_clusters,
        positions=positions,
    )


def structure_of(
    graph: Domain,
    hubs: Sequence[Scope],
    clusters: Sequence[Scope],
    links: Sequence[tuple[int, int, Scope]],
    **places: Any,
) -> GraphStructure:
    """The structure of a graph's hubs, table clusters and links (hub, cluster, axes of the hub's variables)."""
    return GraphStructure(
        **_linked(graph.cardinalities, hubs, clusters, links),
        **places,
        table_strides=_strides(graph, clusters),
        hub_strides=_strides(graph, hubs),
    )


def region_structure(
    cardinalities: Ints,
    hubs: Sequence[Scope],
    clusters: Sequence[Scope],
    links: Sequence[tuple[int, int, Scope]],
    hub_given: Bools,
    hub_cluster: Ints,
) -> GraphStructure:
    """The structure of any hubs, clusters and links (hub, cluster, axes of the hub's variables), sorted by hub."""
    nothing = sp.csr_array((0, cardinalities.size), dtype=np.int64)
    numbers = np.arange(len(clusters), dtype=np.int64)
    return GraphStructure(
        **_linked(cardinalities, hubs, clusters, links),
        hub_cluster=hub_cluster,
        hub_given=hub_given,
        link_edge=np.arange(len(links), dtype=np.int64),
        cluster_given=numbers,
        positions=numbers,
        table_strides=nothing,
        hub_strides=nothing,
    )


def _linked(
    cardinalities: Ints, hubs: Sequence[Scope], clusters: Sequence[Scope], links: Sequence[tuple[int, int, Scope]]
) -> dict[str, Any]:
    """The part of a structure that says how hubs and clusters are linked."""
    sizes = cardinalities.tolist()
    shapes = [tuple(sizes[v] for v in scope) for scope in clusters]
    link_hub = np.array([hub for hub, _, _ in links], dtype=np.int64)
    link_cluster = np.array([cluster for _, cluster, _ in links], dtype=np.int64)
    first_axis = np.array([axes[0] for _, _, axes in links], dtype=np.int64)
    n_axes = np.array([len(axes) for _, _, axes in links], dtype=np.int64)
    cluster_link = np.lexsort((first_axis, n_axes, link_cluster)).astype(np.int64)
    cluster_links = pointer(np.bincount(link_cluster, minlength=len(clusters)))
    cluster_rows = np.zeros(len(clusters), dtype=np.int64)
    for c, shape in enumerate(shapes):
        around = cluster_link[cluster_links[c] : cluster_links[c + 1]].tolist()
        if len(shape) == 2 and [links[link][2] for link in around] == [(0,), (1,)]:
            cluster_rows[c] = shape[0]
    return {
        "hub_scopes": tuple(hubs),
        "hub_sizes": np.array([math.prod([sizes[v] for v in scope]) for scope in hubs], dtype=np.int64),
        "hub_links": pointer(np.bincount(link_hub, minlength=len(hubs))),
        "link_hub": link_hub,
        "link_cluster": link_cluster,
        "link_projection": tuple((shapes[cluster], axes) for _, cluster, axes in links),
        "cluster_sizes": np.array([math.prod(shape) for shape in shapes], dtype=np.int64),
        "cluster_rows": cluster_rows,
        "cluster_links": cluster_links,
        "cluster_link": cluster_link,
    }


def _strides(graph: Domain, scopes: Sequence[tuple[int, ...]]) -> sp.csr_array:
    sizes = graph.cardinalities.tolist()
    entries = [(row, v, stride) for row, scope in enumerate(scopes) for v, stride in strides(scope, sizes).items()]
    rows, columns, values = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    return sp.csr_array((values, (rows, columns)), shape=(len(scopes), graph.n_variables))


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


def grid_edges(height: int, width: int) -> Ints:
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
    given = Domain(cardinalities, clusters)
    tree = junction_tree(given.cardinalities, given.clusters)
    n = len(given.clusters)
    edges = [(n + i, n + j, sepset) for i, j, sepset in tree.edges]
    edges += [(i, n + clique, given.clusters[i]) for i, clique in enumerate(tree.assignment)]
    return ClusterGraph(cardinalities, [*given.clusters, *tree.cliques], edges)
