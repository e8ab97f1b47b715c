"""One boosted classifier per label against the rest, whose log-odds are node scores, and a linear one beside them.

Boosted trees (Friedman 2001) with logistic loss, on the features that a forest of extremely randomised trees (Geurts,
Ernst and Wehenkel 2006) finds most important for the training superpixels. Log-odds of a linear classifier on all
features, and a blend of both, are offered beside the boosted ones: with few images a smooth classifier errs elsewhere.

The linear one is multinomial logistic regression with a ridge penalty. Its features are square roots with their sign,
which suits histograms, standardised by the training superpixels and cut off at four deviations, so that no odd
superpixel has a say far beyond the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.errors import Number, check_numbers

# --- linear ---

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

    def fit(self, features: NDArray[Any], labels: Ints) -> LinearClassifier:
        """Fit to features (n, n_features) and labels (n,)."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        rooted = _rooted(features)
        self._mean, self._scale = rooted.mean(axis=0), np.maximum(rooted.std(axis=0), 1e-6)
        self._only = int(labels[0]) if (labels == labels[0]).all() else None
        if self._only is not None:
            return self
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
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
        return np.clip((_rooted(features) - self._mean) / self._scale, -_CUT, _CUT)


def _rooted(features: NDArray[Any]) -> NDArray[np.float32]:
    values = np.asarray(features, dtype=np.float32)
    return np.sign(values) * np.sqrt(np.abs(values))


# --- boosted ---

KINDS = ("boosted", "linear", "blend")
#: Log-odds beyond this mean nothing with some ten thousand superpixels.
_CLIP = 8.0
#: Share of the boosted scores in the blend.
_SHARE = 0.25


_NUMBERS = {
    **dict.fromkeys(("rounds", "least_leaf", "n_features", "trees"), Number(least=1, whole=True)),
    "leaves": Number(least=2, whole=True),
    "bins": Number(least=2, below=256, whole=True),
    "features_a_split": Number(positive=True),
    "learning_rate": Number(positive=True),
    "l2": Number(least=0),
    "linear_penalty": Number(positive=True, below=np.inf),
}


@dataclass(frozen=True, kw_only=True)
class BoostingSettings:
    """How trees are boosted, how their features are found, and how much the linear classifier is held back."""

    rounds: int = 80  #: at most; cross-validation takes the best number up to it
    learning_rate: float = 0.15
    leaves: int = 8
    least_leaf: int = 40  #: superpixels in a leaf at least
    features_a_split: float = 0.2  #: part of the features that a split may choose from
    l2: float = 5.0
    bins: int = 64
    n_features: int = 160  #: most important features that are kept for boosting
    trees: int = 60  #: of the forest that finds them
    linear_penalty: float = 1000.0  #: half of it times the squared weights is added to the linear classifier's loss

    def __post_init__(self) -> None:
        check_numbers(_NUMBERS, vars(self))

    def __str__(self) -> str:
        return f"{self.leaves} leaves, learning rate {self.learning_rate:g}, up to {self.rounds} rounds"


class BoostedClassifiers:
    """One boosted classifier against the rest for each label, and a linear one."""

    def __init__(self, n_labels: int, settings: BoostingSettings | None = None, *, seed: int = 0) -> None:
        self.n_labels, self.settings, self.seed = n_labels, settings or BoostingSettings(), seed
        self._models: list[Any] = []
        self._linear: LinearClassifier | None = None
        self._kept: Ints = np.zeros(0, dtype=np.int64)

    def fit(
        self, features: NDArray[Any], labels: Ints, rounds: Sequence[int] | Ints | None = None
    ) -> BoostedClassifiers:
        """Fit all classifiers, each for its own number of rounds where ``rounds`` is given.

        A label that no superpixel has, or every one, has a constant score.
        """
        from joblib import Parallel, delayed
        from sklearn.ensemble import ExtraTreesClassifier

        settings = self.settings
        self._linear = LinearClassifier(self.n_labels, settings.linear_penalty).fit(features, labels)
        forest = ExtraTreesClassifier(settings.trees, min_samples_leaf=3, random_state=self.seed, n_jobs=-1)
        importance = forest.fit(features, labels).feature_importances_
        self._kept = np.sort(np.argsort(-importance, kind="stable")[: settings.n_features])
        kept = features[:, self._kept]
        numbers = [settings.rounds] * self.n_labels if rounds is None else [int(r) for r in rounds]
        # A label a thread: threads inside one tree, which is what the library offers, mostly wait for each other.
        self._models = Parallel(n_jobs=-1, prefer="threads")(
            delayed(_boosted)(kept, labels == label, settings, numbers[label], self.seed + label)
            for label in range(self.n_labels)
        )
        return self

    def scores(self, features: NDArray[Any]) -> dict[str, Floats]:
        """Log-odds (n, n_labels) of every kind of score."""
        kept = features[:, self._kept]
        columns = [
            np.full(kept.shape[0], model) if isinstance(model, float) else model.decision_function(kept)
            for model in self._models
        ]
        return kinds_of(np.stack(columns, axis=1), self.linear_scores(features))

    def linear_scores(self, features: NDArray[Any]) -> Floats:
        """Log-odds of the linear classifier, (n, n_labels)."""
        if self._linear is None:
            raise ValueError("fit must come before scores")
        return np.clip(self._linear.log_odds(features), -_CLIP, _CLIP)

    def staged_scores(self, features: NDArray[Any]) -> Floats:
        """Boosted scores after every round, (rounds, n, n_labels); all must have been fitted for all rounds."""
        kept = features[:, self._kept]
        staged = np.empty((self.settings.rounds, kept.shape[0], self.n_labels), dtype=np.float32)
        for label, model in enumerate(self._models):
            if isinstance(model, float):
                staged[:, :, label] = model
            else:
                for r, score in enumerate(model.staged_decision_function(kept)):
                    staged[r, :, label] = np.ravel(score)
        return staged.astype(np.float64)


def _boosted(features: NDArray[Any], target: Bools, settings: BoostingSettings, rounds: int, seed: int) -> Any:
    """A classifier boosted on one core; a number where there is nothing to tell apart."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    if target.all() or not target.any():
        return _CLIP if target.all() else -_CLIP
    model = HistGradientBoostingClassifier(
        learning_rate=settings.learning_rate,
        max_iter=rounds,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.least_leaf,
        max_features=settings.features_a_split,
        l2_regularization=settings.l2,
        max_bins=settings.bins,
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1, user_api="openmp"):
        return model.fit(features, target)


def kinds_of(boosted: Floats, linear: Floats) -> dict[str, Floats]:
    """Scores of every kind from boosted and linear ones."""
    boosted = np.clip(boosted, -_CLIP, _CLIP)
    return {"boosted": boosted, "linear": linear, "blend": _SHARE * boosted + (1.0 - _SHARE) * linear}


def binary_losses(scores: Floats, labels: Ints) -> Floats:
    """Mean logistic loss of each label against the rest, (..., n_labels) for scores (..., n, n_labels)."""
    sign = np.where(labels[:, None] == np.arange(scores.shape[-1]), -1.0, 1.0)
    return np.logaddexp(0.0, sign * scores).mean(axis=-2)
