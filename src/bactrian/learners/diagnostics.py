"""Signs that a learned model, or inference at its weights, cannot be trusted.

With Bethe's entropy four things go wrong, most of all on dense graphs with strong couplings: belief propagation does
not converge at the learned weights, or has several fixed points, or leaves the one that was learned because that is
unstable; and then the moments under inference are not those of the data, for some moments belong to no stable fixed
point of belief propagation at all (Heinemann and Globerson, UAI 2011). Others have nothing to do with loops: without a
prior, weights of label pairs that never occur run away; and tables that are learned from too few edges overrule what
the nodes say, which a comparison with the scores of the nodes alone shows.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Floats
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import Carving, CountingNumbers, carve, concave_numbers
from bactrian.camel.linearisation import Linearisation
from bactrian.camel.prior import Prior
from bactrian.errors import check_choice, check_number
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.inference.infer import graph_marginals
from bactrian.learners.agreement import Probe, favouring
from bactrian.learners.findings import (
    Diagnosis,
    Found,
    Residual,
    look_at_neighbours,
    look_at_pairs,
    look_at_prediction,
    look_at_unseen,
    look_without_edges,
    weight_name,
)
from bactrian.parallel.threads import Context, Workers
from bactrian.solvers.lbfgs import pseudo_gradient
from bactrian.solvers.solution import Solution

#: Marginals that differ by more than this belong to different fixed points.
_APART = 0.05
#: Marginals of inference that does not converge, but moves by less than this, will do for predictions.
_SETTLED = 0.01
#: Residuals that a diagnosis shows.
_SHOWN = 10
#: A moment gap, as part of the clusters (or nodes) that the moment counts, that is worth a word.
_GAP = 0.02
#: Accuracy of message passing here, and sweeps at most.
_TOLERANCE, _SWEEPS = 1e-4, 300
#: More of them, to see whether marginals still move: a prime, so that no cycle of them ends where it began.
_FURTHER_SWEEPS = 307
_CONCAVE_ADVICE = "learn with method='camel0' or 'convex' and predict with matched inference, whose optimum is unique"


def diagnose(
    data: Any,
    solution: Solution | ArrayLike,
    *,
    inference: str = "rbp",
    counting_numbers: CountingNumbers | str | None = None,
    prior_variance: float | ArrayLike | None = 10.0,
    l1: float = 0.0,
    restarts: int = 4,
    seed: int = 0,
    n_threads: int | None = None,
    label_names: list[str] | None = None,
    predict: GraphData | None = None,
    evidence: Any = None,
) -> Diagnosis:
    """Run inference at the learned weights from several starts, and compare its moments with those of the data.

    On labelled graphs, predictions are also compared with those from the scores of the nodes alone.

    Parameters
    ----------
    data : Samples, list of Instance, or GraphData
        The data that the weights were learned from.
    solution : Solution or array
        The result of learning, or weights alone.
    inference : {"rbp", "bp", "trw", "convex", "replay"}
        How predictions are made; ``counting_numbers`` as in :func:`bactrian.infer`. ``"replay"`` is for a solution
        that has a ``path``.
    prior_variance, l1
        The prior of learning.
    restarts : int
        Number of additional starts of belief propagation: messages that favour one state everywhere, and random ones.
    seed, n_threads
        See :func:`bactrian.infer`.
    label_names : list of str, optional
        Names of the labels of a GraphData in messages.
    predict : GraphData, optional
        Graphs to be predicted; they need no labels. A finding reports if edges make labels far more or less frequent
        there than in ``data``, while the nodes alone do not.
    evidence : list of dicts, optional
        Known labels of ``predict``, as in :func:`bactrian.infer`.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import bactrian as bt
    >>> graph = bt.ClusterGraph([2, 2], [(0, 1)])
    >>> model = bt.LogLinearModel(graph, [[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    >>> samples = bt.Samples(model, [[0, 0], [1, 1], [0, 1]])
    >>> print(diagnose(samples, [3.0, -9.0], prior_variance=None))
    serious: ...
    """
    check_choice("inference", inference, ("rbp", "bp", "trw", "convex", "replay"))
    path = solution.path if isinstance(solution, Solution) and inference == "replay" else None
    if inference == "replay" and path is None:
        raise ValueError("inference='replay' needs a solution with a path")
    check_number("restarts", restarts, least=0, whole=True)
    packed = pack(data)
    weights = np.asarray(solution.weights if isinstance(solution, Solution) else solution, dtype=np.float64)
    if weights.shape != (packed.n_weights,):
        raise ValueError(f"solution must have {packed.n_weights} weights, found shape {weights.shape}")
    prior = Prior.of(prior_variance, l1).checked_for(packed.n_weights)
    carving = _numbers(packed, inference, counting_numbers)
    dual = Dual(packed, carving, prior, Context(Workers(n_threads)))
    probe = Probe(
        dual.part, weights[None] if path is None else path, "residual" if inference == "rbp" else "sequential",
        is_bethe=inference in ("bp", "rbp"), tolerance=_TOLERANCE, max_sweeps=_SWEEPS,
        relinearise=Linearisation(dual).update,
    )  # fmt: skip
    found = Found()
    if isinstance(solution, Solution) and not solution.converged:
        found.add(
            "stopped-short",
            "warning",
            f"learning {solution.status} with a moment gap of {solution.moment_gap:.1e}",
            "raise its limits, or go on from the solution with start=",
            {"moment_gap": solution.moment_gap},
        )
    _look_at_inference(probe, solution, restarts, seed, found)
    residuals = _look_at_moments(probe, prior, found)
    called = label_names or [str(label) for label in range(data.n_labels if isinstance(data, GraphData) else 0)]
    if prior.leaves_free:
        look_at_unseen(data, packed, weights, called, found)
    if isinstance(data, GraphData) and data.labels is not None:
        look_at_pairs(data, prior, called, found)
        look_without_edges(data, weights, probe.part.hub_beliefs(), found)
        look_at_neighbours(data, prior, seed, n_threads, found)
    if predict is not None:
        options: dict[str, Any] = {} if inference != "convex" else {"counting_numbers": counting_numbers}
        used = weights if path is None else path
        if path is not None:
            options["tolerance"] = _TOLERANCE
        marginals = graph_marginals(predict, used, inference, evidence, n_threads=n_threads, seed=seed, **options)
        look_at_prediction(data, predict, weights, marginals.nodes, evidence, called, found)
    named = (Residual(weight_name(data, k, called), *numbers) for k, *numbers in residuals)
    return Diagnosis(tuple(found.findings), found.figures, tuple(named))


def _numbers(data: PackedData, inference: str, given: CountingNumbers | str | None) -> Carving:
    if inference == "convex" and given is not None:
        return concave_numbers(data, given)
    if inference == "replay":
        return carve(data, "bethe")
    return carve(data, inference if inference in ("trw", "convex") else "bethe").whole


def _by_instance(data: PackedData, difference: Floats) -> Floats:
    """Largest entry of each instance, of something per hub state."""
    bounds = data.layout.hub_offset[data.layout.instance_hubs]
    return np.array([difference[a:b].max(initial=0.0) for a, b in itertools.pairwise(bounds.tolist())])


def _look_at_inference(probe: Probe, solution: Any, restarts: int, seed: int, found: Found) -> None:
    """Whether messages converge, stay where learning left them, and end at one place from whatever start."""
    n = probe.data.layout.n_instances
    looped = bool((~probe.data.layout.instance_is_tree).any())
    if probe.is_bethe and looped:
        _look_at_stability(probe, solution, seed, found)
        _look_for_others(probe, restarts, seed, found)
    beliefs, converged = probe.run()  # last, so that its beliefs are those that the moments are taken from
    failed = int((~converged).sum())
    found.figures["not_converged"] = failed / n
    if failed:
        further, _ = probe.run(probe.part.multipliers.copy(), _FURTHER_SWEEPS)
        moving = float(_by_instance(probe.data, np.abs(further - beliefs))[~converged].max())
        found.figures["still_moving"] = moving
        found.add(
            "not-converged",
            "serious" if moving > _SETTLED else "warning",
            f"inference does not converge at the learned weights on {failed} of {n} instances (marginals still move "
            f"by up to {moving:.2g})",
            f"{_CONCAVE_ADVICE}, or use a smaller prior_variance" if probe.is_bethe else "raise max_iterations",
            {"part": failed / n, "moving": moving},
        )
        found.findings.insert(0, found.findings.pop())  # before what may follow from it


def _look_at_stability(probe: Probe, solution: Any, seed: int, found: Found) -> None:
    """Whether belief propagation stays at the learned messages, nudged a little."""
    state = solution.state if isinstance(solution, Solution) else None
    if state is None or state.multipliers.size != probe.part.multipliers.size:
        return
    probe.part.multipliers[:] = state.multipliers
    probe.part.set_weights(probe.path[-1])
    probe.part.pass_messages()
    if float(probe.part.beliefs.violation.max(initial=0.0)) > _APART:
        return  # no fixed point was learned: the messages belong to another entropy, or to none
    learned = probe.part.hub_beliefs()
    nudge = np.random.default_rng(seed).normal(scale=1e-2, size=state.multipliers.size)
    beliefs, _ = probe.run(np.where(np.isfinite(state.multipliers), state.multipliers + nudge, state.multipliers))
    moved = _by_instance(probe.data, np.abs(beliefs - learned))
    found.figures["moved"] = float(moved.max(initial=0.0))
    left = int((moved > _APART).sum())
    if left:
        found.add(
            "unstable",
            "serious",
            f"belief propagation leaves the fixed point that was learned on {left} of {moved.size} instances (a "
            f"marginal moves by up to {moved.max():.2f})",
            _CONCAVE_ADVICE,
            {"part": left / moved.size, "largest": float(moved.max())},
        )


def _look_for_others(probe: Probe, restarts: int, seed: int, found: Found) -> None:
    """Whether other starts lead to other fixed points."""
    reference, converged = probe.run()
    rng = np.random.default_rng(seed)
    apart = np.zeros(probe.data.layout.n_instances)
    for r in range(restarts):
        beliefs, also = probe.run(_start(probe.data, r, rng))
        distance = _by_instance(probe.data, np.abs(beliefs - reference))
        apart = np.maximum(apart, np.where(converged & also, distance, 0.0))
    found.figures["apart"] = float(apart.max(initial=0.0))
    several = int((apart > _APART).sum())
    if several:
        found.add(
            "several-fixed-points",
            "serious",
            f"belief propagation has several fixed points at the learned weights on {several} of {apart.size} "
            f"instances (marginals from different starts differ by up to {apart.max():.2f})",
            _CONCAVE_ADVICE,
            {"part": several / apart.size, "largest": float(apart.max())},
        )


def _start(data: PackedData, number: int, rng: np.random.Generator) -> Floats:
    """Messages that favour one state everywhere, state after state; every third start is random."""
    layout = data.layout
    noise = rng.normal(size=layout.n_link_states)
    if number % 3 == 2:
        return 3.0 * noise
    sizes = np.diff(layout.link_offset)
    return favouring(layout.link_offset, (number - number // 3) % np.repeat(sizes, sizes)) + 0.1 * noise


def _look_at_moments(probe: Probe, prior: Prior, found: Found) -> list[tuple[int, float, float, float]]:
    """Compare E[f] under inference from the usual start with the data, in parts of what each moment counts.

    Returns weight, observed and expected moment and gap of those that are furthest off.
    """
    (observed, expected, scale), weights = probe.moments(), probe.path[-1]
    gradient = expected - observed + prior.precision * weights
    gap = np.abs(pseudo_gradient(weights, gradient, prior.l1))
    worst = float(gap.max(initial=0.0) / scale)
    found.figures["moment_gap"] = worst
    if worst > _GAP:
        found.add(
            "moments-unattained",
            "serious" if worst > 5 * _GAP else "warning",
            f"moments under inference at the learned weights differ from those of the data by {100 * worst:.0f} % of "
            "the largest",
            f"learning did not match its moments, or inference is not that of learning: {_CONCAVE_ADVICE}",
            {"gap": worst},
        )
    order = np.argsort(-gap, kind="stable")[:_SHOWN].tolist()
    return [(k, float(observed[k]), float(expected[k]), float(gap[k])) for k in order]
