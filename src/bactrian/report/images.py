"""Pictures as data addresses, so that a page needs no other file."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray

from bactrian.runs.exhibits import Picture


def data_address(picture: Picture) -> str:
    """A picture as a PNG in a ``data:`` address."""
    content = picture.pixels if isinstance(picture.pixels, bytes) else _png(picture.pixels)
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="png", optimize=True)
    return stream.getvalue()
