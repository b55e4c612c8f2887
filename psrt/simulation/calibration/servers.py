"""A server's activity over time, from its events and its workers', on one host's clock. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history import History, Kind
from psrt.history.log import Events
from psrt.simulation.calibration.times import ShardTimes
from psrt.simulation.calibration.workers import by_clock, steps_of

#: Worker and clock.
Step = tuple[int, int]


class _Sent(NamedTuple):
    """A message that a worker sent to a shard; a worker's departure has clock and version −1."""

    time: float
    shard: int
    worker: int
    clock: int
    #: The version of the shard that the worker had.
    version: int


class Mailbox:
    """The messages to the shards of one server, and which of them are not received yet."""

    def __init__(self, history: History, shards: Sequence[int]) -> None:
        """Collect what the workers sent."""
        self._of = {
            (shard, worker): deque(_sent(events, worker, shard))
            for shard in shards
            for worker, events in enumerate(history.workers)
        }
        # A worker pushes all shards at one time, the last shard first.
        self._all = deque(
            sorted(
                (it for messages in self._of.values() for it in messages),
                key=lambda it: (it.time, -it.shard, *it[2:]),
            )
        )
        #: Messages received before earlier ones.
        self._early: set[_Sent] = set()

    def receive(
        self, shard: int, worker: int, clock: int, version: int, samples: int
    ) -> tuple[_Sent, _Sent] | None:
        """Receive a worker's next message; return the first message of all workers, and this one.

        With backups, shards may answer one push with different clocks. Then a worker asks the
        shards that are behind again, by a push of no samples. Such a push does not belong to a
        step, and its sending was not recorded: nothing can be measured, so None is returned. It
        cannot be mistaken for the next step's push, which may have the same clock, but has a newer
        version.

        Args:
            shard: the receiver.
            worker: the sender.
            clock: of the push, −1 for a worker's departure.
            version: that the gradient was computed on, −1 for a worker's departure.
            samples: in the push.

        Raises:
            ConfigError: if the worker sent no such message.
        """
        waiting = self._of[shard, worker]
        if not waiting or waiting[0][3:] != (clock, version):
            if clock >= 0 and not samples:
                return None
            raise ConfigError(
                f"shard {shard} received a message of worker {worker} that it did not send"
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
    whose = [shard] * len(these), [worker] * len(these)
    return list(map(_Sent, these["time"].tolist(), *whose, *steps))


class _Durations:
    """What has been measured of one shard so far."""

    def __init__(self, history: History, shard: int) -> None:
        workers, (start, stop) = history.workers, history.header.spans[shard]
        self.wake_up: list[dict[int, float]] = [{} for _ in workers]
        self.turnaround: list[dict[int, float]] = [{} for _ in workers]
        self.update: dict[int, list[float]] = {}
        #: The version after the last update that was measured.
        self.version = 0
        #: The number of gradients in each version.
        self.gradients = _gradients(history.shards[shard])
        self._size = stop - start
        self._steps = [steps_of(events, Kind.PUSH) for events in workers]

    def times(self) -> ShardTimes:
        """Return all that was measured."""
        return ShardTimes(
            tuple(map(by_clock, self.wake_up, self._steps)),
            tuple(map(by_clock, self.turnaround, self._steps)),
            {count: np.maximum(0.0, seconds) for count, seconds in self.update.items()},
            self._size,
        )


class ServerTimeline:
    """One server's durations, measured event by event."""

    def __init__(
        self, history: History, shards: Sequence[int], reads: Mapping[Step, float]
    ) -> None:
        """Measure all events of the shards of a server, which does one thing at a time.

        Args:
            history: of the run.
            shards: of the server.
            reads: by worker and clock, when it continued with that clock.

        Raises:
            ConfigError: if it received a message that no worker sent.
        """
        self._mailbox = Mailbox(history, shards)
        #: By worker, whether it departed by itself; no worker sends the notice of a death.
        self._leavers = [bool((it["kind"] == Kind.LEAVE).any()) for it in history.workers]
        self._durations = {shard: _Durations(history, shard) for shard in shards}
        #: When the last decision was made.
        self._decided = -np.inf
        #: By worker and the clock that it continued with, when the last shard had decided that.
        self.replied: dict[Step, float] = {}
        events = np.concatenate([history.shards[shard] for shard in shards])
        times = [time for shard in shards for time in _corrected(history.shards[shard], reads)]
        names = ("kind", "shard", "worker", "clock", "version", "samples")
        columns = [events[name].tolist() for name in names]
        # In the order of writing: events that a shard wrote at one time stay together, after the
        # last events of other shards at that time: a server handles one message after another.
        begins = np.concatenate([_begins(history.shards[shard]) for shard in shards])
        for i in np.lexsort((begins, events["time"])).tolist():
            self._add(times[i], *(column[i] for column in columns))
        #: The measured times, by shard.
        self.times = {shard: found.times() for shard, found in self._durations.items()}

    def _add(
        self,
        time: float,
        kind: int,
        shard: int,
        worker: int,
        clock: int,
        version: int,
        samples: int,
    ) -> None:
        """Measure up to one event."""
        if kind == Kind.REPLY:
            self.replied[worker, clock] = self._decided
            return
        found = self._durations[shard]
        if kind == Kind.RECEIVE:
            self._receive(time, shard, worker, clock, version, samples)
        elif kind == Kind.LEFT and self._leavers[worker]:
            self._receive(time, shard, worker, -1, -1, 0)
        elif kind == Kind.SAVE:
            self._apply(found, 1, time)
        elif kind == Kind.APPLY and version > found.version:
            found.version = version
            self._apply(found, found.gradients[version], time)
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
            durations = self._durations[sent.shard]
            seconds = durations.wake_up if idle else durations.turnaround
            since = sent.time if idle else self._decided
            seconds[sent.worker][sent.clock] = time - since

    def _apply(self, found: _Durations, gradients: int, time: float) -> None:
        if gradients:
            found.update.setdefault(gradients, []).append(time - self._decided)


def _begins(events: Events) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each event whether the first one of its shard at its time is a receipt."""
    _, first, which = np.unique(events["time"], return_index=True, return_inverse=True)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = events["kind"][first][which] == Kind.RECEIVE
    return found


def _corrected(events: Events, reads: Mapping[Step, float]) -> list[float]:
    """Return when each event happened; updates no later than the first read of a reply to them.

    A large update is read while it is made, and the worker that has read all of it may take the
    core from the server before the server records that the update is done.
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
