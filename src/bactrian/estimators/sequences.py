"""Conditional random fields for sequences: chains, and chains with skip edges (Sutton & McCallum 2004)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from bactrian.arrays import Arrays, Floats, Ints, number_pairs
from bactrian.engines.numba.forest_optimum import best_labels
from bactrian.engines.numba.threads import Workers, blocks_of_rows
from bactrian.errors import ArgumentError, ArgumentTypeError, check_choice, check_number, warn
from bactrian.estimators.encoding import FeatureRows, fit_vocabulary
from bactrian.estimators.labels import Labels, listed_labels
from bactrian.estimators.sequence_base import SKIP, EdgesGiven, SequenceCRF, WordReader, check_length, sequence_edges
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import N_BLOCKS, Inputs, squared
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.graphs.ragged import pointer
from bactrian.graphs.scores import TiedTable
from bactrian.inference.decode import METHODS, decode
from bactrian.inference.infer import OF_WEIGHTS as INFERENCE
from bactrian.inference.infer import StackedMarginals, check_inference, graph_marginals
from bactrian.inference.maximum import TIE
from bactrian.learners.learn import learn, matched_inference
from bactrian.solvers.solution import Solution
from bactrian.text.documents import RULES, skip_edges

#: Tokens below which a block of chains is not worth handing to a thread.
_LEAST_TOKENS = 1_000.0

#: Fewer tokens need not have any skip edges.
_MANY_TOKENS = 50


@dataclass(kw_only=True, eq=False, repr=False)
class LinearChainCRF(SequenceCRF):
    """A chain: p(y | x) with a score for every token and label, and one for every pair of successive labels.

    Node factors are absorbed into the transitions on either side (``node_factors="edges"``); ``"clusters"`` makes them
    clusters of their own. On a chain only piecewise training and CAMEL(0) depend on it.

    Parameters
    ----------
    method : str or learner
        Any learner of :func:`bactrian.learn`; on chains ``"exact"`` is maximum likelihood.
    prior_variance : float, mapping, "cv" or None
        Variance of the Gaussian prior; a mapping has one for each block: ``{"tokens": 10.0, "transitions": 1.0}``, None
        for no prior. ``"cv"`` chooses it by cross-validation over sequences, by the loss of their labels.
    l1, tolerance, max_iterations, max_seconds, n_threads, seed
        See :func:`bactrian.learn`.
    transition_tables : {"full", "symmetric", "diagonal", "potts", "pooled"}
        How the table of transitions is tied.
    min_frequency : int
        Token features that occur on fewer tokens are dropped.
    labels : list, optional
        All labels; by default those seen in ``fit``, sorted.
    class_weight : "balanced" or dict, optional
        Weight of each label; a sequence is weighted by the mean weight of its labels.
    node_factors : {"edges", "clusters"}
        See above.
    all_possible_states, all_possible_transitions : bool
        Whether pairs of a feature and a label, or of two successive labels, that never occur in ``fit`` get weights.
    warm_start : bool
        Start from the weights of the last fit, or of the loaded file, with its features and labels.
    verbose : int
        1 prints lines about the progress of learning; see :class:`bactrian.ProgressLines`.

    Attributes
    ----------
    classes_, feature_names_, n_features_in_
        Labels and features.
    weights_, state_weights_, transition_features_
        What was learned.
    solution_ : Solution
        Status and history of learning.
    precision_ : (n_weights,)
        After :meth:`partial_fit`: precision (inverse variance) of each weight.

    Examples
    --------
    >>> from bactrian import LinearChainCRF
    >>> X = [[["word=a"], ["word=b"]], [["word=b"], ["word=b"], ["word=a"]]]
    >>> y = [["A", "B"], ["B", "B", "A"]]
    >>> model = LinearChainCRF().fit(X, y)
    >>> model.predict([[["word=b"], ["word=a"]]])
    [['B', 'A']]
    """

    precision_: Floats = field(init=False)
    # On CoNLL-2003 F1 was the same as with 1e-4, after three quarters of the evaluations or less.
    tolerance: float = 1e-3

    def _quick_labels(self, rows: dict[str, FeatureRows], given: EdgesGiven) -> Ints | None:
        """By Viterbi, where all transitions share one table and no two labellings tie."""
        if given.features or given.skips is not None:
            return None
        lengths, k = rows["X"].lengths, len(self._labels.classes)
        bounds = pointer(lengths)
        n = int(bounds[-1])
        if given.breaks is not None:
            follows = np.zeros(n, dtype=bool)
            follows[sequence_edges(lengths, given.breaks, None)[0][:, 1]] = True
            bounds = np.append(np.flatnonzero(~follows), n)
        shared = self._vocabularies["X"].n_features * k
        nodes, tied = self.weights_[:shared].reshape(-1, k), self.weights_[shared:]
        table = TiedTable.make(self.tyings_[0], k).expand(tied).reshape(k, k)
        codes, sure = np.empty(n, dtype=np.int64), np.empty(bounds.size - 1, dtype=bool)
        workers = Workers(self.n_threads)
        scores = rows["X"].times(nodes, workers)
        workers.run(
            lambda _, first, last: best_labels(scores, table, bounds, first, last, TIE, codes, sure),
            blocks_of_rows(bounds, N_BLOCKS, _LEAST_TOKENS),
        )
        return codes if sure.all() else None

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, breaks: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn from new sequences without learning again from all.

        What was seen before is kept as a Gaussian prior around its weights, as sure of each as the curvature of the
        likelihood there: 1 / sigma^2 plus the sum over tokens of x^2 p (1 - p), summed over calls (``precision_``).
        The first call is :meth:`fit`. Weights come near those of a single fit, the nearer the fewer calls there are: on
        3,000 sentences of CoNLL-2003 in six calls F1 was 82.7, at once 83.3. Sequences themselves are not kept.

        Parameters
        ----------
        X, y, breaks, sample_weight
            See :meth:`fit`; new features are added if they occur ``min_frequency`` times.
        classes : list, optional
            All labels that may occur in any call; by default ``labels``, or those of the first call.

        Examples
        --------
        >>> from bactrian import LinearChainCRF
        >>> model = LinearChainCRF().partial_fit([[["a"], ["b"]]], [["A", "B"]], classes=["A", "B", "C"])
        >>> model.partial_fit([[["c"], ["c"]]], [["C", "C"]]).predict([[["b"], ["c"]]])
        [['B', 'C']]
        """
        if self.method != "exact" or self.l1 or not (self.all_possible_states and self.all_possible_transitions):
            raise ValueError("partial_fit learns by method='exact', with l1=0 and all possible states and transitions")
        if self.prior_variance is None or isinstance(self.prior_variance, str):
            raise ArgumentError("prior_variance", f"must be numbers in partial_fit, found {self.prior_variance!r}")
        again = hasattr(self, "weights_")
        if again and not hasattr(self, "precision_"):
            raise ValueError(
                "the model was learned by fit, which does not keep the precision of weights; use partial_fit alone"
            )
        if again and self.tyings_ != self._tables():
            raise ValueError("transition_tables: the table is tied differently from the first call")
        if again and classes is not None and Labels.of([], classes).classes.tolist() != self.classes_.tolist():
            raise ValueError(f"classes must be those of the first call, {self.classes_.tolist()}, found {classes}")
        new, rows = fit_vocabulary(X, self.min_frequency)
        known = self._vocabularies["X"] if again else new
        vocabulary = known.extended(new)
        part = clone(self).set_params(warm_start=True)
        listed = listed_labels(y, rows.lengths.tolist(), unknown_allowed=True)
        classes = self.labels if classes is None else classes
        part.begin(self.classes_ if again else Labels.of(listed, classes).classes, vocabulary)
        data = part.encode(X, y, breaks=breaks, sample_weight=sample_weight)
        options = part.learning_options()
        mean, precision = np.zeros(data.n_weights), 1.0 / np.broadcast_to(options["prior_variance"], data.n_weights)
        if again:
            k = self.classes_.size
            old = np.r_[: known.n_features * k, vocabulary.n_features * k : data.n_weights]
            mean[old], precision = self.weights_, precision.copy()
            precision[old] = self.precision_
        solution = learn(
            _around(pack(data), mean * precision), **{**options, "prior_variance": 1.0 / precision}, start=mean
        )
        part.adopt(solution)
        self._labels, self._vocabularies = part._labels, part._vocabularies
        self.tyings_, self.node_factors_ = part.tyings_, part.node_factors_
        self.adopt(solution).precision_ = precision + part._curvature(X, data)
        return self

    def _curvature(self, X: Any, data: GraphData) -> Floats:
        """Of the negative log-likelihood in each weight, as far as labels are known."""
        assert data.labels is not None
        found = graph_marginals(data, self.weights_, "exact", edges=True, n_threads=self.n_threads)
        known = (data.labels >= 0) * np.repeat(data.weights, np.diff(data.node_pointer))
        both = np.minimum(*known[data.edges.T])[:, None]  # in the order of the edges as given: they are sorted
        table = data.tables[0]
        tied = np.zeros((1, table.n_tied))
        if found.edges is not None:
            means = table.reduce(found.edges.reshape(-1, self.classes_.size**2))  # of what each tied weight multiplies
            sizes = np.ones(table.n_tied)
            sizes[0] = table.attraction if table.is_pooled else 1.0
            tied = (both * means * (sizes - means)).sum(axis=0)
        rows = self._vocabularies["X"].encode(X)
        squares = Inputs(squared(rows.inputs))
        nodes = np.empty((squares.shape[1], self.classes_.size))
        squares.transposed_times(known[:, None] * found.nodes * (1.0 - found.nodes), nodes, Workers(self.n_threads))
        return np.concatenate([nodes.ravel(), tied.ravel()])

    def adopt(self, solution: Solution) -> Self:
        """See :meth:`LearnedEstimator.adopt`."""
        self.__dict__.pop("precision_", None)  # of other weights
        return super().adopt(solution)

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        attributes, arrays = super()._contents()
        return attributes, arrays | ({"precision": self.precision_} if hasattr(self, "precision_") else {})

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        super()._restore(attributes, arrays)
        if "precision" in arrays:
            self.precision_ = arrays["precision"]
            if (
                self.precision_.shape != self.weights_.shape
                or not (np.isfinite(self.precision_) & (self.precision_ > 0.0)).all()
            ):
                raise ValueError("its precision is not a positive number per weight")

    def _judge(self, data: GraphData) -> None:
        if matched_inference(self.method_)[0] != "exact":  # exact likelihood has learned what is predicted
            super()._judge(data)

    def _labels_of(self, data: GraphData, evidence: Any) -> list[Ints]:
        return decode(data, self.weights_, "exact", evidence, n_threads=self.n_threads)

    def _marginals_of(self, data: GraphData, evidence: Any, edges: bool) -> StackedMarginals:
        return graph_marginals(data, self.weights_, "exact", evidence, edges=edges, n_threads=self.n_threads)


def _around(data: PackedData, shift: Floats) -> Any:
    """Data whose prior has the mean v: (w - v)'P(w - v) / 2 is w'Pw / 2 - w'Pv and a constant, and ``shift`` is Pv."""
    if data.holes is not None:
        return replace(data, holes=replace(data.holes, complete=data.holes.complete + shift, is_shifted=True))
    assert data.empirical is not None
    return replace(data, empirical=data.empirical + shift)


@dataclass(kw_only=True, eq=False, repr=False)
class SkipChainCRF(SequenceCRF):
    """A chain with skip edges between distant tokens that should be labelled alike (Sutton & McCallum 2004).

    Node factors are absorbed into the incident edges (``node_factors="edges"``); ``"clusters"`` makes them clusters of
    their own, which piecewise training and CAMEL(0) count twice over.

    Parameters
    ----------
    skips : {"nearest", "all", "names"}, callable or None
        Rule for skip edges between identical words that begin with a capital letter: each to the next (``"nearest"``),
        all pairs (``"all"``), or runs of such words to the next equal run (``"names"``); see
        :func:`bactrian.text.skip_edges`. Or a function from the words of a sequence to pairs of positions; or None, if
        ``fit`` gets ``skips=``.
    word : str
        Feature that holds the word of a token: ``token[word]`` of a dict, ``"word=..."`` in a list of strings.
    skip_tables : {"symmetric", "full", "diagonal", "potts", "pooled"}
        How the table of skip edges is tied; rows of a full one belong to the earlier token.
    inference : str
        Method of :func:`bactrian.infer` for predictions, or ``"matched"``, which uses the learner's entropy
        (:func:`bactrian.learners.learn.matched_inference`).
    inference_tolerance : float
        Its tolerance.
    decoding : {"max-marginals", "max-product", "dual", "exact"}
        How ``predict`` chooses labels: ``"max-marginals"`` takes the most probable label of each token, which makes the
        fewest wrong tokens; the others take the jointly most probable labels of a sequence by that method of
        :func:`bactrian.decode`, which keeps entities of several tokens whole.
    method : str or learner
        Any learner of :func:`bactrian.learn`.
    prior_variance : float, mapping, "cv" or None
        See :class:`LinearChainCRF`; skip edges are the block ``"skips"``.
    l1, tolerance, max_iterations, max_seconds, n_threads, seed
        See :func:`bactrian.learn`.
    transition_tables, min_frequency, labels, class_weight, node_factors, all_possible_states, \
all_possible_transitions, warm_start, verbose
        See :class:`LinearChainCRF`.

    Attributes
    ----------
    classes_, feature_names_, n_features_in_
        Labels and features.
    weights_, state_weights_, transition_features_, skip_table_
        What was learned.
    n_skips_ : int
        Number of skip edges in ``fit``.
    solution_ : Solution
        Status and history of learning.

    Examples
    --------
    >>> from bactrian import SkipChainCRF
    >>> X = [[{"word": "Ava"}, {"word": "met"}, {"word": "Ava"}]]
    >>> model = SkipChainCRF().fit(X, [["PER", "O", "PER"]])
    >>> model.predict(X)
    [['PER', 'O', 'PER']]
    """

    _block_names: ClassVar = ("tokens", "transitions", "skips", "deviations")

    method: Any = "cccp"
    skips: Any = "nearest"
    word: str = "word"
    skip_tables: str = "symmetric"
    inference: str = "rbp"
    inference_tolerance: float = 1e-4
    decoding: str = "max-marginals"

    @property
    def skip_table_(self) -> Floats:
        """(n_labels, n_labels) table of skip edges; that which all share, with skip features."""
        return self._table(SKIP)

    def _tables(self) -> tuple[str, ...]:
        return (self.transition_tables, self.skip_tables)

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("decoding", self.decoding, METHODS)
        check_choice("inference", self.inference, (*INFERENCE, "matched"))
        check_number("inference_tolerance", self.inference_tolerance, least=0)
        check_inference("rbp", {"tolerance": self.inference_tolerance})
        if not callable(self.skips) and self.skips is not None:
            check_choice("skips", self.skips, RULES)
        if not isinstance(self.word, str):
            raise ArgumentTypeError("word", f"must be the name of a feature, found {self.word!r}")

    def _skips(self, X: Any, lengths: Ints, skips: Any) -> list[Ints] | None:
        if skips is not None:
            check_length(skips, lengths.size, "skips")
            checked = (
                number_pairs(pairs, n, f"skips[{m}]", "position")
                for m, (pairs, n) in enumerate(zip(skips, lengths.tolist(), strict=True))
            )
            return [np.sort(pairs, axis=1) for pairs in checked]
        if self.skips is None:
            raise ValueError("skips=None needs the skip edges of every sequence: give skips= to this call")
        read = WordReader(self.word)
        return [skip_edges([read(token) for token in sequence], self.skips) for sequence in X]

    def encode(self, X: Any, y: Any, **given: Any) -> GraphData:
        """See :meth:`SequenceCRF.encode`; warns where a rule finds no skip edge at all."""
        data = super().encode(X, y, **given)
        self.n_skips_ = int((data.edge_types == SKIP).sum())
        if (
            self.n_skips_ == 0
            and data.n_nodes >= _MANY_TOKENS
            and given.get("skips") is None
            and isinstance(self.skips, str)
            and not self.warm_start
        ):
            warn(
                f"skips={self.skips!r} adds no edges, so this is a chain: no capitalised word occurs twice in a "
                f"sequence; words are the feature {self.word!r}: name another with word=, or give a function"
            )
        return data

    @property
    def _finds_learned(self) -> bool:
        return self.decoding == "max-marginals" and self.inference in ("matched", matched_inference(self.method_)[0])

    def _labels_of(self, data: GraphData, evidence: Any) -> list[Ints]:
        if self.decoding != "max-marginals":
            return decode(data, self.weights_, self.decoding, evidence, n_threads=self.n_threads)
        nodes = self._marginals_of(data, evidence, False).nodes
        return np.split(np.argmax(nodes, axis=1), data.node_pointer[1:-1])

    def _marginals_of(self, data: GraphData, evidence: Any, edges: bool) -> StackedMarginals:
        matched = self.inference == "matched"
        method, options = matched_inference(self.method_) if matched else (self.inference, {})
        options = {"tolerance": self.inference_tolerance, "n_threads": self.n_threads, "seed": self.seed, **options}
        return self._infer_graphs(data, self.weights_, method, evidence, edges, **options)
