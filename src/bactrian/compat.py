"""Drop-in stand-ins for other libraries' classes.

``from bactrian.compat import CRF`` in place of ``from sklearn_crfsuite import CRF``: the documented call goes on
working, on several cores, and the estimator is a :class:`bactrian.LinearChainCRF` besides.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np

from bactrian.arrays import Ints
from bactrian.errors import check_number
from bactrian.estimators.encoding import Rows
from bactrian.estimators.labels import Labels
from bactrian.estimators.sequence_data import SequenceEdges
from bactrian.estimators.sequences import LinearChainCRF
from bactrian.graphs.packing import pack

__all__ = ["CRF"]


class CRF(LinearChainCRF):
    """A linear-chain CRF with the parameters of ``sklearn_crfsuite.CRF``.

    Parameters
    ----------
    algorithm : {"lbfgs"}
        The only one here; with ``c1`` it is OWL-QN, as in CRFsuite.
    min_freq : float
        Features (of a token and its label, or of two successive labels) whose values sum to less in training have no
        weight, even with ``all_possible_states`` or ``all_possible_transitions``. 0 or None for no such limit.
    all_possible_states, all_possible_transitions : bool
        Whether features get weights for labels with which they never occur in training.
    c1, c2 : float
        Coefficients of L1 and L2 regularisation; c2 = 1 / (2 prior_variance).
    max_iterations : int, optional
        Limit on iterations; none by default.
    epsilon : float
        Accuracy: the largest gradient component per sequence at which training stops.
    n_threads : int, optional
        One a core by default.
    num_memories, period, delta, linesearch, max_linesearch
        Of CRFsuite's optimiser: accepted for compatibility and without effect; ``epsilon`` says when training stops.
    keep_tempfiles, verbose
        Accepted for compatibility and without effect.
    model_filename : str, optional
        Without effect, of which ``fit`` warns: no file is written; use ``save`` and ``load``.

    Examples
    --------
    >>> from bactrian.compat import CRF
    >>> X = [[{"word": "a"}, {"word": "b"}], [{"word": "b"}, {"word": "a"}]]
    >>> crf = CRF(algorithm="lbfgs", c1=0.0, c2=0.05, all_possible_transitions=True).fit(X, [["A", "B"], ["B", "A"]])
    >>> crf.predict(X)
    [['A', 'B'], ['B', 'A']]
    >>> sorted(crf.predict_marginals(X)[0][0])
    ['A', 'B']
    """

    def __init__(
        self,
        algorithm: str = "lbfgs",
        *,
        min_freq: float | None = 0.0,
        all_possible_states: bool = False,
        all_possible_transitions: bool = False,
        c1: float = 0.0,
        c2: float = 1.0,
        max_iterations: int | None = None,
        epsilon: float = 1e-5,
        n_threads: int | None = None,
        num_memories: int | None = None,
        period: int | None = None,
        delta: float | None = None,
        linesearch: str | None = None,
        max_linesearch: int | None = None,
        keep_tempfiles: bool | None = None,
        verbose: bool = False,
        model_filename: str | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.min_freq = min_freq
        self.all_possible_states = all_possible_states
        self.all_possible_transitions = all_possible_transitions
        self.c1 = c1
        self.c2 = c2
        self.max_iterations = max_iterations  # type: ignore[assignment]  # None means no limit here
        self.epsilon = epsilon
        self.n_threads = n_threads
        self.num_memories = num_memories
        self.period = period
        self.delta = delta
        self.linesearch = linesearch
        self.max_linesearch = max_linesearch
        self.keep_tempfiles = keep_tempfiles
        self.verbose = verbose
        self.model_filename = model_filename
        self._set_learner()

    def _set_learner(self) -> None:
        """Parameters of :class:`LinearChainCRF` that follow from these."""
        self.method = "exact"
        self.prior_variance = None if self.c2 == 0.0 else 0.5 / self.c2
        self.l1 = self.c1
        self.tolerance = self.epsilon
        self.max_seconds = None
        self.seed = 0
        self.transition_tables = "full"
        self.min_frequency = 1
        self.labels = None
        self.class_weight = None
        self.node_factors = "edges"
        self.warm_start = False

    def fit(self, X: Any, y: Any, X_dev: Any = None, y_dev: Any = None, **more: Any) -> Self:
        """Train on sequences of dicts (or lists of strings) and their labels; ``X_dev`` and ``y_dev`` are not used."""
        if self.algorithm != "lbfgs":
            raise ValueError(
                f"algorithm must be 'lbfgs', found {self.algorithm!r}; the others are not implemented here"
            )
        for name in ("c1", "c2", "min_freq"):
            check_number(name, getattr(self, name), least=0, below=np.inf, optional=name == "min_freq")
        if self.model_filename is not None:
            warnings.warn(
                f"model_filename={self.model_filename!r} has no effect: no file is written; use save and load",
                UserWarning,
                stacklevel=2,
            )
        self._set_learner()
        return super().fit(X, y, **more)

    def _active(self, rows: dict[str, Rows], edges: SequenceEdges, labels: Labels, codes: Ints) -> Any:
        """Weights that CRFsuite would have: it counts values, signs and all, and prunes after it has added features."""
        if not self.min_freq:
            return super()._active(rows, edges, labels, codes)
        seen = pack(self._graphs(rows, edges, labels, labels=codes)).empirical
        assert seen is not None
        return seen >= self.min_freq

    def _options(self) -> dict[str, Any]:
        """Those of :class:`LinearChainCRF`; a missing limit on iterations is its default."""
        options = super()._options()
        return options if self.max_iterations is not None else {**options, "max_iterations": 10_000}

    def predict_marginals(self, X: Any, **more: Any) -> Any:
        """A list of dicts from labels to probabilities for each sequence."""
        labels = self.classes_
        return [
            [dict(zip(labels, row, strict=True)) for row in table.tolist()]
            for table in super().predict_marginals(X, **more)
        ]

    def predict_single(self, xseq: Any) -> list[Any]:
        """Labels of one sequence."""
        return self.predict([xseq])[0]

    def predict_marginals_single(self, xseq: Any) -> list[dict[Any, float]]:
        """Marginals of one sequence."""
        found: list[dict[Any, float]] = self.predict_marginals([xseq])[0]
        return found

    @property
    def classes_(self) -> list[Any]:  # type: ignore[override]
        """Labels, as a list."""
        labels: list[Any] = super().classes_.tolist()
        return labels

    @property
    def attributes_(self) -> list[str]:
        """Names of the features."""
        return self.feature_names_

    @property
    def state_features_(self) -> dict[tuple[str, Any], float]:
        """Weights that are not 0 of (feature, label)."""
        weights, names, labels = self.state_weights_, self.feature_names_, self.classes_
        return {(names[i], labels[k]): float(weights[i, k]) for i, k in np.argwhere(weights != 0.0).tolist()}
