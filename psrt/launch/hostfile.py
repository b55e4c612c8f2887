"""Hostfiles: the hosts of a job and how many ranks each takes. One format for every MPI."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from psrt.core.errors import ConfigError
from psrt.core.files import read_text

#: Names that can safely be passed to mpirun, and by it to ssh: no leading dash, which would make a
#: flag, and no character with a meaning to a shell or in a list of hosts.
NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*")
#: ``max_slots``, which files of Open MPI may contain, is ignored.
_LINE = re.compile(
    r"(?P<name>[^\s:]+)"
    r"(?:\s*:\s*(?P<colon>\S+)"
    r"|(?P<pairs>(?:\s+(?:max[_-]?)?slots\s*=\s*[^\s=]+)+))?"
)
_SLOTS = re.compile(r"(?<![_\w-])slots\s*=\s*(\S+)")
#: More ranks on one host would be a typing error.
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Host:
    """A host, and the number of ranks started on it before the next host is used."""

    name: str
    slots: int
    #: User for ssh; empty for ssh's own default.
    user: str = ""

    @property
    def address(self) -> str:
        """The name for ssh.

        >>> Host("a", 1).address, Host("a", 1, "me").address
        ('a', 'me@a')
        """
        return f"{self.user}@{self.name}" if self.user else self.name


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Return the hosts of a file, see ``parse_hosts``.

    Raises:
        ConfigError: if it cannot be read, or a line is not valid.
    """
    # Editors on Windows begin a file with a byte order mark, which this encoding skips.
    return parse_hosts(read_text(path, "a hostfile", encoding="utf-8-sig"), path)


def parse_hosts(text: str, source: str) -> tuple[Host, ...]:
    r"""Return the hosts of a text, in the order of their first lines.

    A line is ``host``, ``host:slots`` or ``host slots=N max_slots=M``, with ``user@`` before the
    host if ssh needs it, so the files of both MPICH and Open MPI work. Without a number it is one
    slot. The slots of a host on several lines, as batch systems write them, add up. ``#`` starts a
    comment.

    Args:
        text: the content of the file.
        source: its name, for errors.

    Raises:
        ConfigError: for any other line, or a text without hosts.

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
        raise ConfigError(f"{source} names no host: expected a line such as node01 slots=4")
    return tuple(found.values())


def _host(words: str, place: str) -> Host:
    if _is_ipv6(words):
        raise ConfigError(f"{place}: expected the name of a host, got an IPv6 address: {words!r}")
    found = _LINE.fullmatch(words)
    if found is None:
        raise ConfigError(f"{place}: expected host, host:slots or host slots=N, got {words!r}")
    slots = _SLOTS.findall(found["pairs"] or "")
    if len(slots) > 1:
        raise ConfigError(f"{place}: slots is given twice: {words!r}")
    name, count = found["name"], found["colon"] or (slots[0] if slots else "1")
    if not NAME.fullmatch(name):
        raise ConfigError(f"{place}: {name!r} is not a valid name or address of a host")
    if not (count.isascii() and count.isdigit() and len(count) < 10 and 1 <= int(count) <= _MOST):
        raise ConfigError(f"{place}: expected 1 to {_MOST} slots, got {count!r}")
    user, _, host = name.rpartition("@")
    return Host(host, int(count), user)


def _is_ipv6(words: str) -> bool:
    """Return whether a line begins with an IPv6 address, with or without brackets or slots."""
    word = words.split()[0]
    for address in (word, word.rpartition(":")[0]):
        try:
            ipaddress.IPv6Address(address.strip("[]"))
        except ValueError:
            continue
        return True
    return False
