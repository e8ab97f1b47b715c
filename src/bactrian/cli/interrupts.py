"""Interrupts that arrive, whatever the process is doing.

Python raises an interrupt in the code that happens to run next. While kernels are compiled, that is often a callback
through which LLVM hands over machine code, and callbacks drop exceptions: the command would run on. Compiled functions
call back, too, for the types of what they return, and crash where that fails. So an interrupt waits until such a
callback is over; one that is dropped elsewhere is raised again; and an error that follows one is taken for it.
"""

from __future__ import annotations

import signal
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Timer
from types import FrameType
from typing import Any

_SOON = 0.05  #: seconds after which an interrupt that cannot be raised now, or was dropped, is raised again
#: Callbacks of Numba and LLVM that must not fail.
_CALLBACKS = {"_numba_unpickle", "_raw_object_cache_notify", "_raw_object_cache_getbuffer"}


def _not_later() -> bool:
    return False


def _in_callback(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name not in _CALLBACKS:
        frame = frame.f_back
    return frame is not None


@contextmanager
def interrupts(later: Callable[[], bool] = _not_later, numbers: Sequence[int] = (signal.SIGINT,)) -> Iterator[None]:
    """Raise KeyboardInterrupt on these signals, unless ``later`` says that it sees to them itself.

    Those that the process ignores stay ignored.
    """
    raised = False
    again: Timer | None = None
    hook = sys.unraisablehook

    def on_signal(_number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if _in_callback(frame):
            raise_again()
        elif not later():
            raised = True
            raise KeyboardInterrupt

    def on_dropped(dropped: Any) -> None:
        raise_again() if dropped.exc_type is KeyboardInterrupt else hook(dropped)

    def raise_again() -> None:
        nonlocal again
        again = Timer(_SOON, interrupt_main)
        again.daemon = True
        again.start()

    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number, handler in before.items() if handler not in (None, signal.SIG_IGN)]
    sys.unraisablehook = on_dropped
    try:
        with suppress(ValueError):  # signals cannot be handled outside of the main thread
            for number in handled:
                signal.signal(number, on_signal)
        yield
    except Exception as error:
        if raised:
            raise KeyboardInterrupt from error
        raise
    finally:
        if again is not None:
            again.cancel()
        sys.unraisablehook = hook
        with suppress(ValueError):
            for number in handled:
                signal.signal(number, before[number])
