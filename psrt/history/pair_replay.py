"""Repeats a run whose workers average in pairs: each takes what it took, when it took it. Pure.

When a worker takes which message is the only freedom of such a run; whom it asks next follows from
who has left by then, which is one of these messages. So a worker offers what it offered before the
same step, and after each step waits for the very messages that it took there. By induction over the
recorded events, in the order in which they were caused, each of them comes, with the same vector to
the bit: who sends it waits only for messages that it took before in the recorded run.

That a neighbour left is recorded where it leaves. It matters where it voids an offer: then the next
one shows that the worker knew by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from psrt.core.errors import ReplayError
from psrt.core.messages import Leave, Message, Mix
from psrt.history.events import ANSWER, Kind, parts
from psrt.history.kinds import Offer
from psrt.history.replay import COLUMNS, Rows

#: What a worker did: it made an offer, took one or an answer, or learnt that a neighbour had left.
_OFFERED, _TOOK, _LEFT = range(3)


class _Turn(NamedTuple):
    """A row of a script."""

    #: Counts all events of the worker, from 0.
    event: int
    neighbour: int
    #: Gradient steps that it had finished.
    clock: int
    #: Of the offer.
    number: int
    what: int


assert len(_Turn._fields) == len(COLUMNS), "both kinds of scripts are sent alike"


@dataclass(frozen=True, slots=True)
class PairScript:
    """What one worker offered and took in the recorded run, in order."""

    worker: int
    #: (turns, len(COLUMNS)) int64; see ``_Turn``.
    rows: Rows

    @classmethod
    def of(cls, worker: int, events: np.ndarray[Any, np.dtype[np.void]]) -> PairScript:
        """Return the script of a worker from its events, as ``History.workers`` has them."""
        turns: list[_Turn] = []
        asked: int | None = None
        for at in np.flatnonzero(np.isin(events["kind"], (Kind.OFFER, Kind.TAKE))).tolist():
            event = events[at]
            is_offer, is_answer = event["kind"] == Kind.OFFER, event["flag"] == ANSWER
            if is_offer and is_answer:
                continue  # at once, to what it took
            neighbour, clock = int(event[Offer.neighbour]), int(event["clock"])
            number = int(parts(int(event[Offer.digests]))[1])
            if is_offer and asked is not None:
                turns.append(_Turn(at, asked, clock, number - 1, _LEFT))
            if is_offer or is_answer:
                asked = neighbour if is_offer else None
            turns.append(_Turn(at, neighbour, clock, number, _OFFERED if is_offer else _TOOK))
        return cls(worker, np.array(turns, np.int64).reshape(-1, len(COLUMNS)))

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self.rows)

    def turn(self, at: int) -> _Turn | None:
        """Return a turn; None after the last one."""
        return _Turn(*self.rows[at].tolist()) if at < len(self.rows) else None


class PairSequencer:
    """Delivers the messages of a worker after the steps at which it took them."""

    def __init__(self, receive: Callable[[], Awaitable[Message]], script: PairScript) -> None:
        """Start before the first step.

        Args:
            receive: returns the next message in order of arrival.
            script: of this worker.
        """
        self._receive, self._script = receive, script
        #: Turns done.
        self._at = 0
        #: Messages that have arrived before their turn. What came with them stays where it is: a
        #: neighbour sends the next vector only once this one has been answered.
        self._held: list[Message] = []

    def partner(self, clock: int) -> int | None:
        """Return whom to offer something before step ``clock``; None for nobody."""
        turn = self._due(clock)
        if turn is None or turn.what != _OFFERED:
            return None
        self._at += 1
        return turn.neighbour

    async def poll(self, clock: int) -> Message | None:
        """Return the message that is to be taken after ``clock`` steps; None if none is left.

        Raises:
            ReplayError: if the neighbour sends anything else.
        """
        turn = self._due(clock)
        if turn is None or turn.what == _OFFERED:
            return None
        while (message := self._of(turn.neighbour)) is None:
            self._held.append(await self._receive())
        if (type(message) is Leave) != (turn.what == _LEFT) or (
            type(message) is Mix and message.version != turn.number
        ):
            raise ReplayError(
                f"the replay diverges at {self._where(turn)}: worker {turn.neighbour} sent "
                f"{message}, in the recorded run it {_in_words(turn)}"
            )
        self._at += 1
        return message

    async def receive(self) -> Message:
        """Return the next message, once all steps are done."""
        return self._held.pop(0) if self._held else await self._receive()

    def finish(self) -> None:
        """Check that the whole script was done.

        Raises:
            ReplayError: if turns of the recorded run are left.
        """
        if (turn := self._script.turn(self._at)) is not None:
            raise self._missed(turn)

    def waiting_for(self) -> str:
        """Describe the message that is waited for."""
        turn = self._script.turn(self._at)
        if turn is None:
            return "its neighbours to finish"
        return f"worker {turn.neighbour}, which {_in_words(turn)} by {self._where(turn)}"

    def _due(self, clock: int) -> _Turn | None:
        """Return the next turn if it is of this clock."""
        turn = self._script.turn(self._at)
        if turn is not None and turn.clock < clock:
            raise self._missed(turn)
        return turn if turn is not None and turn.clock == clock else None

    def _of(self, worker: int) -> Message | None:
        """Return the first message of a neighbour that is held."""
        for at, message in enumerate(self._held):
            if isinstance(message, Mix | Leave) and message.worker == worker:
                return self._held.pop(at)
        return None

    def _missed(self, turn: _Turn) -> ReplayError:
        return ReplayError(
            f"the replay diverges at {self._where(turn)}: it went on without what was done there "
            f"at clock {turn.clock} with worker {turn.neighbour}"
        )

    def _where(self, turn: _Turn) -> str:
        return f"event {turn.event} of worker {self._script.worker}"


def _in_words(turn: _Turn) -> str:
    return "left" if turn.what == _LEFT else f"sent a vector for offer {turn.number}"
