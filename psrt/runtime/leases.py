"""Which of a server's buffers may still be read, and by whom. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Leases:
    """A version that was sent stays leased until its reader has read it."""

    def __init__(self, buffers: int, in_flight: Callable[[int], bool]) -> None:
        """Begin with nothing leased.

        Args:
            buffers: how many there are.
            in_flight: tells whether a rank may still be reading what it was sent.
        """
        self._in_flight = in_flight
        #: Rank → the buffer that it was sent.
        self._of: dict[int, int] = {}
        #: By buffer, the ranks that may be reading it, in order.
        self._readers: list[dict[int, None]] = [{} for _ in range(buffers)]

    def __bool__(self) -> bool:
        return bool(self._of)

    def acquire(self, rank: int, buffer: int) -> None:
        """Note that ``rank`` was sent this buffer."""
        self.release(rank)
        self._of[rank] = buffer
        self._readers[buffer][rank] = None

    def release(self, rank: int) -> None:
        """Note that ``rank`` has read what it was sent."""
        buffer = self._of.pop(rank, None)
        if buffer is not None:
            del self._readers[buffer][rank]

    def free(self, newest: int) -> int | None:
        """Return a buffer that nobody reads, ``newest`` if possible; None if there is none."""
        if self._is_free(newest):
            return newest
        return next((b for b in range(len(self._readers)) if self._is_free(b)), None)

    def _is_free(self, buffer: int) -> bool:
        """Strike off who has read the buffer, up to the first who has not."""
        readers = self._readers[buffer]
        while readers:
            rank = next(iter(readers))
            if self._in_flight(rank):
                return False
            self.release(rank)
        return True

    def __str__(self) -> str:
        return str(sorted(self._of))
