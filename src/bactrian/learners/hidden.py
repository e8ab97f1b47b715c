"""Learning with unknown states: marginal likelihood, a difference of two duals.

With x the states that were seen and z the others, -log p(x; w) = log Z(w) - log Z(x, w): the dual of the free model
minus that of the model clamped to x, whose states that were seen not to be are forbidden. By the envelope theorem its
gradient is a difference of expected features,

    E[f; w] - E[f | x; w] + w / sigma^2

so the profiled solver minimises it as it does one dual: every evaluation passes the messages of both models, which stay
warm.

The difference is not convex in w. The concave-convex procedure would linearise the clamped dual in w, which with exact
inference is EM (Dempster, Laird and Rubin, J. R. Stat. Soc. B 39(1), 1977; Schwing et al., Efficient structured
prediction with latent variables for general graphical models, ICML 2012). It has the same fixed points, and where
little was seen takes hundreds of steps for what quasi-Newton steps on the difference do in tens. With Bethe's entropy
the free dual is relinearised, and the clamped one is Bethe's as it is.

*The exact clamped side of many rows of one model.* Variables are summed out of the cliques of a junction tree, one
after the other, for all rows at once. What is left of a row depends on what was seen of the variables that are gone:
rows in which that is the same share it, and only entries that some row allows are summed. Where all variables that are
left of a step were seen, what is gone is independent of the rest: its sum, a factor of the row's Z, is put by, and the
row goes on as if it had none, with all others of which that holds. This makes a list of sums of products
(:mod:`bactrian.engines.numba.junction`), which serves all weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.camel.accuracy import SCHEDULE, Accuracy
from bactrian.camel.camel import Camel
from bactrian.camel.dual import Dual, Evaluation, larger
from bactrian.camel.entropy import Carving
from bactrian.camel.prior import Prior
from bactrian.camel.profiled import Profiled, ProfiledObjective
from bactrian.camel.run import Run, Settings
from bactrian.camel.units import curvature_units
from bactrian.engines.numba.arithmetic import LEAST, MOST
from bactrian.engines.numba.junction import Circuit, differentiate, log_sum_products, share_out, sum_products
from bactrian.graphs.conditioning import Conditioned, conditioned
from bactrian.graphs.junction import JunctionData, on_junction_trees
from bactrian.graphs.packed import Holes, PackedData
from bactrian.graphs.packing import projection_map
from bactrian.graphs.ragged import first_of, kinds_of_rows, numbered, pointer
from bactrian.graphs.scores import RememberedScores
from bactrian.learners.likelihood import Likelihood
from bactrian.parallel.threads import Context, Workers
from bactrian.solvers.solution import Solution

#: Nodes of a graph with loops up to which Bethe's entropy is relinearised where states are unknown. On a citation
#: graph of 3,327 nodes it took minutes and got .43 of the labels right.
_MOST_NODES = 2_000
#: Size of the random weights that tell the states of variables apart which were never seen.
_SPREAD = 0.1
#: Entries that rows allow in a step, and factors of all sums of products, up to which rows share them: 64 MB.
MOST_SHARED = 2**24


@dataclass(frozen=True)
class Hidden:
    """A learner of the CAMEL family, or a likelihood, on data with unknown states."""

    learner: Any

    def __post_init__(self) -> None:
        learner = self.learner
        if isinstance(learner, Camel):
            if learner.start == "empirical":
                raise ValueError(f"{learner.name} starts at observed marginals, but some states are unknown (-1)")
            if not learner.consistency:
                raise ValueError(
                    f"{learner.name} learns each cluster on its own, so clusters need not agree on an unknown "
                    "state (-1); choose 'camel0', in which they agree"
                )
            if learner.tighten:
                raise ValueError("tighten does not support unknown states (-1); use Camel without it")
        elif not isinstance(learner, Likelihood):
            name = getattr(learner, "name", type(learner).__name__)
            raise ValueError(
                f"{name} needs the state of every variable, but some are unknown (-1); choose 'exact', 'cccp', "
                "'camel0', 'convex', 'trw' or 'lbp'"
            )

    @property
    def name(self) -> str:
        """Name of the learner."""
        return self.learner.name

    @property
    def folded(self) -> Any:
        """The learner, with as little of Bethe's entropy linearised as can be.

        Where all of the sepsets' entropy is linearised, a step's free entropy is so far from the clamped one, which is
        Bethe's throughout, that weights run away and never come back.
        """
        learner = self.learner
        bethe = isinstance(learner, Camel) and learner.entropy == "bethe"
        return replace(learner, fold=True) if bethe else learner

    def learn(self, data: PackedData, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data."""
        learner = self.folded
        if isinstance(learner, Camel) and learner.fold and _has_many_loops(data):
            raise ValueError(
                f"{self.name} does not support unknown states (-1) on graphs with loops and more than {_MOST_NODES:,} "
                "nodes, where its weights diverge; choose method='convex', or leave out what is unknown"
            )
        if context.communicator.size > 1:
            raise ValueError("learning with unknown states (-1) runs on one rank")
        run = Run(replace(settings, start=_start(data, settings)), context, data, self.name)
        # On graphs of 10 to 40 nodes with loops, what ended took 10 to 13 relinearisations, and the others, half of
        # them, went in circles for as long as they were let. A start at the convex optimum changed neither.
        # Where they ran away, for minutes, the objective, a negative logarithm of probabilities, soon told.
        run.least_objective = -_information(data)
        if isinstance(learner, Likelihood):
            return _likelihood(learner, data, run)
        models = conditioned(data)
        carving = learner.carving(models.free, context)
        dual = Dual(models.free, carving, settings.prior, context)
        if settings.state is not None:
            dual.take_up(settings.state)
        seen = _clamped_dual(dual, models.clamped, _numbers(models, carving))
        # Where the free dual is solved once, the accuracy follows the gap down.
        accuracy = Accuracy(run.demands, start=run.demands.messages if dual.relinearises else None)
        sides = ProfiledObjective(dual, accuracy), ProfiledObjective(seen, accuracy)
        difference = _Difference(*sides, settings.prior, bounded=not dual.relinearises and _is_centred(data))
        inner = _ProfiledDifference(dual, run, difference)
        weights, status = learner.relinearise(run, inner, learner.linearisation(dual), run.initial_weights())
        return run.finish(inner, weights, status)


def _likelihood(learner: Likelihood, data: PackedData, run: Run) -> Solution:
    """Fit the weights by a likelihood."""
    exact, settings, context, holes = learner.inference == "exact", run.settings, run.context, data.holes
    accuracy = learner.accuracy(run)
    seen: Any = None
    trees: JunctionData | None = None
    if exact and data.generative and holes is not None:
        free = replace(data, scores=RememberedScores(data.scores, data.layout), holes=None, empirical=holes.complete)
        trees = on_junction_trees(free)
        cliques = trees.packed  # of both sides, unless the free one is a forest
        trees = replace(trees, packed=replace(cliques, scores=RememberedScores(cliques.scores, cliques.layout)))
        seen = SharedRows(trees, holes, context.workers)
    if seen is None or not seen.fits:
        seen, models, trees = None, conditioned(data), None
        free = models.free
    junction = learner.junction(free, trees)
    packed = free if junction is None else junction.packed
    carve = partial(learner.carving, context=context)
    own = carve(packed)
    dual = Dual(packed, own, settings.prior, context)
    if seen is None:
        trees = learner.junction(models.clamped)
        clamped = models.clamped if trees is None else trees.packed
        numbers = carve(clamped) if exact else _numbers(models, own)
        seen = learner.objective(_clamped_dual(dual, clamped, numbers), accuracy)
    bounded = learner.inference != "lbp" and _is_centred(data)
    difference = _Difference(learner.objective(dual, accuracy), seen, settings.prior, bounded=bounded)
    return run.solve(_ProfiledDifference(dual, run, difference), junction)


def _has_many_loops(data: PackedData) -> bool:
    """Whether some graph with loops has too many nodes for Bethe's entropy."""
    sizes = np.diff(data.layout.instance_hubs)
    return bool((~data.layout.instance_is_tree & (sizes > _MOST_NODES)).any())


def _information(data: PackedData) -> float:
    """The log of the number of joint states, summed over instances with their weights."""
    layout = data.layout
    logs = np.append(0.0, np.cumsum(np.log(np.diff(layout.hub_offset))))
    return float(data.weights @ np.diff(logs[layout.instance_hubs]))


def _is_centred(data: PackedData) -> bool:
    """Whether the mean of the prior is 0."""
    return data.holes is None or not data.holes.is_shifted


def _numbers(models: Conditioned, carving: Carving) -> Carving:
    """Counting numbers of the clamped model, nothing linearised."""
    cluster, hub = models.numbers(carving.cluster, carving.whole.hub)
    return Carving(cluster, hub, np.zeros_like(hub))


def _clamped_dual(free: Dual, data: PackedData, carving: Carving) -> Dual:
    """The dual of the clamped model, small or not on the routes that the free one is large enough to be worth."""
    large = free.data.layout.n_link_states >= SCHEDULE.worth_compiling
    schedule = replace(SCHEDULE, worth_compiling=0) if large else SCHEDULE
    return Dual(data, carving, Prior(None), free.context, schedule=schedule)


class _Difference:
    """The free dual minus the clamped one, as the profiled solver sees an objective.

    Where the entropy is concave the free dual, a maximum over more beliefs, is at least the clamped one, and the value
    is bounded by the prior's part, if its mean is 0. Weights at which that alone is more than the solver began with are
    not worth messages: the difference is not convex, so steps go astray, to weights at which messages take hundreds of
    times as long.
    """

    hopeless = is_exact = False

    def __init__(self, free: Any, clamped: Any, prior: Prior, *, bounded: bool) -> None:
        self._free, self._clamped = free, clamped
        self._precision = prior.precision
        self._is_bounded = bounded and not prior.l1
        self._first = np.inf  # value
        self.accuracy: Accuracy = free.accuracy  # of both
        self.last: Evaluation | None = None
        self.weights: Any = None  # of the last evaluation
        self.sweeps = 0

    @property
    def evaluations(self) -> int:
        """Evaluations of each."""
        return self._free.evaluations

    @property
    def failures(self) -> int:
        """Evaluations of either at which messages did not converge."""
        return int(self._free.failures + self._clamped.failures)

    @property
    def converged(self) -> bool:
        """Whether messages of both did the last time; on trees two sweeps are exact."""
        return all(
            side.converged or (side.dual.is_forest and isinstance(side, ProfiledObjective))
            for side in (self._free, self._clamped)
        )

    def accept(self) -> None:
        """Take the last point for the best."""
        self._free.accept()
        self._clamped.accept()

    def forget(self) -> None:
        """Forget the best point."""
        self._first = np.inf
        self._forget_sides()

    def _forget_sides(self) -> None:
        self._free.forget()
        self._clamped.forget()

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """The difference and its gradient; the prior's part of both where that is too much already."""
        pull = self._precision * weights
        least = 0.5 * float(pull @ weights)
        if least > self._first:
            return least, pull
        self._forget_sides()  # a side whose value rises is no worse for it, and its messages are the nearest
        self._free.value_and_gradient(weights)
        self._clamped.value_and_gradient(weights)
        free, clamped = self._free.last, self._clamped.last
        self._free.dual.empirical = self._free.dual.data.empirical + clamped.gradient  # as the certificate asks for it
        self.last = Evaluation(
            free.value - clamped.value,
            free.gradient - clamped.gradient,
            larger(free.violation, clamped.violation),
            free.sweeps + clamped.sweeps,
            larger(free.residual, clamped.residual),
        )
        self.weights, self.sweeps = weights, self.sweeps + self.last.sweeps
        if self._is_bounded and self._first == np.inf:
            self._first = self.last.value
        return self.last.value, self.last.gradient


class _ProfiledDifference(Profiled):
    """The profiled solver of a difference, whose value is not a bound before messages of both models have settled."""

    objective: Any

    def __init__(self, dual: Dual, run: Run, objective: _Difference) -> None:
        super().__init__(dual, run, objective)
        prior = run.settings.prior
        if run.settings.gap_tolerance is not None and not prior.l1 and not prior.leaves_free:
            # What a gap costs is about sum_k gap_k^2 variance_k / 2: few of many weights may have a large one.
            variance = np.broadcast_to(1.0 / np.asarray(prior.precision), dual.data.n_weights)
            share = variance / variance.sum()
            self.measure = lambda gap: float(np.sqrt((share * gap**2).sum()))

    def units(self) -> Floats | None:
        """Those of curvature, as of an exact likelihood."""
        return curvature_units(self.run.data, self.run.settings.prior, self.run.context.workers)

    @property
    def reliable(self) -> bool:
        """Whether messages of both converged at the last evaluation."""
        return bool(self.objective.converged)


def _start(data: PackedData, settings: Settings) -> Floats:
    """Zero, or random weights where some variable was never seen: at zero all of its states would stay alike."""
    if settings.start is not None:
        return settings.start.copy()
    holes = data.holes
    assert holes is not None
    if data.generative and not holes.complete.any():
        seen = np.logical_or.reduceat(holes.forbidden.any(axis=0), data.layout.hub_offset[:-1])
        if not seen.all():
            return random_weights(data.n_weights, settings.seed)
    return np.zeros(data.n_weights)


def random_weights(n: int, seed: int) -> Floats:
    """Weights at which states of variables that were never seen differ a little."""
    return _SPREAD * np.random.default_rng(seed).normal(size=n)


# --- rows that share sums ---


class _Left(NamedTuple):
    """What is left of rows after a step."""

    scope: list[int]
    kind: Ints  #: (R,) of each row
    size: int  #: states of the scope
    key: Ints  #: kind * size + state of each entry that some row allows, ascending
    number: Ints  #: of the entry among the numbers of the circuit

    def numbers(self, row: Ints, state: NDArray[Any]) -> Ints:
        """Those of entries of rows."""
        return self.number[np.searchsorted(self.key, self.kind[row] * self.size + state)]


class SharedRows:
    """The clamped dual of rows as a function of the weights, in place of a :class:`ProfiledObjective`."""

    converged, failures = True, 0  #: nothing is approximate
    fits = True  #: whether the list is short enough
    last: Evaluation

    def __init__(self, junction: JunctionData, holes: Holes, workers: Workers) -> None:
        tree, self._sizes = junction.trees[0].tree, junction.trees[0].sizes
        self._packed, self._workers = junction.packed, workers
        self._allowed = np.split(~holes.forbidden, pointer(self._sizes)[1:-1], axis=1)  # states, by variable
        self._n_allowed = [np.count_nonzero(allowed, axis=1) for allowed in self._allowed]
        offsets = self._packed.layout.table_offset.tolist()
        self._one, self._n_numbers = offsets[-1], offsets[-1] + 1  # the last of the given numbers is 1
        self._put_by: list[Ints] = []  # (2, n) factors of rows' Z: their numbers, and the rows
        self._n_terms: list[Ints] = []
        self._terms: list[NDArray[np.int32]] = []  # of every step, (terms, factors of each)
        parents = {child: parent for child, parent, _ in tree.edges}
        incoming: list[list[_Left]] = [[] for _ in tree.cliques]
        for clique, sepset in reversed(tree.downwards):
            scope, table, factors = list(tree.cliques[clique]), offsets[clique], incoming[clique]
            for variable in [v for v in scope if v not in sepset]:
                left = self._step(table, scope, variable, factors)
                if left is None:
                    self.fits = False
                    return
                scope, table, factors = left.scope, -1, [left]
            if clique in parents:
                incoming[parents[clique]] += factors
        number, row = np.concatenate(self._put_by, axis=1)
        weights = np.bincount(number, holes.weights[row, 0], minlength=self._n_numbers)
        self._ends = np.flatnonzero(weights)
        self._of_ends, self._total = weights[self._ends], float(holes.weights.sum())
        self._circuit = Circuit(
            self._one + 1,
            pointer([own.size for own in self._n_terms]),
            pointer(np.concatenate(self._n_terms)).astype(np.int32),
            np.array([own.shape[1] for own in self._terms]),
            np.concatenate([own.ravel() for own in self._terms]),
        )

    def _step(self, table: int, scope: list[int], variable: int, incoming: list[_Left]) -> _Left | None:
        """Sum a variable out of the clique's table, if it still has one (not -1), times what comes in."""
        at, shape, allowed = scope.index(variable), tuple(self._sizes[v] for v in scope), self._allowed[variable]
        left, stride = [v for v in scope if v != variable], prod(shape[at + 1 :])
        size = prod(shape) // shape[at]
        kind = kinds_of_rows(allowed.T, len(allowed))
        for each in incoming:
            kind = numbered(kind * (each.kind.max() + 1) + each.kind)
        n_allowed = np.prod([np.ones(kind.size), *(self._n_allowed[v] for v in left)], axis=0)
        if np.sum(n_allowed) > MOST_SHARED:
            return None
        every_row, every_state = np.arange(kind.size), np.zeros_like(kind)  # entries that rows allow
        for v in left:
            first, own = np.nonzero(self._allowed[v][every_row])
            every_row, every_state = every_row[first], every_state[first] * self._sizes[v] + own
        keys = kind[every_row] * size + every_state
        every = numbered(keys)
        key = keys[first_of(every)]
        row, state = first_of(kind)[key // size], key % size
        owner, own = np.nonzero(allowed[row])  # a term for every state of the variable
        cell = (state // stride * stride * shape[at] + state % stride)[owner] + stride * own
        factors = [table + cell] if table >= 0 else []
        for each in incoming:
            projected = projection_map(shape, tuple(map(scope.index, each.scope)))[cell]
            factors.append(each.numbers(row[owner], projected))
        terms, n_terms = np.stack(factors, axis=1), np.bincount(owner)
        is_sum = (n_terms > 1) | (len(factors) > 1)
        number = np.where(is_sum, self._n_numbers - 1 + np.cumsum(is_sum), terms[pointer(n_terms)[:-1], 0])
        self._n_numbers += int(is_sum.sum())
        self._n_terms.append(n_terms[is_sum])
        self._terms.append(terms[is_sum[owner]].astype(np.int32))
        if sum(each.size for each in self._terms) > MOST_SHARED:
            return None
        seen = (n_allowed == 1.0)[every_row]  # all that is left of the row
        self._put_by.append(np.stack([number[every[seen]], every_row[seen]]))
        kind = numbered(np.where(n_allowed == 1.0, 0, kind + 1))
        keys = kind[every_row] * size + every_state
        place = first_of(numbered(keys))
        return _Left(left, kind, size, keys[place], np.where(seen, self._one, number[every])[place])

    def accept(self) -> None:
        """Nothing is kept from one point to the next."""

    forget = accept

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """log Z of all rows, and the features that they expect."""
        layout, scores, circuit = self._packed.layout, self._packed.scores, self._circuit
        n, tables, hubs = layout.n_entries, np.empty(layout.n_entries), np.zeros(layout.n_hub_states)
        numbers, shares = np.empty(self._n_numbers), np.zeros(self._n_numbers)
        scores.scores(weights, tables, hubs, self._workers)
        top = np.maximum.reduceat(tables, layout.table_offset[:-1])
        np.exp(tables - np.repeat(top, np.diff(layout.table_offset)), out=numbers[:n])
        numbers[n] = 1.0
        sum_products(circuit, numbers)
        ends = numbers[self._ends]
        if ends.min() > LEAST and ends.max() < MOST:
            value = float(self._of_ends @ np.log(ends) + self._total * top.sum())
            shares[self._ends] = self._of_ends / ends
            differentiate(circuit, numbers, shares)
            shares[:n] *= numbers[:n]
        else:
            numbers[:n], numbers[n] = tables, 0.0
            log_sum_products(circuit, numbers)
            value = float(self._of_ends @ numbers[self._ends])
            shares[self._ends] = self._of_ends
            share_out(circuit, numbers, shares)
        moments = scores.moments(shares[:n], np.zeros_like(hubs), self._workers)
        self.last = Evaluation(value, moments, 0.0, 0, 0.0)
        return value, moments
