"""From text to value, for every flag: kinds of value, and numbers separated by colons.

A kind knows types, not ranges; ranges belong to the knob. ``read`` takes the text of a flag,
``accept`` a Python or TOML value, and ``write`` returns a TOML literal. Functions that read raise
`ValueError` with the end of a sentence, such as "must be a whole number"; the caller puts the
flag's name before it.
"""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

#: The value that leaves a choice to psrt.
AUTO: Final = "auto"
#: The value that leaves a number to the hosts.
HOST: Final = "host"
#: TOML and numpy both hold whole numbers in 64 bits.
LARGEST = 2**63 - 1
_NOT_WHOLE = "must be a whole number"
#: Factors of the suffixes K, M and G of a number of bytes, and the largest number accepted.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_BYTES = 1 << 40
#: Longest interval in seconds: a year.
_LONGEST_S = 366 * 86400


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value."""

    #: Its name in help and messages if the knob has no metavar.
    metavar: str
    #: Text of a flag → value.
    read: Callable[[str], Any]
    #: Python or TOML value → value in its canonical type.
    accept: Callable[[Any], Any]
    #: Value → TOML literal.
    write: Callable[[Any], str]
    #: Whether the flag may be repeated; its texts are joined with commas before they are read.
    several: bool = False


def _read_whole(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,30}", text) is None:
        raise ValueError(_NOT_WHOLE)
    return _accept_whole(int(text))


def _accept_whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(_NOT_WHOLE)
    number = int(value)
    if abs(number) > LARGEST:
        raise ValueError("must fit into 64 bits")
    return number


def _read_real(text: str) -> float:
    try:
        # Python also takes "1_0", digits of other scripts, and spaces.
        return _accept_real(float(text) if re.fullmatch(r"[-+.0-9a-zA-Z]+", text) else math.nan)
    except ValueError:
        raise ValueError("must be a finite number") from None


def _accept_real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number + 0.0  # -0.0 becomes 0, as in texts of rows


def _accept_text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if not value:
        raise ValueError("must not be empty")
    # Python represents an argument that is not UTF-8 by lone surrogates.
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("must be valid text")
    return value


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def write_text(text: str) -> str:
    r"""Return ``text`` as a TOML basic string.

    >>> print(write_text('a "b"\\c'))
    "a \"b\"\\c"
    """
    return '"' + "".join(_ESCAPES.get(c) or _escaped_control(c) for c in text) + '"'


def _escaped_control(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x20 or code == 0x7F else character


def _accept_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _read_switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _read_widths(text: str) -> tuple[int, ...]:
    if text in ("", "none"):
        return ()
    try:
        return _accept_widths([_read_whole(part.strip()) for part in text.split(",")])
    except ValueError:
        raise ValueError("must be whole numbers of at least 1, like 128,64 (or none)") from None


def _accept_widths(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of whole numbers")
    widths = tuple(_accept_whole(width) for width in value)
    if any(width < 1 for width in widths):
        raise ValueError("must be whole numbers of at least 1")
    return widths


def _read_rate(text: str) -> float:
    if text in ("inf", "+inf"):
        return math.inf
    return _read_real(text)


def _accept_rate(value: Any) -> float:
    return math.inf if value == math.inf else _accept_real(value)


def _read_bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMG]?)(?:i?B)?", text.strip(), re.I)
    if found is None:
        raise ValueError("must be a number of bytes such as 64K, 1M or 1G")
    value = float(found[1]) * _UNITS[found[2].upper()]
    if value != int(value) or value > _MOST_BYTES:
        raise ValueError("must be whole bytes, at most 1024G")
    return int(value)


def _whole_or(word: str) -> Kind:
    """Return the kind of a whole number, or of a word instead."""

    def of(accept: Callable[[Any], int], value: Any) -> int | str:
        try:
            return word if value == word else accept(value)
        except ValueError as error:
            # For a number that is too large, the word would be no help.
            text = str(error)
            raise ValueError(f"{text} or {word}" if text == _NOT_WHOLE else text) from None

    return Kind("N", partial(of, _read_whole), partial(of, _accept_whole), _write_whole_or_word)


def _write_whole_or_word(value: int | str) -> str:
    return write_text(value) if isinstance(value, str) else str(value)


def _accept_real_or_auto(value: Any) -> float | str:
    return AUTO if value == AUTO else _accept_real(value)


def _read_real_or_auto(text: str) -> float | str:
    try:
        return AUTO if text == AUTO else _read_real(text)
    except ValueError as error:
        raise ValueError(f"{error} or {AUTO}") from None


def _write_real_or_auto(value: float | str) -> str:
    return write_text(value) if isinstance(value, str) else repr(value)


def _accept_interval(value: Any) -> int | str:
    if value == AUTO:
        return AUTO
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,30}", value):
        value = _read_whole(value)
    if isinstance(value, str):
        seconds = seconds_of(value)
        if seconds is not None and 0 < seconds <= _LONGEST_S:
            return value
    elif not isinstance(value, bool) and isinstance(value, numbers.Integral):
        if value < 1:
            raise ValueError("must be at least 1, or left out to save nothing")
        return _accept_whole(value)
    raise ValueError(f"must be steps such as 100, seconds such as 30s, or {AUTO}")


def seconds_of(interval: int | str | None) -> float | None:
    """Return the seconds of an interval; None if it is in steps, or left to psrt.

    >>> seconds_of("30s"), seconds_of("0.5s"), seconds_of(100), seconds_of("auto")
    (30.0, 0.5, None, None)
    """
    if isinstance(interval, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?s", interval):
        return float(interval[:-1])
    return None


WHOLE = Kind("N", _read_whole, _accept_whole, str)
#: A whole number, or ``host``: as many as each host has.
WHOLE_OR_HOST = _whole_or(HOST)
#: A number of steps, of seconds as in ``30s``, or ``auto``, which leaves it to psrt.
INTERVAL = Kind("N|Ns", _accept_interval, _accept_interval, _write_whole_or_word)
#: A whole number, or ``auto``, which leaves it to psrt.
WHOLE_OR_AUTO = _whole_or(AUTO)
REAL = Kind("X", _read_real, _accept_real, repr)
#: A real number, or ``auto``, which leaves it to psrt.
REAL_OR_AUTO = Kind("X", _read_real_or_auto, _accept_real_or_auto, _write_real_or_auto)
#: A real number that may be infinite.
RATE = Kind("X", _read_rate, _accept_rate, repr)
#: A number of bytes; the suffixes K, M and G multiply it by 1024, 1024² and 1024³.
BYTES = Kind("BYTES", _read_bytes, _accept_whole, str)
TEXT = Kind("TEXT", _accept_text, _accept_text, write_text)
SWITCH = Kind("", _read_switch, _accept_switch, lambda value: "true" if value else "false")
WIDTHS = Kind(
    "N,N,...", _read_widths, _accept_widths, lambda widths: f"[{', '.join(map(str, widths))}]"
)


class Number(NamedTuple):
    """One of the numbers of a text that separates them by colons."""

    #: Its name in forms and messages.
    name: str
    #: Smallest and largest value, inclusive; the largest may be infinite.
    min: float
    max: float
    #: Whether it must be an integer.
    whole: bool = False
    #: Its default; None if it must be given. Only the last number may have one.
    default: int | None = None

    def read(self, text: str) -> float:
        """Parse the number.

        Raises:
            ValueError: if the text is not a number, or out of range.
        """
        kind = WHOLE if self.whole else RATE
        value: float = kind.read(text)
        if not self.min <= value <= self.max:
            raise ValueError(f"must be {self.range}")
        return value

    @property
    def range(self) -> str:
        """Return its range in words."""
        if self.max == LARGEST:
            return f"from {self.min:g}"
        return f"from {self.min:g} to {self.max:.12g}"


def form(numbers: Sequence[Number]) -> str:
    """Return the form of a text with these numbers.

    >>> form([Number("FACTOR", 1, 10), Number("STEP", 0, 10, default=0)])
    'FACTOR[:STEP]'
    """
    return "".join(
        f":{n.name}" if n.default is None else f"[:{n.name}]" for n in numbers
    ).removeprefix(":")


def read_numbers(numbers: Sequence[Number], text: str, *, before: str = "") -> tuple[float, ...]:
    """Parse numbers separated by colons; if the last one is missing, it gets its default.

    Args:
        numbers: the expected numbers, in order.
        text: the numbers, separated by colons.
        before: what precedes ``text`` in the flag, for the message.

    >>> read_numbers([Number("LATENCY_S", 0, 1e6), Number("BYTES_PER_S", 1, math.inf)], "5e-5:inf")
    (5e-05, inf)

    Raises:
        ValueError: if there are too few or too many, or one is out of range: "must be SCALE:SHAPE,
            SCALE from 0 to 1000000, SHAPE from 0.1 to 10".
    """
    parts = text.split(":")
    parts += [str(n.default) for n in numbers[len(parts) :] if n.default is not None]
    try:
        return tuple(n.read(part) for n, part in zip(numbers, parts, strict=True))
    except ValueError:
        ranges = ", ".join(f"{n.name} {n.range}" for n in numbers)
        raise ValueError(f"must be {before}{form(numbers)}, {ranges}") from None
