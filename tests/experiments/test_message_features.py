"""Features of announcements: the layout of messages, and classes of words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.experiments.table2 import message_features
from bactrian.experiments.table2.message_features import word_class
from bactrian.text import Document, EntityFeatures, flatten, tokenize

PLAIN = {"ngrams": 0, "window": 0, "reach": 0, "shapes": False, "pos": False}
MESSAGE = EntityFeatures(**PLAIN, own=[message_features.MESSAGE])
CLASSES = EntityFeatures(**PLAIN, own=[message_features.CLASSES])


def added(settings: EntityFeatures, document: Document) -> list[list[str]]:
    """What is added to the words themselves."""
    return [flatten(token)[1:] for token in settings.extract(document)]


def starting(strings: list[str], *prefixes: str) -> set[str]:
    return {string for string in strings if string.startswith(prefixes)}


# --- messages ---

LETTER = """Type:   talks
Who:    Dr. Ada Lovelace
        London
Time:   4:00 PM
Abstract:

Ada Lovelace will speak
at 4 p.m .
"""


def test_fields_of_a_message() -> None:
    document = tokenize(LETTER)
    found = dict(zip(range(len(document)), added(MESSAGE, document), strict=True))
    place = {word: t for t, word in enumerate(document.words)}  # of the last occurrence
    fields = [next(iter(starting(strings, "field", "under")), None) for strings in found.values()]
    assert fields[document.words.index("Lovelace")] == "field=who"
    assert fields[place["London"]] == "under=who"
    assert fields[place["PM"]] == "field=time"
    assert fields[place["speak"]] == "under-gap=abstract"
    body = document.words.index("Abstract")
    assert [("body" in found[t], "header" in found[t]) for t in (body - 1, body)] == [(False, True), (True, False)]
    assert {"in=who", "e-1=ada", "e+1=london"} <= set(found[place["Lovelace"]])
    assert starting(found[place["4"]], "in") == {"in=time"}  # the same time without its minutes
    assert starting(found[document.words.index("Lovelace")], "in") == set()  # the other is in no field's lines
    assert {"at=3", "left=0", "line-no=0"} <= set(found[place["speak"]])
    assert {"at=0", "line-no=1"} <= set(found[place["at"]])
    assert "line-no=header" in found[0]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Who: Ada", "who"),
        ("  WHERE :here", "where"),
        ("Date  and Time: now", "date and time"),
        ("Où: là", "où"),
        ("4:00 pm", None),
        ("at 4:00 pm", None),
        ("This is the talk: come", None),  # four words
        (": none", None),
    ],
)
def test_names_of_fields(line: str, name: str | None) -> None:
    (strings, *_) = added(MESSAGE, tokenize(line))
    assert starting(strings, "field") == ({f"field={name}"} if name else set())


def test_words_that_recur_often_have_no_contexts() -> None:
    for times, expected in ((7, {"e-1=by", "e+1=by"}), (8, set())):
        strings = added(MESSAGE, tokenize("by Ada " * times + "by"))[1]
        assert starting(strings, "e") == expected


def test_empty_messages() -> None:
    assert MESSAGE.extract(tokenize("")) == []


# --- classes of words ---


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Thursday", "day"),
        ("tues.", "day"),
        ("SEPT", "month"),
        ("Prof.", "title"),
        ("University", "organisation"),
        ("Room", "room"),
        ("p.m.", "half"),
        ("PM", "half"),
        ("12:30", "time"),
        ("3:30pm", "time"),
        ("4pm", "time"),
        ("Noon", "time"),
        ("123:30", "1"),  # no time of day
        ("7", "d1"),
        ("5409", "d4"),
        ("223D", "d3"),
        ("4th", "4"),
        ("1" * 30, "d9"),
        ("B", "A"),
        ("CMU", "AA"),
        ("Ada", "Aa"),
        ("McCarthy", "Aa"),
        ("É", "A"),
        ("talk", "a"),
        ("字", "a"),
        ("--", "-"),
        ("...", "."),
    ],
)
def test_class_of_a_word(word: str, expected: str) -> None:
    assert word_class(word) == expected


lines_of_words = st.lists(
    st.lists(st.sampled_from(["Ada", "Dr", "talk", "Hall", "4:15", "7", "-", "May"]), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@given(lines_of_words)
def test_classes_around_a_token_are_those_of_enumeration(lines: list[list[str]]) -> None:
    document = tokenize("\n".join(" ".join(line) for line in lines))
    found = iter(added(CLASSES, document))
    telling = {"Dr": "title", "Hall": "room", "4:15": "time", "May": "month"}
    others = {"Ada": "Aa", "talk": "a", "7": "d1", "-": "-"}
    for n, line in enumerate(lines):
        classes = {t: {**telling, **others}[word] for t, word in enumerate(line)}
        for t in range(len(line)):
            at = lambda d, t=t, classes=classes: classes.get(t + d, "^" if t + d < 0 else "$")  # noqa: E731
            expected = {f"k={at(0)}", f"k-1={at(-1)}", f"k+1={at(1)}"}
            for name, places in {
                "k-2:0": (-2, -1, 0),
                "k:2": (0, 1, 2),
                "k-1:1": (-1, 0, 1),
                "k-2:2": (-2, -1, 0, 1, 2),
                "k-3:0": (-3, -2, -1, 0),
                "k:3": (0, 1, 2, 3),
            }.items():
                expected.add(f"{name}={'|'.join(map(at, places))}")
            for name, place in (("line", n), ("above", n - 1), ("below", n + 1)):
                words = lines[place] if 0 <= place < len(lines) else []
                expected |= {f"{name}-k={telling[word]}" for word in words if word in telling}
            strings = next(found)
            assert len(strings) == len(set(strings))
            assert set(strings) == expected


def test_equal_classes_are_one_bundle() -> None:
    first, second = (CLASSES.extract(tokenize(text)) for text in ("by Ada\nnow", "by Eve\nyes"))
    assert all(a[1] is b[1] for a, b in zip(first, second, strict=True))


def test_classes_need_lines() -> None:
    with pytest.raises(ValueError, match=r"document 'd' has no line_starts, which classes needs"):
        CLASSES.extract(Document(["a"], name="d"))
    assert CLASSES.extract(Document([], line_starts=[])) == []


def test_messages_need_their_text() -> None:
    with pytest.raises(ValueError, match="document 'x' has no text, which message needs"):
        MESSAGE.extract(Document(["a"], name="x", line_starts=[0]))
