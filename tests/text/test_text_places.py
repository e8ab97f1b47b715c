"""Features that look beyond the sentence: other occurrences in the document, and the layout of messages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.text import Document, EntityFeatures, flatten, tokenize, word_shape
from bactrian.text.document_features import word_class

PLAIN = {"ngrams": 0, "window": 0, "reach": 0, "shapes": False}
ELSEWHERE = EntityFeatures(**PLAIN, pos=False, elsewhere=True)
MESSAGE = EntityFeatures(**PLAIN, pos=False, message=True)


def added(settings: EntityFeatures, document: Document) -> list[list[str]]:
    """What is added to the words themselves."""
    return [flatten(token)[1:] for token in settings.extract(document)]


def starting(strings: list[str], *prefixes: str) -> set[str]:
    return {string for string in strings if string.startswith(prefixes)}


# --- other occurrences ---


def test_words_around_other_occurrences() -> None:
    words = ["in", "Rome", ",", "Rome", "fell", ".", "Rome"]
    found = added(ELSEWHERE, Document(words, sentence_starts=[0, 6]))
    contexts = [starting(strings, "o") for strings in found]
    first = {"o-1=in", "o+1=,", "o+1:2=,|Rome", "os-1=xx", "os+1=,"}
    second = {"o-1=,", "o-2:-1=Rome|,", "o+1=fell", "o+1:2=fell|.", "os-1=,", "os+1=xxxx"}
    third = {"os-1=^", "os+1=^"}  # alone in its sentence
    assert contexts[1] == second | third
    assert contexts[3] == first | third
    assert contexts[6] == first | second
    assert contexts[0] == contexts[2] == contexts[4] == set()
    assert all(len(strings) == len(set(strings)) for strings in found)


sentences = st.lists(
    st.lists(st.sampled_from(["Ada", "ADA", "ada", "Bo", "met", ",", "É", "É1", "字"]), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(sentences)
def test_contexts_are_those_of_enumeration(parts: list[list[str]]) -> None:
    words = [word for part in parts for word in part]
    starts = [0, *itertools.accumulate(len(part) for part in parts[:-1])]
    kinds = [f"P{len(word)}" for word in words]
    document = Document(words, {"pos": kinds}, sentence_starts=starts)
    found = added(EntityFeatures(**PLAIN, elsewhere=True), document)
    places = [(s, t) for s, part in enumerate(parts) for t in range(len(part))]
    at = lambda s, t: parts[s][t] if 0 <= t < len(parts[s]) else None  # noqa: E731
    for i, (s, t) in enumerate(places):
        expected = set()
        for k, u in places if words[i][0].isupper() else ():
            other = parts[k][u]
            if (k, u) == (s, t) or other.lower() != words[i].lower() or not other[0].isupper():
                continue
            before, after = at(k, u - 1), at(k, u + 1)
            shapes = ["^" if word is None else word_shape(word) for word in (before, after)]
            tags = ["^" if word is None else f"P{len(word)}" for word in (before, other, after)]
            expected |= {f"o-1={before}"} if before else set()
            expected |= {f"o+1={after}"} if after else set()
            if other != words[i]:
                expected.add(f"ow={other}")
                continue
            expected |= {f"os-1={shapes[0]}", f"os+1={shapes[1]}", "op=" + "|".join(tags)}
            expected |= {f"o-2:-1={at(k, u - 2)}|{before}"} if u > 1 else set()
            expected |= {f"o+1:2={after}|{at(k, u + 2)}"} if at(k, u + 2) else set()
        assert starting(found[i], "o") == expected
        small = words[i][0].isupper() and words[i].lower() in words
        assert ("small-elsewhere" in found[i]) == small
        sentence = "".join(parts[s])
        assert ("capitals" in found[i]) == (sentence.upper() == sentence != sentence.lower())


def test_the_longest_run_of_capitals() -> None:
    text = "CLINTON WINS . Clinton met Mr. Bill Clinton , Jr. in Rome . Bill left"
    found = added(ELSEWHERE, Document(text.split(), sentence_starts=[0, 3, 13]))
    runs = [starting(strings, "run") for strings in found]
    name = {"run-first=Mr.", "run-last=Clinton", "run<=met", "run>=,"}
    assert runs[0] == runs[3] == {"run=2/3", *name}
    assert runs[13] == {"run=1/3", *name}  # Bill
    assert runs[1] == runs[5] == runs[6] == runs[7] == runs[11] == set()  # WINS, the run itself, and Rome once
    assert [t for t, strings in enumerate(found) if "capitals" in strings] == [0, 1, 2]
    assert [t for t, strings in enumerate(found) if "inside-elsewhere" in strings] == [0, 3, 13]


def test_a_frequent_word_is_looked_at_so_many_times() -> None:
    words = [word for n in range(30) for word in (f"w{n}", "Rome")]
    last = added(ELSEWHERE, Document(words))[-1]
    assert len(starting(last, "o-1=")) == 20


def test_no_capitals_no_features() -> None:
    assert added(ELSEWHERE, Document(["in", "rome", "", "1"])) == [[], [], [], []]
    assert ELSEWHERE.extract(Document([])) == []


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

CLASSES = EntityFeatures(**PLAIN, pos=False, classes=True)


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
    with pytest.raises(ValueError, match=r"document 'd' has no line_starts, which classes=True needs"):
        CLASSES.extract(Document(["a"], name="d"))
    assert CLASSES.extract(Document([], line_starts=[])) == []
