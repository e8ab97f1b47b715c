"""Input rows: the features of nodes or edges, before labels come in.

Rows come dense, sparse, or in two stages (:class:`BundledRows`), where many rows share whole bundles of features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints, real_numbers
from bactrian.engines.numba.sparse import Compressed, rows_times_weights
from bactrian.parallel.threads import Workers, balanced_blocks, blocks_of_rows

#: Magnitude of features up to which sums of their squares do not overflow.
LARGEST = 1e100
#: Blocks for threads: fixed, so that results do not depend on the number of threads.
N_BLOCKS = 32
#: Entries below which a block is not worth a call of its own.
_LEAST = 10_000.0
#: Arrays of compressed rows or columns.
_PARTS = ("indptr", "indices", "data")

#: Labels up to which a version of the product is compiled for their number, and products from which that pays.
_MOST_UNROLLED, _WORTH_COMPILING = 20, 100_000


@dataclass(frozen=True)
class BundledRows:
    """Input rows X = own + use @ bundles, of shape (n_rows, n_inputs), never multiplied out.

    Where many rows share a large part (all features that depend on a word alone, say), that part is a bundle: it is
    multiplied by the weights once, not once per row.
    """

    own: sp.csr_array  #: (n_rows, n_inputs) what belongs to a row alone
    use: sp.csr_array  #: (n_rows, n_bundles) how often a row uses each bundle
    bundles: sp.csr_array  #: (n_bundles, n_inputs)

    def __post_init__(self) -> None:
        if self.own.shape[0] != self.use.shape[0] or self.own.shape[1] != self.bundles.shape[1]:
            raise ValueError(f"own has shape {self.own.shape}, which fits neither use nor bundles")
        if self.use.shape[1] != self.bundles.shape[0]:
            raise ValueError(f"use names {self.use.shape[1]} bundles, found {self.bundles.shape[0]}")

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_inputs)."""
        return int(self.own.shape[0]), int(self.own.shape[1])

    def multiplied_out(self) -> sp.csr_array:
        """The rows as one sparse matrix."""
        return sp.csr_array(self.own + self.use @ self.bundles)


def squared(matrix: Any) -> Any:
    """Rows of squares; what is in several bundles of a row counts for each by itself."""
    if isinstance(matrix, BundledRows):
        return BundledRows(matrix.own.power(2), matrix.use, matrix.bundles.power(2))
    return matrix.power(2) if sp.issparse(matrix) else np.square(matrix)


def checked_rows(matrix: Any, name: str) -> Any:
    """Finite rows of real numbers, dense or sparse CSR float64 or bundled, or an error that calls them ``name``."""
    if isinstance(matrix, BundledRows):
        parts = {part: checked_rows(getattr(matrix, part), f"{name}.{part}") for part in ("own", "use", "bundles")}
        return BundledRows(**parts)
    if sp.issparse(matrix):
        if matrix.dtype.kind not in "biuf":
            raise TypeError(f"{name} must hold real numbers, found dtype {matrix.dtype}")
        if matrix.ndim != 2:
            raise ValueError(f"{name} must be a matrix, found shape {matrix.shape}")
        rows: Any = sp.csr_array(matrix, dtype=np.float64)
        if not rows.has_canonical_format:
            rows = rows.copy()  # the arrays are the caller's, and may be read-only
            rows.sum_duplicates()
    else:
        rows = real_numbers(matrix, name)
        if rows.ndim != 2:
            raise ValueError(f"{name} must be a matrix, found shape {rows.shape}")
    largest = float(np.abs(rows.data if sp.issparse(rows) else rows).max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueError(f"{name} holds NaN or infinite values; features must be finite")
    if largest > LARGEST:
        raise ValueError(f"{name} holds {largest:g} in magnitude, whose square overflows; scale features to about 1")
    return rows


class Inputs:
    """Input rows (n_rows, n_inputs), dense, sparse or bundled, multiplied from both sides on several threads.

    Bundled rows are the product [own, use] @ [I; bundles]: ``times`` multiplies the weights by the second factor first,
    ``transposed_times`` last.

    Attributes
    ----------
    dense : array or None
        The rows, where they are dense.
    compressed : tuple
        Bounds, columns and values of sparse rows, those of bundles behind their own.
    bundles : Inputs or None
        The second factor of bundled rows.
    """

    def __init__(self, matrix: Any) -> None:
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dense: Floats | None = None
        self.bundles: Inputs | None = None
        if isinstance(matrix, BundledRows):
            self.bundles = Inputs(matrix.bundles)
            matrix = sp.csr_array(sp.hstack([matrix.own, matrix.use], format="csr"))
        if sp.issparse(matrix):
            self.compressed = (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data)
            self._n_columns = int(matrix.shape[1])
            self._row_blocks = blocks_of_rows(self.compressed[0], N_BLOCKS, _LEAST)
        else:
            self.dense = np.ascontiguousarray(matrix, dtype=np.float64)
            self._row_blocks = balanced_blocks(np.full(self.shape[0], self.shape[1] + 1.0), N_BLOCKS, _LEAST)

    @cached_property
    def _columns(self) -> Compressed:
        """The rows compressed by columns, which learning needs and prediction does not."""
        pointer, index, value = self.compressed
        columns = sp.csc_array(sp.csr_array((value, index, pointer), shape=(self.shape[0], self._n_columns)))
        return columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data

    @cached_property
    def _column_blocks(self) -> Ints:
        return blocks_of_rows(self._columns[0], N_BLOCKS, _LEAST)

    def mean_square(self, weights: Floats, n_columns: int | None = None) -> float:
        """Weighted mean over rows of the sum of squared entries; 1 where that is 0.

        Of the first ``n_columns`` alone, where it is given.
        """
        n_columns = self.shape[1] if n_columns is None else n_columns
        if self.bundles is not None:
            return Inputs(self.rows(weights != 0.0).multiplied_out()).mean_square(weights[weights != 0.0], n_columns)
        if self.dense is None:
            pointer, column, value = self.compressed
            squares = np.repeat(weights, np.diff(pointer)) @ np.square(value * (column < n_columns))
        else:
            squares = (weights @ np.square(self.dense[:, :n_columns])).sum()
        return float(squares) / (float(weights.sum()) or 1.0) or 1.0

    def squares_and_counts(self) -> tuple[Floats, Ints]:
        """The sum of squared entries of each column, and how many are not 0; a bundle's count once, own ones each."""
        if self.dense is not None:
            return np.einsum("ij,ij->j", self.dense, self.dense), np.count_nonzero(self.dense, axis=0)
        _, column, value = self.compressed
        n = self.shape[1]
        squares = np.bincount(column, np.square(value), minlength=n)[:n].astype(np.float64, copy=False)
        counts: Ints = np.bincount(column[value != 0.0], minlength=n)[:n]
        if self.bundles is not None:
            of_bundles = self.bundles.squares_and_counts()
            squares, counts = squares + of_bundles[0], counts + of_bundles[1]
        return squares, counts

    def squared(self) -> Inputs:
        """Inputs whose entries are squared: these themselves where they are 0 or 1."""
        entries = self.compressed[2] if self.dense is None else self.dense
        if self.bundles is None and np.array_equal(entries, np.square(entries)):
            return self
        return Inputs(squared(self.rows(np.ones(self.shape[0], dtype=bool))))

    def rows(self, chosen: Bools) -> Any:
        """The chosen rows, as input for another :class:`Inputs`."""
        if self.dense is not None:
            return self.dense[chosen]
        pointer, index, value = self.compressed
        rows = sp.csr_array((value, index, pointer), shape=(self.shape[0], self._n_columns))[np.flatnonzero(chosen)]
        if self.bundles is None:
            return rows
        own, use = rows[:, : self.shape[1]], rows[:, self.shape[1] :]
        return BundledRows(own, use, self.bundles.rows(np.ones(self.bundles.shape[0], dtype=bool)))

    def description(self) -> dict[str, Any]:
        """What :meth:`of_arrays` needs besides the arrays, for JSON."""
        bundles = None if self.bundles is None else self.bundles.description()
        return {"shape": list(self.shape), "dense": self.dense is not None, "bundles": bundles}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays, from which :meth:`of_arrays` restores the inputs."""
        if self.dense is not None:
            return {"dense": self.dense, "row_blocks": self._row_blocks}
        arrays: dict[str, NDArray[Any]] = {"row_blocks": self._row_blocks, "column_blocks": self._column_blocks}
        for side, compressed in (("rows", self.compressed), ("columns", self._columns)):
            arrays |= {f"{side}.{name}": part for name, part in zip(_PARTS, compressed, strict=True)}
        if self.bundles is not None:
            arrays |= {f"bundles.{name}": array for name, array in self.bundles.arrays().items()}
        return arrays

    @classmethod
    def of_arrays(cls, description: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Inputs:
        """The inputs of a :meth:`description` and :meth:`arrays`, which are not copied."""
        inputs = cls.__new__(cls)
        inputs.shape = (int(description["shape"][0]), int(description["shape"][1]))
        inputs.dense = arrays["dense"] if description["dense"] else None
        inputs._row_blocks = arrays["row_blocks"]
        inputs.bundles = None
        if inputs.dense is None:
            inputs._column_blocks = arrays["column_blocks"]
            rows, columns = ([arrays[f"{side}.{name}"] for name in _PARTS] for side in ("rows", "columns"))
            inputs.compressed = (rows[0], rows[1], rows[2])
            inputs._columns = (columns[0], columns[1], columns[2])
        if description["bundles"] is not None:
            inner = {
                name.removeprefix("bundles."): part for name, part in arrays.items() if name.startswith("bundles.")
            }
            inputs.bundles = cls.of_arrays(description["bundles"], inner)
        return inputs

    def times(self, weights: Floats, out: Floats, workers: Workers) -> None:
        """``out = rows @ weights``."""
        dense = self.dense
        if dense is not None:
            workers.run(
                lambda _, first, last: np.matmul(dense[first:last], weights, out=out[first:last]), self._row_blocks
            )
            return
        if self.bundles is not None:
            extended = np.empty((self.shape[1] + self.bundles.shape[0], weights.shape[1]))
            extended[: self.shape[1]] = weights
            self.bundles.times(weights, extended[self.shape[1] :], workers)
            weights = extended
        self._multiply(self.compressed, self._row_blocks, weights, out, workers)

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
            return
        if self.bundles is None:
            self._multiply(self._columns, self._column_blocks, values, out, workers)
            return
        extended = np.empty((self.shape[1] + self.bundles.shape[0], values.shape[1]))
        self._multiply(self._columns, self._column_blocks, values, extended, workers)
        self.bundles.transposed_times(extended[self.shape[1] :], out, workers)
        out += extended[: self.shape[1]]

    @staticmethod
    def _multiply(compressed: Compressed, blocks: Ints, right: Floats, out: Floats, workers: Workers) -> None:
        labels, flat, flat_out = right.shape[1], right.ravel(), out.reshape(-1)
        unrolls = 2 <= labels <= _MOST_UNROLLED and compressed[1].size * labels >= _WORTH_COMPILING
        states = (0,) * labels if unrolls else ()
        workers.run(
            lambda _, first, last: rows_times_weights(compressed, flat, flat_out, labels, first, last, states), blocks
        )
