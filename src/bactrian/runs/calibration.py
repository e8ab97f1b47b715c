"""Whether marginals mean what they say: reliability, expected calibration error, log loss.

Of all the places to which a model gives its prediction a probability of 0.8, four in five should be right (Guo, Pleiss,
Sun and Weinberger, ICML 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence of predictions against how often they are right, in bins of equal width that are not empty.

    All arrays have shape (n_bins,); ``error`` is the expected calibration error, the sum over bins of
    n_b |accuracy_b - confidence_b| / n.
    """

    confidence: Floats
    accuracy: Floats
    counts: NDArray[np.int64]
    error: float


def reliability(marginals: Floats, labels: NDArray[np.int64], n_bins: int = 10) -> Reliability:
    """Reliability of marginals (n, n_labels); a prediction is the most probable label.

    Confidence lies between 1 / n_labels and 1; the bins divide that range.

    >>> marginals = np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.2, 0.8], [0.2, 0.8]])
    >>> float(round(reliability(marginals, np.array([0, 0, 0, 1, 0])).error, 12))
    0.0
    """
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, found {n_bins}")
    confidence = marginals.max(axis=1)
    right = marginals.argmax(axis=1) == labels
    least = 1.0 / marginals.shape[1]
    position = (confidence - least) / max(1.0 - least, np.finfo(float).tiny) * n_bins
    number = np.clip(position.astype(np.int64), 0, n_bins - 1)
    counts = np.bincount(number, minlength=n_bins)
    used = counts > 0
    mean_confidence = np.bincount(number, confidence, n_bins)[used] / counts[used]
    mean_right = np.bincount(number, right, n_bins)[used] / counts[used]
    error = float((counts[used] * np.abs(mean_right - mean_confidence)).sum() / max(labels.size, 1))
    return Reliability(mean_confidence, mean_right, counts[used], error)


def log_loss(marginals: Floats, labels: NDArray[np.int64]) -> float:
    """Mean of -log of the probability given to the true label, in nats; a probability of 0 counts as 1e-300.

    >>> round(log_loss(np.array([[0.5, 0.5]]), np.array([1])), 4)
    0.6931
    """
    given = marginals[np.arange(labels.size), labels]
    return float(-np.log(np.maximum(given, 1e-300)).mean())
