"""Hostfiles: the hosts of a job and how many ranks each takes. One format for every MPI."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.core.files import read_text

#: What may be handed to an mpirun, and by it to ssh, as a host: no leading dash, which would be a
#: flag, and nothing that a shell or a list of hosts takes for its own.
NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*")
#: The largest number of ranks, which Open MPI's files may name, too, is of no use here.
_LINE = re.compile(
    r"(?P<name>[^\s:]+)"
    r"(?:\s*:\s*(?P<colon>\S+)"
    r"|(?P<pairs>(?:\s+(?:max[_-]?)?slots\s*=\s*[^\s=]+)+))?"
)
_SLOTS = re.compile(r"(?<![_\w-])slots\s*=\s*(\S+)")
#: More ranks on one host are a slip of the pen.
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Host:
    """A host, and the number of ranks that are started there before the next is used."""

    name: str
    slots: int
    #: As whom ssh is to come there; empty for what ssh takes by itself.
    user: str = ""

    @property
    def address(self) -> str:
        """What ssh is given.

        >>> Host("a", 1).address, Host("a", 1, "me").address
        ('a', 'me@a')
        """
        return f"{self.user}@{self.name}" if self.user else self.name


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Return the hosts of a file, see ``parse_hosts``.

    Raises:
        ConfigError: if it cannot be read, or a line is none of a hostfile.
    """
    # Editors of Windows begin a file with the mark that this encoding leaves out.
    return parse_hosts(read_text(path, "a hostfile", encoding="utf-8-sig"), path)


def parse_hosts(text: str, source: str) -> tuple[Host, ...]:
    r"""Return the hosts of a text, in the order of their first lines.

    A line is ``host``, ``host:slots`` or ``host slots=N max_slots=M``, with ``user@`` before the
    host where ssh needs it, so that the files of MPICH and of Open
    MPI serve alike; without a number it is one slot. A host on several lines, as batch systems
    write them, has the slots of all. ``#`` starts a comment.

    Args:
        text: the content of the file.
        source: its name, for errors.

    Raises:
        ConfigError: for a line that is none of these, or a text without hosts.

    >>> [(it.name, it.slots) for it in parse_hosts("a slots=2  # a comment\nb:1\nb", "hosts")]
    [('a', 2), ('b', 2)]
    """
    found: dict[str, Host] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].strip()
        if words:
            host = _host(words, f"{source}, line {number}")
            before = found.get(host.name, Host(host.name, 0))
            slots, user = before.slots + host.slots, before.user or host.user
            found[host.name] = Host(host.name, slots, user)
    if not found:
        raise ConfigError(f"{source} names no host")
    return tuple(found.values())


def _host(words: str, place: str) -> Host:
    if _is_ipv6(words):
        raise ConfigError(f"{place}: no IPv6 address is taken, expected a host's name: {words!r}")
    found = _LINE.fullmatch(words)
    if found is None:
        raise ConfigError(f"{place}: expected host, host:slots or host slots=N, got {words!r}")
    slots = _SLOTS.findall(found["pairs"] or "")
    if len(slots) > 1:
        raise ConfigError(f"{place}: slots are given twice: {words!r}")
    name, count = found["name"], found["colon"] or (slots[0] if slots else "1")
    if not NAME.fullmatch(name):
        raise ConfigError(f"{place}: {name!r} is no name or address of a host")
    if not (count.isascii() and count.isdigit() and len(count) < 10 and 1 <= int(count) <= _MOST):
        raise ConfigError(f"{place}: expected 1 to {_MOST} slots, got {count!r}")
    user, _, host = name.rpartition("@")
    return Host(host, int(count), user)


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
