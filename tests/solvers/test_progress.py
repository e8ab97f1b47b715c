"""Lines that say how far learning has come."""

import io

import numpy as np
import pytest

import bactrian as bt
from bactrian.solvers.solution import Progress

X = [[["a"], ["b"]], [["b"], ["a"], ["a"]]]
Y = [["A", "B"], ["B", "A", "A"]]


def at(iteration, objective, seconds):
    return Progress(0, iteration, objective, 1.0, 0.0, seconds, np.zeros(1))


def test_lines_become_rarer_and_estimate_what_is_left():
    out = io.StringIO()
    follow = bt.ProgressLines(1e-4, first=1.0, most=8.0, file=out)
    for second in range(41):  # a digit every ten seconds: ten iterations gain 1e-5 of it after 59.5
        follow(at(second, 1.0 + 10.0 ** (-second / 10), float(second)))
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [f"iteration {n}" for n in (1, 2, 4, 8, 16, 24, 32, 40)]
    assert lines[4].endswith("16 s")  # too early to say
    assert lines[-1].endswith("40 s, perhaps 20 s left")
    assert follow(at(50, 1.0, 50.0)) is None  # nothing that would stop learning


def test_what_is_left_runs_down_without_jumps():
    follow, rng, left = bt.ProgressLines(1e-3), np.random.default_rng(0), []
    value, values = 2.0, []
    for second in range(100):  # steps of uneven size
        value -= 0.1 * 0.92**second * rng.uniform(0.5, 1.5)
        values.append(value)
        follow.see(at(second, value, float(second)))
        left.append(follow.left())
    end = next(n for n in range(10, 100) if values[n - 10] - values[n] < 1e-3 * values[n])
    told = [n for n in range(end) if left[n] is not None]
    assert told == list(range(told[0], end))
    assert told[0] < 30
    for n in told[1:]:
        assert abs(left[n] - (left[n - 1] - 1.0)) < 7.0
    assert all(left[n] == pytest.approx(end - n, abs=10.0) for n in told if n > end / 2)


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
