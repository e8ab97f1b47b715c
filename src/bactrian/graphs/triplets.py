"""Tighter polytopes: a Bethe graph with triplets of variables added, packed.

Pairs that agree on single variables need not be marginals of one distribution: their polytope is an outer bound, loose
on frustrated cycles. Sontag & Jaakkola (NIPS 2007) add cycle constraints that the solution violates, and Sontag,
Meltzer, Globerson, Jaakkola & Weiss (UAI 2008) clusters of three variables that enforce them; which ones is decided in
:mod:`bactrian.graphs.cycles`.

The entropy is Kikuchi's with regions triplets (and other clusters), pairs inside triplets, and variables (Yedidia,
Freeman & Weiss, IEEE Trans. Inf. Theory 51(7), 2005): with n_p triplets (or larger clusters) around a pair p,

    c_triplet = 1,    c_p = 1 - n_p,    c_v = 1 - sum of the numbers of all regions that contain v

A pair inside a triplet becomes a hub, with the pair's scores, linked to all triplets (and larger clusters) that contain
it. Where the triplets triangulate the graph like a junction tree the entropy, and with it every marginal, is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.graphs.cycles import Pair, Scope, Triplet
from bactrian.graphs.graph import Structure
from bactrian.graphs.junction import SpreadScores
from bactrian.graphs.layouts import TablePlan, build_layout, pack_layout, projection_map
from bactrian.graphs.packed import InstanceViews, PackedData, TableReader

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TightenedData:
    """A Bethe data set with triplets: pairs inside triplets became hubs, and their scores those of the hubs."""

    original: PackedData
    packed: PackedData
    triplets: tuple[tuple[Triplet, ...], ...]
    total: Floats  #: (H,) Kikuchi's counting numbers of hubs; those of clusters are 1
    pair_hubs: Ints  #: (n, 3) hub, and the hubs of its two variables
    cluster_place: Ints  #: (C,) new cluster of each original one, or -1 - h for hub h
    swapped: NDArray[np.bool_]  #: (C,) the hub's variables are in the other order
    hub_place: Ints  #: (H of the original,)

    def reader(self, tables: TableReader) -> TableReader:
        """Tables of the original clusters and hubs."""
        return _PlacedReader(self, tables)

    def spread_hubs(self, values: Floats) -> Floats:
        """Log values of the original hubs on the new ones; pairs get the sum of their variables'."""
        old, new = self.original.layout, self.packed.layout
        out = np.zeros(new.n_hub_states)
        sizes = np.diff(old.hub_offset)
        within = np.arange(old.n_hub_states) - np.repeat(old.hub_offset[:-1], sizes)
        out[np.repeat(new.hub_offset[self.hub_place], sizes) + within] = values
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
            hub = -1 - int(self.cluster_place[c])
            table = tables.cluster(c)
            if self.swapped[c]:
                columns = int(offset[_first_variable(self, hub) + 1] - offset[_first_variable(self, hub)])
                table = table.reshape(-1, columns).T.ravel()
            out[offset[hub] : offset[hub + 1]] = np.log(np.maximum(table, 1e-300))
        return out


class _PlacedReader(TableReader):
    def __init__(self, tightened: TightenedData, tables: TableReader) -> None:
        self._tightened, self._tables = tightened, tables

    def cluster(self, index: int) -> Floats:
        tightened = self._tightened
        place = int(tightened.cluster_place[index])
        if place >= 0:
            return self._tables.cluster(place)
        table = self._tables.hub(-1 - place)
        if not tightened.swapped[index]:
            return table
        layout = tightened.packed.layout
        rows = int(np.diff(layout.hub_offset)[_first_variable(tightened, -1 - place)])
        return np.ascontiguousarray(table.reshape(rows, -1).T).ravel()

    def hub(self, index: int) -> Floats:
        return self._tables.hub(int(self._tightened.hub_place[index]))


def _first_variable(tightened: TightenedData, hub: int) -> int:
    return int(tightened.pair_hubs[np.searchsorted(tightened.pair_hubs[:, 0], hub), 1])


@dataclass(frozen=True)
class _Region:
    """One instance's region graph: its structure and where the original clusters went, within the instance."""

    structure: Structure
    total: Floats
    pairs: list[Pair]  #: of the hubs after those of the variables
    place: list[int]
    swapped: list[bool]


def tighten(data: PackedData, triplets: Sequence[Sequence[Triplet]]) -> TightenedData:
    """Packed data with the triplets of each instance added; scores pass through, triplets have none."""
    layout = data.layout
    regions = []
    for m, chosen in enumerate(triplets):
        cardinalities, scopes, _ = data.views.scopes(m)
        hubs = slice(*layout.instance_hubs[m : m + 2].tolist())
        regions.append(_region(cardinalities, scopes, data.hub_given[hubs], data.hub_index[hubs], chosen))
    structures = [region.structure for region in regions]
    new = build_layout(structures, TablePlan.own(structures))
    parts = ((new.instance_clusters[m], new.instance_hubs[m], region) for m, region in enumerate(regions))
    place, swapped, pair_hubs, hub_place = [], [], [], []
    for first_cluster, first_hub, region in parts:
        place += [p + first_cluster if p >= 0 else p - first_hub for p in region.place]
        swapped += region.swapped
        n_variables = region.total.size - len(region.pairs)
        hub_place.append(first_hub + np.arange(n_variables))
        pair_hubs += [
            (first_hub + n_variables + i, first_hub + a, first_hub + b) for i, (a, b) in enumerate(region.pairs)
        ]
    tightened = TightenedData(
        original=data,
        packed=data,
        triplets=tuple(tuple(chosen) for chosen in triplets),
        total=np.concatenate([region.total for region in regions]),
        pair_hubs=np.array(pair_hubs, dtype=np.int64).reshape(-1, 3),
        cluster_place=np.array(place, dtype=np.int64),
        swapped=np.array(swapped, dtype=bool),
        hub_place=np.concatenate(hub_place),
    )
    kinds = np.zeros(new.n_hubs, dtype=np.int64)
    packed = pack_layout(new, structures, data.scores, data.weights, InstanceViews(), kinds)
    tightened = replace(tightened, packed=packed)
    scores = SpreadScores(data, _spread(tightened))
    packed = replace(packed, scores=scores, empirical=data.empirical, observed_base=data.observed_base)
    return replace(tightened, packed=packed)


def _region(
    cardinalities: Ints, scopes: list[Scope], hub_given: NDArray[np.bool_], hub_index: Ints, triplets: Sequence[Triplet]
) -> _Region:
    pairs = sorted({pair for a, b, c in triplets for pair in ((a, b), (a, c), (b, c))})
    hub_of_pair = {pair: cardinalities.size + i for i, pair in enumerate(pairs)}
    kept = [c for c, scope in enumerate(scopes) if tuple(sorted(scope)) not in hub_of_pair]
    clusters: list[Scope] = [scopes[c] for c in kept] + list(triplets)
    rank = {c: i for i, c in enumerate(kept)}
    place = [rank[c] if c in rank else -1 - hub_of_pair[_pair(scope)] for c, scope in enumerate(scopes)]
    swapped = [c not in rank and scope[0] > scope[1] for c, scope in enumerate(scopes)]
    hubs: list[Scope] = [*((v,) for v in range(cardinalities.size)), *pairs]
    ends: list[tuple[int, int, Scope]] = []
    for c, scope in enumerate(clusters):
        ends += [(v, c, (axis,)) for axis, v in enumerate(scope)]
        for i, a in enumerate(scope):
            for j, b in enumerate(scope):
                if (a, b) in hub_of_pair:
                    ends.append((hub_of_pair[a, b], c, (i, j)))
    ends.sort()
    total = _numbers(len(hubs), cardinalities.size, ends, pairs)
    return _Region(_structure(cardinalities, hubs, clusters, ends, hub_given, hub_index), total, pairs, place, swapped)


def _pair(scope: Scope) -> Pair:
    return min(scope), max(scope)


def _numbers(n_hubs: int, n_variables: int, ends: list[tuple[int, int, Scope]], pairs: list[Pair]) -> Floats:
    """Kikuchi's numbers of hubs: 1 less those of all regions above."""
    total = 1.0 - np.bincount([hub for hub, _, _ in ends], minlength=n_hubs)
    for i, (a, b) in enumerate(pairs):
        total[a] -= total[n_variables + i]
        total[b] -= total[n_variables + i]
    return total.astype(np.float64)


def _structure(
    cardinalities: Ints,
    hubs: list[Scope],
    clusters: list[Scope],
    ends: list[tuple[int, int, Scope]],
    hub_given: NDArray[np.bool_],
    hub_index: Ints,
) -> Structure:
    shapes = [tuple(int(cardinalities[v]) for v in scope) for scope in clusters]
    link_hub = np.array([hub for hub, _, _ in ends], dtype=np.int64)
    link_cluster = np.array([cluster for _, cluster, _ in ends], dtype=np.int64)
    sizes = np.array([len(axes) for _, _, axes in ends], dtype=np.int64)
    first_axis = np.array([axes[0] for _, _, axes in ends], dtype=np.int64)
    degrees = np.bincount(link_cluster, minlength=len(clusters))
    n_pairs = len(hubs) - cardinalities.size
    nothing = sp.csr_array((0, cardinalities.size), dtype=np.int64)
    return Structure(
        hub_scopes=tuple(hubs),
        hub_cluster=np.concatenate([hub_index, np.zeros(n_pairs, dtype=np.int64)]),
        hub_given=np.concatenate([hub_given, np.zeros(n_pairs, dtype=bool)]),
        hub_sizes=_sizes(cardinalities, hubs),
        hub_links=_pointer(np.bincount(link_hub, minlength=len(hubs))),
        link_hub=link_hub,
        link_cluster=link_cluster,
        link_edge=np.arange(len(ends), dtype=np.int64),
        link_projection=tuple((shapes[cluster], axes) for _, cluster, axes in ends),
        cluster_given=np.arange(len(clusters), dtype=np.int64),
        cluster_sizes=_sizes(cardinalities, clusters),
        cluster_rows=np.array([shape[0] if len(shape) == 2 else 0 for shape in shapes], dtype=np.int64),
        cluster_links=_pointer(degrees),
        cluster_link=np.lexsort((first_axis, sizes, link_cluster)).astype(np.int64),
        positions=np.arange(len(clusters), dtype=np.int64),
        table_strides=nothing,
        hub_strides=nothing,
    )


def _sizes(cardinalities: Ints, scopes: list[Scope]) -> Ints:
    return np.array([int(np.prod([cardinalities[v] for v in scope])) for scope in scopes], dtype=np.int64)


def _pointer(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _spread(tightened: TightenedData) -> sp.csr_array:
    """Ones from original table entries and hub states to new ones."""
    old, new = tightened.original.layout, tightened.packed.layout
    tables = old.cluster_table
    rows: list[Ints] = []
    columns: list[Ints] = []
    for c, place in enumerate(tightened.cluster_place.tolist()):
        start, stop = old.table_offset[tables[c]], old.table_offset[tables[c] + 1]
        columns.append(np.arange(start, stop))
        if place >= 0:
            rows.append(np.arange(new.table_offset[place], new.table_offset[place + 1]))
            continue
        target = np.arange(new.hub_offset[-1 - place], new.hub_offset[-place])
        if tightened.swapped[c]:
            first = _first_variable(tightened, -1 - place)
            second = int(np.diff(new.hub_offset)[first])
            target = target[projection_map((target.size // second, second), (1, 0))]
        rows.append(new.n_entries + target)
    sizes = np.diff(old.hub_offset)
    within = np.arange(old.n_hub_states) - np.repeat(old.hub_offset[:-1], sizes)
    rows.append(new.n_entries + np.repeat(new.hub_offset[tightened.hub_place], sizes) + within)
    columns.append(old.n_entries + np.arange(old.n_hub_states))
    flat_rows, flat_columns = np.concatenate(rows), np.concatenate(columns)
    shape = (new.n_entries + new.n_hub_states, old.n_entries + old.n_hub_states)
    return sp.csr_array((np.ones(flat_rows.size), (flat_rows, flat_columns)), shape=shape)
