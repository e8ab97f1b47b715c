"""The likelihood learners with message passing inside, concave entropies and the folded carving."""

from __future__ import annotations

import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from generators import learning_case
from library import library_data
from oracle import cluster_marginals, largest_change, maximum_likelihood, negative_log_likelihood
from random_models import conditional_problem, generative_problem, ising_problem, loop_clusters
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.camel.run import InnerResult, Run, Settings, Work
from bactrian.graphs.packing import pack
from bactrian.learners.likelihood import MOST_UNCONVERGED
from bactrian.parallel.threads import Context, Deadline
from bactrian.solvers.solution import Status

ON_TREES: dict[str, Any] = {
    "lbp": "lbp",
    "trw": "trw",
    "cccp": "cccp",
    "folded": bt.Camel(fold=True),
    "trw directly": bt.Camel(entropy="trw"),
}


@pytest.mark.parametrize("name", ON_TREES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["generative", "conditional"])
def test_exact_on_trees(name: str, seed: int, kind: str) -> None:
    if kind == "generative":
        problem = generative_problem(seed, "tree", size=5, coupling=1.5)
    else:
        problem = conditional_problem(seed, "tree", size=4, instances=3, coupling=1.5)
    expected = maximum_likelihood(problem.data, 5.0)
    solution = bt.learn(library_data(problem), ON_TREES[name], prior_variance=5.0, tolerance=1e-7)
    assert solution.converged
    np.testing.assert_allclose(solution.weights, expected, atol=1e-4)


def spread_over_sepsets(data: bt.Samples, entropy: str) -> bt.CountingNumbers:
    """The same entropy with a number of 1 for every hub, and the rest of its number in equal parts on its sepsets."""
    packed = pack(data)
    carving, links = carve(packed, entropy), packed.layout.link_hub
    clusters = np.ones(1 + max(packed.cluster_index.max(), packed.hub_index.max()))
    clusters[packed.cluster_index] = carving.cluster
    sepsets = np.zeros(links.size)
    sepsets[packed.link_edge] = ((1.0 - carving.hub) / np.maximum(packed.degrees, 1))[links]
    return bt.CountingNumbers(clusters, sepsets)


@pytest.mark.parametrize("shape", ["loop", "dense", "ternary"])
@pytest.mark.parametrize("entropy", ["trw", "convex"])
@pytest.mark.parametrize("seed", range(2))
def test_concave_entropies_directly_and_in_a_double_loop(shape: Any, entropy: str, seed: int) -> None:
    """Sepsets are linearised, and the others are not; the optimum is the same, for there is only one."""
    data = library_data(generative_problem(seed, shape, size=5, coupling=1.5))
    directly = bt.learn(data, entropy, prior_variance=5.0)
    classic = bt.learn(data, bt.Camel(entropy=spread_over_sepsets(data, entropy)), prior_variance=5.0)
    assert len(classic.history) > len(directly.history) == 1
    assert directly.converged
    assert classic.converged
    np.testing.assert_allclose(directly.weights, classic.weights, atol=1e-3)
    assert directly.objective == pytest.approx(classic.objective, rel=1e-6)
    if (shape, entropy) != ("loop", "convex"):  # on a single cycle the convex numbers are Bethe's
        other = bt.learn(data, "cccp", prior_variance=5.0)
        assert np.abs(other.weights - classic.weights).max() > 1e-3


def noisy_grids(seed: int) -> bt.GraphData:
    """Two labelled 6 x 6 grids of three labels in bands, with noisy inputs and one shared symmetric table."""
    rng = np.random.default_rng(seed)
    index = np.arange(36).reshape(6, 6)
    one = np.concatenate(
        [
            np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1),
            np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1),
        ]
    )
    labels = np.concatenate([np.repeat(np.arange(3), 12), np.repeat(np.arange(3)[::-1], 12)])
    inputs = np.column_stack([np.eye(3)[labels] + rng.normal(size=(72, 3)), np.ones(72)])
    return bt.GraphData(inputs, np.concatenate([one, one + 36]), n_labels=3, labels=labels, node_counts=[36, 36])


@pytest.mark.parametrize("seed", range(3))
def test_folding_keeps_the_fixed_point_and_saves_relinearisations(seed: int) -> None:
    data = noisy_grids(seed)
    plain = bt.learn(data, bt.Camel(tight=True), prior_variance=1.0)
    folded = bt.learn(data, bt.Camel(fold=True, tight=True), prior_variance=1.0)
    assert plain.converged
    assert folded.converged
    np.testing.assert_allclose(folded.weights, plain.weights, atol=1e-3)
    for m in range(2):
        assert largest_change(list(folded.beliefs[m]), list(plain.beliefs[m])) < 1e-4
    assert len(folded.history) <= 0.6 * len(plain.history)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["grids", "frustrated", "instances"])
def test_extrapolated_linearisations_reach_the_fixed_point_of_plain_ones(kind: str, seed: int) -> None:
    data: Any = noisy_grids(seed)
    if kind == "frustrated":
        data = library_data(ising_problem(seed, loop_clusters(5), n=5, coupling=0.6))
    elif kind == "instances":
        data = library_data(conditional_problem(seed, "dense", size=5, instances=4))
    plain = bt.learn(data, bt.Camel(tight=True), prior_variance=1.0)
    accelerated = bt.learn(data, "cccp", prior_variance=1.0)
    assert plain.converged
    assert accelerated.converged
    np.testing.assert_allclose(accelerated.weights, plain.weights, atol=1e-4)
    assert accelerated.objective == pytest.approx(plain.objective, rel=1e-6)
    for m in range(len(plain.beliefs)):
        assert largest_change(list(accelerated.beliefs[m]), list(plain.beliefs[m])) < 1e-4
    if kind == "grids":  # on the third, extrapolation makes no headway, gives up, and must not be much worse
        assert len(accelerated.history) <= (0.5 if seed < 2 else 1.1) * len(plain.history)


def test_nothing_is_left_to_relinearise_on_a_cycle() -> None:
    data = library_data(ising_problem(0, loop_clusters(5), n=5, rows=50, coupling=0.6, shared=True))
    folded = bt.learn(data, bt.Camel(fold=True), prior_variance=1.0)
    assert len(folded.history) == 1
    np.testing.assert_allclose(folded.weights, bt.learn(data, "cccp", prior_variance=1.0).weights, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_lbp_finds_the_fixed_point_of_cccp(seed: int) -> None:
    data = library_data(ising_problem(seed, loop_clusters(5), n=5, coupling=0.6))
    lbp = bt.learn(data, "lbp", prior_variance=1.0)
    cccp = bt.learn(data, "cccp", prior_variance=1.0)
    assert lbp.converged
    assert lbp.history[-1].failures == 0
    np.testing.assert_allclose(lbp.weights, cccp.weights, atol=1e-3)
    assert largest_change(list(lbp.beliefs[0]), list(cccp.beliefs[0])) < 1e-4


@pytest.mark.parametrize("method", ["lbp", "trw", "convex"])
def test_one_cluster_an_instance_is_logistic_regression(method: str) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(60, 4))
    labels = rng.integers(0, 3, size=60)
    graph = bt.ClusterGraph([3], [(0,)])
    data = [
        bt.Instance(bt.LogLinearModel(graph, [np.kron(np.eye(3), row)]), [label])
        for row, label in zip(inputs, labels, strict=True)
    ]
    solution = bt.learn(data, method, prior_variance=2.0, tolerance=1e-8)
    judge = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(inputs, labels)
    np.testing.assert_allclose(solution.weights.reshape(3, 4), judge.coef_, atol=1e-4)


def test_lbp_says_so_where_messages_do_not_converge() -> None:
    """Strong frustrated couplings and weights that data cannot tame: belief propagation oscillates at the solution."""
    rng = np.random.default_rng(3)
    n = 7
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    graph = bt.ClusterGraph([2] * n, pairs)
    agree = np.array([1.0, -1.0, -1.0, 1.0])
    field = np.array([0.0, 0.5, 0.5, 1.0])
    base = [agree * rng.choice([-3.0, 3.0]) + field * rng.normal() for _ in pairs]
    model = bt.LogLinearModel(graph, [agree[:, None] * rng.normal() for _ in pairs], base_scores=base)
    data = bt.Samples(model, rng.integers(0, 2, size=(30, n)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        solution = bt.learn(data, bt.Likelihood(inference="lbp", max_sweeps=100), max_seconds=10.0)
    assert solution.history[-1].failures > 0
    assert not solution.converged
    assert np.isfinite(solution.weights).all()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"inference": "magic"}, "inference"),
        ({"message_tolerance": 0.0}, "message_tolerance"),
        ({"max_sweeps": 0}, "max_sweeps"),
    ],
)
def test_bad_options_of_likelihood(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        bt.Likelihood(**options)


def test_fold_needs_bethe() -> None:
    with pytest.raises(ValueError, match="fold"):
        bt.Camel(entropy="clusters", fold=True)


@pytest.mark.parametrize("method", ["camel0", "cccp", bt.Camel(fold=True), "exact"], ids=str)
def test_a_solution_hands_on_where_it_stood(method: Any) -> None:
    data = noisy_grids(0)
    first = bt.learn(data, method, prior_variance=1.0)
    second = bt.learn(data, method, prior_variance=1.0, start=first)
    assert second.converged
    assert second.evaluations <= 0.1 * first.evaluations
    np.testing.assert_allclose(second.weights, first.weights, atol=1e-4)


def test_counting_numbers_are_public_and_bethes_are_cccp() -> None:
    data = library_data(generative_problem(1, "loop", size=5, coupling=1.5))
    ours = bt.learn(data, bt.Camel(entropy=bt.CountingNumbers(clusters=1.0, sepsets=1.0)), prior_variance=5.0)
    np.testing.assert_allclose(ours.weights, bt.learn(data, "cccp", prior_variance=5.0).weights, atol=1e-4)


def test_likelihood_takes_the_name_that_infer_has_for_residual_propagation() -> None:
    assert bt.Likelihood(inference="rbp") == bt.Likelihood(inference="lbp")
    assert bt.Likelihood(inference="rbp").name == "lbp"


def disagreement(solution: Any, clusters: list[tuple[int, ...]], instance: int) -> float:
    """Largest difference between two clusters' marginals of a variable that they share."""
    tables = [np.asarray(table) for table in solution.beliefs[instance]]
    found: dict[int, list[Any]] = {}
    for cluster, table in zip(clusters, tables[: len(clusters)], strict=True):
        for axis, variable in enumerate(cluster):
            others = tuple(i for i in range(len(cluster)) if i != axis)
            found.setdefault(variable, []).append(table.reshape([3] * len(cluster)).sum(axis=others))
    return max(float(np.abs(a - b).max()) for marginals in found.values() for a in marginals for b in marginals)


@pytest.mark.parametrize("weight", [0.0, 1e-6])
@pytest.mark.parametrize("forbidden", [False, True])
def test_joint_solver_lets_no_light_instance_disagree(weight: float, forbidden: bool) -> None:
    # The gradient in its multipliers is scaled by its weight: next to nothing, however much its clusters disagree.
    rng = np.random.default_rng(1)
    clusters = loop_clusters(3)

    def instance(weight: float) -> bt.Instance:
        features = [2.0 * rng.normal(size=(9, 3)) for _ in clusters]
        base = np.zeros((3, 9))
        if forbidden:
            base[0, :3] = -np.inf
        model = bt.LogLinearModel(bt.ClusterGraph([3, 3, 3], clusters), features, list(base))
        return bt.Instance(model, rng.integers(1, 3, size=3), weight)

    data = [instance(1.0) for _ in range(4)] + [instance(weight)]
    ours = bt.learn(data, bt.Camel(solver="joint"), prior_variance=10.0)
    assert ours.converged
    assert ours.violation < 1e-5
    for m in range(len(data)):
        assert disagreement(ours, clusters, m) < 1e-5
    np.testing.assert_allclose(ours.weights, bt.learn(data, "cccp", prior_variance=10.0).weights, atol=1e-4)


@pytest.mark.parametrize("method", ["exact", "cccp"])
def test_a_start_at_enormous_scores_leaves_no_trace(method: str) -> None:
    # Constants of 1e11 in the messages would cost all but five digits of the scores at the solution.
    problem = conditional_problem(3, "tree", size=4, instances=4)
    start = 1e11 * np.random.default_rng(0).normal(size=5)
    solution = bt.learn(library_data(problem), method, prior_variance=0.1, start=start)
    assert solution.converged
    np.testing.assert_allclose(solution.weights, maximum_likelihood(problem.data, 0.1), atol=1e-4)
    assert solution.objective == pytest.approx(
        negative_log_likelihood(problem.data, solution.weights, 0.1)[0], rel=1e-9
    )
    for tables in solution.beliefs:
        for table in tables:
            assert np.sum(table) == pytest.approx(1.0, abs=1e-9)


class Stuck:
    """An inner solver that never finds a step."""

    work = Work()

    def __init__(self, belief_change: float, seconds: float) -> None:
        self.dual = SimpleNamespace(relinearises=True, belief_change=lambda: belief_change)
        self.seconds = seconds

    def solve(self, weights: Any, **_: Any) -> InnerResult:
        time.sleep(self.seconds)
        return InnerResult(weights, 1.0, 1.0, 0.0, 0, Status.STALLED)

    def relinearised(self, change: float) -> None:
        pass


@pytest.mark.parametrize(("belief_change", "seconds"), [(0.0, 0.0), (0.5, 0.02)])
def test_relinearisations_without_a_step_end(belief_change: float, seconds: float) -> None:
    deadline = Deadline(0.1 if seconds else 60.0)
    settings = Settings(Prior(1.0), 1e-6, 1000, 1000)
    run = Run(settings, Context(deadline=deadline), pack(library_data(generative_problem(0, "tree"))), "stuck")
    linearisation = SimpleNamespace(update=lambda: 0.0)
    _, status = bt.Camel().relinearise(run, Stuck(belief_change, seconds), linearisation, np.zeros(2))  # type: ignore[arg-type]
    assert status is (Status.TIME_LIMIT if seconds else Status.STALLED)
    assert len(run.records) < 20


def test_beliefs_of_exact_learning_are_exact_at_any_tolerance() -> None:
    """Two sweeps are made on a tree even where the first one changes less than the tolerance."""
    case = learning_case(52)
    with pytest.warns(bt.ConvergenceWarning, match="unbounded"):
        solution = bt.learn(case.model, "exact", prior_variance=None, tolerance=1e-4)
    for tables, seen in zip(solution.beliefs, case.data, strict=True):
        expected = cluster_marginals(seen.model, solution.weights)
        found = [table.ravel() for table in list(tables)[: len(expected)]]
        assert largest_change(found, expected) < 1e-9


def test_learning_by_propagation_that_never_converges_gives_up() -> None:
    """Data of the attack on which no evaluation converges: a thousand steps took minutes."""
    case = learning_case(77)
    with pytest.warns(bt.ConvergenceWarning, match="did not converge"):
        solution = bt.learn(case.model, "lbp", prior_variance=1.0, l1=0.5, tolerance=1e-4, max_iterations=1000)
    assert solution.status is Status.UNRELIABLE
    assert solution.evaluations < 2 * MOST_UNCONVERGED
