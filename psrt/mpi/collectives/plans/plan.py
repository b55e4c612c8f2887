"""What a compiled collective is, and what it shares with its counterparts on other ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from psrt.mpi.collectives.slots import Barrier, Progress, Ready, SyncSlot

#: One execution: yields functions that must return True before it continues. What it returns, if
#: anything, is the result of its ``Work``.
Run: TypeAlias = Generator[Ready, None, Any]


class Plan:
    """One collective on one buffer."""

    #: Bytes that one run sends to other ranks, or writes for them; where runs differ, the newest.
    bytes_sent: int = 0
    #: Bytes that one run receives from other ranks; likewise.
    bytes_received: int = 0
    #: Whether it waits for anything that comes by MPI, which wakes no sleeper.
    polls: bool = False
    #: Whether that progresses only while it is polled, so that a sleep would delay all ranks.
    spins: bool = False
    #: Whether it is part of a call that all ranks make, and not a message between two.
    is_call: bool = True

    def run(self) -> Run:
        """Run it, once."""
        raise NotImplementedError

    def waiting_for(self) -> str:
        """Name the ranks waited for."""
        raise NotImplementedError

    def free(self) -> None:
        """Free all resources, and drop views of others' memory; only between runs."""


@dataclass(slots=True)
class CollectiveContext:
    """What all ranks agree on for a collective: its slot, its checksum and tag, its counters."""

    #: The words on this host.
    slot: SyncSlot
    #: The checksum of the call, ``SHIFT`` bits.
    checksum: int
    #: The tag of its MPI messages.
    tag: int
    #: Local rank → the rank's number in messages.
    local_names: tuple[int, ...]
    #: Local rank → steps begun so far in this slot, by any call: see ``scheduled``.
    bases: dict[int, int]
    #: The number of stages used so far, modulo 3: see ``staged``.
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
    """A plan of ranks of one host that wait for each other only at barriers."""

    context: CollectiveContext

    def waiting_for(self) -> str:
        """Name the ranks that have not arrived."""
        return self.context.absent()


@dataclass(eq=False)
class Around(Plan):
    """A plan around another plan, which moves the numbers."""

    plan: Plan

    def __post_init__(self) -> None:
        self.polls, self.spins = self.plan.polls, self.plan.spins

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """Bytes that one run sends to other ranks."""
        return self.plan.bytes_sent

    @property
    def bytes_received(self) -> int:  # type: ignore[override]
        """Bytes that one run receives from other ranks."""
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
    #: The plan that is running.
    at: Plan | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.polls = any(plan.polls for plan in self.plans)
        self.bytes_sent = sum(plan.bytes_sent for plan in self.plans)
        self.bytes_received = sum(plan.bytes_received for plan in self.plans)

    def waiting_for(self) -> str:
        """Name the ranks waited for in the running plan."""
        return nobody() if self.at is None else self.at.waiting_for()

    def free(self) -> None:
        """Free all of them."""
        for plan in self.plans:
            plan.free()


class Quiet(Around):
    """A plan that runs without warnings about numbers that are not finite."""

    def run(self) -> Run:
        """Run it."""
        for ready in quiet(self.plan.run()):
            yield partial(_quietly, ready)


def _quietly(ready: Ready) -> bool:
    with np.errstate(all="ignore"):  # the sum of frames continues in here
        return ready()


def quiet(run: Run) -> Run:
    """Run without overflow warnings: half precision overflows early, with a defined result."""
    while True:
        # Not around the yield: other code that runs meanwhile keeps its own warnings.
        with np.errstate(all="ignore"):
            ready = next(run, None)
        if ready is None:
            return
        yield ready


def name_ranks(ranks: list[int]) -> str:
    """Return ranks in words.

    >>> name_ranks([3]), name_ranks([1, 2])
    ('rank 3', 'ranks 1, 2')
    """
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


def nobody() -> str:
    """Return that no rank is waited for."""
    return "nobody"


#: Folds two arrays into ``out``.
Fold: TypeAlias = Callable[..., Any]
