"""Graphs with few labelled nodes: features diffused over edges, learned in turn with smoothed labels.

A node's features become those of its surroundings (personalised PageRank; Gasteiger, Bojchevski and Günnemann, Predict
then propagate, ICLR 2019): with T the mean over a node and its neighbours, and a the ``restart``,

    z <- (1 - a) T z + a x,   from z = x, ten times

The model is p(y | x) with scores w . z_i of nodes, and agreement of neighbours that counts 1 / mean degree. Its weights
w are learned in turn with labels (Qu, Bengio and Tang, GMNN: graph Markov neural networks, ICML 2019):

- labels: the mean field q of the model, q_i(y) ~ exp(w_y . z_i + sum_j q_j(y) / mean degree), known labels fixed
- weights: logistic regression of q on z. Nodes without a label count as much, all together, as those with one.

The first weights are those of the nodes with a label alone. The agreement is not learned: the labels that it smooths
would speak for it, more in every round.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import log_softmax, softmax

from bactrian.arrays import Floats, Ints
from bactrian.graphs.graph_data import GraphData
from bactrian.parallel.threads import Deadline
from bactrian.solvers.lbfgs import Minimum, Step, largest_magnitude, minimise
from bactrian.solvers.solution import Callback, Progress, Solution, Status, warn_stopped

#: Steps of the diffusion, as in the paper.
HOPS = 10
#: Most rounds of labels and weights, iterations of the weights in each, and sweeps of the mean field. The first weights
#: take as many iterations as they need, up to a limit.
_ROUNDS, _ITERATIONS, _SWEEPS, _FIRST = 100, 10, 10, 100


class Diffusion:
    """The linear map from rows of nodes to diffused ones, and its transpose, the same polynomial of T'."""

    def __init__(self, edges: Ints, n_nodes: int, restart: float) -> None:
        closed = adjacency_matrix(edges, n_nodes) + sp.eye_array(n_nodes, format="csr")
        self.restart = restart
        self._step = sp.csr_array(sp.diags_array((1.0 - restart) / closed.sum(axis=1)) @ closed)
        self._step_transposed = sp.csr_array(self._step.T)

    def times(self, rows: Floats, *, transposed: bool = False) -> Floats:
        """Diffused rows."""
        matrix = self._step_transposed if transposed else self._step
        own, found = self.restart * rows, rows
        for _ in range(HOPS):
            found = matrix @ found
            found += own
        return found


def adjacency_matrix(edges: Ints, n_nodes: int) -> sp.csr_array:
    """How often two nodes are joined, (n_nodes, n_nodes)."""
    first, second = np.concatenate([edges, edges[:, ::-1]]).T
    return sp.csr_array((np.ones(first.size), (first, second)), shape=(n_nodes, n_nodes))


def diffused(rows: Any, edges: Ints, restart: float) -> Floats:
    """Dense diffused rows."""
    dense = rows.toarray() if sp.issparse(rows) else np.asarray(rows)
    return Diffusion(edges, len(dense), restart).times(dense)


def agreement(data: GraphData) -> float:
    """What equal labels of neighbours score: 1 / mean degree."""
    return 0.5 * data.n_nodes / max(len(data.edges), 1)


def smoothed(scores: Floats, labels: Ints, neighbours: sp.csr_array, weight: float) -> Floats:
    """Mean field: probabilities (n_nodes, n_labels) of labels at scores of nodes; labels from 0 are fixed."""
    known = np.flatnonzero(labels >= 0)
    found = softmax(scores, axis=1)
    for sweep in range(_SWEEPS + 1):
        if sweep:
            found = softmax(scores + weight * (neighbours @ found), axis=1)
        found[known] = 0.0
        found[known, labels[known]] = 1.0
    return found


def learn_diffused(
    data: GraphData,
    restart: float,
    variance: Any,
    *,
    tolerance: float,
    callback: Callback | None = None,
    max_seconds: float | None = None,
) -> Solution:
    """Weights of the model above, from graphs with labels, of which -1 are unknown.

    ``variance`` is that of the prior, one for every weight, a number for all, or None. Rounds end where one changes the
    objective by at most ``tolerance`` of itself. The first table of edges has the agreement on its diagonal.
    """
    began, deadline, labels, known = perf_counter(), Deadline(max_seconds), data.truth, data.known
    rows = data.scores.inputs.rows(np.ones(data.n_nodes, dtype=bool))
    diffusion, neighbours = Diffusion(data.edges, data.n_nodes, restart), adjacency_matrix(data.edges, data.n_nodes)
    precision = 1.0 / np.broadcast_to(np.inf if variance is None else variance, data.n_weights)[: data.scores.bounds[1]]
    weights, table, evaluations, stopped = np.zeros(data.n_weights), data.tables[0], 0, False
    nodes, (tied, *_) = data.scores.split(weights)  # views
    score = agreement(data)
    tied[0, 0 if table.is_pooled else np.diag(table.index)] = score / (table.attraction if table.is_pooled else 1.0)

    def fit(q: Floats, counts: Floats, limit: int, outer: int) -> Minimum:
        def value_and_gradient(x: Floats) -> tuple[float, Floats]:
            nonlocal evaluations
            evaluations += 1
            logs = log_softmax(diffusion.times(rows @ x.reshape(nodes.shape)), axis=1)
            slopes = rows.T @ diffusion.times(counts[:, None] * (np.exp(logs) - q), transposed=True)
            value = 0.5 * float(x @ (precision * x)) - float(counts @ (q * logs).sum(axis=1))
            return value, np.asarray(slopes).ravel() + precision * x

        def watch(step: Step) -> bool:
            nonlocal stopped
            seen = np.concatenate([step.x, tied.ravel()])
            progress = Progress(
                outer, step.iteration, step.value, step.gradient_norm, 0.0, perf_counter() - began, seen
            )
            stopped = callback is not None and bool(callback(progress))
            return stopped

        found = minimise(
            value_and_gradient, nodes.ravel(), tolerance=0.0, relative=1e-3, max_iterations=limit, callback=watch,
            interrupt=lambda: deadline.has_passed,
        )  # fmt: skip
        nodes[:] = found.x.reshape(nodes.shape)
        return found

    counts = np.where(known, 1.0, min(1.0, known.sum() / max((~known).sum(), 1)))
    found = fit(np.eye(data.n_labels)[labels], known.astype(np.float64), _FIRST, 0)
    settled = bool(known.all()) and found.status is Status.CONVERGED
    for outer in range(1, 1 if known.all() else _ROUNDS + 1):
        if stopped or deadline.has_passed or settled:
            break
        before = found.value
        found = fit(smoothed(diffusion.times(rows @ nodes), labels, neighbours, score), counts, _ITERATIONS, outer)
        settled = outer > 1 and abs(found.value - before) <= tolerance * abs(before)
    status = Status.TIME_LIMIT if deadline.has_passed else Status.CONVERGED if settled else Status.ITERATION_LIMIT
    status = Status.STOPPED if stopped else status
    solution = Solution(
        weights=weights, status=status, objective=found.value, moment_gap=largest_magnitude(found.gradient),
        violation=0.0, method="diffused", seconds=perf_counter() - began, evaluations=evaluations,
    )  # fmt: skip
    warn_stopped(solution)
    return solution
