"""The network of a field: how strongly variables are joined, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.stats import chi2

from bactrian.arrays import Floats, Ints
from bactrian.estimators.uncertainty import SINGULAR, Covariance
from bactrian.learners.structure import basis


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


def _has_one_weight(contrasts: sp.csr_array) -> bool:
    """Whether contrasts of an edge change together: those of two states each, and of scores."""
    used = contrasts[:, np.unique(contrasts.indices)].toarray()
    return len(used) == 1 or int(np.linalg.matrix_rank(used)) == 1


def edge_table(covariance: Covariance, weights: Floats, z: float, names: Sequence[Any]) -> dict[str, list[Any]]:
    """Columns of a table of edges, the strongest first."""
    contrasts, rows = covariance.contrasts, []
    theta = contrasts.matrix @ weights
    for e, (u, v) in enumerate(contrasts.edges.tolist()):
        block = contrasts.block(e)
        own, of = theta[block], covariance.theta[block, block]
        wald = float(own @ np.linalg.pinv(of, rcond=SINGULAR, hermitian=True) @ own)
        size, low, high = float(np.sqrt(np.mean(contrasts.centred(e, theta[None]) ** 2))), np.nan, np.nan
        if own.size and _has_one_weight(contrasts.matrix[block]):
            size, error = float(own[0]), float(np.sqrt(of[0, 0]))
            low, high = size - z * error, size + z * error
        rank = np.linalg.matrix_rank(of, hermitian=True) if own.size else 0
        rows.append((names[u], names[v], size, low, high, float(chi2.sf(wald, max(rank, 1)))))
    rows.sort(key=lambda row: -abs(row[2]))
    columns = ("variable", "with", "association", "low", "high", "p")
    return {name: [row[i] for row in rows] for i, name in enumerate(columns)}


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
