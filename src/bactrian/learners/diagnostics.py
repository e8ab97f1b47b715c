"""Signs that a learned model, or inference at its weights, is not to be trusted.

With Bethe's entropy four things go wrong, most of all on dense graphs with strong couplings: belief propagation does
not converge at the learned weights, or has several fixed points, or leaves the one that was learned because that is
unstable; and then the moments under inference are not those of the data, for some moments belong to no stable fixed
point of belief propagation at all (Heinemann and Globerson, UAI 2011). Others have nothing to do with loops: without a
prior, weights of label pairs that never occur run away; and tables that are learned from too few edges overrule what
the nodes say, which a comparison with the scores of the nodes alone shows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Bools, Floats
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import Carving, CountingNumbers, carve, concave_numbers
from bactrian.camel.linearisation import Linearisation
from bactrian.camel.prior import Prior
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.inference.infer import StackedMarginals, graph_marginals
from bactrian.inference.propagation import settle
from bactrian.learners.agreement import favouring
from bactrian.learners.findings import (
    FOLDS,
    chance_of_neighbours,
    labels_of_nodes,
    residuals_without_edges,
    seldom_pairs,
    unseen_weights,
    weight_name,
)
from bactrian.solvers.lbfgs import pseudo_gradient
from bactrian.solvers.solution import Solution

#: Marginals that differ by more than this belong to different fixed points.
_APART = 0.05
#: Marginals of inference that does not converge, but moves by less than this, will do for predictions.
_SETTLED = 0.01
#: Probability from which on it is named that labels of neighbours go together by chance.
_CHANCE = 0.05
#: Edges below which sums over them are not normal, and edge inputs beyond which one test of so many means nothing.
_LEAST_EDGES, _MOST_INPUTS = 20, 20
#: Frequency that labels of predictions may lose or gain, beyond chance, before it is worth a word.
_SHIFT = 0.1
#: Residuals that a diagnosis shows.
_SHOWN = 10
#: A moment gap, as part of the clusters (or nodes) that the moment counts, that is worth a word.
_GAP = 0.02
#: Accuracy of message passing here, and sweeps at most.
_TOLERANCE, _SWEEPS = 1e-4, 300
_CONCAVE_ADVICE = "learn with method='camel0' or 'convex' and predict with matched inference, whose optimum is unique"


@dataclass(frozen=True)
class Finding:
    """One sign of trouble."""

    #: "not-converged", "several-fixed-points", "unstable", "moments-unattained", "unseen", "seldom", "edges-hurt",
    #: "edges-idle", "labels-shifted", "stopped-short"
    name: str
    severity: str  #: "warning", or "serious" where predictions are likely to suffer
    message: str  #: what was seen
    advice: str  #: what to do about it
    figures: dict[str, float]  #: the numbers behind it

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}; {self.advice}"


@dataclass(frozen=True)
class Residual:
    """A moment of the data beside that under inference at the learned weights, both as sums."""

    name: str  #: what its weight belongs to
    observed: float
    expected: float
    gap: float  #: what is left of the difference where the prior has taken its part

    def __str__(self) -> str:
        return f"{self.name}: {self.expected:.4g} expected, {self.observed:.4g} observed"


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; empty where all is well."""

    findings: tuple[Finding, ...]
    figures: dict[str, float]  #: everything that was measured
    residuals: tuple[Residual, ...] = ()  #: of the moments that are furthest off, those first

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(finding.name for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no findings"


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

    Labelled graphs are also labelled by the scores of their nodes alone, to see whether the edges do any good.

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
        Further starts of belief propagation: messages that favour one state everywhere, and random ones.
    seed, n_threads
        See :func:`bactrian.infer`.
    label_names : list of str, optional
        What messages call the labels of a GraphData.
    predict : GraphData, optional
        Graphs that are to be predicted; they need no labels. Where edges make labels there far more or less frequent
        than in ``data``, and the nodes alone do not, it is said.
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
    if inference not in ("rbp", "bp", "trw", "convex", "replay"):
        raise ValueError(f"inference must be 'rbp', 'bp', 'trw', 'convex' or 'replay', found {inference!r}")
    path = solution.path if isinstance(solution, Solution) and inference == "replay" else None
    if inference == "replay" and path is None:
        raise ValueError("inference='replay' needs a solution with a path")
    if isinstance(restarts, bool) or not (isinstance(restarts, int | np.integer) and restarts >= 0):
        raise ValueError(f"restarts must be an integer of at least 0, found {restarts!r}")
    packed = pack(data)
    weights = np.asarray(solution.weights if isinstance(solution, Solution) else solution, dtype=np.float64)
    if weights.shape != (packed.n_weights,):
        raise ValueError(f"solution must have {packed.n_weights} weights, found shape {weights.shape}")
    prior = Prior.of(prior_variance, l1).checked_for(packed.n_weights)
    carving = _numbers(packed, inference, counting_numbers, seed)
    probe = _Probe(packed, carving, prior, weights, inference, n_threads, path)
    findings: list[Finding] = []
    figures: dict[str, float] = {}
    if isinstance(solution, Solution) and not solution.converged:
        findings.append(_stopped_short(solution))
    _look_at_inference(probe, solution, restarts, seed, findings, figures)
    residuals = _look_at_moments(probe, findings, figures)
    if prior.leaves_free:
        _look_at_unseen(data, packed, weights, label_names, findings, figures)
    if isinstance(data, GraphData) and data.labels is not None:
        _look_at_pairs(data, prior, label_names, findings)
        _look_without_edges(data, weights, probe.dual.part.hub_beliefs(), findings, figures)
        _look_at_neighbours(data, prior, seed, n_threads, findings, figures)
    if predict is not None:
        options: dict[str, Any] = {} if inference != "convex" else {"counting_numbers": counting_numbers}
        used = weights if path is None else path
        if path is not None:
            options["tolerance"] = _TOLERANCE
        found = graph_marginals(predict, used, inference, evidence, n_threads=n_threads, seed=seed, **options)
        _look_at_prediction(data, predict, weights, found, evidence, label_names, findings, figures)
    return Diagnosis(
        tuple(findings),
        figures,
        tuple(Residual(weight_name(data, k, label_names), *numbers) for k, *numbers in residuals),
    )


def _numbers(data: PackedData, inference: str, given: CountingNumbers | str | None, seed: int) -> Carving:
    if inference == "convex" and given is not None:
        return concave_numbers(data, given)
    if inference == "replay":
        return carve(data, "bethe")
    return carve(data, inference if inference in ("trw", "convex") else "bethe", seed).whole


class _Probe:
    """Message passing at fixed weights from any start, or along a path of weights."""

    def __init__(
        self,
        data: PackedData,
        carving: Carving,
        prior: Prior,
        weights: Floats,
        inference: str,
        n_threads: int | None,
        path: Floats | None,
    ) -> None:
        self.workers = Workers(n_threads)
        self.dual = Dual(data, carving, prior, self.workers)
        self.weights, self.data, self.prior = weights, data, prior
        self.path = weights[None] if path is None else path
        self.linearisation = Linearisation(self.dual)
        self.bethe = inference in ("bp", "rbp")
        self.schedule = "residual" if inference == "rbp" else "sequential"

    def run(self, start: Floats | None) -> tuple[Floats, Bools]:
        """Beliefs of all hub states, and which instances converged."""
        part = self.dual.part
        part.multipliers[:] = 0.0 if start is None else start
        part.linearisation[:] = 0.0
        converged = np.ones(self.data.layout.n_instances, dtype=np.bool_)
        for step, weights in enumerate(self.path):
            if step:
                self.linearisation.update()
            progress = settle(
                part, weights, self.schedule, tolerance=_TOLERANCE, max_sweeps=_SWEEPS, tame=not self.bethe
            )
            part.pass_messages()
            converged &= progress.status == CONVERGED
        return part.hub_beliefs(), converged

    def per_instance(self, difference: Floats) -> Floats:
        """Largest entry of each instance, of something per hub state."""
        layout = self.data.layout
        bounds = layout.hub_offset[layout.instance_hubs]
        return np.array([difference[a:b].max(initial=0.0) for a, b in itertools.pairwise(bounds.tolist())])


def _look_at_inference(
    probe: _Probe,
    solution: Any,
    restarts: int,
    seed: int,
    findings: list[Finding],
    figures: dict[str, float],
) -> None:
    n = probe.data.layout.n_instances
    looped = bool((~probe.data.layout.instance_is_tree).any())
    if probe.bethe and looped:
        _look_at_stability(probe, solution, seed, findings, figures)
        _look_for_others(probe, restarts, seed, findings, figures)
    beliefs, converged = probe.run(None)  # last, so that its beliefs are those that the moments are taken from
    failed = int((~converged).sum())
    figures["not_converged"] = failed / n
    if failed:
        further, _ = probe.run(probe.dual.part.multipliers.copy())
        moving = float(probe.per_instance(np.abs(further - beliefs))[~converged].max())
        figures["still_moving"] = moving
        findings.insert(
            0,
            Finding(
                "not-converged",
                "serious" if moving > _SETTLED else "warning",
                f"inference does not converge at the learned weights on {failed} of {n} instances (marginals still "
                f"move by up to {moving:.2g})",
                f"{_CONCAVE_ADVICE}, or use a smaller prior_variance" if probe.bethe else "raise max_iterations",
                {"part": failed / n, "moving": moving},
            ),
        )


def _look_at_stability(
    probe: _Probe, solution: Any, seed: int, findings: list[Finding], figures: dict[str, float]
) -> None:
    """Whether belief propagation stays at the learned messages, nudged a little."""
    state = solution.state if isinstance(solution, Solution) else None
    if state is None or state.multipliers.size != probe.dual.part.multipliers.size:
        return
    probe.dual.part.multipliers[:] = state.multipliers
    probe.dual.part.set_weights(probe.weights)
    probe.dual.part.pass_messages()
    if float(probe.dual.part.beliefs.violation.max(initial=0.0)) > _APART:
        return  # no fixed point was learned: the messages belong to another entropy, or to none
    learned = probe.dual.part.hub_beliefs()
    nudge = np.random.default_rng(seed).normal(scale=1e-2, size=state.multipliers.size)
    beliefs, _ = probe.run(np.where(np.isfinite(state.multipliers), state.multipliers + nudge, state.multipliers))
    moved = probe.per_instance(np.abs(beliefs - learned))
    figures["moved"] = float(moved.max(initial=0.0))
    left = int((moved > _APART).sum())
    if left:
        findings.append(
            Finding(
                "unstable",
                "serious",
                f"belief propagation leaves the fixed point that was learned on {left} of {moved.size} instances "
                f"(a marginal moves by up to {moved.max():.2f})",
                _CONCAVE_ADVICE,
                {"part": left / moved.size, "largest": float(moved.max())},
            )
        )


def _look_for_others(
    probe: _Probe, restarts: int, seed: int, findings: list[Finding], figures: dict[str, float]
) -> None:
    """Whether other starts lead to other fixed points."""
    reference, converged = probe.run(None)
    rng = np.random.default_rng(seed)
    apart = np.zeros(probe.data.layout.n_instances)
    for r in range(restarts):
        beliefs, also = probe.run(_start(probe.data, r, rng))
        distance = probe.per_instance(np.abs(beliefs - reference))
        apart = np.maximum(apart, np.where(converged & also, distance, 0.0))
    figures["apart"] = float(apart.max(initial=0.0))
    several = int((apart > _APART).sum())
    if several:
        findings.append(
            Finding(
                "several-fixed-points",
                "serious",
                f"belief propagation has several fixed points at the learned weights on {several} of {apart.size} "
                f"instances (marginals from different starts differ by up to {apart.max():.2f})",
                _CONCAVE_ADVICE,
                {"part": several / apart.size, "largest": float(apart.max())},
            )
        )


def _start(data: PackedData, number: int, rng: np.random.Generator) -> Floats:
    """Messages that favour one state everywhere, state after state; every third start is random."""
    layout = data.layout
    noise = rng.normal(size=layout.n_link_states)
    if number % 3 == 2:
        return 3.0 * noise
    sizes = np.diff(layout.link_offset)
    return favouring(layout.link_offset, (number - number // 3) % np.repeat(sizes, sizes)) + 0.1 * noise


def _look_at_moments(
    probe: _Probe, findings: list[Finding], figures: dict[str, float]
) -> list[tuple[int, float, float, float]]:
    """Compare E[f] under inference from the usual start with the data, in parts of what each moment counts.

    Returns weight, observed and expected moment and gap of those that are furthest off.
    """
    dual = probe.dual
    expected = dual.part.summary().moments
    gradient = expected - dual.empirical + probe.prior.precision * probe.weights
    gap = np.abs(pseudo_gradient(probe.weights, gradient, probe.prior.l1))
    scale = np.maximum(np.abs(dual.empirical), np.abs(expected)).max(initial=1.0)
    worst = float(gap.max(initial=0.0) / scale)
    figures["moment_gap"] = worst
    if worst > _GAP:
        findings.append(
            Finding(
                "moments-unattained",
                "serious" if worst > 5 * _GAP else "warning",
                f"moments under inference at the learned weights differ from those of the data by {100 * worst:.0f} % "
                "of the largest",
                f"learning did not match its moments, or inference is not that of learning: {_CONCAVE_ADVICE}",
                {"gap": worst},
            )
        )
    order = np.argsort(-gap, kind="stable")[:_SHOWN].tolist()
    return [(k, float(dual.empirical[k]), float(expected[k]), float(gap[k])) for k in order]


def _look_at_pairs(data: GraphData, prior: Prior, label_names: list[str] | None, findings: list[Finding]) -> None:
    """Whether label pairs are seen so seldom that their weights are guesses."""
    n_edges, n_weights, names = seldom_pairs(data, prior.precision, label_names)
    if names:
        listed = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
        findings.append(
            Finding(
                "seldom",
                "warning",
                f"{n_edges} edges teach {n_weights} weights of label pairs, {len(names)} of which are seen fewer than "
                f"5 times ({listed})",
                "tie the tables more (tables='pooled' or 'potts'), or give edges a smaller variance",
                {"edges": float(n_edges), "weights": float(n_weights), "pairs": float(len(names))},
            )
        )


def _look_without_edges(
    data: GraphData, weights: Floats, beliefs: Floats, findings: list[Finding], figures: dict[str, float]
) -> None:
    """Whether more labels of the data are right without edges than with them, beyond chance."""
    right = beliefs.reshape(data.n_nodes, -1).argmax(axis=1) == data.labels
    alone = labels_of_nodes(data, weights) == data.labels
    figures["accuracy"], figures["accuracy_without_edges"] = float(right.mean()), float(alone.mean())
    lost, won = int((alone & ~right).sum()), int((right & ~alone).sum())
    if lost - won > 2.0 * np.sqrt(lost + won):
        findings.append(
            Finding(
                "edges-hurt",
                "serious",
                f"inference labels {100 * right.mean():.1f} % of the nodes right, the scores of the nodes alone "
                f"{100 * alone.mean():.1f} %",
                "give edges a smaller variance, tie their tables more, or learn with method='convex' and predict with "
                "matched inference",
                {"with": float(right.mean()), "without": float(alone.mean())},
            )
        )


def _look_at_neighbours(
    data: GraphData,
    prior: Prior,
    seed: int,
    n_threads: int | None,
    findings: list[Finding],
    figures: dict[str, float],
) -> None:
    """Whether labels of neighbours go together beyond what the inputs of both say."""
    wide = any(kind.inputs is not None and kind.inputs.shape[1] > _MOST_INPUTS for kind in data.scores.types)
    few = data.edges.shape[0] < _LEAST_EDGES or data.n_nodes < 2 * FOLDS
    if few or wide or data.n_labels < 2:
        return
    residuals = residuals_without_edges(data, prior, seed, n_threads)
    chance = chance_of_neighbours(data, residuals)
    figures["edges_by_chance"] = chance
    if chance > _CHANCE:
        findings.append(
            Finding(
                "edges-idle",
                "warning",
                f"where the inputs of nodes leave their labels open, those of neighbours go together no more than by "
                f"chance (p = {chance:.2f} over {data.edges.shape[0]} edges), so edges may cost more than they bring",
                "compare with a model without edges on held-out data, give edges a smaller variance, or let "
                "prior_variance='cv' choose it",
                {"chance": chance, "edges": float(data.edges.shape[0])},
            )
        )


def _look_at_prediction(
    data: Any,
    predict: GraphData,
    weights: Floats,
    found: StackedMarginals,
    evidence: Any,
    label_names: list[str] | None,
    findings: list[Finding],
    figures: dict[str, float],
) -> None:
    """Whether edges make labels of predictions more or less frequent than nodes alone and the data do."""
    if not isinstance(data, GraphData) or data.labels is None:
        raise ValueError("predict needs labelled GraphData to compare with")
    free = np.ones(predict.n_nodes, dtype=bool)
    for first, known in zip(predict.node_pointer[:-1].tolist(), evidence or (), strict=False):
        free[[first + node for node in known]] = False
    labelled = {
        "with": found.nodes.argmax(axis=1)[free],
        "without": labels_of_nodes(predict, weights)[free],
        "data": data.labels,
    }
    part = {name: np.bincount(codes, minlength=data.n_labels) / codes.size for name, codes in labelled.items()}
    figures["changed"] = float((labelled["with"] != labelled["without"]).mean())
    apart, alone = (float(0.5 * np.abs(part[name] - part["data"]).sum()) for name in ("with", "without"))
    figures["shift"], figures["shift_without_edges"] = apart, alone
    if apart - alone > _SHIFT + np.sqrt(data.n_labels / free.sum()):
        label = int(np.abs(part["with"] - part["without"]).argmax())
        called = label_names[label] if label_names else str(label)
        with_edges, without, seen = (100 * float(part[name][label]) for name in ("with", "without", "data"))
        findings.append(
            Finding(
                "labels-shifted",
                "serious",
                f"of the nodes to be predicted {with_edges:.0f} % get label {called}, {without:.0f} % by their own "
                f"scores alone; {seen:.0f} % have it in the training data",
                "the edges overrule the nodes: tie their tables more (tables='pooled' or 'potts'), or give edges a "
                "smaller variance",
                {"shift": apart, "without": alone},
            )
        )


def _look_at_unseen(
    data: Any,
    packed: PackedData,
    weights: Floats,
    label_names: list[str] | None,
    findings: list[Finding],
    figures: dict[str, float],
) -> None:
    unseen, names = unseen_weights(data, packed, label_names)
    figures["unseen"] = float(unseen.size)
    if unseen.size:
        lowest = float(weights[unseen].min())
        listed = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
        findings.append(
            Finding(
                "unseen",
                "warning",
                f"{unseen.size} weights belong to combinations that never occur in the data"
                + (f" (label pairs {listed})" if listed else "")
                + f" and there is no prior, so they drift towards minus infinity: the lowest is {lowest:.1f}",
                "add a prior (prior_variance=10.0, say), or tie the tables more",
                {"weights": float(unseen.size), "lowest": lowest},
            )
        )


def _stopped_short(solution: Solution) -> Finding:
    return Finding(
        "stopped-short",
        "warning",
        f"learning {solution.status} with a moment gap of {solution.moment_gap:.1e}",
        "raise its limits, or go on from the solution with start=",
        {"moment_gap": solution.moment_gap},
    )
