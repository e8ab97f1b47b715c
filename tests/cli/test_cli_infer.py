"""``bactrian infer`` as a user meets it: files in, files out, words and exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bactrian as bt
from bactrian.cli import main
from bactrian.cli.infer_uai import bytes_of
from bactrian.inference import decode, infer
from bactrian.inference.uai import (
    UaiModel,
    read_evidence,
    read_log_partition,
    read_marginals,
    read_model,
    to_model,
    write_evidence,
    write_model,
)

EXACT_ON_TREES = ("exact", "rbp", "bp", "trw", "convex", "double-loop")
EVIDENCE = {1: 2}


def run(arguments, capsys):
    """Exit code, standard output and standard error of ``bactrian infer arguments``."""
    with pytest.raises(SystemExit) as stopped:
        main(["infer", *map(str, arguments)])
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def tree():
    """Variables in a chain, one unary table, and a constant."""
    rng = np.random.default_rng(0)
    scopes = [(0, 1), (2, 1), (3,), (), (3, 2)]
    return random_model(rng, [2, 3, 2, 2], scopes)


def loop():
    """A cycle of four variables with a table of three, a state that is forbidden and a constant."""
    rng = np.random.default_rng(1)
    model = random_model(rng, [2, 3, 2, 2], [(0, 1), (1, 2), (2, 3), (3, 0), (0, 1, 2), (), (1,)])
    model.tables[0][1, 0] = 0.0
    return model


def random_model(rng, cards, scopes):
    tables = [np.exp(0.5 * rng.normal(size=tuple(cards[v] for v in scope))) for scope in scopes]
    return UaiModel(cards, scopes, tables)


def frustrated():
    """A grid with strong random couplings, on which belief propagation does not converge in a few sweeps."""
    rng = np.random.default_rng(2)
    at = np.arange(25).reshape(5, 5)
    pairs = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), *zip(at[:-1].flat, at[1:].flat, strict=True)]
    scopes = [(int(a), int(b)) for a, b in pairs]
    tables = [np.exp(3.0 * rng.normal() * np.array([[1.0, -1.0], [-1.0, 1.0]])) for _ in scopes]
    fields = [np.exp(rng.normal(size=2)) for _ in range(25)]
    return UaiModel([2] * 25, [*scopes, *[(v,) for v in range(25)]], [*tables, *fields])


def joint(model, evidence):
    """Unnormalised joint distribution, zero where it does not agree with the evidence."""
    shape = tuple(model.cardinalities.tolist())
    product = np.ones(shape)
    for scope, table in zip(model.scopes, model.tables, strict=True):
        product = product * np.einsum(table, scope, np.ones(shape), range(len(shape)), range(len(shape)))
    for v, state in evidence.items():
        product = product * (np.arange(shape[v]) == state).reshape([-1 if u == v else 1 for u in range(len(shape))])
    return product


def marginals(product):
    axes = range(product.ndim)
    return [product.sum(axis=tuple(u for u in axes if u != v)) / product.sum() for v in axes]


def error(found, expected):
    return max(np.abs(f - e).max() for f, e in zip(found, expected, strict=True))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with tree.uai, loop.uai, hard.uai and an evidence file."""
    monkeypatch.chdir(tmp_path)
    write_model("tree.uai", tree())
    write_model("loop.uai", loop())
    write_model("hard.uai", frustrated())
    write_evidence("seen.evid", EVIDENCE)
    return tmp_path


@pytest.mark.parametrize("name", ["tree", "loop"])
@pytest.mark.parametrize("method", infer.OF_WEIGHTS)
def test_marginals_by_every_method(method, name, folder, capsys):
    code, out, err = run([f"{name}.uai", "-e", "seen.evid", "-m", method, "-o", "out.MAR"], capsys)
    assert (code, err) == (0, "")
    assert f"method      {method}\n" in out
    assert "converged   yes\n" in out
    found = read_marginals("out.MAR")
    exact = marginals(joint(read_model(f"{name}.uai"), EVIDENCE))
    np.testing.assert_allclose([m.sum() for m in found], 1.0, rtol=1e-12)
    assert found[1].tolist() == [0.0, 0.0, 1.0]
    limit = 1e-9 if method in ("auto", "exact") else 1e-6 if name == "tree" and method in EXACT_ON_TREES else 0.15
    assert error(found, exact) < limit


@pytest.mark.parametrize("name", ["tree", "loop"])
@pytest.mark.parametrize("method", [method for method in infer.OF_WEIGHTS if method != "gibbs"])
def test_partition_function_by_every_method(method, name, folder, capsys):
    assert run([f"{name}.uai", "--evidence", "seen.evid", "--method", method, "--output", "out.pr"], capsys)[0] == 0
    found = read_log_partition("out.pr")
    read = read_model(f"{name}.uai")
    exact = np.log(joint(read, EVIDENCE).sum())
    if method in ("auto", "exact") or (name == "tree" and method in EXACT_ON_TREES):
        assert found == pytest.approx(exact, abs=1e-6)
    if method == "mean-field":
        assert found <= exact
    if method == "trw":
        assert found >= exact - 1e-6
    assert found == pytest.approx(bt.infer(to_model(read), [], method, EVIDENCE).log_partition, abs=1e-12)


@pytest.mark.parametrize("name", ["tree", "loop"])
@pytest.mark.parametrize("method", decode.METHODS)
def test_assignments_by_every_method(method, name, folder, capsys):
    code, out, err = run([f"{name}.uai", "-e", "seen.evid", "-m", method, "--task", "mpe", "-o", "out.txt"], capsys)
    assert (code, err) == (0, "")
    header, numbers = Path("out.txt").read_text().split("\n", 1)
    length, *states = map(int, numbers.split())
    assert (header, length) == ("MPE", 4)
    product = joint(read_model(f"{name}.uai"), EVIDENCE)
    assert product[tuple(states)] > 0.0
    assert f"log score   {np.log(product[tuple(states)]):.9g} (log10: " in out
    if method == "exact" or (name == "tree" and method != "max-marginals"):
        assert product[tuple(states)] == pytest.approx(product.max())
    if method == "exact":
        assert "optimal     yes" in out


def test_the_summary_has_both_logarithms(folder, capsys):
    code, out, err = run(["loop.uai", "-m", "exact"], capsys)
    value = np.log(joint(loop(), {}).sum())
    assert (code, err) == (0, "")
    lines = {line[:12].strip(): line[12:] for line in out.splitlines()}
    assert list(lines) == ["model", "method", "converged", "iterations", "log Z", "seconds"]
    assert lines["model"] == "loop.uai: MARKOV, 4 variables, 7 tables, 0 observed"
    assert lines["log Z"] == f"{value:.9g} (log10: {value / np.log(10):.9g}), exact"
    assert sorted(p.name for p in folder.iterdir()) == ["hard.uai", "loop.uai", "seen.evid", "tree.uai"]


def test_a_bayesian_network(folder, capsys):
    Path("rain.uai").write_text("BAYES\n2\n2 2\n2\n1 0\n2 0 1\n\n2\n0.8 0.2\n4\n0.9 0.1\n0.3 0.7\n")
    Path("wet.evid").write_text("1 1 1\n")
    assert run(["rain.uai", "-e", "wet.evid", "-o", "rain.MAR"], capsys)[0] == 0
    assert read_marginals("rain.MAR")[0] == pytest.approx([0.08 / 0.22, 0.14 / 0.22])


@pytest.mark.parametrize(
    ("arguments", "value"),
    [("3\n2 2 3\n0\n", 12.0), ("1\n3\n2\n0\n0\n\n1\n4.0\n1\n0.5\n", 6.0)],
    ids=["no tables", "constants alone"],
)
def test_models_of_constants(arguments, value, folder, capsys):
    Path("flat.uai").write_text(f"MARKOV\n{arguments}")
    for method in ("rbp", "exact", "trw", "mean-field"):
        assert run(["flat.uai", "-o", "flat.PR", "-m", method], capsys)[0] == 0
        assert np.exp(read_log_partition("flat.PR")) == pytest.approx(value)
    assert run(["flat.uai", "-o", "flat.MPE"], capsys)[0] == 0


def test_stopping_short_is_exit_code_1_with_the_result_written(folder, capsys):
    code, out, err = run(["hard.uai", "-o", "out.MAR", "--max-iterations", "3", "--method", "bp"], capsys)
    assert (code, err) == (1, "")
    assert "converged   no: stopped at the limit of 3 iterations\n" in out
    assert len(read_marginals("out.MAR")) == 25
    code, out, _ = run(["hard.uai", "-o", "out.MPE", "-m", "max-product", "--max-iterations", "1"], capsys)
    assert code == 1
    assert "converged   no\n" in out
    assert Path("out.MPE").exists()


def said(out):
    """Lines of a summary by their names."""
    return {line[:12].strip(): line[12:] for line in out.splitlines()}


def test_a_bound_that_does_not_hold_is_none(folder, capsys):
    """One sweep of tree-reweighted messages: what it has may be below log Z, and is not called a bound."""
    exact = np.log(joint(loop(), {}).sum())
    code, out, _ = run(["loop.uai", "-m", "trw", "--task", "PR", "--tolerance", "1e-10"], capsys)
    assert (code, said(out)["log Z"].endswith(", upper bound")) == (0, True)
    assert float(said(out)["log Z"].split()[0]) >= exact
    code, out, _ = run(["hard.uai", "-m", "trw", "--task", "PR", "--max-iterations", "1"], capsys)
    assert (code, said(out)["log Z"].endswith(", no bound before convergence")) == (1, True)
    code, out, _ = run(["hard.uai", "-m", "mean-field", "--task", "PR", "--max-iterations", "1"], capsys)
    assert "lower bound" in said(out)["log Z"]  # which any product of marginals has


def test_a_gap_is_said_to_be_one(folder, capsys):
    """A triangle in which neighbours should differ: the bound cannot fall to the score of any assignment."""
    apart = np.exp(5.0 * (1.0 - np.eye(2)))
    write_model("apart.uai", UaiModel([2, 2, 2], [(0, 1), (1, 2), (0, 2)], [apart] * 3))
    code, out, err = run(["apart.uai", "-m", "dual", "-o", "out.MPE"], capsys)
    assert (code, err) == (0, "")
    words = said(out)
    assert words["converged"] == "the bound alone, which falls no further"
    assert words["log score"].startswith("10 ")
    assert float(words["bound"].split()[0]) == pytest.approx(15.0)
    assert words["optimal"] == "not proved: others may score up to 5 more"
    assert run(["tree.uai", "-m", "dual", "-o", "out.MPE"], capsys)[1].count("yes\n") == 2


@pytest.mark.slow
def test_compiling_is_told_and_not_counted(folder, tmp_path):
    """From an empty cache, message passing has all of its time."""
    command = [sys.executable, "-m", "bactrian", "infer", "loop.uai", "-m", "trw", "--max-seconds", "2"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    words = said(done.stdout)
    assert words["converged"].startswith("yes"), done.stdout + done.stderr
    assert float(re.search(r", (\S+) of them compiling", words["seconds"])[1]) > 2.0


@pytest.mark.parametrize("task", ["MAR", "PR", "MPE"])
def test_the_memory_budget_is_that_of_the_junction_tree(task, folder, capsys, monkeypatch):
    """A model without loops has none, as the help says; what a loop must keep must fit."""
    exact = ["-m", "exact", "--task", task, "--memory-budget"]
    assert run(["tree.uai", *exact, "1"], capsys)[0] == 0
    needed = 8 * (2 * 3 * 2 + 2 * 2 * 2)  # of {0, 1, 2} and {0, 2, 3}
    assert run(["loop.uai", *exact, needed], capsys)[0] == 0
    if task == "MPE":
        code, _, err = run(["loop.uai", *exact, needed - 1], capsys)
        assert f"--memory-budget: the best junction tree found has width 2 and clique tables of {needed} bytes" in err
    else:  # messages alone, from one clique to the other, and from the variables over which it is summed none
        code, _, err = run(["hard.uai", *exact, "20"], capsys)
        assert re.search(r"--memory-budget: the best junction tree found has width 5 and messages of \d+ bytes", err)
    assert code == 2
    assert "choose an approximate method" in err
    monkeypatch.setenv("COLUMNS", "400")
    assert "models without loops need none" in " ".join(run(["--help"], capsys)[1].split())


def test_options_reach_the_method(folder, capsys):
    arguments = ["hard.uai", "-m", "bp", "--max-iterations", "60", "--fallback", "double-loop", "--tolerance", "1e-5"]
    code, out, _ = run([*arguments, "--damping", "0.1", "--threads", "1", "--seed", "3", "--max-seconds", "60"], capsys)
    assert code in (0, 1)
    assert "method      double-loop\n" in out
    assert run(["hard.uai", "-m", "exact", "--memory-budget", "1MiB"], capsys)[0] == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("1.5 kib", 1536), ("1e6", 10**6), ("7B", 7), ("6G", 6 * 2**30), ("6GB", 6 * 2**30)],
)
def test_sizes(text, size):
    assert bytes_of(text) == size


MALFORMED = {
    "header": ("MARKOFF\n1\n2\n0\n", "line 1: header: expected MARKOV or BAYES, found 'MARKOFF'"),
    "short": ("MARKOV\n1\n2\n1\n1 0\n\n2\n0.5\n", "line 8: table 0: expected 2 numbers"),
    "negative": ("MARKOV\n1\n2\n1\n1 0\n\n2\n0.5 -1\n", "line 8: table 0: expected a finite number"),
    "scope": ("MARKOV\n1\n2\n1\n1 4\n", "line 5: scope 0: expected an integer of at least 0 and below 1"),
    "zeros": ("MARKOV\n1\n2\n1\n1 0\n\n2\n0 0\n", "bad.uai: table 0 is zero everywhere"),
    "nothing": ("MARKOV\n0\n0\n", "bad.uai: the model has no variables"),
    "empty": ("", "line 1: header: expected a word"),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("task", ["MAR", "PR", "MPE"])
def test_a_malformed_file_is_one_line_and_exit_code_2(case, task, folder, capsys):
    text, words = MALFORMED[case]
    Path("bad.uai").write_text(text)
    assert_refused(["bad.uai", "-o", f"out.{task}"], ["bad.uai", words], capsys)


@pytest.mark.parametrize("method", infer.OF_WEIGHTS)
def test_contradictory_evidence_is_refused(method, folder, capsys):
    Path("zero.evid").write_text("2 0 1 1 0\n")
    arguments = ["loop.uai", "-e", "zero.evid", "-o", "out.MAR", "-m", method]
    assert_refused(arguments, ["loop.uai with zero.evid: ", "contradicts the model"], capsys)


@pytest.mark.parametrize("method", ["exact", "max-product", "dual"])
def test_contradictory_evidence_has_no_best_assignment(method, folder, capsys):
    Path("zero.evid").write_text("2 0 1 1 0\n")
    arguments = ["loop.uai", "-e", "zero.evid", "-o", "out.MPE", "-m", method]
    assert_refused(arguments, ["loop.uai with zero.evid: ", "contradicts the model"], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.uai"], "none.uai: No such file"),
        (["tree.uai", "-e", "none.evid"], "none.evid: No such file"),
        (["tree.uai", "-e", "far.evid"], "far.evid, line 1: state of variable 1: expected an integer"),
        (["tree.uai", "-e", "tree.uai"], "tree.uai, line 1: number of observations"),
        (
            ["hard.uai", "-m", "exact", "--memory-budget", "100"],
            "--memory-budget: the best junction tree found has width 5",
        ),
        (["tree.uai", "--memory-budget", "lots"], "expected bytes such as 6G"),
        (["tree.uai", "--memory-budget", "0"], "expected bytes such as 6G"),
        (["tree.uai", "-o", "missing/out.MAR"], "--output: cannot write missing/out.MAR: there is no folder missing"),
        (["tree.uai", "-o", "taken.MAR"], "--output: cannot write taken.MAR"),
        (["tree.uai", "-o", "tree.uai", "--task", "PR"], "--output: tree.uai is an input"),
        (["tree.uai", "-o", "out.txt"], "out.txt names no task"),
        (["tree.uai", "-o", "out.MAR", "--task", "PR"], "--task PR does not go with an output named out.MAR"),
        (["tree.uai", "-o", "out.PR", "-m", "gibbs"], "--method gibbs is not for PR"),
        (["tree.uai", "-o", "out.MPE", "-m", "rbp"], "choose from auto, exact, max-product, max-marginals, dual"),
        (["tree.uai", "-m", "dual"], "--method dual is not for MAR"),
        (["tree.uai", "-m", "dromedary"], "--method"),
        (["tree.uai", "--task", "MPE", "--seed", "1"], "--seed is for MAR and PR"),
        (["tree.uai", "-m", "exact", "--fallback", "double-loop"], "--fallback is for bp and rbp"),
        (["tree.uai", "--damping", "1"], "--damping"),
        (["tree.uai", "--tolerance", "nan"], "--tolerance"),
        (["tree.uai", "--max-iterations", "0"], "--max-iterations"),
        (["tree.uai", "--max-seconds", "-1"], "--max-seconds"),
        (["tree.uai", "--threads", "0"], "--threads"),
        (["tree.uai", "--seed", "-1"], "--seed"),
        ([], "MODEL.uai"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, folder, capsys):
    Path("far.evid").write_text("1 1 3\n")
    Path("taken.MAR").mkdir()
    assert_refused(arguments, [words], capsys)


def assert_refused(arguments, words, capsys):
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("bactrian: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert before == {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}


def test_an_old_result_survives_a_failure(folder, capsys):
    Path("out.MAR").write_text("old")
    Path("bad.uai").write_text("MARKOV\n")
    assert run(["bad.uai", "-o", "out.MAR"], capsys)[0] == 2
    assert Path("out.MAR").read_text() == "old"


def test_examples_of_the_help_work(folder, capsys):
    code, out, _ = run(["--help"], capsys)
    assert code == 0
    examples = [part.split() for part in " ".join(out.split()).split("Examples:")[1].split("·")]
    write_model("model.uai", loop())
    write_evidence("model.uai.evid", EVIDENCE)
    for program, command, *arguments in examples:
        assert (program, command) == ("bactrian", "infer")
        assert run(arguments, capsys)[0] == 0
    assert {"model.MAR", "model.PR", "model.MPE"} <= {path.name for path in folder.iterdir()}


def test_the_choices_are_those_of_the_library(capsys):
    shown = " ".join(run(["--help"], capsys)[1].replace("│", " ").split())
    assert all(method in shown for method in (*infer.OF_WEIGHTS, *decode.METHODS))


def test_a_terminal_sees_a_bar(folder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = run(["hard.uai", "-m", "bp", "--max-iterations", "40"], capsys)
    assert code in (0, 1)
    assert "residual" in err


def test_a_real_process(folder):
    command = [sys.executable, "-c", "from bactrian.cli import main; main()", "infer"]
    done = subprocess.run([*command, "loop.uai", "-m", "exact", "-o", "out.MAR"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")  # no progress where nobody watches
    assert error(read_marginals("out.MAR"), marginals(joint(loop(), {}))) < 1e-9


def test_a_small_model_is_not_compiled_for(folder, tmp_path):
    """A command of its own leaves no compiled functions behind, and says what the library says."""
    command = [sys.executable, "-c", "from bactrian.cli import main; main()", "infer", "loop.uai", "-o", "out.MAR"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    environment.pop("NUMBA_DISABLE_JIT", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "compiled").rglob("*.nbi"))
    assert error(read_marginals("out.MAR"), bt.infer(to_model(loop()), []).variables) < 1e-9


def test_to_model_counts_constants_once():
    model = to_model(loop())
    assert len(model.graph.clusters) == 6
    assert bt.infer(model, [], "exact").log_partition == pytest.approx(np.log(joint(loop(), {}).sum()), abs=1e-12)
    best = bt.decode(model, [], "exact", return_result=True)
    assert best.score == pytest.approx(np.log(joint(loop(), {}).max()), abs=1e-12)


@pytest.mark.parametrize("name", ["Grids_11", "Promedus_11", "Segmentation_11"])
def test_real_models_end_to_end(name, real_data, tmp_path, capsys):
    model = real_data / "uai" / f"{name}.uai"
    for task in ("MAR", "PR"):
        arguments = [model, "-e", f"{model}.evid", "-m", "exact", "-o", tmp_path / f"out.{task}"]
        code, out, err = run(arguments, capsys)
        assert (code, err) == (0, "")
        assert f"{len(read_evidence(f'{model}.evid'))} observed" in out
    assert error(read_marginals(tmp_path / "out.MAR"), read_marginals(f"{model}.MAR")) < 1e-4
    difference = read_log_partition(tmp_path / "out.PR") - read_log_partition(f"{model}.PR")
    assert abs(difference) / np.log(10) < 1e-3
