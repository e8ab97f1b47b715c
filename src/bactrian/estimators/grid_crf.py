"""A conditional random field over grids, such as the pixels of images, in the manner of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bactrian.arrays import Ints, real_numbers
from bactrian.errors import about, check_flag
from bactrian.estimators.graph_arrays import StackedGraphs, stack_rows
from bactrian.estimators.graph_crf import GraphEstimator
from bactrian.estimators.labels import checked_list
from bactrian.graphs.ragged import pointer

#: Steps from a node to its neighbours, rows then columns: right, down, and the two diagonals downwards.
_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))


@dataclass(kw_only=True, eq=False, repr=False)
class GridCRF(GraphEstimator):
    """A conditional random field over grids: the labels of pixels, given features of each.

    log p(y | x) = sum_i w[y_i] . x_i + sum_(i,j) t[y_i, y_j] - log Z(x) over the nodes i of a grid and its pairs of
    neighbours (i, j). X is a list of arrays (h, w, d), features of every node, or (h, w) for a single one; y is a list
    of (h, w) arrays of labels: integers, booleans or strings. Grids may differ in size.

    Parameters
    ----------
    connectivity : {4, 8}
        Neighbours of a node: along rows and columns, or diagonally too.
    tables : {"pooled", "symmetric", "full", "diagonal", "potts"}
        How an edge's table is tied; see :class:`GraphCRF`. ``"full"`` tables are asymmetric: rows belong to the node
        further left, or further up.
    by_direction : bool
        A table for every direction (along rows, along columns, two diagonals) instead of one for all. With ``"full"``
        tables that tells "sky above sea" from "sea above sky" and from either beside the other.
    method : str or learner
        Any learner of :func:`bactrian.learn`; see :class:`GraphCRF` for the default.
    prior_variance : float, mapping, "cv" or None
        See :class:`GraphCRF`.
    l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`. The tolerance bounds moment gaps in sums over nodes, so larger grids need no
        smaller one.
    node_factors : {"clusters", "edges"}
        Whether node scores are clusters of their own (the default), whose entropy counts, or are absorbed into the
        incident edges. Piecewise training and CAMEL(0) depend on it; CCCP and the likelihoods do not.
    fit_intercept : bool
        Append a feature that is 1 at every node; it is regularised as the others.
    labels, class_weight, inference, inference_options, seed, warm_start, verbose
        See :class:`GraphCRF`.

    Attributes
    ----------
    weights_, classes_, solution_, n_features_in_, inference_method_
        See :class:`GraphCRF`.

    Examples
    --------
    >>> import numpy as np
    >>> import bactrian as bt
    >>> truth = np.repeat([[0, 1], [1, 0]], 4, axis=0).repeat(4, axis=1)
    >>> noisy = truth + np.random.default_rng(0).normal(0, 0.5, truth.shape)
    >>> crf = bt.GridCRF().fit([noisy], [truth])
    >>> bool(crf.score([noisy], [truth]) > 0.9)
    True
    """

    connectivity: int = 4
    by_direction: bool = False
    connectivity_: int = field(init=False)

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        _checked_connectivity(self.connectivity)
        check_flag("by_direction", self.by_direction)

    def _stack(self, X: Any, fitted: bool) -> StackedGraphs:
        connectivity = self.connectivity_ if fitted else _checked_connectivity(self.connectivity)
        intercept = self.intercepts_[0] if fitted else bool(self.fit_intercept)
        by_direction = len(self.tyings_) > 1 if fitted else bool(self.by_direction)
        rows, shapes = _checked_grids(X, self.n_features_in_ if fitted else None)
        kinds = [grid_edges(*shape, connectivity) for shape in shapes]
        first = pointer(np.array([h * w for h, w in shapes]))
        edges = [pairs + start for (pairs, _), start in zip(kinds, first[:-1], strict=True)]
        return StackedGraphs(
            inputs=stack_rows(rows, intercept),
            edges=np.concatenate(edges),
            edge_types=np.concatenate([types for _, types in kinds]) if by_direction else None,
            edge_inputs=None,
            shapes=list(shapes),
            edge_counts=np.array([len(pairs) for pairs in edges], dtype=np.int64),
            columns={
                "n_features_in_": rows[0].shape[1],
                "n_edge_features_": None,
                "intercepts_": (intercept, False),
                "connectivity_": connectivity,
            },
        )

    def _tyings(self) -> tuple[str, ...]:
        return (self.tables,) * (_checked_connectivity(self.connectivity) // 2 if self.by_direction else 1)

    def _contents(self) -> Any:
        attributes, arrays = super()._contents()
        return {**attributes, "connectivity": self.connectivity_}, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Any) -> None:
        super()._restore(attributes, arrays)
        self.connectivity_ = _checked_connectivity(attributes["connectivity"])
        if len(self.tyings_) not in (1, self.connectivity_ // 2):
            raise ValueError(f"it has {len(self.tyings_)} tables for a {self.connectivity_}-connected grid")


def grid_edges(height: int, width: int, connectivity: int = 4) -> tuple[Ints, Ints]:
    """Pairs of neighbours (n_edges, 2), nodes in row order, and the direction of each.

    Directions come one after the other: 0 right, 1 down, and where ``connectivity`` is 8, 2 down and right, 3 down and
    left. The first node of a pair is the one further up, or to the left.

    >>> grid_edges(2, 2, 8)[0].tolist()
    [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]]
    """
    index = np.arange(height * width, dtype=np.int64).reshape(height, width)
    pairs = []
    for down, right in _STEPS[: connectivity // 2]:
        first = index[: height - down, max(0, -right) : width - max(0, right)]
        second = index[down:, max(0, right) : width + min(0, right)]
        pairs.append(np.stack([first.ravel(), second.ravel()], axis=1))
    return np.concatenate(pairs), np.repeat(np.arange(len(pairs)), [len(part) for part in pairs])


def _checked_connectivity(connectivity: Any) -> int:
    if not isinstance(connectivity, int | np.integer) or connectivity not in (4, 8):
        raise ValueError(f"connectivity must be 4 or 8, found {connectivity!r}")
    return int(connectivity)


def _checked_grids(X: Any, n_features: int | None) -> tuple[list[Any], list[tuple[int, int]]]:
    """Rows (h * w, d) and shape of each grid."""
    rows, shapes = [], []
    for i, grid in enumerate(checked_list(X, "X", "arrays (height, width, n_features)")):
        with about("X", i):
            array = real_numbers(grid, "")
            if array.ndim == 2:
                array = array[:, :, None]
            if array.ndim != 3 or 0 in array.shape[:2]:
                raise ValueError(f"must have shape (height, width, n_features), none 0, found {np.shape(grid)}")
            n_features = array.shape[2] if n_features is None else n_features
            if array.shape[2] != n_features:
                raise ValueError(f"has {array.shape[2]} features, expected {n_features}")
            if not np.isfinite(array).all():
                raise ValueError("holds NaN or infinite values; features must be finite")
        height, width = array.shape[:2]
        rows.append(array.reshape(height * width, -1))
        shapes.append((height, width))
    return rows, shapes
