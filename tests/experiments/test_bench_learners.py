"""``bactrian bench learners``: the fields, the measurements, the rank experiment and the command."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import bactrian as bt
from bactrian.cli import main
from bactrian.experiments.bench.learners import METRICS, BenchSettings, bench_learners, run_learners
from bactrian.experiments.bench.random_fields import FieldSize, random_field
from bactrian.experiments.bench.rank_argument import rank_reading, run_rank
from bactrian.experiments.bench.speed import run_speed, summarise_speed
from bactrian.experiments.bench.summary import summarise_learners
from bactrian.learners.learn import METHODS

TINY = BenchSettings(sizes=("2x2:3", "K4"), strengths=(0.25,), n_seeds=2, n_samples=300)


@pytest.fixture(scope="module")
def rows():
    return run_learners(TINY)


def test_every_learner_is_there(rows):
    learners = {row.learner for row in rows}
    assert learners == set(bench_learners())
    assert set(METHODS) < learners
    assert {"trw", "convex", "cccp, folded", "trw likelihood", "convex likelihood"} <= learners


def test_exact_likelihood_is_best_up_to_noise(rows):
    loss = {s.learner: s.mean["loss"] for s in summarise_learners(rows) if s.n_runs and s.prior}
    assert loss.pop("exact") == 0.0
    assert min(loss.values()) > -0.02
    assert loss["cccp"] < 0.05
    assert loss["camel0"] > loss["cccp"]


def test_numbers_agree_with_what_is_known(rows):
    by_learner = {s.learner: s for s in summarise_learners(rows)}
    assert by_learner["exact"].mean["error_to_weights"] < 1e-6
    assert by_learner["exact"].mean["weight_error"] == 0.0
    assert 0.0 < by_learner["exact"].mean["error_to_truth"] < 0.1
    for first, second in (("lbp", "cccp"), ("cccp", "cccp, folded"), ("trw", "trw likelihood")):
        for metric in ("loss", "error_to_weights", "weight_error"):
            assert by_learner[first].mean[metric] == pytest.approx(by_learner[second].mean[metric], abs=2e-3)
    assert np.isnan(by_learner["pseudolikelihood"].mean["error_to_truth"])
    assert all(s.mean["seconds"] > 0.0 for s in by_learner.values() if s.n_runs)


def test_refusals_are_reported_with_their_reason(rows, monkeypatch):
    for row in rows:
        assert row.refused == (not np.isfinite(row.log_likelihood))
    monkeypatch.setitem(METHODS, "dromedary", _Refuses())
    refused = [row for row in run_learners(_one_field()) if row.learner == "dromedary"]
    assert {row.status for row in refused} == {"refused: one hump only"}
    (summary,) = summarise_learners(refused)
    assert (summary.n_runs, summary.n_refused, summary.ending) == (0, 2, "refused: one hump only")


def test_a_learner_without_a_prior_is_run_without(monkeypatch):
    monkeypatch.setitem(METHODS, "flat", _TakesNoPrior())
    rows = [row for row in run_learners(_one_field()) if row.learner == "flat"]
    assert all(row.converged and not row.prior for row in rows)
    assert "no prior" in summarise_learners(rows)[0].ending


def test_fields_are_reproducible_and_samples_follow_the_model():
    size = FieldSize.parse("2x2")
    first, second = (random_field(size, True, 1.0, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first.weights, second.weights)
    X = first.sample(20_000, np.random.default_rng(0))
    exact = bt.infer(first.model, first.weights, method="exact")
    for v in range(4):
        np.testing.assert_allclose(np.bincount(X[:, v], minlength=2) / len(X), exact.variables[v], atol=0.02)
    assert first.weights.size == 3  # nodes, rows, columns
    np.testing.assert_allclose(np.abs(first.weights[1:]), 0.5)


@pytest.mark.parametrize("text", ["3", "3x", "K1", "3x3:1", "5x5", "x", "K6:"])
def test_sizes_that_make_no_sense_are_refused(text):
    with pytest.raises(ValueError, match="size"):
        FieldSize.parse(text)


def test_full_rank_leaves_nothing_for_consistency_to_do():
    points = run_rank(n_seeds=1, n_samples=200)
    for setting in {point.setting for point in points}:
        own = sorted((p for p in points if p.setting == setting), key=lambda p: p.share)
        assert own[-1].share == 1.0
        assert own[-1].added_rank == 0
        assert own[-1].violation < 5e-3
        assert max(p.violation for p in own) > 0.1
        assert own[0].added_rank == max(p.added_rank for p in own)
    assert len(rank_reading(points)) == 2


def test_figures_do_not_depend_on_the_clock(rows, slow_clock):
    again = run_learners(TINY)
    # As text, for NaN equals nothing.
    assert [str(replace(row, seconds=0.0)) for row in again] == [str(replace(row, seconds=0.0)) for row in rows]


def test_speed_counts_only_where_the_second_learner_converged(rows):
    timed = run_speed(TINY, rows, repeats=1)
    assert all(row.counts for row in timed)
    assert all(0.0 < s.least <= s.median <= s.most for s in summarise_speed(timed))
    none = run_speed(TINY, [], repeats=1)
    assert not any(row.counts for row in none)
    assert all(s.n == 0 and np.isnan(s.total) for s in summarise_speed(none))


def test_command_prints_tables_and_writes_files(tmp_path, capsys):
    arguments = ["bench", "learners", "--sizes", "2x2", "--strengths", "0.5", "--seeds", "1", "--samples", "100"]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "-o", str(tmp_path / "out")])
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    for word in ("convex likelihood", "trw", "held-out", "cccp / lbp", "camel0 / piecewise", "Rank", "refused"):
        assert word in out
    with (tmp_path / "out" / "rows.csv").open(encoding="utf-8") as stream:
        assert set(METRICS) <= set(next(csv.DictReader(stream)))
    found = json.loads((tmp_path / "out" / "learners.json").read_text(encoding="utf-8"))
    assert found["settings"]["sizes"] == ["2x2"]
    page = (tmp_path / "out" / "learners.md").read_text(encoding="utf-8")
    for name in ("held-out", "marginals-truth", "marginals-weights", "weights", "seconds", "rank"):
        assert f"({name}.svg)" in page
        assert "</svg>" in (tmp_path / "out" / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sizes", "9x9"], "joint states"),
        (["--strengths", "weak"], "--strengths"),
        (["--strengths", "-1"], "strengths"),
        (["--seeds", "0"], "n_seeds"),
        (["--output", "file"], "--output"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "learners", *options])
    err = capsys.readouterr().err
    assert stopped.value.code == 2
    assert words in err
    assert err.count("\n") == 1


def _one_field():
    return BenchSettings(sizes=("2x2",), strengths=(0.25,), n_seeds=1, n_samples=50)


class _Refuses:
    name = "dromedary"

    def learn(self, data, settings, workers):
        raise ValueError("one hump only")


class _TakesNoPrior:
    name = "flat"

    def learn(self, data, settings, workers):
        if not settings.prior.is_flat:
            raise ValueError("flat takes no prior")
        return METHODS["piecewise"].learn(data, settings, workers)
