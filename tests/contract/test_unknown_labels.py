"""What stands for an unknown label is refused where labels are needed, and so is what would lose a part of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt
from bactrian.engines.files import PackedFolder
from bactrian.frames import Table

NAN = float("nan")
GRAPHS = [([[1.0], [0.0], [0.5]], [(0, 1), (1, 2)]), ([[0.2], [0.3]], [(0, 1)])]
GRIDS = [np.eye(2), np.ones((2, 2))]
SEQUENCES = [[["a"], ["b"], ["a"]], [["b"], ["a"]]]


class NAType:
    """As pandas has it: of no truth value."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]


UNKNOWN_GRAPHS: list[tuple[Any, Any]] = [
    ([[0, -1, 1], [0, 1]], [[0, -1, 1], [0, 1]]),
    ([np.array([0, -1, 1]), np.array([0, 1], dtype=np.int8)], [[0, -1, 1], [0, 1]]),
    ([["a", "", "b"], ["a", "b"]], [["a", "", "b"], ["a", "b"]]),
    ([["a", None, "b"], ["a", "b"]], [["a", "", "b"], ["a", "b"]]),
    ([np.array(["a", NAN, "b"], dtype=object), ["a", "b"]], [["a", "", "b"], ["a", "b"]]),
    ([[0.0, NAN, 1.0], [0, 1]], [[0, -1, 1], [0, 1]]),
    ([np.array([0, NAType(), 1], dtype=object), [0, 1]], [[0, -1, 1], [0, 1]]),
    ([[False, None, True], [0, 1]], [[0, -1, 1], [0, 1]]),
]


@pytest.mark.parametrize(("y", "plain"), UNKNOWN_GRAPHS)
def test_graphs_take_unknown_labels_in_every_form(y: Any, plain: Any) -> None:
    """All forms are one: the middle node of the first graph says nothing of itself, and keeps its neighbours apart."""
    fitted = bt.GraphCRF(method="exact").fit(GRAPHS, y)
    assert fitted.classes_.size == 2
    same = bt.GraphCRF(method="exact").fit(GRAPHS, plain)
    np.testing.assert_array_equal(fitted.weights_, same.weights_)
    other = bt.GraphCRF(method="exact").fit(GRAPHS, [[plain[1][0], plain[1][1], plain[1][1]], plain[1]])
    assert not np.allclose(fitted.weights_, other.weights_)


@pytest.mark.parametrize("nothing", [[None, None], [NAN, NAN], [-1, -1], ["", ""]])
@pytest.mark.parametrize("labels", [["a", "b", "a"], [0, 1, 0], [False, True, False]])
def test_a_graph_in_which_no_label_is_known_follows_the_others(labels: list[Any], nothing: list[Any]) -> None:
    fitted = bt.GraphCRF(method="exact", neighbours="edges").fit(GRAPHS, [labels, nothing])
    assert fitted.classes_.tolist() == sorted(set(labels))
    data = bt.GraphCRF(method="exact").encode(GRAPHS, [labels, nothing])
    assert data.labels.tolist() == [0, 1, 0, -1, -1]
    first, second = fitted.predict(GRAPHS, known=[labels, nothing])
    assert first.tolist() == labels
    assert second.tolist() == fitted.predict(GRAPHS)[1].tolist()


def test_booleans_may_be_missing_in_one_graph_alone() -> None:
    data = bt.GraphCRF(method="exact").encode(GRAPHS, [[True, None, False], [True, False]])
    assert data.labels.tolist() == [1, -1, 0, 1, 0]
    with pytest.raises(TypeError, match=r"y must be all strings, .* found booleans and integers"):
        bt.GraphCRF().fit(GRAPHS, [[0, 1, 2], [True, False]])


def test_pictures_may_have_void_pixels() -> None:
    labels = np.array([[0, 1], [-1, 1]])
    fitted = bt.GridCRF(method="exact").fit(GRIDS, [np.eye(2, dtype=int), labels])
    data = bt.GridCRF(method="exact").encode(GRIDS, [np.eye(2, dtype=int), labels])
    assert data.labels.tolist() == [1, 0, 0, 1, 0, 1, -1, 1]
    assert fitted.predict(GRIDS[1:], known=[labels])[0][1, 1] == 1


def test_a_variance_is_chosen_by_the_labels_that_are_known() -> None:
    """Of one graph: each fold learns around what it holds out, and is scored there with the other labels known."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 15)
    features = 0.5 * (2 * labels - 1)[:, None] + rng.normal(0.0, 1.0, (30, 4))
    graph = (features, [(v, v + 1) for v in range(29)])
    known = np.where(rng.random(30) < 0.6, labels, -1)
    model = bt.GraphCRF(method="exact", prior_variance="cv", tolerance=1e-6).fit([graph], [known])
    variance, loss = model.prior_scores_[1]
    seen = np.flatnonzero(known >= 0)
    fold_of = np.random.default_rng(0).permutation(seen.size) % 5
    total = 0.0
    for fold in range(5):
        out = seen[fold_of == fold]
        left = known.copy()
        left[out] = -1
        fitted = bt.GraphCRF(method="exact", prior_variance=variance, tolerance=1e-6).fit([graph], [left])
        total -= np.log(fitted.predict_marginals([graph], known=[left])[0][out, known[out]]).sum()
    assert loss == pytest.approx(total / seen.size, abs=1e-4)
    with pytest.raises(ValueError, match="needs at least two graphs with known labels, or one of at least 10 nodes"):
        bt.GraphCRF(prior_variance="cv", labels=[0, 1]).fit([graph], [np.where(np.arange(30) < 9, labels, -1)])


def test_a_fit_needs_a_label() -> None:
    with pytest.raises(ValueError, match="no known label"):
        bt.GraphCRF().fit(GRAPHS, [[-1, -1, -1], [-1, -1]])


@pytest.mark.parametrize("estimator", [bt.GraphCRF, bt.GridCRF])
def test_minus_one_is_no_class(estimator: Any) -> None:
    X = GRAPHS if estimator is bt.GraphCRF else GRIDS
    y = [[0, 1, 1], [0, 1]] if estimator is bt.GraphCRF else [np.eye(2, dtype=int)] * 2
    with pytest.raises(ValueError, match=r"labels\[0\] is -1, which stands for an unknown label"):
        estimator(labels=[-1, 0, 1]).fit(X, y)
    fitted = estimator().fit(X, y)
    zeros = np.concatenate([np.ravel(p)[np.ravel(part) == 0] for p, part in zip(fitted.predict(X), y, strict=True)])
    assert fitted.score(X, [np.where(np.asarray(part) == 1, -1, part) for part in y]) == (zeros == 0).mean()


@pytest.mark.parametrize("unknown", [None, NAN, -1, np.float32("nan"), np.datetime64("NaT", "D"), NAType()])
@pytest.mark.parametrize("estimator", [bt.LinearChainCRF, bt.SkipChainCRF])
def test_sequences_take_unknown_labels_in_every_form(estimator: Any, unknown: Any) -> None:
    crf = estimator(skips=None) if estimator is bt.SkipChainCRF else estimator()
    given = {"skips": [[(0, 2)], []]} if estimator is bt.SkipChainCRF else {}
    first, second = (0, 1) if isinstance(unknown, int) else ("x", "y")
    crf.fit(SEQUENCES, [[first, unknown, first], [second, first]], **given)
    assert crf.classes_.tolist() == [first, second]
    with pytest.raises(ValueError, match=r"y\[0\]\[1\] is .*stands for an unknown label; every label is needed"):
        crf.score(SEQUENCES, [[first, unknown, first], [second, first]], **given)


def test_sequences_have_no_class_of_minus_one() -> None:
    with pytest.raises(ValueError, match="labels names -1"):
        bt.LinearChainCRF(labels=[-1, 0, 1]).fit(SEQUENCES, [[0, 1, 1], [0, 1]])


def test_packed_folders_need_every_label(tmp_path: Path) -> None:
    data = bt.GraphData(np.eye(2), [(0, 1)], n_labels=2, labels=[0, -1])
    with pytest.raises(ValueError, match=r"part 0 has unknown labels \(-1\)"):
        PackedFolder.write(tmp_path / "pack", [data])


# --- one clear error each ---

PAIR = bt.LogLinearModel(bt.ClusterGraph([2, 3], [(0, 1)]), [np.eye(6)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bt.MarkovRandomField().fit([[0, -1], [1, -1]]), r"X\[:, 1\] has no observed state"),
        (lambda: bt.MarkovRandomField().fit(Table(x=["a", "b"], y=[None, None])), "column 'y' has no observed state"),
        (lambda: bt.MarkovRandomField(cardinalities=2).fit([[-1, None]]), "X has no observed state"),
        (lambda: bt.learn(bt.Samples(PAIR, [[-1, -1]]), "exact"), "X has no observed state"),
        (
            lambda: bt.learn([bt.Instance(PAIR, [-1, -1])], "exact"),
            "no instance of positive weight has an observed state",
        ),
        (lambda: bt.GraphCRF().fit(GRAPHS, [[None] * 3, [None] * 2]), "y holds no known label"),
        (lambda: bt.GridCRF().fit(GRIDS, [np.full((2, 2), -1)] * 2), "y holds no known label"),
        (lambda: bt.LinearChainCRF().fit(SEQUENCES, [[None] * 3, [None] * 2]), "y holds no known label"),
        (lambda: bt.Samples(PAIR, [[0, -1]], allowed=[{1: []}]), r"allowed\[0\]\[1\] is empty; variable 1 needs"),
        (lambda: bt.Instance(PAIR, [0, -1], allowed={1: []}), r"allowed\[1\] is empty; variable 1 needs at least one"),
        (
            lambda: bt.Samples(PAIR, [[0, 2]], allowed=[{1: [0, 1]}]),
            r"allowed\[0\]\[1\] leaves out state 2, the observed",
        ),
        (
            lambda: bt.Instance(PAIR, [0, 2], allowed={1: [0, 1]}),
            r"allowed\[1\] leaves out state 2, the observed state of variable 1",
        ),
        (lambda: bt.Instance(PAIR, [0, -1], allowed={1: [7]}), r"allowed\[1\]\[0\] = 7 is outside 0 to 2"),
        (lambda: bt.Instance(PAIR, [0, 3]), r"y\[1\] = 3 is not a state of variable 1; its states are 0 to 2"),
        (lambda: bt.GraphCRF(labels=["a", "b"]).fit(GRAPHS, [["a", "c", ""], ["a", "b"]]), "y holds label 'c', which"),
        (lambda: bt.LinearChainCRF(labels=["a"]).fit(SEQUENCES, [["a", "c", "a"], ["a", "a"]]), "is 'c'; the"),
        (lambda: bt.GraphCRF().fit(GRAPHS, [["a", 3, "b"], ["a", "b"]]), r"y\[0\] must be all .* strings and integers"),
        (lambda: bt.GraphCRF().fit(GRAPHS, [["a", True, None], ["a", "b"]]), "found strings and booleans"),
        (lambda: bt.GraphCRF(labels=["a", 3]).fit(GRAPHS, [["a"] * 3, ["a"] * 2]), "labels must be all .* integers"),
        (lambda: bt.LinearChainCRF().fit(SEQUENCES, [["a", 3, "a"], ["a", "a"]]), "found strings and integers"),
    ],
)
def test_one_clear_error(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_row_that_was_not_seen_changes_nothing() -> None:
    rows = [[0, 1, 1], [1, -1, 0], [0, 0, -1], [1, 1, 1]]
    one, other = (bt.MarkovRandomField().fit(X) for X in (rows, [*rows, [-1, None, np.nan]]))
    np.testing.assert_allclose(one.weights_, other.weights_, atol=1e-10)


# --- labels of another kind ---


@pytest.mark.parametrize("y", [[["0", "1", "1"], ["0", "1"]], [np.array(["0", "1", "1"], dtype=object), ["0", "1"]]])
def test_scores_refuse_labels_of_another_kind(y: Any) -> None:
    crf = bt.GraphCRF().fit(GRAPHS, [[0, 1, 1], [0, 1]])
    with pytest.raises(TypeError, match="y must hold labels such as 0, found '0'"):
        crf.score(GRAPHS, y)
    words = bt.GraphCRF().fit(GRAPHS, y)
    with pytest.raises(TypeError, match="y must hold labels such as '0', found 0"):
        words.score(GRAPHS, [[0, 1, 1], [0, 1]])


def test_sequence_scores_refuse_labels_of_another_kind() -> None:
    crf = bt.LinearChainCRF().fit(SEQUENCES, [[0, 1, 1], [0, 1]])
    with pytest.raises(TypeError, match=r"y\[0\]\[0\] is '0', but the labels are 0, 1"):
        crf.score(SEQUENCES, [["0", "1", "1"], ["0", "1"]])


def test_scores_take_booleans_for_integers_and_count_unseen_labels_as_wrong() -> None:
    crf = bt.GraphCRF().fit(GRAPHS, [[0, 1, 1], [0, 1]])
    predicted = np.concatenate(crf.predict(GRAPHS))
    truth = [np.array([False, True, True]), np.array([False, True])]
    assert crf.score(GRAPHS, truth) == np.mean(predicted == np.concatenate(truth))
    assert crf.score(GRAPHS, [[7, 7, 7], [7, 7]]) == 0.0


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0.5, 1.0, 1.0], r"\[0\] must be a string, an integer or a boolean, found 0.5"),
        ([0.0, 1.0, 1.0], r"\[0\] must be a string, an integer or a boolean, found 0.0"),
        ([0.0, None, 1.5], r"\[2\] must be a string, an integer or a boolean, found 1.5"),
        (np.array([0, 1, 1], dtype=complex), r"\[0\] must be a string, an integer or a boolean, found 0j"),
        (np.array(["2020-01-01"] * 3, dtype="M8[D]"), r"\[0\] must be a string, .*, found datetime"),
        (np.array([b"a", b"b", b"a"]), r"\[0\] must be a string, an integer or a boolean, found b'a'"),
        (["a", 1, "b"], " must be all strings, all integers or all booleans, found strings and integers"),
        (np.array([0, "a", 1], dtype=object), " must be all strings, .*, found strings and integers"),
    ],
)
def test_labels_are_integers_booleans_or_strings(labels: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"y\[0\]{words}"):
        bt.GraphCRF().fit(GRAPHS[:1], [labels])


def test_the_place_of_a_label_in_a_picture() -> None:
    grid = np.array([[0, 1], [None, 1]], dtype=object)
    crf = bt.GridCRF().fit(GRIDS, [np.eye(2, dtype=int), grid])
    for unknown in (grid, np.array([[0, 1], [-1, 1]])):
        with pytest.raises(ValueError, match=r"y\[1\]\[1, 0\] is .*, which stands for an unknown label"):
            crf.diagnose(GRIDS, [np.eye(2, dtype=int), unknown])
    with pytest.raises(TypeError, match=r"y\[1\]\[0, 1\] must be a string, an integer or a boolean, found 0.5"):
        bt.GridCRF().fit(GRIDS, [np.eye(2, dtype=int), [[0, 0.5], [1, 1]]])


def test_objects_that_are_integers_are_integers() -> None:
    crf = bt.GraphCRF().fit(GRAPHS[:1], [np.array([0, np.int8(1), 1], dtype=object)])
    assert crf.classes_.dtype == np.int64
    assert bt.GraphCRF().fit(GRAPHS[:1], [np.array([True, False, True], dtype=object)]).classes_.dtype == np.bool_


def test_labels_beyond_64_bits_do_not_wrap() -> None:
    with pytest.raises(ValueError, match=r"y\[0\]\[2\] is 18446744073709551615, which is beyond 64-bit integers"):
        bt.GraphCRF().fit(GRAPHS[:1], [np.array([0, 1, 2**64 - 1], dtype=np.uint64)])


# --- features ---

ODD_FEATURES = {
    "complex": np.array([[1 + 2j], [0.5], [1.0]]),
    "strings": np.array([["1"], ["2"], ["3"]]),
    "objects": np.array([[1.0], [2.0], [3.0]], dtype=object),
    "dates": np.array([["2020-01-01"]] * 3, dtype="M8[D]"),
}


@pytest.mark.parametrize("kind", ODD_FEATURES)
def test_features_are_real_numbers(kind: str) -> None:
    odd = ODD_FEATURES[kind]
    for given in (odd, sp.csr_array(odd)) if kind == "complex" else (odd,):
        with pytest.raises(TypeError, match=r"X\[0\]: node_features must hold real numbers"):
            bt.GraphCRF().fit([(given, [(0, 1)])], [[0, 1, 1]])
        with pytest.raises(TypeError, match=r"X\[0\]: edge_features must hold real numbers"):
            bt.GraphCRF().fit([(np.ones((3, 1)), [(0, 1), (1, 2), (0, 2)], given)], [[0, 1, 1]])
        with pytest.raises(TypeError, match=r"X\[0\] must hold real numbers"):
            bt.LinearChainCRF().fit([given], [[0, 1, 1]])
        with pytest.raises(TypeError, match="inputs must hold real numbers"):
            bt.GraphData(given, [(0, 1)], n_labels=2)
        with pytest.raises(TypeError, match=r"features\[0\] must hold real numbers"):
            bt.LogLinearModel(bt.ClusterGraph([3], [(0,)]), [given])
    with pytest.raises(TypeError, match=r"X\[0\]: node_features must hold real numbers"):
        bt.GridCRF().fit([odd], [[[0], [1], [1]]])


def test_sparse_features_are_finite() -> None:
    with pytest.raises(ValueError, match=r"X\[0\]: node_features holds NaN or infinite values"):
        bt.GraphCRF().fit([(sp.csr_array([[NAN], [1.0], [1.0]]), [(0, 1)])], [[0, 1, 1]])
    with pytest.raises(ValueError, match=r"X\[0\] holds NaN or infinite values"):
        bt.LinearChainCRF().fit([sp.csr_array([[NAN], [1.0], [1.0]])], [[0, 1, 1]])


def test_masked_entries_are_not_read_through_the_mask() -> None:
    masked = np.ma.masked_array([[1.0], [9.0], [1.0]], mask=[[0], [1], [0]])
    labels = np.ma.masked_array([0, 1, 1], mask=[0, 0, 1])
    for call in (
        lambda: bt.GraphCRF().fit([(masked, [(0, 1)])], [[0, 1, 1]]),
        lambda: bt.GraphCRF().fit(GRAPHS[:1], [labels]),
        lambda: bt.GridCRF().fit([masked], [[[0], [1], [1]]]),
        lambda: bt.LinearChainCRF().fit([masked], [[0, 1, 1]]),
        lambda: bt.MarkovRandomField().fit(np.ma.masked_array([[0, 1], [1, 0]], mask=[[0, 0], [1, 0]])),
        lambda: bt.GraphData(masked, [(0, 1)], n_labels=2),
    ):
        with pytest.raises(ValueError, match="masked entries, the first at"):
            call()
    whole = np.ma.masked_array([[1.0], [0.0], [1.0]])
    assert bt.GraphCRF().fit([(whole, [(0, 1)])], [[0, 1, 1]]).n_features_in_ == 1


def test_the_arrays_of_a_sparse_matrix_are_left_as_they_are() -> None:
    """Entries in any order, and read-only as worker processes get them."""
    parts = [np.array([1.0, 2.0, 3.0]), np.array([1, 0, 0], dtype=np.int32), np.array([0, 2, 3], dtype=np.int32)]
    before = [part.copy() for part in parts]
    for part in parts:
        part.setflags(write=False)
    matrix = sp.csr_array(tuple(parts), shape=(2, 2))
    data = bt.GraphData(matrix, [(0, 1)], n_labels=2, labels=[0, 1])
    dense = bt.GraphData(matrix.toarray(), [(0, 1)], n_labels=2, labels=[0, 1])
    assert np.allclose(bt.learn(data, "exact").weights, bt.learn(dense, "exact").weights, atol=1e-4)
    for part, old in zip(parts, before, strict=True):
        assert np.array_equal(part, old)
