"""Frames in, frames out: pandas' and polars' where they are installed, and tables of plain lists."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.frames import Table, columns_of

N = 120
AGES = ["young", "middle", "old"]
EDGES = [("age", "smoker"), ("smoker", "lung"), ("age", "kids"), ("lung", "kids"), ("kids", "urban")]
NAMES = ["age", "smoker", "lung", "kids", "urban"]


def survey() -> Table:
    rng = np.random.default_rng(3)
    smoker = rng.random(N) < 0.4
    columns: dict[str, list[Any]] = {
        "age": [AGES[i] for i in rng.integers(0, 3, N)],
        "smoker": ["yes" if s else "no" for s in smoker],
        "lung": ["ill" if i else "well" for i in rng.random(N) < np.where(smoker, 0.5, 0.1)],
        "kids": [float(k) for k in rng.integers(0, 3, N)],
        "urban": [bool(u) for u in rng.random(N) < 0.5],
    }
    for c, name in enumerate(columns):
        for row in range(c, N, 9):
            columns[name][row] = None
    return Table(columns)


def as_table() -> Any:
    return survey()


def as_pandas() -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(survey(), index=np.arange(N) + 1000)
    frame["age"] = pandas.Categorical(frame["age"], AGES, ordered=True)
    return frame


def as_polars() -> Any:
    polars = pytest.importorskip("polars")
    return polars.DataFrame(survey()).with_columns(polars.col("age").cast(polars.Enum(AGES)))


@pytest.fixture(params=[as_table, as_pandas, as_polars])
def frame(request: pytest.FixtureRequest) -> Any:
    return request.param()


def field_of(X: Any, **options: Any) -> bt.MarkovRandomField:
    return bt.MarkovRandomField(EDGES, cardinalities={"age": AGES}, prior_variance=1.0, **options).fit(X)


@pytest.fixture
def field(frame: Any) -> bt.MarkovRandomField:
    return field_of(frame)


def cells(frame: Any) -> dict[str, list[Any]]:
    return {column.name: column.cells for column in columns_of(frame)}


LABELS = (tuple(AGES), ("no", "yes"), ("ill", "well"), (0.0, 1.0, 2.0), (False, True))


def codes() -> np.ndarray:
    columns = survey()
    listed = [[*of, None] for of in LABELS]
    states = np.array([[of.index(c) for c in columns[n]] for n, of in zip(NAMES, listed, strict=True)]).T
    return np.where(states == [len(of) for of in LABELS], -1, states)


@pytest.fixture(scope="module")
def by_number() -> bt.MarkovRandomField:
    """The same in numbers."""
    edges = [(NAMES.index(a), NAMES.index(b)) for a, b in EDGES]
    return bt.MarkovRandomField(edges, prior_variance=1.0).fit(codes())


def test_a_frame_is_learned_as_its_codes(field, frame, by_number):
    assert field.state_labels == LABELS
    assert field.feature_names_in_.tolist() == NAMES
    np.testing.assert_array_equal(field.weights_, by_number.weights_)
    np.testing.assert_array_equal(field.edges_, by_number.edges_)


def test_words_are_learned_by_learners_that_are_not_exact():
    """Whose likelihood is compared with that of independent variables."""
    frame = Table(a=[*"xyxyxxyx"], b=[*"uvuvuuvv"], c=[*"ppqpqqpp"])
    states = np.array([["xup".find(cell) < 0 for cell in column] for column in frame.values()]).T.astype(int)
    words, numbers = (bt.MarkovRandomField(method="pseudolikelihood").fit(X) for X in (frame, states))
    np.testing.assert_array_equal(words.weights_, numbers.weights_)


def test_questions_are_answered_by_name(field, frame, by_number):
    assert isinstance(field.marginals(), type(frame))
    every = cells(field.marginals())
    assert every["variable"] == [name for name, of in zip(NAMES, LABELS, strict=True) for _ in of]
    assert every["state"] == [*AGES, "no", "yes", "ill", "well", "0", "1", "2", "False", "True"]
    np.testing.assert_allclose(every["probability"], np.concatenate(by_number.marginals()))
    joint = cells(field.marginal(("age", "smoker")))
    assert list(joint) == ["age", "smoker", "probability"]
    assert list(zip(joint["age"], joint["smoker"], strict=True)) == list(itertools.product(AGES, ["no", "yes"]))
    np.testing.assert_allclose(joint["probability"], by_number.marginal((0, 1)).ravel())
    given = field.conditional({"smoker": "yes", "kids": 2})
    assert list(given) == ["age", "lung", "urban"]
    expected = by_number.conditional({1: 1, 3: 2})
    for v, name in ((0, "age"), (2, "lung"), (4, "urban")):
        assert isinstance(given[name], type(frame))
        np.testing.assert_allclose(np.concatenate(list(cells(given[name]).values())), expected[v])
    everything = cells(field.marginals({"smoker": "yes"}))
    np.testing.assert_allclose(everything["probability"][3:5], [0.0, 1.0])


def test_probability_by_enumeration(field):
    joint = cells(field.marginal(NAMES))
    weights = np.array(joint["probability"])

    def mass(**states: Any) -> float:
        chosen = [all(joint[n][i] == s for n, s in states.items()) for i in range(weights.size)]
        return float(weights[chosen].sum())

    assert field.probability({"lung": "ill"}) == pytest.approx(mass(lung="ill"))
    asked = field.probability({"lung": "ill", "urban": True}, given={"smoker": "yes", "age": "old"})
    expected = mass(lung="ill", urban=True, smoker="yes", age="old") / mass(smoker="yes", age="old")
    assert asked == pytest.approx(expected)
    assert field.probability({"smoker": "no"}, given={"smoker": "yes"}) == 0.0
    assert field.probability({"smoker": "yes"}, given={"smoker": "yes"}) == 1.0


def test_holes_are_filled_in_words(field, frame, by_number):
    filled = field.predict(frame)
    assert isinstance(filled, type(frame))
    whole = np.array([[of.index(c) for c in cells(filled)[n]] for n, of in zip(NAMES, LABELS, strict=True)]).T
    np.testing.assert_array_equal(whole, by_number.predict(codes()))
    parts = field.predict_marginals(frame)
    assert list(parts) == NAMES
    assert list(parts["kids"].columns) == ["0", "1", "2"]
    np.testing.assert_allclose(cells(parts["smoker"])["yes"], by_number.predict_marginals(codes())[1][:, 1])
    rows = [["old", None, "ill", 1, True]]
    assert field.predict(rows).tolist()[0][0] == "old"


def test_draws_are_in_words(field, frame, by_number):
    drawn = field.sample(7, seed=1)
    assert isinstance(drawn, type(frame))
    expected = by_number.sample(7, seed=1)
    assert cells(drawn) == {n: [LABELS[v][s] for s in expected[:, v]] for v, n in enumerate(NAMES)}
    np.testing.assert_array_equal(field.sample(7, seed=1, frame=False), expected)


def test_words_are_saved_with_the_model(field, frame, tmp_path):
    field.save(tmp_path / "field")
    again = bt.MarkovRandomField.load(tmp_path / "field")
    assert again.state_labels == LABELS
    assert again.edges == EDGES
    assert cells(again.predict(frame)) == cells(field.predict(frame))
    assert cells(again.marginal("age")) == cells(field.marginal("age"))
    assert isinstance(again.sample(), type(frame))


def test_dtypes_come_back():
    frame = as_pandas()
    field = field_of(frame)
    assert field.predict(frame).dtypes["age"] == frame.dtypes["age"]
    assert (field.predict(frame).index == frame.index).all()
    assert field.sample(5).dtypes.astype(str).tolist() == [
        "category",
        frame.dtypes["lung"].name,
        "str",
        "float64",
        "bool",
    ]
    polars_frame = as_polars()
    assert field_of(polars_frame).predict(polars_frame).schema == polars_frame.schema


def test_intervals_are_called_by_their_words(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"height": pandas.cut([1.5, 1.6, 1.7, 1.9], [1.0, 1.65, 2.0]), "sex": [*"fmfm"]})
    field = bt.MarkovRandomField().fit(frame)
    assert field.state_labels[0] == ("(1.0, 1.65]", "(1.65, 2.0]")
    whole = field.probability({"height": frame["height"].cat.categories[0]})
    assert field.probability({"height": "(1.0, 1.65]"}) == whole
    field.save(tmp_path / "field")
    assert bt.MarkovRandomField.load(tmp_path / "field").predict(frame).equals(field.predict(frame))


def test_intervals_of_whole_numbers_may_have_holes():
    """Beside NaN pandas lists the cells of such a column in other words than its categories."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": pandas.cut([2, 5, 9, np.nan, 5], [0, 3, 6, 10]), "sex": [*"fmfmf"]})
    field = bt.MarkovRandomField().fit(frame)
    assert field.state_labels[0] == ("(0, 3]", "(3, 6]", "(6, 10]")
    by_code = bt.MarkovRandomField().fit([[0, 0], [1, 1], [2, 0], [-1, 1], [1, 0]])
    np.testing.assert_array_equal(field.weights_, by_code.weights_)
    assert field.predict(frame)["age"].cat.codes.tolist() == by_code.predict(frame_codes(frame))[:, 0].tolist()


def frame_codes(frame: Any) -> np.ndarray:
    return np.stack([frame["age"].cat.codes, (frame["sex"] == "m").astype(int)], axis=1)


def test_large_numbers_beside_holes_are_told_apart():
    frame = Table(place=[1234567.0, 1234568.0, None, 1234567.0], vote=["no", "yes", "yes", "no"])
    field = bt.MarkovRandomField().fit(frame)
    parts = field.predict_marginals(frame)["place"]
    assert list(parts) == ["1234567", "1234568"]
    np.testing.assert_allclose(np.sum(list(parts.values()), axis=0), 1.0)
    assert field.marginals()["state"] == ["1234567", "1234568", "no", "yes"]


def test_minus_one_is_a_state_beside_other_negative_ones_and_else_a_hole_with_a_warning():
    likert = Table(agree=[-2, -1, 0, 1, 2, -1], sex=[*"fmfmfm"])
    assert bt.MarkovRandomField().fit(likert).state_labels[0] == (-2, -1, 0, 1, 2)
    holes = Table(vote=[-1, 0, 1, 1], sex=[*"fmfm"])
    with pytest.warns(UserWarning, match=r"column 'vote' holds -1, .* give cardinalities=\{'vote': \[-1, 0, 1\]\}"):
        assert bt.MarkovRandomField().fit(holes).state_labels[0] == (0, 1)
    declared = bt.MarkovRandomField(cardinalities={"vote": [-1, 0, 1]}).fit(holes)
    assert declared.state_labels[0] == (-1, 0, 1)


@pytest.mark.parametrize("names", [[1, 0], [0, 2], ["a", 0], [("a", 1), ("a", 2)]])
def test_columns_that_are_called_by_other_numbers_than_their_own_are_refused(names):
    """Answers are by number of the column, so that those of column 1 would be called 0."""
    frame = Table({name: [0, 1, 1] for name in names})
    with pytest.raises(ValueError, match=r"names are strings, or 0 to 1 in this order, found .*; X.columns = list"):
        bt.MarkovRandomField().fit(frame)


def test_states_that_are_written_alike_are_refused():
    with pytest.raises(ValueError, match="column 'a' has two states that are written 1"):
        bt.MarkovRandomField(cardinalities={"a": [1, "1"]}).fit(Table(a=[1, "1", 1]))


def test_frames_without_names_are_numbered():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[1, 5], [3, 7], [1, 7], [3, 5]])
    field = bt.MarkovRandomField([(0, 1)]).fit(frame)
    assert field.state_labels == ((1, 3), (5, 7))
    assert not hasattr(field, "feature_names_in_")
    assert field.conditional({0: 3})[1].columns.tolist() == ["5", "7"]
    assert field.predict(frame).equals(frame)


def test_states_that_variables_share():
    frame = Table(a=["x", "y", "x", "z"], b=["z", "y", "y", "z"])
    potts = bt.MarkovRandomField(tables="potts").fit(frame)
    assert potts.state_labels == (("x", "y", "z"),) * 2
    assert potts.log_potentials()[1][0].shape == (3, 3)
    with pytest.raises(ValueError, match="columns with the same states"):
        bt.MarkovRandomField(tables="shared").fit(Table(a=["x", "y"], b=[1, 2]))


def test_numbers_of_states_of_a_frame():
    frame = Table(a=[0, 1, 1], b=[2, 0, None])
    assert bt.MarkovRandomField(cardinalities=4).fit(frame).state_labels == ((0, 1, 2, 3),) * 2
    assert bt.MarkovRandomField(cardinalities=[2, 3]).fit(frame).cardinalities_.tolist() == [2, 3]
    assert bt.MarkovRandomField(cardinalities={"b": [0, 1, 2, 9]}).fit(frame).state_labels == ((0, 1), (0, 1, 2, 9))
    assert bt.MarkovRandomField().fit(Table(a=[None, 0, 5], b=["", "u", "v"])).state_labels == ((0, 5), ("u", "v"))
    declared = bt.MarkovRandomField(cardinalities={"a": [-1, 0, 1]}).fit(Table(a=[-1, 0, 1, None]))
    assert declared.predict(Table(a=[-1]))["a"] == [-1]


def test_warm_start_keeps_the_states():
    frame = survey()
    field = field_of(frame, warm_start=True)
    fewer = Table({name: column[:40] for name, column in frame.items()})
    assert field.fit(fewer).state_labels == LABELS
    with pytest.raises(ValueError, match="column 'lung' has 'new', which is not one of its states: 'ill', 'well'"):
        field.fit(Table({**fewer, "lung": ["new", *fewer["lung"][1:]]}))


def test_margins_are_asked_by_name():
    margins = [bt.Marginal(("sex", "smoker"), [[30, 10], [30, 30]])]
    field = bt.MarkovRandomField().fit_marginals(margins, {"sex": ["f", "m"], "smoker": 2})
    assert field.probability({"smoker": 1}, given={"sex": "m"}) == pytest.approx(0.5)
    np.testing.assert_allclose(field.conditional({"sex": "f"})[1], [0.75, 0.25])
    np.testing.assert_allclose(field.conditional({0: 0})[1], [0.75, 0.25])
    assert field.predict(Table(sex=["f"], smoker=[None])).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lung": ["new", *"x" * (N - 1)]}, "column 'lung' has 'new', which is not one of its states: 'ill', 'well'"),
        ({"z": [1] * N}, "X has a column 'z', which fit did not have"),
        ({"lung": None}, "X has no column 'lung', which fit had"),
        ({"kids": [1.5] * N}, "column 'kids' has 1.5, which is not one of its states: 0.0, 1.0, 2.0"),
    ],
)
def test_what_was_not_there_in_fit_is_named(change, message):
    frame = survey()
    field = field_of(frame)
    changed = Table({name: column for name, column in {**frame, **change}.items() if column is not None})
    with pytest.raises(ValueError, match=message):
        field.predict(changed)


@pytest.mark.parametrize(
    ("frame", "options", "error", "message"),
    [
        (Table(x=["a", 3]), {}, TypeError, "column 'x' mixes strings and whole numbers"),
        (Table(x=[True, "yes"]), {}, TypeError, "column 'x' mixes booleans and strings"),
        (Table(x=[0.5, 1.0]), {}, TypeError, "column 'x' holds 0.5, a measurement; put it into bins, as pandas.cut"),
        (Table(x=[float("inf")]), {}, TypeError, "column 'x' holds inf, a measurement"),
        (Table(x=[[1], [2]]), {}, TypeError, "column 'x' holds values that cannot be states, such as lists"),
        (Table(x=["a", "b"], y=[None, None]), {}, ValueError, "column 'y' has no observed state; leave it out"),
        (Table(x=[]), {}, ValueError, r"at least one sample and one variable, found shape \(0, 1\)"),
        (Table(), {}, ValueError, r"at least one sample and one variable, found shape \(0, 0\)"),
        (Table(x=["a"]), {"cardinalities": {"y": 2}}, ValueError, "cardinalities: there is no column 'y' in X"),
        (
            Table(x=["a"]),
            {"cardinalities": {"x": 2}},
            ValueError,
            "column 'x' has 'a', which is not one of its states: 0, 1",
        ),
        (Table(x=["a"]), {"cardinalities": {"x": ["b", "b"]}}, ValueError, r"cardinalities\['x'\] must be a number or"),
        (Table(x=["a"]), {"edges": [("x", "y")]}, ValueError, "edges: there is no variable 'y'; the variables are x"),
        (
            Table(x=["a"]),
            {"edges": [("x", "x")]},
            ValueError,
            r"edges\[0\] = \(0, 0\) must join two different variables",
        ),
        ([[0, 1]], {"edges": [("x", "y")]}, ValueError, "edges: there is no variable 'x'; the variables are 0, 1"),
        ([[0, 1]], {"cardinalities": {"x": 2}}, ValueError, "maps names of columns, so X must be a data frame"),
    ],
)
def test_bad_frames(frame, options, error, message):
    with pytest.raises(error, match=message):
        bt.MarkovRandomField(**options).fit(frame)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda field: field.marginal("x"), "names: there is no variable 'x'; the variables are age, smoker"),
        (lambda field: field.conditional({"x": 1}), "evidence: there is no variable 'x'"),
        (lambda field: field.conditional({"smoker": "maybe"}), "evidence: 'smoker' has no state 'maybe', only no, yes"),
        (lambda field: field.probability({"lung": "blue"}), "event: 'lung' has no state 'blue', only ill, well"),
        (lambda field: field.probability({"lung": "ill"}, given={"x": 1}), "given: there is no variable 'x'"),
        (lambda field: field.probability({}), "event must map variables to states"),
        (lambda field: field.probability({0: 7}), r"event\[0\] is 7; states of variable 0 are 0 to 2"),
        (lambda field: field.predict([["old", "no"]]), "X has 2 features, but MarkovRandomField is expecting 5"),
    ],
)
def test_bad_questions(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(field_of(survey()))


def test_lazy_frames_are_refused():
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=r"LazyFrame, which is not computed yet; give X.collect\(\)"):
        bt.MarkovRandomField().fit(polars.DataFrame({"x": ["a"]}).lazy())


def test_columns_of_one_name_are_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="X has two columns 'x'"):
        bt.MarkovRandomField().fit(pandas.DataFrame([["a", "b"]], columns=["x", "x"]))


def test_arrow_tables_are_refused():
    arrow = pytest.importorskip("pyarrow")
    with pytest.raises(TypeError, match=r"X is a pyarrow.lib Table; give X.to_pandas\(\)"):
        bt.MarkovRandomField().fit(arrow.table({"x": ["a", "b"]}))


@pytest.mark.parametrize("method", ["pseudolikelihood", "camel0", "cccp", "trw"])
def test_frames_of_words_and_learners_that_are_not_exact(method):
    """What is learned is judged by numbers of states, not by their labels."""
    words, numbers = Table(a=[*"xyxyxxy"], b=[*"uuvvuvu"]), [[0, 0], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1], [1, 0]]
    field = bt.MarkovRandomField(method=method).fit(words)
    np.testing.assert_array_equal(field.weights_, bt.MarkovRandomField(method=method).fit(numbers).weights_)
