"""Tracks which workers may still be reading which of a server's buffers. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Leases:
    """The readers of each buffer: a version that was sent is leased until it has been read."""

    def __init__(self, buffers: int, in_flight: Callable[[int], bool]) -> None:
        """Begin with nothing leased.

        Args:
            buffers: the number of buffers.
            in_flight: whether a rank may still be reading the last payload sent to it.
        """
        self._in_flight = in_flight
        #: Rank → the buffer that it reads.
        self._of: dict[int, int] = {}
        #: By buffer, the ranks that may be reading it, in order.
        self._readers: list[dict[int, None]] = [{} for _ in range(buffers)]

    def __bool__(self) -> bool:
        return bool(self._of)

    def acquire(self, rank: int, buffer: int) -> None:
        """Lease a buffer to ``rank``, which was sent it; its earlier lease ends."""
        self.release(rank)
        self._of[rank] = buffer
        self._readers[buffer][rank] = None

    def release(self, rank: int) -> None:
        """End the lease of ``rank``, if any: it has read its payload."""
        buffer = self._of.pop(rank, None)
        if buffer is not None:
            del self._readers[buffer][rank]

    def free(self, newest: int) -> int | None:
        """Return a buffer without readers, ``newest`` if possible; None if all are read."""
        if self._is_free(newest):
            return newest
        return next((b for b in range(len(self._readers)) if self._is_free(b)), None)

    def _is_free(self, buffer: int) -> bool:
        """End the leases of the readers that are done, up to the first that is not."""
        readers = self._readers[buffer]
        while readers:
            rank = next(iter(readers))
            if self._in_flight(rank):
                return False
            self.release(rank)
        return True

    def __str__(self) -> str:
        return str(sorted(self._of))
