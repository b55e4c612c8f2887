"""Recursive halving and doubling among a power of two of ranks. Pure: ranks and spans.

The vector is split into w = 2**k chunks, and all ranks begin with an interest in all of them. In
each round a rank and the partner whose number differs in the highest bit not yet used split what
they share: the lower number keeps the lower half, the other the upper one, and each sends what it
does not keep. After k rounds number i is left with the sum of chunk i: a reduce-scatter. Run
backwards, copying, it is an all-gather. What a rank keeps, for w = 4:

.. code-block:: text

    number     start      halving: bit 1   bit 0       doubling: bit 0   bit 1
      0       0 1 2 3        0 1           0              0 1           0 1 2 3
      1       0 1 2 3        0 1             1            0 1           0 1 2 3
      2       0 1 2 3            2 3           2              2 3       0 1 2 3
      3       0 1 2 3            2 3             3            2 3       0 1 2 3

**Cost.** The rounds of halving send n/2, n/4, … n/w elements, n(w − 1)/w in all, and as many are
folded; doubling sends the same:

    T = k·α + n(w − 1)/w·(β + γ)      and back      T = k·α + n(w − 1)/w·β

The highest bit comes first so that what is kept is always one span.

**No deadlock.** In each round all post both halves, and partners have each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psrt.collective.step import Step
from psrt.core.partition import Span, even_spans


@dataclass(frozen=True, slots=True)
class Halving:
    """One number's part among ``ranks``, a power of two of them.

    >>> part = Halving.of(1, [0, 1, 2, 3], 8)
    >>> part.own
    Span(start=2, stop=4)
    >>> [(s.send_to, s.send.start, s.send.size) for s in part.reduce_scatter()]
    [(3, 4, 4), (0, 0, 2)]
    """

    number: int
    #: The ranks by number.
    ranks: Sequence[int]
    #: Where chunk i begins, and the end of the last one: one more than ranks.
    cuts: Sequence[int]

    @classmethod
    def of(cls, number: int, ranks: Sequence[int], n: int, finest: int = 0) -> Halving:
        """Split ``n`` elements into a chunk per rank.

        Args:
            number: of this rank, an index of ``ranks``.
            ranks: a power of two of them.
            n: elements in the vector, ≥ 0.
            finest: a multiple of ``len(ranks)``: each chunk is an equal number of ``finest`` even
                chunks, so that blocks of different sizes agree on where to split. Default: one.
        """
        finest = finest or len(ranks)
        starts = [chunk.start for chunk in even_spans(n, finest)]
        return cls(number, ranks, (*starts[:: finest // len(ranks)], n))

    @property
    def own(self) -> Span:
        """The chunk that this number is left with."""
        return Span(self.cuts[self.number], self.cuts[self.number + 1])

    def reduce_scatter(self) -> Iterator[Step]:
        """Yield the rounds of halving."""
        for partner, kept, given in self._rounds():
            yield Step(partner, given, partner, kept, True)

    def all_gather(self) -> Iterator[Step]:
        """Yield the rounds of doubling, which undo those of halving."""
        for partner, kept, given in reversed(list(self._rounds())):
            yield Step(partner, kept, partner, given, False)

    def _rounds(self) -> Iterator[tuple[int, Span, Span]]:
        """Yield the partner, what is kept and what is given, the longest first."""
        low, bit = 0, len(self.ranks) // 2
        while bit:
            lower = Span(self.cuts[low], self.cuts[low + bit])
            upper = Span(self.cuts[low + bit], self.cuts[low + 2 * bit])
            partner = self.ranks[self.number ^ bit]
            if self.number & bit:
                yield partner, upper, lower
                low += bit
            else:
                yield partner, lower, upper
            bit //= 2
