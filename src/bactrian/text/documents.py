"""A document: the words of a text, what is known of each, and where they stand."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Ints, number_pairs
from bactrian.errors import ArgumentError
from bactrian.text.entities import convert, rising, spans, tags_of


@dataclass(frozen=True, eq=False, repr=False)
class Document:
    """The words of one text with their columns, tags and places; checked when made.

    Examples
    --------
    >>> document = Document(["Rome", "fell", ".", "Who", "knew", "?"], sentence_starts=[0, 3])
    >>> document
    Document(6 tokens in 2 sentences)
    >>> [sentence.words for sentence in document.sentences()]
    [('Rome', 'fell', '.'), ('Who', 'knew', '?')]
    """

    words: Sequence[str]
    #: Further values of each token by name, such as ``"pos"``: one string per token.
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tags: Sequence[str] | None = None  #: one label per token, or None where they are not known
    #: Positions of the tokens that start a sentence, rising from 0. None means one sentence.
    sentence_starts: Ints = None  # type: ignore[assignment]  # an array once made
    line_starts: Ints | None = None  #: those that start a line of the text, or None where lines are not known
    text: str | None = None  #: what the words were taken from, or None
    starts: Ints | None = None  #: given with ``text``, in which a token is ``text[starts[t]:stops[t]]``
    stops: Ints | None = None
    name: str = ""  #: what to call the document, such as the name of its file
    header: tuple[str, ...] | None = None  #: the columns of its ``-DOCSTART-`` line, of a file that has such lines
    #: Number of empty lines after the header and after each sentence of such a file, where it is not always one.
    blank_lines: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        length = len(self.words)
        for name, values in (("words", self.words), ("tags", self.tags), *self.columns.items()):
            if isinstance(values, str) or (values is not None and len(values) != length):
                raise ValueError(f"{name} must hold one string per token: expected {length}, found {values!r:.80}")
        keep = object.__setattr__  # the way to normalise the fields of a frozen data class
        keep(self, "words", tuple(self.words))
        keep(self, "columns", {name: tuple(values) for name, values in self.columns.items()})
        keep(self, "tags", None if self.tags is None else tuple(self.tags))
        given = np.zeros(min(length, 1), dtype=np.int64) if self.sentence_starts is None else self.sentence_starts
        keep(self, "sentence_starts", _from_first(given, length, "sentence_starts"))
        if self.line_starts is not None:
            keep(self, "line_starts", _from_first(self.line_starts, length, "line_starts"))
        offsets = (self.text, self.starts, self.stops)
        if any(value is None for value in offsets) and any(value is not None for value in offsets):
            raise ValueError("text, starts and stops belong together: give all of them or none")
        if self.text is not None:
            keep(self, "starts", _read_only(self.starts))
            keep(self, "stops", _read_only(self.stops))
            self._check_offsets(self.text)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.words)

    def __repr__(self) -> str:
        """Say how long it is."""
        name = f"{self.name!r}, " if self.name else ""
        return f"Document({name}{len(self)} tokens in {len(self.sentence_starts)} sentences)"

    @property
    def pos(self) -> Sequence[str] | None:
        """The column called ``"pos"``, or None."""
        return self.columns.get("pos")

    def replace(self, **changes: Any) -> Document:
        """A copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def in_scheme(self, source: str, target: str) -> Document:
        """A copy whose tags are converted from one label scheme to another, sentence by sentence."""
        if self.tags is None:
            raise ValueError("the document has no tags to convert")
        return self.replace(tags=convert(self.tags, source, target, sentence_starts=self.sentence_starts))

    def entities(self, scheme: str | None = None) -> list[tuple[str, int, int]]:
        """Entities that the tags mark, as (type, first token, token after the last)."""
        if self.tags is None:
            raise ValueError("the document has no tags that could mark entities")
        return spans(self.tags, scheme, sentence_starts=self.sentence_starts)

    def with_spans(self, marked: Sequence[tuple[str, int, int]], scheme: str = "BIO") -> Document:
        """A copy with the tags of spans of *characters* of the text, each given as (type, start, stop).

        A token belongs to a span that it shares a character with, and to the first where it shares some with two; a
        span without tokens is lost.
        """
        if self.text is None or self.starts is None or self.stops is None:
            raise ValueError("the document has no text that spans could refer to")
        entities, end = [], 0
        for number, (kind, start, stop) in enumerate(sorted(marked, key=lambda span: span[1:])):
            if not 0 <= start <= stop <= len(self.text):
                raise ValueError(f"marked[{number}] = {(kind, start, stop)} lies outside the text")
            first = max(int(np.searchsorted(self.stops, start, side="right")), end)
            last = int(np.searchsorted(self.starts, stop, side="left"))
            if first < last:
                entities.append((kind, first, last))
                end = last
        return self.replace(tags=tags_of(entities, len(self), scheme))

    def sentences(self) -> Iterator[Document]:
        """Each sentence as a document of its own; offsets keep referring to the whole text."""
        borders = [*self.sentence_starts.tolist(), len(self)]
        for start, stop in itertools.pairwise(borders):
            yield self._part(start, stop)

    def _part(self, start: int, stop: int) -> Document:
        part = slice(start, stop)
        lines = self.line_starts
        return Document(
            self.words[part],
            {name: values[part] for name, values in self.columns.items()},
            None if self.tags is None else self.tags[part],
            line_starts=None if lines is None else lines[(lines >= start) & (lines < stop)] - start,
            text=self.text,
            starts=None if self.starts is None else self.starts[part],
            stops=None if self.stops is None else self.stops[part],
            name=self.name,
        )

    def _check_offsets(self, text: str) -> None:
        starts, stops = self.starts, self.stops
        if starts is None or stops is None or starts.shape != (len(self),) or stops.shape != (len(self),):
            raise ValueError(f"starts and stops must hold one offset for each of the {len(self)} tokens")
        inside = (starts < stops).all() and (starts[1:] >= stops[:-1]).all()
        if len(self) and not (inside and starts[0] >= 0 and stops[-1] <= len(text)):
            raise ValueError("starts and stops must be offsets of tokens that follow one another in the text")


def joined_text(document: Document) -> Document:
    r"""The document itself where it has a text; else a copy with one: words joined by blanks, one sentence per line.

    Examples
    --------
    >>> joined_text(Document(["Rome", "fell", ".", "Who", "knew", "?"], sentence_starts=[0, 3])).text
    'Rome fell .\nWho knew ?'
    """
    if document.text is not None:
        return document
    lengths = np.array([len(word) for word in document.words], dtype=np.int64)
    stops = np.cumsum(lengths + 1) - 1
    breaks = set(document.sentence_starts[1:].tolist())
    pieces = [("\n" if t in breaks else " " if t else "") + word for t, word in enumerate(document.words)]
    return document.replace(text="".join(pieces), starts=stops - lengths, stops=stops)


def line_borders(document: Document, why: str) -> list[tuple[int, int]]:
    """First token of each line, and the token after its last; ``why`` says what needs to know."""
    if document.line_starts is None:
        raise ValueError(f"document {document.name!r} has no line_starts, which {why} needs")
    return list(itertools.pairwise([*document.line_starts.tolist(), len(document)]))


def _read_only(values: ArrayLike | None) -> Ints:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def _from_first(positions: ArrayLike, length: int, name: str) -> Ints:
    """Positions of tokens that start something, the first token among them."""
    array = rising(positions, length, name)
    if array[:1].tolist() != [0] * min(length, 1):
        raise ArgumentError(name, f"must start at the first token, found {array.tolist()}")
    return _read_only(array)


# --- skip edges ---

#: A rule: its name, or a function from the words of a document to edges.
SkipRule = str | Callable[[Sequence[str]], ArrayLike]

RULES = ("nearest", "all", "names")


def skip_edges(words: Sequence[str], rule: SkipRule = "nearest") -> Ints:
    """Edges between the positions of identical words that start with a capital letter.

    Parameters
    ----------
    rule
        ``"nearest"`` joins each occurrence to the next one; ``"all"`` joins every pair of occurrences; ``"names"``
        joins whole runs of capitalised words to the next equal run, word by word; a function of the words returns
        edges of its own.

    Returns
    -------
    array (n_edges, 2)
        Positions, the smaller of each edge first, sorted, none twice.

    Examples
    --------
    >>> skip_edges("Rome is Rome , is it not , Rome ?".split()).tolist()
    [[0, 2], [2, 8]]
    >>> skip_edges("Rome is Rome , is it not , Rome ?".split(), "all").tolist()
    [[0, 2], [0, 8], [2, 8]]
    >>> skip_edges("New York is not York , but New York is".split(), "names").tolist()
    [[0, 7], [1, 8]]
    """
    for position, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"words[{position}] must be a string, found {word!r}")
    if callable(rule):
        pairs = number_pairs(rule(words), len(words), "what rule returns", "position")
        return np.unique(np.sort(pairs, axis=1), axis=0)
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)} or a function of the words, found {rule!r}")
    occurrences: dict[Hashable, list[int]] = {}
    for position, (word, what) in enumerate(zip(words, _names(words) if rule == "names" else words, strict=True)):
        if word[:1].isupper():
            occurrences.setdefault(what, []).append(position)
    edges: list[tuple[int, int]] = []
    for positions in occurrences.values():
        edges.extend(itertools.combinations(positions, 2) if rule == "all" else itertools.pairwise(positions))
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


def _names(words: Sequence[str]) -> list[tuple[int, int]]:
    """For each word the number of its name, a run of capitalised words, and its place in it."""
    numbers: dict[tuple[str, ...], int] = {}
    places: list[tuple[int, int]] = []
    for _, group in itertools.groupby(words, lambda word: word[:1].isupper()):
        run = tuple(group)
        number = numbers.setdefault(run, len(numbers))
        places += [(number, place) for place in range(len(run))]
    return places


# --- bytes of files as text, without the mark that some programs put before UTF-8 ---


def decoded(content: bytes, encoding: str, where: str) -> str:
    """The text of a file, or an error that says where it is and what to do."""
    return _decoded(content.removeprefix(codecs.BOM_UTF8), encoding, where)


def decoded_lines(stream: Iterable[bytes], encoding: str, where: str) -> Iterator[str]:
    r"""The lines of a file without their ends; errors name the line.

    >>> list(decoded_lines([b"\xef\xbb\xbfRome\r\n", b"fell\n"], "utf-8", "small.txt"))
    ['Rome', 'fell']
    """
    if b"\n".decode(encoding, "replace") != "\n":
        raise ValueError(f"{where} is read line by line, which {encoding} does not allow; convert the file to utf-8")
    for number, line in enumerate(stream, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        yield _decoded(content, encoding, f"{where}, line {number}").rstrip("\r\n")


def _decoded(content: bytes, encoding: str, where: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not {encoding}: {error}; give its encoding (encoding=, or --encoding)") from None
