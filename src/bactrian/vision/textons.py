"""Textons: a vocabulary of filter responses, learned by k-means on training images only.

The bank is that of Winn, Criminisi and Minka (ICCV 2005): Gaussians on the three channels of Lab, Laplacians of
Gaussians and first derivatives on the lightness.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from bactrian.vision.superpixels import checked_image

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_GAUSSIANS = (1.0, 2.0, 4.0)
_LAPLACIANS = (1.0, 2.0, 4.0, 8.0)
_DERIVATIVES = (2.0, 4.0)
N_FILTERS = 3 * len(_GAUSSIANS) + len(_LAPLACIANS) + 2 * len(_DERIVATIVES)
#: Chroma varies far less than lightness; scaled so that both count.
_CHROMA = 2.0


def lab_of(image: Any) -> Floats:
    """CIE Lab of an image, (h, w, 3)."""
    from skimage.color import rgb2lab

    lab: Floats = rgb2lab(checked_image(image))
    return lab


def filter_responses(lab: Floats) -> Floats:
    """Responses of the 17 filters at every pixel, (h, w, 17); derivatives are scaled by their width."""
    light = lab[..., 0]
    maps = [
        ndimage.gaussian_filter(lab[..., channel], sigma) * (1.0 if channel == 0 else _CHROMA)
        for sigma in _GAUSSIANS
        for channel in range(3)
    ]
    # The truncated kernel's second derivatives do not quite add up to 0: a constant is taken off first.
    centred = light - light.mean()
    maps += [sigma**2 * ndimage.gaussian_laplace(centred, sigma) for sigma in _LAPLACIANS]
    maps += [
        sigma * ndimage.gaussian_filter(light, sigma, order=order)
        for sigma in _DERIVATIVES
        for order in ((0, 1), (1, 0))
    ]
    return np.stack(maps, axis=-1)


@dataclass(frozen=True, eq=False)
class TextonVocabulary:
    """Centres of clusters of whitened filter responses, and of Lab colours."""

    mean: Floats  #: (17,) of responses
    scale: Floats  #: (17,)
    textons: Floats  #: (n_textons, 17) centres of scaled responses
    colours: Floats  #: (n_colours, 3) centres of Lab colours

    @staticmethod
    def learn(
        images: Iterable[Any], *, n_textons: int = 64, n_colours: int = 32, pixels_an_image: int = 1500, seed: int = 0
    ) -> TextonVocabulary:
        """Learn a vocabulary from ``images``, which must be training images."""
        from sklearn.cluster import MiniBatchKMeans

        for name, number in (("n_textons", n_textons), ("n_colours", n_colours), ("pixels_an_image", pixels_an_image)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, found {number}")
        rng = np.random.default_rng(seed)
        drawn_responses, drawn_colours = [], []
        for image in images:
            lab = lab_of(image)
            responses = filter_responses(lab).reshape(-1, N_FILTERS)
            drawn = rng.choice(responses.shape[0], min(pixels_an_image, responses.shape[0]), replace=False)
            drawn_responses.append(responses[drawn])
            drawn_colours.append(lab.reshape(-1, 3)[drawn])
        if not drawn_responses:
            raise ValueError("images is empty; a vocabulary needs at least one training image")
        responses, colours = np.concatenate(drawn_responses), np.concatenate(drawn_colours)
        mean, scale = responses.mean(axis=0), np.maximum(responses.std(axis=0), 1e-6)

        def centres(points: Floats, number: int) -> Floats:
            number = min(number, np.unique(points, axis=0).shape[0])
            found = MiniBatchKMeans(number, n_init=3, batch_size=2048, random_state=seed).fit(points).cluster_centers_
            return np.asarray(found, dtype=np.float64)

        return TextonVocabulary(
            mean, scale, centres((responses - mean) / scale, n_textons), centres(colours, n_colours)
        )

    def words(self, lab: Floats, responses: Floats) -> tuple[Integers, Integers]:
        """Nearest texton and nearest colour of every pixel, (h, w) each."""
        flat = (responses.reshape(-1, N_FILTERS) - self.mean) / self.scale
        shape = lab.shape[:2]
        return nearest(flat, self.textons).reshape(shape), nearest(lab.reshape(-1, 3), self.colours).reshape(shape)


def nearest(points: Floats, centres: Floats) -> Integers:
    """Number of the nearest centre of each point."""
    distance = (centres**2).sum(axis=1) - 2.0 * points @ centres.T
    chosen: Integers = distance.argmin(axis=1)
    return chosen
