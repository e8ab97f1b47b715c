"""CAMEL in plain NumPy: against the independent reference, and every engine against it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from library import library_data
from random_models import Problem, conditional_problem, generative_problem, triangle_of_equation_8
from reference import camel
from scipy.optimize import approx_fprime

import bactrian as bt
from bactrian.camel.plain import plain_problem

#: Of the table of the frame in docs/maths.md.
FRAME: dict[str, dict[str, Any]] = {
    "piecewise": {"entropy": "clusters", "consistency": False},
    "camel0": {"entropy": "clusters"},
    "cccp": {},
}


def problem_of(kind: str, shape: Any, seed: int) -> Problem:
    if kind == "generative":
        return generative_problem(seed, shape, size=4, rows=30, base=seed % 2 == 1)
    return conditional_problem(seed, shape, size=3, instances=2, base=seed % 2 == 1)


@pytest.mark.parametrize("method", FRAME)
@pytest.mark.parametrize("shape", ["tree", "loop", "ternary", "junction", "wide-sepsets"])
@pytest.mark.parametrize("kind", ["generative", "conditional"])
def test_plain_is_the_reference_and_the_library_is_plain(method: str, shape: Any, kind: str) -> None:
    problem = problem_of(kind, shape, seed=len(shape))
    data = library_data(problem)
    expected = camel(problem.data, problem.edges, prior_variance=2.0, **FRAME[method])
    plain = plain_problem(data, prior_variance=2.0, **FRAME[method])
    weights, beliefs, objectives = plain.learn(1e-9)
    np.testing.assert_allclose(weights, expected.weights, atol=1e-5)
    counted = beliefs[plain.numbers > 0.0]  # the reference leaves hubs without an entropy out
    np.testing.assert_allclose(counted, np.concatenate([b for tables in expected.beliefs for b in tables]), atol=1e-6)
    assert objectives[-1] == pytest.approx(expected.primal_values[-1], abs=1e-6)
    assert (np.diff(objectives) > -1e-7).all()
    solution = bt.learn(data, method, prior_variance=2.0, tolerance=1e-8)
    np.testing.assert_allclose(solution.weights, weights, atol=1e-4)


@pytest.mark.parametrize("solver", ["profiled", "joint"])
def test_every_solver_is_plain(solver: str) -> None:
    data = library_data(generative_problem(2, "dense", size=4))
    weights, _, _ = plain_problem(data, entropy="clusters", prior_variance=1.0).learn()
    learner = bt.Camel(entropy="clusters", solver=solver)
    np.testing.assert_allclose(bt.learn(data, learner, prior_variance=1.0).weights, weights, atol=1e-4)


def test_any_counting_numbers() -> None:
    """Hubs of negative numbers, as the convex entropy has them, and numbers between CAMEL(0)'s and Bethe's."""
    data = library_data(generative_problem(3, "dense", size=4))
    graph = data.model.graph
    scopes = [set(cluster) for cluster in graph.clusters if len(cluster) > 1]
    shares = {v: [1.0 / len(scope) for scope in scopes if v in scope] for v in range(4)}
    kappa = np.ones(len(graph.all_clusters))
    for hub in {j for _, j, _ in graph.edges}:
        own = shares[graph.all_clusters[hub][0]]
        kappa[hub] = max(1.0 - len(own), -sum(own))
    assert kappa.min() < 0.0
    weights, _, _ = plain_problem(data, entropy=bt.CountingNumbers(kappa, 0.0), prior_variance=1.0).learn()
    np.testing.assert_allclose(bt.learn(data, "convex", prior_variance=1.0).weights, weights, atol=1e-4)
    between = bt.CountingNumbers(1.0, 0.7)
    weights, _, _ = plain_problem(data, entropy=between, prior_variance=1.0).learn()
    solution = bt.learn(data, bt.Camel(entropy=between), prior_variance=1.0, tolerance=1e-8)
    np.testing.assert_allclose(solution.weights, weights, atol=1e-4)


def test_a_star_update_minimises_the_dual() -> None:
    """Over the multipliers of its star: D falls, its slope there is 0, and clusters agree with the hub."""
    problem = plain_problem(library_data(generative_problem(2, "ternary", size=4)), prior_variance=1.0)
    rng = np.random.default_rng(0)
    weights, g = rng.normal(size=problem.observed.size), rng.normal(size=problem.base.size)
    multipliers = rng.normal(size=problem.disagreement.shape[1])
    for star in problem.stars:
        before = problem.dual(weights, multipliers, g)[0]
        problem.update_star(star, problem.scores(weights, multipliers, g), multipliers)
        after, gradient = problem.dual(weights, multipliers, g)
        assert after < before
        np.testing.assert_allclose(gradient[weights.size :][np.concatenate(star.multipliers)], 0.0, atol=1e-9)


def one_graph(seed: int) -> tuple[bt.GraphData, list[bt.Instance]]:
    """Two labelled loops of three labels, packed as a user's large data would be, and the same by hand."""
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(9, 2)), rng.integers(3, size=9)
    edges = np.array([(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (7, 8), (4, 8)])
    packed = bt.GraphData(rows, edges, n_labels=3, labels=labels, node_counts=[4, 5], tables="full")
    table = np.zeros((9, 15))
    table[:, 6:] = np.eye(9)
    by_hand = []
    for first, count in ((0, 4), (4, 5)):
        own = edges[(edges[:, 0] >= first) & (edges[:, 0] < first + count)] - first
        graph = bt.ClusterGraph([3] * count, [*map(tuple, own.tolist()), *((v,) for v in range(count))])
        nodes = [np.hstack([np.kron(rows[first + v], np.eye(3)), np.zeros((3, 9))]) for v in range(count)]
        by_hand.append(bt.Instance(bt.LogLinearModel(graph, [table] * len(own) + nodes), labels[first : first + count]))
    return packed, by_hand


@cache
def plain_weights(method: str) -> Any:
    return plain_problem(one_graph(3)[1], prior_variance=1.0, **FRAME[method]).learn()[0]


@pytest.mark.parametrize("method", FRAME)
@pytest.mark.parametrize("engine", ["memory", "files", "torch"])
def test_every_engine_is_plain(method: str, engine: str, tmp_path: Path) -> None:
    packed, weights = one_graph(3)[0], plain_weights(method)
    if engine == "torch":
        pytest.importorskip("torch")
        import bactrian.torch

        solution = bactrian.torch.learn(packed, method, prior_variance=1.0, device="cpu")
    else:
        data = bt.PackedFolder.write(tmp_path / "pack", [packed]) if engine == "files" else packed
        solution = bt.learn(data, method, prior_variance=1.0)
    np.testing.assert_allclose(solution.weights, weights, atol=1e-4)


@pytest.mark.parametrize("shape", ["loop", "wide-sepsets"])
def test_duality_and_gradients(shape: Any) -> None:
    """Eq. 10 and Eq. 12 have one value at the optimum; gradients are those of finite differences."""
    data = library_data(problem_of("generative", shape, seed=1))
    problem = plain_problem(data, prior_variance=1.5)
    n_weights = problem.observed.size
    rng = np.random.default_rng(0)
    g = rng.normal(size=problem.base.size)
    point = problem.solve(g, np.zeros(n_weights + problem.disagreement.shape[1]))
    beliefs, _ = problem.beliefs(point[:n_weights], point[n_weights:], g)
    assert problem.violation(beliefs) < 1e-8
    value = problem.dual(point[:n_weights], point[n_weights:], g)[0]
    assert problem.linearised_primal(beliefs, g) == pytest.approx(value, abs=1e-6)
    point = rng.normal(size=point.size)
    slope = problem.dual(point[:n_weights], point[n_weights:], g)[1]
    numeric = approx_fprime(point, lambda x: problem.dual(x[:n_weights], x[n_weights:], g)[0], 1e-6)
    np.testing.assert_allclose(slope, numeric, atol=1e-3)


def test_the_triangle_of_equation_8() -> None:
    problem = plain_problem(library_data(triangle_of_equation_8()), prior_variance=1e6)
    beliefs = problem.learn(1e-6)[1]
    np.testing.assert_allclose(beliefs[:12].reshape(3, 4), [[1 / 3, 1 / 3, 1 / 3, 0.0]] * 3, atol=1e-3)


def test_every_equation_of_the_paper_is_cited_in_the_source() -> None:
    text = "\n".join(path.read_text() for path in Path(bt.__file__).parent.rglob("*.py"))
    cited = {int(number) for number in re.findall(r"Eq\. (\d+)", text)}
    cited |= {n for a, b in re.findall(r"Eq\. (\d+) to (\d+)", text) for n in (int(a), int(b))}
    assert cited >= set(range(2, 13)), sorted(set(range(2, 13)) - cited)
