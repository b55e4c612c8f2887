"""An axis: from numbers to places on a chart, and the numbers written next to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Ratio of values from which a logarithmic axis shows what would be flat on a linear one.
_WIDE = 100.0
#: Numbers are alike from here on, in units of their size; and are 0.
_ALIKE, _TINY = 1e-9, 1e-290


@dataclass(frozen=True, slots=True)
class Scale:
    """From the numbers low to high to the places start to stop."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    @classmethod
    def of(
        cls,
        values: Iterable[float],
        start: float,
        stop: float,
        *,
        log: bool = False,
        zero: bool = False,
    ) -> Scale:
        """Return the axis of some values.

        Args:
            values: finite.
            start: where the least is.
            stop: where the largest is.
            log: whether logarithms are shown, where values are positive and reach that far.
            zero: whether it begins at 0.
        """
        values = list(values)
        low, high = min(values, default=0.0), max(values, default=1.0)
        if log and low > 0 and high / low >= _WIDE:
            return cls(low, high, start, stop, log=True)
        low = min(0.0, low) if zero else low
        size = max(abs(low), abs(high))
        if size < _TINY:
            low, high = 0.0, 1.0
        elif high / 2 - low / 2 < _ALIKE * size:
            low, high = low - size / 4, high + size / 4
        return cls(low, high, start, stop)

    def __call__(self, value: float) -> float:
        """Return the place of a number.

        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 1, log=True)(10)
        (150.0, 0.5)
        """
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        # By halves: the difference of two large numbers may be no number.
        share = (value / 2 - low / 2) / (high / 2 - low / 2)
        return self.start + (self.stop - self.start) * share

    def ticks(self, most: int = 6) -> list[float]:
        """Return round numbers on the axis; powers of ten if it is logarithmic.

        Args:
            most: of them, or one more.

        >>> Scale(0, 1, 0, 1).ticks(), Scale(0.3, 420, 0, 1, log=True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 10.0, 100.0])
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            each = max(1, math.ceil((last - first + 1) / most))
            return [10.0**power for power in range(first, last + 1, each)]
        width = self.high / most - self.low / most
        power = 10.0 ** math.floor(math.log10(width)) if width > 0 else 1.0
        step = next((it * power for it in (1, 2, 5, 10) if it * power >= width), 10 * power)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Return a number as written next to an axis.

    >>> [tick_text(it) for it in (0.0, 0.25, 1500.0, 2e6, 3.5e9, 1e-5)]
    ['0', '0.25', '1500', '2M', '3.5G', '1e-05']
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.6g}{letter}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.6g}"
