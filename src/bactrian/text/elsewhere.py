"""What a document says about a word in other places: the features of ``EntityFeatures(elsewhere=True)``.

Names recur, often in another case ("CLINTON" in a headline), and the context of one occurrence says something about the
others (Sutton & McCallum 2004 put this on their skip edges). Occurrences of a word are the capitalised tokens
that differ from it at most in case. Contexts and runs end with their sentence.

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
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from bactrian.text.documents import Document

#: Occurrences of a word, from the first, that the others look at.
_OCCURRENCES = 20

_OUTSIDE = "^"

Shape = Callable[[str], str]


def add_elsewhere(tokens: Sequence[list[Any]], document: Document, shape: Shape, *, pos: bool) -> None:
    """Append to the features of each token what the document says about its word in other places.

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
    longest: dict[str, tuple[int, int, int, str, str]] = {}  # start and stop of a run, the word's place, and around it
    for start, stop in sentences:
        t = start
        for capital, group in itertools.groupby(words[start:stop], lambda word: word[:1].isupper()):
            first, t = t, t + len(list(group))
            around = words[first - 1] if first > start else _OUTSIDE, words[t] if t < stop else _OUTSIDE
            for place in range(first, t) if capital else ():
                known = longest.get(words[place].lower())
                if known is None or t - first > known[1] - known[0]:
                    longest[words[place].lower()] = first, t, place, *around
    for word, (first, end, place, before, after) in longest.items():
        strings = (
            f"run={min(place - first, 3)}/{min(end - first, 4)}",
            f"run-first={words[first]}",
            f"run-last={words[end - 1]}",
            f"run<={before}",
            f"run>={after}",
        )
        for position in occurrences[word]:
            if not first <= position < end:
                tokens[position].extend(strings)
