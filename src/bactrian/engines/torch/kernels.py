"""Work that is cut to keep a whole device busy: Triton kernels, and products in blocks.

Triton comes with PyTorch for CUDA. Where it is missing, or a kernel does not fit, plain tensors do the work:

- :class:`SparseProduct`, sparse times dense for a handful of columns, is several times faster than the general product.
  Rows are cut into pieces of at most so many entries, since features are distributed like words: some occur in every
  hundredth token, most hardly ever. A piece's sum goes to a row of its own, and the pieces of a row are then added in
  order, so that results are the same from call to call.
- :func:`update_stars`, the star updates of a colour's nodes, is several times faster than a dozen kernels of plain
  tensors. A program updates a few nodes as :mod:`.stars` has it. Messages into a node are left in the place of its own
  multipliers until its belief is known.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from bactrian.engines.torch.device import Movable

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch without CUDA
    triton = None

#: Entries of the tables that are worked on at a time.
_BLOCK_ENTRIES = 1 << 26
#: Rows of the blocks whose outer products are summed side by side.
_BLOCK_ROWS = 1024
#: Entries of a piece, and of the block that is read at once.
_PIECE, _BLOCK = 1024, 64
#: Columns up to which the kernel is used.
_MOST_COLUMNS = 32
#: Labels up to which a table fits into a program's registers.
_MOST_LABELS = 32
#: Threads of a program, one a state: it updates as many nodes as have so many states.
_THREADS = 32


if triton is not None:

    @triton.jit
    def _sum_pieces(  # type: ignore[no-untyped-def]  # the compiler reads annotations itself
        begin, end, indices, values, dense, out, columns: tl.constexpr, padded: tl.constexpr, block: tl.constexpr
    ):
        """Nine parameters: Triton takes no structures, so every array and size is one of its own."""
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

    @triton.jit
    def _update(  # type: ignore[no-untyped-def]  # the compiler reads annotations itself
        multipliers, partner, table, pointer, scores, inverse, tables, log_belief, belief, change, first, last,
        labels: tl.constexpr, padded: tl.constexpr, own_tables: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        """As many parameters as the update has arrays and sizes; see above."""
        node = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block) + first
        there = node < last
        state = tl.arange(0, padded)[None, :]
        used = there[:, None] & (state < labels)
        at = node[:, None] * labels + state
        begin, end = tl.load(pointer + node, mask=there, other=0), tl.load(pointer + node + 1, mask=there, other=0)
        total = tl.load(scores + at, mask=used, other=0.0)
        square = tl.arange(0, padded)[:, None] * labels + state
        both = (tl.arange(0, padded)[:, None] < labels) & (state < labels)
        for step in range(0, tl.max(end - begin, 0)):
            link = begin + step
            on = link < end
            other = tl.load(partner + link, mask=on, other=0)
            number = link if own_tables else tl.load(table + link, mask=on, other=0)
            present = on[:, None] & (state < labels)
            message = tl.load(multipliers + other[:, None] * labels + state, mask=present, other=0.0)
            message = tl.where(state < labels, message, -float("inf"))
            message = tl.exp(message - tl.max(message, 1)[:, None])
            inverse_sum = 1.0 / tl.sum(message, 1)
            entries = tl.load(
                tables + number[:, None, None] * labels * labels + square[None, :, :],
                mask=on[:, None, None] & both[None, :, :], other=0.0,
            )  # fmt: skip
            product = tl.sum(message[:, :, None] * entries, 1) * inverse_sum[:, None]
            incoming = tl.log(tl.where(present, product, 1.0))
            tl.store(multipliers + link[:, None] * labels + state, incoming, mask=present)
            total += incoming
        total *= tl.load(inverse + node, mask=there, other=0.0)[:, None]
        total = tl.where(state < labels, total, -float("inf"))
        total -= tl.max(total, 1)[:, None]
        new = tl.exp(total)
        norm = tl.sum(new, 1)
        total -= tl.log(norm)[:, None]
        new /= norm[:, None]
        old = tl.load(belief + at, mask=used, other=0.0)
        moved = tl.max(tl.where(used, tl.abs(new - old), 0.0), 1)
        tl.store(change + node, tl.where(norm == norm, moved, norm), mask=there)  # the maximum would drop a NaN
        tl.store(belief + at, new, mask=used)
        tl.store(log_belief + at, total, mask=used)
        for step in range(0, tl.max(end - begin, 0)):
            link = begin + step
            present = (link < end)[:, None] & (state < labels)
            place = multipliers + link[:, None] * labels + state
            incoming = tl.load(place, mask=present, other=0.0)
            tl.store(place, total - incoming, mask=present)


def tables_at_once(n_labels: int) -> int:
    """How many (K, K) tables to work on at a time."""
    return max(1, _BLOCK_ENTRIES // n_labels**2)


def block_outer_product(left: Tensor, right: Tensor) -> Tensor:
    """``left.T @ right`` for tall matrices: summed in blocks, which keeps a whole device busy."""
    rows = left.shape[0] // _BLOCK_ROWS * _BLOCK_ROWS
    rest = left[rows:].T @ right[rows:]
    if rows == 0:
        return rest
    blocks = left[:rows].view(-1, _BLOCK_ROWS, left.shape[1]), right[:rows].view(-1, _BLOCK_ROWS, right.shape[1])
    return rest + torch.bmm(blocks[0].transpose(1, 2), blocks[1]).sum(0)


class SparseProduct(Movable):
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

    def to(self, device: Any) -> Self:
        """The same on another device, which may want other pieces."""
        return type(self)(self.matrix.to(device))

    def times(self, dense: Tensor) -> Tensor:
        """``matrix @ dense``."""
        columns = dense.shape[1]
        if self._pieces is None or columns > _MOST_COLUMNS or dense.dtype != torch.float64:
            return self.matrix @ dense
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


def can_update(device: torch.device, n_labels: int) -> bool:
    """Whether the kernel is for this device and so many labels."""
    return triton is not None and device.type == "cuda" and n_labels <= _MOST_LABELS


def update_stars(
    nodes: slice,
    multipliers: Tensor,
    partner: Tensor,
    table: Tensor | None,
    pointer: Tensor,
    scores: Tensor,
    inverse_divisor: Tensor,
    tables: Tensor,
    log_belief: Tensor,
    belief: Tensor,
    change: Tensor,
) -> None:
    """Star updates of ``nodes``, no two of which share an edge, in place; ``change`` (N,) gets those of their beliefs.

    More than eight arguments: they are the kernel's, which takes no tuples.
    ``tables`` (·, K, K) are exponentials as messages meet them: that of a link is number ``table[link]``, or its own
    where ``table`` is None.
    """
    if nodes.stop <= nodes.start:
        return
    labels = multipliers.shape[1]
    padded = triton.next_power_of_2(labels)
    block = max(1, _THREADS // padded)
    _update[(triton.cdiv(nodes.stop - nodes.start, block),)](
        multipliers,
        partner,
        partner if table is None else table,
        pointer,
        scores,
        inverse_divisor,
        tables,
        log_belief,
        belief,
        change,
        nodes.start,
        nodes.stop,
        labels,
        padded,
        table is None,
        block,
        num_warps=1,
    )
