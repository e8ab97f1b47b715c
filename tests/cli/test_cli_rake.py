"""bactrian rake and sample: tables in, a field, a page and rows out."""

import csv
import json

import numpy as np
import pytest

import bactrian as bt
from bactrian.cli import main
from bactrian.margins.files import read_margins

MARGINS = """sex,age,vote,count
f,,,52
m,,,48
,young,yes,10
,young,no,20
,old,yes,40
,old,no,30
"""


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def margins(tmp_path):
    path = tmp_path / "margins.csv"
    path.write_text(MARGINS)
    return path


def test_rows_have_the_margins_of_the_file(margins, tmp_path, capsys):
    assert call("rake", margins, "-o", tmp_path / "run") == 0
    assert "exact: converged" in capsys.readouterr().out
    assert call("sample", tmp_path / "run", "-o", tmp_path / "rows.csv") == 0
    with (tmp_path / "rows.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 100
    assert sum(row["sex"] == "f" for row in rows) == 52
    assert sum((row["age"], row["vote"]) == ("old", "yes") for row in rows) == 40
    page = (tmp_path / "run" / "report.html").read_text()
    for word in ("Margins, fitted against given", "age, vote", "young", "exact"):
        assert word in page
    assert call("sample", tmp_path / "run", "-n", 7, "--independent", "--seed", 3) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_a_seed_table_and_noise(margins, tmp_path):
    seed = tmp_path / "seed.csv"
    seed.write_text("sex,vote,count\nf,yes,1\nf,no,3\nm,yes,2\nm,no,1\n")
    assert call("rake", margins, "--base", seed, "-o", tmp_path / "run") == 0
    field = bt.MarkovRandomField.load(tmp_path / "run" / "field.safetensors")
    joint = np.asarray(field.marginal(("sex", "vote")))
    assert joint[0, 0] * joint[1, 1] / (joint[0, 1] * joint[1, 0]) == pytest.approx(1 / 6, rel=1e-6)  # of the seed
    noisy = tmp_path / "noisy.csv"
    noisy.write_text("a,b,count,stddev\n0,,52,2\n1,,47,2\n0,x,30,3\n0,y,20,3\n1,x,10,3\n1,y,-1,3\n")
    assert call("rake", noisy, "-o", tmp_path / "run2") == 0


def test_json_has_all_arguments(tmp_path):
    path = tmp_path / "margins.json"
    document = {
        "margins": [{"names": ["age"], "table": [25, 75]}, {"names": ["married"], "table": [60, 40]}],
        "variables": {"age": ["child", "adult"], "married": ["no", "yes"]},
        "impossible": [{"age": "child", "married": "yes"}],
    }
    path.write_text(json.dumps(document))
    assert call("rake", path, "-o", tmp_path / "run") == 0
    field = bt.MarkovRandomField.load(tmp_path / "run" / "field.safetensors")
    np.testing.assert_allclose(field.marginal(("age", "married")), [[0.25, 0.0], [0.35, 0.4]], atol=1e-8)
    assert read_margins(path)["cardinalities"] == document["variables"]


def test_contradictions_are_said_and_the_nearest_answer_is_kept(tmp_path, capsys):
    path = tmp_path / "margins.csv"
    path.write_text("a,b,count\nx,,41\ny,,59\nx,0,30\nx,1,10\ny,0,30\ny,1,30\n")
    assert call("rake", path, "-o", tmp_path / "run") == 0
    said = capsys.readouterr()
    assert "disagree by 1 on a=x: 41 against 40" in said.out
    assert "disagree by 1 on a=x" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\nx,1\n", "expected a line of names first: variables, and 'count'"),
        ("a,count\n", "there are no cells"),
        ("a,count\nx,one\n", ":2: count must be a number, found 'one'"),
        ("a,count\nx,\n", ":2: count is empty"),
        ("a,count\n,3\n", ":2: no variable is filled in"),
        ("a,count\nx,3\nx,4\n", ":3: this cell of a was given before"),
        ("a,b,count\nx,,1,234\ny,,2,345\n", ":2: expected 3 cells, found 4"),
        ("a,a,count\nx,x,3\ny,y,4\n", "expected a first line with a different name for each column"),
        ('a,count\nx,"3\ny,4\n', ":3: unexpected end of data"),
        ("a,count\nx,3\ny,-4\n", "the margin of a: table is exact and has a negative entry"),
        ("a,count,stddev\nx,3,1\ny,4,\n", ":3: either all cells of a have a stddev or none has"),
        ("a,b,count,stddev\nx,0,3,1\ny,1,4,1\n", "noisy margins must list all cells"),
        ("a,b,count\nx,,3\ny,,4\n,0,8\n", "margins[1] is exact and adds up to 8, but margins[0] to 7"),
    ],
)
def test_bad_files_leave_nothing(text, message, tmp_path, capsys):
    path = tmp_path / "margins.csv"
    path.write_text(text)
    assert call("rake", path, "-o", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_spaces_and_empty_columns_at_the_end_do_not_matter(tmp_path):
    plain, padded = tmp_path / "plain.csv", tmp_path / "padded.csv"
    plain.write_text("a,b,count\nx,,3\ny,,4\nx,u,1\nx,v,2\ny,u,2\ny,v,2\n")
    padded.write_text("a, b,count,,\nx ,,3,,\n y,,4\n\nx,u,1\nx, v,2,\ny,u ,2\ny,v, 2\n")
    found, expected = read_margins(padded), read_margins(plain)
    assert repr(found) == repr(expected)
    assert [m.table.tolist() for m in found["margins"]] == [m.table.tolist() for m in expected["margins"]]


def test_bad_json_and_folders(tmp_path, capsys, margins):
    path = tmp_path / "margins.json"
    for text, message in (
        ("{", "not valid JSON"),
        ("[]", 'expected an object with "margins"'),
        ('{"margins": [], "sums": 3}', "'sums' is not known"),
        ('{"margins": [{"names": ["a"]}]}', 'margins[0] must be an object with "names", "table"'),
    ):
        path.write_text(text)
        assert call("rake", path, "-o", tmp_path / "run") == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert call("sample", tmp_path / "nowhere") == 2
    assert call("rake", margins, "-o", tmp_path / "run") == 0
    assert call("rake", margins, "-o", tmp_path / "run") == 2  # it is there already
