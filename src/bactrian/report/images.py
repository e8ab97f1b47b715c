"""Pictures as data addresses, so that a page needs no other file."""

from __future__ import annotations

import base64
import io

from PIL import Image

from bactrian.experiments.comparison import Picture


def data_address(picture: Picture) -> str:
    """A picture as a PNG in a ``data:`` address."""
    stream = io.BytesIO()
    Image.fromarray(picture.pixels).save(stream, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
