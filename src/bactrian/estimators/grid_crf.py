"""A conditional random field over grids, such as the pixels of images, in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Arrays, Floats, Ints, rectangular
from bactrian.errors import ArgumentError, about, check_choice, check_flag
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.graph_crf import GraphCRF
from bactrian.estimators.graph_inputs import GraphReader, StackedGraphs, stack_rows
from bactrian.estimators.labelled_graphs import (
    BLOCKS,
    CONVEX,
    GraphCodec,
    check_graph_params,
    encode_graphs,
)
from bactrian.estimators.labels import checked_list
from bactrian.graphs.graph import neighbours
from bactrian.graphs.graph_data import GraphData

_CONNECTIVITIES = (4, 8, 6, 18, 26)
_SINGLE = "is of a single grid; pass lists: fit([X], [y]), predict([X])"


@dataclass(kw_only=True, eq=False, repr=False)
class GridCRF(LearnedEstimator):
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
class_weight, inference, inference_options, seed, warm_start, verbose, device
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

    _block_names: ClassVar = BLOCKS
    _tables: ClassVar = ("tables",)

    method: Any = CONVEX
    tolerance: float = 1e-3
    tables: str = "pooled"
    labels: Any = None
    class_weight: Any = None
    node_factors: str = "clusters"
    fit_intercept: bool = True
    inference: str = "matched"
    inference_options: Mapping[str, Any] | None = None
    device: str | None = None
    connectivity: int = 4
    by_direction: bool = False
    edge_features: str | None = None
    n_edge_features_: int | None = field(init=False)
    contrast_: Floats | None = field(init=False)

    # --- learning ---

    fit = GraphCRF.fit
    _held_out = GraphCRF._held_out

    def encode(self, X: Any, y: Any, sample_weight: Any = None) -> GraphData:
        """The data that :meth:`fit` learns from; see :meth:`GraphCRF.encode`."""
        self.check_params()
        connectivity, contrast = int(self.connectivity), self.edge_features is not None
        _check_axes(X, y, _axes(connectivity))
        intercepts = bool(self.fit_intercept), True
        reader = GridReader(intercepts, None, None, connectivity, bool(self.by_direction), contrast)
        tyings = (self.tables,) * (connectivity // 2 if self.by_direction else 1)
        codec, data = encode_graphs(self, reader, tyings, X, y, sample_weight)
        self._encoded(codec)
        return data

    def _hold(self, codec: GraphCodec) -> None:
        super()._hold(codec)
        self.n_edge_features_, self.contrast_ = codec.reader.n_edge_features, codec.reader.scales

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        check_graph_params(self)
        _checked_connectivity(self.connectivity)
        check_flag("by_direction", self.by_direction)
        if self.edge_features is not None:
            check_choice("edge_features", self.edge_features, ("contrast",))

    learning_options = GraphCRF.learning_options

    # --- prediction, as on graphs ---

    inference_method_ = GraphCRF.inference_method_
    predict_marginals = GraphCRF.predict_marginals
    predict = GraphCRF.predict
    decode = GraphCRF.decode
    score = GraphCRF.score
    diagnose = GraphCRF.diagnose
    weight_tables = GraphCRF.weight_tables
    _folds, _judge, _replays = GraphCRF._folds, GraphCRF._judge, GraphCRF._replays

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        attributes, arrays = self.codec_.contents()
        if self.contrast_ is not None:
            arrays["contrast"] = self.contrast_
        return {**attributes, "connectivity": self.codec_.reader.connectivity}, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        connectivity = _checked_connectivity(attributes["connectivity"])
        n_tables, scales = len(attributes["tyings"]), arrays.get("contrast")
        if n_tables not in (1, connectivity // 2):
            raise ValueError(f"it has {n_tables} tables for a {connectivity}-connected grid")

        def reader(intercepts: tuple[bool, bool], n_features: int, n_edge_features: int | None) -> GridReader:
            if scales is not None and (scales.shape != (n_features,) or not (scales > 0.0).all()):
                raise ValueError("its scales of contrast are not positive numbers, one per feature")
            if scales is not None and n_edge_features != 1:
                raise ValueError(f"it has {n_edge_features} edge features, expected one, of contrast")
            sizes = n_features, n_edge_features
            return GridReader(intercepts, *sizes, connectivity, n_tables > 1, scales is not None, scales)

        self._hold(GraphCodec.restored(attributes, arrays, self.weights_.size, reader))


@dataclass(frozen=True)
class GridReader(GraphReader):
    """Stacks grids as graphs of neighbours."""

    connectivity: int = 4
    by_direction: bool = False  #: whether edges of every direction are a type of their own
    contrast: bool = False  #: whether their feature is the contrast between their ends
    scales: Floats | None = None  #: (n_features,) mean squared differences, the unit of contrast

    def read(self, X: Any) -> tuple[Self, StackedGraphs]:
        """The grids, and a reader of others with as many features, in the same units of contrast."""
        graphs, types, shapes = [], [], []
        axes = _axes(self.connectivity)
        if isinstance(X, np.ndarray) and X.ndim > axes and self.n_features == X.shape[axes] > 1 == X.ndim - axes:
            raise ArgumentError("X", _SINGLE)
        for grid, own in _checked_grids(X, axes, may_be_empty=self.n_features is not None):
            if self.contrast and own is not None:
                raise ValueError("X brings edge features, which edge_features='contrast' computes; give one of the two")
            shapes.append(grid.shape[:-1])
            pairs, directions = neighbours(shapes[-1], self.connectivity)
            graphs.append((grid.reshape(-1, grid.shape[-1]), pairs, own))
            types.append(directions)
        given = replace(self, n_edge_features=None) if self.contrast else self
        reader, stacked = GraphReader.read(given, graphs)
        if self.contrast:
            features = stacked.inputs[:, : reader.n_features]
            scales = _scales(features, stacked.edges) if self.scales is None else self.scales
            contrast = stack_rows([_contrast(features, stacked.edges, scales)], intercept=True)
            reader = replace(reader, n_edge_features=1, scales=scales)
            stacked = replace(stacked, edge_inputs=contrast)
        edge_types = np.concatenate([np.zeros(0, dtype=np.int64), *types]) if self.by_direction else None
        return reader, replace(stacked, shapes=shapes, edge_types=edge_types)


def _checked_connectivity(connectivity: Any) -> int:
    if not isinstance(connectivity, int | np.integer) or connectivity not in _CONNECTIVITIES:
        raise ValueError(f"connectivity must be 4 or 8 in a plane, 6, 18 or 26 in a volume, found {connectivity!r}")
    return int(connectivity)


def _axes(connectivity: int) -> int:
    return 2 if connectivity in (4, 8) else 3


def _check_axes(X: Any, y: Any, axes: int) -> None:
    """Refuse labels of a single grid, and of volumes where grids are pictures."""
    listed = isinstance(y, Sequence | np.ndarray) and len(y) > 0
    shape = np.shape(np.asarray(y[0], dtype=object)) if listed else (0,) * axes
    found, n_grids = len(shape), len(X) if hasattr(X, "__len__") else 0
    rows = isinstance(X, np.ndarray) or (isinstance(X, list) and bool(X) and isinstance(X[0], list))
    if found == axes - 1 and (rows or n_grids != len(y)):
        raise ArgumentError("y", _SINGLE)
    if listed and isinstance(X, np.ndarray) and n_grids != len(y) and X.shape[:axes] == shape:
        raise ArgumentError("X", _SINGLE)
    if found == 3 > axes:
        raise ArgumentError("y", "is a volume, with three axes; pass connectivity=6, 18 or 26", 0)


def _checked_grids(X: Any, axes: int, *, may_be_empty: bool) -> Iterator[tuple[NDArray[Any], Any]]:
    """Features (..., d) of each grid, and the edge features that came with it, or None."""
    expected = f"({', '.join(('depth', 'height', 'width')[3 - axes :])}, n_features)"
    for i, given in enumerate(checked_list(X, "X", f"arrays {expected}", may_be_empty=may_be_empty)):
        with about("X", i):
            grid, own = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
            array = rectangular(grid, "")
            array = array[..., None] if array.ndim == axes else array
            if array.ndim != axes + 1 or 0 in array.shape[:axes]:
                more = "; for volumes pass connectivity=6" if array.ndim == 4 else ""
                more = "; a single grid goes into a list" if array.ndim == axes - 1 else more
                raise ValueError(f"must have shape {expected}, none 0, found {np.shape(grid)}{more}")
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
