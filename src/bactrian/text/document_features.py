"""Features of a token that its document gives, beyond the words next to it.

**Recurring words.** Names recur, often in another case ("CLINTON" in a headline), and what stands around one occurrence
tells of the others (Sutton & McCallum 2004 put this on their skip edges). Occurrences of a word are the capitalised
tokens that are equal to it but for case. Contexts and runs end with their sentence.

==========================  ========================================================================================
strings                     the token has this if
==========================  ========================================================================================
``o-1=in``, ``o+1=,``       the word before, or after, another occurrence is so
``o-2:-1=lives|in``         these are the two words before another occurrence in the same case; ``o+1:2=`` after it
``os-1=xx``, ``os+1=,``     words before, or after, another in the same case have this shape; ``^`` where there is none
``op=IN|NNP|,``             parts of speech are so around another in the same case, where the document has them
``ow=CLINTON``              another occurrence is in this case
``run=0/2``                 place and length of the longest run of capitalised words with the word in it, not this one
``run-first=Bill``          the first word of that run; ``run-last=`` the last
``run<=Mr.``, ``run>=,``    the word before, and after, that run
``small-elsewhere``         the word also occurs in small letters
``inside-elsewhere``        it starts a sentence, but another occurrence does not
``capitals``                its sentence is in capitals; ``capitals|NNP`` with its part of speech
==========================  ========================================================================================

**The layout of a message.** A line that opens with a name of at most three words and a colon, ``Who: Ada Lovelace``, is
a field; the lines below belong to it until the next one. Words are compared in small letters, without dots at their
ends and times without ``:00``.

==========================  ========================================================================================
strings                     the token has this if
==========================  ========================================================================================
``field=who``               its line opens with this name
``under=who``               it is on a line below, and no empty line lies between; ``under-gap=who`` if one does
``header``, ``body``        it comes before the field ``abstract``, or not
``in=who``                  its word occurs on another line in this field, before any empty line
``e-1=by``, ``e+1=,``       its word occurs, from twice to seven times, elsewhere after, or before, this
``at=2``, ``left=0``        so many tokens of its line come before it, or after it
``line-no=3``               so many pairs of lines come before its line in the body
==========================  ========================================================================================

**Classes of words** that announce names, places and times. A line ``Prof. Ada Lovelace, University of London`` is known
by its pattern, title, capital, capital, comma, organisation, more than by its words. The lists are general English;
none is taken from a corpus.

==========================  ========================================================================================
strings                     the token has this if
==========================  ========================================================================================
``k=title``                 this is the class of its word; ``k-1=``, ``k+1=`` of its neighbours in the line
``k-2:0=^|title|Aa``        these are the classes of successive words of its line; also ``k-3:0=``, ``k-2:2=``,
                            ``k-1:1=``, ``k:2=`` and ``k:3=``
``line-k=time``             a word of its line has this class, of those that the lists and patterns know;
                            ``above-k=``, ``below-k=`` for the line before and after
==========================  ========================================================================================
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple

from bactrian.text.documents import Document, line_borders

# --- recurring words ---

#: Occurrences of a word, from the first, that the others look at.
_OCCURRENCES = 20

_OUTSIDE = "^"

Shape = Callable[[str], str]


class _CapitalRun(NamedTuple):
    """Successive capitalised words of one sentence."""

    start: int
    stop: int
    before: str
    after: str

    @property
    def length(self) -> int:
        return self.stop - self.start


def add_elsewhere(tokens: Sequence[list[Any]], document: Document, shape: Shape, *, pos: bool) -> None:
    """Append to the features of each token what the document tells of its word in other places.

    ``shape`` gives the shape of a word; with ``pos`` the column of that name is used.
    """
    words = document.words
    kinds = document.columns["pos"] if pos else None
    sentences = list(itertools.pairwise([*document.sentence_starts.tolist(), len(words)]))
    occurrences: dict[str, list[int]] = {}
    for position, word in enumerate(words):
        if word[:1].isupper():
            occurrences.setdefault(word.lower(), []).append(position)
    _add_contexts(tokens, document, occurrences, shape, kinds)
    shouted = [part for part in sentences if "".join(words[part[0] : part[1]]).isupper()]
    _add_case(tokens, document, occurrences)
    _add_runs(tokens, words, [part for part in sentences if part not in set(shouted)], occurrences)
    for start, stop in shouted:
        for t in range(start, stop):
            tokens[t].append("capitals")
            if kinds is not None:
                tokens[t].append(f"capitals|{kinds[t]}")


def _add_contexts(
    tokens: Sequence[list[Any]],
    document: Document,
    occurrences: dict[str, list[int]],
    shape: Shape,
    kinds: Sequence[str] | None,
) -> None:
    words = document.words
    borders = {*document.sentence_starts.tolist(), len(words)}
    for positions in occurrences.values():
        if len(positions) > 1:
            around = [(other, _context(words, other, borders, shape, kinds)) for other in positions[:_OCCURRENCES]]
            for position in positions:
                found: dict[str, None] = {}
                for other, (near, further) in around:
                    if other != position:
                        same = words[other] == words[position]
                        found.update(dict.fromkeys([*near, *(further if same else (f"ow={words[other]}",))]))
                tokens[position].extend(found)


def _context(
    words: Sequence[str], position: int, borders: set[int], shape: Shape, kinds: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """What stands around an occurrence: the single words, and all else."""
    near, further = [], []
    before = after = before_kind = after_kind = _OUTSIDE
    if position not in borders:
        before = shape(words[position - 1])
        before_kind = kinds[position - 1] if kinds else _OUTSIDE
        near.append(f"o-1={words[position - 1]}")
        if position - 1 not in borders:
            further.append(f"o-2:-1={words[position - 2]}|{words[position - 1]}")
    if position + 1 not in borders:
        after = shape(words[position + 1])
        after_kind = kinds[position + 1] if kinds else _OUTSIDE
        near.append(f"o+1={words[position + 1]}")
        if position + 2 not in borders:
            further.append(f"o+1:2={words[position + 1]}|{words[position + 2]}")
    further += [f"os-1={before}", f"os+1={after}"]
    if kinds:
        further.append(f"op={before_kind}|{kinds[position]}|{after_kind}")
    return near, further


def _add_case(tokens: Sequence[list[Any]], document: Document, occurrences: dict[str, list[int]]) -> None:
    small = {word for word in document.words if word[:1].islower()}
    starts = set(document.sentence_starts.tolist())
    for word, positions in occurrences.items():
        inside = not starts.issuperset(positions)
        for position in positions:
            if word in small:
                tokens[position].append("small-elsewhere")
            if inside and position in starts:
                tokens[position].append("inside-elsewhere")


def _add_runs(
    tokens: Sequence[list[Any]],
    words: Sequence[str],
    sentences: Sequence[tuple[int, int]],
    occurrences: dict[str, list[int]],
) -> None:
    longest: dict[str, tuple[_CapitalRun, int]] = {}
    for start, stop in sentences:
        for run in _runs(words, start, stop):
            for position in range(run.start, run.stop):
                known = longest.get(words[position].lower())
                if known is None or run.length > known[0].length:
                    longest[words[position].lower()] = run, position
    for word, (run, place) in longest.items():
        strings = (
            f"run={min(place - run.start, 3)}/{min(run.length, 4)}",
            f"run-first={words[run.start]}",
            f"run-last={words[run.stop - 1]}",
            f"run<={run.before}",
            f"run>={run.after}",
        )
        for position in occurrences[word]:
            if not run.start <= position < run.stop:
                tokens[position].extend(strings)


def _runs(words: Sequence[str], start: int, stop: int) -> list[_CapitalRun]:
    """Runs of capitalised words in one sentence."""
    runs = []
    t = start
    for capital, group in itertools.groupby(words[start:stop], lambda word: word[:1].isupper()):
        end = t + len(list(group))
        if capital:
            before = words[t - 1] if t > start else _OUTSIDE
            runs.append(_CapitalRun(t, end, before, words[end] if end < stop else _OUTSIDE))
        t = end
    return runs


# --- the layout of a message ---

#: A name of a field and its colon; before a digit the colon is part of a time.
_NAME = re.compile(r"[ \t]*([^\W\d_](?:[^\W\d_]|[/&' ]){0,24}?)[ \t]*:(?!\d)")
_WORDS_OF_NAME = 3

#: The field whose line ends the header: the text of the message comes under it.
_BODY = "abstract"

#: A word that occurs more often is not a name, place or time.
_OFTEN = 8


class _Line(NamedTuple):
    """A line with tokens, and the field that it belongs to."""

    start: int
    stop: int
    field: str | None
    opens: bool  # it is the field's first
    gap: bool  # an empty line lies between the field's first and this one


def add_message(tokens: Sequence[list[Any]], document: Document) -> None:
    """Append to the features of each token what the layout of the message tells of it."""
    lines = _lines(document)
    first = next((line.start for line in lines if line.opens and line.field == _BODY), 0)
    number = 0  # of the line in the body
    for line in lines:
        number += line.start > first
        shared = ["body" if line.start >= first else "header"]
        shared.append(f"line-no={min(number // 2, 15)}" if line.start > first else "line-no=header")
        if line.field is not None:
            shared.append(f"{'field' if line.opens else 'under-gap' if line.gap else 'under'}={line.field}")
        for t in range(line.start, line.stop):
            tokens[t] += [*shared, f"at={min(t - line.start, 5)}", f"left={min(line.stop - 1 - t, 5)}"]
    _add_recurring(tokens, document.words, lines)


def _lines(document: Document) -> list[_Line]:
    text, starts, stops = document.text, document.starts, document.stops
    if text is None or starts is None or stops is None:
        raise ValueError(f"document {document.name!r} has no text, which message=True needs")
    lines: list[_Line] = []
    field, gap = None, False
    for start, stop in line_borders(document, "message=True"):
        place = int(starts[start])
        match = _NAME.match(text, text.rfind("\n", 0, place) + 1, int(stops[stop - 1]))
        opens = match is not None and len(match[1].split()) <= _WORDS_OF_NAME
        if match is not None and opens:
            field, gap = " ".join(match[1].lower().split()), False
        else:
            gap = gap or text.count("\n", int(stops[start - 1]) if start else 0, place) > 1
        lines.append(_Line(start, stop, field, opens, gap))
    return lines


def _add_recurring(tokens: Sequence[list[Any]], words: Sequence[str], lines: Sequence[_Line]) -> None:
    """For words that occur more than once: fields of the other lines, and words around the other occurrences."""
    line_of = [line for line in lines for _ in range(line.start, line.stop)]
    occurrences: dict[str, list[int]] = {}
    for position, word in enumerate(words):
        if word[:1].isalnum():
            occurrences.setdefault(_bare(word), []).append(position)
    for positions in occurrences.values():
        named = (
            {(line_of[p].start, line_of[p].field) for p in positions if not line_of[p].gap}
            if len(positions) > 1
            else ()
        )
        for position in positions if len(positions) > 1 else ():
            start = line_of[position].start
            fields = {name for other, name in named if other != start and name not in (None, _BODY)}
            tokens[position] += [f"in={name}" for name in sorted(map(str, fields))]
            if len(positions) < _OFTEN:
                tokens[position] += _around(words, [other for other in positions if other != position])


def _around(words: Sequence[str], others: Sequence[int]) -> dict[str, None]:
    found: dict[str, None] = {}
    for other in others:
        if other > 0:
            found[f"e-1={words[other - 1].lower()}"] = None
        if other + 1 < len(words):
            found[f"e+1={words[other + 1].lower()}"] = None
    return found


def _bare(word: str) -> str:
    """The word by which occurrences are compared."""
    return word.lower().strip(".").removesuffix(":00")


# --- classes of words ---

_LISTS = {
    "day": "monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun",
    "month": "january february march april may june july august september october november december "
    "jan feb mar apr jun jul aug sep sept oct nov dec",
    "title": "dr prof professor mr ms mrs dean president",
    "organisation": "university college institute school department dept center centre laboratory laboratories labs "
    "corporation inc corp company research",
    "room": "hall room rooms auditorium building bldg lounge wing floor theater theatre conference suite lecture lab "
    "library campus",
    "half": "am pm a.m p.m",
}
_CLASS_OF = {word: name for name, words in _LISTS.items() for word in words.split()}
_TIME = re.compile(r"\d{1,2}:\d\d(?:[ap]m)?|\d{1,2}[ap]m|noon")
_NUMBER = re.compile(r"(\d+)[a-z]?")

#: Classes that tell something of their line.
_TELLING = frozenset((*_LISTS, "time"))

#: How far the classes around a token are looked at.
_REACH = 3
_START, _STOP = "^", "$"

#: Windows of classes, by their first and last place.
_SEQUENCES = ((-2, 0), (0, 2), (-1, 1), (-2, 2), (-3, 0), (0, 3))


def word_class(word: str) -> str:
    """The class of a word.

    Numbers, with a letter after them or not, are classed by their length, other words by their case and those without
    letters by their first character.

    >>> [word_class(word) for word in ("Prof.", "Ada", "IBM", "B", "talks", "3:30pm", "p.m.", "1996", "5409b", "--")]
    ['title', 'Aa', 'AA', 'A', 'a', 'time', 'half', 'd4', 'd4', '-']
    """
    bare = word.lower().strip(".")
    known = _CLASS_OF.get(bare)
    if known is not None:
        return known
    if _TIME.fullmatch(bare):
        return "time"
    number = _NUMBER.fullmatch(bare)
    if number is not None:
        return f"d{min(len(number[1]), 9)}"
    if word[:1].isupper():
        return "A" if len(word) == 1 else "AA" if word.isupper() else "Aa"
    return "a" if word[:1].isalpha() else word[:1]


def add_classes(tokens: Sequence[list[Any]], document: Document, bundles: Mapping[Any, tuple[str, ...]]) -> None:
    """Append to each token the classes around it, as a bundle, and those of its line and its neighbours, as another.

    ``bundles`` are what :func:`classes_around` gives, remembered.
    """
    classes, borders = [word_class(word) for word in document.words], line_borders(document, "classes=True")
    lines = [classes[start:stop] for start, stop in borders]
    telling = [(), *(tuple(sorted(_TELLING.intersection(line))) for line in lines), ()]
    for n, ((start, _), line) in enumerate(zip(borders, lines, strict=True)):
        padded = (*[_START] * _REACH, *line, *[_STOP] * _REACH)
        shared = bundles["lines", *telling[n : n + 3]]
        for t in range(len(line)):
            window = bundles["token", *padded[t : t + 2 * _REACH + 1]]
            tokens[start + t].extend([window, shared] if shared else [window])


def classes_around(key: tuple[Any, ...]) -> tuple[str, ...]:
    """A bundle: around a ``"token"`` from the classes of its window, or of ``"lines"`` from those of three."""
    if key[0] == "lines":
        _, above, own, below = key
        named = (("line", own), ("above", above), ("below", below))
        return tuple(intern(f"{name}-k={found}") for name, classes in named for found in classes)
    window = key[1:]
    found = [f"k={window[_REACH]}", f"k-1={window[_REACH - 1]}", f"k+1={window[_REACH + 1]}"]
    for first, last in _SEQUENCES:
        found.append(f"k{first or ''}:{last}={'|'.join(window[_REACH + first : _REACH + last + 1])}")
    return tuple(map(intern, found))
