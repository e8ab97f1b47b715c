"""Files that are either there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from bactrian.model.files import atomic_file


def write_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path``, replacing what is there in one step; missing folders are made.

    The text goes to a file beside ``path`` first, so a reader, or a crash, sees the old content or the new, never a
    part of it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        stream.write(text.encode())
