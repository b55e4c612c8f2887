"""Writes into the history what a shard and what a worker does. Roles call it, it decides nothing.

``history.events`` says what each event and field means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from psrt.history import EventLog, Kind
from psrt.history.events import LATE, LOST, PRESENT
from psrt.messages import Leave, Push
from psrt.runtime.shard import Note
from psrt.sync import Serve

# As plain numbers: looking up the member of an enumeration takes as long as writing the event.
_READ = int(Kind.READ)
_PUSH = int(Kind.PUSH)
_STEP = int(Kind.STEP)
_REDUCE = int(Kind.REDUCE)
_REDUCED = int(Kind.REDUCED)
_LEAVE = int(Kind.LEAVE)
_RECEIVE = int(Kind.RECEIVE)
_SAVE = int(Kind.SAVE)
_APPLY = int(Kind.APPLY)
_DROP = int(Kind.DROP)
_REPLY = int(Kind.REPLY)
_LEFT = int(Kind.LEFT)
_FINAL = int(Kind.FINAL)
_NAN = math.nan


class ShardEventRecorder:
    """What happens at one server, in its order."""

    def __init__(self, log: EventLog, shard: int) -> None:
        self._add = log.add
        self._shard = shard

    def taken(self, message: Push | Leave, now: float) -> None:
        """A message was taken up."""
        if type(message) is Push:
            worker, clock, version, samples, progress, _ = message
            self._add(_RECEIVE, now, worker, clock, version, self._shard, samples, progress)
        else:
            self._add(_LEFT, now, message.worker, message.clock, -1, self._shard)

    def kept(self, push: Push, now: float) -> None:
        """A gradient was saved for its update."""
        self._add(_SAVE, now, push.worker, push.clock, push.version, self._shard)

    def applied(
        self,
        pushes: Sequence[Push],
        notes: Sequence[Note],
        version: int,
        lr: float,
        began: float,
        now: float,
    ) -> None:
        """An update was made, and ``version`` is that of its result."""
        seconds = now - began
        if not pushes:
            self._add(_APPLY, now, -1, -1, version, self._shard, seconds=seconds)
        for push, note in zip(pushes, notes, strict=True):
            self._add(
                _APPLY, now, push.worker, push.clock, version, self._shard, push.samples,
                push.progress, version - 1 - push.version, lr * note.factor,
                note.gap if note.gap >= 0.0 else _NAN, 0.0, seconds,
            )  # fmt: skip

    def dropped(self, push: Push, version: int, now: float, *, late: bool) -> None:
        """A push will not be used: it came too late at ``version``, or its worker died."""
        self._add(
            _DROP, now, push.worker, push.clock, push.version, self._shard, push.samples,
            push.progress, version - push.version, flag=LATE if late else LOST,
        )  # fmt: skip

    def served(self, serve: Serve, version: int, now: float) -> None:
        """A worker was answered with this version."""
        self._add(_REPLY, now, serve.worker, serve.clock, version, self._shard)

    def saved(self, version: int, now: float) -> None:
        """The span was saved for good."""
        self._add(_FINAL, now, -1, -1, version, self._shard)


class WorkerEventRecorder:
    """What one worker does, in its order."""

    def __init__(self, log: EventLog, worker: int) -> None:
        self._add = log.add
        self._worker = worker

    def read(
        self, now: float, clock: int, versions: Sequence[int], taus: Sequence[int], seconds: float
    ) -> None:
        """All spans of θ that ``clock`` computes with are in place."""
        for shard, version in enumerate(versions):
            self._add(
                _READ, now, self._worker, clock, version, shard, 0, 0.0, taus[shard],
                seconds=seconds,
            )  # fmt: skip

    def pushed(self, push: Push, shard: int, now: float, seconds: float) -> None:
        """A gradient goes to a shard, ``seconds`` after the parameters were there."""
        worker, clock, version, samples, progress, _ = push
        self._add(_PUSH, now, worker, clock, version, shard, samples, progress, seconds=seconds)

    def stepped(
        self, now: float, clock: int, samples: int, progress: float, rate: float, seconds: float
    ) -> None:
        """A gradient was computed, and with ``rate`` a local step taken."""
        self._add(
            _STEP, now, self._worker, clock, -1, -1, samples, progress, 0, rate, seconds=seconds
        )

    def reduces(
        self, now: float, clock: int, updates: int, samples: int, progress: float,
        weight: float, *, present: bool,
    ) -> None:  # fmt: skip
        """This worker's part of a sum over all workers is ready."""
        self._add(
            _REDUCE, now, self._worker, clock, updates, -1, samples, progress, 0, 0.0,
            weight=weight, flag=PRESENT * present,
        )  # fmt: skip

    def reduced(
        self, now: float, clock: int, updates: int, total: float, rate: float, seconds: float,
        *, present: bool,
    ) -> None:  # fmt: skip
        """The sum over all workers is over."""
        self._add(
            _REDUCED, now, self._worker, clock, updates, -1, 0, 0.0, 0, rate,
            weight=total, seconds=seconds, flag=PRESENT * present,
        )  # fmt: skip

    def left(self, now: float, clock: int) -> None:
        """The worker is done."""
        self._add(_LEAVE, now, self._worker, clock, -1)

    def saved(self, updates: int, now: float) -> None:
        """The parameters that all workers share were saved for good."""
        self._add(_FINAL, now, self._worker, -1, updates)
