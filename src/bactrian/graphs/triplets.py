"""Tighter polytopes: triplets of variables on the cycles that correct Bethe's solution most, and data packed with them.

Pairs that agree on single variables need not be marginals of one distribution: their polytope is an outer bound, loose
on frustrated cycles. Sontag & Jaakkola (NIPS 2007) add cycle constraints that the solution violates, and Sontag,
Meltzer, Globerson, Jaakkola & Weiss (UAI 2008) clusters of three variables that enforce them.

*The search.* A cycle v_1 ... v_n with pair beliefs b is scored by

    | log sum_x prod_i b(x_i, x_i+1) / b(x_i) | = | log trace(M_1 ... M_n) |,    M_i = b(x_i, x_i+1) / b(x_i)

the correction that the cycle alone makes to Bethe's log Z at a fixed point of belief propagation (Weiss, Neural
Computation 12(1), 2000; region pursuit of Welling, UAI 2004). It is 0 where the last pair is independent of how the
others close the cycle, and infinite where hard pair beliefs cannot all hold at once. For binary variables it is
|log(1 + r_1 ... r_n)| with the pairs' correlations r. So it also finds cycles whose pair beliefs are consistent but
wrong, which a test for violated cycle inequalities alone would pass over.

A longer cycle is cut into triplets by chords (Sontag et al. 2008). Triplets are taken greedily, but only if independent
in the cycle space over GF(2) of those taken before: a dependent one closes a surface, on which the entropy counts
variables twice (all four triangles of K4 have numbers that add up to 2; Gelfand & Welling, UAI 2012).

*The entropy* is Kikuchi's with regions triplets (and other clusters), pairs inside triplets, and variables (Yedidia,
Freeman & Weiss, IEEE Trans. Inf. Theory 51(7), 2005): with n_p triplets (or larger clusters) around a pair p,

    c_triplet = 1,    c_p = 1 - n_p,    c_v = 1 - sum of the numbers of all regions that contain v

A pair inside a triplet becomes a hub, with the pair's scores, linked to all triplets (and larger clusters) that contain
it. Where the triplets triangulate the graph like a junction tree the entropy, and with it every marginal, is exact.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.graph import Scope
from bactrian.graphs.packed import PackedData, TableReader
from bactrian.graphs.packing import TablePlan, build_layout, pack_layout, projection_map
from bactrian.graphs.ragged import Ragged, pointer, ranges, shifted
from bactrian.graphs.scores import SpreadScores
from bactrian.graphs.structure import GraphStructure
from bactrian.parallel.threads import Deadline

Pair = tuple[int, int]
Triplet = tuple[int, int, int]

#: Cycles that correct log Z by less than this are left alone, and longer ones are not looked for.
_LEAST_SCORE, _LONGEST_CYCLE = 1e-6, 8


def find_triplets(data: PackedData, tables: TableReader, most: int, deadline: Deadline) -> list[tuple[Triplet, ...]]:
    """At most ``most`` triplets of variables for each instance, those of the worst cycles first.

    ``tables`` reads beliefs of the Bethe graph. Cycles are those of shortest paths from each variable closed by an edge
    (Horton, SIAM J. Comput. 16(2), 1987: they contain a minimum cycle basis), up to eight variables long. There are
    none for instances that were not looked at before the deadline.
    """
    known: dict[tuple[Scope, ...], list[tuple[int, ...]]] = {}
    found: list[tuple[Triplet, ...]] = []
    for m in range(data.layout.n_instances):
        if deadline.has_passed:
            found.append(())
            continue
        cardinalities, scopes, _ = data.structure.scopes(m)
        key = tuple(scopes)
        if key not in known:
            pairs = {(a, b) for scope in scopes for a in scope for b in scope if a < b}
            cycles = _short_cycles(cardinalities.size, sorted(pairs), deadline)
            large = [set(scope) for scope in scopes if len(scope) > 2]
            known[key] = [cycle for cycle in cycles if not _inside(cycle, large)]
        scored = _scored(data, tables, m, known[key], deadline) if known[key] else []
        found.append(() if deadline.has_passed else _independent(scored, scopes, most))
    return found


def _scored(
    data: PackedData, tables: TableReader, instance: int, cycles: list[tuple[int, ...]], deadline: Deadline
) -> list[tuple[float, tuple[int, ...]]]:
    """Minus the score of each cycle, worst first."""
    cardinalities, scopes, _ = data.structure.scopes(instance)
    first_cluster, first_hub = int(data.layout.instance_clusters[instance]), int(data.layout.instance_hubs[instance])
    place: dict[Pair, tuple[int, Pair]] = {}
    for c, scope in enumerate(scopes):
        for i, a in enumerate(scope):
            for j, b in enumerate(scope):
                if a < b:
                    place.setdefault((a, b), (c, (i, j)))

    def transition(a: int, b: int) -> Floats:
        """b(x_a, x_b) / b(x_a), rows of x_a."""
        cluster, axes = place[min(a, b), max(a, b)]
        scope = scopes[cluster]
        table = tables.cluster(first_cluster + cluster).reshape([int(cardinalities[v]) for v in scope])
        pair = table.sum(axis=tuple(i for i in range(len(scope)) if i not in axes))
        pair = pair if (axes[0] < axes[1]) == (a < b) else pair.T
        single = tables.hub(first_hub + a)[:, None]
        return np.divide(pair, single, out=np.zeros_like(pair), where=single > 0.0)

    known: dict[Pair, Floats] = {}
    scored = []
    for cycle in cycles:
        if deadline.has_passed:
            break
        steps = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        for step in steps:
            if step not in known:
                known[step] = transition(*step)
        product = known[steps[0]]
        for step in steps[1:]:
            product = product @ known[step]
        scored.append((-abs(float(np.log(max(np.trace(product), 1e-300)))), cycle))
    return sorted(scored)


def _short_cycles(n_variables: int, edges: Sequence[Pair], deadline: Deadline) -> list[tuple[int, ...]]:
    """Cycles of two shortest paths from a root and an edge between their ends, each once, smallest variable first."""
    around: list[list[int]] = [[] for _ in range(n_variables)]
    for a, b in edges:
        around[a].append(b)
        around[b].append(a)
    found: dict[tuple[int, ...], None] = {}
    for root in range(n_variables):
        if deadline.has_passed:
            break
        paths: dict[int, tuple[int, ...]] = {root: (root,)}
        waiting = deque([root])
        while waiting:
            v = waiting.popleft()
            if len(paths[v]) > _LONGEST_CYCLE // 2:
                continue
            for w in around[v]:
                if w not in paths:
                    paths[w] = (*paths[v], w)
                    waiting.append(w)
        for a in paths:
            for b in around[a]:
                if a < b and b in paths:
                    _close(paths[a], paths[b], found)
    return list(found)


def _close(left: tuple[int, ...], right: tuple[int, ...], found: dict[tuple[int, ...], None]) -> None:
    if set(left[1:]) & set(right[1:]) or not 3 <= len(left) + len(right) - 1 <= _LONGEST_CYCLE:
        return
    if left[-1] in right or right[-1] in left:
        return
    cycle = left + right[:0:-1]
    start = cycle.index(min(cycle))
    cycle = cycle[start:] + cycle[:start]
    found[cycle if cycle[1] < cycle[-1] else cycle[:1] + cycle[:0:-1]] = None


def _inside(variables: Sequence[int], large: Sequence[set[int]]) -> bool:
    """Whether one cluster of three or more holds all the variables."""
    return any(scope.issuperset(variables) for scope in large)


def _independent(
    scored: list[tuple[float, tuple[int, ...]]], scopes: Sequence[Scope], most: int
) -> tuple[Triplet, ...]:
    """Triplets of the cycles in turn, but those that depend on earlier ones in the cycle space over GF(2)."""
    pairs = {(a, b) for scope in scopes for a in scope for b in scope if a < b}
    large = [set(scope) for scope in scopes if len(scope) > 2]
    number: dict[Pair, int] = {}
    basis: dict[int, int] = {}
    chosen: list[Triplet] = []
    for scope in scopes:
        for other in range(1, len(scope)):  # a larger cluster already fills the triangles inside it
            for third in range(other + 1, len(scope)):
                _reduce(_boundary((scope[0], scope[other], scope[third]), number), basis)
    for score, cycle in scored:
        if -score < _LEAST_SCORE:
            break
        if not _remainder(_boundary(cycle, number), basis):
            continue  # cycles taken before imply it; its chords would only hang on the graph like leaves
        fan = _triangulate(cycle, pairs)
        if len(chosen) + len(fan) > most:
            continue
        for triplet in fan:
            if not _inside(triplet, large) and _reduce(_boundary(triplet, number), basis):
                chosen.append(triplet)
                pairs |= {(triplet[0], triplet[1]), (triplet[1], triplet[2]), (triplet[0], triplet[2])}
    return tuple(chosen)


def _triangulate(cycle: tuple[int, ...], pairs: set[Pair]) -> list[Triplet]:
    """A fan of triplets around the variable whose chords exist already as far as possible."""
    n = len(cycle)

    def missing(i: int) -> int:
        chords = [(cycle[i], cycle[(i + j) % n]) for j in range(2, n - 1)]
        return sum((min(chord), max(chord)) not in pairs for chord in chords)

    start = min(range(n), key=missing)
    turned = cycle[start:] + cycle[:start]
    fan = []
    for j in range(1, n - 1):
        a, b, c = sorted((turned[0], turned[j], turned[j + 1]))
        fan.append((a, b, c))
    return fan


def _boundary(cycle: Sequence[int], number: dict[Pair, int]) -> int:
    """The pairs around a cycle or triplet, as bits."""
    steps = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    return sum(1 << number.setdefault((min(step), max(step)), len(number)) for step in steps)


def _remainder(vector: int, basis: dict[int, int]) -> int:
    """What is left of a vector over a basis keyed by highest bits: 0 where it depends on it."""
    while vector and vector.bit_length() in basis:
        vector ^= basis[vector.bit_length()]
    return vector


def _reduce(vector: int, basis: dict[int, int]) -> bool:
    """Add a vector to the basis; False where it depends on those in it."""
    rest = _remainder(vector, basis)
    if rest:
        basis[rest.bit_length()] = rest
    return rest > 0


@dataclass(frozen=True)
class TightenedData:
    """A Bethe data set with triplets: pairs inside triplets became hubs, and their scores those of the hubs."""

    original: PackedData
    packed: PackedData
    triplets: tuple[tuple[Triplet, ...], ...]
    total: Floats  #: (H,) Kikuchi's counting numbers of hubs; those of clusters are 1
    pair_hubs: Ints  #: (n, 3) hub, and the hubs of its two variables
    cluster_place: Ints  #: (C,) new cluster of each original one, or -1 - h for hub h
    states: Sequence[Ints]  #: of each original cluster, what its states are there
    hub_place: Ints  #: (H of the original,)
    hub_states: Ints  #: where the states of the original hubs are among the new ones

    def reader(self, tables: TableReader) -> TableReader:
        """Tables of the original clusters and hubs."""
        return _PlacedReader(self, tables)

    def spread_hubs(self, values: Floats) -> Floats:
        """Log values of the original hubs on the new ones; pairs get the sum of their variables'."""
        new = self.packed.layout
        out = np.zeros(new.n_hub_states)
        out[self.hub_states] = values
        for hub, a, b in self.pair_hubs.tolist():
            rows = out[new.hub_offset[a] : new.hub_offset[a + 1]]
            columns = out[new.hub_offset[b] : new.hub_offset[b + 1]]
            out[new.hub_offset[hub] : new.hub_offset[hub + 1]] = np.add.outer(rows, columns).ravel()
        return out

    def start(self, hub_log: Floats, tables: TableReader) -> Floats:
        """Log beliefs of the new hubs from those of the original ones; chords start with independent variables."""
        offset = self.packed.layout.hub_offset
        out = self.spread_hubs(hub_log)
        for c in np.flatnonzero(self.cluster_place < 0).tolist():
            out[offset[-1 - self.cluster_place[c]] + self.states[c]] = np.log(np.maximum(tables.cluster(c), 1e-300))
        return out


class _PlacedReader(TableReader):
    def __init__(self, tightened: TightenedData, tables: TableReader) -> None:
        self._tightened, self._tables = tightened, tables

    def cluster(self, index: int) -> Floats:
        place = int(self._tightened.cluster_place[index])
        table = self._tables.cluster(place) if place >= 0 else self._tables.hub(-1 - place)
        return table[self._tightened.states[index]]

    def hub(self, index: int) -> Floats:
        return self._tables.hub(int(self._tightened.hub_place[index]))


@dataclass(frozen=True)
class _Region:
    """One instance's region graph, and where the original clusters went, within the instance."""

    hubs: list[Scope]
    clusters: list[Scope]
    links: list[tuple[int, int, Scope]]  #: hub, cluster and the axes of the hub's variables, hub after hub
    total: Floats
    pairs: list[Pair]  #: of the hubs after those of the variables
    place: list[int]
    states: list[Ints]


def tighten(data: PackedData, triplets: Sequence[Sequence[Triplet]]) -> TightenedData:
    """Packed data with the triplets of each instance added; scores pass through, triplets have none."""
    sizes, regions = [], []
    for m, chosen in enumerate(triplets):
        cardinalities, scopes, _ = data.structure.scopes(m)
        sizes.append(cardinalities)
        regions.append(_region(cardinalities, scopes, chosen))
    structure = _structure(data, sizes, regions)
    new = build_layout(structure, TablePlan.own(structure))
    place, states, pair_hubs, hub_place = [], [], [], []
    for first_cluster, first_hub, region in zip(new.instance_clusters, new.instance_hubs, regions, strict=False):
        place += [p + first_cluster if p >= 0 else p - first_hub for p in region.place]
        states += region.states
        n_variables = region.total.size - len(region.pairs)
        hub_place.append(first_hub + np.arange(n_variables))
        pair_hubs += [
            (first_hub + n_variables + i, first_hub + a, first_hub + b) for i, (a, b) in enumerate(region.pairs)
        ]
    hubs = np.concatenate(hub_place)
    hub_states = ranges(new.hub_offset[hubs], np.diff(data.layout.hub_offset))
    scores = _spread(data, new, place, states, hub_states)
    packed = pack_layout(new, structure, scores, data.weights, np.zeros(new.n_hubs, dtype=np.int64))
    return TightenedData(
        original=data,
        packed=replace(packed, empirical=data.empirical, observed_base=data.observed_base),
        triplets=tuple(tuple(chosen) for chosen in triplets),
        total=np.concatenate([region.total for region in regions]),
        pair_hubs=np.array(pair_hubs, dtype=np.int64).reshape(-1, 3),
        cluster_place=np.array(place, dtype=np.int64),
        states=states,
        hub_place=hubs,
        hub_states=hub_states,
    )


def _region(cardinalities: Ints, scopes: list[Scope], triplets: Sequence[Triplet]) -> _Region:
    n_variables = cardinalities.size
    pairs = sorted({pair for a, b, c in triplets for pair in ((a, b), (a, c), (b, c))})
    hub_of_pair = {pair: n_variables + i for i, pair in enumerate(pairs)}
    kept = [c for c, scope in enumerate(scopes) if tuple(sorted(scope)) not in hub_of_pair]
    clusters: list[Scope] = [scopes[c] for c in kept] + list(triplets)
    rank = {c: i for i, c in enumerate(kept)}
    place = [rank[c] if c in rank else -1 - hub_of_pair[min(s), max(s)] for c, s in enumerate(scopes)]
    states = []
    for c, scope in enumerate(scopes):
        shape, turned = tuple(cardinalities[list(scope)].tolist()), c not in rank and scope[0] > scope[1]
        states.append(projection_map(shape, (1, 0)).astype(np.int64) if turned else np.arange(math.prod(shape)))
    hubs: list[Scope] = [*((v,) for v in range(n_variables)), *pairs]
    links: list[tuple[int, int, Scope]] = []
    for c, scope in enumerate(clusters):
        links += [(v, c, (axis,)) for axis, v in enumerate(scope)]
        for i, a in enumerate(scope):
            for j, b in enumerate(scope):
                if (a, b) in hub_of_pair:
                    links.append((hub_of_pair[a, b], c, (i, j)))
    links.sort()
    return _Region(hubs, clusters, links, _numbers(len(hubs), n_variables, links, pairs), pairs, place, states)


def _structure(data: PackedData, sizes: list[Ints], regions: list[_Region]) -> GraphStructure:
    """The structure of all region graphs; the hubs of variables keep what is known of them."""
    variables = pointer([own.size for own in sizes])
    hubs, clusters = (pointer([len(getattr(r, name)) for r in regions]) for name in ("hubs", "clusters"))
    is_variable = np.concatenate([np.arange(len(r.hubs)) < own.size for r, own in zip(regions, sizes, strict=True)])
    given, index = np.zeros(is_variable.size, dtype=bool), np.zeros(is_variable.size, dtype=np.int64)
    given[is_variable], index[is_variable] = data.hub_given, data.hub_index
    ends = [np.array([link[:2] for link in r.links], dtype=np.int64).reshape(-1, 2).T for r in regions]
    return GraphStructure(
        instance_variables=variables,
        instance_hubs=hubs,
        instance_clusters=clusters,
        cardinalities=np.concatenate(sizes),
        hub_scopes=Ragged.joined([Ragged.of(r.hubs) for r in regions], variables),
        hub_cluster=index,
        hub_given=given,
        link_hub=shifted([hub for hub, _ in ends], hubs),
        link_cluster=shifted([cluster for _, cluster in ends], clusters),
        link_edge=np.concatenate([np.arange(len(r.links)) for r in regions]),
        link_axes=Ragged.of([axes for r in regions for _, _, axes in r.links]),
        table_scopes=Ragged.joined([Ragged.of(r.clusters) for r in regions], variables),
        cluster_given=np.concatenate([np.arange(len(r.clusters)) for r in regions]),
    )


def _numbers(n_hubs: int, n_variables: int, ends: list[tuple[int, int, Scope]], pairs: list[Pair]) -> Floats:
    """Kikuchi's numbers of hubs: 1 less those of all regions above."""
    total = 1.0 - np.bincount([hub for hub, _, _ in ends], minlength=n_hubs)
    for i, (a, b) in enumerate(pairs):
        total[a] -= total[n_variables + i]
        total[b] -= total[n_variables + i]
    return total.astype(np.float64)


def _spread(
    data: PackedData, new: Layout, places: Sequence[int], states: Sequence[Ints], hub_states: Ints
) -> SpreadScores:
    """Scores of original table entries and hub states where they are now."""
    old, rows, columns = data.layout, [], []
    for table, place, own in zip(old.cluster_table.tolist(), places, states, strict=True):
        columns.append(np.arange(old.table_offset[table], old.table_offset[table + 1]))
        start = new.table_offset[place] if place >= 0 else new.n_entries + new.hub_offset[-1 - place]
        rows.append(start + own)
    rows.append(new.n_entries + hub_states)
    columns.append(old.n_entries + np.arange(old.n_hub_states))
    return SpreadScores.of_ones(data.scores, old, new, rows, columns)
