"""Pseudo-likelihood: the product of every variable's conditional, given the observed states of the others.

Besag (The Statistician 24(3), 1975) replaces the likelihood of each row x, whose partition function sums over all joint
states, by conditionals, whose normalisers sum over the states of one variable v,

    - sum_x sum_v log p(x_v | x of the other variables; w) + |w|^2 / 2 sigma^2 + l1 |w|_1

and Sutton and McCallum (Piecewise pseudolikelihood, ICML 2007) break the conditionals up once more, into those of each
cluster c on its own,

    - sum_x sum_c sum_{v in c} log p_c(x_v | x of the other variables of c; w) + |w|^2 / 2 sigma^2 + l1 |w|_1.

Both are convex in w, need no message passing, and are multinomial logistic regressions with shared weights. The first
is consistent: with ever more samples of the model it finds the weights that they were drawn with (where these can be
told from the data at all). The second counts a variable once for each cluster around it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.profiled import Profiled
from bactrian.camel.run import NoBeliefs, Run, Settings
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.conditionals import pack_conditionals
from bactrian.graphs.packed import PackedData
from bactrian.solvers.solution import Solution

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PseudoLikelihood:
    """Maximum pseudo-likelihood.

    Conditionals have no joint beliefs: ``solution.violation`` is NaN and reading ``solution.beliefs`` is an error; call
    :func:`bactrian.infer` at ``solution.weights`` for marginals.

    Parameters
    ----------
    piecewise : bool
        Condition within each cluster alone (Sutton and McCallum 2007) rather than on all clusters around a variable
        (Besag 1975). A singleton cluster is then a piece of its own; node scores that are absorbed into edges
        (``node_factors="edges"``) are shared evenly by the edges around the node.

    Examples
    --------
    ``"pseudolikelihood"`` and ``"piecewise-pseudolikelihood"`` are short for

    >>> PseudoLikelihood().name
    'pseudolikelihood'
    >>> PseudoLikelihood(piecewise=True).name
    'piecewise-pseudolikelihood'
    """

    piecewise: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.piecewise, bool):
            raise TypeError(f"piecewise must be True or False, found {self.piecewise!r}")

    @property
    def name(self) -> str:
        """The shorthand of this learner."""
        return "piecewise-pseudolikelihood" if self.piecewise else "pseudolikelihood"

    def learn(self, data: PackedData, settings: Settings, workers: Workers) -> Solution:
        """Fit the weights of packed data."""
        run = Run(settings, data, self.name)
        conditionals = pack_conditionals(data, piecewise=self.piecewise)
        dual = Dual(
            conditionals,
            carve(conditionals, "clusters"),
            settings.prior,
            workers,
            consistency=False,
            communicator=settings.communicator,
        )
        inner = Profiled(dual, run)
        result = inner.solve(run.initial_weights(), tolerance=run.gap_tolerance, max_iterations=run.iterations_left)
        run.record(replace(result, violation=np.nan), inner)
        solution = run.finish(inner, result.weights, result.status)
        return replace(solution, violation=np.nan, beliefs=NoBeliefs(self.name))
