"""Estimators fitted to random data, and to the same data written otherwise."""

from __future__ import annotations

from cutting import cases
from invariances import FAMILIES, Check


@cases(sample=2, block=8, total=40)
def test_invariances(numbers, tally):
    for number in numbers:
        for family, checks in FAMILIES.items():
            for check in checks(number):
                call = f"next(c for c in FAMILIES[{family!r}]({number}) if c.name == {check.name!r}).problems()"
                with tally.run("estimators", f"{family} {number}, {check.name}", call) as problems:
                    problems += check.problems()


def test_what_is_apart_is_seen():
    """The judge itself: other numbers, other sizes, and a bit."""
    assert not Check("", lambda: [[0.5, 0.5], [1.0]], [[0.5, 0.5], [1.0]], 0.0).problems()
    assert Check("", lambda: [[0.5, 0.5]], [[0.5, 0.6]]).problems()
    assert Check("", lambda: [[0.5, 0.5]], [[0.5]]).problems()
    assert Check("", lambda: [[float("nan")]], [[0.5]]).problems()
    assert Check("", lambda: [[1.0 / 3.0]], [[1.0 / 3.0 + 1e-16]], 0.0).problems()
