"""What ranks were doing, derived from their events. Pure.

A worker *computes* until a step, a push or the pass of a micro-batch. It *waits* until a read that
answers a push, for the seconds recorded with a sum, an average or its departure, and until a
micro-batch arrives. A *sum* lasts from the time when the worker's part is ready until its end; an
average of neighbours begins with the first one that it takes. A server *updates* for the recorded
seconds. In virtual time none are recorded, and the update begins at the server's event before, as
when it saves a gradient for a later update.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from psrt.history.events import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CAME,
    FORWARD,
    HOST,
    LATE,
    PARKED,
    TRACKED,
    Kind,
)
from psrt.history.kinds import (
    SERVER_KINDS,
    Encode,
    Message,
    Mixed,
    Pass,
    Reduce,
    Reduced,
    Take,
)
from psrt.views.trace.marks import (
    COMPUTE,
    STEP,
    SUM,
    UPDATE,
    WAIT,
    WINDOW,
    Count,
    Facts,
    Mark,
    Slice,
    nanoseconds,
)
from psrt.views.trace.source import Event

_PASSES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    BACKWARD_INPUT: "backward to the input",
    BACKWARD_WEIGHT: "backward to the weights",
}
#: Kinds that become a mark, and the names of the marks.
MARKED = {
    Kind.READ: "read", Kind.PUSH: "push", Kind.RECEIVE: "receive", Kind.SAVE: "save",
    Kind.APPLY: "apply", Kind.DROP: "drop", Kind.REPLY: "reply", Kind.LEAVE: "leave",
    Kind.LEFT: "left", Kind.OFFER: "offer", Kind.TAKE: "take", Kind.MESSAGE: "send",
    Kind.FINAL: "final", Kind.TICK: "tick", Kind.RELAY: "relay",
}  # fmt: skip
#: Kinds whose ``nbytes`` is the size of a frame that is sent.
_FRAMES = (Kind.ENCODE, Kind.REPLY_ENCODE, Kind.SUM_ENCODE)
_BYTES = "bytes"


@dataclass(slots=True)
class _Worker:
    """What is known of a worker so far; times in nanoseconds."""

    #: Time of its last event, and of its last push; None before the first one.
    last: int | None = None
    pushed: int | None = None
    #: Pushes of its current step, and whether other events than pushes count its steps.
    pushes: int = 0
    counts: bool = False
    #: Start times of sums in progress, by fragment, and when it took the first of an average.
    sums: dict[int, deque[int]] = field(default_factory=dict)
    taken: int | None = None


class Spans:
    """Turns events, in order of time, into slices, marks and counts."""

    def __init__(
        self,
        slice_: Callable[[Slice], None],
        mark: Callable[[Event, Mark], None],
        count: Callable[[Count], None],
        *,
        shards: list[int],
        of_rank: list[dict[int, int]],
    ) -> None:
        """Set up.

        Args:
            slice_: takes slices; the slices of a lane come in order.
            mark: takes marks, with their events.
            count: takes counts.
            shards: number of shards of each cell.
            of_rank: by cell, the number of shards of each rank that has any.
        """
        self._slice, self._mark, self._write_count = slice_, mark, count
        self._shards, self._of_rank = shards, of_rank
        self._workers: dict[tuple[int, int], _Worker] = {}
        #: By rank and lane, the end of the last slice.
        self._ends: dict[tuple[int, str], int] = {}
        #: By cell and shard, the last version that was made.
        self._versions: dict[tuple[int, int], int] = {}
        #: By rank of a server, the time of its last event.
        self._served: dict[int, int] = {}
        #: By rank, the bytes that it has sent.
        self._bytes: dict[int, float] = {}
        self._kinds: dict[int, Callable[[Event, int, _Worker], None]] = {
            Kind.READ: self._read,
            Kind.PUSH: self._pushed,
            Kind.STEP: self._stepped,
            Kind.REDUCE: self._reduces,
            Kind.REDUCED: self._reduced,
            Kind.OFFER: self._waited,
            Kind.OWN: self._takes,
            Kind.TAKE: self._takes,
            Kind.MIXED: self._mixed,
            Kind.LEAVE: self._waited,
            Kind.PARK: self._waited,
            Kind.PASS: self._passed,
            Kind.MESSAGE: self._exchanged,
        }

    def add(self, event: Event) -> None:
        """Take the next event."""
        kind, now = event.kind, nanoseconds(event.time)
        if kind == Kind.APPLY:
            self._applied(event, now)
        elif kind == Kind.SAVE:
            self._updates(event, "save", now, {"step": event.clock})
        elif kind == Kind.TICK and event.seconds > 0:
            lane, start = f"{WINDOW}{self._of_shard(event)}", now - round(event.seconds * 1e9)
            self._lane(event.rank, lane, WINDOW, start, now, {"version": event.clock})
        elif kind in self._kinds:
            worker = self._workers.setdefault((event.cell, event.worker), _Worker())
            self._kinds[kind](event, now, worker)
            worker.last = now
        elif kind in _FRAMES:
            self._sent(event, now, Encode.nbytes.of(event))
        if kind in SERVER_KINDS:
            self._served[event.rank] = now
        if kind in MARKED:
            self._mark(event, _mark_of(event, now))

    def _count(self, it: Count) -> None:
        """Emit a number, unless it is not finite, as when a run diverges."""
        if math.isfinite(it.value):
            self._write_count(it)

    def _lane(self, rank: int, lane: str, name: str, start: int, stop: int, facts: Facts) -> None:
        """Emit a slice, which begins no earlier than the end of the last one of its lane."""
        start = max(start, self._ends.get((rank, lane), 0))
        stop = max(start, stop)
        self._ends[rank, lane] = stop
        self._slice(Slice(rank, lane, name, start, stop, facts))

    def _read(self, event: Event, now: int, worker: _Worker) -> None:
        parked = event.flag == PARKED
        began = worker.last if parked else worker.pushed
        if began is not None and worker.counts and not parked:
            began = worker.last or began  # of a fragment, that has been computing since its push
        # All shards are read together; the first of their events ends the wait.
        if began is not None and (not parked or event.shard == 0):
            name = "checkpoint" if parked else "wait for servers"
            self._lane(event.rank, WAIT, name, began, now, {"step": event.clock})
        worker.pushed, worker.pushes = None, 0

    def _pushed(self, event: Event, now: int, worker: _Worker) -> None:
        worker.pushed = now
        worker.pushes += 1
        if worker.pushes == self._shards[event.cell] and not worker.counts:
            start = now - round(event.seconds * 1e9)
            self._compute(event, start, now, "compute", {"samples": event.samples})

    def _stepped(self, event: Event, now: int, worker: _Worker) -> None:
        worker.counts = True
        lane = STEP if self._is_cut(event) else COMPUTE
        facts: Facts = {"step": event.clock, "samples": event.samples}
        name = "step" if lane == STEP else "compute"
        self._lane(event.rank, lane, name, now - round(event.seconds * 1e9), now, facts)

    def _passed(self, event: Event, now: int, worker: _Worker) -> None:
        worker.counts = True
        start = now if worker.last is None else worker.last
        facts: Facts = {
            "micro-batch": Pass.micro_batch.of(event), "chunk": Pass.chunk.of(event),
            "samples": Pass.rows.of(event),
        }  # fmt: skip
        self._compute(event, start, now, _PASSES.get(event.flag, "pass"), facts)

    def _compute(self, event: Event, start: int, now: int, name: str, facts: Facts) -> None:
        self._lane(event.rank, COMPUTE, name, start, now, {"step": event.clock} | facts)

    def _is_cut(self, event: Event) -> bool:
        return len(self._shards) > 1

    def _reduces(self, event: Event, now: int, worker: _Worker) -> None:
        worker.sums.setdefault(Reduce.fragment.of(event), deque()).append(now)

    def _reduced(self, event: Event, now: int, worker: _Worker) -> None:
        fragment = Reduced.fragment.of(event)
        began = worker.sums.get(fragment)
        lane = SUM if fragment < 0 else f"{SUM} of fragment {fragment}"
        if began:
            self._lane(event.rank, lane, SUM, began.popleft(), now, {"version": event.version})
        self._waited(event, now, worker)
        if fragment >= 0:
            self._count(Count(event.rank, "τ", now, event.tau))

    def _waited(self, event: Event, now: int, worker: _Worker) -> None:
        """Draw the wait that an event ends, by its recorded duration."""
        if event.seconds > 0:
            what = {Kind.REDUCED: "a sum", Kind.PARK: "a checkpoint"}
            name = f"wait for {what.get(Kind(event.kind), 'neighbours')}"
            start = now - round(event.seconds * 1e9)
            self._lane(event.rank, WAIT, name, start, now, {"step": event.clock})

    def _takes(self, event: Event, now: int, worker: _Worker) -> None:
        if worker.taken is None:
            worker.taken = now
        if event.kind == Kind.TAKE and event.tau:
            self._count(Count(event.rank, "τ", now, event.tau))

    def _mixed(self, event: Event, now: int, worker: _Worker) -> None:
        began = worker.last if worker.taken is None else worker.taken
        worker.taken = None
        facts: Facts = {"step": event.clock}
        if (neighbour := Mixed.neighbour.of(event)) >= 0:
            facts["neighbour"] = neighbour
        name = "average of gradients" if event.flag & TRACKED else "average"
        name += " of hosts" if event.flag & HOST else ""
        self._lane(event.rank, SUM, name, now if began is None else began, now, facts)
        self._waited(event, now, worker)
        self._count(Count(event.rank, "gap", now, event.gap))

    def _exchanged(self, event: Event, now: int, worker: _Worker) -> None:
        if event.flag & CAME and worker.last is not None:
            facts: Facts = {"step": event.clock, "micro-batch": Message.micro_batch.of(event)}
            self._lane(event.rank, WAIT, "wait for a stage", worker.last, now, facts)
        elif not event.flag & CAME:
            self._sent(event, now, Message.nbytes.of(event))

    def _applied(self, event: Event, now: int) -> None:
        owner = event.cell, event.shard
        of = self._of_shard(event)
        if self._versions.get(owner) != event.version:  # one event for each push of an update
            self._versions[owner] = event.version
            self._updates(event, "update", now, {"version": event.version})
        if event.worker >= 0:
            self._count(Count(event.rank, f"τ{of}", now, event.tau))
        self._count(Count(event.rank, f"gap{of}", now, event.gap))

    def _of_shard(self, event: Event) -> str:
        """Return which shard an event is of, if its rank has several."""
        several = self._of_rank[event.cell].get(event.rank, 1) > 1
        return f" shard {event.shard}" if several else ""

    def _updates(self, event: Event, name: str, now: int, facts: Facts) -> None:
        start = now - round(event.seconds * 1e9)
        if not event.seconds:
            start = self._served.get(event.rank, now)
        self._lane(event.rank, UPDATE, name, start, now, facts | {"shard": event.shard})

    def _sent(self, event: Event, now: int, nbytes: float) -> None:
        total = self._bytes[event.rank] = self._bytes.get(event.rank, 0.0) + nbytes
        self._count(Count(event.rank, _BYTES, now, total))


def _mark_of(event: Event, now: int) -> Mark:
    """Return the mark of an event, with its facts."""
    kind = event.kind
    name = MARKED[Kind(kind)]
    facts: Facts = {}
    if kind == Kind.MESSAGE:
        name = "come" if event.flag & CAME else "send"
        facts = {"stage": Message.stage.of(event), "micro-batch": Message.micro_batch.of(event)}
    elif kind == Kind.TAKE:
        facts = {"neighbour": Take.neighbour.of(event)}
    elif kind in (Kind.OFFER, Kind.LEAVE):
        pass
    elif kind == Kind.FINAL:
        facts = {"version": event.version}
    elif kind == Kind.TICK:
        return Mark(event.rank, name, now, {"shard": event.shard, "version": event.clock})
    else:
        facts = {"worker": event.worker, "shard": event.shard}
        if kind not in (Kind.LEFT,):
            facts["version"] = event.version
    if kind in (Kind.APPLY, Kind.DROP):
        facts["τ"] = event.tau
    if kind == Kind.DROP:
        facts["why"] = "late" if event.flag == LATE else "its worker died"
    if event.clock >= 0:
        facts["step"] = event.clock
    return Mark(event.rank, name, now, facts)
