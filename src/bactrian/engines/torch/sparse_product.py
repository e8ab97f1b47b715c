"""Sparse times dense for a handful of columns, in one Triton kernel; several times faster than the general product.

Rows are cut into pieces of at most so many entries, since features are distributed like words: some occur in every
hundredth token, most hardly ever. A piece's sum goes to a row of its own, and the pieces of a row are then added in
order, so that results are the same from call to call. Triton comes with PyTorch for CUDA; where it is missing, the
general product does the work.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch without CUDA
    triton = None

#: Entries of a piece, and of the block that is read at once.
_PIECE, _BLOCK = 1024, 64
#: Columns up to which the kernel is used.
_MOST_COLUMNS = 32


if triton is not None:

    @triton.jit
    def _sum_pieces(  # type: ignore[no-untyped-def]  # the compiler reads annotations itself
        begin, end, indices, values, dense, out, columns: tl.constexpr, padded: tl.constexpr, block: tl.constexpr
    ):
        piece = tl.program_id(0)
        first = tl.load(begin + piece)
        last = tl.load(end + piece)
        column = tl.arange(0, padded)
        total = tl.zeros((padded,), tl.float64)
        for start in range(first, last, block):
            entry = start + tl.arange(0, block)
            inside = entry < last
            row = tl.load(indices + entry, mask=inside, other=0).to(tl.int64)
            value = tl.load(values + entry, mask=inside, other=0.0)
            used = inside[:, None] & (column[None, :] < columns)
            read = tl.load(dense + row[:, None] * columns + column[None, :], mask=used, other=0.0)
            total += tl.sum(read * value[:, None], 0)
        tl.store(out + piece.to(tl.int64) * columns + column, total, mask=column < columns)


class SparseProduct:
    """The product of a compressed sparse matrix on a GPU with dense float64 matrices of few columns."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._pieces: tuple[Tensor, Tensor, Tensor | None] | None = None
        if triton is not None and matrix.is_cuda and matrix.values().numel():
            pointer = matrix.crow_indices().to(torch.int64)
            sizes = pointer.diff()
            counts = (sizes + _PIECE - 1).div(_PIECE, rounding_mode="floor").clamp_min(1)
            bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            row = torch.repeat_interleave(torch.arange(sizes.numel(), device=matrix.device), counts)
            number = torch.arange(row.numel(), device=matrix.device) - bounds[row]
            begin = pointer[row] + number * _PIECE
            end = torch.minimum(begin + _PIECE, pointer[row + 1])
            self._pieces = begin, end, bounds if row.numel() > sizes.numel() else None

    def times(self, dense: Tensor) -> Tensor:
        """``matrix @ dense``."""
        columns = dense.shape[1]
        if self._pieces is None or columns > _MOST_COLUMNS or dense.dtype != torch.float64:
            product: Tensor = self.matrix @ dense
            return product
        begin, end, bounds = self._pieces
        out = dense.new_empty(begin.numel(), columns)
        _sum_pieces[(begin.numel(),)](
            begin,
            end,
            self.matrix.col_indices(),
            self.matrix.values(),
            dense.contiguous(),
            out,
            columns,
            triton.next_power_of_2(columns),
            _BLOCK,
            num_warps=2,
        )
        return out if bounds is None else torch.segment_reduce(out, "sum", offsets=bounds, axis=0, unsafe=True)
