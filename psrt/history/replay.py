"""Repeats a recorded run: each shard takes its messages in the order in which it did then. Pure.

The order is all that asynchrony leaves open. What a shard does is decided by what it takes and in
which order, what a worker pushes by the versions that it was answered with; so by induction over
the recorded events every push of the replay is that of the run, to the bit, and there is never a
message to wait for that could not come. Neither holds if anything else differs, which is why
``differences`` is asked first, and why every message is compared with the recorded one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrt.errors import ProtocolError, ReplayError
from psrt.history.events import Kind
from psrt.messages import Leave, Message, Push

#: Columns of a script. The version of a ``Leave`` is −1.
COLUMNS = ("event", "worker", "clock", "version", "samples")
_EVENT, _WORKER, _CLOCK, _VERSION, _SAMPLES = range(len(COLUMNS))
_LEFT = -1

#: What a message says that matters here: worker, clock, version, samples.
_Said = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Script:
    """What one shard took in the recorded run, in its order."""

    shard: int
    #: (messages, len(COLUMNS)) int64; ``event`` counts all events of the shard, from 0.
    rows: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, shard: int, events: np.ndarray[Any, np.dtype[np.void]]) -> Script:
        """Return the script of a shard from its events, as ``History.shards`` has them."""
        taken = np.flatnonzero(np.isin(events["kind"], (Kind.RECEIVE, Kind.LEFT)))
        rows = np.empty((len(taken), len(COLUMNS)), np.int64)
        rows[:, _EVENT] = taken
        for column in range(1, len(COLUMNS)):
            rows[:, column] = events[COLUMNS[column]][taken]
        rows[events["kind"][taken] == Kind.LEFT, _VERSION] = _LEFT
        return cls(shard, rows)

    def __len__(self) -> int:
        """Return how many messages the shard took."""
        return len(self.rows)

    def said(self, at: int) -> _Said:
        """Return what message ``at`` of the script says."""
        _, worker, clock, version, samples = self.rows[at].tolist()
        return worker, clock, version, samples

    def where(self, at: int) -> str:
        """Return where message ``at`` of the script is, in words."""
        return f"event {self.rows[at, _EVENT]} of shard {self.shard}"


class Sequencer:
    """Hands a server its messages in the recorded order, and holds what comes early.

    A worker's messages come in the order in which it sent them, so the next of each worker is
    known before it is its turn, and compared as soon as it is there.
    """

    def __init__(self, receive: Callable[[], Awaitable[Message]], script: Script) -> None:
        """Begin at the beginning.

        Args:
            receive: gives the next message in order of arrival.
            script: of this server's shard.
        """
        self._receive = receive
        self._script = script
        #: Messages handed on.
        self._at = 0
        workers = script.rows[:, _WORKER]
        #: By worker, where its next messages are in the script.
        self._places = {
            worker: deque(np.flatnonzero(workers == worker).tolist())
            for worker in np.unique(workers).tolist()
        }
        #: Messages that have come and wait for their turn, by their place in the script.
        self._held: dict[int, Message] = {}

    async def receive(self) -> Message:
        """Return the message whose turn it is, as soon as it has come.

        Raises:
            ReplayError: if a worker sends anything but its next message of the recorded run, or
                there is none left.
        """
        at = self._at
        if at == len(self._script):
            raise ReplayError(
                f"the replay diverges: shard {self._script.shard} waits for a message after the "
                f"{at} that it took in the recorded run"
            )
        while at not in self._held:
            message = await self._receive()
            self._held[self._place(message)] = message
        self._at += 1
        return self._held.pop(at)

    def finish(self) -> None:
        """Check at the end that nothing is left.

        Raises:
            ReplayError: if the recorded run went on.
        """
        if self._at < len(self._script):
            expected = self._script.said(self._at)
            raise ReplayError(
                f"the replay diverges at {self._script.where(self._at)}: it is over, in the "
                f"recorded run worker {expected[0]} {_told(expected)}"
            )

    def waiting_for(self) -> str:
        """Say which message is waited for."""
        if self._at == len(self._script):
            return "the last answers to be read"
        expected = self._script.said(self._at)
        where = self._script.where(self._at)
        return f"worker {expected[0]}, which {_told(expected)} in the recorded run ({where})"

    def _place(self, message: Message) -> int:
        """Return where a message that has come is in the script."""
        script, said = self._script, _said(message)
        places = self._places.get(said[0])
        if not places:
            raise ReplayError(
                f"the replay diverges: worker {said[0]} {_told(said)} at shard {script.shard}, "
                "in the recorded run it sent no more"
            )
        at = places.popleft()
        expected = script.said(at)
        if said != expected:
            samples = said[:3] == expected[:3]
            raise ReplayError(
                f"the replay diverges at {script.where(at)}: worker {said[0]} "
                f"{_told(said, samples=samples)}, in the recorded run it "
                f"{_told(expected, samples=samples)}"
            )
        return at


def _said(message: Message) -> _Said:
    if type(message) is Push:
        return message.worker, message.clock, message.version, message.samples
    if type(message) is Leave:
        return message.worker, message.clock, _LEFT, 0
    raise ProtocolError(f"a server was sent {message}, expected a push")


def _told(said: _Said, *, samples: bool = False) -> str:
    """Return what a worker did, in words."""
    _, clock, version, count = said
    if version == _LEFT:
        return f"left at clock {clock}"
    of_samples = f" with {count} samples" if samples else ""
    return f"pushed clock {clock} on version {version}{of_samples}"
