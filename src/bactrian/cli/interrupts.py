"""Interrupts that arrive, whatever the process is doing.

Python raises an interrupt in the code that happens to run next. While kernels are compiled, that is often a callback
through which LLVM hands over machine code, and callbacks drop exceptions: the command would run on. In other places
Numba goes on with an exception set, and a SystemError takes the interrupt's place.
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


def _not_later() -> bool:
    return False


@contextmanager
def interrupts(later: Callable[[], bool] = _not_later, numbers: Sequence[int] = (signal.SIGINT,)) -> Iterator[None]:
    """Raise KeyboardInterrupt on these signals, unless they are ignored or ``later`` says that it sees to them itself.

    One that is dropped is raised again, and an error that follows one is taken for it.
    """
    raised = False
    again: Timer | None = None
    hook = sys.unraisablehook

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal raised
        if not later():
            raised = True
            raise KeyboardInterrupt

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
