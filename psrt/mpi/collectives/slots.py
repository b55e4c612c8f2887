"""Words in shared memory by which the ranks of one host synchronize their collectives.

Every compiled collective has a *slot*: a cache line of words and a little staging memory in the
window of each rank of the host, at the same slot number. A word has one writer; all ranks read it:

=====  =================================================================================
word   meaning
=====  =================================================================================
0      number of barriers reached so far, and the checksum of the call (``Barrier``)
1      number of steps begun so far: what they send may be read (``Progress``)
2      number of steps whose receipt was read so far: what was sent may be overwritten
3      checksum of the call that these steps belong to
=====  =================================================================================

Counters only grow, so a slot that is reused by another call needs no reset. A reset would need a
barrier of its own: a peer might still wait for the old count.
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

#: The number of collectives that can be compiled at a time.
SLOTS = 256
#: Words of a slot: one cache line of 64 bytes, so that ranks never write to the same line.
_WORDS = 8
#: Bytes of a slot's staging memory: three times the largest ``OneShot`` message.
STAGE_BYTES = 3 * ONE_SHOT_BYTES
#: float32 numbers that all slots need in a rank's window.
FLOATS = SLOTS * (_WORDS * 8 + STAGE_BYTES) // 4
_BARRIERS, BEGUN, READ, _CALL = 0, 1, 2, 3
#: Yields of a wait before it sets up its state, with more ranks than cores: most waits end within
#: one to three. With more yields, other calls in progress would wait too long for their turn.
QUICK_YIELDS = 16
#: Bits of checksum below the count in a 64-bit word: the other 40 bits count 2**40 barriers,
#: 12 days of one per microsecond without a pause.
SHIFT = 24

Ready: TypeAlias = Callable[[], bool]


class OtherCallError(PsrtError):
    """A peer's words belong to another call than this rank's."""


def clear_words(memory: NodeMemory, local: int) -> None:
    """Set this rank's words of all slots to zero: a new window may hold anything.

    A fence and a barrier must follow, before any peer reads them.
    """
    memory.numbers(local)[: SLOTS * _WORDS * 8 // 4] = 0.0


@dataclass(eq=False)
class SyncSlot:
    """One collective's words and staging, in the memory of every rank of the host."""

    #: The windows of this host, with at least ``FLOATS`` numbers per rank.
    memory: InitVar[NodeMemory]
    #: The slot's number.
    number: int
    _: KW_ONLY
    #: This rank's local rank.
    local_rank: int
    #: The number of ranks of the host.
    size: InitVar[int]
    #: Each rank's flag, and the function that wakes it.
    wakers: list[Waker]
    #: Whether a late rank may need this rank's core to arrive.
    oversubscribed: bool

    def __post_init__(self, memory: NodeMemory, size: int) -> None:
        """Make views of the words and stages."""
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
        """Set up; the count continues where the slot's last user left it.

        Args:
            slot: the slot of this collective.
            checksum: of the call, ``SHIFT`` bits; ranks whose checksums differ are in different
                calls.
        """
        #: This rank's words, and those of the others; word 0 of each belongs to the barriers.
        self.own = slot.words[slot.local_rank]
        self.others = [w for r, w in enumerate(slot.words) if r != slot.local_rank]
        self._words = slot.words
        #: Flags and wake functions of the others.
        self.wakers = [waker for r, waker in enumerate(slot.wakers) if r != slot.local_rank]
        #: The memory fence; None on processors that show stores in program order.
        self.fence = slot.fence
        self._oversubscribed = slot.oversubscribed
        #: The last word that this rank published: the count of its barriers, and the checksum.
        self.word = (self.own[_BARRIERS] >> SHIFT << SHIFT) | checksum

    def arrive(self) -> bool:
        """Publish that this rank has arrived, with all its earlier stores; return whether all have.

        Raises:
            OtherCallError: as ``is_complete``.
        """
        # Release: a peer that sees the count also sees every store before it. On x86 a store never
        # overtakes an earlier store or load, so only a compiler could reorder them, and CPython has
        # none that does. Elsewhere the fence is needed. It orders earlier loads, too: after this
        # count peers may overwrite what this rank has read.
        if self.fence is not None:
            self.fence()
        self.word = word = self.word + (1 << SHIFT)
        self.own[_BARRIERS] = word
        # This rank stores its count, then loads the flag; a sleeper stores its flag, then loads the
        # count once more. If both orders held, one of the two would see the other (Dekker). But
        # there is no full fence here, since it would cost every barrier, and even x86 lets a load
        # overtake an earlier store. So both may miss each other. The sleeper's bound of a
        # millisecond then ends the sleep.
        for asleep, wake in self.wakers:
            if asleep[0]:
                wake()
        for others in self.others:
            if others[_BARRIERS] != word:
                # Late, ahead, or in another call. A store takes about as long from core to core as
                # one or two polls, and a general wait costs more than polling again. But if the
                # late rank may need this core, it is better to yield at once.
                return self.is_complete() or (
                    not self._oversubscribed and (self.is_complete() or self.is_complete())
                )
        # Acquire: this rank's loads of what the others wrote come after the loads of their counts.
        # x86 does not reorder loads; elsewhere the fence is needed.
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
                # The same count with another checksum: it has arrived in another call. Count and
                # checksum are in one aligned word of 8 bytes, which is read and written whole, so
                # the two always belong together.
                if theirs >> SHIFT == word >> SHIFT:
                    raise OtherCallError("the ranks of this host are in different calls")
                # Greater is one barrier ahead, never two: the peer has seen this rank arrive here
                # with its own checksum, and waits for it at the next one.
                if theirs < word:
                    return False
        # Acquire: as in ``arrive``.
        if self.fence is not None:
            self.fence()
        return True

    def absent(self) -> list[int]:
        """Return the local ranks that have not arrived."""
        return [r for r, words in enumerate(self._words) if words[_BARRIERS] < self.word]


class Progress:
    """This rank's progress in the steps of one collective, published to its peers."""

    def __init__(self, slot: SyncSlot, checksum: int) -> None:
        self._own = slot.words[slot.local_rank]
        self._wakers = [waker for r, waker in enumerate(slot.wakers) if r != slot.local_rank]
        self._fence = slot.fence
        self._words = slot.words
        self._checksum = checksum

    def enter(self) -> None:
        """Publish which call the counts belong to from here on."""
        # No fence: peers read this word only after they have seen the first BEGUN, whose release
        # comes later in program order and so covers this store. Nor can a peer still need the old
        # value: it read that when it saw a step begun, and has acknowledged the receipt since,
        # which this rank has waited for.
        self._own[_CALL] = self._checksum

    def say(self, word: int, count: int) -> None:
        """Publish a counter: ``BEGUN`` or ``READ``."""
        # Release. For BEGUN it orders stores before this count: what is sent is in the window
        # before a peer sees the step begun. For READ it orders loads before this count: the copy
        # out of the peer's window is over before the peer may write there.
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
        # Acquire: what the peer sent is read after its counter. So is the checksum below, which it
        # wrote before its first step (``enter``).
        if self._fence is not None:
            self._fence()
        if word == BEGUN and words[_CALL] != self._checksum:
            raise OtherCallError("the ranks of this host are in different calls")
        return True
