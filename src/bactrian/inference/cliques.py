"""Clique tables of junction trees for decoding, variables with a single allowed state cut out first.

Evidence leaves a variable one state, as does a cardinality of 1: such variables are in no clique, and tables are read
where they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.first_optimum import add_table
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.elimination import JunctionTree, junction_tree
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.packed import instance_blocks
from bactrian.graphs.packing import TablePlan, build_layout
from bactrian.inference.factors import FactorScores

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scope = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The junction tree of one instance."""

    instance: int
    sizes: tuple[int, ...]  #: cardinalities
    scopes: tuple[Scope, ...]  #: of its table clusters, then of its variables
    fixed: dict[int, int]  #: states of the variables that have only one
    graph: ClusterGraph
    tree: JunctionTree


@dataclass(frozen=True)
class Cliques:
    """Junction trees of several instances, packed; their hubs are the sepsets."""

    plans: Sequence[Plan]
    layout: Layout
    blocks: Ints
    entries: Floats  #: clique tables
    variables: Ints  #: (instances + 1,) variables of each, of all in turn
    clique: Ints  #: a clique that holds the variable; -1 - hub for one that is in none
    stride: Ints  #: its stride there
    states: Ints  #: its number of states
    possible: NDArray[np.bool_]  #: no table that is cut down to one entry forbids it


def plan_cliques(scores: FactorScores, instances: Ints, memory_budget: int) -> list[Plan]:
    """Junction trees of some instances, or MemoryBudgetError for the first that does not fit."""
    layout = scores.layout
    known: dict[tuple[object, ...], tuple[ClusterGraph, JunctionTree]] = {}
    plans = []
    for m in instances.tolist():
        cardinalities, table_scopes, hub_scopes = scores.data.views.scopes(m)
        sizes, scopes = tuple(cardinalities.tolist()), (*table_scopes, *hub_scopes)
        first = int(layout.instance_hubs[m])
        fixed = {}
        for v in range(len(sizes)):
            allowed = np.flatnonzero(_hub(scores, first + v) > -np.inf)
            if allowed.size <= 1:
                fixed[v] = int(allowed[0]) if allowed.size else 0
        key = (sizes, scopes, frozenset(fixed))
        if key not in known:
            tree = junction_tree(cardinalities, scopes, evidence=fixed.keys(), memory_budget=memory_budget)
            known[key] = ClusterGraph(cardinalities, tree.cliques, tree.edges), tree
        plans.append(Plan(m, sizes, scopes, fixed, *known[key]))
    return plans


def grouped(plans: Sequence[Plan], memory_budget: int) -> Iterator[list[Plan]]:
    """Plans in turn, in groups whose tables together stay within the budget (or are one instance's)."""
    group: list[Plan] = []
    held = 0
    for plan in plans:
        needed = 8 * plan.tree.table_entries
        if group and held + needed > memory_budget:
            yield group
            group, held = [], 0
        group.append(plan)
        held += needed
    if group:
        yield group


def build_cliques(scores: FactorScores, plans: Sequence[Plan]) -> Cliques:
    """Add up the tables of every clique and pack the trees."""
    structures = [plan.graph.structure for plan in plans]
    layout = build_layout(structures, TablePlan.own(structures))
    entries = np.zeros(layout.n_entries)
    clique: list[int] = []
    stride: list[int] = []
    possible = np.ones(len(plans), dtype=np.bool_)
    for i, plan in enumerate(plans):
        possible[i] = _fill(scores, plan, entries, layout.table_offset[int(layout.instance_clusters[i]) :])
        n_tables = len(plan.scopes) - len(plan.sizes)
        free_hub = {scope[0]: h for h, scope in enumerate(plan.graph.structure.hub_scopes) if len(scope) == 1}
        for v, q in enumerate(plan.tree.assignment[n_tables:]):
            if q < 0:
                clique.append(-1 - (int(layout.instance_hubs[i]) + free_hub[v]))
                stride.append(1)
            else:
                scope = plan.tree.cliques[q]
                clique.append(int(layout.instance_clusters[i]) + q)
                stride.append(prod(plan.sizes[u] for u in scope[scope.index(v) + 1 :]))
    return Cliques(
        plans=plans,
        layout=layout,
        blocks=instance_blocks(layout),
        entries=entries,
        variables=np.concatenate([[0], np.cumsum([len(plan.sizes) for plan in plans])]).astype(np.int64),
        clique=np.array(clique, dtype=np.int64),
        stride=np.array(stride, dtype=np.int64),
        states=np.array([k for plan in plans for k in plan.sizes], dtype=np.int64),
        possible=possible,
    )


def _fill(scores: FactorScores, plan: Plan, entries: Floats, clique_offset: Ints) -> bool:
    """Add the tables of an instance into its cliques; False where an entry that is left alone is forbidden."""
    layout = scores.layout
    first_cluster, first_hub = int(layout.instance_clusters[plan.instance]), int(layout.instance_hubs[plan.instance])
    n_tables = len(plan.scopes) - len(plan.sizes)
    possible = True
    for f, (scope, q) in enumerate(zip(plan.scopes, plan.tree.assignment, strict=True)):
        if f < n_tables:
            source, start = scores.entries, int(layout.table_offset[layout.cluster_table[first_cluster + f]])
        else:
            source, start = scores.hubs, int(layout.hub_offset[first_hub + f - n_tables])
        strides = {}
        stride = 1
        for v in reversed(scope):
            strides[v] = stride
            start += stride * plan.fixed.get(v, 0)
            stride *= plan.sizes[v]
        if q < 0:
            possible = possible and bool(source[start] > -np.inf)
            continue
        clique = plan.tree.cliques[q]
        add_table(
            entries[clique_offset[q] : clique_offset[q + 1]],
            np.array([plan.sizes[v] for v in clique], dtype=np.int64),
            np.array([strides.get(v, 0) for v in clique], dtype=np.int64),
            source,
            start,
        )
    return possible


def _hub(scores: FactorScores, hub: int) -> Floats:
    return scores.hubs[scores.layout.hub_offset[hub] : scores.layout.hub_offset[hub + 1]]
