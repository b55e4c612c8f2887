"""Bounds the unanswered pushes of a worker to one server. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: Pushes that may be unanswered at a time: this many, whatever their length, or this many bytes.
SHARDS, BYTES = 2, 128 << 10


class Window:
    """Keeps a worker's pushes to one server from running ahead of those of other workers.

    Senders share the link of a server unevenly. A sender with a larger share would deliver its last
    shards while other workers' first ones, which the server needs before it can answer anyone, are
    still in flight. Once it is done, the others are too slow to fill the link. And everything that
    queues in the network delays every answer.

    A withheld push waits for the answer to an earlier one, which may need the same push of every
    other worker. This cannot deadlock, since all push the shards of a server in the same order: no
    worker withholds the first shard that is not answered.

    >>> window = Window()
    >>> [window.admits(1 << 20, lambda shard=shard: print(f"push {shard}")) for shard in range(4)]
    [True, True, False, False]
    >>> window.answered(1 << 20)
    push 2
    """

    def __init__(self) -> None:
        """Start with everything answered."""
        self._shards = self._nbytes = 0
        #: The withheld pushes in order: bytes, and the function that sends it.
        self._withheld: deque[tuple[int, Callable[[], None]]] = deque()

    def admits(self, nbytes: int, push: Callable[[], None]) -> bool:
        """Return whether a push may be sent now; if not, ``push`` is called once it may."""
        # Not while others are withheld, even if there is room: a push must not overtake them, or
        # the order of shards, on which the argument above rests, is lost.
        if self._withheld or not self._has_room(nbytes):
            self._withheld.append((nbytes, push))
            return False
        self._add(nbytes)
        return True

    def answered(self, nbytes: int) -> None:
        """Record the answer to a push of that length, and send what fits now."""
        self._shards -= 1
        self._nbytes -= nbytes
        # One answer may make room for several short pushes.
        while self._withheld and self._has_room(self._withheld[0][0]):
            nbytes, push = self._withheld.popleft()
            self._add(nbytes)
            push()

    def _has_room(self, nbytes: int) -> bool:
        return self._shards < SHARDS or self._nbytes + nbytes <= BYTES

    def _add(self, nbytes: int) -> None:
        self._shards += 1
        self._nbytes += nbytes
