"""UNBOUNDED if and only if no finite optimum exists: random problems without a prior against a judge of its own.

The judge asks, with a linear program, which states can have positive probability in beliefs that match the observed
moments (maximal support). A finite optimum exists if and only if all of them can.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import ranks
from numpy.typing import NDArray
from ranks import ThreadRank, together
from scipy.optimize import linprog

import bactrian as bt

Floats = NDArray[np.float64]

METHODS = ("exact", "piecewise", "camel0", "cccp", "convex", "trw", "lbp", "pseudolikelihood")
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10)
GRAPHS = {
    1: [[(0,)]],
    2: [[(0, 1)], [(0, 1), (1,)]],
    3: [[(0, 1), (1, 2)], [(0, 1), (1, 2), (0, 2)], [(0, 1, 2)], [(0, 1), (1, 2), (0, 2), (0,)]],
}


class Problem:
    """A random model with samples of it; ``weights`` are the samples'."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n_variables = int(rng.integers(1, 4))
        self.cardinalities = rng.integers(2, 4, size=n_variables)
        graphs = GRAPHS[n_variables]
        self.clusters = graphs[rng.integers(len(graphs))]
        n_weights = int(rng.integers(1, 6))
        kind = rng.integers(4)
        self.features = []
        for scope in self.clusters:
            shape = (int(np.prod(self.cardinalities[list(scope)])), n_weights)
            features = (
                rng.integers(-1, 2, size=shape).astype(float),
                rng.normal(size=shape),
                (rng.random(shape) < 0.4).astype(float),
                np.repeat(rng.integers(0, 2, size=(shape[0], 1)), n_weights, axis=1).astype(float),  # all alike
            )[kind]
            if rng.random() < 0.2:
                features[:, 0] = 1.0  # a weight that changes nothing
            if rng.random() < 0.2:
                features[:, -1] = 0.0  # a weight that never occurs
            self.features.append(features)
        n_samples = int(rng.choice([1, 2, 3, 8, 30]))
        columns = [rng.integers(0, k, size=n_samples) for k in self.cardinalities]
        self.X = np.stack(columns, axis=1)
        if rng.random() < 0.4:
            self.X = np.minimum(self.X, 1)

    def model(self, features: list[Floats] | None = None) -> bt.LogLinearModel:
        graph = bt.ClusterGraph(self.cardinalities.tolist(), self.clusters)
        return bt.LogLinearModel(graph, self.features if features is None else features)

    def states(self, scope: tuple[int, ...]) -> NDArray[np.int64]:
        return np.array(list(itertools.product(*[range(self.cardinalities[v]) for v in scope])))

    def joint_features(self) -> Floats:
        """(states of all variables, n_weights)."""
        joint = self.states(tuple(range(self.cardinalities.size)))
        return sum(
            features[self.index(joint, scope)] for scope, features in zip(self.clusters, self.features, strict=True)
        )

    def index(self, rows: NDArray[np.int64], scope: tuple[int, ...]) -> NDArray[np.int64]:
        return np.ravel_multi_index(tuple(rows[:, list(scope)].T), self.cardinalities[list(scope)])

    def has_finite_optimum(self, method: str) -> bool:
        """By the maximal support of beliefs that match the moments."""
        if method == "exact":
            joint = self.joint_features()
            observed = joint[self.index(self.X, tuple(range(self.cardinalities.size)))].mean(axis=0)
            return is_full(np.vstack([joint.T, np.ones(len(joint))]), np.append(observed, 1.0))
        if method == "pseudolikelihood":
            return self._conditionals_are_full()
        sizes = [len(features) for features in self.features]
        offsets = np.cumsum([0, *sizes])
        observed = sum(
            features[self.index(self.X, scope)].mean(axis=0)
            for scope, features in zip(self.clusters, self.features, strict=True)
        )
        rows = [np.hstack([features.T for features in self.features])]
        rows.append(np.repeat(np.eye(len(sizes)), sizes, axis=1))
        wanted = [observed, np.ones(len(sizes))]
        for v in range(self.cardinalities.size) if method != "piecewise" else ():
            around = [i for i, scope in enumerate(self.clusters) if v in scope]
            for a, b in itertools.pairwise(around):
                agree = np.zeros((self.cardinalities[v], offsets[-1]))
                for i, sign in ((a, 1.0), (b, -1.0)):
                    state = self.states(self.clusters[i])[:, self.clusters[i].index(v)]
                    agree[state, offsets[i] + np.arange(sizes[i])] += sign
                rows.append(agree)
                wanted.append(np.zeros(len(agree)))
        return is_full(np.vstack(rows), np.concatenate(wanted))

    def _conditionals_are_full(self) -> bool:
        joint = self.joint_features().reshape(*self.cardinalities, -1)
        tables, observed = [], np.zeros(joint.shape[-1])
        for row in self.X:
            for v in range(row.size):
                tables.append(joint[(*row[:v], slice(None), *row[v + 1 :])])
                observed = observed + joint[tuple(row)]
        owners = np.repeat(np.eye(len(tables)), [len(table) for table in tables], axis=1)
        return is_full(np.vstack([np.vstack(tables).T, owners]), np.concatenate([observed, np.ones(len(tables))]))


def is_full(matrix: Floats, wanted: Floats) -> bool:
    """Whether some p > 0 has matrix @ p = wanted: y = t p, maximise how many entries of y reach 1."""
    n = matrix.shape[1]
    found = linprog(
        np.concatenate([np.zeros(n + 1), -np.ones(n)]),
        A_ub=np.hstack([-np.eye(n), np.zeros((n, 1)), np.eye(n)]),
        b_ub=np.zeros(n),
        A_eq=np.hstack([matrix, -wanted[:, None], np.zeros((matrix.shape[0], n))]),
        b_eq=np.zeros(matrix.shape[0]),
        bounds=[(0, None)] * (n + 1) + [(0, 1)] * n,
        method="highs",
    )
    assert found.status == 0
    return bool((found.x[-n:] > 0.5).all())


def learned(data: Any, method: Any, **options: Any) -> bt.Solution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        return bt.learn(data, method, n_threads=1, **{"prior_variance": None, **options})


def check(seed: int, methods: tuple[str, ...], tolerances: list[float]) -> None:
    problem = Problem(seed)
    for method in methods:
        finite = problem.has_finite_optimum(method)
        for tolerance in tolerances:
            status = learned(bt.Samples(problem.model(), problem.X), method, tolerance=tolerance).status
            wanted = bt.Status.CONVERGED if finite else bt.Status.UNBOUNDED
            decided = status in (bt.Status.CONVERGED, bt.Status.UNBOUNDED)
            assert status is wanted or not decided, f"seed {seed}, {method}, tolerance {tolerance}: {status.name}"


@pytest.mark.parametrize("seed", range(24))
def test_unbounded_if_and_only_if_no_finite_optimum_exists(seed: int) -> None:
    check(seed, METHODS, [TOLERANCES[seed % len(TOLERANCES)]])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1400, 20))
def test_unbounded_if_and_only_if_no_finite_optimum_exists_at_any_tolerance(start: int) -> None:
    for seed in range(start, start + 20):
        check(seed, METHODS, list(TOLERANCES))


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_one_sample_of_three_states(tolerance: float) -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([3], [(0,)]), [[[1.0, 0.0], [0.0, 1.0], [0.5, 0.6]]])
    for state, status in ((0, "UNBOUNDED"), (2, "UNBOUNDED")):
        assert learned(bt.Samples(model, [[state]]), "exact", tolerance=tolerance).status.name == status
    inside = bt.Samples(model, [[0], [1], [2]])
    assert learned(inside, "exact", tolerance=tolerance).converged


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("seed", range(8))
def test_separation_of_classes(seed: int, tolerance: float) -> None:
    """Logistic regression, where a finite optimum exists if and only if no plane separates the classes, even weakly."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(int(rng.integers(4, 12)), 2)).round(1)
    labels = rng.integers(0, 2, size=len(rows))
    if seed % 2:
        labels = (rows @ [1.0, -0.5] > 0.0).astype(int)
    signed = rows * (2.0 * labels[:, None] - 1.0)
    separated = linprog(-signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(rows)), bounds=(-1, 1)).fun < -1e-9
    graph = bt.ClusterGraph([2], [(0,)])
    data = [
        bt.Instance(bt.LogLinearModel(graph, [np.stack([np.zeros(2), row])]), [label])
        for row, label in zip(rows, labels, strict=True)
    ]
    for method in ("exact", "cccp", "pseudolikelihood"):
        assert learned(data, method, tolerance=tolerance).status.name == ("UNBOUNDED" if separated else "CONVERGED")


@pytest.mark.parametrize("method", METHODS)
def test_a_prior_or_a_penalty_keeps_weights_finite(method: str) -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([2, 2], [(0, 1)]), [np.eye(4)])
    data = bt.Samples(model, [[0, 0], [1, 1]])
    assert learned(data, method, prior_variance=1e4).converged
    assert learned(data, method, l1=0.01).converged
    # The weight of a state that occurs needs no prior of its own (but in conditionals, where one variable tells the
    # other); that of one that does not occur does.
    finite = bt.Status.UNBOUNDED if method == "pseudolikelihood" else bt.Status.CONVERGED
    for free, status in ((0, finite), (1, bt.Status.UNBOUNDED)):
        variance = np.where(np.arange(4) == free, np.inf, 1.0)
        assert learned(data, method, prior_variance=variance).status is status


@pytest.mark.parametrize("method", ["exact", "piecewise", "camel0", "cccp"])
def test_states_that_scores_forbid_are_not_missed(method: str) -> None:
    """A forbidden state never occurs, at finite weights; a possible one that was never seen is another matter."""
    rng = np.random.default_rng(0)
    graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])
    features = [np.eye(4, 12, 4 * i) for i in range(3)]
    base = [np.array([0.0, 0.0, 0.0, -np.inf]), None, None]
    X = np.array([row for row in itertools.product(range(2), repeat=3) if not (row[0] and row[1])])
    model = bt.LogLinearModel(graph, features, base_scores=base)
    data = bt.Samples(model, rng.permutation(np.repeat(X, 3, axis=0)))
    assert learned(data, method).converged
    unseen = bt.Samples(model, X[X[:, 2] == 0])
    assert learned(unseen, method).status is bt.Status.UNBOUNDED


@pytest.mark.parametrize("method", METHODS)
def test_an_optimum_behind_a_long_plateau_is_finite(method: str) -> None:
    """log(1 + e^(w - 1e4)) + log(1 + e^-w) is flat for a long way, and has its minimum at 5000."""
    graph = bt.ClusterGraph([2], [(0,)])
    features = [[[0.0], [1.0]]]
    data = [
        bt.Instance(bt.LogLinearModel(graph, features, [[0.0, -1e4]]), [0]),
        bt.Instance(bt.LogLinearModel(graph, features), [1]),
    ]
    assert learned(data, method).converged


def test_every_schedule_and_entropy_decides_alike() -> None:
    for seed in range(30, 34):
        problem = Problem(seed)
        finite = problem.has_finite_optimum("camel0")
        for method in (
            bt.Camel(entropy="clusters", solver="joint"),
            bt.Camel(entropy="convex"),
            bt.Camel(fold=True),
        ):
            status = learned(
                bt.Samples(problem.model(), problem.X),
                method,
                tolerance=1e-5,
                max_iterations=200,
                max_relinearisations=50,
            ).status
            if status in (bt.Status.CONVERGED, bt.Status.UNBOUNDED):
                assert (status is bt.Status.CONVERGED) == finite, f"seed {seed}, {method}"


@pytest.mark.parametrize("method", ["piecewise", "camel0", "cccp", "convex", "exact"])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_decide_what_one_decides(seed: int, method: str) -> None:
    problem = Problem(seed)
    instances = [bt.Instance(problem.model(), row) for row in np.tile(problem.X, (2, 1))]
    alone = learned(instances, method, tolerance=1e-5)
    parts = instances[::2], instances[1::2]

    def work(rank: ThreadRank) -> bt.Solution:
        options = {"prior_variance": None, "tolerance": 1e-5, "n_threads": 1}
        return bt.learn(parts[rank.rank], method, communicator=rank, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        found = together(2, work)
    assert {solution.status for solution in found} == {alone.status}
    assert alone.status in (bt.Status.CONVERGED, bt.Status.UNBOUNDED)


def test_large_problems_are_judged_by_their_path() -> None:
    """Too many states for a linear program: a label that was never seen, and one that was."""
    rng = np.random.default_rng(0)
    n = 60
    index = np.arange(n * n).reshape(n, n)
    across, down = (index[:, :-1], index[:, 1:]), (index[:-1], index[1:])
    edges = np.concatenate([np.stack(pair, axis=-1).reshape(-1, 2) for pair in (across, down)])
    labels = rng.integers(0, 2, n * n)
    inputs = np.column_stack([np.ones(n * n), rng.normal(size=n * n) + labels])
    for method in ("piecewise", "pseudolikelihood", "convex"):
        unseen = bt.GraphData(inputs, edges, n_labels=3, labels=labels, tables="potts")
        assert learned(unseen, method, tolerance=1e-4).status is bt.Status.UNBOUNDED
        seen = bt.GraphData(inputs, edges, n_labels=2, labels=labels, tables="potts")
        assert learned(seen, method, tolerance=1e-4).converged


def test_files_decide_what_memory_decides(tmp_path: Any) -> None:
    inputs, edges = np.ones((2, 1)), np.array([[0, 1]])
    seen = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 0], [2, 2], [0, 2], [2, 0], [1, 2], [2, 1]]
    for method, (name, labels) in itertools.product(
        ("camel0", "piecewise", "cccp"), {"seen": seen, "unseen": seen[:6]}.items()
    ):
        graphs = [(inputs, edges, np.array(pair)) for pair in labels]
        folder = bt.PackedFolder.write(
            tmp_path / f"{name} {method}", [ranks.packed(graphs[:5]), ranks.packed(graphs[5:])]
        )
        status = learned(folder, method).status
        assert status is learned(ranks.packed(graphs), method).status
        assert status is (bt.Status.CONVERGED if name == "seen" else bt.Status.UNBOUNDED)
