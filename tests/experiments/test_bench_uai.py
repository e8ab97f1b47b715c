"""``bactrian bench uai``: its scores by hand, and a folder of two small problems."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from bactrian.experiments.bench import uai as bench
from bactrian.inference.uai import UaiModel, write_assignment, write_evidence, write_log_partition, write_marginals
from bactrian.inference.uai import write_model as write

MODEL = UaiModel([2, 2], [(0, 1), (1,)], [[[1.0, 2.0], [3.0, 4.0]], [1.0, 0.5]])


def test_scores_by_hand() -> None:
    expected = [np.array([1.0, 0.0]), np.array([0.5, 0.5])]
    assert bench.marginal_score(expected, expected) == 100.0
    assert bench.marginal_score([np.full(2, 0.5)] * 2, expected) == 0.0
    # Hellinger's distance of (.64, .36) from (1, 0) is sqrt(1 - .8), that of the uniform one sqrt(1 - sqrt(.5)).
    near = [np.array([0.64, 0.36]), expected[1]]
    assert bench.marginal_score(near, expected) == pytest.approx(100 * (1 - math.sqrt(0.2 / (1 - math.sqrt(0.5)))))
    trivial = math.log(4 * 2.5 * 0.75)
    truth = math.log(1 + 1 + 3 + 2)
    assert bench.partition_score(truth, truth, MODEL, {}) == 100.0
    assert bench.partition_score(trivial, truth, MODEL, {}) == pytest.approx(0.0, abs=1e-9)
    assert bench.partition_score(0.5 * (trivial + truth), truth, MODEL, {}) == pytest.approx(50.0)


def test_families() -> None:
    rows = [bench.Outcome("a_1", "MPE", 1.0, 0.5, "auto"), bench.Outcome("a_2", "MPE", 1.0, None, "too late")]
    rows += [bench.Outcome("b_1", "MPE", 1.0, 0.0, "auto")]
    found = {row[1]: row for row in bench.family_rows(rows)}
    assert found["a"] == ["MPE", "a", "2", "-inf", "-inf", "1 / 0 / 1", "1"]
    assert found["all"][5] == "1 / 1 / 1"


@pytest.mark.slow
def test_a_folder_is_solved_once(tmp_path) -> None:
    for name, z in (("pair_1", 7.0), ("pair_2", 4.0)):
        path = tmp_path / f"{name}.uai"
        write(path, MODEL)
        write_log_partition(f"{path}.PR", math.log(z))
    write_evidence(f"{tmp_path / 'pair_2.uai'}.evid", {1: 0})
    write_marginals(f"{tmp_path / 'pair_1.uai'}.MAR", [np.array([2 / 7, 5 / 7]), np.array([4 / 7, 3 / 7])])
    write_assignment(f"{tmp_path / 'pair_1.uai'}.MAP", [1, 1])
    output = tmp_path / "out.json"
    outcomes = bench.run_uai(tmp_path, output, seconds=60.0)
    scores = {(one.problem, one.task): one.score for one in outcomes}
    assert scores["pair_1", "MAR"] == pytest.approx(100.0, abs=1e-3)
    assert scores["pair_1", "PR"] == pytest.approx(100.0, abs=1e-3)
    assert scores["pair_2", "PR"] == pytest.approx(100.0, abs=1e-3)
    assert scores["pair_1", "MPE"] == pytest.approx(math.log10(1.5))
    kept = json.loads(output.read_text())
    kept["outcomes"][0]["score"] = 12.5
    output.write_text(json.dumps(kept))
    assert bench.run_uai(tmp_path, output, seconds=60.0)[0].score == 12.5
    with pytest.raises(ValueError, match="results for 60"):
        bench.run_uai(tmp_path, output, seconds=1.0)
    with pytest.raises(FileNotFoundError, match="expected models"):
        bench.run_uai(tmp_path / "none", output, seconds=60.0)
