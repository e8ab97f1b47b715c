"""Interrupts that the code they hit would lose."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bactrian.cli import main
from bactrian.cli.interrupts import interrupts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")

#: Plugins that are interrupted: where a callback drops it, and where an error takes its place, as Numba does both.
_DROPPED = """
import ctypes, os, signal, time
ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT))()
for _ in range(2000):
    time.sleep(0.01)
"""
_REPLACED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
except KeyboardInterrupt:
    raise RuntimeError("no compiled object yet") from None
"""


#: Interrupts a command where a compiled function calls back, which must not fail.
_IN_CALLBACK = """
import os, signal, sys

def at_call(frame, event, _):
    if event == "call" and frame.f_code.co_name.endswith("numba_unpickle"):
        sys.setprofile(None)
        print("interrupted there", flush=True)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(at_call)
"""


def test_callbacks_of_compiled_functions_are_left_alone(tmp_path):
    """An interrupt in there ended in a segmentation fault."""
    (tmp_path / "plugin.py").write_text(_IN_CALLBACK)
    chain = "".join(f"2 {v} {v + 1}\n" for v in range(1999)) + "2 0 1999\n"
    tables = "4\n1 2 2 1\n" * 2000
    (tmp_path / "ring.uai").write_text(f"MARKOV\n2000\n{'2 ' * 2000}\n2000\n{chain}{tables}")
    command = [
        sys.executable,
        "-m",
        "bactrian",
        "--plugin",
        "plugin.py",
        "infer",
        "ring.uai",
        "-m",
        "exact",
        "-o",
        "a.PR",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, preexec_fn=_listening)
    assert (done.returncode, done.stdout) == (130, "interrupted there\n"), done.stderr
    assert done.stderr == "bactrian: interrupted, nothing written\n"
    assert not (tmp_path / "a.PR").exists()


@pytest.mark.parametrize("plugin", [_DROPPED, _REPLACED], ids=["dropped", "replaced"])
def test_no_interrupt_is_lost(plugin, tmp_path):
    (tmp_path / "plugin.py").write_text(plugin)
    (tmp_path / "s.csv").write_text("a,b\n0,1\n1,0\n")
    command = [sys.executable, "-m", "bactrian", "--plugin", "plugin.py", "fit", "s.csv", "-o", "run"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, preexec_fn=_listening)
    assert (done.returncode, done.stderr) == (130, "bactrian: interrupted, nothing written\n")
    assert time.monotonic() - started < 15
    assert not (tmp_path / "run").exists()


def _listening():
    """Do not ignore interrupts, which a process that was started in the background does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def listening():
    before = signal.getsignal(signal.SIGINT)
    _listening()
    yield
    signal.signal(signal.SIGINT, before)


def test_all_is_put_back_and_others_are_told(listening):
    handlers, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    seen = []
    sys.unraisablehook = seen.append
    try:
        with interrupts():
            assert signal.getsignal(signal.SIGINT) is not handlers
            ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()
        assert sys.unraisablehook == seen.append
    finally:
        sys.unraisablehook = hook
    assert signal.getsignal(signal.SIGINT) is handlers
    assert [dropped.exc_type for dropped in seen] == [ZeroDivisionError]


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_commands_run_in_other_threads(capsys):
    codes = []

    def run():
        try:
            main(["--version"])
        except SystemExit as ended:
            codes.append(ended.code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [0]
