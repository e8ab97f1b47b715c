"""UAI files: round trips, both layouts of evidence, every malformation, and the competition's own files."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bactrian.inference import uai
from bactrian.inference.uai import UaiError, UaiModel

DATA = os.environ.get("BACTRIAN_DATA")
REAL = sorted(Path(DATA, "uai").glob("*.uai")) if DATA else []
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
entries = st.floats(0, allow_nan=False, allow_infinity=False)

SMALL = """MARKOV
3
2 2 3
3
1 0
2 0 1
2 1 2

2
 0.436 0.564

4
 0.128 0.872
 0.920 0.080

6
 0.210 0.333 0.457
 0.811 0.000 0.189
"""


@st.composite
def models(draw: st.DrawFn) -> UaiModel:
    n = draw(st.integers(0, 5))
    cards = draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    scope = st.lists(st.integers(0, n - 1), max_size=3, unique=True) if n else st.just([])
    scopes = [tuple(s) for s in draw(st.lists(scope, max_size=6))]
    tables = []
    for s in scopes:
        shape = tuple(cards[v] for v in s)
        size = math.prod(shape)
        tables.append(np.array(draw(st.lists(entries, min_size=size, max_size=size))).reshape(shape))
    return UaiModel(np.array(cards, np.int64), scopes, tables, draw(st.sampled_from(["MARKOV", "BAYES"])))


def same(a: UaiModel, b: UaiModel) -> bool:
    return (
        a.kind == b.kind
        and a.scopes == b.scopes
        and np.array_equal(a.cardinalities, b.cardinalities)
        and all(x.shape == y.shape and np.array_equal(x, y) for x, y in zip(a.tables, b.tables, strict=True))
    )


def put(folder: Path, text: str) -> Path:
    path = folder / "case.uai"
    path.write_bytes(text.encode())
    return path


@relaxed
@given(models())
def test_model_round_trip(tmp_path: Path, model: UaiModel) -> None:
    uai.write_model(tmp_path / "m.uai", model)
    assert same(uai.read_model(tmp_path / "m.uai"), model)


@relaxed
@given(st.dictionaries(st.integers(0, 10**6), st.integers(0, 50), max_size=9), st.booleans())
def test_evidence_round_trip(tmp_path: Path, evidence: dict[int, int], counted: bool) -> None:
    path = tmp_path / "e.evid"
    uai.write_evidence(path, evidence)
    if counted:
        path.write_text("1\n" + path.read_text())
    assert uai.read_evidence(path) == evidence


@relaxed
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), max_size=6), st.booleans())
def test_marginals_round_trip(tmp_path: Path, marginals: list[list[float]], counted: bool) -> None:
    path = tmp_path / "m.MAR"
    uai.write_marginals(path, marginals)
    if counted:
        path.write_text(path.read_text().replace("MAR\n", "MAR\n1\n"))
    if counted and marginals == []:
        return  # "1 0" cannot be told from one variable with no states
    assert [m.tolist() for m in uai.read_marginals(path)] == marginals


@relaxed
@given(st.floats(-1e300, 1e300) | st.just(-math.inf), st.booleans())
def test_log_partition_round_trip(tmp_path: Path, log_partition: float, counted: bool) -> None:
    path = tmp_path / "z.PR"
    uai.write_log_partition(path, log_partition)
    if counted:
        path.write_text(path.read_text().replace("PR\n", "PR\n1\n"))
    assert uai.read_log_partition(path) == pytest.approx(log_partition, rel=1e-15, abs=1e-300)


def test_tables_have_the_last_variable_fastest(tmp_path: Path) -> None:
    model = uai.read_model(put(tmp_path, SMALL))
    assert model.kind == "MARKOV"
    assert model.cardinalities.tolist() == [2, 2, 3]
    assert model.scopes == [(0,), (0, 1), (1, 2)]
    assert model.tables[2].tolist() == [[0.21, 0.333, 0.457], [0.811, 0, 0.189]]
    assert model.tables[1][1, 0] == 0.92


def test_layout_is_free(tmp_path: Path) -> None:
    model = uai.read_model(put(tmp_path, SMALL))
    for text in (
        SMALL.replace("\n", " "),
        SMALL.replace(" ", "\n\n\t"),
        SMALL.replace("\n", "\r\n"),
        SMALL.replace("\n", "\r"),
        "\ufeff" + SMALL,
        SMALL.replace("\n", " # caf\u00e9, 7 tables_of words\n"),
        SMALL.replace("0.436", "4.36e-1").replace("0.000", "+0"),
    ):
        assert same(uai.read_model(put(tmp_path, text)), model)


def test_results_as_the_competition_has_them(tmp_path: Path) -> None:
    uai.write_log_partition(tmp_path / "z", 3 * math.log(10))
    assert (tmp_path / "z").read_text() == "PR\n3.0\n"
    uai.write_marginals(tmp_path / "m", [[0.25, 0.75], [1]])
    assert (tmp_path / "m").read_text() == "MAR\n2 2 0.25 0.75 1 1.0\n"
    uai.write_assignment(tmp_path / "a", np.array([2, 0, 1]))
    assert (tmp_path / "a").read_text() == "MPE\n3 2 0 1\n"
    uai.write_assignment(tmp_path / "a", [])
    assert (tmp_path / "a").read_text() == "MPE\n0\n"
    uai.write_evidence(tmp_path / "e", {7: 1, 3: 0})
    assert (tmp_path / "e").read_text() == "2 3 0 7 1\n"


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("MARKOV", "MARKOVIAN", 1, "header: expected MARKOV or BAYES, found 'MARKOVIAN'"),
        ("MARKOV", "\n\n{}", 3, "header: expected MARKOV or BAYES, found '{}'"),
        (SMALL, "", 1, "header: expected a word, found the end of the file"),
        ("MARKOV\n3\n", "MARKOV\nthree\n", 2, "number of variables: .* at least 0, found 'three'"),
        ("MARKOV\n3\n", "MARKOV\n3.0\n", 2, "number of variables: .* at least 0, found '3.0'"),
        ("MARKOV\n3\n", "MARKOV\n1_0\n", 2, "number of variables: .* at least 0, found '1_0'"),
        ("MARKOV\n3\n", "MARKOV\n\u0663\n", 2, "number of variables: .*, found '\u0663'"),
        ("MARKOV\n3\n", "MARKOV\n9999999999\n", 2, "number of variables: .* below 2147483648, found '9999999999'"),
        ("MARKOV\n3\n", "MARKOV\n" + "9" * 5000 + "\n", 2, r"number of variables: .*, found '9{40}\.\.\.'"),
        ("2 2 3", "2 0 3", 3, "cardinality of variable 1: expected an integer of at least 1, found '0'"),
        ("2 2 3", "2 -2 3", 3, "cardinality of variable 1: expected an integer of at least 1, found '-2'"),
        ("2 0 1", "2 0 3", 6, "scope 1: expected an integer of at least 0 and below 3, found '3'"),
        ("2 0 1", "2 0 -1", 6, "scope 1: expected an integer of at least 0 and below 3, found '-1'"),
        ("2 0 1", "2 1 1", 6, "scope 1: expected distinct variables, found 1 twice"),
        ("\n4\n", "\n5\n", 12, "table 1: expected 4 entries, found a count of 5"),
        ("0.564", "", 13, "number of entries of table 1: .* found '0.128'"),
        ("0.564", "-0.564", 10, "table 0: expected a finite number of at least 0, found '-0.564'"),
        ("0.564", "nan", 10, "table 0: expected a finite number of at least 0, found 'nan'"),
        ("0.564", "inf", 10, "table 0: expected a finite number of at least 0, found 'inf'"),
        ("0.564", "1e999", 10, "table 0: expected a finite number of at least 0, found '1e999'"),
        ("0.564", "0,564", 10, "table 0: expected a finite number of at least 0, found '0,564'"),
        ("0.080", "0.0_8", 14, "table 1: expected a finite number of at least 0, found '0.0_8'"),
        ("0.080", "\u0660", 14, "table 1: expected a finite number of at least 0, found '\u0660'"),
        ("0.080", "", 17, "number of entries of table 2: .* found '0.210'"),
        (" 0.189\n", "\n", 18, "table 2: expected 6 numbers, found 5 before the end of the file"),
        ("0.189\n", "0.189\n\n0.5 x\n", 20, "expected the end of the file after 3 tables, found '0.5'"),
    ],
)
def test_malformed_models(tmp_path: Path, old: str, new: str, line: int, problem: str) -> None:
    assert SMALL.count(old) == 1
    path = put(tmp_path, SMALL.replace(old, new))
    with pytest.raises(UaiError, match=rf"^.*case\.uai, line {line}: ({problem})$") as caught:
        uai.read_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", range(len(SMALL.split())))
def test_truncated_models(tmp_path: Path, cut: int) -> None:
    with pytest.raises(UaiError, match=r"^.*case\.uai, line 1: .*the end of the file$"):
        uai.read_model(put(tmp_path, " ".join(SMALL.split()[:cut])))


def test_models_that_claim_too_much(tmp_path: Path) -> None:
    huge = "MARKOV 40 " + "2000000000 " * 40 + "1 40 " + " ".join(map(str, range(40))) + " 8 1 1 1 1 1 1 1 1"
    with pytest.raises(UaiError, match=r"table 0: expected 10995.* entries, found a count of 8"):
        uai.read_model(put(tmp_path, huge))
    with pytest.raises(UaiError, match=r"cardinality of variable 1: .* the end of the file"):
        uai.read_model(put(tmp_path, "MARKOV 2000000000 2"))
    with pytest.raises(UaiError, match="table 0: expected 2000000000 numbers, found 1 before the end"):
        uai.read_model(put(tmp_path, "MARKOV 1 2000000000 1 1 0 2000000000 0.5"))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "case.uai"
    path.write_bytes(b"MARKOV\n3\n\xff\xfe\x00")
    with pytest.raises(UaiError, match=r"case\.uai, line 3: expected text, found other bytes"):
        uai.read_model(path)
    with pytest.raises(FileNotFoundError):
        uai.read_model(tmp_path / "absent.uai")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", {}),
        ("0\n", {}),
        ("1\n0\n", {}),
        ("2 0 1 2 2", {0: 1, 2: 2}),
        ("2\n0 1\n2 2\n", {0: 1, 2: 2}),
        ("1\n2 0 1 2 2\n", {0: 1, 2: 2}),
        ("1 2 1", {2: 1}),
        ("1\n1 2 1", {2: 1}),
        ("2 1 0 0 1", {1: 0, 0: 1}),
    ],
)
def test_layouts_of_evidence(tmp_path: Path, text: str, expected: dict[int, int]) -> None:
    assert uai.read_evidence(put(tmp_path, text), [2, 2, 3]) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: number of observations: expected a word, found the end of the file"),
        ("MAR", "line 1: number of observations: .* found 'MAR'"),
        ("1\n3 0", "line 2: variable of observation 0: .* at least 0 and below 3, found '3'"),
        ("1 3 0", "line 1: variable of observation 0: .* at least 0 and below 3, found '3'"),
        ("1\n2 3", "line 2: state of variable 2: .* at least 0 and below 3, found '3'"),
        ("1\n2 -1", "line 2: state of variable 2: .* at least 0 and below 3, found '-1'"),
        ("2\n0 1\n0 1", "line 3: observation 1: expected distinct variables, found 0 twice"),
        ("2\n0 1\n2", "line 3: state of variable 2: expected a word, found the end of the file"),
        ("1\n2\n0 1\n2", "line 3: expected the end of the file after 1 observations, found '1'"),
        ("1\n3\n0 1\n2 2", "line 4: variable of observation 2: expected a word, found the end of the file"),
        ("1\n0 1\n2 2", "line 3: expected the end of the file after 1 observations, found '2'"),
        ("3\n1 0 1\n0\n2 0 1 2 2", "line 1: expected evidence for one sample, found 3 samples"),
        ("2 0 1 2 2 junk", "line 1: expected the end of the file after 2 observations, found 'junk'"),
    ],
)
def test_malformed_evidence(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UaiError, match=rf"^.*case\.uai, ({problem})$"):
        uai.read_evidence(put(tmp_path, text), [2, 2, 3])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("MARKOV\n2", "line 1: header: expected MAR, found 'MARKOV'"),
        ("MAR\n2 2 .5 .5 2 1", "line 2: marginal of variable 1: expected 2 numbers, found 1 before the end .*"),
        ("MAR\n1 2 .5 .5\n7", "line 3: expected the end of the file after 1 marginals, found '7'"),
        ("MAR\n1 2 .5 -.5", "line 2: marginal of variable 0: expected a finite number .* found '-.5'"),
        ("MAR\n1 0", "line 2: cardinality of variable 0: expected an integer of at least 1, found '0'"),
        ("MAR\n1", "line 2: cardinality of variable 0: expected a word, found the end of the file"),
    ],
)
def test_malformed_marginals(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UaiError, match=rf"^.*case\.uai, {problem}$"):
        uai.read_marginals(put(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("13.5", "line 1: header: expected PR, found '13.5'"),
        ("PR", "line 1: log10 of the partition function: expected a word, found the end of the file"),
        ("PR\nnan", "line 2: log10 of the partition function: expected a number, found 'nan'"),
        ("PR\ninf", "line 2: log10 of the partition function: expected a number, found 'inf'"),
        ("PR\nx", "line 2: log10 of the partition function: expected a number, found 'x'"),
        ("PR\n2 3", "line 2: expected the end of the file after log10 of the partition function, found '3'"),
    ],
)
def test_malformed_log_partition(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UaiError, match=rf"^.*case\.uai, {problem}$"):
        uai.read_log_partition(put(tmp_path, text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([[2]]), [], []), r"cardinalities must be a flat sequence of integers, found shape \(1, 1\)"),
        ((np.array([2.0]), [], []), "cardinalities must be integers, found dtype float64"),
        ((np.array([2, 0]), [], []), r"cardinalities\[1\] = 0 is below 1"),
        ((np.array([2]), [(0,)], []), "tables: expected 1, one per scope, found 0"),
        ((np.array([2]), [(1,)], [np.ones(2)]), r"scopes\[0\]: expected distinct variables below 1, .*"),
        ((np.array([2]), [(0.5,)], [np.ones(2)]), r"scopes\[0\]: expected distinct variables below 1, .*"),
        ((np.array([2]), [(0, 0)], [np.ones((2, 2))]), r"scopes\[0\]: expected distinct variables .*"),
        ((np.array([2]), [(0,)], [np.ones(3)]), r"tables\[0\]: expected shape \(2,\), found \(3,\)"),
        ((np.array([2]), [(0,)], [np.array([1, -1])]), r"tables\[0\]: .* found -1.0 at \(1,\)"),
        ((np.array([2]), [()], [np.array(np.nan)]), r"tables\[0\]: .* found nan at \(\)"),
        ((np.array([2]), [], [], "FACTOR"), r"kind: expected one of \('MARKOV', 'BAYES'\), found 'FACTOR'"),
    ],
)
def test_models_that_no_file_holds(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{message}$"):
        UaiModel(*arguments)  # type: ignore[arg-type]


def test_bad_results_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(ValueError, match=r"marginals\[1\]: expected finite entries .*, found nan at \(0,\)"):
        uai.write_marginals(path, [[1.0], [np.nan]])
    with pytest.raises(ValueError, match=r"marginals\[0\]: expected a vector of one or more, found shape \(0,\)"):
        uai.write_marginals(path, [[]])
    with pytest.raises(ValueError, match="log_partition: expected a number below infinity, found nan"):
        uai.write_log_partition(path, math.nan)
    with pytest.raises(ValueError, match=r"evidence\[3\] = -1 is below 0"):
        uai.write_evidence(path, {0: 1, 1: -1})
    with pytest.raises(ValueError, match=r"assignment must be integers, found dtype float64"):
        uai.write_assignment(path, [0.5])
    assert list(tmp_path.iterdir()) == []


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.evid"
    uai.write_evidence(path, {0: 1})

    def refuse(*_: object) -> None:
        raise OSError("disc full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disc full"):
        uai.write_evidence(path, {0: 0})
    assert [p.name for p in tmp_path.iterdir()] == ["e.evid"]
    assert path.read_text() == "1 0 1\n"


@pytest.mark.skipif(os.name != "posix", reason="permissions and links as POSIX has them")
def test_writing_keeps_links_and_the_usual_permissions(tmp_path: Path) -> None:
    plain, target, link = tmp_path / "plain", tmp_path / "target", tmp_path / "link"
    plain.write_text("")
    target.write_text("")
    link.symlink_to(target)
    uai.write_evidence(link, {})
    assert link.is_symlink()
    assert target.read_text() == "0\n"
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.skipif(not REAL, reason="BACTRIAN_DATA is not set, or has no UAI models")
def test_real_files(tmp_path: Path) -> None:
    observed = 0
    for path in REAL:
        model = uai.read_model(path)
        evidence = uai.read_evidence(path.with_name(path.name + ".evid"), model.cardinalities)
        marginals = uai.read_marginals(path.with_name(path.name + ".MAR"))
        log_partition = uai.read_log_partition(path.with_name(path.name + ".PR"))
        assert [m.size for m in marginals] == model.cardinalities.tolist()
        assert all(abs(m.sum() - 1) < 1e-4 for m in marginals)
        assert all(marginals[v][state] == 1 for v, state in evidence.items())
        assert math.isfinite(log_partition)
        observed += len(evidence)

        uai.write_model(tmp_path / path.name, model)
        assert same(uai.read_model(tmp_path / path.name), model)
    assert observed > 0
