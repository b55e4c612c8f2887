"""What a compiled collective is, and what it shares with its like on the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from psrt.mpi.collectives.slots import Barrier, Progress, Ready, SyncSlot

#: One execution: yields what must become true before it goes on.
Run: TypeAlias = Generator[Ready, None, None]


class Plan(Protocol):
    """One collective on one buffer."""

    #: Bytes that one run hands to other ranks, or writes for them; where runs differ, the newest.
    bytes_sent: int
    #: Bytes that one run takes from other ranks; likewise.
    bytes_received: int
    #: Whether some of what it waits for comes by MPI, which wakes no sleeper.
    polls: bool
    #: Whether that makes progress only while it is polled, so that a sleep would hold up everybody.
    spins: bool = False

    def run(self) -> Run:
        """Run it, once."""
        ...

    def waiting_for(self) -> str:
        """Name the ranks waited for."""
        ...

    def free(self) -> None:
        """Free what was made."""
        ...


@dataclass(slots=True)
class CollectiveContext:
    """What all ranks agree on about a collective: its place, its marks, how often it ran."""

    #: Words on this host.
    slot: SyncSlot
    #: Of the call, ``SHIFT`` bits.
    checksum: int
    #: Of its MPI messages.
    tag: int
    #: Local rank → number of the rank in messages.
    local_names: tuple[int, ...]
    #: Local rank → steps begun so far, in this slot, whatever ran in it: see ``scheduled``.
    bases: dict[int, int]
    #: Stages used so far, modulo 3: see ``staged``.
    turn: int = 0
    barrier: Barrier = field(init=False)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.slot, self.checksum)
        self.progress = Progress(self.slot, self.checksum)

    def absent(self) -> str:
        """Name the node-local ranks that have not arrived at the barrier."""
        ranks = [self.local_names[r] for r in self.barrier.absent()]
        return name_ranks(ranks)


def name_ranks(ranks: list[int]) -> str:
    """Return ranks as words.

    >>> name_ranks([3]), name_ranks([1, 2])
    ('rank 3', 'ranks 1, 2')
    """
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


def nobody() -> str:
    """Say that nobody is waited for."""
    return "nobody"


#: Folds two arrays into ``out``.
Fold: TypeAlias = Callable[..., Any]
