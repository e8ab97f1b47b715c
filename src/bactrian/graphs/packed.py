"""Packed data: what learners and inference methods work on, whichever way the data came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.inputs import N_BLOCKS
from bactrian.graphs.ragged import pointer, ranges
from bactrian.graphs.scores import ScoreMap, SpreadScores
from bactrian.graphs.structure import GraphStructure
from bactrian.parallel.threads import Workers, balanced_blocks

#: States of links below which a block of instances is not worth handing to a thread, for work that takes many sweeps.
_LEAST_WORK = 200.0


@dataclass(frozen=True)
class Observations:
    """Observed states of all variables: R rows, in each the variables of instance after instance.

    Generative data is one instance with one row per sample, conditional data one row with many instances.
    """

    states: Ints  #: (R, V)
    weights: Floats  #: (R, M) weight of an instance's part of a row


@dataclass(frozen=True)
class Holes:
    """Observations with unknown states, R rows as in :class:`Observations`."""

    forbidden: Bools  #: (R, n_hub_states) states that were seen not to be
    weights: Floats  #: (R, M) weight of an instance's part of a row
    complete: Floats  #: (n_weights,) weighted sum of the features of complete rows, which may be left out above
    is_shifted: bool = False  #: the sum also holds the prior's mean times its precision


@dataclass(frozen=True)
class PackedData:
    """All instances in flat arrays; see :class:`bactrian.engines.numba.layout.Layout` for the indices.

    ``structure`` says where the clusters of each instance went and what shapes their tables have, on demand, since
    nothing here is a Python object per cluster.
    """

    in_memory: ClassVar[bool] = True  #: so that learners may read the arrays below

    layout: Layout
    scores: ScoreMap
    weights: Floats  #: (M,) weight of each instance in the objective; n_samples for generative data
    blocks: Ints  #: bounds of the blocks of instances that threads take
    hub_given: Bools  #: (H,) the hub has a singleton cluster of its own
    hub_virtual: Bools  #: (H,) the hub is the sepset of an explicit edge
    hub_kind: Ints  #: (H,) kind of sepset: hubs of one kind are pooled for an empirical start
    link_share: Floats  #: (L,) the part of its hub's score that a cluster takes where scores are absorbed
    cluster_index: Ints  #: (C,) index of the cluster among those of its instance
    hub_index: Ints  #: (H,) index of the hub's cluster among those of its instance, or -1
    link_edge: Ints  #: (L,) index of the link's edge among those of its instance
    make_structure: Callable[[], GraphStructure]
    empirical: Floats | None  #: (n_weights,) weighted sum of observed features; None without labels
    hub_truth: Floats | None  #: (n_hub_states,) weighted counts of observed hub states
    observed_base: float = 0.0  #: weighted sum of the fixed scores of observed states
    generative: bool = False  #: the one instance stands for many samples
    observations: Observations | None = None  #: the observed states themselves; None without labels
    holes: Holes | None = None  #: where some states are unknown, and all observed counts above are None
    hub_numbers: Floats | None = None  #: (H,) counting numbers of hubs on region graphs; None where all are Bethe's
    explicit: Bools | None = None  #: (M,) the graph has hubs of its own, not Bethe's variables; None: no graph has

    @property
    def structure(self) -> GraphStructure:
        """Scopes, shapes and places of all clusters."""
        return self.make_structure()

    def is_bethe(self, instance: int) -> bool:
        """Whether the hubs of an instance are its variables."""
        return self.explicit is None or not self.explicit[instance]

    def observed(self, entries: Floats, hub_states: Floats, observations: Observations | None = None) -> PackedData:
        """The same data with weighted counts of the observed table entries and hub states."""
        return replace(
            self,
            empirical=self.scores.moments(entries, hub_states, Workers(1)),
            observed_base=self.scores.base_score(entries, hub_states),
            hub_truth=hub_states,
            observations=observations,
        )

    def share(self, _rank: int, _size: int) -> PackedData:
        """What one of several ranks learns from: all of it, since each brings its own."""
        return self

    def require_rows(self, learner: str) -> None:
        """Refuse moments without rows, for a learner that needs rows."""
        if self.observations is None:
            raise ValueError(
                f"{learner} needs observed states, but Moments have only sums of features; choose one of "
                "'exact', 'cccp', 'convex', 'trw', 'camel0', 'piecewise' or 'lbp'"
            )

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        return self.scores.n_weights

    @property
    def total_weight(self) -> float:
        """Sum of the instances' weights."""
        return float(self.weights.sum())

    @property
    def degrees(self) -> Ints:
        """(H,) number of links of each hub."""
        return np.diff(self.layout.hub_links)

    @property
    def total_numbers(self) -> Floats:
        """(H,) total counting numbers of hubs in the entropy of Bethe, or Kikuchi on region graphs."""
        if self.hub_numbers is not None:
            return self.hub_numbers
        return np.where(self.hub_virtual, -1.0, 1.0 - self.degrees)

    @property
    def hub_of_state(self) -> Ints:
        """(n_hub_states,) hub of each hub state."""
        return np.repeat(np.arange(self.layout.n_hubs), np.diff(self.layout.hub_offset))

    @property
    def hub_state_of_link_state(self) -> Ints:
        """(n_link_states,) hub state of each link state."""
        layout = self.layout
        return ranges(layout.hub_offset[layout.link_hub], np.diff(layout.link_offset))

    @property
    def instance_of_state(self) -> Ints:
        """(n_hub_states,) instance of each hub state."""
        layout = self.layout
        return np.repeat(np.arange(layout.n_instances), np.diff(layout.hub_offset[layout.instance_hubs]))

    def uniform_counts(self) -> tuple[Floats, Floats]:
        """Weighted counts of table entries and hub states if all states are equally likely."""
        layout = self.layout
        states, entries = np.diff(layout.hub_offset), np.diff(layout.table_offset)
        hubs = np.repeat(self.weights, np.diff(layout.instance_hubs)) / states
        clusters = np.repeat(self.weights, np.diff(layout.instance_clusters))
        tables = np.bincount(layout.cluster_table, clusters, minlength=entries.size) / entries
        return np.repeat(tables, entries), np.repeat(hubs, states)


class BeliefTables(Sequence["InstanceBeliefs"]):
    """``beliefs[m][i]``: the table of cluster ``i`` of instance ``m``, computed when asked for."""

    def __init__(self, data: PackedData, tables: TableReader) -> None:
        self._data = data
        self._tables = tables

    def __len__(self) -> int:
        return self._data.layout.n_instances

    def __getitem__(self, instance):  # type: ignore[no-untyped-def]
        if isinstance(instance, slice):
            return [self[m] for m in range(*instance.indices(len(self)))]
        return InstanceBeliefs(self._data, self._tables, range(len(self))[instance])


class InstanceBeliefs(Sequence[Floats]):
    """Belief tables of one instance."""

    def __init__(self, data: PackedData, tables: TableReader, instance: int) -> None:
        self._data = data
        self._tables = tables
        self._instance = instance

    def __len__(self) -> int:
        return self._data.structure.n_clusters(self._instance)

    def __getitem__(self, cluster):  # type: ignore[no-untyped-def]
        if isinstance(cluster, slice):
            return [self[i] for i in range(*cluster.indices(len(self)))]
        place, shape = self._data.structure.locate(self._instance, range(len(self))[cluster])
        flat = self._tables.cluster(place) if place >= 0 else self._tables.hub(-1 - place)
        return flat.reshape(shape)

    def hubs(self) -> Floats:
        """(n_hubs, states) beliefs of all hubs, where these have equally many states; of graphs, the nodes."""
        layout = self._data.layout
        first, last = layout.instance_hubs[self._instance : self._instance + 2].tolist()
        if first == last:  # as many states as hubs of other instances have
            return np.empty((0, int(layout.hub_offset[:2][-1])))
        return self._tables.hubs(first, last)


class TableReader:
    """Gives the flat belief table of a packed cluster or hub."""

    def cluster(self, index: int) -> Floats:
        """Belief table of table cluster ``index``."""
        raise NotImplementedError

    def hub(self, index: int) -> Floats:
        """Belief of hub ``index``."""
        raise NotImplementedError

    def hubs(self, first: int, last: int) -> Floats:
        """Beliefs of hubs ``first`` to ``last``, one or more of equally many states: (last - first, states)."""
        return np.stack([self.hub(index) for index in range(first, last)])

    def pairs(self, first: int, last: int) -> Floats:
        """Belief tables of pairs ``first`` to ``last``, one or more of equally many states: (last - first, entries)."""
        return np.stack([self.cluster(index) for index in range(first, last)])


class HubTables(TableReader):
    """Beliefs of hubs from an array over their states."""

    def __init__(self, layout: Layout, hub_beliefs: Floats) -> None:
        self._layout, self._hub_beliefs = layout, hub_beliefs

    def hub(self, index: int) -> Floats:
        """See :class:`TableReader`."""
        return self._hub_beliefs[self._layout.hub_offset[index] : self._layout.hub_offset[index + 1]].copy()


def instance_of(bounds: Ints, index: int) -> int:
    """The instance that cluster or hub ``index`` belongs to, from the bounds of all instances."""
    return int(np.searchsorted(bounds, index, side="right")) - 1


def instance_blocks(layout: Layout, least: float = _LEAST_WORK) -> Ints:
    """Blocks of instances of about equal work, ``least`` states of links or more."""
    links = np.diff(layout.link_offset[layout.hub_links[layout.instance_hubs]])
    per_instance = links + np.diff(layout.instance_clusters) + 1.0
    return balanced_blocks(per_instance, N_BLOCKS, least)


def link_cells(layout: Layout) -> tuple[Ints, Ints]:
    """For every link, each state of its cluster, all clusters' states being numbered through, and its link state."""
    sizes = np.diff(layout.table_offset)[layout.cluster_table]
    of_link = sizes[layout.link_cluster]
    states = layout.projection[ranges(layout.link_projection, of_link)]
    return ranges(pointer(sizes)[layout.link_cluster], of_link), np.repeat(layout.link_offset[:-1], of_link) + states


def tables_by_number(data: PackedData, number: Floats) -> PackedData:
    """The same data with a copy of each shared table for every counting number that its clusters have.

    Then one exponential of a table serves all of its clusters. The data stays as it is if all clusters of a table have
    one number, or if copies would outgrow the messages.
    """
    layout = data.layout
    n_shared = layout.table_shared
    sharing = np.flatnonzero(layout.cluster_table < n_shared)
    table = layout.cluster_table[sharing]
    first = np.empty(n_shared)
    first[table] = number[sharing]
    if (number[sharing] == first[table]).all():
        return data
    _, code = np.unique(number[sharing], return_inverse=True)
    n_codes = int(code.max()) + 1
    key = table * n_codes + code
    kinds = np.flatnonzero(np.bincount(key))
    copy_of = np.empty(n_shared * n_codes, dtype=np.int64)
    copy_of[kinds] = np.arange(kinds.size)
    originals = np.concatenate([kinds // n_codes, np.arange(n_shared, layout.n_tables)])
    sizes = np.diff(layout.table_offset)[originals]
    if sizes[: kinds.size].sum() * (data.blocks.size - 1) > layout.n_link_states:
        return data
    source = ranges(layout.table_offset[originals], sizes)
    cluster_table = layout.cluster_table + (kinds.size - n_shared)
    cluster_table[sharing] = copy_of[key]
    new = layout._replace(
        cluster_table=cluster_table,
        table_offset=pointer(sizes),
        table_shared=int(kinds.size),
        instance_tables=layout.instance_tables + (kinds.size - n_shared),
    )
    columns = np.concatenate([source, layout.n_entries + np.arange(layout.n_hub_states)])
    scores = SpreadScores.of_ones(data.scores, layout, new, [np.arange(columns.size)], [columns])
    return replace(data, layout=new, scores=scores)
