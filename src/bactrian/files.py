"""Files that are either there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to be written that takes the place of ``path`` in one step, at the end of the ``with`` block.

    What is written goes to a file beside ``path`` first, so a reader, or a crash, sees the old content or the new,
    never a part of it; after an exception the old content stays.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder")
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        stream = draft.open("xb")
    except OSError as problem:  # the draft's name means nothing to whoever named the path
        raise type(problem)(problem.errno, problem.strerror, str(path)) from None
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path``, replacing what is there in one step; missing folders are made.

    The text goes to a file beside ``path`` first, so a reader, or a crash, sees the old content or the new, never a
    part of it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        stream.write(text.encode())
