"""Star updates of a colour's nodes in one Triton kernel: several times faster than a dozen kernels of plain tensors.

A program updates a few nodes as :mod:`.stars` has it. Messages into a node are left in the place of its
own multipliers until its belief is known. Triton comes with PyTorch for CUDA; where it is missing, plain tensors do the
work.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch without CUDA
    triton = None

#: Labels up to which a table fits into a program's registers.
_MOST_LABELS = 32
#: Threads of a program, one a state: it updates as many nodes as have so many states.
_THREADS = 32


if triton is not None:

    @triton.jit
    def _update(  # type: ignore[no-untyped-def]  # the compiler reads annotations itself
        multipliers, partner, table, pointer, scores, inverse, tables, log_belief, belief, change, first, last,
        labels: tl.constexpr, padded: tl.constexpr, own_tables: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
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
