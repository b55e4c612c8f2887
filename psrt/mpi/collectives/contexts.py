"""Contexts, which all ranks derive from a call's signature: sync slots, tags, staging buffers.

All ranks make the same calls in the same order, so each gives the same slots to the same signatures
without communication. Decisions here may depend only on what is the same on every rank. Which
buffer a rank calls with, or which call it made last, may differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

import numpy as np

from psrt.core.arrays import AnyVector
from psrt.core.errors import ConfigError
from psrt.mpi.collectives.plans.plan import CollectiveContext
from psrt.mpi.collectives.slots import SHIFT, SLOTS, SyncSlot
from psrt.mpi.fabric import Fabric
from psrt.mpi.tags import FIRST_STEP

#: The suffix of a signature for a call's part between hosts.
BETWEEN = " between hosts"
#: The suffix for the gather of what owners made of the sums.
GATHERED = ", gathered"
#: The least staging memory, in bytes: a page.
_LEAST_STAGE = 4096


@dataclass(eq=False)
class ContextTable:
    """The contexts of one rank."""

    #: Of the ranks, with ``FLOATS`` numbers per rank.
    fabric: InitVar[Fabric]
    _: KW_ONLY
    #: The largest MPI tag to use.
    tags: int
    #: Waits until all ranks make the same call.
    meet: Callable[[str], None]
    _contexts: dict[str, CollectiveContext] = field(default_factory=dict, init=False)
    #: Slot → local rank → steps begun in it so far; see ``scheduled``.
    _bases: dict[int, dict[int, int]] = field(default_factory=dict, init=False)
    #: Signature → the segment of its staging memory.
    _stages: dict[str, int] = field(default_factory=dict, init=False)
    #: Size in bytes → segments that were staging memory of evicted contexts.
    _spare: dict[int, list[int]] = field(default_factory=dict, init=False)

    def __post_init__(self, fabric: Fabric) -> None:
        self._memory = fabric.memory
        self._layout = fabric.layout
        self._local_names = tuple(fabric.names[rank] for rank in fabric.layout.local_ranks)
        self._wakers = [fabric.wakeup.waker(r) for r in range(fabric.node.size)]
        self._segments = fabric.segments
        #: Signatures whose contexts are never evicted; the same on every rank.
        self.kept: set[str] = set()
        #: Called with a signature whose context is evicted: its plans must not run again.
        self.on_evict: Callable[[str], None] = lambda signature: None

    def of(self, signature: str, *, meet: bool = False) -> CollectiveContext:
        """Return the context of a signature.

        Args:
            signature: of a call.
            meet: whether all ranks meet if the context is new: for calls in which a rank may
                neither send nor receive, and so would not notice that others make another call.

        Raises:
            ProtocolError: if they do.
        """
        context = self._contexts.get(signature)
        if context is not None:
            return context
        if meet:
            self.meet(signature)
        number = len(self._contexts)
        if number == SLOTS:
            # The oldest goes, not the least recently used: only the age is the same on every rank.
            number = self._evict(self._oldest())
            # A slow rank may still read the slot's staging memory or words for its last call. After
            # this meeting no rank does, and the slot's counters continue from where they are.
            self.meet(f"buffers for {signature}")
        checksum = zlib.crc32(f"{number} {signature}".encode()) % (1 << SHIFT)
        slot = SyncSlot(
            self._memory,
            number,
            local_rank=self._layout.local_rank,
            size=len(self._layout.local_ranks),
            wakers=self._wakers,
            oversubscribed=self._layout.oversubscribed,
        )
        bases = self._bases.setdefault(
            number, dict.fromkeys(range(len(self._layout.local_ranks)), 0)
        )
        # The slot is part of the tag, so two calls in progress never share a tag: the rest of the
        # checksum only makes it likely that messages of different calls do not match.
        tag = FIRST_STEP + checksum % ((self.tags - FIRST_STEP) // SLOTS) * SLOTS + number
        context = CollectiveContext(slot, checksum, tag, self._local_names, bases)
        self._contexts[signature] = context
        return context

    def _oldest(self) -> str:
        """Return the oldest signature that may be evicted.

        Raises:
            ConfigError: if there is none.
        """
        for signature in self._contexts:
            if signature.removesuffix(BETWEEN) not in self.kept:
                return signature
        raise ConfigError(
            f"too many sums are kept: there is room for {SLOTS} inside and between hosts"
        )

    def _evict(self, signature: str) -> int:
        """Evict a context; return the number of its slot."""
        self.on_evict(signature.removesuffix(BETWEEN))
        if signature in self._stages:
            segment = self._stages.pop(signature)
            self._spare.setdefault(self._segments.buffers(segment)[0].size, []).append(segment)
        return self._contexts.pop(signature).slot.number

    def stage(self, signature: str, nbytes: int, kind: np.dtype[Any]) -> Sequence[AnyVector]:
        """Return ``nbytes`` of each node-local rank's staging memory; collective at first."""
        if signature not in self._stages:
            size = max(_LEAST_STAGE, 1 << (nbytes - 1).bit_length())
            spare = self._spare.get(size)
            if not spare:
                self.meet(f"staging for {signature}")
                spare = [self._segments.make(size)]
            self._stages[signature] = spare.pop()
        buffers = self._segments.buffers(self._stages[signature])
        return [buffer[:nbytes].view(kind) for buffer in buffers]
