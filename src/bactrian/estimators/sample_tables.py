"""Tables of samples, (n_samples, n_variables) of states: what is given, checked; and rows with missing states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.graphs.domain import Domain, rectangular

Ints = NDArray[np.int64]

#: Rows are packed together for inference up to so many clusters in all.
_CLUSTERS_AT_ONCE = 100_000


def checked_table(X: Any) -> Ints:
    """X as a new (n_samples, n_variables) array of ints, booleans as 0 and 1, or an error."""
    if X is None or isinstance(X, str | bytes | Mapping | set) or sp.issparse(X):
        kind = f"sparse {type(X).__name__}; give X.toarray()" if sp.issparse(X) else type(X).__name__
        raise TypeError(f"X must be an array (n_samples, n_variables) of integer states, found a {kind}")
    states = rectangular(X, "X")
    if states.ndim != 2:
        raise ValueError(f"X must have shape (n_samples, n_variables), found {states.shape}")
    if states.dtype.kind not in "biu":
        raise TypeError(f"X must hold integer states, found dtype {states.dtype}")
    if states.dtype.kind == "u" and states.size and int(states.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"X holds {states.max()}, which is no state: states are small integers from 0")
    return states.astype(np.int64)


def column_names(X: Any) -> NDArray[Any] | None:
    """Names of the columns of a data frame, where all are strings."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return np.array(list(columns), dtype=object)


def checked_cardinalities(given: Any, n: int) -> Ints:
    """Numbers of states of ``n`` variables, given as one for all or one for each."""
    numbers = rectangular(given, "cardinalities")
    if numbers.ndim == 0:
        numbers = np.full(n, numbers)
    checked = Domain(numbers, []).cardinalities
    if checked.shape != (n,):
        raise ValueError(f"cardinalities must have one entry per variable: expected {n}, found {checked.size}")
    return checked


def seen_cardinalities(states: Ints) -> Ints:
    """One more than the largest state of each variable."""
    seen: Ints = states.max(axis=0) + 1
    if (states < 0).any():
        Domain(np.maximum(seen, 1), []).checked_states(states, "X")  # says where
    return seen


def incomplete_rows(states: Ints, n_clusters: int) -> list[tuple[Ints, Ints, Ints]]:
    """Rows with missing states in groups of a bounded size: row numbers, distinct patterns, pattern of each row.

    ``n_clusters`` is how many clusters inference packs for a pattern.
    """
    rows = np.flatnonzero((states < 0).any(axis=1))
    if rows.size == 0:
        return []
    patterns, which = np.unique(states[rows], axis=0, return_inverse=True)
    which = which.ravel()
    step = max(1, _CLUSTERS_AT_ONCE // n_clusters)
    groups = []
    for first in range(0, len(patterns), step):
        inside = np.flatnonzero((which >= first) & (which < first + step))
        groups.append((rows[inside], patterns[first : first + step], which[inside] - first))
    return groups


def evidence_of(pattern: Ints) -> dict[int, int]:
    """The states that a pattern shows, by variable."""
    return {v: state for v, state in enumerate(pattern.tolist()) if state >= 0}
