"""What a field finds in its rows: which variables are joined, under which prior, and the tables themselves.

Without a word, all pairs are joined where exact learning takes them on and rows are many for their weights; elsewhere
edges are selected (:mod:`bactrian.learners.structure`), by the criterion ``"aic"``. Where states follow from others,
its least value mostly counts weights that the rows cannot tell. If one variance for all edges pays there, few edges are
not what helps, and all pairs are joined: of two states that never meet, the true states of the others say so, and
held-out conditionals do not miss the edge, but the distribution does.

The variance of edges is walked to by the loss of rows that are held out, state by state given the others of the row,
which needs no log Z: each half of at most 2,000 complete rows is learned from and judged by the other. Edges that
``"aic"`` or ``"cv"`` selected have variances of their own, under which the optimum is that of the path, unless one for
all leaves a twentieth less: where states follow from others, a penalty that finds edges holds their tables too small.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.errors import ArgumentError, check_choice, warn
from bactrian.estimators.auto_prior import prior_seconds, walked
from bactrian.estimators.pairwise import PairwiseTables, checked_edges
from bactrian.estimators.priors import VARIANCE, variances
from bactrian.frames import Variables, has_names
from bactrian.graphs.loglinear import Samples
from bactrian.learners.hidden import random_weights
from bactrian.learners.learn import learn, with_lines
from bactrian.learners.structure import CRITERIA, fit_tables, select, tree
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import ConvergenceWarning, Progress, Solution, warn_stopped

#: What ``edges`` may be instead of pairs; those that depend on the rows.
WORDS, BY_ROWS = ("auto", "select", "tree", "complete", "grid"), ("auto", "select", "tree")
#: Rows for each free weight of an edge that the complete graph needs, where it has more than so many of these.
_ROWS_PER_WEIGHT, _FEW = 5, 10
#: Variance of tables of edges where too few rows are complete to choose one, the one from which it is walked, and the
#: range.
_EDGES, _START, _RANGE = 1.0, 0.1, (1e-4, 10.0)
#: Of the loss with the variances of a selection, the part that one for all edges may leave at most.
_PAYS = 0.95
#: Rows that are looked at, and how few are too few for that.
_ROWS, _LEAST = 2_000, 12
#: The part of its objective that a fit to half of them must gain in an iteration to go on, and its iterations.
_GAIN, _ITERATIONS = 3e-4, 60
#: Nats by which objectives of the same optimum may differ.
_SAME_OPTIMUM = 0.01


# --- which variables are joined ---


@dataclass(frozen=True)
class Joined:
    """Pairs of variables that are joined, and why."""

    edges: Ints
    why: str = ""
    path: dict[str, list[float]] | None = None  #: of the selection
    variances: Floats | None = None  #: of edges under which a pseudo-likelihood has the optimum of the selection
    prior: dict[str, Any] | None = None  #: what ``"auto"`` stands for, where it was needed to choose them


def check_edges(edges: Any, criterion: Any) -> None:
    """Check edges and criterion, before looking at any data."""
    pairs, rest = _with_rest(edges)
    if criterion is not None:
        check_choice("criterion", criterion, CRITERIA)
        if not (rest or (isinstance(edges, str) and edges in ("auto", "select"))):
            raise ArgumentError("criterion", f"= {criterion!r} is for selected edges, found edges={edges!r}")
    words = [pair for pair in pairs if isinstance(pair, str)] if isinstance(pairs, list | tuple) else []
    if words:
        raise ArgumentError("edges", f"must be pairs, perhaps followed by 'select', found {words[0]!r}")
    if not (isinstance(pairs, str) and pairs in WORDS) and not has_names(pairs):
        checked_edges(pairs, None, np.iinfo(np.int64).max)


def is_by_rows(edges: Any) -> bool:
    """Whether the edges depend on the rows."""
    return _with_rest(edges)[1] or (isinstance(edges, str) and edges in BY_ROWS)


def _with_rest(edges: Any) -> tuple[Any, bool]:
    """Pairs without the word "select" at their end, and whether it was there."""
    if isinstance(edges, list | tuple) and edges and isinstance(edges[-1], str) and edges[-1] == "select":
        return list(edges[:-1]), True
    return edges, False


def joined(
    edges: Any,
    criterion: str | None,
    tables: str,
    variables: Variables,
    rows: HeldOutRows,
    *,
    most_work: float,
    seed: int,
) -> Joined:
    """The edges of a field with these ``variables`` and kind of ``tables``; ``most_work`` is that of exact learning."""
    pairs, rest = _with_rest(edges)
    word = "select" if rest else edges if isinstance(edges, str) else ""
    sizes, ordered = np.array(variables.cardinalities, dtype=np.int64), np.array(variables.are_ordered, dtype=bool)
    scored = np.where(ordered & (tables == "ordinal"), sizes, 0)
    possible = np.stack(np.triu_indices(sizes.size, 1), axis=1).astype(np.int64)
    n_weights, total = int(np.where(scored, 1, sizes - 1)[possible].prod(axis=1).sum()), rows.weights.sum()
    of_pairs, by = f"of {len(possible)} pairs", criterion or ("aic" if word == "auto" else "ebic")
    known = () if variables.n_hidden else ("full",) if word == "tree" else ("full", "ordinal")
    if word == "auto":
        log_work = np.log(np.maximum(sizes, 1)).sum() + np.log(sizes.size + len(possible))
        small = log_work <= np.log(most_work) and n_weights <= max(_FEW, total / _ROWS_PER_WEIGHT)
        if small or tables not in known:
            return Joined(possible, f"complete: all {of_pairs[3:]}")
    if tables not in known:
        kinds = " or ".join(f"tables={kind!r}" for kind in known or ("full", "ordinal"))
        raise ArgumentError("edges", f"= {word!r} needs {kinds} and no hidden variables; give pairs")
    if word == "tree":
        found = tree(rows.states, sizes, rows.weights)
        return Joined(found, f"tree: {len(found)} {of_pairs}")
    given = checked_edges(variables.edges(pairs), None, sizes.size) if rest else np.zeros((0, 2), dtype=np.int64)
    options: Any = {"seed": seed, "n_threads": rows.n_threads, "max_seconds": rows.max_seconds}
    found, path, of_edges = select(rows.states, rows.weights, by, given=given, scored=scored, **options)
    also = f", {len(given)} of them given" if len(given) else ""
    why = f"{len(found)} {of_pairs}{also}, by {by}; all pairs have {n_weights} free weights for {total:g} rows"
    if of_edges is None:
        return Joined(found, f"select: {why}", path)
    of_edges = np.where(np.isnan(of_edges), VARIANCE, of_edges)
    selected = Joined(found, f"select: {why}", path, of_edges)
    return _widened(selected, possible, tables, variables, rows) if word == "auto" and not criterion else selected


def _widened(selected: Joined, possible: Ints, tables: str, variables: Variables, rows: HeldOutRows) -> Joined:
    """All pairs, where states follow from others and one variance for all pays."""
    assert selected.path is not None
    best = int(np.argmin(selected.path["criterion"]))
    expected, lost = selected.path["criterion"][best], -2.0 * selected.path["pseudo_log_likelihood"][best]
    if expected < 2.0 * lost:
        return selected
    prior, _ = rows.chosen(PairwiseTables.of(tables, variables, selected.edges), selected.variances)
    if isinstance(prior["edges"], list):
        return replace(selected, prior=prior)
    of_all, loss = rows.chosen(PairwiseTables.of(tables, variables, possible), None)
    if 2.0 * rows.weights.sum() * loss > expected:
        return replace(selected, prior=prior)
    why = (
        f"complete: all {len(possible)} pairs, since the {len(selected.edges)} of least aic do best under one variance"
    )
    return Joined(possible, why, selected.path, None, of_all)


# --- the prior of edges ---


@dataclass(eq=False)
class HeldOutRows:
    """Rows of numbers of states, of which each half of a sample is learned from and judged by the other.

    The sample is of complete rows, and the same for the same rows.
    """

    states: Ints  #: (n, n_variables), -1 where they are missing
    weights: Floats  #: (n,)
    n_threads: int | None = None
    max_seconds: float | None = None  #: of learning, of which this takes a part
    _parts: list[Ints] = field(init=False)
    _starts: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        complete = np.flatnonzero((self.states >= 0).all(axis=1) & (self.weights > 0.0))
        rows = np.random.default_rng(0).permutation(complete)[:_ROWS]
        self._parts, self._starts = [rows[::2], rows[1::2]], [None, None]

    @cached_property
    def _deadline(self) -> Deadline:
        return Deadline(prior_seconds(self.max_seconds))

    def loss(self, tables: PairwiseTables, prior: dict[str, Any]) -> float:
        """The loss of the conditionals of both halves."""
        of_weights, total = variances(prior, tables.blocks), 0.0
        for f, (train, test) in enumerate([self._parts, self._parts[::-1]]):
            if self._deadline.has_passed:
                return 0.0
            last = np.inf

            def settled(at: Progress) -> bool:
                nonlocal last
                gain, last = last - at.objective, at.objective
                return gain < _GAIN * at.objective

            start = self._starts[f]
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                solution = learn_conditionals(
                    tables, Samples(tables.model, self.states[train], self.weights[train]),
                    prior_variance=of_weights, tolerance=1e-6, max_iterations=_ITERATIONS, callback=settled,
                    start=start if start is not None and start.size == tables.n_weights else None,
                    max_seconds=self._deadline.left, n_threads=self.n_threads,
                )  # fmt: skip
            self._starts[f] = None if tables.kind == "full" else solution.weights
            total += float(self.weights[test] @ tables.conditional_losses(self.states[test], solution.weights))
        return total

    def chosen(self, tables: PairwiseTables, selected: Floats | None) -> tuple[dict[str, Any], float]:
        """Variances of variables, the usual one, and of edges: that of least loss, or the ``selected`` ones.

        The rows that judge have helped to select, but one for all may still pay. Also the least loss of a row.
        """
        usual: dict[str, Any] = {"variables": VARIANCE, "edges": _EDGES if selected is None else selected.tolist()}
        if sum(part.size for part in self._parts) < _LEAST or not len(tables.edges):
            return usual, np.inf
        tried: list[float] = []

        def loss(variance: float) -> float:
            tried.append(self.loss(tables, {**usual, "edges": variance}))
            return tried[-1]

        most = np.inf if selected is None else _PAYS * self.loss(tables, usual)
        found = {**usual, "edges": walked(loss, _START, _EDGES, _RANGE)}
        if self._deadline.has_passed:
            return usual, np.inf
        least, size = min(tried), sum(float(self.weights[part].sum()) for part in self._parts)
        return (usual, most / size) if least > most else (found, least / size)


# --- tables ---


def learn_conditionals(tables: PairwiseTables, data: Samples, device: str | None = None, **options: Any) -> Solution:
    """Maximum pseudo-likelihood of complete rows, with options of :func:`bactrian.learn`; full tables on a ``device``.

    By :func:`bactrian.learners.structure.fit_tables` where it applies; the general learner has the same optimum.
    """
    prior, start, n = options["prior_variance"], options.get("start"), tables.n_weights
    if tables.kind == "full" and start is None and prior is not None and np.isfinite(prior).all():
        firsts = np.cumsum([0, *tables.sizes, *tables.pair_sizes])[:-1]
        limits = {name: options[name] for name in ("tolerance", "max_iterations", "max_seconds", "n_threads")}
        if device is not None:
            from bactrian.engines.torch.learn import conditionals_on

            limits["place"] = partial(conditionals_on, device=device)
        callback = with_lines(options["callback"], options["tolerance"], options.get("verbose", 0))
        solution = fit_tables(
            data.X, tables.sizes, data.sample_weight, tables.edges, np.broadcast_to(prior, n)[firsts],
            **limits, callback=callback,
        )  # fmt: skip
        warn_stopped(solution)
        return solution
    return learn(data, **{**options, "method": "pseudolikelihood"})


def best_of_starts(
    n: int, learner: Callable[..., Solution], from_zero: bool, data: Samples, *, seed: int, **options: Any
) -> tuple[Solution, Floats]:
    """The best of ``n`` solutions where some states were not seen, and the objectives of all.

    The first start is from zero weights or, as all others are, from random ones.
    """
    deadline, best, found = Deadline(options.pop("max_seconds")), None, []
    for i in range(n):
        if best is not None and deadline.has_passed:
            break
        start = None if from_zero and not i else random_weights(data.model.n_weights, seed + i)
        solution = learner(data, start=start, **options, seed=seed, max_seconds=deadline.left)
        found.append(solution.objective)
        best = solution if best is None or solution.objective < best.objective else best
    assert best is not None
    objectives = np.array(found)
    if (objectives <= best.objective + _SAME_OPTIMUM).sum() == 1 < len(found):
        warn(
            f"only one of {len(found)} starts reached the least objective, {best.objective:.2f}; the others ended "
            f"{np.sort(objectives)[1] - best.objective:.2g} to {max(found) - best.objective:.2g} above it (starts_). "
            "A better optimum may exist: raise n_starts",
            ConvergenceWarning,
        )
    return best, objectives
