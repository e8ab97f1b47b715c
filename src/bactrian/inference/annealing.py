"""Annealed importance sampling: an estimate of log Z with an interval, and marginals by weighted samples.

Neal, Statistics and Computing 11, 2001; with resampling it is a sequential Monte-Carlo sampler: Del Moral, Doucet &
Jasra, J. R. Stat. Soc. B 68(3), 2006; temperatures chosen by the conditional effective sample size: Zhou, Johansen &
Aston, J. Comp. Graph. Stat. 25(3), 2016; interval of the mean of a log-normal variable (Cox's): Zhou & Gao,
Statistics in Medicine 16(7), 1997.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, stdtrit

from bactrian.arrays import Floats
from bactrian.camel.entropy import carve
from bactrian.engines.numba.assignments import ScoreArrays
from bactrian.engines.numba.gibbs import Chain, Population, anneal
from bactrian.engines.numba.orders import build_blocks
from bactrian.graphs.packed import InstanceBeliefs
from bactrian.graphs.ragged import pointer
from bactrian.inference.factors import FactorScores, FactorTables, factor_scores
from bactrian.inference.gibbs import LARGEST_PAIR, CountTables
from bactrian.inference.mean_field import ProductTables
from bactrian.inference.problem import Problem
from bactrian.inference.propagation import propagate
from bactrian.inference.result import InferenceProgress, InferenceResult, VariableMarginals

#: Populations that know nothing of each other, from whose spread the interval comes.
_POPULATIONS = 16
#: Effective part of a population after each temperature of the first round, and most temperatures of that round.
_KEPT, _MOST_TEMPERATURES = 0.9, 10_000
#: Score of a forbidden entry on the way to the model.
_PENALTY = -40.0
#: Sweeps of the messages that find the marginals to start from and their tolerance, and the part of the marginals that
#: is made uniform. All of it is where messages do not settle: half-way they may have lost whole modes.
_SWEEPS, _TOLERANCE, _UNIFORM = 100, 1e-3, 0.3
#: Rounds at most, each with twice the temperatures of the one before.
_ROUNDS = 8
#: Sweeps on the model itself that show its marginals.
_SHOWN = 4


class _Estimate(NamedTuple):
    """Log Z with its interval at 95 %."""

    log_partition: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """How wide the interval is."""
        return self.high - self.low

    def meets(self, other: _Estimate) -> bool:
        """Whether two intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high


def _estimate(log_partitions: Floats) -> _Estimate:
    """From the estimates of independent populations, whose mean estimates Z without bias."""
    n = log_partitions.size
    middle = float(logsumexp(log_partitions) - np.log(max(n, 1))) if n else -np.inf
    if n < 2 or middle == -np.inf:
        return _Estimate(middle, -np.inf, np.inf)
    quantile = float(stdtrit(n - 1, 0.995))  # not 0.975: rounds stop when an interval happens to be narrow
    error = quantile * float(np.exp(log_partitions - middle).std(ddof=1)) / np.sqrt(n)
    low, high = middle + (np.log1p(-error) if error < 1.0 else -np.inf), middle + np.log1p(error)
    if np.isfinite(log_partitions).all():
        variance = float(log_partitions.var(ddof=1))
        centre = float(log_partitions.mean()) + 0.5 * variance
        reach = quantile * np.sqrt(variance / n + variance**2 / (2.0 * (n - 1)))
        low, high = min(low, centre - reach), max(high, centre + reach)
    # A mean without bias exceeds Z 40-fold in at most one case of 40 (Markov's inequality).
    return _Estimate(middle, float(max(low, middle - np.log(40.0))), float(high))


def annealing(
    problem: Problem, *, n_samples: int = 1024, width: float = 0.4, chosen: Sequence[int] | None = None
) -> list[InferenceResult]:
    """Annealed importance sampling.

    Particles start as independent variables, at marginals near those of ``"convex"``, and blocked Gibbs sampling leads
    them to the model by temperatures between; their weights estimate Z without bias. They are 16 populations, resampled
    apart, from whose spread the interval of log Z comes: Student's, and that of a log-normal mean, whichever reaches
    further. A round has twice the temperatures of the one before, until the interval is narrow enough and meets that
    before; intervals of the last rounds that do not meet are joined.

    Parameters
    ----------
    problem : Problem
        Packed models, weights, evidence, options. ``seed`` seeds the particles; threads change nothing.
    n_samples : int
        Number of particles, of all populations together.
    width : float
        Width of the 95 % interval of log Z at which a model is done, and ``converged``.
    chosen : sequence of int, optional
        Instances that are wanted; all by default. There is a result for each of these.
    """
    scores = factor_scores(problem.data, problem.weights, problem.evidence, problem.workers)
    run = _Run(problem, scores, max(4, -(-n_samples // _POPULATIONS)))
    fields = {m: run.lead(m, width) for m in (range(scores.layout.n_instances) if chosen is None else chosen)}
    reader = CountTables(scores.layout, _normalised(scores, run.mean), run.cluster_start, run.clusters)
    tables = FactorTables(problem.data, scores.data, reader)
    return [
        InferenceResult(
            variables=VariableMarginals(scores.data, reader, m),
            clusters=InstanceBeliefs(problem.data, tables, m),
            method="annealing",
            seconds=problem.seconds,
            **own,
        )
        for m, own in fields.items()
    ]


def _start(problem: Problem, scores: FactorScores) -> Floats:
    """(n_hub_states,) marginals to start from."""
    options = replace(problem.options, max_iterations=_SWEEPS, tolerance=_TOLERANCE, callback=None, start=None)
    convex = propagate(
        replace(problem, options=options), "convex", "sequential", carve(problem.data, "convex"), tame=True
    )
    variable = np.repeat(np.arange(scores.layout.n_hubs), np.diff(scores.layout.hub_offset))
    allowed = (scores.hubs > -np.inf).astype(np.float64)
    found = np.nan_to_num(np.concatenate([p for result in convex for p in result.variables])) * allowed
    uniform = allowed / np.bincount(variable, allowed)[variable]
    share = np.array([_UNIFORM if result.converged else 1.0 for result in convex])
    share = np.repeat(share, np.diff(scores.layout.instance_hubs))[variable]
    return _normalised(scores, (1.0 - share) * found + share * uniform)


def _normalised(scores: FactorScores, marginals: Floats) -> Floats:
    """Marginals that add up to 1 to the last digit."""
    variable = np.repeat(np.arange(scores.layout.n_hubs), np.diff(scores.layout.hub_offset))
    return marginals / np.bincount(variable, marginals)[variable]


class _Run:
    """Rounds of populations on one instance after the other, and the sums that they leave."""

    def __init__(self, problem: Problem, scores: FactorScores, n_particles: int) -> None:
        self._problem, self._scores, self._start = problem, scores, _start(problem, scores)
        layout = scores.layout
        self.cluster_start = pointer(np.diff(layout.table_offset)[layout.cluster_table])
        self.mean, self.clusters = self._start.copy(), np.zeros(int(self.cluster_start[-1]))
        blocks = build_blocks(layout, scores.hubs, LARGEST_PAIR)
        largest = int(np.diff(layout.hub_offset).max(initial=1))
        most = int(np.diff(layout.instance_hubs).max(initial=0))
        with np.errstate(divide="ignore"):
            base = np.log(self._start)
        self._n_particles, self._populations = n_particles, []
        for _ in range(_POPULATIONS):
            own = ScoreArrays(np.zeros_like(scores.entries), np.zeros_like(scores.hubs), scores.strides)
            n = layout.n_hub_states
            work = np.zeros(n), np.zeros(layout.n_link_states), np.zeros(n), np.zeros(largest)
            chain = Chain(layout, own, blocks, np.zeros(layout.n_hubs, dtype=np.int64), *work)
            self._populations.append(
                Population(
                    chain, scores.arrays, base, _PENALTY, np.zeros((n_particles, most), dtype=np.int64),
                    np.zeros(n_particles), np.zeros(n_particles), np.zeros(n), self.cluster_start,
                    np.zeros_like(self.clusters), problem.deadline.late,
                )
            )  # fmt: skip

    def lead(self, m: int, width: float) -> dict[str, Any]:
        """Rounds on an instance until the interval is narrow enough; fields of its result."""
        options = self._problem.options
        most, done, moves = min(_ROUNDS, options.max_iterations), 0, 0
        best, status = _estimate(np.zeros(0)), f"stopped at the limit of {most} rounds"
        path, _ = self._round(m, 0, np.zeros(_MOST_TEMPERATURES), adaptive=True)
        while done < most:
            path, log_partitions = self._round(m, done + 1, path)
            finished = log_partitions[~np.isnan(log_partitions)]
            if finished.size < (_POPULATIONS if done else 2):
                status = f"stopped at the time limit of {options.max_seconds} s"
                break
            done, moves = done + 1, moves + path.size * self._n_particles * finished.size
            before, best = best, _estimate(finished)
            self._keep(m, log_partitions)
            if not best.meets(before):
                best = _Estimate(best.log_partition, min(best.low, before.low), max(best.high, before.high))
            elif best.width <= width and done > 1:
                status = "converged"
                break
            if self._is_stopped(m, done, best.width):
                status = "stopped by the callback"
                break
            path = np.stack([0.5 * (np.append(0.0, path[:-1]) + path), path], axis=1).ravel()
        found = best.log_partition > -np.inf
        if not found:  # independent marginals, where it started
            product, layout = ProductTables(self._scores.layout, self.mean), self._scores.layout
            for c in range(*layout.instance_clusters[m : m + 2]):
                self.clusters[self.cluster_start[c] : self.cluster_start[c + 1]] = product.cluster(c)
        return {
            "log_partition": best.log_partition if found else None,
            "interval": (best.low, best.high) if found else None,
            "converged": status == "converged",
            "iterations": done,
            "updates": moves,
            "status": status if found else f"{status}; no particle reached a state that is allowed",
            "residual": best.width,
        }

    def _round(self, m: int, number: int, path: Floats, *, adaptive: bool = False) -> tuple[Floats, Floats]:
        """The inverse temperatures, chosen now if ``adaptive``, and each population's log Z, NaN where time was up."""
        n = 1 if adaptive else _POPULATIONS
        log_partitions, lengths = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
        seed = self._problem.options.seed
        first, last = self._scores.layout.instance_hubs[m : m + 2]
        states, entries = self._slices(m)

        def task(g: int, _first: int, _last: int) -> None:
            population = self._populations[g]
            population.mean[states] = population.clusters[entries] = 0.0
            own = population._replace(states=population.states[:, : last - first])
            random = np.random.default_rng([seed, m, number, g])
            log_partitions[g], lengths[g] = anneal(own, m, path, adaptive, _KEPT, _SHOWN, random)

        self._problem.workers.run(task, np.arange(n + 1))
        return path[: lengths[0]] if adaptive else path, log_partitions

    def _keep(self, m: int, log_partitions: Floats) -> None:
        """Average what the populations saw, by their estimates of Z."""
        if np.nanmax(log_partitions) == -np.inf:
            return
        shares = np.nan_to_num(np.exp(log_partitions - np.nanmax(log_partitions)))
        shares /= shares.sum()
        states, entries = self._slices(m)
        chosen = [(share, self._populations[g]) for g, share in enumerate(shares) if share > 0.0]
        self.mean[states] = sum(share * each.mean[states] for share, each in chosen)
        self.clusters[entries] = sum(share * each.clusters[entries] for share, each in chosen)

    def _slices(self, m: int) -> tuple[slice, slice]:
        """Of an instance among states of hubs and among entries of clusters."""
        layout = self._scores.layout
        hubs, clusters = layout.instance_hubs[m : m + 2], layout.instance_clusters[m : m + 2]
        return slice(*layout.hub_offset[hubs]), slice(*self.cluster_start[clusters])

    def _is_stopped(self, m: int, done: int, width: float) -> bool:
        options, n = self._problem.options, self._scores.layout.n_instances
        told = InferenceProgress("annealing", done, width, m, n, self._problem.seconds)
        return bool(options.callback is not None and options.callback(told))
