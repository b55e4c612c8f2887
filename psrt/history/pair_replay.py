"""Repeats a run of gossip by pairs: each worker takes the same messages at the same steps. Pure.

The only freedom of such a run is which message a worker takes when. The neighbour that it asks next
depends on the departures it knows of, which are such messages, too. So a worker makes the recorded
offer before each step, and after each step waits for the messages that it took there. By induction
over the recorded events in causal order, each message arrives, with the same vector to the bit: its
sender waits only for messages that it took before in the recorded run.

A departure is recorded at the neighbour that leaves. It matters if it voids an offer: then the next
offer shows that the worker knew of it.
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

#: What a worker did: made an offer, took an offer, took an answer, or learned of a departure.
_OFFERED, _TOOK, _LEFT = range(3)


class _Turn(NamedTuple):
    """A row of a script."""

    #: The number of the event among the worker's, from 0.
    event: int
    neighbour: int
    #: The gradient steps finished by then.
    clock: int
    #: Of the offer.
    number: int
    what: int


assert len(_Turn._fields) == len(COLUMNS), "both kinds of scripts are sent in the same way"


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
        #: The number of turns done.
        self._at = 0
        #: Messages that arrived before their turn. Their vectors stay in place: a neighbour sends
        #: the next vector only after this one has been answered.
        self._held: list[Message] = []

    def partner(self, clock: int) -> int | None:
        """Return the neighbour to send an offer to before step ``clock``; None for none."""
        turn = self._due(clock)
        if turn is None or turn.what != _OFFERED:
            return None
        self._at += 1
        return turn.neighbour

    async def poll(self, clock: int) -> Message | None:
        """Return the next message to take after ``clock`` steps; None if none is left.

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
        """Describe the awaited message."""
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
        """Return the first held message of a neighbour."""
        for at, message in enumerate(self._held):
            if isinstance(message, Mix | Leave) and message.worker == worker:
                return self._held.pop(at)
        return None

    def _missed(self, turn: _Turn) -> ReplayError:
        return ReplayError(
            f"the replay diverges at {self._where(turn)}: it continued without its recorded "
            f"exchange at clock {turn.clock} with worker {turn.neighbour}"
        )

    def _where(self, turn: _Turn) -> str:
        return f"event {turn.event} of worker {self._script.worker}"


def _in_words(turn: _Turn) -> str:
    return "left" if turn.what == _LEFT else f"sent a vector for offer {turn.number}"
