"""Margins on their region graph: as the general learner finds them, and exact where the regions form a tree."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import bactrian as bt
from bactrian.margins.fit import fit_with_learner
from bactrian.margins.given import check_margins
from bactrian.margins.problem import FitOptions, margin_problem
from bactrian.margins.regions import RegionDual, fit_by_regions
from bactrian.margins.tree import fit_exactly, tree_of
from bactrian.parallel.threads import Workers
from bactrian.solvers.solution import Status

SIZES = {"a": 3, "b": 2, "c": 4, "d": 3, "e": 2}
LOOPY = (("a", "b", "c"), ("b", "c", "d"), ("a", "d", "e"), ("c", "e"), ("a", "b", "d"))
TREE = (("a", "b", "c"), ("c", "b", "d"), ("e", "d"))


def problem_of(names, *, exact=(), stddev=8.0, seed=0, base=None, impossible=(), weight=0.01):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(0.5 * np.ones(144)).reshape(tuple(SIZES.values()))
    for cell in impossible:
        p[tuple(cell.get(name, slice(None)) for name in SIZES)] = 0.0
    p /= p.sum()
    order = list(SIZES)
    margins = []
    for i, scope in enumerate(names):
        left = [name for name in order if name in scope]
        table = 1000 * p.sum(axis=tuple(v for v, name in enumerate(order) if name not in scope))
        table = table.transpose([left.index(name) for name in scope])
        if i in exact:
            margins.append(bt.Marginal(scope, table))
        else:
            noise = stddev * rng.uniform(0.5, 1.5, table.shape)
            margins.append(bt.Marginal(scope, table + noise * rng.standard_normal(table.shape), stddev=noise))
    return margin_problem(check_margins(margins, SIZES, 1000.0, base, list(impossible)), weight, nearest=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight": 1.0},
        {"stddev": 0.5},
        {"exact": (0, 3)},
        {"exact": (2,), "base": bt.Marginal(("b", "e"), [[1.0, 2.0], [3.0, 0.5]])},
        {"impossible": [{"a": 0, "b": 1}, {"d": 2, "e": 0}]},
        {"base": bt.Marginal(("c", "d"), np.arange(12.0).reshape(4, 3)), "exact": ()},
    ],
)
def test_the_general_learner_finds_the_same(options):
    problem = problem_of(LOOPY, **options)
    graph = problem.graph(regions=True)
    solution, cells = fit_by_regions(problem, graph, FitOptions(tolerance=1e-8))
    assert solution.converged
    assert solution.violation <= (2e-7 if options.get("exact") else 1e-8)
    _, expected = fit_with_learner(problem, "cccp", FitOptions(tolerance=1e-7), graph)
    np.testing.assert_allclose(cells, expected, atol=2e-6)
    # N b = y - p w of every cell that can be
    gap = 1000 * cells - problem.observed + problem.precision * solution.weights
    np.testing.assert_allclose(gap[cells > 0.0], 0.0, atol=1e-6)


@pytest.mark.parametrize("exact", [(), (0, 1, 2), (1,)])
def test_regions_that_form_a_tree_are_exact(exact):
    problem = problem_of(TREE, exact=exact)
    _, cells = fit_by_regions(problem, problem.graph(regions=True), FitOptions(tolerance=1e-9))
    _, expected = fit_exactly(problem, tree_of(problem, 2**20), FitOptions(tolerance=1e-10))
    np.testing.assert_allclose(cells, expected, atol=1e-6)


def test_inference_at_the_weights_has_the_fitted_margins():
    problem = problem_of(LOOPY)
    graph = problem.graph(regions=True)
    solution, cells = fit_by_regions(problem, graph, FitOptions(tolerance=1e-9))
    result = bt.infer(problem.model(graph), solution.weights, "double-loop", tolerance=1e-9)
    for i, table in enumerate(problem.split(cells)):
        np.testing.assert_allclose(result.clusters[i], table, atol=1e-6)


def test_rounds_centre_the_prior_at_the_weights_of_the_last():
    problem = problem_of(LOOPY, exact=(3,), weight=0.5, impossible=[{"a": 0, "b": 1}])
    graph, options, raised = problem.graph(regions=True), FitOptions(tolerance=1e-8), problem
    first, _ = fit_by_regions(problem, graph, options)
    for _ in range(3):
        solution, cells = fit_by_regions(raised, graph, options)
        raised = replace(problem, observed=problem.observed + problem.precision * solution.weights)
    together, found = fit_by_regions(replace(problem, rounds=3), graph, options)
    assert together.converged
    assert np.abs(first.weights - solution.weights).max() > 0.5
    np.testing.assert_allclose(found, cells, atol=1e-6)


def test_exact_margins_need_no_iterations_and_their_weights_fit():
    problem = problem_of(LOOPY, exact=range(5))
    graph = problem.graph(regions=True)
    solution, cells = fit_by_regions(problem, graph, FitOptions(tolerance=1e-9))
    assert solution.history[-1].iterations == 0
    np.testing.assert_allclose(1000 * cells, problem.observed, rtol=1e-12)
    dual = RegionDual(problem, graph, Workers(1))
    assert dual.violation < 1e-12


def test_gradient_and_value_are_those_of_the_dual_minimised_over_weights():
    problem = problem_of(LOOPY, exact=(3,), base=bt.Marginal(("b", "e"), [[1.0, 2.0], [3.0, 0.5]]))
    dual = RegionDual(problem, problem.graph(regions=True), Workers(1))
    rng = np.random.default_rng(1)
    x = dual.x + 0.3 * rng.standard_normal(dual.x.size)
    _, slope = dual.value_and_gradient(x)
    direction = rng.standard_normal(x.size)
    ahead, behind = (dual.value_and_gradient(x + step * direction)[0] for step in (1e-4, -1e-4))
    assert slope @ direction == pytest.approx((ahead - behind) / 2e-4, rel=1e-6)
    # The first margin's term against a general minimiser over its weights.
    dual.value_and_gradient(x)
    weights, beliefs = dual.weights(), dual.cells.beliefs
    y, p, b = (array[:24] for array in (problem.observed, problem.precision, beliefs))
    scores = np.log(b) - weights[:24]

    def term(w):
        log_z = logsumexp(w + scores)
        return 1000 * log_z - w @ y + 0.5 * p @ w**2, 1000 * np.exp(w + scores - log_z) - y + p * w

    found = minimize(term, np.zeros(24), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(weights[:24], found.x, atol=1e-5)


def noisy_pairs(stddev):
    """Margins of all pairs of four variables, a thousand rows."""
    rng, margins = np.random.default_rng(0), []
    counts = 1000.0 * rng.dirichlet(np.ones(81)).reshape((3,) * 4)
    for pair in itertools.combinations(range(4), 2):
        table = counts.sum(axis=tuple({0, 1, 2, 3} - {*pair})) + rng.normal(size=(3, 3))
        margins.append(bt.Marginal(tuple("abcd"[v] for v in pair), table, stddev=stddev))
    return margins


def pairs_of(*, total=1000.0, stddev=1.0, weight=1.0):
    """The problem of noisy pairs, with numbers that users may not give."""
    checked = check_margins(noisy_pairs(1.0), dict.fromkeys("abcd", 3), 1000.0, None, ())
    problem = margin_problem(checked, None, nearest=False, on_tree=False)
    return replace(problem, precision=weight * stddev * problem.precision, total=total, noise=stddev * problem.noise)


@pytest.mark.parametrize(("stddev", "total"), [(1.0, 1e-200), (1e-150, 1e150)])
def test_a_dual_that_is_no_number_ends_the_fit(stddev, total):
    """Counts of a thousand rows in a total far from that take the dual out of range, and no step mends it."""
    problem = pairs_of(stddev=stddev, total=total)
    solution, _ = fit_by_regions(problem, problem.graph(regions=True), FitOptions(1e-6, max_seconds=5.0))
    assert solution.status is Status.UNRELIABLE
    assert not np.isfinite(solution.objective)
    assert np.isnan(solution.violation)


def test_slopes_whose_squares_are_out_of_range_do_not_mislead_the_line_search():
    problem = pairs_of(weight=1e-300)
    solution, _ = fit_by_regions(problem, problem.graph(regions=True), FitOptions(1e-6, max_seconds=5.0))
    assert solution.status is Status.STALLED
    assert np.isfinite(solution.objective)
    assert solution.violation < 0.01


def test_limits_and_callbacks_stop_it():
    problem = problem_of(LOOPY)
    graph = problem.graph(regions=True)
    seen = []
    solution, _ = fit_by_regions(problem, graph, FitOptions(1e-12, callback=lambda told: seen.append(told) or True))
    assert (solution.status, len(seen)) == (Status.STOPPED, 1)
    assert seen[0].weights.size == problem.observed.size
    assert fit_by_regions(problem, graph, FitOptions(1e-12, 3))[0].status is Status.ITERATION_LIMIT
    assert fit_by_regions(problem, graph, FitOptions(1e-12, max_seconds=0.0))[0].status is Status.TIME_LIMIT
    alone, shared = (fit_by_regions(problem, graph, FitOptions(1e-6, n_threads=n))[1] for n in (1, 3))
    np.testing.assert_array_equal(alone, shared)
