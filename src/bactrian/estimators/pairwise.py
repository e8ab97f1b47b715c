"""Pairwise models from a few words: samples, which variables are joined, how their tables are tied, and their sizes.

An identifier among the variables, or tables beyond the machine's memory, are refused before any table is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, check_minus_one, is_missing, number_pairs, rectangular
from bactrian.errors import ArgumentError, check_choice, check_count
from bactrian.graphs.graph import ClusterGraph, Domain, grid_edges
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.ragged import pointer

# --- samples ---

#: Most clusters of the rows that are packed together for inference.
_CLUSTERS_AT_ONCE = 100_000


def checked_table(X: Any) -> Ints:
    """X as a new (n_samples, n_variables) array of ints, booleans as 0 and 1, or an error.

    NaN and None among whole numbers become -1, which stands for a state that is missing.
    """
    if X is None or isinstance(X, str | bytes | Mapping | set) or sp.issparse(X):
        kind = f"sparse {type(X).__name__}; give X.toarray()" if sp.issparse(X) else type(X).__name__
        raise TypeError(f"X must be an array (n_samples, n_variables) of integer states, found a {kind}")
    states = rectangular(X, "X")
    if states.ndim != 2:
        raise ValueError(f"X must have shape (n_samples, n_variables), found {states.shape}")
    if states.dtype.kind in "fO":
        missing = np.array([is_missing(value) for value in states.ravel().tolist()], dtype=bool).reshape(states.shape)
        if missing.any():
            filled = np.where(missing, -1, states)
            listed = filled.ravel().tolist()
            whole = all(isinstance(value, int | float) and value == np.floor(value) for value in listed)
            states = filled.astype(np.int64) if whole else states
    if states.dtype.kind not in "biu":
        raise TypeError(f"X must hold integer states, found dtype {states.dtype}: {_hint(states)}")
    if states.dtype.kind == "u" and states.size and int(states.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"X holds {states.max()}, which is not a state: states are small integers from 0")
    return states.astype(np.int64)


def _hint(states: NDArray[Any]) -> str:
    """What to do about values that are not integers, with the first cell that is in the way."""
    numbers = states.dtype.kind == "f"
    wrong = (states != np.floor(states)) & ~np.isnan(states) if numbers else np.ones(states.shape, dtype=bool)
    if numbers and not wrong.any():
        return "the values are whole, so give X.astype(int)"
    row, column = np.unravel_index(int(np.argmax(wrong)), states.shape)
    cell = f"X[{row}, {column}] = {states[row, column]}"
    if numbers:
        return f"{cell} is a measurement; put it into a few bins, as sklearn.preprocessing.KBinsDiscretizer does"
    return f"{cell}; number the values, as sklearn.preprocessing.OrdinalEncoder(dtype=int) does, or give a data frame"


def checked_cardinalities(given: Any, n: int) -> Ints:
    """Numbers of states of ``n`` variables, given as one for all or one for each."""
    numbers = rectangular(given, "cardinalities")
    if numbers.ndim == 0:
        numbers = np.full(n, numbers)
    checked = Domain(numbers, []).cardinalities
    check_count("cardinalities", checked.size, n, "entry per variable")
    return checked


def check_known_states(X: Any, states: Ints, together: bool) -> None:
    """Refuse -1 where the states of a column, or of all ``together``, say that it is not a missing one."""
    columns = {"X": ...} if together else {f"X[:, {v}]": (slice(None), v) for v in range(states.shape[1])}
    for name, place in columns.items():
        known = states[place][states[place] != -1]
        check_minus_one(
            [rectangular(X, "X")[place]], np.unique(known).tolist(), name, "None or NaN, or give cardinalities="
        )


def seen_cardinalities(states: Ints) -> Ints:
    """One more than the largest state of each variable."""
    seen: Ints = states.max(axis=0) + 1
    Domain(np.maximum(seen, 1), []).checked_states(states, "X", unknown=True)  # says where
    if (seen == 0).any():
        v = int(np.argmin(seen))
        raise ValueError(
            f"X[:, {v}] has no observed state; leave the column out, or give its number of states with cardinalities="
        )
    return seen


def incomplete_rows(states: Ints, n_clusters: int) -> list[tuple[Ints, list[dict[int, int]], Ints]]:
    """Rows with missing states in groups of a bounded size: row numbers, distinct evidence, which of it each row has.

    ``n_clusters`` is how many clusters inference packs for one.
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
        some = patterns[first : first + step].tolist()
        evidence = [{v: state for v, state in enumerate(pattern) if state >= 0} for pattern in some]
        groups.append((rows[inside], evidence, which[inside] - first))
    return groups


# --- models ---

TABLES = ("full", "shared", "potts", "ordinal")

#: Where the tables of variables may sit.
FIELD_NODE_FACTORS = ("clusters", "edges")


def checked_edges(edges: Any, shape: Any, n_variables: int) -> Ints:
    """Pairs of variables, shape (n_edges, 2), or an error that names ``edges`` or ``shape``."""
    if isinstance(edges, str):
        if edges == "complete":
            return np.stack(np.triu_indices(n_variables, 1), axis=1).astype(np.int64)
        if edges == "grid":
            height, width = _checked_shape(shape, n_variables)
            return grid_edges(height, width)
        words = "'auto', 'select', 'tree', 'complete', 'grid'"
        raise ArgumentError("edges", f"must be {words} or pairs of variables, found {edges!r}")
    pairs = number_pairs(edges, n_variables, "edges", "variable")
    _, first, counts = np.unique(np.sort(pairs, axis=1), axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        e = int(first[np.argmax(counts > 1)])
        raise ValueError(f"edges joins variables {tuple(pairs[e].tolist())} more than once")
    return pairs


def _checked_shape(shape: Any, n_variables: int) -> tuple[int, int]:
    sides = rectangular(() if shape is None else shape, "shape")
    if sides.shape != (2,) or sides.dtype.kind not in "iu" or (sides < 1).any() or int(sides.prod()) != n_variables:
        raise ValueError(
            f"shape must be (height, width) with height * width = {n_variables} variables for edges='grid', "
            f"found {shape!r}"
        )
    return int(sides[0]), int(sides[1])


def n_weights_of(tables: str, cardinalities: Ints, edges: Ints, ordered: Sequence[bool] = ()) -> int:
    """Number of weights of :func:`pairwise_model`."""
    if tables == "shared":
        k = int(cardinalities[0])
        return k + (k * k if edges.size else 0)
    per_edge = min(len(edges), 1) if tables == "potts" else _widths(cardinalities, ordered)[edges].prod(axis=1).sum()
    return int(cardinalities.sum() + per_edge)


def _widths(cardinalities: Ints, ordered: Sequence[bool]) -> Ints:
    """Weights that a variable has for each of its neighbour's in a table: its states, or one where it has scores."""
    return np.where(np.array(ordered, dtype=bool), 1, cardinalities) if len(ordered) else cardinalities


def _scores(n_states: int, is_ordered: bool) -> Floats:
    """(states, weights) of a variable in a table: indicators, or scores in equal steps of mean 0 and variance 1."""
    if not is_ordered:
        return np.eye(n_states)
    steps = np.arange(n_states) - 0.5 * (n_states - 1)
    return np.asarray(steps / np.sqrt(np.mean(steps**2) or 1.0))[:, None]


def pairwise_model(
    tables: Any, cardinalities: Ints, edges: Ints, node_factors: Any = "clusters", ordered: Sequence[bool] = ()
) -> LogLinearModel:
    """A model with one singleton cluster per variable, then one pair per edge, every table of indicator features.

    ``tables``: ``"full"``, a table for every variable and edge; ``"shared"``, one for all variables and one for all
    edges, rows for the first variable of an edge; ``"potts"``, a table for every variable and one weight for agreement
    on any edge; ``"ordinal"``, a table for every variable, and for an edge that of weights times the scores of its
    ``ordered`` variables (linear-by-linear association: Goodman, JASA 74, 1979). Weights are in that order: variables,
    then edges; tables in C order. With ``node_factors="edges"`` the variables' tables are absorbed into the incident
    edges in equal parts, and only variables without edges have singleton clusters, which come first; the weights, and
    the distribution at given weights, are the same.
    """
    _check_kinds(tables, cardinalities, node_factors)
    ordered = ordered if tables == "ordinal" else ()
    n_weights = n_weights_of(tables, cardinalities, edges, ordered)
    starts, pair_starts = _columns(tables, cardinalities, edges, ordered)
    sizes = cardinalities.tolist()
    pairs = [(a, b) for a, b in edges.tolist()]
    alone = [v for v in range(len(sizes)) if node_factors == "clusters"]
    parts = [0.0] * len(sizes)  # of a variable's table, in every incident edge
    if node_factors == "edges":
        degrees = np.bincount(edges.ravel(), minlength=len(sizes)).tolist()
        alone = [v for v, degree in enumerate(degrees) if degree == 0]
        parts = [1.0 / degree if degree else 0.0 for degree in degrees]
    known: dict[tuple[Any, ...], sp.csr_array] = {}  # equal tables are one object, which is packed once
    features: list[sp.csr_array] = []
    for v in alone:
        key: tuple[Any, ...] = (sizes[v], starts[v])
        if key not in known:
            known[key] = _indicators(np.arange(sizes[v]), starts[v], 1.0, n_weights)
        features.append(known[key])
    for (a, b), start in zip(pairs, pair_starts, strict=True):
        absorbed = tuple((starts[v], parts[v]) if parts[v] else None for v in (a, b))
        key = (sizes[a], sizes[b], start, absorbed)
        if key not in known:
            scores = [_scores(sizes[v], ordered[v]) for v in (a, b)] if ordered else None
            known[key] = _pair_features(tables, (sizes[a], sizes[b]), start, absorbed, n_weights, scores)
        features.append(known[key])
    return LogLinearModel(ClusterGraph(cardinalities, [*((v,) for v in alone), *pairs]), features)


def _check_kinds(tables: Any, cardinalities: Ints, node_factors: Any) -> None:
    check_choice("tables", tables, TABLES)
    check_choice("node_factors", node_factors, FIELD_NODE_FACTORS)
    if tables == "shared" and (cardinalities != cardinalities[0]).any():
        v = int(np.argmax(cardinalities != cardinalities[0]))
        raise ValueError(
            f"tables='shared' needs variables with equally many states: variable 0 has {cardinalities[0]}, "
            f"variable {v} has {cardinalities[v]}"
        )


def _columns(
    tables: str, cardinalities: Ints, edges: Ints, ordered: Sequence[bool] = ()
) -> tuple[list[int], list[int]]:
    """First weight of the table of every variable, and of every edge."""
    if tables == "shared":
        return [0] * cardinalities.size, [int(cardinalities[0])] * len(edges)
    ends = np.cumsum(cardinalities)
    starts = [0, *ends[:-1].tolist()]
    if tables == "potts":
        return starts, [int(ends[-1])] * len(edges)
    return starts, [
        int(end) for end in ends[-1] + np.cumsum([0, *_widths(cardinalities, ordered)[edges].prod(axis=1)])[:-1]
    ]


def split_tables(
    tables: str, cardinalities: Ints, edges: Ints, weights: Floats, ordered: Sequence[bool] = ()
) -> tuple[list[Floats], list[Floats]]:
    """Log-potentials: a table for every variable and, apart from those, one for every edge."""
    ordered = ordered if tables == "ordinal" else ()
    starts, pair_starts = _columns(tables, cardinalities, edges, ordered)
    sizes = cardinalities.tolist()
    variables = [weights[start : start + k].copy() for k, start in zip(sizes, starts, strict=True)]
    if tables == "potts":
        return variables, [weights[-1] * np.eye(sizes[a], sizes[b]) for a, b in edges.tolist()]
    pairs = []
    for (a, b), start in zip(edges.tolist(), pair_starts, strict=True):
        rows, columns = (_scores(sizes[v], bool(ordered) and ordered[v]) for v in (a, b))
        n = rows.shape[1] * columns.shape[1]
        pairs.append(rows @ weights[start : start + n].reshape(rows.shape[1], -1) @ columns.T)
    return variables, pairs


def _pair_features(
    tables: str,
    shape: tuple[int, int],
    start: int,
    absorbed: tuple[tuple[int, float] | None, ...],
    n_weights: int,
    scores: Sequence[Floats] | None,
) -> sp.csr_array:
    """Features of an edge, and parts of its variables' own, each given by first weight and part."""
    states = np.indices(shape).reshape(2, -1)
    agree = np.where(states[0] == states[1], 0, -1)
    if scores is not None:
        table = np.kron(*scores)
        apart = [sp.csr_array((agree.size, n)) for n in (start, n_weights - start - table.shape[1])]
        features = sp.csr_array(sp.hstack([apart[0], table, apart[1]]))
    else:
        features = _indicators(agree if tables == "potts" else np.arange(agree.size), start, 1.0, n_weights)
    for own, given in zip(states, absorbed, strict=True):
        if given is not None:
            features = sp.csr_array(features + _indicators(own, *given, n_weights))
    return features


def _indicators(states: Ints, column: int, part: float, n_weights: int) -> sp.csr_array:
    """A row for each of ``states``, with ``part`` at the weight of that state, from ``column`` on; none for -1."""
    known = states >= 0
    entries = column + states[known]
    return sp.csr_array((np.full(entries.size, part), entries, pointer(known)), shape=(states.size, n_weights))


def is_forest(n_variables: int, edges: Ints) -> bool:
    """Whether the edges close no cycle."""
    adjacency = sp.csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n_variables, n_variables))
    components = sp.csgraph.connected_components(adjacency, directed=False, return_labels=False)
    return bool(len(edges) == n_variables - components)


# --- sizes ---

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
