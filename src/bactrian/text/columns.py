"""Files of columns, as the shared tasks of CoNLL have them: one token per line, an empty line after each sentence.

Documents start at a line whose first column is ``-DOCSTART-``, or at a comment ``# newdoc`` as in CoNLL-U; a file
without such lines is one document unless told otherwise. Columns are set apart by blanks or tabs. Comments are lines
before a sentence that start with ``#``, unless they have as many columns as the tokens (at the beginning of a file
whose columns are not named, unless they end in ``O`` or in the tag of an entity); they are not kept.

Predictions are written as columns too, and as entities with their places in the text: JSON lines, inline tags.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import real_numbers
from bactrian.atomic_files import atomic_file
from bactrian.errors import check_choice, check_count
from bactrian.text.documents import Document, decoded_lines, joined_text
from bactrian.text.entities import guess_scheme, spans
from bactrian.text.tagged import write_tagged

DOCUMENT_START = "-DOCSTART-"

#: In the column of tags these stand for one that is not known.
UNKNOWN_TAGS = frozenset("?_")

#: How documents are separated, besides lines that start one.
DOCUMENTS = ("marked", "blank-lines", "sentences")

_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")
_ENTRY = re.compile(r"#\s*(newpar\b|[\w.:-]+\s*=)")

#: Names of the columns of a file whose columns are not named, by their number.
USUAL_COLUMNS: dict[int, tuple[str, ...]] = {
    1: ("word",),
    2: ("word", "tag"),
    3: ("word", "pos", "tag"),
    4: ("word", "pos", "chunk", "tag"),
}


def read_columns(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    documents: str = "marked",
) -> Iterator[Document]:
    r"""Read the documents of a file one after the other.

    The name of a document is that of the file with its number. A line with too few or too many columns, or one that
    cannot be decoded, is a ValueError that names file and line.

    Parameters
    ----------
    columns
        Names of the columns. ``"word"`` is needed, ``"tag"`` fills :attr:`Document.tags`, the others go to
        :attr:`Document.columns`. None takes the usual names: word, pos, chunk, tag for four columns, and word first
        and tag last for others.
    separator
        What sets columns apart; None for any blanks and tabs. With ``"\t"`` a word may contain blanks.
    encoding
        That of the file, one in which ASCII characters are single bytes.
    documents
        What separates documents, besides ``-DOCSTART-`` lines: nothing (``"marked"``), two or more empty lines
        (``"blank-lines"``), or each empty line (``"sentences"``: each is a document).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "small.txt")
    ...     _ = path.write_text("-DOCSTART- -X-\n\nRome I-LOC\nfell O\n\nWho O\nknew O\n")
    ...     list(read_columns(path))
    [Document('small.txt#1', 4 tokens in 2 sentences)]
    """
    names = None if columns is None else _checked_names(columns)
    check_choice("documents", documents, DOCUMENTS)
    return _documents(Path(path), names, separator, encoding, documents)


def write_columns(
    path: str | os.PathLike[str],
    documents: Iterable[Document],
    columns: Sequence[str] | None = None,
    *,
    separator: str = " ",
) -> None:
    """Write documents to a file that :func:`read_columns` reads, in UTF-8, replacing what is there in one step.

    ``documents`` may be an iterator: they are written as they come. ``columns`` says which columns to write, in their
    order; None for the word, the columns of the document, and the tag. ``separator`` goes between them.
    """
    lines = (column_lines(d, columns, separator=separator, start=n > 0) for n, d in enumerate(documents))
    write_lines(path, itertools.chain.from_iterable(lines))


def column_lines(
    document: Document, columns: Sequence[str] | None = None, *, separator: str = " ", start: bool = False
) -> Iterator[str]:
    """The lines of a document in a file of columns, without their line ends.

    ``columns`` and ``separator`` are those of :func:`write_columns`. With ``start`` even a document that came without
    a ``-DOCSTART-`` line has one, to set it apart from the one before.

    Examples
    --------
    >>> list(column_lines(Document(["Rome", "fell"], tags=["B-LOC", "O"])))
    ['Rome B-LOC', 'fell O', '']
    """
    # A separator of blanks is read as any blanks and tabs.
    taken = {"\r", "\n"} | (set(separator) if separator.strip(" ") else {" ", "\t"})
    values = [_column(document, name, taken) for name in columns or _own_columns(document)]
    gaps = document.blank_lines or ()
    if len(gaps) != len(document.sentence_starts) + 1:
        gaps = (1,) * (len(document.sentence_starts) + 1)
    if document.header is not None or start:
        yield separator.join(document.header or [DOCUMENT_START, *["-X-"] * (len(values) - 2), "O"][: len(values)])
        yield from [""] * gaps[0]
    borders = [*document.sentence_starts.tolist(), len(document)]
    for sentence, (first, stop) in enumerate(itertools.pairwise(borders)):
        for t in range(first, stop):
            yield separator.join([column[t] for column in values])
        yield from [""] * gaps[sentence + 1]


# --- reading ---


@dataclass
class _Draft:
    """A document that is being read."""

    header: tuple[str, ...] | None = None
    rows: list[list[str]] = field(default_factory=list)
    sentence_starts: list[int] = field(default_factory=list)
    blank_lines: list[int] = field(default_factory=lambda: [0])

    def add(self, row: list[str]) -> None:
        if self.blank_lines[-1] or not self.sentence_starts:
            self.sentence_starts.append(len(self.rows))
            self.blank_lines.append(0)
        self.rows.append(row)

    def finished(self, names: Sequence[str], name: str) -> Document:
        cells: Iterable[tuple[str, ...]] = zip(*self.rows, strict=True) if self.rows else [()] * len(names)
        values: dict[str, Sequence[str]] = dict(zip(names, cells, strict=True))
        usual = [1] * len(self.blank_lines)
        if self.header is None:
            usual[0] = self.blank_lines[0] = 0
        return Document(
            values.pop("word", ()),
            tags=values.pop("tag", None),
            columns=values,
            sentence_starts=self.sentence_starts,  # type: ignore[arg-type]  # becomes an array
            name=name,
            header=self.header,
            blank_lines=None if self.blank_lines == usual else tuple(self.blank_lines),
        )


def _documents(
    path: Path, names: Sequence[str] | None, separator: str | None, encoding: str, documents: str
) -> Iterator[Document]:
    number = 1
    draft = _Draft()
    apart = {"marked": None, "blank-lines": 2, "sentences": 1}[documents]
    with path.open("rb") as stream:
        for line_number, text in enumerate(decoded_lines(stream, encoding, str(path)), start=1):
            if "\r" in text:
                raise ValueError(f"{path}, line {line_number}: a carriage return inside; end lines with a line feed")
            cells = split_line(text, separator)
            if not cells:
                draft.blank_lines[-1] += 1
                continue
            starts = bool(cells[0] == DOCUMENT_START or _NEW_DOCUMENT.match(text))
            if not starts and (draft.blank_lines[-1] or not draft.rows) and is_comment(text, cells, names):
                continue
            if (starts or (apart and draft.blank_lines[-1] >= apart)) and (draft.rows or draft.header is not None):
                yield draft.finished(names or (), f"{path.name}#{number}")
                number += 1
                draft = _Draft()
            if starts:
                draft = _Draft(tuple(cells))
                continue
            names = names or _usual_names(len(cells))
            if len(cells) != len(names):
                raise ValueError(
                    f"{path}, line {line_number}: expected {len(names)} columns ({', '.join(names)}), "
                    f"found {len(cells)}"
                )
            draft.add(cells)
    if draft.rows or draft.header is not None:
        yield draft.finished(names or (), f"{path.name}#{number}")


def is_comment(text: str, cells: Sequence[str], names: Sequence[str] | None) -> bool:
    """Whether a line before a sentence is a comment; the names of the columns may not be known yet."""
    if not text.startswith("#"):
        return False
    like_a_token = len(cells) == len(names) if names else cells[-1] == "O" or guess_scheme(cells[-1:]) is not None
    return _ENTRY.match(text) is not None or not like_a_token


def split_line(text: str, separator: str | None) -> list[str]:
    """The cells of a line without its end; none for an empty line."""
    # Only blanks and tabs: other spaces of Unicode may be part of a word.
    if not text.strip(" \t"):
        return []
    if separator is not None:
        return text.split(separator)
    return [cell for cell in text.replace("\t", " ").split(" ") if cell]


def looks_like_columns(
    text: str, tags: Collection[str], columns: Sequence[str] | None = None, separator: str | None = None
) -> bool:
    r"""Whether a text, or the beginning of one, is a file of columns: all lines alike, and a tag in its column.

    Lines that all have the same number of tabs are columns too. ``tags`` are known ones, besides ``O`` and those
    like ``B-PER``; ``columns`` and ``separator`` are as in :func:`read_columns`.

    >>> looks_like_columns("Rome B-LOC\nfell O\n", []), looks_like_columns("Ada Lovelace\nAlan Turing\n", [])
    (True, False)
    """
    rows, tabs = [], set()
    for line in text.splitlines():
        cells = split_line(line, separator)
        if cells and cells[0] == DOCUMENT_START:
            return True
        if cells and not is_comment(line, cells, None):
            rows.append(cells)
            tabs.add(line.count("\t"))
    widths = {len(cells) for cells in rows}
    if len(widths) != 1 or widths == {1}:
        return False
    place = columns.index("tag") if columns and "tag" in columns and widths == {len(columns)} else -1
    found = {cells[place] for cells in rows}
    return (len(tabs) == 1 and 0 not in tabs) or all(
        guess_scheme([tag, "B-X"]) or tag in tags or tag in UNKNOWN_TAGS for tag in found
    )


def _checked_names(columns: Sequence[str]) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if "word" not in names or len(set(names)) != len(names):
        raise ValueError(f"columns must be different names and one of them 'word', found {names}")
    return names


def _usual_names(n_columns: int) -> tuple[str, ...]:
    between = tuple(f"column_{number}" for number in range(2, n_columns))
    return USUAL_COLUMNS.get(n_columns, ("word", *between, "tag"))


# --- writing ---


def _own_columns(document: Document) -> list[str]:
    return ["word", *document.columns, *([] if document.tags is None else ["tag"])]


def _column(document: Document, name: str, taken: set[str]) -> Sequence[str]:
    """A column whose cells, checked, are neither empty nor contain what sets cells apart."""
    values = {"word": document.words, "tag": document.tags, **document.columns}.get(name)
    if values is None:
        raise ValueError(f"document {document.name!r} has no column {name!r}; it has {_own_columns(document)}")
    for t, cell in enumerate(values):
        if not cell or not taken.isdisjoint(cell):
            raise ValueError(
                f"{name} of token {t} of document {document.name!r} cannot be written: {cell!r} is empty or contains "
                f"one of {sorted(taken)}"
            )
    return values


# --- predictions ---

_NOT_IN_LINES = re.compile("[\\x85\\u2028\\u2029\\ud800-\\udfff]")


@dataclass(frozen=True)
class Entity:
    """A piece of text of some type."""

    type: str  #: what it is, such as ``"PER"``
    start: int  #: its place in the text, in characters
    stop: int
    text: str  #: the piece itself
    #: The smallest probability of the tags of its tokens, or None: the whole is right with at most this.
    probability: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The attributes, for JSON; a probability only where there is one."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def find_entities(
    document: Document,
    tags: Sequence[str] | None = None,
    *,
    scheme: str | None = None,
    probabilities: ArrayLike | None = None,
) -> list[Entity]:
    """Entities that tags mark in a document, with their places in its text.

    A document that has no text, as from a file of columns, is given one: words joined by blanks, one sentence per line.
    ``tags`` are those that a model predicts, with the ``probabilities`` (n_tokens,) of these; None takes those of the
    document. A scheme of None admits the prefixes of all.

    Examples
    --------
    >>> document = Document(["Ada", "Lovelace", "wrote"])
    >>> find_entities(document, ["B-PER", "I-PER", "O"], probabilities=[0.9, 0.8, 1.0])
    [Entity(type='PER', start=0, stop=12, text='Ada Lovelace', probability=0.8)]
    """
    document = joined_text(document)
    given = document.tags if tags is None else tags
    if given is None:
        raise ValueError("tags must be given for a document that has none")
    check_count("tags", len(given), len(document), "entry per token")
    chances = None if probabilities is None else real_numbers(probabilities, "probabilities", len(document))
    text, starts, stops = document.text or "", np.asarray(document.starts), np.asarray(document.stops)
    found = []
    for kind, first, last in spans(given, scheme, sentence_starts=document.sentence_starts):
        start, stop = int(starts[first]), int(stops[last - 1])
        probability = None if chances is None else float(chances[first:last].min())
        found.append(Entity(kind, start, stop, text[start:stop], probability))
    return found


def json_line(document: Document, entities: Iterable[Entity]) -> str:
    """A document and its entities as one line of JSON: its name, its text, and the entities with their places.

    Examples
    --------
    >>> document = Document(["Ada", "wrote"], name="a.txt")
    >>> print(json_line(document, find_entities(document, ["B-PER", "O"])))
    {"name": "a.txt", "text": "Ada wrote", "entities": [{"type": "PER", "start": 0, "stop": 3, "text": "Ada"}]}
    """
    record = {
        "name": document.name,
        "text": joined_text(document).text,
        "entities": [entity.as_dict() for entity in entities],
    }
    line = json.dumps(record, allow_nan=False, ensure_ascii=False)
    # What some readers take for the end of a line is escaped, and so are halves of characters, which UTF-8 has not.
    return _NOT_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def tagged_text(document: Document, entities: Iterable[Entity]) -> str:
    """The text of a document with its entities in inline tags.

    Examples
    --------
    >>> document = Document(["Ada", "wrote"])
    >>> tagged_text(document, find_entities(document, ["B-PER", "O"]))
    '<PER>Ada</PER> wrote'
    """
    text = joined_text(document).text or ""
    return write_tagged(text, [(entity.type, entity.start, entity.stop) for entity in entities])


def prediction_lines(
    document: Document,
    tags: Sequence[str],
    *,
    probabilities: ArrayLike | None = None,
    separator: str = " ",
    start: bool = False,
) -> Iterator[str]:
    """The lines of a document in a file of columns, with what was predicted in the last.

    The columns are the word; those of the document; where each token starts and stops in the text, if it came from
    one; the document's own tag, if it has one; the probability of the predicted tag, if given; and the predicted tag.
    Where the document has tags and no probabilities are given, this is the format that conlleval reads.

    Examples
    --------
    >>> list(prediction_lines(Document(["Rome", "fell"], tags=["B-LOC", "O"]), ["O", "O"]))
    ['Rome B-LOC O', 'fell O O', '']
    """
    columns: dict[str, Sequence[str]] = dict(document.columns)
    if document.starts is not None and document.stops is not None:
        columns["start"] = [str(place) for place in document.starts.tolist()]
        columns["stop"] = [str(place) for place in document.stops.tolist()]
    if document.tags is not None:
        columns["true"] = document.tags
    if probabilities is not None:
        columns["probability"] = [f"{chance:.4f}" for chance in np.asarray(probabilities, dtype=np.float64).tolist()]
    return column_lines(document.replace(columns=columns, tags=tags), separator=separator, start=start)


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Write lines to a file in UTF-8, replacing what is there in one step."""
    with atomic_file(path) as stream:
        for line in lines:
            stream.write(f"{line}\n".encode())
