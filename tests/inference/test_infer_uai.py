"""Exact inference on the models of the UAI 2014 competition, against the published answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.inference.uai import read_evidence, read_log_partition, read_marginals, read_model

QUICK = [
    "CSP_12",
    *(f"Grids_{i}" for i in (11, 12, 13, 14)),
    *(f"Promedus_{i}" for i in (11, 12, 13, 14, 15, 16)),
    *(f"Segmentation_{i}" for i in (11, 12, 13, 14, 15, 16)),
]
LONG = ["CSP_11", "CSP_13", *(f"Grids_{i}" for i in (15, 16, 17, 18))]  # every model there fits in 4 GiB


def load(folder: Path, name: str) -> tuple[bt.LogLinearModel, dict[int, int], float]:
    """The model, its evidence, and the logarithm of its constant tables."""
    read = read_model(folder / f"{name}.uai")
    with np.errstate(divide="ignore"):
        scores = {i: np.log(table) for i, table in enumerate(read.tables)}
    constant = float(sum(table.sum() for i, table in scores.items() if not read.scopes[i]))
    kept = [i for i, scope in enumerate(read.scopes) if scope]
    graph = bt.ClusterGraph(read.cardinalities, [read.scopes[i] for i in kept])
    model = bt.LogLinearModel(graph, [np.zeros((scores[i].size, 0)) for i in kept], [scores[i] for i in kept])
    return model, read_evidence(folder / f"{name}.uai.evid", read.cardinalities), constant


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_exact_agrees_with_the_published_answers(real_data: Path, name: str) -> None:
    folder = real_data / "uai"
    model, evidence, constant = load(folder, name)
    result = bt.infer(model, np.zeros(0), "exact", evidence)
    answers = read_marginals(folder / f"{name}.uai.MAR")
    assert max(np.abs(m - a).max() for m, a in zip(result.variables, answers, strict=True)) <= 1e-4
    published = read_log_partition(folder / f"{name}.uai.PR") / np.log(10)
    printed = (folder / f"{name}.uai.PR").read_text().split()[-1]
    rounding = 0.5 * 10.0 ** -len(printed.partition(".")[2])  # six digits are published, however large the number
    assert (result.log_partition + constant) / np.log(10) == pytest.approx(published, abs=max(1e-3, rounding))


@pytest.mark.parametrize("name", ["Grids_15", "CSP_11"])
def test_what_does_not_fit_is_refused(real_data: Path, name: str) -> None:
    model, evidence, _ = load(real_data / "uai", name)
    with pytest.raises(MemoryBudgetError, match="width"):
        bt.infer(model, np.zeros(0), "exact", evidence, memory_budget=2**16)
