"""Times, sizes and counts for people: three digits and a suitable unit. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: Numbers or ranges in a list of numbers.
_PARTS = 4


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


def runs_of(numbers: Sequence[int]) -> list[list[int]]:
    """Split ascending numbers wherever one is missing.

    >>> runs_of([0, 1, 2, 5, 7, 8])
    [[0, 1, 2], [5], [7, 8]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Format the numbers of some things, shortened if there are many.

    Args:
        noun: name of one of them.
        numbers: at least one, in order.

    >>> numbered("shard", [3]), numbered("shard", [0, 1, 4]), numbered("shard", range(16))
    ('shard 3', 'shards 0, 1, 4', 'shards 0 to 15')
    >>> numbered("shard", range(0, 32, 2))
    'shards 0, 2, 4 and 13 others'
    """
    # Two consecutive numbers are not a range.
    runs = [
        part
        for run in runs_of(numbers)
        for part in ([run] if len(run) > 2 else [[it] for it in run])
    ]
    said = runs if len(runs) <= _PARTS else runs[: _PARTS - 1]
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in said)
    if others := len(numbers) - sum(map(len, said)):
        text += f" and {others} others"
    return f"{noun}{'s' * (len(numbers) > 1)} {text}"


def _three(value: float) -> str:
    """Format a number with three digits, or with all digits before the point."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
