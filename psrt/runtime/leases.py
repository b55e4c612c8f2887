"""Tracks which workers may still be reading which of a server's buffers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Leases:
    """The readers of each buffer: a version that was sent is leased until it has been read.

    A buffer may be the landing of a worker, or of several: then it is leased until they push, since
    they compute with it there, and from the beginning.
    """

    def __init__(
        self, buffers: int, in_flight: Callable[[int], bool], landings: Mapping[int, int]
    ) -> None:
        """Begin with the landings leased to their workers.

        Args:
            buffers: the number of buffers.
            in_flight: whether a rank may still be reading the last payload sent to it.
            landings: by rank, the buffer that is its landing.
        """
        self._in_flight = in_flight
        self._landings = landings
        #: Rank → the buffer that it reads.
        self._of: dict[int, int] = {}
        #: By buffer, the ranks that may be reading it, in order.
        self._readers: list[dict[int, None]] = [{} for _ in range(buffers)]
        for rank, landing in landings.items():
            self.acquire(rank, landing)

    def acquire(self, rank: int, buffer: int) -> None:
        """Lease a buffer to ``rank``, which was sent it; its earlier lease ends."""
        self.release(rank)
        self._of[rank] = buffer
        self._readers[buffer][rank] = None

    def release(self, rank: int) -> None:
        """End the lease of ``rank``, if any: it has read its payload and computed with it."""
        buffer = self._of.pop(rank, None)
        if buffer is not None:
            del self._readers[buffer][rank]

    def leave(self, rank: int) -> None:
        """End the lease of a worker that left, except of a landing of its own.

        It may look at its last parameters for as long as it likes there; where it shares them with
        others, it has made a copy.
        """
        mine = [landing for landing in self._landings.values() if landing == self._of.get(rank)]
        if len(mine) != 1:
            self.release(rank)

    def free(self, preferred: int, kept: int = -1) -> int | None:
        """Return a buffer without readers, ``preferred`` if possible; None if all are read.

        Args:
            preferred: returned if it is free.
            kept: never returned.
        """
        if preferred != kept and self._is_free(preferred):
            return preferred
        others = (b for b in range(len(self._readers)) if b != kept)
        return next((b for b in others if self._is_free(b)), None)

    def _is_free(self, buffer: int) -> bool:
        """End the leases of the readers that are done, up to the first that is not."""
        readers = self._readers[buffer]
        while readers:
            rank = next(iter(readers))
            if rank in self._landings or self._in_flight(rank):
                return False
            self.release(rank)
        return True

    def __str__(self) -> str:
        return str(sorted(self._of))
