"""What all ranks derive from a call's sheet: slots of the shared memory, marks, staging room.

All ranks make the same calls in the same order, so each gives out the same slots to the same
sheets without asking anybody. Only what is the same on every rank may decide here: which buffer a
rank calls with, or which call it made last, is not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psrt.mpi.collectives.plans.plan import Array, Ticket
from psrt.mpi.collectives.slots import SHIFT, SLOTS, Slot
from psrt.mpi.hosts import Layout
from psrt.mpi.links.segments import Regions
from psrt.mpi.links.shared_memory import Cord, NodeMemory

#: What a sheet ends with that is about a call's part between hosts.
BETWEEN = " between hosts"
#: The least staging memory, in bytes: a page.
_LEAST_STAGE = 4096


class Tickets:
    """The tickets of one rank."""

    def __init__(
        self,
        memory: NodeMemory,
        layout: Layout,
        cords: list[Cord],
        regions: Regions,
        *,
        tags: int,
        meet: Callable[[str], None],
    ) -> None:
        """Set up.

        Args:
            memory: of this host, with ``FLOATS`` numbers a rank.
            layout: who is on which host.
            cords: each mate's flag and what wakes it.
            regions: where staging memory is allocated.
            tags: the largest MPI tag to use.
            meet: waits until all ranks make the same call.
        """
        self._memory = memory
        self._layout = layout
        self._cords = cords
        self._regions = regions
        self._tags = tags
        self._meet = meet
        self._tickets: dict[str, Ticket] = {}
        #: Called with a sheet whose ticket is given away: its plans must not run any more.
        self.on_evict: Callable[[str], None] = lambda sheet: None
        #: Slot → local rank → steps begun in it so far.
        self._bases: dict[int, dict[int, int]] = {}
        #: Sheet → the region of its staging memory.
        self._stages: dict[str, int] = {}
        #: Size in bytes → regions that were staging memory of tickets given away.
        self._spare: dict[int, list[int]] = {}

    def of(self, sheet: str) -> Ticket:
        """Return what all ranks derive from a sheet."""
        ticket = self._tickets.get(sheet)
        if ticket is not None:
            return ticket
        number = len(self._tickets)
        if number == SLOTS:
            # The oldest goes, whoever used which last: only this is the same on every rank.
            number = self._evict(next(iter(self._tickets)))
            # A slow rank may have ended its call and still be reading what lies there.
            self._meet(f"room for {sheet}")
        checksum = zlib.crc32(f"{number} {sheet}".encode()) % (1 << SHIFT)
        slot = Slot(
            self._memory,
            number,
            local=self._layout.local,
            size=len(self._layout.mates),
            cords=self._cords,
        )
        bases = self._bases.setdefault(number, dict.fromkeys(range(len(self._layout.mates)), 0))
        # The slot is in the tag, so calls that are under way together never share one.
        tag = checksum % (self._tags // SLOTS) * SLOTS + number + 1
        ticket = Ticket(slot, checksum, tag, self._layout.mates, bases)
        self._tickets[sheet] = ticket
        return ticket

    def _evict(self, sheet: str) -> int:
        """Let go of a ticket; return the number of its slot."""
        self.on_evict(sheet.removesuffix(BETWEEN))
        if sheet in self._stages:
            region = self._stages.pop(sheet)
            self._spare.setdefault(self._regions.rooms(region)[0].size, []).append(region)
        return self._tickets.pop(sheet).slot.number

    def stage(self, sheet: str, nbytes: int, kind: np.dtype[Any]) -> Sequence[Array]:
        """Return each mate's staging memory of so many bytes; collective the first time."""
        if sheet not in self._stages:
            size = max(_LEAST_STAGE, 1 << (nbytes - 1).bit_length())
            spare = self._spare.get(size)
            if not spare:
                self._meet(f"staging for {sheet}")
                spare = [self._regions.make(size)]
            self._stages[sheet] = spare.pop()
        rooms = self._regions.rooms(self._stages[sheet])
        return [room[:nbytes].view(kind) for room in rooms]
