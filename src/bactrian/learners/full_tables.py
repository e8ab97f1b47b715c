"""What learners for unshared full tables have in common: their class of models, and their result.

A cluster with K states has a *full table* where its features, a (K, n_weights) matrix F, can express every score up to
a constant: the centred matrix C F, C = I - 11'/K, has rank K - 1. Then scores t are reached by the smallest weights

    w = (C F)^+ C t,        F w = t + constant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.messages import MessageTables
from bactrian.camel.run import Run, Settings
from bactrian.graphs.packed import BeliefTables, PackedData
from bactrian.graphs.scores import SparseScores
from bactrian.solvers.solution import Record, Solution, Status

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Least part of a uniform distribution that observed marginals on the boundary are mixed with.
_LEAST_MIXTURE = 1e-12


class Tables:
    """The feature matrices of generative data, cluster by cluster; anything else is refused with the reason.

    Raises ``ValueError`` for a prior, for conditional data, for weights that several clusters share and for states that
    base scores forbid.
    """

    def __init__(self, data: PackedData, settings: Settings, method: str) -> None:
        self.data, self.method = data, method
        if not settings.prior.is_flat:
            raise ValueError(f"{method} has no prior; use prior_variance=None and l1=0")
        if not isinstance(data.scores, SparseScores) or not data.generative:
            raise ValueError(
                f"{method} learns from generative data, many samples of one model (Samples), found conditional data: "
                "its models change from instance to instance, so there are no observed marginals to match"
            )
        self.base = data.scores.base
        if not np.isfinite(self.base).all():
            raise ValueError(f"{method} needs base_scores that are finite, found forbidden states (-inf)")
        self._matrix = data.scores.matrix.copy()
        self._matrix.eliminate_zeros()
        self._inverses: dict[tuple[int, bytes], tuple[Floats, int]] = {}
        self._refuse_sharing()

    def rows_of_cluster(self, cluster: int) -> tuple[int, int]:
        """Rows of a table cluster in arrays over table entries and hub states."""
        layout = self.data.layout
        table = layout.cluster_table[cluster]
        return int(layout.table_offset[table]), int(layout.table_offset[table + 1])

    def rows_of_hub(self, hub: int) -> tuple[int, int]:
        """Rows of a hub in arrays over table entries and hub states."""
        layout = self.data.layout
        return layout.n_entries + int(layout.hub_offset[hub]), layout.n_entries + int(layout.hub_offset[hub + 1])

    def has_features(self, rows: tuple[int, int]) -> bool:
        """Whether any weight acts on these rows."""
        return bool(self._matrix.indptr[rows[1]] > self._matrix.indptr[rows[0]])

    def inverse(self, rows: tuple[int, int], cluster: int) -> tuple[Ints, Floats]:
        """Weights of a full table and the matrix (weights, states) from scores to them; ``cluster`` is for errors."""
        block = self._matrix[rows[0] : rows[1]]
        columns = np.unique(block.indices)
        features = block[:, columns].toarray() if columns.size else np.zeros((rows[1] - rows[0], 0))
        key = (features.shape[1], features.tobytes())  # indicators of one size are all alike
        if key not in self._inverses:
            self._inverses[key] = _centred_inverse(features)
        inverse, rank = self._inverses[key]
        if rank < features.shape[0] - 1:
            raise ValueError(
                f"{self.method} needs a full table on cluster {cluster}: up to a constant its {features.shape[0]} "
                f"states have {features.shape[0] - 1} free scores, and its features span {rank}"
            )
        return columns, inverse

    def _refuse_sharing(self) -> None:
        data, layout = self.data, self.data.layout
        offsets = np.concatenate([layout.table_offset, layout.n_entries + layout.hub_offset[1:]])
        owner_of_row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        owner_of_value = np.repeat(owner_of_row, np.diff(self._matrix.indptr))
        pairs = np.unique(np.stack([self._matrix.indices, owner_of_value]), axis=1)
        users = np.concatenate([np.bincount(layout.cluster_table, minlength=layout.n_tables), np.ones(layout.n_hubs)])
        shared = np.flatnonzero(np.bincount(pairs[0], weights=users[pairs[1]]) > 1.0)
        if not shared.size:
            return
        owners = pairs[1][pairs[0] == shared[0]]
        clusters = data.cluster_index[np.isin(layout.cluster_table, owners)].tolist()
        clusters += data.hub_index[owners[owners >= layout.n_tables] - layout.n_tables].tolist()
        first, second = sorted(clusters)[:2]
        raise ValueError(
            f"{self.method} needs weights of its own for every cluster: "
            f"weight {shared[0]} is shared by clusters {first} and {second}"
        )


def _centred_inverse(features: Floats) -> tuple[Floats, int]:
    """The pseudo-inverse of the centred features, and their rank."""
    centred = features - features.mean(axis=0)
    if not centred.size:
        return np.zeros(centred.shape[::-1]), 0
    left, singular, right = np.linalg.svd(centred, full_matrices=False)
    kept = singular > singular[0] * max(centred.shape) * np.finfo(np.float64).eps
    inverse: Floats = (right[kept].T / singular[kept]) @ left[:, kept].T
    return inverse - inverse.mean(axis=1, keepdims=True), int(kept.sum())


def mixture(on_boundary: bool, tolerance: float) -> float:
    """Part of a uniform distribution in the moments that are matched: 0 where no observed marginal is zero.

    Weights that match a marginal of zero are infinite. Mixed with a uniform distribution over joint states, the
    observed marginals stay consistent and move by no more than the tolerance, and the weights are finite.
    """
    return min(max(tolerance, _LEAST_MIXTURE), 0.5) if on_boundary else 0.0


def mixed(marginals: Floats, part: float, sizes: int | Ints) -> Floats:
    """Marginals of ``sizes`` states each, mixed with that part of uniform ones."""
    both: Floats = (1.0 - part) * marginals + part / sizes
    return both


def finish(run: Run, dual: Dual, evaluation: Evaluation, weights: Floats, status: Status, sweeps: int = 0) -> Solution:
    """The solution at the dual's last evaluation, with its multipliers as they are."""
    gap = float(np.abs(evaluation.gradient).max(initial=0.0))
    violation = dual.largest_violation()
    record = Record(
        outer=0,
        objective=evaluation.value,
        moment_gap=gap,
        violation=violation,
        iterations=sweeps,
        evaluations=max(sweeps, 1),
        sweeps=sweeps,
        seconds=run.seconds,
    )
    return Solution(
        weights=weights,
        status=status,
        history=(record,),
        objective=evaluation.value,
        moment_gap=gap,
        violation=violation,
        beliefs=BeliefTables(run.data, MessageTables(dual.part)),
        method=run.name,
        seconds=run.seconds,
        evaluations=record.evaluations,
    )
