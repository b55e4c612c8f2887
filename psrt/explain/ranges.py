"""Parse ranges of ranks and bytes such as ``2:1024``, ``1K:1G``, ``4,8,100``. Pure."""

from __future__ import annotations

from collections.abc import Callable

from psrt.config.knobs import read_flag
from psrt.config.values import BYTES, WHOLE
from psrt.errors import ConfigError

#: Most ranks; more take long to compare, because the double tree is laid out edge by edge.
MOST_RANKS = 1 << 14
#: Most values: more make no readable table.
_MOST_VALUES = 64
#: Factor from one value of a range to the next.
_RANKS_FACTOR, _BYTES_FACTOR = 2, 4


def read_ranks(text: str) -> list[int]:
    """Return numbers of ranks, rising; a range doubles.

    >>> read_ranks("2:16"), read_ranks("12,2:6"), read_ranks("7")
    ([2, 4, 8, 16], [2, 4, 6, 12], [7])

    Raises:
        ConfigError: if it is nothing like that.
    """
    return _read("ranks", text, _one_of_ranks, _RANKS_FACTOR)


def read_sizes(text: str) -> list[int]:
    """Return bytes of vectors, rising; a range takes steps of 4 times, or as a third part says.

    >>> read_sizes("1K:64K"), read_sizes("1K:4K:2"), read_sizes("100,1M")
    ([1024, 4096, 16384, 65536], [1024, 2048, 4096], [100, 1048576])

    Raises:
        ConfigError: if it is nothing like that.
    """
    return _read("bytes", text, _one_of_bytes, _BYTES_FACTOR)


def _one_of_ranks(text: str) -> int:
    ranks: int = read_flag("ranks", WHOLE, text, min=1, max=MOST_RANKS)
    return ranks


def _one_of_bytes(text: str) -> int:
    nbytes: int = read_flag("bytes", BYTES, text, min=1)
    return nbytes


def _read(flag: str, text: str, one: Callable[[str], int], factor: int) -> list[int]:
    """Return the values of a list of values and ranges."""
    values: set[int] = set()
    for part in text.split(","):
        values.update(_range(flag, part, one, factor))
    if len(values) > _MOST_VALUES:
        raise ConfigError(f"{flag} {text!r} are {len(values)} values, at most {_MOST_VALUES}")
    return sorted(values)


def _range(flag: str, part: str, one: Callable[[str], int], factor: int) -> list[int]:
    """Return the values from the first to the last, both included, or the only one."""
    first, *more = part.split(":")
    if not first.strip() or len(more) > 2:
        raise ConfigError(f"{flag} must be like FIRST:LAST, or values with commas, got {part!r}")
    low = one(first)
    high = one(more[0]) if more else low
    if len(more) == 2:
        factor = read_flag(f"the factor of {flag}", WHOLE, more[1], min=2, max=1 << 20)
    if high < low:
        raise ConfigError(f"{flag} {part!r} end before they begin")
    values = []
    while low < high:
        values.append(low)
        low *= factor
    return [*values, high]
