"""One entry point for decoding: the most probable assignment of a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bactrian.engines.numba.threads import Workers
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack, pack_models
from bactrian.inference.arguments import check_free_states, check_list, checked_weights, evidence_list
from bactrian.inference.evidence import checked_evidence, contradiction
from bactrian.inference.factors import FactorScores, factor_scores
from bactrian.inference.maximum import (
    Assignments,
    decode_dual,
    decode_exactly,
    decode_max_product,
    score_assignments,
)
from bactrian.solvers.solution import ConvergenceWarning

Ints = NDArray[np.int64]
Models = Sequence[LogLinearModel] | GraphData
METHODS = ("exact", "max-product", "max-marginals", "dual")


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
        Sweeps over the variables (for the dual forward and backward count as one).
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


@dataclass(frozen=True)
class Settings:
    """Options of :func:`decode`."""

    inference: str = "rbp"
    tolerance: float | None = None
    max_iterations: int = 1000
    damping: float = 0.3
    memory_budget: int = 4 * 2**30
    n_threads: int | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not self.tolerance >= 0.0:
            raise ValueError(f"tolerance must be at least 0, found {self.tolerance}")
        if not self.max_iterations >= 1:
            raise ValueError(f"max_iterations must be at least 1, found {self.max_iterations}")
        if not 0.0 <= self.damping < 1.0:
            raise ValueError(f"damping must be at least 0 and below 1, found {self.damping}")
        if not self.memory_budget >= 0:
            raise ValueError(f"memory_budget must be at least 0, found {self.memory_budget}")


@overload
def decode(
    model: LogLinearModel,
    weights: ArrayLike,
    method: str = ...,
    evidence: Mapping[int, int] | None = ...,
    *,
    return_result: Literal[False] = ...,
    **options: Any,
) -> Ints: ...
@overload
def decode(
    model: LogLinearModel,
    weights: ArrayLike,
    method: str = ...,
    evidence: Mapping[int, int] | None = ...,
    *,
    return_result: Literal[True],
    **options: Any,
) -> Decoding: ...
@overload
def decode(
    model: Models,
    weights: ArrayLike,
    method: str = ...,
    evidence: Sequence[Mapping[int, int] | None] | None = ...,
    *,
    return_result: Literal[False] = ...,
    **options: Any,
) -> list[Ints]: ...
@overload
def decode(
    model: Models,
    weights: ArrayLike,
    method: str = ...,
    evidence: Sequence[Mapping[int, int] | None] | None = ...,
    *,
    return_result: Literal[True],
    **options: Any,
) -> list[Decoding]: ...
def decode(
    model: LogLinearModel | Models,
    weights: ArrayLike,
    method: str = "max-product",
    evidence: Any = None,
    *,
    return_result: bool = False,
    **options: Any,
) -> Ints | Decoding | list[Ints] | list[Decoding]:
    """Find a most probable assignment: the largest sum of cluster scores.

    Parameters
    ----------
    model : LogLinearModel, list of LogLinearModel, or GraphData
        What to decode; a list or packed graphs give a list, packed and threaded over.
    weights : (n_weights,)
        Weights of the features.
    method : str
        - ``"exact"``: max-product on the factor graph where that is a forest, on a junction tree elsewhere. Among
          best assignments the lexicographically first.
        - ``"max-product"``: exact on forests (variables and clusters without cycles); elsewhere sequential damped
          max-product, rounded by conditioning and climbing. No guarantee, and no bound.
        - ``"max-marginals"``: every variable's most probable state under ``infer(..., method=inference)``; the
          assignment with the fewest wrong variables to be expected, which may even have probability zero.
        - ``"dual"``: sequential reweighted messages (TRW-S and its kin for larger clusters): a bound that never rises,
          and a certificate of optimality where an assignment meets it.
    evidence : mapping of variable to state, or one per model
        Observed variables keep their states.
    return_result : bool
        Return :class:`Decoding` objects, with score, bound and certificate, in place of plain arrays.
    inference : str, default "rbp"
        Method of ``infer`` for ``"max-marginals"``.
    tolerance : float, optional
        Largest change of a message (1e-6 where left out) or least relative fall of the bound (1e-7) to go on for.
    max_iterations : int, default 1000
        Most sweeps.
    damping : float, default 0.3
        Share of the old message that max-product keeps, from 0 to below 1.
    memory_budget : int, default 4 GiB
        Bytes that the clique tables of a junction tree may take, at 8 an entry; models without loops need none.
        Variables in no cluster are refused where their states alone would exceed it.
    n_threads : int, optional
        Threads over models; one a core by default. The result does not depend on it.

    Returns
    -------
    array of ints, or Decoding
        One state per variable; a list of them for several models. Variables in no cluster are in state 0, and ties go
        to the first state: across assignments for ``"exact"``, and for ``"max-product"`` and ``"dual"`` on forests;
        elsewhere as far as single variables and pairs of them lead there at no cost.

    Raises
    ------
    ValueError
        Where no assignment that agrees with the evidence has positive probability, as far as the method can tell. An
        approximate method that finds only forbidden assignments, and no proof that there is no other, warns and
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
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    unknown = [name for name in options if name not in Settings.__dataclass_fields__]
    if unknown:
        raise TypeError(f"decode has no option {unknown[0]!r}; options are {', '.join(Settings.__dataclass_fields__)}")
    settings = Settings(**options)
    single = isinstance(model, LogLinearModel)
    if isinstance(model, Sequence) and not len(model):
        return []
    check_free_states(model, settings.memory_budget)
    data = _packed(model)
    checked = checked_weights(weights, data.n_weights)
    observed = _checked_all(data, [evidence] if single else evidence, single)
    workers = Workers(settings.n_threads)
    scores = factor_scores(data, checked, observed, workers)
    if method == "max-marginals":
        found = _max_marginals(model, checked, evidence, scores, settings)
    else:
        found = _maximise(scores, workers, method, settings)
    for m in np.flatnonzero(found.bound == -np.inf):
        raise contradiction(int(m), not single, observed)
    _warn_forbidden(found, method)
    optimal = found.optimal
    results = [_decoding(scores, found, bool(optimal[m]), m, method) for m in range(data.layout.n_instances)]
    if return_result:
        return results[0] if single else results
    return results[0].assignment if single else [result.assignment for result in results]


def _maximise(scores: FactorScores, workers: Workers, method: str, settings: Settings) -> Assignments:
    budget = settings.memory_budget
    if method == "exact":
        return decode_exactly(scores, workers, budget)
    limits = {"max_iterations": settings.max_iterations, "memory_budget": budget}
    if method == "dual":
        tolerance = 1e-7 if settings.tolerance is None else settings.tolerance
        return decode_dual(scores, workers, tolerance=tolerance, **limits)
    tolerance = 1e-6 if settings.tolerance is None else settings.tolerance
    return decode_max_product(scores, workers, tolerance=tolerance, damping=settings.damping, **limits)


def _decoding(scores: FactorScores, found: Assignments, optimal: bool, m: int, method: str) -> Decoding:
    first, last = scores.layout.instance_hubs[m : m + 2]
    return Decoding(
        assignment=found.states[first:last].copy(),
        score=float(found.score[m]),
        bound=None if found.bound[m] == np.inf else float(found.bound[m]),
        optimal=optimal,
        converged=bool(found.converged[m]),
        iterations=int(found.iterations[m]),
        method=method,
    )


def _max_marginals(
    model: LogLinearModel | Models,
    weights: NDArray[np.float64],
    evidence: Any,
    scores: FactorScores,
    settings: Settings,
) -> Assignments:
    from bactrian.inference.infer import infer

    given: Any = infer(
        model,
        weights,
        method=settings.inference,
        evidence=evidence,
        max_iterations=settings.max_iterations,
        memory_budget=settings.memory_budget,
        n_threads=settings.n_threads,
    )
    results = given if isinstance(given, Sequence) else [given]
    layout = scores.layout
    states = np.array([_first_mode(p) for result in results for p in result.variables], dtype=np.int64)
    return Assignments(
        states,
        score_assignments(scores, states),
        np.full(layout.n_instances, np.inf),
        np.array([result.converged for result in results], dtype=np.bool_),
        np.array([result.iterations for result in results], dtype=np.int64),
    )


def _first_mode(marginal: NDArray[np.float64]) -> int:
    """First state within rounding of the most probable."""
    return int(np.argmax(marginal >= marginal.max() - 1e-9))


def _warn_forbidden(found: Assignments, method: str) -> None:
    forbidden = np.flatnonzero(found.score == -np.inf)
    if forbidden.size and method != "max-marginals":
        warnings.warn(
            f"{method} found only assignments of probability zero for model {forbidden[0]}"
            f"{'' if forbidden.size == 1 else f' and {forbidden.size - 1} others'}; "
            "method='exact' would find one that is allowed, or prove that there is none",
            ConvergenceWarning,
            stacklevel=3,
        )


def _packed(model: Any) -> PackedData:
    if isinstance(model, LogLinearModel):
        return pack_models([model])
    if isinstance(model, GraphData | PackedData):
        return pack(model, need_labels=False)
    check_list(model)
    return pack_models(model)


def _checked_all(data: PackedData, evidence: Any, single: bool) -> list[dict[int, int]]:
    given = evidence_list(evidence, data.layout.n_instances)
    return [
        {}
        if seen is None
        else checked_evidence(seen, data.views.scopes(m)[0], "evidence" if single else f"evidence[{m}]")
        for m, seen in enumerate(given)
    ]
