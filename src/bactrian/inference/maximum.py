"""Most probable assignments of packed data: exact, by max-product, and by a dual with a bound.

The score of an assignment x is sum_v theta_v(x_v) + sum_a theta_a(x_a); decoding looks for the largest. Each function
takes the scores of a factor graph (:func:`bactrian.inference.factors.factor_scores`) and returns flat arrays over all
variables or instances.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.assignments import ScoreArrays, score_of
from bactrian.engines.numba.decoding import (
    Assignments,
    Forest,
    Search,
    decode_trees,
    search_instances,
)
from bactrian.engines.numba.neighbourhoods import merge, new_part, search_neighbourhoods
from bactrian.engines.numba.orders import build_blocks
from bactrian.engines.numba.tables import Limits
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.graphs.graph import strides
from bactrian.graphs.junction import FactorTree, TreePlanner, clique_layout
from bactrian.graphs.packed import instance_blocks
from bactrian.graphs.ragged import pointer
from bactrian.inference.factors import FactorScores
from bactrian.inference.problem import contradiction
from bactrian.parallel.threads import Deadline, Workers

#: Scores closer than this, or than this part of an instance's largest score times 1e-3, are ties.
TIE = 1e-9
#: Bytes that the junction tree may take where it only stands in for a method that found nothing allowed.
_RESCUE_BUDGET = 2**28
#: Sweeps of max-product after a dual that is not tight.
_SECOND_SWEEPS = 200
#: Bytes of clique tables that are worth a second of the time that is left, and the part of it for planning them.
_BYTES_PER_SECOND, _PLANNED = 4e7, 0.15
#: Local search: log2 of the entries of a table at first and later, variables that are looked at together, and
#: neighbourhoods in a row that find nothing better before they grow.
_NARROW, _WIDE, _LARGEST_PART, _PATIENCE = 6, 18, 2048, 10
#: What a forbidden entry costs in a network of toulbar2, whose costs are finite.
_FORBIDDEN = 1e8
#: Joint states of a pair up to which climbing moves it jointly.
_LARGEST_PAIR = 4096


def certified(found: Assignments) -> Bools:
    """(M,) the bound meets the score: a certificate of optimality."""
    finite = np.isfinite(found.score) & np.isfinite(found.bound)
    gap = np.where(finite, found.bound, 1.0) - np.where(finite, found.score, 0.0)
    return finite & (gap <= TIE * np.maximum(1.0, np.abs(np.where(finite, found.bound, 0.0))))


def decode_exactly(scores: FactorScores, workers: Workers, memory_budget: int) -> Assignments:
    """Max-product on the factor graph where it is a forest, on junction trees elsewhere.

    Raises :class:`~bactrian.graphs.elimination.MemoryBudgetError` where a junction tree would not fit.
    """
    found, active = _unsolved(scores, workers)
    _try_cliques(scores, found, active, workers, memory_budget, where_they_fit=False)
    return found


def decode_max_product(
    scores: FactorScores, workers: Workers, *, tolerance: float, max_iterations: int, damping: float,
    memory_budget: int, late: Bools,
) -> Assignments:  # fmt: skip
    """Max-product on loops (Wainwright, Jaakkola & Willsky, Statistics and Computing 14, 2004), exact on forests.

    Messages are passed sequentially with damping and rounded to an assignment by conditioning, one variable after the
    other, and climbing.
    """
    limits = Limits(tolerance, max_iterations, damping=damping)
    return _decode_loopy(scores, workers, limits, late, memory_budget)


def decode_dual(
    scores: FactorScores, workers: Workers, *, tolerance: float, max_iterations: int, memory_budget: int, late: Bools
) -> Assignments:
    """Sequential reweighted message passing: TRW-S (Kolmogorov, PAMI 28(10), 2006) carried over to larger clusters.

    The bound is the dual of the local linear-programming relaxation, as in MPLP (Globerson & Jaakkola, NIPS 2007); it
    never rises. Clusters of three or more variables follow Kolmogorov, PAMI 37(5), 2015. Forests are decoded exactly.
    Where no assignment meets the bound, max-product looks for a better one.
    """
    found = _decode_loopy(scores, workers, Limits(tolerance, max_iterations), late, memory_budget, dual=True)
    unsettled = ~certified(found) & (found.bound > -np.inf)
    if unsettled.any():
        limits = Limits(1e-6, min(max_iterations, _SECOND_SWEEPS), damping=0.3)
        _follow(scores, found, unsettled, workers, limits, late)
    return found


def _follow(
    scores: FactorScores, found: Assignments, active: Bools, workers: Workers, limits: Limits, late: Bools, *,
    dual: bool = False,
) -> None:  # fmt: skip
    """Let another method look for better assignments; what is said of the first stays, and the bounds of both count."""
    n = scores.layout.n_instances
    again = found._replace(
        bound=np.full(n, np.inf), converged=np.zeros(n, dtype=np.bool_), iterations=np.zeros(n, dtype=np.int64)
    )
    _search(scores, again, active, workers, limits, late, dual=dual)
    np.minimum(found.bound, again.bound, out=found.bound)
    np.maximum(found.bound, found.score, out=found.bound)


def decode_auto(
    scores: FactorScores, workers: Workers, deadline: Deadline, *, max_iterations: int, memory_budget: int,
    tell: Callable[[Assignments, int], object],
) -> Assignments:  # fmt: skip
    """Exact where a junction tree fits and is worth its time, else the dual, max-product and local search till the end.

    ``tell`` is told of the assignments found so far, and says whether to stop; so does an interrupt.
    """
    found, active = _unsolved(scores, workers)
    left = deadline.left
    affordable = memory_budget if left is None else min(memory_budget, int(_BYTES_PER_SECOND * left))
    try:
        if active.any():
            planned = Deadline(None if left is None else _PLANNED * left)
            _try_cliques(scores, found, active, workers, affordable, late=lambda: planned.has_passed)
        active &= ~found.converged
        for share, dual in ((0.1, True), (0.15, False)):
            if active.any():
                with Deadline(None if deadline.left is None else share * deadline.left) as own:
                    limits = Limits(1e-7, max_iterations, damping=0.0 if dual else 0.3)
                    _follow(scores, found, active, workers, limits, own.late, dual=dual)
                active &= ~certified(found) & (found.bound > -np.inf)
        if active.any() and find_spec("pytoulbar2") is not None:
            for m in np.flatnonzero(active).tolist():
                _ask_toulbar2(scores, found, m, 60.0 if deadline.left is None else 0.25 * deadline.left / active.sum())
            active &= ~certified(found)
        if active.any():
            search = _LocalSearch(scores, found.states, np.flatnonzero(active).tolist(), deadline)
            search.run(found, max_iterations, tell)
    except KeyboardInterrupt:  # what was found so far stands
        pass
    found.converged[:] |= certified(found) | (found.bound == -np.inf)
    return found


#: What a process with toulbar2 does: in this one it would take over interrupts, and hold the lock of the interpreter.
_TOULBAR2 = """
import sys, numpy as np
from pytoulbar2 import CFN
given = dict(np.load(sys.argv[1]))
network = CFN(float(given["above"]), resolution=6, verbose=-1)
for v, size in enumerate(given["sizes"].tolist()):
    network.AddVariable(f"x{v}", range(size))
scopes, entries = given["scope_start"].tolist(), given["entry_start"].tolist()
for f in range(len(scopes) - 1):
    scope = given["scopes"][scopes[f] : scopes[f + 1]].tolist()
    network.AddFunction(scope, given["costs"][entries[f] : entries[f + 1]].tolist())
network.Solve(timeLimit=int(sys.argv[2]))
found = network.GetSolutions()
print(int(network.GetDDualBound() >= network.GetUB() - 2e-6), *(found[-1][1] if found else []))
"""


def _ask_toulbar2(scores: FactorScores, found: Assignments, m: int, seconds: float) -> None:
    """Let toulbar2 look for a better assignment of an instance, or prove that there is none, to six decimals a score.

    Hurley et al., Constraints 21(3), 2016.
    """
    if seconds < 1.0:
        return
    layout, hubs = scores.layout, range(*scores.layout.instance_hubs[m : m + 2])
    scopes, tables = [[v] for v in range(len(hubs))], [scores.hubs[slice(*layout.hub_offset[h : h + 2])] for h in hubs]
    for cluster in range(*layout.instance_clusters[m : m + 2]):
        links = layout.cluster_link[slice(*layout.cluster_links[cluster : cluster + 2])]
        scopes.append((layout.link_hub[links] - hubs[0]).tolist())
        table = layout.cluster_table[cluster]
        tables.append(scores.entries[slice(*layout.table_offset[table : table + 2])])
    given: dict[str, Any] = {
        "above": 1e-6 - found.score[m] if found.score[m] > -np.inf else _FORBIDDEN / 10.0,
        "sizes": [table.size for table in tables[: len(hubs)]],
        "scopes": np.concatenate(scopes),
        "scope_start": pointer([len(scope) for scope in scopes]),
        "costs": np.minimum(-np.concatenate(tables), _FORBIDDEN),
        "entry_start": pointer([table.size for table in tables]),
    }
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "network.npz")
        np.savez(path, **given)
        command = [sys.executable, "-c", _TOULBAR2, path, str(int(seconds))]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 0.5, check=False).stdout
        except subprocess.TimeoutExpired:
            return
    words = said.splitlines()[-1].split() if said else []
    if len(words) > 1:
        trial = found.states.copy()
        trial[hubs[0] : hubs[-1] + 1] = [int(word) for word in words[1:]]
        score = _score(scores, trial, m)
        if score > found.score[m]:
            found.states[:], found.score[m] = trial, score
    if words and words[0] == "1" and found.score[m] > -np.inf:
        found.bound[m] = found.score[m]


@dataclass
class _Pace:
    """How an instance is searched now."""

    bound: float  #: log2 of the entries of a table of its neighbourhoods
    failures: int = 0  #: neighbourhoods in a row that found nothing better


class _LocalSearch:
    """Large neighbourhoods, wider and wider; where none helps any more, the assignment is heated and cooled again.

    Heated, a neighbourhood is set to its best at scores with Gumbel noise, which draws from about the distribution at
    that temperature (perturb and MAP, Papandreou & Yuille, ICCV 2011); simulated annealing: Kirkpatrick, Gelatt &
    Vecchi, Science 220, 1983. What comes of it is merged with what was there, part by part. Forbidden entries have a
    finite penalty here that outweighs all else.
    """

    def __init__(self, scores: FactorScores, states: Ints, instances: Sequence[int], deadline: Deadline) -> None:
        layout = self._layout = scores.layout
        self._given, self._deadline, self._late = scores, deadline, deadline.late
        self._states, self._random = states.copy(), np.random.default_rng(0)
        entries, hubs = (np.where(own > -np.inf, own, 0.0) for own in (scores.entries, scores.hubs))
        tables = layout.table_offset[:-1]
        ranges = np.maximum.reduceat(entries, tables) - np.minimum.reduceat(entries, tables)
        penalty = -10.0 * (1.0 + ranges[layout.cluster_table].sum() + np.abs(hubs).sum()) + entries.min()
        self._scores = ScoreArrays(
            np.maximum(scores.entries, penalty), np.maximum(scores.hubs, penalty), scores.strides
        )
        self._movable = np.add.reduceat(scores.hubs > -np.inf, layout.hub_offset[:-1]) > 1
        self._scale = {
            m: float(ranges[layout.cluster_table[slice(*layout.instance_clusters[m : m + 2])]].mean())
            for m in instances
        }
        sizes = np.log2(np.diff(layout.hub_offset))
        least = {m: float(sizes[slice(*layout.instance_hubs[m : m + 2])].max()) for m in instances}
        self._paces = {m: _Pace(max(_NARROW, least[m] + 1.0)) for m in instances}
        self._widest = {m: max(_WIDE, least[m] + 2.0) for m in instances}
        most = max(layout.instance_hubs[m + 1] - layout.instance_hubs[m] for m in instances)
        self._part = new_part(int(most), int(min(most, _LARGEST_PART)))

    def run(self, found: Assignments, max_rounds: int, tell: Callable[[Assignments, int], object]) -> None:
        """Rounds on all instances in turn, until a limit or a certificate."""
        number, hubs = 0, self._layout.instance_hubs
        while self._paces and number < max_rounds and not self._deadline.has_passed and not tell(found, number):
            number += 1
            for m in list(self._paces):
                self._round(m)
                score, own = _score(self._given, self._states, m), slice(*hubs[m : m + 2])
                found.iterations[m] += 1
                if score > found.score[m]:
                    found.states[own], found.score[m] = self._states[own], score
                    found.bound[m] = max(found.bound[m], score)
                    if certified(found)[m]:
                        del self._paces[m]
                if self._deadline.has_passed:
                    break

    def _round(self, m: int) -> None:
        """A neighbourhood, or, where these have long found nothing better, one heating; the score never falls."""
        pace, before = self._paces[m], self._value(self._states, m)
        if pace.failures < _PATIENCE:
            self._improve(self._states, m, pace.bound)
        else:
            self._heat(m)
        pace.failures += 1
        if self._value(self._states, m) > before + 1e-9:
            pace.failures = 0
        elif pace.failures == _PATIENCE and pace.bound < self._widest[m]:
            pace.bound, pace.failures = pace.bound + 1.0, 0

    def _heat(self, m: int) -> None:
        random = self._random
        states = slice(*self._layout.hub_offset[self._layout.instance_hubs[m : m + 2]])
        trial, noisy = self._states.copy(), self._scores.hubs.copy()
        steps = int(10 * 2.0 ** random.uniform(0.0, 5.0))
        bound = self._widest[m] - float(random.integers(6, _WIDE - _NARROW + 1))
        heat = self._scale[m] * 10.0 ** random.uniform(-0.5, 0.5)
        for step in range(steps):
            noise = random.gumbel(size=states.stop - states.start)
            noisy[states] = self._scores.hubs[states] + heat * 0.01 ** (step / steps) * noise
            self._improve(trial, m, bound, self._scores._replace(hubs=noisy))
        value, last = self._value(trial, m), -np.inf
        while value > last + 1e-9 and not self._late[0]:
            last = value
            self._improve(trial, m, bound + 4.0, tries=4)
            value = self._value(trial, m)
        merge(self._layout, self._scores, self._states, trial, m)

    def _improve(
        self, states: Ints, m: int, bound: float, scores: ScoreArrays | None = None, *, tries: int = 1
    ) -> None:
        search_neighbourhoods(
            self._layout, scores or self._scores, self._movable, states, m, self._part, float(bound), tries,
            self._random, self._late,
        )  # fmt: skip

    def _value(self, states: Ints, m: int) -> float:
        return float(score_of(self._layout, self._scores, states, m))


def find_allowed(
    scores: FactorScores, workers: Workers, many: bool, evidence: Sequence[Mapping[int, int]]
) -> Assignments:
    """Assignments that are allowed, where max-product or a small junction tree finds them.

    Raises the error for contradictory evidence where there is proof that an instance has none.
    """
    found = decode_max_product(
        scores, workers, tolerance=1e-6, max_iterations=100, damping=0.3, memory_budget=_RESCUE_BUDGET,
        late=np.zeros(1, dtype=np.bool_),
    )  # fmt: skip
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
        decode_trees(forest, states, feasible, layout.instance_is_tree, first, last)

    workers.run(decode, scores.data.blocks)
    score = np.where(feasible, score_assignments(scores, states), -np.inf)
    return Assignments(states, score, score.copy(), np.ones(n, dtype=np.bool_), np.full(n, 2))


def _unsolved(scores: FactorScores, workers: Workers) -> tuple[Assignments, Bools]:
    """Forests decoded, and (M,) the other instances, of which nothing is known yet."""
    found, active = _decode_forests(scores, workers), ~scores.layout.instance_is_tree
    found.bound[active], found.converged[active], found.iterations[active] = np.inf, False, 0
    return found, active


@dataclass(frozen=True)
class _InstancePlan:
    """The junction tree of one instance without the variables that have a single allowed state."""

    instance: int
    fixed: dict[int, int]  #: states of those variables
    factors: FactorTree


def _plan_cliques(
    scores: FactorScores, instances: Ints, memory_budget: int, where_they_fit: bool, options: Mapping[str, Any]
) -> list[_InstancePlan]:
    """Junction trees; evidence leaves a variable one state, as does a cardinality of 1: such are in no clique."""
    layout = scores.layout
    planner = TreePlanner(scores.data, memory_budget, **options)
    plans = []
    for m in instances.tolist():
        fixed = {}
        for v, hub in enumerate(range(*layout.instance_hubs[m : m + 2].tolist())):
            allowed = np.flatnonzero(scores.hubs[layout.hub_offset[hub] : layout.hub_offset[hub + 1]] > -np.inf)
            if allowed.size <= 1:
                fixed[v] = int(allowed[0]) if allowed.size else 0
        try:
            plans.append(_InstancePlan(m, fixed, planner.tree(m, fixed.keys())))
        except MemoryBudgetError:
            if not where_they_fit:
                raise
    return plans


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


def _decode_loopy(
    scores: FactorScores, workers: Workers, limits: Limits, late: Bools, memory_budget: int, *, dual: bool = False
) -> Assignments:
    """Forests exactly, the others by sweeps of messages, or junction trees where those were given or nothing helps."""
    found, active = _unsolved(scores, workers)
    if not active.any():
        return found
    _try_cliques(scores, found, active & scores.cluster_trees, workers, memory_budget)
    active &= ~found.converged
    _search(scores, found, active, workers, limits, late, dual=dual)
    failed = active & (found.score == -np.inf) & (found.bound > -np.inf)
    found.converged[failed] = False
    _try_cliques(scores, found, failed, workers, min(memory_budget, _RESCUE_BUDGET))
    np.maximum(found.bound, found.score, out=found.bound)
    return found


def _try_cliques(
    scores: FactorScores, found: Assignments, chosen: Bools, workers: Workers, memory_budget: int, *,
    where_they_fit: bool = True, **options: Any,
) -> None:  # fmt: skip
    """Decode the chosen instances by junction trees, or those that fit: MemoryBudgetError elsewhere.

    They come in groups whose tables together stay within the budget (or are one instance's); ``options`` of planning.
    """
    group: list[_InstancePlan] = []
    held = 0
    for plan in _plan_cliques(scores, np.flatnonzero(chosen), memory_budget, where_they_fit, options):
        needed = 8 * plan.factors.tree.table_entries
        if group and held + needed > memory_budget:
            _decode_cliques(scores, group, found, workers)
            group, held = [], 0
        group.append(plan)
        held += needed
    if group:
        _decode_cliques(scores, group, found, workers)


def _search(
    scores: FactorScores, found: Assignments, active: Bools, workers: Workers, limits: Limits, late: Bools, *,
    dual: bool,
) -> None:  # fmt: skip
    """Sweeps of messages, all at 0 at first, within ``limits``."""
    layout = scores.layout
    blocks, messages = build_blocks(layout, scores.hubs, _LARGEST_PAIR), np.zeros(layout.n_link_states)
    search = Search(layout, scores.arrays, blocks, messages, found, active, late)
    workers.run(lambda _, first, last: search_instances(search, limits, dual, first, last), scores.data.blocks)


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
