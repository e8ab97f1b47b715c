"""Work that is cut to keep a whole device busy: Triton kernels, and products in blocks.

Triton comes with PyTorch for CUDA. Where it is missing, or a kernel does not fit, plain tensors do the work:

- :class:`SparseProduct`, sparse times dense for a handful of columns, is several times faster than the general product.
  Rows are cut into pieces of at most so many entries, since features are distributed like words: some occur in every
  hundredth token, most hardly ever. A piece's sum goes to a row of its own, and the pieces of a row are then added in
  order, so that results are the same from call to call.
- :func:`update_stars`, the star updates of a colour's nodes, is several times faster than a dozen kernels of plain
  tensors. A program updates a few nodes as :mod:`.stars` has it. Messages into a node are left in the place of its own
  multipliers until its belief is known.
- :func:`chain_sums` and :func:`chain_beliefs`, the two passes of :mod:`.chains`: a program goes along a few sequences
  with the table in its registers. States are logs; products with a table of moderate range are made in linear space.
  Nothing is kept from the sums for the beliefs: these go forward again, leaving log a where beliefs will be.
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
#: Labels up to which the transitions of chains do, and programs that share the sequences of a batch.
_MOST_CHAIN_LABELS, _PROGRAMS = 128, 2048
#: Sequences of a block, and how many sequences and labels there must be for blocks to pay.
_BLOCK_CHAINS, _MANY_CHAINS, _MANY_LABELS = 16, 256, 16
#: Range of transitions (in nats) up to which the kernels work in linear space, and what stands for -inf there.
MODERATE, FLOOR = {torch.float64: 300.0, torch.float32: 40.0}, -1e30
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

    @triton.jit
    def _tokens(  # type: ignore[no-untyped-def]
        scores, start, end, labels, positions, sequence, step, length, times, n_labels, ignore, restricted, state,
        has_mask: tl.constexpr, has_labels: tl.constexpr, floor: tl.constexpr,
    ):  # fmt: skip
        """Scores of a token per sequence, those of ends added, and of labels that are not the known one taken away."""
        there = step < length
        inside = there[:, None] & (state < n_labels)
        place = sequence.to(tl.int64) * times
        place += tl.load(positions + place + step, mask=there, other=0) if has_mask else step
        score = tl.load(scores + place[:, None] * n_labels + state, mask=inside, other=floor)
        score += tl.load(start + state, mask=inside & (step == 0), other=0.0)
        score += tl.load(end + state, mask=inside & (step == length - 1)[:, None], other=0.0)
        if has_labels:
            label = tl.load(labels + place, mask=there, other=ignore)[:, None]
            score = tl.where(restricted[:, None] & (label != ignore) & (label != state), floor, score)
        return tl.maximum(score, floor), place

    @triton.jit
    def _table(transitions, n_labels, padded: tl.constexpr, floor: tl.constexpr):  # type: ignore[no-untyped-def]
        """Transitions, their largest, where they are, and which are there."""
        rows, columns = tl.arange(0, padded)[:, None], tl.arange(0, padded)[None, :]
        at, both = rows * n_labels + columns, (rows < n_labels) & (columns < n_labels)
        table = tl.maximum(tl.load(transitions + at, mask=both, other=floor), floor)
        return table, tl.max(tl.max(table, 1), 0), at, both

    @triton.jit
    def _forward(log_a, table, entries, is_wide, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """log of exp(log_a), the largest of each row 1, times exp(table), or with one row in linear space entries."""
        if block > 1:
            found = tl.log(tl.dot(tl.exp(log_a), entries, input_precision="ieee"))
        elif is_wide != 0:
            joint = log_a[:, :, None] + table[None, :, :]
            top = tl.max(joint, 1)
            found = top + tl.log(tl.sum(tl.exp(joint - top[:, None, :]), 1))
        else:
            found = tl.log(tl.sum(tl.exp(log_a)[:, :, None] * entries[None, :, :], 1))
        return found

    @triton.jit
    def _sum_chains(  # type: ignore[no-untyped-def]
        scores, transitions, start, end, wide, lengths, positions, labels, out, batch, total, times, n_labels, ignore,
        padded: tl.constexpr, block: tl.constexpr, programs: tl.constexpr, has_mask: tl.constexpr,
        has_labels: tl.constexpr, floor: tl.constexpr, only: tl.constexpr,
    ):  # fmt: skip
        """Blocks of sequences side by side; ``only`` where the table needs log space (1) or not (0), or always (-1)."""
        state = tl.arange(0, padded)[None, :]
        table, top, _at, _both = _table(transitions, n_labels, padded, floor)
        entries = tl.exp(table - top)
        is_wide = tl.load(wide)
        shift = tl.where(is_wide != 0, 0.0, top)
        here = total
        if only >= 0 and is_wide != only:
            here = 0
        for first in range(tl.program_id(0) * block, here, programs * block):
            number = first + tl.arange(0, block)
            sequence, restricted = number % batch, number >= batch
            length = tl.load(lengths + sequence) if has_mask else tl.zeros_like(number) + times
            length = tl.where(number < total, length, 0)
            log_a, _ = _tokens(
                scores, start, end, labels, positions, sequence, 0, length, times, n_labels, ignore, restricted, state,
                has_mask, has_labels, floor,
            )  # fmt: skip
            following, _ = _tokens(
                scores, start, end, labels, positions, sequence, 1, length, times, n_labels, ignore, restricted, state,
                has_mask, has_labels, floor,
            )  # fmt: skip
            value = tl.max(log_a, 1)
            log_a -= value[:, None]
            for step in range(1, tl.max(length, 0)):
                score = following
                following, _ = _tokens(
                    scores, start, end, labels, positions, sequence, step + 1, length, times, n_labels, ignore,
                    restricted, state, has_mask, has_labels, floor,
                )  # fmt: skip
                new = tl.maximum(_forward(log_a, table, entries, is_wide, block) + shift, floor) + score
                most, on = tl.max(new, 1), step < length
                log_a = tl.where(on[:, None], new - most[:, None], log_a)
                value += tl.where(on, most, 0.0)
            value += tl.log(tl.sum(tl.exp(log_a), 1))
            tl.store(out + number, tl.where(length > 0, value, 0.0), mask=number < total)

    @triton.jit
    def _believe_chains(  # type: ignore[no-untyped-def]
        scores, transitions, start, end, wide, lengths, positions, labels, weights, nodes, pairs, batch, total, times,
        n_labels, ignore,
        padded: tl.constexpr, block: tl.constexpr, programs: tl.constexpr, has_mask: tl.constexpr,
        has_labels: tl.constexpr, floor: tl.constexpr, only: tl.constexpr,
    ):  # fmt: skip
        """As :func:`_sum_chains`, forward and back."""
        state = tl.arange(0, padded)[None, :]
        table, top, at, both = _table(transitions, n_labels, padded, floor)
        entries = tl.exp(table - top)
        turned = tl.trans(entries)
        is_wide = tl.load(wide)
        sums = tl.zeros((padded, padded), table.dtype)
        here = total
        if only >= 0 and is_wide != only:
            here = 0
        for first in range(tl.program_id(0) * block, here, programs * block):
            number = first + tl.arange(0, block)
            sequence, restricted = number % batch, number >= batch
            length = tl.load(lengths + sequence) if has_mask else tl.zeros_like(number) + times
            length = tl.where(number < total, length, 0)
            weight = tl.load(weights + sequence)
            signed = tl.where(restricted, -weight, weight)
            out = nodes + tl.where(restricted, batch, 0).to(tl.int64)[:, None] * times * n_labels + state
            log_a, place = _tokens(
                scores, start, end, labels, positions, sequence, 0, length, times, n_labels, ignore, restricted, state,
                has_mask, has_labels, floor,
            )  # fmt: skip
            log_a -= tl.max(log_a, 1)[:, None]
            for step in range(1, tl.max(length, 0)):
                used = (state < n_labels) & (step <= length)[:, None]
                tl.store(out + place[:, None] * n_labels, log_a, mask=used)
                score, place = _tokens(
                    scores, start, end, labels, positions, sequence, step, length, times, n_labels, ignore, restricted,
                    state, has_mask, has_labels, floor,
                )  # fmt: skip
                new = tl.maximum(_forward(log_a, table, entries, is_wide, block), floor) + score
                log_a = tl.where((step < length)[:, None], new - tl.max(new, 1)[:, None], log_a)
            tl.debug_barrier()  # a is read by other threads than wrote it
            log_b = tl.zeros_like(log_a)
            for back in range(1, tl.max(length, 0)):
                step = tl.max(length, 0) - back
                on = (step < length)[:, None]
                used = (state < n_labels) & on
                belief = tl.exp(log_a + log_b - tl.max(log_a + log_b, 1)[:, None])
                score, place = _tokens(
                    scores, start, end, labels, positions, sequence, step, length, times, n_labels, ignore, restricted,
                    state, has_mask, has_labels, floor,
                )  # fmt: skip
                _, earlier = _tokens(
                    scores, start, end, labels, positions, sequence, step - 1, length, times, n_labels, ignore,
                    restricted, state, has_mask, False, floor,
                )  # fmt: skip
                before = tl.load(out + earlier[:, None] * n_labels, mask=used, other=floor)
                tl.store(out + place[:, None] * n_labels, belief * (weight / tl.sum(belief, 1))[:, None], mask=used)
                log_f = score + log_b
                log_f -= tl.max(log_f, 1)[:, None]
                left, right = tl.exp(before), tl.exp(log_f)
                if block > 1:
                    product = tl.dot(right, turned, input_precision="ieee")
                    share = tl.where(on, (signed / tl.sum(left * product, 1))[:, None], 0.0)
                    left, right = tl.where(on, left * share, 0.0), tl.where(on, right, 0.0)
                    sums += tl.dot(tl.trans(left), right, input_precision="ieee")
                    later = tl.log(product)
                elif is_wide != 0:
                    joint = table[None, :, :] + log_f[:, None, :]
                    most = tl.max(joint, 2)
                    later = most + tl.log(tl.sum(tl.exp(joint - most[:, :, None]), 2))
                    joint += before[:, :, None]
                    joint = tl.exp(joint - tl.max(tl.max(joint, 2), 1)[:, None, None])
                    share = signed / tl.sum(tl.sum(joint, 2), 1)
                    sums += tl.sum(joint * share[:, None, None], 0)
                else:
                    product = tl.sum(entries[None, :, :] * right[:, None, :], 2)
                    left *= (signed / tl.sum(left * product, 1))[:, None]
                    sums += tl.sum(left[:, :, None] * right[:, None, :], 0)
                    later = tl.log(product)
                log_b = tl.where(on, tl.maximum(later - tl.max(later, 1)[:, None], floor), log_b)
                log_a = tl.where(on, before, log_a)
            belief = tl.exp(log_a + log_b - tl.max(log_a + log_b, 1)[:, None])
            _, place = _tokens(
                scores, start, end, labels, positions, sequence, 0, length, times, n_labels, ignore, restricted, state,
                has_mask, False, floor,
            )  # fmt: skip
            belief *= (weight / tl.sum(belief, 1))[:, None]
            tl.store(out + place[:, None] * n_labels, belief, mask=(state < n_labels) & (length > 0)[:, None])
        sums = tl.where(is_wide != 0, sums, sums * entries)
        tl.store(pairs + tl.program_id(0).to(tl.int64) * n_labels * n_labels + at, sums, mask=both & (here > 0))


def can_chain(scores: Tensor) -> bool:
    """Whether the kernels for chains are for such scores."""
    return triton is not None and scores.is_cuda and scores.shape[-1] <= _MOST_CHAIN_LABELS


def chain_sums(
    places: tuple[Tensor, Tensor] | None, labels: Tensor | None, ignore_index: int, *given: Tensor
) -> Tensor:
    """(B,) log Z, and behind it that of the labellings that agree with ``labels`` where these are given.

    ``given`` are scores (B, T, K), transitions, start and end; ``places`` are the lengths (B,) of sequences and the
    positions (B, T) of their tokens, or None where all are full. -inf counts as -1e30.
    """
    total = len(given[0]) * (1 if labels is None else 2)
    out = given[0].new_empty(total)
    if triton is not None:
        _launch(_sum_chains, places, labels, ignore_index, given, (out,), total)
    return out


def chain_beliefs(
    weights: Tensor, places: tuple[Tensor, Tensor] | None, labels: Tensor | None, ignore_index: int, *given: Tensor
) -> tuple[Tensor, Tensor]:
    """Expected counts of labels (B, T, K) and pairs (K, K), times weights (B,), less those that agree with labels."""
    scores, transitions, *_ = given
    total = len(scores) * (1 if labels is None else 2)
    make = torch.empty if places is None else torch.zeros
    nodes = make((total, *scores.shape[1:]), dtype=scores.dtype, device=scores.device)
    pairs = transitions.new_zeros(min(total, _PROGRAMS), *transitions.shape)
    if triton is not None:
        found = (weights.contiguous(), nodes, pairs)
        _launch(_believe_chains, places, labels, ignore_index, given, found, total)
    return (nodes if labels is None else nodes[: len(scores)] - nodes[len(scores) :]), pairs.sum(0)


def _launch(
    kernel: Any,
    places: tuple[Tensor, Tensor] | None,
    labels: Tensor | None,
    ignore_index: int,
    given: tuple[Tensor, ...],
    found: tuple[Tensor, ...],
    total: int,
) -> None:
    """Start a kernel one sequence at a time, and where there are many also in blocks, of which one does the work."""
    batch, times, n_labels = given[0].shape
    if total == 0:
        return
    scores, transitions, *ends = (part.contiguous() for part in given)
    low, high = transitions.aminmax()
    wide = (~(high - low < MODERATE[transitions.dtype])).to(torch.int32)
    lengths, positions = (wide, wide) if places is None else places
    many = scores.dtype is torch.float32 and n_labels > _MANY_LABELS and total >= _MANY_CHAINS
    common = (scores, transitions, *ends, wide, lengths, positions, wide if labels is None else labels.contiguous())
    numbers = (batch, total, times, n_labels, ignore_index)
    padded = max(2, triton.next_power_of_2(n_labels))
    known = (places is not None, labels is not None, FLOOR)
    for block in (1, _BLOCK_CHAINS)[: 1 + many]:
        programs = min(triton.cdiv(total, block), _PROGRAMS)
        warps = max(1, min(8, padded * padded // 1024)) if block == 1 else 4
        only = int(block == 1) if many else -1
        kernel[(programs,)](*common, *found, *numbers, padded, block, programs, *known, only, num_warps=warps)


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
            begin, end, self.matrix.col_indices(), self.matrix.values(), dense.contiguous(), out, columns,
            triton.next_power_of_2(columns), _BLOCK, num_warps=2,
        )  # fmt: skip
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
        multipliers, partner, partner if table is None else table, pointer, scores, inverse_divisor, tables, log_belief,
        belief, change, nodes.start, nodes.stop, labels, padded, table is None, block, num_warps=1,
    )  # fmt: skip
