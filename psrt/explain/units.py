"""Amounts as flags write them. Pure."""

from __future__ import annotations

import re

from psrt.errors import ConfigError

#: Powers of 1024, as everywhere in psrt.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST = 1 << 40


def read_bytes(flag: str, text: str) -> int:
    """Return a number of bytes; K, M and G are 1024, 1024² and 1024³ of them.

    >>> read_bytes("bytes", "256K"), read_bytes("bytes", "1.5M"), read_bytes("bytes", "0")
    (262144, 1572864, 0)

    Raises:
        ConfigError: if it is none, or no whole number of bytes, or more than a terabyte.
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMG]?)(?:i?B)?", text.strip(), re.I)
    if found is None:
        raise ConfigError(f"{flag} must be a number of bytes such as 64K, 1M or 1G, got {text!r}")
    value = float(found[1]) * _UNITS[found[2].upper()]
    if value != int(value) or value > _LARGEST:
        raise ConfigError(f"{flag} must be whole bytes, at most 1024G, got {text!r}")
    return int(value)


def read_count(flag: str, text: str, *, least: int, most: int) -> int:
    """Return a whole number within bounds.

    Raises:
        ConfigError: if it is none, or out of them.
    """
    if re.fullmatch(r"[0-9]{1,15}", text.strip()) is None:
        raise ConfigError(f"{flag} must be a whole number, got {text!r}")
    value = int(text)
    if not least <= value <= most:
        raise ConfigError(f"{flag} must be {least} to {most}, got {value}")
    return value


def read_slow(text: str, workers: int) -> dict[int, float]:
    """Return by worker how many times longer than usual its steps take.

    >>> read_slow("1:3,2:1.5", 4), read_slow("none", 4)
    ({1: 3.0, 2: 1.5}, {})

    Raises:
        ConfigError: if the text is nothing like that, or names a worker that is not there.
    """
    if text == "none":
        return {}
    slow: dict[int, float] = {}
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6}(?:\.[0-9]{1,6})?)", part.strip())
        if found is None:
            raise ConfigError(f"slow must be WORKER:TIMES, like 1:3 or 1:3,2:1.5, got {text!r}")
        worker, factor = int(found[1]), float(found[2])
        if worker >= workers:
            raise ConfigError(
                f"slow names worker {worker} that is not there, the last is {workers - 1}"
            )
        if worker in slow:
            raise ConfigError(f"slow names worker {worker} twice")
        if not 0.01 <= factor <= 1000:
            raise ConfigError(f"slow must be 0.01 to 1000 times, got {found[2]}")
        slow[worker] = factor
    return slow
