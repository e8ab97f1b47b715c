"""Any packed data as a factor graph: one hub per variable, linked to every cluster that contains it.

Mean field, sampling and decoding need the product of the clusters' tables and nothing of how the clusters were tied
together, so explicit cluster graphs are rewritten on variables here; Bethe graphs are factor graphs already. Evidence
is then a matter of hub scores alone: -inf on the states it rules out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.assignments import ScoreArrays
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.packed import PackedData, TableReader, instance_of
from bactrian.graphs.packing import TablePlan, build_layout, pack_layout
from bactrian.graphs.ragged import Ragged, pointer
from bactrian.graphs.scores import SpreadScores
from bactrian.graphs.structure import structure_of_scopes
from bactrian.inference.problem import Evidence, check_scores, hub_bias
from bactrian.parallel.threads import Workers


def as_factor_graph(data: PackedData) -> PackedData:
    """``data`` with one hub per variable; table clusters keep their numbers and their tables."""
    if data.explicit is None:
        return data
    old, given = data.layout, data.structure
    instance = np.repeat(np.arange(old.n_instances), np.diff(given.instance_variables))
    structure = structure_of_scopes(instance, old.n_instances, given.cardinalities, given.table_scopes)
    tables = TablePlan(old.cluster_table, old.table_offset, old.table_shared, old.instance_tables)
    layout = build_layout(structure, tables)
    # Tables keep their scores, hubs of Bethe graphs move to where they are now, and other hubs have none.
    tables_first = [np.arange(old.n_entries)]
    rows, columns = (
        tables_first
        + [
            old.n_entries + np.arange(*own.hub_offset[own.instance_hubs[m : m + 2]])
            for m in np.flatnonzero(~data.explicit)
        ]
        for own in (layout, old)
    )
    scores = SpreadScores.of_ones(data.scores, old, layout, rows, columns)
    return pack_layout(layout, structure, scores, data.weights, np.zeros(layout.n_hubs, dtype=np.int64))


def link_strides(layout: Layout) -> Ints:
    """(L,) stride of a link's variable in the table of its cluster, on a factor graph."""
    strides = np.empty(layout.n_links, dtype=np.int64)
    strides[layout.cluster_link] = Ragged(layout.cluster_links, layout.cluster_link).strides(
        np.diff(layout.link_offset)
    )
    return strides


@dataclass(frozen=True)
class FactorScores:
    """Scores of a factor graph at given weights, with evidence."""

    data: PackedData  #: the factor graph
    entries: Floats  #: (n_entries,) log tables
    hubs: Floats  #: (n_hub_states,) scores of variables, -inf where evidence rules a state out
    strides: Ints  #: (L,) see :func:`link_strides`
    cluster_trees: Bools  #: (M,) the clusters came as a tree with the running-intersection property

    @property
    def layout(self) -> Layout:
        """The factor graph's layout."""
        return self.data.layout

    @property
    def arrays(self) -> ScoreArrays:
        """What array routines read."""
        return ScoreArrays(self.entries, self.hubs, self.strides)


def factor_scores(data: PackedData, weights: Floats, evidence: Sequence[Evidence], workers: Workers) -> FactorScores:
    """Rewrite ``data`` as a factor graph and compute its scores; ``evidence`` has one mapping per instance."""
    factors = as_factor_graph(data)
    layout = factors.layout
    entries, hubs = np.empty(layout.n_entries), np.empty(layout.n_hub_states)
    factors.scores.scores(weights, entries, hubs, workers)
    check_scores(entries, hubs)
    hubs += hub_bias(factors, evidence)
    return FactorScores(factors, entries, hubs, link_strides(layout), _cluster_trees(data))


def _cluster_trees(data: PackedData) -> Bools:
    """(M,) instances on explicit cluster trees with the running-intersection property.

    On a forest the property holds where each variable's clusters and hubs are one tree: one more than their links.
    """
    if data.explicit is None:
        return np.zeros(data.layout.n_instances, dtype=np.bool_)
    structure, n = data.structure, data.structure.cardinalities.size
    hubs = structure.hub_scopes
    joined = np.bincount(hubs.values, weights=(data.degrees - 1)[hubs.row_of_value], minlength=n)
    apart = pointer(np.bincount(structure.table_scopes.values, minlength=n) - joined != 1)[structure.instance_variables]
    return data.layout.instance_is_tree & data.explicit & (np.diff(apart) == 0)


class FactorTables(TableReader):
    """Tables of the data as it was packed, from those of its factor graph.

    Table clusters are the same in both; a hub of an explicit graph is a sepset, whose table is a marginal of the first
    cluster linked to it.
    """

    def __init__(self, data: PackedData, factors: PackedData, tables: TableReader) -> None:
        self._data, self._factors, self._tables = data, factors, tables

    def cluster(self, index: int) -> Floats:
        """Table of a table cluster."""
        return self._tables.cluster(index)

    def hub(self, index: int) -> Floats:
        """Table of a hub."""
        if self._data is self._factors:
            return self._tables.hub(index)
        layout = self._data.layout
        states = int(layout.hub_offset[index + 1] - layout.hub_offset[index])
        if layout.hub_links[index] == layout.hub_links[index + 1]:
            m = instance_of(layout.instance_hubs, index)
            (variable,) = self._data.structure.scopes(m)[2][index - int(layout.instance_hubs[m])]
            return self._tables.hub(int(self._factors.layout.instance_hubs[m]) + variable)
        link = int(layout.hub_links[index])
        table = self._tables.cluster(int(layout.link_cluster[link]))
        start = int(layout.link_projection[link])
        states_of = layout.projection[start : start + table.size]
        found = np.bincount(states_of, weights=table, minlength=states)
        return found / found.sum()  # to the last digit: one-hot where it was observed
