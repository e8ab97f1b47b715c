"""Compilation of kernels, and where the results are kept.

Numba keeps compiled functions beside their sources or in the user's cache folder. A container may let its user write to
neither; then a folder of our own takes their place, or nothing does.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from threading import Timer
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

#: Whether functions are compiled at all; ``NUMBA_DISABLE_JIT=1`` runs them as Python, for debuggers and the smallest
#: models. Then Numba, half a second of every start, is not even imported.
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
types: Any = None  #: Numba's types, and what it builds code with
cgutils: Any = None
if COMPILED:
    import numba
    from numba.core import event
    from numba.extending import intrinsic as numba_intrinsic

    types, cgutils = numba.types, import_module("numba.core.cgutils")
    config: Any = numba.config  # its attributes are made when it is imported
    COMPILED = not config.DISABLE_JIT

#: Seconds of compiling after which a line says what is happening.
_SILENT = 3.0


def njit(**options: Any) -> Callable[[Function], Function]:
    """Numba's ``njit``, whatever can be written to."""

    def decorate(function: Any) -> Any:
        if not COMPILED:
            # As compiled code does: integers wrap around, and numbers overflow to infinity without a word.
            return np.errstate(all="ignore")(function)
        try:
            return _forgiving(numba.njit(**options)(function))
        except RuntimeError as problem:
            if "no locator available" not in str(problem):
                raise
        folder = _own_folder()
        if folder is None:
            return numba.njit(**{**options, "cache": False})(function)
        before = config.CACHE_DIR
        config.CACHE_DIR = folder  # read when a function is decorated
        try:
            return _forgiving(numba.njit(**options)(function))
        finally:
            config.CACHE_DIR = before

    return decorate


def _forgiving(compiled: Any) -> Any:
    """Take an index of compiled functions that cannot be read for an empty one.

    An upgrade leaves the index of the version before, and Numba reads it whole before it sees that it is out of date,
    with types in it that this version may have under another name.
    """
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    if file is not None and load is not None:

        def load_index() -> Any:
            try:
                return load()
            except (AttributeError, ImportError):
                return {}

        file._load_index = load_index
    return compiled


def _announce() -> None:
    """Tell a person at a terminal or notebook, once, where kernels take longer to compile than one waits in silence."""

    class Compiling(event.Listener):
        depth, spent, begun = 0, 0.0, 0.0
        timer: Timer | None = None

        def on_start(self, _: Any) -> None:
            self.depth += 1
            if self.depth == 1 and self.spent < _SILENT:
                self.begun = perf_counter()
                self.timer = Timer(_SILENT - self.spent, self.say)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, _: Any) -> None:
            self.depth -= 1
            if self.depth == 0 and self.timer is not None:
                self.timer.cancel()
                self.spent += perf_counter() - self.begun
                self.timer = None

        def say(self) -> None:
            self.spent = _SILENT
            if sys.stderr.isatty() or "ipykernel" in sys.modules:
                sys.stderr.write(
                    "bactrian: compiling for this machine, which takes up to a minute and is kept for later runs; "
                    "bactrian warm-up does it all at once\n"
                )

    event.register("numba:compile", Compiling())  # type: ignore[no-untyped-call]


if COMPILED:
    _announce()


def intrinsic(plain: Any) -> Callable[[Any], Any]:
    """Numba's ``intrinsic``; ``plain`` does the same in Python, where nothing is compiled."""
    return numba_intrinsic if COMPILED else lambda _: plain


@cache
def _own_folder() -> str | None:
    """A folder for compiled functions that nobody else can write to, or None; says once which it is."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"bactrian-{os.getuid() if hasattr(os, 'getuid') else 'cache'}")
        os.makedirs(path, mode=0o700, exist_ok=True)
        # What is kept there is run later: nobody else may have made the folder, or be able to write to it.
        found = os.lstat(path)
        mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022)
        usable = stat.S_ISDIR(found.st_mode) and mine and os.access(path, os.W_OK)
    except OSError:
        path, usable = "", False
    kept = f"are kept in {path}" if usable else "are compiled anew by every process"
    warnings.warn(
        f"bactrian can write neither to its own folder nor to a cache of the user's: compiled functions {kept}; set "
        "NUMBA_CACHE_DIR to a folder of your choice",
        stacklevel=2,
    )
    return path if usable else None
