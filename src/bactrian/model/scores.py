"""From weights to scores and from beliefs to moments: the two linear maps of a log-linear model.

``scores`` computes theta = F w for every table entry and hub state; ``moments`` its transpose, E[f] = F' p. The two
implementations are the two routes by which data arrives: a sparse F given entry by entry, and the structured route
(input features x tied label tables), which never builds F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.kernels.sparse import rows_times_weights
from bactrian.kernels.threads import Workers, balanced_blocks

Floats = NDArray[np.float64]

#: Blocks for threads: fixed, so that results do not depend on the number of threads.
N_BLOCKS = 32

#: How a label table may be tied.
TYINGS = ("full", "symmetric", "potts")


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
        self.transposed = sp.csr_array(matrix.T)
        self.base = base
        self.n_weights = int(matrix.shape[1])

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        both = self.matrix @ weights
        both += self.base
        log_entries[:] = both[: log_entries.size]
        hub_scores[:] = both[log_entries.size :]

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`ScoreMap`."""
        product: Floats = self.transposed @ np.concatenate([counts, hub_counts])
        return product

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`ScoreMap`."""
        both = np.concatenate([counts, hub_counts])
        used = both != 0.0
        return float(both[used] @ self.base[used])


class Inputs:
    """Input rows (n_rows, n_inputs), dense or sparse, multiplied from both sides on several threads."""

    def __init__(self, matrix: Any) -> None:
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dense: Floats | None = None
        if sp.issparse(matrix):
            columns = sp.csc_array(matrix)
            self._rows = (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data)
            self._columns = (columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data)
            self._row_blocks = balanced_blocks(np.diff(self._rows[0]) + 1.0, N_BLOCKS)
            self._column_blocks = balanced_blocks(np.diff(self._columns[0]) + 1.0, N_BLOCKS)
        else:
            self.dense = np.ascontiguousarray(matrix, dtype=np.float64)
            self._row_blocks = balanced_blocks(np.ones(self.shape[0]), N_BLOCKS)

    def times(self, weights: Floats, out: Floats, workers: Workers) -> None:
        """``out = rows @ weights``."""
        dense = self.dense
        if dense is not None:
            workers.run(
                lambda _, first, last: np.matmul(dense[first:last], weights, out=out[first:last]), self._row_blocks
            )
        else:
            self._multiply(self._rows, self._row_blocks, weights, out, workers)

    def transposed_times(self, values: Floats, out: Floats, workers: Workers) -> None:
        """``out = rows.T @ values``."""
        dense = self.dense
        if dense is not None:
            parts = np.empty((self._row_blocks.size - 1, *out.shape))
            workers.run(
                lambda b, first, last: np.matmul(dense[first:last].T, values[first:last], out=parts[b]),
                self._row_blocks,
            )
            np.sum(parts, axis=0, out=out)
        else:
            self._multiply(self._columns, self._column_blocks, values, out, workers)

    @staticmethod
    def _multiply(
        compressed: tuple[NDArray[np.int64], NDArray[np.int32], Floats],
        blocks: NDArray[np.int64],
        right: Floats,
        out: Floats,
        workers: Workers,
    ) -> None:
        right = np.ascontiguousarray(right)
        workers.run(lambda _, first, last: rows_times_weights(*compressed, right, out, first, last), blocks)


@dataclass(frozen=True)
class TiedTable:
    """A label table (n_labels, n_labels) whose entries share weights.

    ``index[a, b]`` is the weight of entry (a, b), or -1 for an entry fixed at 0: ``full`` has one weight an entry,
    ``symmetric`` one an unordered pair, ``potts`` a single one for agreement.
    """

    tying: str
    index: NDArray[np.int64]
    n_tied: int

    @staticmethod
    def make(tying: str, n_labels: int) -> TiedTable:
        """The tying by its name."""
        square = (n_labels, n_labels)
        if tying == "full":
            index = np.arange(n_labels * n_labels, dtype=np.int64).reshape(square)
        elif tying == "symmetric":
            index = np.zeros(square, dtype=np.int64)
            upper = np.triu_indices(n_labels)
            index[upper] = np.arange(upper[0].size)
            index = np.maximum(index, index.T)
        elif tying == "potts":
            index = np.where(np.eye(n_labels, dtype=bool), 0, -1).astype(np.int64)
        else:
            raise ValueError(f"tying must be 'full', 'symmetric' or 'potts', found {tying!r}")
        return TiedTable(tying, index, int(index.max()) + 1)

    def expand(self, tied: Floats) -> Floats:
        """Tied weights (..., n_tied) to tables (..., n_labels * n_labels)."""
        padded = np.concatenate([tied, np.zeros((*tied.shape[:-1], 1))], axis=-1)
        return padded[..., self.index.ravel()]

    def reduce(self, counts: Floats) -> Floats:
        """The transpose of :meth:`expand`."""
        flat = self.index.ravel()
        indicator = np.zeros((flat.size, self.n_tied))
        used = np.flatnonzero(flat >= 0)
        indicator[used, flat[used]] = 1.0
        product: Floats = counts @ indicator
        return product


class StructuredScores:
    """Node scores X W and edge tables tied per type, with or without edge inputs.

    Weights are ordered as the node weights (n_inputs, n_labels), then for each edge type its tied table weights
    (n_edge_inputs, n_tied), each in C order. Without edge inputs all edges of a type share one table.
    """

    def __init__(
        self,
        inputs: Inputs,
        n_labels: int,
        tables: tuple[TiedTable, ...],
        edge_inputs: Inputs | None,
        edges_of_type: tuple[NDArray[np.int64], ...],
    ) -> None:
        self.inputs = inputs
        self.n_labels = n_labels
        self.tables = tables
        self.edge_inputs = edge_inputs
        self.edges_of_type = edges_of_type
        rows = 1 if edge_inputs is None else edge_inputs.shape[1]
        sizes = [inputs.shape[1] * n_labels] + [rows * table.n_tied for table in tables]
        self.bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self.n_weights = int(self.bounds[-1])

    def split(self, weights: Floats) -> tuple[Floats, list[Floats]]:
        """Node weights (n_inputs, n_labels) and tied table weights (n_edge_inputs or 1, n_tied) per type."""
        node = weights[: self.bounds[1]].reshape(-1, self.n_labels)
        tied = [
            weights[self.bounds[t + 1] : self.bounds[t + 2]].reshape(-1, table.n_tied)
            for t, table in enumerate(self.tables)
        ]
        return node, tied

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        node, tied = self.split(weights)
        self.inputs.times(node, hub_scores.reshape(-1, self.n_labels), workers)
        entries = log_entries.reshape(-1, self.n_labels**2)
        for t, table in enumerate(self.tables):
            if self.edge_inputs is None:
                entries[t] = table.expand(tied[t][0])
            else:
                chosen = self.edges_of_type[t]
                product = np.empty((self.edge_inputs.shape[0], table.n_tied))
                self.edge_inputs.times(tied[t], product, workers)
                entries[chosen] = table.expand(product[chosen])

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`ScoreMap`."""
        out = np.empty(self.n_weights)
        node, tied = self.split(out)
        self.inputs.transposed_times(hub_counts.reshape(-1, self.n_labels), node, workers)
        entries = counts.reshape(-1, self.n_labels**2)
        for t, table in enumerate(self.tables):
            if self.edge_inputs is None:
                tied[t][0] = table.reduce(entries[t])
            else:
                chosen = self.edges_of_type[t]
                per_edge = np.zeros((self.edge_inputs.shape[0], table.n_tied))
                per_edge[chosen] = table.reduce(entries[chosen])
                self.edge_inputs.transposed_times(per_edge, tied[t], workers)
        return out

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`ScoreMap`; there are no fixed scores on this route."""
        return 0.0
