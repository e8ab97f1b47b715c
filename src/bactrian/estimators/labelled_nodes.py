"""What estimators share that label the nodes of graphs, be they tokens, nodes or pixels: marginals, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.run import NoBeliefs
from bactrian.errors import check_choice, check_flag, warn
from bactrian.estimators.labels import check_class_weight
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.graphs.graph_data import NODE_FACTORS, GraphData
from bactrian.graphs.scores import TYINGS
from bactrian.inference.decode import decode
from bactrian.inference.infer import StackedMarginals, graph_marginals
from bactrian.learners.agreement import APART, UNATTAINED, can_follow, depends_on_start
from bactrian.solvers.solution import AttainmentWarning, ConvergenceWarning, Solution, least_gain

#: What methods of inference are called on a device, and their options there.
ON_DEVICE = {"bp": "bp", "rbp": "bp", "convex": "convex"}
OPTIONS_ON_DEVICE = frozenset(("tolerance", "max_iterations", "damping", "counting_numbers"))
#: Nodes of the training graphs that a fitted model is judged on, in whole graphs, and what its edges may cost.
_JUDGED_NODES, _TWO_POINTS = 20_000, 0.02
#: Twice 0.001, in squares of the default tolerance.
_PER_LABEL = 2_000.0


def stopping(options: dict[str, Any], n_known: float | None = None, n_weights: int = 0) -> dict[str, Any]:
    """Options of learning with what ``tolerance`` means where nodes are labelled.

    An exact likelihood stops when ten iterations gain less than a share of it (:func:`least_gain`), about as much as is
    left to gain: on CoNLL-2003, by default, 85 iterations instead of 186, for an objective 0.09 % above the optimum.

    Where ``n_known`` labels are learned from, the moment gap is judged by what it may cost each. A convex objective
    with the curvature of its prior is above its optimum by at most sum_k gap_k^2 * variance_k / 2; the gap here leaves
    0.001 per label at the default tolerance.
    """
    options = {**options, "gain_tolerance": least_gain(options["tolerance"])}
    # Not where learning relinearises: that moves weights by less than such a gap.
    if n_known is None or options["prior_variance"] is None or can_follow(options["method"]):
        return options
    variance = np.asarray(options["prior_variance"])
    total = float(variance.sum()) * (1 if variance.ndim else n_weights)
    return {**options, "gap_tolerance": options["tolerance"] * max(1.0, (_PER_LABEL * n_known / total) ** 0.5)}


def tyings_of(crf: Any) -> tuple[str, ...]:
    """How the tables of each type of edges are tied."""
    return tuple(getattr(crf, name) for name in crf._tables)


def check_node_params(crf: Any) -> None:
    """Check the parameters that all of these estimators have."""
    check_choice("node_factors", crf.node_factors, NODE_FACTORS)
    check_class_weight(crf.class_weight)
    for name, tying in zip(crf._tables, tyings_of(crf), strict=True):
        check_choice(name, tying, TYINGS)
    check_flag("fit_intercept", crf.fit_intercept)
    crf._check_device(("matched", *ON_DEVICE))


@dataclass(frozen=True, kw_only=True)
class FittedNodes:
    """A fitted model that labels nodes: the weights, and how marginals and labels are found."""

    weights: Floats
    solution: Solution
    method: str  #: of inference
    options: Mapping[str, Any]  #: of it
    is_matched: bool = False  #: whether inference was only matched to the learner
    decoding: str = "max-marginals"  #: how labels are chosen; else a method of :func:`bactrian.decode`
    tolerances: tuple[float, float] | None = None  #: of marginals, and of labels alone, where options have none
    device: Any = None  #: where marginals are found, None for the CPU without PyTorch

    def marginals(
        self, data: GraphData, evidence: Any = None, *, edges: bool = False, labels_alone: bool = False
    ) -> StackedMarginals:
        """Marginals; by belief propagation where exact inference was only matched to the learner and does not fit.

        Where learning did not end at what belief propagation finds, two more starts tell whether labels depend on them.
        """
        method, options = self.method, dict(self.options)
        if self.tolerances is not None and method != "gibbs":  # exact inference has no use for it, its stand-in has
            options.setdefault("tolerance", self.tolerances[labels_alone])
        path, attained = self.solution.path, self.solution.attained
        weights = path if method == "replay" and path is not None else self.weights
        if self.device is not None and data.n_nodes:
            return marginals_on_device(data, weights, method, evidence, self.device, edges=edges, **options)
        try:
            found = graph_marginals(data, weights, method, evidence, edges=edges, **options)
        except MemoryBudgetError:
            if not self.is_matched:
                raise
            method, options = "rbp", {name: value for name, value in options.items() if name != "memory_budget"}
            found = graph_marginals(data, weights, method, evidence, edges=edges, **options)
        doubtful = method in ("bp", "rbp") and (attained is None or attained < 1.0 - UNATTAINED)
        if doubtful and data.labels is None and data.edges.size:  # labelled graphs are those of fit
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                moved = depends_on_start(data, weights, method, evidence, found, **options)
            if moved > _TWO_POINTS:
                warn(
                    f"the labels of {100 * moved:.1f} % of the nodes depend on the messages that belief propagation "
                    "starts from: use inference='matched', method='convex', or a stronger prior on the edges",
                    AttainmentWarning,
                )
        return found

    def codes(self, data: GraphData, evidence: Any = None) -> Ints:
        """The most probable labels of all nodes, as numbers."""
        if self.decoding == "max-marginals":
            return self.marginals(data, evidence, labels_alone=True).nodes.argmax(axis=1)
        found = decode(
            data, self.weights, self.decoding, evidence, max_seconds=None, n_threads=self.options["n_threads"]
        )
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])

    def judge(self, data: GraphData, *, same: bool, advice: str) -> None:
        """Warn where edges make the labels worse by two points, in a sample of the graphs of learning.

        ``same`` says whether predictions are what inference with the entropy of the learner says.
        """
        from bactrian.learners.findings import labels_of_nodes  # takes a while to import

        nodes = data.by_node(data.node_pointer[:-1] < _JUDGED_NODES)
        part = data if nodes.all() else data.subset(nodes)
        known = data.known[nodes]
        if part.edges.size == 0 or not known.any():
            return
        found = _learned_labels(data, part, self.solution) if same else None
        if found is None:
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                found = self.codes(part)
        right, alone = (
            float(np.mean(labels[known] == data.truth[nodes][known]))
            for labels in (found, labels_of_nodes(part, self.weights))
        )
        if right < alone - _TWO_POINTS:
            warn(
                f"{self.solution.method}: inference gets {100 * right:.1f} % of the training labels right, the scores "
                f"of the nodes alone {100 * alone:.1f} %: {advice}",
                AttainmentWarning,
            )


def marginals_on_device(
    data: GraphData, weights: Floats, method: str, evidence: Any, device: Any, *, edges: bool, **options: Any
) -> StackedMarginals:
    """:func:`bactrian.inference.infer.graph_marginals` by :func:`bactrian.torch.infer`; ``"exact"`` is for chains."""
    from bactrian.engines.torch.infer import infer

    given = {name: value for name, value in options.items() if name in OPTIONS_ON_DEVICE}
    if method == "exact":  # messages go along a chain by an edge or two a sweep
        given = {"max_iterations": 10 + int(np.diff(data.node_pointer).max(initial=0))}
    found = infer(data, weights, {**ON_DEVICE, "exact": "bp"}.get(method, method), evidence, device=device, **given)
    if not edges:
        return StackedMarginals(found.nodes, None, [])
    pairs = found.edges()
    in_order = np.empty_like(pairs)
    in_order[data.edge_order] = pairs
    return StackedMarginals(found.nodes, in_order, [])


def _learned_labels(data: GraphData, part: GraphData, solution: Any) -> Ints | None:
    """Labels of the first graphs by the beliefs of learning, where it is known that prediction finds the same."""
    whole = data.labels is not None and bool(data.known.all())
    attained = solution.converged and solution.attained is not None and solution.attained >= 1.0 - APART
    if not (whole and attained) or isinstance(solution.beliefs, NoBeliefs):
        return None
    ends = data.node_pointer
    graphs = np.flatnonzero((ends[1:] > ends[:-1]) & (ends[1:] <= part.n_nodes)).tolist()
    beliefs = [solution.beliefs[m].hubs() for m in graphs]
    return np.asarray(np.concatenate(beliefs).argmax(axis=1), dtype=np.int64)
