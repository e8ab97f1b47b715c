"""The data of a run: files become documents or graphs, with labels as the model wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.arrays import check_minus_one
from bactrian.estimators.labels import known_labels
from bactrian.runs.graph_files import LabelledGraph, read_graphs
from bactrian.runs.settings import RunSettings, files_of
from bactrian.runs.texts import check_written, read_documents, say_reading, tag_reading
from bactrian.text.documents import Document


@dataclass(frozen=True, eq=False)
class RunData:
    """Input of an estimator: instances, labels and further arguments of its methods."""

    X: list[Any]
    y: list[Any]
    given: dict[str, Any]
    documents: list[Document]  #: none for graphs
    scheme: str | None = None  #: of the tags, where they mark entities
    places: tuple[str, ...] = ()  #: of graphs: file and line of each


def read_data(paths: Sequence[str], settings: RunSettings, labels: Iterable[Any] | None = None) -> RunData:
    """Labelled data of files, all in memory; ``labels`` are those of a model, None before one is learned.

    Learning needs files that mark something. Errors name the file.
    """
    if not settings.is_text:
        graphs = list(labelled_graphs(paths))
        if labels is not None:
            _check_labels(graphs, set(labels))
        places, parts = tuple(graph.place for graph in graphs), [np.asarray(graph.labels) for graph in graphs]
        if labels is None:
            seen = set[Any]().union(*(part[known_labels(part)].tolist() for part in parts))
            check_minus_one(parts, seen, ", ".join(paths), "strings for the classes, and an empty one for it")
        return RunData([graph.inputs for graph in graphs], parts, {}, [], places=places)
    documents = list(labelled_documents(paths, settings))
    reading = tag_reading(documents, paths, settings, labels)
    if labels is None:
        say_reading(reading, documents, paths)
    check_written(reading, documents)
    y = [reading.tags(document) for document in documents]
    return RunData(
        X=list(settings.extractor().extract_many(documents)),
        y=y,
        given={"breaks": breaks_of(documents)},
        documents=[document.replace(tags=tags) for document, tags in zip(documents, y, strict=True)],
        scheme=reading.scheme,
    )


def check_data(paths: Sequence[str], settings: RunSettings, labels: Iterable[Any] = ()) -> None:
    """Raise the error that :func:`read_data` would, without the work of extracting features."""
    if not settings.is_text:
        _check_labels(labelled_graphs(paths), set(labels))
        return
    documents = [document for document in labelled_documents(paths, settings) if len(document)]
    tag_reading(documents, paths, settings, labels)
    settings.extractor().extract(documents[0])  # one tells whether columns and lines are there


def labelled_graphs(paths: Sequence[str]) -> Iterator[LabelledGraph]:
    """Graphs of files, one after the other; no graph at all, one without labels, and labels of two kinds are errors."""
    graph = None
    kinds: dict[str, str] = {}  # and where they were first seen
    for path in paths:
        for graph in read_graphs(Path(path), need_labels=True):
            labels = np.asarray(graph.labels)
            if known_labels(labels).any():
                kinds.setdefault({"U": "strings", "b": "booleans"}.get(labels.dtype.kind, "integers"), graph.place)
            if len(kinds) > 1:
                (first, place), (other, _) = kinds.items()
                raise ValueError(f"{graph.place}: labels are {other}, expected {first} as in {place}")
            yield graph
    if graph is None:
        raise ValueError(f"{', '.join(paths)}: there are no graphs")


def _check_labels(graphs: Iterable[LabelledGraph], known: set[Any]) -> None:
    """Refuse graphs that cannot be scored: with unknown labels, or none of the ``known`` labels of a model."""
    found: dict[Any, str] = {}
    for graph in graphs:
        labels = np.asarray(graph.labels)
        for node in np.flatnonzero(~known_labels(labels))[:1].tolist():
            unknown = labels[node].item()
            raise ValueError(f"{graph.place}: labels[{node}] is {unknown!r}, an unknown label; scores need every label")
        for label in labels.tolist():
            found.setdefault(label, graph.place)
    if known and found and known.isdisjoint(found):
        label, place = next(iter(found.items()))
        some = ", ".join([repr(one) for one in sorted(known)][:4])
        raise ValueError(f"{place}: {label!r} and the other labels are not among the model's labels ({some}, ...)")


def labelled_documents(paths: Sequence[str], settings: RunSettings) -> Iterator[Document]:
    """Documents of files, one after the other; one without tags, or without a column for its features, is an error."""
    extractor = settings.extractor()
    for path in paths:
        for document in read_documents(Path(path), settings.input):
            if len(document) and document.tags is None:
                told = "one of the columns must be called tag"
                if not document.columns and settings.input.separator is None:
                    told = "a line holds one column; blanks or tabs stand between columns, such as word and tag"
                raise ValueError(f"{path}: document {document.name!r} has no tags; {told}")
            missing = extractor.missing_column(document) if len(document) else None
            if missing is not None:
                without = ", or with --no-pos" if missing == "pos" else f"; it has word, {', '.join(document.columns)}"
                raise ValueError(f"{path}: there is no column {missing!r}; train with --columns that name it{without}")
            yield document if document.tags is not None else document.replace(tags=())


def breaks_of(documents: Iterable[Document]) -> list[list[int]]:
    """Where sentences start within each document, except the first."""
    return [document.sentence_starts[1:].tolist() for document in documents]


def batches(
    items: Iterable[Any], size: Callable[[Any], int], together: int, most: int | None = None
) -> Iterator[list[Any]]:
    """Batches of items: each has about ``together`` tokens or nodes, and at most ``most`` items."""
    batch: list[Any] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= together or len(batch) == most:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def checksum(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of the files of a folder."""
    digest = hashlib.sha256()
    files = files_of(path)
    for file in files:
        if path.is_dir():
            digest.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()
