"""A linear classifier of superpixels: multinomial logistic regression with a ridge penalty, as log-odds.

Features are square roots with their sign, which suits histograms, standardised by the training superpixels and cut off
at four deviations, so that no odd superpixel has a say far beyond the others.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_CUT = 4.0
#: The penalty makes later steps change next to nothing.
_ITERATIONS = 60


class LinearClassifier:
    """Logistic regression on transformed features; labels that were never seen are improbable."""

    def __init__(self, n_labels: int, penalty: float = 1000.0) -> None:
        self.n_labels, self.penalty = n_labels, penalty
        self._mean = self._scale = np.zeros(0, dtype=np.float32)
        self._model: Any = None
        self._only: int | None = None

    def fit(self, features: NDArray[Any], labels: Integers) -> LinearClassifier:
        """Fit to features (n, n_features) and labels (n,)."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        rooted = _rooted(features)
        self._mean, self._scale = rooted.mean(axis=0), np.maximum(rooted.std(axis=0), 1e-6)
        self._only = int(labels[0]) if (labels == labels[0]).all() else None
        if self._only is not None:
            return self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model = LogisticRegression(C=1.0 / self.penalty, max_iter=_ITERATIONS)
            self._model.fit(self._standardised(features), labels)
        return self

    def log_odds(self, features: NDArray[Any]) -> Floats:
        """Log-odds (n, n_labels) of each label against the rest; infinite where a probability is 0 or 1."""
        probability = np.zeros((features.shape[0], self.n_labels))
        if self._only is not None:
            probability[:, self._only] = 1.0
        else:
            probability[:, self._model.classes_] = self._model.predict_proba(self._standardised(features))
        with np.errstate(divide="ignore"):
            odds: Floats = np.log(probability) - np.log1p(-probability)
        return odds

    def _standardised(self, features: NDArray[Any]) -> NDArray[np.float32]:
        cut: NDArray[np.float32] = np.clip((_rooted(features) - self._mean) / self._scale, -_CUT, _CUT)
        return cut


def _rooted(features: NDArray[Any]) -> NDArray[np.float32]:
    values = np.asarray(features, dtype=np.float32)
    return np.sign(values) * np.sqrt(np.abs(values))
