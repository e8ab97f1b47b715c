"""Junction trees by greedy variable elimination.

Eliminating a variable joins its remaining neighbours to each other; the sets {v} and its neighbours met on
the way triangulate the graph, and the maximal ones are the cliques of a junction tree: a spanning forest
with the running-intersection property (Lauritzen & Spiegelhalter, J. R. Stat. Soc. B 50(2), 1988; Blair &
Peyton, *An introduction to chordal graphs and clique trees*, 1993). The best order is NP-hard to find
(Arnborg, Corneil & Proskurowski, SIAM J. Alg. Disc. Meth. 8(2), 1987), so greedy orders are drawn several
times with randomness, and the one whose cliques have the fewest table entries wins (Kask, Gelfand, Otten &
Dechter, AAAI 2011). With d the number of neighbours that v has left, the next variable is the one with least

- ``min-fill``: number f of edges that eliminating v adds (Kjaerulff, Aalborg University R-90-09, 1990);
- ``min-mean-fill``: f / (d + 1)^1.5, after the mean local fill f / d of Ng & Raghavan, SIAM J. Matrix Anal.
  20(4), 1999; the steeper power gives smaller cliques on graphs as they occur in inference;
- ``min-weight``: product of the cardinalities of v and its neighbours (Kjaerulff 1990).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log10, prod

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ORDERS = ("min-fill", "min-mean-fill", "min-weight")

_BYTES_PER_ENTRY = 8
_JITTER = 0.1  # spread of the log-normal factor that random draws of min-mean-fill put on a variable's cost
_ENTRIES_PER_STEP = 32  # table entries that inference handles in the time of one step of an elimination
_MOST_STEPS = 2**24  # a few seconds, for large models whose tables would cost more still
_HOPELESS = 24.0  # log2 of the factor over the budget that no further draw is expected to make good


class MemoryBudgetError(ValueError):
    """The clique tables of the best junction tree found would not fit in the memory budget.

    Attributes
    ----------
    width, needed, budget
        Width of the tree, bytes of its tables, and bytes allowed.
    """

    def __init__(self, width: int, needed: int, budget: int) -> None:
        super().__init__(width, needed, budget)
        self.width, self.needed, self.budget = width, needed, budget

    def __str__(self) -> str:
        """Name width, bytes and budget in one line."""
        return (
            f"memory_budget: the best junction tree found has width {self.width} and clique tables of "
            f"{_readable(self.needed)}; expected at most {_readable(self.budget)}"
        )


@dataclass(frozen=True)
class JunctionTree:
    """Cliques that cover every scope, and the forest that joins them.

    Attributes
    ----------
    cliques
        Maximal cliques, each a sorted tuple of variables; evidence variables are in none.
    edges
        ``(child, parent, sepset)`` with ``sepset`` the sorted intersection of the two cliques. The edges are
        in collect order: those that lead into a clique precede the one that leaves it. There is one tree
        per connected component; components are not joined.
    width
        Size of the largest clique, less one (-1 where there is no clique).
    table_entries
        Sum over the cliques of the number of joint states.
    assignment
        For each scope given, the index of a clique that contains what evidence leaves of it; -1 where
        nothing is left.
    """

    cliques: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int, tuple[int, ...]], ...]
    width: int
    table_entries: int
    assignment: tuple[int, ...]


def junction_tree(
    cardinalities: ArrayLike,
    scopes: Sequence[Sequence[int]],
    *,
    evidence: Iterable[int] = frozenset(),
    orders: Sequence[str] = ORDERS,
    restarts: int = 64,
    seed: int = 0,
    memory_budget: int = 4 * 2**30,
) -> JunctionTree:
    """Triangulate by the best of several elimination orders and return the junction tree.

    Parameters
    ----------
    cardinalities
        (n,) number of states of each variable.
    scopes
        Sets of variables, each of which some clique must contain. A variable in no scope has a clique of
        its own.
    evidence
        Observed variables; they are taken out of every scope before the first elimination.
    orders
        Greedy rules to draw, of ``"min-fill"``, ``"min-mean-fill"`` and ``"min-weight"``.
    restarts
        How often each rule is drawn at most. The first draw breaks ties by the variable's number, the others
        at random. No more are drawn once an order adds no edge (the graph is chordal, the tree optimal), or
        once further search would cost more time than the tables of the best tree.
    seed
        Seed of the random draws.
    memory_budget
        Bytes that the clique tables may take together, at 8 bytes an entry.

    Returns
    -------
    JunctionTree
        The tree of the order with the fewest table entries; the first such order where several tie.

    Raises
    ------
    MemoryBudgetError
        Where the best tree found needs more than ``memory_budget``.
    """
    sizes = _checked_cardinalities(cardinalities)
    flat, offsets = _checked_scopes(scopes, sizes.size)
    free = _free_variables(evidence, sizes.size)
    _check_options(orders, restarts, memory_budget)
    log2_budget = float(np.log2(max(memory_budget, 1) / _BYTES_PER_ENTRY))
    best = _best_elimination(sizes, flat, offsets, free, orders, restarts, seed, log2_budget)
    tree = _build(sizes, flat, offsets, free, *best)
    needed = _BYTES_PER_ENTRY * tree.table_entries
    if needed > memory_budget:
        raise MemoryBudgetError(tree.width, needed, int(memory_budget))
    return tree


def _best_elimination(
    sizes: Ints,
    flat: Ints,
    offsets: Ints,
    free: NDArray[np.bool_],
    orders: Sequence[str],
    restarts: int,
    seed: int,
    log2_budget: float,
) -> tuple[Ints, Ints, Ints]:
    """Order, bag offsets and bags of the elimination with the fewest entries in its maximal cliques."""
    start, degree, pool = _adjacency(flat, offsets, free)
    fill = _initial_fill(start, degree, pool)
    # Multiples of 2^-20 add and subtract without rounding, so that equal weights stay equal.
    logs = np.rint(np.log2(sizes) * 2**20) / 2**20
    generator = np.random.default_rng(seed)
    n = sizes.size
    rank, jitter = np.arange(n), np.ones(n)
    best, fewest, steps = None, np.inf, 0
    for restart in range(restarts):
        for rule in orders:
            if restart > 0:
                rank, jitter = generator.permutation(n), np.exp(_JITTER * generator.standard_normal(n))
            order, bag_offsets, bags, added = _eliminate(
                start, degree, pool, fill, free, logs, ORDERS.index(rule), rank, jitter, fewest
            )
            steps += order.size + added
            if order.size < np.count_nonzero(free):
                continue
            _, first_of, _ = _supernodes(order, bag_offsets, bags, n)
            total = _log2_entries(logs, order, bag_offsets, bags, first_of)
            if best is None or total < fewest:
                best, fewest = (order, bag_offsets, bags), total
            if added == 0 or fewest > log2_budget + _HOPELESS:
                return best
        if steps > _MOST_STEPS or fewest < np.log2(_ENTRIES_PER_STEP * steps):
            break
    assert best is not None
    return best


def _log2_entries(logs: Floats, order: Ints, bag_offsets: Ints, bags: Ints, first_of: Ints) -> float:
    """log2 of the number of entries in the tables of the maximal cliques, which may be past any float."""
    if order.size == 0:
        return -np.inf
    running = np.concatenate([[0.0], np.cumsum(logs[bags])])
    exponents = (logs[order] + running[bag_offsets[1:]] - running[bag_offsets[:-1]])[first_of]
    largest = exponents.max()
    return float(largest + np.log2(np.exp2(exponents - largest).sum()))


def _build(
    sizes: Ints,
    flat: Ints,
    offsets: Ints,
    free: NDArray[np.bool_],
    order: Ints,
    bag_offsets: Ints,
    bags: Ints,
) -> JunctionTree:
    """Build the junction tree of an elimination: maximal cliques, sepsets, and a clique for every scope."""
    clique_of, first_of, parent = _supernodes(order, bag_offsets, bags, sizes.size)
    variables, bounds, ordered = bags.tolist(), bag_offsets.tolist(), order.tolist()
    cliques = tuple(tuple(sorted([ordered[t], *variables[bounds[t] : bounds[t + 1]]])) for t in first_of.tolist())
    leaving = np.flatnonzero((parent >= 0) & (clique_of[order] != clique_of[parent]))
    children, parents = clique_of[order[leaving]].tolist(), clique_of[parent[leaving]].tolist()
    sepsets = [tuple(sorted(variables[bounds[t] : bounds[t + 1]])) for t in leaving.tolist()]
    cards = sizes.tolist()
    return JunctionTree(
        cliques=cliques,
        edges=tuple(zip(children, parents, sepsets, strict=True)),
        width=max(map(len, cliques), default=0) - 1,
        table_entries=sum(prod([cards[v] for v in clique]) for clique in cliques),
        assignment=tuple(_assign(flat, offsets, free, order, clique_of).tolist()),
    )


@njit(cache=True, nogil=True)
def _assign(flat: Ints, offsets: Ints, free: NDArray[np.bool_], order: Ints, clique_of: Ints) -> Ints:
    """Clique of each scope: that of its variable eliminated first, which had the others as neighbours."""
    position = np.empty(free.size, np.int64)
    for t in range(order.size):
        position[order[t]] = t
    assignment = np.full(offsets.size - 1, -1, np.int64)
    for s in range(offsets.size - 1):
        earliest = order.size
        for v in flat[offsets[s] : offsets[s + 1]]:
            if free[v] and position[v] < earliest:
                earliest = position[v]
                assignment[s] = clique_of[v]
    return assignment


@njit(cache=True, nogil=True)
def _supernodes(order: Ints, bag_offsets: Ints, bags: Ints, n: int) -> tuple[Ints, Ints, Ints]:
    """Maximal cliques of an elimination (Blair & Peyton 1993, section 4).

    The parent of v is the first of its bag to be eliminated. The clique of v, v and its bag, is contained in
    that of a child u exactly where the bag of u has one variable more than that of v; v then joins the
    clique of u. Returns the clique of each variable (-1 where not eliminated), for each clique the step of
    the order that created it, and for each step the parent of its variable (-1 at a root).
    """
    n_steps = order.size
    position = np.full(n, n_steps, np.int64)
    for t in range(n_steps):
        position[order[t]] = t
    parent = np.full(n_steps, -1, np.int64)
    inherited = np.full(n, -1, np.int64)
    clique_of = np.full(n, -1, np.int64)
    first_of = np.empty(n_steps, np.int64)
    n_cliques = 0
    for t in range(n_steps):
        v = order[t]
        if inherited[v] >= 0:
            clique_of[v] = inherited[v]
        else:
            clique_of[v] = n_cliques
            first_of[n_cliques] = t
            n_cliques += 1
        earliest = n_steps
        for u in bags[bag_offsets[t] : bag_offsets[t + 1]]:
            earliest = min(earliest, position[u])
        if earliest < n_steps:
            parent[t] = order[earliest]
            bag_size = bag_offsets[t + 1] - bag_offsets[t]
            if bag_size == bag_offsets[earliest + 1] - bag_offsets[earliest] + 1:
                inherited[parent[t]] = clique_of[v]
    return clique_of, first_of[:n_cliques].copy(), parent


@njit(cache=True, nogil=True)
def _adjacency(flat: Ints, offsets: Ints, free: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Neighbours of the free variables: those of v are ``pool[start[v] : start[v] + degree[v]]``."""
    n = free.size
    counts = np.zeros(n + 1, np.int64)
    for v in flat:
        counts[v + 1] += 1
    scope_start = np.cumsum(counts)
    scopes_of = np.empty(flat.size, np.int64)
    cursor = scope_start[:-1].copy()
    for s in range(offsets.size - 1):
        for v in flat[offsets[s] : offsets[s + 1]]:
            scopes_of[cursor[v]] = s
            cursor[v] += 1
    start = np.zeros(n, np.int64)
    degree = np.zeros(n, np.int64)
    pool = np.empty(max(16, 4 * flat.size), np.int64)
    mark = np.full(n, -1, np.int64)
    used = 0
    for v in range(n):
        start[v] = used
        if not free[v]:
            continue
        mark[v] = v
        for s in scopes_of[scope_start[v] : scope_start[v + 1]]:
            pool = _room(pool, used, offsets[s + 1] - offsets[s])
            for u in flat[offsets[s] : offsets[s + 1]]:
                if free[u] and mark[u] != v:
                    mark[u] = v
                    pool[used] = u
                    used += 1
        degree[v] = used - start[v]
    return start, degree, pool[:used].copy()


@njit(cache=True, nogil=True)
def _room(pool: Ints, used: int, more: int) -> Ints:
    """Return the pool, or a larger copy, with room for ``more`` entries after the first ``used``."""
    if used + more <= pool.size:
        return pool
    larger = np.empty(2 * (used + more), np.int64)
    for i in range(used):  # a loop, for assigning slices takes Numba seconds to compile
        larger[i] = pool[i]
    return larger


@njit(cache=True, nogil=True)
def _initial_fill(start: Ints, degree: Ints, pool: Ints) -> Ints:
    """Count the pairs of neighbours that are not joined, d(d - 1)/2 less the triangles, for every variable.

    Every edge points to its end of greater degree. A triangle then has one corner that both its edges leave,
    and the work is bounded by edges^1.5 even where one variable is a neighbour of all others.
    """
    n = degree.size
    ahead = pool.copy()
    n_ahead = np.zeros(n, np.int64)
    for v in range(n):
        for u in pool[start[v] : start[v] + degree[v]]:
            if degree[u] > degree[v] or (degree[u] == degree[v] and u > v):
                ahead[start[v] + n_ahead[v]] = u
                n_ahead[v] += 1
    fill = np.empty(n, np.int64)
    for v in range(n):
        fill[v] = degree[v] * (degree[v] - 1) // 2
    mark = np.full(n, -1, np.int64)
    for v in range(n):
        for u in ahead[start[v] : start[v] + n_ahead[v]]:
            mark[u] = v
        for u in ahead[start[v] : start[v] + n_ahead[v]]:
            for w in ahead[start[u] : start[u] + n_ahead[u]]:
                if mark[w] == v:
                    fill[v] -= 1
                    fill[u] -= 1
                    fill[w] -= 1
    return fill


@njit(cache=True, nogil=True)
def _sift(heap: Ints, place: Ints, size: int, cost: Floats, rank: Ints, v: int) -> None:
    """Move v, the only one whose cost has changed, to its place in the binary heap by (cost, rank)."""
    i = place[v]
    while i > 0:
        above = heap[(i - 1) // 2]
        if cost[above] < cost[v] or (cost[above] == cost[v] and rank[above] < rank[v]):
            break
        heap[i] = above
        place[above] = i
        i = (i - 1) // 2
    while 2 * i + 1 < size:
        j = 2 * i + 1
        below = heap[j]
        if j + 1 < size:
            other = heap[j + 1]
            if cost[other] < cost[below] or (cost[other] == cost[below] and rank[other] < rank[below]):
                j, below = j + 1, other
        if cost[v] < cost[below] or (cost[v] == cost[below] and rank[v] < rank[below]):
            break
        heap[i] = below
        place[below] = i
        i = j
    heap[i] = v
    place[v] = i


@njit(cache=True, nogil=True)
def _cost(rule: int, fill: int, degree: int, weight: float, jitter: float) -> float:
    """Cost of eliminating a variable by the rule of that number in ``ORDERS``."""
    if rule == 0:
        return float(fill)
    if rule == 1:
        return float(fill / (degree + 1) ** 1.5 * jitter)
    return weight


@njit(cache=True, nogil=True)
def _append(pool: Ints, used: int, start: Ints, length: Ints, capacity: Ints, u: int, v: int) -> tuple[Ints, int]:
    """Append v to the neighbours of u, moving a full list to the end of the pool with twice the room."""
    if length[u] == capacity[u]:
        capacity[u] = 2 * length[u] + 2
        pool = _room(pool, used, capacity[u])
        for i in range(length[u]):
            pool[used + i] = pool[start[u] + i]
        start[u] = used
        used += capacity[u]
    pool[start[u] + length[u]] = v
    length[u] += 1
    return pool, used


@njit(cache=True, nogil=True)
def _compact(pool: Ints, start: Ints, length: Ints, alive: NDArray[np.bool_], v: int) -> None:
    """Drop the neighbours of v that have been eliminated from its list."""
    kept = 0
    for u in pool[start[v] : start[v] + length[v]]:
        if alive[u]:
            pool[start[v] + kept] = u
            kept += 1
    length[v] = kept


@njit(cache=True, nogil=True)
def _sort_into(bag: Ints, neighbours: Ints, degree: Ints) -> None:
    """Fill the bag by ascending degree, so that the longest lists of neighbours are scanned least often."""
    for size in range(neighbours.size):
        u = neighbours[size]
        i = size
        while i > 0 and degree[bag[i - 1]] > degree[u]:
            bag[i] = bag[i - 1]
            i -= 1
        bag[i] = u


@njit(cache=True, nogil=True)
def _eliminate(
    start: Ints,
    degree: Ints,
    pool: Ints,
    fill: Ints,
    free: NDArray[np.bool_],
    logs: Floats,
    rule: int,
    rank: Ints,
    jitter: Floats,
    limit: float,
) -> tuple[Ints, Ints, Ints, int]:
    """Eliminate the free variables greedily; give up once one clique alone has more than 2^limit states.

    Returns the order (short where it gave up), the offsets of the bags, the bags (the neighbours that each
    variable had when its turn came) and the number of edges added. Counts of missing edges are kept up to
    date edge by edge, so that no neighbourhood is ever counted anew: joining a and b, with c common
    neighbours, adds d_a - c to the count of a and d_b - c to that of b and takes 1 from each common
    neighbour; taking out v, whose d_v neighbours are joined by then, takes d_u - d_v from each neighbour u.
    """
    n = free.size
    start, degree, fill, pool = start.copy(), degree.copy(), fill.copy(), pool.copy()
    length, capacity, used = degree.copy(), degree.copy(), pool.size
    weight = logs.copy()
    cost = np.empty(n)
    heap = np.empty(n, np.int64)
    place = np.empty(n, np.int64)
    size = 0
    for v in range(n):
        if free[v]:
            for u in pool[start[v] : start[v] + degree[v]]:
                weight[v] += logs[u]
            cost[v] = _cost(rule, fill[v], degree[v], weight[v], jitter[v])
            place[v] = size
            size += 1
            _sift(heap, place, size, cost, rank, v)

    alive = free.copy()
    mark = np.zeros(n, np.int64)
    stamp = 0
    seen = np.full(n, -1, np.int64)
    changed = np.empty(n, np.int64)
    order = np.empty(size, np.int64)
    bag_offsets = np.zeros(size + 1, np.int64)
    bags = np.empty(max(16, 4 * size), np.int64)
    added = 0
    for t in range(order.size):
        v = heap[0]
        if weight[v] > limit:
            return order[:t].copy(), bag_offsets[: t + 1].copy(), bags, added
        order[t] = v
        bag_offsets[t + 1] = bag_offsets[t] + degree[v]
        bags = _room(bags, bag_offsets[t], degree[v])
        bag = bags[bag_offsets[t] : bag_offsets[t + 1]]
        _compact(pool, start, length, alive, v)
        _sort_into(bag, pool[start[v] : start[v] + length[v]], degree)

        n_changed = 0
        seen[v] = t
        for u in bag:
            seen[u] = t
            changed[n_changed] = u
            n_changed += 1
        for i in range(bag.size):
            if fill[v] == 0:
                break
            a = bag[i]
            stamp += 1
            _compact(pool, start, length, alive, a)
            for u in pool[start[a] : start[a] + length[a]]:
                mark[u] = stamp
            for b in bag[i + 1 :]:
                if mark[b] == stamp:
                    continue
                _compact(pool, start, length, alive, b)
                common = 0
                for u in pool[start[b] : start[b] + length[b]]:
                    if mark[u] == stamp:
                        common += 1
                        fill[u] -= 1
                        if seen[u] != t:
                            seen[u] = t
                            changed[n_changed] = u
                            n_changed += 1
                fill[a] += degree[a] - common
                fill[b] += degree[b] - common
                degree[a] += 1
                degree[b] += 1
                weight[a] += logs[b]
                weight[b] += logs[a]
                pool, used = _append(pool, used, start, length, capacity, a, b)
                pool, used = _append(pool, used, start, length, capacity, b, a)
                mark[b] = stamp
                added += 1

        alive[v] = False
        size -= 1
        if size > 0:
            place[heap[size]] = 0
            _sift(heap, place, size, cost, rank, heap[size])
        for u in bag:
            fill[u] -= degree[u] - bag.size
            degree[u] -= 1
            weight[u] -= logs[v]
        for u in changed[:n_changed]:
            cost[u] = _cost(rule, fill[u], degree[u], weight[u], jitter[u])
            _sift(heap, place, size, cost, rank, u)
    return order, bag_offsets, bags[: bag_offsets[-1]].copy(), added


def _checked_cardinalities(cardinalities: ArrayLike) -> Ints:
    """Cardinalities as an array, all of them whole and at least 1."""
    sizes = np.asarray(cardinalities)
    if sizes.ndim != 1:
        raise ValueError(f"cardinalities: expected a one-dimensional array, found shape {sizes.shape}")
    if sizes.size and sizes.dtype.kind not in "iu":
        raise ValueError(f"cardinalities: expected integers, found dtype {sizes.dtype}")
    if sizes.size and sizes.min() < 1:
        v = int(np.argmin(sizes))
        raise ValueError(f"cardinalities[{v}]: expected at least 1, found {sizes[v]}")
    return sizes.astype(np.int64)


def _checked_scopes(scopes: Sequence[Sequence[int]], n: int) -> tuple[Ints, Ints]:
    """Scopes end to end in one array, with the offsets at which they start."""
    lengths = np.fromiter(map(len, scopes), np.int64, len(scopes))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    flat = np.asarray(list(chain.from_iterable(scopes)))
    if flat.size == 0:
        return np.zeros(0, np.int64), offsets
    if flat.dtype.kind not in "iu":
        raise ValueError(f"scopes: expected integers as variables, found dtype {flat.dtype}")
    owner = np.repeat(np.arange(lengths.size), lengths)
    outside = np.flatnonzero((flat < 0) | (flat >= n))
    if outside.size:
        s, v = owner[outside[0]], flat[outside[0]]
        raise ValueError(f"scopes[{s}]: expected variables from 0 to {n - 1}, found {v}")
    by_scope = np.lexsort((flat, owner))
    same = (np.diff(flat[by_scope]) == 0) & (np.diff(owner[by_scope]) == 0)
    if same.any():
        i = by_scope[np.argmax(same)]
        raise ValueError(f"scopes[{owner[i]}]: expected distinct variables, found {flat[i]} more than once")
    return flat.astype(np.int64), offsets


def _free_variables(evidence: Iterable[int], n: int) -> NDArray[np.bool_]:
    """Which variables are not observed."""
    free = np.ones(n, np.bool_)
    for v in evidence:
        if v not in range(n):
            raise ValueError(f"evidence: expected variables from 0 to {n - 1}, found {v}")
        free[int(v)] = False
    return free


def _check_options(orders: Sequence[str], restarts: int, memory_budget: int) -> None:
    """Refuse options that name no order, draw none, or allow less than nothing."""
    if isinstance(orders, str) or not orders:
        raise ValueError(f"orders: expected a sequence of one or more of {ORDERS}, found {orders!r}")
    for i, rule in enumerate(orders):
        if rule not in ORDERS:
            raise ValueError(f"orders[{i}]: expected one of {ORDERS}, found {rule!r}")
    if restarts < 1:
        raise ValueError(f"restarts: expected at least 1, found {restarts}")
    if memory_budget < 0:
        raise ValueError(f"memory_budget: expected at least 0 bytes, found {memory_budget}")


def _readable(n_bytes: int) -> str:
    """Bytes in words; beyond what memory can hold, the power of ten alone."""
    if n_bytes >= 2**63:
        return f"about 10^{round(log10(n_bytes))} bytes"
    return f"{n_bytes} bytes ({n_bytes / 2**30:.3g} GiB)"
