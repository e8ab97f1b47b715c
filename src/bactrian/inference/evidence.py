"""Evidence: checked, then turned into forbidden states.

On a Bethe graph an observed variable forbids states of its hub. On an explicit cluster graph a variable has no hub, and
clusters that share no sepset with it would not hear of the observation, so the forbidden states go into the tables of
every cluster that contains the variable.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import is_bethe

Floats = NDArray[np.float64]
Evidence = Mapping[int, int]


def contradiction(instance: int, many: bool, evidence: Sequence[Evidence]) -> ValueError:
    """The error for evidence, or potentials of zero, that leave no state with positive probability."""
    which = f"model {instance}: " if many else ""
    if evidence[instance]:
        why = "the evidence contradicts the model: no joint state that agrees with it has positive probability"
    else:
        why = "no joint state has positive probability: forbidden states (potentials of zero) rule all of them out"
    return ValueError(which + why)


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


def condition_tables(model: LogLinearModel, evidence: Evidence) -> LogLinearModel:
    """A model on an explicit cluster graph with the states that ``evidence`` rules out forbidden in its tables."""
    graph = model.graph
    if not evidence or not isinstance(graph, ClusterGraph) or graph.is_bethe:
        return model
    conditioned = copy.copy(model)
    base = list(model.base_scores)
    for i, scope in enumerate(graph.clusters):
        seen = [(axis, evidence[v]) for axis, v in enumerate(scope) if v in evidence]
        if not seen:
            continue
        shape = graph.shape(scope)
        forbidden = np.full(shape, -np.inf)
        index: list[int | slice] = [slice(None)] * len(scope)
        for axis, state in seen:
            index[axis] = state
        forbidden[tuple(index)] = 0.0
        given = base[i]
        base[i] = forbidden.ravel() if given is None else given + forbidden.ravel()
    conditioned.base_scores = tuple(base)
    return conditioned


def hub_bias(data: PackedData, evidence: Sequence[Evidence]) -> Floats:
    """(n_hub_states,) 0, or -inf for a state of a hub that evidence rules out."""
    layout = data.layout
    bias = np.zeros(layout.n_hub_states)
    for m, seen in enumerate(evidence):
        if not seen:
            continue
        first = int(layout.instance_hubs[m])
        if is_bethe(data, m):
            for v, state in seen.items():
                _forbid_others(bias, int(layout.hub_offset[first + v]), int(layout.hub_offset[first + v + 1]), state)
            continue
        cardinalities, _, hub_scopes = data.views.scopes(m)
        for h, scope in enumerate(hub_scopes):
            if any(v in seen for v in scope):
                states = np.indices([int(cardinalities[v]) for v in scope]).reshape(len(scope), -1)
                agrees = np.all([states[a] == seen[v] for a, v in enumerate(scope) if v in seen], axis=0)
                start = int(layout.hub_offset[first + h])
                bias[start : start + agrees.size][~agrees] = -np.inf
    return bias


def _forbid_others(bias: Floats, start: int, stop: int, state: int) -> None:
    bias[start : start + state] = -np.inf
    bias[start + state + 1 : stop] = -np.inf
