"""The search for triplets: cycles that correct Bethe's solution most, cut into triplets of variables.

A cycle v_1 ... v_n with pair beliefs b is scored by

    | log sum_x prod_i b(x_i, x_i+1) / b(x_i) | = | log trace(M_1 ... M_n) |,    M_i = b(x_i, x_i+1) / b(x_i)

the correction that the cycle alone makes to Bethe's log Z at a fixed point of belief propagation (Weiss, Neural
Computation 12(1), 2000; region pursuit of Welling, UAI 2004). It is 0 where the last pair is independent of how the
others close the cycle, and infinite where hard pair beliefs cannot all hold at once. For binary variables it is
|log(1 + r_1 ... r_n)| with the pairs' correlations r. So it also finds cycles whose pair beliefs are consistent but
wrong, which a test for violated cycle inequalities alone would pass over.

A longer cycle is cut into triplets by chords, as in Sontag, Meltzer, Globerson, Jaakkola & Weiss (UAI 2008).
Triplets are taken greedily, but only if independent in the cycle space over GF(2) of those taken before: a dependent
one closes a surface, on which the entropy counts variables twice (all four triangles of K4 have numbers that add up to
2; Gelfand & Welling, UAI 2012).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.deadline import Deadline
from bactrian.graphs.packed import PackedData, TableReader

Floats = NDArray[np.float64]
Scope = tuple[int, ...]
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
        cardinalities, scopes, _ = data.views.scopes(m)
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
    cardinalities, scopes, _ = data.views.scopes(instance)
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
        ratio: Floats = np.divide(pair, single, out=np.zeros_like(pair), where=single > 0.0)
        return ratio

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
