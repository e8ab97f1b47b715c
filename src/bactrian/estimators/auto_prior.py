"""The default prior, chosen by how well known labels predict held-out ones.

Given the true labels of its neighbours, the label of a node is a logistic regression on its features and on those
labels (Besag's conditionals; The Statistician 24(3), 1975), with the weights of the model,

    log p(y_i | y of the neighbours, x_i) = w[y_i] . x_i + sum_j t_ij[y_i, y_j] - log of the sum of exp over y_i

whose loss on held-out labels costs no messages. Of at most 10,000 labels, two thirds are learned from and a third is
held out, three times unless 200 graphs, or nodes of one, are a third, each fit from the weights of the last, and a
variance is walked up or down in half decades as long as the loss falls:

1. the variance of scores of nodes, s, by their features alone;
2. that of each kind of edges, given s; of chains and other trees by the loss of exact inference, where neighbours are
   held out as well: beside true neighbours tables are too sure;
3. s once more, now beside edges. Without neighbours weights are as large as they can be of use, and beside true
   neighbours, who leave less to say, smaller differences count; what is learned lies between, so the geometric mean of
   both is taken.

The variance of weights is s over the mean squared norm of features (of edges, over that of theirs), so that units do
not matter. A pull to the variances that very few labels get, of three nats a decade away, keeps noise from choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.estimators.held_out import log_losses
from bactrian.estimators.pairwise import is_forest
from bactrian.estimators.priors import VARIANCE, graph_blocks, variances
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import BundledRows, Inputs
from bactrian.graphs.ragged import pointer
from bactrian.graphs.scores import TiedTable
from bactrian.inference.infer import graph_marginals
from bactrian.parallel.threads import Deadline, Workers, single_threaded_blas
from bactrian.solvers.lbfgs import Memory, Step, minimise

#: Variance of scores of a node, and of an edge, where too few labels are known to choose one.
NODES, EDGES = 30.0, 1.0
#: Labels that are looked at, parts into which they are divided, how few are too few for that, and graphs (or nodes of
#: one) of a part that are enough to look at it alone.
MOST, _FOLDS, _LEAST, _ENOUGH = 10_000, 3, 12, 200
#: Range of variances of scores.
_NODE_RANGE, _EDGE_RANGE = (0.03, 3e4), (0.01, 10.0)
#: Nats that a decade away from the usual variance costs, two decades four times that.
_PULL = 3.0
#: The part of ``max_seconds`` that it may take.
_SHARE = 0.2
#: The part of its objective, or nats of a label, that a fit must gain in an iteration to go on, and iterations at most.
_GAIN, _LEAST_GAIN, _ITERATIONS = 1e-3, 2e-4, 60


def walked(loss: Callable[[float], float], start: float, usual: float, limits: tuple[float, float]) -> float:
    """The variance at which a loss, in nats, is least, by steps of half decades, and a parabola through the last three.

    >>> round(walked(lambda v: 400.0 * np.log10(v / 2.0) ** 2, 30.0, 30.0, (0.01, 1e3)), 1)
    2.0
    """

    @cache
    def at(step: int) -> float:
        return loss(start * 10.0 ** (step / 2)) + _PULL * np.log10(start / usual * 10.0 ** (step / 2)) ** 2

    low, high = (int(np.rint(2 * np.log10(limit / start))) for limit in limits)
    best = 0
    for way in (-1, 1):
        while low <= best + way <= high and at(best + way) < at(best):
            best += way
    if not low < best < high:
        return float(start * 10.0 ** (best / 2))
    below, here, above = at(best - 1), at(best), at(best + 1)
    bend = below - 2.0 * here + above
    return float(start * 10.0 ** ((best + (0.5 * (below - above) / bend if bend > 0.0 else 0.0)) / 2))


def auto_prior(estimator: Any, codec: Any, data: GraphData, share: float = 1.0) -> dict[str, float] | None:
    """What ``prior_variance="auto"`` stands for, where it is given; weights of nodes have this ``share`` of it."""
    if not (isinstance(estimator.prior_variance, str) and estimator.prior_variance == "auto"):
        return None
    seconds = prior_seconds(estimator.max_seconds)
    found = chosen_prior(data, codec.block_names, codec.n_features, estimator.n_threads, seconds)
    return {**found, codec.block_names[0]: float(share * found[codec.block_names[0]])}


def prior_seconds(max_seconds: float | None) -> float | None:
    """The time that choosing may take."""
    return None if max_seconds is None else _SHARE * max_seconds


def chosen_prior(
    data: GraphData, names: Sequence[str], n_features: int, n_threads: int | None = None, seconds: float | None = None
) -> dict[str, float]:
    """Variances by name; ``names`` are those of the nodes' weights and of the tables of each type of edges.

    Inputs behind the first ``n_features``, which are 1, are the block ``"intercept"``.
    """
    data = sampled(data)
    squares = data.mean_squares(n_features)
    units = {names[0]: squares[0]}
    for name, square in zip(names[1:], squares[1:], strict=True):
        units[name] = max(square, units.get(name, 0.0))
    found = dict.fromkeys(units, EDGES) | {names[0]: NODES}

    def prior(scores: dict[str, float]) -> dict[str, float]:
        return {name: float(scores[name] / unit) for name, unit in units.items()} | {"intercept": VARIANCE}

    if np.count_nonzero(data.known) >= _LEAST:
        blocks, deadline = graph_blocks(data, names, n_features), Deadline(seconds)
        trial = Trial(data, lambda scores: variances(prior(scores), blocks), Workers(n_threads), deadline)
        with single_threaded_blas():
            chosen = _chosen(trial, found, names[0])
        found = found if deadline.has_passed else chosen
    has_intercept = data.scores.inputs.shape[1] > n_features
    return {name: value for name, value in prior(found).items() if has_intercept or name != "intercept"}


def weights_beside(
    data: GraphData,
    names: Sequence[str],
    n_features: int,
    prior: dict[str, float],
    n_threads: int | None,
    deadline: Deadline,
    *,
    edges: bool,
) -> list[tuple[Floats, Ints]]:
    """Weights of such conditionals, or of nodes alone, from parts of the labels, and nodes that each did not see."""
    blocks = graph_blocks(data, names, n_features)
    trial = Trial(data, lambda _: variances(prior, blocks), Workers(n_threads), deadline)
    with single_threaded_blas():
        trial.loss({}, edges=edges)
    return [(trial.weights(f), held_out) for f, held_out in enumerate(trial.held_out)]


def _chosen(trial: Trial, usual: dict[str, float], nodes: str) -> dict[str, float]:
    """Variances of scores, walked to from the usual ones."""
    found = dict(usual)

    def walk(name: str, limits: tuple[float, float], **how: bool) -> float:
        return walked(lambda v: trial.loss({**found, name: v}, **how), found[name], usual[name], limits)

    alone = found[nodes] = walk(nodes, _NODE_RANGE, edges=False)
    if trial.has_edges:
        for name in usual:
            found[name] = found[name] if name == nodes else walk(name, _EDGE_RANGE, edges=True, inferred=True)
        found[nodes] = (alone * walk(nodes, _NODE_RANGE, edges=True)) ** 0.5
    return found


def sampled(data: GraphData) -> GraphData:
    """Whole graphs with labels that are known, in their order, of at most 10,000 nodes unless two have more."""
    sizes = np.diff(pointer(data.known)[data.node_pointer])
    chosen = sampled_places(sizes)
    if chosen.size == sizes.size:
        return data
    return data.subset(np.repeat(np.isin(np.arange(sizes.size), chosen), np.diff(data.node_pointer)))


def sampled_places(sizes: Ints) -> Ints:
    """Which graphs, of these numbers of known labels, make up a sample: drawn at random, but always the same."""
    order = np.random.default_rng(0).permutation(np.flatnonzero(sizes > 0))
    n = int((np.cumsum(sizes[order]) <= MOST).sum())
    return np.sort(order[: max(2, n)])


# --- fits to parts of the labels ---


@dataclass(frozen=True)
class _Edges:
    """Edges of a type that have labels at both ends, as seen from either."""

    table: TiedTable
    inputs: Any  #: rows (n_edges, n_inputs), or None
    at: Ints  #: (2, n_edges) places of the ends among the nodes, -1 for others
    labels: Ints  #: (2, n_edges) of the ends


class Conditionals:
    """Sum over nodes of - log p(label | features, labels of neighbours), as a function of the weights.

    ``used`` names the columns of ``rows`` among the features of the model; the others are 0.
    """

    def __init__(
        self, rows: Any, labels: Ints, weights: Floats, edges: Sequence[_Edges], n_labels: int, workers: Workers
    ) -> None:
        self._inputs, self._labels, self.weights, self._workers = Inputs(rows), labels, weights, workers
        self._edges, self._k, self._nodes = edges, n_labels, np.arange(labels.size)
        self._rows = [None if kind.inputs is None else Inputs(kind.inputs) for kind in edges]
        sizes = [1 if rows is None else rows.shape[1] for rows in self._rows]
        tied = [kind.table.n_tied * size for kind, size in zip(edges, sizes, strict=True)]
        self.bounds = pointer([self._inputs.shape[1] * n_labels, *tied])
        shape = labels.size, n_labels
        #: of every type, from either end: edges of a node, and labels at their other ends, counted (n_nodes, n_labels)
        self._there = [[np.flatnonzero(at >= 0) for at in kind.at] for kind in edges]
        self._counted = [[np.zeros(shape), np.zeros(shape)] for _ in edges]
        for kind, there, counted in zip(edges, self._there, self._counted, strict=True):
            for end in (0, 1):
                np.add.at(counted[end], (kind.at[end][there[end]], kind.labels[1 - end][there[end]]), 1.0)

    def _log_probabilities(self, x: Floats) -> Floats:
        """Of each label (n_labels, n_nodes)."""
        k = self._k
        found = np.empty((self._labels.size, k))
        self._inputs.times(x[: self.bounds[1]].reshape(-1, k), found, self._workers)
        for t, (kind, rows) in enumerate(zip(self._edges, self._rows, strict=True)):
            part = x[self.bounds[t + 1] : self.bounds[t + 2]].reshape(-1, kind.table.n_tied)
            if rows is None:
                table = kind.table.expand(part).reshape(k, k)
                found += self._counted[t][0] @ table.T + self._counted[t][1] @ table
                continue
            product = np.empty((rows.shape[0], kind.table.n_tied))
            rows.times(part, product, self._workers)
            tables = kind.table.expand(product).reshape(-1, k, k)
            for end, there in enumerate(self._there[t]):
                other = kind.labels[1 - end][there]
                np.add.at(found, kind.at[end][there], tables[there, other] if end else tables[there, :, other])
        logs = np.ascontiguousarray(found.T)  # reductions over few labels are fast in this order
        logs -= logs.max(axis=0)
        logs -= np.log(np.exp(logs).sum(axis=0))
        return logs

    def loss(self, x: Floats) -> float:
        """The sum."""
        return -float(self.weights @ self._log_probabilities(x)[self._labels, self._nodes])

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """The sum, and its gradient."""
        logs, k = self._log_probabilities(x), self._k
        value = -float(self.weights @ logs[self._labels, self._nodes])
        np.exp(logs, out=logs)
        logs[self._labels, self._nodes] -= 1.0
        logs *= self.weights
        slopes = np.ascontiguousarray(logs.T)
        gradient = np.empty(x.size)
        self._inputs.transposed_times(slopes, gradient[: self.bounds[1]].reshape(-1, k), self._workers)
        for t, (kind, rows) in enumerate(zip(self._edges, self._rows, strict=True)):
            out = gradient[self.bounds[t + 1] : self.bounds[t + 2]].reshape(-1, kind.table.n_tied)
            if rows is None:
                table = slopes.T @ self._counted[t][0] + self._counted[t][1].T @ slopes
                out[:] = kind.table.reduce(table.reshape(1, k * k))
                continue
            tables = np.zeros((rows.shape[0], k, k))
            for end, there in enumerate(self._there[t]):
                other, at = kind.labels[1 - end][there], kind.at[end][there]
                if end:
                    tables[there, other] += slopes[at]
                else:
                    tables[there, :, other] += slopes[at]
            rows.transposed_times(kind.table.reduce(tables.reshape(-1, k * k)), out, self._workers)
        return value, gradient


class Trial:
    """Conditionals of parts of the labels to learn from, and of those held out from each."""

    def __init__(
        self, data: GraphData, variances: Callable[[dict[str, float]], Floats], workers: Workers, deadline: Deadline
    ) -> None:
        scores, self._variances, self._deadline, self._workers = data.scores, variances, deadline, workers
        chosen, fold, n_folds = divided(data)
        rows = scores.inputs.rows(chosen)
        rows = rows.multiplied_out() if isinstance(rows, BundledRows) else rows
        squares, counts = Inputs(rows).squares_and_counts()
        used = np.flatnonzero(counts)
        rows, k = rows[:, used], data.n_labels
        own = (used[:, None] * k + np.arange(k)).ravel()
        self._own = np.concatenate([own, np.arange(scores.bounds[1], scores.n_weights)])
        self._n_nodes = own.size
        active = np.ones(scores.n_weights, dtype=bool) if scores.active is None else scores.active
        self._active = active[self._own]
        scale = np.repeat(squares[used] / counts[used], k)
        self._scale = np.concatenate([scale, np.ones(self._own.size - own.size)])
        weights = data.by_node(data.weights)
        nodes = np.flatnonzero(chosen)
        self.has_edges, self._n_weights = False, scores.n_weights
        self.held_out = [nodes[fold == f] for f in range(n_folds)]
        self.folds, self._starts = [], [np.zeros(0)] * n_folds
        graph = data.by_node(np.arange(data.n_graphs))
        parts = [np.isin(graph, graph[held_out]) for held_out in self.held_out]
        whole = sum(np.count_nonzero(part) for part in parts) <= data.n_nodes and is_forest(data.n_nodes, data.edges)
        self._trees = [data.subset(part) for part in parts] if whole else []
        for f in range(n_folds):
            sides = []
            for part in (fold != f, fold == f):
                place = np.full(data.n_nodes, -1)
                place[nodes[part]] = np.arange(int(part.sum()))
                edges = [self._edges_at(data, t, place) for t in range(len(scores.types))]
                self.has_edges |= any(kind.at.size for kind in edges)
                given = rows[np.flatnonzero(part)], data.truth[nodes[part]], weights[nodes[part]]
                sides.append([Conditionals(*given, some, k, workers) for some in ([], edges)])
            self.folds.append(sides)

    @staticmethod
    def _edges_at(data: GraphData, t: int, place: Ints) -> _Edges:
        kind, pairs = data.scores.types[t], data.edges[data.edge_types == t]
        used = data.known[pairs].all(axis=1) & (place[pairs] >= 0).any(axis=1)
        inputs = None if kind.inputs is None else kind.inputs.rows(used)
        return _Edges(kind.table, inputs, place[pairs[used]].T, data.truth[pairs[used]].T)

    def weights(self, fold: int) -> Floats:
        """All weights, as they were last learned beside a part."""
        found = np.zeros(self._n_weights)
        found[self._own[: self._starts[fold].size]] = self._starts[fold]
        return found

    def loss(self, scores: dict[str, float], *, edges: bool, inferred: bool = False) -> float:
        """The loss of what is held out at variances of scores, without edges or with; fits start where the last did.

        Where ``inferred``, neighbours' labels are not known but inferred, if whole trees are held out.
        """
        size = self._own.size if edges else self._n_nodes
        precision, total = 1.0 / self._variances(scores)[self._own[:size]], 0.0
        for f, (train, test) in enumerate(self.folds):
            if self._deadline.has_passed:
                return 0.0
            start = np.zeros(size)
            start[: self._starts[f].size] = self._starts[f][:size]
            self._starts[f] = self._fitted(train[edges], precision, start)
            total += self._inferred_loss(f) if inferred and self._trees else test[edges].loss(self._starts[f])
        return total

    def _inferred_loss(self, fold: int) -> float:
        trees = self._trees[fold]
        found = graph_marginals(trees, self.weights(fold), "exact", n_threads=self._workers.n_threads).nodes
        return float(trees.by_node(trees.weights)[trees.known] @ log_losses(found, trees.truth))

    def _fitted(self, train: Conditionals, precision: Floats, start: Floats) -> Floats:
        active, last, least = self._active[: start.size], np.inf, _LEAST_GAIN * float(train.weights.sum())

        def value_and_gradient(x: Floats) -> tuple[float, Floats]:
            value, gradient = train.value_and_gradient(x)
            gradient += precision * x
            gradient *= active
            return value + 0.5 * float(x @ (precision * x)), gradient

        def settled(step: Step) -> bool:
            nonlocal last
            gain, last = last - step.value, step.value
            return gain < max(_GAIN * step.value, least)

        units = (self._scale[: start.size] + precision / max(1.0, float(train.weights.sum()))) ** -0.5
        found = minimise(
            value_and_gradient, start, tolerance=0.0, relative=1e-3, max_iterations=_ITERATIONS,
            memory=Memory(5, start.size), unit=units, callback=settled, interrupt=lambda: self._deadline.has_passed,
        )  # fmt: skip
        return found.x


def divided(data: GraphData) -> tuple[Bools, Ints, int]:
    """The labels that are looked at, the part of each, and how many parts to hold out in turn.

    Parts are of whole graphs where there are many, else of nodes.
    """
    rng, known = np.random.default_rng(0), np.flatnonzero(data.known)
    graph = data.by_node(np.arange(data.n_graphs))
    used = np.unique(graph[known])
    whole = used.size >= 2 * _FOLDS
    if whole:
        part = np.full(data.n_graphs, -1)
        part[used] = rng.permutation(used.size) % _FOLDS
        fold = part[graph[known]]
    else:
        known = np.sort(rng.permutation(known)[:MOST])
        fold = rng.permutation(known.size) % _FOLDS
    chosen = np.zeros(data.n_nodes, dtype=bool)
    chosen[known] = True
    return chosen, fold, 1 if (used.size if whole else known.size) >= _FOLDS * _ENOUGH else _FOLDS
