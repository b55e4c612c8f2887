"""Which elements a worker owns where something is sharded, and where it keeps them.

Of each bucket a worker owns one part, that whose sums the all-reduce finishes on it. It keeps what
belongs to its parts side by side, in the order of the buckets: m elements, about n/W.

Where gradients are sharded, buckets take two places in turn: one is computed while the one
before is on its way to its owners. So do the gathered parameters, behind the m of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psrt.core.arrays import ITEMSIZE
from psrt.core.partition import Span
from psrt.core.sharding import BUCKETS, Memory, Sharing
from psrt.transport.port import Held, Port


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of one worker."""

    #: What is sharded.
    shard: Sharing
    #: The spans that are summed, each by itself.
    buckets: tuple[Span, ...]
    #: By bucket, the part of the parameters that this worker owns.
    owned: tuple[Span, ...]
    #: Most elements that any worker owns.
    most: int

    @property
    def size(self) -> int:
        """The number of elements that it owns, m."""
        return sum(span.size for span in self.owned)

    @property
    def shifts(self) -> list[int]:
        """By bucket, what to add to the place of an element in θ to get that among its own.

        >>> buckets, owned = (Span(90, 100), Span(0, 90)), (Span(90, 95), Span(0, 45))
        >>> Shares(Sharing.OPTIMIZER, buckets, owned, 50).shifts
        [-90, 5]
        """
        found, before = [], 0
        for span in self.owned:
            found.append(before - span.start)
            before += span.size
        return found

    @property
    def held(self) -> list[Held]:
        """By bucket, where its gradient is, and whether new parameters go to all."""
        spreads = self.shard is not Sharing.PARAMETERS
        if self.shard is Sharing.OPTIMIZER:
            return [Held(span.start, spreads) for span in self.buckets]
        return [Held(at, spreads) for at in places_of(self.buckets)]

    @property
    def gathered(self) -> list[int]:
        """By bucket, where in ``theta`` its parameters are gathered."""
        return [self.most + at for at in places_of(self.buckets)]

    def memory(self, n: int, vectors: int) -> Memory:
        """Return the memory of this worker, with an optimizer that keeps that many vectors."""
        whole, own, some = (ITEMSIZE * it for it in (n, self.size, room_of(self.buckets)))
        if self.shard is Sharing.OPTIMIZER:
            return Memory(whole, whole, vectors * own)
        if self.shard is Sharing.GRADIENTS:
            return Memory(whole, some, vectors * own)
        return Memory(ITEMSIZE * self.most, some, vectors * own, some)


def places_of(buckets: Sequence[Span]) -> list[int]:
    """Return by bucket where it begins in the memory of two that take turns.

    >>> places_of([Span(90, 100), Span(50, 90), Span(0, 50)])
    [0, 50, 0]
    """
    largest = max((span.size for span in buckets), default=0)
    return [i % BUCKETS * largest for i in range(len(buckets))]


def room_of(buckets: Sequence[Span]) -> int:
    """Return the number of elements of that memory."""
    return min(BUCKETS, len(buckets)) * max((span.size for span in buckets), default=0)


def most_owned(buckets: Sequence[Span], workers: int) -> int:
    """Return the most elements that a worker can own, if each bucket is cut evenly."""
    return sum(-(-span.size // workers) for span in buckets)


def shares_of(port: Port, shard: Sharing, algorithm: str, buckets: Sequence[Span]) -> Shares:
    """Return the parts that the worker at a port owns.

    Args:
        port: of a job without servers.
        shard: what is sharded.
        algorithm: ``auto`` or the name of an all-reduce.
        buckets: spans that are summed, each by itself.

    Raises:
        ConfigError: if that all-reduce hands nobody a part first.
    """
    largest = max((span.size for span in buckets), default=0)
    chosen, _ = port.choice(algorithm, largest, sharded=shard)
    owned = tuple(port.owned(span, chosen) for span in buckets)
    return Shares(shard, tuple(buckets), owned, most_owned(buckets, len(port.role_map.workers)))
