"""Textons: vocabularies of filter responses, colours and structures, learned by k-means on training images only.

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

from bactrian.vision.structure import N_DESCRIPTOR, descriptors, enlarged
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
    """Centres of clusters of whitened filter responses, of Lab colours, and of descriptors of structure."""

    mean: Floats  #: (17,) of responses
    scale: Floats  #: (17,)
    textons: Floats  #: (n_textons, 17) centres of scaled responses
    colours: Floats  #: (n_colours, 3) centres of Lab colours
    structures: Floats  #: (n_structures, 128) centres of descriptors

    @staticmethod
    def learn(
        images: Iterable[Any],
        *,
        n_textons: int = 64,
        n_colours: int = 32,
        n_structures: int = 100,
        pixels_an_image: int = 1500,
        seed: int = 0,
    ) -> TextonVocabulary:
        """Learn a vocabulary from ``images``, which must be training images."""
        numbers = {"n_textons": n_textons, "n_colours": n_colours, "n_structures": n_structures}
        for name, number in {**numbers, "pixels_an_image": pixels_an_image}.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, found {number}")
        rng = np.random.default_rng(seed)
        drawn_responses, drawn_colours, drawn_structures = [], [], []
        for image in images:
            lab = lab_of(image)
            responses = filter_responses(lab).reshape(-1, N_FILTERS)
            drawn = rng.choice(responses.shape[0], min(pixels_an_image, responses.shape[0]), replace=False)
            drawn_responses.append(responses[drawn])
            drawn_colours.append(lab.reshape(-1, 3)[drawn])
            found = descriptors(lab[..., 0]).reshape(-1, N_DESCRIPTOR)
            drawn_structures.append(
                found[rng.choice(len(found), min(pixels_an_image // 2 + 1, len(found)), replace=False)]
            )
        if not drawn_responses:
            raise ValueError("images is empty; a vocabulary needs at least one training image")
        responses = np.concatenate(drawn_responses)
        mean, scale = responses.mean(axis=0), np.maximum(responses.std(axis=0), 1e-6)
        return TextonVocabulary(
            mean,
            scale,
            _centres((responses - mean) / scale, n_textons, seed),
            _centres(np.concatenate(drawn_colours), n_colours, seed),
            _centres(np.concatenate(drawn_structures), n_structures, seed, n_starts=1),
        )

    def words(self, lab: Floats, responses: Floats) -> tuple[Integers, Integers]:
        """Nearest texton and nearest colour of every pixel, (h, w) each."""
        flat = (responses.reshape(-1, N_FILTERS) - self.mean) / self.scale
        shape = lab.shape[:2]
        return nearest(flat, self.textons).reshape(shape), nearest(lab.reshape(-1, 3), self.colours).reshape(shape)

    def structure_words(self, light: Floats) -> Integers:
        """Nearest structure of every pixel, (h, w)."""
        found = descriptors(light)
        codes = nearest(found.reshape(-1, N_DESCRIPTOR), self.structures).reshape(found.shape[:2])
        return enlarged(codes, (light.shape[0], light.shape[1]))


def _centres(points: Floats, number: int, seed: int, n_starts: int = 3) -> Floats:
    from sklearn.cluster import MiniBatchKMeans

    number = min(number, np.unique(points, axis=0).shape[0])
    found = MiniBatchKMeans(number, n_init=n_starts, batch_size=2048, random_state=seed).fit(points).cluster_centers_
    return np.asarray(found, dtype=np.float64)


def nearest(points: Floats, centres: Floats) -> Integers:
    """Number of the nearest centre of each point."""
    distance = (centres**2).sum(axis=1) - 2.0 * points @ centres.T
    chosen: Integers = distance.argmin(axis=1)
    return chosen
