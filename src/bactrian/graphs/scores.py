"""From weights to scores and from beliefs to moments: the two linear maps of a log-linear model.

``scores`` computes theta = F w for every table entry and hub state; ``moments`` its transpose, E[f] = F' p. Data
arrives by two routes, a sparse F given entry by entry and the structured one (input features x tied label tables),
which never builds F; :class:`SpreadScores` passes either on to other tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.inputs import Inputs
from bactrian.graphs.ragged import pointer
from bactrian.parallel.threads import Workers

#: How a label table may be tied.
TYINGS = ("full", "symmetric", "diagonal", "potts", "pooled")


class ScoreMap(Protocol):
    """The linear map F of a packed data set."""

    n_weights: int

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """Fill the scores of table entries and hub states."""

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """F' applied to weighted beliefs, shape (n_weights,)."""

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """Weighted sum of the fixed scores, those that no weight multiplies."""


class SparseScores:
    """F given as a sparse matrix over table entries followed by hub states, with fixed base scores."""

    def __init__(self, matrix: sp.csr_array, base: Floats) -> None:
        self.matrix = matrix
        self.base = base
        self._inputs = Inputs(matrix)
        self.n_weights = int(matrix.shape[1])

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        both = np.empty(self.base.size)
        self._inputs.times(weights[:, None], both[:, None], workers)
        cut = log_entries.size
        np.add(both[:cut], self.base[:cut], out=log_entries)
        np.add(both[cut:], self.base[cut:], out=hub_scores)

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`ScoreMap`."""
        out = np.empty(self.n_weights)
        self._inputs.transposed_times(np.concatenate([counts, hub_counts])[:, None], out[:, None], workers)
        return out

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`ScoreMap`."""
        both = np.concatenate([counts, hub_counts])
        used = both != 0.0
        return float(both[used] @ self.base[used])


class SpreadScores:
    """Scores that are sums of original ones, such as those of cliques that took the original clusters in.

    ``spread`` has shape (new table entries + new hub states, original table entries + original hub states), the
    original table entries being ``n_entries``; ``fixed`` is added to the new ones.
    """

    def __init__(self, original: ScoreMap, n_entries: int, spread: sp.csr_array, fixed: Floats | None = None) -> None:
        self._original, self._n_entries, self._spread, self._fixed = original, n_entries, spread, fixed
        self._gather = sp.csr_array(spread.T)
        self.n_weights = original.n_weights

    @staticmethod
    def of_ones(
        original: ScoreMap, old: Layout, new: Layout, rows: Sequence[Ints], columns: Sequence[Ints]
    ) -> SpreadScores:
        """Each new entry or state of ``rows`` has the original one of ``columns`` in its sum, both numbered through."""
        flat = (
            np.concatenate([np.zeros(0, dtype=np.int64), *rows]),
            np.concatenate([np.zeros(0, dtype=np.int64), *columns]),
        )
        shape = (new.n_entries + new.n_hub_states, old.n_entries + old.n_hub_states)
        return SpreadScores(original, old.n_entries, sp.csr_array((np.ones(flat[0].size), flat), shape=shape))

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        old = np.empty(self._spread.shape[1])
        self._original.scores(weights, old[: self._n_entries], old[self._n_entries :], workers)
        both = self._spread @ old
        if self._fixed is not None:
            both += self._fixed
        log_entries[:] = both[: log_entries.size]
        hub_scores[:] = both[log_entries.size :]

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`ScoreMap`."""
        old = self._gather @ np.concatenate([counts, hub_counts])
        return self._original.moments(old[: self._n_entries], old[self._n_entries :], workers)

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`ScoreMap`."""
        old = self._gather @ np.concatenate([counts, hub_counts])
        return self._original.base_score(old[: self._n_entries], old[self._n_entries :])


class RememberedScores:
    """Scores that two models share: those of the last weights are computed once."""

    def __init__(self, original: ScoreMap, layout: Layout) -> None:
        self._original, self._weights = original, np.full(original.n_weights, np.nan)
        self._entries, self._states = np.empty(layout.n_entries), np.empty(layout.n_hub_states)
        self.n_weights, self.moments, self.base_score = original.n_weights, original.moments, original.base_score

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        if not np.array_equal(weights, self._weights):
            self._original.scores(weights, self._entries, self._states, workers)
            self._weights = weights.copy()
        log_entries[:] = self._entries
        hub_scores[:] = self._states


@dataclass(frozen=True)
class TiedTable:
    """A label table (n_labels, n_labels) whose entries share weights.

    ``index[a, b]`` is the weight of entry (a, b), or -1 for an entry fixed at 0: ``full`` has one weight per entry,
    ``symmetric`` one per unordered pair, ``diagonal`` one per label for agreement on it, ``potts`` a single one for
    agreement. ``pooled`` adds two of these: weight 0, in units of ``attraction``, for agreement on any label, and a
    deviation from it for every unordered pair, which ``index`` names. The unit makes the sums of squares of both
    features alike: with a larger one, first steps of learning overshoot.
    """

    tying: str
    index: Ints
    n_tied: int

    @property
    def is_pooled(self) -> bool:
        """Whether weight 0 is added to all entries of agreement, besides the weights in ``index``."""
        return self.tying == "pooled"

    @property
    def attraction(self) -> float:
        """What weight 0 of a pooled table is multiplied by."""
        return float(len(self.index) ** -0.5)

    @staticmethod
    @cache
    def make(tying: str, n_labels: int) -> TiedTable:
        """The tying by its name."""
        square = (n_labels, n_labels)
        if tying == "full":
            index = np.arange(n_labels * n_labels, dtype=np.int64).reshape(square)
        elif tying in ("symmetric", "pooled"):
            index = np.zeros(square, dtype=np.int64)
            upper = np.triu_indices(n_labels)
            index[upper] = np.arange(upper[0].size) + (tying == "pooled")
            index = np.maximum(index, index.T)
        elif tying == "diagonal":
            index = np.where(np.eye(n_labels, dtype=bool), np.arange(n_labels), -1).astype(np.int64)
        elif tying == "potts":
            index = np.where(np.eye(n_labels, dtype=bool), 0, -1).astype(np.int64)
        else:
            raise ValueError(f"tying must be one of {', '.join(TYINGS)}, found {tying!r}")
        return TiedTable(tying, index, int(index.max()) + 1)

    def expand(self, tied: Floats) -> Floats:
        """Tied weights (..., n_tied) to tables (..., n_labels * n_labels)."""
        if self.tying == "full":
            return tied
        padded = np.concatenate([tied, np.zeros((*tied.shape[:-1], 1))], axis=-1)
        tables: Floats = padded[..., self.index.ravel()]
        if self.is_pooled:
            tables[..., :: len(self.index) + 1] += self.attraction * tied[..., :1]
        return tables

    def reduce(self, counts: Floats) -> Floats:
        """The transpose of :meth:`expand`."""
        if self.tying == "full":
            return counts
        entries, starts = self.by_weight
        totals: Floats = np.add.reduceat(counts[..., entries], starts, axis=-1)
        if self.is_pooled:
            totals[..., 0] *= self.attraction
        return totals

    @cached_property
    def by_weight(self) -> tuple[Ints, Ints]:
        """The entries of each weight, one weight after the other, and where those of each begin."""
        flat = self.index.ravel()
        places = np.arange(flat.size)
        if self.is_pooled:
            places, flat = np.r_[places[:: len(self.index) + 1], places], np.r_[np.zeros(len(self.index), int), flat]
        order = np.argsort(flat, kind="stable")[int((flat < 0).sum()) :]
        return places[order], np.searchsorted(flat[order], np.arange(self.n_tied))


@dataclass(frozen=True)
class EdgeType:
    """Edges of one type: how their tables are tied, their inputs, and where their tables are.

    Without inputs all edges of the type share one table, and ``rows`` holds its number alone; with inputs every edge
    has a table of its own, the sum of the type's tables weighted by the edge's inputs.
    """

    table: TiedTable
    inputs: Inputs | None
    rows: Ints  #: numbers of the tables: one, or one per edge of the type

    @property
    def n_inputs(self) -> int:
        """Number of tables that the type's weights make up."""
        return 1 if self.inputs is None else self.inputs.shape[1]


class StructuredScores:
    """Node scores X W and edge tables tied per type, with or without edge inputs.

    Weights are ordered as the node weights (n_inputs, n_labels), then for each edge type its tied table weights
    (n_edge_inputs, n_tied), each in C order. ``active`` marks the weights that are learned: moments of the others are
    0, so that neither a gradient nor a prior moves them from 0.
    """

    def __init__(self, inputs: Inputs, n_labels: int, types: tuple[EdgeType, ...], active: Bools | None = None) -> None:
        self.active = active
        self.inputs = inputs
        self.n_labels = n_labels
        self.types = types
        sizes = [inputs.shape[1] * n_labels] + [kind.n_inputs * kind.table.n_tied for kind in types]
        self.bounds = pointer(sizes)
        self.n_weights = int(self.bounds[-1])

    def squared(self) -> StructuredScores:
        """The same map for inputs that are squared."""
        types = (replace(kind, inputs=None if kind.inputs is None else kind.inputs.squared()) for kind in self.types)
        return StructuredScores(self.inputs.squared(), self.n_labels, tuple(types), self.active)

    def squares_and_counts(self) -> tuple[Floats, Floats]:
        """Of every weight, the sum of squared entries of its input, and how many are not 0; 1 for tables without."""
        columns = [(*self.inputs.squares_and_counts(), self.n_labels)]
        for kind in self.types:
            own = (np.ones(1), np.ones(1)) if kind.inputs is None else kind.inputs.squares_and_counts()
            columns.append((*own, kind.table.n_tied))
        squares, counts = (np.concatenate([np.repeat(c[k], c[2]) for c in columns]).astype(np.float64) for k in (0, 1))
        return squares, counts

    def split(self, weights: Floats) -> tuple[Floats, list[Floats]]:
        """Node weights (n_inputs, n_labels) and tied table weights (n_edge_inputs or 1, n_tied) per type."""
        node = weights[: self.bounds[1]].reshape(-1, self.n_labels)
        tied = [
            weights[self.bounds[t + 1] : self.bounds[t + 2]].reshape(-1, kind.table.n_tied)
            for t, kind in enumerate(self.types)
        ]
        return node, tied

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        node, tied = self.split(weights)
        self.inputs.times(node, hub_scores.reshape(-1, self.n_labels), workers)
        entries = log_entries.reshape(-1, self.n_labels**2)
        for kind, part in zip(self.types, tied, strict=True):
            product = part
            if kind.inputs is not None:
                product = np.empty((kind.inputs.shape[0], kind.table.n_tied))
                kind.inputs.times(part, product, workers)
            entries[kind.rows] = kind.table.expand(product)

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`ScoreMap`."""
        out = np.empty(self.n_weights)
        node, tied = self.split(out)
        self.inputs.transposed_times(hub_counts.reshape(-1, self.n_labels), node, workers)
        entries = counts.reshape(-1, self.n_labels**2)
        for kind, part in zip(self.types, tied, strict=True):
            reduced = kind.table.reduce(entries[kind.rows])
            if kind.inputs is None:
                part[:] = reduced
            else:
                kind.inputs.transposed_times(reduced, part, workers)
        if self.active is not None:
            np.multiply(out, self.active, out=out)
        return out

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`ScoreMap`; there are no fixed scores on this route."""
        return 0.0
