"""Maximum (conditional) likelihood with exact inference.

On an acyclic Bethe graph two sweeps of belief propagation are exact (forward-backward, on a chain). Other models are
rewritten on a junction tree of their clusters, where the same two sweeps are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bactrian.clusters.junction import on_junction_trees
from bactrian.clusters.packed import PackedData
from bactrian.kernels.threads import Workers
from bactrian.learning.inner import Profiled
from bactrian.learning.run import Run, Settings
from bactrian.objective.dual import Dual
from bactrian.objective.entropy import total_numbers
from bactrian.solvers.solution import Solution


@dataclass(frozen=True)
class Likelihood:
    """Maximum likelihood; ``inference`` says how the partition function and marginals are computed.

    Parameters
    ----------
    inference : "exact"
        Message passing on trees, a junction tree elsewhere.
    """

    inference: str = "exact"

    def __post_init__(self) -> None:
        if self.inference != "exact":
            raise ValueError(f"inference must be 'exact', found {self.inference!r}")

    @property
    def name(self) -> str:
        """The shorthand of this learner."""
        return self.inference

    def learn(self, data: PackedData, settings: Settings, workers: Workers) -> Solution:
        """Fit the weights of packed data."""
        # A cluster without links shares its variables with others unbeknown to the messages.
        has_links = (np.diff(data.layout.cluster_links) > 0).all()
        is_tree = data.layout.instance_is_tree.all() and has_links and not data.hub_virtual.any()
        junction = None if is_tree else on_junction_trees(data)
        exact = data if junction is None else junction.packed
        run = Run(settings, exact, self.name)
        dual = Dual(exact, total_numbers(exact), settings.prior, workers)
        inner = Profiled(dual, run, tree_sweeps=2)
        inner.objective.accuracy = run.accuracy
        result = inner.solve(run.initial_weights(), tolerance=run.gap_tolerance, max_iterations=run.iterations_left)
        run.record(result, inner)
        return run.finish(inner, result.weights, result.status, junction)
