"""What a server did when, by its events and those of its workers, on one host's clock. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from psrt.errors import ConfigError
from psrt.history import History, Kind
from psrt.history.reading import Events
from psrt.simulation.calibration.times import ShardTimes
from psrt.simulation.calibration.workers import by_clock, steps_of

#: Worker and clock.
Step = tuple[int, int]


class _Sent(NamedTuple):
    """A message that a worker sent to a shard; a worker's leaving has clock and version −1."""

    time: float
    worker: int
    clock: int
    #: Of the shard, as the worker had it.
    version: int


class Mailbox:
    """The messages to one shard, and which of them it has not received yet."""

    def __init__(self, history: History, shard: int) -> None:
        """Collect what the workers sent."""
        sent = [_sent(events, worker, shard) for worker, events in enumerate(history.workers)]
        self._shard = shard
        self._of = [deque(messages) for messages in sent]
        self._all = deque(sorted(message for messages in sent for message in messages))
        #: Received before what was sent earlier.
        self._early: set[_Sent] = set()

    def receive(
        self, worker: int, clock: int, version: int, samples: int
    ) -> tuple[_Sent, _Sent] | None:
        """Receive a worker's next message; return the first one of all workers', and that one.

        With backups, shards may answer one push with different clocks, and a worker asks those
        that are behind again, with a push of no samples. That is no step of its own, and nobody
        wrote down when it was sent: there is nothing to measure, so None is returned. It cannot be
        mistaken for the next step's push, which may have the same clock, but has a newer version.

        Args:
            worker: who sent it.
            clock: of the push, −1 for a worker's leaving.
            version: that it was computed on, −1 for a worker's leaving.
            samples: in the push.

        Raises:
            ConfigError: if the worker sent no such message.
        """
        waiting = self._of[worker]
        if not waiting or waiting[0][2:] != (clock, version):
            if clock >= 0 and not samples:
                return None
            raise ConfigError(
                f"shard {self._shard} received a message of worker {worker} that it did not send"
            )
        first, received = self._all[0], waiting.popleft()
        self._early.add(received)
        while self._all and self._all[0] in self._early:
            self._early.remove(self._all.popleft())
        return first, received


def _sent(events: Events, worker: int, shard: int) -> list[_Sent]:
    """Return what a worker sent to a shard, in order."""
    kinds = events["kind"]
    these = events[((kinds == Kind.PUSH) & (events["shard"] == shard)) | (kinds == Kind.LEAVE)]
    leaves = these["kind"] == Kind.LEAVE
    steps = (np.where(leaves, -1, these[name]).tolist() for name in ("clock", "version"))
    return list(map(_Sent, these["time"].tolist(), [worker] * len(these), *steps))


class ServerTimeline:
    """One server's durations, measured event by event."""

    def __init__(self, history: History, shard: int, reads: Mapping[Step, float]) -> None:
        """Measure all events of a shard.

        Args:
            history: of the run.
            shard: of the server.
            reads: by worker and clock, when it went on with it.

        Raises:
            ConfigError: if it received what nobody sent.
        """
        workers = history.workers
        self._mailbox = Mailbox(history, shard)
        #: Workers that left by themselves; the notice of a death is sent by nobody.
        self._leavers = [bool((events["kind"] == Kind.LEAVE).any()) for events in workers]
        self._wake_up: list[dict[int, float]] = [{} for _ in workers]
        self._turnaround: list[dict[int, float]] = [{} for _ in workers]
        self._update: dict[int, list[float]] = {}
        #: When the last decision was made, and the version that there was then.
        self._decided, self._version = -np.inf, 0
        #: By worker and the clock that it went on with, when that was decided.
        self.replied: dict[Step, float] = {}
        events = history.shards[shard]
        self._gradients = _gradients(events)
        times = _corrected(events, reads)
        names = ("kind", "worker", "clock", "version", "samples")
        for time, *event in zip(times, *(events[name].tolist() for name in names), strict=True):
            self._add(time, *event)
        start, stop = history.header.spans[shard]
        steps = [steps_of(events, Kind.PUSH) for events in workers]
        #: What was measured.
        self.times = ShardTimes(
            tuple(map(by_clock, self._wake_up, steps)),
            tuple(map(by_clock, self._turnaround, steps)),
            {count: np.maximum(0.0, seconds) for count, seconds in self._update.items()},
            stop - start,
        )

    def _add(
        self, time: float, kind: int, worker: int, clock: int, version: int, samples: int
    ) -> None:
        """Measure up to one event."""
        if kind == Kind.REPLY:
            self.replied[worker, clock] = self._decided
            return
        if kind == Kind.RECEIVE:
            self._receive(time, worker, clock, version, samples)
        elif kind == Kind.LEFT and self._leavers[worker]:
            self._receive(time, worker, -1, -1, 0)
        elif kind == Kind.SAVE:
            self._apply(1, time)
        elif kind == Kind.APPLY and version > self._version:
            self._version = version
            self._apply(self._gradients[version], time)
        if kind != Kind.DROP:
            self._decided = time

    def _receive(self, time: float, *message: int) -> None:
        """Receive a message, see ``Mailbox``: was the server idle when the first one was sent?"""
        found = self._mailbox.receive(*message)
        if found is None:
            return
        first, received = found
        idle = first.time > self._decided
        # An idle server is woken by the first message, whichever it then receives first.
        sent = first if idle else received
        if sent.clock >= 0:
            seconds = self._wake_up if idle else self._turnaround
            since = sent.time if idle else self._decided
            seconds[sent.worker][sent.clock] = time - since

    def _apply(self, gradients: int, time: float) -> None:
        if gradients:
            self._update.setdefault(gradients, []).append(time - self._decided)


def _corrected(events: Events, reads: Mapping[Step, float]) -> list[float]:
    """Return when each event happened, updates no later than the first reply to them was read.

    A large update is read while it is made, and who has read the last of it may take the core from
    a server that has yet to write down that it is done.
    """
    times: list[float] = events["time"].tolist()
    read = np.inf
    columns = (events[name].tolist() for name in ("kind", "worker", "clock"))
    for i, (kind, worker, clock) in reversed(list(enumerate(zip(*columns, strict=True)))):
        if kind == Kind.REPLY:
            read = min(read, reads.get((worker, clock), np.inf))
        elif kind in (Kind.APPLY, Kind.SAVE):
            times[i] = min(times[i], read)
    return times


def _gradients(events: Events) -> dict[int, int]:
    """Return the number of gradients in each version."""
    applied = events[events["kind"] == Kind.APPLY]
    versions, which = np.unique(applied["version"], return_inverse=True)
    counts = np.bincount(which, weights=applied["samples"] > 0, minlength=len(versions))
    return dict(zip(versions.tolist(), counts.astype(int).tolist(), strict=True))
