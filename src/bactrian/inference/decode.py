"""One entry point for decoding: the most probable assignment of a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Ints
from bactrian.engines.numba.decoding import Assignments
from bactrian.errors import Number, check_callback, check_choice, check_flag, check_numbers, warn
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.inference.factors import FactorScores, factor_scores
from bactrian.inference.infer import METHODS as INFERENCE
from bactrian.inference.infer import infer
from bactrian.inference.maximum import (
    certified,
    decode_auto,
    decode_dual,
    decode_exactly,
    decode_max_product,
    score_assignments,
)
from bactrian.inference.problem import (
    Evidence,
    bytes_of,
    check_free_states,
    checked_weights,
    contradiction,
    packed,
)
from bactrian.inference.result import InferenceCallback, InferenceProgress, InferenceResult
from bactrian.parallel.threads import Deadline, Workers
from bactrian.solvers.solution import ConvergenceWarning

Models = Sequence[LogLinearModel] | GraphData
METHODS = ("auto", "exact", "max-product", "max-marginals", "dual")


@dataclass(frozen=True)
class Decoding:
    """An assignment of one model and what is known about it.

    Attributes
    ----------
    assignment : (n_variables,) ints
        State of each variable.
    score : float
        Joint log score of the assignment, not normalised.
    bound : float or None
        No assignment scores more than this; None where the method gives no bound.
    optimal : bool
        The assignment is certified to be a best one: it was found exactly, or its score meets the bound.
    converged : bool
        Whether the method's stopping rule was met.
    iterations : int
        Sweeps over the variables (for the dual forward and backward count as one), or rounds of local search.
    method : str
        What was done.
    """

    assignment: Ints
    score: float
    bound: float | None
    optimal: bool
    converged: bool
    iterations: int
    method: str


class _DecodingOptions(TypedDict, total=False):
    """Keywords that all forms of :func:`decode` share."""

    inference: str
    tolerance: float | None
    max_iterations: int
    damping: float
    max_seconds: float | None
    memory_budget: int | str | None
    n_threads: int | None
    callback: InferenceCallback | None


#: Options that are numbers.
_NUMBERS = {
    "tolerance": Number(least=0, optional=True),
    "max_iterations": Number(least=1, whole=True),
    "damping": Number(least=0, below=1),
    "max_seconds": Number(positive=True, optional=True),
    "n_threads": Number(least=1, whole=True, optional=True),
}


@overload
def decode(
    model: LogLinearModel, weights: ArrayLike, method: str = ..., evidence: Evidence | None = ..., *,
    return_result: Literal[False] = ..., **options: Unpack[_DecodingOptions],
) -> Ints: ...  # fmt: skip
@overload
def decode(
    model: LogLinearModel, weights: ArrayLike, method: str = ..., evidence: Evidence | None = ..., *,
    return_result: Literal[True], **options: Unpack[_DecodingOptions],
) -> Decoding: ...  # fmt: skip
@overload
def decode(
    model: Models, weights: ArrayLike, method: str = ..., evidence: Sequence[Evidence | None] | None = ..., *,
    return_result: Literal[False] = ..., **options: Unpack[_DecodingOptions],
) -> list[Ints]: ...  # fmt: skip
@overload
def decode(
    model: Models, weights: ArrayLike, method: str = ..., evidence: Sequence[Evidence | None] | None = ..., *,
    return_result: Literal[True], **options: Unpack[_DecodingOptions],
) -> list[Decoding]: ...  # fmt: skip
def decode(
    model: LogLinearModel | Models,
    weights: ArrayLike,
    method: str = "auto",
    evidence: Any = None,
    *,
    return_result: bool = False,
    inference: str = "rbp",
    tolerance: float | None = None,
    max_iterations: int = 1000,
    damping: float = 0.3,
    max_seconds: float | None = 20.0,
    memory_budget: int | str | None = None,
    n_threads: int | None = None,
    callback: InferenceCallback | None = None,
) -> Ints | Decoding | list[Ints] | list[Decoding]:
    """Find a most probable assignment: the largest sum of cluster scores.

    Parameters
    ----------
    model : LogLinearModel, list of LogLinearModel, or GraphData
        A list, or a GraphData, gives a list of results; its models are divided among threads.
    weights : (n_weights,)
        Weights of the features.
    method : str
        - ``"auto"``: exact on forests and where a junction tree fits and is worth its time. Elsewhere ``"dual"`` and
          ``"max-product"``, then local search by large neighbourhoods from the better of their assignments, until the
          time is up or the bound is met. Ctrl-C ends it with the best so far.
        - ``"exact"``: max-product on the factor graph where that is a forest, on a junction tree elsewhere.
        - ``"max-product"``: exact on forests (variables and clusters without cycles); elsewhere sequential damped
          max-product, rounded by conditioning and climbing. No guarantee, and no bound.
        - ``"max-marginals"``: every variable's most probable state under ``infer(..., method=inference)``; it minimises
          the expected number of wrong variables, but may even have probability zero.
        - ``"dual"``: sequential reweighted messages (TRW-S and its kin for larger clusters): a bound that never rises,
          and a certificate of optimality where an assignment meets it.
    evidence : mapping of variable to state, or one per model
        Observed variables keep their states.
    return_result : bool
        Return :class:`Decoding` objects, with score, bound and certificate, in place of plain arrays.
    inference : str
        Method of ``infer`` for ``"max-marginals"``.
    tolerance : float, optional
        Decoding stops at this largest change of a message (by default 1e-6) or relative decrease of the bound (1e-7).
    max_iterations : int
        Maximum number of sweeps, and of rounds of local search.
    damping : float
        Share of the old message that max-product keeps, from 0 to below 1.
    max_seconds : float, optional
        Time limit, which ``"exact"`` does not look at; None for none. Compiling, on first use, does not count.
    memory_budget : int or str, optional
        Memory limit of the clique tables of a junction tree, in bytes, at 8 per entry, or such as ``"6G"``; by default
        most of what is free. Models without loops need none.
        Variables in no cluster are refused if their states alone would exceed it.
    n_threads : int, optional
        Number of threads, which share models; one per core by default. It does not change the result, but through the
        time that ``"auto"`` has left.
    callback : callable, optional
        Called with an :class:`InferenceProgress` between rounds of the search of ``"auto"``; return True to stop.

    Returns
    -------
    array of ints, or Decoding
        One state per variable; a list of them for several models. Variables in no cluster are in state 0. Ties go to
        the first state, variable by variable: from the roots of a forest or junction tree down for ``"exact"``, and for
        ``"max-product"`` and ``"dual"`` on forests; elsewhere as far as single variables and pairs lead there.

    Raises
    ------
    ValueError
        If no assignment that agrees with the evidence has positive probability, as far as the method can tell. An
        approximate method that finds only forbidden assignments, but cannot prove that there is no other, warns and
        returns one of them with score -inf.
    MemoryBudgetError
        A ValueError: the junction tree of ``"exact"`` would not fit in the budget.

    Examples
    --------
    >>> import bactrian as bt
    >>> graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])
    >>> table = [[1.0], [0.0], [0.0], [1.0]]
    >>> model = bt.LogLinearModel(graph, [table, table, table])
    >>> bt.decode(model, [1.0])
    array([0, 0, 0])
    >>> bt.decode(model, [-1.0], method="exact", evidence={1: 1})
    array([0, 1, 0])
    """
    budget = bytes_of(memory_budget)
    limits: dict[str, Any] = {"max_iterations": max_iterations, "memory_budget": budget}
    check_choice("method", method, METHODS)
    check_choice("inference", inference, INFERENCE)
    check_flag("return_result", return_result)
    numbers = {"tolerance": tolerance, "damping": damping, "max_seconds": max_seconds, "n_threads": n_threads}
    check_numbers(_NUMBERS, numbers | limits)
    check_callback(callback)
    if isinstance(model, Sequence) and not len(model):
        return []
    began, deadline = time.perf_counter(), Deadline(max_seconds)
    check_free_states(model, budget)
    single = isinstance(model, LogLinearModel)
    data, observed = packed(model, evidence)
    weights = checked_weights(weights, data.n_weights)
    workers = Workers(n_threads)
    scores = factor_scores(data, weights, observed, workers)

    def tell(found: Assignments, rounds: int) -> bool:
        gap, n = float((found.bound - found.score).max()), scores.layout.n_instances
        optimal, seconds = int(certified(found).sum()), time.perf_counter() - began
        told = InferenceProgress("auto", rounds, gap, optimal, n, seconds, float(found.score.sum()))
        return callback is not None and bool(callback(told))

    with deadline:
        if method == "auto":
            found = decode_auto(scores, workers, deadline, tell=tell, **limits)
        elif method == "exact":
            found = decode_exactly(scores, workers, budget)
        elif method == "dual":
            tolerance = 1e-7 if tolerance is None else float(tolerance)
            found = decode_dual(scores, workers, tolerance=tolerance, late=deadline.late, **limits)
        elif method == "max-product":
            tolerance, damping = 1e-6 if tolerance is None else float(tolerance), float(damping)
            found = decode_max_product(
                scores, workers, tolerance=tolerance, damping=damping, late=deadline.late, **limits
            )
        else:
            limits["n_threads"] = n_threads
            limits["max_seconds"] = None if deadline.left is None else max(deadline.left, 1e-3)
            marginals: Any = infer(model, weights, inference, evidence, **limits)
            found = _modes(scores, [marginals] if single else marginals)
    for m in np.flatnonzero(found.bound == -np.inf):
        raise contradiction(int(m), not single, observed)
    _warn_forbidden(found, method)
    optimal = certified(found)
    hubs = scores.layout.instance_hubs
    results = [
        Decoding(
            assignment=found.states[hubs[m] : hubs[m + 1]].copy(),
            score=float(found.score[m]),
            bound=None if found.bound[m] == np.inf else float(found.bound[m]),
            optimal=bool(optimal[m]),
            converged=bool(found.converged[m]),
            iterations=int(found.iterations[m]),
            method=method,
        )
        for m in range(data.layout.n_instances)
    ]
    if return_result:
        return results[0] if single else results
    return results[0].assignment if single else [result.assignment for result in results]


def _modes(scores: FactorScores, results: Sequence[InferenceResult]) -> Assignments:
    """The first mode of every variable's marginal, within rounding."""
    states = np.array([np.argmax(p >= p.max() - 1e-9) for result in results for p in result.variables], dtype=np.int64)
    return Assignments(
        states,
        score_assignments(scores, states),
        np.full(scores.layout.n_instances, np.inf),
        np.array([result.converged for result in results], dtype=np.bool_),
        np.array([result.iterations for result in results], dtype=np.int64),
    )


def _warn_forbidden(found: Assignments, method: str) -> None:
    forbidden = np.flatnonzero(found.score == -np.inf)
    if forbidden.size and method != "max-marginals":
        warn(
            f"{method} found only assignments of probability zero for model {forbidden[0]}"
            f"{'' if forbidden.size == 1 else f' and {forbidden.size - 1} others'}; "
            "method='exact' would find one that is allowed, or prove that there is none",
            ConvergenceWarning,
        )
