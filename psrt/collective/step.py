"""One step of a collective, the unit of schedules. Pure: no buffers, no MPI.

A collective algorithm is a generator of ``Step``: one rank's sends and receives in its own
order. Four consumers share it: the executor moves bytes, the prover (``proof.py``) shows that every
rank ends with every contribution exactly once, the cost model prices it, and ``psrt explain``
draws it.

Nomenclature, in all modules of this package:

=========  =======================================================================
``p``      number of ranks that take part, ``size`` in the code
``n``      number of elements of the vector, the same on every rank
chunk      one of p nearly equal spans of the vector
workspace  private elements behind the vector, ``[n, n + workspace)``; mostly none
round      all steps that happen at the same time
lg         logarithm to base 2; q = 2**⌊lg p⌋ is the largest power of two ≤ p
α          seconds per message of any length
β          seconds per element on the wire
γ          seconds per element to combine two values; copying is not counted
=========  =======================================================================

A schedule is a pure function of (rank, p, n), so no rank has to ask another for the next step.
Every generator guarantees:

1. *Exactly once.* Every rank ends with the contents that its spec requires; in a fold each of the
   p contributions counts once.
2. *Same bits.* All ranks end with the same bits, though addition in floating point is not
   associative: each element is summed either by one owner and copied by the others, or in the same
   bracketing everywhere, swapping only a + b for b + a, which round to the same value.
3. *No deadlock*, even where a send returns only once its receive is posted (rendezvous), as long
   as every rank runs its steps in order and posts both halves of a step before it waits for one.
"""

from __future__ import annotations

from typing import NamedTuple

from psrt.core.partition import Span

#: The span of a missing half of a step.
NOTHING = Span(0, 0)


class Step(NamedTuple):
    """One send and one receive of one rank, posted together and completed together.

    The value sent is the one before the step, even where ``send`` and ``receive`` are the same
    span, so a receive that combines goes to scratch memory first. Spans that are copied into never
    overlap the span that is being sent.

    Both sides of a message know its length beforehand. A message of an empty span carries
    nothing, and an executor may leave it out, since its peer will leave it out too. What travels
    between ranks leaves from the vector; it may land anywhere, but no span straddles the border
    between vector and workspace.

    A step is *local* where a rank is its own peer: it combines or copies ``send`` into
    ``receive``, which do not overlap, and costs no message.

    A combine puts the lower rank's operand first, ``fold(given, mine)`` where ``receive_from`` is
    the lower rank and ``fold(mine, given)`` elsewhere; a local one puts ``receive`` first. So two
    ranks that exchange compute the same expression, to the bit, whatever the operation.
    """

    #: Rank that ``send`` goes to; None: this step only receives.
    send_to: int | None
    #: Elements that leave.
    send: Span
    #: Rank that ``receive`` comes from; None: this step only sends.
    receive_from: int | None
    #: Where what arrives is for; as long as the sender's ``send`` and mostly at the same place.
    receive: Span
    #: Fold what arrives into the own values; otherwise it overwrites them.
    combine: bool

    @classmethod
    def sending(cls, to: int, span: Span) -> Step:
        """Return the step that sends ``span`` and receives nothing."""
        return cls(to, span, None, NOTHING, False)

    @classmethod
    def receiving(cls, source: int, span: Span, *, combine: bool) -> Step:
        """Return the step that receives ``span`` and sends nothing.

        Args:
            source: rank that sends.
            span: elements that are received.
            combine: fold them into the own values, rather than overwrite these.
        """
        return cls(None, NOTHING, source, span, combine)

    @classmethod
    def local(cls, rank: int, source: Span, into: Span, *, combine: bool) -> Step:
        """Return the step in which ``rank`` folds or copies its own ``source`` into ``into``.

        Args:
            rank: rank whose step it is.
            source: elements that are read.
            into: elements that are written, as many.
            combine: fold, rather than copy.

        >>> Step.local(2, Span(8, 12), Span(0, 4), combine=True).is_local(2)
        True
        """
        return cls(rank, source, rank, into, combine)

    def is_local(self, rank: int) -> bool:
        """Return whether this step of ``rank`` stays within its own memory."""
        return self.send_to == rank
