"""Words of raw text, each with its place, and where lines and sentences start.

Every character that is not white space belongs to exactly one token, so predictions can be put back into the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bactrian.errors import check_choice, keeper
from bactrian.text.documents import Document

# Combining marks of the scripts in use, and the joiners: a letter and its marks stay together, but Python's \w does
# not know most of them.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8"
    "\u0900-\u0903\u093a-\u094f\u0951-\u0957\u0981-\u0983\u09bc-\u09d7\u0a01-\u0a03\u0a3c-\u0a51\u0a81-\u0a83"
    "\u0abc-\u0acd\u0b01-\u0b03\u0b3c-\u0b57\u0b82\u0bbe-\u0bcd\u0c00-\u0c04\u0c3e-\u0c56\u0c81-\u0c83\u0cbc-\u0cd6"
    "\u0d00-\u0d03\u0d3b-\u0d57\u0dca-\u0ddf\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff\u200c\u200d"
    "\u20d0-\u20f0\ufe00-\ufe0f\ufe20-\ufe2f"
)
_LETTER = rf"[^\W\d_][{_MARKS}]*"
_LETTERS = rf"(?:{_LETTER})+"
_RUN = r"(?P<again>[^\w\s])(?P=again)+"  # -----, ..., ==
_OTHER = rf"\S[{_MARKS}]*"

_ABBREVIATED = (
    "Mr|Mrs|Ms|Dr|Prof|St|Gen|Gov|Sen|Rep|Lt|Col|Capt|Sgt|Rev|Hon|Jr|Sr|Inc|Ltd|Co|Corp|Bros|vs|No"
    "|Jan|Feb|Aug|Sept|Oct|Nov|Dec"
)

#: For e-mails and other rough text: words with inner dots and apostrophes, ``'s``, times of day, numbers, runs of one
#: sign. ``4:30-5pm`` is four tokens, and the dot after ``p.m`` is one of its own.
PLAIN = "|".join(
    [r"\d{1,2}:\d\d(?!\d)", r"\d+", r"['’]s\b", rf"{_LETTERS}(?:(?:\.|['’](?!s\b)){_LETTERS})*", _RUN, _OTHER]
)

#: For edited prose, close to the tokens of newswire corpora: hyphenated words, numbers with their points, abbreviations
#: with their dots, and ``'s`` and ``n't`` set apart.
NEWS = "|".join(
    [
        rf"(?<!\w)(?:{_ABBREVIATED})\.(?=\s)",
        rf"(?:{_LETTER}\.){{2,}}(?:-{_LETTERS})*",
        r"(?<![\w.])[^\W\d_a-z]\.(?=\s)",  # initials
        r"[A-Z]{1,2}\$",
        r"(?i:n['’]t\b)",
        r"(?i:['’](?:s|re|ve|ll|d|m)\b)",
        rf"[+-]?(?:(?<!\d)\.)?\d+(?:[.,:/-]\d+)*(?:(?:st|nd|rd|th|s)\b)?(?:[-/](?:{_LETTERS}|\d+))*",
        rf"(?:(?!(?i:n['’]t\b)){_LETTER})+(?:(?:[-&/]|['’](?!(?i:s|re|ve|ll|d|m)\b))(?:{_LETTERS}|\d+))*\d*",
        _RUN,
        _OTHER,
    ]
)

PATTERNS: Mapping[str, re.Pattern[str]] = {
    "plain": re.compile(PLAIN),
    "news": re.compile(NEWS),
    "characters": re.compile(_OTHER),
    "whitespace": re.compile(r"\S+"),
}

_BREAK = re.compile(r"[\r\n]")
_BLANK_LINE = re.compile(r"(?>\r\n?|\n)[^\S\r\n]*[\r\n]")
_SENTENCE_END = re.compile(r"[.!?…。！？]+")
SENTENCES = ("prose", "lines", "paragraphs", "document")
_CLOSING = set("\"'”’»)]}")


Spans = Callable[[str], Iterable[tuple[int, int]]]

#: Tokenizers of users, by name.
_REGISTERED: dict[str, Spans] = {}


def register_tokenizer(name: str) -> Callable[[Spans], Spans]:
    """Make a tokenizer known by name, for :func:`tokenize` and ``bactrian train --tokenizer``.

    The function takes a text and gives where each token starts and stops, in order. A run keeps only the name:
    register the function before you load the run, on the command line with ``bactrian --plugin FILE``.

    Examples
    --------
    >>> @register_tokenizer("pairs")
    ... def pairs(text):
    ...     return [(start, min(start + 2, len(text))) for start in range(0, len(text), 2)]
    >>> tokenize("abcde", "pairs").words
    ('ab', 'cd', 'e')
    """
    return keeper(_REGISTERED, name, PATTERNS)


def token_spans(pattern: str | re.Pattern[str]) -> Spans:
    """What finds the tokens of a text: a pattern of :data:`PATTERNS`, a registered function, a regular expression."""
    if isinstance(pattern, str):
        if pattern in _REGISTERED:
            return _REGISTERED[pattern]
        if pattern.isidentifier() and pattern not in PATTERNS:
            known = ", ".join([*PATTERNS, *_REGISTERED])
            raise ValueError(f"pattern must be one of {known} or a regular expression, found {pattern!r}")
        try:
            pattern = PATTERNS.get(pattern) or re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    if not isinstance(pattern, re.Pattern):
        raise TypeError(f"pattern must be a name or a regular expression, found {pattern!r:.60}")
    finder = pattern.finditer
    return lambda text: [match.span() for match in finder(text)]


def tokenize(
    text: str, pattern: str | re.Pattern[str] = "plain", *, sentences: str = "prose", name: str = "", skip: int = 0
) -> Document:
    r"""Split a text into tokens that know their place.

    Parameters
    ----------
    pattern
        ``"plain"`` for e-mails and other rough text, ``"news"`` for prose, ``"characters"`` for scripts without blanks,
        ``"whitespace"``, a name registered by :func:`register_tokenizer`, or a regular expression that matches the
        tokens.
    sentences
        Where sentences start. ``"prose"``: after an empty line, and after a full stop, question or exclamation mark
        that a capital follows. ``"lines"``: at each line. ``"paragraphs"``: after empty lines. ``"document"``: only
        at the beginning.
    skip
        Number of characters at the beginning of the text that are left out.

    Examples
    --------
    >>> document = tokenize("Who: Dr. Ada Lovelace\nTime: 4:30-5pm")
    >>> document.words
    ('Who', ':', 'Dr', '.', 'Ada', 'Lovelace', 'Time', ':', '4:30', '-', '5', 'pm')
    >>> document.line_starts.tolist()
    [0, 6]
    >>> document.text[document.starts[8] : document.stops[8]]
    '4:30'
    >>> tokenize("Dr. Lovelace doesn't know EU-wide rules. We do.", "news").words
    ('Dr.', 'Lovelace', 'does', "n't", 'know', 'EU-wide', 'rules', '.', 'We', 'do', '.')
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, found {type(text).__name__}")
    spans = token_spans(pattern)
    check_choice("sentences", sentences, SENTENCES)
    # What is skipped reads as blanks, so that a pattern still sees where words begin.
    matches = [(start, stop) for start, stop in spans(" " * skip + text[skip:] if skip else text) if stop > start]
    words = [text[start:stop] for start, stop in matches]
    gaps = [text[stop:start] for (_, stop), (start, _) in itertools.pairwise(matches)]
    lines = [t for t, gap in enumerate(gaps, start=1) if _BREAK.search(gap)]
    first = [0] if words else []
    starts: list[int] = []
    if sentences == "prose":
        starts = _prose_starts(words, gaps)
    elif sentences != "document":
        starts = [t for t in lines if sentences == "lines" or _BLANK_LINE.search(gaps[t - 1])]
    offsets = np.array(matches, dtype=np.int64).reshape(-1, 2)
    return Document(
        words,
        sentence_starts=np.array(first + starts, dtype=np.int64),
        line_starts=np.array(first + lines, dtype=np.int64),
        text=text,
        starts=offsets[:, 0],
        stops=offsets[:, 1],
        name=name,
    )


def _prose_starts(words: Sequence[str], gaps: Sequence[str]) -> list[int]:
    """Tokens after the first that start a sentence, by punctuation and empty lines; a guess, as all such rules are."""
    starts = []
    for t in range(1, len(words)):
        gap = gaps[t - 1]
        if not gap:
            continue
        if _BLANK_LINE.search(gap):
            starts.append(t)
            continue
        end = t - 1
        while end > 0 and words[end] in _CLOSING and not gaps[end - 1]:
            end -= 1
        capital = next((word[0] for word in words[t : t + 2] if word[0].isalnum()), "a")
        if not _SENTENCE_END.fullmatch(words[end]) or capital.islower():
            continue
        # The dot of an initial or an abbreviation, where the pattern has made it a token of its own.
        before = words[end - 1] if words[end] == "." and end and not gaps[end - 1] else ""
        if not (len(before) == 1 and before.isupper()) and not re.fullmatch(_ABBREVIATED, before):
            starts.append(t)
    return starts
