"""Numbers for people, on a page; an unknown number is a dash. Pure."""

from __future__ import annotations

import math

from psrt.core import units

#: Stands for a missing number.
NONE = "–"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with this many significant digits.

    >>> number(0.214273), number(1234567.0), number(12), number(None), number(math.inf)
    ('0.2143', '1,234,567', '12', '–', '–')
    """
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) >= 10**digits or value == round(value):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    """Return a share of 1.

    >>> percent(0.9166), percent(math.nan)
    ('91.7 %', '–')
    """
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def seconds(value: float | None) -> str:
    """Return a time.

    >>> seconds(0.3675), seconds(None)
    ('368 ms', '–')
    """
    if value is None or not math.isfinite(value):
        return NONE
    return units.time_text(value) if value < 1e9 else f"{value:.3g} s"


def nbytes(value: float | None) -> str:
    """Return a number of bytes.

    >>> nbytes(24828672), nbytes(None)
    ('23.7 MiB', '–')
    """
    return NONE if value is None or not math.isfinite(value) else units.size_text(value)
