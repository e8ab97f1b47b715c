"""Maximum entropy from margins: tables of counts over some sets of variables, exact or noisy, and no rows.

The distribution p over all variables has, next to a base measure q, the most entropy that the margins leave it. With
y_k the given count of a cell, N the total, mu_k(p) the probability of the cell, s_k the standard deviation of y_k and
epsilon the weight of the entropy, p maximises

    epsilon N [ H(p) + E_p log q ]  -  sum over noisy cells (y_k - N mu_k(p))^2 / (2 s_k^2)

and meets exact margins (s = 0). Divided by epsilon this is Eq. 4 of the paper with a variance per moment; its dual is
the likelihood of the log-linear model with a weight per cell and a Gaussian prior of precision epsilon s_k^2,

    D(w) = N log sum_x q(x) exp(sum_k w_k [x in cell k])  -  w.y  +  sum_k epsilon s_k^2 w_k^2 / 2.

That prior pulls every weight to 0, also those of counts far above the noise. Rounds after the first centre it at the
weights w_r of the last (Bregman iterations: Osher et al., Multiscale Modeling & Simulation 4(2), 2005),

    D_r(w) = N log Z(w)  -  w.y  +  sum_k epsilon s_k^2 (w_k - w_rk)^2 / 2,

which is D with counts y + epsilon s^2 w_r. After r rounds about (1 + c / (epsilon s^2))^-r is missing of what a margin
says of a cell of count c: many rounds with a large epsilon tell counts above the noise from those below it more sharply
than one with a small epsilon.

Where a junction tree fits, D is evaluated on it (:mod:`bactrian.margins.tree`; with exact margins its minimum is that
of iterative proportional fitting: Deming & Stephan, Ann. Math. Stat. 11(4), 1940; Csiszár, Ann. Prob. 3(1), 1975).
Elsewhere the entropy is Kikuchi's on the region graph of the margins (:mod:`bactrian.margins.regions`), or
another, with which :func:`bactrian.learn` learns from :class:`bactrian.Moments`. Noisy margins of private data are the
case of McKenna, Sheldon & Miklau (ICML 2019).

An exact margin's cell of count 0 has no finite weight, so it is forbidden instead: that is the limit. Weights of
overlapping margins are redundant; L-BFGS never leaves the span of gradients, so that this does no harm. If exact
margins are those of some distribution, D is at least N times that distribution's E log q: a smaller value proves that
they contradict each other, whether or not two of them do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packing import TablePlan, build_layout
from bactrian.graphs.ragged import pointer
from bactrian.graphs.regions import RegionGraph, region_graph
from bactrian.graphs.structure import structure_of
from bactrian.margins.given import CheckedMargins
from bactrian.solvers.solution import Callback

#: Rounding, in nats per sample, that a proof of contradiction must exceed.
_SLACK = 1e-6
#: Rounds before the last are solved to so many tolerances, if that is less than the noise times the second number to
#: the power of rounds left: later rounds mend what earlier ones leave, and with tiny noise two thirds of the steps are
#: saved.
_LOOSE, _MENDED = 100.0, 1.5
#: By default the entropy's weight is this over the standard deviation of fitted counts, in so many rounds: on junction
#: trees about (1 + c / 10)^-16 is then missing of a count of c standard deviations; chosen on seeds 100 to 125 of
#: ``benchmarks/bench_marginals.py synthetic``, and 7 with 12 rounds and 18 with 30 do as well. On regions, whose
#: entropy is not concave and leads astray where it has much weight, chosen on seeds 700 to 705.
_ON_TREES, _ON_REGIONS = (10.0, 16), (4.0, 8)
#: The same where exact margins contradict each other.
_OF_NEAREST = (0.05, 1)
#: Standard deviations by which a count must exceed 0 for its margin to tell something.
_STANDS_OUT = 5.0
#: Where exact margins contradict each other, their cells get this part of the total as tempered variance.
_NEAREST = 1e-6


class NoStateError(ValueError):
    """Zeros of margins and base, and impossible combinations, rule out every joint state."""


@dataclass(frozen=True)
class MarginProblem:
    """What is known of a distribution; margins are flat, one after the other, in the order of ``scopes``."""

    cardinalities: Ints
    scopes: tuple[Scope, ...]  #: of the margins
    observed: Floats  #: (n_cells,) counts
    precision: Floats  #: (n_cells,) epsilon s^2, 0 for exact cells
    forbidden: Bools  #: (n_cells,) cells that cannot be
    total: float
    base: tuple[tuple[Scope, Floats], ...] = ()  #: fixed log tables
    rounds: int = 1
    noise: float = 0.0  #: standard deviation of counts, about

    @cached_property
    def bounds(self) -> Ints:
        """(n_margins + 1,) where the cells of each margin begin."""
        return pointer([int(np.prod(self.cardinalities[list(scope)])) for scope in self.scopes])

    @property
    def scale(self) -> Floats:
        """(n_cells,) 1 / sqrt of a guess at the curvature of each weight: its count and its noise."""
        curvature = np.maximum(self.observed, 0.0) + self.precision
        return 1.0 / np.sqrt(np.maximum(curvature, max(1e-3 * self.total / max(curvature.size, 1), 1e-300)))

    def wanted(self, tolerance: float, rounds_left: int) -> float:
        """The gap in counts at which a round ends."""
        last = tolerance * self.total
        return max(last, min(_LOOSE * last, _MENDED**rounds_left * self.noise)) if rounds_left else last

    @property
    def least(self) -> float:
        """What D cannot fall below where exact margins are those of a distribution; -inf where some are noisy."""
        base = sum(float(table[np.isfinite(table)].min()) for _, table in self.base)
        return -np.inf if self.precision.any() else self.total * (base - _SLACK)

    def split(self, cells: Floats) -> list[Floats]:
        """Tables of the margins, one axis per variable."""
        parts = np.split(cells, self.bounds[1:-1])
        return [part.reshape(self.cardinalities[list(s)]) for part, s in zip(parts, self.scopes, strict=True)]

    def graph(self, *, regions: bool) -> ClusterGraph:
        """The graph of margins and base: a region graph, or one for exact inference alone."""
        scopes = [*self.scopes, *(scope for scope, _ in self.base)]
        if regions:
            return RegionGraph(self.cardinalities, scopes, raised=True)
        return ClusterGraph(self.cardinalities, scopes)

    def model(self, graph: ClusterGraph) -> LogLinearModel:
        """The log-linear model on a graph of these margins: a weight per cell."""
        identity = sp.identity(int(self.bounds[-1]), format="csr")
        features = [identity[a:b] for a, b in zip(self.bounds[:-1], self.bounds[1:], strict=True)]
        forbidden = np.split(np.where(self.forbidden, -np.inf, 0.0), self.bounds[1:-1])
        base_scores = [table if (table < 0.0).any() else None for table in forbidden]
        return LogLinearModel(
            graph, [*features, *[None] * len(self.base)], [*base_scores, *(table for _, table in self.base)]
        )


@dataclass(frozen=True)
class FitOptions:
    """Limits of a fit, as those of :func:`bactrian.learn`."""

    tolerance: float = 1e-9
    max_iterations: int = 10_000
    max_seconds: float | None = None
    n_threads: int | None = None
    seed: int = 0
    callback: Callback | None = None


def margin_problem(
    checked: CheckedMargins, entropy_weight: float | None, *, nearest: bool, on_tree: bool = True
) -> MarginProblem:
    """The problem of maximum entropy; with ``nearest`` exact margins become as soft as least squares.

    Where no weight of the entropy is given it goes by the noise, so that units of counts do not matter: by the mean
    variance of counts that stand out, so that margins that tell nothing have no say, and on trees by what least
    squares leave of it, the number of free counts by that of all.
    """
    observed = np.concatenate([margin.table.ravel() for margin in checked.margins])
    exact = np.concatenate([np.full(margin.table.size, margin.stddev is None) for margin in checked.margins])
    variance = np.concatenate([margin.variance.ravel() for margin in checked.margins])
    forbidden = np.concatenate([cells.ravel() for cells in checked.impossible])
    stddev = np.sqrt(variance[~exact])
    rounds, typical = 1, 0.0
    if entropy_weight is None and stddev.size:
        told = stddev[observed[~exact] > _STANDS_OUT * stddev]
        typical = float(np.sqrt(np.mean((told if told.size else stddev) ** 2)))
        weight, rounds = _OF_NEAREST if nearest else _ON_TREES if on_tree else _ON_REGIONS
        if on_tree and not nearest:
            typical *= np.sqrt(_n_free(checked) / stddev.size)
        entropy_weight = weight / typical
    precision = (entropy_weight or 0.0) * variance
    if nearest:
        precision = np.where(exact, _NEAREST * checked.total, precision)
    else:
        forbidden = forbidden | (exact & (observed == 0.0))
    return MarginProblem(
        cardinalities=np.array(checked.variables.cardinalities, dtype=np.int64),
        scopes=checked.scopes,
        observed=observed,
        precision=precision,
        forbidden=forbidden,
        total=checked.total,
        base=checked.base,
        rounds=rounds,
        noise=typical,
    )


def _n_free(checked: CheckedMargins) -> float:
    """Noisy counts less those that follow from others: the regions' cells by their counting numbers."""
    noisy = [scope for scope, margin in zip(checked.scopes, checked.margins, strict=True) if margin.stddev is not None]
    graph = region_graph(checked.variables.cardinalities, noisy)
    cells = [float(np.prod(graph.shape(scope))) for scope in graph.all_clusters]
    numbers = [*np.ones(len(noisy)), *graph.counting_numbers]
    return float(np.dot(numbers, cells))


def layout_of(graph: ClusterGraph) -> Layout:
    """The layout of tables and of the hubs that join them; variables in no table have none."""
    structure, n_hubs = structure_of([graph]), graph.n_appended
    layout = build_layout(structure, TablePlan.own(structure))
    return layout._replace(hub_links=layout.hub_links[: n_hubs + 1], hub_offset=layout.hub_offset[: n_hubs + 1])
