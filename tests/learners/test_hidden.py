"""Learning with unknown states against marginal likelihoods by enumeration, EM and finite differences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

import bactrian as bt
from bactrian.camel.dual import Dual
from bactrian.graphs.conditioning import conditioned
from bactrian.graphs.junction import on_junction_trees
from bactrian.graphs.packing import pack
from bactrian.learners import hidden
from bactrian.learners.hidden import SharedRows
from bactrian.learners.learn import matched_inference
from bactrian.parallel.threads import Workers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TREE = ((2, 3, 2, 3), ((0, 1), (1, 2), (1, 3)))
LOOP = ((2, 3, 2, 2), ((0, 1), (1, 2), (2, 3), (0, 3)))
TRIPLE = ((2, 2, 3), ((0, 1, 2),))
VARIANCE = 1.0


class Field:
    """Full tables for single variables and the given clusters, with every joint state written out."""

    def __init__(self, cardinalities: Sequence[int], scopes: Sequence[tuple[int, ...]]) -> None:
        self.cardinalities = list(cardinalities)
        clusters = [(v,) for v in range(len(cardinalities))] + list(scopes)
        sizes = [int(np.prod([cardinalities[v] for v in c])) for c in clusters]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        self.clusters, self.bounds = clusters, bounds
        tables = [np.eye(bounds[-1])[a:b] for a, b in itertools.pairwise(bounds)]
        self.model = bt.LogLinearModel(bt.ClusterGraph(self.cardinalities, clusters), tables)
        self.states = np.array(list(itertools.product(*map(range, cardinalities))))
        self.features = np.hstack([table[self.index(c)] for c, table in zip(clusters, map(np.eye, sizes), strict=True)])

    def index(self, cluster: tuple[int, ...]) -> Ints:
        """State of a cluster in each joint state."""
        shape = [self.cardinalities[v] for v in cluster]
        return np.ravel_multi_index(tuple(self.states[:, v] for v in cluster), shape)

    def fits(self, row: Ints, allowed: Mapping[int, Sequence[int]] | None) -> NDArray[np.bool_]:
        """Joint states that agree with a row."""
        agree = ((self.states == row) | (row < 0)).all(axis=1)
        for v, some in (allowed or {}).items():
            agree &= np.isin(self.states[:, v], list(some))
        return agree

    def objective(self, weights: Floats, rows: Ints, counts: Floats, allowed: Sequence[Any]) -> float:
        """Negative marginal log-likelihood with the prior."""
        scores = self.features @ weights
        total = 0.5 * float(weights @ weights) / VARIANCE
        for row, count, some in zip(rows, counts, allowed, strict=True):
            total += count * (logsumexp(scores) - logsumexp(scores[self.fits(row, some)]))
        return total

    def em(self, weights: Floats, rows: Ints, counts: Floats, allowed: Sequence[Any], steps: int) -> float:
        """The objective after so many steps of EM."""
        for _ in range(steps):
            scores = self.features @ weights
            expected = np.zeros(weights.size)
            for row, count, some in zip(rows, counts, allowed, strict=True):
                agree = self.fits(row, some)
                chances = np.exp(scores[agree] - logsumexp(scores[agree]))
                expected += count * chances @ self.features[agree]

            def complete(w: Floats, seen: Floats = expected) -> tuple[float, Floats]:
                s = self.features @ w
                chances = np.exp(s - logsumexp(s))
                value = counts.sum() * logsumexp(s) - w @ seen + 0.5 * w @ w / VARIANCE
                return value, counts.sum() * chances @ self.features - seen + w / VARIANCE

            weights = minimize(complete, weights, jac=True, method="BFGS", options={"gtol": 1e-9}).x
        return self.objective(weights, rows, counts, allowed)


def holey(field: Field, seed: int, n: int = 60) -> tuple[Ints, Floats, list[Any]]:
    """Rows with 30 % holes, weights, and sets of allowed states for some holes."""
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.integers(k, size=n) for k in field.cardinalities], axis=1)
    rows[:, 1] = np.where(rng.random(n) < 0.6, np.minimum(rows[:, 0], field.cardinalities[1] - 1), rows[:, 1])
    rows[rng.random(rows.shape) < 0.3] = -1
    allowed: list[Any] = [None] * n
    for r in np.flatnonzero(rows[:, 2] < 0)[:4].tolist():
        allowed[r] = {2: [field.cardinalities[2] - 1]} if r % 2 else {2: [0, 1]}
    return rows, rng.integers(1, 4, size=n).astype(float), allowed


def learn(field: Field, rows: Ints, counts: Floats, allowed: Any, method: Any, **options: Any) -> bt.Solution:
    options = {"prior_variance": VARIANCE, "tolerance": 1e-7} | options
    return bt.learn(bt.Samples(field.model, rows, counts, allowed=allowed), method, **options)


def slope(function: Any, weights: Floats, step: float = 1e-5) -> Floats:
    return np.array([(function(weights + e) - function(weights - e)) / (2 * step) for e in step * np.eye(weights.size)])


@pytest.mark.parametrize("shape", [TREE, LOOP, TRIPLE])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_is_a_stationary_point_of_the_marginal_likelihood(shape: Any, seed: int) -> None:
    field = Field(*shape)
    rows, counts, allowed = holey(field, seed)
    solution = learn(field, rows, counts, allowed, "exact")
    assert solution.converged

    def objective(w: Floats) -> float:
        return field.objective(w, rows, counts, allowed)

    assert solution.objective == pytest.approx(objective(solution.weights), abs=1e-8)
    assert np.abs(slope(objective, solution.weights)).max() / counts.sum() < 1e-6
    assert solution.objective <= field.em(np.zeros(solution.weights.size), rows, counts, allowed, steps=30) + 1e-6


FOREST = ((2, 3, 2, 1, 2, 3), ((0, 1), (1, 3), (2, 4), (2, 5)))
GRID = ((2, 3, 2, 2, 2, 3), ((0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)))


@pytest.mark.parametrize("shape", [TREE, LOOP, TRIPLE, FOREST, GRID])
@pytest.mark.parametrize("size", [1.0, 400.0])  # large scores leave the range of floating point
def test_shared_rows_sum_what_enumeration_does(shape: Any, size: float) -> None:
    field = Field(*shape)
    rows, counts, allowed = holey(field, 3)
    packed = pack(bt.Samples(field.model, rows, counts, allowed=allowed))
    assert packed.holes is not None
    shared = SharedRows(on_junction_trees(packed), packed.holes, Workers(1))
    weights = size * np.random.default_rng(4).normal(size=field.features.shape[1])
    value, moments = shared.value_and_gradient(weights)
    scores, total, expected = field.features @ weights, 0.0, np.zeros(weights.size)
    for row, count, some in zip(rows, counts, allowed, strict=True):
        agree = field.fits(row, some)
        if not agree.all() and (row < 0).any():
            log_z = logsumexp(scores[agree])
            total += count * log_z
            expected += count * np.exp(scores[agree] - log_z) @ field.features[agree]
    assert value == pytest.approx(total, rel=1e-12)
    np.testing.assert_allclose(moments, expected, atol=1e-9)


def test_rows_that_differ_in_too_many_ways_are_models_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    field = Field(*TREE)
    rows, counts, allowed = holey(field, 5)
    shared = learn(field, rows, counts, allowed, "exact")
    packed = pack(bt.Samples(field.model, rows, counts, allowed=allowed))
    for most in (50, 150):  # entries of a step, factors
        monkeypatch.setattr(hidden, "MOST_SHARED", most)
        assert not SharedRows(on_junction_trees(packed), packed.holes, Workers(1)).fits
        own = learn(field, rows, counts, allowed, "exact")
        np.testing.assert_allclose(own.weights, shared.weights, atol=1e-5)
        assert own.objective == pytest.approx(shared.objective, abs=1e-8)


def test_rows_share_what_lies_between_variables_that_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of 500 rows of a chain are alike, yet stretches of unknown variables are: 3 factors a row suffice."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (500, 14))
    rows[rng.random(rows.shape) < 0.2] = -1
    chain = [(v, v + 1) for v in range(13)]
    packed = pack(bt.MarkovRandomField(chain, cardinalities=[2] * 14).encode(rows))
    assert packed.holes is not None
    assert len(packed.holes.weights) > 400
    monkeypatch.setattr(hidden, "MOST_SHARED", 1500)
    assert SharedRows(on_junction_trees(packed), packed.holes, Workers(1)).fits


@pytest.mark.parametrize("method", ["cccp", "lbp", "trw", bt.Camel(fold=True)])
def test_on_trees_bethe_is_exact(method: Any) -> None:
    field = Field(*TREE)
    rows, counts, allowed = holey(field, 2)
    exact = learn(field, rows, counts, allowed, "exact")
    solution = learn(field, rows, counts, allowed, method)
    np.testing.assert_allclose(solution.weights, exact.weights, atol=1e-4)
    assert solution.objective == pytest.approx(exact.objective, abs=1e-6)


@pytest.mark.parametrize("method", ["cccp", "camel0", "convex", "trw", "lbp"])
def test_approximate_learners_end_where_their_objective_is_flat(method: str) -> None:
    """Stationary by finite differences of what the learner itself minimises, evaluated without a step."""
    field = Field(*LOOP)
    rows, counts, allowed = holey(field, 4)
    solution = learn(field, rows, counts, allowed, method, tolerance=1e-9)
    if method == "cccp":  # without a step there is no relinearisation: propagation gives the same value
        method = "lbp"

    def objective(w: Floats) -> float:
        with pytest.warns(bt.ConvergenceWarning):
            return learn(field, rows, counts, allowed, method, tolerance=1e-11, max_iterations=0, start=w).objective

    assert np.abs(slope(objective, solution.weights, 1e-4)).max() / counts.sum() < 1e-5


@pytest.mark.parametrize("method", ["exact", "camel0", "convex", "trw", "lbp"])
@pytest.mark.parametrize("shape", [LOOP, ((2, 3, 2, 2), ((0, 1, 2), (1, 2, 3), (0, 3), (3,)))])
def test_what_was_seen_has_the_chance_that_inference_gives_it(method: str, shape: Any) -> None:
    """The objective at given weights: log Z minus log Z with the evidence, under the learner's entropy."""
    field = Field(*shape)
    rows, counts, _ = holey(field, 10)
    weights = np.random.default_rng(11).normal(0.0, 0.7, field.bounds[-1])
    with pytest.warns(bt.ConvergenceWarning):
        solution = learn(field, rows, counts, None, method, tolerance=1e-10, max_iterations=0, start=weights)
    name, options = matched_inference(method)
    if name != "exact":
        options |= {"tolerance": 1e-12, "max_iterations": 5_000}
    seen = [{v: state for v, state in enumerate(row.tolist()) if state >= 0} for row in rows]
    found = bt.infer([field.model] * len(rows), weights, name, evidence=seen, **options)
    free = bt.infer(field.model, weights, name, **options).log_partition
    loss = sum(count * (free - each.log_partition) for count, each in zip(counts, found, strict=True))
    assert solution.objective == pytest.approx(loss + 0.5 * weights @ weights / VARIANCE, abs=1e-5)


def test_fixed_scores_count_in_complete_rows_and_others() -> None:
    field = Field(*LOOP)
    rng = np.random.default_rng(12)
    base = [rng.normal(size=b - a) for a, b in itertools.pairwise(field.bounds)]
    rows, counts, allowed = holey(field, 13)
    tables = [np.eye(field.bounds[-1])[a:b] for a, b in itertools.pairwise(field.bounds)]
    model = bt.LogLinearModel(field.model.graph, tables, base_scores=base)
    data = bt.Samples(model, rows, counts, allowed=allowed)
    with pytest.warns(bt.ConvergenceWarning):
        solution = bt.learn(data, "exact", prior_variance=None, max_iterations=0)
    assert solution.objective == pytest.approx(
        field.objective(np.concatenate(base), rows, counts, allowed)
        - 0.5 * sum(float(part @ part) for part in base) / VARIANCE,
        abs=1e-8,
    )


def test_conditional_instances_and_graphs() -> None:
    """Node inputs and a shared table, labels half unknown: both routes against enumeration."""
    rng = np.random.default_rng(5)
    edges = [(0, 1), (1, 2), (2, 0), (2, 3)]
    inputs = rng.normal(size=(3 * 4, 2))
    labels = rng.integers(3, size=12)
    labels[rng.random(12) < 0.5] = -1
    labels[8:] = -1  # a graph that says nothing
    data = bt.GraphData(
        inputs,
        np.concatenate([np.array(edges) + 4 * g for g in range(3)]),
        n_labels=3,
        labels=labels,
        tables="symmetric",
        node_counts=[4, 4, 4],
    )
    solution = bt.learn(data, "exact", prior_variance=VARIANCE, tolerance=1e-7)
    states = np.array(list(itertools.product(range(3), repeat=4)))
    tied = np.zeros((3, 3), dtype=int)
    tied[np.triu_indices(3)] = np.arange(6)
    tied = np.maximum(tied, tied.T)

    def objective(w: Floats) -> float:
        node, table = w[:6].reshape(2, 3), w[6:][tied]
        total = 0.5 * float(w @ w) / VARIANCE
        for g in range(2):
            own = inputs[4 * g : 4 * g + 4] @ node
            scores = own[np.arange(4), states].sum(axis=1) + sum(table[states[:, a], states[:, b]] for a, b in edges)
            seen = labels[4 * g : 4 * g + 4]
            total += logsumexp(scores) - logsumexp(scores[((states == seen) | (seen < 0)).all(axis=1)])
        return total

    assert solution.objective == pytest.approx(objective(solution.weights), abs=1e-8)
    assert np.abs(slope(objective, solution.weights)).max() < 1e-5

    def instance(g: int) -> bt.Instance:
        features = []
        for v in range(4):
            block = np.zeros((3, 12))
            for k in range(3):
                block[k, [k, 3 + k]] = inputs[4 * g + v]
            features.append(block)
        features += [np.eye(12)[6 + tied.ravel()]] * 4
        graph = bt.ClusterGraph([3] * 4, [(0,), (1,), (2,), (3,), *edges])
        return bt.Instance(bt.LogLinearModel(graph, features), labels[4 * g : 4 * g + 4])

    same = bt.learn([instance(g) for g in range(3)], "exact", prior_variance=VARIANCE, tolerance=1e-7)
    np.testing.assert_allclose(same.weights, solution.weights, atol=1e-5)


@pytest.mark.parametrize("method", ["exact", "cccp", "camel0"])
def test_rows_in_which_nothing_was_seen_change_nothing(method: str) -> None:
    field = Field(*LOOP)
    rows, counts, allowed = holey(field, 6, n=20)
    empty = np.full((2, 4), -1)
    reference = learn(field, rows, counts, allowed, method)
    more = learn(field, np.vstack([rows, empty]), np.append(counts, [5.0, 1.0]), [*allowed, None, None], method)
    np.testing.assert_allclose(more.weights, reference.weights, atol=1e-10)
    complete = field.states[::3]
    alone = learn(field, complete, np.ones(len(complete)), None, method)
    more = learn(field, np.vstack([complete, empty]), np.ones(len(complete) + 2), None, method)
    np.testing.assert_array_equal(more.weights, alone.weights)


def test_a_variable_that_was_never_seen_gets_a_meaning() -> None:
    """Two groups of rows that only a hidden variable can tell apart."""
    field = Field((2, 2, 2, 2, 2), tuple((0, v) for v in range(1, 5)))
    rng = np.random.default_rng(7)
    group = rng.integers(2, size=300)
    seen = np.where(rng.random((300, 4)) < 0.9, group[:, None], 1 - group[:, None])
    rows = np.column_stack([np.full(300, -1), seen])
    solutions = [learn(field, rows, np.ones(300), None, "exact", seed=seed, tolerance=1e-5) for seed in range(3)]
    independent = -300 * sum(p * np.log(p) + (1 - p) * np.log(1 - p) for p in seen.mean(axis=0))
    assert min(s.objective for s in solutions) < independent - 100
    evidence = [dict(enumerate(row[1:].tolist(), 1)) for row in rows]
    found = bt.infer([field.model] * 300, solutions[0].weights, "exact", evidence=evidence)
    guess = np.array([np.argmax(result.variables[0]) for result in found])
    assert max((guess == group).mean(), (guess != group).mean()) > 0.95


@pytest.mark.parametrize("method", ["pseudolikelihood", "piecewise-pseudolikelihood", "ups", "pseudo-moments"])
def test_learners_that_look_at_every_state_refuse(method: str) -> None:
    field = Field(*TREE)
    rows, counts, allowed = holey(field, 8)
    with pytest.raises(ValueError, match=r"unknown \(-1\)"):
        learn(field, rows, counts, allowed, method)
    with pytest.raises(ValueError, match="learns each cluster on its own"):
        learn(field, rows, counts, allowed, "piecewise")
    with pytest.raises(ValueError, match="starts at observed marginals"):
        learn(field, rows, counts, allowed, "cccp-empirical")


def test_bad_input_is_one_error() -> None:
    field = Field(*TREE)
    model = field.model
    with pytest.raises(ValueError, match="no observed state"):
        bt.learn(bt.Samples(model, [[-1, -1, -1, -1]]))
    with pytest.raises(ValueError, match="no instance of positive weight has an observed state"):
        bt.learn([bt.Instance(model, [-1, -1, -1, -1])])
    with pytest.raises(ValueError, match=r"allowed\[0\]\[1\] is empty"):
        bt.Samples(model, [[0, -1, 0, 0]], allowed=[{1: []}])
    with pytest.raises(ValueError, match=r"allowed\[1\] leaves out state 2"):
        bt.Instance(model, [0, 2, 0, 0], allowed={1: [0, 1]})
    with pytest.raises(ValueError, match="names variable 7"):
        bt.Instance(model, [0, 2, 0, 0], allowed={7: [0, 1]})
    with pytest.raises(ValueError, match="outside 0 to 2"):
        bt.Instance(model, [0, -1, 0, 0], allowed={1: [3]})
    with pytest.raises(ValueError, match="one entry per sample"):
        bt.Samples(model, [[0, -1, 0, 0]], allowed=[])
    with pytest.raises(ValueError, match="-2 is not a state"):
        bt.Samples(model, [[0, -2, 0, 0]])
    explicit = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2)], edges=[(0, 1, (1,))])
    tables = [np.eye(8)[:4], np.eye(8)[4:]]
    with pytest.raises(ValueError, match="needs a graph with a hub for every variable"):
        bt.learn(bt.Samples(bt.LogLinearModel(explicit, tables), [[0, -1, 0]]))


def test_limits_and_callbacks() -> None:
    field = Field(*LOOP)
    rows, counts, allowed = holey(field, 9)
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit"):
        solution = learn(field, rows, counts, allowed, "exact", max_iterations=3)
    assert solution.status is bt.Status.ITERATION_LIMIT
    seen: list[bt.Progress] = []

    def stop(progress: bt.Progress) -> bool:
        seen.append(progress)
        return len(seen) == 8

    solution = learn(field, rows, counts, allowed, "exact", callback=stop)
    assert solution.status is bt.Status.STOPPED
    assert [progress.iteration for progress in seen] == list(range(1, 9))
    values = [field.objective(progress.weights, rows, counts, allowed) for progress in seen]
    assert all(b < a for a, b in itertools.pairwise(values))  # the likelihood rises with every step


@pytest.mark.parametrize("method", ["convex", "trw", "camel0"])
def test_messages_of_both_models_stay_warm(method):
    """Components of unknown labels take no more sweeps than whole pictures with complete data do."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, (5, 5)) for _ in range(12)]
    X = [np.eye(3)[label] + rng.normal(0.0, 1.0, (5, 5, 3)) for label in labels]
    holey = [np.where(rng.random(label.shape) < 0.3, -1, label) for label in labels]
    sweeps = []
    for y in (labels, holey):
        data = bt.GridCRF(method=method).encode(X, y)
        found = bt.learn(data, method, prior_variance=1.0, n_threads=1)
        assert found.converged
        n_instances = 12 if y is labels else 12 + conditioned(pack(data)).clamped.layout.n_instances
        sweeps.append(found.history[-1].sweeps / found.evaluations / n_instances)
    assert sweeps[1] < 1.3 * sweeps[0]


def pictures(seed: int, side: int, noise: float, n: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Blocks of two labels, noisy colours, and the labels with 30 % holes."""
    rng = np.random.default_rng(seed)
    labels = [np.kron(rng.integers(0, 2, (side // 4, side // 4)), np.ones((4, 4), dtype=int)) for _ in range(n)]
    X = [np.eye(2)[label] + rng.normal(0.0, noise, (side, side, 2)) for label in labels]
    return X, labels, [np.where(rng.random(label.shape) < 0.3, -1, label) for label in labels]


def test_cccp_ends_where_belief_propagation_does_on_grids() -> None:
    """Both linearisations together once chased each other for ever here."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, (8, 8)) for _ in range(10)]
    X = [np.eye(3)[label] + rng.normal(0.0, 1.0, (8, 8, 3)) for label in labels]
    data = bt.GridCRF().encode(X, [np.where(rng.random(label.shape) < 0.3, -1, label) for label in labels])
    cccp, lbp = (bt.learn(data, method, prior_variance=1.0, n_threads=1) for method in ("cccp", "lbp"))
    assert cccp.converged
    assert cccp.attained == pytest.approx(1.0, abs=1e-2)
    assert cccp.objective == pytest.approx(lbp.objective, abs=1e-4)
    np.testing.assert_allclose(cccp.weights, lbp.weights, atol=1e-3)


def test_bethe_that_runs_away_ends_at_once_and_says_so() -> None:
    rng, n = np.random.default_rng(2), 300
    labels = rng.integers(0, 4, n)
    pairs = rng.integers(0, n, (6 * n, 2))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    edges = np.unique(np.sort(pairs[same & (pairs[:, 0] != pairs[:, 1])], axis=1), axis=0)
    graph = np.eye(4)[labels] + rng.normal(size=(n, 4)), edges
    crf = bt.GraphCRF(method="cccp", prior_variance=10.0)
    with pytest.warns(bt.ConvergenceWarning, match="diverged: .* choose method='convex'"):
        crf.fit([graph], [np.where(rng.random(n) < 0.2, labels, -1)])
    assert crf.solution_.status is bt.Status.DIVERGED
    assert len(crf.solution_.history) <= 10


def test_a_fit_says_where_predictions_will_not_match_it() -> None:
    """With complete labels such pictures have their path replayed; with unknown ones the fit says that it has none."""
    X, labels, holey = pictures(1, 32, 3.0, 1)
    assert bt.GridCRF(method="cccp").fit(X, labels).solution_.path is not None
    with pytest.warns(bt.AttainmentWarning, match="no path is replayed where labels are unknown: learn with"):
        model = bt.GridCRF(method="cccp").fit(X, holey)
    assert model.solution_.path is None
    assert model.solution_.attained < 0.95


def test_one_weight_of_many_may_have_a_gap() -> None:
    """With ``gap_tolerance`` learning stops by what all gaps cost together, sum_k gap_k^2 variance_k / 2."""
    rng = np.random.default_rng(14)
    labels = np.where(rng.random(40) < 0.5, rng.integers(0, 2, 40), -1)
    edges = np.column_stack([np.arange(39), np.arange(1, 40)])
    scale = np.append(0.02 * np.ones(400), 1.0)
    data = bt.GraphData(scale * rng.normal(size=(40, 401)), edges, n_labels=2, labels=labels)
    best = bt.learn(data, "exact", prior_variance=0.1, tolerance=1e-8).objective
    total = 0.1 * data.n_weights
    for budget in (0.3, 0.1):
        gap = (2.0 * budget / total) ** 0.5
        found = bt.learn(data, "exact", prior_variance=0.1, gap_tolerance=gap)
        assert found.converged
        assert found.moment_gap > gap
        assert found.objective - best < budget


@pytest.mark.parametrize("method", ["convex", "camel0", "trw", "exact"])
def test_weights_that_the_prior_alone_rules_out_are_not_worth_messages(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objective is at least the prior's part; a first step of length 1 is too long for a strong one."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (8, 4))
    rows[rng.random(rows.shape) < 0.3] = -1
    model = bt.MarkovRandomField([(0, 1), (1, 2), (2, 3), (3, 0)], cardinalities=[2] * 4).encode(rows).model
    data = bt.Samples(model, rows)
    evaluated: list[Any] = []
    evaluate = Dual.evaluate

    def recorded(self: Dual, weights: Any, **options: Any) -> Any:
        evaluated.append(weights.copy())
        return evaluate(self, weights, **options)

    monkeypatch.setattr(Dual, "evaluate", recorded)
    solution = bt.learn(data, method, prior_variance=0.001, start=np.zeros(model.n_weights), n_threads=1)
    assert solution.converged
    with pytest.warns(bt.ConvergenceWarning):
        begun = bt.learn(data, method, prior_variance=0.001, max_iterations=0, start=np.zeros(model.n_weights))
    allowed = begun.objective
    assert 0.0 < solution.objective < allowed
    for weights in evaluated:
        assert 0.5 * float(weights @ weights) / 0.001 <= allowed
    # the bound itself, where there is a good deal of both
    for size in (0.3, 3.0):
        start = rng.normal(0.0, size, model.n_weights)
        with pytest.warns(bt.ConvergenceWarning):
            found = bt.learn(data, method, prior_variance=1.0, max_iterations=0, start=start)
        assert found.objective >= 0.5 * float(start @ start)


def test_bethe_on_large_graphs_with_loops_is_refused_before_work() -> None:
    rng = np.random.default_rng(0)
    edges = np.unique(np.sort(rng.integers(0, 2500, (5000, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] < edges[:, 1]]
    labels = np.where(rng.random(2500) < 0.5, rng.integers(0, 2, 2500), -1)
    crf = bt.GraphCRF(method="cccp", prior_variance=1.0)
    with pytest.raises(ValueError, match=r"cccp does not support unknown states .* choose method='convex'"):
        crf.fit([(rng.normal(size=(2500, 1)), edges)], [labels])


def test_bethe_that_goes_in_circles_ends_soon_and_says_so() -> None:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 3, 39)
    edges = np.unique(np.sort(rng.integers(0, 39, (70, 2)), axis=1), axis=0)
    graph = (np.eye(3)[labels] + 1.2 * rng.normal(size=(39, 3)), edges[edges[:, 0] < edges[:, 1]])
    known = np.where(np.arange(39) < 20, labels, -1)
    crf = bt.GraphCRF(method="cccp", prior_variance=10.0, labels=[0, 1, 2])
    with pytest.warns(bt.ConvergenceWarning, match=r"went in circles; choose method='convex'"):
        crf.fit([graph], [known])
    assert 50 <= len(crf.solution_.history) <= 60
