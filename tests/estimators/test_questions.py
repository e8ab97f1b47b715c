"""What fields are asked and answer with: sets of states, columns by name, cells that are missing, labelled margins."""

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bactrian as bt
from bactrian.frames import Table
from bactrian.runs.field_files import Question


def survey(n=400):
    rng = np.random.default_rng(0)
    edu = rng.integers(9, 15, n)
    income = np.where(rng.random(n) < (edu - 8) / 7, "high", "low")
    sex = np.where(rng.random(n) < 0.3 + 0.4 * (income == "high"), "M", "F")
    return pandas.DataFrame({"edu": edu, "income": income, "sex": sex})


@pytest.fixture(scope="module")
def field():
    return bt.MarkovRandomField().fit(survey())


def table_of(field):
    """Probabilities of all rows, by (edu, income, sex), as the field scores them."""
    rows = pandas.DataFrame(
        [(edu, income, sex) for edu in range(9, 15) for income in ("high", "low") for sex in ("F", "M")],
        columns=["edu", "income", "sex"],
    )
    return rows.assign(p=np.exp(field.score_samples(rows)))


def test_probabilities_of_sets_of_states(field):
    every = table_of(field)
    high, edu, women = every.income == "high", every.edu.isin([13, 14]), every.sex == "F"
    for several in ([13, 14], {13, 14}, (14, 13, 14), range(13, 15), np.array([13, 14])):
        assert field.probability({"edu": several}) == pytest.approx(every.p[edu].sum(), abs=1e-9)
    found = field.probability({"edu": [13, 14], "income": "high"}, given={"sex": ["F"]})
    assert found == pytest.approx(every.p[edu & high & women].sum() / every.p[women].sum(), abs=1e-9)
    found = field.probability({"income": "high"}, given={"edu": [13, 14], "sex": "F"})
    assert found == pytest.approx(every.p[edu & high & women].sum() / every.p[edu & women].sum(), abs=1e-9)
    found = field.probability({"edu": [9, 13]}, given={"edu": [13, 14]})
    assert found == pytest.approx(every.p[every.edu == 13].sum() / every.p[edu].sum(), abs=1e-9)
    table = field.marginal("income", given={"edu": [13, 14]})
    assert table["probability"].tolist() == pytest.approx(
        [every.p[edu & (every.income == state)].sum() / every.p[edu].sum() for state in ("high", "low")], abs=1e-9
    )
    with pytest.raises(ValueError, match=r"event\['edu'\] has no states"):
        field.probability({"edu": []})
    with pytest.raises(ValueError, match="event: 'edu' has no state 99"):
        field.probability({"edu": [13, 99]})


def test_questions_with_sets(field):
    asked = Question.of("P(edu in {13, 14}, income=high | sex=F)")
    assert asked.answer(field) == pytest.approx(field.probability({"edu": [13, 14], "income": "high"}, {"sex": "F"}))
    table = Question.of("P(income | edu in {13,14})").answer(field)
    assert [float(p) for p in table["probability"]] == pytest.approx(
        [field.probability({"income": state}, {"edu": [13, 14]}) for state in ("high", "low")], abs=1e-5
    )
    for wrong in ("P(edu in {} | sex=F)", "P(edu in {13, | sex=F)"):
        with pytest.raises(ValueError, match="expected a question"):
            Question.of(wrong)


def test_one_shape_for_all_marginals(field):
    found = field.conditional({"edu": 14})
    row = field.predict_marginals(pandas.DataFrame({"edu": [14], "income": [None], "sex": [None]}))
    assert set(found) == {"income", "sex"}
    for name, table in found.items():
        pandas.testing.assert_frame_equal(table, row[name], check_exact=False, atol=1e-9)
    assert found["income"]["high"].item() == pytest.approx(field.probability({"income": "high"}, {"edu": 14}))


def test_columns_in_another_order(field):
    rows = survey(20)
    turned = rows[["sex", "edu", "income"]]
    np.testing.assert_array_equal(field.score_samples(turned), field.score_samples(rows))
    assert field.predict(turned.assign(sex=None)).columns.tolist() == ["edu", "income", "sex"]
    with pytest.raises(ValueError, match="X has no column 'sex', which fit had"):
        field.score(rows[["edu", "income"]])


def test_missing_cells_have_the_probability_of_what_is_known(field):
    rows = survey(6)
    rows.loc[0, "income"] = None
    rows["edu"] = rows["edu"].astype(object)
    rows.loc[1, "edu"] = None
    every = table_of(field)
    expected = [
        np.log(every.p[np.all([(every[n] == v) | pandas.isna(v) for n, v in row.items()], axis=0)].sum())
        for _, row in rows.iterrows()
    ]
    np.testing.assert_allclose(field.score_samples(rows), expected, atol=1e-9)
    assert field.score(rows) == pytest.approx(np.mean(expected))


# --- margins ---

COUNTS = {("F", "no"): 30, ("F", "yes"): 20, ("M", "no"): 10, ("M", "yes"): 40}
LONG = Table(
    sex=[sex for sex, _ in COUNTS], smoker=[smoker for _, smoker in COUNTS], count=[float(n) for n in COUNTS.values()]
)
BOTH = ("sex", "smoker")


@pytest.mark.parametrize("table", [COUNTS, LONG, pandas.DataFrame(LONG), dict(reversed(COUNTS.items()))])
def test_margins_from_dicts_and_from_rows(table):
    field = bt.MarkovRandomField().fit_marginals([bt.Marginal(BOTH, table)])
    for (sex, smoker), count in COUNTS.items():
        assert field.probability({"sex": sex, "smoker": smoker}) == pytest.approx(count / 100)
    answer = field.marginal(BOTH)
    assert (answer.index.name, answer.columns.name, answer.loc["M", "yes"]) == (*BOTH, pytest.approx(0.4))
    again = bt.MarkovRandomField().fit_marginals([bt.Marginal(BOTH, answer)])
    assert again.probability({"sex": "M", "smoker": "no"}) == pytest.approx(0.1)


def test_cells_that_are_not_listed_are_empty():
    margins = [bt.Marginal("sex", {"F": 50, "M": 50}), bt.Marginal(BOTH, {("F", "yes"): 50, ("M", "no"): 50})]
    field = bt.MarkovRandomField().fit_marginals(margins, {"sex": ["F", "M"], "smoker": ["never", "no", "yes"]})
    assert field.probability({"smoker": "never"}) == 0.0
    assert field.probability({"smoker": "yes"}, {"sex": "F"}) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({("F", "no"): 1, "M": 2}, r"must have a state of each of \('sex', 'smoker'\) in every cell, found 'M'"),
        (Table(sex=["F", "F"], smoker=["no", "no"], count=[1, 2]), r"has the cell \('F', 'no'\) twice"),
        (Table(sex=["F"], smoker=["no"], n=[1], m=[2]), r"must have one column of counts .*, found \['n', 'm'\]"),
        (
            Table(sex=["F", "M"], smoker=["no", "yes"], count=[1.0, 2.0], stddev=[1.0, 1.0]),
            "is noisy and has 2 of 4 cells; expected all",
        ),
    ],
)
def test_tables_by_cell_that_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        bt.Marginal(BOTH, table)


def test_noise_by_cell():
    rows = Table(**LONG, stddev=[1.0, 2.0, 3.0, 4.0])
    assert bt.Marginal(BOTH, rows).stddev.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_labelled_margins_give_labels_back(tmp_path):
    margins = [bt.Marginal("sex", [40, 60]), bt.Marginal(BOTH, [[30, 10], [30, 30]])]
    field = bt.MarkovRandomField().fit_marginals(margins, {"sex": ["f", "m"], "smoker": ["no", "yes"]})
    field.save(tmp_path / "field.safetensors")
    for of in (field, bt.MarkovRandomField.load(tmp_path / "field.safetensors")):
        drawn = of.sample(20, seed=1)
        assert set(drawn["sex"]) <= {"f", "m"}
        assert of.marginal("sex").to_dict() == pytest.approx({"f": 0.4, "m": 0.6})
        assert of.marginal(("smoker", "sex"))["f"]["yes"] == pytest.approx(0.1)
        assert of.score(drawn) == pytest.approx(of.score(drawn[["smoker", "sex"]]))
    frame = bt.MarkovRandomField().fit(pandas.DataFrame({"sex": ["f", "m"], "smoker": ["no", "yes"], "age": [1, 2]}))
    again = bt.MarkovRandomField().fit_marginals(
        [bt.Marginal(frame.variable_names, frame.marginal(frame.variable_names))]
    )
    cells = again.marginal(frame.variable_names)  # three axes: an array
    states = [again.states[name] for name in frame.variable_names]
    place = states[0].index("f"), states[1].index("no"), list(states[2]).index(1)
    expected = frame.probability({"sex": "f", "smoker": "no", "age": 1})
    assert cells.shape == (2, 2, 2)
    assert cells[place] == pytest.approx(expected)
    assert again.probability({"sex": "f", "smoker": "no", "age": 1}) == pytest.approx(expected)
    zone = bt.MarkovRandomField().fit_zones([margins], {"sex": ["f", "m"], "smoker": ["no", "yes"]})[0]
    assert set(zone.sample(5)["smoker"]) <= {"no", "yes"}


@settings(max_examples=20, deadline=None)
@given(st.floats(0.97, 1.03), st.booleans())
def test_totals_that_differ_are_scaled_where_asked(factor, told):
    margins = [bt.Marginal("sex", [40, 60]), bt.Marginal("smoker", np.array([70, 30]) * factor)]
    total = 50.0 if told else None
    if abs(factor - 1) > 1e-6 or told:
        with pytest.raises(ValueError, match="use rescale=True"):
            bt.MarkovRandomField().fit_marginals(margins, total=total)
    field = bt.MarkovRandomField().fit_marginals(margins, total=total, rescale=True)
    assert field.total_ == (total or 100.0)
    np.testing.assert_allclose(field.marginal("smoker"), [0.7, 0.3], atol=1e-6)


def test_what_is_worth_a_word():
    with pytest.warns(UserWarning, match="cardinalities: no margin has 'age', whose states will be equally likely"):
        field = bt.MarkovRandomField().fit_marginals([bt.Marginal("sex", [40, 60])], {"sex": 2, "age": 4})
    np.testing.assert_allclose(field.marginal("age"), 0.25)
    times = pandas.DataFrame({"t": [f"2024-01-01 10:{m:02d}" for m in range(40)], "a": [0, 1] * 20})
    with pytest.warns(UserWarning, match="X: column 't' has 40 states in 40 rows: leave out .*, and put times"):
        bt.MarkovRandomField().fit(times)
    with pytest.raises(TypeError, match="put times into bins"):
        bt.MarkovRandomField().fit(times.assign(t=pandas.to_datetime(times["t"])))


# --- draws given what is known ---


def test_draws_given_states(field):
    drawn = field.sample(4000, seed=1, given={"income": "high"})
    assert set(drawn["income"]) == {"high"}
    expected = field.conditional({"income": "high"})["sex"]["M"].item()
    assert (drawn["sex"] == "M").mean() == pytest.approx(expected, abs=0.03)
    with pytest.raises(ValueError, match="given needs independent draws"):
        field.sample(10, given={"income": "high"}, rounded=True)


@pytest.mark.parametrize("memory_budget", [2**28, 0])
def test_imputations_have_the_conditional_distribution(memory_budget):
    X = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 0]])
    field = bt.MarkovRandomField(memory_budget=memory_budget).fit(X)
    rows = np.array([[0, -1, 1], [1, 1, -1], [0, -1, 1], [0, 0, 0], [-1, -1, -1]])
    tables = np.array(field.impute(rows, 600, seed=3))
    assert tables.shape == (600, 5, 3)
    np.testing.assert_array_equal(tables[:, rows >= 0], np.tile(rows[rows >= 0], (600, 1)))
    for v, found in enumerate(field.predict_marginals(rows)):
        np.testing.assert_allclose((tables[:, :, v] == 1).mean(axis=0), found[:, 1], atol=0.09)
    np.testing.assert_array_equal(tables, field.impute(rows, 600, seed=3))
    assert (tables[:, 0, 1] != tables[:, 2, 1]).any()


def test_imputed_frames_are_like_the_one_given(field):
    rows = survey(5)
    rows.loc[[1, 3], "income"] = None
    for table in field.impute(rows, 2):
        assert table.columns.tolist() == rows.columns.tolist()
        assert set(table["income"]) <= {"high", "low"}
