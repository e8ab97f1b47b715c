"""Exact inference: two sweeps of messages on trees, a junction tree elsewhere.

Evidence is cut out of the tables before variables are eliminated, so that observed ones cost nothing: a factor is read
with the strides of its free variables, from where its observed ones stand (:mod:`bactrian.inference.junction_plan`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.entropy import carve
from bactrian.engines.numba.junction import calibrate
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.graphs.packed import TableReader
from bactrian.graphs.packing import is_bethe
from bactrian.inference.evidence import contradiction
from bactrian.inference.junction_plan import Elimination, Eliminator
from bactrian.inference.problem import Problem, check_contradictions, new_progress
from bactrian.inference.propagation import BeliefReader, sequential
from bactrian.inference.result import InferenceResult, views_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def exact(problem: Problem) -> list[InferenceResult]:
    """Exact marginals and log-partition of every instance."""
    data, layout = problem.data, problem.data.layout
    swept = layout.instance_is_tree & np.array([is_bethe(data, m) for m in range(layout.n_instances)], dtype=bool)
    others = np.flatnonzero(~swept).tolist()
    places = {m: _Place(layout, m) for m in others}
    eliminator = Eliminator(problem.options.memory_budget)
    eliminations = {m: _eliminate(problem, eliminator, m, places[m]) for m in others}
    carving = carve(data, "bethe").whole
    messages = problem.messages(carving)
    progress = new_progress(problem, carving)
    progress.status[others] = CONVERGED
    if swept.any():
        sequential(problem, messages, progress, 0.0)(2)
        check_contradictions(problem, progress)
        messages.pass_messages()
    values = messages.beliefs.value.copy()
    beliefs: dict[int, Floats] = {}

    def task(_: int, first: int, last: int) -> None:
        for m in others[first:last]:
            local = places[m].gather(messages.tables.log_entries, messages.tables.hub_scores)
            values[m], beliefs[m] = _calibrated(eliminations[m], local)

    largest = max((_bytes(elimination) for elimination in eliminations.values()), default=0)
    together = largest * problem.workers.n_threads <= problem.options.memory_budget
    problem.workers.run(task, np.arange(len(others) + 1) if together else np.array([0, len(others)]))
    for impossible in np.flatnonzero(values == -np.inf):
        raise contradiction(int(impossible), problem.many, problem.evidence)
    reader = _ExactReader(layout, BeliefReader(messages) if swept.any() else None, places, beliefs)
    results = []
    for m in range(layout.n_instances):
        variables, clusters = views_of(data, reader, m)
        updates = int(progress.updates[m]) if swept[m] else 2 * len(eliminations[m].tree.edges)
        results.append(
            InferenceResult(
                variables=variables,
                clusters=clusters,
                log_partition=float(values[m]),
                converged=True,
                iterations=2,
                updates=updates,
                method="exact",
                status="converged",
                free_energy=-float(values[m]),
                seconds=problem.seconds,
            )
        )
    return results


class _Place:
    """Tables of one instance one after the other, shared ones repeated, then the states of its hubs."""

    def __init__(self, layout: Layout, instance: int) -> None:
        self.first_cluster, last = layout.instance_clusters[instance : instance + 2].tolist()
        self.first_hub, self.last_hub = layout.instance_hubs[instance : instance + 2].tolist()
        tables = layout.cluster_table[self.first_cluster : last]
        self._table_start = layout.table_offset[tables]
        sizes = layout.table_offset[tables + 1] - self._table_start
        self.cluster_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._hub_states = slice(*layout.hub_offset[[self.first_hub, self.last_hub]].tolist())
        hub_offset = layout.hub_offset[self.first_hub : self.last_hub + 1]
        self.hub_start = hub_offset - hub_offset[0] + self.cluster_start[-1]

    def gather(self, entries: Floats, hub_scores: Floats) -> Floats:
        """The instance's scores in this order."""
        within = np.arange(self.cluster_start[-1]) - np.repeat(self.cluster_start[:-1], np.diff(self.cluster_start))
        tables = entries[np.repeat(self._table_start, np.diff(self.cluster_start)) + within]
        return np.concatenate([tables, hub_scores[self._hub_states]])


def _eliminate(problem: Problem, eliminator: Eliminator, instance: int, place: _Place) -> Elimination:
    data = problem.data
    cardinalities, table_scopes, hub_scopes = data.views.scopes(instance)
    own = [h for h in range(len(hub_scopes)) if not data.hub_virtual[place.first_hub + h]]
    scopes = [*table_scopes, *(hub_scopes[h] for h in own)]
    starts = [*place.cluster_start[:-1].tolist(), *place.hub_start[own].tolist()]
    return eliminator.eliminate(cardinalities, scopes, starts, problem.evidence[instance])


def _calibrated(elimination: Elimination, local: Floats) -> tuple[float, Floats]:
    """log Z, and the marginals of all factors in the order of their scores."""
    beliefs = np.zeros(local.size)
    constant = float(local[elimination.constants].sum())
    if constant == -np.inf:
        return constant, beliefs
    value = calibrate(elimination.plan, local, beliefs)
    beliefs[elimination.constants] = 1.0
    return constant + value, beliefs


def _bytes(elimination: Elimination) -> int:
    return 8 * elimination.tree.table_entries


class _ExactReader(TableReader):
    """Marginals of clusters and hubs: of trees from their messages, of other instances from their junction trees."""

    def __init__(
        self, layout: Layout, trees: TableReader | None, places: dict[int, _Place], beliefs: dict[int, Floats]
    ) -> None:
        self._layout, self._trees, self._places, self._beliefs = layout, trees, places, beliefs

    def cluster(self, index: int) -> Floats:
        """Marginal of a table cluster."""
        m = int(np.searchsorted(self._layout.instance_clusters, index, side="right")) - 1
        if m not in self._places:
            assert self._trees is not None
            return self._trees.cluster(index)
        place = self._places[m]
        bounds = place.cluster_start[index - place.first_cluster : index - place.first_cluster + 2]
        return self._beliefs[m][slice(*bounds.tolist())].copy()

    def hub(self, index: int) -> Floats:
        """Marginal of a hub."""
        m = int(np.searchsorted(self._layout.instance_hubs, index, side="right")) - 1
        if m not in self._places:
            assert self._trees is not None
            return self._trees.hub(index)
        place = self._places[m]
        bounds = place.hub_start[index - place.first_hub : index - place.first_hub + 2]
        return self._beliefs[m][slice(*bounds.tolist())].copy()

    def hubs(self, first: int, last: int) -> Floats:
        """See :class:`TableReader`; the hubs are of one instance."""
        m = int(np.searchsorted(self._layout.instance_hubs, first, side="right")) - 1
        if m in self._places or self._trees is None:
            return super().hubs(first, last)
        return self._trees.hubs(first, last)

    def pairs(self, first: int, last: int) -> Floats:
        """See :class:`TableReader`; the pairs are of one instance."""
        m = int(np.searchsorted(self._layout.instance_clusters, first, side="right")) - 1
        if m in self._places or self._trees is None:
            return super().pairs(first, last)
        return self._trees.pairs(first, last)
