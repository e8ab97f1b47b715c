"""Region graphs: clusters of any size that agree on all that they share, with Kikuchi's counting numbers.

Bethe's graph makes clusters agree on single variables; two clusters of three variables that share a pair should agree
on the pair. The regions are the clusters given and all intersections of them (closed: intersections of intersections
too). Every intersection R is a hub, linked to all clusters that contain it, and has the counting number

    c_R = 1 - sum of the numbers of all regions that contain R strictly,        c = 1 for the clusters given

so that every intersection is counted once in all (Kikuchi, Phys. Rev. 81, 1951; Yedidia, Freeman & Weiss, IEEE Trans.
Inf. Theory 51(7), 2005). An intersection of number 0 is left out where larger ones already make its clusters agree.
Where the clusters form a junction tree the entropy, and with it everything else, is exact. The convex entropy of
:mod:`bactrian.camel.entropy` raises these numbers as far as concavity demands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from bactrian.arrays import Floats
from bactrian.graphs.graph import ClusterGraph, Domain, Edge, GraphHubs, Scope

#: How often at most a raised number subtracts an intersection, as part of the clusters around it: half makes pairwise
#: entropies concave. Chosen with the rounds of :mod:`bactrian.margins.problem`: with 2/3 and more these may not
#: converge, with 1/3 sets that were not measured are further from the truth.
_MOST_SUBTRACTED = 0.5


class RegionGraph(ClusterGraph):
    """What :func:`region_graph` builds: ``edges`` are (cluster, hub, scope of the hub).

    With ``raised`` no intersection of many clusters is subtracted more than half as often as there are clusters around
    it, and smaller ones make up for that: the entropy is nearer to a concave one, and still exact where the
    regions form a tree.
    """

    def __init__(
        self,
        cardinalities: Sequence[int] | NDArray[np.integer],
        clusters: Iterable[Sequence[int]],
        *,
        raised: bool = False,
    ) -> None:
        Domain.__init__(self, cardinalities, clusters)
        self.is_bethe = False
        hubs, around = intersections(self.clusters)
        numbers, kept = _numbers(hubs, around, np.inf)
        if raised and not _is_forest(len(self.clusters), [around[h] for h in kept]):
            numbers, kept = _numbers(hubs, around, _MOST_SUBTRACTED)
        hubs, around = tuple(hubs[h] for h in kept), [around[h] for h in kept]
        self.counting_numbers: Floats = numbers[kept]  #: of the hubs, in order
        first = len(self.clusters)
        self.n_appended = len(hubs)
        self.all_clusters = self.clusters + hubs
        self.edges: tuple[Edge, ...] = tuple((i, first + h, scope) for h, scope in enumerate(hubs) for i in around[h])

    def __repr__(self) -> str:
        return (
            f"RegionGraph({self.n_variables} variables, {len(self.clusters)} clusters, {self.n_appended} intersections)"
        )

    def hubs(self) -> GraphHubs:
        """The intersections, one link for each cluster around them."""
        n, n_hubs = len(self.clusters), self.n_appended
        hubs = self._sepset_hubs(self.all_clusters[n:], [(hub - n, i) for i, hub, _ in self.edges])
        numbers = np.full(hubs.cluster.size, np.nan)
        hubs.cluster[:n_hubs], numbers[:n_hubs] = n + np.arange(n_hubs), self.counting_numbers
        return hubs._replace(link_edge=np.arange(len(self.edges)), numbers=numbers)


def region_graph(cardinalities: Sequence[int] | NDArray[np.integer], clusters: Iterable[Sequence[int]]) -> RegionGraph:
    """A cluster graph on which clusters agree on everything that they share.

    Every intersection of clusters becomes a hub, appended after the clusters, with Kikuchi's counting number
    (``counting_numbers``). Learning with ``"cccp"`` and inference with ``"double-loop"`` use these numbers,
    ``"convex"`` a concave version of them; ``"exact"`` needs no region graph and works on one all the same.

    Parameters
    ----------
    cardinalities : sequence of int
        Number of states of each variable.
    clusters : sequence of tuples of int
        Scopes, of any size, in any order; they may contain each other.

    Examples
    --------
    >>> graph = region_graph([2, 2, 2, 2], [(0, 1, 2), (1, 2, 3), (0, 3)])
    >>> graph.all_clusters[3:], graph.counting_numbers
    (((1, 2), (0,), (3,)), array([-1., -1., -1.]))
    """
    return RegionGraph(cardinalities, clusters)


def intersections(clusters: Sequence[Scope]) -> tuple[tuple[Scope, ...], list[list[int]]]:
    """Intersections of two or more clusters, largest first, and the clusters that contain each."""
    sets = [frozenset(scope) for scope in clusters]
    with_variable: dict[int, set[int]] = {}
    for i, scope in enumerate(sets):
        for v in scope:
            with_variable.setdefault(v, set()).add(i)

    found: dict[frozenset[int], None] = {}
    waiting = list(dict.fromkeys(sets))
    first = {scope: i for i, scope in reversed(list(enumerate(sets)))}
    while waiting:
        scope = waiting.pop()
        for j in set().union(*(with_variable[v] for v in scope)):
            common = scope & sets[j]
            if common not in found and first.get(scope) != j:
                found[common] = None
                waiting.append(common)
    hubs = sorted((tuple(sorted(scope)) for scope in found), key=lambda scope: (-len(scope), scope))
    return tuple(hubs), [sorted(set.intersection(*(with_variable[v] for v in scope))) for scope in hubs]


def _agree_without(hub: int, hubs: Sequence[Scope], around: Sequence[Sequence[int]]) -> bool:
    """Whether clusters around a hub agree on it because larger hubs tie them together."""
    scope = set(hubs[hub])
    groups = [{i} for i in around[hub]]
    for larger in range(hub):  # sorted by size
        if scope < set(hubs[larger]):
            tied = set(around[larger])
            groups = [group for group in groups if not group & tied] + [
                tied.union(*(group for group in groups if group & tied))
            ]
    return len(groups) == 1


def _numbers(hubs: Sequence[Scope], around: Sequence[Sequence[int]], most: float) -> tuple[Floats, list[int]]:
    """Numbers of hubs, sorted by size, and those of them that are needed.

    A number is 1 less those of all regions above, and never below -``most`` times the number of clusters around.
    """
    numbers = np.zeros(len(hubs))
    with_variable: dict[int, list[int]] = {}
    sets = [frozenset(scope) for scope in hubs]
    for h, scope in enumerate(hubs):
        above = [s for s in with_variable.get(scope[0], ()) if sets[h] < sets[s]]
        number = max(1.0 - len(around[h]) - sum(numbers[s] for s in above), -most * len(around[h]))
        numbers[h] = round(number, 9)  # so that zeros are zeros
        for v in scope:
            with_variable.setdefault(v, []).append(h)
    return numbers, [h for h in range(len(hubs)) if numbers[h] != 0.0 or not _agree_without(h, hubs, around)]


def _is_forest(n_clusters: int, around: Sequence[Sequence[int]]) -> bool:
    """Whether links between clusters and hubs close no circle."""
    ends = np.array([(i, n_clusters + h) for h, clusters in enumerate(around) for i in clusters]).reshape(-1, 2)
    n_nodes = n_clusters + len(around)
    links = sp.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n_nodes, n_nodes))
    n_parts = int(connected_components(links, directed=False, return_labels=False))
    return len(ends) == n_nodes - n_parts
