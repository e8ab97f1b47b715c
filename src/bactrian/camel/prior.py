"""Priors on the weights: Gaussian (L2), Laplace (L1) and both (elastic net).

They stand in for the moment constraints, as in Eq. 4 of the paper (whose norm must be squared). With gap = f_hat - E[f]
the primal penalties are (sigma^2 / 2) |gap|^2 for the Gaussian, the box |gap| <= c for L1, and (sigma^2 / 2) sum
max(|gap| - c, 0)^2 for the elastic net.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """``variance`` of a Gaussian prior (None: no such prior) and coefficient ``l1`` of the absolute weights."""

    variance: float | None = 10.0
    l1: float = 0.0

    def __post_init__(self) -> None:
        if self.variance is not None and not (np.isfinite(self.variance) and self.variance > 0.0):
            raise ValueError(f"prior_variance must be positive, or None for no prior, found {self.variance}")
        if not (np.isfinite(self.l1) and self.l1 >= 0.0):
            raise ValueError(f"l1 must not be negative, found {self.l1}")

    @property
    def precision(self) -> float:
        """1 / sigma^2; 0 without a Gaussian prior."""
        return 0.0 if self.variance is None else 1.0 / self.variance

    @property
    def is_flat(self) -> bool:
        """Whether there is no prior at all."""
        return self.variance is None and self.l1 == 0.0

    def value(self, weights: Floats) -> float:
        """The whole penalty on the weights."""
        return 0.5 * self.precision * float(weights @ weights) + self.l1 * float(np.abs(weights).sum())


def pseudo_gradient(weights: Floats, gradient: Floats, l1: float | Floats) -> Floats:
    """Steepest-descent subgradient of smooth + l1 |w| (Andrew and Gao 2007); zero where |gradient| <= l1 at 0."""
    shrunk = np.sign(gradient) * np.maximum(np.abs(gradient) - l1, 0.0)
    return np.where(weights != 0.0, gradient + l1 * np.sign(weights), shrunk)
