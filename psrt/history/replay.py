"""Repeats a recorded run: each shard receives its messages in the recorded order. Pure.

That order is the only freedom of an asynchronous run. The messages of a shard and their order
determine its versions; the versions in a worker's replies determine its pushes. So, by induction
over the recorded events, every push of the replay equals the recorded one to the bit, and the next
message of a shard always arrives. Neither holds if anything else differs, which is why
``differences`` is checked first, and every message is compared with the recorded one.
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

#: The fields of a message that are compared: worker, clock, version, samples.
_Fields = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Script:
    """The messages that one shard received in the recorded run, in order."""

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
        """Return the number of messages."""
        return len(self.rows)

    def fields(self, at: int) -> _Fields:
        """Return the compared fields of message ``at``."""
        _, worker, clock, version, samples = self.rows[at].tolist()
        return worker, clock, version, samples

    def where(self, at: int) -> str:
        """Return the position of message ``at`` in the history, in words."""
        return f"event {self.rows[at, _EVENT]} of shard {self.shard}"


class Sequencer:
    """Delivers a server's messages in the recorded order, and holds back those that arrive early.

    A worker's messages arrive in the order in which it sent them, so each is compared with that
    worker's next recorded one on arrival, before its turn.
    """

    def __init__(self, receive: Callable[[], Awaitable[Message]], script: Script) -> None:
        """Start before the first message.

        Args:
            receive: returns the next message in order of arrival.
            script: of this server's shard.
        """
        self._receive = receive
        self._script = script
        #: Messages delivered.
        self._at = 0
        workers = script.rows[:, _WORKER]
        #: By worker, the positions of its next messages in the script.
        self._places = {
            worker: deque(np.flatnonzero(workers == worker).tolist())
            for worker in np.unique(workers).tolist()
        }
        #: Messages that have arrived before their turn, by their position in the script.
        self._held: dict[int, Message] = {}

    async def receive(self) -> Message:
        """Return the next message of the script, once it has arrived.

        Raises:
            ReplayError: if a worker sends anything but its next message of the recorded run, or
                there is none left.
        """
        at = self._at
        if at == len(self._script):
            raise ReplayError(
                f"the replay diverges: shard {self._script.shard} waits for a message after the "
                f"{at} that it received in the recorded run"
            )
        while at not in self._held:
            message = await self._receive()
            self._held[self._place(message)] = message
        self._at += 1
        return self._held.pop(at)

    def finish(self) -> None:
        """Check that the whole script was delivered.

        Raises:
            ReplayError: if messages of the recorded run are left.
        """
        if self._at < len(self._script):
            expected = self._script.fields(self._at)
            raise ReplayError(
                f"the replay diverges at {self._script.where(self._at)}: it is over, in the "
                f"recorded run worker {expected[0]} {_in_words(expected)}"
            )

    def waiting_for(self) -> str:
        """Describe the message that is waited for."""
        if self._at == len(self._script):
            return "the last answers to be read"
        expected = self._script.fields(self._at)
        where = self._script.where(self._at)
        return f"worker {expected[0]}, which {_in_words(expected)} in the recorded run ({where})"

    def _place(self, message: Message) -> int:
        """Return the position in the script of a message that has arrived."""
        script, sent = self._script, _fields_of(message)
        places = self._places.get(sent[0])
        if not places:
            raise ReplayError(
                f"the replay diverges: worker {sent[0]} {_in_words(sent)} at shard {script.shard}, "
                "in the recorded run it sent no more"
            )
        at = places.popleft()
        expected = script.fields(at)
        if sent != expected:
            samples = sent[:3] == expected[:3]
            raise ReplayError(
                f"the replay diverges at {script.where(at)}: worker {sent[0]} "
                f"{_in_words(sent, samples=samples)}, in the recorded run it "
                f"{_in_words(expected, samples=samples)}"
            )
        return at


def _fields_of(message: Message) -> _Fields:
    if type(message) is Push:
        return message.worker, message.clock, message.version, message.samples
    if type(message) is Leave:
        return message.worker, message.clock, _LEFT, 0
    raise ProtocolError(f"a server was sent {message}, expected a push")


def _in_words(sent: _Fields, *, samples: bool = False) -> str:
    """Return a message's fields as a phrase about its worker."""
    _, clock, version, count = sent
    if version == _LEFT:
        return f"left at clock {clock}"
    of_samples = f" with {count} samples" if samples else ""
    return f"pushed clock {clock} on version {version}{of_samples}"
