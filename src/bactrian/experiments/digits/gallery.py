"""Pictures of restored digits: truth, noise, and what every learner makes of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.runs.comparison import Gallery, Picture, Sheet

#: Colours by (truth, restored): paper and ink where right, orange where ink was invented, blue where it was lost.
_COLOURS = np.array([[[250, 250, 247], [226, 109, 20]], [[86, 152, 214], [28, 30, 36]]], dtype=np.uint8)


def gallery(
    truth: Ints,
    digits: Ints,
    noisy: Floats,
    marginals: Mapping[str, Floats],
    n_shown: int = 10,
) -> Gallery:
    """A gallery of test images.

    Parameters
    ----------
    truth, noisy : (n, height, width)
        Binary images, and the noisy intensities given to the learners.
    digits : (n,)
        What the images show; the first image of each digit is shown, then further ones up to ``n_shown``.
    marginals : mapping of names to (n * height * width, 2)
        Marginals of every learner.
    """
    _, first = np.unique(digits, return_index=True)
    rest = np.setdiff1d(np.arange(len(digits)), first)
    shown = np.concatenate([first, rest])[:n_shown]
    probability = {name: table[:, 1].reshape(truth.shape)[shown] for name, table in marginals.items()}
    truth, noisy, digits = truth[shown], noisy[shown], digits[shown]

    restored = [
        (
            Picture(_COLOURS[truth[k], truth[k]], f"digit {digits[k]}, truth"),
            Picture(_grey(noisy[k]), f"digit {digits[k]}, noisy"),
            *(_restored(name, truth[k], images[k]) for name, images in probability.items()),
        )
        for k in range(len(shown))
    ]
    believed = [
        (*restored[k][:2], *(Picture(_grey(images[k]), f"{name}, marginals") for name, images in probability.items()))
        for k in range(len(shown))
    ]
    doubt = [
        (*restored[k][:2], *(_uncertain(name, images[k]) for name, images in probability.items()))
        for k in range(len(shown))
    ]
    return Gallery(
        title="Restored digits",
        columns=("truth", "noisy input", *marginals),
        row_labels=tuple(str(digit) for digit in digits),
        sheets=(
            Sheet(
                "restored",
                "The more probable value of every pixel. Orange: on, but should be off. Blue: off, but should be on.",
                tuple(restored),
            ),
            Sheet("marginals", "The probability that a pixel is on: black is 1, white is 0.", tuple(believed)),
            Sheet("uncertainty", "The entropy of every pixel: white is certain, purple is a coin toss.", tuple(doubt)),
        ),
    )


def _restored(name: str, truth: Ints, probability: Floats) -> Picture:
    decided = (probability > 0.5).astype(np.int64)
    wrong = int((decided != truth).sum())
    return Picture(_COLOURS[truth, decided], f"{name}: {wrong} of {truth.size} pixels wrong")


def _uncertain(name: str, probability: Floats) -> Picture:
    inside = np.clip(probability, 1e-12, 1.0 - 1e-12)
    bits = -(inside * np.log2(inside) + (1.0 - inside) * np.log2(1.0 - inside))
    paper, purple = np.array([250.0, 250.0, 247.0]), np.array([98.0, 54.0, 150.0])
    pixels = paper + bits[..., None] * (purple - paper)
    return Picture(pixels.round().astype(np.uint8), f"{name}: {bits.sum():.1f} bits in doubt")


def _grey(intensity: Floats) -> NDArray[np.uint8]:
    """1 is black, 0 is white; what lies outside is cut off."""
    return (255.0 - 255.0 * np.clip(intensity, 0.0, 1.0)).round().astype(np.uint8)
