"""Rows whose states are changed, or exchanged with those of other rows, to bring counts of cells closer to targets.

Tables over some variables lie one after the other. ``cells[i, t]`` is the cell of table t that row i is in, ``excess``
the count of each cell less its target. With e the excess of the cells that a change leaves and enters, moving a row
from one to the other changes the sum of squares by 2 (e_entered - e_left + 1) per table, which counts by its weight.
"""

from __future__ import annotations

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit


@njit(cache=True, nogil=True, error_model="numpy")
def change_states(
    states: Ints,
    cells: Ints,
    excess: Floats,
    allowed: Bools,
    cardinalities: Ints,
    variable_tables: Ints,
    table: Ints,
    stride: Ints,
    weight: Floats,
    order: Ints,
) -> int:
    """One pass: every state that another would better is changed to the best other; returns how many were.

    The tables of variable v are ``table[variable_tables[v]:variable_tables[v + 1]]``, with its ``stride`` and
    ``weight`` in each. No row is moved into a cell that is not ``allowed``.
    """
    changed = 0
    for i in order:
        for v in range(states.shape[1]):
            first, last = variable_tables[v], variable_tables[v + 1]
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


@njit(cache=True, nogil=True, error_model="numpy")
def exchange_states(
    states: Ints,
    cells: Ints,
    excess: Floats,
    allowed: Bools,
    variable_tables: Ints,
    table: Ints,
    stride: Ints,
    weight: Floats,
    order: Ints,
    partners: Ints,
) -> int:
    """One pass over pairs of rows: states of a variable are exchanged where that betters the counts; how many were.

    Counts of single variables stay as they are.
    """
    changed = 0
    for n in range(order.size):
        i, j = order[n], partners[n]
        for v in range(states.shape[1]):
            a, b = states[i, v], states[j, v]
            if a == b:
                continue
            first, last = variable_tables[v], variable_tables[v + 1]
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
