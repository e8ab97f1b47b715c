"""How the attack is cut into tests, its option, and the totals that it prints.

A test takes ``numbers``, a block of case numbers; the first block is small and belongs to the ordinary run, the others
are slow. ``pytest tests/attack/test_inference.py --case 17`` runs one case.
"""

from __future__ import annotations

import faulthandler
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bactrian.solvers.solution import ConvergenceWarning

#: Seconds of processor time after which a run counts as hung, and seconds after which the process is given up.
HUNG, GIVEN_UP = 120.0, 900.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--case", type=int, action="append", help="attack: run only the case of this number")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "numbers" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("--case", default=None)
    if given:
        metafunc.parametrize("numbers", [given], ids=["given"])
        return
    sample, block, total = metafunc.function.cases
    starts = [0, *range(sample, total, block)]
    blocks = [range(a, b) for a, b in zip(starts, [*starts[1:], total], strict=True)]
    marks = [(), *[pytest.mark.slow] * (len(blocks) - 1)]
    metafunc.parametrize(
        "numbers",
        [pytest.param(b, marks=m, id=f"{b.start}-{b.stop - 1}") for b, m in zip(blocks, marks, strict=True)],
    )


class Tally:
    """Counts what was done and collects what was wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    @contextmanager
    def run(self, kind: str, name: str, reproduction: str) -> Iterator[list[str]]:
        """One run: problems go into the list that it gives; what it raises is one, and so is taking too long."""
        found: list[str] = []
        faulthandler.dump_traceback_later(GIVEN_UP, exit=True)
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", ConvergenceWarning)
                yield found
        except Exception as crash:  # noqa: BLE001 - whatever a run raises is a finding
            self.counts[f"{kind}: crashed"] += 1
            found.append(f"{type(crash).__name__}: {crash}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        seconds = time.process_time() - began
        if seconds > HUNG:
            self.counts[f"{kind}: hung"] += 1
            found.append(f"took {seconds:.0f} s of processor time")
        self.judged(kind, name, found, reproduction)

    def judged(self, kind: str, name: str, found: list[str], reproduction: str) -> None:
        """Count a run and keep what was wrong with it."""
        self.counts[f"{kind}: runs"] += 1
        if found:
            self.counts[f"{kind}: wrong"] += 1
            self.problems.append("\n  ".join([f"{name}:", *found, f"reproduce: {reproduction}"]))


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Iterator[Tally]:
    """Totals of a test, for the summary; the test fails where something was wrong."""
    kept = Tally()
    yield kept
    record_property("attack", dict(kept.counts))
    if kept.problems:
        pytest.fail(f"{len(kept.problems)} wrong\n" + "\n".join(kept.problems), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                for name, counts in report.user_properties:
                    if name == "attack":
                        totals.update(counts)
    if totals:
        terminalreporter.section("attack")
        for name, count in sorted(totals.items()):
            terminalreporter.line(f"{count:7d}  {name}")
