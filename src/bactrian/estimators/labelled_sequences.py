"""How estimators of sequences encode data, and the fitted model with which they predict.

Sequences become packed graphs: tokens are nodes, transitions and skips two types of edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import lsmr

from bactrian.arrays import Arrays, Floats, Ints, integers, is_unknown, nonnegative_weights
from bactrian.engines.numba.decoding import best_labels
from bactrian.errors import check_count, check_flag, check_number
from bactrian.estimators.auto_prior import auto_prior
from bactrian.estimators.encoding import FeatureRows, FeatureVocabulary, fit_vocabulary
from bactrian.estimators.labelled_nodes import FittedNodes, check_node_params, tyings_of
from bactrian.estimators.labels import Labels, class_weights, listed_labels
from bactrian.estimators.priors import Block, graph_blocks
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import N_BLOCKS, BundledRows, Inputs
from bactrian.graphs.packing import pack
from bactrian.graphs.ragged import pointer
from bactrian.graphs.scores import StructuredScores, TiedTable
from bactrian.inference.maximum import TIE
from bactrian.parallel.threads import Workers, blocks_of_rows

#: Types of edges in the packed graphs, and what parameters and blocks of weights call them.
TRANSITION, SKIP = 0, 1
_EDGE_KINDS = ("transition", "skip")
_BLOCKS = ("transitions", "skips")

#: What to do where edges make the labels of sequences worse.
ADVICE = "use method='exact', on a skip chain inference='matched', or a stronger prior on transitions and skips"

#: Tokens that are asked whether features add up to 1, and what a sum may be off, in the root mean square.
_ASKED, _LEFT_OVER = 2_000, 1e-3

#: Tokens below which a block of chains is not worth handing to a thread.
_LEAST_TOKENS = 1_000.0

#: The skip edges of sequences X of given lengths, from what a call says of them.
SkipsOf = Callable[[Any, Ints, Any], list[Ints] | None]


@dataclass(frozen=True)
class EdgesGiven:
    """What calls say about the edges of sequences."""

    skips: Any = None
    breaks: Any = None
    transition_features: Any = None
    skip_features: Any = None

    @property
    def features(self) -> dict[str, Any]:
        """Features of edges, where there are any."""
        given = {"transition_features": self.transition_features, "skip_features": self.skip_features}
        return {name: part for name, part in given.items() if part is not None}


def check_sequence_params(crf: Any) -> None:
    """Check the parameters of estimators of sequences."""
    check_node_params(crf)
    check_number("min_frequency", crf.min_frequency, least=1, whole=True)
    check_flag("all_possible_states", crf.all_possible_states)
    check_flag("all_possible_transitions", crf.all_possible_transitions)
    if crf.labels is not None:
        Labels.of([], crf.labels)


# --- encoding ---


@dataclass(frozen=True)
class SequenceCodec:
    """What ``encode`` fixes: labels, features, and how tables are tied."""

    labels: Labels
    vocabularies: Mapping[str, FeatureVocabulary]  #: of X and, where they have features, of transitions and skips
    tyings: tuple[str, ...] = ()  #: of transitions, and of skips
    node_factors: str = "edges"
    auto_prior: Mapping[str, float] | None = None  #: what "auto" chose
    intercept: bool = False  #: whether a feature that is 1 follows those of the vocabulary

    def rows(self, X: Any, given: EdgesGiven) -> dict[str, FeatureRows]:
        """Features of tokens and edges over these vocabularies."""
        parts = {"X": X, **given.features}
        for name in ("transition_features", "skip_features"):
            if (name in parts) != (name in self.vocabularies):
                there = "with" if name in self.vocabularies else "without"
                raise ValueError(f"the last fit was {there} {name}=, and this call must be too")
        return {name: vocabulary.encode(parts[name], name) for name, vocabulary in self.vocabularies.items()}

    def data(self, rows: Mapping[str, FeatureRows], edges: Edges, **more: Any) -> GraphData:
        """Sequences as learners and inference take them."""
        inputs: dict[int, Any] = {}
        first = pointer(rows["X"].lengths)[:-1]
        for kind, pairs in zip((TRANSITION, SKIP), edges, strict=True):
            name = f"{_EDGE_KINDS[kind]}_features"
            if name in rows:
                sequence = np.searchsorted(first, pairs[:, 0], side="right") - 1
                # Sequences without tokens share their first node with the next one: the last of them owns it.
                expected = np.bincount(sequence, minlength=first.size).tolist()
                check_length(rows[name].lengths, first.size, name)
                for m, (found, n_edges) in enumerate(zip(rows[name].lengths.tolist(), expected, strict=True)):
                    check_count(name, found, n_edges, "entry per edge", m)
                plain = rows[name].inputs
                plain = plain.multiplied_out() if isinstance(plain, BundledRows) else plain
                inputs[kind] = with_ones(plain, first=True)  # a table that all edges share
        return GraphData(
            with_ones(rows["X"].inputs) if self.intercept else rows["X"].inputs,
            np.concatenate(edges),
            n_labels=self.classes.size,
            tables=self.tyings,
            edge_types=np.repeat((TRANSITION, SKIP), [len(pairs) for pairs in edges]),
            edge_inputs=inputs or None,
            node_counts=rows["X"].lengths,
            node_factors=self.node_factors,
            **more,
        )

    def encoded(
        self, X: Any, given: EdgesGiven, skips_of: SkipsOf, rows: Mapping[str, FeatureRows] | None = None
    ) -> GraphData:
        """Data to predict, without labels."""
        rows = self.rows(X, given) if rows is None else rows
        lengths = rows["X"].lengths
        return self.data(rows, sequence_edges(lengths, given.breaks, skips_of(X, lengths, given.skips)))

    def evidence(self, partial: Any, data: GraphData) -> Any:
        """Labels that are known, by token."""
        return None if partial is None else self.labels.evidence(partial, np.diff(data.node_pointer))

    def table(self, weights: Floats, kind: int) -> Floats:
        """The label table that all edges of a kind share."""
        table = self.layout.split_weights(weights)[1][kind]
        return table if table.ndim == 2 else table[0]

    @property
    def classes(self) -> NDArray[Any]:
        """The labels, sorted."""
        return self.labels.classes

    @property
    def n_features(self) -> int:
        """Number of token features."""
        return self.vocabularies["X"].n_features

    @property
    def layout(self) -> GraphData:
        """Data of a single token with these shapes, which defines the order of the weights."""
        n_rows = {name: int(name == "X") for name in self.vocabularies}
        sizes = {name: (n_rows[name], vocabulary.n_features) for name, vocabulary in self.vocabularies.items()}
        rows = {name: FeatureRows(np.zeros(shape), np.array([n_rows[name]])) for name, shape in sizes.items()}
        return self.data(rows, sequence_edges(rows["X"].lengths, None, None))

    @property
    def blocks(self) -> list[Block]:
        """Blocks of weights."""
        return graph_blocks(self.layout, self.block_names, self.n_features)

    @property
    def block_names(self) -> tuple[str, ...]:
        """Blocks of the weights of tokens, and of the tables of each type of edges."""
        return ("tokens", *_BLOCKS[: len(self.tyings)])

    # --- files ---

    def contents(self) -> tuple[dict[str, Any], Arrays]:
        """Attributes and arrays of a file."""
        return {
            "classes": self.labels.classes.tolist(),
            "vocabularies": {name: vocabulary.names for name, vocabulary in self.vocabularies.items()},
            "sizes": {name: vocabulary.n_features for name, vocabulary in self.vocabularies.items()},
            "tyings": list(self.tyings),
            "node_factors": self.node_factors,
            "intercept": self.intercept,
        }, {}

    @classmethod
    def restored(cls, attributes: dict[str, Any], crf: Any) -> Self:
        """What :meth:`contents` gave, checked; older files have tyings and node factors of the parameters."""
        n_weights, tyings = crf.weights_.size, tyings_of(crf)
        vocabularies = {}
        for name, names in attributes["vocabularies"].items():
            if name not in ("X", "transition_features", "skip_features"):
                raise ValueError(f"it has a vocabulary of unknown kind {name!r}")
            size = attributes["sizes"][name]
            if not isinstance(size, int) or not 0 <= size <= n_weights:
                raise ValueError(f"the vocabulary of {name} has size {size!r}")
            if names is not None and not (len(names) == size and all(isinstance(entry, str) for entry in names)):
                raise ValueError(f"the vocabulary of {name} is not a list of {size} names")
            vocabularies[name] = FeatureVocabulary(names, size)
        if "X" not in vocabularies:
            raise ValueError("it has no vocabulary of token features")
        found = tuple(attributes.get("tyings", tyings))
        if len(found) != len(tyings):
            raise ValueError(f"it has {len(found)} tables, expected {len(tyings)}")
        labels = Labels.of([], attributes["classes"])
        factors = attributes.get("node_factors", crf.node_factors)
        intercept = attributes.get("intercept", False)  # older files have none
        return cls(labels, vocabularies, found, factors, attributes.get("fitted_prior"), bool(intercept))


def encode_sequences(
    crf: Any, X: Any, y: Any, given: EdgesGiven, sample_weight: Any
) -> tuple[SequenceCodec, GraphData]:
    """The data that ``fit`` learns from, and the codec; ``warm_start`` keeps the last one."""
    last, tyings = crf.codec_ if crf.warm_start else None, tyings_of(crf)
    if last is not None:
        vocabularies, rows = last.vocabularies, last.rows(X, given)
    else:
        parts = {"X": X, **given.features}
        fitted = {name: fit_vocabulary(part, crf.min_frequency, name) for name, part in parts.items()}
        vocabularies = {name: vocabulary for name, (vocabulary, _) in fitted.items()}
        rows = {name: part for name, (_, part) in fitted.items()}
    lengths = rows["X"].lengths
    if lengths.sum() == 0:
        raise ValueError("X has no tokens; learning needs at least one")
    listed = listed_labels(y, lengths.tolist(), unknown_allowed=True)
    labels = Labels.of(listed, crf.labels) if last is None else last.labels
    unknown = next(filter(is_unknown, labels.classes.tolist()), None)
    if unknown is not None:
        raise ValueError(f"labels names {unknown!r}, which stands for an unknown label")
    codes = labels.codes(listed)
    if codes.max() < 0:
        raise ValueError("y holds no known label; learning needs at least one")
    class_weight = class_weights(crf.class_weight, labels.classes)
    edges = sequence_edges(lengths, given.breaks, crf._skips(X, lengths, given.skips))
    weights = nonnegative_weights(sample_weight, "sample_weight", lengths.size)
    if last is not None and hasattr(crf, "weights_") and last.tyings != tyings:
        raise ValueError("warm_start: tables are tied differently from the last fit")
    intercept = crf.fit_intercept and not spans_constant(rows["X"].inputs) if last is None else last.intercept
    codec = SequenceCodec(labels, vocabularies, tyings, crf.node_factors, intercept=bool(intercept))
    data = codec.data(rows, edges, labels=codes, class_weight=class_weight, weights=weights)
    if not (crf.all_possible_states and crf.all_possible_transitions):
        seen = sums_over_labels(data, abs) > 0.0
        data.scores.active = seen | of_all_labels(data, crf.all_possible_states, crf.all_possible_transitions)
    return replace(codec, auto_prior=auto_prior(crf, codec, data)), data


def with_ones(inputs: Any, *, first: bool = False) -> Any:
    """Inputs with a last column of ones, or a first one."""
    if isinstance(inputs, BundledRows):
        none = sp.csr_array((inputs.bundles.shape[0], 1))
        return BundledRows(with_ones(inputs.own), inputs.use, sp.csr_array(sp.hstack([inputs.bundles, none])))
    ones = np.ones((inputs.shape[0], 1))
    parts = [ones, inputs] if first else [inputs, ones]
    return sp.csr_array(sp.hstack(parts)) if sp.issparse(inputs) else np.hstack(parts)


def spans_constant(inputs: Any) -> bool:
    """Whether some sum of features is 1 on every token, such as that of words, one on each; 2,000 tokens are asked."""
    n = inputs.shape[0]
    asked = np.zeros(n, dtype=bool)
    asked[np.linspace(0, n - 1, min(n, _ASKED)).astype(np.int64)] = True
    rows = Inputs(inputs).rows(asked)
    rows = rows.multiplied_out() if isinstance(rows, BundledRows) else rows
    squares, _ = Inputs(rows).squares_and_counts()
    used = np.flatnonzero(squares)
    if 0 in (asked.sum(), used.size):
        return False
    scaled = rows[:, used] @ sp.diags_array((asked.sum() / squares[used]) ** 0.5)
    found = lsmr(scaled, np.ones(asked.sum()), atol=1e-7, btol=1e-7, maxiter=200)
    return bool(found[3] <= _LEFT_OVER * asked.sum() ** 0.5)


def sums_over_labels(data: GraphData, change: Callable[[Any], Any]) -> Floats:
    """What each weight multiplies, summed over known labels, with matrices of inputs changed and weights of 1."""
    other = copy(data)

    def changed(inputs: Inputs) -> Inputs:
        rows = inputs.rows(np.ones(inputs.shape[0], dtype=bool))
        if isinstance(rows, BundledRows):
            return Inputs(BundledRows(change(rows.own), change(rows.use), change(rows.bundles)))
        return Inputs(change(rows))

    types = [kind if kind.inputs is None else replace(kind, inputs=changed(kind.inputs)) for kind in data.scores.types]
    other.scores = StructuredScores(changed(data.scores.inputs), data.n_labels, tuple(types))
    other.weights = np.ones(data.n_graphs)
    found = pack(other.subset(data.known)).empirical
    assert found is not None
    return found


def of_all_labels(data: GraphData, states: bool, transitions: bool) -> Any:
    """Which weights there are whether or not they were seen, those of tokens or of edges."""
    return np.where(np.arange(data.n_weights) < int(data.scores.bounds[1]), bool(states), bool(transitions))


# --- answers ---


def fitted_sequences(crf: Any, method: str = "exact", decoding: str = "exact", **more: Any) -> FittedNodes:
    """What a fitted estimator predicts with, as options of inference say."""
    options = {"n_threads": crf.n_threads, "seed": crf.seed, **more}
    is_matched = getattr(crf, "inference", None) == "matched"
    return FittedNodes(
        weights=crf.weights_, solution=crf.solution_, method=method, options=options, is_matched=is_matched,
        decoding=decoding, device=crf.device,
    )  # fmt: skip


def best_of_chains(crf: Any, rows: Mapping[str, FeatureRows], given: EdgesGiven) -> Ints | None:
    """Codes of all labels of chains by Viterbi, where all transitions share one table and no two labellings tie."""
    codec: SequenceCodec = crf.codec_
    if len(codec.tyings) > 1 or given.features or given.skips is not None:
        return None
    lengths, k = rows["X"].lengths, codec.classes.size
    bounds = pointer(lengths)
    n = int(bounds[-1])
    if given.breaks is not None:
        joined = np.zeros(n, dtype=bool)
        joined[sequence_edges(lengths, given.breaks, None)[0][:, 1]] = True
        bounds = np.append(np.flatnonzero(~joined), n)
    own, shared = codec.n_features * k, (codec.n_features + codec.intercept) * k
    nodes, tied = crf.weights_[:own].reshape(-1, k), crf.weights_[shared:]
    table = TiedTable.make(codec.tyings[0], k).expand(tied).reshape(k, k)
    codes, sure = np.empty(n, dtype=np.int64), np.empty(bounds.size - 1, dtype=bool)
    workers = Workers(crf.n_threads)
    scores = rows["X"].times(nodes, workers)
    if codec.intercept:
        scores += crf.weights_[own:shared]
    workers.run(
        lambda _, first, last: best_labels(scores, table, bounds, first, last, TIE, codes, sure),
        blocks_of_rows(bounds, N_BLOCKS, _LEAST_TOKENS),
    )
    return codes if sure.all() else None


# --- edges of sequences ---

#: (n, 2) transitions, then (n, 2) skips of all sequences over stacked tokens, each in the order of the sequences.
Edges = tuple[Ints, Ints]


def sequence_edges(lengths: Ints, breaks: Any, skips: Sequence[Ints] | None) -> Edges:
    """Edges of sequences of given lengths.

    ``breaks[m]`` are positions of sequence m at which a new sentence begins: no transition leads there.
    """
    start = pointer(lengths)
    begins = np.zeros(int(start[-1]) + 1, dtype=bool)
    begins[start] = True
    if breaks is not None:
        check_length(breaks, lengths.size, "breaks")
        for m, positions in enumerate(breaks):
            begins[start[m] + integers(positions, f"breaks[{m}]", below=int(lengths[m]))] = True
    second = np.flatnonzero(~begins[:-1])
    transitions = np.stack([second - 1, second], axis=1)
    empty = np.zeros((0, 2), dtype=np.int64)
    joined = [empty] if skips is None else [empty, *(pairs + start[m] for m, pairs in enumerate(skips))]
    return transitions, np.concatenate(joined)


def word_of(token: Any, name: str) -> str:
    """The word of a token: ``token[name]`` of a dict, or what follows ``name=`` in a list of strings."""
    word = token.get(name) if isinstance(token, Mapping) else _after(f"{name}=", token)
    if not isinstance(word, str):
        raise ValueError(
            f"a rule for skips needs the word of every token: {name!r} in a dict, or a feature '{name}=...' in a list "
            f"of strings; found {token if len(str(token)) < 80 else type(token)}. Name another with word=, or give "
            "skips= per sequence"
        )
    return word


def _after(prefix: str, token: Any) -> str | None:
    """What follows a prefix in the first string that has it, those of bundles among them."""
    for feature in token if isinstance(token, list | tuple) else ():
        if isinstance(feature, str) and feature.startswith(prefix):
            return feature[len(prefix) :]
        if isinstance(feature, tuple) and (found := _after(prefix, feature)) is not None:
            return found
    return None


def check_length(given: Any, expected: int, name: str) -> None:
    """Refuse what has not one entry per sequence."""
    found = len(given) if hasattr(given, "__len__") else type(given).__name__
    check_count(name, found, expected, "entry per sequence")
