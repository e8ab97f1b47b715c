"""Most probable assignments of packed data: exact, by max-product, and by a dual with a bound.

The score of an assignment x is sum_v theta_v(x_v) + sum_a theta_a(x_a); decoding looks for the largest. Each function
takes the scores of a factor graph (:func:`bactrian.inference.factors.factor_scores`) and returns flat arrays over all
variables or instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.assignments import ScoreArrays, score_of
from bactrian.engines.numba.blocks import Blocks, build_blocks
from bactrian.engines.numba.decoding import Assignments, Search, dual_instances, max_product_instances
from bactrian.engines.numba.forest_optimum import Forest, decode_pairs, decode_trees
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Limits
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.graphs.graph import strides
from bactrian.graphs.junction import FactorTree, TreePlanner, clique_layout
from bactrian.graphs.packed import instance_blocks
from bactrian.graphs.ragged import pointer
from bactrian.inference.evidence import contradiction
from bactrian.inference.factors import FactorScores
from bactrian.parallel.threads import Workers

#: Decodes the active instances of a block: (found, active, first, last).
DecodeBlock = Callable[[Assignments, Bools, int, int], None]

#: Scores closer than this, or than this part of an instance's largest score times 1e-3, are ties.
TIE = 1e-9
#: Bytes that the junction tree may take where it only stands in for a method that found nothing allowed.
_RESCUE_BUDGET = 2**28
#: Sweeps of max-product after a dual that is not tight.
_SECOND_SWEEPS = 200
#: Joint states of a pair up to which climbing moves it jointly.
_LARGEST_PAIR = 4096


def certified(found: Assignments) -> Bools:
    """(M,) the bound meets the score: a certificate of optimality."""
    finite = np.isfinite(found.score) & np.isfinite(found.bound)
    gap = np.where(finite, found.bound, 1.0) - np.where(finite, found.score, 0.0)
    return finite & (gap <= TIE * np.maximum(1.0, np.abs(np.where(finite, found.bound, 0.0))))


def decode_exactly(scores: FactorScores, workers: Workers, memory_budget: int) -> Assignments:
    """Max-product on the factor graph where it is a forest, on junction trees elsewhere; ties lexicographically first.

    Raises :class:`~bactrian.graphs.elimination.MemoryBudgetError` where a junction tree would not fit.
    """
    loopy = np.flatnonzero(~scores.layout.instance_is_tree)
    plans = _plan_cliques(scores, loopy, memory_budget)
    found = _decode_forests(scores, workers)
    for group in _grouped(plans, memory_budget):
        _decode_cliques(scores, group, found, workers)
    return found


def decode_max_product(
    scores: FactorScores,
    workers: Workers,
    *,
    tolerance: float,
    max_iterations: int,
    damping: float,
    memory_budget: int,
) -> Assignments:
    """Max-product on loops (Wainwright, Jaakkola & Willsky, Statistics and Computing 14, 2004), exact on forests.

    Messages are passed sequentially with damping and rounded to an assignment by conditioning, one variable after the
    other, and climbing.
    """
    run = _max_product(scores, tolerance, max_iterations, damping)
    return _decode_loopy(scores, workers, run, memory_budget)


def decode_dual(
    scores: FactorScores, workers: Workers, *, tolerance: float, max_iterations: int, memory_budget: int
) -> Assignments:
    """Sequential reweighted message passing: TRW-S (Kolmogorov, PAMI 28(10), 2006) carried over to larger clusters.

    The bound is the dual of the local linear-programming relaxation, as in MPLP (Globerson & Jaakkola, NIPS 2007); it
    never rises. Clusters of three or more variables follow Kolmogorov, PAMI 37(5), 2015. Forests are decoded exactly.
    Where no assignment meets the bound, max-product looks for a better one.
    """
    limits, parts = Limits(tolerance, max_iterations), _search_parts(scores)

    def run(found: Assignments, active: Bools, first: int, last: int) -> None:
        dual_instances(Search(*parts, found, active), limits, first, last)

    found = _decode_loopy(scores, workers, run, memory_budget)
    unsettled = ~certified(found) & (found.bound > -np.inf)
    if unsettled.any():
        n = scores.layout.n_instances
        again = Assignments(
            found.states, found.score, np.full(n, np.inf), np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
        )
        second = _max_product(scores, 1e-6, min(max_iterations, _SECOND_SWEEPS), 0.3)
        workers.run(lambda _, first, last: second(again, unsettled, first, last), scores.data.blocks)
        np.minimum(found.bound, again.bound, out=found.bound)
        np.maximum(found.bound, found.score, out=found.bound)
    return found


def find_allowed(
    scores: FactorScores, workers: Workers, many: bool, evidence: Sequence[Mapping[int, int]]
) -> Assignments:
    """Assignments that are allowed, where max-product or a small junction tree finds them.

    Raises the error for contradictory evidence where there is proof that an instance has none.
    """
    run = _max_product(scores, tolerance=1e-6, max_iterations=100, damping=0.3)
    found = _decode_loopy(scores, workers, run, _RESCUE_BUDGET)
    for m in np.flatnonzero(found.bound == -np.inf):
        raise contradiction(int(m), many, evidence)
    return found


def score_assignments(scores: FactorScores, states: Ints) -> Floats:
    """(M,) joint log scores of given states (H,)."""
    return np.array([_score(scores, states, m) for m in range(scores.layout.n_instances)])


def _decode_forests(scores: FactorScores, workers: Workers) -> Assignments:
    """Decode the instances whose factor graphs are forests; the others are left at state 0 and score -inf."""
    layout = scores.layout
    n = layout.n_instances
    states = np.zeros(layout.n_hubs, dtype=np.int64)
    feasible = np.zeros(n, dtype=np.bool_)
    hubs = np.arange(layout.n_hubs)
    cluster, stride = -1 - hubs, np.ones_like(hubs)
    linked = np.flatnonzero(np.diff(layout.hub_links))
    cluster[linked] = layout.link_cluster[layout.hub_links[linked]]
    stride[linked] = scores.strides[layout.hub_links[linked]]
    tolerance = _tie_tolerances(scores)
    forest = Forest(
        layout, scores.entries, scores.hubs, np.zeros(layout.n_link_states), tolerance, layout.instance_hubs, cluster,
        stride, np.diff(layout.hub_offset),
    )  # fmt: skip

    def decode(_: int, first: int, last: int) -> None:
        decode_pairs(layout, scores.entries, scores.hubs, tolerance, states, feasible, first, last)
        active = layout.instance_is_tree & ~feasible
        if active[first:last].any():
            decode_trees(forest, states, feasible, active, first, last)

    workers.run(decode, scores.data.blocks)
    score = np.where(feasible, score_assignments(scores, states), -np.inf)
    return Assignments(states, score, score.copy(), np.ones(n, dtype=np.bool_), np.full(n, 2))


@dataclass(frozen=True)
class _InstancePlan:
    """The junction tree of one instance without the variables that have a single allowed state."""

    instance: int
    fixed: dict[int, int]  #: states of those variables
    factors: FactorTree


def _plan_cliques(scores: FactorScores, instances: Ints, memory_budget: int) -> list[_InstancePlan]:
    """Junction trees of some instances, or MemoryBudgetError for the first that does not fit.

    Evidence leaves a variable one state, as does a cardinality of 1: such variables are in no clique.
    """
    layout = scores.layout
    planner = TreePlanner(scores.data, memory_budget)
    plans = []
    for m in instances.tolist():
        fixed = {}
        for v, hub in enumerate(range(*layout.instance_hubs[m : m + 2].tolist())):
            allowed = np.flatnonzero(scores.hubs[layout.hub_offset[hub] : layout.hub_offset[hub + 1]] > -np.inf)
            if allowed.size <= 1:
                fixed[v] = int(allowed[0]) if allowed.size else 0
        plans.append(_InstancePlan(m, fixed, planner.tree(m, fixed.keys())))
    return plans


def _grouped(plans: Sequence[_InstancePlan], memory_budget: int) -> Iterator[list[_InstancePlan]]:
    """Plans in turn, in groups whose tables together stay within the budget (or are one instance's)."""
    group: list[_InstancePlan] = []
    held = 0
    for plan in plans:
        needed = 8 * plan.factors.tree.table_entries
        if group and held + needed > memory_budget:
            yield group
            group, held = [], 0
        group.append(plan)
        held += needed
    if group:
        yield group


def _fill(scores: FactorScores, plan: _InstancePlan, entries: Floats, clique_offset: Ints) -> bool:
    """Add the tables of an instance into its cliques; False where an entry that is left alone is forbidden."""
    layout, factors = scores.layout, plan.factors
    tables = layout.cluster_table[slice(*layout.instance_clusters[plan.instance : plan.instance + 2])]
    hubs = layout.hub_offset[slice(layout.instance_hubs[plan.instance], layout.instance_hubs[plan.instance + 1] + 1)]
    sources = [
        scores.entries[a:b] for a, b in zip(layout.table_offset[tables], layout.table_offset[tables + 1], strict=True)
    ]
    sources += [scores.hubs[a:b] for a, b in pairwise(hubs.tolist())]
    bounds = clique_offset[: len(factors.tree.cliques) + 1].tolist()
    cliques = [entries[a:b].reshape(factors.shape(q)) for q, (a, b) in enumerate(pairwise(bounds))]
    possible = True
    for f, (source, q) in enumerate(zip(sources, factors.tree.assignment, strict=True)):
        part = factors.spread(f, source, plan.fixed)
        if q >= 0:
            cliques[q] += part
        else:
            possible = possible and bool(part > -np.inf)
    return possible


def _decode_cliques(scores: FactorScores, plans: Sequence[_InstancePlan], found: Assignments, workers: Workers) -> None:
    """Add up the tables of every clique, pack the trees, whose hubs are the sepsets, and decode them into ``found``."""
    tree = clique_layout([plan.factors for plan in plans])
    entries = np.zeros(tree.n_entries)
    clique: list[int] = []  # one that holds the variable; -1 - hub for a variable that is in none
    stride: list[int] = []  # of the variable there
    possible = np.ones(len(plans), dtype=np.bool_)  # no table that is cut down to one entry forbids it
    for i, plan in enumerate(plans):
        factors, cliques = plan.factors, plan.factors.tree.cliques
        possible[i] = _fill(scores, plan, entries, tree.table_offset[int(tree.instance_clusters[i]) :])
        inside = [strides(scope, factors.sizes) for scope in cliques]
        free = np.setdiff1d(np.arange(len(factors.sizes)), factors.graph.scopes.values).tolist()
        free_hub = {v: len(factors.tree.edges) + h for h, v in enumerate(free)}  # after the sepsets
        for v, q in enumerate(factors.tree.assignment[factors.n_tables :]):
            if q < 0:
                clique.append(-1 - (int(tree.instance_hubs[i]) + free_hub[v]))
                stride.append(1)
            else:
                clique.append(int(tree.instance_clusters[i]) + q)
                stride.append(inside[q][v])
    variables = pointer([len(plan.factors.sizes) for plan in plans])
    states = np.zeros(len(clique), dtype=np.int64)
    feasible = np.zeros(tree.n_instances, dtype=np.bool_)
    forest = Forest(
        tree, entries, np.zeros(tree.n_hub_states), np.zeros(tree.n_link_states),
        _tie_tolerances(scores)[[plan.instance for plan in plans]], variables, np.array(clique, dtype=np.int64),
        np.array(stride, dtype=np.int64), np.array([k for plan in plans for k in plan.factors.sizes], dtype=np.int64),
    )  # fmt: skip
    workers.run(
        lambda _, first, last: decode_trees(forest, states, feasible, possible, first, last), instance_blocks(tree)
    )
    hubs = scores.layout.instance_hubs
    for i, plan in enumerate(plans):
        m = plan.instance
        assignment = states[variables[i] : variables[i + 1]]
        assignment[list(plan.fixed)] = list(plan.fixed.values())
        found.states[hubs[m] : hubs[m + 1]] = assignment
        found.score[m] = found.bound[m] = _score(scores, found.states, m) if feasible[i] else -np.inf
        found.converged[m] = True
        found.iterations[m] = 2


def _decode_loopy(scores: FactorScores, workers: Workers, run: DecodeBlock, memory_budget: int) -> Assignments:
    """Forests exactly, the other instances by ``run``; junction trees where those were given or nothing else helps."""
    layout = scores.layout
    found = _decode_forests(scores, workers)
    if layout.instance_is_tree.all():
        return found
    active = ~layout.instance_is_tree
    found.bound[active] = np.inf
    found.converged[active] = False
    found.iterations[active] = 0
    _try_cliques(scores, found, active & scores.cluster_trees, workers, memory_budget)
    active &= ~found.converged
    workers.run(lambda _, first, last: run(found, active, first, last), scores.data.blocks)
    failed = active & (found.score == -np.inf) & (found.bound > -np.inf)
    found.converged[failed] = False
    _try_cliques(scores, found, failed, workers, min(memory_budget, _RESCUE_BUDGET))
    np.maximum(found.bound, found.score, out=found.bound)
    return found


def _try_cliques(scores: FactorScores, found: Assignments, chosen: Bools, workers: Workers, memory_budget: int) -> None:
    """Decode the chosen instances by junction trees where those fit in the budget."""
    for m in np.flatnonzero(chosen):
        try:
            plans = _plan_cliques(scores, np.array([m]), memory_budget)
        except MemoryBudgetError:
            continue
        _decode_cliques(scores, plans, found, workers)


def _search_parts(scores: FactorScores) -> tuple[Layout, ScoreArrays, Blocks, Floats]:
    """The first fields of a search, with multipliers at 0."""
    layout = scores.layout
    return layout, scores.arrays, build_blocks(layout, scores.hubs, _LARGEST_PAIR), np.zeros(layout.n_link_states)


def _max_product(scores: FactorScores, tolerance: float, max_iterations: int, damping: float) -> DecodeBlock:
    limits, parts = Limits(tolerance, max_iterations, damping=damping), _search_parts(scores)

    def run(found: Assignments, active: Bools, first: int, last: int) -> None:
        max_product_instances(Search(*parts, found, active), limits, first, last)

    return run


def _score(scores: FactorScores, states: Ints, m: int) -> float:
    return float(score_of(scores.layout, scores.arrays, states, m))


def _tie_tolerances(scores: FactorScores) -> Floats:
    """(M,) difference of scores below which two assignments of an instance tie."""
    layout = scores.layout
    tables, hubs = (
        np.maximum.reduceat(np.where(np.isfinite(own), np.abs(own), 0.0), offset[:-1]) if own.size else np.zeros(0)
        for own, offset in ((scores.entries, layout.table_offset), (scores.hubs, layout.hub_offset))
    )
    largest = np.ones(layout.n_instances)
    for bounds, sizes in ((layout.instance_clusters, tables[layout.cluster_table]), (layout.instance_hubs, hubs)):
        np.maximum.at(largest, np.repeat(np.arange(layout.n_instances), np.diff(bounds)), sizes)
    return TIE * np.maximum(1.0, 1e-3 * largest)
