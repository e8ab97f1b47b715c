"""The network of a field: which variables are joined, how strongly, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.errors import ArgumentError, check_choice
from bactrian.estimators.pairwise import checked_edges
from bactrian.frames import has_names
from bactrian.graphs.loglinear import Samples
from bactrian.learners.structure import CRITERIA, Selection, basis, select, tree

#: What ``edges`` may be instead of pairs; those that depend on the rows.
WORDS, BY_ROWS = ("auto", "select", "tree", "complete", "grid"), ("auto", "select", "tree")
#: Rows for each free weight of an edge that the complete graph needs, where it has more than so many of these.
_ROWS_PER_WEIGHT, _FEW = 5, 10


@dataclass(frozen=True)
class Joined:
    """Pairs of variables that are joined, and why."""

    edges: Ints
    why: str
    selection: Selection | None = None


def check_edges(edges: Any, criterion: Any) -> None:
    """Check edges and criterion, before looking at any data."""
    pairs, rest = _with_rest(edges)
    if criterion is not None:
        check_choice("criterion", criterion, CRITERIA)
        if not (rest or (isinstance(edges, str) and edges in ("auto", "select"))):
            raise ArgumentError("criterion", f"= {criterion!r} is for selected edges, found edges={edges!r}")
    words = [pair for pair in pairs if isinstance(pair, str)] if isinstance(pairs, list | tuple) else []
    if words:
        raise ArgumentError("edges", f"must be pairs, perhaps followed by 'select', found {words[0]!r}")
    if not (isinstance(pairs, str) and pairs in WORDS) and not has_names(pairs):
        checked_edges(pairs, None, np.iinfo(np.int64).max)


def is_by_rows(edges: Any) -> bool:
    """Whether the edges depend on the rows."""
    return _with_rest(edges)[1] or (isinstance(edges, str) and edges in BY_ROWS)


def _with_rest(edges: Any) -> tuple[Any, bool]:
    """Pairs without the word "select" at their end, and whether it was there."""
    if isinstance(edges, list | tuple) and edges and isinstance(edges[-1], str) and edges[-1] == "select":
        return list(edges[:-1]), True
    return edges, False


def joined(
    edges: Any,
    criterion: str | None,
    variables: Any,
    rows: Samples,
    *,
    simple: bool,
    most_work: float,
    seed: int,
    n_threads: int | None,
    max_seconds: float | None,
) -> Joined:
    """The edges of a field with these ``variables``, learned from ``rows``, whose model needs no edges yet.

    ``simple``: whether every edge has a table of its own and no variable is hidden. ``most_work`` is that of exact
    learning.
    """
    states, weights, sizes = rows.X, rows.sample_weight, rows.model.graph.cardinalities
    pairs, rest = _with_rest(edges)
    word = "select" if rest else edges if isinstance(edges, str) else ""
    n, possible = sizes.size, np.stack(np.triu_indices(sizes.size, 1), axis=1).astype(np.int64)
    n_weights = int((sizes[possible] - 1).prod(axis=1).sum())
    of_pairs = f"of {len(possible)} pairs"
    if word == "auto":
        log_work = np.log(np.maximum(sizes, 1)).sum() + np.log(n + len(possible))
        small = log_work <= np.log(most_work) and n_weights <= max(_FEW, weights.sum() / _ROWS_PER_WEIGHT)
        if small or not simple:
            return Joined(possible, f"complete: all {of_pairs[3:]}")
        word, criterion = "select", criterion or "aic"
    if not simple:
        raise ArgumentError("edges", f"= {word!r} needs tables='full' and no hidden variables; give pairs")
    if word == "tree":
        found = tree(states, sizes, weights)
        return Joined(found, f"tree: {len(found)} {of_pairs}")
    given = checked_edges(variables.edges(pairs), None, n) if rest else np.zeros((0, 2), dtype=np.int64)
    by = criterion or "ebic"
    selection = select(states, weights, by, given=given, seed=seed, n_threads=n_threads, max_seconds=max_seconds)
    also = f", {len(given)} of them given" if len(given) else ""
    why = f"select: {len(selection.edges)} {of_pairs}{also}, by {by}; all pairs have {n_weights} free weights"
    return Joined(selection.edges, f"{why} for {weights.sum():g} rows", selection)


# --- how strongly ---


def interactions(tables: list[Floats]) -> tuple[Floats, Floats]:
    """Of edge tables: the norm of each, less what its variables have on their own, and its sign.

    The sign is that of the association of the states' numbers: 1 where larger ones go with larger ones.
    """
    norms, signs = np.zeros(len(tables)), np.zeros(len(tables))
    for e, table in enumerate(tables):
        left, right = basis(table.shape[0]), basis(table.shape[1])
        norms[e] = np.linalg.norm(left.T @ table @ right)
        by_number = [np.arange(k) - 0.5 * (k - 1) for k in table.shape]
        signs[e] = np.sign(by_number[0] @ table @ by_number[1])
    return norms, signs


# --- the picture ---

#: Rounds of the layout, and its first and last step.
_ROUNDS, _FIRST, _LAST = 200, 0.15, 0.002


def layout(n: int, edges: Ints, strengths: Floats) -> Floats:
    """Places of n variables in the unit square, (n, 2): joined ones near each other, others apart.

    Springs and repulsion (Fruchterman and Reingold, Software 21(11), 1991), from a circle; the same for the same edges.
    """
    turn = 2.0 * np.pi * np.arange(n) / max(n, 1)
    at = 0.5 + 0.4 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    pull = np.zeros((n, n))
    if len(edges):
        share = 0.3 + strengths / max(float(strengths.max()), np.finfo(float).tiny)
        pull[edges[:, 0], edges[:, 1]] = pull[edges[:, 1], edges[:, 0]] = share
    near = 0.8 / np.sqrt(max(n, 1))
    for step in np.geomspace(_FIRST, _LAST, _ROUNDS):
        apart = at[:, None] - at[None]
        distance = np.maximum(np.linalg.norm(apart, axis=2), 1e-3)
        force = near**2 / distance**2 - pull * distance / near
        move = (apart * force[:, :, None]).sum(axis=1) - 0.5 * (at - at.mean(axis=0))
        at = at + move / np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9) * step
    at -= at.min(axis=0)
    return 0.06 + 0.88 * at / np.maximum(at.max(axis=0), 1e-9)


def draw(ax: Any, names: Sequence[Any], edges: Ints, strengths: Floats, signs: Floats) -> Any:
    """Draw a network on axes of matplotlib, or new ones, which are returned."""
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("plot needs matplotlib: install the extra 'report'") from None
        ax = pyplot.subplots(figsize=(7.0, 7.0))[1]
    at, most = layout(len(names), edges, strengths), max(float(strengths.max(initial=0.0)), np.finfo(float).tiny)
    for (a, b), strength, sign in zip(edges.tolist(), strengths.tolist(), signs.tolist(), strict=True):
        style = {"color": "#2563a8", "linestyle": "-"} if sign >= 0.0 else {"color": "#c2410c", "linestyle": "--"}
        ax.plot(*at[[a, b]].T, linewidth=0.3 + 4.7 * strength / most, alpha=0.75, zorder=1, **style)
    for name, (x, y) in zip(names, at.tolist(), strict=True):
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#888888"}
        ax.text(x, y, str(name), ha="center", va="center", fontsize=8, zorder=2, bbox=box)
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    ax.axis("off")
    return ax
