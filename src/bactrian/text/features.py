"""The features of Finkel, Grenager & Manning (ACL 2005, Table 2) for named entities and seminar announcements.

A token is a list of strings, each a feature that it has, and of **bundles**: tuples of such strings. Equal bundles of
one extractor are the *same object*, so an encoder needs to look into each only once; an extractor that
has met 100,000 different words forgets them and makes new ones. The first bundle of a token depends on its word alone
and starts with ``word=`` and the word; the others hold the parts of speech and the shapes around it, which recur too.

====================  ============================  =====================================================
feature               strings                       setting
====================  ============================  =====================================================
current word          ``word=Rome``                 always
neighbouring words    ``w-1=in``, ``w+1=,``         ``reach``
character n-grams     ``#<Ro``, ``#om``             ``ngrams``: all of ``<Rome>`` up to this length
word shape            ``s=Xxxx``, ``s-1=xx``        ``shapes``; neighbours up to ``reach``
sequences of shapes   ``s-1:0=xx|Xxxx``             ``shapes``
part of speech        ``p=NNP``, ``p+1=,``          ``pos``; neighbours up to ``reach``
sequences of these    ``p-1:1=IN|NNP|,``            ``pos``
words to the left     ``<=lives``                   ``window``: words that occur among so many before
words to the right    ``>=since``                   ``window``: the same after
further columns       ``chunk=B-NP``, ``chunk-1=O``  ``columns``; neighbours and sequences as parts of speech
template              ``U01:in/Rome``               ``template``: lines as in CRF++
gazetteers            ``city``, ``city=B``          ``gazetteers``: lists of names
====================  ============================  =====================================================

None of these looks beyond the sentence: positions outside it give no words, and ``^`` as shape or part of speech.
What the document says about a word in other places (``elsewhere``) is listed in :mod:`bactrian.text.elsewhere`.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from sys import intern
from typing import Any, NamedTuple

from bactrian.errors import ArgumentError, check_choice, check_count, check_flag, check_number, keeper
from bactrian.text.documents import Document, line_borders
from bactrian.text.elsewhere import add_elsewhere

# --- templates, gazetteers and your own functions ---
#
# A template has one feature per line: a name, and macros %x[row,column] that stand for the cell of a column, so many
# rows below the token. Columns are named, or counted from 0 in the order of the file:
#
#     # the word before, and the word with its part of speech
#     U01:%x[-1,0]
#     U02:%x[0,word]/%x[0,pos]
#     B
#
# Rows outside the sentence read _B-1, _B+1 and so on. B, the pair of neighbouring labels, is part of every chain; a
# line of kind B with macros is not supported.

_MACRO = re.compile(r"%x\[\s*([+-]?\d+)\s*,\s*([^\],]+?)\s*\]")

#: A token's features: strings, and bundles of them.
Token = list[str | tuple[str, ...]]

Strings = Callable[[Document], Sequence[Iterable[str | tuple[str, ...]]]]

#: Functions from a document to the strings of each of its tokens, by name.
REGISTERED: dict[str, Strings] = {}


def register_features(name: str) -> Callable[[Strings], Strings]:
    """Make a function known by name, so that ``EntityFeatures(own=[name])`` and ``bactrian train`` use it.

    The function takes a :class:`Document` and returns the strings, or bundles of them, of each token. A run keeps only
    the name: register the function before you load the run, on the command line with ``bactrian --plugin FILE``.

    Examples
    --------
    >>> @register_features("length")
    ... def length(document):
    ...     return [[f"length={len(word)}"] for word in document.words]
    >>> own_strings(Document(["in", "Rome"]), ["length"])
    [['length=2'], ['length=4']]
    """
    return keeper(REGISTERED, name)


def own_strings(document: Document, names: Iterable[str]) -> list[Token]:
    """What registered functions give for each token, all names one after the other."""
    rows: list[Token] = [[] for _ in document.words]
    for name in names:
        found = list(REGISTERED[name](document))
        check_count(f"features {name!r}", len(found), len(rows), "list per token")
        for row, strings in zip(rows, found, strict=True):
            row.extend(strings)
    return rows


@dataclass(frozen=True)
class TemplateLine:
    """A feature of a template: text and macros in turn, a macro as row and column."""

    pieces: tuple[str | tuple[int, int | str], ...]
    place: str  #: for errors

    def strings(self, document: Document, start: int, stop: int) -> list[str]:
        """The feature of each token of a sentence."""
        parts = [
            [piece] * (stop - start) if isinstance(piece, str) else self._cells(document, start, stop, *piece)
            for piece in self.pieces
        ]
        return ["".join(cells) for cells in zip(*parts, strict=True)]

    def _cells(self, document: Document, start: int, stop: int, row: int, column: int | str) -> list[str]:
        names = ["word", *document.columns]
        if isinstance(column, int) and column < len(names):
            column = names[column]
        if column not in names:
            raise ValueError(
                f"{self.place} looks at column {column}; document {document.name!r} has {', '.join(names)}"
            )
        values = document.words if column == "word" else document.columns[str(column)]
        inside = list(values[max(start + row, start) : min(stop + row, stop)])
        if row < 0:
            before = [f"_B-{d}" for d in range(-row, 0, -1)]
            return [*before, *inside][: stop - start]
        after = [f"_B+{d}" for d in range(1, row + 1)]
        return [*inside, *after][-(stop - start) :] if stop > start else []


def parse_template(lines: Iterable[str]) -> list[TemplateLine]:
    """The features of a template; comments and empty lines are left out."""
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#") or re.fullmatch(r"B\d*:?", text):
            continue
        place = f"line {number}: {text!r}"
        if text[0] == "B":
            raise ArgumentError(
                "template", f": {place}: features of pairs of labels are not supported, apart from B itself"
            )
        pieces: list[str | tuple[int, int | str]] = []
        for i, part in enumerate(_MACRO.split(text)):
            if i % 3 == 0 and part:
                pieces.append(part)
            elif i % 3 == 1:
                row = int(part)
            elif i % 3 == 2:
                pieces.append((row, int(part) if part.isdecimal() else part))
        if text[0] != "U" or "%" in "".join(piece for piece in pieces if isinstance(piece, str)):
            raise ArgumentError("template", f": {place}: expected a line such as U01:%x[-1,0] or B")
        found.append(TemplateLine(tuple(pieces), f"the template, {place},"))
    return found


class Gazetteers:
    """Lists of names, each looked up in a sentence; case and blanks do not count, so any tokenizer will do."""

    def __init__(self, entries: Mapping[str, Iterable[str]]) -> None:
        self._entries = {name: {_key(entry) for entry in listed} - {""} for name, listed in entries.items()}
        self._longest = {name: max(map(len, listed), default=0) for name, listed in self._entries.items()}

    def strings(self, words: Sequence[str]) -> list[list[str]]:
        """``city`` for each token of an entry, and its place, ``city=B``, ``I``, ``E`` or ``S`` for a single token.

        The longest entry counts, from left to right.
        """
        keys = [_key(word) for word in words]
        rows: list[list[str]] = [[] for _ in words]
        for name, entries in self._entries.items():
            t = 0
            while t < len(keys):
                stop = self._end(keys, t, entries, self._longest[name])
                for place in range(t, stop):
                    kind = "S" if stop == t + 1 else "B" if place == t else "E" if place == stop - 1 else "I"
                    rows[place] += [name, f"{name}={kind}"]
                t = max(stop, t + 1)
        return rows

    @staticmethod
    def _end(keys: Sequence[str], start: int, entries: set[str], longest: int) -> int:
        """Where the longest entry from a token on ends; the token itself where none starts there."""
        text, end = "", start
        for stop in range(start, len(keys)):
            text += keys[stop]
            if len(text) > longest:
                break
            if text in entries:
                end = stop + 1
        return end


def _key(text: str) -> str:
    return "".join(text.split()).casefold()


def check_strings(name: str, value: Any) -> None:
    """Refuse what is not a list of strings."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(entry, str) for entry in value):
        raise ArgumentError(name, f"must be a list of strings, found {value!r:.80}")


# --- the extractor ---

#: N-grams of words longer than the first have at most the second number of characters: their number is quadratic.
_LONG_WORD, _LONG_WORD_NGRAMS = 40, 6

_OUTSIDE = "^"


class Remembered(dict[Any, Any]):
    """What ``make`` makes of each key, once; where there are ``most`` all are forgotten, and copies begin again."""

    def __init__(self, make: Callable[[Any], Any], most: float = 100_000) -> None:
        self._make, self._most = make, most

    def __missing__(self, key: Any) -> Any:
        if len(self) >= self._most:
            self.clear()
        self[key] = made = self._make(key)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Remembered, (self._make, self._most)


class _Word(NamedTuple):
    """All that depends on a word alone."""

    bundle: tuple[str, ...]
    shape: str
    left: str
    right: str
    near: tuple[tuple[str, str], ...]  # as the word before and after, by distance


def _context(key: tuple[str, bool, Sequence[str]]) -> tuple[str, ...]:
    """Values around the middle one, one by one, and the sequences of two and three around it."""
    letter, own, values = key
    reach = len(values) // 2
    before, here, after = values[reach - 1 : reach + 2]
    strings = [f"{letter}={here}"] if own else []
    for d in range(1, reach + 1):
        strings += [f"{letter}-{d}={values[reach - d]}", f"{letter}+{d}={values[reach + d]}"]
    strings += [f"{letter}-1:0={before}|{here}", f"{letter}:1={here}|{after}", f"{letter}-1:1={before}|{here}|{after}"]
    return tuple(map(intern, strings))


@dataclass(frozen=True)
class EntityFeatures:
    """An extractor of features; the same document always gives the same features.

    Examples
    --------
    >>> document = Document(["in", "Rome"], {"pos": ["IN", "NNP"]})
    >>> tokens = EntityFeatures(ngrams=0, window=1).extract(document)
    >>> flatten(tokens[1])
    ['word=Rome', 's=Xxxx', 'w-1=in', 'p=NNP', 'p-1=IN', 'p+1=^', 'p-1:0=IN|NNP', 'p:1=NNP|^', 'p-1:1=IN|NNP|^',
     's-1=xx', 's+1=^', 's-1:0=xx|Xxxx', 's:1=Xxxx|^', 's-1:1=xx|Xxxx|^', '<=in']
    """

    #: Greatest length of the character n-grams, boundary marks included; None for any length, 0 for no n-grams. Words
    #: of more than 40 characters have none above 6, for their number grows with the square.
    ngrams: int | None = None
    window: int = 4  #: how many words to the left and to the right count as near
    reach: int = 1  #: how far neighbouring words, shapes and parts of speech are looked at one by one
    pos: bool = True  #: use the column ``"pos"`` of the document, which then must have one
    shapes: bool = True  #: use word shapes
    #: Add the current word together with the one before and the one after: ``w-1:0=in|Rome``. Not in the paper.
    pairs: bool = False
    lowercase: bool = False  #: add the current word in lower case. Not in the paper
    #: Add where in its line a token stands, first or last, and of its line the first word, the length, the indentation
    #: and whether it follows an empty one. Needs a document with ``line_starts``. Not in the paper.
    lines: bool = False
    #: Add what the document says about a capitalised word in other places: words, shapes and parts of speech around its
    #: other occurrences, the longest name that it is part of, its case. Not in the paper.
    elsewhere: bool = False
    columns: Sequence[str] = ()  #: further columns of the document, each used as parts of speech are
    template: Sequence[str] = ()  #: lines of a feature template, such as ``U01:%x[-1,0]/%x[0,pos]``
    #: Lists of names: ``{"city": ["Rome", "New York"]}``. A token in one has the feature ``city`` and its place there,
    #: ``city=B``, ``I``, ``E`` or ``S``.
    gazetteers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    own: Sequence[str] = ()  #: names of functions registered by :func:`register_features`
    _lines: list[TemplateLine] = field(default_factory=list, init=False, repr=False, compare=False)
    _gazetteers: Gazetteers | None = field(default=None, init=False, repr=False, compare=False)
    _words: Mapping[str, _Word] = field(init=False, repr=False, compare=False)
    _contexts: Mapping[Any, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("ngrams", "window", "reach"):
            check_number(name, getattr(self, name), least=0, whole=True, optional=name == "ngrams")
        for entry in fields(self):
            if isinstance(entry.default, bool):
                check_flag(entry.name, getattr(self, entry.name))
        for name in ("columns", "template", "own"):
            check_strings(name, getattr(self, name))
        for name in self.own:
            check_choice("own", name, REGISTERED)
        if not isinstance(self.gazetteers, Mapping):
            raise ArgumentError("gazetteers", f"must be lists of names by name, found {self.gazetteers!r:.80}")
        for name, entries in self.gazetteers.items():
            check_strings(f"gazetteers.{name}", entries)
        for name, make in (("_words", self._made), ("_contexts", _context)):
            object.__setattr__(self, name, Remembered(make))
        self._lines.extend(parse_template(self.template))
        if self.gazetteers:
            object.__setattr__(self, "_gazetteers", Gazetteers(self.gazetteers))

    @property
    def needed_columns(self) -> list[str]:
        """Columns, besides the word, that a document must have."""
        named = [
            piece[1] for line in self._lines for piece in line.pieces if not isinstance(piece, str) if piece[1] != 0
        ]
        wanted = [*(["pos"] if self.pos else []), *self.columns, *(name for name in named if isinstance(name, str))]
        return [name for name in dict.fromkeys(wanted) if name != "word"]

    def missing_column(self, document: Document) -> str | None:
        """A column that a document lacks, or None."""
        return next((name for name in self.needed_columns if name not in document.columns), None)

    def extract(self, document: Document) -> list[Token]:
        """The features of each token of a document."""
        missing = self.missing_column(document)
        if missing is not None:
            without = "; EntityFeatures(pos=False) needs none" if missing == "pos" else ""
            raise ValueError(f"document {document.name!r} has no column {missing!r}{without}")
        words = [self._words[word] for word in document.words]
        tokens: list[Token] = [[word.bundle] for word in words]
        borders = [*document.sentence_starts.tolist(), len(words)]
        for start, stop in itertools.pairwise(borders):
            part, rows = words[start:stop], tokens[start:stop]  # the rows are shared
            self._add_neighbours(rows, part)
            if self.pairs:
                self._add_pairs(rows, document.words[start:stop])
            if self.pos:
                self._add_contexts(rows, document.columns["pos"][start:stop], "p", own=True)
            for name in self.columns:
                self._add_contexts(rows, document.columns[name][start:stop], name, own=True)
            if self.shapes:
                # The bundle of the word has its own shape already.
                self._add_contexts(rows, [word.shape for word in part], "s", own=False)
            if self.window:
                self._add_windows(rows, part)
            for line in self._lines:
                for row, string in zip(rows, line.strings(document, start, stop), strict=True):
                    row.append(intern(string))
            if self._gazetteers is not None:
                for row, strings in zip(rows, self._gazetteers.strings(document.words[start:stop]), strict=True):
                    row += strings
        if self.lines:
            self._add_lines(tokens, document)
        if self.elsewhere:
            add_elsewhere(tokens, document, lambda word: self._words[word].shape, pos=self.pos)
        for row, own in zip(tokens, own_strings(document, self.own), strict=True):
            row += own
        return tokens

    def extract_many(self, documents: Iterable[Document]) -> Iterator[list[Token]]:
        """The features of each document, as they come."""
        return map(self.extract, documents)

    def _made(self, word: str) -> _Word:
        shape = word_shape(word)
        strings = [f"word={word}"]
        if self.lowercase:
            strings.append(f"l={word.lower()}")
        if self.shapes:
            strings.append(f"s={shape}")
        strings += character_ngrams(word, self.ngrams)
        near = tuple((intern(f"w-{d}={word}"), intern(f"w+{d}={word}")) for d in range(1, self.reach + 1))
        # Interned: words share most of their n-grams, and equal strings that are one object compare faster.
        return _Word(tuple(map(intern, strings)), shape, f"<={word}", f">={word}", near)

    def _add_neighbours(self, rows: Sequence[Token], words: Sequence[_Word]) -> None:
        for d in range(self.reach):
            for row, word in zip(rows[d + 1 :], words, strict=False):
                row.append(word.near[d][0])
            for row, word in zip(rows, words[d + 1 :], strict=False):
                row.append(word.near[d][1])

    def _add_pairs(self, rows: Sequence[Token], words: Sequence[str]) -> None:
        padded = [_OUTSIDE, *words, _OUTSIDE]
        for t, row in enumerate(rows):
            row += [f"w-1:0={padded[t]}|{padded[t + 1]}", f"w:1={padded[t + 1]}|{padded[t + 2]}"]

    def _add_contexts(self, rows: Sequence[Token], values: Sequence[str], letter: str, own: bool) -> None:
        """One bundle per token for what stands around it; contexts recur, so they are bundles too."""
        reach = max(self.reach, 1)
        padded = (*[_OUTSIDE] * reach, *values, *[_OUTSIDE] * reach)
        for t, row in enumerate(rows):
            row.append(self._contexts[letter, own, padded[t : t + 2 * reach + 1]])

    def _add_windows(self, rows: Sequence[Token], words: Sequence[_Word]) -> None:
        size = self.window
        left, right = [word.left for word in words], [word.right for word in words]
        for t, row in enumerate(rows):
            # Presence, not number: each once, in the order of the text.
            row += dict.fromkeys(left[max(t - size, 0) : t])
            row += dict.fromkeys(right[t + 1 : t + 1 + size])

    def _add_lines(self, tokens: Sequence[Token], document: Document) -> None:
        for start, stop in line_borders(document, "lines=True"):
            tokens[start].append("line-start")
            tokens[stop - 1].append("line-stop")
            shared = [f"line={document.words[start]}", f"line-n={min(stop - start, 12)}", *_layout(document, start)]
            for row in tokens[start:stop]:
                row += shared


#: For named entities: any n-grams, parts of speech, windows of four words.
CONLL = EntityFeatures()

#: For seminar announcements: n-grams up to six characters, windows of nine words, no parts of speech.
SEMINARS = EntityFeatures(ngrams=6, window=9, pos=False)


def flatten(token: Token) -> list[str]:
    """The features of a token as one list of strings, its bundles unpacked.

    Examples
    --------
    >>> flatten([("word=Rome", "s=Xxxx"), "w-1=in"])
    ['word=Rome', 's=Xxxx', 'w-1=in']
    """
    strings: list[str] = []
    for element in token:
        if isinstance(element, tuple):
            strings.extend(element)
        else:
            strings.append(element)
    return strings


def word_shape(word: str) -> str:
    """The shape of a word: X for capitals, x for small letters, d for digits, other characters as they are.

    Letters without case count as small, and marks that combine with a letter do not count. Of words with more than
    four characters the shape has the first two, the last two, and between them which kinds occur, sorted.

    Examples
    --------
    >>> [word_shape(word) for word in ("Rome", "mRNA", "CPA1", "Varicella-zoster", "1996-08-22")]
    ['Xxxx', 'xXXX', 'XXXd', 'Xx-xxx', 'dd-ddd']
    """
    kinds = [
        "X" if c.isupper() else "d" if c.isdecimal() else "x" if c.isalnum() else c for c in word if not _is_mark(c)
    ]
    if len(kinds) > 4:
        kinds = [*kinds[:2], *sorted(set(kinds[2:-2])), *kinds[-2:]]
    return "".join(kinds)


def character_ngrams(word: str, longest: int | None = None) -> list[str]:
    """The n-grams of a word in marks, ``<word>``, from two characters to ``longest`` (None: any), each once.

    See :class:`EntityFeatures` on very long words.

    >>> character_ngrams("Ada", 3)
    ['#<A', '#<Ad', '#Ad', '#Ada', '#da', '#da>', '#a>']
    """
    most = _LONG_WORD_NGRAMS if len(word) > _LONG_WORD else len(word) + 2
    longest = most if longest is None else min(longest, most)
    marked = f"<{word}>"
    size = len(marked)
    return list(
        dict.fromkeys(
            [
                "#" + marked[start:stop]
                for start in range(size - 1)
                for stop in range(start + 2, min(start + longest, size) + 1)
            ]
        )
    )


def _is_mark(character: str) -> bool:
    return character > "\u02ff" and unicodedata.category(character)[0] == "M"


def _layout(document: Document, start: int) -> list[str]:
    """How far the line that starts at a token is indented, and whether an empty line lies above it."""
    if document.text is None or document.starts is None or document.stops is None:
        return []
    place = int(document.starts[start])
    indent = place - document.text.rfind("\n", 0, place) - 1
    above = document.text[int(document.stops[start - 1]) if start else 0 : place]
    strings = [f"indent={min(indent // 8, 4)}"]
    return [*strings, "after-gap"] if above.count("\n") > 1 else strings


# --- in words ---

#: What names of features begin with, as a pattern and as it is shown, and what they mean; the first that fits counts.
_NAMES = (
    (r"word=", "word=", "the word itself"),
    (r"l=", "l=", "the word in lower case"),
    (r"w-\d+:\d+=|w:\d+=", "w-1:0=", "two neighbouring words"),
    (r"w-\d+=", "w-1=", "the word so many places before"),
    (r"w\+\d+=", "w+1=", "the word so many places after"),
    (r"#", "#", "letters in the word; < and > are its ends"),
    (r"s[-+:=\d]", "s=", "shape of the word (X capital, x small, d digit) and of its neighbours"),
    (r"p[-+:=\d]", "p=", "part of speech, and those of its neighbours"),
    (r"<=", "<=", "a word among the few before"),
    (r">=", ">=", "a word among the few after"),
    (r"U\d*:", "U", "a line of the template"),
)


def feature_key(names: Iterable[str]) -> dict[str, str]:
    """What the names of features begin with, and what it means, for those that are among ``names``.

    >>> feature_key(["word=Rome", "w-1=in", "city=B"])
    {'word=': 'the word itself', 'w-1=': 'the word so many places before'}
    """
    listed = list(names)
    used = {next((shown for form, shown, _ in _NAMES if re.match(form, name)), None) for name in listed}
    return {shown: meaning for _, shown, meaning in _NAMES if shown in used}


def features_in_words(features: EntityFeatures) -> str:
    """What an extractor looks at, as one would say it.

    >>> features_in_words(EntityFeatures(ngrams=6, pos=False))
    'words, letters in them (up to 6), shapes, neighbours up to 1 place away, words up to 4 places away'
    """
    reach, window, up_to = features.reach, features.window, "{} up to {} place{} away"
    said = {
        "words": True,
        "letters in them" + (f" (up to {features.ngrams})" if features.ngrams else ""): features.ngrams != 0,
        "shapes": features.shapes,
        "parts of speech": features.pos,
        up_to.format("neighbours", reach, "s" * (reach > 1)): reach,
        up_to.format("words", window, "s" * (window > 1)): window,
        "pairs of words": features.pairs,
        "lower case": features.lowercase,
        "places in lines": features.lines,
        "other occurrences": features.elsewhere,
        **{f"column {name}": True for name in features.columns},
        "a template": features.template,
        **{f"list {name}": True for name in features.gazetteers},
    }
    return ", ".join([*(words for words, used in said.items() if used), *features.own])
