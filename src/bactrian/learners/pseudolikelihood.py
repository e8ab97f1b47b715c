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

Conditionals are packed data of their own. With theta_f the scores of factor f (a table cluster, or a hub that has
scores) and x the observed states,

    p(X_v = k | x) ~ exp( sum_{f around v} theta_f(k, x of the other variables of f) )

is one multinomial logistic term: a hub without links. Its scores are sums of entries of the original tables, a linear
map F, so weights and moments pass through it as they do for junction trees. There are two forms of F:

- **by neighbourhood**: conditionals whose sums have the same terms are one term with the sum of their weights, so many
  samples cost no more than the distinct neighbourhoods among them. F is a sparse matrix;
- **by row**: where variables have so many neighbours that nearly every row has a neighbourhood of its own, distinct
  rows are instances with their weights. F is never built: scores are sums of rows of the tables
  (:mod:`bactrian.engines.numba.sparse`), and memory is that of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.profiled import Profiled
from bactrian.camel.run import NoBeliefs, Run, Settings
from bactrian.engines.numba.sparse import Segments, add_table_rows, collect_table_rows
from bactrian.errors import check_flag
from bactrian.graphs.inputs import N_BLOCKS
from bactrian.graphs.packed import Observations, PackedData
from bactrian.graphs.packing import TablePlan, build_layout, pack_layout
from bactrian.graphs.ragged import Ragged, first_of, kinds_of_rows, pointer
from bactrian.graphs.scores import ScoreMap, SpreadScores
from bactrian.graphs.structure import Incidence, no_structure, structure_of_scopes
from bactrian.parallel.threads import Context, Workers, balanced_blocks
from bactrian.solvers.solution import Solution

#: Terms looked at together when equal conditionals are sought; bounds the memory.
_TERMS_AT_ONCE = 1 << 22
#: Terms of F by row that cost as much as one of F by neighbourhood: an addition of neighbours in memory against an
#: index, a value and a jump.
_ROW_TERMS = 8


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
        check_flag("piecewise", self.piecewise)

    @property
    def name(self) -> str:
        """The shorthand of this learner."""
        return "piecewise-pseudolikelihood" if self.piecewise else "pseudolikelihood"

    def learn(self, data: PackedData, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data."""
        data.require_rows(self.name)
        run = Run(settings, context, data, self.name)
        conditionals = pack_conditionals(data, piecewise=self.piecewise)
        dual = Dual(conditionals, carve(conditionals, "clusters"), settings.prior, context, consistency=False)
        inner = Profiled(dual, run)
        result = inner.solve(run.initial_weights(), tolerance=run.demands.gap, max_iterations=run.iterations_left)
        run.record(replace(result, violation=np.nan), inner)
        solution = run.finish(inner, result.weights, result.status)
        return replace(solution, violation=np.nan, beliefs=NoBeliefs(self.name))


@dataclass(frozen=True)
class _Pieces:
    """One conditional for each row of observations: its variable, and the factors whose scores it adds up."""

    variable: Ints  #: (P,)
    pointer: Ints  #: (P + 1,) range of each piece's terms
    term: Ints  #: (n_terms,) incidence of a factor and the piece's variable
    share: Floats  #: (n_terms,) the part of the factor's score that the piece takes


@dataclass(frozen=True)
class _Distinct:
    """n distinct conditionals with d terms each: the score of state k is the sum of share * old[offset + stride k]."""

    size: Ints  #: (n,) states
    offset: Ints  #: (n, d)
    stride: Ints  #: (n, d)
    share: Floats  #: (n, d)
    counts: Floats  #: (n, largest size) weighted counts of the observed states


def pack_conditionals(data: PackedData, *, piecewise: bool) -> PackedData:
    """Conditionals of every variable in every row; with ``piecewise`` one for each factor around it, of that alone.

    A hub that is not a cluster of its own (absorbed node scores) is shared evenly by the clusters around it.
    """
    if data.observations is None:
        raise ValueError("the data has no labels; conditionals need the observed states")
    layout, incidence = data.layout, data.structure.incidence()
    start = np.concatenate([layout.table_offset[layout.cluster_table], layout.n_entries + layout.hub_offset[:-1]])
    own = np.concatenate([np.ones(layout.n_clusters, dtype=bool), data.hub_given | (data.degrees == 0)])
    pieces = _pieces_of_factors(incidence, own) if piecewise else _pieces_of_variables(incidence)
    observations = data.observations
    if data.generative:
        observations = _merge_rows(observations)
        contexts = _contexts(pieces, incidence)
        if _are_rows_better(pieces, incidence, contexts, observations.states.shape[0]):
            scores = _RowScores(data, pieces, incidence, contexts, start, observations.states)
            return _pack_rows(scores, pieces.variable, incidence.cardinalities[pieces.variable], observations)
    found = list(_collapse(pieces, incidence, start, observations))
    size = np.concatenate([group.size for group in found])
    weights = np.concatenate([group.counts.sum(axis=1) for group in found])
    truth = np.concatenate([group.counts[np.arange(group.counts.shape[1]) < group.size[:, None]] for group in found])
    spread = SpreadScores(data.scores, layout.n_entries, _spread_matrix(found, layout.n_entries + layout.n_hub_states))
    return _pack_hubs(np.arange(size.size + 1), size, weights, spread).observed(np.zeros(0), truth)


def _pieces_of_variables(incidence: Incidence) -> _Pieces:
    n_variables = incidence.cardinalities.size
    return _Pieces(
        variable=np.arange(n_variables),
        pointer=pointer(np.bincount(incidence.variable, minlength=n_variables)),
        term=np.argsort(incidence.variable, kind="stable"),
        share=np.ones(incidence.variable.size),
    )


def _pieces_of_factors(incidence: Incidence, own: Bools) -> _Pieces:
    is_own = own[incidence.factor]
    owned, absorbed = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    variable = incidence.variable[owned]
    degrees = np.bincount(variable, minlength=incidence.cardinalities.size)
    absorbed_at = np.full(incidence.cardinalities.size, -1)
    absorbed_at[incidence.variable[absorbed]] = absorbed
    second = absorbed_at[variable]
    takes = second >= 0
    bounds = pointer(1 + takes)
    term, share = np.empty(bounds[-1], dtype=np.int64), np.ones(bounds[-1])
    term[bounds[:-1]] = owned
    term[bounds[:-1][takes] + 1] = second[takes]
    share[bounds[:-1][takes] + 1] = 1.0 / degrees[variable[takes]]
    return _Pieces(variable, bounds, term, share)


def _collapse(pieces: _Pieces, incidence: Incidence, start: Ints, observations: Observations) -> Iterator[_Distinct]:
    """Distinct conditionals among those of all pieces and rows, grouped by their number of terms."""
    states = observations.states
    factor_states = incidence.factor_states(states)
    n_terms = np.diff(pieces.pointer)
    for d in np.unique(n_terms).tolist():
        alike = np.flatnonzero(n_terms == d)
        step = max(1, _TERMS_AT_ONCE // (d * states.shape[0]))
        for first in range(0, alike.size, step):
            chosen = alike[first : first + step]
            terms = pieces.pointer[chosen][:, None] + np.arange(d)
            at = pieces.term[terms]
            variable, factor, stride = pieces.variable[chosen], incidence.factor[at], incidence.stride[at]
            own_states = states[:, variable].T
            # (pieces, terms, rows): where the states of the variable begin in the old scores
            offset = start[factor][:, :, None] + factor_states[factor] - stride[:, :, None] * own_states[:, None, :]
            weights = observations.weights[:, incidence.instance[variable]].T
            sizes = incidence.cardinalities[variable]
            yield _distinct(sizes, offset, stride, pieces.share[terms], own_states, weights)


def _distinct(sizes: Ints, offset: Ints, stride: Ints, share: Floats, own_states: Ints, weights: Floats) -> _Distinct:
    """Merge conditionals with equal terms; the counts of observed states keep their weights apart."""
    n_rows, largest = own_states.shape[1], int(sizes.max())
    kind = kinds_of_rows([sizes, *stride.T], sizes.size)
    # Hubs come last among the terms, and tell conditionals apart best.
    columns = [offset[:, j].ravel() for j in reversed(range(stride.shape[1]))]
    code = kinds_of_rows([*columns, np.repeat(kind, n_rows)], kind.size * n_rows)
    representative = first_of(code)
    counts = (
        np.bincount(
            code * largest + own_states.ravel(), weights=weights.ravel(), minlength=largest * representative.size
        )
        .reshape(-1, largest)
        .astype(np.float64)
    )
    counted = counts.any(axis=1)
    piece, row = np.divmod(representative[counted], n_rows)
    return _Distinct(sizes[piece], offset[piece, :, row], stride[piece], share[piece], counts[counted])


def _spread_matrix(found: Sequence[_Distinct], n_old: int) -> sp.csr_array:
    """The matrix of :class:`SpreadScores`, one row per state of a conditional."""
    columns, values, lengths = [], [], []
    for group in found:
        owner = np.repeat(np.arange(group.size.size), group.size)
        state = np.arange(owner.size) - pointer(group.size)[owner]
        columns.append((group.offset[owner] + group.stride[owner] * state[:, None]).ravel())
        values.append(group.share[owner].ravel())
        lengths.append(np.full(owner.size, group.offset.shape[1]))
    bounds = pointer(np.concatenate(lengths))
    return sp.csr_array((np.concatenate(values), np.concatenate(columns), bounds), shape=(bounds.size - 1, n_old))


def _pack_hubs(instance_hubs: Ints, size: Ints, weights: Floats, scores: ScoreMap) -> PackedData:
    """Instances of hubs, and nothing else: a hub for each conditional."""
    instance = np.repeat(np.arange(weights.size), np.diff(instance_hubs))
    structure = structure_of_scopes(instance, weights.size, size, Ragged.of([]))
    layout = build_layout(structure, TablePlan.own(structure))
    return replace(pack_layout(layout, structure, scores, weights, np.zeros_like(size)), make_structure=no_structure)


def _merge_rows(observations: Observations) -> Observations:
    """Distinct rows, each with the sum of the weights of its copies; rows of weight 0 are left out."""
    counted = observations.weights[:, 0] > 0.0
    states = observations.states[counted]
    kind = kinds_of_rows(states.T, len(states))
    first = first_of(kind)
    weights = np.bincount(kind, weights=observations.weights[counted, 0], minlength=first.size)
    return Observations(states[first], weights[:, None].astype(np.float64, copy=False))


@dataclass(frozen=True)
class _Contexts:
    """The other variables of each incidence's factor, as one joint variable: its context."""

    context: Ints  #: (n_incidences,) context of each
    size: Ints  #: (n_contexts,) joint states
    others: Ints  #: (n_contexts, most others) variables, V for none
    radix: Ints  #: (n_contexts, most others) what a variable's state is multiplied by in the joint state
    strides: Ints  #: (n_incidences, most others) what it is multiplied by in the factor's state


def _contexts(pieces: _Pieces, incidence: Incidence) -> _Contexts:
    factor, variable, n_variables = incidence.factor, incidence.variable, incidence.cardinalities.size
    order = np.lexsort((variable, factor))
    members = np.bincount(factor)
    first = pointer(members)[factor]
    most = int(members.max()) - 1
    others, strides = np.full((factor.size, most), n_variables), np.zeros((factor.size, most), dtype=np.int64)
    filled = np.zeros(factor.size, dtype=np.int64)
    for j in range(most + 1):  # the j-th variable of each factor
        has = members[factor] > j
        at = order[np.where(has, first + j, 0)]
        has &= variable[at] != variable
        others[has, filled[has]], strides[has, filled[has]] = variable[at[has]], incidence.stride[at[has]]
        filled += has
    distinct, context = np.unique(others, axis=0, return_inverse=True)
    sizes = np.append(incidence.cardinalities, 1)[distinct]
    radix = np.ones_like(sizes)
    radix[:, 1:] = np.cumprod(sizes, axis=1)[:, :-1]
    return _Contexts(context.ravel(), sizes.prod(axis=1), distinct, radix, strides)


def _are_rows_better(pieces: _Pieces, incidence: Incidence, contexts: _Contexts, n_rows: int) -> bool:
    """Whether sums over all rows are cheaper than sums over the distinct neighbourhoods that rows can have."""
    n_terms = np.diff(pieces.pointer)
    log_states = np.add.reduceat(np.append(np.log(contexts.size)[contexts.context[pieces.term]], 0.0), pieces.pointer)
    neighbourhoods = np.exp(np.minimum(np.where(n_terms > 0, log_states[:-1], 0.0), np.log(n_rows)))
    terms = n_terms * incidence.cardinalities[pieces.variable]
    return bool(_ROW_TERMS * (neighbourhoods @ terms) > n_rows * terms.sum())


def _pack_rows(scores: _RowScores, variable: Ints, size: Ints, observations: Observations) -> PackedData:
    """An instance for each row, with a hub for each piece, given by its variable and that variable's states."""
    states, weights = observations.states, observations.weights[:, 0]
    n_rows = states.shape[0]
    packed = _pack_hubs(np.arange(n_rows + 1) * size.size, np.tile(size, n_rows), weights, scores)
    truth = np.zeros((n_rows, int(size.sum())))
    np.put_along_axis(truth, pointer(size)[:-1] + states[:, variable], weights[:, None], axis=1)
    return packed.observed(np.zeros(0), truth.ravel())


class _RowScores:
    """Scores of the pieces of every row, as sums of rows of tables with one part for each context."""

    def __init__(
        self,
        data: PackedData,
        pieces: _Pieces,
        incidence: Incidence,
        contexts: _Contexts,
        start: Ints,
        states: Ints,
    ) -> None:
        self._original, self.n_weights = data.scores, data.n_weights
        self._n_entries, self._n_old = data.layout.n_entries, data.layout.n_entries + data.layout.n_hub_states
        size = incidence.cardinalities[pieces.variable]
        self._n_columns = int(size.sum())
        owner = np.repeat(np.arange(size.size), np.diff(pieces.pointer))
        order = np.argsort(contexts.context[pieces.term], kind="stable")  # by context, then by piece
        owner, term, share = owner[order], pieces.term[order], pieces.share[order]
        context, length, column = contexts.context[term], size[owner], pointer(size)[owner]
        bounds = np.searchsorted(context, np.arange(contexts.size.size + 1))
        within = pointer(length)[:-1] - pointer(length)[bounds[context]]
        width = np.diff(pointer(length)[bounds])
        begin = pointer(contexts.size * width)
        # Each table element of each term: context state s and own state k.
        count = contexts.size[context] * length
        of = np.repeat(np.arange(term.size), count)
        s, k = np.divmod(np.arange(of.size) - pointer(count)[of], length[of])
        entry = start[incidence.factor[term]][of] + incidence.stride[term][of] * k
        sizes = np.append(incidence.cardinalities, 1)[contexts.others]
        for j in range(contexts.others.shape[1]):
            digit = s // contexts.radix[context, j][of] % sizes[context, j][of]
            entry += contexts.strides[term, j][of] * digit
        to = begin[context][of] + s * width[context][of] + within[of] + k
        self._entry, self._share = np.empty_like(entry), np.empty(entry.size)
        self._entry[to], self._share[to] = entry, share[of]
        joined = np.append(False, (column[1:] == (column + length)[:-1]) & (context[1:] == context[:-1]))
        heads = np.flatnonzero(~joined)
        self._segments = Segments(
            np.searchsorted(context[heads], np.arange(contexts.size.size + 1)),
            column[heads],
            np.add.reduceat(length, heads),
        )
        padded = np.column_stack([states, np.zeros(states.shape[0], dtype=np.int64)])
        self._place = np.tile(begin[:-1], (states.shape[0], 1))
        for j in range(contexts.others.shape[1]):
            self._place += padded[:, contexts.others[:, j]] * (contexts.radix[:, j] * width)
        self._row_blocks = np.linspace(0, states.shape[0], N_BLOCKS + 1).astype(np.int64)
        self._context_blocks = balanced_blocks(width.astype(float), N_BLOCKS)

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        old = np.empty(self._n_old)
        self._original.scores(weights, old[: self._n_entries], old[self._n_entries :], workers)
        table, out = old[self._entry] * self._share, hub_scores.reshape(-1, self._n_columns)
        workers.run(
            lambda _, first, last: add_table_rows(self._segments, self._place, table, out, first, last),
            self._row_blocks,
        )

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        old = self._collect(hub_counts, workers)
        return self._original.moments(old[: self._n_entries], old[self._n_entries :], workers)

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        old = self._collect(hub_counts, Workers(1))
        return self._original.base_score(old[: self._n_entries], old[self._n_entries :])

    def _collect(self, hub_counts: Floats, workers: Workers) -> Floats:
        """Counts of the original table entries and hub states."""
        table, counts = np.zeros(self._entry.size), hub_counts.reshape(-1, self._n_columns)
        workers.run(
            lambda _, first, last: collect_table_rows(self._segments, self._place, counts, table, first, last),
            self._context_blocks,
        )
        old = np.bincount(self._entry, weights=table * self._share, minlength=self._n_old)
        return old.astype(np.float64, copy=False)
