"""Settings and fixtures shared by all tests."""

import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first example of a test may pay for compilation.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the data sets that are not ours to redistribute."""
    folder = os.environ.get("BACTRIAN_DATA")
    if not folder:
        pytest.skip("BACTRIAN_DATA is not set: it names the folder with the real data this test reads")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"BACTRIAN_DATA is set to {folder!r}, which is not a folder")
    return path


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which a minute passes between any two looks: a limit in seconds strikes at once."""
    minutes = itertools.count()

    def clock() -> float:
        return 60.0 * next(minutes)

    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr("bactrian.parallel.threads.perf_counter", clock)
