"""How far one method's accuracy is above another's on the same images, and what of it may be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """Mean over the splits of a difference in accuracy, with the bounds between which 95 % of resamples lie."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100.0 * self.mean:+.2f} ({100.0 * self.low:+.1f} to {100.0 * self.high:+.1f})"


def paired_difference(
    gained: Sequence[Integers],
    sizes: Sequence[Integers],
    images: Sequence[Integers],
    *,
    n_resamples: int = 4000,
    seed: int = 0,
) -> Difference:
    """Difference and its interval by a bootstrap over images (Efron and Tibshirani 1993, chapter 13).

    Superpixels of an image are right or wrong together, and an image may be in several splits: so whole images are
    drawn, each with all its appearances.

    Parameters
    ----------
    gained, sizes, images : lists with an array per split
        Superpixels that the one method labels rightly minus those of the other; superpixels; and the number of each
        test image.
    n_resamples, seed : int
        How often images are drawn anew, and the seed.
    """
    numbers, places = np.unique(np.concatenate(images), return_inverse=True)
    places_of = np.split(places, np.cumsum([len(part) for part in images])[:-1])
    draws = np.random.default_rng(seed).multinomial(
        len(numbers), np.full(len(numbers), 1.0 / len(numbers)), n_resamples
    )
    # The first is the sample itself.
    times = np.concatenate([np.ones((1, len(numbers)), dtype=draws.dtype), draws])
    total = np.zeros(len(times))
    for gain, size, place in zip(gained, sizes, places_of, strict=True):
        chosen = times[:, place]
        # A resample may hold no image of a split: it then says nothing of it.
        total += (chosen @ gain) / np.maximum(chosen @ size, 1)
    means = total / len(gained)
    low, high = np.quantile(means[1:], [0.025, 0.975])
    return Difference(float(means[0]), float(low), float(high))
