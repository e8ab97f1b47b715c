"""Lines that say how far learning has come."""

import io

import numpy as np

import bactrian as bt
from bactrian.solvers.solution import Progress

X = [[["a"], ["b"]], [["b"], ["a"], ["a"]]]
Y = [["A", "B"], ["B", "A", "A"]]


def at(iteration, gap, seconds):
    return Progress(0, iteration, 1.0, gap, 0.0, seconds, np.zeros(1))


def test_lines_become_rarer_and_estimate_what_is_left():
    out = io.StringIO()
    follow = bt.ProgressLines(1e-4, first=1.0, most=8.0, file=out)
    for second in range(41):  # a digit every ten seconds: from 1 to 1e-4 in 40
        follow(at(second, 10.0 ** (-second / 10), float(second)))
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [f"iteration {n}" for n in (1, 2, 4, 8, 16, 24, 32, 40)]
    assert lines[4].endswith("16 s, perhaps 24 s left")
    assert lines[-1].endswith("perhaps 0 s left")
    assert follow(at(50, 1.0, 50.0)) is None  # nothing that would stop learning


def test_every_estimator_and_learn_are_verbose_where_asked(capsys, monkeypatch):
    monkeypatch.setattr(bt.ProgressLines, "__call__", lambda self, at: print("line", at.iteration))
    chain = bt.LinearChainCRF(verbose=1).fit(X, Y)
    assert "line 1" in capsys.readouterr().out
    bt.learn(bt.LinearChainCRF().encode(X, Y), "exact", verbose=1)
    assert "line 1" in capsys.readouterr().out
    bt.LinearChainCRF().fit(X, Y)
    assert capsys.readouterr().out == ""
    seen = []
    chain.fit(X, Y, callback=seen.append)
    assert seen
    for kind in (bt.SkipChainCRF, bt.GraphCRF, bt.GridCRF, bt.MarkovRandomField):
        assert kind().get_params()["verbose"] == 0


def test_models_are_saved_without_the_parameter_as_earlier_ones_were(tmp_path):
    bt.LinearChainCRF(verbose=1).fit(X, Y).save(tmp_path / "model")
    assert bt.LinearChainCRF.load(tmp_path / "model").verbose == 0
