"""Scores of 1e2 to 1e7 among ordinary ones, in every route, against enumeration and star updates in plain log space."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracle import (
    Array,
    DenseModel,
    Observed,
    Scope,
    cluster_marginals,
    joint_scores,
    joint_states,
    log_partition,
    negative_log_likelihood,
    sub_index,
    variable_marginals,
)
from scipy.special import logsumexp

import bactrian as bt
from bactrian.camel.accuracy import SCHEDULE
from bactrian.engines import memory
from bactrian.inference.draw import draw_exactly

KINDS = ("spread", "penalties", "rewards", "ties", "level")
SCALES = (1.0, 1.0, 100.0, 300.0, 650.0, 708.0, 709.0, 1e3, 1e4, 1e5, 1e6, 1e7)


def drawn_scores(rng: np.random.Generator, size: int, scale: float, kinds: tuple[str, ...]) -> Array:
    kind = rng.choice(kinds)
    some, ordinary = rng.random(size) < 0.4, rng.normal(size=size)
    if kind == "forbidden":
        return np.where(some & (np.arange(size) > 0), -np.inf, scale * ordinary)
    return {
        "spread": scale * ordinary,
        "penalties": ordinary - scale * some,
        "rewards": ordinary + scale * some,
        "ties": scale * some,
        "level": ordinary + scale,
    }[kind]


def drawn_model(seed: int, *, tree: bool, states: int | None = None, kinds: tuple[str, ...] = KINDS) -> DenseModel:
    """Pairs, sometimes a triple, and a singleton for every variable, with scores of mixed scales; pairs come first."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    cardinalities = [states or int(rng.integers(2, 4)) for _ in range(n)]
    clusters: list[Scope]
    if tree:
        clusters = [(int(rng.integers(child)), child) for child in range(1, n)]
    else:
        clusters = [(v, (v + 1) % n) for v in range(n)]
        clusters += [(a, b) for a in range(n) for b in range(a + 2, n - (a == 0)) if rng.random() < 0.4]
    if states is None and seed % 4 == 0:
        clusters.append((0, n, n + 1) if tree else (0, 1, 2))
        cardinalities += [2, 2] if tree else []
    clusters += [(v,) for v in range(len(cardinalities))]
    of_nodes, of_others = rng.choice(SCALES, 2)
    alone = rng.random() < 0.3  # one node with extreme scores, the rest ordinary
    tables = []
    for scope in clusters:
        scale = of_others if len(scope) > 1 else of_nodes if scope == (0,) or not alone else 1.0
        scale = scale if rng.random() < 0.8 else 1.0
        tables.append(drawn_scores(rng, int(np.prod([cardinalities[v] for v in scope])), scale, kinds))
    return DenseModel(cardinalities, clusters, [np.zeros((table.size, 1)) for table in tables], list(tables))


def library_model(dense: DenseModel) -> bt.LogLinearModel:
    return bt.LogLinearModel(bt.ClusterGraph(dense.cardinalities, dense.clusters), dense.features, dense.base_scores)


def largest_score(dense: DenseModel) -> float:
    scores = np.concatenate([dense.base(i) for i in range(len(dense.clusters))])
    return float(np.abs(scores[np.isfinite(scores)]).max(initial=1.0))


class Stars:
    """Star updates on a Bethe graph, every step a log-sum-exp; ``hub`` holds the numbers of variables."""

    def __init__(self, dense: DenseModel, method: str, result: bt.InferenceResult) -> None:
        self.cardinalities = dense.cardinalities
        self.scopes = [scope for scope in dense.clusters if len(scope) > 1]
        self.tables = [dense.base(i) for i in range(len(self.scopes))]
        self.nodes = [dense.base(len(self.scopes) + v) for v in range(len(self.cardinalities))]
        self.around = [[i for i, scope in enumerate(self.scopes) if v in scope] for v in range(len(self.cardinalities))]
        self.kappa = np.ones(len(self.scopes))
        if method == "trw":
            assert result.counting_numbers is not None
            self.kappa = np.asarray(result.counting_numbers.clusters)[: len(self.scopes)]
        taken = np.array([self.kappa[links].sum() for links in self.around])
        self.hub = 1.0 - taken
        if method == "convex":
            self.hub = np.maximum(self.hub, [-sum(1.0 / len(self.scopes[i]) for i in links) for links in self.around])
        assert result.messages is not None
        parts = np.split(
            result.messages.multipliers,
            np.cumsum([k for v, k in enumerate(self.cardinalities) for _ in self.around[v]])[:-1],
        )
        places = [(v, i) for v, links in enumerate(self.around) for i in links]
        self.multipliers = dict(zip(places, parts, strict=True))

    def scores(self, i: int, without: int | None = None) -> Array:
        total = self.tables[i].copy()
        for v in self.scopes[i]:
            if v != without:
                total = total + self.multipliers[v, i][sub_index(self.cardinalities, self.scopes[i], (v,))]
        return total / self.kappa[i]

    def marginal_logs(self, i: int, v: int, scores: Array) -> Array:
        state = sub_index(self.cardinalities, self.scopes[i], (v,))
        return np.array([logsumexp(scores[state == k]) for k in range(self.cardinalities[v])])

    def belief(self, v: int) -> Array:
        """Belief of a variable after its star update."""
        total = self.nodes[v].copy()
        for i in self.around[v]:
            total = total + self.kappa[i] * self.marginal_logs(i, v, self.scores(i, without=v))
        total = total / (self.hub[v] + self.kappa[self.around[v]].sum())
        belief: Array = np.exp(total - logsumexp(total))
        return belief

    def value(self) -> float:
        """D at the multipliers."""
        total = sum(self.kappa[i] * logsumexp(self.scores(i)) for i in range(len(self.scopes)))
        for v, links in enumerate(self.around):
            slack = self.nodes[v].copy()
            for i in links:
                possible = np.isfinite(self.marginal_logs(i, v, self.scores(i)))
                slack = np.where(possible, slack - np.where(possible, self.multipliers[v, i], 0.0), -np.inf)
            if abs(self.hub[v]) > 1e-9:
                ratio = np.divide(slack, self.hub[v], out=np.full_like(slack, -np.inf), where=slack != -np.inf)
                total += self.hub[v] * logsumexp(ratio)
            else:
                logs = self.marginal_logs(links[0], v, self.scores(links[0]))
                belief = np.exp(logs - logsumexp(logs))
                total += belief[belief > 0.0] @ slack[belief > 0.0]
        return float(total)


def difference(found: Any, expected: Any) -> float:
    return max(float(np.abs(np.ravel(a) - np.ravel(b)).max()) for a, b in zip(found, expected, strict=True))


def inferred(model: bt.LogLinearModel, method: str, **options: Any) -> bt.InferenceResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)  # penalties on loops make messages swing
        return bt.infer(model, [0.0], method, **options)


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("exact", {}), ("bp", {}), ("bp", {"schedule": "parallel"}), ("rbp", {}), ("trw", {}), ("convex", {}),
    ("double-loop", {}), ("mean-field", {}),
]  # fmt: skip


@pytest.mark.parametrize("route", ["general", "uniform"])
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("part", range(6))
def test_inference(part: int, tree: bool, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if route == "uniform":
        monkeypatch.setattr(memory, "SCHEDULE", replace(SCHEDULE, worth_compiling=1))
    for seed in range(8 * part, 8 * part + 8):
        kinds = (*KINDS, "forbidden") if seed % 3 == 0 else KINDS
        dense = drawn_model(seed, tree=tree, states=2 if route == "uniform" else None, kinds=kinds)
        expected = log_partition(dense, np.zeros(1))
        if expected == -np.inf:
            continue
        model, scale = library_model(dense), largest_score(dense)
        marginals, tables = variable_marginals(dense, np.zeros(1)), cluster_marginals(dense, np.zeros(1))
        for method, options in METHODS:
            name = f"seed {seed}, {method} {options}"
            result = inferred(model, method, **options)
            for belief in result.variables:
                assert belief.sum() == pytest.approx(1.0, abs=1e-12), name
            if method == "mean-field":
                assert result.log_partition <= expected + 1e-12 * scale + 1e-9, name
            elif method == "exact" or (tree and method != "convex"):
                loose = 1e-5 if method == "double-loop" else 1e-9
                assert result.converged, name
                assert result.log_partition == pytest.approx(expected, abs=1e-12 * scale + loose), name
                assert difference(result.variables, marginals) < 1e-14 * scale + loose, name
                assert difference(result.clusters, tables) < 1e-14 * scale + loose, name
            elif result.converged and method != "double-loop":
                stars = Stars(dense, method, result)
                again = [stars.belief(v) for v in range(len(dense.cardinalities))]
                assert difference(result.variables, again) < 1e-14 * scale + 1e-6, name
                assert result.log_partition == pytest.approx(stars.value(), abs=1e-11 * scale + 1e-6), name
                if method == "trw":
                    assert result.log_partition >= expected - 1e-12 * scale - 1e-6, name


@pytest.mark.parametrize("scale", [100.0, 707.0, 709.0, 1e4, 1e7])
@pytest.mark.parametrize("method", [*dict(METHODS), "gibbs"])
def test_one_favoured_label_for_every_node(method: str, scale: float) -> None:
    """The pairs are all zero, so the answer is plain."""
    data = bt.GraphData(np.eye(3), [(0, 1), (1, 2)], n_labels=2, tables="full")
    (result,) = bt.infer(data, np.r_[0.0, scale, 0.0, scale, 0.0, scale, np.zeros(4)], method)
    assert result.converged
    assert difference(result.variables, [[0.0, 1.0]] * 3) < 1e-12
    if method != "gibbs":
        assert result.log_partition == pytest.approx(3 * scale, rel=1e-12)


def test_messages_that_move_behind_settled_marginals() -> None:
    """Marginals stand at 0 and 1 while the states that will win still rise by hundreds per sweep."""
    clusters: list[Scope] = [(1,), (3,), (3, 1), (3,), (1, 3, 2), (2,), (3, 0)]
    edges = [
        (0, 2, (1,)), (0, 4, (1,)), (1, 2, (3,)), (1, 3, (3,)), (1, 4, (3,)), (1, 6, (3,)), (2, 3, (3,)),
        (2, 4, (1, 3)), (2, 6, (3,)), (3, 4, (3,)), (3, 6, (3,)), (4, 5, (2,)), (4, 6, (3,)),
    ]  # fmt: skip
    base = [
        [304.2, -507.0], [-701.0, 0.0, 700.0], [-519.44, -643.5863, -1360.6622, -336.4788, -1903.384, -337.9687],
        [-701.0, 0.0, -698.0], [0.0, -0.3, -2.3, 0.0, -2.0, -0.3, 0.0, -2.0, 0.0, 2.0, 0.0, -0.3], [0.0, -1.0],
        [710.0, -710.0, -2.0, 0.0, -710.0, 709.0, -710.0, 708.0, -710.0, -1.0, 0.0, 710.0],
    ]  # fmt: skip
    tables = [np.array(table) for table in base]
    dense = DenseModel([4, 2, 2, 3], clusters, [np.zeros((table.size, 1)) for table in tables], list(tables))
    model = bt.LogLinearModel(bt.ClusterGraph([4, 2, 2, 3], clusters, edges), dense.features, dense.base_scores)
    result = inferred(model, "trw")
    assert result.converged
    assert result.log_partition >= log_partition(dense, np.zeros(1)) - 1e-6


@pytest.mark.parametrize("tree", [True, False])
def test_decoding_and_drawing(tree: bool) -> None:
    for seed in range(24):
        dense = drawn_model(seed, tree=tree)
        model, scale = library_model(dense), largest_score(dense)
        scores = joint_scores(dense, np.zeros(1))
        for method in ("exact", "max-product", "dual", "max-marginals"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", bt.ConvergenceWarning)
                found = bt.decode(model, [0.0], method, return_result=True)
            score = scores[np.ravel_multi_index(tuple(found.assignment), dense.cardinalities)]
            assert found.score == pytest.approx(score, abs=1e-12 * scale)
            if found.optimal:
                assert score >= scores.max() - 1e-11 * scale, (seed, method)
            if found.bound is not None:
                assert found.bound >= scores.max() - 1e-11 * scale, (seed, method)
        rows = draw_exactly(model, [0.0], 400, seed=seed)
        drawn = [np.bincount(rows[:, v], minlength=k) / 400 for v, k in enumerate(dense.cardinalities)]
        assert difference(drawn, variable_marginals(dense, np.zeros(1))) < 0.15, seed


@pytest.mark.parametrize("method", ["exact", "lbp", "cccp", "cccp-empirical", "trw"])
def test_learning_on_trees_is_maximum_likelihood(method: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        shape = drawn_model(seed, tree=True)
        features = [rng.normal(size=(len(table), 3)) for table in shape.features]
        seen = []
        for _ in range(3):
            tables = [drawn_scores(rng, len(table), min(float(rng.choice(SCALES)), 1e4), KINDS) for table in features]
            dense = DenseModel(shape.cardinalities, shape.clusters, features, list(tables))
            scores = joint_scores(dense, np.zeros(3))
            row = rng.choice(scores.size, p=np.exp(scores - logsumexp(scores)))
            seen.append(Observed(dense, joint_states(shape.cardinalities)[row][None]))
        data = [bt.Instance(library_model(one.model), one.assignments[0]) for one in seen]
        solution = bt.learn(data, method, prior_variance=2.0)
        assert solution.converged
        value, gradient = negative_log_likelihood(seen, solution.weights, 2.0)
        np.testing.assert_allclose(gradient, 0.0, atol=1e-4)
        if method in ("exact", "cccp"):
            scale = max(map(largest_score, (one.model for one in seen)))
            assert solution.objective == pytest.approx(value, abs=1e-11 * scale + 1e-6)
