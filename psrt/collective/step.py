"""One step of a collective: the word that schedules are written in. Pure: no buffers, no MPI.

A collective algorithm is a generator of ``Step``: one rank's sends and receives in its own
order. The same generator is read by the executor, which moves bytes, and by the tests, which run
all ranks in one process and show that every rank ends with every contribution exactly once.

Nomenclature, in all modules of this package:

======  ==========================================================================
``p``   ranks that take part, ``size`` in the code
``n``   elements of the vector that is reduced; every rank holds one of that length
chunk   one of the p nearly equal spans that the vector is cut into
round   all steps that happen at the same time; the length of the schedule
α       seconds that a message costs whatever its length
β       seconds per element on the wire
γ       seconds per element to combine two values
======  ==========================================================================

A schedule is a pure function of (rank, p, n), so no rank ever asks another what comes next.
Each generator upholds three promises:

1. *Exactly once.* Every rank ends with the fold of all p contributions, each counted once.
2. *Same bits.* All ranks end with the same bits, though addition in floating point is not
   associative: each element is summed either by one owner whom the others copy, or in the same
   bracketing everywhere, swapping only a + b for b + a, which round to the same value.
3. *No deadlock*, even where a send returns only once its receive is posted (rendezvous), as long
   as every rank runs its steps in order and posts both halves of a step before it waits for one.
"""

from __future__ import annotations

from typing import NamedTuple

from psrt.partition import Span

#: The span of a half that a step does not have.
NOTHING = Span(0, 0)


class Step(NamedTuple):
    """One send and one receive of one rank, posted together and completed together.

    What leaves is the value that the rank held before the step, even where ``send`` and
    ``receive`` are the same span; so a receive that combines lands in scratch memory first. Spans
    that are copied into never overlap the span that is being sent.

    Both sides of a message know its length beforehand. A message of an empty span carries
    nothing, and an executor may leave it out, since its peer will leave it out too.
    """

    #: Rank that ``send`` goes to; None: this step only receives.
    send_to: int | None
    #: Elements that leave.
    send: Span
    #: Rank that ``receive`` comes from; None: this step only sends.
    receive_from: int | None
    #: Elements that arrive, at the same place of the vector as on the sender.
    receive: Span
    #: Fold what arrives into the own values; otherwise it overwrites them.
    combine: bool

    @classmethod
    def sending(cls, to: int, span: Span) -> Step:
        """Return the step that sends ``span`` and receives nothing."""
        return cls(to, span, None, NOTHING, False)

    @classmethod
    def receiving(cls, source: int, span: Span, *, combine: bool) -> Step:
        """Return the step that receives ``span`` and sends nothing."""
        return cls(None, NOTHING, source, span, combine)
