r"""The binomial tree that reduce, broadcast, scatter and gather walk. Pure: numbers only.

Ranks are renumbered so that the root is number 0: number = (rank − root) mod p. A number's parent
is the number with its lowest set bit cleared, so the subtree of a number with k trailing zeros
holds the 2**k numbers from it on, as far as they exist, and its children are the
numbers that differ from it in one of those zeros. For p = 6:

.. code-block:: text

              0
           /  |  \
          1   2   4         round 0 (bit 0):  1→0  3→2  5→4
              |   |         round 1 (bit 1):  2→0
              3   5         round 2 (bit 2):  4→0

Going up, as drawn, round b is that of the numbers whose lowest set bit is b: they hand over to
their parent and are done. After ⌈lg p⌉ rounds only number 0 is left, which has no set bit. Going
down is the same, last round first, arrows turned. No broadcast needs fewer rounds, since the ranks
that have the data can at most double in one; nor does a reduction, which is a broadcast backwards.

Source: folklore; with its costs, as MPICH's choice for short vectors, in Thakur, Rabenseifner and
Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Binomial:
    """One rank's place in the binomial tree of ``size`` ranks below ``root``.

    >>> place = Binomial(rank=0, size=6, root=2)
    >>> place.number, place.parent, place.children
    (4, 2, [1])
    """

    rank: int
    size: int
    root: int = 0

    @property
    def number(self) -> int:
        """This rank's number, counted from the root."""
        return (self.rank - self.root) % self.size

    @property
    def parent(self) -> int | None:
        """The rank above this one; None at the root."""
        number = self.number
        return self._named(number & (number - 1)) if number else None

    @property
    def children(self) -> list[int]:
        """The ranks below this one, in the order of their rounds going up: least subtree first."""
        number, children = self.number, []
        bit = 1
        while number & bit == 0 and number + bit < self.size:
            children.append(self._named(number + bit))
            bit <<= 1
        return children

    @property
    def descendants(self) -> range:
        """Numbers in the subtree of this rank, itself included."""
        number = self.number
        reach = number & -number if number else self.size
        return range(number, min(self.size, number + reach))

    def _named(self, number: int) -> int:
        return (number + self.root) % self.size
