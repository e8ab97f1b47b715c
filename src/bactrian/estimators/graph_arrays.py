"""Lists of graphs, checked and stacked into the arrays of :class:`bactrian.GraphData`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.errors import about
from bactrian.estimators.labels import is_missing
from bactrian.graphs.domain import rectangular
from bactrian.graphs.inputs import checked_rows

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StackedGraphs:
    """Graphs one after the other: what :class:`bactrian.GraphData` takes, but for labels."""

    inputs: Any  #: (n_nodes, n_inputs) dense or sparse
    edges: Ints  #: (n_edges, 2) in the stacked numbering
    edge_types: Ints | None  #: (n_edges,)
    edge_inputs: Any  #: (n_edges, n_edge_inputs) dense or sparse, or None
    shapes: list[tuple[int, ...]]  #: of each graph's array of nodes: (n_nodes,), or (height, width)
    edge_counts: Ints  #: (n_graphs,)
    columns: dict[str, Any] = field(default_factory=dict)  #: what the estimator remembers of the features

    @property
    def node_counts(self) -> Ints:
        """(n_graphs,) nodes of each graph."""
        return np.array([math.prod(shape) for shape in self.shapes], dtype=np.int64)

    @property
    def node_pointer(self) -> Ints:
        """(n_graphs + 1,) first node of each graph."""
        return pointer(self.node_counts)

    @property
    def edge_pointer(self) -> Ints:
        """(n_graphs + 1,) first edge of each graph."""
        return pointer(self.edge_counts)


def pointer(counts: Ints) -> Ints:
    """Where each of consecutive runs starts, and the end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def checked_list(X: Any, name: str, what: str) -> Sequence[Any]:
    """X as a sequence that is not empty."""
    if isinstance(X, str | bytes | dict) or sp.issparse(X) or not (isinstance(X, Sequence | np.ndarray)):
        raise TypeError(f"{name} must be a list of {what}, found {type(X).__name__}")
    if len(X) == 0:
        raise ValueError(f"{name} is empty; expected at least one of {what}")
    return X  # type: ignore[return-value]  # an array of arrays serves as well


def feature_rows(rows: Any, name: str, n_columns: int | None) -> Any:
    """Dense float64 or sparse CSR rows, with the number of columns that others have."""
    checked = checked_rows(rows, name)
    if n_columns is not None and checked.shape[1] != n_columns:
        raise ValueError(f"{name} has {checked.shape[1]} features, expected {n_columns}")
    return checked


def checked_edges(edges: Any, n_nodes: int, name: str) -> Ints:
    """(n_edges, 2) node numbers of one graph."""
    array = rectangular(edges, name)
    if array.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"{name} must have shape (n_edges, 2), found {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integer node numbers, found dtype {array.dtype}")
    wrong = ((array < 0) | (array >= n_nodes)).any(axis=1) | (array[:, 0] == array[:, 1])
    if wrong.any():
        e = int(np.argmax(wrong))
        raise ValueError(
            f"{name}[{e}] = {tuple(array[e].tolist())} must join two different nodes of 0 to {n_nodes - 1}"
        )
    return array.astype(np.int64)


def stack_rows(parts: list[Any], intercept: bool) -> Any:
    """Rows of all graphs, sparse where any part is, with a last column of ones where asked for."""
    n_rows = sum(part.shape[0] for part in parts)
    if any(sp.issparse(part) for part in parts):
        stacked = sp.vstack([sp.csr_array(part) for part in parts], format="csr", dtype=np.float64)
        return sp.csr_array(sp.hstack([stacked, np.ones((n_rows, 1))], format="csr")) if intercept else stacked
    width = parts[0].shape[1]
    stacked = np.ones((n_rows, width + intercept))
    np.concatenate(parts, axis=0, out=stacked[:, :width])
    return stacked


def stack_graphs(
    X: Any, *, n_features: int | None, n_edge_features: int | None, fitted: bool, intercept: bool, edge_intercept: bool
) -> StackedGraphs:
    """Stack (node_features, edges) or (node_features, edges, edge_features) of every graph.

    With ``fitted`` the numbers of features are those of training, otherwise those of the first graph.
    """
    graphs = checked_list(X, "X", "(node_features, edges) or (node_features, edges, edge_features)")
    nodes, edges, edge_rows = [], [], []
    for i, graph in enumerate(graphs):
        with about("X", i):
            parts = _parts_of(graph)
            rows = feature_rows(parts[0], ": node_features", n_features)
            n_features = int(rows.shape[1])
            pairs = checked_edges(parts[1], rows.shape[0], ": edges")
            has_features = parts[2] is not None
            if i == 0 and not fitted and has_features:
                n_edge_features = int(feature_rows(parts[2], ": edge_features", None).shape[1])
            if has_features != (n_edge_features is not None) and (has_features or len(pairs)):
                expected = "no edge_features" if n_edge_features is None else f"{n_edge_features} edge_features"
                found = f"has {'' if has_features else 'no '}edge_features"
                raise ValueError(f"{found}, expected {expected} as elsewhere")
            nodes.append(rows)
            edges.append(pairs)
            if n_edge_features is not None:
                empty = np.zeros((0, n_edge_features))
                given = feature_rows(parts[2], ": edge_features", n_edge_features) if has_features else empty
                if given.shape[0] != len(pairs):
                    expected = f"expected {len(pairs)}, found {given.shape[0]}"
                    raise ValueError(f": edge_features must have one row per edge: {expected}")
                edge_rows.append(given)
    assert n_features is not None
    counts = np.array([rows.shape[0] for rows in nodes], dtype=np.int64)
    if not counts.any():
        raise ValueError("X has no nodes at all; expected at least one")
    shift = np.repeat(pointer(counts)[:-1], [len(pairs) for pairs in edges])
    return StackedGraphs(
        inputs=stack_rows(nodes, intercept),
        edges=np.concatenate(edges) + shift[:, None],
        edge_types=None,
        edge_inputs=stack_rows(edge_rows, edge_intercept) if edge_rows else None,
        shapes=[(int(n),) for n in counts],
        edge_counts=np.array([len(pairs) for pairs in edges], dtype=np.int64),
        columns={
            "n_features_in_": n_features,
            "n_edge_features_": n_edge_features,
            "intercepts_": (intercept, edge_intercept),
        },
    )


def _parts_of(graph: Any) -> tuple[Any, Any, Any]:
    """Node features, edges and, or None, edge features."""
    # An object array of tuples of equal length comes apart into rows that are arrays themselves.
    is_row = isinstance(graph, np.ndarray) and graph.dtype == object and graph.ndim == 1
    if not (isinstance(graph, tuple | list) or is_row) or len(graph) not in (2, 3):
        found = f"{len(graph)} parts" if isinstance(graph, tuple | list) else type(graph).__name__
        raise TypeError(f"must be (node_features, edges) or (node_features, edges, edge_features), found {found}")
    return graph[0], graph[1], graph[2] if len(graph) == 3 else None


def checked_labels(
    y: Any, shapes: list[tuple[int, ...]], name: str = "y", *, unknown_allowed: bool = False
) -> NDArray[Any]:
    """Labels of all nodes, stacked and flat: int64, booleans or strings. ``shapes``: of each graph's array.

    -1, and an empty string among strings, stand for a label that is not known.
    """
    given = checked_list(y, name, "label arrays")
    if len(given) != len(shapes):
        raise ValueError(f"{name} must have one array per graph: expected {len(shapes)}, found {len(given)}")
    parts = []
    for i, (labels, shape) in enumerate(zip(given, shapes, strict=True)):
        with about(name, i):
            array = label_array(labels, "", unknown_allowed=unknown_allowed)
            if array.size == 0 and math.prod(shape) == 0:
                continue
            if array.shape != shape:
                raise ValueError(f"must have one label per node: expected shape {shape}, found {array.shape}")
        parts.append(array.ravel())
    kinds = {part.dtype.kind for part in parts}
    if len(kinds) > 1:
        words = {"i": "integers", "b": "booleans", "U": "strings"}
        raise TypeError(f"{name} mixes labels of several kinds: {' and '.join(words[kind] for kind in sorted(kinds))}")
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def label_array(labels: Any, name: str, *, unknown_allowed: bool = False) -> NDArray[Any]:
    """Labels in any shape as int64, booleans or strings, or an error that calls them ``name``."""
    array = rectangular(labels, name)
    if array.dtype.kind == "U" and not isinstance(labels, np.ndarray):
        array = np.asarray(labels, dtype=object)  # or NumPy would have made strings of numbers among them
    if array.dtype.kind in "fO":
        array = _plain_objects(array, name)
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds label {array.max()}, which is beyond 64-bit integers")
    if array.dtype.kind not in "iuUb":
        raise TypeError(f"{name} must hold integer, boolean or string labels, found dtype {array.dtype}")
    array = array.astype(np.int64) if array.dtype.kind in "iu" else array
    if not unknown_allowed and array.dtype.kind != "b":
        unknown = array == unknown_label(array)
        if unknown.any():
            _refuse_unknown(array, unknown, name)
    return array


def unknown_label(labels: NDArray[Any]) -> Any:
    """What stands for a label that is not known, among labels of the kind of ``labels``."""
    return "" if labels.dtype.kind == "U" else -1


def _plain_objects(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Python objects, or floats, as an array of integers, booleans or strings, where all are of one kind."""
    listed = array.ravel().tolist()
    missing = np.array([is_missing(label) for label in listed], dtype=bool).reshape(array.shape)
    if missing.any():
        _refuse_unknown(array, missing, name)
    if all(isinstance(label, str) for label in listed):
        return array.astype(np.str_)
    for kind, dtype in ((bool | np.bool_, np.bool_), (int | np.integer, np.int64)):
        if all(isinstance(label, kind) for label in listed):
            return array.astype(dtype)
    return array


def _refuse_unknown(array: NDArray[Any], unknown: NDArray[np.bool_], name: str) -> NoReturn:
    position = tuple(int(p) for p in np.argwhere(unknown)[0])
    place = f"{name}[{', '.join(map(str, position))}]" if position else name
    label = array[position]
    raise ValueError(
        f"{place} is {label.item() if isinstance(label, np.generic) else label!r}, which stands for an unknown label; "
        "learning and scores need every label"
    )


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> Ints:
    """Position of each label among the sorted ``classes``; False and True are 0 and 1, as in Python."""
    if {labels.dtype.kind, classes.dtype.kind} == {"b", "i"}:
        labels, classes = labels.astype(np.int64), classes.astype(np.int64)
    check_kind(labels, classes, name)
    place = np.minimum(np.searchsorted(classes, labels), classes.size - 1).astype(np.int64)
    unknown = classes[place] != labels
    if unknown.any():
        node = int(np.argmax(unknown))
        raise ValueError(f"{name} holds label {labels[node].item()!r}, which is none of the {classes.size} classes")
    return place


def check_kind(labels: NDArray[Any], classes: NDArray[Any], name: str) -> None:
    """Refuse labels that can equal none of the classes, such as strings for integers."""
    numbers = {labels.dtype.kind, classes.dtype.kind} <= {"b", "i"}
    if labels.size and labels.dtype.kind != classes.dtype.kind and not numbers:
        raise TypeError(f"{name} must hold labels such as {classes[0].item()!r}, found {labels[0].item()!r}")
