"""Models given what was seen: the unknown variables alone, with everything else folded into their scores.

A variable whose state is known leaves the model. A cluster with one unknown variable left becomes part of that
variable's hub, whose counting number grows by the cluster's, since their entropies are then the same; one with several
keeps the part of its table that agrees with what is known. What remains falls apart into components, which become the
instances of the new data. Rows of generative data have many components in common, and equal ones are merged.

All scores of the new data are sums of old ones, so that moments pass back through the same matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from bactrian.arrays import Bools, Floats, Ints
from bactrian.graphs.packed import Holes, PackedData
from bactrian.graphs.packing import TablePlan, build_layout, pack_layout
from bactrian.graphs.ragged import Ragged, first_of, numbered, pointer, ranges
from bactrian.graphs.scores import RememberedScores, SpreadScores
from bactrian.graphs.structure import structure_of_scopes
from bactrian.parallel.threads import Workers


@dataclass(frozen=True)
class Conditioned:
    """Data with holes as two models that share their scores."""

    free: PackedData  #: every variable, with the features of what is known for certain observed
    clamped: PackedData  #: the unknown ones, in components
    hub: Ints  #: hub of ``free`` that each of ``clamped`` is
    cluster: Ints  #: likewise for clusters
    folded: tuple[Ints, Ints]  #: hubs of ``clamped``, and the clusters of ``free`` that became part of them

    def numbers(self, cluster: Floats, hub: Floats) -> tuple[Floats, Floats]:
        """Counting numbers of the clusters and hubs of ``clamped``, from those of ``free``."""
        into, source = self.folded
        gained = np.bincount(into, weights=cluster[source], minlength=self.hub.size)
        return cluster[self.cluster], hub[self.hub] + gained


def conditioned(data: PackedData) -> Conditioned:
    """The free and the clamped model of data with holes, on Bethe graphs."""
    holes, layout = data.holes, data.layout
    assert holes is not None
    copies = _Copies(data, holes)
    hubs, component, weights = copies.components(holes)
    row, hub = np.divmod(hubs, layout.n_hubs)
    sizes = copies.sizes[hub]
    tables = _Tables.of(copies, hubs, component)
    structure = structure_of_scopes(component, weights.size, sizes, tables.scopes)
    plan, owner = TablePlan.sharing(tables.kinds(sizes), structure)
    build = build_layout(structure, plan)

    # Scores of the new tables and hubs are sums of old ones: those of hubs gain from clusters with no other unknown.
    state = ranges(layout.hub_offset[hub], sizes)
    into, cluster, entries = copies.folded(hubs)
    gaining = ranges(build.hub_offset[into], sizes[into])
    new = np.concatenate([np.arange(build.n_entries + state.size), build.n_entries + gaining])
    old = np.concatenate([tables.entries(owner, sizes), layout.n_entries + state, entries])
    shape = build.n_entries + state.size, layout.n_entries + layout.n_hub_states
    scores = RememberedScores(data.scores, layout)
    barred = holes.forbidden[np.repeat(row, sizes), state]
    fixed = np.concatenate([np.zeros(build.n_entries), np.where(barred, -np.inf, 0.0)]) if barred.any() else None
    spread = SpreadScores(scores, layout.n_entries, sp.csr_array((np.ones(new.size), (new, old)), shape=shape), fixed)
    clamped = pack_layout(build, structure, spread, weights, np.zeros_like(hub))
    seen = copies.seen(data, holes)
    free = replace(
        data,
        scores=scores,
        holes=None,
        empirical=holes.complete + data.scores.moments(*seen, Workers(1)),
        observed_base=data.observed_base + data.scores.base_score(*seen),
    )
    clamped = replace(clamped, empirical=np.zeros(data.n_weights))
    return Conditioned(free, clamped, hub, tables.cluster, (into, cluster))


@dataclass(frozen=True)
class _Tables:
    """What is left of clusters with several unknown variables, by component."""

    scopes: Ragged  #: hubs of the new data, in the order of axes
    strides: Ragged  #: of the old table along each
    first: Ints  #: entry of the old table at state 0 of all of them
    cluster: Ints  #: of the old data

    @staticmethod
    def of(copies: _Copies, hubs: Ints, component: Ints) -> _Tables:
        """Those of the copies of ``hubs`` that are kept, whose components are given."""
        row, place, hub = copies.places(copies.n_free > 1, hubs)
        n_clusters = copies.n_free.shape[1]
        copy = row * n_clusters + copies.place_cluster[place]
        bounds = np.flatnonzero(np.diff(copy, prepend=-1, append=copies.n_free.size))
        order = np.argsort(component[hub[bounds[:-1]]], kind="stable")
        copy = copy[bounds[:-1]][order]
        scopes, strides = (Ragged(bounds, values).take(order) for values in (hub, copies.stride[place]))
        return _Tables(scopes, strides, copies.entry.ravel()[copy], copy % max(n_clusters, 1))

    def kinds(self, sizes: Ints) -> Ints:
        """A number for each table: the same where they have the same old entries."""
        values = self.strides.values * (sizes.max(initial=0) + 1) + sizes[self.scopes.values]
        shapes = Ragged(self.strides.bounds, values).kinds()
        return numbered(self.first * (shapes.max(initial=0) + 1) + shapes)

    def entries(self, chosen: Ints, sizes: Ints) -> Ints:
        """Old entries of the chosen tables, each in C order."""
        scopes, strides, first = self.scopes.take(chosen), self.strides.take(chosen), self.first[chosen]
        own, lengths = scopes.strides(sizes), scopes.lengths
        n_entries = scopes.products(sizes) if lengths.size else lengths
        within = ranges(np.zeros_like(first), n_entries)
        found = np.repeat(first, n_entries)
        for axis in range(int(lengths.max(initial=0))):
            at = scopes.bounds[:-1] + np.minimum(axis, lengths - 1)
            step = np.where(axis < lengths, strides.values[at], 0)
            state = within // np.repeat(own[at], n_entries) % np.repeat(sizes[scopes.values[at]], n_entries)
            found += np.repeat(step, n_entries) * state
        return found


class _Copies:
    """A copy of the model for every row: which states are known, and what clusters are left with.

    Arrays have shape (rows, hubs), (rows, clusters) or (rows, places); a place is a variable of a cluster.
    """

    def __init__(self, data: PackedData, holes: Holes) -> None:
        layout = data.layout
        self.starts, self.sizes = layout.hub_offset[:-1], np.diff(layout.hub_offset)
        of_hub = np.repeat(np.arange(layout.n_instances), np.diff(layout.instance_hubs))
        within = np.arange(layout.n_hub_states) - np.repeat(self.starts, self.sizes)
        self.weights = holes.weights[:, of_hub]
        self.n_allowed = np.add.reduceat(~holes.forbidden, self.starts, axis=1, dtype=np.int64)
        ordered = np.where(holes.forbidden, layout.n_hub_states, within)
        self.state: Ints = np.minimum.reduceat(ordered, self.starts, axis=1)
        self.free: Bools = (self.n_allowed > 1) & (self.weights > 0.0)
        self.place_hub = layout.link_hub[layout.cluster_link]
        places = Ragged(layout.cluster_links, self.place_hub)
        self.place_cluster, self.stride = places.row_of_value, places.strides(self.sizes)
        self.free_place = self.free[:, self.place_hub]
        known = np.where(self.free_place, 0, self.state[:, self.place_hub] * self.stride)
        self.n_free = self._by_cluster(layout.cluster_links, self.free_place)
        #: Entry of each cluster's table at the known states and state 0 of the others.
        self.entry = layout.table_offset[layout.cluster_table] + self._by_cluster(layout.cluster_links, known)

    @staticmethod
    def _by_cluster(bounds: Ints, values: Ints | Bools) -> Ints:
        """Sums over the places of each cluster."""
        if bounds.size == 1:
            return np.zeros((len(values), 0), dtype=np.int64)
        return np.add.reduceat(values, bounds[:-1], axis=1, dtype=np.int64)

    def places(self, clusters: Bools, hubs: Ints) -> tuple[Ints, Ints, Ints]:
        """Row, place and number among ``hubs`` of those that stand in ``clusters`` (rows, clusters)."""
        number = np.full(self.free.shape, -1)
        number.ravel()[hubs] = np.arange(hubs.size)
        row, place = np.nonzero(self.free_place & clusters[:, self.place_cluster])
        found = number[row, self.place_hub[place]]
        return row[found >= 0], place[found >= 0], found[found >= 0]

    def folded(self, hubs: Ints) -> tuple[Ints, Ints, Ints]:
        """Clusters with one unknown variable: its number among ``hubs``, the cluster, and entries for its states."""
        row, place, into = self.places(self.n_free == 1, hubs)
        cluster, size = self.place_cluster[place], self.sizes[self.place_hub[place]]
        steps = ranges(np.zeros_like(size), size) * np.repeat(self.stride[place], size)
        return into, cluster, np.repeat(self.entry[row, cluster], size) + steps

    def seen(self, data: PackedData, holes: Holes) -> tuple[Floats, Floats]:
        """Weighted counts of table entries and hub states that are known."""
        layout = data.layout
        of_cluster = np.repeat(np.arange(layout.n_instances), np.diff(layout.instance_clusters))
        whole = self.n_free == 0
        entries = np.bincount(self.entry[whole], holes.weights[:, of_cluster][whole], layout.n_entries)
        states = np.bincount((self.starts + self.state)[~self.free], self.weights[~self.free], layout.n_hub_states)
        return entries.astype(np.float64), states.astype(np.float64)

    def components(self, holes: Holes) -> tuple[Ints, Ints, Floats]:
        """Copies of unknown hubs by component, the component of each, and the weights of components."""
        n_hubs = self.sizes.size
        unknown = np.flatnonzero(self.free)
        number = np.zeros(self.free.size, dtype=np.int64)
        number[unknown] = np.arange(unknown.size)
        row, place = np.nonzero(self.free_place)
        copy = row * self.n_free.shape[1] + self.place_cluster[place]
        end = number[row * n_hubs + self.place_hub[place]]
        joined = copy[1:] == copy[:-1]
        graph = sp.coo_array(
            (np.ones(int(joined.sum())), (end[:-1][joined], end[1:][joined])), shape=(unknown.size,) * 2
        )
        n_components, component = connected_components(graph, directed=False)
        weight = np.zeros(n_components)
        weight[component] = self.weights.ravel()[unknown]
        if len(self.free) > 1:
            of_cluster = np.full(self.n_free.size, -1)
            of_cluster[copy] = component[end]
            kinds = self._kinds(holes, component, unknown, of_cluster)
            first = np.sort(first_of(kinds))
            weight = np.bincount(kinds, weights=weight)[kinds[first]]
            renumbered = np.full(n_components, -1)
            renumbered[first] = np.arange(first.size)
            component = renumbered[component]
            unknown, component = unknown[component >= 0], component[component >= 0]
        order = np.argsort(component, kind="stable")
        return unknown[order], component[order], weight

    def _kinds(self, holes: Holes, component: Ints, unknown: Ints, of_cluster: Ints) -> Ints:
        """A number for each component of rows of one model: the same where unknown hubs and all around are alike."""
        n_states, n_hubs = holes.forbidden.shape[1], self.sizes.size
        code = np.where(self.free, n_states + np.arange(n_hubs), self.starts + self.state)
        row, hub = np.nonzero(self.free & (self.n_allowed < self.sizes))
        if row.size:  # sets of allowed states
            lengths = self.sizes[hub]
            states = ranges(self.starts[hub], lengths)
            sets = Ragged(pointer(lengths), 2 * states + holes.forbidden[np.repeat(row, lengths), states]).kinds()
            code[row, hub] = n_states + n_hubs + sets
        row, place = np.nonzero(~self.free_place)
        around = of_cluster[row * self.n_free.shape[1] + self.place_cluster[place]]
        row, place, around = row[around >= 0], place[around >= 0], around[around >= 0]
        owner = np.concatenate([component, around])
        member = np.concatenate([code.ravel()[unknown], code[row, self.place_hub[place]]])
        n_codes = int(member.max(initial=0)) + 1
        pairs = np.unique(owner * n_codes + member)
        return Ragged(pointer(np.bincount(pairs // n_codes)), pairs % n_codes).kinds()
