"""Rows rounded to match margins.

n draws miss a probability p by about sqrt(p / n). :func:`round_rows` starts from such draws, which have the joint
distribution's dependences, or from those of :func:`draw_along`, which have the dependences of a tree of margins. Single
states are changed, and exchanged between rows, as long as that lowers the sum over all margins of squared differences
between the rows' counts and n times the margin. After each pass a margin's squares count by the square of its distance
to what it should be, so that the worst margins gain most and the search leaves local minima (the breakout method:
Morris, AAAI 1993). No row enters a cell of probability 0.

With e the excess of the cells that a change leaves and enters, moving a row from one to the other changes the sum of
squares by 2 (e_entered - e_left + 1) per table, which counts by its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import rel_entr

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel
from bactrian.graphs.graph import Scope, strides
from bactrian.graphs.ragged import pointer
from bactrian.inference.draw import draw_clique
from bactrian.margins.given import projected

#: Passes at most; a pass that betters less than this part of the rows is the last. Exchanges with a random row a pass.
_MOST_PASSES, _FEW, _EXCHANGES = 60, 2e-4, 2
#: Passes in which the largest or the mean distance must fall by this part, or the last one ends the search.
_PATIENCE, _WORTH = 4, 0.02


class RowsInTables(NamedTuple):
    """Rows, and where they are in tables over some variables, whose cells lie one after the other."""

    states: Ints  #: (n, V)
    cells: Ints  #: (n, T) the cell of each table that a row is in
    excess: Floats  #: (n_cells,) the count of each cell less its target
    barrier: Floats  #: (n_cells,) 0, or infinity where no row may be moved


class TablesAround(NamedTuple):
    """The tables that each variable is in."""

    bounds: Ints  #: (V + 1,) range of a variable's tables in the other three
    table: Ints
    stride: Ints  #: of the variable in the table
    weight: Floats  #: of the table's squares


@kernel()
def change_states(rows: RowsInTables, around: TablesAround, cardinalities: Ints, order: Ints) -> int:
    """One pass: every state that another would better is changed to the best other; returns how many were."""
    states, cells, excess, barrier = rows
    bounds, table, stride, weight = around
    changed, changes = 0, np.empty(cardinalities.max())
    for i in order:
        for v in range(states.shape[1]):
            first, last = bounds[v], bounds[v + 1]
            worst = 0.0
            for k in range(first, last):
                worst = max(worst, excess[cells[i, table[k]]])
            if worst <= 0.5:
                continue
            state, best, gain, size = states[i, v], -1, -1e-9, cardinalities[v]
            changes[:size] = 0.0
            for k in range(first, last):
                left = cells[i, table[k]]
                start, own = left - state * stride[k], excess[left] - 1.0
                if stride[k] == 1:  # told apart, so that it is compiled to vector instructions
                    for other in range(size):
                        changes[other] += weight[k] * (excess[start + other] - own) + barrier[start + other]
                else:
                    for other in range(size):
                        entered = start + other * stride[k]
                        changes[other] += weight[k] * (excess[entered] - own) + barrier[entered]
            changes[state] = 0.0
            for other in range(size):
                if changes[other] < gain:
                    best, gain = other, changes[other]
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
    states, cells, excess, barrier = rows
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
                possible = possible and barrier[into_i] == 0.0 and barrier[into_j] == 0.0
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


def round_rows(
    states: Ints,
    cardinalities: Ints,
    scopes: Sequence[Scope],
    margins: Sequence[Floats],
    possible: Sequence[tuple[Scope, Bools]] = (),
    *,
    seed: int = 0,
) -> Ints:
    """Rows near ``states`` with counts near n times the ``margins``, tables of probabilities over ``scopes``.

    No row enters a cell that is not ``possible``, in tables over further scopes.
    """
    states = np.ascontiguousarray(states, dtype=np.int64).copy()
    n, n_variables = states.shape
    # Tables of what is possible are margins of weight 0; with a target of n rows no cell of theirs has too many.
    given = [*scopes, *(scope for scope, _ in possible)]
    tables = [
        *margins,
        *(table.reshape([cardinalities[v] for v in scope]).astype(np.float64) for scope, table in possible),
    ]
    # The variable of most states comes last, so that its states lie side by side.
    scopes = [tuple(sorted(scope, key=lambda v: int(cardinalities[v]))) for scope in given]
    tables = [
        table.transpose([of.index(v) for v in scope]) for table, of, scope in zip(tables, given, scopes, strict=True)
    ]
    cells, excess = cells_of(states, cardinalities, scopes, tables)
    barrier = np.where(np.concatenate([table.ravel() for table in tables]) > 0.0, 0.0, np.inf)
    rows = RowsInTables(states, cells, excess, barrier)
    entries = sorted(
        (v, t, stride) for t, scope in enumerate(scopes) for v, stride in strides(scope, cardinalities).items()
    )
    variable, table, stride = np.array(entries, dtype=np.int64).reshape(-1, 3).T.copy()
    bounds = pointer(np.bincount(variable, minlength=n_variables))
    random = np.random.default_rng(seed)
    counted = slice(0, len(margins))
    weight = np.zeros(len(scopes))
    weight[counted] = 1.0
    best, waited = np.array([np.inf, np.inf]), 0
    for _ in range(_MOST_PASSES):
        around = TablesAround(bounds, table, stride, weight[table])
        bettered = change_states(rows, around, cardinalities, random.permutation(n))
        for _ in range(_EXCHANGES):
            partners = np.asarray(random.integers(0, n, n))
            bettered += exchange_states(rows, around, random.permutation(n), partners)
        if bettered <= _FEW * n:
            break
        distance = _distances(excess, tables, n)[counted]
        reached = np.array([distance.mean(), distance.max()])
        waited = 0 if (reached < (1.0 - _WORTH) * best).any() else waited + 1
        best = np.where(reached < (1.0 - _WORTH) * best, reached, best)
        if waited == _PATIENCE:
            break
        weight[counted] = 0.5 * (weight[counted] + (distance / max(distance.mean(), 1e-300)) ** 2)
    return states


def draw_along(cardinalities: Ints, scopes: Sequence[Scope], margins: Sequence[Floats], n: int, *, seed: int) -> Ints:
    """(n, n_variables) rows down a tree of margins, in proportion as far as whole rows can.

    The next variable is the one that a margin tells most about, by mutual information, from its variables drawn before.
    """
    states, random = np.zeros((n, cardinalities.size), dtype=np.int64), np.random.default_rng(seed)
    drawn: set[int] = set()
    while len(drawn) < cardinalities.size:
        best, least = None, -np.inf
        for scope, table in zip(scopes, margins, strict=True):
            parents = tuple(v for v in scope if v in drawn)
            for v in scope:
                joint = None if v in drawn else projected(table, scope, (*parents, v)).reshape(-1, cardinalities[v])
                told = -np.inf if joint is None else _information(joint) if parents else -1.0 / table.size
                if told > least:
                    best, least = (parents, v, projected(table, scope, (*parents, v))), told
        if best is None:  # in no margin
            v = next(v for v in range(cardinalities.size) if v not in drawn)
            best = (), v, np.full(cardinalities[v], 1.0 / cardinalities[v])
        parents, v, table = best
        draw_clique(table, (*parents, v), parents, states, random, even=True)
        drawn.add(v)
    return states


def _information(joint: Floats) -> float:
    """Mutual information between the rows and the columns of a table."""
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    return float(rel_entr(joint, apart).sum())


def cells_of(
    states: Ints, cardinalities: Ints, scopes: Sequence[Scope], margins: Sequence[Floats]
) -> tuple[Ints, Floats]:
    """(n, n_margins) cell of every row in every margin, numbered through, and each cell's count less its target."""
    offset = pointer([table.size for table in margins])
    cells = np.empty((states.shape[0], len(scopes)), dtype=np.int64)
    for t, scope in enumerate(scopes):
        steps = strides(scope, cardinalities)
        cells[:, t] = offset[t] + sum(stride * states[:, v] for v, stride in steps.items())
    counts = np.bincount(cells.ravel(), minlength=int(offset[-1]))
    excess: Floats = counts - states.shape[0] * np.concatenate([table.ravel() for table in margins])
    return cells, excess


def distances(states: Ints, cardinalities: Ints, scopes: Sequence[Scope], margins: Sequence[Floats]) -> Floats:
    """(n_margins,) total variation between the margins of rows and given ones."""
    return _distances(cells_of(states, cardinalities, scopes, margins)[1], margins, states.shape[0])


def _distances(excess: Floats, margins: Sequence[Floats], n: int) -> Floats:
    return np.add.reduceat(np.abs(excess), pointer([table.size for table in margins])[:-1]) / (2.0 * n)
