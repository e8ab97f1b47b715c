"""Whether the tables of a pairwise field can be learned at all: an identifier among the variables is refused early."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: What learning holds at its peak for an entry of a cluster's table, and for a weight (features and the solver's
#: memory), measured with every learner.
_BYTES_PER_ENTRY, _BYTES_PER_WEIGHT = 80, 200

#: A variable that is read from the data has more states than this, and this many for each that the data holds, by
#: mistake.
_MANY_STATES, _UNSEEN_FOR_EACH = 10**6, 1_000

_WHAT_TO_DO = "leave it out, or number its states from 0, as np.unique(column, return_inverse=True) does"


def check_seen_states(states: Ints, names: Any) -> None:
    """Refuse a variable hardly any of whose states, 0 to the largest seen, is in the data (n_samples, n_variables)."""
    for v, largest in enumerate(states.max(axis=0).tolist()):
        if largest < _MANY_STATES:
            continue
        seen = np.unique(states[:, v]).size
        if largest >= _UNSEEN_FOR_EACH * seen:
            raise ValueError(
                f"X: {_called(v, names)} would have {largest + 1} states, 0 to its largest value, and the data holds "
                f"{seen} of them. If it is an identifier or a measurement, {_WHAT_TO_DO}; else give cardinalities="
            )


def check_tables_fit(tables: str, cardinalities: Ints, edges: Ints, names: Any, memory: int | None = None) -> None:
    """Refuse tables for which learning would need more than ``memory`` bytes, by default all that the machine has."""
    memory = _physical_memory() if memory is None else memory
    sizes: list[int] = cardinalities.tolist()  # whole numbers of Python, whose products do not overflow
    pairs = [sizes[a] * sizes[b] for a, b in edges.tolist()]
    n_weights = sum(sizes) + (sum(pairs) if tables == "full" else 1)
    if tables == "shared":
        n_weights = sizes[0] + sizes[0] ** 2
    needed = _BYTES_PER_ENTRY * (sum(sizes) + sum(pairs)) + _BYTES_PER_WEIGHT * n_weights
    if needed <= memory:
        return
    v = int(np.argmax(cardinalities))
    raise ValueError(
        f"X: {_called(v, names)} has {sizes[v]} states, the most of all; the tables of {len(sizes)} variables and "
        f"{len(pairs)} edges have {sum(sizes) + sum(pairs)} entries, for which learning needs about "
        f"{needed / 2**30:.3g} GiB, and this machine has {memory / 2**30:.3g} GiB. If it is an identifier or a "
        f"measurement, {_WHAT_TO_DO}; else merge rare states, or join fewer variables (edges=)"
    )


def _called(v: int, names: Any) -> str:
    return f"variable {v}" if names is None else f"variable {v} ({names[v]!r})"


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return 2**40
