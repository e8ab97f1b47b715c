"""Rows whose states are changed, or exchanged with those of other rows, to bring counts of cells closer to targets.

With e the excess of the cells that a change leaves and enters, moving a row from one to the other changes the sum of
squares by 2 (e_entered - e_left + 1) per table, which counts by its weight.
"""

from __future__ import annotations

from typing import NamedTuple

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel


class RowsInTables(NamedTuple):
    """Rows, and where they are in tables over some variables, whose cells lie one after the other."""

    states: Ints  #: (n, V)
    cells: Ints  #: (n, T) the cell of each table that a row is in
    excess: Floats  #: (n_cells,) the count of each cell less its target
    allowed: Bools  #: (n_cells,) whether rows may be moved there


class TablesAround(NamedTuple):
    """The tables that each variable is in."""

    bounds: Ints  #: (V + 1,) range of a variable's tables in the other three
    table: Ints
    stride: Ints  #: of the variable in the table
    weight: Floats  #: of the table's squares


@kernel()
def change_states(rows: RowsInTables, around: TablesAround, cardinalities: Ints, order: Ints) -> int:
    """One pass: every state that another would better is changed to the best other; returns how many were."""
    states, cells, excess, allowed = rows
    bounds, table, stride, weight = around
    changed = 0
    for i in order:
        for v in range(states.shape[1]):
            first, last = bounds[v], bounds[v + 1]
            worst = 0.0
            for k in range(first, last):
                worst = max(worst, excess[cells[i, table[k]]])
            if worst <= 0.5:
                continue
            state, best, gain = states[i, v], -1, -1e-9
            for other in range(cardinalities[v]):
                if other == state:
                    continue
                change, possible = 0.0, True
                for k in range(first, last):
                    left = cells[i, table[k]]
                    entered = left + (other - state) * stride[k]
                    possible = possible and allowed[entered]
                    change += weight[k] * (excess[entered] - excess[left] + 1.0)
                if possible and change < gain:
                    best, gain = other, change
            if best >= 0:
                for k in range(first, last):
                    excess[cells[i, table[k]]] -= 1.0
                    cells[i, table[k]] += (best - state) * stride[k]
                    excess[cells[i, table[k]]] += 1.0
                states[i, v] = best
                changed += 1
    return changed


@kernel()
def exchange_states(rows: RowsInTables, around: TablesAround, order: Ints, partners: Ints) -> int:
    """One pass over pairs of rows: states of a variable are exchanged where that betters the counts; how many were.

    Counts of single variables stay as they are.
    """
    states, cells, excess, allowed = rows
    bounds, table, stride, weight = around
    changed = 0
    for n in range(order.size):
        i, j = order[n], partners[n]
        for v in range(states.shape[1]):
            a, b = states[i, v], states[j, v]
            if a == b:
                continue
            first, last = bounds[v], bounds[v + 1]
            change, possible = 0.0, True
            for k in range(first, last):
                step = (b - a) * stride[k]
                left_i, left_j = cells[i, table[k]], cells[j, table[k]]
                into_i, into_j = left_i + step, left_j - step
                possible = possible and allowed[into_i] and allowed[into_j]
                if into_i == left_j:  # the rows differ in nothing else of this table
                    continue
                both = excess[into_i] - excess[left_i] + excess[into_j] - excess[left_j] + 2.0
                change += weight[k] * (both + 1.0 if left_i == left_j or into_i == into_j else both)
            if possible and change < -1e-9:
                for k in range(first, last):
                    step = (b - a) * stride[k]
                    excess[cells[i, table[k]]] -= 1.0
                    excess[cells[j, table[k]]] -= 1.0
                    cells[i, table[k]] += step
                    cells[j, table[k]] -= step
                    excess[cells[i, table[k]]] += 1.0
                    excess[cells[j, table[k]]] += 1.0
                states[i, v], states[j, v] = b, a
                changed += 1
    return changed
