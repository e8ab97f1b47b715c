"""Work in blocks: large enough to keep a whole device busy, small enough for its memory."""

from __future__ import annotations

import torch
from torch import Tensor

#: Entries of the tables that are worked on at a time.
_BLOCK_ENTRIES = 1 << 26
#: Rows of the blocks whose outer products are summed side by side.
_BLOCK_ROWS = 1024


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
