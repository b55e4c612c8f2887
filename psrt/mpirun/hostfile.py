"""Hostfiles: the hosts of a job and how many ranks each takes. One format for every MPI."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from psrt.errors import ConfigError
from psrt.files import read_text

#: What may be handed to an mpirun, and by it to ssh, as a host: no leading dash, which would be a
#: flag, and nothing that a shell or a list of hosts takes for its own.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINE = re.compile(r"(?P<name>[^\s:]+)(?:\s*:\s*(?P<colon>\S+)|\s+slots\s*=\s*(?P<slots>\S+))?")
#: More ranks on one host are a slip of the pen.
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Host:
    """A host, and the number of ranks that are started there before the next is used."""

    name: str
    slots: int


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Return the hosts of a file, see ``parse_hosts``.

    Raises:
        ConfigError: if it cannot be read, or a line is none of a hostfile.
    """
    # Editors of Windows begin a file with the mark that this encoding leaves out.
    return parse_hosts(read_text(path, "a hostfile", encoding="utf-8-sig"), path)


def parse_hosts(text: str, source: str) -> tuple[Host, ...]:
    r"""Return the hosts of a text, in the order of their first lines.

    A line is ``host``, ``host:slots`` or ``host slots=N``, so that the files of MPICH and of Open
    MPI serve alike; without a number it is one slot. A host on several lines, as batch systems
    write them, has the slots of all. ``#`` starts a comment.

    Args:
        text: the content of the file.
        source: its name, for errors.

    Raises:
        ConfigError: for a line that is none of these, or a text without hosts.

    >>> parse_hosts("a:4  # with a comment", "hosts"), parse_hosts("a slots=2\nb\nb", "hosts")
    ((Host(name='a', slots=4),), (Host(name='a', slots=2), Host(name='b', slots=2)))
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].strip()
        if words:
            host = _host(words, f"{source}, line {number}")
            slots[host.name] = slots.get(host.name, 0) + host.slots
    if not slots:
        raise ConfigError(f"{source} names no host")
    return tuple(Host(name, count) for name, count in slots.items())


def _host(words: str, place: str) -> Host:
    if _is_ipv6(words):
        raise ConfigError(f"{place}: no IPv6 address is taken, expected a host's name: {words!r}")
    found = _LINE.fullmatch(words)
    if found is None:
        raise ConfigError(f"{place}: expected host, host:slots or host slots=N, got {words!r}")
    name, count = found["name"], found["colon"] or found["slots"] or "1"
    if not NAME.fullmatch(name):
        raise ConfigError(f"{place}: {name!r} is no name or address of a host")
    if not (count.isascii() and count.isdigit() and len(count) < 10 and 1 <= int(count) <= _MOST):
        raise ConfigError(f"{place}: expected 1 to {_MOST} slots, got {count!r}")
    return Host(name, int(count))


def _is_ipv6(words: str) -> bool:
    """Return whether a line begins with such an address, with or without its brackets or slots."""
    word = words.split()[0]
    for address in (word, word.rpartition(":")[0]):
        try:
            ipaddress.IPv6Address(address.strip("[]"))
        except ValueError:
            continue
        return True
    return False
