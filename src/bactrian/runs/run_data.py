"""The data of a run: files become documents or graphs, with labels as the model wants them.

Graphs come as **JSON lines** (``.jsonl``), one graph per line, an object with

==================  =========================================================================================
``nodes``           a list of features for each node: ``[[0.2, 1.0], [0.9, 0.0]]``
``edges``           pairs of node numbers from 0: ``[[0, 1]]``
``edge_features``   a list of features for each edge; optional, but for all graphs or none
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

import codecs
import contextlib
import hashlib
import io
import json
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, number_pairs
from bactrian.errors import ArgumentError, check_count, warn
from bactrian.estimators.labels import check_minus_one, known_labels
from bactrian.graphs.inputs import checked_rows
from bactrian.graphs.ragged import pointer
from bactrian.runs.settings import GRAPH_SUFFIXES, InputSettings, RunSettings, files_of
from bactrian.text.columns import UNKNOWN_TAGS, looks_like_columns, read_columns
from bactrian.text.documents import Document, decoded, decoded_lines
from bactrian.text.entities import SCHEMES, convert, entity_tags, guess_scheme
from bactrian.text.tagged import parse_seminar, read_seminars
from bactrian.text.tokenizer import tokenize

#: How texts may come to ``predict``.
TEXT_FORMATS = ("text", "lines", "columns", "tagged")

#: Bytes at the beginning of a file that tell its form.
_GLANCE = 1 << 16


@dataclass(frozen=True, eq=False)
class RunData:
    """What an estimator is given: instances, labels and further arguments of its methods."""

    X: list[Any]
    y: list[Any]
    given: dict[str, Any]
    documents: list[Document]  #: none for graphs
    scheme: str | None = None  #: of the tags, where they mark entities
    places: tuple[str, ...] = ()  #: of graphs: file and line of each


def read_data(paths: Sequence[str], settings: RunSettings, labels: Iterable[Any] | None = None) -> RunData:
    """Labelled data of files, all in memory; ``labels`` are those of a model, which the files may lack.

    Without such labels a model is to be learned, which takes files that mark something. Errors name the file.
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
    _check_written(reading, documents)
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
    """Refuse graphs that cannot be scored: with unknown labels, or none of the ``known`` ones, those of a model."""
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
    """Documents of files, one after the other; one without tags, or what its features are made from, is an error."""
    extractor = settings.extractor()
    for path in paths:
        for document in read_documents(Path(path), settings.input):
            if len(document) and document.tags is None:
                raise ValueError(
                    f"{path}: document {document.name!r} has no tags; one of the columns must be called tag"
                )
            missing = extractor.missing_column(document) if len(document) else None
            if missing is not None:
                without = ", or with --no-pos" if missing == "pos" else f"; it has word, {', '.join(document.columns)}"
                raise ValueError(f"{path}: there is no column {missing!r}; train with --columns that name it{without}")
            yield document if document.tags is not None else document.replace(tags=())


@dataclass(frozen=True)
class TagReading:
    """How the tags of files become labels of the model."""

    scheme: str | None  #: in which labels are written; None where tags mark no entities and stay as they are
    written: Mapping[str, str]  #: the tag with prefix and type that each tag of the files stands for
    unknown: frozenset[str] = frozenset()  #: tags that stand for an unknown one; where there are, others are kept

    def tags(self, document: Document, scheme: str | None = None) -> list[Any]:
        """The tags of a document in the model's scheme, or in another; None for unknown ones."""
        tags = document.tags or ()
        if self.unknown:
            return [None if tag in self.unknown else self.written.get(tag, tag) for tag in tags]
        if self.scheme is None:
            return list(tags)
        found = [self.written[tag] for tag in tags]
        return convert(found, None, scheme or self.scheme, sentence_starts=document.sentence_starts)


def tag_reading(
    documents: Iterable[Document], paths: Sequence[str], settings: RunSettings, labels: Iterable[Any] | None
) -> TagReading:
    """How tags are read, which decides what is an entity.

    ``labels`` are those of a model. Without them one is to be learned, and texts that mark nothing are refused: it
    could say nothing but O. Errors about tags that do not go with the others, or with the labels, name file and line.
    """
    counts = Counter(tag for document in documents for tag in document.tags or ())
    named = ", ".join(paths)
    if not counts:
        raise ValueError(f"{named}: there are no tokens")
    unknown = frozenset(UNKNOWN_TAGS & set(counts) - set(labels or ()))
    if unknown:
        if labels is not None:
            where = _line_of(min(unknown), paths, settings.input)
            raise ValueError(f"{where}: the tag {min(unknown)!r} stands for an unknown tag; scores need every tag")
        counts = Counter({tag: n for tag, n in counts.items() if tag not in unknown})
        if not counts:
            raise ValueError(f"{named}: every tag is unknown ({', '.join(sorted(unknown))}); learning needs some")
    tagged = settings.input.format == "tagged"
    if set(counts) == {"O"} and (labels is None or tagged):
        if tagged:
            fields = ", ".join(settings.input.fields)
            raise ValueError(f"{named}: the tags {fields} mark nothing; name those of your texts with --fields")
        raise ValueError(f"{named}: every token has the label O, so there is nothing to learn")
    known = set(labels or ())
    if settings.scheme == "none" or (known and guess_scheme(known) is None):
        if known and known.isdisjoint(counts):
            raise _not_labels(counts, known, paths, settings.input)
        return TagReading(None, {}, unknown)
    try:
        written = entity_tags(counts)
    except ArgumentError as error:
        where = _line_of(error.argument, paths, settings.input)
        raise ValueError(f"{where}: the tag {error.said_of(repr(error.argument))}") from None
    if written is None and known:
        raise _not_labels(counts, known, paths, settings.input)
    return TagReading(None if written is None else settings.scheme, written or {}, unknown)


def _check_written(reading: TagReading, documents: Iterable[Document]) -> None:
    """Tags beside unknown ones must be written in the model's scheme: to convert them takes their neighbours."""
    if reading.scheme is None or not reading.unknown:
        return
    for document in documents:
        before: str | None = "O"
        borders = set(document.sentence_starts.tolist())
        for t, tag in enumerate(reading.tags(document)):
            before = "O" if t in borders else before
            prefix, _, kind = (tag or "O").partition("-")
            stray = reading.scheme == "BIO" and prefix == "I" and before not in (None, f"B-{kind}", f"I-{kind}")
            if stray or prefix not in f"O{SCHEMES[reading.scheme]}":
                raise ValueError(
                    f"tag {tag} of {document.words[t]!r}, token {t + 1} of {document.name}, is not well-formed "
                    f"{reading.scheme}: beside unknown tags ({', '.join(sorted(reading.unknown))}) the others must be "
                    "in the scheme of the model; convert them first, name theirs with --scheme, or say --scheme none"
                )
            before = tag


def say_reading(reading: TagReading, documents: Iterable[Document], paths: Sequence[str]) -> None:
    """Warn where tags were not simply taken as they are: types alone, repairs, no entities at all."""
    named = ", ".join(paths)
    if reading.scheme is None:
        tags = sorted({tag for document in documents for tag in document.tags or ()} - reading.unknown)
        some = ", ".join(tags[:3])
        warn(f"{named}: tags such as {some} mark no entities; tokens alone are scored")
        return
    changed = {tag: to for tag, to in reading.written.items() if tag != to}
    if changed:
        tag = min(changed)
        kind = "prefixes without a type" if changed[tag].endswith("-SPAN") else "types without a prefix"
        message = f"{named}: tags are {kind}: {tag} is read as {changed[tag]}, and a run of one type as one entity"
        warn(f"{message}; --scheme none takes tags as they are")
    if reading.unknown:
        return
    kept = guess_scheme(reading.written.values()) or "BIO"
    candidates = ("BIO", "IOB1") if kept == "BIO" else (kept,)
    repairs = dict.fromkeys(candidates, 0)
    examples: dict[str, str] = {}
    for document in documents:
        found = [reading.written[tag] for tag in document.tags or ()]
        for scheme in candidates:
            for t, (tag, repaired) in enumerate(zip(found, reading.tags(document, scheme), strict=True)):
                if tag != repaired:
                    repairs[scheme] += 1
                    words = f"{tag} of {document.words[t]!r}, token {t + 1} of {document.name}, read as {repaired}"
                    examples.setdefault(scheme, words)
    scheme = min(candidates, key=lambda name: repairs[name])
    if repairs[scheme]:
        tags_are = "1 tag is" if repairs[scheme] == 1 else f"{repairs[scheme]:,} tags are"
        message = f"{named}: {tags_are} not well-formed {scheme} and repaired as conlleval reads them"
        warn(f"{message}, such as {examples[scheme]}")


def _not_labels(
    counts: Mapping[str, int], known: Collection[Any], paths: Sequence[str], settings: InputSettings
) -> ValueError:
    tag = next(iter(counts))
    some = ", ".join(sorted(map(str, known))[:4])
    problem = f"{tag!r} and the other tags are not among the model's labels ({some}, ...); is this a labelled file?"
    return ValueError(f"{_line_of(tag, paths, settings)}: {problem}")


def _line_of(tag: str, paths: Sequence[str], settings: InputSettings) -> str:
    """File and line of the first token with a tag; the files alone where that cannot be found."""
    for path in map(Path, paths):
        if settings.format == "columns" and path.is_file():
            with path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if tag in line.decode(settings.encoding, "replace").split():
                        return f"{path}, line {number}"
    return ", ".join(paths)


def breaks_of(documents: Iterable[Document]) -> list[list[int]]:
    """Where sentences start within each document, but for the first."""
    return [document.sentence_starts[1:].tolist() for document in documents]


def read_documents(path: Path, settings: InputSettings, form: str | None = None) -> Iterator[Document]:
    """Documents of a file (``-``: standard input), or of a folder of files, one after the other.

    The ``form``, ``"columns"``, ``"tagged"``, ``"text"`` or ``"lines"`` (text with one document per line), is by
    default that of the settings.
    """
    form = form or settings.format
    if str(path) != "-" and not path.exists():
        raise ValueError(f"{path}: there is no such file")
    if path.is_dir() and form == "tagged":
        yield from read_seminars(
            path, fields=settings.fields, drop=settings.drop, sentences=settings.sentences, encoding=settings.encoding
        )
    elif path.is_dir():
        for file in files_of(path):
            yield from read_documents(file, settings, form)
    elif form == "columns":
        source = path
        if str(path) == "-":
            source = Path("/dev/stdin")
            if not source.exists():
                raise ValueError("this system has no /dev/stdin: give a file of columns by its name")
        yield from read_columns(
            source,
            settings.columns,
            separator=settings.separator,
            encoding=settings.encoding,
            documents=settings.documents,
        )
    elif form == "lines":
        yield from _lines(path, settings)
    else:
        yield _document(path, settings, form)


def guess_form(path: Path, settings: InputSettings, labels: Iterable[Any] = ()) -> str:
    """The form of a file by its content: ``"columns"``, ``"tagged"`` or ``"text"``; ``labels`` are those of a model.

    Standard input that is not raw text is refused: it can be read only once.
    """
    if path.suffix.lower() in GRAPH_SUFFIXES:
        raise ValueError(f"{path}: {path.suffix} files hold graphs, and this model is for texts")
    if str(path) == "-":
        start = sys.stdin.buffer.peek(_GLANCE) if isinstance(sys.stdin.buffer, io.BufferedReader) else b""
    else:
        with path.open("rb") as stream:
            start = stream.read(_GLANCE)
    whole = start if len(start) < _GLANCE else start[: start.rfind(b"\n") + 1] or start
    text = whole.removeprefix(codecs.BOM_UTF8).decode(settings.encoding, "replace")
    if "\0" in text:
        raise ValueError(f"{path}: this is not text in the encoding {settings.encoding}")
    names = map(re.escape, settings.fields)
    tags = {str(label) for label in labels}
    tags |= {tag.partition("-")[2] for tag in tags} | {"O"}
    if re.search(f"<({'|'.join(names)})>[^<]*</\\1>", text):
        form = "tagged"
    elif looks_like_columns(text, tags, settings.columns, settings.separator):
        form = "columns"
    else:
        return "text"
    if str(path) == "-":
        raise ValueError(f"standard input looks like {form}: say --input {form}, or --input text if it is raw text")
    return form


def _document(path: Path, settings: InputSettings, form: str) -> Document:
    name = "" if str(path) == "-" else path.name
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    text = decoded(content, settings.encoding, name or "standard input")
    if form == "text":
        return tokenize(text, settings.tokenizer, sentences=settings.sentences, name=name)
    try:
        return parse_seminar(text, name=name, fields=settings.fields, drop=settings.drop, sentences=settings.sentences)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _lines(path: Path, settings: InputSettings) -> Iterator[Document]:
    name = "" if str(path) == "-" else path.name
    source = contextlib.nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")
    with source as stream:
        for number, text in enumerate(decoded_lines(stream, settings.encoding, str(path)), start=1):
            yield tokenize(text, settings.tokenizer, sentences=settings.sentences, name=f"{name}#{number}")


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


# --- files of graphs ---

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
