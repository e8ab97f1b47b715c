"""Rows whose counts match given margins as closely as whole rows can.

n draws miss a probability p by about sqrt(p / n). Starting from such draws, which have the joint distribution's
dependences, single states are changed, and exchanged between rows, as long as that lowers the sum over all margins of
squared differences between the rows' counts and n times the margin. After each pass a margin's squares count by the
square of its distance to what it should be, so that the worst margins gain most and the search leaves local minima
(the breakout method: Morris, AAAI 1993). Few rows change, and none enters a cell of probability 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.rounding import change_states, exchange_states
from bactrian.graphs.graph import Scope, strides
from bactrian.graphs.ragged import pointer

#: Passes at most; a pass that betters less than this part of the rows is the last. Exchanges with a random row a pass.
_MOST_PASSES, _FEW, _EXCHANGES = 60, 2e-4, 2


def round_rows(
    states: Ints, cardinalities: Ints, scopes: Sequence[Scope], margins: Sequence[Floats], *, seed: int = 0
) -> Ints:
    """Rows near ``states`` with counts near n times the ``margins``, tables of probabilities over ``scopes``."""
    states = np.ascontiguousarray(states, dtype=np.int64).copy()
    n, n_variables = states.shape
    cells, excess = cells_of(states, cardinalities, scopes, margins)
    allowed = np.concatenate([table.ravel() for table in margins]) > 0.0
    entries = sorted(
        (v, t, stride) for t, scope in enumerate(scopes) for v, stride in strides(scope, cardinalities).items()
    )
    variable, table, stride = np.array(entries, dtype=np.int64).reshape(-1, 3).T.copy()
    variable_tables = pointer(np.bincount(variable, minlength=n_variables))
    random = np.random.default_rng(seed)
    weight = np.ones(len(scopes))
    for _ in range(_MOST_PASSES):
        around = variable_tables, table, stride, weight[table]
        bettered = change_states(states, cells, excess, allowed, cardinalities, *around, random.permutation(n))
        for _ in range(_EXCHANGES):
            partners = np.asarray(random.integers(0, n, n))
            bettered += exchange_states(states, cells, excess, allowed, *around, random.permutation(n), partners)
        if bettered <= _FEW * n:
            break
        distance = _distances(excess, margins, n)
        weight = 0.5 * (weight + (distance / max(distance.mean(), 1e-300)) ** 2)
    return states


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
    found: Floats = np.add.reduceat(np.abs(excess), pointer([table.size for table in margins])[:-1]) / (2.0 * n)
    return found
