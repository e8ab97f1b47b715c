"""The rows of Table 3: learners, where they start, whose choices they take, and the paper's numbers."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.camel import Camel
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import graph_marginals
from bactrian.learners.learn import Learner, followed, learn, matched_inference
from bactrian.learners.likelihood import Likelihood
from bactrian.solvers.solution import ConvergenceWarning, Solution, Status

_LBP = Likelihood("lbp", max_sweeps=200)


@dataclass(frozen=True)
class TableRow:
    """A row of the table."""

    name: str
    method: str | Learner
    start: str | None = None  #: row whose weights it starts from
    follows: str | None = None  #: row whose solution it replaces by the path that inference can follow
    choices_from: str | None = None  #: row with the same or a like objective, whose chosen prior it takes
    node_factors: tuple[str, ...] = ("clusters",)  #: where node scores may sit; choices change what is learned
    paper: tuple[float, float] | None = None  #: accuracy in the paper and its standard deviation
    is_camel: bool = False
    edges: str = "tables"  #: or "features": four tables, weighted by length and contrast of a boundary; or "none"
    max_iterations: int = 1500  #: quasi-Newton steps; some ten seconds on two cores where learning does not end earlier
    rough_iterations: int = 60  #: the same in cross-validation; relinearised learners solve many problems
    few_iterations: int = 300  #: the same in the second part, which has more splits and scores
    most_steps: int | None = None  #: relinearisations of its path, of which held-out images choose how many it takes

    @property
    def has_bethe_entropy(self) -> bool:
        """Whether its solution should be a fixed point of belief propagation."""
        return matched_inference(self.method)[0] == "rbp" and self.follows is None and self.most_steps is None

    @property
    def needs_prior(self) -> bool:
        """Four times as many weights of tables call for a prior, and without one few steps of a path have an end."""
        return self.edges == "features" or self.most_steps is not None


# CAMEL(0) starts from nothing: its optimum is unique, and piecewise weights, which "camel0" starts from, run away
# without a prior. LBP's rows do depend on the start.
_CCCP: dict[str, Any] = {"is_camel": True, "max_iterations": 500, "rough_iterations": 240, "few_iterations": 250}
_LBP_ROW: dict[str, Any] = {"choices_from": "CCCP", "max_iterations": 150, "few_iterations": 30}
ROWS = (
    TableRow("node weights, no edges", Camel(entropy="clusters"), edges="none"),
    TableRow("piecewise", "piecewise", node_factors=("clusters", "edges"), paper=(78.6, 1.3)),
    TableRow(
        "CAMEL(0)", Camel(entropy="clusters"), node_factors=("clusters", "edges"), paper=(82.9, 0.9), is_camel=True
    ),
    TableRow("LBP from zero", _LBP, paper=(53.2, 4.2), **_LBP_ROW),
    TableRow("LBP from piecewise", _LBP, start="piecewise", **_LBP_ROW),
    TableRow("CCCP", "cccp", paper=(84.4, 0.6), **_CCCP),
    TableRow("CCCP (empirical)", "cccp-empirical", choices_from="CCCP", paper=(84.4, 0.5), **_CCCP),
    TableRow("CCCP, folded", Camel(fold=True), choices_from="CCCP", **_CCCP),
    TableRow("CCCP, followed", "cccp", follows="CCCP", choices_from="CCCP", **{**_CCCP, "few_iterations": 300}),
    TableRow(
        "CCCP, steps chosen", Camel(tight=True), most_steps=4, choices_from="CCCP", **{**_CCCP, "few_iterations": 1000}
    ),
    TableRow("convex", Camel(entropy="convex"), is_camel=True, max_iterations=500, few_iterations=100),
    TableRow("TRW", Camel(entropy="trw"), choices_from="convex", is_camel=True, max_iterations=20),
    TableRow(
        "CAMEL(0), edge features",
        Camel(entropy="clusters"),
        choices_from="CAMEL(0)",
        node_factors=("clusters", "edges"),
        is_camel=True,
        edges="features",
    ),
    TableRow("CCCP, edge features", "cccp", choices_from="CCCP", edges="features", **_CCCP),
    TableRow(
        "convex, edge features",
        Camel(entropy="convex"),
        choices_from="convex",
        is_camel=True,
        edges="features",
        max_iterations=500,
    ),
)
#: The same by name.
ROW = {row.name: row for row in ROWS}


@dataclass(frozen=True)
class Budget:
    """When learning stops."""

    tolerance: float = 1e-4
    max_iterations: int | None = None  #: quasi-Newton steps of one training run; by default the row's own
    few: bool = False  #: whether these are the row's few
    max_relinearisations: int = 400
    max_seconds: float | None = None  #: of one training run; where it strikes, figures depend on the machine
    n_threads: int | None = None

    def options(self, row: TableRow, prior_variance: float | None) -> dict[str, Any]:
        """What :func:`bactrian.learn` is given for a row."""
        own = row.few_iterations if self.few else row.max_iterations
        return {
            "prior_variance": prior_variance,
            "tolerance": self.tolerance,
            "max_iterations": own if self.max_iterations is None else self.max_iterations,
            "max_relinearisations": self.max_relinearisations,
            "max_seconds": self.max_seconds,
            "n_threads": self.n_threads,
        }


@dataclass(frozen=True)
class Fitted:
    """A solution and what it took, from packing the data to the last belief."""

    solution: Solution
    seconds: float
    cpu_seconds: float


def fit(
    row: TableRow,
    data: GraphData,
    limits: Budget,
    *,
    prior_variance: float | None,
    start: Any = None,
    steps: int | None = None,
) -> Fitted:
    """Learn a row's weights; where it stops short its status says so. ``start``: weights, or the solution to follow.

    ``steps``: relinearisations of a path, all inner problems of which are solved; the solution then has the path.
    """
    began, cpu = time.perf_counter(), time.process_time()
    options = limits.options(row, prior_variance)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        if row.follows is not None:
            solution = followed(data, start, row.method, **options)
        elif steps is None:
            solution = learn(data, row.method, start=start, **options)
        else:
            kept: dict[int, Floats] = {}
            options["max_relinearisations"] = steps
            solution = learn(
                data, row.method, callback=lambda at: kept.update({at.outer: at.weights.copy()}), **options
            )
            # Where an inner problem took no step, the weights are those before.
            path = [kept[max(k for k in kept if k <= outer)] for outer in range(len(solution.history))]
            solved = solution.status is Status.ITERATION_LIMIT and len(path) == steps + 1
            solved = solved and sum(record.iterations for record in solution.history) < options["max_iterations"]
            solution = replace(
                solution, path=np.stack(path), status=Status.FOLLOWED if solved else solution.status, attained=1.0
            )
    return Fitted(solution, time.perf_counter() - began, time.process_time() - cpu)


def marginals(
    row: TableRow, data: GraphData, solution: Solution, inference: str, n_threads: int | None = None
) -> tuple[Floats, float]:
    """Marginals (n_nodes, n_labels) and the part of the graphs on which message passing converged.

    ``inference`` is a method of :func:`bactrian.infer` or ``"matched"``: that with the entropy of the row's learner, or
    along the path that it followed.
    """
    method, options = matched_inference(row.method) if inference == "matched" else (inference, {})
    weights = solution.weights
    if inference == "matched" and solution.path is not None:
        method, weights = "replay", solution.path
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        found = graph_marginals(
            data, weights, method, tolerance=1e-6, max_iterations=300, n_threads=n_threads, **options
        )
    return found.nodes, float(np.mean([result.converged for result in found.results]))
