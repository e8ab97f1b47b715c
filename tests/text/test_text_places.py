"""Features that look beyond the sentence: other occurrences in the document."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bactrian.text import Document, EntityFeatures, flatten, word_shape

PLAIN = {"ngrams": 0, "window": 0, "reach": 0, "shapes": False}
ELSEWHERE = EntityFeatures(**PLAIN, pos=False, elsewhere=True)


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
