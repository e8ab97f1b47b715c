"""Discrete variables and scopes over them, and cluster graphs: clusters of variables, tied together by sepsets.

Running intersection is not demanded; every sepset must lie in the scopes of both clusters it joins.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, product
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, integers, rectangular
from bactrian.graphs.elimination import junction_tree
from bactrian.graphs.ragged import Ragged


class Domain:
    """Variables ``0 .. n-1`` with their cardinalities, and clusters of variables.

    Tables of a cluster are in C order of its scope as given: the last variable changes fastest.
    """

    def __init__(self, cardinalities: Sequence[int] | NDArray[np.integer], clusters: Iterable[Sequence[int]]) -> None:
        self.cardinalities = integers(cardinalities, "cardinalities", least=1)
        if not isinstance(clusters, Iterable):
            raise TypeError(f"clusters must be a sequence of scopes, found {type(clusters).__name__}")
        given = clusters.tolist() if isinstance(clusters, np.ndarray) and clusters.ndim == 2 else list(clusters)
        self.clusters, self.scopes = self._checked_scopes(given)

    @property
    def n_variables(self) -> int:
        """Number of variables."""
        return int(self.cardinalities.size)

    def shape(self, scope: Sequence[int]) -> tuple[int, ...]:
        """Shape of a table over ``scope``."""
        return tuple(int(self.cardinalities[v]) for v in scope)

    def size(self, scope: Sequence[int]) -> int:
        """Number of joint states of ``scope``."""
        return math.prod(self.shape(scope))

    def _checked_scopes(self, given: list[Sequence[int]]) -> tuple[tuple[tuple[int, ...], ...], Ragged]:
        """The scopes as tuples and as arrays; all are looked at together, and one by one where something is wrong."""
        try:
            clusters = tuple(map(tuple, given))
            types = set(map(type, chain.from_iterable(clusters)))
            are_whole = all(issubclass(kind, int | np.integer) and kind is not bool for kind in types)
            scopes = Ragged.of(clusters) if are_whole else None
        except (TypeError, OverflowError):
            scopes = None
        if scopes is not None and not self._is_wrong(scopes):
            return clusters if types <= {int} else tuple(scopes.tuples(0, len(given))), scopes
        clusters = tuple(self.checked_scope(scope, f"clusters[{i}]") for i, scope in enumerate(given))
        return clusters, Ragged.of(clusters)

    def _is_wrong(self, scopes: Ragged) -> bool:
        """Whether a scope is empty, repeats a variable or names one that there is not."""
        values = scopes.values
        keys = np.sort(scopes.row_of_value * (self.n_variables + 1) + values)
        return bool(
            values.min(initial=0) < 0
            or values.max(initial=-1) >= self.n_variables
            or (scopes.lengths == 0).any()
            or (keys[1:] == keys[:-1]).any()
        )

    @cached_property
    def sizes(self) -> Ints:
        """(n_clusters,) number of joint states of each cluster."""
        return self.scopes.products(self.cardinalities)

    def checked_scope(self, scope: Sequence[int], name: str) -> tuple[int, ...]:
        """``scope`` as a tuple of distinct variables, or a ValueError that calls it ``name``."""
        try:
            variables = tuple(_index(v) for v in scope)
        except TypeError:
            raise TypeError(f"{name} must be a tuple of variable indices, found {scope!r}") from None
        for v in variables:
            if not 0 <= v < self.n_variables:
                raise ValueError(f"{name} = {variables} names variable {v}; variables are 0 to {self.n_variables - 1}")
        if len(set(variables)) != len(variables):
            raise ValueError(f"{name} = {variables} repeats a variable")
        if not variables:
            raise ValueError(f"{name} is empty; a scope needs at least one variable")
        return variables

    def checked_states(self, states: object, name: str, *, unknown: bool = False) -> Ints:
        """Rows of states, shape (..., n_variables), or an error that calls them ``name``; booleans are 0 and 1.

        With ``unknown``, -1 stands for a state that was not seen.
        """
        array = rectangular(states, name)
        array = array.astype(np.int64) if array.dtype.kind == "b" else array
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"{name} must hold integer states, found dtype {array.dtype}")
        if array.shape[-1:] != (self.n_variables,):
            raise ValueError(
                f"{name} must have {self.n_variables} states (one per variable), found shape {array.shape}"
            )
        wrong = (array < (-1 if unknown else 0)) | (array >= self.cardinalities)
        if wrong.any():
            position = tuple(int(p) for p in np.argwhere(wrong)[0])
            label = f"{name}[{', '.join(map(str, position))}]"
            if array[position] == -1:
                raise ValueError(f"{label} = -1 stands for an unknown state; every variable needs a state here")
            raise ValueError(
                f"{label} = {array[position]} is not a state of variable {position[-1]}; "
                f"its states are 0 to {self.cardinalities[position[-1]] - 1}"
            )
        return array.astype(np.int64)


def _index(value: SupportsIndex) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def strides(scope: Sequence[int], cardinalities: Sequence[int] | NDArray[np.integer]) -> dict[int, int]:
    """Stride of each variable in a table over ``scope``.

    >>> strides((2, 0), [2, 3, 4])
    {0: 1, 2: 2}
    """
    found: dict[int, int] = {}
    stride = 1
    for v in reversed(scope):
        found[v] = stride
        stride *= int(cardinalities[v])
    return found


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
            self.hub_of_variable, self._appended = self._find_hubs()
            self.n_appended = self._appended.size
        elif not isinstance(edges, Iterable):
            raise TypeError(f"edges must be 'bethe' or a list of (i, j, sepset), found {type(edges).__name__}")
        else:
            self.is_bethe = False
            self.n_appended = 0
            self.edges = tuple(self._checked_edge(e, edge) for e, edge in enumerate(edges))

    def __repr__(self) -> str:
        kind = "Bethe" if self.is_bethe else "explicit"
        return (
            f"ClusterGraph({self.n_variables} variables, {len(self.clusters)} clusters, {len(self.edges)} {kind} edges)"
        )

    @cached_property
    def all_clusters(self) -> tuple[Scope, ...]:
        """The clusters given, then the hubs appended."""
        return self.clusters + (tuple((v,) for v in self._appended.tolist()) if self.is_bethe else ())

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges; on a Bethe graph (cluster, hub, (variable,)), variable by variable."""
        links = self.hubs()
        hub = self.hub_of_variable[links.link_hub].tolist()
        ends = zip(links.link_cluster.tolist(), hub, links.link_hub.tolist(), strict=True)
        return tuple((i, h, (v,)) for i, h, v in ends)

    def _find_hubs(self) -> tuple[Ints, Ints]:
        """The hub of each variable among all clusters, and the variables whose hubs are appended."""
        hubs = np.full(self.n_variables, -1, dtype=np.int64)
        singles = np.flatnonzero(self.scopes.lengths == 1)[::-1]
        hubs[self.scopes.values[self.scopes.bounds[singles]]] = singles  # the first of a variable is written last
        appended = np.flatnonzero(hubs < 0)
        hubs[appended] = len(self.clusters) + np.arange(appended.size)
        return hubs, appended

    def hubs(self) -> GraphHubs:
        """The hubs and their links: a hub is a variable, or with explicit edges the sepset of an edge."""
        if not self.is_bethe:
            links = [(e, end) for e, (i, j, _) in enumerate(self.edges) for end in (i, j)]
            return self._sepset_hubs([sepset for *_, sepset in self.edges], links)
        variables, clusters = self.scopes.values, self.scopes.row_of_value
        links_in_scopes = np.argsort(variables, kind="stable")
        is_own = self.hub_of_variable[variables] == clusters  # the hub itself
        chosen = links_in_scopes[~is_own[links_in_scopes]]
        return GraphHubs(
            scopes=Ragged.singles(np.arange(self.n_variables)),
            cluster=self.hub_of_variable,
            link_hub=variables[chosen],
            link_cluster=clusters[chosen],
            link_edge=np.arange(chosen.size),
            link_axes=Ragged.singles(self.scopes.places[chosen]),
        )

    def _sepset_hubs(self, sepsets: Sequence[Scope], links: Sequence[tuple[int, int]]) -> GraphHubs:
        """Hubs of sepsets with links (sepset, cluster), and a hub for every variable in no cluster."""
        free = np.setdiff1d(np.arange(self.n_variables), self.scopes.values).tolist()
        link_hub, link_cluster = np.array(links, dtype=np.int64).reshape(-1, 2).T
        return GraphHubs(
            scopes=Ragged.of([*sepsets, *((v,) for v in free)]),
            cluster=np.full(len(sepsets) + len(free), -1, dtype=np.int64),
            link_hub=link_hub,
            link_cluster=link_cluster,
            link_edge=link_hub,
            link_axes=Ragged.of([[self.clusters[i].index(v) for v in sepsets[hub]] for hub, i in links]),
        )

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


class GraphHubs(NamedTuple):
    """Hubs on which the clusters of a graph agree, and their links, hub after hub."""

    scopes: Ragged
    cluster: Ints  #: index among all clusters, or -1
    link_hub: Ints
    link_cluster: Ints
    link_edge: Ints
    link_axes: Ragged  #: axes of the hub's variables in the scope of the link's cluster
    numbers: Floats | None = None  #: total counting numbers, NaN where they are Bethe's; None: everywhere


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
    return neighbours((height, width), 4)[0]


def grid_steps(connectivity: int) -> list[tuple[int, ...]]:
    """Steps from a node to its neighbours: those along one axis first, the last axis before the others.

    4 and 8 neighbours are those of a plane, 6, 18 and 26 those of a volume.

    >>> grid_steps(8)
    [(0, 1), (1, 0), (1, 1), (1, -1)]
    """
    axes = 2 if connectivity in (4, 8) else 3
    steps = [step for step in product((-1, 0, 1), repeat=axes) if step > (0,) * axes]
    steps.sort(key=lambda step: (np.count_nonzero(step), *map(abs, step), *(-s for s in step)))
    return steps[: connectivity // 2]


def neighbours(shape: Sequence[int], connectivity: int) -> tuple[Ints, Ints]:
    """Pairs of neighbours (n_edges, 2) in a grid, nodes in C order, and the number of each pair's step.

    >>> neighbours((2, 2), 8)[0].tolist()
    [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]]
    """
    index = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    pairs = []
    for step in grid_steps(connectivity):
        here = tuple(slice(max(0, -s), n - max(0, s)) for s, n in zip(step, shape, strict=True))
        there = tuple(slice(max(0, s), n + min(0, s)) for s, n in zip(step, shape, strict=True))
        pairs.append(np.stack([index[here].ravel(), index[there].ravel()], axis=1))
    return np.concatenate(pairs), np.repeat(np.arange(len(pairs)), [len(part) for part in pairs])


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
