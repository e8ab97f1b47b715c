"""A conditional random field over grids, such as the pixels of images, in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints, rectangular
from bactrian.errors import about, check_choice, check_flag
from bactrian.estimators.graph_arrays import StackedGraphs, stack_graphs, stack_rows
from bactrian.estimators.graph_base import GraphEstimator
from bactrian.estimators.labels import checked_list
from bactrian.graphs.graph import neighbours

_CONNECTIVITIES = (4, 8, 6, 18, 26)


@dataclass(kw_only=True, eq=False, repr=False)
class GridCRF(GraphEstimator):
    """A conditional random field over grids: the labels of pixels or voxels, given features of each.

    log p(y | x) = sum_i w[y_i] . x_i + sum_(i,j) t_ij[y_i, y_j] - log Z(x) over the nodes i of a grid and its pairs of
    neighbours (i, j). X is a list of arrays (h, w, d), features of every node, or (h, w) for a single one; y is a list
    of (h, w) arrays of labels: integers, booleans or strings. Volumes are (depth, h, w, d) or (depth, h, w). Grids may
    differ in size. A pair ``(grid, edge_features)`` gives features of edges, (n_edges, e), in the order of
    :func:`bactrian.vision.neighbours`.

    Parameters
    ----------
    connectivity : {4, 8, 6, 18, 26}
        Neighbours of a node. In a plane 4, along rows and columns, or 8, diagonally too; in a volume 6, along the
        axes, 18, across edges, or 26, across corners too.
    edge_features : {None, "contrast"}
        None: all edges share one table t, or it is a sum weighted by the edge features in X. ``"contrast"``: t_ij = T_0
        + z_ij T_1, where z_ij = exp(-r / 2) is near 1 between alike pixels and near 0 across an outline; r is the mean
        over features of squared differences, in units of their mean in the training pictures.
    tables : {"pooled", "symmetric", "full", "diagonal", "potts"}
        How an edge's table is tied; see :class:`GraphCRF`. ``"full"`` tables are asymmetric: rows belong to the node
        further left, or further up.
    by_direction : bool
        Learn a table for every direction (along rows, along columns, diagonals) instead of one for all. With ``"full"``
        tables this distinguishes "sky above sea" from "sea above sky" and from either beside the other.
    method : str or learner
        Any learner of :func:`bactrian.learn`; see :class:`GraphCRF` for the default.
    prior_variance, l1, tolerance, max_iterations, max_seconds, n_threads, node_factors, fit_intercept, labels, \
class_weight, inference, inference_options, seed, warm_start, verbose
        See :class:`GraphCRF`.

    Attributes
    ----------
    weights_, classes_, solution_, n_features_in_, n_edge_features_, inference_method_
        See :class:`GraphCRF`.
    contrast_ : (n_features,) or None
        Mean squared difference of each feature between neighbours, the unit of contrast.

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
    edge_features: str | None = None
    connectivity_: int = field(init=False)
    contrast_: Floats | None = field(init=False)

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        _checked_connectivity(self.connectivity)
        check_flag("by_direction", self.by_direction)
        if self.edge_features is not None:
            check_choice("edge_features", self.edge_features, ("contrast",))

    def _stack(self, X: Any, fitted: bool) -> StackedGraphs:
        connectivity = self.connectivity_ if fitted else _checked_connectivity(self.connectivity)
        intercept = self.intercepts_[0] if fitted else bool(self.fit_intercept)
        by_direction = len(self.tyings_) > 1 if fitted else bool(self.by_direction)
        contrast = self.contrast_ is not None if fitted else self.edge_features == "contrast"
        graphs, shapes = [], []
        for grid, own in _checked_grids(X, 2 if connectivity in (4, 8) else 3):
            if contrast and own is not None:
                raise ValueError("X brings edge features, which edge_features='contrast' computes; give one of the two")
            shapes.append(grid.shape[:-1])
            graphs.append((grid.reshape(-1, grid.shape[-1]), neighbours(shapes[-1], connectivity), own))
        stacked = stack_graphs(
            [(rows, pairs, own) for rows, (pairs, _), own in graphs],
            n_features=self.n_features_in_ if fitted else None,
            n_edge_features=self.n_edge_features_ if fitted and not contrast else None,
            fitted=fitted,
            intercept=intercept,
            edge_intercept=True,
        )
        edge_inputs = stacked.edge_inputs
        columns = {**stacked.columns, "connectivity_": connectivity, "contrast_": None}
        if contrast:
            rows = stacked.inputs[:, : columns["n_features_in_"]]
            scales: Any = self.contrast_ if fitted else _scales(rows, stacked.edges)
            edge_inputs = stack_rows([_contrast(rows, stacked.edges, scales)], intercept=True)
            columns |= {"n_edge_features_": 1, "contrast_": scales}
        types = np.concatenate([types for _, (_, types), _ in graphs]) if by_direction else None
        return replace(stacked, shapes=shapes, edge_types=types, edge_inputs=edge_inputs, columns=columns)

    def _tyings(self) -> tuple[str, ...]:
        return (self.tables,) * (_checked_connectivity(self.connectivity) // 2 if self.by_direction else 1)

    def _contents(self) -> Any:
        attributes, arrays = super()._contents()
        if self.contrast_ is not None:
            arrays["contrast"] = self.contrast_
        return {**attributes, "connectivity": self.connectivity_}, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Any) -> None:
        super()._restore(attributes, arrays)
        self.connectivity_ = _checked_connectivity(attributes["connectivity"])
        if len(self.tyings_) not in (1, self.connectivity_ // 2):
            raise ValueError(f"it has {len(self.tyings_)} tables for a {self.connectivity_}-connected grid")
        self.contrast_ = arrays.get("contrast")
        if self.contrast_ is not None and (
            self.contrast_.shape != (self.n_features_in_,) or not (self.contrast_ > 0.0).all()
        ):
            raise ValueError("its scales of contrast are not positive numbers, one per feature")
        if self.contrast_ is not None and self.n_edge_features_ != 1:
            raise ValueError(f"it has {self.n_edge_features_} edge features, expected one, of contrast")


def _checked_connectivity(connectivity: Any) -> int:
    if not isinstance(connectivity, int | np.integer) or connectivity not in _CONNECTIVITIES:
        raise ValueError(f"connectivity must be 4 or 8 in a plane, 6, 18 or 26 in a volume, found {connectivity!r}")
    return int(connectivity)


def _checked_grids(X: Any, axes: int) -> Iterator[tuple[NDArray[Any], Any]]:
    """Features (..., d) of each grid, and the edge features that came with it, or None."""
    expected = f"({', '.join(('depth', 'height', 'width')[3 - axes :])}, n_features)"
    for i, given in enumerate(checked_list(X, "X", f"arrays {expected}")):
        with about("X", i):
            grid, own = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
            array = rectangular(grid, "")
            array = array[..., None] if array.ndim == axes else array
            if array.ndim != axes + 1 or 0 in array.shape[:axes]:
                raise ValueError(f"must have shape {expected}, none 0, found {np.shape(grid)}")
        yield array, own


def _scales(rows: Floats, edges: Ints) -> Floats:
    """(d,) mean squared difference of each feature between neighbours, infinite where there is none."""
    squared = ((rows[edges[:, 0]] - rows[edges[:, 1]]) ** 2).mean(axis=0) if len(edges) else np.zeros(rows.shape[1])
    return np.where(squared > 0.0, squared, np.inf)


def _contrast(rows: Floats, edges: Ints, scales: Floats) -> Floats:
    """(n_edges, 1) exp(-r / 2), r the mean over features of squared differences in units of their scales."""
    total: Floats = np.zeros(len(edges))
    for column, scale in zip(rows.T, scales, strict=True):
        total += (column[edges[:, 0]] - column[edges[:, 1]]) ** 2 / scale
    contrast: Floats = np.exp(-total / (2.0 * max(1, np.isfinite(scales).sum())))
    return contrast[:, None]
