"""Gibbs sampling: marginals by simulation, with the means to judge them.

Geman & Geman, PAMI 6(6), 1984; blocks that are forests: Hamze & de Freitas, UAI 2004; split R-hat: Gelman & Rubin,
Statistical Science 7(4), 1992, in the form of Vehtari et al., Bayesian Analysis 16(2), 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.gibbs import Chain, Draws, Sweeps, run_chain, start_chain
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.orders import Blocks, build_blocks
from bactrian.graphs.packed import HubTables, InstanceBeliefs
from bactrian.graphs.ragged import pointer
from bactrian.inference.factors import FactorScores, FactorTables, factor_scores
from bactrian.inference.maximum import find_allowed
from bactrian.inference.problem import Problem
from bactrian.inference.result import InferenceResult, VariableMarginals

#: Sweeps in which a chain looks for an allowed state by itself.
_SEARCH = 200
#: Joint states of a pair up to which sampling it jointly is cheap.
LARGEST_PAIR = 4096


@dataclass(frozen=True)
class SamplingResult(InferenceResult):
    """Marginals by sampling.

    Attributes
    ----------
    r_hat : (n_variables,)
        Split R-hat of each variable, the largest over the indicators of its states: near 1 where the chains agree,
        inf where they are stuck apart.
    standard_errors : sequence
        ``standard_errors[v]``: Monte-Carlo standard error of each entry of ``variables[v]``: from batch means, or from
        the spread of the chains' means where that is larger.
    n_samples, n_chains, n_blocks : int
        Sweeps kept of each chain, number of chains, and blocks in which the variables were sampled.
    """

    r_hat: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    standard_errors: Sequence[Floats] = field(default=(), repr=False)
    n_samples: int = 0
    n_chains: int = 0
    n_blocks: int = 0


def gibbs(
    problem: Problem,
    *,
    n_samples: int = 2000,
    burn_in: int = 500,
    thinning: int = 1,
    n_chains: int = 4,
    blocked: bool = True,
    r_hat: float = 1.05,
) -> list[InferenceResult]:
    """Blocked Gibbs sampling.

    Variables are split greedily into blocks whose variables, given all others, are joined by clusters in pairs without
    a cycle; each block is drawn jointly by forward filtering and backward sampling. A chain or tree of pairs is one
    block, and its samples are independent; on a grid there are a few blocks; a clique of pairs is sampled two variables
    at a time. Pairs with more than 4096 joint states are not drawn jointly.

    Variable marginals average, over the sweeps kept, each variable's marginal given the other blocks
    (Rao-Blackwellisation, Gelfand & Smith 1990); cluster marginals are counts of sampled states. There is no estimate
    of log Z.

    Chains start at random. Where potentials forbid states, a start is sought by sampling with growing finite penalties
    in their place, then by max-product or a small junction tree; a ValueError says where none was found. Hard
    constraints can also cut the allowed states into parts between which no block moves; chains that start in
    different parts then disagree, and R-hat tells.

    Parameters
    ----------
    problem : Problem
        Packed models, weights, evidence, options. ``seed`` seeds the chains; threads change nothing.
    n_samples, burn_in, thinning : int
        Sweeps kept of each chain, sweeps before the first, and sweeps for each one kept.
    n_chains : int
        Number of chains.
    blocked : bool
        Whether to draw variables that share a cluster jointly; otherwise each is drawn given all its neighbours.
    r_hat : float
        ``converged`` says that no variable's split R-hat exceeds this.
    """
    scores = factor_scores(problem.data, problem.weights, problem.evidence, problem.workers)
    layout = scores.layout
    blocks = build_blocks(layout, scores.hubs, LARGEST_PAIR if blocked else 0)
    chains = Chains(scores, blocks, n_chains, problem.options.seed)
    chains.start(problem)
    chains.run(problem, burn_in, thinning, n_samples)
    mean, error, split_r_hat = _summarise(layout, chains.draws, n_samples)
    counts = np.sum([draws.clusters for draws in chains.draws], axis=0)
    reader, errors = CountTables(layout, mean, chains.cluster_start, counts), HubTables(layout, error)
    tables = FactorTables(problem.data, scores.data, reader)
    results: list[InferenceResult] = []
    for m in range(layout.n_instances):
        first, last = layout.instance_hubs[m : m + 2]
        worst = float(split_r_hat[first:last].max(initial=1.0))
        sweeps = n_chains * (burn_in + n_samples * thinning)
        results.append(
            SamplingResult(
                variables=VariableMarginals(scores.data, reader, m),
                clusters=InstanceBeliefs(problem.data, tables, m),
                log_partition=None,
                converged=worst <= r_hat,
                iterations=sweeps,
                updates=sweeps * int(last - first),
                method="gibbs",
                status="converged" if worst <= r_hat else f"the chains disagree: R-hat {worst:.3f} exceeds {r_hat}",
                residual=worst - 1.0,
                seconds=problem.seconds,
                r_hat=split_r_hat[first:last].copy(),
                standard_errors=VariableMarginals(scores.data, errors, m),
                n_samples=n_samples,
                n_chains=n_chains,
                n_blocks=int(blocks.instance_blocks[m + 1] - blocks.instance_blocks[m]),
            )
        )
    return results


class CountTables(HubTables):
    """Marginals of variables as given, and of clusters from counts."""

    def __init__(self, layout: Layout, hubs: Floats, cluster_start: Ints, counts: Ints | Floats) -> None:
        super().__init__(layout, hubs)
        self._cluster_start, self._counts = cluster_start, counts

    def cluster(self, index: int) -> Floats:
        """Frequencies of a cluster's states."""
        counts = self._counts[self._cluster_start[index] : self._cluster_start[index + 1]]
        return counts / counts.sum()


class Chains:
    """States, random numbers and sums of all chains of all instances."""

    def __init__(self, scores: FactorScores, blocks: Blocks, n_chains: int, seed: int) -> None:
        layout = scores.layout
        self._scores, self._blocks, self._n_chains = scores, blocks, n_chains
        self._kernel_scores = scores.arrays
        sizes = np.diff(layout.table_offset)[layout.cluster_table]
        self.cluster_start = pointer(sizes)
        self.states = np.zeros((n_chains, layout.n_hubs), dtype=np.int64)
        seeds = np.random.SeedSequence(seed).spawn(n_chains * (scores.data.blocks.size - 1))
        self._random = [np.random.default_rng(each) for each in seeds]
        self.started = np.zeros((n_chains, layout.n_instances), dtype=np.bool_)
        n = layout.n_hub_states
        self.draws = [
            Draws(
                np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros((2, n), dtype=np.int64),
                np.zeros(int(self.cluster_start[-1]), dtype=np.int64),
            )
            for _ in range(n_chains)
        ]  # fmt: skip
        largest = int(np.diff(layout.hub_offset).max(initial=1))
        self._work = [(np.empty(n), np.empty(layout.n_link_states), np.empty(n)) for _ in range(n_chains)]
        self._largest = largest

    def start(self, problem: Problem) -> None:
        """An allowed state for every chain, or an error."""
        layout = self._scores.layout

        def task(chain: int, first: int, last: int, random: np.random.Generator) -> None:
            start_chain(self._chain(chain), first, last, _SEARCH, random, self.started[chain])

        self._each(problem, task)
        if self.started.all():
            return
        found = find_allowed(self._scores, problem.workers, problem.many, problem.evidence)
        for m in np.flatnonzero(~self.started.all(axis=0)):
            if found.score[m] == -np.inf:
                which = f"model {m}: " if problem.many else ""
                raise ValueError(
                    f"{which}gibbs found no allowed state to start from; the potentials forbid every one it tried"
                )
            hubs = slice(*layout.instance_hubs[m : m + 2])
            self.states[~self.started[:, m], hubs] = found.states[hubs]

    def run(self, problem: Problem, burn_in: int, thinning: int, n_samples: int) -> None:
        """All sweeps of all chains."""
        sweeps = Sweeps(burn_in, thinning, n_samples, batch_length(n_samples))

        def task(chain: int, first: int, last: int, random: np.random.Generator) -> None:
            run_chain(self._chain(chain), first, last, self.cluster_start, self.draws[chain], sweeps, random)

        self._each(problem, task)

    def _chain(self, chain: int) -> Chain:
        work = (*self._work[chain], np.empty(self._largest))
        return Chain(self._scores.layout, self._kernel_scores, self._blocks, self.states[chain], *work)

    def _each(self, problem: Problem, task: Callable[[int, int, int, np.random.Generator], None]) -> None:
        """``task(chain, first, last, random)`` for every chain on every block of instances."""
        blocks = self._scores.data.blocks
        n_blocks = blocks.size - 1

        def one(number: int, _first: int, _last: int) -> None:
            chain, block = divmod(number, n_blocks)
            task(chain, int(blocks[block]), int(blocks[block + 1]), self._random[number])

        problem.workers.run(one, np.arange(self._n_chains * n_blocks + 1))


def batch_length(n_samples: int) -> int:
    """Sweeps a batch: the square root of all, rounded down, so that there are at least two batches."""
    return max(1, isqrt(n_samples))


def _summarise(layout: Layout, draws: Sequence[Draws], n_samples: int) -> tuple[Floats, Floats, Floats]:
    """Means over all chains, their standard errors, and split R-hat of each variable."""
    means = np.stack([d.mean for d in draws]) / n_samples
    batches = n_samples // batch_length(n_samples) * len(draws)
    batch_mean = sum(d.batch_sum for d in draws) / batches
    variance = sum(d.batch_square for d in draws) / batches - batch_mean**2
    error = np.sqrt(np.maximum(variance, 0.0) / (batches - 1))
    if len(draws) > 1:
        error = np.maximum(error, means.std(axis=0, ddof=1) / np.sqrt(len(draws)))
    half = n_samples // 2
    parts = np.concatenate([d.halves for d in draws]) / half
    within = (parts * (1.0 - parts)).mean(axis=0) * half / (half - 1)
    between = parts.var(axis=0, ddof=1)
    ratio = np.ones(layout.n_hub_states)
    moving = within > 0.0
    ratio[moving] = np.sqrt((half - 1) / half + between[moving] / within[moving])
    ratio[~moving & (between > 0.0)] = np.inf
    r_hat = np.maximum.reduceat(ratio, layout.hub_offset[:-1]) if layout.n_hubs else np.zeros(0)
    return means.mean(axis=0), error, r_hat
