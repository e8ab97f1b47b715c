"""What estimators share whose data are graphs of labelled nodes: sequences, graphs and grids."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.run import NoBeliefs
from bactrian.errors import check_choice, warn
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.labels import check_class_weight
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.graphs.graph_data import NODE_FACTORS, GraphData
from bactrian.inference.infer import StackedMarginals, graph_marginals
from bactrian.learners.agreement import APART, UNATTAINED, depends_on_start
from bactrian.solvers.solution import AttainmentWarning, ConvergenceWarning

#: Nodes of the training graphs that a fitted model is judged on, in whole graphs, and what its edges may cost.
_JUDGED_NODES, _TWO_POINTS = 20_000, 0.02


@dataclass(kw_only=True, eq=False, repr=False)
class NodeLabeller(LearnedEstimator):
    """Base of estimators that learn from a :class:`bactrian.GraphData` and label its nodes."""

    labels: Any = None
    class_weight: Any = None
    node_factors: str

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("node_factors", self.node_factors, NODE_FACTORS)
        check_class_weight(self.class_weight)

    @property
    def _advice(self) -> str:
        """What to do where edges make the labels worse."""
        raise NotImplementedError

    def _layout(self) -> GraphData:
        """Data of a single node with the fitted shapes, which knows how weights are ordered."""
        raise NotImplementedError

    def _n_weights(self) -> int:
        return self._layout().n_weights

    def _predicted_codes(self, data: GraphData) -> Ints:
        """Numbers of the labels that prediction gives all nodes."""
        raise NotImplementedError

    @property
    def _finds_learned(self) -> bool:
        """Whether predictions are what inference with the entropy of the learner says."""
        return self._replays

    def _judge(self, data: GraphData) -> None:
        """Warn where edges make the predicted labels worse by two points, in a sample of the graphs of learning."""
        from bactrian.learners.findings import labels_of_nodes  # takes a while to import

        assert data.labels is not None
        nodes = np.repeat(data.node_pointer[:-1] < _JUDGED_NODES, np.diff(data.node_pointer))
        part = data if nodes.all() else data.subset(nodes)
        known = data.labels[nodes] >= 0
        if part.edges.size == 0 or not known.any():
            return
        found = self._learned_labels(data, part)
        if found is None:
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                found = self._predicted_codes(part)
        right, alone = (
            float(np.mean(labels[known] == data.labels[nodes][known]))
            for labels in (found, labels_of_nodes(part, self.weights_))
        )
        if right < alone - _TWO_POINTS:
            warn(
                f"{self.solution_.method}: inference gets {100 * right:.1f} % of the training labels right, the scores "
                f"of the nodes alone {100 * alone:.1f} %: {self._advice}",
                AttainmentWarning,
            )

    def _learned_labels(self, data: GraphData, part: GraphData) -> Ints | None:
        """Labels of the first graphs by the beliefs of learning, where it is known that prediction finds the same."""
        solution: Any = self.solution_
        whole = data.labels is not None and bool((data.labels >= 0).all())
        attained = solution.converged and solution.attained is not None and solution.attained >= 1.0 - APART
        if not (self._finds_learned and whole and attained) or isinstance(solution.beliefs, NoBeliefs):
            return None
        ends = data.node_pointer
        graphs = np.flatnonzero((ends[1:] > ends[:-1]) & (ends[1:] <= part.n_nodes)).tolist()
        beliefs = [solution.beliefs[m].hubs() for m in graphs]
        return np.asarray(np.concatenate(beliefs).argmax(axis=1), dtype=np.int64)

    def _infer_graphs(
        self, data: GraphData, weights: Floats, method: str, evidence: Any, edges: bool, **options: Any
    ) -> StackedMarginals:
        """Marginals; by belief propagation where exact inference was only matched to the learner and does not fit.

        Where learning did not end at what belief propagation finds, two more starts tell whether labels depend on them.
        """
        try:
            found = graph_marginals(data, weights, method, evidence, edges=edges, **options)
        except MemoryBudgetError:
            if self.inference != "matched":
                raise
            method, options = "rbp", {name: value for name, value in options.items() if name != "memory_budget"}
            found = graph_marginals(data, weights, method, evidence, edges=edges, **options)
        attained = self.solution_.attained
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
