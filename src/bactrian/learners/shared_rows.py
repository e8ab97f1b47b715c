"""log Z of rows of one model given what was seen of each: the clamped side of :mod:`bactrian.learners.hidden`.

Variables are summed out of the cliques of a junction tree, one after the other, for all rows at once. What is left of a
row depends on what was seen of the variables that are gone: rows in which that is the same share it, and only entries
that some row allows are summed. Where all variables that are left of a step were seen, what is gone is independent of
the rest: its sum, a factor of the row's Z, is put by, and the row goes on as if it had none, with all others of which
that holds. This makes a list of sums of products (:mod:`bactrian.engines.numba.junction`), which serves all weights.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.camel.dual import Evaluation
from bactrian.engines.numba.arithmetic import LEAST, MOST
from bactrian.engines.numba.junction import Circuit, differentiate, log_sum_products, share_out, sum_products
from bactrian.graphs.junction import JunctionData
from bactrian.graphs.packed import Holes
from bactrian.graphs.packing import projection_map
from bactrian.graphs.ragged import first_of, kinds_of_flags, numbered, pointer
from bactrian.parallel.threads import Workers

#: Entries that rows allow in a step, and factors of all sums of products, up to which rows share them: 64 MB.
MOST_SHARED = 2**24


class _Left(NamedTuple):
    """What is left of rows after a step."""

    scope: list[int]
    kind: Ints  #: (R,) of each row
    size: int  #: states of the scope
    key: Ints  #: kind * size + state of each entry that some row allows, ascending
    number: Ints  #: of the entry among the numbers of the circuit

    def numbers(self, row: Ints, state: NDArray[Any]) -> Ints:
        """Those of entries of rows."""
        return self.number[np.searchsorted(self.key, self.kind[row] * self.size + state)]


class SharedRows:
    """The clamped dual of rows as a function of the weights, in place of a :class:`ProfiledObjective`."""

    converged, failures = True, 0  #: nothing is approximate
    fits = True  #: whether the list is short enough
    last: Evaluation

    def __init__(self, junction: JunctionData, holes: Holes, workers: Workers) -> None:
        tree, self._sizes = junction.trees[0].tree, junction.trees[0].sizes
        self._packed, self._workers = junction.packed, workers
        self._allowed = np.split(~holes.forbidden, pointer(self._sizes)[1:-1], axis=1)  # states, by variable
        self._n_allowed = [np.count_nonzero(allowed, axis=1) for allowed in self._allowed]
        offsets = self._packed.layout.table_offset.tolist()
        self._one, self._n_numbers = offsets[-1], offsets[-1] + 1  # the last of the given numbers is 1
        self._put_by: list[Ints] = []  # (2, n) factors of rows' Z: their numbers, and the rows
        self._n_terms: list[Ints] = []
        self._terms: list[NDArray[np.int32]] = []  # of every step, (terms, factors of each)
        parents = {child: parent for child, parent, _ in tree.edges}
        incoming: list[list[_Left]] = [[] for _ in tree.cliques]
        for clique, sepset in reversed(tree.downwards):
            scope, table, factors = list(tree.cliques[clique]), offsets[clique], incoming[clique]
            for variable in [v for v in scope if v not in sepset]:
                left = self._step(table, scope, variable, factors)
                if left is None:
                    self.fits = False
                    return
                scope, table, factors = left.scope, -1, [left]
            if clique in parents:
                incoming[parents[clique]] += factors
        number, row = np.concatenate(self._put_by, axis=1)
        weights = np.bincount(number, holes.weights[row, 0], minlength=self._n_numbers)
        self._ends = np.flatnonzero(weights)
        self._of_ends, self._total = weights[self._ends], float(holes.weights.sum())
        self._circuit = Circuit(
            self._one + 1,
            pointer([own.size for own in self._n_terms]),
            pointer(np.concatenate(self._n_terms)).astype(np.int32),
            np.array([own.shape[1] for own in self._terms]),
            np.concatenate([own.ravel() for own in self._terms]),
        )

    def _step(self, table: int, scope: list[int], variable: int, incoming: list[_Left]) -> _Left | None:
        """Sum a variable out of the clique's table, if it still has one (not -1), times what comes in."""
        at, shape, allowed = scope.index(variable), tuple(self._sizes[v] for v in scope), self._allowed[variable]
        left, stride = [v for v in scope if v != variable], prod(shape[at + 1 :])
        size = prod(shape) // shape[at]
        kind = kinds_of_flags(allowed)
        for each in incoming:
            kind = numbered(kind * (each.kind.max() + 1) + each.kind)
        n_allowed = np.prod([np.ones(kind.size), *(self._n_allowed[v] for v in left)], axis=0)
        if np.sum(n_allowed) > MOST_SHARED:
            return None
        every_row, every_state = np.arange(kind.size), np.zeros_like(kind)  # entries that rows allow
        for v in left:
            first, own = np.nonzero(self._allowed[v][every_row])
            every_row, every_state = every_row[first], every_state[first] * self._sizes[v] + own
        keys = kind[every_row] * size + every_state
        every = numbered(keys)
        key = keys[first_of(every)]
        row, state = first_of(kind)[key // size], key % size
        owner, own = np.nonzero(allowed[row])  # a term for every state of the variable
        cell = (state // stride * stride * shape[at] + state % stride)[owner] + stride * own
        factors = [table + cell] if table >= 0 else []
        for each in incoming:
            projected = projection_map(shape, tuple(map(scope.index, each.scope)))[cell]
            factors.append(each.numbers(row[owner], projected))
        terms, n_terms = np.stack(factors, axis=1), np.bincount(owner)
        is_sum = (n_terms > 1) | (len(factors) > 1)
        number = np.where(is_sum, self._n_numbers - 1 + np.cumsum(is_sum), terms[pointer(n_terms)[:-1], 0])
        self._n_numbers += int(is_sum.sum())
        self._n_terms.append(n_terms[is_sum])
        self._terms.append(terms[is_sum[owner]].astype(np.int32))
        if sum(each.size for each in self._terms) > MOST_SHARED:
            return None
        seen = (n_allowed == 1.0)[every_row]  # all that is left of the row
        self._put_by.append(np.stack([number[every[seen]], every_row[seen]]))
        kind = numbered(np.where(n_allowed == 1.0, 0, kind + 1))
        keys = kind[every_row] * size + every_state
        place = first_of(numbered(keys))
        return _Left(left, kind, size, keys[place], np.where(seen, self._one, number[every])[place])

    def accept(self) -> None:
        """Nothing is kept from one point to the next."""

    forget = accept

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """log Z of all rows, and the features that they expect."""
        layout, scores, circuit = self._packed.layout, self._packed.scores, self._circuit
        n, tables, hubs = layout.n_entries, np.empty(layout.n_entries), np.zeros(layout.n_hub_states)
        numbers, shares = np.empty(self._n_numbers), np.zeros(self._n_numbers)
        scores.scores(weights, tables, hubs, self._workers)
        top = np.maximum.reduceat(tables, layout.table_offset[:-1])
        np.exp(tables - np.repeat(top, np.diff(layout.table_offset)), out=numbers[:n])
        numbers[n] = 1.0
        sum_products(circuit, numbers)
        ends = numbers[self._ends]
        if ends.min() > LEAST and ends.max() < MOST:
            value = float(self._of_ends @ np.log(ends) + self._total * top.sum())
            shares[self._ends] = self._of_ends / ends
            differentiate(circuit, numbers, shares)
            shares[:n] *= numbers[:n]
        else:
            numbers[:n], numbers[n] = tables, 0.0
            log_sum_products(circuit, numbers)
            value = float(self._of_ends @ numbers[self._ends])
            shares[self._ends] = self._of_ends
            share_out(circuit, numbers, shares)
        moments = scores.moments(shares[:n], np.zeros_like(hubs), self._workers)
        self.last = Evaluation(value, moments, 0.0, 0, 0.0)
        return value, moments
