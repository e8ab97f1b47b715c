"""Named features of tokens as rows, against counting by hand."""

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.estimators.encoding import FeatureVocabulary, GrowingVocabulary, features_of_dict, fit_vocabulary
from bactrian.graphs.inputs import BundledRows
from bactrian.parallel.threads import Workers

names = st.sampled_from(["a", "b", "c", "é", "字", ""])
bundles = st.lists(names, max_size=4).map(tuple)
tokens = st.one_of(
    st.lists(st.one_of(names, bundles), max_size=5),
    st.lists(names, max_size=3).map(tuple),
    st.dictionaries(names, st.floats(-2.0, 2.0), max_size=3),
)
corpora = st.lists(st.lists(tokens, max_size=4), min_size=1, max_size=4)


def counted(token: Any) -> Counter[str]:
    """Value of each feature of a token."""
    if isinstance(token, dict):
        return Counter(token)
    found: Counter[str] = Counter()
    for entry in token:
        found.update([entry] if isinstance(entry, str) else entry)
    return found


def carriers(corpus: list[list[Any]]) -> Counter[str]:
    """Tokens that have each feature: on their own, and in each different bundle."""
    found: Counter[str] = Counter()
    for token in (token for sequence in corpus for token in sequence):
        found.update({name for name in token if isinstance(name, str)})
        for bundle in {entry for entry in token if isinstance(entry, tuple)}:
            found.update(set(bundle))
    return found


def dense(inputs: Any) -> Any:
    return (inputs.multiplied_out() if isinstance(inputs, BundledRows) else inputs).toarray()


def expected(corpus: list[list[Any]], vocabulary: list[str]) -> Any:
    values = [[counted(token)[name] for name in vocabulary] for sequence in corpus for token in sequence]
    return np.array(values, dtype=float).reshape(sum(map(len, corpus)), len(vocabulary))


@given(corpora, corpora, st.integers(1, 3))
def test_rows_are_those_of_counting(corpus: list[list[Any]], others: list[list[Any]], least: int) -> None:
    vocabulary, rows = fit_vocabulary(corpus, least)
    assert vocabulary.names is not None
    assert sorted(vocabulary.names) == sorted(name for name, n in carriers(corpus).items() if n >= least)
    assert rows.lengths.tolist() == [len(sequence) for sequence in corpus]
    np.testing.assert_allclose(dense(rows.inputs), expected(corpus, vocabulary.names))
    encoded = vocabulary.encode(others)
    assert encoded.lengths.tolist() == [len(sequence) for sequence in others]
    np.testing.assert_allclose(dense(encoded.inputs), expected(others, vocabulary.names))


@given(corpora, corpora)
def test_batches_make_the_vocabulary_of_the_whole(first: list[list[Any]], second: list[list[Any]]) -> None:
    growing = GrowingVocabulary()
    growing.add(first)
    growing.add(second)
    found, whole = growing.vocabulary(2).names, fit_vocabulary([*first, *second], 2)[0].names
    assert found is not None
    assert whole is not None
    assert set(found) == set(whole)


texts = st.text(st.characters(exclude_categories=()), max_size=6)  # with zeros and halves of pairs


@given(st.lists(texts, unique=True, max_size=40), st.lists(texts, max_size=40))
def test_any_text_may_be_a_name(known: list[str], wanted: list[str]) -> None:
    wanted = [*wanted, *known, *(name + "\0" for name in known), *(name[1:] for name in known)]
    rows = FeatureVocabulary(known, len(known)).encode([[[name] for name in wanted]]).inputs.toarray()
    expected = np.array([[name == other for other in known] for name in wanted], dtype=float)
    np.testing.assert_array_equal(rows, expected.reshape(len(wanted), len(known)))


def test_many_names_are_found() -> None:
    numbers = np.random.default_rng(0).permutation(60_000).tolist()
    vocabulary = FeatureVocabulary([f"n{number}" for number in numbers[:30_000]], 30_000)
    rows = vocabulary.encode([[[f"n{number}"] for number in numbers]]).inputs
    np.testing.assert_array_equal(np.diff(rows.indptr), np.repeat([1, 0], 30_000))
    np.testing.assert_array_equal(rows.indices, np.arange(30_000))


@pytest.mark.parametrize("repeated", ["a", "", "\0", "é"])
def test_a_name_that_occurs_twice(repeated: str) -> None:
    with pytest.raises(ValueError, match="occurs twice in the vocabulary"):
        FeatureVocabulary(["b", repeated, "c", repeated], 4)


def test_equal_bundles_that_are_different_objects() -> None:
    one, other = (tuple(name for name in "ab") for _ in range(2))
    assert one is not other
    vocabulary, rows = fit_vocabulary([[[one], [other]]], 2)
    assert vocabulary.names == ["a", "b"]
    assert isinstance(rows.inputs, BundledRows)
    assert rows.inputs.bundles.shape[0] == 1  # they share one
    np.testing.assert_array_equal(dense(vocabulary.encode([[[one, "b"], [other]]]).inputs), [[1, 2], [1, 1]])


def test_names_may_be_strings_of_numpy() -> None:
    vocabulary, _ = fit_vocabulary([[[np.str_("a")], ["b"]]], 1)
    np.testing.assert_array_equal(dense(vocabulary.encode([[["a"], [np.str_("b"), np.str_("c")]]]).inputs), np.eye(2))


@pytest.mark.parametrize("entry", [3, None, ["a"], b"a", 2.5])
@pytest.mark.parametrize("how", ["fit", "encode"])
def test_what_is_no_feature_is_named(entry: Any, how: str) -> None:
    def encode(corpus: Any) -> None:
        if how == "fit":
            fit_vocabulary(corpus, 1)
        else:
            FeatureVocabulary(["a", "b"], 2).encode(corpus)

    with pytest.raises(TypeError, match=r"^X\[1\]\[2\]: features must be strings, or tuples of strings, found"):
        encode([[["a"]], [["b"], [], ["a", ("b",), entry]]])
    with pytest.raises(TypeError, match="a bundle must hold only strings, found"):
        encode([[["a", ("b", entry)]]])
    with pytest.raises(TypeError, match=r"^X\[0\]\[1\]: a token is a dict or a list of strings"):
        encode([[["a"], 7]])


plain_values = st.one_of(st.text("abc:", max_size=2), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0]))
plain_tokens = st.dictionaries(st.text("ab:", min_size=1, max_size=2), plain_values, max_size=4)


@given(st.lists(st.lists(plain_tokens, max_size=4), min_size=1, max_size=5))
def test_plain_dicts_are_encoded_as_their_features(X: list[list[dict[str, Any]]]) -> None:
    """Dicts that are looked up by entry have the rows of the lists of their features, known names and new."""
    vocabulary, rows = fit_vocabulary(X, 1)
    assert vocabulary.names is not None
    expected = np.zeros((sum(map(len, X)), len(vocabulary.names)))
    for row, token in zip(expected, (token for sequence in X for token in sequence), strict=True):
        for name, value in zip(*features_of_dict(token), strict=True):
            row[vocabulary.names.index(name)] += value
    np.testing.assert_array_equal(rows.inputs.toarray(), expected)
    for _ in range(2):  # looked up, then remembered
        again = vocabulary.encode(X)
        np.testing.assert_array_equal(again.inputs.toarray(), expected)
        assert again.lengths.tolist() == [len(sequence) for sequence in X]


def test_many_dicts_of_different_sizes_are_encoded_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    lengths = [1, 0, 150, 63, 64, 65]
    X = [[{f"k{i}": float(i + t) for i in range(rng.integers(0, 6))} for t in range(n)] for n in lengths]
    vocabulary, rows = fit_vocabulary(X, 1)
    again = vocabulary.encode(X)
    np.testing.assert_array_equal(again.lengths, lengths)
    alone = [vocabulary.encode([[token]]).inputs.toarray() for sequence in X for token in sequence]
    np.testing.assert_array_equal(again.inputs.toarray(), np.concatenate(alone))
    np.testing.assert_array_equal(rows.inputs.toarray(), again.inputs.toarray())


def test_nested_entries_come_after_plain_ones() -> None:
    vocabulary, rows = fit_vocabulary([[{"a": "x"}, {"b": ["y", "z"], "c": ("u", "v")}]], 1)
    assert vocabulary.names == ["a:x", "b:y", "b:z", "c:u", "c:v"]
    np.testing.assert_array_equal(rows.inputs.toarray(), [[1, 0, 0, 0, 0], [0, 1, 1, 1, 1]])


def test_a_vocabulary_that_has_seen_dicts_is_pickled_and_shared_by_threads() -> None:
    vocabulary = FeatureVocabulary([f"w:{i}" for i in range(2000)], 2000)
    X = [[{"w": str(i)}] for i in range(3000)]
    expected = vocabulary.encode(X).inputs.toarray()
    fresh = pickle.loads(pickle.dumps(vocabulary))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: fresh.encode(X).inputs.toarray(), range(8)):
            np.testing.assert_array_equal(found, expected)


def test_more_entries_than_were_made_room_for() -> None:
    corpus = [[{"word": f"w{n}", "n": n % 7} for n in range(start, start + 900)] for start in (0, 900, 1800)]
    vocabulary, _ = fit_vocabulary(corpus[:2], 1)
    assert vocabulary.names is not None
    weights = np.random.default_rng(0).normal(size=(vocabulary.n_features, 3))
    for some in (corpus[:1], corpus, corpus[1:]):
        encoded = vocabulary.encode(some)
        by_hand = [
            weights[vocabulary.names.index(f"word:{token['word']}")] if int(token["word"][1:]) < 1800 else np.zeros(3)
            for sequence in some
            for token in sequence
        ] + np.outer([token["n"] for sequence in some for token in sequence], weights[vocabulary.names.index("n")])
        np.testing.assert_allclose(encoded.times(weights, Workers(2)), by_hand, atol=1e-12)
        np.testing.assert_allclose(encoded.inputs @ weights, by_hand, atol=1e-12)
