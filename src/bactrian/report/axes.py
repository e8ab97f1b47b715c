"""Axes of charts: ranges, ticks and the way from values to places on the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``, linear or logarithmic, drawn between places ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False  #: ticks at whole numbers only

    @staticmethod
    def around(values: Floats, start: float, end: float, *, log: bool = False, whole: bool = False) -> Axis:
        """An axis that holds all finite values (positive ones if logarithmic), to whole ticks where it is linear."""
        usable = values[np.isfinite(values) & ((values > 0.0) | (not log))]
        if usable.size == 0:
            return Axis(0.1 if log else 0.0, 1.0, start, end, log)
        low, high = float(usable.min()), float(usable.max())
        if log:
            margin = 1.3 if high > 3.0 * low else 3.0
            return Axis(low / margin, high * margin, start, end, log)
        size = max(abs(low), abs(high))
        if high - low <= 1e-9 * size or size == 0.0:
            low, high = low - max(0.1 * size, 0.5), high + max(0.1 * size, 0.5)
        step = _nice_step(high - low, whole)
        return Axis(float(np.floor(low / step)) * step, float(np.ceil(high / step)) * step, start, end, whole=whole)

    def holds(self, values: Floats) -> NDArray[np.bool_]:
        """Which values can be drawn."""
        inside: NDArray[np.bool_] = np.isfinite(values) & ((values > 0.0) | (not self.log))
        return inside

    def place(self, values: Floats | float) -> Floats:
        """Places of values; all of them must be drawable."""
        low, high = self.low, self.high
        if self.log:
            values, low, high = np.log(values), np.log(low), np.log(high)
        return np.asarray(self.start + (np.asarray(values) - low) / (high - low) * (self.end - self.start))

    def ticks(self) -> list[float]:
        """At most seven round values; powers of ten on a logarithmic axis that spans any."""
        if not self.log:
            step = _nice_step(self.high - self.low, self.whole)
            count = round((self.high - self.low) / step)
            return [float(f"{self.low + k * step:.12g}") for k in range(count + 1)]
        first, last = int(np.ceil(np.log10(self.low))), int(np.floor(np.log10(self.high)))
        if last <= first:
            return [m * 10.0**e for e in (first - 1, first) for m in (1, 2, 5) if self.low <= m * 10.0**e <= self.high]
        stride = -(-(last - first + 1) // 6)
        return [10.0**e for e in range(first, last + 1, stride)]


def tick_label(value: float, log: bool = False) -> str:
    """A short label: plain where that is short, scientific elsewhere, and sooner so on logarithmic axes.

    >>> [tick_label(v) for v in (0.0, 0.25, 20.0, 1e-5, 3e6)], tick_label(1000.0, log=True)
    (['0', '0.25', '20', '10⁻⁵', '3·10⁶'], '10³')
    """
    most = 2e2 if log else 1e5
    if value == 0.0 or 5.0 / most < abs(value) < most:
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa}·{power}"


def _nice_step(span: float, whole: bool) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides ``span`` into about five parts."""
    rough = span / 5.0
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= 0.999 * rough)
    return float(max(step, 1.0) if whole else step)
