"""Inference that chooses: exact where tables fit memory and time, better and better approximations elsewhere.

What a junction tree costs is known once it is planned, and planning costs a small part of it. Where it costs too much,
belief propagation comes first, since something must be there when time is up; then the same, damped, on join graphs
(:mod:`bactrian.graphs.join_graph`) of growing clusters, which become the cliques of a junction tree; then annealed
importance sampling, which brackets log Z.

Where a distribution has several modes, messages settle on one of them, which one is chance: join graphs along other
elimination orders end elsewhere. So where answers disagree, clusters grow no further than leaves time for several of
them, and their average is taken. Each is itself a sum over the states of the variable of which the answers before
disagree most, weighted by their values of Z (conditioned belief propagation: Eaton & Ghahramani, AISTATS 2009). To the
mean of log Z the average adds how much its parts differ, of which the Jensen-Shannon divergence of one variable's
marginals is a lower bound: -F of a mixture is the mean of its parts' -F, and their divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.entropy import carve
from bactrian.graphs.elimination import JunctionTree, MemoryBudgetError, junction_tree
from bactrian.graphs.join_graph import JoinGraph, join_graph
from bactrian.graphs.ragged import pointer
from bactrian.inference.annealing import annealing
from bactrian.inference.exact import Elimination, ExactReader, eliminations, solve, tree_plan
from bactrian.inference.problem import Evidence, Problem
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
#: States of the clusters of join graphs, in turn, and the most rounds of messages and answers.
_LIMITS, _MOST_ROUNDS, _MOST_ANSWERS = (2**8, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24), 200, 32
#: Runs of messages for which larger clusters must leave time, unless the last few answers diverge by less than this;
#: how many these are; the divergence at which no more are needed; the residual of messages that go round in circles.
_SEVERAL, _COMPARED, _AGREED, _SETTLED, _UNSETTLED = 8, 4, 0.05, 1e-3, 0.1
#: Draws of an elimination order, and the least probability of a state that is worth a condition.
_DRAWS, _UNLIKELY = 4, 1e-4
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

    def _for(self, seconds: float, method: Callable[[Problem], Any]) -> Any:
        """What a method finds in so many seconds."""
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

    def _take(
        self, results: Sequence[InferenceResult | None], what: str, beside: InferenceResult | None = None
    ) -> None:
        """Keep results that are better than those before, or than that ``beside``."""
        spent, self._since = self._problem.seconds - self._since, self._problem.seconds
        for m, new in enumerate(results):
            old = self._best[m]
            if new is None or (old is not None and old.bound == "exact"):
                continue
            ended = "" if new.bound == "exact" else ", converged" if new.converged else f", {new.status}"
            better = old is None or new.bound == "exact" or _rank(new) <= _rank(beside or old)
            self._told[m].append(f"{what} ({spent:.3g} s{ended}){'' if better else ', which was no better'}")
            if better:
                self._best[m] = new

    def _refine(self, m: int, tree: JunctionTree, deadline: Deadline) -> None:
        """Join graphs of growing clusters, and along other orders, while there is time by what those before took."""
        graphs, budget = _JoinGraphs(self._inner, m, tree), self._problem.options.memory_budget
        limits = [limit for limit in _LIMITS if 8 * limit <= budget] or [1]
        level, entries, run, rate, first, averaging = -1, 0, 0.0, 0.0, self._best[m], None
        while not self._over() and graphs.n_found < _MOST_ANSWERS:
            states, planned = graphs.conditions(_AGREED), Deadline(_PLANNED * (deadline.left or 0.0))
            tree = graphs.tree(states[0], planned)
            chosen, agree = None, graphs.divergence <= _AGREED
            for n in range(level + 1, len(limits)):
                joined = graphs.joined(tree, limits[n], planned)
                if joined is None:
                    return
                larger = joined.factors.tree.table_entries
                if larger <= entries and joined.pairs:
                    continue
                needed = (run + rate * (larger - entries)) * max(len(states), 1 if agree else _SEVERAL)
                held = 8 * joined.factors.tree.message_entries
                if not entries or (needed <= (deadline.left or 0.0) and held <= budget):
                    chosen, level, entries = joined, n, larger
                break
            if chosen is None and not graphs.settled:
                if agree:
                    states = graphs.conditions(_SETTLED)
                    tree = graphs.tree(states[0], planned)
                if run * len(states) <= (deadline.left or 0.0):
                    chosen = graphs.joined(tree, limits[level], planned)
            left = deadline.left or 0.0
            if chosen is None or not self._for(left, partial(graphs.add, level, chosen, states, self._tell)):
                return
            run = (left - (deadline.left or 0.0)) / len(states)
            rate = 2.0 * _PER_ENTRY * graphs.rounds / len(states)  # part of the time does not grow with tables
            kind = "a join graph"
            if (several := len(graphs.used)) > 1:
                kind = f"the average of {several} join graphs"
                if averaging is not None:
                    self._told[m].pop()
                    self._since = averaging
            averaging = self._since if several > 1 else None
            results: list[InferenceResult | None] = [None] * len(self._best)
            results[m] = graphs.result()
            self._take(results, f"{kind} of clusters of up to {limits[level]} states", first)

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


@dataclass(frozen=True)
class Answer:
    """log Z and the marginals of an instance's factors, one after the other, and how messages ended."""

    value: float
    beliefs: Floats
    residual: float
    iterations: int
    updates: int
    tree: Elimination  #: any, for where factors start
    exact: bool


class _JoinGraphs:
    """Answers of join graphs for one instance, and what they are together."""

    def __init__(self, problem: Problem, m: int, tree: JunctionTree) -> None:
        self._problem, self._m, self._first = problem, m, tree
        self._found: list[Answer] = []
        self._levels: list[int] = []  # of their clusters
        self._last: Sequence[Evidence] = [{}]
        cardinalities, tables, self._hubs = problem.data.structure.scopes(m)
        self._sizes, self._scopes, self._n_tables = cardinalities.tolist(), [*tables, *self._hubs], len(tables)
        self._states = pointer([math.prod(self._sizes[v] for v in scope) for scope in self._hubs])

    def tree(self, seen: Evidence, deadline: Deadline) -> JunctionTree:
        """Another junction tree for every answer but the first, without the variables of ``seen``."""
        evidence, budget = [*self._problem.evidence[self._m], *seen], self._problem.options.memory_budget
        if self.n_found == 0:
            return self._first
        try:
            return junction_tree(
                self._sizes, self._scopes, evidence=evidence, restarts=_DRAWS, seed=self.n_found, memory_budget=budget,
                whole=False, late=lambda: deadline.has_passed,
            )  # fmt: skip
        except MemoryBudgetError as error:
            return error.tree or self._first

    def joined(self, tree: JunctionTree, limit: int, deadline: Deadline) -> JoinGraph | None:
        """The join graph along the order of a tree; None where time is up."""
        return join_graph(self._sizes, self._scopes, self._n_tables, tree, limit, deadline)

    def add(
        self, level: int, joined: JoinGraph, states: Sequence[Evidence], tell: Callable[[InferenceProgress], bool],
        problem: Problem,
    ) -> bool:  # fmt: skip
        """Whether there was time for another answer."""
        answer = on_join_graph(problem, self._m, joined, tell, states)
        if answer is None or (self._found and problem.deadline.has_passed):
            return False
        self._found.append(replace(answer, tree=self._found[0].tree) if self._found else answer)
        self._levels.append(level)
        self._last = states
        return True

    def _divergences(self, answers: Sequence[Answer]) -> tuple[Floats, Floats]:
        """The Jensen-Shannon divergence of answers, by hub, and the mean of their marginals."""
        marginals = np.array([answer.beliefs[-self._states[-1] :] for answer in answers])
        mean = marginals.mean(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(marginals > 0.0, marginals * np.log(marginals / mean), 0.0).mean(axis=0)
        return np.add.reduceat(terms, self._states[:-1]), mean

    @property
    def n_found(self) -> int:
        """How many answers there are."""
        return len(self._found)

    @property
    def rounds(self) -> int:
        """How often the last answer has passed messages."""
        return self._found[-1].iterations

    @property
    def divergence(self) -> float:
        """How far the last answers are from each other; infinite where there are no two."""
        return float(self._divergences(self._found[-_COMPARED:])[0].max()) if self.n_found > 1 else math.inf

    @property
    def settled(self) -> bool:
        """Whether more answers would change nothing."""
        near = self.n_found >= _COMPARED and self.divergence <= _SETTLED
        return self._found[-1].exact or (near and self._found[-1].residual <= _TOLERANCE)

    @property
    def used(self) -> list[Answer]:
        """What the result is the average of: those of the largest clusters where the last agree, all elsewhere.

        Answers whose messages do not settle at all count only where all are like that.
        """
        if self._found[-1].exact:
            return self._found[-1:]
        least = self._levels[-1] if self.divergence <= _AGREED else 0
        used = [answer for answer, level in zip(self._found, self._levels, strict=True) if level >= least]
        return [answer for answer in used if answer.residual <= _UNSETTLED] or used

    def conditions(self, near: float) -> Sequence[Evidence]:
        """The likely states of the variable of which answers disagree most, or is least certain, for their number.

        Answers that agree do so given the states of the last, so that these are kept; without such, ``near`` decides.
        """
        if self.n_found < 2 or self.divergence <= (_AGREED if self._last[0] else near):
            return self._last
        divergences, mean = self._divergences(self._found[-_COMPARED:])
        likely = mean > _UNLIKELY
        entropies = np.add.reduceat(-mean * np.log(np.maximum(mean, 1e-300)), self._states[:-1])
        gain = (divergences + 1e-6 * entropies) / np.maximum(np.add.reduceat(likely, self._states[:-1]) - 1, 1)
        gain[[len(scope) > 1 for scope in self._hubs]] = 0.0
        hub = int(np.argmax(gain))
        if gain[hub] <= 0.0:
            return [{}]
        (v,) = self._hubs[hub]
        return [{v: s} for s in np.flatnonzero(likely[slice(*self._states[hub : hub + 2])]).tolist()]

    def result(self) -> InferenceResult:
        """The average of what is used; for its log Z see the head of this module."""
        used = self.used
        value = float(np.mean([answer.value for answer in used]) + self._divergences(used)[0].max())
        mixed = _mixed(used, np.full(len(used), 1.0 / len(used)))
        return result_of(self._problem, self._m, replace(mixed, value=value))


def on_join_graph(
    problem: Problem, m: int, joined: JoinGraph, tell: Callable[[InferenceProgress], bool],
    states: Sequence[Evidence] = ({},),
) -> Answer | None:  # fmt: skip
    """The sum over ``states``, of the same variables; None where time is up at once."""
    tables, plan = problem.messages(carve(problem.data, "bethe").whole).tables, tree_plan(joined.factors)
    found = []
    for seen in states:
        evidence = {**problem.evidence[m], **seen}
        tree = Elimination(problem.data.layout, m, joined.factors, *plan, evidence, ())
        answer = _settled(problem, tables.log_entries, tables.hub_scores, tree, joined, tell)
        if answer is not None:
            found.append(answer)
        if problem.deadline.has_passed:
            break
    if not found:
        return None
    values = np.array([answer.value for answer in found])
    value = float(np.logaddexp.reduce(values))
    mixed = _mixed(found, np.exp(values - value))
    return replace(mixed, value=value, exact=mixed.exact and not states[0])  # other states may be possible


def _mixed(answers: Sequence[Answer], weights: Floats) -> Answer:
    """A mixture of answers, whose messages are as far from settled as those of half of it at least."""
    beliefs = np.zeros_like(answers[0].beliefs)
    for answer, weight in zip(answers, weights, strict=True):
        beliefs += weight * answer.beliefs
    residual = float(np.median([answer.residual for answer in answers]))
    iterations, updates = (sum(getattr(answer, name) for answer in answers) for name in ("iterations", "updates"))
    exact = all(answer.exact for answer in answers)
    return replace(answers[-1], beliefs=beliefs, residual=residual, iterations=iterations, updates=updates, exact=exact)


def _settled(
    problem: Problem, entries: Floats, hub_scores: Floats, tree: Elimination, joined: JoinGraph,
    tell: Callable[[InferenceProgress], bool],
) -> Answer | None:  # fmt: skip
    """What copies of variables tell each other, damped, with exact messages between."""
    late = problem.deadline.late
    bounds = tree.start[len(joined.factors.scopes) - 2 * len(joined.pairs) :] - tree.n_own
    sizes = np.diff(bounds)
    # Where the same state is at the other end of a pair, and the states of first ends.
    other = np.arange(bounds[-1]) + np.repeat(np.tile([1, -1], len(joined.pairs)) * sizes, sizes)
    first = np.repeat(np.tile([True, False], len(joined.pairs)), sizes)
    starts = pointer(sizes[::2])[:-1]
    told = -np.log(np.repeat(sizes, sizes))
    best, iteration = None, 0
    while True:
        value, beliefs = tree.calibrated(entries, hub_scores, late, told)
        if not np.isfinite(value):
            return best
        iteration += 1
        ends = beliefs[tree.n_own :]
        both = np.exp(told + told[other])[first]
        value -= float(np.log(np.add.reduceat(both, starts)).sum()) if starts.size else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            new = np.where(ends > 0.0, np.log(ends) - told, -np.inf)[other]
            new -= np.repeat(np.maximum.reduceat(new, bounds[:-1]), sizes)
            new -= np.repeat(np.log(np.add.reduceat(np.exp(new), bounds[:-1])), sizes)
        # Ends may agree by symmetry before they have told each other anything.
        residual = float(np.nanmax(np.abs([ends - ends[other], np.exp(new) - np.exp(told)]), initial=0.0))
        updates = iteration * 2 * len(tree.tree.edges)
        best = Answer(value, beliefs[: tree.n_own], residual, iteration, updates, tree, not joined.pairs)
        if residual <= _TOLERANCE or iteration >= min(_MOST_ROUNDS, problem.options.max_iterations):
            return best
        if tell(InferenceProgress("join graph", iteration, residual, 0, 1, problem.seconds)):
            return best
        with np.errstate(divide="ignore", invalid="ignore"):
            told = np.where(new > -np.inf, _DAMPING * np.maximum(told, -1e4) + (1.0 - _DAMPING) * new, -np.inf)
            told -= np.repeat(np.log(np.add.reduceat(np.exp(told), bounds[:-1])), sizes)


def result_of(problem: Problem, m: int, answer: Answer) -> InferenceResult:
    """An answer as a result."""
    messages = problem.messages(carve(problem.data, "bethe").whole)
    converged = answer.residual <= _TOLERANCE
    status = "converged" if converged else f"stopped after {answer.iterations} iterations"
    return problem.result(
        ExactReader(messages, {m: answer.tree}, {m: answer.beliefs}), m, answer.value, converged=converged,
        iterations=answer.iterations, updates=answer.updates, method="auto",
        status=status, residual=answer.residual, bound="exact" if answer.exact else None,
    )  # fmt: skip
