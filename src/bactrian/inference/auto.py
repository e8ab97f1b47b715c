"""Inference that chooses: exact where tables fit memory and time, better and better approximations elsewhere.

What a junction tree costs is known once it is planned, and planning costs a small part of it. Where it costs too much,
belief propagation comes first, since something must be there when time is up; then the same, damped, on join graphs
(:mod:`bactrian.graphs.join_graph`) of growing clusters, which become the cliques of a junction tree; then annealed
importance sampling, which brackets log Z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from bactrian.camel.entropy import carve
from bactrian.graphs.elimination import JunctionTree, MemoryBudgetError
from bactrian.graphs.join_graph import JoinGraph, join_graph
from bactrian.graphs.ragged import pointer
from bactrian.inference.annealing import annealing
from bactrian.inference.exact import Elimination, ExactReader, eliminations, solve, tree_plan
from bactrian.inference.problem import Problem
from bactrian.inference.propagation import propagate
from bactrian.inference.result import InferenceProgress, InferenceResult
from bactrian.parallel.threads import Deadline

#: Seconds per entry of a clique's table, with its factors and messages, and per entry of a message of a tree; seconds
#: which no clock needs to watch: a thread that does takes a millisecond.
_PER_ENTRY, _PER_MESSAGE, _LITTLE = 6e-9, 1e-7, 0.02
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
#: States of the clusters of join graphs, in turn, rounds that the first is expected to take, and the most of any.
_LIMITS, _ROUNDS, _MOST_ROUNDS = (1, 2**8, 2**12, 2**16, 2**18, 2**20, 2**22, 2**24), 30, 200
#: Particles of annealing: so many as there should be time for, by the links of a model, within these bounds.
_MOST_MOVES, _LEAST_SAMPLES, _MOST_SAMPLES = 2**23, 64, 1024


def auto(problem: Problem) -> list[InferenceResult]:
    """The best answer for every instance that the time of the call allows; ``route`` tells how it came about.

    Ctrl-C, or a callback that returns True, ends the search; the best answers so far are returned. The deadline is
    entered only where something takes long.
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
        self._since = 0.0  # when what is tried now began

    def run(self) -> list[InferenceResult]:
        """Try what there is time for."""
        try:
            self._try_all()
        except KeyboardInterrupt:
            if None in self._best:
                raise
            self._stopped = "interrupted"
        return [self._finished(m, result) for m, result in enumerate(self._best) if result is not None]

    def _try_all(self) -> None:
        left, within, spent = self._left, dict[int, Elimination](), 0.0
        planned = Deadline(_PLANNED * left)
        found, refused = eliminations(self._inner, late=lambda: planned.has_passed)
        for m in sorted(found, key=lambda m: found[m].entries):
            predicted = _PER_ENTRY * found[m].entries
            if spent + predicted <= _PREDICTED * left:
                spent += predicted
                within[m] = found[m]
            else:
                self._told[m].append(f"exact inference would take about {predicted:.3g} s")
        for m, error in refused.items():
            needed = f"{error.needed / 2**30:.3g}" if error.needed < 2**53 else "far too many"
            self._told[m].append(f"exact inference needs {needed} GiB for {error.what}")
        if spent <= _AT_ONCE and len(within) == len(found) + len(refused):
            spent += _PER_MESSAGE * self._problem.data.layout.n_link_states
            with nullcontext() if spent <= _LITTLE else self._problem.deadline:
                self._take(solve(self._inner, within, self._problem.deadline.late), "exact inference")
        if None in self._best:
            with self._problem.deadline:
                self._try_others(found, refused, within)

    def _try_others(
        self, found: dict[int, Elimination], refused: dict[int, MemoryBudgetError], within: dict[int, Elimination]
    ) -> None:
        """What there is time for where exact inference, which takes long, if it is possible, is not all."""
        self._take(self._for(_FIRST * self._left, lambda p: propagate(p, "rbp", "residual")), "belief propagation")
        self._take(self._watched(within), "exact inference")
        rest = [m for m, result in enumerate(self._best) if result is None or result.bound != "exact"]
        for n, m in enumerate(rest):
            tree = refused[m].tree if m in refused else found[m].uncut if m in found else None
            if tree is not None:
                self._refine(m, tree, Deadline((1.0 - _SAMPLED * self._is_soft) * self._left / (len(rest) - n)))
        if rest and self._is_soft and not self._over():
            self._bracket(rest)

    @property
    def _left(self) -> float:
        left = self._problem.deadline.left
        return 1e3 if left is None else left

    @cached_property
    def _is_soft(self) -> bool:
        """Whether few joint states are forbidden; samples do not move among many."""
        messages = self._problem.messages(carve(self._problem.data, "bethe").whole)
        return float(np.mean(messages.tables.log_entries == -np.inf)) <= _HARD

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
                    n = sum(result is not None and result.converged for result in self._best)
                    self._tell(InferenceProgress("exact", 0, np.inf, n, len(self._best), self._problem.seconds))
            finally:
                late[0] |= not work.done()
            found = work.result()
        for m in within:
            if found[m] is None:
                self._told[m].append(f"exact inference gave up after {self._problem.seconds - beginning:.3g} s")
        return found

    def _take(self, results: Sequence[InferenceResult | None], what: str) -> None:
        """Keep results that are better than those before."""
        spent, self._since = self._problem.seconds - self._since, self._problem.seconds
        for m, new in enumerate(results):
            old = self._best[m]
            if new is None or (old is not None and old.bound == "exact"):
                continue
            ended = "" if new.bound == "exact" else ", converged" if new.converged else f", {new.status}"
            better = old is None or new.bound == "exact" or _rank(new) <= _rank(old)
            self._told[m].append(f"{what} ({spent:.3g} s{ended}){'' if better else ', which was no better'}")
            if better:
                self._best[m] = new

    def _refine(self, m: int, tree: JunctionTree, deadline: Deadline) -> None:
        """Join graphs of growing clusters, while there is time for another by what those before took."""
        cardinalities, tables, hubs = self._problem.data.structure.scopes(m)
        scopes, before, after = [*tables, *hubs], 0, _ROUNDS * _PER_ENTRY
        for limit in _LIMITS:
            planned = Deadline(_PLANNED * (deadline.left or 0.0))
            joined = join_graph(cardinalities.tolist(), scopes, len(tables), tree, limit, planned)
            if joined is None or self._over():
                return
            entries, left = joined.factors.tree.table_entries, deadline.left or 0.0
            needed = 8 * joined.factors.tree.message_entries
            if before and (needed > self._problem.options.memory_budget or after * entries > left):
                return
            if entries == before:
                continue
            found = self._for(left, lambda p, j=joined: [on_join_graph(p, m, j, self._tell)])  # type: ignore[misc]
            results: list[InferenceResult | None] = [None] * len(self._best)
            results[m] = found[0]
            self._take(results, f"a join graph of clusters of up to {limit} states")
            before, after = entries, (left - (deadline.left or 0.0)) / entries

    def _bracket(self, rest: list[int]) -> None:
        """An interval of log Z, and its estimate where that is narrow."""
        links = np.diff(self._problem.data.layout.hub_links[self._problem.data.layout.instance_hubs])[rest].max()
        n = int(np.clip(_MOST_MOVES / links, _LEAST_SAMPLES, _MOST_SAMPLES))
        sampled = self._for(self._left, lambda p: annealing(p, n_samples=n, chosen=rest))
        for m, other in zip(rest, sampled, strict=True):
            best = self._best[m]
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


def on_join_graph(problem: Problem, m: int, joined: JoinGraph, tell: Callable[[InferenceProgress], bool]) -> Any:
    """What copies of variables tell each other, damped, with exact messages between; None where time is up at once."""
    messages, factors = problem.messages(carve(problem.data, "bethe").whole), joined.factors
    tree = Elimination(problem.data.layout, m, factors, *tree_plan(factors), problem.evidence[m], ())
    tables, late = messages.tables, problem.deadline.late
    bounds = tree.start[len(factors.scopes) - 2 * len(joined.pairs) :] - tree.n_own
    sizes = np.diff(bounds)
    # Where the same state is at the other end of a pair, and the states of first ends.
    other = np.arange(bounds[-1]) + np.repeat(np.tile([1, -1], len(joined.pairs)) * sizes, sizes)
    first = np.repeat(np.tile([True, False], len(joined.pairs)), sizes)
    told = -np.log(np.repeat(sizes, sizes))
    best, iteration, status = None, 0, "converged"
    most = min(_MOST_ROUNDS, problem.options.max_iterations)
    while True:
        value, beliefs = tree.calibrated(tables.log_entries, tables.hub_scores, late, told)
        if not np.isfinite(value):
            break
        iteration += 1
        ends = beliefs[tree.n_own :]
        both = np.exp(told + told[other])[first]
        starts = pointer(sizes[::2])[:-1]
        value -= float(np.log(np.add.reduceat(both, starts)).sum()) if starts.size else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            new = np.where(ends > 0.0, np.log(ends) - told, -np.inf)[other]
            new -= np.repeat(np.maximum.reduceat(new, bounds[:-1]), sizes)
            new -= np.repeat(np.log(np.add.reduceat(np.exp(new), bounds[:-1])), sizes)
        # Ends may agree by symmetry before they have told each other anything.
        residual = float(np.nanmax(np.abs([ends - ends[other], np.exp(new) - np.exp(told)]), initial=0.0))
        best = value, beliefs[: tree.n_own], residual
        if residual <= _TOLERANCE or iteration >= most:
            status = "converged" if residual <= _TOLERANCE else f"stopped at the limit of {iteration} iterations"
            break
        if tell(InferenceProgress("join graph", iteration, residual, 0, 1, problem.seconds)):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            told = np.where(new > -np.inf, _DAMPING * np.maximum(told, -1e4) + (1.0 - _DAMPING) * new, -np.inf)
            told -= np.repeat(np.log(np.add.reduceat(np.exp(told), bounds[:-1])), sizes)
    if best is None:
        return None
    if best[2] > _TOLERANCE and status == "converged":
        status = f"stopped at the time limit of {problem.options.max_seconds} s"
    value, beliefs, residual = best
    exact = not joined.pairs
    return problem.result(
        ExactReader(messages, {m: tree}, {m: beliefs}), m, value, converged=status == "converged", iterations=iteration,
        updates=iteration * 2 * len(factors.tree.edges), method="auto", status=status, residual=residual,
        bound="exact" if exact else None,
    )  # fmt: skip
