"""Rows whose counts match given margins as closely as whole rows can.

n draws miss a probability p by about sqrt(p / n). Starting from such draws, which have the joint distribution's
dependences, single states are changed, and exchanged between rows, as long as that lowers the sum over all margins of
squared differences between the rows' counts and n times the margin. It is a descent to a local minimum: few rows
change, and no row enters a cell of probability 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.rounding import change_states, exchange_states
from bactrian.graphs.domain import strides
from bactrian.graphs.graph import Scope
from bactrian.graphs.ragged import pointer

#: Passes at most; a pass that betters less than this part of the rows is the last of its kind.
_MOST_PASSES, _FEW = 60, 2e-4


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
    for _ in range(_MOST_PASSES):
        changed = change_states(
            states, cells, excess, allowed, cardinalities, variable_tables, table, stride, random.permutation(n)
        )
        exchanged = 0
        for _ in range(4):
            order, partners = random.permutation(n), random.integers(0, n, n)
            exchanged += exchange_states(
                states, cells, excess, allowed, variable_tables, table, stride, order, np.asarray(partners)
            )
        if changed + exchanged <= _FEW * n:
            break
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
    _, excess = cells_of(states, cardinalities, scopes, margins)
    parts = np.split(np.abs(excess), np.cumsum([table.size for table in margins])[:-1])
    found: Floats = np.array([part.sum() for part in parts]) / (2.0 * states.shape[0])
    return found
