"""Files of graphs.

Graphs come as **JSON lines** (``.jsonl``), one graph per line, an object with

==================  =========================================================================================
``nodes``           a list of features for each node: ``[[0.2, 1.0], [0.9, 0.0]]``
``edges``           pairs of node numbers from 0: ``[[0, 1]]``
``edge_features``   a list of features for each edge; optional; for all graphs or none
``labels``          a label for each node, all integers, all strings or all booleans; not needed for predictions
``name``            what to call the graph; optional
==================  =========================================================================================

or as **arrays** (``.npz``), the same of all graphs, one after the other

==================  =========================================================================================
``node_features``   (n_nodes, n_features) floats
``node_counts``     (n_graphs,) integers, nodes of each graph; left out for a single graph
``edges``           (n_edges, 2) integers, node numbers that start from 0 *in each graph*
``edge_counts``     (n_graphs,) integers, edges of each graph; left out for a single graph
``edge_features``   (n_edges, n_edge_features) floats, optional
``labels``          (n_nodes,) integers, strings or booleans, not needed for predictions
==================  =========================================================================================
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, number_pairs
from bactrian.errors import ArgumentError, check_count
from bactrian.graphs.inputs import checked_rows
from bactrian.graphs.ragged import pointer

_KEYS = ("nodes", "edges", "edge_features", "labels", "name")
_ARRAYS = ("node_features", "node_counts", "edges", "edge_counts", "edge_features", "labels")
#: Of which each array has a row.
_ROWS_OF = {"node_features": "node", "labels": "node", "edges": "edge", "edge_features": "edge"}


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """One graph of a file."""

    name: str
    node_features: Floats
    edges: Ints
    edge_features: Floats | None
    labels: NDArray[Any] | None
    place: str  #: file and line, or number within the file

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What :class:`bactrian.GraphCRF` takes."""
        if self.edge_features is None:
            return self.node_features, self.edges
        return self.node_features, self.edges, self.edge_features


@contextmanager
def places_of(places: Sequence[str]) -> Iterator[None]:
    """Let errors of an estimator about one of its graphs name the place of that graph instead."""
    try:
        yield
    except ArgumentError as error:
        if error.item is None or error.item >= len(places):
            raise
        raise ValueError(error.said_of(places[error.item])) from error


def read_graphs(path: Path, *, need_labels: bool = False) -> Iterator[LabelledGraph]:
    """Read the graphs of a file one after the other; errors name the line or array, and what was expected."""
    if str(path) == "-":
        raise ValueError("graphs are read from .npz or .jsonl files, not from standard input")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.suffix == ".npz":
        return _from_arrays(path, need_labels)
    if path.suffix in (".jsonl", ".ndjson"):
        return _from_lines(path, need_labels)
    raise ValueError(f"{path}: graphs come in .npz or .jsonl files")


def _from_lines(path: Path, need_labels: bool) -> Iterator[LabelledGraph]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not a line of JSON: {error}") from None
            if not isinstance(record, dict) or "nodes" not in record:
                raise ValueError(f"{where}: expected an object with nodes and edges, found {str(record)[:60]}")
            for key in record:
                if key not in _KEYS:
                    raise ValueError(f"{where}: unknown key {key!r}; expected {', '.join(_KEYS)}")
            yield _graph_of(record, where, f"{path.name}#{number}", need_labels)


def _graph_of(record: Any, where: str, name: str, need_labels: bool, nodes_are: str = "nodes") -> LabelledGraph:
    """The graph of a record, in which its nodes go by the name of ``nodes_are``; everything checked."""
    nodes = _matrix(record[nodes_are], f"{where}: {nodes_are}")
    edges = number_pairs(record.get("edges", []), len(nodes), f"{where}: edges")
    features = record.get("edge_features")
    labels = record.get("labels")
    if need_labels and labels is None:
        raise ValueError(f"{where}: there are no labels")
    return LabelledGraph(
        name=str(record.get("name", name)),
        node_features=nodes,
        edges=edges,
        edge_features=None if features is None else _matrix(features, f"{where}: edge_features"),
        labels=None if labels is None else _labels(labels, len(nodes), f"{where}: labels"),
        place=where,
    )


def _from_arrays(path: Path, need_labels: bool) -> Iterator[LabelledGraph]:
    try:
        # Opened here: NumPy leaves files open that turn out not to be archives.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path}: not a readable .npz file: {error}") from None
    for name in arrays:
        if name not in _ARRAYS:
            raise ValueError(f"{path}: unknown array {name!r}; expected {', '.join(_ARRAYS)}")
    for name in ("node_features", "edges", *(["labels"] if need_labels else [])):
        if name not in arrays:
            raise ValueError(f"{path}: there is no array {name!r}")
    rows = {name: np.atleast_1d(array) for name, array in arrays.items() if name in _ROWS_OF}
    bounds = {}
    for of, name in (("node", "node_features"), ("edge", "edges")):
        bounds[of] = _bounds(arrays.get(f"{of}_counts"), len(rows[name]), f"{path}: {of}_counts")
    n_graphs, other = bounds["node"].size - 1, bounds["edge"].size - 1
    if n_graphs != other:
        raise ValueError(f"{path}: node_counts has {n_graphs} graphs and edge_counts {other}")
    for name, array in rows.items():
        check_count(f"{path}: {name}", len(array), int(bounds[_ROWS_OF[name]][-1]), f"row per {_ROWS_OF[name]}")
    for m in range(n_graphs):
        record = {name: array[slice(*bounds[_ROWS_OF[name]][m : m + 2])] for name, array in rows.items()}
        yield _graph_of(record, f"{path}, graph {m + 1}", f"{path.name}#{m + 1}", need_labels, "node_features")


def _matrix(values: Any, where: str) -> Floats:
    empty = isinstance(values, list) and not values
    return checked_rows(np.zeros((0, 0)) if empty else values, where)


def _labels(values: Any, n_nodes: int, where: str) -> NDArray[Any]:
    array = np.asarray(values) if isinstance(values, np.ndarray | list) else np.zeros(())
    kinds = {type(value) for value in values} if isinstance(values, list) else {int}
    if array.shape != (n_nodes,) or (n_nodes and (array.dtype.kind not in "iuUb" or len(kinds) > 1)):
        raise ValueError(f"{where} must be {n_nodes} integers, strings or booleans, all of one kind, one for each node")
    return array


def _bounds(counts: NDArray[Any] | None, total: int, where: str) -> Ints:
    """Where the rows of each graph begin and end."""
    if counts is None:
        return np.array([0, total], dtype=np.int64)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any() or int(counts.sum()) != total:
        raise ValueError(f"{where} must be integers that add up to {total}")
    return pointer(counts)
