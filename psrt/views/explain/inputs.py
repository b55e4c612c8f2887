"""Inputs of ``psrt explain``: a worked example, an order of ranks, ranges of ranks and sizes.

An example is a CSV file with a line per rank, its name and its vector.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.rows.knobs import read_flag
from psrt.rows.suggest import did_you_mean
from psrt.rows.values import BYTES, WHOLE
from psrt.views.explain.trace import Number


@dataclass(frozen=True, slots=True)
class Example:
    """Named ranks and their vectors."""

    #: Names, by rank.
    names: tuple[str, ...]
    #: By rank, n numbers.
    values: tuple[tuple[Number, ...], ...]

    @property
    def n(self) -> int:
        """Number of elements of a vector."""
        return len(self.values[0])


def read_example(path: str) -> Example:
    """Read an example from a file.

    A line is for instance ``A, 17, 11, 1, 9``. Empty lines and lines that begin with ``#`` are
    skipped. Whole numbers of up to 18 digits stay exact; others are float64.

    Raises:
        ConfigError: with file and line number, if it cannot be read or parsed.
    """
    names: list[str] = []
    values: list[tuple[Number, ...]] = []
    for line, (name, *cells) in _rows(path):
        where = f"{path}, line {line}"
        if not name or not name.isprintable():
            raise ConfigError(f"{where}: {name!r} cannot be the name of a rank")
        if name in names:
            raise ConfigError(f"{where}: a second rank {name!r}")
        row = tuple(_number(cell, where) for cell in cells)
        if values and len(row) != len(values[0]):
            raise ConfigError(
                f"{where}: rank {name!r} has {_count(row)}, rank {names[0]!r} has "
                f"{_count(values[0])}"
            )
        names.append(name)
        values.append(row)
    if not names:
        raise ConfigError(f"{path} is empty, expected a line per rank: its name, then its numbers")
    if not values[0]:
        raise ConfigError(f"{path} has names without numbers, expected lines such as A,17,13,2")
    return Example(tuple(names), tuple(values))


def read_order(text: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks in the order of a text such as ``A,B,D,C``.

    Raises:
        ConfigError: unless it names every rank once.
    """
    given = [name.strip() for name in text.split(",")]
    for name in given:
        rank_of(name, names, "order")
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"order names {twice!r} twice, expected every rank once")
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigError(f"order leaves out {', '.join(missing)}, expected every rank once")
    return tuple(names.index(name) for name in given)


def rank_of(name: str, names: Sequence[str], flag: str) -> int:
    """Return the rank that a flag names.

    Raises:
        ConfigError: if no rank has this name.
    """
    if name not in names:
        hint = did_you_mean(name, names)
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise ConfigError(f"{flag} names {name!r}{hint}, the ranks are {shown}")
    return names.index(name)


def _rows(path: str) -> list[tuple[int, list[str]]]:
    """Yield each non-empty line's number and cells."""
    text = read_text(path, "a CSV file", encoding="utf-8-sig")
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    return [(line, row) for line, row in rows if any(row) and not row[0].startswith("#")]


def _number(text: str, where: str) -> Number:
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is not a number") from None
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {text!r} is not a finite number")
    return value


def _count(row: Sequence[Number]) -> str:
    return f"{len(row)} number{'' if len(row) == 1 else 's'}"


#: Most ranks; more take long to compare, because the double tree is laid out edge by edge.
MOST_RANKS = 1 << 14
#: Most values: more make no readable table.
_MOST_VALUES = 64
#: Factor from one value of a range to the next.
_RANKS_FACTOR, _BYTES_FACTOR = 2, 4


def read_ranks(text: str) -> list[int]:
    """Return numbers of ranks in ascending order; a range doubles.

    >>> read_ranks("2:16"), read_ranks("12,2:6"), read_ranks("7")
    ([2, 4, 8, 16], [2, 4, 6, 12], [7])

    Raises:
        ConfigError: for any other text.
    """
    return _read("ranks", text, _one_of_ranks, _RANKS_FACTOR)


def read_sizes(text: str) -> list[int]:
    """Return sizes of vectors in ascending order; a range grows 4-fold, or as a third part says.

    >>> read_sizes("1K:64K"), read_sizes("1K:4K:2"), read_sizes("100,1M")
    ([1024, 4096, 16384, 65536], [1024, 2048, 4096], [100, 1048576])

    Raises:
        ConfigError: for any other text.
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
        raise ConfigError(f"{flag} {text!r} has {len(values)} values, more than {_MOST_VALUES}")
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
        raise ConfigError(f"{flag} {part!r} ends before it begins")
    values = []
    while low < high:
        values.append(low)
        low *= factor
    return [*values, high]
