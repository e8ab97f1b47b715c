"""Greedy variable elimination on packed adjacency lists; see :mod:`bactrian.graphs.elimination`."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit, setup


@setup
def assign_scopes(flat: Ints, offsets: Ints, free: Bools, order: Ints, clique_of: Ints) -> Ints:
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


@setup
def supernodes(order: Ints, bag_offsets: Ints, bags: Ints, n: int) -> tuple[Ints, Ints, Ints]:
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


@setup
def adjacency(flat: Ints, offsets: Ints, free: Bools) -> tuple[Ints, Ints, Ints]:
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


@njit(error_model="python")
def _room(pool: Ints, used: int, more: int) -> Ints:
    """Return the pool, or a larger copy, with room for ``more`` entries after the first ``used``."""
    if used + more <= pool.size:
        return pool
    larger = np.empty(2 * (used + more), np.int64)
    for i in range(used):  # a loop, for assigning slices takes Numba seconds to compile
        larger[i] = pool[i]
    return larger


@setup
def initial_fill(start: Ints, degree: Ints, pool: Ints) -> Ints:
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


@njit(error_model="python")
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


@njit(error_model="python")
def _cost(rule: int, fill: int, degree: int, weight: float, jitter: float) -> float:
    """Cost of eliminating a variable by the rule of that number in ``ORDERS``."""
    if rule == 0:
        return float(fill)
    if rule == 1:
        return float(fill / (degree + 1) ** 1.5 * jitter)
    return weight


@njit(error_model="python")
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


@njit(error_model="python")
def _compact(pool: Ints, start: Ints, length: Ints, alive: Bools, v: int) -> None:
    """Drop the neighbours of v that have been eliminated from its list."""
    kept = 0
    for u in pool[start[v] : start[v] + length[v]]:
        if alive[u]:
            pool[start[v] + kept] = u
            kept += 1
    length[v] = kept


@njit(error_model="python")
def _sort_into(bag: Ints, neighbours: Ints, degree: Ints) -> None:
    """Fill the bag by ascending degree, so that the longest lists of neighbours are scanned least often."""
    for size in range(neighbours.size):
        u = neighbours[size]
        i = size
        while i > 0 and degree[bag[i - 1]] > degree[u]:
            bag[i] = bag[i - 1]
            i -= 1
        bag[i] = u


@setup
def eliminate(
    start: Ints,
    degree: Ints,
    pool: Ints,
    fill: Ints,
    free: Bools,
    logs: Floats,
    rule: int,
    rank: Ints,
    jitter: Floats,
    limit: float,
) -> tuple[Ints, Ints, Ints, int]:
    """Eliminate the free variables greedily; give up once one clique alone has more than 2^limit states.

    More than eight arguments, since callers keep the graph (the first four) and change what comes after it.
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
