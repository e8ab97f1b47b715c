"""The problem that an inference method works on: models, weights, evidence and a start, all checked.

Evidence becomes forbidden states. On a Bethe graph an observed variable forbids states of its hub. On an explicit
cluster graph a variable has no hub, and messages would not carry the observation to clusters that share no sepset with
it, so the forbidden states go into the tables of every cluster that contains the variable.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, Ints, real_numbers
from bactrian.camel.entropy import Carving, CountingNumbers
from bactrian.engines.memory import MemoryPart
from bactrian.errors import ArgumentError, check_count, check_number
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import InstanceBeliefs, PackedData, TableReader
from bactrian.graphs.packing import pack, pack_models
from bactrian.inference.result import InferenceCallback, InferenceResult, VariableMarginals
from bactrian.parallel.threads import Context, Deadline, Workers

Evidence = Mapping[int, int]

#: What inference takes for each state of a variable.
_BYTES_PER_STATE = 80
#: Memory budget where the system does not tell how much is free, and the part of that which may be used.
_UNKNOWN, _USED = 4 * 2**30, 0.75


def bytes_of(budget: float | str | None) -> int:
    """A memory budget in bytes, from a number, a text such as ``"6G"``, or None: most of what is free.

    >>> bytes_of("6G") == bytes_of("6GB") == bytes_of("6GiB") == 6 * 2**30
    True
    """
    if budget is None:
        return int(_USED * _free_memory())
    if not isinstance(budget, str):
        check_number("memory_budget", budget, least=1)
        return int(budget)
    parts = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(?:i?b)?\s*", budget, re.IGNORECASE)
    try:
        size = float(parts[1]) * 2.0 ** (10 * " kmgt".index(parts[2].lower() or " ")) if parts else math.nan
    except ValueError:
        size = math.nan
    if not 1 <= size < 2**63:
        raise ArgumentError("memory_budget", f"must be bytes such as '6G', '500MiB' or 1000000, found {budget!r}")
    return int(size)


def _free_memory() -> float:
    """Bytes that can be had without swapping: what files are kept in, for later, counts."""
    try:
        with open("/proc/meminfo", encoding="ascii") as told:
            return next(1024.0 * int(line.split()[1]) for line in told if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return _UNKNOWN / _USED


def packed(model: Any, evidence: Any) -> tuple[PackedData, list[Evidence]]:
    """Pack the models, evidence checked and put where tables must hold it."""
    if isinstance(model, LogLinearModel):
        seen = checked_evidence(evidence, model.graph.cardinalities, "evidence")
        return pack_models([condition_tables(model, seen)]), [seen]
    if isinstance(model, GraphData):
        sizes = [np.broadcast_to(model.n_labels, n) for n in np.diff(model.node_pointer).tolist()]
    else:
        check_list(model)
        sizes = [one.graph.cardinalities for one in model]
    given = zip(evidence_list(evidence, len(sizes)), sizes, strict=True)
    observed: list[Evidence] = [checked_evidence(e, k, f"evidence[{m}]") for m, (e, k) in enumerate(given)]
    if isinstance(model, GraphData):
        return pack(model, need_labels=False), observed
    return pack_models([condition_tables(one, e) for one, e in zip(model, observed, strict=True)]), observed


def check_free_states(model: Any, memory_budget: int) -> None:
    """Refuse models with variables in no cluster whose states would not fit in the budget."""
    for one in model if isinstance(model, list | tuple) else [model]:
        if isinstance(one, LogLinearModel):  # anything else is checked elsewhere
            check_free_variables(one.graph.cardinalities, one.graph.scopes.values, memory_budget)


def check_free_variables(cardinalities: Ints, covered: Ints, memory_budget: int) -> None:
    """Refuse variables in no scope whose states would not fit in the budget: no table bounds their number."""
    states = cardinalities.copy()
    states[covered] = 0
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
    if not model:
        raise ValueError("model is an empty list; inference needs at least one model")
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
    check_count("evidence", len(evidence), n_models, "entry per model")
    return evidence


def checked_weights(weights: ArrayLike, n_weights: int, *, is_path: bool = False) -> Floats:
    """Finite weights of the right length, for a replay (n_steps, n_weights) of them, or an error."""
    array = real_numbers(weights, "weights", None if is_path else n_weights)
    if is_path and (array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != n_weights):
        raise ValueError(
            f"weights of a replay must have shape (n_steps, {n_weights}), one row per relinearisation (solution.path), "
            f"found {array.shape}"
        )
    if not np.isfinite(array).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(array))[0]))
        raise ValueError(f"weights[{place}] is NaN or infinite")
    return array


def starting_results(start: Any, many: bool, n_models: int) -> Sequence[InferenceResult] | None:
    """Earlier results, one per model, or an error."""
    if start is None:
        return None
    results = [start] if not many and isinstance(start, InferenceResult) else start
    if not isinstance(results, Sequence) or not all(isinstance(result, InferenceResult) for result in results):
        raise TypeError("start must be an InferenceResult, or a list of them for several models")
    check_count("start", len(results), n_models, "result per model")
    return results


def checked_evidence(evidence: Any, cardinalities: Any, name: str) -> dict[int, int]:
    """``evidence`` as a dict of ints, or an error that names the entry; ``cardinalities[v]`` states of variable v."""
    if evidence is None:
        return {}
    if not isinstance(evidence, Mapping):
        raise TypeError(f"{name} must be a mapping from variables to states, found {type(evidence).__name__}")
    checked = {}
    for variable, state in evidence.items():
        v = _checked_index(variable, len(cardinalities), f"{name} names variable", "variables")
        state = int(state) if isinstance(state, bool | np.bool_) else state  # states may be booleans, variables not
        checked[v] = _checked_index(state, int(cardinalities[v]), f"{name}[{v}] is", f"states of variable {v}")
    return checked


def _checked_index(value: Any, size: int, name: str, kind: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} {value!r}; {kind} are integers")
    if not 0 <= value < size:
        raise ValueError(f"{name} {value}; {kind} are 0 to {size - 1}")
    return int(value)


def check_scores(*scores: Floats) -> None:
    """Refuse weights at which scores overflow."""
    if any(np.isnan(array).any() or (array == np.inf).any() for array in scores):
        raise ArgumentError("weights", "give scores that are not numbers: features @ weights overflows")


@dataclass(frozen=True)
class Options:
    """Settings of one call of :func:`bactrian.infer`."""

    tolerance: float = 1e-8
    max_iterations: int = 1000
    max_seconds: float | None = None
    damping: float | None = None
    schedule: str = "sequential"
    counting_numbers: CountingNumbers | str | None = None
    fallback: str | None = None
    start: Any = None
    memory_budget: int = 4 * 2**30
    seed: int = 0
    callback: InferenceCallback | None = None


@dataclass(frozen=True)
class Problem:
    """Packed models, the weights to score them with, and what was observed of each."""

    data: PackedData
    weights: Floats
    evidence: Sequence[Evidence]
    bias: Floats  #: (n_hub_states,) -inf for states of hubs that evidence rules out, else 0
    many: bool  #: whether the caller gave several models, for the wording of errors
    context: Context
    options: Options
    began: float = field(default_factory=time.perf_counter)  #: at the start of the call
    path: Floats | None = None  #: (n_steps, n_weights) the weights of each relinearisation, for a replay

    @property
    def workers(self) -> Workers:
        """Threads."""
        return self.context.workers

    @property
    def deadline(self) -> Deadline:
        """The time limit."""
        return self.context.deadline

    @property
    def seconds(self) -> float:
        """Time since the start of the call."""
        return time.perf_counter() - self.began

    def result(self, tables: TableReader, instance: int, log_partition: float | None, **fields: Any) -> InferenceResult:
        """The result of one instance, whose free energy is minus ``log_partition``."""
        value = None if log_partition is None else float(log_partition)
        return InferenceResult(
            variables=VariableMarginals(self.data, tables, instance),
            clusters=InstanceBeliefs(self.data, tables, instance),
            log_partition=value,
            free_energy=None if value is None else -value,
            seconds=self.seconds,
            **fields,
        )

    def messages(self, carving: Carving) -> MemoryPart:
        """Messages under given counting numbers, warm-started where the caller asked for it."""
        data = self.data
        messages = MemoryPart(data, carving, self.context)
        messages.linearisation[:] = -self.bias
        messages.set_weights(self.weights)
        check_scores(messages.tables.log_entries, messages.tables.hub_scores)
        if self.options.start is not None:
            self._warm_start(messages, self.options.start)
        forbidden = self.bias[data.hub_state_of_link_state] == -np.inf
        messages.multipliers[forbidden] = -np.inf
        return messages

    def _warm_start(self, messages: MemoryPart, start: Sequence[InferenceResult]) -> None:
        layout = self.data.layout
        for m, result in enumerate(start):
            links = layout.hub_links[layout.instance_hubs[m : m + 2]]
            first, last = layout.link_offset[links]
            earlier = result.messages
            if earlier is None or earlier.multipliers.size != last - first:
                found = "none" if earlier is None else f"{earlier.multipliers.size} multipliers"
                raise ValueError(
                    f"start[{m}] holds {found}, expected {last - first} multipliers: it must be the result of message "
                    "passing on a model with the same graph"
                )
            usable = np.isfinite(earlier.multipliers)
            messages.multipliers[first:last] = np.where(usable, earlier.multipliers, 0.0)


def new_problem(
    model: Any, weights: Any, evidence: Any, options: Options, n_threads: int | None = None, *, has_path: bool = False
) -> Problem:
    """What a method works on, from what a caller gave; models, weights, evidence and start are checked here.

    With ``has_path`` the weights are one row per relinearisation, and the problem starts at the first.
    """
    began, deadline = time.perf_counter(), Deadline(options.max_seconds)  # packing counts
    check_free_states(model, options.memory_budget)
    many = not isinstance(model, LogLinearModel)
    data, seen = packed(model, evidence)
    checked = checked_weights(weights, data.n_weights, is_path=has_path)
    return Problem(
        data=data,
        weights=checked[0] if has_path else checked,
        evidence=seen,
        bias=hub_bias(data, seen),
        many=many,
        context=Context(Workers(n_threads), deadline),
        options=replace(options, start=starting_results(options.start, many, data.layout.n_instances)),
        began=began,
        path=checked if has_path else None,
    )


def condition_tables(model: LogLinearModel, evidence: Evidence) -> LogLinearModel:
    """A model on an explicit cluster graph with the states that ``evidence`` rules out forbidden in its tables."""
    graph = model.graph
    if not evidence or not isinstance(graph, ClusterGraph) or graph.is_bethe:
        return model
    base = list(model.base_scores)
    for i, scope in enumerate(graph.clusters):
        if evidence.keys().isdisjoint(scope):
            continue
        forbidden, given = _forbidden(graph.shape(scope), scope, evidence), base[i]
        base[i] = forbidden if given is None else given + forbidden
    return model.with_base_scores(base)


def _forbidden(shape: Any, scope: Sequence[int], seen: Evidence) -> Floats:
    """(states,) 0, or -inf for states of a table that disagree with what was seen."""
    found = np.full(shape, -np.inf)
    found[tuple(seen.get(v, slice(None)) for v in scope)] = 0.0
    return found.ravel()


def hub_bias(data: PackedData, evidence: Sequence[Evidence]) -> Floats:
    """(n_hub_states,) 0, or -inf for a state of a hub that evidence rules out."""
    layout = data.layout
    bias = np.zeros(layout.n_hub_states)
    for m, seen in enumerate(evidence):
        if not seen:
            continue
        first = int(layout.instance_hubs[m])
        cardinalities = data.structure.cardinalities[data.structure.instance_variables[m] :]
        scopes: list[tuple[int, Sequence[int]]] = [(first + v, (v,)) for v in seen]
        if not data.is_bethe(m):
            scopes = [(first + h, scope) for h, scope in enumerate(data.structure.scopes(m)[2])]
        for hub, scope in scopes:
            if not seen.keys().isdisjoint(scope):
                start, stop = layout.hub_offset[hub : hub + 2]
                bias[start:stop] = _forbidden(cardinalities[list(scope)], scope, seen)
    return bias


class ImpossibleEvidenceError(ValueError):
    """No joint state that agrees with the evidence has positive probability."""


def contradiction(instance: int, many: bool, evidence: Sequence[Evidence]) -> ImpossibleEvidenceError:
    """The error for evidence, or potentials of zero, that leave no state with positive probability."""
    which = f"model {instance}: " if many else ""
    if evidence[instance]:
        why = "the evidence contradicts the model: no joint state that agrees with it has positive probability"
    else:
        why = "no joint state has positive probability: forbidden states (potentials of zero) rule all of them out"
    return ImpossibleEvidenceError(which + why)
