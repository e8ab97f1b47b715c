"""Files of graphs, for ``bactrian train``: JSON lines, or the arrays of an ``.npz`` file.

**JSON lines** (``.jsonl``): one graph per line, an object with

==================  =========================================================================================
``nodes``           a list of features for each node: ``[[0.2, 1.0], [0.9, 0.0]]``
``edges``           pairs of node numbers from 0: ``[[0, 1]]``
``edge_features``   a list of features for each edge; optional, but for all graphs or none
``labels``          a label for each node, all integers, all strings or all booleans; not needed for predictions
``name``            what to call the graph; optional
==================  =========================================================================================

**Arrays** (``.npz``): the same of all graphs, one after the other

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
from bactrian.errors import ArgumentError
from bactrian.graphs.inputs import checked_rows

_KEYS = ("nodes", "edges", "edge_features", "labels", "name")
_ARRAYS = ("node_features", "node_counts", "edges", "edge_counts", "edge_features", "labels")


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
    """Read the graphs of a file one after the other.

    Raises
    ------
    ValueError
        For a file that does not keep to the layout; it names the file, the line or array, and what was expected.
    """
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
            yield _graph_of(record, where, f"{path.name}#{number}", need_labels)


def _graph_of(record: Any, where: str, name: str, need_labels: bool) -> LabelledGraph:
    if not isinstance(record, dict) or "nodes" not in record:
        raise ValueError(f"{where}: expected an object with nodes and edges, found {str(record)[:60]}")
    for key in record:
        if key not in _KEYS:
            raise ValueError(f"{where}: unknown key {key!r}; expected {', '.join(_KEYS)}")
    nodes = _matrix(record["nodes"], f"{where}: nodes")
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
    for name in ("node_features", "edges"):
        if name not in arrays:
            raise ValueError(f"{path}: there is no array {name!r}")
    if need_labels and "labels" not in arrays:
        raise ValueError(f"{path}: there is no array 'labels'")
    nodes = _matrix(arrays["node_features"], f"{path}: node_features")
    edges = np.atleast_1d(arrays["edges"])
    node_ends = _ends(arrays.get("node_counts"), len(nodes), f"{path}: node_counts")
    edge_ends = _ends(arrays.get("edge_counts"), len(edges), f"{path}: edge_counts")
    if node_ends.size != edge_ends.size:
        raise ValueError(f"{path}: node_counts has {node_ends.size} graphs and edge_counts {edge_ends.size}")
    features = arrays.get("edge_features")
    rows = None if features is None else _matrix(features, f"{path}: edge_features")
    if rows is not None and len(rows) != len(edges):
        raise ValueError(f"{path}: edge_features must have {len(edges)} rows, one for each edge, found {len(rows)}")
    labels = arrays.get("labels")
    checked = None if labels is None else _labels(labels, len(nodes), f"{path}: labels")
    for m, (node_end, edge_end) in enumerate(zip(node_ends.tolist(), edge_ends.tolist(), strict=True)):
        first, edge = (int(node_ends[m - 1]), int(edge_ends[m - 1])) if m else (0, 0)
        place = f"{path}, graph {m + 1}"
        yield LabelledGraph(
            name=f"{path.name}#{m + 1}",
            node_features=nodes[first:node_end],
            edges=number_pairs(edges[edge:edge_end], node_end - first, f"{place}: edges"),
            edge_features=None if rows is None else rows[edge:edge_end],
            labels=None if checked is None else checked[first:node_end],
            place=place,
        )


def _matrix(values: Any, where: str) -> Floats:
    empty = isinstance(values, list) and not values
    matrix: Floats = checked_rows(np.zeros((0, 0)) if empty else values, where)
    return matrix


def _labels(values: Any, n_nodes: int, where: str) -> NDArray[Any]:
    array = np.asarray(values) if isinstance(values, np.ndarray | list) else np.zeros(())
    kinds = {type(value) for value in values} if isinstance(values, list) else {int}
    if array.shape != (n_nodes,) or (n_nodes and (array.dtype.kind not in "iuUb" or len(kinds) > 1)):
        raise ValueError(f"{where} must be {n_nodes} integers, strings or booleans, all of one kind, one for each node")
    return array


def _ends(counts: NDArray[Any] | None, total: int, where: str) -> Ints:
    if counts is None:
        return np.array([total], dtype=np.int64)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any() or int(counts.sum()) != total:
        raise ValueError(f"{where} must be integers that add up to {total}")
    return np.cumsum(counts, dtype=np.int64)
