"""The Corel images of the paper's Table 3: 100 photographs in seven classes, and how they are split.

Which 80 images and which three splits the paper took is not published; a seed draws them here.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bactrian.vision.cache import checksum

Integers = NDArray[np.int64]

CLASSES = ("rhino or hippo", "polar bear", "water", "snow", "vegetation", "ground", "sky")


@dataclass(frozen=True, eq=False)
class CorelImages:
    """Images and the class of every pixel."""

    images: NDArray[np.uint8]  #: (n, h, w, 3)
    labels: NDArray[np.int8]  #: (n, h, w)
    checksum: str


@dataclass(frozen=True, eq=False)
class Split:
    """Numbers of the training and test images, in order."""

    train: Integers
    test: Integers


def corel_folder(given: str | Path | None = None) -> Path:
    """The folder of ``corel.npz``: ``given``, or else the folder BACTRIAN_DATA names, or ``corel`` in it."""
    roots = [Path(given)] if given is not None else []
    if given is None and os.environ.get("BACTRIAN_DATA"):
        roots.append(Path(os.environ["BACTRIAN_DATA"]))
    for root in roots:
        for folder in (root, root / "corel"):
            if (folder / "corel.npz").is_file():
                return folder
    looked = f"{roots[0]} and {roots[0] / 'corel'} have none" if roots else "no folder was given"
    raise ValueError(f"corel.npz is needed and {looked}; name its folder, or set BACTRIAN_DATA to the folder above it")


def read_corel(folder: str | Path) -> CorelImages:
    """Read ``corel.npz``: ``images`` (n, h, w, 3) uint8 and ``labels`` (n, h, w) integers from 0 to 6."""
    path = Path(folder) / "corel.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            images, labels = stored["images"], stored["labels"]
    except KeyError as missing:
        raise ValueError(f"{path} must hold the arrays images and labels: {missing}") from missing
    except (zipfile.BadZipFile, ValueError, EOFError) as damage:
        raise ValueError(f"{path} is no NumPy archive of plain arrays: {damage}") from damage
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"{path}: images must be uint8 of shape (n, h, w, 3), found {images.dtype} {images.shape}")
    if labels.shape != images.shape[:3] or labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: labels must be integers of shape {images.shape[:3]}, found {labels.shape}")
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise ValueError(f"{path}: labels must lie between 0 and {len(CLASSES) - 1}")
    return CorelImages(images, labels.astype(np.int8), checksum(images, labels.astype(np.int8)))


def draw_splits(
    n_images: int, *, n_drawn: int = 80, n_train: int = 40, n_splits: int = 3, seed: int = 0
) -> tuple[Split, ...]:
    """Draw ``n_drawn`` of the images once, and split them at random ``n_splits`` times."""
    if not 1 <= n_train < n_drawn <= n_images:
        raise ValueError(
            f"n_train must be at least 1 and below n_drawn, and n_drawn at most the {n_images} images, "
            f"found n_train = {n_train} and n_drawn = {n_drawn}"
        )
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.choice(n_images, n_drawn, replace=False))
    orders = [rng.permutation(n_drawn) for _ in range(n_splits)]
    return tuple(Split(np.sort(drawn[order[:n_train]]), np.sort(drawn[order[n_train:]])) for order in orders)
