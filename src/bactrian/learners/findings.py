"""Findings, and those about labelled graphs: weights that the data hardly determine, edges that do not help.

What nodes say without edges, whether residuals of neighbours go together, and how often label pairs are seen.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import chdtrc, ndtr, softmax

from bactrian.arrays import Floats, Ints
from bactrian.camel.prior import Prior
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.learners.learn import learn
from bactrian.parallel.threads import Workers
from bactrian.solvers.solution import ConvergenceWarning

#: Folds of nodes whose labels are predicted without edges.
_FOLDS = 5
#: Probability from which on it is named that labels of neighbours go together by chance.
_CHANCE = 0.05
#: Edges below which sums over them are not normal, and edge inputs beyond which one test of so many means nothing.
_LEAST_EDGES, _MOST_INPUTS = 20, 20
#: Frequency that labels of predictions may lose or gain, beyond chance, before it is worth a word.
_SHIFT = 0.1
#: Edges per weight below which a table has few, and edges below which a pair is seldom seen.
_FEW_EDGES, _SELDOM = 10, 5


@dataclass(frozen=True)
class Finding:
    """One sign of trouble."""

    #: "not-converged", "several-fixed-points", "unstable", "moments-unattained", "unseen", "seldom", "edges-hurt",
    #: "edges-idle", "labels-shifted", "stopped-short"
    name: str
    severity: str  #: "warning", or "serious" where predictions are likely to suffer
    message: str  #: what was seen
    advice: str  #: what to do about it
    figures: dict[str, float]  #: the numbers behind it

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}; {self.advice}"


@dataclass(frozen=True)
class Residual:
    """A moment of the data and the one under inference at the learned weights, both as sums."""

    name: str  #: what its weight belongs to
    observed: float
    expected: float
    gap: float  #: what is left of the difference where the prior has taken its part

    def __str__(self) -> str:
        return f"{self.name}: {self.expected:.4g} expected, {self.observed:.4g} observed"


@dataclass(frozen=True)
class Diagnosis:
    """The findings of :func:`bactrian.diagnose`; empty if there are none."""

    findings: tuple[Finding, ...]
    figures: dict[str, float]  #: everything that was measured
    residuals: tuple[Residual, ...] = ()  #: of the moments that are furthest off, those first

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.name for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no findings"


class Found:
    """Findings so far, and everything that was measured."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.figures: dict[str, float] = {}

    def add(self, name: str, severity: str, message: str, advice: str, figures: dict[str, float]) -> None:
        """Note one more finding."""
        self.findings.append(Finding(name, severity, message, advice, figures))


def look_at_pairs(data: GraphData, prior: Prior, label_names: list[str], found: Found) -> None:
    """Whether label pairs are seen so seldom that their weights are guesses.

    Of tables with fewer than ten edges per weight, a pair is seldom seen if fewer than five edges have it and the prior
    on its weight counts for less than one more.
    """
    precision = np.broadcast_to(prior.precision, (data.n_weights,))
    ends = data.truth[data.edges] @ np.array([data.n_labels, 1])
    n_edges, n_weights, seldom = 0, 0, set[int]()
    for t, (kind, first) in enumerate(zip(data.scores.types, data.scores.bounds[1:].tolist(), strict=False)):
        pairs, table = ends[data.edge_types == t], kind.table
        if table.tying in ("potts", "pooled") or pairs.size >= _FEW_EDGES * table.n_tied:
            continue
        seen = table.reduce(np.bincount(pairs, minlength=data.n_labels**2).astype(np.float64))
        own = np.flatnonzero((seen < _SELDOM) & (precision[first : first + table.n_tied] < 1.0))
        if own.size:
            n_edges, n_weights = n_edges + int(pairs.size), n_weights + table.n_tied
            seldom |= set((first + own).tolist())
    names = _label_pairs(data, seldom, label_names)
    if names:
        found.add(
            "seldom",
            "warning",
            f"{n_weights} weights of label pairs are learned from {n_edges} edges, and {len(names)} pairs occur "
            f"fewer than 5 times ({_listed(names)})",
            "tie the tables more (tables='pooled' or 'potts'), or give edges a smaller variance",
            {"edges": float(n_edges), "weights": float(n_weights), "pairs": float(len(names))},
        )


def look_without_edges(data: GraphData, weights: Floats, beliefs: Floats, found: Found) -> None:
    """Whether more labels of the data are right without edges than with them, beyond chance."""
    right = beliefs.reshape(data.n_nodes, -1).argmax(axis=1) == data.truth
    alone = labels_of_nodes(data, weights) == data.truth
    accuracy, without = float(right.mean()), float(alone.mean())
    found.figures |= {"accuracy": accuracy, "accuracy_without_edges": without}
    lost, won = int((alone & ~right).sum()), int((right & ~alone).sum())
    if lost - won > 2.0 * np.sqrt(lost + won):
        found.add(
            "edges-hurt",
            "serious",
            f"inference labels {100 * accuracy:.1f} % of the nodes right, the scores of the nodes alone "
            f"{100 * without:.1f} %",
            "give edges a smaller variance, tie their tables more, or learn with method='convex' and predict with "
            "matched inference",
            {"with": accuracy, "without": without},
        )


def look_at_neighbours(data: GraphData, prior: Prior, seed: int, n_threads: int | None, found: Found) -> None:
    """Whether labels of neighbours go together beyond what the inputs of both say."""
    n_edges = data.edges.shape[0]
    wide = any(kind.inputs is not None and kind.inputs.shape[1] > _MOST_INPUTS for kind in data.scores.types)
    if n_edges < _LEAST_EDGES or data.n_nodes < 2 * _FOLDS or wide or data.n_labels < 2:
        return
    chance = chance_of_neighbours(data, residuals_without_edges(data, prior, seed, n_threads))
    found.figures["edges_by_chance"] = chance
    if chance > _CHANCE:
        found.add(
            "edges-idle",
            "warning",
            f"given the inputs of both, labels of neighbours are no more dependent than by chance "
            f"(p = {chance:.2f} over {n_edges} edges), so edges may do more harm than good",
            "compare with a model without edges on held-out data, give edges a smaller variance, or let "
            "prior_variance='cv' choose it",
            {"chance": chance, "edges": float(n_edges)},
        )


def look_at_prediction(
    data: Any,
    predict: GraphData,
    weights: Floats,
    marginals: Floats,
    evidence: Any,
    label_names: list[str],
    found: Found,
) -> None:
    """Whether edges make labels of predictions more or less frequent than nodes alone and the data do."""
    if not isinstance(data, GraphData) or data.labels is None:
        raise ValueError("predict needs labelled GraphData to compare with")
    free = np.ones(predict.n_nodes, dtype=bool)
    for first, known in zip(predict.node_pointer[:-1].tolist(), evidence or (), strict=False):
        free[[first + node for node in known]] = False
    labelled = marginals.argmax(axis=1)[free], labels_of_nodes(predict, weights)[free], data.truth
    with_edges, without, seen = (np.bincount(codes, minlength=data.n_labels) / codes.size for codes in labelled)
    apart, alone = (float(0.5 * np.abs(part - seen).sum()) for part in (with_edges, without))
    changed = float((labelled[0] != labelled[1]).mean())
    found.figures |= {"changed": changed, "shift": apart, "shift_without_edges": alone}
    if apart - alone > _SHIFT + np.sqrt(data.n_labels / free.sum()):
        label = int(np.abs(with_edges - without).argmax())
        found.add(
            "labels-shifted",
            "serious",
            f"{100 * with_edges[label]:.0f} % of the nodes to be predicted get label {label_names[label]}, "
            f"{100 * without[label]:.0f} % by their own scores alone; {100 * seen[label]:.0f} % have it in the "
            "training data",
            "the edges overrule the nodes: tie their tables more (tables='pooled' or 'potts'), or give edges a "
            "smaller variance",
            {"shift": apart, "without": alone},
        )


def look_at_unseen(data: Any, packed: PackedData, weights: Floats, label_names: list[str], found: Found) -> None:
    """Whether weights run away because nothing like their features was ever seen."""
    unseen, names = unseen_weights(data, packed, label_names)
    found.figures["unseen"] = float(unseen.size)
    if unseen.size:
        lowest = float(weights[unseen].min())
        found.add(
            "unseen",
            "warning",
            f"{unseen.size} weights belong to combinations that never occur in the data"
            + (f" (label pairs {_listed(names)})" if names else "")
            + f" and there is no prior, so they drift towards minus infinity: the lowest is {lowest:.1f}",
            "add a prior (prior_variance=10.0, say), or tie the tables more",
            {"weights": float(unseen.size), "lowest": lowest},
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")


# --- what is measured ---


def scores_of_nodes(data: GraphData, weights: Floats) -> Floats:
    """(n_nodes, n_labels) scores without edges."""
    node, _ = data.scores.split(weights)
    scores = np.empty((data.n_nodes, data.n_labels))
    data.scores.inputs.times(node, scores, Workers(1))
    return scores


def labels_of_nodes(data: GraphData, weights: Floats) -> Ints:
    """Labels by the scores of nodes alone."""
    return np.asarray(scores_of_nodes(data, weights).argmax(axis=1), dtype=np.int64)


def residuals_without_edges(data: GraphData, prior: Prior, seed: int, n_threads: int | None) -> Floats:
    """(n_nodes, n_labels) observed indicators minus probabilities by the node's inputs, learned from other nodes."""
    n_node = int(data.scores.bounds[1])
    precision = np.append(np.broadcast_to(prior.precision, (data.n_weights,))[:n_node], 1.0)
    variance = 1.0 / np.where(precision > 0.0, precision, 0.1)
    fold = np.random.default_rng(seed).permutation(data.n_nodes) % _FOLDS
    residuals = np.eye(data.n_labels)[data.truth]
    for f in range(_FOLDS):
        out = fold == f
        train, test = (
            GraphData(
                data.scores.inputs.rows(chosen),
                np.empty((0, 2), dtype=np.int64),
                n_labels=data.n_labels,
                labels=data.truth[chosen],
                tables="potts",
            )
            for chosen in (~out, out)
        )
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            learned = learn(
                train, "piecewise", prior_variance=variance, tolerance=1e-3, max_iterations=100, n_threads=n_threads
            )
        residuals[out] -= softmax(scores_of_nodes(test, learned.weights), axis=1)
    return residuals


def chance_of_neighbours(data: GraphData, residuals: Floats) -> float:
    """Probability that residuals of neighbours go together as they do where they are independent.

    Products of independent residuals with mean 0 have mean 0 and are uncorrelated over edges. Of every edge type and
    edge input two sums of them are tested, both in units of their standard errors: that of agreement, normal, and the
    squares of all pairs of labels, chi-squared; the smaller probability counts, times the number of tests.
    """
    size, axes = np.linalg.eigh(residuals.T @ residuals / data.n_nodes)
    kept = size > 1e-9 * size.max(initial=0.0)
    whitened = residuals @ axes[:, kept] / np.sqrt(size[kept])
    least, n_tests = 1.0, 0
    for t, kind in enumerate(data.scores.types):
        first, second = (whitened[data.edges[data.edge_types == t, end]] for end in (0, 1))
        every = np.ones(len(first), dtype=bool)
        columns: Any = every[:, None] if kind.inputs is None else kind.inputs.rows(every)
        columns = columns.toarray() if issparse(columns) else columns
        for column in columns.T:
            weighted = column[:, None] * first
            together = (weighted * second).sum(axis=1)
            sums, squares = weighted.T @ second, (weighted**2).T @ second**2
            if kind.table.tying != "full":
                upper = np.triu_indices(len(sums), 1)
                both = np.diag(sums), (sums + sums.T)[upper]
                sums, squares = np.concatenate(both), np.concatenate([np.diag(squares), (squares + squares.T)[upper]])
            if not (squares > 0.0).all():
                continue
            normal = float(together.sum() / np.sqrt((together**2).sum()))
            chances = 2.0 * ndtr(-abs(normal)), chdtrc(sums.size, float((sums**2 / squares).sum()))
            least, n_tests = min(least, *map(float, chances)), n_tests + 2
    return min(1.0, n_tests * least)


def unseen_weights(data: Any, packed: PackedData, label_names: list[str]) -> tuple[Ints, list[str]]:
    """Weights whose observed feature sum is 0 but not that under uniform beliefs, and the label pairs among them.

    For features that are never negative, such as indicators, the likelihood pulls these weights to minus infinity.
    Label pairs are named where ``data`` is a GraphData.
    """
    if packed.empirical is None:
        raise ValueError("diagnose needs the label of every node" if packed.holes else "the data has no labels")
    uniform = packed.scores.moments(*packed.uniform_counts(), Workers(1))
    unseen = np.flatnonzero((packed.empirical == 0.0) & (uniform > 0.0))
    names = _label_pairs(data, set(unseen.tolist()), label_names) if isinstance(data, GraphData) else []
    return unseen, names


def weight_name(data: Any, weight: int, called: list[str]) -> str:
    """What a weight belongs to, in words."""
    if not isinstance(data, GraphData):
        return f"weight {weight}"
    scores = data.scores
    if weight < scores.bounds[1]:
        return f"input {weight // data.n_labels} with label {called[weight % data.n_labels]}"
    t = int(np.searchsorted(scores.bounds, weight, side="right")) - 2
    table = scores.types[t].table
    row, tied = divmod(weight - int(scores.bounds[t + 1]), table.n_tied)
    places = np.argwhere(table.index == tied)
    agreement = table.tying == "potts" or (table.is_pooled and tied == 0)
    name = "agreement" if agreement else "-".join(called[label] for label in places[0].tolist())
    with_type = name if len(scores.types) == 1 else f"{name} on edges of type {t}"
    return with_type if scores.types[t].inputs is None else f"edge input {row} with {with_type}"


def _label_pairs(data: GraphData, unseen: set[int], called: list[str]) -> list[str]:
    names = []
    for kind, first in zip(data.scores.types, data.scores.bounds[1:], strict=False):
        if kind.table.tying == "potts":
            continue
        for a in range(data.n_labels):
            for b in range(a if kind.table.tying != "full" else 0, data.n_labels):
                weight = int(kind.table.index[a, b])
                if weight >= 0 and int(first) + weight in unseen:
                    names.append(f"{called[a]}-{called[b]}")
    return list(dict.fromkeys(names))
