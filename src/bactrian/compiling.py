"""Compilation of kernels by Numba, and where the results are kept.

A :func:`kernel` is what Python calls: it is compiled once for all processes, and a line tells a person to wait. What
kernels call, :func:`njit`, becomes part of them. Records of many arrays are passed on as pointers (:func:`record`): by
value each array is seven arguments of every function, and takes most of the time to compile.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from threading import Lock, Timer
from time import perf_counter
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

#: Whether functions are compiled at all; ``NUMBA_DISABLE_JIT=1`` runs them as Python, for debuggers and the smallest
#: models. Then Numba, half a second of every start, is not even imported.
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
if COMPILED:
    import numba
    from numba.experimental import structref as experimental

    structref: Any = experimental
    types: Any = numba.types
    COMPILED = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]

#: Entries of arrays that a :func:`setup` goes through as Python in all, which take what loading it compiled would.
_LITTLE = 3_000
#: Seconds of compiling after which a line says what is happening, and what no compiled function takes to load.
SILENCE, LOADING = 2.0, 0.25
_waited, _said = 0.0, False  # seconds of compiling and loading, and whether a line was said
_since: float | None = None  # when what is compiled now began
_ONE_AT_A_TIME = Lock()  # as Numba compiles


def njit(**options: Any) -> Callable[[Function], Function]:
    """Numba's ``njit`` of a function that kernels call."""
    if COMPILED:
        return numba.njit(**{"nogil": True, "error_model": "numpy", **options})
    return np.errstate(all="ignore")  # as compiled code does: numbers wrap around and overflow without a word


def kernel(**options: Any) -> Callable[[Function], Function]:
    """``njit`` of a function that Python calls, kept for later; ``compiled`` is what Numba made of it."""

    def decorate(function: Any) -> Any:
        if not COMPILED:
            return njit()(function)
        compiled, ready = _kept(function, options), False

        @wraps(function)
        def call(*arguments: Any) -> Any:
            nonlocal ready
            if not ready:
                _compile(compiled, tuple(map(numba.typeof, arguments)))
                ready = True
            return compiled(*arguments)

        call.compiled = compiled  # type: ignore[attr-defined]
        return call

    return decorate


def setup(function: Function) -> Function:
    """A kernel of work on integers before all else, which is left to Python while it is little: the results are equal.

    To compile it takes a thousand times as long as a small graph does as Python.
    """
    compiled: Any = kernel(error_model="python")(function)
    if not COMPILED:
        return compiled
    plain, entries = cache(lambda: _as_python(function)), 0

    @wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal entries
        if entries < _LITTLE:
            entries += sum(argument.size for argument in arguments if isinstance(argument, np.ndarray))
        return plain()(*arguments) if entries < _LITTLE else compiled(*arguments)

    call.compiled = compiled.compiled  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _as_python(function: Any) -> Any:
    """A function that calls none that is compiled."""
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    plain = {name: _as_python(value.py_func) for name, value in named.items() if hasattr(value, "py_func")}
    return np.errstate(all="ignore")(FunctionType(function.__code__, {**function.__globals__, **plain}))


def record(fields: Any) -> Any:
    """A class that kernels make out of the fields of a named tuple: the same attributes, behind a pointer.

    Where nothing is compiled it is the named tuple itself.
    """
    if not COMPILED:
        return fields

    class Fields(types.StructRef):  # type: ignore[misc]
        def preprocess_fields(self, fields: Any) -> Any:
            return tuple((name, types.unliteral(kind)) for name, kind in fields)

    class Record(structref.StructRefProxy):  # type: ignore[misc]
        pass

    for made, name in ((Fields, f"{fields.__name__}Fields"), (Record, f"{fields.__name__}Record")):
        made.__name__ = made.__qualname__ = name  # by which what is kept of kernels knows it
        globals()[name] = made
    structref.register(Fields)
    structref.define_proxy(Record, Fields, fields._fields)
    return Record


def seconds_compiling() -> float:
    """Seconds that this process has spent on compiling so far, and on loading what was compiled."""
    since = _since
    return _waited + (0.0 if since is None else perf_counter() - since)


def _compile(compiled: Any, kinds: tuple[Any, ...]) -> None:
    """Compile a function, or load it; says once that this takes long, where somebody watches."""
    global _waited, _since
    with _ONE_AT_A_TIME:
        _since = perf_counter()
        timer = Timer(max(LOADING, SILENCE - _waited), _say, [compiled])
        timer.daemon = True
        timer.start()
        try:
            compiled.compile(kinds)
        except (AttributeError, ImportError):
            # An upgrade leaves the index of the version before, and Numba reads it whole before it sees that it is out
            # of date, with types in it that this version may have under another name.
            code = compiled.py_func.__code__
            old = list(Path(compiled.stats.cache_path).glob(f"*{code.co_name}-{code.co_firstlineno}.*.nbi"))
            if compiled.signatures or not old:
                raise
            for path in old:
                path.unlink()
            compiled.compile(kinds)
        finally:
            timer.cancel()
            _waited, _since = seconds_compiling(), None


def _say(compiled: Any) -> None:
    global _said
    if not (_said or compiled.signatures) and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        _said = True
        sys.stderr.write(
            "bactrian: compiling for this machine, which takes up to a minute and is kept for later runs; "
            "bactrian warm-up does it all at once\n"
        )


def _kept(function: Any, options: dict[str, Any]) -> Any:
    """A function that is compiled once for all processes, beside its source or in the user's cache folder.

    A container may let its user write to neither: then in a folder of our own, or in none.
    """
    try:
        return njit(**{"cache": True, **options})(function)
    except RuntimeError as problem:
        if "no locator available" not in str(problem):
            raise
    numba.config.CACHE_DIR = folder = _own_folder()  # type: ignore[attr-defined]
    return njit(**{**options, "cache": folder != ""})(function)


@cache
def _own_folder() -> str:
    """A folder to which nobody else can write, since what is kept there is run later; says once which, "" for none."""
    user, usable = os.getuid() if hasattr(os, "getuid") else 0, False  # Windows says 0 for every file, too
    path = Path(tempfile.gettempdir(), f"bactrian-{user}")
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        mine = found.st_uid == user and (os.name == "nt" or not stat.S_IMODE(found.st_mode) & 0o022)
        usable = stat.S_ISDIR(found.st_mode) and mine and os.access(path, os.W_OK)
    kept = f"are kept in {path}" if usable else "are compiled anew by every process"
    warnings.warn(
        f"bactrian can write neither to its own folder nor to the user's cache folder: compiled functions {kept}; set "
        "NUMBA_CACHE_DIR to a folder of your choice",
        stacklevel=2,
    )
    return str(path) if usable else ""
