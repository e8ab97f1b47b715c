"""Evidence as forbidden states, and the error where it leaves none.

On a Bethe graph an observed variable forbids states of its hub. On an explicit cluster graph a variable has no hub, and
messages would not carry the observation to clusters that share no sepset with it, so the forbidden states go into the
tables of every cluster that contains the variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bactrian.arrays import Floats
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import PackedData

Evidence = Mapping[int, int]


def condition_tables(model: LogLinearModel, evidence: Evidence) -> LogLinearModel:
    """A model on an explicit cluster graph with the states that ``evidence`` rules out forbidden in its tables."""
    graph = model.graph
    if not evidence or not isinstance(graph, ClusterGraph) or graph.is_bethe:
        return model
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
    return model.with_base_scores(base)


def hub_bias(data: PackedData, evidence: Sequence[Evidence]) -> Floats:
    """(n_hub_states,) 0, or -inf for a state of a hub that evidence rules out."""
    layout = data.layout
    bias = np.zeros(layout.n_hub_states)
    for m, seen in enumerate(evidence):
        if not seen:
            continue
        first = int(layout.instance_hubs[m])
        if data.is_bethe(m):
            for v, state in seen.items():
                start, stop = layout.hub_offset[first + v : first + v + 2].tolist()
                bias[start : start + state] = bias[start + state + 1 : stop] = -np.inf
            continue
        cardinalities, _, hub_scopes = data.structure.scopes(m)
        for h, scope in enumerate(hub_scopes):
            if any(v in seen for v in scope):
                states = np.indices([int(cardinalities[v]) for v in scope]).reshape(len(scope), -1)
                agrees = np.all([states[a] == seen[v] for a, v in enumerate(scope) if v in seen], axis=0)
                start = int(layout.hub_offset[first + h])
                bias[start : start + agrees.size][~agrees] = -np.inf
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
