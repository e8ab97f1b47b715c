"""Inference that chooses: exact where tables fit memory and time, better and better approximations elsewhere.

What a junction tree costs is known once it is planned, and planning costs a small part of it. Where it costs too much,
belief propagation comes first, since something must be there when time is up; then the same, damped, on join graphs
(:mod:`bactrian.graphs.join_graph`) of growing clusters, which become the cliques of a junction tree; then annealed
importance sampling, which brackets log Z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.entropy import carve
from bactrian.graphs.elimination import JunctionTree
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.join_graph import join_graph
from bactrian.graphs.junction import FactorTree
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import InstanceBeliefs, PackedData, TableReader
from bactrian.inference.annealing import annealing
from bactrian.inference.evidence import Evidence
from bactrian.inference.exact import Elimination, eliminations, solve
from bactrian.inference.problem import Problem, new_problem
from bactrian.inference.propagation import propagate
from bactrian.inference.result import InferenceProgress, InferenceResult, VariableMarginals
from bactrian.parallel.threads import Deadline

#: Seconds per entry of a clique's table, with its factors and messages.
_PER_ENTRY = 6e-9
#: Parts of the time: for a plan, for exact inference as predicted, for the first answer and for an interval of log Z.
_PLANNED, _PREDICTED, _FIRST, _SAMPLED = 0.15, 0.6, 0.15, 0.25
#: Width of an interval of log Z whose middle is taken for it, and change of marginals at which join graphs are done.
_NARROW, _TOLERANCE = 1.0, 1e-5
#: Part of table entries that may be forbidden where states are sampled.
_HARD = 0.25
#: Share of the old message that updates on join graphs keep.
_DAMPING = 0.5
#: Seconds that exact inference may take before something else is tried first, and between looks at the callback.
_AT_ONCE, _LOOK = 2.0, 0.1
#: States of the clusters of join graphs, in turn, and entries of all together that take a second to settle.
_LIMITS, _ENTRIES_PER_SECOND = (1, 128, 2048, 2**15, 2**18), 100_000


def auto(problem: Problem) -> list[InferenceResult]:
    """The best answer for every instance that the time of the call allows; ``route`` tells how it came about.

    Ctrl-C, or a callback that returns True, ends the search; the best answers so far are returned.
    """
    return _Search(problem).run()


class _Search:
    """What has been tried, and the best results so far."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._stopped = problem, ""
        options = replace(problem.options, callback=self._tell, start=None)
        self._inner = replace(problem, options=options)
        self._best: list[InferenceResult | None] = [None] * problem.data.layout.n_instances
        self._told: list[list[str]] = [[] for _ in self._best]

    def run(self) -> list[InferenceResult]:
        """Try what there is time for."""
        try:
            self._try_all()
        except KeyboardInterrupt:
            if None in self._best:
                raise
            self._stopped = "interrupted"
        found = [self._finished(m, result) for m, result in enumerate(self._best) if result is not None]
        assert len(found) == len(self._best)
        return found

    def _try_all(self) -> None:
        left = self._left()
        planned = Deadline(_PLANNED * left)
        found, refused = eliminations(self._inner, late=lambda: planned.has_passed)
        predicted = {m: _PER_ENTRY * found[m].entries for m in found}
        within: dict[int, Elimination] = {}
        total = 0.0
        for m in sorted(found, key=predicted.__getitem__):
            total += predicted[m]
            if total <= _PREDICTED * left:
                within[m] = found[m]
            else:
                self._told[m].append(f"exact inference would take about {predicted[m]:.2g} s")
        for m, error in refused.items():
            needed = f"{error.needed / 2**30:.3g}" if error.needed < 2**53 else "far too many"
            self._told[m].append(f"exact inference needs {needed} GiB for {error.what}")
        total = sum(predicted[m] for m in within)
        if total <= _AT_ONCE and len(within) == len(found) + len(refused):
            self._take(solve(self._inner, within, self._problem.deadline.late), "exact inference")
        if None not in self._best:
            return
        self._take(self._for(_FIRST * self._left(), lambda p: propagate(p, "rbp", "residual")), "belief propagation")
        self._take(self._watched(within), "exact inference")
        rest = [m for m, result in enumerate(self._best) if result is None or result.bound != "exact"]
        for n, m in enumerate(rest):
            tree = refused[m].tree if m in refused else found[m].uncut if m in found else None
            if tree is not None:
                share = (1.0 - _SAMPLED) * self._left() / (len(rest) - n)
                self._refine(m, tree, Deadline(share))
        if rest and not self._over() and not self._is_hard():
            self._bracket(rest)

    def _left(self) -> float:
        left = self._problem.deadline.left
        return 1e3 if left is None else left

    def _is_hard(self) -> bool:
        """Whether many joint states are forbidden, among which samples do not move."""
        messages = self._problem.messages(carve(self._problem.data, "bethe").whole)
        return float(np.mean(messages.tables.log_entries == -np.inf)) > _HARD

    def _over(self) -> bool:
        return bool(self._stopped) or self._problem.deadline.has_passed

    def _tell(self, progress: InferenceProgress) -> bool:
        """Tell the callback, and end everything where it asks for that."""
        callback = self._problem.options.callback
        if callback is not None and callback(replace(progress, best=tuple(self._best))):
            self._stopped = "stopped by the callback"
            self._problem.deadline.late[0] = True
        return bool(self._stopped)

    def _for(self, seconds: float, method: Callable[[Problem], list[InferenceResult]]) -> list[InferenceResult]:
        """Results of a method in so many seconds."""
        with Deadline(seconds) as deadline:
            context = replace(self._problem.context, deadline=deadline)
            options = replace(self._inner.options, max_seconds=round(seconds, 3))
            return method(replace(self._inner, context=context, options=options))

    def _watched(self, within: dict[int, Elimination]) -> Sequence[InferenceResult | None]:
        """Exact results, while the callback and Ctrl-C are heeded."""
        late, beginning = self._problem.deadline.late, self._problem.seconds
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(solve, self._inner, within, late)
            try:
                while not wait([work], _LOOK).done and not self._over():
                    n = sum(result is not None for result in self._best)
                    told = InferenceProgress("exact", 0, np.inf, 0, len(self._best), self._problem.seconds)
                    self._tell(replace(told, n_models=max(n, len(self._best))))
            finally:
                late[0] |= not work.done()
            found = work.result()
        for m in within:
            if found[m] is None:
                self._told[m].append(f"exact inference gave up after {self._problem.seconds - beginning:.2g} s")
        return found

    def _take(self, results: Sequence[InferenceResult | None], what: str) -> None:
        """Keep results that are better than those before."""
        for m, new in enumerate(results):
            old = self._best[m]
            if new is None or (old is not None and old.bound == "exact"):
                continue
            ended = "" if new.bound == "exact" else ", converged" if new.converged else f", {new.status}"
            better = old is None or new.bound == "exact" or _rank(new) <= _rank(old)
            self._told[m].append(f"{what} ({new.seconds:.2g} s{ended}){'' if better else ', which was no better'}")
            if better:
                self._best[m] = new

    def _refine(self, m: int, tree: JunctionTree, deadline: Deadline) -> None:
        """Belief propagation on join graphs of growing clusters."""
        cardinalities, tables, hubs = self._problem.data.structure.scopes(m)
        sizes, scopes = cardinalities.tolist(), [*tables, *hubs]
        entries = 0
        for limit in _LIMITS:
            joined = FactorTree(sizes, scopes, len(tables), join_graph(sizes, scopes, tree, limit))
            seconds = deadline.left or 0.0
            if self._over() or (entries and joined.tree.table_entries > _ENTRIES_PER_SECOND * seconds):
                return
            if joined.tree.table_entries == entries:
                continue
            entries = joined.tree.table_entries
            found = self._for(seconds, lambda p, joined=joined: [_on_join_graph(p, m, joined)])  # type: ignore[misc]
            results: list[InferenceResult | None] = [None] * len(self._best)
            results[m] = found[0]
            self._take(results, f"a join graph of clusters of up to {limit} states")

    def _bracket(self, rest: list[int]) -> None:
        """An interval of log Z, and its estimate where that is narrow."""
        sampled = self._for(self._left(), annealing)
        for m in rest:
            best, other = self._best[m], sampled[m]
            if best is None or other.interval is None:
                continue
            width = other.interval[1] - other.interval[0]
            self._told[m].append(f"annealing: log Z within {width:.2g} at 95 %")
            value = other.log_partition if width <= _NARROW else best.log_partition
            self._best[m] = replace(best, log_partition=value, interval=other.interval)

    def _finished(self, m: int, result: InferenceResult) -> InferenceResult:
        """The result with the way to it in words."""
        trust = "exact to rounding" if result.bound == "exact" else "an approximation, whose error is not known"
        if result.interval is not None:
            trust = "marginals are approximations; log Z lies in the interval with 95 % confidence"
        status = self._stopped if self._stopped and result.bound != "exact" else result.status
        route = f"{'; '.join(self._told[m])}: {trust}"
        return replace(result, method="auto", seconds=self._problem.seconds, status=status, route=route)


def _rank(result: InferenceResult) -> float:
    """Less is better: how far messages are from settled, all that is below a hundredth alike."""
    return 0.0 if result.converged else max(result.residual, 1e-2)


def _on_join_graph(problem: Problem, m: int, joined: FactorTree) -> InferenceResult:
    """Damped belief propagation on the clusters of a join graph of one instance."""
    scores, evidence = problem.messages(carve(problem.data, "bethe").whole).tables, problem.evidence[m]
    layout, graph = problem.data.layout, joined.tree
    base = [np.zeros(joined.shape(q)) for q in range(len(graph.cliques))]
    constant = 0.0
    places = [
        (scores.log_entries, layout.table_offset, layout.cluster_table[c])
        for c in range(*layout.instance_clusters[m : m + 2].tolist())
    ] + [(scores.hub_scores, layout.hub_offset, h) for h in range(*layout.instance_hubs[m : m + 2].tolist())]
    for f, (values, offset, index) in enumerate(places):
        part = joined.spread(f, values[offset[index] : offset[index + 1]], evidence)
        if graph.assignment[f] < 0:
            constant += float(part.sum())
        else:
            base[graph.assignment[f]] += part
    free = [1 if v in evidence else size for v, size in enumerate(joined.sizes)]
    clusters = ClusterGraph(free, graph.cliques, graph.edges)
    model = LogLinearModel(clusters, [np.zeros((b.size, 0)) for b in base], [b.ravel() for b in base])
    tolerance, room = max(problem.options.tolerance, _TOLERANCE), 80 * len(free) + problem.options.memory_budget
    options = replace(problem.options, tolerance=tolerance, damping=_DAMPING, memory_budget=room)
    inner = replace(new_problem(model, [], None, options), context=problem.context, began=problem.began)
    (found,) = propagate(inner, "join-graph", "sequential")
    tables = _JoinTables(problem.data, m, joined, found, evidence)
    return replace(
        found,
        variables=VariableMarginals(problem.data, tables, m),
        clusters=InstanceBeliefs(problem.data, tables, m),
        log_partition=None if found.log_partition is None else found.log_partition + constant,
        free_energy=None if found.free_energy is None else found.free_energy - constant,
        messages=None,
        counting_numbers=None,
    )


class _JoinTables(TableReader):
    """Tables of an instance's clusters and hubs, as marginals of those of its join graph."""

    def __init__(
        self, data: PackedData, m: int, joined: FactorTree, result: InferenceResult, evidence: Evidence
    ) -> None:
        self._joined, self._beliefs, self._evidence = joined, result.clusters, evidence
        self._cluster, self._hub = int(data.layout.instance_clusters[m]), int(data.layout.instance_hubs[m])

    def cluster(self, index: int) -> Floats:
        """Table of a cluster."""
        return self._factor(index - self._cluster)

    def hub(self, index: int) -> Floats:
        """Table of a hub."""
        return self._factor(self._joined.n_tables + index - self._hub)

    def _factor(self, f: int) -> Floats:
        joined, seen = self._joined, self._evidence
        scope, q = joined.axes(joined.scopes[f]), joined.tree.assignment[f]
        found = np.zeros([joined.sizes[v] for v in scope])
        at = tuple(seen.get(v, slice(None)) for v in scope)
        if q < 0:
            found[at] = 1.0
            return found.ravel()
        axes, free = joined.axes(joined.tree.cliques[q]), [v for v in scope if v not in seen]
        table = np.asarray(self._beliefs[q]).reshape([joined.sizes[v] for v in axes])
        summed = table.sum(axis=tuple(axis for axis, v in enumerate(axes) if v not in free))
        kept = [v for v in axes if v in free]
        found[at] = summed.transpose([kept.index(v) for v in free])
        return (found / found.sum()).ravel()
