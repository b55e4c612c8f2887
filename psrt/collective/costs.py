"""The network's costs α, β and γ, in which every schedule is priced. Pure: numbers only.

The model of Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, with
the γ of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Costs of a network, in seconds."""

    #: α, per message.
    alpha: float
    #: β, per byte on the wire.
    beta: float
    #: γ, per byte combined.
    gamma: float

    def message(self, nbytes: float) -> float:
        """Return the seconds that one message takes."""
        return self.alpha + nbytes * self.beta

    def chain(self, messages: float, sent: float, combined: float) -> float:
        """Return the seconds that one rank takes for messages and combining in sequence.

        Args:
            messages: number of messages.
            sent: bytes in all of them together.
            combined: bytes combined.
        """
        return messages * self.alpha + sent * self.beta + combined * self.gamma


#: ``(p, nbytes, costs, itemsize)`` → the seconds of an all-reduce, in closed form; p ≥ 2,
#: nbytes > 0. Elements of ``itemsize`` bytes matter where a schedule cuts by their number.
ClosedForm: TypeAlias = Callable[[int, float, LinkCosts, int], float]


def lg_floor(p: int) -> int:
    """Return ⌊lg p⌋."""
    return p.bit_length() - 1


def lg_ceil(p: int) -> int:
    """Return ⌈lg p⌉."""
    return (p - 1).bit_length()
