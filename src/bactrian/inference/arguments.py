"""Arguments of ``infer`` and ``decode``, checked before any work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bactrian.camel.entropy import CountingNumbers
from bactrian.errors import ArgumentError
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack, pack_models
from bactrian.inference.evidence import Evidence, checked_evidence, condition_tables
from bactrian.inference.problem import Options
from bactrian.inference.result import InferenceResult

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: What inference takes for each state of a variable.
_BYTES_PER_STATE = 80


def packed(model: Any, evidence: Any) -> tuple[PackedData, list[Evidence]]:
    """Pack the models, evidence checked and put where tables must hold it."""
    if isinstance(model, LogLinearModel):
        seen = [checked_evidence(evidence, model.graph.cardinalities, "evidence")]
        return pack_models([condition_tables(model, seen[0])]), list(seen)
    if isinstance(model, GraphData):
        sizes = np.diff(model.node_pointer)
        given = evidence_list(evidence, model.n_graphs)
        seen = [
            checked_evidence(e, np.broadcast_to(model.n_labels, int(n)), f"evidence[{m}]")
            for m, (e, n) in enumerate(zip(given, sizes, strict=True))
        ]
        return pack(model, need_labels=False), list(seen)
    check_list(model)
    if not model:
        raise ValueError("model is an empty list; inference needs at least one model")
    given = evidence_list(evidence, len(model))
    seen = [
        checked_evidence(e, one.graph.cardinalities, f"evidence[{m}]")
        for m, (e, one) in enumerate(zip(given, model, strict=True))
    ]
    return pack_models([condition_tables(one, e) for one, e in zip(model, seen, strict=True)]), list(seen)


def check_free_states(model: Any, memory_budget: int) -> None:
    """Refuse models with variables in no cluster whose states would not fit in the budget."""
    for one in model if isinstance(model, list | tuple) else [model]:
        if isinstance(one, LogLinearModel):  # anything else is checked elsewhere
            check_free_variables(one.graph.cardinalities, one.graph.clusters, memory_budget)


def check_free_variables(cardinalities: Ints, scopes: Iterable[Sequence[int]], memory_budget: int) -> None:
    """Refuse variables in no scope whose states would not fit in the budget: no table bounds their number."""
    states = cardinalities.copy()
    for scope in scopes:
        states[list(scope)] = 0
    if states.sum(dtype=np.float64) * _BYTES_PER_STATE > memory_budget:
        v = int(states.argmax())
        raise ArgumentError(
            "memory_budget",
            f": the marginals of variables that are in no table would take more than {memory_budget} bytes; "
            f"variable {v} has {states[v]} states",
        )


def check_list(model: Any) -> None:
    """Raise an error unless ``model`` is a list of models that may share their weights."""
    if not isinstance(model, Sequence) or isinstance(model, str):
        raise TypeError(f"model must be a LogLinearModel, a list of them or GraphData, found {type(model).__name__}")
    for m, one in enumerate(model):
        if not isinstance(one, LogLinearModel):
            raise TypeError(f"model[{m}] must be a LogLinearModel, found {type(one).__name__}")
        if one.n_weights != model[0].n_weights:
            raise ValueError(
                f"model[{m}] has {one.n_weights} weights and model[0] {model[0].n_weights}; "
                "all models share one vector of weights"
            )


def evidence_list(evidence: Any, n_models: int) -> Sequence[Any]:
    """Evidence of each of several models, None where nothing was seen."""
    if evidence is None:
        return [None] * n_models
    if isinstance(evidence, Mapping) or not isinstance(evidence, Sequence):
        raise TypeError(f"evidence must be a list with one mapping per model, or None, found {type(evidence).__name__}")
    if len(evidence) != n_models:
        raise ValueError(f"evidence must have one entry per model: expected {n_models}, found {len(evidence)}")
    return evidence


def checked_weights(weights: ArrayLike, n_weights: int) -> Floats:
    """Finite weights of the right length, or an error."""
    array = np.asarray(weights)
    if array.dtype.kind not in "biuf" and array.size:
        raise TypeError(f"weights must be numbers, found dtype {array.dtype}")
    if array.shape != (n_weights,):
        raise ValueError(f"weights must have shape ({n_weights},), found {array.shape}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"weights[{int(np.argmin(np.isfinite(array)))}] is not finite but NaN or infinite")
    return array


def checked_start(start: Any, many: bool, n_models: int) -> Sequence[InferenceResult] | None:
    """Earlier results, one per model, or an error."""
    if start is None:
        return None
    results = [start] if not many and isinstance(start, InferenceResult) else start
    if not isinstance(results, Sequence) or not all(isinstance(result, InferenceResult) for result in results):
        raise TypeError("start must be an InferenceResult, or a list of them for several models")
    if len(results) != n_models:
        raise ValueError(f"start must have one result per model: expected {n_models}, found {len(results)}")
    return results


def check_options(options: Options, method: str) -> None:
    """Raise an error for the first option that makes no sense."""
    if not (math.isfinite(options.tolerance) and options.tolerance > 0.0):
        raise ValueError(f"tolerance must be positive, found {options.tolerance}")
    if options.max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, found {options.max_iterations}")
    if options.max_seconds is not None and not options.max_seconds > 0.0:
        raise ValueError(f"max_seconds must be positive or None, found {options.max_seconds}")
    if options.damping is not None and not 0.0 <= options.damping < 1.0:
        raise ValueError(f"damping must be at least 0 and below 1, found {options.damping}")
    if options.schedule not in ("sequential", "parallel"):
        raise ValueError(f"schedule must be 'sequential' or 'parallel', found {options.schedule!r}")
    if options.fallback not in (None, "double-loop"):
        raise ValueError(f"fallback must be None or 'double-loop', found {options.fallback!r}")
    if options.fallback is not None and method not in ("bp", "rbp"):
        raise ValueError(f"fallback is for 'bp' and 'rbp'; {method!r} has none")
    if options.memory_budget < 1:
        raise ValueError(f"memory_budget must be at least 1 byte, found {options.memory_budget}")
    if options.counting_numbers is not None:
        if method != "convex":
            raise ValueError(f"counting_numbers is for method 'convex', found method {method!r}")
        if isinstance(options.counting_numbers, str) and options.counting_numbers != "clusters":
            raise ValueError(
                f"counting_numbers must be CountingNumbers or 'clusters', found {options.counting_numbers!r}"
            )
        if not isinstance(options.counting_numbers, CountingNumbers | str):
            found = type(options.counting_numbers).__name__
            raise TypeError(f"counting_numbers must be CountingNumbers or 'clusters', found {found}")
