"""Texts of a run: documents from columns, inline tags or raw text, and how their tags are read.

Tags are read as entities in some scheme, as they are, or as unknown.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bactrian.errors import ArgumentError, warn
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
        raise ValueError(f"standard input looks like {form}: use --input {form}, or --input text if it is raw text")
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
    source = nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")
    with source as stream:
        for number, text in enumerate(decoded_lines(stream, settings.encoding, str(path)), start=1):
            yield tokenize(text, settings.tokenizer, sentences=settings.sentences, name=f"{name}#{number}")


# --- tags ---


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

    ``labels`` are those of a model, None before one is learned; then texts that mark nothing are refused. Errors about
    tags that do not fit the others, or the labels, name file and line.
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


def check_written(reading: TagReading, documents: Iterable[Document]) -> None:
    """Refuse tags next to unknown ones that are not in the model's scheme: converting them needs their neighbours."""
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
                    f"{reading.scheme}: next to unknown tags ({', '.join(sorted(reading.unknown))}) the others must be "
                    "in the scheme of the model; convert them first, name theirs with --scheme, or use --scheme none"
                )
            before = tag


def say_reading(reading: TagReading, documents: Iterable[Document], paths: Sequence[str]) -> None:
    """Warn of tags that are not taken as they are: types alone, repairs, no entities at all."""
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
