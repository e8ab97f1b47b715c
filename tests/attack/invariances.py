"""Estimators of random data, and the same data written otherwise: each check is two answers that must agree.

A :class:`Check` compares probabilities, by exact inference at the learned weights, after a change that the model cannot
see (other names of classes, another order of instances, nodes, edges or columns, another type of array) or whose effect
is known (data twice with half the weight or half the prior variance). Objectives here are strictly convex, so that
their optimum is one; changes that leave the numbers alone must not change a bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

import bactrian as bt
from bactrian.frames import Table
from bactrian.graphs.graph import grid_edges

#: Probabilities learned twice agree to this; bits of the same numbers agree.
LEARNED, BITS = 2e-6, 0.0
#: Labels, in order, that stand for 0, 1, 2 and so on.
WORDS = ("beta", "gamma ray", "Ärger", "ω")
TOLERANCE = 1e-8


class Check(NamedTuple):
    """Two answers that must agree, and how far apart they may be."""

    name: str
    found: Callable[[], Any]
    expected: Any
    apart: float = LEARNED

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        found, expected = self.found(), self.expected
        one, other = (np.concatenate([np.zeros(0), *map(np.ravel, parts)]) for parts in (found, expected))
        if one.shape != other.shape:
            return [f"{one.size} numbers, expected {other.size}"]
        apart = float(np.abs(one - other).max(initial=0.0))
        return [] if apart <= self.apart else [f"{apart:.2g} apart, expected at most {self.apart:g}"]


def written_otherwise(labels: Any, n_classes: int) -> Iterator[tuple[str, Any]]:
    """The same labels, which are lists of integer arrays, in other types."""
    yield "lists", [part.tolist() for part in labels]
    for kind in ("int8", "uint8", "int32", "uint64", ">i4", "object"):
        yield kind, [part.astype(kind) for part in labels]
    yield "read-only", [_read_only(part) for part in labels]
    yield "strings", [np.array(WORDS, dtype=object)[part].astype(str) for part in labels]
    yield "string objects", [np.array(WORDS, dtype=object)[part] for part in labels]
    yield "string lists", [np.array(WORDS, dtype=object)[part].tolist() for part in labels]
    yield "large integers", [10**12 * part - 5 * 10**11 for part in labels]
    if n_classes == 2:
        yield "booleans", [part.astype(bool) for part in labels]
        yield "boolean lists", [part.astype(bool).tolist() for part in labels]


def unknown_otherwise(labels: Any) -> Iterator[tuple[str, Any]]:
    """Labels of which some are -1, with other words for unknown ones."""
    for name, words in (("None", (None,)), ("NaN", (np.nan,)), ("-1 or None", (-1, None))):
        yield (
            name,
            [
                [words[t % len(words)] if label == -1 else label for t, label in enumerate(part.tolist())]
                for part in labels
            ],
        )
    yield "NaN of floats", [np.where(part == -1, np.nan, part) for part in labels]
    yield "empty strings", [["" if label == -1 else WORDS[label] for label in part.tolist()] for part in labels]


def _read_only(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def _reloaded(estimator: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        estimator.save(Path(folder) / "model")
        return type(estimator).load(Path(folder) / "model")


def _shuffled(rng: np.random.Generator, *lists: list[Any]) -> list[list[Any]]:
    order = rng.permutation(len(lists[0]))
    return [[given[i] for i in order] for given in lists]


def _all_seen(rng: np.random.Generator, labels: list[Any], n_classes: int) -> None:
    """Put every class somewhere: where a class is missing there is one less."""
    sizes = [part.size for part in labels]
    places = rng.permutation(sum(sizes))[:n_classes]
    flat = np.concatenate([part.ravel() for part in labels])
    flat[places] = np.arange(n_classes)
    for part, values in zip(labels, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
        part[...] = values.reshape(part.shape)


def _with_holes(rng: np.random.Generator, labels: list[Any], n_classes: int) -> list[Any]:
    """Labels of which some, one at least, are -1; every class is left."""
    known = [np.where(rng.random(part.size) < 0.3, -1, part) for part in labels]
    _all_seen(rng, known, n_classes)
    return known if any((part < 0).any() for part in known) else [*known[:-1], np.append(known[-1][:-1], -1)]


# --- graphs ---

GRAPH_METHODS: tuple[Any, ...] = (
    "exact", "convex", bt.Camel(entropy="convex"), "camel0", "piecewise", "pseudolikelihood",
    "piecewise-pseudolikelihood",
)  # fmt: skip
SYMMETRIC = ("pooled", "symmetric", "potts", "diagonal")


def graph_checks(number: int) -> Iterator[Check]:
    """Checks of :class:`bactrian.GraphCRF`."""
    rng = np.random.default_rng(number)
    k, d = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    method, tables = GRAPH_METHODS[number % 7], (*SYMMETRIC, "full")[number % 5]
    variance = float(rng.choice([0.3, 1.0, 3.0]))
    X, y = [], []
    for _ in range(int(rng.integers(3, 7))):
        n = int(rng.integers(2, 7))
        tree = [(int(rng.integers(i)), i) for i in range(1, n)]
        more = [(i, j) for i in range(n) for j in range(i) if (j, i) not in tree and rng.random() < 0.2]
        X.append((rng.integers(-16, 17, (n, d)) / 8.0, np.array([*tree, *more]).reshape(-1, 2)))
        y.append(rng.integers(k, size=n))
    _all_seen(rng, y, k)
    options = {
        "method": method, "tables": tables, "prior_variance": variance, "tolerance": TOLERANCE, "inference": "exact",
        "neighbours": "edges", "max_iterations": 2000,
    }  # fmt: skip

    def fitted(X: Any, y: Any, **more: Any) -> Any:
        weights = more.pop("sample_weight", None)
        return bt.GraphCRF(**{**options, **more}).fit(X, y, weights)

    crf = fitted(X, y)
    base = crf.predict_marginals(X)
    for name, other in written_otherwise(y, k):
        yield Check(f"labels as {name}", lambda other=other: fitted(X, other).predict_marginals(X), base, BITS)
    new = rng.permutation(k)
    yield Check(
        "classes renamed",
        lambda: [part[:, new] for part in fitted(X, [new[part] for part in y]).predict_marginals(X)],
        base,
    )
    order = rng.permutation(len(X))
    yield Check(
        "graphs reordered",
        lambda: fitted([X[i] for i in order], [y[i] for i in order]).predict_marginals(X),
        base,
    )
    nodes = [rng.permutation(len(part)) for part in y]
    places = [np.argsort(moved) for moved in nodes]
    # Tables of directed edges stay as they are: only the names of the nodes change.
    moved = [(rows[new], place[edges]) for (rows, edges), new, place in zip(X, nodes, places, strict=True)]
    there = [part[new] for part, new in zip(y, nodes, strict=True)]
    yield Check(
        "nodes reordered",
        lambda: [
            part[place] for part, place in zip(fitted(moved, there).predict_marginals(moved), places, strict=True)
        ],
        base,
    )
    yield Check("predicted after nodes were reordered", lambda: [
        part[place] for part, place in zip(crf.predict_marginals(moved), places, strict=True)
    ], base, 1e-10)  # fmt: skip
    mixed = [(rows, edges[rng.permutation(len(edges))]) for rows, edges in X]
    yield Check("edges reordered", lambda: fitted(mixed, y).predict_marginals(mixed), base)
    if tables in SYMMETRIC:
        turned = [(rows, np.where(rng.random((len(edges), 1)) < 0.5, edges, edges[:, ::-1])) for rows, edges in X]
        yield Check("edges turned round", lambda: fitted(turned, y).predict_marginals(turned), base)
    n = len(X)
    yield Check(
        "twice with half the weight",
        lambda: fitted([*X, *X], [*y, *y], sample_weight=np.full(2 * n, 0.5)).predict_marginals(X),
        base,
    )
    yield Check(
        "twice with half the prior variance",
        lambda: fitted([*X, *X], [*y, *y], prior_variance=variance / 2).predict_marginals(X),
        base,
    )
    yield Check(
        "weights and prior scaled",
        lambda: fitted(X, y, sample_weight=np.full(n, 4.0), prior_variance=variance / 4).predict_marginals(X),
        base,
    )
    one = int(rng.integers(n))
    yield Check(
        "one graph twice or with weight 2",
        lambda: fitted([*X, X[one]], [*y, y[one]]).predict_marginals(X),
        fitted(X, y, sample_weight=1.0 + (np.arange(n) == one)).predict_marginals(X),
    )
    noise = [(part[::-1] + 1) % k for part in y]
    yield Check(
        "graphs of no weight",
        lambda: fitted([*X, *X], [*y, *noise], sample_weight=np.repeat([1.0, 0.0], n)).predict_marginals(X),
        base,
    )
    empty = (np.zeros((0, d)), np.zeros((0, 2), dtype=np.int64))
    nothing = np.zeros(0, dtype=np.int64)
    yield Check(
        "graphs without nodes",
        lambda: fitted([empty, *X, empty], [nothing, *y, nothing]).predict_marginals([empty, *X])[1:],
        base,
    )
    if method == "exact":
        hidden = [np.full(part.size, -1) for part in y[:2]]
        yield Check(
            "graphs without known labels", lambda: fitted([*X, *X[:2]], [*y, *hidden]).predict_marginals(X), base
        )
        known = _with_holes(rng, y, k)
        some = fitted(X, known).predict_marginals(X)
        for name, other in unknown_otherwise(known):
            yield Check(f"unknown as {name}", lambda other=other: fitted(X, other).predict_marginals(X), some, BITS)
    shift = np.cumsum([0, *map(len, y)])
    union = [(
        np.concatenate([rows for rows, _ in X]),
        np.concatenate([edges + first for (_, edges), first in zip(X, shift, strict=False)]),
    )]  # fmt: skip
    yield Check("one graph of all", lambda: fitted(union, [np.concatenate(y)]).predict_marginals(X), base)
    columns = rng.permutation(d)
    yield Check(
        "features reordered",
        lambda: fitted([(rows[:, columns], e) for rows, e in X], y).predict_marginals(
            [(r[:, columns], e) for r, e in X]
        ),
        base,
    )
    for name, write in {
        "float32": lambda rows: rows.astype(np.float32),
        "Fortran's order": np.asfortranarray,
        "read-only rows": _read_only,
        "strided rows": lambda rows: np.repeat(rows, 2, axis=0)[::2],
        "lists of rows": lambda rows: rows.tolist(),
    }.items():
        other = [(write(rows), edges) for rows, edges in X]
        yield Check(f"features as {name}", lambda other=other: fitted(other, y).predict_marginals(other), base, BITS)
    for name, write in {"csr": sp.csr_array, "csc": sp.csc_matrix, "coo": sp.coo_array}.items():
        other = [(write(rows), edges) for rows, edges in X]
        yield Check(f"features as {name}", lambda other=other: fitted(other, y).predict_marginals(other), base)
    wider = [(np.column_stack([rows, np.zeros(len(rows))]), edges) for rows, edges in X]
    yield Check("a feature that is 0", lambda: fitted(wider, y).predict_marginals(wider), base)
    ones = [(np.column_stack([rows, np.ones(len(rows))]), edges) for rows, edges in X]
    yield Check("intercept by hand", lambda: fitted(ones, y, fit_intercept=False).predict_marginals(ones), base)
    scaled = [(64.0 * rows, edges) for rows, edges in X]
    bare = {"fit_intercept": False}
    yield Check(
        "features in another unit",
        lambda: fitted(
            scaled, y, **bare, prior_variance={"nodes": variance / 64.0**2, "edges": variance}
        ).predict_marginals(scaled),
        fitted(X, y, **bare).predict_marginals(X),
    )
    yield Check("classes declared", lambda: fitted(X, y, labels=range(k)).predict_marginals(X), base, BITS)
    yield Check(
        "classes declared backwards", lambda: fitted(X, y, labels=range(k)[::-1]).predict_marginals(X), base, BITS
    )
    yield Check("classes of weight 1", lambda: fitted(X, y, class_weight=[1.0] * k).predict_marginals(X), base, BITS)
    yield Check("three threads", lambda: fitted(X, y, n_threads=3).predict_marginals(X), base, BITS)
    yield Check("a clone", lambda: clone(crf).fit(X, y).predict_marginals(X), base, BITS)
    yield Check("saved and loaded", lambda: _reloaded(crf).predict_marginals(X), base, BITS)
    yield Check("one by one", lambda: [crf.predict_marginals([graph])[0] for graph in X], base, 1e-10)
    yield Check("labels of the largest marginals", lambda: crf.predict(X), [part.argmax(axis=1) for part in base], BITS)


# --- grids ---


def grid_checks(number: int) -> Iterator[Check]:
    """Checks of :class:`bactrian.GridCRF`, which is a graph with the edges of a grid."""
    rng = np.random.default_rng(10_000 + number)
    k, d = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    shapes = [tuple(int(size) for size in rng.integers(1, 4, 2)) for _ in range(4)] + [(2, 3)]
    X = [rng.integers(-16, 17, (*shape, d)) / 8.0 for shape in shapes]
    y = [rng.integers(k, size=shape) for shape in shapes]
    _all_seen(rng, y, k)
    options = {
        "method": GRAPH_METHODS[number % 7], "tables": SYMMETRIC[number % 4], "prior_variance": 1.0,
        "tolerance": TOLERANCE, "inference": "exact", "max_iterations": 2000,
    }  # fmt: skip

    def fitted(X: Any, y: Any, **more: Any) -> Any:
        return bt.GridCRF(**{**options, **more}).fit(X, y)

    crf = fitted(X, y)
    base = crf.predict_marginals(X)
    for name, other in written_otherwise(y, k):
        yield Check(f"labels as {name}", lambda other=other: fitted(X, other).predict_marginals(X), base, BITS)
    new = rng.permutation(k)
    yield Check(
        "classes renamed",
        lambda: [part[..., new] for part in fitted(X, [new[part] for part in y]).predict_marginals(X)],
        base,
    )
    for name, turn in {
        "transposed": lambda grid: np.swapaxes(grid, 0, 1),
        "upside down": lambda grid: grid[::-1],
        "mirrored": lambda grid: grid[:, ::-1],
    }.items():
        yield Check(
            name,
            lambda turn=turn: map(turn, fitted([*map(turn, X)], [*map(turn, y)]).predict_marginals([*map(turn, X)])),
            base,
        )
    graphs = [(rows.reshape(-1, d), grid_edges(*shape)) for rows, shape in zip(X, shapes, strict=True)]
    yield Check(
        "as graphs",
        lambda: (
            bt.GraphCRF(**options, neighbours="edges")
            .fit(graphs, [part.ravel() for part in y])
            .predict_marginals(graphs)
        ),
        base,
    )
    (X_other, y_other) = _shuffled(rng, X, y)
    yield Check("grids reordered", lambda: fitted(X_other, y_other).predict_marginals(X), base)
    yield Check(
        "twice with half the prior variance",
        lambda: fitted([*X, *X], [*y, *y], prior_variance=0.5).predict_marginals(X),
        base,
    )
    if d == 1:
        flat = [grid[..., 0] for grid in X]
        yield Check("a single feature without its axis", lambda: fitted(flat, y).predict_marginals(flat), base, BITS)
    yield Check("saved and loaded", lambda: _reloaded(crf).predict_marginals(X), base, BITS)
    yield Check("one by one", lambda: [crf.predict_marginals([grid])[0] for grid in X], base, 1e-10)


# --- sequences ---


def chain_checks(number: int) -> Iterator[Check]:
    """Checks of :class:`bactrian.LinearChainCRF`, and of :class:`bactrian.SkipChainCRF` without skips."""
    rng = np.random.default_rng(20_000 + number)
    k, d = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    lengths = rng.integers(1, 7, int(rng.integers(3, 7)))
    rows = [rng.integers(0, 3, (int(n), d)) / 2.0 for n in lengths]
    names = [f"f{j}" for j in range(d)]
    X = [[{name: float(v) for name, v in zip(names, row, strict=True)} for row in part.tolist()] for part in rows]
    y = [rng.integers(k, size=int(n)) for n in lengths]
    _all_seen(rng, y, k)
    lists = [part.tolist() for part in y]
    variance, tables = float(rng.choice([0.3, 1.0, 3.0])), ("full", "symmetric", "potts")[number % 3]
    method = ("exact", "piecewise", "pseudolikelihood", "camel0")[number % 4]
    options = {
        "method": method, "prior_variance": variance, "tolerance": TOLERANCE, "transition_tables": tables,
        "max_iterations": 2000, "fit_intercept": False,
    }  # fmt: skip

    def fitted(X: Any, y: Any, kind: Any = bt.LinearChainCRF, fit: Any = None, **more: Any) -> Any:
        return kind(**{**options, **more}).fit(X, y, **(fit or {}))

    crf = fitted(X, lists)
    base = crf.predict_marginals(X)
    for name, other in written_otherwise(y, k):
        yield Check(f"labels as {name}", lambda other=other: fitted(X, other).predict_marginals(X), base, BITS)
    new = rng.permutation(k)
    yield Check(
        "classes renamed",
        lambda: [part[:, new] for part in fitted(X, [new[part] for part in y]).predict_marginals(X)],
        base,
    )
    X_other, y_other = _shuffled(rng, X, lists)
    yield Check("sequences reordered", lambda: fitted(X_other, y_other).predict_marginals(X), base)
    backwards = [part[::-1] for part in X]
    yield Check(
        "backwards",
        lambda: [part[::-1] for part in fitted(backwards, [part[::-1] for part in lists]).predict_marginals(backwards)],
        base,
    )
    yield Check("matrices", lambda: fitted(rows, lists).predict_marginals(rows), base)
    yield Check(
        "sparse matrices",
        lambda: fitted([*map(sp.csr_array, rows)], lists).predict_marginals([*map(sp.csr_array, rows)]),
        base,
    )
    renamed = [[{f"z{9 - int(key[1:])}": v for key, v in token.items()} for token in part] for part in X]
    yield Check("features renamed", lambda: fitted(renamed, lists).predict_marginals(renamed), base)
    turned = [[dict(reversed(token.items())) for token in part] for part in X]
    yield Check("features in another order", lambda: fitted(turned, lists).predict_marginals(turned), base)
    graphs = [(part, np.stack([np.arange(len(part) - 1), np.arange(1, len(part))], axis=1)) for part in rows]
    as_graph = {"method": method, "prior_variance": variance, "tolerance": TOLERANCE, "tables": tables}
    yield Check(
        "as graphs",
        lambda: bt.GraphCRF(
            **as_graph, fit_intercept=False, inference="exact", node_factors="edges", neighbours="edges",
            max_iterations=2000,
        ).fit(graphs, y).predict_marginals(graphs),
        base,
    )  # fmt: skip
    n = len(X)
    half = {"fit": {"sample_weight": np.full(2 * n, 0.5)}}
    yield Check("twice with half the weight", lambda: fitted([*X, *X], lists * 2, **half).predict_marginals(X), base)
    yield Check(
        "twice with half the prior variance",
        lambda: fitted([*X, *X], lists * 2, prior_variance=variance / 2).predict_marginals(X),
        base,
    )
    yield Check(
        "weights and prior scaled",
        lambda: fitted(X, lists, prior_variance=variance / 4, fit={"sample_weight": [4.0] * n}).predict_marginals(X),
        base,
    )
    yield Check(
        "sequences without tokens",
        lambda: fitted([[], *X, []], [[], *lists, []]).predict_marginals([[], *X])[1:],
        base,
    )
    joined = [[token for part in X for token in part]]
    breaks = [np.cumsum(lengths)[:-1].tolist()]
    yield Check(
        "one sequence with breaks",
        lambda: fitted(joined, [[label for part in lists for label in part]], fit={"breaks": breaks}).predict_marginals(
            joined, breaks=breaks
        ),
        base,
    )
    if method == "exact":
        yield Check(
            "a skip chain without skips",
            lambda: fitted(
                X, lists, bt.SkipChainCRF, {"skips": [[]] * n}, inference="exact"
            ).predict_marginals(X, skips=[[]] * n),
            base,
        )  # fmt: skip
        hidden = [[None] * len(part) for part in X[:2]]
        yield Check(
            "sequences without known labels", lambda: fitted([*X, *X[:2]], lists + hidden).predict_marginals(X), base
        )
        known = _with_holes(rng, y, k)
        some = fitted(X, known).predict_marginals(X)
        for name, other in unknown_otherwise(known):
            yield Check(f"unknown as {name}", lambda other=other: fitted(X, other).predict_marginals(X), some, BITS)
    yield Check(
        "labels of generators", lambda: fitted(X, (iter(part) for part in lists)).predict_marginals(X), base, BITS
    )
    yield Check("classes declared", lambda: fitted(X, lists, labels=list(range(k))).predict_marginals(X), base, BITS)
    yield Check("three threads", lambda: fitted(X, lists, n_threads=3).predict_marginals(X), base, BITS)
    yield Check("a clone", lambda: clone(crf).fit(X, lists).predict_marginals(X), base, BITS)
    yield Check("saved and loaded", lambda: _reloaded(crf).predict_marginals(X), base, BITS)
    yield Check("one by one", lambda: [crf.predict_marginals([part])[0] for part in X], base, 1e-10)


def skip_checks(number: int) -> Iterator[Check]:
    """Checks of :class:`bactrian.SkipChainCRF`."""
    rng = np.random.default_rng(50_000 + number)
    k, d = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    lengths = rng.integers(3, 7, 4)
    X = [rng.integers(0, 3, (int(n), d)) / 2.0 for n in lengths]
    y = [rng.integers(k, size=int(n)) for n in lengths]
    _all_seen(rng, y, k)
    far = [[(a, b) for b in range(n) for a in range(b - 1) if rng.random() < 0.4] for n in lengths.tolist()]
    far[0] = far[0] or [(0, 2)]
    method, tables = ("exact", "camel0", "pseudolikelihood")[number % 3], ("potts", "symmetric", "full")[number % 3]
    options = {
        "method": method, "tolerance": TOLERANCE, "prior_variance": 1.0, "inference": "exact", "skip_tables": tables,
        "max_iterations": 2000,
    }  # fmt: skip

    def marginals(X: Any, y: Any, skips: Any, asked: Any = None, sample_weight: Any = None, **more: Any) -> Any:
        crf = bt.SkipChainCRF(**{**options, **more}).fit(X, y, skips=skips, sample_weight=sample_weight)
        return crf.predict_marginals(X if asked is None else asked, skips=far if asked is not None else skips)

    base = marginals(X, y, far)
    for name, other in written_otherwise(y, k):
        yield Check(f"labels as {name}", lambda other=other: marginals(X, other, far), base, BITS)
    new = rng.permutation(k)
    yield Check("classes renamed", lambda: [p[:, new] for p in marginals(X, [new[part] for part in y], far)], base)
    there = _shuffled(rng, X, y, far)
    yield Check("sequences reordered", lambda: marginals(*there, asked=X), base)
    mixed = [[pairs[i] for i in rng.permutation(len(pairs))] for pairs in far]
    yield Check("skips reordered", lambda: marginals(X, y, mixed), base)
    arrays = [np.array(pairs, dtype=np.int32).reshape(-1, 2) for pairs in far]
    yield Check("skips as arrays", lambda: marginals(X, y, arrays), base, BITS)
    if tables != "full":
        yield Check("skips turned round", lambda: marginals(X, y, [[(b, a) for a, b in pairs] for pairs in far]), base)
        back = [[(n - 1 - b, n - 1 - a) for a, b in pairs] for pairs, n in zip(far, lengths.tolist(), strict=True)]
        yield Check(
            "backwards",
            lambda: [part[::-1] for part in marginals([p[::-1] for p in X], [p[::-1] for p in y], back)],
            base,
        )
    yield Check("twice with half the weight", lambda: marginals(X * 2, y * 2, far * 2, X, [0.5] * 8), base)
    yield Check(
        "twice with half the prior variance", lambda: marginals(X * 2, y * 2, far * 2, X, prior_variance=0.5), base
    )
    yield Check("three threads", lambda: marginals(X, y, far, n_threads=3), base, BITS)


# --- fields ---

FIELD_METHODS: tuple[Any, ...] = ("exact", "pseudolikelihood", "camel0", "convex", "piecewise")


def field_checks(number: int) -> Iterator[Check]:
    """Checks of :class:`bactrian.MarkovRandomField`."""
    rng = np.random.default_rng(30_000 + number)
    n, sizes = int(rng.integers(8, 30)), rng.integers(2, 4, int(rng.integers(2, 6)))
    v = sizes.size
    X = np.stack([rng.integers(size, size=n) for size in sizes], axis=1)
    for column, size in zip(X.T, sizes, strict=True):
        column[rng.permutation(n)[:size]] = np.arange(size)
    pairs = [(a, b) for b in range(v) for a in range(b) if rng.random() < 0.6] or [(0, 1)]
    method, variance = FIELD_METHODS[number % 5], float(rng.choice([0.3, 1.0, 3.0]))
    tables = "potts" if number % 4 == 3 and len(set(sizes.tolist())) == 1 else "full"
    options = {
        "method": method, "prior_variance": variance, "tolerance": TOLERANCE, "tables": tables, "max_iterations": 2000,
    }  # fmt: skip

    def fitted(X: Any, edges: Any = pairs, sample_weight: Any = None, **more: Any) -> Any:
        return bt.MarkovRandomField(edges, **{**options, **more}).fit(X, sample_weight=sample_weight)

    def scores(field: Any, rows: Any = X) -> list[Any]:
        return [field.score_samples(rows)]

    crf = fitted(X)
    base = scores(crf)
    for kind in ("int8", "uint8", "int32", "uint64", ">i2"):
        yield Check(f"states as {kind}", lambda kind=kind: scores(fitted(X.astype(kind))), base, BITS)
    yield Check("states as lists", lambda: scores(fitted(X.tolist())), base, BITS)
    yield Check("states in Fortran's order", lambda: scores(fitted(np.asfortranarray(X))), base, BITS)
    yield Check("states read-only", lambda: scores(fitted(_read_only(X))), base, BITS)
    yield Check("rows reordered", lambda: scores(fitted(X[rng.permutation(n)])), base)
    new = [rng.permutation(size) for size in sizes] if tables == "full" else [rng.permutation(sizes[0])] * v
    other = np.stack([of[column] for of, column in zip(new, X.T, strict=True)], axis=1)
    yield Check("states renamed", lambda: scores(fitted(other), other), base)
    order = rng.permutation(v)
    place = np.argsort(order)
    moved = [(int(place[a]), int(place[b])) for a, b in pairs]
    yield Check("variables reordered", lambda: scores(fitted(X[:, order], moved), X[:, order]), base)
    yield Check("edges reordered", lambda: scores(fitted(X, [pairs[i] for i in rng.permutation(len(pairs))])), base)
    yield Check("edges turned round", lambda: scores(fitted(X, [(b, a) for a, b in pairs])), base)
    twice = np.concatenate([X, X])
    yield Check("twice with half the weight", lambda: scores(fitted(twice, sample_weight=np.full(2 * n, 0.5))), base)
    yield Check("twice with half the prior variance", lambda: scores(fitted(twice, prior_variance=variance / 2)), base)
    yield Check(
        "weights and prior scaled",
        lambda: scores(fitted(X, sample_weight=np.full(n, 4.0), prior_variance=variance / 4)),
        base,
    )
    kinds, counts = np.unique(X, axis=0, return_counts=True)
    yield Check("rows counted", lambda: scores(fitted(kinds, sample_weight=counts)), base)
    yield Check(
        "rows of no weight",
        lambda: scores(fitted(np.concatenate([X, 0 * X]), sample_weight=np.repeat([1.0, 0.0], n))),
        base,
    )
    yield Check("cardinalities declared", lambda: scores(fitted(X, cardinalities=sizes)), base, BITS)
    yield Check("three threads", lambda: scores(fitted(X, n_threads=3)), base, BITS)
    yield Check("a clone", lambda: scores(clone(crf).fit(X)), base, BITS)
    yield Check("saved and loaded", lambda: scores(_reloaded(crf)), base, BITS)
    yield Check("one by one", lambda: [crf.score_samples(row[None]) for row in X], base, 1e-10)
    cells = np.indices(sizes).reshape(v, -1).T
    yield Check("probabilities of all rows", lambda: [[np.exp(crf.score_samples(cells)).sum()]], [[1.0]], 1e-9)
    if method == "exact":
        wider = np.column_stack([X, np.zeros(n, dtype=np.int64)])
        yield Check("a variable of one state", lambda: scores(fitted(wider), wider), base)
        holes = np.where(rng.random(X.shape) < 0.15, -1, X)
        holes[: sizes.max()] = np.stack([np.arange(sizes.max()) % size for size in sizes], axis=1)
        some = scores(fitted(holes))
        for name, write in {
            "NaN": lambda: np.where(holes < 0, np.nan, holes),
            "None": lambda: np.where(holes < 0, None, holes),
            "lists": lambda: [[None if state < 0 else state for state in row] for row in holes.tolist()],
        }.items():
            yield Check(f"missing as {name}", lambda write=write: scores(fitted(write())), some, BITS)
        empty = np.concatenate([holes, np.full((2, v), -1)])
        yield Check("rows of which nothing is known", lambda: scores(fitted(empty)), some)
    yield from _frame_checks(rng, X, pairs, fitted, base, tables)


def _frame_checks(
    rng: np.random.Generator, X: Any, pairs: Any, fitted: Callable[..., Any], base: Any, tables: str
) -> Iterator[Check]:
    """The same rows as frames."""
    import pandas
    import polars

    v = X.shape[1]
    names = [f"v{i}" for i in range(v)]
    edges = [(names[a], names[b]) for a, b in pairs]
    words = np.array(WORDS, dtype=object)
    columns = {name: column.tolist() for name, column in zip(names, X.T, strict=True)}
    strings = {name: words[column].tolist() for name, column in zip(names, X.T, strict=True)}
    order = [names[i] for i in rng.permutation(v)]
    for library, make in (("pandas", pandas.DataFrame), ("polars", polars.DataFrame), ("plain", Table)):
        for name, given in (("numbers", columns), ("words", strings)):
            frame = make(given)
            yield Check(
                f"{library} frame of {name}",
                lambda frame=frame: [fitted(frame, edges).score_samples(frame)],
                base,
                BITS,
            )
        mixed = make({name: strings[name] for name in order})
        yield Check(
            f"{library} columns reordered", lambda mixed=mixed: [fitted(mixed, edges).score_samples(mixed)], base
        )
    if tables == "full":
        frame = pandas.DataFrame(strings)
        kinds = frame.astype("category")
        yield Check("pandas categories", lambda: [fitted(kinds, edges).score_samples(kinds)], base, BITS)
        odd = frame.set_axis(rng.permutation(10 * len(X))[: len(X)], axis=0)
        yield Check("pandas rows called otherwise", lambda: [fitted(odd, edges).score_samples(odd)], base, BITS)


# --- labellers ---


def labeller_checks(number: int) -> Iterator[Check]:
    """Checks of :class:`bactrian.LabelModel`, whose objective is not convex: labellers here are better than chance."""
    rng = np.random.default_rng(40_000 + number)
    k, m, n = int(rng.integers(2, 4)), int(rng.integers(4, 7)), 60
    truth = rng.integers(k, size=n)
    L = np.where(rng.random((n, m)) < 0.8, truth[:, None], rng.integers(k, size=(n, m)))
    L[rng.random((n, m)) < 0.1] = -1
    options = {"tolerance": 1e-7, "prior_variance": 3.0, "max_iterations": 2000}

    def fitted(L: Any, **more: Any) -> Any:
        return bt.LabelModel(**{**options, **more}).fit(L)

    model = fitted(L)
    base = [model.predict_proba(L)]
    for name, write in {
        "lists": lambda: L.tolist(),
        "int8": lambda: L.astype("int8"),
        "None": lambda: np.where(L < 0, None, L),
        "NaN": lambda: np.where(L < 0, np.nan, L),
        "strings": lambda: np.array([*WORDS[:k], ""], dtype=object)[L].astype(str),
        "large integers": lambda: np.where(L < 0, -1, 7 * L + 10**15),
    }.items():
        yield Check(f"labels as {name}", lambda write=write: [fitted(write()).predict_proba(write())], base, BITS)
    new = np.append(rng.permutation(k), -1)
    yield Check("classes renamed", lambda: [fitted(new[L]).predict_proba(new[L])[:, new[:-1]]], base)
    order = rng.permutation(m)
    yield Check("labellers reordered", lambda: [fitted(L[:, order]).predict_proba(L[:, order])], base)
    yield Check("rows reordered", lambda: [fitted(L[rng.permutation(n)]).predict_proba(L)], base)
    twice = np.concatenate([L, L])
    yield Check(
        "twice with half the prior variance",
        lambda: [fitted(twice, prior_variance=1.5).predict_proba(L)],
        base,
    )
    silent = np.concatenate([L, np.full((5, m), -1)])
    yield Check("rows of which nothing is known", lambda: [fitted(silent).predict_proba(L)], base)
    yield Check("saved and loaded", lambda: [_reloaded(model).predict_proba(L)], base, BITS)
    yield Check("a clone", lambda: [clone(model).fit(L).predict_proba(L)], base, BITS)
    yield Check("one by one", lambda: [model.predict_proba(row[None]) for row in L], base, 1e-10)


FAMILIES: dict[str, Callable[[int], Iterator[Check]]] = {
    "graphs": graph_checks,
    "grids": grid_checks,
    "chains": chain_checks,
    "skip chains": skip_checks,
    "fields": field_checks,
    "labellers": labeller_checks,
}
