"""Interrupts that arrive, whatever the process is doing.

Python raises an interrupt in the code that happens to run next. Inside Numba and LLVM that is a bad place: callbacks
drop it, and the command runs on; compiled functions that call back crash, and so does code that is half built when it
is taken down. So an interrupt is raised where the compiler was called from, when it is done with the kernel at hand;
one that is dropped elsewhere is raised again; and an error that follows one is taken for it.
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

_SOON = 0.1  #: seconds after which an interrupt that was dropped is raised again
_COMPILER = "numba"  #: the package inside which none is raised; LLVM is called by it alone


def _caller_of_compiler(frame: FrameType | None) -> FrameType | None:
    """The frame that called Numba or LLVM, if one of them is at work."""
    caller = None
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == _COMPILER:
            caller = frame.f_back
        frame = frame.f_back
    return caller


@contextmanager
def interrupts(later: Callable[[], bool] = lambda: False, numbers: Sequence[int] = (signal.SIGINT,)) -> Iterator[None]:
    """Raise KeyboardInterrupt on these signals, unless ``later`` returns True and handles them itself.

    Those that the process ignores stay ignored.
    """
    raised = False
    again: Timer | None = None
    hook = sys.unraisablehook

    def on_signal(_number: int, frame: FrameType | None) -> None:
        nonlocal raised
        caller = _caller_of_compiler(frame)
        if caller is not None:
            caller.f_trace = on_return
            sys.settrace(lambda *_: None)  # nothing is traced but that frame
        elif not later():
            raised = True
            raise KeyboardInterrupt

    def on_return(frame: FrameType, _event: str, _argument: Any) -> None:
        sys.settrace(None)
        frame.f_trace = None
        on_signal(signal.SIGINT, frame)

    def on_dropped(dropped: Any) -> None:
        nonlocal again
        if dropped.exc_type is not KeyboardInterrupt:
            hook(dropped)
            return
        again = Timer(_SOON, interrupt_main)  # raised here, it would be dropped as well
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
