"""Judges of results: enumeration, linear programs and recomputed gaps; nothing here imports the library.

A judge returns the problems that it found, in words; none means that the result is right as far as it can tell. What a
method claims decides what is asked of it: a result that says ``converged`` must be a stationary point of its own free
energy, consistent, with the value that it reports; a bound must bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
from oracle import (
    Array,
    DenseModel,
    agrees,
    cluster_scores,
    joint_scores,
    marginal,
    n_states,
    sub_index,
)
from reference import EdgeSpec, NumberedGraph, numbered_graph
from scipy.optimize import linprog
from scipy.sparse import bmat, coo_array, csr_array, eye_array
from scipy.special import logsumexp, xlogy

EPS = float(np.finfo(float).eps)
#: Beliefs below this take no part in conditions on logarithms: a tolerance on beliefs says nothing of them.
SEEN = 1e-5

Evidence = Mapping[int, int]


# --- free energies ---


def allowed_states(model: DenseModel, graph: NumberedGraph, evidence: Evidence) -> list[np.ndarray]:
    """Per cluster of the graph, the states that neither a score of -inf nor the evidence rules out."""
    masks = []
    for i, scope in enumerate(graph.scopes):
        mask = np.ones(n_states(model.cardinalities, scope), dtype=bool)
        if i < len(model.clusters):
            mask &= model.base(i) > -np.inf
        for axis, variable in enumerate(scope):
            if variable in evidence:
                mask &= sub_index(model.cardinalities, scope, (scope[axis],)) == evidence[variable]
        masks.append(mask)
    return masks


def scores_of(model: DenseModel, graph: NumberedGraph, weights: Array) -> list[Array]:
    """Scores of all clusters of the graph; appended hubs have none."""
    given = cluster_scores(model, weights)
    return given + [np.zeros(n_states(model.cardinalities, scope)) for scope in graph.scopes[len(given) :]]


def left_out(model: DenseModel, graph: NumberedGraph, evidence: Evidence) -> float:
    """log k of the variables in no cluster of the graph that were not observed."""
    covered = {v for scope in graph.scopes for v in scope}
    free = [k for v, k in enumerate(model.cardinalities) if v not in covered and v not in evidence]
    return float(np.log(free).sum()) if free else 0.0


def variational(
    model: DenseModel, graph: NumberedGraph, tables: Sequence[Array], scores: Sequence[Array], evidence: Evidence
) -> float:
    """Scores expected plus the entropy of the graph's numbers; minus a free energy."""
    total = left_out(model, graph, evidence)
    for table, theta, number in zip(tables, scores, graph.cluster_numbers, strict=True):
        seen = table > 0
        total += float(table[seen] @ theta[seen]) - number * float(xlogy(table, table).sum())
    for (i, _, sepset), number in zip(graph.edges, graph.sepset_numbers, strict=True):
        shared = marginal(model.cardinalities, graph.scopes[i], tables[i], sepset)
        total += number * float(xlogy(shared, shared).sum())
    return total


def slopes(model: DenseModel, graph: NumberedGraph, tables: Sequence[Array], scores: Sequence[Array]) -> list[Array]:
    """Gradient of :func:`variational`, with the logarithms of small beliefs cut off."""
    found = []
    for table, theta, number in zip(tables, scores, graph.cluster_numbers, strict=True):
        found.append(theta - number * (1 + np.log(np.maximum(table, SEEN))))
    for (i, _, sepset), number in zip(graph.edges, graph.sepset_numbers, strict=True):
        shared = marginal(model.cardinalities, graph.scopes[i], tables[i], sepset)
        index = sub_index(model.cardinalities, graph.scopes[i], sepset)
        found[i] = found[i] + number * (1 + np.log(np.maximum(shared, SEEN)))[index]
    return found


# --- the local polytope ---


@dataclass(frozen=True)
class Polytope:
    """Tables that are normalised and agree on sepsets: equalities @ rows = right, rows >= 0, zero where forbidden."""

    equalities: csr_array
    right: Array
    allowed: np.ndarray


def polytope(models: Sequence[DenseModel], graphs: Sequence[NumberedGraph], allowed: Sequence[Any]) -> Polytope:
    """The local polytope of all instances, their tables stacked."""
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    values: list[np.ndarray] = []
    right: list[float] = []
    offset = 0
    for model, graph in zip(models, graphs, strict=True):
        sizes = [n_states(model.cardinalities, scope) for scope in graph.scopes]
        starts = offset + np.concatenate([[0], np.cumsum(sizes)])
        for start, size in zip(starts, sizes, strict=False):
            rows.append(np.full(size, len(right)))
            columns.append(start + np.arange(size))
            values.append(np.ones(size))
            right.append(1.0)
        for i, j, sepset in graph.edges:
            for cluster, sign in ((i, 1.0), (j, -1.0)):
                index = sub_index(model.cardinalities, graph.scopes[cluster], sepset)
                rows.append(len(right) + index)
                columns.append(starts[cluster] + np.arange(len(index)))
                values.append(np.full(len(index), sign))
            right += [0.0] * n_states(model.cardinalities, sepset)
        offset = int(starts[-1])
    flat = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    mask = np.concatenate([np.concatenate(list(masks)) for masks in allowed])
    return Polytope(coo_array(flat, shape=(len(right), offset)).tocsr(), np.array(right), mask)


def room_to_rise(space: Polytope, slope: Array, point: Array) -> float:
    """max over the polytope of slope . (x - point): 0 at a stationary point, a bound on what is missing if concave."""
    slope = np.where(space.allowed, slope, 0.0)
    scale = max(1.0, float(np.abs(slope).max()))
    bounds = np.stack([np.zeros(len(slope)), space.allowed.astype(float)], axis=1)
    solved = linprog(-slope / scale, A_eq=space.equalities, b_eq=space.right, bounds=bounds, method="highs")
    if solved.status == 2:
        return -np.inf  # no locally consistent tables at all
    assert solved.success, solved.message
    return float(-solved.fun) * scale - float(slope @ point)


def support(space: Polytope, extra: Any = None, target: Array | None = None) -> np.ndarray | None:
    """Entries that are positive somewhere in the polytope, with ``extra @ x = target`` if given; None if it is empty.

    Over the cone of the polytope (x scaled by t >= 1) maximise how many entries reach 1: some point of the relative
    interior, scaled up, has them all.
    """
    matrix, right = space.equalities, space.right
    if extra is not None:
        matrix, right = bmat([[matrix], [csr_array(extra)]]).tocsr(), np.concatenate([right, target])
    n = matrix.shape[1]
    zeros = csr_array((matrix.shape[0], n))
    equal = bmat([[matrix, zeros, csr_array(-right[:, None])]]).tocsr()
    below = bmat([[-eye_array(n), eye_array(n), csr_array((n, 1))]]).tocsr()
    upper = np.where(space.allowed, np.inf, 0.0)
    bounds = [(0.0, u) for u in upper] + [(0.0, 1.0)] * n + [(1.0, None)]
    cost = np.concatenate([np.zeros(n), -np.ones(n), [0.0]])
    solved = linprog(cost, A_ub=below, b_ub=np.zeros(n), A_eq=equal, b_eq=np.zeros(len(right)), bounds=bounds)
    if solved.status == 2:
        return None
    assert solved.success, solved.message
    found: np.ndarray = solved.x[n : 2 * n] > 0.5
    return found


def form_residual(model: DenseModel, graph: NumberedGraph, tables: Sequence[Array], weights: Array) -> float:
    """How far beliefs are, in probability, from kappa log pi = theta + multipliers + lambda log mu + constants."""
    left = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for table, theta, number in zip(tables, scores_of(model, graph, weights), graph.cluster_numbers, strict=True):
            left.append(theta - number * np.log(table))
        for (i, _, sepset), number in zip(graph.edges, graph.sepset_numbers, strict=True):
            shared = marginal(model.cardinalities, graph.scopes[i], tables[i], sepset)
            left[i] = left[i] + number * np.log(shared)[sub_index(model.cardinalities, graph.scopes[i], sepset)]
    space = polytope([model], [graph], [[np.ones(len(table), dtype=bool) for table in tables]])
    rows, target = np.concatenate(tables), np.concatenate(left)
    numbers = np.repeat(graph.cluster_numbers, [len(table) for table in tables])
    seen = (rows > SEEN) & np.isfinite(target)
    design, weight = space.equalities.toarray().T[seen], np.sqrt(rows[seen])
    fitted = np.linalg.lstsq(design * weight[:, None], target[seen] * weight, rcond=1e-13)[0]
    off = (target[seen] - design @ fitted) / np.where(numbers[seen] > 0, numbers[seen], 1.0)
    return float(np.abs(rows[seen] * np.expm1(np.clip(off, -50, 50))).max(initial=0.0))


# --- common checks ---


def distributions(tables: Sequence[Array], what: str) -> list[str]:
    """Whether tables are probabilities."""
    found = []
    for i, table in enumerate(tables):
        if not np.isfinite(table).all() or (table < 0).any() or abs(table.sum() - 1) > 1e-6:
            found.append(f"{what} {i} is no distribution: {np.ravel(table)[:6]}, sum {table.sum()}")
    return found


def far(found: float, expected: float, tolerance: float) -> bool:
    """Whether two numbers differ by more than the tolerance; NaN differs from everything."""
    return not abs(found - expected) <= tolerance


def largest_difference(one: Sequence[Array], other: Sequence[Array]) -> float:
    return max((float(np.abs(np.ravel(a) - np.ravel(b)).max()) for a, b in zip(one, other, strict=True)), default=0.0)


def is_forest(model: DenseModel, edges: EdgeSpec) -> bool:
    """Whether belief propagation is exact by structure: no cycle among factors and variables, or a cluster tree."""
    n = len(model.cardinalities)
    parent = list(range(n + len(model.clusters)))

    def root(a: int) -> int:
        while parent[a] != a:
            a = parent[a]
        return a

    def join(a: int, b: int) -> bool:
        a, b = root(a), root(b)
        parent[a] = b
        return a != b

    if isinstance(edges, str):
        return all(join(v, n + i) for i, scope in enumerate(model.clusters) if len(scope) > 1 for v in scope)
    if not all(join(n + i, n + j) for i, j, _ in edges):
        return False
    for v in range(n):  # running intersection: the clusters of a variable hang together by sepsets that hold it
        around = [i for i, scope in enumerate(model.clusters) if v in scope]
        links = sum(v in sepset for _, _, sepset in edges)
        if around and links != len(around) - 1:
            return False
    return True


# --- inference ---


@dataclass(frozen=True)
class Truth:
    """What enumeration says of one model with its evidence; None for the rest where no state is possible."""

    log_partition: float
    variables: list[Array]
    clusters: list[Array]
    best: float
    scores: Array


def enumerate_model(model: DenseModel, weights: Array, evidence: Evidence) -> Truth | None:
    """Enumerate all joint states."""
    scores = np.where(agrees(model, evidence), joint_scores(model, weights), -np.inf)
    best = float(scores.max())
    if best == -np.inf:
        return None
    total = float(logsumexp(scores))
    joint = np.exp(scores - total)
    everything = tuple(range(len(model.cardinalities)))
    shape = model.cardinalities
    variables = [marginal(shape, everything, joint, (v,)) for v in everything]
    clusters = [marginal(shape, everything, joint, scope) for scope in model.clusters]
    return Truth(total, variables, clusters, best, scores)


def rounding(scale: float, model: DenseModel) -> float:
    """Error that adding scores of this size may leave in a sum of scores."""
    return 64 * EPS * (1.0 + scale) * (1 + len(model.clusters))


def judge_inference(
    model: DenseModel, edges: EdgeSpec, weights: Array, evidence: Evidence, scale: float, method: str, result: Any
) -> list[str]:
    """Problems of one ``InferenceResult`` of one model."""
    tables = [np.ravel(table) for table in result.clusters]
    variables = [np.asarray(table) for table in result.variables]
    found = distributions(tables, "cluster") + distributions(variables, "variable")
    if found:
        return found
    for v, state in evidence.items():
        if variables[v][state] != 1.0:
            found.append(f"observed variable {v} has {variables[v]} for state {state}")
    truth = enumerate_model(model, weights, evidence)
    rough = rounding(scale, model)
    if truth is None:
        if method == "exact":
            found.append("exact inference of a model without a possible state")
        return found
    if method == "exact":
        if not result.converged:
            found.append(f"exact has status {result.status!r}")
        return found + _as_exact(result, truth, tables, variables, 1e-8 + rough)
    if method == "gibbs" or not result.converged:
        return found
    if method == "mean-field":
        return found + _mean_field(model, weights, variables, result, truth, 1e-6 + 1e-9 * scale)
    numbers = result.counting_numbers if method in ("trw", "convex") else None
    graph = with_numbers(model, edges, numbers)
    tolerance = 1e-6 + 10 * rough
    scores = scores_of(model, graph, weights)
    value = variational(model, graph, tables, scores, evidence)
    if far(result.log_partition, value, (tolerance + 1e-8 * scale) * (1 + len(tables))):
        found.append(f"log_partition {result.log_partition!r} but the beliefs' is {value!r}")
    gap = reference.violation(model, graph, tables)
    if gap > tolerance:
        found.append(f"converged, but clusters disagree by {gap:.1e} (reported: {result.violation:.1e})")
    if numbers is None and is_forest(model, edges):
        found += _as_exact(result, truth, tables[: len(truth.clusters)], variables, tolerance)
    if method == "trw" and result.log_partition < truth.log_partition - tolerance:
        found.append(f"trw's bound {result.log_partition!r} is below log Z = {truth.log_partition!r}")
    if numbers is None:
        off = form_residual(model, graph, tables, weights)
        if off > 1e-5 + 1000 * rough:
            found.append(f"converged, but the beliefs are {off:.2e} from those of a fixed point")
        return found
    # Logarithms that are cut off only make this rate smaller where the entropy is concave, as it is here.
    space = polytope([model], [graph], [allowed_states(model, graph, evidence)])
    slope = np.concatenate(slopes(model, graph, tables, scores))
    rise = room_to_rise(space, slope, np.concatenate(tables))
    if rise > 1e-2 + 1e-7 * scale + 100 * rough:
        found.append(f"converged, but not at the optimum: the free energy can fall at a rate of {rise:.2e}")
    return found


def with_numbers(model: DenseModel, edges: EdgeSpec, numbers: Any) -> NumberedGraph:
    """The graph with Bethe's counting numbers or given ones."""
    graph = numbered_graph(model, edges)
    if numbers is None:
        return graph
    clusters = np.broadcast_to(numbers.clusters, len(graph.scopes)).tolist()
    sepsets = np.broadcast_to(numbers.sepsets, len(graph.edges)).tolist()
    return NumberedGraph(graph.scopes, graph.edges, clusters, sepsets)


def _as_exact(result: Any, truth: Truth, tables: Sequence[Array], variables: Sequence[Array], tol: float) -> list[str]:
    found = []
    if far(result.log_partition, truth.log_partition, tol * 10):
        found.append(f"log_partition {result.log_partition!r}, by enumeration {truth.log_partition!r}")
    off = largest_difference(variables, truth.variables)
    if off > tol:
        found.append(f"marginals off by {off:.2e}")
    off = largest_difference(tables[: len(truth.clusters)], truth.clusters)
    if off > tol:
        found.append(f"cluster beliefs off by {off:.2e}")
    return found


def _mean_field(
    model: DenseModel, weights: Array, variables: Sequence[Array], result: Any, truth: Truth, tolerance: float
) -> list[str]:
    joint = np.ones(1)
    for belief in variables:
        joint = np.multiply.outer(joint, belief).ravel()
    seen = joint > 0
    value = float(joint[seen] @ joint_scores(model, weights)[seen]) - float(xlogy(joint, joint).sum())
    found = []
    if result.log_partition > truth.log_partition + tolerance:
        found.append(f"mean field's bound {result.log_partition!r} is above log Z = {truth.log_partition!r}")
    if value > -np.inf and far(result.log_partition, value, tolerance * 10):
        found.append(f"log_partition {result.log_partition!r} but the marginals' is {value!r}")
    return found


def judge_decoding(
    model: DenseModel, weights: Array, evidence: Evidence, scale: float, method: str, result: Any
) -> list[str]:
    """Problems of one ``Decoding``."""
    states = np.asarray(result.assignment)
    sizes = np.array(model.cardinalities)
    if states.shape != sizes.shape or (states < 0).any() or (states >= sizes).any():
        return [f"assignment {states} does not fit cardinalities {sizes}"]
    found = [f"observed variable {v} decoded as {states[v]}" for v, state in evidence.items() if states[v] != state]
    truth = enumerate_model(model, weights, evidence)
    if truth is None:
        if method == "exact" or result.score > -np.inf:
            found.append(f"decoded a model without a possible state, with score {result.score}")
        return found
    rough = rounding(scale, model)
    place = int(np.ravel_multi_index(tuple(states), tuple(sizes)))
    score = float(truth.scores[place])
    if score != result.score and far(result.score, score, rough):
        found.append(f"score {result.score!r}, recomputed {score!r}")
    if result.bound is not None and result.bound < truth.best - 1e-9 - 10 * rough:
        found.append(f"bound {result.bound!r} is below the best score {truth.best!r}")
    certain = method == "exact" or result.optimal or (method == "max-product" and is_forest(model, "bethe"))
    if certain and not score >= truth.best - 1e-6 - 10 * rough:
        found.append(f"called optimal with score {score!r}; the best is {truth.best!r}")
    return found
