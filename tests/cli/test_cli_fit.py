"""bactrian fit and query: a table of rows in, answers out."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.cli import main
from bactrian.frames import Table
from bactrian.runs.field_files import Question, read_table

ROWS = """age,smoker,lung,kids
young,yes,ill,0
old,yes,ill,2
old,no,well,1
young,no,well,0
old,?,ill,
,yes,well,2
young,no,well,NA

old,yes,ill,1
"""


def call(*arguments: Any) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "survey.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture
def run(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert call("fit", table, "-o", tmp_path / "run") == 0
    assert capsys.readouterr().out == "exact: converged\n8 rows of 4 columns, 4 cells missing\n"
    return tmp_path / "run"


def answer(run: Path, question: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    assert call("query", run, question) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_intervals_stand_behind_the_numbers(run, table, tmp_path, capsys):
    field = bt.MarkovRandomField.load(run / "field.safetensors")
    assert call("query", run, "P(lung=ill | smoker=yes)", "--interval") == 0
    event, given = {"lung": "ill"}, {"smoker": "yes"}
    expected = [field.probability(event, given), *field.confint(event, given)]
    np.testing.assert_allclose([float(n) for n in capsys.readouterr().out.split()], expected, rtol=1e-5)
    assert call("query", run, "P(lung | smoker=yes)", "--interval") == 0
    (ill, well) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose([float(ill[name]) for name in ("probability", "low", "high")], expected, rtol=1e-5)
    assert float(well["low"]) == pytest.approx(1 - float(ill["high"]), abs=1e-5)
    assert "How sure the field is" in (run / "report.html").read_text()
    assert call("fit", table, "-o", tmp_path / "bare", "--no-intervals") == 0
    assert "How sure the field is" not in (tmp_path / "bare" / "report.html").read_text()
    assert call("query", tmp_path / "bare", "P(lung=ill)", "--interval") == 2
    assert "need the rows that the field was fitted to" in capsys.readouterr().err


def test_questions(run, capsys):
    field = bt.MarkovRandomField.load(run / "field.safetensors")
    given = answer(run, "P(lung | smoker=yes)", capsys)
    assert [row["lung"] for row in given] == ["ill", "well"]
    assert float(given[0]["probability"]) == pytest.approx(
        field.probability({"lung": "ill"}, given={"smoker": "yes"}), rel=1e-5
    )
    joint = answer(run, "P(age, smoker)", capsys)
    assert [(row["age"], row["smoker"]) for row in joint][:2] == [("old", "no"), ("old", "yes")]
    assert sum(float(row["probability"]) for row in joint) == pytest.approx(1.0, abs=1e-5)
    mixed = answer(run, " p( kids , lung = ill | smoker=yes, age=old )", capsys)
    whole = field.probability({"lung": "ill"}, given={"smoker": "yes", "age": "old"})
    assert sum(float(row["probability"]) for row in mixed) == pytest.approx(whole, rel=1e-5)
    cell = field.probability({"lung": "ill", "kids": 2}, given={"smoker": "yes", "age": "old"})
    assert float(mixed[2]["probability"]) == pytest.approx(cell, rel=1e-5)
    assert call("query", run, "P(lung=ill | smoker=yes, age=old)") == 0
    assert float(capsys.readouterr().out) == pytest.approx(whole, rel=1e-5)
    assert call("query", run, "P(lung=ill, lung=ill | lung=well)") == 2
    assert [float(row["probability"]) for row in answer(run, "P(kids, lung=ill | lung=well)", capsys)] == [0.0] * 3


def test_rows_and_a_page(run, capsys):
    assert call("sample", run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[0] == "age,smoker,lung,kids"
    page = (run / "report.html").read_text()
    for word in ("What goes together", "smoker=no, lung=well", "young", "converged"):
        assert word in page


@pytest.mark.parametrize("method", ["cccp", "convex", "pseudolikelihood"])
def test_words_are_fitted_by_other_learners_too(method, table, tmp_path, capsys):
    whole = [line for line in ROWS.splitlines() if line and not set(line.split(",")) & {"", "?", "NA"}]
    table.write_text("\n".join([*whole, *whole[1:]]) + "\n")
    assert call("fit", table, "-o", tmp_path / "run", "--method", method) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith(f"{method}: converged\n10 rows of 4 columns")


def test_edges_and_hidden_variables(table, tmp_path, capsys):
    options = ("--hidden", "kind=2", "--starts", "2", "--edge", "kind,age", "--edge", "lung , kind")
    assert call("fit", table, "-o", tmp_path / "run", *options) == 0
    field = bt.MarkovRandomField.load(tmp_path / "run" / "field.safetensors")
    assert field.edges_.tolist() == [["kind", "age"], ["lung", "kind"]]
    assert field.starts_.size == 2
    assert "objectives" in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()
    assert [row["kind"] for row in answer(tmp_path / "run", "P(kind | age=old)", capsys)] == ["0", "1"]
    assert call("sample", tmp_path / "run", "-n", 3) == 0
    assert capsys.readouterr().out.splitlines()[0] == "age,smoker,lung,kids,kind"


def test_margins_are_asked_too(tmp_path, capsys):
    margins = tmp_path / "margins.csv"
    margins.write_text("sex,vote,count\nf,yes,30\nf,no,10\nm,yes,20\nm,no,40\n")
    assert call("rake", margins, "-o", tmp_path / "run") == 0
    capsys.readouterr()
    assert [row["probability"] for row in answer(tmp_path / "run", "P(vote | sex=f)", capsys)] == ["0.75", "0.25"]
    assert call("query", tmp_path / "run", "P(sex=m)") == 0
    assert float(capsys.readouterr().out) == pytest.approx(0.6)


def test_tables_as_files_have_them(table, tmp_path):
    assert read_table(table) == Table(
        age=["young", "old", "old", "young", "old", None, "young", "old"],
        smoker=["yes", "yes", "no", "no", None, "yes", "no", "yes"],
        lung=["ill", "ill", "well", "well", "ill", "well", "well", "ill"],
        kids=[0, 2, 1, 0, None, 2, None, 1],
    )
    tabs = tmp_path / "tabs.tsv"
    tabs.write_text("\ufeffa\tb\n1.0\tx, y\nNaN\tz\n", encoding="utf-8")
    assert read_table(tabs) == Table(a=[1.0, None], b=["x, y", "z"])


def test_codes_that_begin_with_0_and_long_numbers_stay_as_they_are_written(table):
    table.write_text("county,person,year\n01,12345678901234567890,1999\n1,12345678901234567891,-3\n010,?,0\n")
    assert read_table(table) == Table(
        county=["01", "1", "010"], person=["12345678901234567890", "12345678901234567891", None], year=[1999, -3, 0]
    )


def test_states_that_are_large_numbers_are_written_whole(table, tmp_path, capsys):
    table.write_text("place,vote\n1234567.0,yes\n1234568.0,no\n?,no\n")
    assert call("fit", table, "-o", tmp_path / "run") == 0
    capsys.readouterr()
    rows = answer(tmp_path / "run", "P(place | vote=no)", capsys)
    assert [row["place"] for row in rows] == ["1234567", "1234568"]
    assert call("query", tmp_path / "run", "P(place=1234568 | vote=no)") == 0
    assert capsys.readouterr().out == f"{rows[1]['probability']}\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", (), "expected a first line with a different name for each column"),
        ("a,a\n1,2\n", (), "expected a first line with a different name"),
        ("a,b\n", (), "there are no rows"),
        ("a,b\n1,2\n1\n", (), "survey.csv:3: expected 2 cells, found 1"),
        ("a,b\n1,0.5\n2,1.5\n", (), "column 'b' holds"),
        ("a,b\n1,?\n2,?\n", (), "column 'b' has no observed state"),
        ('a,b\n1,"yes\n2,no\n', (), "survey.csv:3: unexpected end of data"),
        ('a,b\n1,"' + 200_000 * "x" + '"\n2,no\n', (), "survey.csv:2: field larger than field limit"),
        (ROWS, ("--edge", "age"), "--edge must be two columns such as age,smoker, found 'age'"),
        (ROWS, ("--edge", "age,x"), "edges: there is no variable 'x'"),
        (ROWS, ("--hidden", "c"), "--hidden must be a name and a number of states such as party=3, found 'c'"),
        (ROWS, ("--method", "magic"), "magic"),
    ],
)
def test_bad_tables(text, options, message, table, tmp_path, capsys):
    table.write_text(text)
    assert call("fit", table, "-o", tmp_path / "run", *options) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("lung", "expected a question such as P(lung | smoker=yes), found 'lung'"),
        ("P(lung | smoker=yes | age=old)", "expected a question"),
        ("P()", "'' is not a variable"),
        ("P(lung | smoker)", "'smoker' behind the bar needs a state"),
        ("P(lung=)", "'lung=' is not a variable"),
        ("P(x)", "there is no variable 'x'; the variables are age, smoker, lung, kids"),
        ("P(lung | smoker=maybe)", "given: 'smoker' has no state 'maybe', only no, yes"),
        ("P(kids=7)", "event: 'kids' has no state '7', only 0, 1, 2"),
    ],
)
def test_bad_questions(question, message, run, capsys):
    assert call("query", run, question) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_folder_that_is_none(tmp_path, capsys):
    assert call("query", tmp_path, "P(x)") == 2
    assert "is not a folder of bactrian fit" in capsys.readouterr().err


def test_marginals_given_what_was_seen():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (80, 4))
    field = bt.MarkovRandomField([(0, 1), (1, 2), (2, 3), (0, 3)]).fit(X)
    joint = field.marginal((0, 1, 2, 3))
    expected = joint[:, 2].sum(axis=-1) / joint[:, 2].sum()
    np.testing.assert_allclose(field.marginal((0, 2), given={1: 2}), expected, atol=1e-10)
    field.memory_budget = 0  # by conditioning, approximately
    field.inference = "double-loop"
    np.testing.assert_allclose(field.marginal((0, 2), given={1: 2}), expected, atol=0.01)
    assert Question.of("P(a=1|b=2)") == Question((), {"a": "1"}, {"b": "2"})


def test_minus_one_in_a_file_is_a_state(tmp_path, capsys):
    """What is missing in a file is an empty cell, ?, NA or NaN, and nothing else."""
    path = tmp_path / "votes.csv"
    path.write_text("vote,sex,spin\n-1,f,-1\n0,m,1\n1,f,1\n-1,m,-1\n?,f,1\n")
    assert call("fit", path, "-o", tmp_path / "run") == 0
    printed = capsys.readouterr()
    assert printed.out == "exact: converged\n5 rows of 3 columns, 1 cells missing\n"
    assert not printed.err
    given = answer(tmp_path / "run", "P(vote)", capsys)
    assert [row["vote"] for row in given] == ["-1", "0", "1"]
    rows = bt.MarkovRandomField(cardinalities=[3, 2, 2]).fit([[0, 0, 0], [1, 1, 1], [2, 0, 1], [0, 1, 0], [-1, 0, 1]])
    assert [float(row["probability"]) for row in given] == pytest.approx(rows.marginals()[0], abs=1e-6)


def test_edges_are_selected(table, tmp_path, capsys):
    lines = [f"{i % 2},{i % 2},{i // 7 % 2}" for i in range(60)]
    table.write_text("\n".join(["a,b,c", *lines]) + "\n")
    assert call("fit", table, "-o", tmp_path / "chosen", "--edges", "select") == 0
    assert capsys.readouterr().out.startswith("select: 1 of 3 pairs, by ebic")
    assert bt.MarkovRandomField.load(tmp_path / "chosen" / "field.safetensors").edges_.tolist() == [["a", "b"]]
    page = (tmp_path / "chosen" / "report.html").read_text()
    assert page.count("<line class=") == 1  # the picture of the network
    assert re.search(r'<line class="above"[^>]*stroke-width="6.5"><title>a, b: ', page)
    assert call("fit", table, "-o", tmp_path / "both", "--edge", "a,c", "--edges", "select") == 0
    assert "2 of 3 pairs, 1 of them given" in capsys.readouterr().out
    assert call("fit", table, "-o", tmp_path / "no", "--edge", "a,c", "--edges", "tree") == 2
    assert "--edge goes alone or with --edges select" in capsys.readouterr().err
