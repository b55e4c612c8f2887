"""Repeats a recorded run: each shard receives its messages in the recorded order. Pure.

That order is the only freedom of an asynchronous run. The messages of a shard and their order
determine its versions; the versions in a worker's replies determine its pushes. So, by induction
over the recorded events, every push of the replay equals the recorded one to the bit, and the next
message of a shard always arrives. Neither holds if anything else differs, which is why
``differences`` is checked first, and every message is compared with the recorded one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from psrt.core.errors import ProtocolError, ReplayError
from psrt.core.messages import LATE, Leave, Message, Push, Relay, Tick
from psrt.history.events import Kind
from psrt.history.kinds import MESSAGES

#: Columns of a script. The version of a ``Leave`` is −1. Above its lower 32 bits ``samples`` has
#: those of the pace that was reported: it is made of times, so a replay takes the recorded one.
COLUMNS = ("event", "worker", "clock", "version", "samples")
_EVENT, _WORKER, _CLOCK, _VERSION, _SAMPLES = range(len(COLUMNS))
_HALF = 32
_LEFT = -1
#: Instead of a worker: the first shard, and the time.
_FIRST, _CLOCK_HAND = -2, -3

#: A whole number, or an array of them.
NumberT = TypeVar("NumberT", int, np.ndarray[Any, np.dtype[np.int64]])
#: (k, len(COLUMNS)) of a script.
Rows = np.ndarray[Any, np.dtype[np.int64]]
#: The fields of a message that are compared: worker, clock, version, samples.
_Fields = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Script:
    """The messages that one shard received in the recorded run, in order."""

    shard: int
    #: (messages, len(COLUMNS)) int64; ``event`` counts all events of the shard, from 0.
    rows: Rows

    @classmethod
    def of(cls, shard: int, events: np.ndarray[Any, np.dtype[np.void]]) -> Script:
        """Return the script of a shard from its events, as ``History.shards`` has them."""
        taken = np.flatnonzero(np.isin(events["kind"], MESSAGES))
        rows = np.empty((len(taken), len(COLUMNS)), np.int64)
        rows[:, _EVENT] = taken
        for column in range(1, len(COLUMNS)):
            rows[:, column] = events[COLUMNS[column]][taken]
        paces = np.ascontiguousarray(events["rate"][taken]).view(np.int32)
        rows[:, _SAMPLES] |= paces.astype(np.int64) << _HALF
        kind, flag = events["kind"][taken], events["flag"][taken]
        rows[kind == Kind.LEFT, _VERSION] = _LEFT
        relay = kind == Kind.RELAY
        rows[relay, _SAMPLES] = _relayed(rows[relay, _WORKER], flag[relay])
        tick = kind == Kind.TICK
        rows[relay, _WORKER], rows[tick, _WORKER] = _FIRST, _CLOCK_HAND
        rows[tick, _SAMPLES] = events["seconds"][taken][tick] > 0
        return cls(shard, rows)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.rows)

    def fields(self, at: int) -> _Fields:
        """Return the compared fields of message ``at``."""
        _, worker, clock, version, samples = self.rows[at].tolist()
        return worker, clock, version, samples & ((1 << _HALF) - 1)

    def pace(self, at: int) -> float:
        """Return the pace that was reported with message ``at``."""
        return float(np.int32(self.rows[at, _SAMPLES] >> _HALF).view(np.float32))

    def where(self, at: int) -> str:
        """Return the position of message ``at`` in the history, in words."""
        return f"event {self.rows[at, _EVENT]} of shard {self.shard}"


class Sequencer:
    """Delivers the messages of a server's shards in the recorded order of each shard.

    Messages that arrive early are held back. The order between two shards does not matter, since
    each decides alone.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[Message]], scripts: Sequence[Script]
    ) -> None:
        """Start before the first message.

        Args:
            receive: returns the next message in order of arrival.
            scripts: of this server's shards.
        """
        self._receive = receive
        self._shards = {script.shard: _Sequence(script) for script in scripts}
        #: The shard whose message was delivered last: its next one may have been held back.
        self._last: _Sequence | None = None

    async def receive(self) -> Message:
        """Return a message that is next in its shard's script, once one has arrived.

        Raises:
            ReplayError: if a worker sends anything but its next message of the recorded run, or
                there is none left.
        """
        shard = self._last
        while shard is None or (message := shard.take()) is None:
            if all(it.is_over for it in self._shards.values()):
                raise ReplayError(
                    "the replay diverges: "
                    + "; ".join(it.waits_for_more() for it in self._shards.values())
                )
            arrived = await self._receive()
            shard = self._shards.get(arrived.shard)
            if shard is None:
                raise ProtocolError(f"a server received {arrived}, which is for none of its shards")
            shard.hold(arrived)
        self._last = shard
        return message

    def finish(self) -> None:
        """Check that the scripts were delivered completely.

        Raises:
            ReplayError: if messages of the recorded run are left.
        """
        for shard in self._shards.values():
            shard.finish()

    def waiting_for(self) -> str:
        """Describe the awaited messages."""
        missing = [it.waiting_for() for it in self._shards.values() if not it.is_over]
        return "; ".join(missing) or "workers to read the last answers"


class _Sequence:
    """The messages of one shard, put into the order of its script.

    A worker's messages arrive in the order in which it sent them, so each is compared with that
    worker's next recorded one on arrival, before its turn.
    """

    def __init__(self, script: Script) -> None:
        """Start before the first message."""
        self._script = script
        #: The number of delivered messages.
        self._at = 0
        workers = script.rows[:, _WORKER]
        #: By worker, the positions of its next messages in the script.
        self._places = {
            worker: deque(np.flatnonzero(workers == worker).tolist())
            for worker in np.unique(workers).tolist()
        }
        #: Messages that arrived before their turn, by their position in the script.
        self._held: dict[int, Message] = {}

    @property
    def is_over(self) -> bool:
        """Whether all messages have been delivered."""
        return self._at == len(self._script)

    def hold(self, message: Message) -> None:
        """Keep a message that has arrived until its turn."""
        place = self._place(message)
        if type(message) is Push:
            message = message._replace(pace=self._script.pace(place))
        self._held[place] = message

    def take(self) -> Message | None:
        """Deliver the next message of the script if it has arrived."""
        message = self._held.pop(self._at, None)
        if message is None and self._is_tick:
            message = Tick(self._script.shard, bool(self._script.rows[self._at, _SAMPLES]))
        self._at += message is not None
        return message

    @property
    def _is_tick(self) -> bool:
        """Whether a window is over now, which no message says."""
        rows = self._script.rows
        return self._at < len(rows) and bool(rows[self._at, _WORKER] == _CLOCK_HAND)

    def waits_for_more(self) -> str:
        """Describe a wait for more than the script has."""
        return (
            f"shard {self._script.shard} waits for a message after the {self._at} that it received "
            "in the recorded run"
        )

    def finish(self) -> None:
        """Check that the whole script was delivered.

        Raises:
            ReplayError: if messages of the recorded run are left.
        """
        if self._at < len(self._script):
            expected = self._script.fields(self._at)
            raise ReplayError(
                f"the replay diverges at {self._script.where(self._at)}: it is over, in the "
                f"recorded run {_name(expected[0])} {_in_words(expected)}"
            )

    def waiting_for(self) -> str:
        """Describe the message that is waited for."""
        expected = self._script.fields(self._at)
        where = self._script.where(self._at)
        return f"{_name(expected[0])}, which {_in_words(expected)} in the recorded run ({where})"

    def _place(self, message: Message) -> int:
        """Return the position in the script of a message that has arrived."""
        script, sent = self._script, _fields_of(message)
        places = self._places.get(sent[0])
        if not places:
            raise ReplayError(
                f"the replay diverges: {_name(sent[0])} {_in_words(sent)} at shard {script.shard}, "
                "in the recorded run it sent no more"
            )
        at = places.popleft()
        expected = script.fields(at)
        if sent != expected:
            samples = sent[:3] == expected[:3]
            raise ReplayError(
                f"the replay diverges at {script.where(at)}: {_name(sent[0])} "
                f"{_in_words(sent, samples=samples)}, in the recorded run it "
                f"{_in_words(expected, samples=samples)}"
            )
        return at


def _relayed(worker: NumberT, what: NumberT) -> NumberT:
    """Return what was relayed of which worker, as one number."""
    return worker * (LATE + 1) + what


def _fields_of(message: Message) -> _Fields:
    if type(message) is Push:
        return message.worker, message.clock, message.version, message.samples
    if type(message) is Leave:
        return message.worker, message.clock, _LEFT, 0
    if type(message) is Relay:
        return _FIRST, message.clock, message.version, _relayed(message.worker, message.what)
    raise ProtocolError(f"a server was sent {message}, expected a push")


def _name(sender: int) -> str:
    return "the first shard" if sender == _FIRST else f"worker {sender}"


def _in_words(sent: _Fields, *, samples: bool = False) -> str:
    """Return a message's fields as a phrase about its worker."""
    who, clock, version, count = sent
    if who == _FIRST:
        worker = count // (LATE + 1)
        return f"relayed clock {clock} of worker {worker} for version {version}"
    if version == _LEFT:
        return f"left at clock {clock}"
    of_samples = f" with {count} samples" if samples else ""
    return f"pushed clock {clock} on version {version}{of_samples}"
