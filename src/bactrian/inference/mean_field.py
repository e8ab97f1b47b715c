"""Naive mean field: the best fully factorised approximation, and a lower bound on log Z.

Peterson & Anderson, Complex Systems 1, 1987; Wainwright & Jordan, Foundations and Trends in Machine Learning 1, 2008,
section 5. The bound has many local maxima; several starts help.
"""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Floats
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.mean_field import Ascent, ascend_instances
from bactrian.engines.numba.tables import Limits
from bactrian.graphs.packed import HubTables
from bactrian.inference.factors import FactorScores, FactorTables, factor_scores
from bactrian.inference.maximum import find_allowed
from bactrian.inference.problem import Problem
from bactrian.inference.result import InferenceResult


def mean_field(problem: Problem, *, restarts: int = 1) -> list[InferenceResult]:
    """Coordinate ascent on F(q) = E[score] + H(q), for q a product over variables; F never falls.

    An instance is done when no belief changes by more than ``tolerance`` in a sweep over its variables, or after
    ``max_iterations`` sweeps, or where time is up. ``log_partition`` is F, which is at most log Z.

    Parameters
    ----------
    problem : Problem
        Packed models, weights, evidence, options.
    restarts : int
        Number of starts: the first is uniform, the others are drawn from a flat Dirichlet distribution by the seed of
        the call. Each model keeps its best. Where all of them leave mass on forbidden states one more starts at an
        allowed assignment, if max-product finds one; otherwise F is -inf, the truth about such beliefs.
    """
    options, workers = problem.options, problem.workers
    scores = factor_scores(problem.data, problem.weights, problem.evidence, workers)
    generator = np.random.default_rng(options.seed)

    def ascend(beliefs: Floats, best: Ascent | None) -> Ascent:
        ascent = _ascend(scores, beliefs, problem)
        return ascent if best is None else _better(scores.layout, best, ascent)

    best = ascend(_start(scores, None), None)
    for _ in range(restarts - 1):
        if not problem.deadline.has_passed:
            best = ascend(_start(scores, generator), best)
    if not problem.deadline.has_passed and (best.bound == -np.inf).any():
        best = ascend(_allowed_start(scores, problem), best)
    tables = FactorTables(problem.data, scores.data, ProductTables(scores.layout, best.beliefs))
    results = []
    for m, n_variables in enumerate(np.diff(scores.layout.instance_hubs).tolist()):
        iterations, allowed = int(best.iterations[m]), best.bound[m] > -np.inf
        settled, most = best.residual[m] <= options.tolerance, options.max_iterations
        limit = f"the limit of {most} iterations" if iterations >= most else "the time limit"
        status = "converged" if settled else f"stopped at {limit}"
        results.append(
            problem.result(
                tables,
                m,
                best.bound[m],
                converged=bool(settled and allowed),
                iterations=iterations,
                updates=iterations * n_variables,
                method="mean-field",
                status=status if allowed else "no start reached beliefs without forbidden states",
                residual=float(best.residual[m]),
                bound="lower",
            )
        )
    return results


class ProductTables(HubTables):
    """Tables of clusters as products of the beliefs of their variables."""

    def cluster(self, index: int) -> Floats:
        """Table of a cluster."""
        layout = self._layout
        product = np.ones(1)
        for link in layout.cluster_link[layout.cluster_links[index] : layout.cluster_links[index + 1]]:
            product = np.multiply.outer(product, self.hub(int(layout.link_hub[link]))).ravel()
        return product


def _start(scores: FactorScores, generator: np.random.Generator | None) -> Floats:
    """Beliefs to start from, uniform or random, over the states that are not ruled out."""
    layout = scores.layout
    drawn = np.ones(layout.n_hub_states) if generator is None else generator.standard_exponential(layout.n_hub_states)
    drawn[scores.hubs == -np.inf] = 0.0
    hub = np.repeat(np.arange(layout.n_hubs), np.diff(layout.hub_offset))
    total = np.bincount(hub, weights=drawn, minlength=layout.n_hubs)
    drawn[total[hub] == 0.0] = 1.0
    return drawn / np.bincount(hub, weights=drawn, minlength=layout.n_hubs)[hub]


def _allowed_start(scores: FactorScores, problem: Problem) -> Floats:
    """All mass on an assignment that is allowed, where one is found."""
    found = find_allowed(scores, problem.workers, problem.many, problem.evidence)
    beliefs = np.zeros(scores.layout.n_hub_states)
    beliefs[scores.layout.hub_offset[:-1] + found.states] = 1.0
    return beliefs


def _ascend(scores: FactorScores, beliefs: Floats, problem: Problem) -> Ascent:
    n, options = scores.layout.n_instances, problem.options
    late = problem.deadline.late
    ascent = Ascent(beliefs, np.full(n, -np.inf), np.full(n, np.inf), np.zeros(n, dtype=np.int64), late)
    limits = Limits(options.tolerance, options.max_iterations)
    arrays = scores.arrays
    problem.workers.run(
        lambda _, first, last: ascend_instances(scores.layout, arrays, ascent, limits, first, last),
        scores.data.blocks,
    )
    return ascent


def _better(layout: Layout, old: Ascent, new: Ascent) -> Ascent:
    """The better of two ascents, instance by instance."""
    wins = new.bound > old.bound
    states = np.repeat(wins, np.diff(layout.hub_offset[layout.instance_hubs]))
    return Ascent(
        np.where(states, new.beliefs, old.beliefs),
        np.where(wins, new.bound, old.bound),
        np.where(wins, new.residual, old.residual),
        np.where(wins, new.iterations, old.iterations),
        new.late,
    )
