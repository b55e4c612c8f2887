"""Words in shared memory by which the ranks of one host keep step in their collectives.

Every collective that is compiled takes a *slot*: a line of words and a little staging memory in the
memory of each rank of the host, all of the same number. A word has one writer; everybody reads:

=====  =================================================================================
word   meaning
=====  =================================================================================
0      barriers come to so far, and the checksum of the call (``Barrier``)
1      steps begun so far: what they send may be read (``Progress``)
2      steps whose receipt has been read so far: what was sent may be overwritten
3      the checksum of the call whose steps these are
=====  =================================================================================

Counters only grow, so a slot that is used again by another call needs no clean-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TypeAlias

import numpy as np

from psrt.collective.registry import ONE_SHOT_BYTES
from psrt.core.arrays import Bytes
from psrt.core.errors import PsrtError
from psrt.mpi.links.shared_memory import NodeMemory, Waker

#: Collectives that can be compiled at a time.
SLOTS = 256
#: Words of a slot: one cache line.
_WORDS = 8
#: Bytes of a slot's staging memory: three times what the smallest messages need.
STAGE_BYTES = 3 * ONE_SHOT_BYTES
#: float32 numbers that a rank's window must have for all slots.
FLOATS = SLOTS * (_WORDS * 8 + STAGE_BYTES) // 4
_BARRIERS, BEGUN, READ, _CALL = 0, 1, 2, 3
#: Yields of a wait before it gets its own state, with more ranks than cores: most waits end within
#: one to three. More would keep what else is under way from being moved on.
QUICK_YIELDS = 16
#: Bits of checksum below the count: 2**40 barriers are enough for years.
SHIFT = 24

Ready: TypeAlias = Callable[[], bool]


class OtherCallError(PsrtError):
    """A peer's words are of another call than this rank's."""


def clear_words(memory: NodeMemory, local: int) -> None:
    """Set this rank's words of all slots to zero: new windows may hold anything.

    Nobody may look at them before that; so a barrier must follow.
    """
    memory.numbers(local)[: SLOTS * _WORDS * 8 // 4] = 0.0


@dataclass(eq=False)
class SyncSlot:
    """One collective's words and staging, in the memory of every rank of the host."""

    #: Of this host, with at least ``FLOATS`` numbers a rank.
    memory: InitVar[NodeMemory]
    #: This slot's.
    number: int
    _: KW_ONLY
    #: This rank, on its host.
    local_rank: int
    #: Ranks of the host.
    size: InitVar[int]
    #: Each rank's flag and what wakes it.
    wakers: list[Waker]
    #: Whether who is waited for may need this rank's core to arrive.
    oversubscribed: bool

    def __post_init__(self, memory: NodeMemory, size: int) -> None:
        """Find the words."""
        buffers = [memory.numbers(r).view(np.uint8) for r in range(size)]
        at = self.number * _WORDS * 8
        #: Local rank → its words.
        self.words = [b[at : at + _WORDS * 8].data.cast("B").cast("Q") for b in buffers]
        at = SLOTS * _WORDS * 8 + self.number * STAGE_BYTES
        #: Local rank → its staging memory, ``STAGE_BYTES`` bytes.
        self.stages: list[Bytes] = [b[at : at + STAGE_BYTES] for b in buffers]
        self.fence = memory.fence_if_needed()


class Barrier:
    """The barrier of one collective: ``arrive``, then wait until ``is_complete``."""

    def __init__(self, slot: SyncSlot, checksum: int) -> None:
        """Set up; the count goes on where the slot's last user left it.

        Args:
            slot: of this collective.
            checksum: of the call, ``SHIFT`` bits; the same on every rank, or somebody errs.
        """
        #: This rank's words, and those of the others; the first of each is of the barriers.
        self.own = slot.words[slot.local_rank]
        self.others = [w for r, w in enumerate(slot.words) if r != slot.local_rank]
        self._words = slot.words
        #: What wakes the others.
        self.wakers = [waker for r, waker in enumerate(slot.wakers) if r != slot.local_rank]
        #: What orders stores; None where they are seen in order.
        self.fence = slot.fence
        self._oversubscribed = slot.oversubscribed
        #: What this rank published last: the count of its barriers, and the checksum.
        self.word = (self.own[_BARRIERS] >> SHIFT << SHIFT) | checksum

    def arrive(self) -> bool:
        """Publish that this rank has arrived, with all it wrote before; return whether all have.

        Raises:
            OtherCallError: as ``is_complete``.
        """
        # Release: whoever sees the count sees what was written before it. On x86 a store never
        # overtakes an earlier one, so only the compiler could reorder them, and Python has none
        # that does; elsewhere the fence holds it back.
        if self.fence is not None:
            self.fence()
        self.word = word = self.word + (1 << SHIFT)
        self.own[_BARRIERS] = word
        # The flag is read after the count is stored, and a sleeper raises its flag before it looks
        # at the count once more. Even x86 lets this load overtake that store, so both may miss
        # each other; the sleeper's own bound, a millisecond, ends that.
        for asleep, wake in self.wakers:
            if asleep[0]:
                wake()
        for others in self.others:
            if others[_BARRIERS] != word:
                # Late, ahead, or in another call. A store takes about a look or two from core to
                # core, and to wait at length costs more than to look again; unless who is late
                # needs this core, which is then better yielded at once.
                return self.is_complete() or (
                    not self._oversubscribed and (self.is_complete() or self.is_complete())
                )
        # Acquire: what the others wrote is read only after their counts.
        if self.fence is not None:
            self.fence()
        return True

    def is_complete(self) -> bool:
        """Return whether all others have arrived.

        Raises:
            OtherCallError: if one of them has arrived in another call.
        """
        word = self.word
        for others in self.others:
            theirs = others[_BARRIERS]
            if theirs != word:
                # The same count with another checksum: it has come for another call. The count is
                # compared whole, with the checksum in the same 8 bytes, so it is never half old.
                if theirs >> SHIFT == word >> SHIFT:
                    raise OtherCallError("the ranks of this host are in different calls")
                # Greater is one barrier ahead, never two: it has seen this rank at this one, and
                # agreed, and waits at the next.
                if theirs < word:
                    return False
        # Acquire: what the others wrote is read only after their counts.
        if self.fence is not None:
            self.fence()
        return True

    def absent(self) -> list[int]:
        """Return the local ranks that have not arrived."""
        return [r for r, words in enumerate(self._words) if words[_BARRIERS] < self.word]


class Progress:
    """How far this rank is in the steps of one collective, for its peers to see."""

    def __init__(self, slot: SyncSlot, checksum: int) -> None:
        self._own = slot.words[slot.local_rank]
        self._wakers = [waker for r, waker in enumerate(slot.wakers) if r != slot.local_rank]
        self._fence = slot.fence
        self._words = slot.words
        self._checksum = checksum

    def enter(self) -> None:
        """Publish which call the counts belong to from here on."""
        # No fence: nobody looks at it before it has seen the first BEGUN, whose release comes later
        # in program order and so covers this store. Peers cannot still be reading the old one: they
        # looked at it when they saw a step begun whose receipt they have acknowledged since.
        self._own[_CALL] = self._checksum

    def say(self, word: int, count: int) -> None:
        """Publish a counter: ``BEGUN`` or ``READ``."""
        # Release. For BEGUN: what is sent lies in the window before a peer sees the step begun.
        # For READ: the copy out of the peer's window is over before the peer may write there.
        if self._fence is not None:
            self._fence()
        self._own[word] = count
        for asleep, wake in self._wakers:
            if asleep[0]:
                wake()

    def reached(self, local: int, word: int, count: int) -> bool:
        """Return whether a peer's counter is at least ``count``.

        Raises:
            OtherCallError: if it counts the steps of something else.
        """
        words = self._words[local]
        if words[word] < count:
            return False
        # Acquire: what the peer sent is read after its counter, and so is the checksum below, which
        # it wrote before its first step (``enter``).
        if self._fence is not None:
            self._fence()
        if word == BEGUN and words[_CALL] != self._checksum:
            raise OtherCallError("the ranks of this host are in different calls")
        return True
