"""log Z of rows of one model given what was seen of each: the clamped side of :mod:`bactrian.learners.hidden`.

Variables are summed out of the cliques of a junction tree, one after the other, for all rows at once. What is left of a
row depends on what was seen of the variables that are gone: rows in which that is the same share it, and only entries
that some row allows are summed. This makes a list of sums of products (:mod:`bactrian.engines.numba.junction`), which
serves all weights.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.camel.dual import Evaluation
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.arithmetic import in_range
from bactrian.engines.numba.junction import Circuit, share_out, sum_products
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.junction import JunctionData
from bactrian.graphs.packed import Holes
from bactrian.graphs.packing import projection_map
from bactrian.graphs.ragged import Ragged, first_of, numbered, pointer


class _Left(NamedTuple):
    """What is left of rows after a step."""

    scope: list[int]
    kind: Ints  #: (R,) of each row
    size: int  #: states of the scope
    key: Ints  #: kind * size + state of each entry that some row allows, ascending
    number: Ints  #: of the entry among the numbers of the circuit

    def numbers(self, row: Ints, state: Ints) -> Ints:
        """Those of entries of rows."""
        return self.number[np.searchsorted(self.key, self.kind[row] * self.size + state)]


class SharedRows:
    """The clamped dual of rows as a function of the weights, in place of a :class:`ProfiledObjective`."""

    converged, failures, accuracy = True, 0, 0.0  #: nothing is approximate
    fits = True  #: whether the list is short enough
    last: Evaluation

    def __init__(self, junction: JunctionData, holes: Holes, workers: Workers) -> None:
        tree, self._sizes = junction.trees[0].tree, junction.trees[0].sizes
        self._packed, self._workers = junction.packed, workers
        self._allowed = np.split(~holes.forbidden, pointer(self._sizes)[1:-1], axis=1)  # states, by variable
        offsets = self._packed.layout.table_offset.tolist()
        self._n_numbers = offsets[-1]
        self._n_terms: list[Ints] = []
        self._terms: list[NDArray[np.int32]] = []  # of every step, (terms, factors of each)
        parents = {child: parent for child, parent, _ in tree.edges}
        incoming: list[list[_Left]] = [[] for _ in tree.cliques]
        ends: list[Ints] = []
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
            else:
                (last,) = factors
                ends.append(last.numbers(np.arange(last.kind.size), np.zeros_like(last.kind)))
        self._ends, self._of_ends = np.concatenate(ends), np.tile(holes.weights[:, 0], len(ends))
        self._total = float(holes.weights.sum())
        self._circuit = Circuit(
            offsets[-1],
            pointer(np.concatenate(self._n_terms)),
            pointer(np.concatenate([np.full(len(own), own.shape[1]) for own in self._terms])),
            np.concatenate([own.ravel() for own in self._terms]),
        )

    def _step(self, table: int, scope: list[int], variable: int, incoming: list[_Left]) -> _Left | None:
        """Sum a variable out of the clique's table, if it still has one (not -1), times what comes in."""
        at, shape, allowed = scope.index(variable), tuple(self._sizes[v] for v in scope), self._allowed[variable]
        left, stride = [v for v in scope if v != variable], prod(shape[at + 1 :])
        size = prod(shape) // shape[at]
        kind = Ragged(np.arange(0, allowed.size + 1, shape[at]), allowed.ravel().astype(np.int64)).kinds()
        for each in incoming:
            kind = numbered(kind * (each.kind.max() + 1) + each.kind)
        n_allowed = np.prod([self._allowed[v].sum(axis=1, dtype=np.float64) for v in left], axis=0)
        if np.sum(n_allowed) > SCHEDULE.most_shared:
            return None
        row, state = np.arange(kind.size), np.zeros_like(kind)  # entries that rows allow
        for v in left:
            first, own = np.nonzero(self._allowed[v][row])
            row, state = row[first], state[first] * self._sizes[v] + own
        every = kind[row] * size + state
        key = every[first_of(numbered(every))]
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
        if sum(each.size for each in self._terms) > SCHEDULE.most_shared:
            return None
        return _Left(left, kind, size, key, number)

    def accept(self) -> None:
        """Nothing is kept from one point to the next."""

    forget = accept

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """log Z of all rows, and the features that they expect."""
        layout, scores, circuit = self._packed.layout, self._packed.scores, self._circuit
        tables, hubs = np.empty(layout.n_entries), np.zeros(layout.n_hub_states)
        numbers, shares = np.empty(self._n_numbers), np.zeros(self._n_numbers)
        scores.scores(weights, tables, hubs, self._workers)
        top = np.maximum.reduceat(tables, layout.table_offset[:-1])
        numbers[: tables.size] = np.exp(tables - np.repeat(top, np.diff(layout.table_offset)))
        sum_products(circuit, numbers, True)
        ends = numbers[self._ends]
        linear = in_range(ends, ends.size)
        if linear:
            value = float(self._of_ends @ np.log(ends) + self._total * top.sum())
        else:
            numbers[: tables.size] = tables
            sum_products(circuit, numbers, False)
            value = float(self._of_ends @ numbers[self._ends])
        np.add.at(shares, self._ends, self._of_ends)
        share_out(circuit, numbers, shares, linear)
        moments = scores.moments(shares[: tables.size], np.zeros_like(hubs), self._workers)
        self.last = Evaluation(value, moments, 0.0, 0, 0.0)
        return value, moments
