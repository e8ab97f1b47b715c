"""The default prior, chosen by how well known labels predict held-out ones.

Given the true labels of its neighbours, the label of a node is a logistic regression on its features and on those
labels (Besag's conditionals; The Statistician 24(3), 1975), with the weights of the model,

    log p(y_i | y of the neighbours, x_i) = w[y_i] . x_i + sum_j t_ij[y_i, y_j] - log of the sum of exp over y_i

whose loss on held-out labels costs no messages. Of at most 10,000 labels, two thirds are learned from and a third is
held out, three times, together, unless a third is 1,000 labels or more. Each fit starts from the last, and a variance
is walked up or down in half decades as long as the loss falls:

1. the variance of scores of nodes, s, by their features alone;
2. that of each kind of edges, given s. On chains and other trees this is learned by the likelihood, and judged by
   exact marginals: beside true neighbours tables are too sure.

More labels bring features of their own, but tables are the same few: where a sample was looked at, their variance is
multiplied by how many times its labels there are, and on trees by the square of that. There a sample asks for .01 to 2
where ten times the labels are predicted best, and their entities found best, at 10 or more.

The variance of weights is s over the mean squared norm of features (of edges, over that of theirs), so that units do
not matter. A pull to the variances that very few labels get, of three nats a decade away, keeps noise from choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.engines.long_memory import make_memory
from bactrian.estimators.pairwise import is_forest
from bactrian.estimators.priors import VARIANCE, graph_blocks, variances
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import BundledRows, Inputs
from bactrian.graphs.packing import pack
from bactrian.graphs.ragged import pointer
from bactrian.graphs.scores import TiedTable
from bactrian.parallel.threads import Context, Deadline, Workers, single_threaded_blas
from bactrian.solvers.lbfgs import Memory, Step, minimise

#: Variance of scores of a node, and of an edge, where too few labels are known to choose one.
NODES, EDGES = 30.0, 1.0
#: Labels that are looked at, parts into which they are divided, how few are too few for that, and labels of a part that
#: are enough to look at it alone.
MOST, _FOLDS, _LEAST, _ENOUGH = 10_000, 3, 12, 1_000
#: Range of variances of scores.
_NODE_RANGE, _EDGE_RANGE = (0.03, 3e4), (0.01, 10.0)
#: Nats that a decade away from the usual variance costs, two decades four times that.
_PULL = 3.0
#: The part of ``max_seconds`` that it may take.
_SHARE = 0.2
#: The part of its objective, or nats of a label, that a fit must gain in an iteration to go on, and iterations at most.
_GAIN, _LEAST_GAIN, _ITERATIONS = 1e-3, 2e-4, 60
#: The log probability below which a label is not judged.
_LEAST_LOG = float(np.log(1e-12))


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
    assert data.labels is not None
    all_labels, data = data.labels, sampled(data)
    assert data.labels is not None
    squares = data.mean_squares(n_features)
    units = {names[0]: squares[0]}
    for name, square in zip(names[1:], squares[1:], strict=True):
        units[name] = max(square, units.get(name, 0.0))
    found = dict.fromkeys(units, EDGES) | {names[0]: NODES}

    def prior(scores: dict[str, float]) -> dict[str, float]:
        return {name: float(scores[name] / unit) for name, unit in units.items()} | {"intercept": VARIANCE}

    if np.count_nonzero(data.labels >= 0) >= _LEAST:
        blocks, deadline = graph_blocks(data, names, n_features), Deadline(seconds)
        trial = Trial(data, lambda scores: variances(prior(scores), blocks), Workers(n_threads), deadline)
        with single_threaded_blas():
            chosen = _chosen(trial, found, names[0])
        found = found if deadline.has_passed else chosen
    has_intercept = data.scores.inputs.shape[1] > n_features
    of_sample = {name: value for name, value in prior(found).items() if has_intercept or name != "intercept"}
    return of_all(of_sample, names[0], data, int(np.count_nonzero(all_labels >= 0)))


def of_all(prior: Mapping[str, float], nodes: str, sample: GraphData, n_known: int) -> dict[str, float]:
    """The prior of data with ``n_known`` known labels, given that of a sample of it."""
    assert sample.labels is not None
    times = float(n_known) / max(1, int(np.count_nonzero(sample.labels >= 0)))
    times = times**2 if is_forest(sample.n_nodes, sample.edges) else times
    return {name: value * (1.0 if name in (nodes, "intercept") else times) for name, value in prior.items()}


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
    return [(trial.weights(f), held_out) for f, held_out in enumerate(trial.conditionals.held_out)]


def _chosen(trial: Trial, usual: dict[str, float], nodes: str) -> dict[str, float]:
    """Variances of scores, walked to from the usual ones."""
    found = dict(usual)

    def walk(name: str, limits: tuple[float, float], *, edges: bool) -> float:
        return walked(lambda v: trial.loss({**found, name: v}, edges=edges), found[name], usual[name], limits)

    found[nodes] = walk(nodes, _NODE_RANGE, edges=False)
    if trial.conditionals.has_edges:
        for name in usual:
            found[name] = found[name] if name == nodes else walk(name, _EDGE_RANGE, edges=True)
    return found


def sampled(data: GraphData) -> GraphData:
    """Whole graphs with labels that are known, in their order, of at most 10,000 nodes unless two have more."""
    assert data.labels is not None
    sizes = np.diff(pointer(data.labels >= 0)[data.node_pointer])
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
    """Edges of a type between known labels, one of which, at least, is looked at."""

    table: TiedTable
    inputs: Inputs | None  #: (n_edges, n_inputs)
    ends: list[tuple[Ints, Ints, Ints]]  #: for either end: edges, places of that end, and labels at the other
    counts: list[Floats]  #: for either end: labels at the other ends of a node's edges (n_nodes, n_labels)

    @classmethod
    def of(cls, data: GraphData, t: int, place: Ints, n_nodes: int) -> _Edges:
        """Those of type ``t``, where nodes have these places, or -1."""
        assert data.labels is not None
        kind, pairs = data.scores.types[t], data.edges[data.edge_types == t]
        used = (data.labels[pairs] >= 0).all(axis=1) & (place[pairs] >= 0).any(axis=1)
        at, labels = place[pairs[used]], data.labels[pairs[used]]
        there = [np.flatnonzero(at[:, end] >= 0) for end in (0, 1)]
        ends = [(edge, at[edge, end], labels[edge, 1 - end]) for end, edge in enumerate(there)]
        counts = [np.zeros((n_nodes, data.n_labels)) for _ in ends]
        for (_, own, other), counted in zip(ends, counts, strict=True):
            np.add.at(counted, (own, other), 1.0)
        return cls(kind.table, None if kind.inputs is None else Inputs(kind.inputs.rows(used)), ends, counts)


class Conditionals:
    """- log p(label | features, labels of neighbours) of nodes, for weights that did not see a part of them.

    Weights are (n_parts, n_weights), those of nodes first, of features that are somewhere other than 0; without the
    others edges do not count.
    """

    def __init__(self, data: GraphData, workers: Workers) -> None:
        assert data.labels is not None
        chosen, fold, n_parts, self.are_graphs = divided(data)
        nodes, bounds = np.flatnonzero(chosen), data.scores.bounds
        rows = data.scores.inputs.rows(chosen)
        rows = rows.multiplied_out() if isinstance(rows, BundledRows) else rows
        squares, counts = Inputs(rows).squares_and_counts()
        used, k = np.flatnonzero(counts), data.n_labels
        self._inputs, self._labels, self._workers, self._k = Inputs(rows[:, used]), data.labels[nodes], workers, k
        place = np.full(data.n_nodes, -1)
        place[nodes] = np.arange(nodes.size)
        self._edges = [_Edges.of(data, t, place, nodes.size) for t in range(len(data.scores.types))]
        self.has_edges = any(kind.ends[0][0].size for kind in self._edges)
        own = (used[:, None] * k + np.arange(k)).ravel()
        #: of each weight, its number in the model, and the mean square of its feature where that is not 0
        self.numbers = np.concatenate([own, np.arange(bounds[1], bounds[-1])])
        self.scale = np.concatenate([np.repeat(squares[used] / counts[used], k), np.ones(bounds[-1] - bounds[1])])
        self.bounds = bounds - bounds[1] + own.size  #: of the weights of each type of edges, after the first
        self.held_out = [nodes[fold == f] for f in range(n_parts)]
        out, weights = fold == np.arange(n_parts)[:, None], np.repeat(data.weights, np.diff(data.node_pointer))[nodes]
        #: what nodes count in learning and in judging each part (n_parts, n_nodes)
        self.learned, self.judged = weights * ~out, weights * out

    def _tied(self, x: Floats) -> list[tuple[_Edges, Floats]]:
        """Types of edges that count, and views of their weights (n_parts, n_inputs, n_tied)."""
        kinds = self._edges if x.shape[1] > self.bounds[1] else []
        ranges = zip(kinds, self.bounds[1:], self.bounds[2:], strict=False)
        return [(kind, x[:, first:last].reshape(len(x), -1, kind.table.n_tied)) for kind, first, last in ranges]

    def _probabilities(self, x: Floats) -> tuple[Floats, Floats]:
        """Of each label (n_parts, n_labels, n_nodes), and logs of those of the true labels (n_parts, n_nodes)."""
        k = self._k
        scores = np.empty((len(x), self._labels.size, k))
        for own, out in zip(x[:, : self.bounds[1]], scores, strict=True):
            self._inputs.times(own.reshape(-1, k), out, self._workers)
        for kind, tied in self._tied(x):
            if kind.inputs is None:
                tables = kind.table.expand(tied).reshape(-1, k, k)
                scores += kind.counts[0] @ tables.transpose(0, 2, 1) + kind.counts[1] @ tables
                continue
            product = np.empty((kind.inputs.shape[0], kind.table.n_tied))
            for own, out in zip(tied, scores, strict=True):
                kind.inputs.times(own, product, self._workers)
                tables = kind.table.expand(product).reshape(-1, k, k)
                for end, (edge, at, other) in enumerate(kind.ends):
                    np.add.at(out, at, tables[edge, other] if end else tables[edge, :, other])
        found = np.ascontiguousarray(scores.transpose(0, 2, 1))  # reductions over few labels are fast in this order
        found -= found.max(axis=1, keepdims=True)
        logs = found[:, self._labels, np.arange(self._labels.size)]
        np.exp(found, out=found)
        total = found.sum(axis=1)
        found /= total[:, None]
        return found, logs - np.log(total)

    def held_out_loss(self, x: Floats) -> float:
        """The sum over nodes, by the weights that did not see them."""
        return -float(np.vdot(self.judged, self._probabilities(x)[1]))

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """The sum over all parts and the nodes that are learned from, and its gradient."""
        found, logs = self._probabilities(x)
        found[:, self._labels, np.arange(self._labels.size)] -= 1.0
        found *= self.learned[:, None]
        slopes, gradient, k = np.ascontiguousarray(found.transpose(0, 2, 1)), np.empty(x.shape), self._k
        for part, out in zip(slopes, gradient[:, : self.bounds[1]], strict=True):
            self._inputs.transposed_times(part, out.reshape(-1, k), self._workers)
        for kind, tied in self._tied(gradient):
            if kind.inputs is None:
                tables = found @ kind.counts[0] + (found @ kind.counts[1]).transpose(0, 2, 1)
                tied[:, 0] = kind.table.reduce(tables.reshape(-1, k * k))
                continue
            for part, out in zip(slopes, tied, strict=True):
                tables = np.zeros((kind.inputs.shape[0], k, k))
                for end, (edge, at, other) in enumerate(kind.ends):
                    tables[(edge, other) if end else (edge, slice(None), other)] += part[at]
                kind.inputs.transposed_times(kind.table.reduce(tables.reshape(-1, k * k)), out, self._workers)
        return -float(np.vdot(self.learned, logs)), gradient


class Likelihoods:
    """What :class:`Conditionals` are, of trees: the likelihoods of their known labels, and - log marginals.

    Weights have the numbers ``numbers`` in the model.
    """

    def __init__(self, data: GraphData, held_out: list[Ints], numbers: Ints, workers: Workers) -> None:
        assert data.labels is not None
        self._numbers, self._n_weights, self._learned, self._judged = numbers, data.n_weights, [], []
        graph = np.repeat(np.arange(data.n_graphs), np.diff(data.node_pointer))
        for nodes in held_out:
            out = np.isin(graph, graph[nodes])
            self._learned.append(_tree_dual(data.subset(~out & (data.labels >= 0)), workers))
            part = data.subset(out)
            judged = _tree_dual(part.with_labels(np.zeros(part.n_nodes, dtype=np.int64)), workers)  # any: none is used
            self._judged.append((judged, (np.cumsum(out) - 1)[nodes], data.labels[nodes], data.weights[graph[nodes]]))

    def whole(self, own: Floats) -> Floats:
        """All weights of the model, from the first of ``numbers``."""
        found = np.zeros(self._n_weights)
        found[self._numbers[: own.size]] = own
        return found

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """The sum over all parts and the trees that are learned from, and its gradient."""
        value, gradient = 0.0, np.empty(x.shape)
        for dual, own, out in zip(self._learned, x, gradient, strict=True):
            found = dual.evaluate(self.whole(own), max_sweeps=3, tree_sweeps=2)
            value += found.value
            out[:] = found.gradient[self._numbers]
        return value, gradient

    def held_out_loss(self, x: Floats) -> float:
        """The sum over nodes, by the weights that did not see them, their neighbours' labels unknown."""
        total = 0.0
        for (dual, nodes, labels, counts), own in zip(self._judged, x, strict=True):
            dual.evaluate(self.whole(own), max_sweeps=3, tree_sweeps=2)
            log_marginals = dual.part.hub_log.reshape(-1, dual.data.layout.hub_offset[1])
            total -= float(counts @ np.maximum(log_marginals[nodes, labels], _LEAST_LOG))
        return total


def _tree_dual(data: GraphData, workers: Workers) -> Dual:
    packed = pack(data)
    return Dual(packed, carve(packed, "bethe").whole, Prior(None), Context(workers, Deadline(None)))


class Trial:
    """Weights of conditionals at variances of scores, and the loss of the labels that they did not see.

    Each fit starts from the last.
    """

    def __init__(
        self, data: GraphData, variances: Callable[[dict[str, float]], Floats], workers: Workers, deadline: Deadline
    ) -> None:
        self.conditionals = of = Conditionals(data, workers)
        self._variances, self._workers, self._deadline, self._n_weights = variances, workers, deadline, data.n_weights
        active = data.scores.active
        self._free = np.arange(of.numbers.size) if active is None else np.flatnonzero(active[of.numbers])
        self._x, self._memories = np.zeros((len(of.held_out), of.bounds[1])), dict[int, tuple[Floats, Memory]]()
        trees = of.has_edges and of.are_graphs and is_forest(data.n_nodes, data.edges)
        self._trees = Likelihoods(data, of.held_out, of.numbers, workers) if trees else None

    def weights(self, part: int) -> Floats:
        """All weights, as they were last learned without a part."""
        found = np.zeros(self._n_weights)
        found[self.conditionals.numbers[: self._x.shape[1]]] = self._x[part]
        return found

    def loss(self, scores: dict[str, float], *, edges: bool) -> float:
        """The loss at these variances of scores, without edges or with; 0 where time is up."""
        if self._deadline.has_passed:
            return 0.0
        likelihood = self._trees if edges and self._trees is not None else self.conditionals
        self._fit(likelihood, 1.0 / self._variances(scores), edges)
        return likelihood.held_out_loss(self._x)

    def _fit(self, likelihood: Conditionals | Likelihoods, precision: Floats, edges: bool) -> None:
        of, n_parts, last = self.conditionals, len(self._x), np.inf
        size = of.numbers.size if edges else int(of.bounds[1])
        free, n_learned = self._free[self._free < size], float(of.learned.sum())
        precision, x = precision[of.numbers[free]], np.zeros((n_parts, size))
        x[:, : self._x.shape[1]] = self._x[:, :size]

        def value_and_gradient(flat: Floats) -> tuple[float, Floats]:
            own = flat.reshape(n_parts, -1)
            x[:, free] = own
            value, gradient = likelihood.value_and_gradient(x)
            pull = precision * own
            return value + 0.5 * float(np.vdot(own, pull)), (gradient[:, free] + pull).ravel()

        def settled(step: Step) -> bool:
            nonlocal last
            gain, last = last - step.value, step.value
            return gain < max(_GAIN * step.value, _LEAST_GAIN * n_learned)

        units = (of.scale[free] + precision / max(1.0, n_learned / n_parts)) ** -0.5
        if size not in self._memories:
            self._memories[size] = np.tile(units, n_parts), make_memory(units.size * n_parts, self._workers, exact=True)
        unit, memory = self._memories[size]
        found = minimise(
            value_and_gradient, x[:, free].ravel(), tolerance=0.0, relative=1e-3, max_iterations=_ITERATIONS,
            memory=memory, unit=unit, callback=settled, interrupt=lambda: self._deadline.has_passed,
        )  # fmt: skip
        x[:, free] = found.x.reshape(n_parts, -1)
        self._x = x


def divided(data: GraphData) -> tuple[Bools, Ints, int, bool]:
    """The labels that are looked at, the part of each, how many parts to hold out in turn, and whether of whole graphs.

    So they are where graphs are many, else of nodes.
    """
    assert data.labels is not None
    rng, known = np.random.default_rng(0), np.flatnonzero(data.labels >= 0)
    graph = np.repeat(np.arange(data.n_graphs), np.diff(data.node_pointer))
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
    return chosen, fold, 1 if known.size >= _FOLDS * _ENOUGH else _FOLDS, whole
