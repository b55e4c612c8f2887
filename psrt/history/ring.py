"""The last events of one process, in memory: those before an error, where nothing is recorded."""

from __future__ import annotations

import numpy as np

from psrt.history.events import EVENT, EVENT_BYTES
from psrt.history.log import EventLog, Events, Owner

#: Events that are kept.
LAST = 65_536


class EventRing(EventLog):
    """Keeps the last events, encoded as a history has them, and overwrites those before.

    The memory is made, and touched, at once, so that a step never waits for it.
    """

    is_exact = False

    def __init__(self, events: int = LAST) -> None:
        """Begin without any.

        Args:
            events: how many are kept, at least 1.
        """
        self.origin = 0.0
        self._buffer = bytearray(events * EVENT_BYTES)
        self._at = 0
        #: Whether it was once full.
        self._is_full = False
        self.queue = []
        self.events = 0
        self.counts: dict[Owner, int] = {}

    def last(self) -> Events:
        """Return a copy of the events that are kept, in order, with those in the queue."""
        self.drain()
        at = self._at
        data = (self._buffer[at:] if self._is_full else bytearray()) + self._buffer[:at]
        return np.frombuffer(data, EVENT)

    def close(self) -> None:
        """Forget them, and free their memory: who noted them may live on for a while."""
        self.queue.clear()
        self._buffer, self._at, self._is_full = bytearray(), 0, False

    def _write_buffer(self) -> None:
        """Begin again at the front: the buffer is full."""
        self._at, self._is_full = 0, True
