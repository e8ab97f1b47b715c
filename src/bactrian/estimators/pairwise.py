"""Pairwise models: samples, which variables are joined, how their tables are tied, and their sizes.

An identifier among the variables, or tables beyond the machine's memory, are refused before any table is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints, check_minus_one, is_missing, number_pairs, rectangular
from bactrian.errors import ArgumentError, check_choice, check_count
from bactrian.estimators.priors import Block
from bactrian.frames import Variables
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


@dataclass(frozen=True, eq=False)
class PairwiseTables:
    """The tables of a pairwise field: one for each variable and, apart from those, one for each edge.

    ``kind``: ``"full"``, a table for every variable and edge; ``"shared"``, one for all variables and one for all
    edges, rows for the first variable of an edge; ``"potts"``, a table for every variable and one weight for agreement
    on any edge; ``"ordinal"``, a table for every variable, and for an edge that of weights times the scores of its
    ``ordered`` variables (linear-by-linear association: Goodman, JASA 74, 1979). Weights are in that order: variables,
    then edges; tables in C order. With ``node_factors="edges"`` the variables' tables are absorbed into the incident
    edges in equal parts, and only variables without edges have clusters of their own; the weights, and the distribution
    at given weights, are the same.
    """

    kind: str
    sizes: Ints  #: (n_variables,) states
    edges: Ints  #: (n_edges, 2)
    node_factors: str = "clusters"
    ordered: tuple[bool, ...] = ()  #: of every variable, whether it has scores

    def __post_init__(self) -> None:
        check_choice("tables", self.kind, TABLES)
        check_choice("node_factors", self.node_factors, FIELD_NODE_FACTORS)
        if self.kind == "shared" and (self.sizes != self.sizes[0]).any():
            v = int(np.argmax(self.sizes != self.sizes[0]))
            raise ValueError(
                f"tables='shared' needs variables with equally many states: variable 0 has {self.sizes[0]}, "
                f"variable {v} has {self.sizes[v]}"
            )

    @staticmethod
    def of(kind: str, variables: Variables, edges: Ints, node_factors: str = "clusters") -> PairwiseTables:
        """Those of some variables."""
        ordered = variables.are_ordered if kind == "ordinal" else ()
        return PairwiseTables(kind, np.array(variables.cardinalities, dtype=np.int64), edges, node_factors, ordered)

    def is_like(self, other: PairwiseTables | None) -> bool:
        """Whether weights of the one are weights of the other."""
        return other is not None and all(np.array_equal(vars(self)[f.name], vars(other)[f.name]) for f in fields(self))

    def _is_scored(self, v: int) -> bool:
        return self.kind == "ordinal" and self.ordered[v]

    @cached_property
    def n_of_variables(self) -> int:
        """Number of weights of the variables' tables, which come first."""
        return int(self.sizes[0] if self.kind == "shared" else self.sizes.sum())

    @cached_property
    def pair_sizes(self) -> Ints:
        """(n_edges,) weights of the table of each edge."""
        if self.kind == "potts":
            return np.ones(len(self.edges), dtype=np.int64)
        scored = np.array([self._is_scored(v) for v in range(self.sizes.size)], dtype=bool)
        found: Ints = np.where(scored, 1, self.sizes)[self.edges].prod(axis=1)
        return found

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        of_edges = self.pair_sizes[:1] if self.kind in ("shared", "potts") else self.pair_sizes
        return self.n_of_variables + int(of_edges.sum())

    @property
    def blocks(self) -> list[Block]:
        """Blocks of weights whose variances may differ."""
        edges = slice(self.n_of_variables, self.n_weights)
        sizes = self.pair_sizes if self.kind in ("full", "ordinal") else None
        return [Block("variables", slice(0, self.n_of_variables)), Block("edges", edges, sizes=sizes)]

    @cached_property
    def _starts(self) -> tuple[list[int], list[int]]:
        """First weight of the table of every variable, and of every edge."""
        if self.kind == "shared":
            return [0] * self.sizes.size, [self.n_of_variables] * len(self.edges)
        lengths = 0 * self.pair_sizes if self.kind == "potts" else self.pair_sizes
        return pointer(self.sizes)[:-1].tolist(), (self.n_of_variables + pointer(lengths)[:-1]).tolist()

    @cached_property
    def model(self) -> LogLinearModel:
        """A cluster for each variable, then one for each edge."""
        sizes, n, (starts, pair_starts) = self.sizes.tolist(), self.n_weights, self._starts
        pairs = [(a, b) for a, b in self.edges.tolist()]
        degrees = np.bincount(self.edges.ravel(), minlength=len(sizes)).tolist()
        absorbs = self.node_factors == "edges"
        alone = [v for v in range(len(sizes)) if not (absorbs and degrees[v])]

        # Equal tables are one object, which is packed once.
        @cache
        def of_variable(k: int, start: int) -> sp.csr_array:
            return _placed(_basis(k), start, n)

        @cache
        def of_states(k: int, other: int, is_scored: bool, is_other_scored: bool) -> sp.csr_array:
            if self.kind == "potts":
                return sp.csr_array(np.eye(k, other).reshape(-1, 1))
            return sp.csr_array(sp.kron(_basis(k, is_scored), _basis(other, is_other_scored)))

        @cache
        def of_edge(kind: tuple[Any, ...], start: int, absorbed: tuple[tuple[int, float], ...]) -> sp.csr_array:
            found = _placed(of_states(*kind), start, n)
            for axis, (first, part) in enumerate(absorbed):
                own = [_basis(k) if i == axis else np.ones((k, 1)) for i, k in enumerate(kind[:2])]
                found = found + part * _placed(sp.csr_array(sp.kron(*own)), first, n)
            return sp.csr_array(found)

        features = [of_variable(sizes[v], starts[v]) for v in alone]
        for (a, b), start in zip(pairs, pair_starts, strict=True):
            absorbed = tuple((starts[v], 1.0 / degrees[v]) for v in (a, b)) if absorbs else ()
            features.append(of_edge((sizes[a], sizes[b], self._is_scored(a), self._is_scored(b)), start, absorbed))
        return LogLinearModel(ClusterGraph(self.sizes, [*((v,) for v in alone), *pairs]), features)

    def split(self, weights: Floats) -> tuple[list[Floats], list[Floats]]:
        """Log-potentials: a table for every variable and, apart from those, one for every edge."""
        (starts, pair_starts), sizes = self._starts, self.sizes.tolist()
        variables = [weights[start : start + k].copy() for k, start in zip(sizes, starts, strict=True)]
        pairs = []
        for (a, b), start, size in zip(self.edges.tolist(), pair_starts, self.pair_sizes.tolist(), strict=True):
            if self.kind == "potts":
                pairs.append(weights[start] * np.eye(sizes[a], sizes[b]))
                continue
            table = weights[start : start + size].reshape(1 if self._is_scored(a) else sizes[a], -1)
            table = _basis(sizes[a], True) @ table if self._is_scored(a) else table
            pairs.append(np.array(table @ _basis(sizes[b], True).T if self._is_scored(b) else table))
        return variables, pairs

    def known_around(self, states: Ints) -> Bools:
        """Which states of rows are known, and all of those next to them."""
        (a, b), n = self.edges.T, self.sizes.size
        beside = sp.csr_array((np.ones(2 * a.size), (np.append(a, b), np.append(b, a))), shape=(n, n))
        found: Bools = (states >= 0) & ((states < 0) @ beside == 0)
        return found

    def conditional_losses(self, states: Ints, weights: Floats) -> Floats:
        """- sum_v log p(x_v | all others) of each row, over states whose neighbours are known."""
        variables, pairs = self.split(weights)
        first, shape = pointer(self.sizes), [states.shape[0], int(self.sizes.sum())]
        coupling, seen = np.zeros([shape[1]] * 2), np.zeros(shape)
        for (a, b), table in zip(self.edges.tolist(), pairs, strict=True):
            at = slice(first[a], first[a + 1]), slice(first[b], first[b + 1])
            coupling[at] = table
            coupling[at[::-1]] = table.T
        row, v = np.nonzero(states >= 0)
        seen[row, first[v] + states[row, v]] = 1.0
        scores = seen @ coupling + np.concatenate(variables)
        losses = np.logaddexp.reduceat(scores, first[:-1], axis=1)
        losses -= np.add.reduceat(scores * seen, first[:-1], axis=1)
        return np.asarray((losses * self.known_around(states)).sum(axis=1))


def _basis(n_states: int, is_scored: bool = False) -> sp.csr_array:
    """(states, weights) of a variable in a table: indicators, or scores in equal steps of mean 0 and variance 1."""
    if not is_scored:
        return sp.eye_array(n_states, format="csr")
    steps = np.arange(n_states) - 0.5 * (n_states - 1)
    return sp.csr_array((steps / np.sqrt(np.mean(steps**2) or 1.0))[:, None])


def _placed(table: sp.csr_array, column: int, n_weights: int) -> sp.csr_array:
    """Features (states, n_weights) whose columns from ``column`` on are those of the table."""
    return sp.csr_array((table.data, table.indices + column, table.indptr), shape=(table.shape[0], n_weights))


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


def check_tables_fit(tables: str, variables: Variables, edges: Ints, memory: int | None = None) -> None:
    """Refuse tables for which learning would need more than ``memory`` bytes, by default all that the machine has."""
    memory = _physical_memory() if memory is None else memory
    sizes = list(variables.cardinalities)  # whole numbers of Python, whose products do not overflow
    pairs = [sizes[a] * sizes[b] for a, b in edges.tolist()]
    n_weights = sum(sizes) + (sum(pairs) if tables == "full" else 1)
    if tables == "shared":
        n_weights = sizes[0] + sizes[0] ** 2
    needed = _BYTES_PER_ENTRY * (sum(sizes) + sum(pairs)) + _BYTES_PER_WEIGHT * n_weights
    if needed <= memory:
        return
    v, names = int(np.argmax(sizes)), variables.names if variables.are_named else None
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
