"""Times, sizes and counts for people: three digits and a suitable unit. Pure."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Format a time, given in seconds, in a suitable unit.

    >>> time_text(0), time_text(4.25e-6), time_text(0.00021), time_text(0.25), time_text(1234)
    ('0 µs', '4.25 µs', '210 µs', '250 ms', '1234 s')
    """
    if seconds < 999.5e-6:
        return f"{_three(seconds * 1e6)} µs"
    return f"{_three(seconds * 1e3)} ms" if seconds < 0.9995 else f"{_three(seconds)} s"


def size_text(nbytes: float) -> str:
    """Format a number of bytes in a suitable binary unit.

    >>> size_text(0), size_text(1000), size_text(1 << 12), size_text(5 << 19), size_text(1 << 40)
    ('0 B', '1000 B', '4 KiB', '2.5 MiB', '1 TiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1023.5:
            return f"{_three(nbytes)} {unit}"
        nbytes /= 1024
    return f"{_three(nbytes)} TiB"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun, in the plural unless it is 1.

    >>> plural(1, "rank"), plural(0, "rank"), plural(1200, "event")
    ('1 rank', '0 ranks', '1,200 events')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _three(value: float) -> str:
    """Format a number with three digits, or with all those before the point."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
