"""Inference on a tighter polytope: triplets added where the Bethe solution's cycles do not close.

Sontag & Jaakkola (NIPS 2007); Sontag, Meltzer, Globerson, Jaakkola & Weiss (UAI 2008). The method that the caller chose
is run first, cycles are searched in its beliefs (:mod:`bactrian.graphs.cycles`), and the free energy with the
triplets is minimised by the double loop, which needs no luck to converge, from the beliefs found before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.schedules import CONVERGED
from bactrian.graphs.cycles import find_triplets
from bactrian.graphs.packed import PackedData, TableReader
from bactrian.graphs.packing import require_bethe
from bactrian.graphs.triplets import tighten
from bactrian.inference.double_loop import descend
from bactrian.inference.evidence import contradiction
from bactrian.inference.problem import Problem
from bactrian.inference.propagation import BeliefReader
from bactrian.inference.result import InferenceResult, views_of

Floats = NDArray[np.float64]

#: Methods that minimise Bethe's free energy, which the triplets refine.
TIGHTENED = ("bp", "rbp", "double-loop")


def check_tighten(tighten: object, method: str) -> None:
    """Raise an error where ``tighten`` is no count, or ``method`` cannot be tightened."""
    if isinstance(tighten, bool) or not isinstance(tighten, int | np.integer):
        raise TypeError(f"tighten must be a number of triplets, found {tighten!r}")
    if tighten < 0:
        raise ValueError(f"tighten must be at least 0, found {tighten}")
    if tighten and method not in TIGHTENED:
        raise ValueError(
            f"tighten is for {', '.join(map(repr, TIGHTENED))}; {method!r} has no Bethe polytope to refine"
        )


def tightened(problem: Problem, method: Callable[[Problem], list[InferenceResult]], most: int) -> list[InferenceResult]:
    """Results of ``method``, refined where some cycle of at most ``most`` triplets corrects them."""
    require_bethe(problem.data)
    before = method(problem)
    tables = _ResultTables(problem.data, before)
    triplets = find_triplets(problem.data, tables, most, problem.deadline)
    if not any(triplets):
        return before
    data = tighten(problem.data, triplets)
    hub_log = np.concatenate([np.log(np.maximum(b, 1e-300)) for result in before for b in result.variables])
    inner = replace(
        problem,
        data=data.packed,
        bias=data.spread_hubs(problem.bias),
        options=replace(problem.options, start=None),
    )
    end = descend(inner, data.total, data.start(hub_log, tables), skipped=np.array([not t for t in triplets]))
    for m in np.flatnonzero(end.log_partition == -np.inf).tolist():
        raise contradiction(m, problem.many, problem.evidence)
    reader = data.reader(BeliefReader(end.messages))
    after = []
    for m, earlier in enumerate(before):
        if not triplets[m]:
            after.append(earlier)
            continue
        variables, clusters = views_of(problem.data, reader, m)
        converged = bool(end.progress.status[m] == CONVERGED)
        after.append(
            replace(
                earlier,
                variables=variables,
                clusters=clusters,
                log_partition=float(end.log_partition[m]),
                free_energy=-float(end.log_partition[m]),
                converged=converged,
                status="converged" if converged else end.status,
                iterations=earlier.iterations + int(end.progress.iterations[m]),
                updates=earlier.updates + int(end.progress.updates[m]),
                residual=float(end.progress.residual[m]),
                violation=float(end.messages.beliefs.violation[m]),
                counting_numbers=None,
                history=end.histories[m],
                seconds=problem.seconds,
                triplets=data.triplets[m],
            )
        )
    return after


class _ResultTables(TableReader):
    """Beliefs of results on Bethe graphs by the numbers of packed clusters and hubs."""

    def __init__(self, data: PackedData, results: Sequence[InferenceResult]) -> None:
        self._data, self._results = data, results

    def cluster(self, index: int) -> Floats:
        data = self._data
        m = int(np.searchsorted(data.layout.instance_clusters, index, side="right")) - 1
        belief: Floats = self._results[m].clusters[int(data.cluster_index[index])].ravel()
        return belief

    def hub(self, index: int) -> Floats:
        hubs = self._data.layout.instance_hubs
        m = int(np.searchsorted(hubs, index, side="right")) - 1
        return self._results[m].variables[index - int(hubs[m])]
