"""Do learning and inference agree? And where they do not: weights that inference can follow.

With Bethe's entropy the free energy at the learned weights may have several stationary points. Learning ends at one of
them, and belief propagation from its usual, cold start perhaps at another; some moments even belong to no stable fixed
point at all (Heinemann and Globerson, UAI 2011). Two answers, for data in memory on one rank:

:func:`attained` measures it: 1 minus the mean over variables of the total variation between the beliefs that were
learned and those of cold inference at the same weights on the same data.

:func:`follow` mends it. The concave-convex procedure starts at g = 0 with a convex problem, whose beliefs message
passing finds on any data, and every relinearisation leads to another convex problem. Stopped after a few, with the
weights of each kept, the way can be gone again on new data (:func:`bactrian.inference.double_loop.replay`): on the data
of learning that gives the learned beliefs exactly, and elsewhere each step has a unique answer. The way ends where a
relinearisation makes the labels of learning less probable, and without a prior no problem is solved further than the
data tells moments apart from noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.camel import SHORTHAND, Camel
from bactrian.camel.entropy import Carving, carve
from bactrian.camel.run import Settings
from bactrian.engines.memory import MemoryPart
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import observed_by
from bactrian.graphs.ragged import pointer, ranges
from bactrian.inference.infer import StackedMarginals, graph_marginals
from bactrian.inference.propagation import contracts, settle
from bactrian.parallel.threads import Context
from bactrian.solvers.solution import Callback, Progress, Record, Solution, Status, WarmState

#: Relinearisations after which a path that is to be replayed stops. On 27 noisy pictures of 24 x 24 pixels with 2, 3
#: or 5 labels the mean log loss of a test picture was 0.263 after none, then 0.234, 0.224, 0.222 and 0.224, and 0.272
#: after 12; 2 lost to CAMEL(0) on two pictures, 3 on three. ``benchmarks/bench_agreement.py`` measures it.
RELINEARISATIONS = 2
#: Mean total variation of beliefs from which inference is elsewhere.
APART = 0.01
#: Mean total variation of beliefs at what is still the same fixed point, found from another start.
SAME = 1e-3
#: Mean total variation that is worth a warning.
UNATTAINED = 0.05
#: Accuracy of cold inference here, sweeps at most, and states of variables in the sample that it looks at.
_TOLERANCE, _SWEEPS, _SAMPLE = 1e-3, 200, 200_000
#: Log-odds by which starting messages favour a state, and how many states are favoured in turn.
_FAVOUR, _STARTS = 5.0, 8
#: Groups of instances whose moments tell how far a sum over all of them is noise, and the fewest that can.
_GROUPS, _FEWEST = 20, 8
#: Multiple of the tolerance to which the steps of a path before the last are solved.
_ROUGHLY = 10.0


def attained(data: PackedData, learner: Any, solution: Solution, settings: Settings, context: Context) -> float | None:
    """Agreement of cold inference at the learned weights with the learned beliefs, from 0 to 1.

    1 on trees, and where the entropy is concave. None where it is not known: learners without beliefs of their own,
    refined polytopes, and region graphs, whose numbers need not suit belief propagation.
    """
    if data.hub_numbers is not None:
        return None
    carving = _carving(data, learner, context)
    if carving is None:
        return None
    if not carving.relinearises and not _is_likelihood(learner):
        return 1.0
    probe = _cold_probe(data, carving.whole, solution.weights, context)
    if probe is None or (solution.converged and probe.is_contraction()):
        return 1.0
    learned = _learned_beliefs(data, carving, solution, context)
    return None if learned is None else 1.0 - probe.distance(probe.run()[0], learned)


def moments_attained(data: PackedData, weights: Floats, context: Context) -> float:
    """1 minus the largest gap between moments under cold belief propagation and those of the data, in parts of them.

    For learners that have no beliefs of their own, such as pseudo-likelihood; their moments need not match exactly.
    """
    if data.layout.instance_is_tree.all():
        return 1.0
    probe = Probe(MemoryPart(data, carve(data, "bethe").whole, context), weights[None], "residual")
    probe.run()
    observed, expected, scale = probe.moments()
    return max(0.0, 1.0 - float(np.abs(expected - observed).max(initial=0.0) / scale))


def depends_on_start(
    data: GraphData, weights: Floats, method: str, evidence: Any, found: StackedMarginals, **options: Any
) -> float:
    """Part of the nodes whose label under belief propagation changes with the messages that it starts from.

    Messages favour the label that was ``found`` most often, then the one found least often.
    """
    k = data.n_labels
    labels = found.nodes.argmax(axis=1)
    counts = np.bincount(labels, minlength=k)
    moved = np.zeros(labels.size, dtype=np.bool_)
    for favoured in (counts.argmax(), counts.argmin()):
        favour = favouring(np.array([0, k]), int(favoured))
        starts = []
        for result in found.results:
            assert result.messages is not None
            messages = np.tile(favour, result.messages.multipliers.size // k)
            starts.append(replace(result, messages=replace(result.messages, multipliers=messages)))
        again = graph_marginals(data, weights, method, evidence, start=starts, **options)
        moved |= again.nodes.argmax(axis=1) != labels
    return float(moved.mean())


def favouring(link_offset: Ints, states: int | Ints) -> Floats:
    """(n_link_states,) messages that favour a state, one for all links or one for each state of a link."""
    sizes = np.diff(link_offset)
    return np.where(ranges(np.zeros_like(sizes), sizes) == states, _FAVOUR, 0.0)


def can_follow(learner: Any) -> bool:
    """Whether a learner, or the name of one, relinearises Bethe's entropy, so that it has a path to follow."""
    learner = SHORTHAND.get(learner) if isinstance(learner, str) else learner
    return isinstance(learner, Camel) and learner.entropy == "bethe" and not learner.tighten


def follow(data: PackedData, learner: Any, solution: Solution, settings: Settings, context: Context) -> Solution:
    """``solution`` where belief propagation finds it, from whatever start; else one whose path can be replayed.

    The converged solution is kept where messages that favour one state everywhere, whichever it is, all lead to the
    learned beliefs. For two labels that attract each other these bracket all fixed points, and what cold messages find.
    Where learning without a prior did not converge, it fits noise, and the path is taken, too.
    """
    if not can_follow(learner) or solution.status is Status.STOPPED or context.deadline.has_passed:
        return solution
    bethe = carve(data, "bethe")
    probe = _cold_probe(data, bethe.whole, solution.weights, context)
    if probe is None or not bethe.relinearises or (solution.converged and probe.is_contraction()):
        return replace(solution, attained=1.0)
    noise = _Noise.of(data) if settings.prior.leaves_free else None
    carving = _carving(data, learner, context)
    learned = None
    if carving is not None and (noise is None or solution.converged):
        learned = _learned_beliefs(data, carving, solution, context)
    if learned is not None and (solution.attained is None or solution.attained >= 1.0 - APART):
        start, *others_of = _starts(data)
        first, _ = probe.run(start)
        reached = 1.0 - probe.distance(first, learned)
        others = (probe.run(other)[0] for other in others_of)
        if reached >= 1.0 - APART and all(probe.distance(first, other) <= SAME for other in others):
            return replace(solution, attained=reached)
    return _followed(data, solution, replace(settings, is_noise=noise, start=None, state=None), context)


def _followed(data: PackedData, solution: Solution, settings: Settings, context: Context) -> Solution:
    """The first steps of the paper's path, every inner problem solved to tolerance or to noise."""
    # Only a start, for the first problem is convex; but weights of piecewise training have fitted noise before it.
    learner = Camel(tight=True, start="piecewise" if settings.is_noise is None else "zero")
    path: list[Floats] = []
    history = list(solution.history)
    callback = context.callback
    found, loss = solution, np.inf
    for step in range(RELINEARISATIONS + 1):
        # A replay goes through the weights of all steps, whatever is left of their gaps: only the last counts.
        given = replace(settings, max_relinearisations=min(step, 1))
        circumstances = context
        if callback is not None:
            circumstances = replace(context, callback=_continued(callback, history, step + 1))
        if step < RELINEARISATIONS:
            given = replace(given, tolerance=_ROUGHLY * settings.tolerance)
        last, found = found, learner.learn(data, given, circumstances)
        first = len(history)
        history += [replace(record, outer=first + record.outer, phase=step + 1) for record in found.history]
        within = sum(record.iterations for record in found.history) < settings.max_iterations
        is_solved = within and found.status in (Status.ITERATION_LIMIT, Status.CONVERGED)
        before, loss = loss, _log_loss(data, found, context)
        if is_solved and loss > before:
            found = last
            break
        path.append(found.weights)
        if not is_solved:
            break
        settings = replace(settings, start=found.weights, state=found.state)
    if is_solved:
        # No finite weights match moments on the boundary, wherever the path stops.
        unbounded = solution.status is Status.UNBOUNDED
        found = replace(found, status=Status.UNBOUNDED if unbounded else Status.FOLLOWED)
    return replace(
        found,
        history=tuple(history),
        method=solution.method,
        evaluations=sum(record.evaluations for record in history),
        path=np.stack(path),
        attained=1.0,
    )


def _log_loss(data: PackedData, solution: Solution, context: Context) -> float:
    """Minus the log probability of the labels of learning, each by its own belief."""
    beliefs = _learned_beliefs(data, carve(data, "bethe"), solution, context)
    assert beliefs is not None
    assert data.hub_truth is not None
    seen = data.hub_truth > 0.0
    return -float(data.hub_truth[seen] @ np.log(np.maximum(beliefs[seen], 1e-300)))


class _Noise:
    """Whether the gaps of moments are what chance makes of them; asked of a part after its last pass.

    The rule of Mahsereci, Balles, Lassner and Hennig (Early stopping without a validation set, 2017): the mean over the
    weights of squared gap by its variance is at most 1. The variance is that of a sum over groups of instances.
    """

    def __init__(self, data: PackedData, members: Ints) -> None:
        groups = min(_GROUPS, members.size)
        self._weights = np.zeros((groups, data.weights.size))
        self._weights[np.arange(members.size) % groups, members] = data.weights[members]
        self._observed = observed_by(data, self._weights)

    @staticmethod
    def of(data: PackedData) -> _Noise | None:
        """None where there are too few instances to tell."""
        members = np.flatnonzero(data.weights > 0.0)
        return _Noise(data, members) if members.size >= _FEWEST and data.observations is not None else None

    def __call__(self, part: MemoryPart) -> bool:
        gaps = part.moments_by(self._weights) - self._observed
        variance = len(gaps) * gaps.var(axis=0, ddof=1)
        varies = variance > 0.0
        return not varies.any() or float(np.mean(gaps.sum(axis=0)[varies] ** 2 / variance[varies])) <= 1.0


def _continued(callback: Callback, history: Sequence[Record], phase: int) -> Callback:
    """A callback whose iterations are counted on from a history."""
    outer, iterations = len(history), sum(record.iterations for record in history)

    def call(at: Progress) -> Any:
        return callback(replace(at, outer=at.outer + outer, iteration=at.iteration + iterations, phase=phase))

    return call


def _carving(data: PackedData, learner: Any, context: Context) -> Carving | None:
    """The entropy under which a learner's beliefs are, or None where it has none."""
    if isinstance(learner, Camel) and not learner.tighten and learner.consistency:
        return learner.carving(data, context)
    return carve(data, "bethe").whole if _is_likelihood(learner) else None


def _is_likelihood(learner: Any) -> bool:
    return getattr(learner, "inference", None) == "lbp"


def _learned_beliefs(data: PackedData, carving: Carving, solution: Solution, context: Context) -> Floats | None:
    """(n_hub_states,) beliefs at the multipliers and the linearisation of a solution."""
    state = solution.state
    if not isinstance(state, WarmState) or state.multipliers.size != data.layout.n_link_states:
        return None
    messages = MemoryPart(data, carving, context)
    messages.multipliers[:] = state.multipliers
    messages.linearisation[:] = state.linearisation
    messages.set_weights(solution.weights)
    messages.pass_messages()
    return messages.hub_beliefs()


class Probe:
    """Message passing at fixed weights, or along a path of them, from any start; some instances may be skipped."""

    def __init__(
        self,
        part: MemoryPart,
        path: Sequence[Floats] | Floats,
        schedule: str = "sequential",
        *,
        is_bethe: bool = True,
        tolerance: float = _TOLERANCE,
        max_sweeps: int = _SWEEPS,
        skipped: Bools | None = None,
        relinearise: Callable[[], float] | None = None,
    ) -> None:
        self.part, self.data, self.path, self.schedule, self.is_bethe = part, part.data, path, schedule, is_bethe
        self.tolerance, self.max_sweeps, self.skipped, self.relinearise = tolerance, max_sweeps, skipped, relinearise

    def run(self, start: Floats | float = 0.0, max_sweeps: int | None = None) -> tuple[Floats, Bools]:
        """(n_hub_states,) beliefs, and which instances converged; 0 starts from messages that say nothing."""
        part = self.part
        part.multipliers[:], part.linearisation[:] = start, 0.0
        converged = np.ones(self.data.layout.n_instances, dtype=np.bool_)
        for step, weights in enumerate(self.path):
            if step and self.relinearise is not None:
                self.relinearise()
            progress = settle(
                part, weights, self.schedule, tolerance=self.tolerance, max_sweeps=max_sweeps or self.max_sweeps,
                tame=not self.is_bethe, skipped=self.skipped,
            )  # fmt: skip
            part.pass_messages()
            converged &= progress.status == CONVERGED
        return part.hub_beliefs(), converged

    def moments(self) -> tuple[Floats, Floats, float]:
        """Those of the data, those at the last beliefs, and the largest of both, or 1."""
        observed, expected = self.data.empirical, self.part.summary().moments
        assert observed is not None
        return observed, expected, float(np.maximum(np.abs(observed), np.abs(expected)).max(initial=1.0))

    def is_contraction(self) -> bool:
        """Whether belief propagation is known to have one fixed point, without a run."""
        self.part.set_weights(self.path[-1])
        return self.is_bethe and contracts(self.part)

    def distance(self, a: Floats, b: Floats) -> float:
        """Mean total variation of beliefs over the variables of the instances that are not skipped."""
        layout = self.data.layout
        apart = np.bincount(self.data.hub_of_state, weights=0.5 * np.abs(a - b), minlength=layout.n_hubs)
        apart = apart if self.skipped is None else apart[np.repeat(~self.skipped, np.diff(layout.instance_hubs))]
        return float(np.nan_to_num(apart, nan=1.0).mean())


def _cold_probe(data: PackedData, carving: Carving, weights: Floats, context: Context) -> Probe | None:
    """A probe of the first instances with loops; None where no instance has any.

    Fixed points are the same under every schedule, and sweeps find one in a quarter of the time of residuals.
    """
    layout = data.layout
    looped = ~layout.instance_is_tree
    sizes = np.where(looped, np.diff(layout.hub_offset[layout.instance_hubs]), 0)
    skipped = ~looped | (pointer(sizes)[:-1] >= _SAMPLE)
    if skipped.all():
        return None
    bethe = carve(data, "bethe").whole
    is_bethe = bool(np.array_equal(carving.hub, bethe.hub) and np.array_equal(carving.cluster, bethe.cluster))
    return Probe(MemoryPart(data, carving, context), weights[None], is_bethe=is_bethe, skipped=skipped)


def _starts(data: PackedData) -> list[Floats | float]:
    """Messages that favour a state everywhere, the most frequent ones, where there are several; else cold ones."""
    within = np.arange(data.layout.n_hub_states) - data.layout.hub_offset[data.hub_of_state]
    counts = np.bincount(within, weights=data.hub_truth)
    frequent = np.argsort(-counts, kind="stable")[: min(_STARTS, int((counts > 0.0).sum()))].tolist()
    return [favouring(data.layout.link_offset, state) for state in frequent] if len(frequent) > 1 else [0.0]
