"""Which event caused which: pushes, offers between neighbours, micro-batches. Pure.

- A push is received, possibly saved, and applied or dropped; its worker gets a reply and reads it.
  If the reply comes before the update, update and reply are two chains.
- A stop of a worker for a checkpoint is received, answered and read in the same way.
- An offer is taken by each of the neighbours that it was sent to.
- A micro-batch that a stage sends arrives at another one.

Marks are kept until their chain is complete, so only what is in flight is in memory. At the end, or
if only a part of a run is drawn, a chain may be incomplete; a single mark is not a chain.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from psrt.history.events import CAME, GRADIENT, PARKED, Kind, parts
from psrt.history.kinds import Message, Offer
from psrt.views.trace.marks import Chain, Mark
from psrt.views.trace.source import Event

#: Kinds of the chain of a push, in its order.
_PUSHED = (Kind.PUSH, Kind.RECEIVE, Kind.SAVE, Kind.APPLY, Kind.DROP, Kind.REPLY, Kind.READ)
_USED = (Kind.APPLY, Kind.DROP)
#: Takes marks, and the chains that they form.
Emit = Callable[[tuple[Mark, ...], tuple[Chain, ...]], None]


@dataclass(slots=True)
class _Offer:
    """An offer, and the takes of it so far."""

    offer: Mark | None = None
    wanted: int = 0
    takes: list[Mark] = field(default_factory=list)


class Flows:
    """Pairs marks, and emits them with their chains."""

    def __init__(self, emit: Emit, slices: int, *, rounds: bool) -> None:
        """Set up.

        Args:
            emit: takes complete chains.
            slices: number of slices of each stage; cells are counted slices first.
            rounds: whether neighbours mix in rounds.
        """
        self._emit, self._slices, self._rounds = emit, slices, rounds
        self._pushes: dict[tuple[int, ...], dict[int, Mark]] = {}
        self._offers: dict[tuple[int, ...], _Offer] = {}
        #: By micro-batch: messages sent, and messages received.
        self._batches: dict[tuple[int, ...], tuple[deque[Mark], deque[Mark]]] = {}
        #: By cell, worker and shard: a stop for a checkpoint, which is answered as a push is.
        self._stops: dict[tuple[int, ...], list[Mark]] = {}
        #: Marks that are kept.
        self.held = 0
        #: Chains that were not complete at the end.
        self.cut = 0
        #: Chains that are left out because their times are not in order.
        self.disordered = 0

    def add(self, event: Event, mark: Mark) -> None:
        """Take an event that is drawn."""
        kind = event.kind
        if kind in _PUSHED:
            self._add_push(event, mark)
        elif kind in (Kind.OFFER, Kind.TAKE):
            self._add_offer(event, mark)
        elif kind == Kind.MESSAGE:
            self._add_batch(event, mark)
        else:
            self._emit((mark,), ())

    def close(self) -> None:
        """Emit the rest."""
        self.cut += len(self._pushes) + len(self._stops) + len(self._offers)
        self.cut += sum(map(len, (one for queues in self._batches.values() for one in queues)))
        for kept in self._pushes.values():
            self._end_push(kept)
        for stop in self._stops.values():
            self._end_stop(stop)
        for offer in self._offers.values():
            self._end_offer(offer)
        for queues in self._batches.values():
            for mark in (*queues[0], *queues[1]):
                self._emit((mark,), ())
        self._pushes, self._offers, self._batches, self._stops = {}, {}, {}, {}
        self.held = 0

    def _add_push(self, event: Event, mark: Mark) -> None:
        kind = event.kind
        if self._add_stop(event, mark):
            return
        if event.worker < 0:
            self._emit((mark,), ())  # from an update without pushes
            return
        # Replies and reads have the clock of the next step.
        clock = event.clock - (kind in (Kind.REPLY, Kind.READ))
        if clock < 0:
            self._emit((mark,), ())  # the initial parameters, which are sent unasked
            return
        key = event.cell, event.worker, event.shard, clock
        kept = self._pushes.setdefault(key, {})
        if kind in kept:  # twice, which violates the guarantees of a run
            self._emit((mark,), ())
            return
        kept[kind] = mark
        self.held += 1
        if Kind.READ in kept and any(it in kept for it in _USED):
            self.held -= len(kept)
            del self._pushes[key]
            self._end_push(kept)

    def _add_stop(self, event: Event, mark: Mark) -> bool:
        """Take an event of a stop for a checkpoint, and return whether it is one."""
        kind, key = event.kind, (event.cell, event.worker, event.shard)
        parked = event.flag == PARKED and kind in (Kind.RECEIVE, Kind.READ)
        if not parked and not (kind == Kind.REPLY and len(self._stops.get(key, ())) == 1):
            return False
        stop = self._stops.setdefault(key, [])
        stop.append(mark)
        self.held += 1
        if kind == Kind.READ:
            self.held -= len(stop)
            self._end_stop(self._stops.pop(key))
        return True

    def _end_stop(self, stop: list[Mark]) -> None:
        self._emit(tuple(stop), tuple(self._chain("checkpoint", stop)))

    def _end_push(self, kept: dict[int, Mark]) -> None:
        used = next((kept[it] for it in _USED if it in kept), None)
        reply = kept.get(Kind.REPLY)
        gradient = [kept[it] for it in _PUSHED[:5] if it in kept]
        answer = [kept[it] for it in _PUSHED[5:] if it in kept]
        if used is None or reply is None or reply.at < used.at:
            chains = [*self._chain("push", gradient), *self._chain("reply", answer)]
        else:
            chains = [*self._chain("push", [*gradient, *answer])]
        self._emit((*gradient, *answer), tuple(chains))

    def _chain(self, name: str, marks: list[Mark]) -> Iterator[Chain]:
        if len(marks) < 2:
            return
        if any(later.at < before.at for before, later in itertools.pairwise(marks)):
            self.disordered += 1
            return
        yield Chain(name, tuple(marks))

    def _add_offer(self, event: Event, mark: Mark) -> None:
        is_offer = event.kind == Kind.OFFER
        sender, receiver = event.worker, Offer.neighbour.of(event)
        if not is_offer:
            sender, receiver = receiver, sender
        # In rounds one offer is for all neighbours; otherwise each has a number of its maker.
        key = event.cell, sender, event.flag, event.clock, -1
        if not self._rounds:
            number = parts(Offer.digests.of(event))[1]
            key = event.cell, sender, 0, number, receiver
        offer = self._offers.setdefault(key, _Offer())
        self.held += 1
        if is_offer:
            offer.offer, offer.wanted = mark, Offer.receivers.of(event)
        else:
            offer.takes.append(mark)
        if offer.offer is not None and len(offer.takes) >= offer.wanted:
            self.held -= 1 + len(offer.takes)
            del self._offers[key]
            self._end_offer(offer)

    def _end_offer(self, it: _Offer) -> None:
        if it.offer is None:
            self._emit(tuple(it.takes), ())
            return
        chains = [chain for take in it.takes for chain in self._chain("offer", [it.offer, take])]
        self._emit((it.offer, *it.takes), tuple(chains))

    def _add_batch(self, event: Event, mark: Mark) -> None:
        stage, slice_ = divmod(event.cell, self._slices)
        came = bool(event.flag & CAME)
        other, micro_batch = Message.stage.of(event), Message.micro_batch.of(event)
        ends = (other, stage) if came else (stage, other)
        # A micro-batch may take the same way several times, once per chunk, in order.
        key = event.worker, slice_, *ends, event.flag & GRADIENT, event.clock, micro_batch
        queues = self._batches.setdefault(key, (deque(), deque()))
        queues[came].append(mark)
        self.held += 1
        if queues[0] and queues[1]:
            sent, taken = queues[0].popleft(), queues[1].popleft()
            if not (queues[0] or queues[1]):
                del self._batches[key]
            self.held -= 2
            self._emit((sent, taken), tuple(self._chain("micro-batch", [sent, taken])))
