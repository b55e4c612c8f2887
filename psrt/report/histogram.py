"""A histogram as lines of text: one per value, or one per range where there are many. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

#: Lines that a histogram may take, and characters of its longest bar.
_ROWS, _BAR = 12, 40


def histogram_lines(counts: Sequence[int]) -> list[str]:
    r"""Return a line for each value, or for each range of equal width where there are too many.

    Args:
        counts: ``counts[τ]`` is how often τ occurred.

    >>> print("\n".join(histogram_lines([10, 40, 0, 30])))
    0  ##########                                12.5 %
    1  ########################################  50.0 %
    2                                             0.0 %
    3  ##############################            37.5 %
    >>> [line.split()[0] for line in histogram_lines([1] * 100)]
    ['0-9', '10-19', '20-29', '30-39', '40-49', '50-59', '60-69', '70-79', '80-89', '90-99']
    """
    total = sum(counts)
    if not total:
        return []
    width = next(width for width in _widths() if -(-len(counts) // width) <= _ROWS)
    starts = range(0, len(counts), width)
    sums = [sum(counts[start : start + width]) for start in starts]
    names = [str(a) if width == 1 else f"{a}-{a + width - 1}" for a in starts]
    longest, largest = max(map(len, names)), max(sums)
    bars = ["#" * -(-_BAR * found // largest) for found in sums]
    return [
        f"{name:>{longest}}  {bar:<{_BAR}}  {100 * found / total:4.1f} %"
        for name, bar, found in zip(names, bars, sums, strict=True)
    ]


def _widths() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    return ((1, 2, 5)[i % 3] * 10 ** (i // 3) for i in count())
