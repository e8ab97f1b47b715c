"""Draws the pictures of the gallery: runs the first program of each page and saves what it draws.

``python docs/draw_gallery.py [PAGE ...]`` rewrites ``docs/img/gallery``; without names, the pictures of all pages.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # once there is a backend

plt.show = lambda: None  # the last line of every program; the figure is saved instead

DOCS = Path(__file__).parent
PAGES = sorted((DOCS / "gallery").glob("*.md"))


def program(page: Path) -> str:
    """The first program of a page."""
    found = re.search(
        r"^```(?:\{code-cell\} ipython3|python)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
    )
    assert found, page
    return found[1]


def draw(page: Path) -> None:
    """Run the program of a page in an empty folder, on a new figure."""
    plt.close("all")
    plt.figure(figsize=(4.8, 3.6))
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            exec(compile(program(page), str(page), "exec"), {})
        finally:
            os.chdir(before)


if __name__ == "__main__":
    target = DOCS / "img" / "gallery"
    target.mkdir(exist_ok=True)
    for each in PAGES:
        if each.stem in sys.argv[1:] or len(sys.argv) == 1:
            draw(each)
            plt.savefig(target / f"{each.stem}.png", dpi=110, bbox_inches="tight")
