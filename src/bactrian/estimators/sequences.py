"""Conditional random fields for sequences: chains, and chains with skip edges (Sutton & McCallum 2004)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats, Ints, number_pairs
from bactrian.errors import ArgumentError, ArgumentTypeError, check_choice, check_number, warn
from bactrian.estimators.base import LearnedEstimator, largest_weights
from bactrian.estimators.encoding import check_sequences, fit_vocabulary
from bactrian.estimators.held_out import checked_codes, log_loss
from bactrian.estimators.labelled_graphs import CONVEX
from bactrian.estimators.labelled_nodes import FittedNodes, stopping
from bactrian.estimators.labelled_sequences import (
    ADVICE,
    SKIP,
    TRANSITION,
    EdgesGiven,
    SequenceCodec,
    best_of_chains,
    check_length,
    check_sequence_params,
    encode_sequences,
    fitted_sequences,
    spans_constant,
    word_of,
)
from bactrian.estimators.labellings import Labellings, best_labellings, label_code, reasons
from bactrian.estimators.labels import Labels, accuracy, listed_labels
from bactrian.estimators.priors import Fold, graph_folds
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.graphs.ragged import pointer
from bactrian.inference.decode import METHODS
from bactrian.inference.infer import OF_WEIGHTS as INFERENCE
from bactrian.inference.infer import graph_marginals
from bactrian.learners.learn import learn, matched_inference
from bactrian.parallel.threads import Workers
from bactrian.solvers.solution import Callback, Solution
from bactrian.text.documents import RULES, skip_edges
from bactrian.text.entities import entity_scores, guess_scheme

#: Fewer tokens need not have any skip edges.
_MANY_TOKENS = 50


@dataclass(kw_only=True, eq=False, repr=False)
class LinearChainCRF(LearnedEstimator):
    """A chain: p(y | x) with a score for every token and label, and one for every pair of successive labels.

    Node factors are absorbed into the transitions on either side (``node_factors="edges"``); ``"clusters"`` makes them
    clusters of their own. On a chain only piecewise training and CAMEL(0) depend on it.

    Parameters
    ----------
    method : str or learner
        Any learner of :func:`bactrian.learn`; on chains ``"exact"`` is maximum likelihood.
    prior_variance : "auto", float, mapping, "cv" or None
        Variance of the Gaussian prior. ``"auto"`` chooses one for each block by the log loss of held-out labels, given
        their features and neighbours, before learning begins (:doc:`/priors-and-tables`). A mapping has one for each
        block: ``{"tokens": 10.0, "transitions": 1.0}``, None for no prior. ``"cv"`` chooses it by cross-validation of
        whole fits over sequences.
    tolerance : float
        Learning stops when ten iterations gain less than 1,000 times the square of this of the objective, a thousandth
        by default, about as much as is left to gain; and, where learning is not exact or some labels are unknown, as
        :func:`bactrian.learn` has it. 1e-6 is for the last digits.
    l1, max_iterations, max_seconds, n_threads, seed
        See :func:`bactrian.learn`.
    transition_tables : {"full", "symmetric", "diagonal", "potts", "pooled"}
        How the table of transitions is tied.
    min_frequency : int
        Token features that occur on fewer tokens are dropped.
    labels : list, optional
        All labels; by default those seen in ``fit``, sorted.
    class_weight : "balanced" or dict, optional
        Weight of each label; a sequence is weighted by the mean weight of its labels.
    fit_intercept : bool
        Append a feature that is 1 on every token, unless a sum of the given ones is, as that of words; ``intercept_``.
    node_factors : {"edges", "clusters"}
        See above.
    all_possible_states, all_possible_transitions : bool
        Whether pairs of a feature and a label, or of two successive labels, that never occur in ``fit`` get weights.
    warm_start : bool
        Start from the weights of the last fit, or of the loaded file, with its features and labels.
    verbose : int
        1 prints lines about the progress of learning; see :class:`bactrian.ProgressLines`.
    device : str, optional
        Where learning and marginals run with PyTorch, such as ``"cuda"`` (:doc:`/gpu`); by default on the CPU without.

    Attributes
    ----------
    classes_, feature_names_, n_features_in_
        Labels and features.
    weights_, state_weights_, intercept_, state_features_, transition_features_
        What was learned.
    solution_ : Solution
        Status and history of learning.
    prior_variance_ : mapping, float or None
        The prior that was learned with.
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

    _block_names: ClassVar = ("tokens", "transitions", "deviations", "intercept")
    _tables: ClassVar = ("transition_tables",)
    _newer_params: ClassVar = ("fit_intercept",)

    method: Any = "exact"
    tolerance: float = 1e-3
    transition_tables: str = "full"
    min_frequency: int = 1
    labels: Any = None
    class_weight: Any = None
    fit_intercept: bool = True
    node_factors: str = "edges"
    all_possible_states: bool = True
    all_possible_transitions: bool = True
    device: str | None = None
    precision_: Floats = field(init=False)

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
        X_dev: Any = None,
        y_dev: Any = None,
        given_dev: Mapping[str, Any] | None = None,
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
        X_dev, y_dev : optional
            Held-out sequences: learning stops when their log loss, measured every 5 iterations, no longer falls, and
            keeps the weights of the smallest. ``held_out_scores_`` has the iterations and losses.
        given_dev : mapping, optional
            Skips, breaks and features of edges of ``X_dev``, named as those of ``X``.
        callback : callable, optional
            See :func:`bactrian.learn`.
        """
        given = vars(EdgesGiven(skips, breaks, transition_features, skip_features))
        encode = partial(self.encode, X, y, sample_weight=sample_weight, **given)
        return self._fit(encode, callback, X_dev, y_dev, **(given_dev or {}))

    def _held_out(self, X: Any, y: Any, **edges: Any) -> Callable[[], float]:
        """The loss of the adopted weights on these sequences, which are encoded once."""
        check_sequences(X, "X_dev")
        given = EdgesGiven(**edges)
        rows = self.codec_.rows(X, given)
        listed = listed_labels(y, rows["X"].lengths.tolist(), "y_dev", unknown_allowed=True)
        codes = checked_codes(self.codec_.labels.codes(listed, "y_dev"))
        data = self.codec_.encoded(X, given, self._skips, rows)
        return lambda: log_loss(self._fitted().marginals(data).nodes, codes)

    def encode(self, X: Any, y: Any, *, sample_weight: Any = None, **edges: Any) -> GraphData:
        """The data that :meth:`fit` learns from, with its arguments; :meth:`adopt` keeps what is learned from them.

        Fixes labels and features, those of the last time with ``warm_start``; else the estimator is not fitted until
        then.
        """
        self.check_params()
        codec, data = encode_sequences(self, X, y, EdgesGiven(**edges), sample_weight)
        self._encoded(codec)
        return data

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        check_sequence_params(self)

    @property
    def _device_method(self) -> Any:
        """On chains this entropy is the exact one."""
        return CONVEX if self.method == "exact" else self.method

    def learning_options(self) -> dict[str, Any]:
        """See :meth:`LearnedEstimator.learning_options`."""
        return stopping(LearnedEstimator.learning_options(self))

    def _skips(self, X: Any, lengths: Ints, skips: Any) -> None:
        if skips is not None:
            raise TypeError(f"skips: {type(self).__name__} has no skip edges; SkipChainCRF has them")

    def _fitted(self) -> FittedNodes:
        check_is_fitted(self, "weights_")
        return fitted_sequences(self)

    def _folds(self, data: GraphData) -> list[Fold]:
        return graph_folds(data, lambda part, _: self._fitted().marginals(part).nodes, self.seed, "sequence")

    def _judge(self, data: GraphData) -> None:
        if matched_inference(self.method_)[0] != "exact":  # exact likelihood has learned what is predicted
            self._fitted().judge(data, same=False, advice=ADVICE)

    def adopt(self, solution: Solution) -> Self:
        """See :meth:`LearnedEstimator.adopt`."""
        self.__dict__.pop("precision_", None)  # of other weights
        return super().adopt(solution)

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
        if self.prior_variance is None or self.prior_variance == "cv":
            raise ArgumentError("prior_variance", f"must be numbers in partial_fit, found {self.prior_variance!r}")
        again = hasattr(self, "weights_")
        if again and not hasattr(self, "precision_"):
            raise ValueError(
                "the model was learned by fit, which does not keep the precision of weights; use partial_fit alone"
            )
        if again and self.codec_.tyings != (self.transition_tables,):
            raise ValueError("transition_tables: the table is tied differently from the first call")
        if again and classes is not None and Labels.of([], classes).classes.tolist() != self.classes_.tolist():
            raise ValueError(f"classes must be those of the first call, {self.classes_.tolist()}, found {classes}")
        new, rows = fit_vocabulary(X, self.min_frequency)
        known = self.codec_.vocabularies["X"] if again else new
        vocabulary = known.extended(new)
        part = clone(self).set_params(warm_start=True)
        if again:
            part.prior_variance = self.prior_variance_  # "auto" chooses in the first call
        listed = listed_labels(y, rows.lengths.tolist(), unknown_allowed=True)
        labels = self.codec_.labels if again else Labels.of(listed, self.labels if classes is None else classes)
        intercept = self.codec_.intercept if again else self.fit_intercept and not spans_constant(rows.inputs)
        part.codec_ = SequenceCodec(labels, {"X": vocabulary}, intercept=bool(intercept))
        data = part.encode(X, y, breaks=breaks, sample_weight=sample_weight)
        options = part.learning_options()
        mean, precision = np.zeros(data.n_weights), 1.0 / np.broadcast_to(options["prior_variance"], data.n_weights)
        if again:
            k = self.classes_.size
            old = np.r_[: known.n_features * k, vocabulary.n_features * k : data.n_weights]
            mean[old], precision = self.weights_, precision.copy()
            precision[old] = self.precision_
        solution = learn(
            _around(pack(data), mean * precision),
            **{**options, "prior_variance": 1.0 / precision, "gain_tolerance": 0.0},  # the mean shifts the objective
            start=mean,
        )
        self._hold(replace(part.codec_, auto_prior=self.codec_.auto_prior) if again else part.codec_)
        self.adopt(solution)
        self.precision_ = precision + self._curvature(X, data)
        return self

    def _curvature(self, X: Any, data: GraphData) -> Floats:
        """Of the negative log-likelihood in each weight, as far as labels are known."""
        found = graph_marginals(data, self.weights_, "exact", edges=True, n_threads=self.n_threads)
        known = data.known * data.by_node(data.weights)
        both = np.minimum(*known[data.edges.T])[:, None]  # in the order of the edges as given: they are sorted
        table = data.tables[0]
        tied = np.zeros((1, table.n_tied))
        if found.edges is not None:
            means = table.reduce(found.edges.reshape(-1, self.classes_.size**2))  # of what each tied weight multiplies
            sizes = np.ones(table.n_tied)
            sizes[0] = table.attraction if table.is_pooled else 1.0
            tied = (both * means * (sizes - means)).sum(axis=0)
        squares = data.scores.inputs.squared()
        nodes = np.empty((squares.shape[1], self.classes_.size))
        squares.transposed_times(known[:, None] * found.nodes * (1.0 - found.nodes), nodes, Workers(self.n_threads))
        return np.concatenate([nodes.ravel(), tied.ravel()])

    # --- prediction ---

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
        fitted, given = self._fitted(), EdgesGiven(skips, breaks, transition_features, skip_features)
        rows = self.codec_.rows(X, given)
        codes = best_of_chains(self, rows, given) if partial is None else None
        if codes is None:
            data = self.codec_.encoded(X, given, self._skips, rows)
            codes = fitted.codes(data, self.codec_.evidence(partial, data))
        labels = self.codec_.labels.decode(codes)
        return Labellings(labels[first:last] for first, last in pairwise(pointer(rows["X"].lengths).tolist()))

    def predict_marginals(self, X: Any, *, partial: Any = None, edges: bool = False, **given: Any) -> Any:
        """Probabilities of labels, an array (n_tokens, n_labels) per sequence, columns as in ``classes_``.

        With ``edges`` also a list of (pairs of positions, tables (n_pairs, n_labels, n_labels)) per sequence, skips
        after transitions. Other arguments are those of :meth:`fit` and :meth:`predict`.
        """
        fitted = self._fitted()
        data = self.codec_.encoded(X, EdgesGiven(**given), self._skips)
        marginals = fitted.marginals(data, self.codec_.evidence(partial, data), edges=edges)
        nodes = np.split(marginals.nodes, data.node_pointer[1:])[:-1]
        if marginals.edges is None:
            return nodes
        pairs = np.empty_like(data.edges)
        pairs[data.edge_order] = data.edges
        sequence = np.searchsorted(data.node_pointer, pairs[:, 0], side="right") - 1
        order = np.argsort(sequence, kind="stable")
        parts = (pairs - data.node_pointer[sequence, None])[order], marginals.edges[order]
        bounds = np.searchsorted(sequence[order], np.arange(data.n_graphs))[1:]
        return nodes, list(zip(*(np.split(part, bounds) for part in parts), strict=True))[: data.n_graphs]

    predict_proba = predict_marginals

    def predict_n_best(self, X: Any, n: int = 5, **given: Any) -> list[list[tuple[list[Any], float]]]:
        """The ``n`` most probable labellings of each sequence with their log-probabilities, best first.

        Sequences with fewer labellings return all of them. Other arguments are those of :meth:`predict`.

        Examples
        --------
        >>> from bactrian import LinearChainCRF
        >>> crf = LinearChainCRF(prior_variance=10.0).fit([[["a"], ["b"]], [["b"], ["b"]]], [["A", "B"], ["B", "B"]])
        >>> [(labels, round(log_probability, 1)) for labels, log_probability in crf.predict_n_best([[["a"]]], 2)[0]]
        [(['A'], -0.1), (['B'], -2.1)]
        """
        check_is_fitted(self, "weights_")
        check_number("n", n, least=1, whole=True)
        data = self.codec_.encoded(X, EdgesGiven(**given), self._skips)
        found, labels = best_labellings(data, self.weights_, int(n), self.n_threads), self.codec_.labels
        return [[(labels.decode(of), float(p)) for of, p in zip(*part, strict=True)] for part in found]

    def explain(
        self, sequence: Any, position: int, *, label: Any = None, against: Any = None, n: int | None = 10, **given: Any
    ) -> list[tuple[str, float]]:
        """What spoke for the label of a token: (feature or neighbour, what it adds), largest magnitude first.

        What each adds to the score of ``label`` over that of ``against``, with the neighbours as predicted. All of them
        (``n=None``) add up to the difference of the log-probabilities of the two labellings.

        Parameters
        ----------
        sequence, position
            A sequence of tokens as in ``X``, and which of them.
        label, against : optional
            By default the label that :meth:`predict` gives, and the other one of largest marginal.
        n : int, optional
            How many; None for all.
        **given
            Skips, breaks and features of edges as in :meth:`predict`, each of this sequence in a list of one.

        Examples
        --------
        >>> from bactrian import LinearChainCRF
        >>> X = [[{"word": "Dr"}, {"word": "Lee"}], [{"word": "the"}, {"word": "very"}, {"word": "end"}]]
        >>> crf = LinearChainCRF(prior_variance=10.0).fit(X, [["O", "PER"], ["O", "O", "O"]])
        >>> [(what, round(gain, 1)) for what, gain in crf.explain(X[0], 1, n=2)]
        [('word:Lee', 2.4), ("after 'O' at 0", -0.5)]
        """
        labels = self.classes_.tolist() if hasattr(self, "weights_") else []
        marginals = self.predict_marginals([sequence], **given)[0]
        check_number("position", position, least=0, below=len(marginals), whole=True)
        codes = np.array([labels.index(one) for one in self.predict([sequence], **given)[0]])
        own = codes[position] if label is None else label_code(label, labels, "label")
        rest = np.where(np.arange(len(labels)) == own, -1.0, marginals[position])
        other = int(rest.argmax()) if against is None else label_code(against, labels, "against")
        data = self.codec_.encoded([sequence], EdgesGiven(**given), self._skips)
        names = [*self.feature_names_, "intercept"]
        return reasons(data, self.weights_, codes, int(position), (int(own), other), names, labels)[:n]

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
        predicted = self.predict(X, **vars(EdgesGiven(skips, breaks, transition_features, skip_features)))
        true = listed_labels(y, [len(labels) for labels in predicted])
        self.codec_.labels.check_kind(true)
        if not any(true):
            raise ValueError("X has no tokens; a score needs at least one")
        scheme = guess_scheme({label for labels in true for label in labels} | set(self.classes_.tolist()))
        if scheme is None:
            return accuracy(true, predicted)
        starts = None if breaks is None else [np.unique(positions).astype(np.int64) for positions in breaks]
        return float(entity_scores(true, predicted, scheme=scheme, sentence_starts=starts).micro.f1)

    # --- what was learned ---

    @property
    def feature_names_(self) -> list[str]:
        """Names of the token features in the order of their weights; column numbers for matrix inputs."""
        check_is_fitted(self, "weights_")
        names = self.codec_.vocabularies["X"].names
        return [str(i) for i in range(self.n_features_in_)] if names is None else names

    @property
    def state_weights_(self) -> Floats:
        """(n_features, n_labels) weights of token features."""
        check_is_fitted(self, "weights_")
        k = self.classes_.size
        return self.weights_[: self.n_features_in_ * k].reshape(-1, k)

    @property
    def intercept_(self) -> Floats:
        """(n_labels,) weights of the feature that is 1 on every token; 0 where there is none."""
        check_is_fitted(self, "weights_")
        k, n = self.classes_.size, self.n_features_in_
        return self.weights_[n * k : (n + 1) * k] if self.codec_.intercept else np.zeros(k)

    @property
    def state_features_(self) -> dict[tuple[str, Any], float]:
        """Weights that are not 0 of (feature, label)."""
        weights, names, labels = self.state_weights_, self.feature_names_, self.classes_.tolist()
        return {(names[i], labels[k]): float(weights[i, k]) for i, k in np.argwhere(weights != 0.0).tolist()}

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float]:
        """Weight of each transition from one label to the next; that which all share, with transition features."""
        check_is_fitted(self, "weights_")
        table, labels = self.codec_.table(self.weights_, TRANSITION), self.classes_.tolist()
        return {(a, b): float(table[i, j]) for i, a in enumerate(labels) for j, b in enumerate(labels)}

    def top_features(self, n: int = 10, label: Any = None) -> list[tuple[str, Any, float]]:
        """The ``n`` features of largest absolute weight, of one label or all: (feature, label, weight)."""
        weights, labels = self.state_weights_, self.classes_.tolist()
        if label is not None:
            weights = np.where(np.arange(len(labels)) == label_code(label, labels, "label"), weights, 0.0)
        return largest_weights(weights, self.feature_names_, labels, int(n))

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        attributes, arrays = super()._contents()
        return attributes, arrays | ({"precision": self.precision_} if hasattr(self, "precision_") else {})

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        self._hold(SequenceCodec.restored(attributes, self))
        if "precision" in arrays:
            self.precision_ = arrays["precision"]
            if (
                self.precision_.shape != self.weights_.shape
                or not (np.isfinite(self.precision_) & (self.precision_ > 0.0)).all()
            ):
                raise ValueError("its precision is not a positive number per weight")


def _around(data: PackedData, shift: Floats) -> Any:
    """Data whose prior has the mean v: (w - v)'P(w - v) / 2 is w'Pw / 2 - w'Pv and a constant, and ``shift`` is Pv."""
    if data.holes is not None:
        return replace(data, holes=replace(data.holes, complete=data.holes.complete + shift, is_shifted=True))
    assert data.empirical is not None
    return replace(data, empirical=data.empirical + shift)


@dataclass(kw_only=True, eq=False, repr=False)
class SkipChainCRF(LearnedEstimator):
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
    prior_variance : "auto", float, mapping, "cv" or None
        See :class:`LinearChainCRF`; skip edges are the block ``"skips"``.
    l1, tolerance, max_iterations, max_seconds, n_threads, seed
        See :func:`bactrian.learn`.
    transition_tables, min_frequency, labels, class_weight, fit_intercept, node_factors, all_possible_states, \
all_possible_transitions, warm_start, verbose, device
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

    _block_names: ClassVar = ("tokens", "transitions", "skips", "deviations", "intercept")
    _tables: ClassVar = ("transition_tables", "skip_tables")
    _newer_params: ClassVar = ("fit_intercept",)

    method: Any = "cccp"
    tolerance: float = 1e-4
    skips: Any = "nearest"
    word: str = "word"
    skip_tables: str = "symmetric"
    inference: str = "rbp"
    inference_tolerance: float = 1e-4
    decoding: str = "max-marginals"
    transition_tables: str = "full"
    min_frequency: int = 1
    labels: Any = None
    class_weight: Any = None
    fit_intercept: bool = True
    node_factors: str = "edges"
    all_possible_states: bool = True
    all_possible_transitions: bool = True
    device: str | None = None
    n_skips_: int = field(init=False)

    # --- learning ---

    fit = LinearChainCRF.fit
    learning_options = LinearChainCRF.learning_options
    _held_out = LinearChainCRF._held_out

    def encode(self, X: Any, y: Any, *, sample_weight: Any = None, **edges: Any) -> GraphData:
        """The data that :meth:`fit` learns from; warns where a rule finds no skip edge at all."""
        self.check_params()
        codec, data = encode_sequences(self, X, y, EdgesGiven(**edges), sample_weight)
        self._encoded(codec)
        self.n_skips_ = int((data.edge_types == SKIP).sum())
        if (
            self.n_skips_ == 0
            and data.n_nodes >= _MANY_TOKENS
            and edges.get("skips") is None
            and isinstance(self.skips, str)
            and not self.warm_start
        ):
            warn(
                f"skips={self.skips!r} adds no edges, so this is a chain: no capitalised word occurs twice in a "
                f"sequence; words are the feature {self.word!r}: name another with word=, or give a function"
            )
        return data

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        check_sequence_params(self)
        check_choice("decoding", self.decoding, METHODS)
        check_choice("inference", self.inference, (*INFERENCE, "matched"))
        check_number("inference_tolerance", self.inference_tolerance, positive=True, below=np.inf)
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
        return [skip_edges([word_of(token, self.word) for token in sequence], self.skips) for sequence in X]

    def _fitted(self) -> FittedNodes:
        check_is_fitted(self, "weights_")
        matched = self.inference == "matched"
        method, options = matched_inference(self.method_) if matched else (self.inference, {})
        return fitted_sequences(self, method, self.decoding, **{"tolerance": self.inference_tolerance, **options})

    _folds = LinearChainCRF._folds

    def _judge(self, data: GraphData) -> None:
        learned = self.inference in ("matched", matched_inference(self.method_)[0])
        self._fitted().judge(data, same=learned and self.decoding == "max-marginals", advice=ADVICE)

    # --- prediction, and what was learned, as of chains ---

    predict = LinearChainCRF.predict
    predict_marginals = predict_proba = LinearChainCRF.predict_marginals
    explain = LinearChainCRF.explain
    score = LinearChainCRF.score
    feature_names_ = LinearChainCRF.feature_names_
    state_weights_ = LinearChainCRF.state_weights_
    intercept_ = LinearChainCRF.intercept_
    state_features_ = LinearChainCRF.state_features_
    transition_features_ = LinearChainCRF.transition_features_
    top_features = LinearChainCRF.top_features
    _restore = LinearChainCRF._restore

    @property
    def skip_table_(self) -> Floats:
        """(n_labels, n_labels) table of skip edges; that which all share, with skip features."""
        check_is_fitted(self, "weights_")
        return self.codec_.table(self.weights_, SKIP)
