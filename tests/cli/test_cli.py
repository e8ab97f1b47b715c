"""The command line as a user meets it: words, files and exit codes."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bactrian
from bactrian.cli import app, main
from bactrian.terminal import BadInputError, bad_input

TINY = ["demo", "--train", "6", "--test", "12", "--announcements", "3", "--method", "piecewise"]
#: For what does not depend on the tasks.
TINIEST = ["demo", "--train", "2", "--test", "2", "--announcements", "0", "--method", "piecewise"]


def run(arguments, capsys):
    """Exit code, standard output and standard error of ``bactrian arguments``."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def test_version(capsys):
    assert run(["--version"], capsys) == (0, f"bactrian {bactrian.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_commands_and_an_example(arguments, capsys):
    code, out, err = run(arguments, capsys)
    assert (code, err) == (0, "")
    assert "demo" in out
    assert "Example" in out


def test_help_of_demo_shows_an_example(capsys):
    code, out, _ = run(["demo", "--help"], capsys)
    assert code == 0
    assert "bactrian demo --method" in out


def test_a_group_of_commands_alone_shows_its_help_and_no_empty_line(capsys):
    code, out, err = run(["bench"], capsys)
    assert code == 2
    assert "learners" in out + err
    assert "bactrian: \n" not in err


@pytest.mark.parametrize("arguments", [["train"], ["pack"], ["demo"], ["bench", "learners"]])
def test_help_loses_no_words_and_breaks_no_lines_early(arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run([*arguments, "--help"], capsys)
    assert code == 0
    assert "more in  of" not in out  # brackets are markup to rich
    shown = out.split("Usage:")[1].split("╭")[0].splitlines()[2:]
    paragraphs = "\n".join(line.strip() for line in shown).strip().split("\n\n")
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        for line, following in itertools.pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > 98, paragraph


def test_demo_prints_a_table_and_writes_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(TINY, capsys)
    assert (code, err) == (0, "")
    for word in ("noisy input", "node-only", "piecewise", "accuracy", "converged", "chain", "speaker"):
        assert word in out
    said, following = out.split("\nNext, with a file of your own:\n")
    assert said.rstrip().endswith(f"Report: {Path('bactrian-demo/report.html')}")
    assert [line.split()[:2] for line in following.splitlines()] == [
        ["bactrian", name] for name in ("fit", "train", "rake", "infer")
    ]
    assert "</html>" in (tmp_path / "bactrian-demo" / "report.html").read_text(encoding="utf-8")


def test_output_may_name_a_page_or_a_folder(tmp_path, capsys):
    for output, path in ((tmp_path / "page.html", "page.html"), (tmp_path / "folder", "folder/report.html")):
        assert run([*TINIEST, "-o", str(output)], capsys)[0] == 0
        assert (tmp_path / path).is_file()


def test_stopping_short_is_exit_code_1_with_results_kept(tmp_path, capsys):
    small = ["--train", "6", "--test", "6", "--announcements", "0"]
    arguments = ["demo", *small, "-m", "cccp", "--max-seconds", "1e-9", "-o", str(tmp_path)]
    code, out, _ = run(arguments, capsys)
    assert code == 1
    assert "stopped" in out
    assert "stopped at the time limit" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dromedary"], "No such command"),
        (["demo", "--hump"], "No such option"),
        (["demo", "--train", "many"], "--train"),
        (["demo", "--train", "0"], "n_train"),
        (["demo", "--noise", "nan"], "noise"),
        (["demo", "--seed", "-1"], "seed"),
        (["demo", "--method", "dromedary"], "unknown learner 'dromedary'; choose from piecewise"),
        (["demo", "--output", "file/report.html"], "--output"),
        (["demo", "--output", "folder.html"], "--output"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.html").mkdir()
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("bactrian: ")
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.html"]


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(["bench", "learners", "--quick"], capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install matplotlib\n" in err


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ModuleNotFoundError("No module named 'skimage'", name="skimage"), "'skimage'; pip install scikit-image"),
        (ImportError("mpirun needs mpi4py: pip install mpi4py"), "needs mpi4py: pip install mpi4py"),
    ],
)
def test_the_extra_that_is_missing_is_the_one_named(problem, words):
    with pytest.raises(BadInputError) as found, bad_input(ImportError):
        raise problem
    assert str(found.value).endswith(words)


def test_interrupt_is_exit_code_130(tmp_path, monkeypatch, capsys):
    def interrupted(settings, on_step):
        raise KeyboardInterrupt

    monkeypatch.setattr("bactrian.experiments.digits.task.run_digits", interrupted)
    code, _, err = run([*TINY, "-o", str(tmp_path)], capsys)
    assert code == 130
    assert "interrupted" in err
    assert not list(tmp_path.iterdir())


def test_runner_of_typer_can_drive_the_app(tmp_path):
    done = CliRunner().invoke(app, [*TINIEST, "-o", str(tmp_path)])
    assert done.exit_code == 0
    assert (tmp_path / "report.html").is_file()


def test_a_real_process(tmp_path):
    command = [sys.executable, "-c", "from bactrian.cli import main; main()", *TINIEST]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress where nobody watches
    assert (tmp_path / "bactrian-demo" / "report.html").is_file()


def test_python_runs_the_package_as_the_command():
    done = subprocess.run([sys.executable, "-m", "bactrian", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"bactrian {bactrian.__version__}\n"


def test_the_installed_command_answers():
    command = Path(sys.executable).with_name("bactrian")
    if not command.exists():
        pytest.skip("the console script is not installed beside the interpreter")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"bactrian {bactrian.__version__}\n"


def test_warming_up_says_what_it_does(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["warm-up", "chains"])
    assert stopped.value.code == 0
    assert re.fullmatch(r"chains +\d+\.\d s\n", capsys.readouterr().out)
    with pytest.raises(SystemExit) as stopped:
        main(["warm-up", "trees"])
    assert stopped.value.code == 2
    assert "unknown kind 'trees'; choose from chains, skip-chains" in capsys.readouterr().err


_FIRST_FITS = """
import numpy as np
import bactrian as bt
X, y = [[["Rome"], ["fell"]], [["Who"], ["knew"], ["Rome"]], [["Ah"]]], [["L", "O"], ["O", "O", "L"], ["O"]]
model = bt.LinearChainCRF(prior_variance=1.0).fit(X, y)
print(model.predict(X), model.predict_marginals(X)[2].shape)
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    warm = [sys.executable, "-c", "from bactrian.cli import main; main(['warm-up', 'chains'])"]
    subprocess.run(warm, check=True, env=environment, capture_output=True)
    kept = {path.name for path in tmp_path.rglob("*.nbc")}
    assert kept
    subprocess.run([sys.executable, "-c", _FIRST_FITS], check=True, env=environment, capture_output=True)
    assert {path.name for path in tmp_path.rglob("*.nbc")} == kept
