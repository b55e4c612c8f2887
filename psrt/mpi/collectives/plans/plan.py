"""What a compiled collective is, and what it shares with its like on the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from psrt.mpi.collectives.slots import Barrier, Progress, Ready, SyncSlot

#: One execution: yields what must become true before it goes on.
Run: TypeAlias = Generator[Ready, None, None]


class Plan:
    """One collective on one buffer."""

    #: Bytes that one run hands to other ranks, or writes for them; where runs differ, the newest.
    bytes_sent: int = 0
    #: Bytes that one run takes from other ranks; likewise.
    bytes_received: int = 0
    #: Whether some of what it waits for comes by MPI, which wakes no sleeper.
    polls: bool = False
    #: Whether that makes progress only while it is polled, so that a sleep would hold up everybody.
    spins: bool = False

    def run(self) -> Run:
        """Run it, once."""
        raise NotImplementedError

    def waiting_for(self) -> str:
        """Name the ranks waited for."""
        raise NotImplementedError

    def free(self) -> None:
        """Free what was made, and let go of the memory of others; only between runs."""


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


@dataclass(eq=False)
class OnHost(Plan):
    """A plan of ranks of one host that wait for each other at a barrier, and nowhere else."""

    context: CollectiveContext

    def waiting_for(self) -> str:
        """Name the ranks that have not arrived."""
        return self.context.absent()


@dataclass(eq=False)
class Around(Plan):
    """A plan around another one, which moves the numbers."""

    plan: Plan

    def __post_init__(self) -> None:
        self.polls, self.spins = self.plan.polls, self.plan.spins

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """Bytes that one run hands to other ranks."""
        return self.plan.bytes_sent

    @property
    def bytes_received(self) -> int:  # type: ignore[override]
        """Bytes that one run takes from other ranks."""
        return self.plan.bytes_received

    def waiting_for(self) -> str:
        """Name the ranks waited for."""
        return self.plan.waiting_for()

    def free(self) -> None:
        """Free the plan."""
        self.plan.free()


@dataclass(eq=False)
class InTurn(Plan):
    """Plans that run one after another."""

    plans: Sequence[Plan]
    #: That which runs.
    at: Plan | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.polls = any(plan.polls for plan in self.plans)
        self.bytes_sent = sum(plan.bytes_sent for plan in self.plans)
        self.bytes_received = sum(plan.bytes_received for plan in self.plans)

    def waiting_for(self) -> str:
        """Name the ranks waited for in the plan that does not end."""
        return nobody() if self.at is None else self.at.waiting_for()

    def free(self) -> None:
        """Free all of them."""
        for plan in self.plans:
            plan.free()


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
