"""Whole labellings of sequences: the best ones, what spoke for a label, and how scikit-learn's metrics score them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import get_scorer

from bactrian.arrays import Floats, Ints, is_unknown
from bactrian.engines.numba.decoding import n_best_labels
from bactrian.errors import ArgumentError, check_count
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import BundledRows
from bactrian.parallel.threads import Workers, blocks_of_rows

#: What edges are called where they lead to a token, and where they leave one: transitions, then skips.
_EDGES = ("after", "before"), ("linked to", "linked to")
#: Tokens, times how many labellings are wanted, below which a block of chains is not worth handing to a thread.
_LEAST_TOKENS = 100.0


class Labellings(list[list[Any]]):
    """The labels of each sequence: a list of lists, and to NumPy an array with a list per sequence.

    scikit-learn's ``cross_val_predict`` can therefore join those of several folds.

    >>> np.asarray(Labellings([["A"], ["B"]])).shape
    (2,)
    """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if dtype is not None and np.dtype(dtype).kind != "O":
            return np.array(list(self), dtype=dtype)
        found = np.empty(len(self), dtype=object)
        for m, labels in enumerate(self):  # a list at once would become an array of more dimensions
            found[m] = labels
        return found


# --- the best ones, and what speaks for a label ---


def _scores(data: GraphData, weights: Floats, workers: Workers) -> tuple[Floats, Floats]:
    """(n_nodes, K) scores of labels, and (n_tables, K, K) tables, numbered as in ``data.table_of_edge``."""
    k = data.n_labels
    n_tables = max([data.n_shared_tables, *(data.table_of_edge + 1)])
    nodes, tables = np.empty(data.n_nodes * k), np.empty(n_tables * k * k)
    data.scores.scores(weights, tables, nodes, workers)
    return nodes.reshape(-1, k), tables.reshape(-1, k, k)


def best_labellings(data: GraphData, weights: Floats, n: int, n_threads: int | None) -> list[tuple[Ints, Floats]]:
    """Codes (m, n_tokens) of the m <= n best labellings of each chain, best first, and their log-probabilities."""
    workers, bounds = Workers(n_threads), data.node_pointer
    nodes, tables = _scores(data, weights, workers)
    table_of = np.full(data.n_nodes, -1)
    table_of[data.edges[:, 1]] = data.table_of_edge  # of the transition that leads to a token
    codes = np.zeros((n, data.n_nodes), dtype=np.int64)
    scores = np.full((data.n_graphs, n), -np.inf)
    workers.run(
        lambda _, first, last: n_best_labels(nodes, tables, table_of, bounds, first, last, codes, scores),
        blocks_of_rows(bounds, 4 * workers.n_threads, _LEAST_TOKENS),
    )
    found = []
    for (first, last), of in zip(pairwise(bounds.tolist()), scores, strict=True):
        m = int((of > -np.inf).sum())
        found.append((codes[:m, first:last], of[:m]))
    return found


def reasons(
    data: GraphData,
    weights: Floats,
    codes: Ints,
    position: int,
    swap: tuple[int, int],
    features: Sequence[str],
    labels: Sequence[Any],
) -> list[tuple[str, float]]:
    """What each feature and neighbour of a token adds to the score of one label over another, largest first.

    ``features`` and ``labels`` are what these are called. With the other labels as in ``codes``, what is added makes
    log p(labelling) - log p(the same with the other label).
    """
    (label, other), workers = swap, Workers(1)
    nodes = weights[: data.scores.bounds[1]].reshape(-1, data.n_labels)
    row = data.scores.inputs.rows(np.arange(data.n_nodes) == position)
    row = sp.coo_array(row.multiplied_out() if isinstance(row, BundledRows) else row)
    gain = row.data * (nodes[row.coords[-1], label] - nodes[row.coords[-1], other])
    found = [(features[i], float(g)) for i, g in zip(row.coords[-1].tolist(), gain, strict=True)]
    tables = _scores(data, weights, workers)[1]
    for edge in np.flatnonzero((data.edges == position).any(axis=1)).tolist():
        (a, b), table = data.edges[edge].tolist(), tables[data.table_of_edge[edge]]
        later, around = b == position, a if b == position else b
        table = table.T if later else table
        name = f"{_EDGES[data.edge_types[edge]][not later]} {labels[codes[around]]!r} at {around}"
        found.append((name, float(table[label, codes[around]] - table[other, codes[around]])))
    return sorted(found, key=lambda entry: -abs(entry[1]))


def label_code(label: Any, labels: Sequence[Any], argument: str) -> int:
    """The number of a label."""
    if label not in labels:
        raise ArgumentError(argument, f"must be one of {list(labels)}, found {label!r}")
    return list(labels).index(label)


# --- scores ---


@dataclass(frozen=True)
class flat_scorer:  # noqa: N801  # reads as a function
    """A metric of scikit-learn over all tokens, nodes or pixels, to pass as ``scoring=``.

    scikit-learn's own names score single labels, so that ``scoring="f1_macro"`` is nan for sequences, graphs and
    pictures. Labels that are unknown in ``y`` do not count.

    Parameters
    ----------
    scoring : str or callable
        Name of a metric, such as ``"accuracy"``, ``"f1_macro"`` or ``"neg_log_loss"``, or a scorer.

    Examples
    --------
    >>> import bactrian as bt
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = [[["a"], ["b"]], [["b"], ["a"]], [["a"], ["a"]]], [["A", "B"], ["B", "A"], ["A", "A"]]
    >>> cross_val_score(bt.LinearChainCRF(), X, y, cv=3, scoring=bt.flat_scorer("f1_macro"))
    array([1., 1., 1.])
    """

    scoring: Any

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """The score of a fitted estimator."""
        true = _flat(y)
        known = np.array([not is_unknown(label) for label in true.tolist()], dtype=bool)
        if not known.any():
            raise ValueError("y holds no known label; a score needs at least one")
        scorer: Callable[..., Any] = get_scorer(self.scoring) if isinstance(self.scoring, str) else self.scoring
        return float(scorer(_Flat(estimator, known), X, np.array(true[known].tolist())))


class _Flat(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A fitted estimator whose answers are those of all tokens, one after the other."""

    def __init__(self, estimator: Any, known: Any) -> None:
        self.estimator, self.known, self.classes_ = estimator, known, np.asarray(estimator.classes_)
        if self.classes_.dtype == object:
            self.classes_ = self.classes_.astype(str)

    def predict(self, X: Any) -> Any:
        found = _flat(self.estimator.predict(X))
        check_count("y", self.known.size, found.size, "label per label of X")
        return np.array(found[self.known].tolist())

    def predict_proba(self, X: Any) -> Any:
        found = self.estimator.predict_marginals(X)
        if isinstance(found[0], list):  # dicts, as sklearn-crfsuite has them
            found = [[list(token.values()) for token in sequence] for sequence in found]
        rows = [np.reshape(part, (-1, self.classes_.size)) for part in found if len(part)]
        check_count("y", self.known.size, sum(map(len, rows)), "label per label of X")
        return np.concatenate(rows)[self.known]


def _flat(labels: Any) -> Any:
    """All labels one after the other, as objects."""
    parts = [np.empty(0, dtype=object), *(np.asarray(part, dtype=object).ravel() for part in labels)]
    return np.concatenate(parts)
