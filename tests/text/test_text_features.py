"""Features of tokens, and skip edges."""

import copy
import dataclasses
import itertools
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.text import (
    CONLL,
    SEMINARS,
    Document,
    EntityFeatures,
    flatten,
    read_columns,
    register_features,
    skip_edges,
    tokenize,
    word_shape,
)
from bactrian.text.features import Remembered, character_ngrams

WORDS = ["He", "lives", "in", "Rome", "in", "Italy", "."]
POS = ["PRP", "VBZ", "IN", "NNP", "IN", "NNP", "."]
DOCUMENT = Document(WORDS, {"pos": POS})


def expected_features(words, pos, t, *, window, longest, shapes=True):
    """The features of token t of one sentence, written down from the table without regard to speed."""
    at = lambda values, i: values[i] if 0 <= i < len(values) else "^"  # noqa: E731
    found = {f"word={words[t]}"}
    marked = f"<{words[t]}>"
    for length in range(2, min(longest or len(marked), len(marked)) + 1):
        found |= {f"#{marked[i : i + length]}" for i in range(len(marked) - length + 1)}
    if t > 0:
        found.add(f"w-1={words[t - 1]}")
    if t + 1 < len(words):
        found.add(f"w+1={words[t + 1]}")
    for letter, values in (("p", pos), ("s", [word_shape(word) for word in words] if shapes else None)):
        if values is not None:
            a, b, c = at(values, t - 1), values[t], at(values, t + 1)
            found |= {f"{letter}={b}", f"{letter}-1={a}", f"{letter}+1={c}"}
            found |= {f"{letter}-1:0={a}|{b}", f"{letter}:1={b}|{c}", f"{letter}-1:1={a}|{b}|{c}"}
    found |= {f"<={word}" for word in words[max(t - window, 0) : t]}
    found |= {f">={word}" for word in words[t + 1 : t + 1 + window]}
    return found


word_lists = st.lists(st.sampled_from(["Rome", "in", "banana", "1996", ".", "É", "字", "aaaa"]), min_size=1, max_size=9)


@given(word_lists, st.integers(0, 4), st.sampled_from([None, 0, 2, 3, 6]), st.booleans())
def test_features_are_those_of_the_table(words, window, longest, with_pos):
    pos = [f"P{len(word)}" for word in words]
    features = EntityFeatures(ngrams=longest, window=window, pos=with_pos)
    tokens = features.extract(Document(words, {"pos": pos}))
    assert len(tokens) == len(words)
    for t, token in enumerate(tokens):
        strings = flatten(token)
        longest_here = 1 if longest == 0 else longest
        expected = expected_features(words, pos if with_pos else None, t, window=window, longest=longest_here)
        assert set(strings) == expected
        assert len(strings) == len(expected)  # none twice


@given(word_lists, st.data())
def test_nothing_looks_beyond_the_sentence(words, data):
    border = data.draw(st.integers(1, len(words)))
    starts = [0, border] if border < len(words) else [0]
    document = Document(words, {"pos": words}, sentence_starts=starts)
    whole = [flatten(token) for token in CONLL.extract(document)]
    parts = [flatten(token) for sentence in document.sentences() for token in CONLL.extract(sentence)]
    assert whole == parts


def test_equal_bundles_are_one_object():
    features = EntityFeatures()
    once, twice = features.extract(DOCUMENT), features.extract(DOCUMENT)
    assert once == twice
    for one, other in zip(once, twice, strict=True):
        assert all(a is b for a, b in zip(one, other, strict=True) if isinstance(a, tuple))
    assert once[2][0] is once[4][0]  # "in"
    assert once[2][0][0] == "word=in"
    bundles = [element for token in once for element in token if isinstance(element, tuple)]
    assert len({id(bundle) for bundle in bundles}) == len(set(bundles))


def test_what_is_remembered_is_bounded():
    made = []
    memory = Remembered(lambda key: made.append(key) or key.upper(), most=3)
    assert [memory[key] for key in "abcbadaa"] == list("ABCBADAA")
    assert made == list("abcda")  # the fourth made the first three forgotten
    assert set(memory) == {"d", "a"}
    assert not copy.deepcopy(memory)


def test_copies_forget_and_compare_by_settings():
    features = EntityFeatures(window=2)
    features.extract(DOCUMENT)
    for again in (copy.deepcopy(features), pickle.loads(pickle.dumps(features))):
        assert again == features
        assert again.extract(DOCUMENT) == features.extract(DOCUMENT)
        assert again.extract(DOCUMENT)[0][0] is not features.extract(DOCUMENT)[0][0]
    assert dataclasses.replace(CONLL, ngrams=6, window=9, pos=False) == SEMINARS
    assert (CONLL.ngrams, CONLL.window, CONLL.pos) == (None, 4, True)
    assert repr(features).startswith("EntityFeatures(ngrams=None, window=2, reach=1,")
    assert "Rome" not in repr(features)


def test_settings_beyond_the_paper():
    plain = EntityFeatures(ngrams=0, window=0, pos=False, shapes=False)
    (token, *_) = plain.extract(Document(["Rome"]))
    assert token == [("word=Rome",)]
    features = dataclasses.replace(plain, reach=2, pairs=True, lowercase=True, lines=True)
    tokens = features.extract(Document(["Who", ":", "Ada", "Come", "!"], line_starts=[0, 3]))
    line = ["line=Who", "line-n=3"]
    assert [flatten(token) for token in tokens[:3]] == [
        ["word=Who", "l=who", "w+1=:", "w+2=Ada", "w-1:0=^|Who", "w:1=Who|:", "line-start", *line],
        ["word=:", "l=:", "w-1=Who", "w+1=Ada", "w+2=Come", "w-1:0=Who|:", "w:1=:|Ada", *line],
        [
            "word=Ada",
            "l=ada",
            "w-1=:",
            "w+1=Come",
            "w-2=Who",
            "w+2=!",
            "w-1:0=:|Ada",
            "w:1=Ada|Come",
            "line-stop",
            *line,
        ],
    ]
    wide = flatten(EntityFeatures(ngrams=0, window=0, reach=2, shapes=False).extract(DOCUMENT)[3])
    assert {"p-2=VBZ", "p+2=NNP", "p-1=IN", "p+1=IN", "p-1:1=IN|NNP|IN", "w-2=lives", "w+2=Italy"} < set(wide)


def test_lines_of_a_text_have_a_layout():
    features = EntityFeatures(ngrams=0, window=0, reach=0, pos=False, shapes=False, lines=True)
    tokens = features.extract(tokenize("Who: Ada\n\n                Come !\n  " + "x " * 20))
    lines = [[string for string in flatten(token) if not string.startswith("word=")] for token in tokens]
    assert lines[0] == ["line-start", "line=Who", "line-n=3", "indent=0"]
    assert lines[3] == ["line-start", "line=Come", "line-n=2", "indent=2", "after-gap"]
    assert lines[5] == ["line-start", "line=x", "line-n=12", "indent=0"]
    assert lines[-1] == ["line-stop", "line=x", "line-n=12", "indent=0"]


def test_empty_documents_have_no_tokens():
    assert CONLL.extract(Document([], {"pos": []})) == []
    assert next(iter(SEMINARS.extract_many([Document([]), Document(["a"])]))) == []


def test_what_a_document_lacks_is_named():
    with pytest.raises(ValueError, match=r"document 'x' has no column 'pos'; EntityFeatures\(pos=False\)"):
        CONLL.extract(Document(["a"], name="x"))
    with pytest.raises(ValueError, match="document 'x' has no line_starts"):
        EntityFeatures(pos=False, lines=True).extract(Document(["a"], name="x"))
    for setting in ({"ngrams": -1}, {"window": None}, {"reach": 1.5}, {"window": True}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))} must be (at least 0|an integer), found"):
            EntityFeatures(**setting)


def test_long_words_have_few_ngrams():
    assert len(character_ngrams("x1" * 5000)) < 60_000
    assert max(map(len, character_ngrams("ab" * 50))) == 7  # six and the sign in front
    assert max(map(len, character_ngrams("ab" * 50, 3))) == 4


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        ("", ""),
        ("a", "x"),
        ("McDonald", "XxXxxx"),
        ("U.S.", "X.X."),
        ("1,000.50", "d,.ddd"),
        ("Élan", "Xxxx"),
        ("E\u0301lan", "Xxxx"),  # the same with a combining mark
        ("東京", "xx"),
        ("٣٤", "dd"),
    ],
)
def test_shapes(word, shape):
    assert word_shape(word) == shape


def test_import_is_light():
    code = "import sys, bactrian.text; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "bactrian.text" in loaded
    assert not {"sklearn", "numba", "scipy", "matplotlib", "safetensors"}.intersection(loaded)


def test_real_features_are_as_many_as_expected(real_data):
    documents = list(read_columns(real_data / "conll2003" / "eng.testb"))[:20]
    bundles, n_tokens = set(), 0
    for document, tokens in zip(documents, CONLL.extract_many(documents), strict=True):
        assert len(tokens) == len(document)
        n_tokens += len(tokens)
        bundles.update(id(token[0]) for token in tokens)
        assert [token[0][0] for token in tokens] == [f"word={word}" for word in document.words]
    assert len(bundles) == len({word for document in documents for word in document.words}) < n_tokens


# --- skip edges ---


@given(st.lists(st.sampled_from(["Rome", "rome", "Ada", "É", "1", "字", ".", ""]), max_size=12))
def test_skip_edges_are_those_of_enumeration(words):
    n = len(words)
    same = [(i, j) for i in range(n) for j in range(i + 1, n) if words[i] == words[j] and words[i][:1].isupper()]
    nearest = [(i, j) for i, j in same if words[i] not in words[i + 1 : j]]
    for rule, expected in (("all", same), ("nearest", nearest)):
        edges = skip_edges(words, rule)
        assert (edges.dtype, edges.shape) == (np.int64, (len(expected), 2))
        assert edges.tolist() == [list(pair) for pair in expected]


@given(st.lists(st.sampled_from(["Rome", "Ada", "É", "in", "."]), max_size=14))
def test_names_are_joined_as_a_whole(words):
    """A run is found from its borders, and its next equal from all pairs."""
    n = len(words)
    small = [-1, *(t for t in range(n) if not words[t][0].isupper()), n]
    runs = [(a + 1, b) for a, b in itertools.pairwise(small) if b > a + 1]
    expected = set()
    for i, (a, b) in enumerate(runs):
        equal = [c for c, d in runs[i + 1 :] if words[c:d] == words[a:b]]
        expected |= {(a + k, equal[0] + k) for k in range(b - a)} if equal else set()
    assert skip_edges(words, "names").tolist() == sorted(map(list, expected))


def test_own_rules_are_checked():
    assert skip_edges(["a", "b", "a"], lambda words: [(2, 0), (0, 2), (1, 0)]).tolist() == [[0, 1], [0, 2]]
    assert skip_edges(["a"], lambda words: []).shape == (0, 2)
    with pytest.raises(
        ValueError, match=r"what rule returns\[1\] = \(0, 3\) must join two different positions from 0 to 2"
    ):
        skip_edges(["a", "b", "c"], lambda words: [(0, 1), (0, 3)])
    with pytest.raises(ValueError, match=r"= \(1, 1\) must join two different"):
        skip_edges(["a", "b", "c"], lambda words: [(1, 1)])
    with pytest.raises(ValueError, match="must have shape"):
        skip_edges(["a", "b", "c"], lambda words: [0, 1])
    with pytest.raises(ValueError, match="integer position numbers"):
        skip_edges(["a", "b", "c"], lambda words: [(0.0, 1.0)])
    with pytest.raises(ValueError, match="rule must be one of nearest, all, names or a function"):
        skip_edges(["a"], "next")
    with pytest.raises(TypeError, match=r"words\[1\] must be a string"):
        skip_edges(["a", 1])


def test_skip_edges_of_real_documents(real_data):
    documents = list(read_columns(real_data / "conll2003" / "eng.train"))
    assert sum(len(skip_edges(document.words, "nearest")) for document in documents) == 12_996
    assert sum(len(skip_edges(document.words, "all")) for document in documents) == 29_309


# --- features of one's own ---


def test_templates_are_those_of_crf_plus_plus():
    """Strings as CRF++ expands them, by hand; the second sentence is shorter than the template's reach."""
    document = Document(["Rome", "fell", ".", "Ah"], {"pos": ["N", "V", ".", "U"]}, sentence_starts=[0, 3])
    template = ["# words", "U00:%x[-2,0]", "U01:%x[0,0]/%x[1,pos]", "U02:%x[2,1]", "", "U03:bias", "B"]
    tokens = EntityFeatures(ngrams=0, window=0, reach=0, pos=False, shapes=False, template=template).extract(document)
    assert [flatten(token)[1:] for token in tokens] == [
        ["U00:_B-2", "U01:Rome/V", "U02:.", "U03:bias"],
        ["U00:_B-1", "U01:fell/.", "U02:_B+1", "U03:bias"],
        ["U00:Rome", "U01:./_B+1", "U02:_B+2", "U03:bias"],
        ["U00:_B-2", "U01:Ah/_B+1", "U02:_B+2", "U03:bias"],
    ]
    for line, words in (
        ("U01:%x[0]", r"template: line 1: 'U01:%x\[0\]': expected a line such as"),
        ("B01:%x[0,0]", "are not supported, apart from B itself"),
        ("word=%x[0,0]", "expected a line such as U01"),
    ):
        with pytest.raises(ValueError, match=words):
            EntityFeatures(template=[line])
    with pytest.raises(ValueError, match=r"looks at column 2; document .* has word, pos"):
        EntityFeatures(pos=False, template=["U1:%x[0,2]"]).extract(document)
    with pytest.raises(ValueError, match="has no column 'lemma'"):
        EntityFeatures(pos=False, template=["U1:%x[0,lemma]"]).extract(document)


def test_further_columns_are_used_as_parts_of_speech_are():
    document = Document(["in", "Rome"], {"pos": ["IN", "NNP"], "chunk": ["IN", "NNP"]})
    pos = EntityFeatures(ngrams=0, window=0).extract(document)
    chunk = EntityFeatures(ngrams=0, window=0, pos=False, columns=["chunk"]).extract(document)
    renamed = [[re.sub(r"^chunk(?=[-+:=])", "p", string) for string in flatten(token)] for token in chunk]
    assert renamed == [flatten(token) for token in pos]


def test_gazetteers_know_the_longest_entry_in_any_tokens():
    entries = {"city": ["New York", "York", "Rio de Janeiro", " "], "state": ["new york"]}
    extractor = EntityFeatures(ngrams=0, window=0, reach=0, pos=False, shapes=False, gazetteers=entries)
    words = ["in", "NEW", "York", "or", "York", ",", "Rio", "de", "Janeiro"]
    found = [flatten(token)[1:] for token in extractor.extract(Document(words))]
    assert found[1:3] == [["city", "city=B", "state", "state=B"], ["city", "city=E", "state", "state=E"]]
    assert [strings[1:] for strings in found[4:]] == [["city=S"], [], ["city=B"], ["city=I"], ["city=E"]]
    assert found[0] == found[3] == []
    characters = [flatten(token)[1:] for token in extractor.extract(Document(list("York")))]
    assert [strings[1] for strings in characters] == ["city=B", "city=I", "city=I", "city=E"]
    assert EntityFeatures(gazetteers=entries) == EntityFeatures(gazetteers=dict(entries))


def test_functions_register_themselves():
    @register_features("vowels")
    def vowels(document):
        return [[f"vowels={sum(letter in 'aeiou' for letter in word)}"] for word in document.words]

    tokens = EntityFeatures(ngrams=0, window=0, pos=False, own=["vowels"]).extract(Document(["Rome", "fell"]))
    assert [token[-1] for token in tokens] == ["vowels=2", "vowels=1"]
    with pytest.raises(ValueError, match="own must be one of"):
        EntityFeatures(own=["consonants"])
