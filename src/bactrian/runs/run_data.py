"""The data of a run: files become documents or graphs, with labels as the model wants them."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bactrian.runs.graph_files import LabelledGraph, read_graphs
from bactrian.runs.settings import InputSettings, RunSettings
from bactrian.text.columns import read_columns
from bactrian.text.documents import Document
from bactrian.text.schemes import convert, guess_scheme
from bactrian.text.tagged import parse_seminar, read_seminars
from bactrian.text.tokenizer import tokenize

#: How texts may come to ``predict``.
TEXT_FORMATS = ("text", "lines", "columns", "tagged")


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

    Without such labels a model is to be learned, which takes files that mark something.

    Raises
    ------
    ValueError
        For what cannot be read, has no labels, or is empty; it names the file.
    """
    if not settings.is_text:
        graphs = list(labelled_graphs(paths))
        places = tuple(graph.place for graph in graphs)
        return RunData([graph.inputs for graph in graphs], [graph.labels for graph in graphs], {}, [], places=places)
    documents = list(labelled_documents(paths, settings))
    scheme = scheme_of(documents, paths, settings, labels)
    documents = [document.replace(tags=tags_in(scheme, document)) for document in documents]
    return RunData(
        X=list(settings.extractor().extract_many(documents)),
        y=[list(document.tags or ()) for document in documents],
        given={"breaks": breaks_of(documents)},
        documents=documents,
        scheme=scheme,
    )


def check_data(paths: Sequence[str], settings: RunSettings) -> None:
    """Raise the error that :func:`read_data` would, without the work of extracting features."""
    if not settings.is_text:
        list(labelled_graphs(paths))
        return
    documents = [document for document in labelled_documents(paths, settings) if len(document)]
    scheme_of(documents, paths, settings, ())
    settings.extractor().extract(documents[0])  # one tells whether columns and lines are there


def labelled_graphs(paths: Sequence[str]) -> Iterator[LabelledGraph]:
    """Graphs of files, one after the other; no graph at all, and one without labels, is an error."""
    graph = None
    for path in paths:
        for graph in read_graphs(Path(path), need_labels=True):
            yield graph
    if graph is None:
        raise ValueError(f"{', '.join(paths)}: there are no graphs")


def labelled_documents(paths: Sequence[str], settings: RunSettings) -> Iterator[Document]:
    """Documents of files, one after the other; one without tags, or what its features are made from, is an error."""
    pos = settings.extractor().pos
    for path in paths:
        for document in read_documents(Path(path), settings.input):
            if len(document) and document.tags is None:
                raise ValueError(
                    f"{path}: document {document.name!r} has no tags; one of the columns must be called tag"
                )
            if len(document) and pos and document.pos is None:
                raise ValueError(
                    f"{path}: there is no column 'pos'; train with --columns that name it, or with --no-pos"
                )
            yield document if document.tags is not None else document.replace(tags=())


def scheme_of(
    documents: Iterable[Document], paths: Sequence[str], settings: RunSettings, labels: Iterable[Any] | None
) -> str | None:
    """The scheme of the model, where tags mark entities; None where they do not.

    ``labels`` are those of a model. Without them one is to be learned, and texts that mark nothing are refused: it
    could say nothing but O.
    """
    tags = {tag for document in documents for tag in document.tags or ()}
    named = ", ".join(paths)
    if not tags:
        raise ValueError(f"{named}: there are no tokens")
    if labels is None and tags == {"O"}:
        if settings.input.format == "tagged":
            fields = ", ".join(settings.input.fields)
            raise ValueError(f"{named}: nothing is marked by the tags {fields}; name those of your texts with --fields")
        raise ValueError(f"{named}: every token has the label O, so there is nothing to learn")
    return None if guess_scheme(tags | set(labels or ())) is None else settings.scheme


def tags_in(scheme: str | None, document: Document) -> list[str]:
    """The tags of a document in a scheme; as they are where that is None."""
    tags = document.tags or ()
    return list(tags if scheme is None else convert(tags, None, scheme, sentence_starts=document.sentence_starts))


def breaks_of(documents: Iterable[Document]) -> list[list[int]]:
    """Where sentences start within each document, but for the first."""
    return [document.sentence_starts[1:].tolist() for document in documents]


def read_documents(path: Path, settings: InputSettings, form: str | None = None) -> Iterator[Document]:
    """Documents of a file, or of a folder of files, one after the other.

    Parameters
    ----------
    path
        The file; ``-`` is standard input.
    settings
        How it is read.
    form
        ``"columns"``, ``"tagged"``, ``"text"`` or ``"lines"`` (text with one document per line); that of the settings
        by default.
    """
    form = form or settings.format
    if str(path) != "-" and not path.exists():
        raise ValueError(f"{path}: there is no such file")
    if path.is_dir():
        yield from _folder(path, settings, form)
    elif form == "columns":
        source = path
        if str(path) == "-":
            source = Path("/dev/stdin")
            if not source.exists():
                raise ValueError("this system has no /dev/stdin: give a file of columns by its name")
        yield from read_columns(source, settings.columns, separator=settings.separator, encoding=settings.encoding)
    elif form == "lines":
        yield from _lines(path, settings)
    else:
        yield _document(path, settings, form)


def read_graph_file(path: Path) -> Iterator[LabelledGraph]:
    """Graphs of a file, labelled or not."""
    if str(path) == "-":
        raise ValueError("graphs are read from .npz or .jsonl files, not from standard input")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    return read_graphs(path)


def _folder(path: Path, settings: InputSettings, form: str) -> Iterator[Document]:
    if form == "tagged":
        yield from read_seminars(
            path, fields=settings.fields, drop=settings.drop, sentences=settings.sentences, encoding=settings.encoding
        )
        return
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise ValueError(f"{path} holds no files")
    for file in files:
        yield from read_documents(file, settings, form)


def _document(path: Path, settings: InputSettings, form: str) -> Document:
    name = "" if str(path) == "-" else path.name
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    text = _decoded(content, settings.encoding, name or "standard input")
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
        for number, line in enumerate(stream, start=1):
            text = _decoded(line, settings.encoding, f"{path}, line {number}").rstrip("\r\n")
            yield tokenize(text, settings.tokenizer, sentences=settings.sentences, name=f"{name}#{number}")


def _decoded(content: bytes, encoding: str, where: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not {encoding}: {error}; give its encoding with --encoding") from None


def batches(
    items: Iterable[Any], size: Callable[[Any], int], together: int, most: int | None = None
) -> Iterator[list[Any]]:
    """Items together until they have so many tokens or nodes, or are so many."""
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
    """SHA-256 of a file, or of the names and contents of the text files of a folder."""
    digest = hashlib.sha256()
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    for file in files:
        if path.is_dir():
            digest.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
