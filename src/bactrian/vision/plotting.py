"""Pictures of labels, side by side with what they are of. Needs matplotlib (the extra ``report``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_labels(
    labels: Any, picture: Any = None, *, truth: Any = None, marginals: Any = None, layer: int | None = None
) -> Figure:
    """Draw labels in colours, next to the picture, the true labels, uncertainty and errors.

    Parameters
    ----------
    labels : (h, w) or (depth, h, w)
        Labels of pixels or voxels, as :meth:`bactrian.GridCRF.predict` gives them.
    picture : (h, w), (h, w, 3) or (h, w, d), optional
        What they are of: grey values, colours, or features, of which the first is drawn. Volumes have another axis.
    truth : as labels, optional
        True labels; -1, or an empty string, where they are not known.
    marginals : (h, w, n_classes), optional
        Probabilities of labels, as :meth:`bactrian.GridCRF.predict_marginals` gives them; drawn is 1 - the largest.
    layer : int, optional
        Which layer of a volume to draw; the middle one where left out.

    Returns
    -------
    matplotlib.figure.Figure
        A panel for each of these, and a key of the labels. Notebooks show it; ``savefig`` writes it.
    """
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    found = np.asarray(labels)
    if found.ndim not in (2, 3):
        raise ValueError(f"labels must have shape (height, width) or (depth, height, width), found {found.shape}")
    given = {"picture": picture, "truth": truth, "marginals": marginals}
    arrays = {name: np.asarray(value) for name, value in given.items() if value is not None}
    for name, array in arrays.items():
        if array.shape[: found.ndim] != found.shape:
            raise ValueError(f"{name} must cover the labels, of shape {found.shape}, found shape {array.shape}")
    if found.ndim == 3:
        layer = found.shape[0] // 2 if layer is None else layer
        found, arrays = found[layer], {name: array[layer] for name, array in arrays.items()}
    true = arrays.get("truth")
    listed = [found, *([] if true is None else [true])]
    classes = [name for name in np.unique(np.concatenate([part.ravel() for part in listed])).tolist() if _known(name)]
    table = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    colours = ListedColormap([table(k % table.N) for k in range(len(classes))])
    shades = {"cmap": colours, "norm": BoundaryNorm(np.arange(max(1, len(classes)) + 1) - 0.5, max(1, len(classes)))}

    panels: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {}
    if "picture" in arrays:
        panels["picture"] = _drawable(arrays["picture"]), {"cmap": "gray"}
    if true is not None:
        panels["truth"] = _codes(true, classes), shades
    panels["labels"] = _codes(found, classes), shades
    if "marginals" in arrays:
        panels["unsure"] = 1.0 - arrays["marginals"].max(axis=-1), {"cmap": "magma", "vmin": 0.0}
    if true is not None:
        missing = ~np.vectorize(_known, otypes=[bool])(true)
        panels["wrong"] = np.ma.masked_where(missing, found != true), {"cmap": "gray_r", "vmin": 0, "vmax": 1}
    height = max(1.6, 3.0 * found.shape[0] / found.shape[1])
    figure = Figure(figsize=(3.0 * len(panels), height + 0.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, (values, options)) in zip(axes, panels.items(), strict=True):
        axis.imshow(values, interpolation="nearest", **options)
        axis.set_title(title)
        axis.axis("off")
    keys = [Patch(color=colours(k), label=str(name)) for k, name in enumerate(classes)]
    figure.legend(handles=keys, loc="outside lower center", ncols=min(8, max(1, len(keys))))
    return figure


def _known(label: Any) -> bool:
    return bool(label not in ("", -1) or label is True or label is False)


def _codes(labels: NDArray[Any], classes: list[Any]) -> Any:
    """Positions among the classes, masked where a label is not known."""
    if not classes:
        return np.ma.masked_all(labels.shape, dtype=np.int64)
    codes = np.searchsorted(np.array(classes), labels).clip(max=len(classes) - 1)
    return np.ma.masked_where(np.array(classes)[codes] != labels, codes)


def _drawable(picture: NDArray[Any]) -> NDArray[Any]:
    """Grey values, or colours from 0 to 1; of other features the first."""
    if picture.ndim == 3 and picture.shape[-1] in (3, 4):
        low, high = float(picture.min()), float(picture.max())
        if picture.dtype == np.uint8 or (low >= 0.0 and high <= 1.0):
            return picture
        return np.asarray((picture - low) / max(high - low, 1e-300))
    return picture[..., 0] if picture.ndim == 3 else picture
