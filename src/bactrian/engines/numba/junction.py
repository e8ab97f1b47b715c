"""Calibration of a junction tree: collect to the roots, distribute from them (Jensen, Lauritzen and Olesen 1990).

Factors are first multiplied into a few small tables per clique, its *pools*. The table of a clique itself is never
kept: it is the product of its *members*, pools and messages of children, and of the message of its parent, worked out
*tile* by tile and added up to whatever is wanted of it. So memory is that of messages alone, and tiles stay in the
processor's cache. A tile is all states of the last few axes, at one state of the others, the *outer* axes. Level l has
the product of all that depends on the first l outer axes at most: as the last axes move on most often, only the deepest
levels are multiplied anew, and where a level's product is zero everywhere what lies below it is left out, which is how
zeros of tables save time. Sums go the way back: what a table lacks of the outer axes is added up before it gets it.

Tables are linear, scaled so that no factor or message exceeds 1. That is exact as long as the product of the smallest
positive entries that meet in a clique stays far from underflow, which is measured on the way; where it does not, the
whole tree is done again with logarithms.

A *circuit* is the collection of many rows of evidence at once, spelt out: sums of products of earlier numbers, one
after the other, and how much each number counts in the last ones. The numbers are those of a table, followed by one per
sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit, record
from bactrian.engines.numba.arithmetic import FAST_MATH, WIDEST, exp, log

#: Entries of a small table for those of a larger one; unsigned, which spares a look at the sign of every one.
Places = NDArray[np.uint32]
#: How a table lies in a tile: it has none of its axes, all of them, or some.
_NONE, _ALL = 0, 1


class TreePlan(NamedTuple):
    """One junction tree: ``Q`` cliques, ``E`` edges in collect order, ``P`` pools, ``F`` factors.

    The *tables* are pools, then messages; the *views* are those of pools in their cliques, of messages in children, of
    messages in parents, and of factors in pools. A map gives the entry of the smaller table for each entry of a tile,
    or of a pool.
    """

    table_offset: Ints  #: (P + E + 1,) entries of each table
    pool_factors: Ints  #: (P + 1,) factors of each pool
    factor_source: Ints  #: (F,) where the factor's entries start in the scores, evidence included
    child: Ints  #: (E,)
    parent: Ints  #: (E,)
    tile: Ints  #: (Q,) entries of a tile
    outer: Ints  #: (Q + 1,) outer axes of each clique
    outer_dims: Ints
    clique_members: Ints  #: (Q + 1,) members of each clique, by rising level
    member_table: Ints
    member_view: Ints
    level: Ints  #: (P + 2 E,) of each view of a clique: how many outer axes it takes to know its tile
    kind: Ints  #: (P + 2 E,)
    view_steps: Ints  #: (P + 2 E,) where its strides along the outer axes begin
    steps: Ints
    map_offset: Ints  #: (P + 2 E + F + 1,)
    maps: Places


class _Room(NamedTuple):
    """What the cliques of a tree share while they are worked out."""

    tiles: Floats  #: (levels, entries) products
    sums: Floats  #: (levels, entries)
    held: Bools  #: (levels,) whether there is a sum
    base: Ints  #: where each member's entries of this tile start, and those of the message between it and its parent
    counter: Ints  #: state of the outer axes
    row: Ints  #: (levels,) the level whose product stands for this one, too
    below: Ints  #: (levels,) the next level at which something is added up, or -1
    first: Ints  #: (levels + 1,) first member of a level
    out: Floats  #: sums for the members' tables, or for the message to the parent
    tops: Floats  #: logarithms of their largest terms, where logarithms are added up
    depth: Floats  #: (Q,) logarithm of what the smallest entries of a clique's members multiply to


HeldTree, HeldRoom = record(TreePlan), record(_Room)


@kernel()
def fill_maps(views: Ints, dims: Ints, strides: Ints, map_offset: Ints, maps: Places) -> None:
    """Entries of smaller tables for entries, in order, of larger ones; ``views`` are ranges of axes with strides."""
    counter = np.zeros(max(1, dims.size), dtype=np.int64)
    for view in range(views.size - 1):
        first, last, at = views[view], views[view + 1], 0
        for k in range(map_offset[view], map_offset[view + 1]):
            maps[k] = at
            for axis in range(last - 1, first - 1, -1):
                counter[axis] += 1
                at += strides[axis]
                if counter[axis] < dims[axis]:
                    break
                at -= strides[axis] * dims[axis]
                counter[axis] = 0


@njit(fastmath=FAST_MATH)
def _multiply(tile: Floats, size: int, table: Floats, kind: int, places: Places) -> float:
    """Multiply a tile by a table; returns what is 0 only if all entries are."""
    total = 0.0
    if kind == _NONE:
        value = table[0]
        for j in range(size):
            tile[j] *= value
            total += tile[j]
    elif kind == _ALL:
        for j in range(size):
            tile[j] *= table[j]
            total += tile[j]
    else:
        for j in range(size):
            tile[j] *= table[places[j]]
            total += tile[j]
    return total


@njit(fastmath=FAST_MATH)
def _add(tile: Floats, size: int, table: Floats, kind: int, places: Places) -> float:
    """Add logarithms of a table to a tile; returns the largest."""
    top = -np.inf
    for j in range(size):
        tile[j] += table[np.uint32(0) if kind == _NONE else (np.uint32(j) if kind == _ALL else places[j])]
        top = max(top, tile[j])
    return top


@njit(fastmath=FAST_MATH)
def _add_up(tile: Floats, size: int, out: Floats, kind: int, places: Places) -> None:
    """Add the entries of a tile up to those of a table."""
    if kind == _NONE:
        total = 0.0
        for j in range(size):
            total += tile[j]
        out[0] += total
    elif kind == _ALL:
        for j in range(size):
            out[j] += tile[j]
    else:
        for j in range(size):
            out[places[j]] += tile[j]


@njit()
def _add_logs_up(tile: Floats, size: int, out: Floats, tops: Floats, kind: int, places: Places) -> None:
    """The same for logarithms: sums of exponentials of what each is below the largest so far."""
    for j in range(size):
        if tile[j] == -np.inf:
            continue
        k = np.uint32(0) if kind == _NONE else (np.uint32(j) if kind == _ALL else places[j])
        if tile[j] <= tops[k]:
            out[k] += exp(tile[j] - tops[k])
        else:
            out[k] = out[k] * exp(tops[k] - tile[j]) + 1.0
            tops[k] = tile[j]


@njit()
def _work_out(
    plan: TreePlan, q: int, own: int, values: Floats, room: _Room, down: bool, logs: bool, top: float, late: Bools
) -> bool:
    """Add the table of clique q up to the message to its parent, or with ``down`` to the tables of its members.

    ``own`` is the edge to its parent, or -1: then its total is ``room.out[0]``. Sums for members lie one after the
    other; with ``down`` they are linear, and logarithms are taken less ``top``. False where time is up.
    """
    level_of, kind_of, member_view, table_offset = plan.level, plan.kind, plan.member_view, plan.table_offset
    map_offset, maps, view_steps, steps = plan.map_offset, plan.maps, plan.view_steps, plan.steps
    tiles, counter, row, first_of, base = room.tiles, room.counter, room.row, room.first, room.base
    dims = plan.outer_dims
    n_edges = plan.child.size
    n_pools = table_offset.size - 1 - n_edges
    start, stop = plan.clique_members[q], plan.clique_members[q + 1]
    first_axis, size = plan.outer[q], plan.tile[q]
    deepest, n = plan.outer[q + 1] - first_axis, stop - start
    own_view = n_pools + own if own >= 0 else -1
    own_level = level_of[own_view] if own >= 0 else 0
    own_base = 0
    if own >= 0 and down:
        own_base = table_offset[own_view]
    m = 0
    for level in range(deepest + 1):
        first_of[level] = m
        room.held[level] = False
        while m < n and level_of[member_view[start + m]] == level:
            m += 1
        if level < deepest:
            counter[level] = 0
    first_of[deepest + 1] = n
    lower = -1
    for level in range(deepest + 1):
        room.below[level] = lower
        if first_of[level] < first_of[level + 1] if down else level == own_level:
            lower = level
    for m in range(n):
        base[m] = table_offset[plan.member_table[start + m]]
    # Where sums of members start, less where their tables do.
    place = 0
    for m in range(n):
        table = plan.member_table[start + m]
        base[n + m] = place - table_offset[table]
        place += table_offset[table + 1] - table_offset[table]
    begin = 0
    while True:
        if late[0]:
            return False
        dead = -1
        for level in range(begin, deepest + 1):
            tile = tiles[level]
            members = range(first_of[level], first_of[level + 1])
            with_own = down and own >= 0 and own_level == level
            if level == 0:
                for j in range(size):
                    tile[j] = 0.0 if logs else 1.0
            elif len(members) == 0 and not with_own:
                row[level] = row[level - 1]
                continue
            else:
                before = tiles[row[level - 1]]
                for j in range(size):
                    tile[j] = before[j]
            row[level] = level
            some = 0.0 if logs else 1.0
            for m in members:
                view = member_view[start + m]
                table, places = values[base[m] :], maps[map_offset[view] :]
                if logs:
                    some = _add(tile, size, table, kind_of[view], places)
                else:
                    some = _multiply(tile, size, table, kind_of[view], places)
                if some == (-np.inf if logs else 0.0):
                    break
            nothing = some == (-np.inf if logs else 0.0)
            if with_own and not nothing:
                table, kind, places = values[own_base:], kind_of[own_view], maps[map_offset[own_view] :]
                if logs:
                    nothing = _add(tile, size, table, kind, places) == -np.inf
                else:
                    nothing = _multiply(tile, size, table, kind, places) == 0.0
            if nothing:
                dead = level
                break
        if dead < 0:
            tile = tiles[row[deepest]]
            if not down and logs:
                kind = kind_of[own_view] if own >= 0 else _NONE
                places = maps[map_offset[own_view] if own >= 0 else 0 :]
                _add_logs_up(tile, size, room.out[own_base:], room.tops[own_base:], kind, places)
            else:
                if logs:
                    linear = tiles[deepest + 1]
                    for j in range(size):
                        linear[j] = exp(tile[j] - top)
                    tile = linear
                _pass_on(plan, start, n, own_view, own_base, room, tile, size, deepest, down)
        # The next state of the outer axes.
        last = (deepest if dead < 0 else dead) - 1
        axis = last
        while axis >= 0 and counter[axis] + 1 == dims[first_axis + axis]:
            axis -= 1
        for level in range(deepest - 1, axis, -1):
            if room.held[level]:
                room.held[level] = False
                _pass_on(plan, start, n, own_view, own_base, room, room.sums[level], size, level, down)
        if axis < 0:
            return True
        for a in range(axis, last + 1):
            times = 1 if a == axis else -counter[a]
            counter[a] += times
            for m in range(first_of[a + 1], n):
                base[m] += times * steps[view_steps[member_view[start + m]] + a]
            if own >= 0:
                own_base += times * steps[view_steps[own_view] + a]
        begin = axis + 1


@njit(fastmath=FAST_MATH)
def _pass_on(
    plan: TreePlan, start: int, n: int, own_view: int, own_base: int, room: _Room, tile: Floats, size: int, level: int,
    down: bool,
) -> None:  # fmt: skip
    """Add a tile up to what is wanted at a level, and to the sum at the next level where something is."""
    if down:
        for m in range(room.first[level], room.first[level + 1]):
            view = plan.member_view[start + m]
            base = room.base[m] + room.base[n + m]
            _add_up(tile, size, room.out[base:], plan.kind[view], plan.maps[plan.map_offset[view] :])
    elif own_view < 0:
        if level == 0:
            _add_up(tile, size, room.out, _NONE, plan.maps)
    elif plan.level[own_view] == level:
        _add_up(tile, size, room.out[own_base:], plan.kind[own_view], plan.maps[plan.map_offset[own_view] :])
    below = room.below[level]
    if below < 0:
        return
    total = room.sums[below]
    if room.held[below]:
        for j in range(size):
            total[j] += tile[j]
    else:
        room.held[below] = True
        for j in range(size):
            total[j] = tile[j]


@njit()
def _scale(small: Floats, start: int, stop: int) -> tuple[float, float]:
    """Divide by the largest entry; returns its logarithm (-inf where all are 0) and that of the smallest positive."""
    top = 0.0
    for k in range(start, stop):
        top = max(top, small[k])
    if top == 0.0:
        return -np.inf, 0.0
    inverse = 1.0 / top
    low = 1.0
    for k in range(start, stop):
        small[k] *= inverse
        if small[k] > 0.0:
            low = min(low, small[k])
    return math.log(top), math.log(low)


@njit()
def _fill_pool(plan: TreePlan, scores: Floats, values: Floats, pool: int, logs: bool) -> tuple[float, float]:
    """Product of a pool's factors, largest entry 1; returns the logarithms of its scale and of its smallest entry."""
    start, stop = plan.table_offset[pool], plan.table_offset[pool + 1]
    for k in range(start, stop):
        values[k] = 0.0
    for factor in range(plan.pool_factors[pool], plan.pool_factors[pool + 1]):
        source, at = plan.factor_source[factor], plan.map_offset[plan.level.size + factor]
        for k in range(stop - start):
            values[start + k] += scores[source + plan.maps[at + k]]
    top = -np.inf
    for k in range(start, stop):
        top = max(top, values[k])
    low = 0.0
    if top > -np.inf:
        for k in range(start, stop):
            values[k] -= top
            if values[k] != -np.inf:
                low = min(low, values[k])
            if not logs:
                values[k] = exp(values[k])
    return top, low


@njit()
def _collect(
    plan: TreePlan, scores: Floats, values: Floats, totals: Floats, room: _Room, logs: bool, late: Bools
) -> float:
    """Messages towards the roots; returns log Z (-inf: no state is possible; NaN: logs are needed, or it is late).

    ``totals`` of roots are those of their tables.
    """
    n_cliques, n_edges = plan.tile.size, plan.child.size
    n_pools = plan.table_offset.size - 1 - n_edges
    log_partition = 0.0
    depth, own = np.zeros(n_cliques), np.full(n_cliques, -1, dtype=np.int64)
    for q in range(n_cliques):
        for member in range(plan.clique_members[q], plan.clique_members[q + 1]):
            if plan.member_table[member] < n_pools:
                top, low = _fill_pool(plan, scores, values, plan.member_table[member], logs)
                log_partition += top
                depth[q] += low
                if top == -np.inf:
                    return -np.inf
    for e in range(n_edges):
        own[plan.child[e]] = e
    for step in range(n_edges + n_cliques):
        if step >= n_edges and own[step - n_edges] >= 0:
            continue
        q = plan.child[step] if step < n_edges else step - n_edges
        e = own[q]
        size = 1 if e < 0 else plan.table_offset[n_pools + e + 1] - plan.table_offset[n_pools + e]
        for k in range(size):
            room.out[k] = 0.0
            if logs:
                room.tops[k] = -np.inf
        if not logs and depth[q] < -WIDEST:
            return np.nan
        if not _work_out(plan, q, e, values, room, False, logs, 0.0, late):
            return np.nan
        if logs:
            top = -np.inf
            for k in range(size):
                room.out[k] = room.tops[k] + math.log(room.out[k]) if room.out[k] > 0.0 else -np.inf
                top = max(top, room.out[k])
        elif e >= 0:
            top, low = _scale(room.out, 0, size)
        else:
            top = math.log(room.out[0]) if room.out[0] > 0.0 else -np.inf
        if top == -np.inf:
            return -np.inf
        if e < 0:
            totals[q] = top
            log_partition += top
            continue
        if not logs:
            log_partition += top
            depth[plan.parent[e]] += low
        start = plan.table_offset[n_pools + e]
        for k in range(size):
            values[start + k] = room.out[k]
    for q in range(n_cliques):
        room.depth[q] = depth[q]
    return log_partition


@njit()
def _distribute(
    plan: TreePlan, values: Floats, totals: Floats, beliefs: Floats, room: _Room, logs: bool, late: Bools
) -> bool:
    """Messages away from the roots, by division of what was collected, and the marginals of factors on the way.

    False where logarithms are needed, or it is late; some marginals are there then.
    """
    n_cliques, n_edges = plan.tile.size, plan.child.size
    n_pools = plan.table_offset.size - 1 - n_edges
    own = np.full(n_cliques, -1, dtype=np.int64)
    for e in range(n_edges):
        own[plan.child[e]] = e
    for step in range(n_cliques + n_edges):
        if step < n_cliques and own[step] >= 0:
            continue
        q = step if step < n_cliques else plan.child[n_edges - 1 - (step - n_cliques)]
        if not logs and room.depth[q] < -WIDEST:
            return False
        start, stop, size = plan.clique_members[q], plan.clique_members[q + 1], 0
        for member in range(start, stop):
            table = plan.member_table[member]
            size += plan.table_offset[table + 1] - plan.table_offset[table]
        for k in range(size):
            room.out[k] = 0.0
        if not _work_out(plan, q, own[q], values, room, True, logs, totals[q] if own[q] < 0 else 0.0, late):
            return False
        first = 0
        for member in range(start, stop):
            table = plan.member_table[member]
            at, size = plan.table_offset[table], plan.table_offset[table + 1] - plan.table_offset[table]
            if table < n_pools:
                total = 0.0
                for k in range(first, first + size):
                    total += room.out[k]
                for factor in range(plan.pool_factors[table], plan.pool_factors[table + 1]):
                    source, m = plan.factor_source[factor], plan.map_offset[plan.level.size + factor]
                    for k in range(size):
                        beliefs[source + plan.maps[m + k]] += room.out[first + k] / total
            elif logs:
                for k in range(size):
                    some = room.out[first + k] > 0.0
                    values[at + k] = math.log(room.out[first + k]) - values[at + k] if some else -np.inf
            else:
                for k in range(size):
                    some = values[at + k] > 0.0
                    values[at + k] = room.out[first + k] / values[at + k] if some else 0.0
                room.depth[plan.child[table - n_pools]] += _scale(values, at, at + size)[1]
            first += size
    return True


@njit()
def calibrate(plan: TreePlan, scores: Floats, beliefs: Floats, late: Bools) -> float:
    """Marginals of all factors in ``beliefs``, laid out like ``scores`` and 0 elsewhere, and log Z.

    -inf means that no state is possible; ``beliefs`` are left alone then. NaN: time was up.
    """
    n_cliques, n_tables = plan.tile.size, plan.table_offset.size - 1
    levels, entries, members, own, down = 1, 1, 0, 1, 1
    for q in range(n_cliques):
        levels = max(levels, plan.outer[q + 1] - plan.outer[q] + 1)
        entries = max(entries, plan.tile[q])
        members = max(members, plan.clique_members[q + 1] - plan.clique_members[q])
        together = 0
        for member in range(plan.clique_members[q], plan.clique_members[q + 1]):
            table = plan.member_table[member]
            together += plan.table_offset[table + 1] - plan.table_offset[table]
        down = max(down, together)
    for table in range(n_tables - plan.child.size, n_tables):
        own = max(own, plan.table_offset[table + 1] - plan.table_offset[table])
    values, totals = np.empty(plan.table_offset[-1]), np.zeros(n_cliques)
    log_partition, logs = 0.0, False
    for attempt in range(2):
        logs = attempt == 1
        room = HeldRoom(
            np.empty((levels + 1, entries)), np.empty((levels, entries)), np.zeros(levels, dtype=np.bool_),
            np.empty(2 * members, dtype=np.int64), np.empty(levels, dtype=np.int64), np.zeros(levels, dtype=np.int64),
            np.empty(levels, dtype=np.int64), np.empty(levels + 1, dtype=np.int64), np.empty(max(own, down)),
            np.empty(own if logs else 1), np.empty(n_cliques),
        )  # fmt: skip
        log_partition = _collect(plan, scores, values, totals, room, logs, late)
        if log_partition == -np.inf:
            return log_partition
        if not math.isnan(log_partition):
            beliefs[:] = 0.0
            if _distribute(plan, values, totals, beliefs, room, logs, late):
                return log_partition
        if late[0]:
            break
    return np.nan


@kernel()
def calibrate_rows(
    plan: TreePlan, scores: Floats, beliefs: Floats, log_z: Floats, first: int, last: int, late: Bools
) -> None:
    """:func:`calibrate` of rows ``first:last``, one per set of scores."""
    held = HeldTree(*plan)
    for row in range(first, last):
        log_z[row] = calibrate(held, scores[row], beliefs[row], late)


# --- many rows of evidence ---


class Circuit(NamedTuple):
    """Which numbers are multiplied and added up, in steps of sums whose terms have as many factors each."""

    n_given: int  #: numbers of the table
    sums: Ints  #: (n_steps + 1,) range of a step's sums
    terms: Places  #: (n_sums + 1,) range of a sum's terms
    widths: Ints  #: (n_steps,) factors of each term
    number: Places  #: (n_factors,) of all terms, one after the other


@kernel()
def sum_products(circuit: Circuit, numbers: Floats) -> None:
    """All sums."""
    terms, number, f = circuit.terms, circuit.number, 0
    for step in range(circuit.widths.size):
        width = circuit.widths[step]
        for s in range(circuit.sums[step], circuit.sums[step + 1]):
            total = 0.0
            for _ in range(terms[s], terms[s + 1]):
                term = numbers[number[f]]
                if width > 1:
                    term *= numbers[number[f + 1]]
                if width > 2:
                    term *= numbers[number[f + 2]]
                for k in range(f + 3, f + width):
                    term *= numbers[number[k]]
                total += term
                f += width
            numbers[circuit.n_given + s] = total


@kernel()
def differentiate(circuit: Circuit, numbers: Floats, slopes: Floats) -> None:
    """Derivatives by all numbers, backwards; ``slopes`` holds those by the last ones, and 0 elsewhere.

    A number's derivative times the number is what it counts for.
    """
    terms, number, f = circuit.terms, circuit.number, circuit.number.size
    others = np.empty(circuit.widths.max())
    for step in range(circuit.widths.size - 1, -1, -1):
        width = circuit.widths[step]
        for s in range(circuit.sums[step + 1] - 1, circuit.sums[step] - 1, -1):
            slope = slopes[circuit.n_given + s]
            for _ in range(terms[s], terms[s + 1]):
                f -= width
                if width == 1:
                    slopes[number[f]] += slope
                elif width == 2:
                    a, b = number[f], number[f + 1]
                    slopes[a] += slope * numbers[b]
                    slopes[b] += slope * numbers[a]
                elif width == 3:
                    a, b, c = number[f], number[f + 1], number[f + 2]
                    x, y, z = numbers[a], numbers[b], slope * numbers[c]
                    slopes[a] += y * z
                    slopes[b] += x * z
                    slopes[c] += slope * x * y
                else:
                    before = slope
                    for k in range(width):
                        others[k] = before
                        before *= numbers[number[f + k]]
                    after = 1.0
                    for k in range(width - 1, -1, -1):
                        slopes[number[f + k]] += others[k] * after
                        after *= numbers[number[f + k]]


@kernel()
def log_sum_products(circuit: Circuit, logs: Floats) -> None:
    """Logarithms of all sums, from those of numbers."""
    f = 0
    for step in range(circuit.widths.size):
        width = circuit.widths[step]
        for s in range(circuit.sums[step], circuit.sums[step + 1]):
            top, total = -math.inf, 0.0
            for _ in range(circuit.terms[s], circuit.terms[s + 1]):
                term = 0.0
                for k in range(f, f + width):
                    term += logs[circuit.number[k]]
                f += width
                if term > top:
                    total = total * exp(top - term) + 1.0
                    top = term
                elif term > -math.inf:
                    total += exp(term - top)
            logs[circuit.n_given + s] = top + log(total) if total > 0.0 else top


@kernel()
def share_out(circuit: Circuit, logs: Floats, weights: Floats) -> None:
    """What each number counts for, backwards: a sum's weight is shared out among its terms.

    ``weights`` holds those of the last numbers, and 0 elsewhere.
    """
    f = circuit.number.size
    for step in range(circuit.widths.size - 1, -1, -1):
        width = circuit.widths[step]
        for s in range(circuit.sums[step + 1] - 1, circuit.sums[step] - 1, -1):
            weight, total = weights[circuit.n_given + s], logs[circuit.n_given + s]
            for _ in range(circuit.terms[s], circuit.terms[s + 1]):
                f -= width
                if weight > 0.0:
                    term = 0.0
                    for k in range(f, f + width):
                        term += logs[circuit.number[k]]
                    share = weight * exp(term - total)
                    for k in range(f, f + width):
                        weights[circuit.number[k]] += share
