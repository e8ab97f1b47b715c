"""What conditional random fields for sequences have in common: encoding, learning, prediction and files.

Sequences become packed graphs: tokens are nodes, transitions and skips two types of edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats, Ints, integers, is_unknown
from bactrian.errors import check_choice, check_count, check_flag, check_number
from bactrian.estimators.base import largest_weights
from bactrian.estimators.encoding import FeatureRows, FeatureVocabulary, check_sequences, fit_vocabulary
from bactrian.estimators.labels import Labels, accuracy, class_weights, listed_labels
from bactrian.estimators.node_labeller import NodeLabeller
from bactrian.estimators.priors import Block, Fold, graph_blocks, graph_folds
from bactrian.graphs.graph_data import GraphData, nonnegative_weights
from bactrian.graphs.inputs import BundledRows
from bactrian.graphs.packing import pack
from bactrian.graphs.ragged import pointer
from bactrian.graphs.scores import TYINGS
from bactrian.inference.infer import StackedMarginals
from bactrian.solvers.solution import Callback
from bactrian.text.entities import entity_scores, guess_scheme

_EDGE_KINDS = ("transition", "skip")
_BLOCKS = ("transitions", "skips")


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


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceCRF(NodeLabeller):
    """What :class:`LinearChainCRF` and :class:`SkipChainCRF` have in common; not for use by itself."""

    _block_names: ClassVar[tuple[str, ...]] = ("tokens", "transitions", "deviations")

    method: Any = "exact"
    tolerance: float = 1e-4
    transition_tables: str = "full"
    min_frequency: int = 1
    node_factors: str = "edges"
    all_possible_states: bool = True
    all_possible_transitions: bool = True
    _labels: Labels = field(init=False)
    _vocabularies: dict[str, FeatureVocabulary] = field(init=False)
    tyings_: tuple[str, ...] = field(init=False)
    node_factors_: str = field(init=False)

    # --- what the two kinds differ in ---

    def _tables(self) -> tuple[str, ...]:
        return (self.transition_tables,)

    def _skips(self, X: Any, lengths: Ints, skips: Any) -> list[Ints] | None:
        if skips is not None:
            raise TypeError(f"skips: {type(self).__name__} has no skip edges; SkipChainCRF has them")
        return None

    def _labels_of(self, data: GraphData, evidence: Any) -> list[Ints]:
        """Most probable labels."""
        raise NotImplementedError

    def _marginals_of(self, data: GraphData, evidence: Any, edges: bool) -> StackedMarginals:
        raise NotImplementedError

    # --- learning ---

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        skips: Any = None,
        breaks: Any = None,
        transition_features: Any = None,
        skip_features: Any = None,
        sample_weight: Any = None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from sequences X and their labels y.

        Parameters
        ----------
        X : list of sequences
            A sequence is a list of tokens, each a dict of features or a list of strings (bundles allowed), or a matrix
            with a row per token; see :mod:`bactrian.estimators.encoding`.
        y : list of label sequences
            Strings, integers or booleans. None, NaN, -1 or an empty string stands for an unknown label.
        skips : list of (n_skips, 2) positions, optional
            For :class:`SkipChainCRF`: the skip edges of each sequence, in place of the rule.
        breaks : list of positions, optional
            For each sequence, positions at which a new sentence begins: no transition leads there.
        transition_features, skip_features : list, optional
            For each sequence, features of its transitions, or skip edges, given like tokens.
        sample_weight : (n_sequences,), optional
            Weight of each sequence's term of the log-likelihood.
        callback : callable, optional
            See :func:`bactrian.learn`.
        """
        given = EdgesGiven(skips, breaks, transition_features, skip_features)
        return self._fit(lambda: self.encode(X, y, sample_weight=sample_weight, **vars(given)), callback)

    def encode(self, X: Any, y: Any, *, sample_weight: Any = None, **edges: Any) -> GraphData:
        """The data that :meth:`fit` learns from, with its arguments; :meth:`adopt` keeps what is learned from them.

        Fixes labels and features, those of the last time with ``warm_start``; else the estimator is not fitted until
        then.
        """
        self.check_params()
        given = EdgesGiven(**edges)
        again = self.warm_start and hasattr(self, "_vocabularies")
        if again:
            labels, vocabularies, rows = self._labels, self._vocabularies, self._rows(X, given)
        else:
            parts = {"X": X, **given.features}
            fitted = {name: fit_vocabulary(part, self.min_frequency, name) for name, part in parts.items()}
            vocabularies = {name: vocabulary for name, (vocabulary, _) in fitted.items()}
            rows = {name: part for name, (_, part) in fitted.items()}
        lengths = rows["X"].lengths
        if lengths.sum() == 0:
            raise ValueError("X has no tokens; learning needs at least one")
        listed = listed_labels(y, lengths.tolist(), unknown_allowed=True)
        labels = labels if again else Labels.of(listed, self.labels)
        unknown = next(filter(is_unknown, labels.classes.tolist()), None)
        if unknown is not None:
            raise ValueError(f"labels names {unknown!r}, which stands for an unknown label")
        codes = labels.codes(listed)
        if codes.max() < 0:
            raise ValueError("y holds no known label; learning needs at least one")
        class_weight = class_weights(self.class_weight, labels.classes)
        pairs = sequence_edges(lengths, given.breaks, self._skips(X, lengths, given.skips))
        weights = nonnegative_weights(sample_weight, lengths.size, "sample_weight")
        if again and hasattr(self, "weights_") and self.tyings_ != self._tables():
            raise ValueError("warm_start: tables are tied differently from the last fit")
        active = self._active(rows, pairs, labels, codes)
        data = self._graphs(
            rows, pairs, labels, labels=codes, class_weight=class_weight, weights=weights, active=active
        )
        if not again:
            self._forget()
        self._labels, self._vocabularies = labels, vocabularies
        self.tyings_, self.node_factors_ = self._tables(), self.node_factors
        return data

    def _predicted_codes(self, data: GraphData) -> Ints:
        return np.concatenate(self._labels_of(data, None))

    @property
    def _advice(self) -> str:
        return "use method='exact', on a skip chain inference='matched', or a stronger prior on transitions and skips"

    def _blocks(self) -> list[Block]:
        return graph_blocks(self._layout(), ("tokens", *_BLOCKS[: len(self.tyings_)]))

    def _folds(self, data: GraphData) -> list[Fold]:
        return graph_folds(data, lambda part, _: self._marginals_of(part, None, False).nodes, self.seed, "sequence")

    def begin(self, classes: Any, vocabulary: FeatureVocabulary) -> None:
        """Fix labels and token features before any data are encoded; with ``warm_start`` :meth:`encode` keeps them."""
        self._forget()
        self._labels, self._vocabularies = Labels.of([], classes), {"X": vocabulary}
        self.tyings_, self.node_factors_ = self._tables(), self.node_factors

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_number("min_frequency", self.min_frequency, least=1, whole=True)
        for kind, tying in zip(_EDGE_KINDS, self._tables(), strict=False):
            check_choice(f"{kind}_tables", tying, TYINGS)
        check_flag("all_possible_states", self.all_possible_states)
        check_flag("all_possible_transitions", self.all_possible_transitions)
        if self.labels is not None:
            Labels.of([], self.labels)

    def _active(self, rows: dict[str, FeatureRows], edges: Edges, labels: Labels, codes: Ints) -> Any:
        """Weights whose feature was seen with their label, where only these are wanted."""
        if self.all_possible_states and self.all_possible_transitions:
            return None
        sizes = {name: FeatureRows(_magnitudes(part.inputs), part.lengths) for name, part in rows.items()}
        data = self._graphs(sizes, edges, labels, labels=codes)
        seen = pack(data.subset(codes >= 0)).empirical
        assert seen is not None
        of_nodes = np.arange(seen.size) < int(data.scores.bounds[1])
        return (seen > 0.0) | np.where(of_nodes, bool(self.all_possible_states), bool(self.all_possible_transitions))

    def _graphs(self, rows: dict[str, FeatureRows], edges: Edges, classes: Labels, **more: Any) -> GraphData:
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
                inputs[kind] = with_constant(rows[name])
        form = {"tables": self._tables(), "node_factors": self.node_factors, **more}
        return GraphData(
            rows["X"].inputs,
            np.concatenate(edges),
            n_labels=len(classes.classes),
            edge_types=np.repeat((TRANSITION, SKIP), [len(pairs) for pairs in edges]),
            edge_inputs=inputs or None,
            node_counts=rows["X"].lengths,
            **form,
        )

    # --- prediction ---

    def _rows(self, X: Any, given: EdgesGiven) -> dict[str, FeatureRows]:
        """FeatureRows over the vocabularies of the last fit."""
        parts = {"X": X, **given.features}
        for name in ("transition_features", "skip_features"):
            if (name in parts) != (name in self._vocabularies):
                there = "with" if name in self._vocabularies else "without"
                raise ValueError(f"the last fit was {there} {name}=, and this call must be too")
        return {name: vocabulary.encode(parts[name], name) for name, vocabulary in self._vocabularies.items()}

    def _encoded(self, X: Any, given: EdgesGiven, rows: dict[str, FeatureRows]) -> GraphData:
        """Data to predict, without labels."""
        lengths = rows["X"].lengths
        edges = sequence_edges(lengths, given.breaks, self._skips(X, lengths, given.skips))
        return self._graphs(rows, edges, self._labels, tables=self.tyings_, node_factors=self.node_factors_)

    def predict(
        self,
        X: Any,
        *,
        skips: Any = None,
        breaks: Any = None,
        transition_features: Any = None,
        skip_features: Any = None,
        partial: Any = None,
    ) -> list[list[Any]]:
        """The most probable labels of each sequence, given those in ``partial`` that are known, as in ``y``.

        A chain uses Viterbi, a skip chain ``decoding``; other arguments are those of :meth:`fit`.
        """
        check_is_fitted(self, "weights_")
        check_sequences(X, "X")
        if not _any_tokens(X):
            return [[] for _ in X]
        given = EdgesGiven(skips, breaks, transition_features, skip_features)
        rows = self._rows(X, given)
        codes = self._quick_labels(rows, given) if partial is None else None
        if codes is None:
            data = self._encoded(X, given, rows)
            evidence = None if partial is None else self._labels.evidence(partial, np.diff(data.node_pointer))
            codes = np.concatenate(self._labels_of(data, evidence))
        labels = self._labels.decode(codes)
        return [labels[first:last] for first, last in pairwise(pointer(rows["X"].lengths).tolist())]

    def _quick_labels(self, rows: dict[str, FeatureRows], given: EdgesGiven) -> Ints | None:
        """Codes of all labels by a shorter way than :meth:`_labels_of`, where there is one."""
        return None

    def predict_marginals(self, X: Any, *, partial: Any = None, edges: bool = False, **given: Any) -> Any:
        """Probabilities of labels, an array (n_tokens, n_labels) per sequence, columns as in ``classes_``.

        With ``edges`` also a list of (pairs of positions, tables (n_pairs, n_labels, n_labels)) per sequence, skips
        after transitions. Other arguments are those of :meth:`fit` and :meth:`predict`.
        """
        check_is_fitted(self, "weights_")
        check_sequences(X, "X")
        k = len(self._labels.classes)
        if not _any_tokens(X):
            empty = [np.zeros((0, k)) for _ in X]
            return (empty, [(np.zeros((0, 2), dtype=np.int64), np.zeros((0, k, k))) for _ in X]) if edges else empty
        about_edges = EdgesGiven(**given)
        data = self._encoded(X, about_edges, self._rows(X, about_edges))
        evidence = None if partial is None else self._labels.evidence(partial, np.diff(data.node_pointer))
        marginals = self._marginals_of(data, evidence, edges)
        nodes = np.split(marginals.nodes, data.node_pointer[1:-1])
        if marginals.edges is None:
            return nodes
        given_edges = np.empty_like(data.edges)
        given_edges[data.edge_order] = data.edges
        sequence = np.searchsorted(data.node_pointer, given_edges[:, 0], side="right") - 1
        tables = []
        for m in range(data.n_graphs):
            mine = np.flatnonzero(sequence == m)
            tables.append((given_edges[mine] - data.node_pointer[m], marginals.edges[mine]))
        return nodes, tables

    def score(
        self,
        X: Any,
        y: Any,
        *,
        skips: Any = None,
        breaks: Any = None,
        transition_features: Any = None,
        skip_features: Any = None,
    ) -> float:
        """Micro-averaged F1 of entities if the labels are those of a scheme (``B-PER``), else accuracy of tokens.

        No entity extends across a break.
        """
        given = EdgesGiven(skips, breaks, transition_features, skip_features)
        predicted = SequenceCRF.predict(self, X, **vars(given))
        true = listed_labels(y, [len(labels) for labels in predicted])
        self._labels.check_kind(true)
        if not any(true):
            raise ValueError("X has no tokens; a score needs at least one")
        tags = {label for labels in true for label in labels} | set(self._labels.classes.tolist())
        scheme = guess_scheme(tags)
        if scheme is None:
            return accuracy(true, predicted)
        starts = None if breaks is None else [np.unique(positions).astype(np.int64) for positions in breaks]
        return float(entity_scores(true, predicted, scheme=scheme, sentence_starts=starts).micro.f1)

    # --- what was learned ---

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels, sorted."""
        check_is_fitted(self, "weights_")
        return self._labels.classes

    @property
    def feature_names_(self) -> list[str]:
        """Names of the token features in the order of their weights; column numbers for matrix inputs."""
        check_is_fitted(self, "weights_")
        vocabulary = self._vocabularies["X"]
        return vocabulary.names if vocabulary.names is not None else [str(i) for i in range(vocabulary.n_features)]

    @property
    def n_features_in_(self) -> int:
        """Number of token features."""
        check_is_fitted(self, "weights_")
        return self._vocabularies["X"].n_features

    @property
    def state_weights_(self) -> Floats:
        """(n_features, n_labels) weights of token features."""
        check_is_fitted(self, "weights_")
        k = len(self.classes_)
        return self.weights_[: self.n_features_in_ * k].reshape(-1, k)

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float]:
        """Weight of each transition from one label to the next; that which all share, with transition features."""
        table = self._table(TRANSITION)
        labels = self._labels.classes.tolist()
        return {(a, b): float(table[i, j]) for i, a in enumerate(labels) for j, b in enumerate(labels)}

    def _table(self, kind: int) -> Floats:
        """The label table that all edges of a kind share."""
        check_is_fitted(self, "weights_")
        _, tables = self._layout().split_weights(self.weights_)
        table = tables[kind]
        return table if table.ndim == 2 else table[0]

    def _layout(self) -> GraphData:
        k = len(self._labels.classes)
        inputs = {
            kind: np.zeros((0, 1 + self._vocabularies[name].n_features))
            for kind, name in enumerate(("transition_features", "skip_features"))
            if name in self._vocabularies
        }
        return GraphData(
            np.zeros((1, self._vocabularies["X"].n_features)),
            np.zeros((0, 2), dtype=np.int64),
            n_labels=k,
            tables=self.tyings_,
            edge_inputs=inputs or None,
            node_factors=self.node_factors_,
        )

    def top_features(self, n: int = 10, label: Any = None) -> list[tuple[str, Any, float]]:
        """The ``n`` features of largest absolute weight, of one label or all: (feature, label, weight)."""
        weights = self.state_weights_
        labels = self._labels.classes.tolist()
        if label is not None:
            if label not in labels:
                raise ValueError(f"label must be one of {labels}, found {label!r}")
            weights = np.where(np.arange(len(labels)) == labels.index(label), weights, 0.0)
        return largest_weights(weights, self.feature_names_, labels, int(n))

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        vocabularies = {name: vocabulary.names for name, vocabulary in self._vocabularies.items()}
        sizes = {name: vocabulary.n_features for name, vocabulary in self._vocabularies.items()}
        return {
            "classes": self._labels.classes.tolist(),
            "vocabularies": vocabularies,
            "sizes": sizes,
            "tyings": list(self.tyings_),
            "node_factors": self.node_factors_,
        }, {}

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        self._labels = Labels.of([], attributes["classes"])
        self._vocabularies = {}
        for name, names in attributes["vocabularies"].items():
            if name not in ("X", "transition_features", "skip_features"):
                raise ValueError(f"it has a vocabulary of unknown kind {name!r}")
            size = attributes["sizes"][name]
            if not isinstance(size, int) or not 0 <= size <= self.weights_.size:
                raise ValueError(f"the vocabulary of {name} has size {size!r}")
            if names is not None and not (len(names) == size and all(isinstance(entry, str) for entry in names)):
                raise ValueError(f"the vocabulary of {name} is not a list of {size} names")
            self._vocabularies[name] = FeatureVocabulary(names, size)
        if "X" not in self._vocabularies:
            raise ValueError("it has no vocabulary of token features")
        self.tyings_ = tuple(attributes.get("tyings", self._tables()))  # older files have those of the parameters
        if len(self.tyings_) != len(self._tables()):
            raise ValueError(f"it has {len(self.tyings_)} tables, expected {len(self._tables())}")
        self.node_factors_ = attributes.get("node_factors", self.node_factors)


def _any_tokens(X: Sequence[Any]) -> bool:
    return any((sequence.shape[0] if hasattr(sequence, "shape") else len(sequence)) for sequence in X)


def _magnitudes(inputs: Any) -> Any:
    if isinstance(inputs, BundledRows):
        return BundledRows(abs(inputs.own), abs(inputs.use), abs(inputs.bundles))
    return abs(inputs)


# --- edges of sequences ---

#: Types of edges in the packed graphs.
TRANSITION, SKIP = 0, 1


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


class WordReader:
    """The word of a token: ``token[name]`` of a dict, or what follows ``name=`` in a list of strings."""

    def __init__(self, name: str) -> None:
        self.name, self._prefix = name, f"{name}="
        # By object, which is kept so that no other gets its number: hashing a bundle hashes all its names.
        self._of_bundle: dict[int, tuple[tuple[str, ...], str | None]] = {}

    def __call__(self, token: Any) -> str:
        """The word; a rule for skips needs one on every token."""
        word = token.get(self.name) if isinstance(token, Mapping) else self._of_strings(token)
        if not isinstance(word, str):
            raise ValueError(
                f"a rule for skips needs the word of every token: {self.name!r} in a dict, or a feature "
                f"'{self._prefix}...' in a list of strings; found {token if len(str(token)) < 80 else type(token)}. "
                "Name another with word=, or give skips= per sequence"
            )
        return word

    def _of_strings(self, token: Any) -> str | None:
        if not isinstance(token, list | tuple):
            return None
        for feature in token:
            if isinstance(feature, tuple):
                known = self._of_bundle.get(id(feature))
                if known is None:
                    known = self._of_bundle[id(feature)] = feature, self._of_strings(feature)
                if known[1] is not None:
                    return known[1]
            elif isinstance(feature, str) and feature.startswith(self._prefix):
                return feature[len(self._prefix) :]
        return None


def with_constant(rows: FeatureRows) -> Any:
    """Edge inputs with a constant in front, so that the features of an edge add to a table that all share."""
    ones = np.ones((rows.inputs.shape[0], 1))
    if isinstance(rows.inputs, np.ndarray):
        return np.hstack([ones, rows.inputs])
    plain = rows.inputs if sp.issparse(rows.inputs) else rows.inputs.multiplied_out()
    return sp.csr_array(sp.hstack([sp.csr_array(ones), plain], format="csr"))


def check_length(given: Any, expected: int, name: str) -> None:
    """Refuse what has not one entry per sequence."""
    found = len(given) if hasattr(given, "__len__") else type(given).__name__
    check_count(name, found, expected, "entry per sequence")
