"""Commands whose output nobody reads, or that goes where few letters are known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bactrian as bt

ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments: str, closed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from bactrian.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, *arguments]
    if closed:
        command = ["sh", "-c", f'"$0" "$@" {closed}', *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.uai"
    path.write_text("MARKOV 2 2 2 1 2 0 1 4 1 2 3 4")
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "| head -n 1"])
def test_closed_streams(closed: str, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.PR"
    done = run("infer", str(model), "--method", "exact", "-o", str(output), closed=closed)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert float(output.read_text().split()[1]) == pytest.approx(1.0)  # log10 of 1 + 2 + 3 + 4


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_a_reader_that_has_gone(model: Path) -> None:
    for arguments in (["--help"], ["infer", "--help"], ["infer", str(model)]):
        done = run(*arguments, closed="| true")
        assert not done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["infer", "no·such·file.uai"]])
def test_ascii_locales(arguments: list[str]) -> None:
    done = run(*arguments, **ASCII)
    assert done.returncode == (0 if "--help" in arguments else 2), done.stderr
    assert "Traceback" not in done.stderr


def test_results_keep_their_letters_in_ascii_locales(tmp_path: Path) -> None:
    train = tmp_path / "train.conll"
    train.write_text("Zoë B-PER\nschläft O\n\nÅsa B-PER\nruht O\n\n" * 3, encoding="utf-8")
    done = run("train", str(train), "-o", str(tmp_path / "run"), "--no-report", **ASCII)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-c", "import sys; from bactrian.cli import main; main(sys.argv[1:])"]
    predicted = subprocess.run(
        [*command, "predict", str(tmp_path / "run"), str(train)], capture_output=True, env={**os.environ, **ASCII}
    )
    assert predicted.returncode == 0, predicted.stderr
    assert "Zoë" in predicted.stdout.decode("utf-8")


def test_only_evidence_is_blamed_for_contradicting() -> None:
    graph = bt.ClusterGraph([2, 2], [(0, 1), (0,)])
    never = bt.LogLinearModel(graph, [np.zeros((4, 0)), None], [[-np.inf, -np.inf, 0.0, 0.0], [0.0, -np.inf]])
    always = bt.LogLinearModel(graph, [np.zeros((4, 0)), None], [[-np.inf, -np.inf, 0.0, 0.0], None])
    for method in ("exact", "bp", "rbp", "trw", "convex", "double-loop", "mean-field", "gibbs"):
        with pytest.raises(ValueError, match=r"^no joint state has positive probability: forbidden states"):
            bt.infer(never, [], method)
        with pytest.raises(ValueError, match=r"^the evidence contradicts the model"):
            bt.infer(always, [], method, evidence={0: 0})
    for method in ("exact", "max-product", "dual"):
        with pytest.raises(ValueError, match=r"^no joint state has positive probability"):
            bt.decode(never, [], method)
        with pytest.raises(ValueError, match=r"^the evidence contradicts the model"):
            bt.decode(always, [], method, evidence={0: 0})
