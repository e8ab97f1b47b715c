"""Features in words: what an extractor looks at, and what the beginnings of their names mean."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bactrian.text.features import EntityFeatures

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
    said = ["words"]
    if features.ngrams != 0:
        said.append("letters in them" + (f" (up to {features.ngrams})" if features.ngrams else ""))
    said += [words for words, used in (("shapes", features.shapes), ("parts of speech", features.pos)) if used]
    for what, far in (("neighbours", features.reach), ("words", features.window)):
        if far:
            said.append(f"{what} up to {far} place{'s' if far > 1 else ''} away")
    said += [
        words
        for words, used in (
            ("pairs of words", features.pairs),
            ("lower case", features.lowercase),
            ("places in lines", features.lines),
            ("other occurrences", features.elsewhere),
            ("fields of the message", features.message),
            ("classes of words", features.classes),
        )
        if used
    ]
    said += [f"column {name}" for name in features.columns]
    if features.template:
        said.append("a template")
    said += [f"list {name}" for name in features.gazetteers]
    return ", ".join([*said, *features.own])
