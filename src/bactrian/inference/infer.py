"""One entry point for all inference methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Floats
from bactrian.camel.entropy import REGISTERED, CountingNumbers, carve, concave_numbers
from bactrian.errors import (
    ArgumentError,
    ArgumentTypeError,
    Number,
    check_callback,
    check_choice,
    check_flag,
    check_numbers,
    warn,
)
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.ragged import pointer
from bactrian.inference.annealing import annealing
from bactrian.inference.auto import auto
from bactrian.inference.double_loop import TIGHTENED, double_loop, replay, tightened
from bactrian.inference.exact import exact
from bactrian.inference.gibbs import gibbs
from bactrian.inference.mean_field import mean_field
from bactrian.inference.problem import Options, Problem, bytes_of, new_problem
from bactrian.inference.propagation import propagate
from bactrian.inference.result import InferenceCallback, InferenceResult, VariableMarginals
from bactrian.solvers.solution import ConvergenceWarning


@overload
def infer(
    model: LogLinearModel,
    weights: ArrayLike,
    method: str = ...,
    evidence: Mapping[int, int] | None = ...,
    **options: Any,
) -> InferenceResult: ...
@overload
def infer(
    model: Sequence[LogLinearModel] | GraphData,
    weights: ArrayLike,
    method: str = ...,
    evidence: Sequence[Mapping[int, int] | None] | None = ...,
    **options: Any,
) -> list[InferenceResult]: ...
def infer(
    model: LogLinearModel | Sequence[LogLinearModel] | GraphData,
    weights: ArrayLike,
    method: str = "auto",
    evidence: Any = None,
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
    max_seconds: float | None = None,
    damping: float | None = None,
    schedule: str = "sequential",
    counting_numbers: CountingNumbers | str | None = None,
    fallback: str | None = None,
    tighten: int = 0,
    start: InferenceResult | Sequence[InferenceResult] | None = None,
    memory_budget: int | str | None = None,
    n_threads: int | None = None,
    seed: int = 0,
    callback: InferenceCallback | None = None,
    **more: Any,
) -> InferenceResult | list[InferenceResult]:
    """Marginals and partition function of a model at given weights.

    Parameters
    ----------
    model : LogLinearModel, list of LogLinearModel, or GraphData
        A list, or a GraphData, gives a list of results; its models are divided among threads.
    weights : (n_weights,), for ``"replay"`` (n_steps, n_weights)
        Weights of the features.
    method : str
        ``"auto"``: exact if that fits memory and time, else the best approximation that is found in ``max_seconds``, 20
        by default; see the result's ``route``. ``"exact"``: junction tree, refused if it exceeds ``memory_budget``;
        ``"bp"``: loopy belief propagation;
        ``"rbp"``: residual belief propagation; ``"trw"``: tree-reweighted, whose log-partition is an upper bound at
        convergence; ``"convex"``: a concave entropy, by default kappa = 1 for clusters and ``max(1 - d, -sum
        1/|cluster|)`` for variables; ``"double-loop"``: minimises the Bethe free energy and always converges;
        ``"replay"``: the double loop along a path of weights, ``solution.path``, one relinearisation per row but the
        last, which on the training data ends at the learned beliefs; ``"mean-field"``: fully factorised, a lower bound;
        ``"gibbs"``: sampling; ``"annealing"``: annealed importance sampling, with an interval for the log-partition.
    evidence : dict, optional
        Observed states by variable; for several models a list of such dicts or None.
    tolerance : float
        Largest change of a marginal (for ``"rbp"`` of a message, in log space) at which message passing stops. A state
        whose belief still rises by more than a hundredth of itself counts too, however small it is.
    max_iterations, max_seconds
        Limits, in sweeps over the model (relinearisations of the double loop) and in time; compiling, on first use,
        does not count. At a limit ``converged`` is False, with a :class:`ConvergenceWarning`.
    damping : float, optional
        Share of the old message that an update keeps, in log space, from 0 to below 1. By default 0; ``"trw"`` and
        ``"convex"`` damp models on which their updates oscillate.
    schedule : {"sequential", "parallel"}
        Order of the updates of ``"bp"``.
    counting_numbers : CountingNumbers, "clusters" or the name of a registered entropy, optional
        Entropy of ``"convex"``; numbers that are not provably concave are refused. ``"clusters"`` is the clusters-only
        entropy of piecewise training and CAMEL(0): 1 for clusters that were given, 0 for hubs that were not.
    fallback : {None, "double-loop"}
        Method for models on which ``"rbp"`` or ``"bp"`` does not converge.
    tighten : int
        For ``"bp"``, ``"rbp"`` and ``"double-loop"``: maximum number of triplets of variables to add per model, on the
        cycles that correct Bethe's solution most; the double loop then minimises the free energy with them (Sontag &
        Jaakkola, NIPS 2007). A triplet costs a table of its three variables. Give at least the number of independent
        cycles (twice that for grids): with fewer the marginals can be worse than without. 0 for none.
    start : result or list of results, optional
        Earlier results on the same graphs, whose messages to start from.
    memory_budget : int or str, optional
        Memory limit of the messages of one junction tree, in bytes or as ``"6G"``, at 8 bytes per entry; by default
        three quarters of what is free. Tables of cliques are not held, and may be 64 times as large. The model's own
        tables do not count, and models without loops need no others. For every method, variables in no cluster are
        refused if their states alone would exceed it.
    n_threads : int, optional
        Number of threads, which share models and large graphs; one per core by default. It does not change the result.
    seed : int
        Seed of ``"gibbs"`` and ``"annealing"``, and of the restarts of ``"mean-field"``.
    callback : callable, optional
        Called with an :class:`InferenceProgress` between rounds; return True to stop.
    **more
        Options of ``"mean-field"``, ``"gibbs"`` and ``"annealing"``: see
        :func:`bactrian.inference.mean_field.mean_field`, :func:`bactrian.inference.gibbs.gibbs` and
        :func:`bactrian.inference.annealing.annealing`.

    Returns
    -------
    InferenceResult or list of InferenceResult

    Raises
    ------
    ValueError
        For bad arguments, and for evidence of probability zero.
    MemoryBudgetError
        If a junction tree would not fit.

    Examples
    --------
    >>> import bactrian as bt
    >>> graph = bt.ClusterGraph([2, 2], [(0, 1)])
    >>> model = bt.LogLinearModel(graph, [[[1.0], [0.0], [0.0], [1.0]]])
    >>> bt.infer(model, [0.0], evidence={0: 1}).variables[1].tolist()
    [0.5, 0.5]
    """
    if method == "auto" and max_seconds is None:
        max_seconds = _AUTO_SECONDS
    given: dict[str, Any] = {
        "tolerance": tolerance, "max_iterations": max_iterations, "max_seconds": max_seconds, "damping": damping,
        "schedule": schedule, "counting_numbers": counting_numbers, "fallback": fallback,
        "memory_budget": bytes_of(memory_budget), "seed": seed,
    }  # fmt: skip
    check_inference(method, {**given, "tighten": tighten, "n_threads": n_threads, **more})
    check_callback(callback)
    options = Options(**{**given, "tolerance": float(tolerance)}, start=start, callback=callback)
    problem = new_problem(model, weights, evidence, options, n_threads, has_path=method == "replay")
    with nullcontext() if method == "auto" else problem.deadline:
        results = tightened(problem, METHODS[method], tighten) if tighten else METHODS[method](problem, **more)
    _warn_unconverged(method, results)
    return results if problem.many else results[0]


def _warn_unconverged(method: str, results: Sequence[InferenceResult]) -> None:
    """Warn once about all results that did not converge."""
    short = [m for m, result in enumerate(results) if not result.converged]
    if not short:
        return
    worst = max(short, key=lambda m: results[m].residual)
    which = "" if len(results) == 1 else f"{len(short)} of {len(results)} models, worst model {worst}, "
    warn(
        f"{method} did not converge: {results[worst].status}; raise the limit or the tolerance, or choose 'convex'",
        ConvergenceWarning,
        f" ({which}residual {results[worst].residual:.1e})",
    )


#: Time limit of "auto" where none is given.
_AUTO_SECONDS = 20.0

#: Options that are numbers, of all methods and of some alone.
_NUMBERS = {
    "tolerance": Number(positive=True, below=np.inf),
    "max_iterations": Number(least=1, whole=True),
    "max_seconds": Number(positive=True, optional=True),
    "damping": Number(least=0, below=1, optional=True),
    "tighten": Number(least=0, whole=True),
    "memory_budget": Number(least=1),
    "n_threads": Number(least=1, whole=True, optional=True),
    "seed": Number(least=0, whole=True),
}
_OWN_NUMBERS = {
    "gibbs": {
        "n_samples": Number(least=4, whole=True),
        "burn_in": Number(least=0, whole=True),
        "thinning": Number(least=1, whole=True),
        "n_chains": Number(least=1, whole=True),
        "r_hat": Number(least=1),
    },
    "mean-field": {"restarts": Number(least=1, whole=True)},
    "annealing": {"n_samples": Number(least=1, whole=True), "width": Number(positive=True, below=np.inf)},
}
_OWN_FLAGS = {"gibbs": ("blocked",)}
_CHOICES = ("schedule", "counting_numbers", "fallback")


def check_inference(method: str, given: Mapping[str, Any]) -> None:
    """Refuse a method or options that :func:`infer` does not take, before any work.

    Raises
    ------
    ArgumentError
        A ValueError (or TypeError) with the name of the option.
    """
    check_choice("method", method, METHODS)
    own = _OWN_NUMBERS.get(method, {})
    flags = _OWN_FLAGS.get(method, ())
    for name in given:
        if name not in (*_NUMBERS, *_CHOICES, *own, *flags):
            raise ArgumentTypeError(name, f"is not an option of {method!r}")
    check_numbers({**_NUMBERS, **own}, given)
    for name in flags:
        check_flag(name, given.get(name, False))
    check_choice("schedule", given.get("schedule", "sequential"), ("sequential", "parallel"))
    if given.get("fallback") is not None:
        if given["fallback"] != "double-loop":
            raise ArgumentError("fallback", f"must be None or 'double-loop', found {given['fallback']!r}")
        _check_method("fallback", method, ("bp", "rbp"))
    if given.get("tighten", 0):
        _check_method("tighten", method, TIGHTENED)
    if given.get("counting_numbers") is not None:
        _check_method("counting_numbers", method, ("convex",))
        numbers = given["counting_numbers"]
        if not isinstance(numbers, CountingNumbers | str):
            found = type(numbers).__name__
            raise ArgumentTypeError("counting_numbers", f"must be CountingNumbers or 'clusters', found {found}")
        if isinstance(numbers, str) and numbers != "clusters" and numbers not in REGISTERED:
            raise ArgumentError("counting_numbers", f"must be CountingNumbers or 'clusters', found {numbers!r}")


def _check_method(option: str, method: str, methods: Sequence[str]) -> None:
    """Refuse an option that ``method`` does not have."""
    if method not in methods:
        raise ArgumentError(option, f"is an option of {', '.join(map(repr, methods))}, not of {method!r}")


def _propagation(method: str, schedule: str | None) -> Callable[[Problem], list[InferenceResult]]:
    def run(problem: Problem) -> list[InferenceResult]:
        results = propagate(problem, method, schedule or problem.options.schedule)
        return _finished(problem, results)

    return run


def _finished(problem: Problem, results: list[InferenceResult]) -> list[InferenceResult]:
    """Let the fallback finish what did not converge."""
    short = np.array([not result.converged for result in results], dtype=bool)
    if problem.options.fallback is None or not short.any():
        return results
    options = replace(problem.options, start=results)
    finished = double_loop(replace(problem, options=options), skipped=~short)
    return [
        replace(new, status=f"{new.status} ({old.method} before it {old.status})") if failed else old
        for old, new, failed in zip(results, finished, short, strict=True)
    ]


def _tree_reweighted(problem: Problem) -> list[InferenceResult]:
    carving = carve(problem.data, "trw", problem.deadline)
    return propagate(problem, "trw", "sequential", carving, tame=True)


def _convex(problem: Problem) -> list[InferenceResult]:
    given = problem.options.counting_numbers
    carving = carve(problem.data, "convex") if given is None else concave_numbers(problem.data, given)
    return propagate(problem, "convex", "sequential", carving, tame=True)


METHODS: dict[str, Callable[..., list[InferenceResult]]] = {
    "exact": exact,
    "bp": _propagation("bp", None),
    "rbp": _propagation("rbp", "residual"),
    "trw": _tree_reweighted,
    "convex": _convex,
    "double-loop": double_loop,
    "replay": replay,
    "mean-field": mean_field,
    "gibbs": gibbs,
    "annealing": annealing,
    "auto": auto,
}


#: Methods for weights alone: a replay needs those of every relinearisation.
OF_WEIGHTS = tuple(name for name in METHODS if name != "replay")


@dataclass(frozen=True)
class StackedMarginals:
    """Marginals of all graphs of a :class:`bactrian.GraphData`."""

    nodes: Floats  #: (n_nodes, n_labels)
    edges: Floats | None  #: (n_edges, n_labels, n_labels) in the order in which the edges were given; None if not asked
    results: list[InferenceResult]  #: one per graph

    @property
    def converged(self) -> bool:
        """Whether inference converged on every graph."""
        return all(result.converged for result in self.results)


def graph_marginals(
    data: GraphData,
    weights: ArrayLike,
    method: str = "rbp",
    evidence: Sequence[Mapping[int, int] | None] | None = None,
    *,
    edges: bool = False,
    **options: Any,
) -> StackedMarginals:
    """Marginals by :func:`bactrian.infer`, whose options it takes; those of edges only where asked for."""
    results = infer(data, weights, method, evidence, **options)
    k = data.n_labels
    nodes = np.empty((data.n_nodes, k))
    sorted_edges = np.empty((data.edges.shape[0], k, k)) if edges else None
    graph = np.searchsorted(data.node_pointer, data.edges[:, 0], side="right") - 1
    first_edge = pointer(np.bincount(graph, minlength=data.n_graphs))  # edges are sorted by graph
    for m, result in enumerate(results):
        first, last = int(data.node_pointer[m]), int(data.node_pointer[m + 1])
        variables = result.variables
        if not isinstance(variables, VariableMarginals):
            raise TypeError(f"method {method!r} gives no stacked marginals")
        if last > first:
            nodes[first:last] = variables.stacked()
        start, stop = int(first_edge[m]), int(first_edge[m + 1])
        if sorted_edges is not None and stop > start:
            sorted_edges[start:stop] = variables.tables.pairs(start, stop).reshape(-1, k, k)
    if sorted_edges is None:
        return StackedMarginals(nodes, None, results)
    in_order = np.empty_like(sorted_edges)
    in_order[data.edge_order] = sorted_edges
    return StackedMarginals(nodes, in_order, results)
