"""Files that are either there whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: Seconds after which a draft that nobody has written to is one of a killed process.
_STALE = 3600.0


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
    draft = new_draft(path)
    try:
        with draft.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as problem:
        # A full disk names no file, and the draft's name means nothing to the caller.
        if problem.errno is None or problem.filename not in (None, str(draft)):
            raise
        raise type(problem)(problem.errno, problem.strerror, str(path)) from None
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder to be filled that becomes ``path``, missing or empty so far, at the end of the ``with`` block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = new_draft(path)
    try:
        draft.mkdir()
    except OSError as problem:  # the draft's name means nothing to the caller
        raise ValueError(f"{path} cannot be made: {problem.strerror}") from None
    try:
        yield draft
        if path.is_dir():
            path.rmdir()  # some systems rename onto no folder
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def new_draft(path: Path) -> Path:
    """A name beside ``path`` for a draft of it; those that killed processes left behind long ago are removed."""
    for entry in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.part"):
        with contextlib.suppress(OSError):  # another process was first, or the folder is read-only
            if time.time() - entry.stat().st_mtime > _STALE:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")


def write_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path``, replacing what is there in one step; missing folders are made.

    The text goes to a file beside ``path`` first, so a reader, or a crash, sees the old content or the new, never a
    part of it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        stream.write(text.encode())
