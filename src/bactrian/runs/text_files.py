"""Documents of files: columns, texts with inline tags, raw text."""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bactrian.runs.settings import GRAPH_SUFFIXES, InputSettings, files_of
from bactrian.text.columns import looks_like_columns, read_columns
from bactrian.text.documents import Document, decoded, decoded_lines
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
