"""Judges of learning: recomputed moment gaps, disagreements, stationarity and values, and whether an optimum exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import reference
from judges_inference import (
    allowed_states,
    distributions,
    enumerate_model,
    far,
    form_residual,
    is_forest,
    largest_difference,
    polytope,
    rounding,
    scores_of,
    support,
    variational,
    with_numbers,
)
from oracle import (
    Array,
    DenseModel,
    Observed,
    base_sum,
    cluster_state_index,
    feature_sums,
    joint_features,
    joint_states,
    marginal,
    n_states,
    sub_index,
)
from reference import EdgeSpec, NumberedGraph, numbered_graph
from scipy.special import logsumexp

Parts = tuple[list[Observed], list[NumberedGraph]]


# --- the same data, seen by different learners ---


def absorbed(model: DenseModel, first_only: bool) -> tuple[DenseModel, list[int]]:
    """Singletons' features moved into the pairs around them, and which clusters are left: lone singletons too."""
    features = [table.copy() for table in model.features]
    kept = []
    for i, scope in enumerate(model.clusters):
        around = [j for j, other in enumerate(model.clusters) if len(other) > 1 and scope[0] in other]
        if len(scope) > 1 or not around:
            kept.append(i)
            continue
        takers = around[:1] if first_only else around
        for j in takers:
            index = sub_index(model.cardinalities, model.clusters[j], scope)
            features[j] += model.features[i][index] / len(takers)
    return DenseModel(model.cardinalities, [model.clusters[i] for i in kept], [features[i] for i in kept]), kept


def joined(data: Sequence[Observed]) -> Parts:
    """One cluster of all variables per instance, without sepsets: the exact likelihood."""
    found = []
    for seen in data:
        model = seen.model
        states = joint_states(model.cardinalities)
        base = np.zeros(len(states))
        for i, scope in enumerate(model.clusters):
            base += model.base(i)[cluster_state_index(model.cardinalities, scope, states)]
        everything = tuple(range(len(model.cardinalities)))
        found.append(
            Observed(DenseModel(model.cardinalities, [everything], [joint_features(model)], [base]), seen.assignments)
        )
    return found, [NumberedGraph(list(seen.model.clusters), [], [1.0], []) for seen in found]


def conditionals(data: Sequence[Observed], piecewise: bool) -> Parts:
    """Every conditional of a variable in a row as an instance of its own; piecewise, one for each cluster around it."""
    found = []
    for seen in data:
        model = seen.model
        for row in np.unique(seen.assignments, axis=0):
            count = int((seen.assignments == row).all(axis=1).sum())
            for v, k in enumerate(model.cardinalities):
                around = [i for i, scope in enumerate(model.clusters) if v in scope]
                states = np.repeat(row[None, :], k, axis=0)
                states[:, v] = np.arange(k)
                for group in [[i] for i in around] if piecewise else [around]:
                    features, base = np.zeros((k, model.n_weights)), np.zeros(k)
                    for i in group:
                        index = cluster_state_index(model.cardinalities, model.clusters[i], states)
                        features += model.features[i][index]
                        base += model.base(i)[index]
                    piece = DenseModel([k], [(0,)], [features], [base])
                    found.append(Observed(piece, np.full((count, 1), row[v])))
    return found, [NumberedGraph([(0,)], [], [1.0], []) for _ in found]


# --- optimality ---


def has_finite_optimum(data: Sequence[Observed], graphs: Sequence[NumberedGraph]) -> bool:
    """Whether the moments lie in the relative interior of those of the graphs' tables: finite weights have them."""
    allowed, features = [], []
    for seen, graph in zip(data, graphs, strict=True):
        model = seen.model
        allowed.append(allowed_states(model, graph, {}))
        for i, scope in enumerate(graph.scopes):
            given = i < len(model.clusters)
            empty = np.zeros((n_states(model.cardinalities, scope), model.n_weights))
            features.append(len(seen.assignments) * model.features[i] if given else empty)
    space = polytope([seen.model for seen in data], graphs, allowed)
    everywhere = support(space)
    matched = support(space, np.concatenate(features).T, feature_sums(data))
    assert everywhere is not None
    return matched is not None and bool((matched == everywhere).all())


def breach(slope: Array, weights: Array, prior_variance: float | None, l1: float) -> float:
    """Largest breach of the weights' optimality conditions; ``slope`` is E[f] - f_hat."""
    if prior_variance is not None:
        slope = slope + weights / prior_variance
    off = np.where(weights != 0, np.abs(slope + l1 * np.sign(weights)), np.maximum(np.abs(slope) - l1, 0))
    return float(off.max(initial=0.0))


def softmax_tables(data: Sequence[Observed], weights: Array) -> list[list[Array]]:
    """Tables of clusters that need not agree with anything."""
    scores = [[f @ weights + seen.model.base(i) for i, f in enumerate(seen.model.features)] for seen in data]
    return [[np.exp(table - logsumexp(table)) for table in tables] for tables in scores]


class LearningJudge:
    """Judges solutions of one problem; ``options`` are those of ``learn``, ``node_factors`` that of packed graphs."""

    def __init__(
        self,
        data: Sequence[Observed],
        edges: Sequence[EdgeSpec],
        scale: float,
        options: dict[str, Any],
        node_factors: str = "clusters",
    ) -> None:
        self.data, self.edges, self.scale, self.node_factors = list(data), edges, scale, node_factors
        self.prior = (options.get("prior_variance"), options.get("l1", 0.0))
        self.tolerance = 10 * options["tolerance"]
        rows = sum(len(seen.assignments) for seen in data)
        self.rough = max(rounding(scale, seen.model) for seen in data)
        self.largest = max(float(np.abs(table).max(initial=1.0)) for seen in data for table in seen.model.features)
        self.sums = self.tolerance * rows + self.rough * rows * self.largest

    def problems(self, entropy: Any, convex: bool, solution: Any) -> list[str]:
        """What is wrong with a solution; ``convex`` where its problem has but one optimum.

        ``entropy`` says what the solution optimises: "piecewise", "camel0", "bethe", "exact", "pseudolikelihood",
        "piecewise-pseudolikelihood", or the counting numbers of each instance.
        """
        weights = np.asarray(solution.weights)
        if not (np.isfinite(weights).all() and np.isfinite(solution.objective)):
            return [f"{solution.status.name} with weights {weights[:5]} and objective {solution.objective}"]
        data, shown = self._data(entropy)
        graphs = self._graphs(entropy, data)
        pieces = conditionals(data, entropy.startswith("piece")) if str(entropy).endswith("likelihood") else None
        found = []
        if self.prior == (None, 0.0):
            parts = pieces or (joined(data) if entropy == "exact" else (data, graphs))
            found += self._existence(parts, convex, solution)
        if pieces is not None:
            return found + self._gap(pieces[0], softmax_tables(pieces[0], weights), solution)
        tables = [[np.ravel(solution.beliefs[m][i]) for i in kept] for m, kept in enumerate(shown)]
        ragged = [problem for each in tables for problem in distributions(each, "belief")]
        if ragged:
            return found + ragged
        found += self._gap(data, tables, solution)
        if entropy == "exact":
            return found + self._exact(tables, solution)
        return found + (self._stationary(data, graphs, tables, solution, entropy) if solution.converged else [])

    def full_tables(self, solution: Any) -> list[str]:
        """What is wrong with a solution of learners for full tables, beyond :meth:`problems`.

        Beliefs of learned clusters are the observed marginals, at least nearly where those lie on the boundary; where
        propagation is exact, so are the marginals by enumeration.
        """
        (seen,) = self.data
        model, word = seen.model, solution.status.name
        if word not in ("CONVERGED", "UNBOUNDED"):
            return []
        weights = np.asarray(solution.weights)
        beliefs = [np.ravel(table) for table in solution.beliefs[0]]
        exact = enumerate_model(model, weights, {}) if is_forest(model, self.edges[0]) else None
        limit = self.tolerance + 10 * self.rough
        found = []
        for i, scope in enumerate(model.clusters):
            if not model.features[i].any():
                continue
            index = cluster_state_index(model.cardinalities, scope, seen.assignments)
            observed = np.bincount(index, minlength=len(model.features[i])) / len(index)
            off = float(np.abs(beliefs[i] - observed).max())
            if off > limit:
                found.append(f"{word}, but beliefs of cluster {i} are {off:.2e} from the data")
            if (
                exact is not None
                and word == "CONVERGED"
                and far(np.abs(exact.clusters[i] - observed).max(), 0.0, limit)
            ):
                found.append(
                    f"marginals of cluster {i} by enumeration: {exact.clusters[i][:4]}, in the data {observed[:4]}"
                )
        return found

    def without_beliefs(self, entropy: Any, convex: bool, solution: Any, whole: Any) -> list[str]:
        """What is wrong with a solution from a folder, which has no beliefs; ``whole`` is the same from memory."""
        weights = np.asarray(solution.weights)
        if not (np.isfinite(weights).all() and np.isfinite(solution.objective)):
            return [f"{solution.status.name} with weights {weights[:5]} and objective {solution.objective}"]
        data, _ = self._data(entropy)
        found = []
        if self.prior == (None, 0.0):
            found += self._existence(
                joined(data) if entropy == "exact" else (data, self._graphs(entropy, data)), convex, solution
            )
        if not solution.converged:
            return found
        if entropy == "piecewise":
            found += self._gap(data, softmax_tables(data, weights), solution)
        elif entropy in ("bethe", "exact") and all(map(is_forest, [seen.model for seen in data], self.edges)):
            truths = [enumerate_model(seen.model, weights, {}) for seen in data]
            # Beliefs of a relinearised dual are right to the tolerance, hence moments to that times the features.
            limit = self.sums * (self.largest if entropy == "bethe" else 1.0)
            clusters = [truth.clusters for truth in truths if truth]
            gap = breach(reference.expected_features(data, clusters) - feature_sums(data), weights, *self.prior)
            if not gap <= limit:
                found.append(f"CONVERGED, by enumeration with a moment gap of {gap:.2e}; limit {limit:.0e}")
            value = self._constants(solution) + sum(truth.log_partition for truth in truths if truth)
            if far(solution.objective, value, limit * (10 + float(np.abs(weights).sum())) + 1e-7 * abs(value)):
                found.append(f"objective {solution.objective!r}, by enumeration {value!r}")
        if convex and whole.converged:
            slack = self.sums * (10 + float(np.abs(weights - whole.weights).sum())) + 1e-9 * abs(whole.objective)
            if far(solution.objective, whole.objective, slack):
                found.append(f"objective {solution.objective!r}, from memory {whole.objective!r}")
            variance = self.prior[0]
            if variance is not None:
                off = float(np.abs(weights - whole.weights).max())
                if off > 2 * variance * self.sums * np.sqrt(weights.size):
                    found.append(f"weights are {off:.2e} from those learned from memory")
        return found

    def _data(self, entropy: Any) -> tuple[list[Observed], list[list[int]]]:
        """Where node scores are absorbed, the pieces of learning without sepset entropies are other ones."""
        whole = [list(range(len(seen.model.clusters))) for seen in self.data]
        if self.node_factors == "clusters" or entropy not in ("piecewise", "camel0", "piecewise-pseudolikelihood"):
            return self.data, whole
        first_only = self.node_factors == "first-edge" and entropy != "piecewise-pseudolikelihood"
        moved = [absorbed(seen.model, first_only) for seen in self.data]
        data = [Observed(model, seen.assignments) for (model, _), seen in zip(moved, self.data, strict=True)]
        return data, [kept for _, kept in moved]

    def _graphs(self, entropy: Any, data: Sequence[Observed]) -> list[NumberedGraph]:
        models = [seen.model for seen in data]
        if entropy in ("piecewise", "camel0"):
            consistent = entropy == "camel0"
            return [numbered_graph(m, e, "clusters", consistent) for m, e in zip(models, self.edges, strict=True)]
        numbers = entropy if isinstance(entropy, list) else [None] * len(models)
        return [with_numbers(m, e, n) for m, e, n in zip(models, self.edges, numbers, strict=True)]

    def _existence(self, parts: Parts, convex: bool, solution: Any) -> list[str]:
        word = solution.status.name
        if word == "CONVERGED" and not has_finite_optimum(*parts):
            return ["CONVERGED, but the moments lie on the boundary: no finite weights have them"]
        if word == "UNBOUNDED" and convex and has_finite_optimum(*parts):
            return ["UNBOUNDED, but a finite optimum exists"]
        return []

    def _gap(self, data: Sequence[Observed], tables: Sequence[Sequence[Array]], solution: Any) -> list[str]:
        if not solution.converged:
            return []
        slope = reference.expected_features(data, tables) - feature_sums(data)
        found = breach(slope, np.asarray(solution.weights), *self.prior)
        if not found <= self.sums:
            return [
                f"CONVERGED with a moment gap of {found:.2e} (told: {solution.moment_gap:.2e}); limit {self.sums:.0e}"
            ]
        if far(solution.moment_gap, found, self.sums):
            return [f"moment_gap {solution.moment_gap:.3e}, recomputed {found:.3e}"]
        return []

    def _constants(self, solution: Any) -> float:
        """The part of the objective that does not depend on beliefs."""
        variance, l1 = self.prior
        weights = np.asarray(solution.weights)
        total = l1 * float(np.abs(weights).sum()) - float(weights @ feature_sums(self.data)) - base_sum(self.data)
        return total if variance is None else total + float(weights @ weights) / (2 * variance)

    def _stationary(
        self,
        data: Sequence[Observed],
        graphs: Sequence[NumberedGraph],
        tables: list[list[Array]],
        solution: Any,
        entropy: Any,
    ) -> list[str]:
        found = []
        weights = np.asarray(solution.weights)
        value = self._constants(solution)
        for m, (seen, graph) in enumerate(zip(data, graphs, strict=True)):
            model = seen.model
            full = [*tables[m], *_appended(model, graph, tables[m])]
            gap = reference.violation(model, graph, full)
            if gap > self.tolerance + self.rough:
                found.append(f"[{m}] CONVERGED, but clusters disagree by {gap:.2e}; limit {self.tolerance:.0e}")
            form = form_residual(model, graph, full, weights)
            if form > self.tolerance + 100 * self.rough:
                found.append(f"[{m}] CONVERGED, but beliefs are {form:.2e} from stationary; limit {self.tolerance:.0e}")
            scores = scores_of(model, graph, weights)
            value += len(seen.assignments) * variational(model, graph, full, scores, {})
        slack = self.sums * (10 + float(np.abs(weights).sum()) + self.scale) + 1e-7 * abs(value)
        if entropy != "bethe" and far(solution.objective, value, slack):
            found.append(f"objective {solution.objective!r}, recomputed {value!r}")
        return found

    def _exact(self, tables: list[list[Array]], solution: Any) -> list[str]:
        found = []
        weights = np.asarray(solution.weights)
        value = self._constants(solution)
        truths = []
        for m, seen in enumerate(self.data):
            truth = enumerate_model(seen.model, weights, {})
            assert truth is not None
            truths.append(truth.clusters)
            value += len(seen.assignments) * truth.log_partition
            off = largest_difference(tables[m], truth.clusters)
            if off > 1e-7 + 10 * self.rough:
                found.append(f"[{m}] beliefs of exact learning are off by {off:.2e}")
        if far(solution.objective, value, self.sums + 1e-9 * (1 + abs(value))):
            found.append(f"objective {solution.objective!r}, by enumeration {value!r}")
        return found + self._gap(self.data, truths, solution)


def _appended(model: DenseModel, graph: NumberedGraph, tables: Sequence[Array]) -> list[Array]:
    """Tables of appended hubs: what a neighbour has; uniform for a variable in no cluster."""
    found = []
    for hub in range(len(model.clusters), len(graph.scopes)):
        (v,) = graph.scopes[hub]
        around = [i for i, j, _ in graph.edges if j == hub]
        if around:
            found.append(marginal(model.cardinalities, graph.scopes[around[0]], tables[around[0]], (v,)))
        else:
            found.append(np.full(model.cardinalities[v], 1 / model.cardinalities[v]))
    return found
