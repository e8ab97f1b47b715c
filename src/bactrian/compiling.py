"""Compilation of kernels, what it leaves out, and where the results are kept.

Half of what Numba does for a function that other functions call is for Python alone: code to call it from Python and
from C, machine code of its own, a file of its own. A function that a kernel calls gets none of that
(:func:`_for_kernels`), named tuples are passed as pointers (:class:`_Pointer`), code is optimised once, with the kernel
that takes it in (:class:`_Whole`), and cycles of garbage are not looked for meanwhile. That takes two thirds off the
first fit of an estimator.

Numba keeps compiled functions beside their sources or in the user's cache folder. A container may let its user write to
neither; then a folder of our own takes their place, or nothing does.
"""

from __future__ import annotations

import gc
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from threading import Timer
from time import perf_counter
from types import FunctionType
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
    from numba.core import codegen, compiler, event
    from numba.extending import intrinsic as numba_intrinsic

    types, cgutils = numba.types, import_module("numba.core.cgutils")
    extending: Any = import_module("numba.extending")
    borrowed: Any = import_module("numba.core.imputils").impl_ret_borrowed
    config: Any = numba.config  # its attributes are made when it is imported
    COMPILED = not config.DISABLE_JIT
#: The first Numba that was not tried with :func:`_for_kernels`, which builds on what Numba does not promise to keep.
_UNTRIED = (0, 69)
#: Whether to build on it; without, all works, and takes longer to compile.
_LEAN = COMPILED and numba.version_info[:2] < _UNTRIED

#: Entries of arrays that a :func:`setup` goes through as Python in all, which take what loading it compiled would.
_LITTLE = 3_000
#: Seconds of compiling after which a line says what is happening.
SILENCE = 2.0


def njit(**options: Any) -> Callable[[Function], Function]:
    """Numba's ``njit``, whatever can be written to."""

    def decorate(function: Any) -> Any:
        if not COMPILED:
            # As compiled code does: integers wrap around, and numbers overflow to infinity without a word.
            return np.errstate(all="ignore")(function)
        # Nobody calls kernels from C.
        lean = {"no_cfunc_wrapper": True, "pipeline_class": _Kernel} if _LEAN else {}
        return _for_kernels(_kept(function, {**options, **lean}), options)

    return decorate


def inner(*, allocates: bool = False, **options: Any) -> Callable[[Function], Function]:
    """``njit`` of a function that kernels call.

    Unless it ``allocates`` or returns arrays, it counts no references to those that it is given, which its caller
    holds: to count them for a tuple of many arrays takes longer than the arithmetic of a small star.
    """
    return njit(**{"nogil": True, "error_model": "numpy", "_nrt": allocates, "forceinline": False, **options})


def setup(function: Function) -> Function:
    """``njit`` of work on integers before all else, which is left to Python while it is little: the results are equal.

    To compile it takes a thousand times as long as a small graph does as Python.
    """
    kernel: Any = njit(cache=True, nogil=True)(function)
    if not COMPILED:
        return kernel
    plain, entries = cache(lambda: _as_python(function)), 0

    @wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal entries
        if entries < _LITTLE:
            entries += sum(argument.size for argument in arguments if isinstance(argument, np.ndarray))
        return plain()(*arguments) if entries < _LITTLE else kernel(*arguments)

    call.kernel = kernel  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _as_python(function: Any) -> Any:
    """A function that calls none that is compiled."""
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    plain = {name: _as_python(value.py_func) for name, value in named.items() if hasattr(value, "py_func")}
    return np.errstate(all="ignore")(FunctionType(function.__code__, {**function.__globals__, **plain}))


def _kept(function: Any, options: dict[str, Any]) -> Any:
    """A function that Python calls, compiled once for all processes where a folder for it can be written to."""
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


if _LEAN:

    class _Whole(codegen.JITCodeLibrary):
        """A kernel's code, optimised once with all that it takes in, and not function by function before."""

        def _optimize_functions(self, ll_module: Any) -> None:
            pass

    class _Linked(_Whole):
        """A function's code as kernels take it in, who optimise it with their own: no machine code is made of it."""

        @property
        def codegen(self) -> Any:
            return _WithoutEnvironment(self._codegen)

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalized = True

    class _WithoutEnvironment:
        """Numba's code generator, less the table of Python objects that code which never runs alone does not need."""

        def __init__(self, codegen: Any) -> None:
            self._codegen = codegen

        def __getattr__(self, name: str) -> Any:
            return getattr(self._codegen, name)

        def set_env(self, name: str, environment: Any) -> None:
            pass

    class _Kernel(compiler.Compiler):
        """Numba's compiler of a function that Python calls."""

        library: Any = _Whole

        def define_pipelines(self) -> Any:
            self.state.library = self.library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()
            return super().define_pipelines()  # type: ignore[no-untyped-call]

    class _ForKernels(_Kernel):
        """Numba's compiler of a function, into what kernels take in."""

        library = _Linked

    class _Flags(compiler.Flags):
        """What a function is compiled with; Numba compares it tens of thousands of times, all options each time."""

        def __hash__(self) -> int:
            return _HASH

        def __eq__(self, other: object) -> bool:
            if not isinstance(other, compiler.Flags):
                return NotImplemented
            mine, others = self._values, other._values
            return mine == others or all(getattr(self, k) == getattr(other, k) for k in {*mine, *others})

    _HASH = hash(compiler.Flags())  # type: ignore[no-untyped-call]

    class _Pointer(types.NamedTuple):  # type: ignore[misc]
        """A named tuple of the caller's, where it lies in memory.

        By value, a tuple of many arrays is hundreds of arguments, and half of all code does nothing but pass them on.
        """

        def __init__(self, whole: Any) -> None:
            super().__init__(tuple(map(_pointed, whole)), whole.instance_class)
            self.whole, self.name = whole, f"pointer({whole})"

        key = property(lambda self: self.whole)

    @extending.register_model(_Pointer)
    class _PointerModel(extending.models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, manager.lookup(kind.whole).get_value_type().as_pointer())

        def from_argument(self, builder: Any, value: Any) -> Any:
            value.add_attribute("noalias")
            return value

    @extending.lower_getattr_generic(_Pointer)  # type: ignore[untyped-decorator]
    def _member(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
        return borrowed(context, builder, *member(builder, kind, value, kind.fields.index(name)))

    @extending.lower_builtin("static_getitem", _Pointer, types.IntegerLiteral)  # type: ignore[untyped-decorator]
    def _item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return borrowed(context, builder, *member(builder, signature.args[0], *arguments))

    @extending.unbox(_Pointer)  # type: ignore[untyped-decorator]
    def _unbox(kind: Any, given: Any, c: Any) -> Any:
        native = c.unbox(kind.whole, given)

        def release() -> None:
            if native.cleanup is not None:
                native.cleanup()
            if c.context.enable_nrt:
                c.context.nrt.decref(c.builder, kind.whole, native.value)

        place = cgutils.alloca_once_value(c.builder, native.value)
        return extending.NativeValue(place, is_error=native.is_error, cleanup=release)

    @extending.lower_cast(types.BaseNamedTuple, _Pointer)  # type: ignore[untyped-decorator]
    def _lay_down(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
        return cgutils.alloca_once_value(builder, value)

else:
    _Pointer = ()  # type: ignore[misc, assignment]  # what nothing is an instance of


def _for_kernels(kernel: Any, options: dict[str, Any]) -> Any:
    """Let kernels that call ``kernel`` take it in, named tuples by pointer; a call from Python compiles it alone."""
    if not _LEAN:
        return kernel
    lean = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _ForKernels, "cache": False}
    inner = cache(lambda: _quickly(numba.njit(**{**options, **lean})(kernel.py_func)))
    typeof = kernel.typeof_pyval
    kernel.typeof_pyval = lambda value: _pointed(typeof(value))

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        plain = {name: _plain(kind) for name, kind in keywords.items()}
        return inner().get_call_template(tuple(map(_plain, arguments)), plain)

    kernel.get_call_template = get_call_template
    kernel.get_overload = lambda signature: inner().get_overload(signature)
    return _quickly(kernel)


def _quickly(kernel: Any) -> Any:
    if hasattr(compiler.Flags, "_values"):  # not in Numba 0.60
        kernel._compiler._customize_flags = _Flags
    return kernel


def member(builder: Any, kind: Any, value: Any, place: int) -> tuple[Any, Any]:
    """Type and value of a member of a named tuple, or of the one that a pointer points to; counts no references."""
    if not isinstance(kind, _Pointer):
        return kind[place], builder.extract_value(value, place)
    address = cgutils.gep_inbounds(builder, value, 0, place)
    return kind[place], address if kind[place] != kind.whole[place] else builder.load(address)


def _plain(kind: Any) -> Any:
    """The type of an argument; Numba has one for each integer that stands in a call, and would compile for each."""
    return _pointed(types.unliteral(kind) if isinstance(kind, types.IntegerLiteral) else kind)


def _pointed(kind: Any) -> Any:
    return _Pointer(kind) if isinstance(kind, types.BaseNamedTuple) and not isinstance(kind, _Pointer) else kind


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


if COMPILED:

    class _Compiling(event.Listener):
        """Takes the time, and tells a person at a terminal or notebook, once, where it is longer than one waits.

        Nobody waits for the garbage collector meanwhile: it would walk all that Numba holds, a fifth of the time.
        """

        depth, spent, begun = 0, 0.0, 0.0
        timer: Timer | None = None
        collecting = False

        def on_start(self, _: Any) -> None:
            self.depth += 1
            if self.depth > 1:
                return
            self.begun = perf_counter()
            self.collecting = gc.isenabled()
            gc.disable()
            if self.spent < SILENCE:
                self.timer = Timer(SILENCE - self.spent, self.say)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, _: Any) -> None:
            self.depth -= 1
            if self.depth > 0:
                return
            self.spent += perf_counter() - self.begun
            if self.collecting:
                gc.enable()
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def say(self) -> None:
            if sys.stderr.isatty() or "ipykernel" in sys.modules:
                sys.stderr.write(
                    "bactrian: compiling for this machine, which takes up to a minute and is kept for later runs; "
                    "bactrian warm-up does it all at once\n"
                )

    _COMPILING = _Compiling()
    event.register("numba:compile", _COMPILING)  # type: ignore[no-untyped-call]


def seconds_compiling() -> float:
    """Seconds that this process has spent on compiling so far."""
    if not COMPILED:
        return 0.0
    return _COMPILING.spent + (perf_counter() - _COMPILING.begun if _COMPILING.depth else 0.0)


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
        f"bactrian can write neither to its own folder nor to the user's cache folder: compiled functions {kept}; set "
        "NUMBA_CACHE_DIR to a folder of your choice",
        stacklevel=2,
    )
    return path if usable else None
