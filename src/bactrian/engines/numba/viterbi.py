"""The best labels of chains that share one table of transitions."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit


@njit(cache=True, nogil=True, error_model="numpy")
def best_labels(
    scores: Floats, table: Floats, bounds: Ints, first: int, last: int, tie: float, labels: Ints, sure: Bools
) -> None:
    """Fill the labels of chains ``first:last``, with tokens ``bounds[c]:bounds[c + 1]``, from ``scores`` (n, k).

    A chain is ``sure`` where its scores are finite and each label beats the others by more than a tie: ``tie`` times
    the largest score, in thousands, or 1. The sums are those of :func:`.forest_optimum.decode_pairs`.
    """
    k = table.shape[0]
    in_table = 0.0
    for a in range(k):
        for b in range(k):
            in_table = max(in_table, abs(table[a, b]))
    for chain in range(first, last):
        begin, end = bounds[chain], bounds[chain + 1]
        total = scores[begin:end].copy()
        largest = 0.0 if end - begin < 2 else in_table
        finite = True
        for t in range(end - begin):
            for a in range(k):
                largest = max(largest, abs(total[t, a]))
                finite = finite and np.isfinite(total[t, a])
        for t in range(end - begin - 2, -1, -1):
            for a in range(k):
                best = -np.inf
                for b in range(k):
                    best = max(best, total[t + 1, b] + table[a, b])
                total[t, a] += best
        slack = tie * max(1.0, 1e-3 * largest)
        sure[chain] = finite
        before = -1
        for t in range(end - begin):
            best, second, chosen = -np.inf, -np.inf, 0
            for a in range(k):
                score = total[t, a] if before < 0 else total[t, a] + table[before, a]
                if score > best:
                    best, second, chosen = score, best, a
                else:
                    second = max(second, score)
            if not second < best - slack:
                sure[chain] = False
            labels[begin + t] = chosen
            before = chosen
