"""Bounds what a worker has pushed to a server that has not been answered. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: What may be unanswered at a time: that many shards, whatever their length, or that many bytes.
SHARDS, BYTES = 2, 128 << 10


class Window:
    """Keeps a worker from running ahead of the others with its pushes to one server.

    Senders share the link of a server unevenly. One that gets more of it would deliver its last
    shards while those that the server can answer next, when all workers have pushed them, are still
    on their way; and once it is through, the others are too slow to fill the link. And whatever
    waits in the network's queues makes every answer late.

    The next push of a worker waits for the answer to an earlier one, which may need that push of
    every other worker. Nobody waits for ever, since all push the shards of a server in the same
    order: the first of them that is not answered is withheld by none.

    >>> window = Window()
    >>> [window.admits(1 << 20, lambda shard=shard: print(f"push {shard}")) for shard in range(4)]
    [True, True, False, False]
    >>> window.answered(1 << 20)
    push 2
    """

    def __init__(self) -> None:
        """Begin with everything answered."""
        self._shards = self._nbytes = 0
        #: Bytes of the pushes that are withheld, and what sends them, in order.
        self._withheld: deque[tuple[int, Callable[[], None]]] = deque()

    def admits(self, nbytes: int, push: Callable[[], None]) -> bool:
        """Return whether a push may be sent now; if not, it is called as soon as it may."""
        # Where others are withheld, even if there is room: a push must not overtake them.
        if self._withheld or not self._has_room(nbytes):
            self._withheld.append((nbytes, push))
            return False
        self._add(nbytes)
        return True

    def answered(self, nbytes: int) -> None:
        """Note the answer to a push of that length, and send what waits for it."""
        self._shards -= 1
        self._nbytes -= nbytes
        # One answer may make room for several that are short.
        while self._withheld and self._has_room(self._withheld[0][0]):
            nbytes, push = self._withheld.popleft()
            self._add(nbytes)
            push()

    def _has_room(self, nbytes: int) -> bool:
        return self._shards < SHARDS or self._nbytes + nbytes <= BYTES

    def _add(self, nbytes: int) -> None:
        self._shards += 1
        self._nbytes += nbytes
