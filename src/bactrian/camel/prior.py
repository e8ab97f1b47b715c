"""Priors on the weights: Gaussian (L2), Laplace (L1) and both (elastic net).

They stand in for the moment constraints, as in Eq. 4 of the paper (whose norm must be squared). With gap = f_hat - E[f]
the primal penalties are (sigma^2 / 2) |gap|^2 for the Gaussian, the box |gap| <= c for L1, and (sigma^2 / 2) sum
max(|gap| - c, 0)^2 for the elastic net.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Floats, real_numbers
from bactrian.errors import ArgumentError, ArgumentTypeError, check_count

_NUMBERS = int | float | np.integer | np.floating


@dataclass(frozen=True, eq=False)
class Prior:
    """``variance`` of a Gaussian prior, one for all weights or one each, and coefficient ``l1`` of absolute weights.

    A weight of infinite variance has no Gaussian prior; with None, no weight has one.
    """

    variance: float | Floats | None = 10.0
    l1: float = 0.0

    def __post_init__(self) -> None:
        variance = self.variance
        if isinstance(variance, np.ndarray):
            wrong = np.flatnonzero(~(variance > 0.0))  # NaN too
            if wrong.size:
                found = f"weight {wrong[0]} has {variance.flat[wrong[0]]}"
                raise ArgumentError("prior_variance", f"must be positive, infinity for no prior: {found}")
        elif variance is not None and not (np.isfinite(variance) and variance > 0.0):
            raise ArgumentError("prior_variance", f"must be positive, or None for no prior, found {variance}")
        if not (np.isfinite(self.l1) and self.l1 >= 0.0):
            raise ArgumentError("l1", f"must not be negative, found {self.l1}")

    @staticmethod
    def of(prior_variance: Any, l1: Any) -> Prior:
        """The prior that ``prior_variance``, None, a number or one per weight, describes."""
        if isinstance(l1, bool) or not isinstance(l1, _NUMBERS):
            raise ArgumentTypeError("l1", f"must be a number, found {l1!r}")
        if prior_variance is None or (isinstance(prior_variance, _NUMBERS) and not isinstance(prior_variance, bool)):
            return Prior(None if prior_variance is None else float(prior_variance), float(l1))
        if isinstance(prior_variance, str | bytes) or not isinstance(prior_variance, Sequence | np.ndarray):
            expected = "must be a number, None, or an array with one per weight"
            raise ArgumentTypeError("prior_variance", f"{expected}, found {prior_variance!r}")
        return Prior(real_numbers(prior_variance, "prior_variance").copy(), float(l1))

    def checked_for(self, n_weights: int) -> Prior:
        """The same prior; refuses variances of another number of weights."""
        if isinstance(self.variance, np.ndarray):
            check_count("prior_variance", self.variance.shape, (n_weights,), "variance per weight")
        return self

    def with_noise(self, variances: Floats) -> Prior:
        """The prior that also allows for noise of these variances in the observed moments.

        Noise of variance s^2 turns the constraint on a moment into a penalty gap^2 / (2 s^2), whose dual is
        (s^2 / 2) w^2: precisions add up.
        """
        if not variances.any():
            return self
        with np.errstate(divide="ignore"):
            return Prior(1.0 / (self.precision + variances), self.l1)

    @property
    def precision(self) -> float | Floats:
        """1 / sigma^2, one or one per weight; 0 without a Gaussian prior."""
        return 0.0 if self.variance is None else 1.0 / self.variance

    @property
    def curvature(self) -> float:
        """The least precision of a weight: what the prior adds to the curvature in every direction."""
        return float(np.min(self.precision)) if np.size(self.precision) else 0.0

    @property
    def is_flat(self) -> bool:
        """Whether there is no prior at all."""
        return not np.any(self.precision) and self.l1 == 0.0

    @property
    def leaves_free(self) -> bool:
        """Whether some weight has no prior."""
        return self.curvature == 0.0 and self.l1 == 0.0
