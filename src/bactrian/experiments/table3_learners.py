"""The rows of Table 3: learners, where they start, the inference that matches them, and the paper's numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.inference.infer import infer
from bactrian.learning.camel import Camel
from bactrian.learning.learn import Learner, learn
from bactrian.learning.likelihood import Likelihood
from bactrian.model.graph_data import GraphData
from bactrian.objective.entropy import CountingNumbers
from bactrian.solvers.solution import ConvergenceWarning, Solution

Floats = NDArray[np.float64]

#: Node and edge clusters count 1, sepsets nothing: the entropy of piecewise training and CAMEL(0).
CLUSTERS_ONLY = CountingNumbers(1.0, 0.0)


@dataclass(frozen=True)
class TableRow:
    """A row of the table: how it learns, and how its model is used with the entropy it learned with."""

    name: str
    method: str | Learner
    matched: str  #: a method of :func:`bactrian.infer`
    numbers: CountingNumbers | None = None  #: of that method
    start: str | None = None  #: row whose weights it starts from
    prior_from: str | None = None  #: row with the same objective, whose chosen prior it takes
    paper: tuple[float, float] | None = None  #: accuracy in the paper and its standard deviation
    is_camel: bool = False


ROWS = (
    TableRow("piecewise", "piecewise", "convex", CLUSTERS_ONLY, paper=(78.6, 1.3)),
    TableRow("CAMEL(0)", "camel0", "convex", CLUSTERS_ONLY, paper=(82.9, 0.9), is_camel=True),
    TableRow("LBP from zero", Likelihood("lbp", max_sweeps=200), "bp", prior_from="CCCP", paper=(53.2, 4.2)),
    TableRow("LBP from piecewise", Likelihood("lbp", max_sweeps=200), "bp", start="piecewise", prior_from="CCCP"),
    TableRow("CCCP", "cccp", "bp", paper=(84.4, 0.6), is_camel=True),
    TableRow("CCCP (empirical)", "cccp-empirical", "bp", prior_from="CCCP", paper=(84.4, 0.5), is_camel=True),
    TableRow("CCCP, folded", Camel(fold=True), "bp", prior_from="CCCP", is_camel=True),
    TableRow("convex", Camel(entropy="convex"), "convex", is_camel=True),
    TableRow("TRW", Camel(entropy="trw"), "trw", is_camel=True),
)


def fit(
    row: TableRow,
    data: GraphData,
    *,
    prior_variance: float | None,
    start: Any = None,
    tolerance: float = 1e-4,
    max_iterations: int = 2000,
    max_seconds: float | None = None,
    max_relinearisations: int = 200,
    n_threads: int | None = None,
) -> Solution:
    """Learn a row's weights; where it stops short its status says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return learn(
            data,
            row.method,
            prior_variance=prior_variance,
            tolerance=tolerance,
            max_iterations=max_iterations,
            max_seconds=max_seconds,
            max_relinearisations=max_relinearisations,
            start=start,
            n_threads=n_threads,
        )


def marginals(
    row: TableRow, data: GraphData, weights: Floats, inference: str, n_threads: int | None = None
) -> tuple[Floats, float]:
    """Marginals (n_nodes, n_labels) and the part of the graphs on which message passing converged.

    ``inference`` is a method of :func:`bactrian.infer` or ``"matched"``: that with the entropy of the row's learner.
    """
    method = row.matched if inference == "matched" else inference
    options: dict[str, Any] = {"tolerance": 1e-6, "max_iterations": 300, "n_threads": n_threads}
    if method == "convex" and row.numbers is not None:
        options["counting_numbers"] = row.numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = infer(data, weights, method=method, **options)
    found = np.array([marginal for result in results for marginal in result.variables])
    return found, float(np.mean([result.converged for result in results]))
