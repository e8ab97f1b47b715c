"""Dense reference of CAMEL on explicit cluster graphs, for small problems; never imports the library.

The inner problem over weights w and multipliers delta, with g the linearisation (symbols as in the design):

    D(w, delta) = sum_m M_m sum_i kappa_i log sum_c exp((w.f(c) + base(c) + delta.h(c) - g_i(c)) / kappa_i)
                  - w.f_hat - base_hat + |w|^2 / (2 sigma2) + c |w|_1

and the beliefs are the terms of those sums, normalised. Every table of every instance is stacked into one
matrix, a row per (instance, cluster, state) and a column per weight and per (edge, sepset state), so that
D, its gradient and its Hessian are a few lines. h is +1 on an edge's first cluster, -1 on its second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from oracle import (
    Array,
    DenseModel,
    Edge,
    Observed,
    Propagation,
    Scope,
    base_sum,
    cluster_scores,
    cluster_state_index,
    entropy,
    feature_sums,
    largest_change,
    marginal,
    n_states,
    sub_index,
)
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

EdgeSpec = Literal["bethe"] | Sequence[Edge]
Entropy = Literal["bethe", "clusters"]
Beliefs = list[list[Array]]

# The matrices here are small: more than one thread for each product only costs time.
ONE_THREAD = ThreadpoolController()


# --- graphs ---


@dataclass(frozen=True)
class NumberedGraph:
    """Clusters that have a table, edges between them, and counting numbers; given clusters come first."""

    scopes: list[Scope]
    edges: list[Edge]
    cluster_numbers: list[float]
    sepset_numbers: list[float]


def bethe_edges(cardinalities: Sequence[int], clusters: Sequence[Scope]) -> tuple[list[Scope], list[Edge]]:
    """Scopes with featureless hubs appended where needed, and edges (cluster, hub, (variable,)).

    A variable's hub is the first singleton cluster given for it, else a new singleton after the given clusters;
    it is linked to every other cluster that contains the variable.
    """
    scopes = [tuple(cluster) for cluster in clusters]
    hubs = []
    for variable in range(len(cardinalities)):
        if (variable,) in clusters:
            hubs.append(list(clusters).index((variable,)))
        else:
            hubs.append(len(scopes))
            scopes.append((variable,))
    edges: list[Edge] = [
        (i, hub, (variable,))
        for variable, hub in enumerate(hubs)
        for i, cluster in enumerate(clusters)
        if variable in cluster and i != hub
    ]
    return scopes, edges


def without_appended_hubs(n_given: int, edges: Sequence[Edge]) -> list[Edge]:
    """The same constraints without the appended hubs: a star through the first cluster around each of them."""
    kept = [edge for edge in edges if edge[1] < n_given]
    around: dict[int, list[tuple[int, Scope]]] = {}
    for i, hub, sepset in edges:
        if hub >= n_given:
            around.setdefault(hub, []).append((i, sepset))
    for neighbours in around.values():
        first = neighbours[0][0]
        kept += [(first, i, sepset) for i, sepset in neighbours[1:]]
    return kept


def numbered_graph(
    model: DenseModel, edges: EdgeSpec = "bethe", entropy: Entropy = "bethe", consistency: bool = True
) -> NumberedGraph:
    """Counting numbers of an entropy on a graph: Bethe 1 and 1, clusters-only 1 and 0 without appended hubs."""
    given = [tuple(cluster) for cluster in model.clusters]
    if isinstance(edges, str):
        scopes, explicit = bethe_edges(model.cardinalities, given)
        if entropy == "clusters":
            scopes, explicit = given, without_appended_hubs(len(given), explicit)
    else:
        scopes, explicit = given, [(i, j, tuple(sepset)) for i, j, sepset in edges]
    if not consistency:
        explicit = []
    number = 1.0 if entropy == "bethe" else 0.0
    return NumberedGraph(scopes, explicit, [1.0] * len(scopes), [number] * len(explicit))


# --- the inner problem ---


@dataclass(frozen=True)
class InnerProblem:
    """D(w, delta) in stacked form; ``g`` is passed to every method that depends on it."""

    data: Sequence[Observed]
    graphs: Sequence[NumberedGraph]
    prior_variance: float | None
    l1: float
    matrix: Array  # (rows, n_weights + n_multipliers)
    base: Array  # (rows,)
    starts: NDArray[np.int64]  # first row of every table
    lengths: NDArray[np.int64]
    numbers: Array  # kappa of every table
    counts: Array  # M of every table
    target: Array  # (f_hat, 0)
    base_seen: float  # fixed scores of the data
    n_weights: int

    def value_and_gradient(self, point: Array, g: Array) -> tuple[float, Array]:
        """Smooth part of D (without the L1 term) and its gradient."""
        log_sums, beliefs = self._tables(point, g)
        value = float((self.counts * self.numbers) @ log_sums - self.target @ point) - self.base_seen
        gradient = self.matrix.T @ (self._per_row(self.counts) * beliefs) - self.target
        if self.prior_variance is not None:
            weights = point[: self.n_weights]
            value += float(weights @ weights) / (2 * self.prior_variance)
            gradient[: self.n_weights] += weights / self.prior_variance
        return value, gradient

    def hessian(self, point: Array, g: Array) -> Array:
        """Second derivatives of the smooth part."""
        _, beliefs = self._tables(point, g)
        means = np.add.reduceat(self.matrix * beliefs[:, None], self.starts, axis=0)
        centred = self.matrix - np.repeat(means, self.lengths, axis=0)
        scale = beliefs * self._per_row(self.counts / self.numbers)
        total: Array = (centred.T * scale) @ centred
        if self.prior_variance is not None:
            diagonal = np.arange(self.n_weights)
            total[diagonal, diagonal] += 1 / self.prior_variance
        return total

    def objective(self, point: Array, g: Array) -> float:
        """D, with the L1 term."""
        return self.value_and_gradient(point, g)[0] + self.l1 * float(np.abs(point[: self.n_weights]).sum())

    def beliefs(self, point: Array, g: Array) -> Beliefs:
        """Tables by instance and cluster, flat."""
        return self.split(self._tables(point, g)[1])

    def split(self, rows: Array) -> Beliefs:
        """A stacked vector as tables by instance and cluster."""
        tables = iter(np.split(rows, self.starts[1:]))
        return [[next(tables) for _ in graph.scopes] for graph in self.graphs]

    def _per_row(self, per_table: Array) -> Array:
        return np.repeat(per_table, self.lengths)

    def _tables(self, point: Array, g: Array) -> tuple[Array, Array]:
        scores = (self.matrix @ point + self.base - g) / self._per_row(self.numbers)
        tops = np.maximum.reduceat(scores, self.starts)
        exponentials = np.exp(scores - self._per_row(tops))
        sums = np.add.reduceat(exponentials, self.starts)
        return tops + np.log(sums), exponentials / self._per_row(sums)


def inner_problem(
    data: Sequence[Observed],
    graphs: Sequence[NumberedGraph],
    prior_variance: float | None = None,
    l1: float = 0.0,
) -> InnerProblem:
    """Stack all tables of all instances. Generative data is one ``Observed`` with M rows."""
    n_weights = data[0].model.n_weights
    n_multipliers = sum(
        n_states(seen.model.cardinalities, sepset)
        for seen, graph in zip(data, graphs, strict=True)
        for _, _, sepset in graph.edges
    )
    blocks: list[Array] = []
    base: list[Array] = []
    numbers: list[float] = []
    counts: list[float] = []
    column = n_weights
    for seen, graph in zip(data, graphs, strict=True):
        model = seen.model
        first = len(blocks)
        for i, scope in enumerate(graph.scopes):
            block = np.zeros((n_states(model.cardinalities, scope), n_weights + n_multipliers))
            given = i < len(model.clusters)
            if given:
                block[:, :n_weights] = model.features[i]
            blocks.append(block)
            base.append(model.base(i) if given else np.zeros(len(block)))
            numbers.append(graph.cluster_numbers[i])
            counts.append(float(len(seen.assignments)))
        for i, j, sepset in graph.edges:
            for cluster, sign in ((i, 1.0), (j, -1.0)):
                index = sub_index(model.cardinalities, graph.scopes[cluster], sepset)
                blocks[first + cluster][np.arange(len(index)), column + index] += sign
            column += n_states(model.cardinalities, sepset)
    lengths = np.array([len(block) for block in blocks], dtype=np.int64)
    return InnerProblem(
        data=data,
        graphs=graphs,
        prior_variance=prior_variance,
        l1=l1,
        matrix=np.concatenate(blocks),
        base=np.concatenate(base),
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
        lengths=lengths,
        numbers=np.array(numbers),
        counts=np.array(counts),
        target=np.concatenate([feature_sums(data), np.zeros(n_multipliers)]),
        base_seen=base_sum(data),
        n_weights=n_weights,
    )


def solve_inner(problem: InnerProblem, g: Array, start: Array | None = None, tolerance: float = 1e-10) -> Array:
    """The minimiser (w, delta) of D for a fixed linearisation; delta's gauge is left where it falls."""
    point = np.zeros(problem.matrix.shape[1]) if start is None else start
    with ONE_THREAD.limit(limits=1):
        if start is None:
            point = _rough(problem, g, point)
        if problem.l1 == 0.0:
            return _newton(problem, g, point, np.zeros(problem.n_weights), tolerance)
        return _signed_newton(problem, g, point, tolerance)


def _rough(problem: InnerProblem, g: Array, point: Array) -> Array:
    """L-BFGS-B; with L1 over the split w = positive - negative."""
    n = problem.n_weights

    def smooth_objective(x: Array) -> tuple[float, Array]:
        return problem.value_and_gradient(x, g)

    def split_objective(x: Array) -> tuple[float, Array]:
        positive, negative = x[:n], x[n : 2 * n]
        value, gradient = problem.value_and_gradient(np.concatenate([positive - negative, x[2 * n :]]), g)
        by_weight = gradient[:n]
        slopes = np.concatenate([by_weight + problem.l1, problem.l1 - by_weight, gradient[n:]])
        return value + problem.l1 * float(positive.sum() + negative.sum()), slopes

    if problem.l1 == 0.0:
        solution: Array = minimize(smooth_objective, point, jac=True, method="L-BFGS-B").x
        return solution
    x: Array = np.concatenate([np.maximum(point[:n], 0), np.maximum(-point[:n], 0), point[n:]])
    bounds: list[tuple[float | None, None]] = [(0.0, None)] * (2 * n) + [(None, None)] * (len(point) - n)
    split: Array = minimize(split_objective, x, jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-12).x
    return np.concatenate([split[:n] - split[n : 2 * n], split[2 * n :]])


def _newton(
    problem: InnerProblem, g: Array, point: Array, slope: Array, tolerance: float, free: Array | None = None
) -> Array:
    """Damped Newton on D + slope.w over the free columns, with a pseudo-inverse for the gauge."""
    columns = np.arange(len(point)) if free is None else free
    extra = np.concatenate([slope, np.zeros(len(point) - len(slope))])
    scale = max(1.0, float(problem.counts.max()))
    for _ in range(500):
        value, gradient = problem.value_and_gradient(point, g)
        value, gradient = value + float(extra @ point), (gradient + extra)[columns]
        if np.abs(gradient).max(initial=0.0) <= tolerance * scale:
            break
        curvature, directions = np.linalg.eigh(problem.hessian(point, g)[np.ix_(columns, columns)])
        seen = curvature > 1e-13 * curvature.max()
        step = np.zeros(len(point))
        step[columns] = -directions[:, seen] @ ((directions[:, seen].T @ gradient) / curvature[seen])
        decrease = float(gradient @ step[columns])
        length = 1.0
        while length > 1e-6:
            trial = point + length * step
            trial_value = problem.value_and_gradient(trial, g)[0] + float(extra @ trial)
            if trial_value <= value + 1e-4 * length * decrease + 1e-13 * (1 + abs(value)):
                break
            length /= 2
        else:
            break
        point = trial
    return point


def _signed_newton(problem: InnerProblem, g: Array, point: Array, tolerance: float) -> Array:
    """L1: Newton on a guessed set of signs, which is mended until the optimality conditions hold."""
    n, cost = problem.n_weights, problem.l1
    signs = np.where(np.abs(point[:n]) > 1e-7, np.sign(point[:n]), 0.0)
    multipliers = np.arange(n, len(point))
    for _ in range(100):
        point = point.copy()
        point[:n][signs == 0] = 0.0
        free = np.concatenate([np.flatnonzero(signs), multipliers])
        point = _newton(problem, g, point, cost * signs, tolerance, free)
        gradient = problem.value_and_gradient(point, g)[1][:n]
        flipped = (signs != 0) & (np.sign(point[:n]) != signs)
        wanted = (signs == 0) & (np.abs(gradient) > cost * (1 + 1e-9))
        if not flipped.any() and not wanted.any():
            return point
        signs[flipped] = 0.0
        if not flipped.any():
            worst = int(np.argmax(np.where(wanted, np.abs(gradient), 0.0)))
            signs[worst] = -np.sign(gradient[worst])
    raise RuntimeError("the signs of the L1 solution did not settle")


# --- values in the primal ---


def penalty(gap: Array, prior_variance: float | None, l1: float, tolerance: float = 1e-6) -> float:
    """Primal price of a moment gap: Gaussian (sigma2/2) sum max(|gap| - c, 0)^2; a box without a prior."""
    excess = np.maximum(np.abs(gap) - l1, 0)
    if prior_variance is not None:
        return prior_variance / 2 * float(excess @ excess)
    return 0.0 if excess.max(initial=0.0) <= tolerance else float("inf")


def expected_features(data: Sequence[Observed], beliefs: Sequence[Sequence[Array]]) -> Array:
    """E_pi[f] in sums over the data (M times the expectation for M rows), from the given clusters' tables."""
    total = np.zeros(data[0].model.n_weights)
    for seen, tables in zip(data, beliefs, strict=True):
        for i, features in enumerate(seen.model.features):
            total += len(seen.assignments) * np.ravel(tables[i]) @ features
    return total


def primal_value(
    data: Sequence[Observed],
    graphs: Sequence[NumberedGraph],
    beliefs: Sequence[Sequence[Array]],
    prior_variance: float | None = None,
    l1: float = 0.0,
) -> float:
    """M.(approximate entropy + fixed scores) - penalty - fixed scores of the data, with true sepset entropies.

    Needs tables of all clusters of the graphs; sepset marginals are taken from an edge's first cluster. At a fixed
    point this is D up to the constant M.sum(lambda) that the -1 in g carries (``linearisation_constant``).
    """
    total = -base_sum(data)
    for seen, graph, tables in zip(data, graphs, beliefs, strict=True):
        model = seen.model
        value = 0.0
        for i, scope in enumerate(graph.scopes):
            value += graph.cluster_numbers[i] * entropy(np.ravel(tables[i]))
            if i < len(model.clusters):
                value += float(model.base(i) @ np.ravel(tables[i]))
            assert len(np.ravel(tables[i])) == n_states(model.cardinalities, scope)
        for (i, _, sepset), number in zip(graph.edges, graph.sepset_numbers, strict=True):
            value -= number * entropy(marginal(model.cardinalities, graph.scopes[i], tables[i], sepset))
        total += len(seen.assignments) * value
    gap = feature_sums(data) - expected_features(data, beliefs)
    return total - penalty(gap, prior_variance, l1)


def linearisation_constant(data: Sequence[Observed], graphs: Sequence[NumberedGraph]) -> float:
    """M.sum(lambda): by how much D with g = -1 - log(mu) exceeds D with g = -log(mu)."""
    pairs = zip(data, graphs, strict=True)
    return float(sum(len(seen.assignments) * sum(graph.sepset_numbers) for seen, graph in pairs))


def linearised_value(problem: InnerProblem, beliefs: Beliefs, g: Array) -> float:
    """The primal that D is the dual of: M.(sum kappa H - g.pi + fixed scores) - penalty - fixed scores seen."""
    rows = np.concatenate([np.ravel(table) for tables in beliefs for table in tables])
    flat = [table for tables in beliefs for table in tables]
    entropies = np.array([entropy(table) for table in flat])
    linear = float((problem._per_row(problem.counts) * (problem.base - g)) @ rows)
    value = float((problem.counts * problem.numbers) @ entropies) + linear - problem.base_seen
    gap = problem.target[: problem.n_weights] - expected_features(problem.data, beliefs)
    return value - penalty(gap, problem.prior_variance, problem.l1)


# --- the outer loop ---


def relinearise(problem: InnerProblem, beliefs: Beliefs, share: float = 0.5) -> Array:
    """g_i = sum_j a_ij lambda_ij (-1 - log mu_ij), stacked; a = share for an edge's first cluster, the rest second."""
    tables: list[Array] = []
    for seen, graph, current in zip(problem.data, problem.graphs, beliefs, strict=True):
        cardinalities = seen.model.cardinalities
        slopes = [np.zeros(len(table)) for table in current]
        for (i, j, sepset), number in zip(graph.edges, graph.sepset_numbers, strict=True):
            for cluster, part in ((i, share), (j, 1 - share)):
                scope = graph.scopes[cluster]
                sepset_marginal = marginal(cardinalities, scope, current[cluster], sepset)
                index = sub_index(cardinalities, scope, sepset)
                slopes[cluster] += part * number * (-1 - np.log(np.maximum(sepset_marginal, 1e-300)))[index]
        tables += slopes
    return np.concatenate(tables)


@dataclass(frozen=True)
class ReferenceSolution:
    """Result of the reference: weights, tables by instance and cluster, D, and the primal after each solve."""

    weights: Array
    beliefs: Beliefs
    objective: float
    primal_values: list[float]
    converged: bool
    problem: InnerProblem
    graphs: list[NumberedGraph]


def camel(
    data: Sequence[Observed],
    edges: Sequence[EdgeSpec] | None = None,
    *,
    entropy: Entropy = "bethe",
    consistency: bool = True,
    prior_variance: float | None = None,
    l1: float = 0.0,
    share: float = 0.5,
    start: Beliefs | None = None,
    tolerance: float = 1e-10,
    max_relinearisations: int = 3000,
) -> ReferenceSolution:
    """Solve, relinearise, repeat until the largest change of a belief is below the tolerance.

    Piecewise is ``entropy="clusters", consistency=False``; CAMEL(0) is ``entropy="clusters"``. ``edges`` has one entry
    per instance, "bethe" where omitted; ``start`` holds beliefs to linearise around first, flat (g = 0) if ``None``.
    """
    specs: Sequence[EdgeSpec] = ["bethe"] * len(data) if edges is None else edges
    pairs = zip(data, specs, strict=True)
    graphs = [numbered_graph(seen.model, spec, entropy, consistency) for seen, spec in pairs]
    problem = inner_problem(data, graphs, prior_variance, l1)
    g = np.zeros(len(problem.base)) if start is None else relinearise(problem, start, share)
    point: Array | None = None
    beliefs: Beliefs = []
    primal_values: list[float] = []
    converged = False
    for _ in range(max_relinearisations):
        point = solve_inner(problem, g, point)
        previous, beliefs = beliefs, problem.beliefs(point, g)
        primal_values.append(primal_value(data, graphs, beliefs, prior_variance, l1))
        linear = not any(number for graph in graphs for number in graph.sepset_numbers)
        converged = linear or (bool(previous) and _change(previous, beliefs) <= tolerance)
        if converged:
            break
        g = relinearise(problem, beliefs, share)
    assert point is not None
    weights = point[: problem.n_weights]
    return ReferenceSolution(weights, beliefs, problem.objective(point, g), primal_values, converged, problem, graphs)


def _change(before: Beliefs, after: Beliefs) -> float:
    return max(largest_change(a, b) for a, b in zip(before, after, strict=True))


def piecewise(data: Sequence[Observed], prior_variance: float | None = None, l1: float = 0.0) -> ReferenceSolution:
    """Clusters-only entropy, no consistency: independent local log-linear models with shared weights."""
    return camel(data, entropy="clusters", consistency=False, prior_variance=prior_variance, l1=l1)


def camel0(
    data: Sequence[Observed],
    edges: Sequence[EdgeSpec] | None = None,
    prior_variance: float | None = None,
    l1: float = 0.0,
) -> ReferenceSolution:
    """Clusters-only entropy with consistency: one convex solve."""
    return camel(data, edges, entropy="clusters", prior_variance=prior_variance, l1=l1)


def empirical_beliefs(data: Sequence[Observed], graphs: Sequence[NumberedGraph], smoothing: float = 1.0) -> Beliefs:
    """Each instance's own smoothed frequencies on its graph's clusters, a starting point for ``camel``."""
    result: Beliefs = []
    for seen, graph in zip(data, graphs, strict=True):
        cardinalities = seen.model.cardinalities
        rows = len(seen.assignments)
        tables: list[Array] = []
        for scope in graph.scopes:
            size = n_states(cardinalities, scope)
            index = cluster_state_index(cardinalities, scope, seen.assignments)
            counts = np.bincount(index, minlength=size).astype(float)
            tables.append((counts + smoothing / size) / (rows + smoothing))
        result.append(tables)
    return result


# --- certificates for somebody else's beliefs ---


def with_hub_tables(model: DenseModel, graph: NumberedGraph, tables: Sequence[Array]) -> list[Array]:
    """Flat tables of the given clusters, followed by those of appended hubs as marginals of a neighbour."""
    full = [np.ravel(np.asarray(tables[i], dtype=float)) for i in range(len(model.clusters))]
    for hub in range(len(model.clusters), len(graph.scopes)):
        i = next(i for i, j, _ in graph.edges if j == hub)
        full.append(marginal(model.cardinalities, graph.scopes[i], full[i], graph.scopes[hub]))
    return full


def violation(model: DenseModel, graph: NumberedGraph, tables: Sequence[Array]) -> float:
    """Largest disagreement over the edges and their sepset states; tables of all the graph's clusters."""
    worst = 0.0
    for i, j, sepset in graph.edges:
        sides = [marginal(model.cardinalities, graph.scopes[k], tables[k], sepset) for k in (i, j)]
        worst = max(worst, float(np.abs(sides[0] - sides[1]).max()))
    return worst


def form_error(model: DenseModel, graph: NumberedGraph, tables: Sequence[Array], weights: Array) -> float:
    """How far beliefs are from the form kappa log pi = theta + delta.h - g(pi) + constant, in beliefs.

    With consistency this says that they are stationary for their weights: the entropy's slope is matched by the
    scores and some multipliers. For the Bethe entropy those are the fixed points of belief propagation.
    """
    single = inner_problem([Observed(model, np.zeros((1, len(model.cardinalities)), dtype=np.int64))], [graph])
    rows = np.concatenate([np.ravel(table) for table in tables])
    numbers = np.repeat(single.numbers, single.lengths)
    scores = np.concatenate(
        [
            cluster_scores(model, weights)[i] if i < len(model.clusters) else np.zeros(length)
            for i, length in enumerate(single.lengths)
        ]
    )
    g = relinearise(single, [[np.ravel(table) for table in tables]], 0.5)
    target = numbers * np.log(np.maximum(rows, 1e-300)) - scores + g
    constants = np.repeat(np.eye(len(single.lengths)), single.lengths, axis=0)
    design = np.concatenate([single.matrix[:, single.n_weights :], constants], axis=1)
    by_belief = np.sqrt(rows)
    found = np.linalg.lstsq(design * by_belief[:, None], target * by_belief, rcond=None)[0]
    rebuilt = np.exp((design @ found + scores - g) / numbers)
    rebuilt /= np.repeat(np.add.reduceat(rebuilt, single.starts), single.lengths)
    return float(np.abs(rebuilt - rows).max())


def propagation(model: DenseModel, graph: NumberedGraph, weights: Array) -> Propagation:
    """Belief propagation on the graph at given weights; appended hubs have flat potentials."""
    given = cluster_scores(model, weights)
    appended = [np.zeros(n_states(model.cardinalities, scope)) for scope in graph.scopes[len(given) :]]
    return Propagation(model.cardinalities, graph.scopes, given + appended, graph.edges)


def optimality_error(
    data: Sequence[Observed],
    beliefs: Sequence[Sequence[Array]],
    weights: Array,
    prior_variance: float | None = None,
    l1: float = 0.0,
) -> float:
    """Largest breach of the weights' optimality conditions, in sums over the data.

    With slope = E_pi[f] - f_hat + w / sigma2: slope = -c sign(w) where w is not zero, |slope| <= c where it is.
    """
    slope = expected_features(data, beliefs) - feature_sums(data)
    if prior_variance is not None:
        slope = slope + weights / prior_variance
    breach = np.where(weights != 0, np.abs(slope + l1 * np.sign(weights)), np.maximum(np.abs(slope) - l1, 0))
    return float(breach.max())
