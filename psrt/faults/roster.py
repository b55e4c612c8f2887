"""Who takes part in a job: each rank's role, host and process, and how it is called in messages."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a job."""

    rank: int
    #: Such as ``worker 3``; empty until roles are given out.
    role: str
    #: The name that its machine gives itself.
    host: str
    pid: int
    #: The process namespace that ``pid`` belongs to: only ranks of the same one can look it up.
    namespace: int = 0

    def __str__(self) -> str:
        """Return the name for messages, as in ``worker 3 (rank 5, node02, pid 9410)``."""
        place = f"{self.host}, pid {self.pid}"
        if not self.role:
            return f"rank {self.rank} ({place})"
        return f"{self.role} (rank {self.rank}, {place})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def this_process(rank: int) -> Member:
    """Return the entry of the calling process."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # no /proc: nobody can look up anybody
        namespace = -os.getpid()
    return Member(rank, "", socket.gethostname(), os.getpid(), namespace)


class Roster:
    """The members of a job by rank; some may be missing while it starts."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._members: dict[int, Member] = {}
        self._roles: dict[int, str] = {}

    def add(self, member: Member) -> None:
        """Add a rank that has started."""
        role = self._roles.get(member.rank, "")
        self._members[member.rank] = replace(member, role=role)

    def give_roles(
        self, servers: Sequence[int], workers: Sequence[int], places: Sequence[str] = ()
    ) -> None:
        """Name the ranks by their roles from now on; the order is that of their numbers.

        Args:
            servers: their ranks.
            workers: their ranks.
            places: by worker, where it is in a split model, such as ``stage 1``; else empty.
        """
        for kind, ranks in (("server", servers), ("worker", workers)):
            for number, rank in enumerate(ranks):
                place = f", {places[number]}" if places and kind == "worker" else ""
                self._roles[rank] = f"{kind} {number}{place}"
        for member in list(self._members.values()):
            self.add(member)

    def __getitem__(self, rank: int) -> Member | None:
        """Return the entry of a rank; None if it is not known."""
        return self._members.get(rank)

    def name(self, rank: int) -> str:
        """Return what to call a rank."""
        member = self._members.get(rank)
        if member is not None:
            return str(member)
        role = self._roles.get(rank)
        return f"rank {rank}" if role is None else f"{role} (rank {rank})"

    def on_host_of(self, rank: int) -> list[int]:
        """Return the other ranks that can look up the process of a rank."""
        mine = self._members.get(rank)
        if mine is None:
            return []
        return [
            other.rank
            for other in list(self._members.values())  # it may be growing
            if other.rank != rank and (other.host, other.namespace) == (mine.host, mine.namespace)
        ]

    def hosts(self) -> dict[int, list[int]]:
        """Return for each rank the ranks of its host, itself included, that can look it up."""
        hosts: dict[tuple[str, int], list[int]] = {}
        for rank in sorted(self._members):
            member = self._members[rank]
            hosts.setdefault((member.host, member.namespace), []).append(rank)
        return {rank: ranks for ranks in hosts.values() for rank in ranks}

    def to_text(self) -> str:
        """Return ``roster.json``: the members, by rank."""
        lines = []
        for rank in sorted(self._members):
            member = self._members[rank]
            fields = {
                "rank": rank, "role": member.role, "host": member.host, "pid": member.pid,
            }  # fmt: skip
            lines.append(json.dumps(fields))
        return "[\n " + ",\n ".join(lines) + "\n]\n"


def names(roster: Roster, ranks: Iterable[int], most: int = 4) -> str:
    """Return the names of several ranks, the first few of many."""
    ranks = sorted(ranks)
    shown = ", ".join(map(roster.name, ranks[:most]))
    return shown if len(ranks) <= most else f"{shown} and {len(ranks) - most} more"


def how_it_ended(code: int | None) -> str:
    """Describe a process's end.

    Args:
        code: as ``waitpid`` gives it; None if it is not known.

    >>> how_it_ended(9), how_it_ended(256), how_it_ended(None)
    ('was killed by signal 9 (SIGKILL)', 'exited with status 1', 'died')
    """
    if code is None:
        return "died"
    if code & 0x7F:
        number = code & 0x7F
        try:
            word = f" ({signal.Signals(number).name})"
        except ValueError:
            word = ""
        return f"was killed by signal {number}{word}"
    return f"exited with status {code >> 8}"
