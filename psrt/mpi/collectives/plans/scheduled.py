"""Runs the steps of a schedule: through windows inside a host, between hosts by MPI.

The two halves of a step, send and receive, are independent. A peer on this host whose vector is in
a window is read in place: it publishes the number of steps that it has begun, and the reader the
number of receipts that it has read; no other message is needed. Everything else goes by MPI through
persistent requests, which are bound to their spans once and started in every run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from psrt.collective.ops import Operation
from psrt.collective.step import Step
from psrt.core.arrays import AnyVector
from psrt.core.partition import Span
from psrt.mpi.collectives.plans.plan import CollectiveContext, Fold, Plan, Run, nobody
from psrt.mpi.collectives.slots import BEGUN, READ, Ready
from psrt.mpi.links.pieces import Persistent, persistent_receive, persistent_send


class Team(NamedTuple):
    """The ranks that run a schedule together."""

    #: This rank's number in the schedule.
    rank: int
    #: Number in the schedule → rank of the communicator.
    ranks: tuple[int, ...]
    #: Number in the schedule → (local rank, vector), for the ranks whose vectors this rank can see;
    #: itself included.
    seen: dict[int, tuple[int, AnyVector]]


@dataclass(slots=True)
class _Move:
    """One step, compiled."""

    #: The number of this step among this rank's own, from 1.
    number: int
    #: Whether a peer reads what is sent from this rank's window.
    shown: bool = False
    #: The MPI requests to start, and those to wait for.
    send: Persistent | None = None
    receive: Persistent | None = None
    #: Local rank whose window is read, and the number of its step that sends.
    source: int = -1
    source_number: int = 0
    #: Local rank that reads this rank's window, and the number of its step that receives.
    reader: int = -1
    reader_number: int = 0
    #: The received elements, their place, and whether they are folded in, as first or second
    #: operand.
    given: AnyVector | None = None
    mine: AnyVector | None = None
    combine: bool = False
    given_first: bool = False
    #: Where received elements wait until what was sent may be overwritten; None if not needed.
    aside: AnyVector | None = None
    #: Whether the step's requests may be started before the receipt of the last step is folded.
    early: bool = False
    #: The ranks waited for in this step, for messages.
    peers: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Scheduled(Plan):
    """The plan of one rank."""

    #: The communicator of the team.
    comm: MPI.Intracomm
    #: The context of the collective.
    context: CollectiveContext
    #: The ranks that run it.
    team: Team
    #: Number in the schedule → steps, of this rank and of the peers that it sees.
    schedules: InitVar[dict[int, Sequence[Step]]]
    #: (n,), this rank's vector.
    vector: AnyVector
    #: Folds two values.
    operation: InitVar[Operation]
    _: KW_ONLY
    #: The span whose fold this rank ends with and must finish; None if there is none.
    result: InitVar[Span | None] = None
    #: The array of spans beyond the end of the vector; None if the schedule has none.
    workspace: AnyVector | None = None
    #: By rank of ``comm``, the most bytes of one message to it.
    most: Sequence[int]
    #: Whether a step may begin before the receipt of the step before is folded.
    overlaps: InitVar[bool] = False
    #: Whether messages go in one direction, to one rank or from it.
    rooted: bool = False
    _scratch: list[AnyVector] = field(default_factory=list, init=False)
    _at: _Move | None = field(default=None, init=False)

    def __post_init__(
        self,
        schedules: dict[int, Sequence[Step]],
        operation: Operation,
        result: Span | None,
        overlaps: bool,
    ) -> None:
        self._progress = self.context.progress
        self._fold = operation.ufunc
        self._finish = operation.finish
        self._result = None if result is None else result.of(self.vector)
        self._bases = self.context.bases
        steps = schedules[self.team.rank]
        #: Local rank → steps of a run, for ranks that count each other's steps; none by MPI.
        self._lengths = {self.team.seen[r][0]: len(s) for r, s in schedules.items()}
        # A rank that no peer sees publishes no counts, and its peers add nothing to its base. So it
        # must not add to it either, or the next call in this slot would start at different counts.
        if len(self.team.seen) == 1:
            self._lengths.clear()
        self._moves = self._compile(steps, schedules)
        if overlaps:
            self._allow_early(steps)
        self.polls = any(move.send or move.receive for move in self._moves)
        itemsize = self.vector.itemsize
        me = self.team.rank
        self.bytes_sent = itemsize * sum(s.send.size for s in steps if s.send_to not in (None, me))
        self.bytes_received = itemsize * sum(
            s.receive.size for s in steps if s.receive_from not in (None, me)
        )

    def _compile(self, steps: Sequence[Step], schedules: dict[int, Sequence[Step]]) -> list[_Move]:
        me, team = self.team.rank, self.team
        most = max((s.receive.size for s in steps if s.receive_from not in (None, me)), default=0)
        # Two scratch buffers, so that one may be folded while the next receipt arrives in the
        # other.
        self._scratch = [np.empty(most, self.vector.dtype) for _ in range(2)]
        # The k-th message between two ranks is the k-th non-empty half in both schedules. So each
        # end can compute the number of the other's step, and no message has to carry it.
        sends = {peer: _numbers(schedules[peer], "send_to", me) for peer in schedules}
        receipts = {peer: _numbers(schedules[peer], "receive_from", me) for peer in schedules}
        spans = {peer: [schedules[peer][i - 1].send for i in sends[peer]] for peer in schedules}
        sent = dict.fromkeys(range(len(team.ranks)), 0)
        received = dict.fromkeys(range(len(team.ranks)), 0)
        moves = []
        for number, step in enumerate(steps, 1):
            move = _Move(number)
            to, source = step.send_to, step.receive_from
            if source == me:
                self._local(move, step)
            else:
                if to is not None and step.send.size:
                    which = sent[to]
                    sent[to] += 1
                    self._outgoing(move, step, to, receipts, which)
                if source is not None and step.receive.size:
                    which = received[source]
                    received[source] += 1
                    self._incoming(move, step, source, sends, spans, which)
            moves.append(move)
        return moves

    def _local(self, move: _Move, step: Step) -> None:
        # A step to itself: program order is all the order that is needed.
        move.given, move.mine = self._view(step.send), self._view(step.receive)
        move.combine = step.combine

    def _outgoing(
        self, move: _Move, step: Step, to: int, receipts: dict[int, list[int]], which: int
    ) -> None:
        rank = self.team.ranks[to]
        move.peers.append(rank)
        if to in receipts:
            move.shown = True
            move.reader, move.reader_number = self.team.seen[to][0], receipts[to][which]
            return
        data = step.send.of(self.vector).view(np.uint8)
        # MPI completes a small send before any rank receives it. Where messages go both ways, ranks
        # that wait for the message of one in another call notice. Towards a root nobody may wait
        # for anything, and a sent message would be matched by the next equal call. A synchronous
        # send completes only when a receive with this tag has started. The edges of the tree
        # connect all ranks, so if two ranks are in different calls, the send on some edge does not
        # complete.
        move.send = persistent_send(
            self.comm,
            data,
            rank,
            self.context.tag,
            most=self.most[rank],
            synchronous=self.rooted,
        )

    def _incoming(
        self,
        move: _Move,
        step: Step,
        source: int,
        sends: dict[int, list[int]],
        spans: dict[int, list[Span]],
        which: int,
    ) -> None:
        rank = self.team.ranks[source]
        move.peers.append(rank)
        move.mine, move.combine = self._view(step.receive), step.combine
        move.given_first = source < self.team.rank
        apart = step.send_to is not None and _meet(step.send, step.receive)
        scratch = self._scratch[move.number % 2][: step.receive.size]
        if source in sends:
            local, vector = self.team.seen[source]
            move.source, move.source_number = local, sends[source][which]
            # The peer's span, which may be at another place in its vector than in this one.
            move.given = spans[source][which].of(vector)
            move.aside = scratch if apart else None
            return
        # MPI writes as soon as the message arrives: so neither into an operand of a fold nor into
        # what this step still sends, but into a scratch buffer.
        landing = scratch if apart or step.combine else move.mine
        move.given = landing
        data = landing.view(np.uint8)
        move.receive = persistent_receive(
            self.comm, data, rank, self.context.tag, most=self.most[rank]
        )

    def _view(self, span: Span) -> AnyVector:
        n = self.vector.size
        if span.start >= n and span.size:
            assert self.workspace is not None, "the schedule has spans beyond the vector"
            return self.workspace[span.start - n : span.stop - n]
        return span.of(self.vector)

    def _allow_early(self, steps: Sequence[Step]) -> None:
        """Mark the steps that neither send nor overwrite what the step before folds."""
        for last, move, before, step in zip(
            self._moves, self._moves[1:], steps, steps[1:], strict=False
        ):
            folds = last.receive is not None and last.combine
            # A step through windows publishes counts, which must not run ahead of the fold.
            by_mpi = move.source < 0 and not move.shown
            # The two scratch buffers alternate, so this receipt does not overwrite the last one.
            lands_apart = move.receive is None or move.combine
            free = not _meet(step.send, before.receive)
            move.early = folds and by_mpi and lands_apart and free

    def run(self) -> Run:
        """Run it."""
        # Needs no fence: the release of the first BEGUN orders this store before that count.
        self._progress.enter()
        moves = self._moves
        for i, move in enumerate(moves):
            self._at = move
            # Every earlier receipt is in place by now, and the release in ``say`` orders those
            # stores before the count: a peer that sees the step begun reads finished numbers.
            if move.shown:
                self._progress.say(BEGUN, self._base + move.number)
            # By MPI, receive and send are both posted before either is waited for, so no two ranks
            # can wait for each other's receive.
            if not move.early:
                _start(move)
            late = yield from self._take_in(move)
            yield from self._let_go(move)
            if i + 1 < len(moves) and moves[i + 1].early:
                _start(moves[i + 1])
            # Only now has the peer read what was sent, so the received elements may replace it.
            if late is not None:
                _combine(self._fold, move, late)
        # Counters continue from run to run and from call to call in this slot. Every rank adds the
        # same lengths to its bases, so each knows where its peers' counters start next.
        for peer, length in self._lengths.items():
            self._bases[peer] += length
        self._at = None
        if self._result is not None:
            self._finish(self._result, len(self.team.ranks))

    @property
    def _base(self) -> int:
        """The number of steps that this rank has begun in earlier runs."""
        return self._bases[self.context.slot.local_rank]

    def _take_in(self, move: _Move) -> Generator[Ready, None, AnyVector | None]:
        """Wait for the receipt; return its elements if they are not in their place yet."""
        if move.source < 0:
            if move.receive is not None and not move.receive.Test():
                yield move.receive.Test
            return move.given
        reached, source = self._progress.reached, move.source
        # Wait for the count that the peer publishes at this step. It may be further already: the
        # peer does not change what it sends here until this rank says READ, so ≥ is as good as
        # equal.
        need = self._bases[source] + move.source_number
        if not reached(source, BEGUN, need):
            yield lambda: reached(source, BEGUN, need)
        if move.aside is not None and move.given is not None:
            # Two ranks may exchange the same span. If each copied only after its own span had been
            # read, they would wait for each other. Copied aside, both can say READ at once.
            np.copyto(move.aside, move.given)
        else:
            _combine(self._fold, move, move.given)
        # Release: the last load from the peer's window comes before the count that allows the peer
        # to overwrite it.
        self._progress.say(READ, self._base + move.number)
        return move.aside

    def _let_go(self, move: _Move) -> Run:
        """Wait until what was sent may be overwritten."""
        if move.reader >= 0:
            reached, reader = self._progress.reached, move.reader
            # Acquire, in ``reached``: this rank's next stores come after it has seen the count, so
            # the reader never finds the numbers of a later step.
            need = self._bases[reader] + move.reader_number
            if not reached(reader, READ, need):
                yield lambda: reached(reader, READ, need)
        elif move.send is not None and not move.send.Test():
            yield move.send.Test

    def waiting_for(self) -> str:
        """Name the peers of the step in progress."""
        if self._at is None:
            return nobody()
        return " and ".join(f"rank {peer}" for peer in dict.fromkeys(self._at.peers))

    def free(self) -> None:
        """Free the requests, and drop views of the peers' memory."""
        # Only between runs: MPI would continue an active request on memory that is dropped here.
        for move in self._moves:
            for request in (move.send, move.receive):
                if request is not None:
                    request.Free()
        self._moves.clear()


def _start(move: _Move) -> None:
    # The send first. A long message is announced (rendezvous), and sent when the receiver has
    # answered. If the peer's announcement is here already, posting this receive answers it at once.
    # If that came before this rank's own announcement, the peer's long message would start first,
    # and the peer's answer would queue behind it on the same connection: over TCP the two messages
    # would go one after the other instead of at the same time.
    if move.send is not None:
        move.send.Start()
    if move.receive is not None:
        move.receive.Start()


def _combine(fold: Fold, move: _Move, given: AnyVector | None) -> None:
    """Copy or fold received elements into their place; the lower rank's operand comes first."""
    mine = move.mine
    if mine is None or given is None or given is mine:
        return
    if not move.combine:
        np.copyto(mine, given)
    elif move.given_first:
        fold(given, mine, out=mine)
    else:
        fold(mine, given, out=mine)


def _numbers(steps: Sequence[Step], half: str, peer: int) -> list[int]:
    """Return the numbers, from 1, of the steps with a non-empty half to or from ``peer``."""
    span = "send" if half == "send_to" else "receive"
    return [
        number
        for number, step in enumerate(steps, 1)
        if getattr(step, half) == peer and getattr(step, span).size
    ]


def _meet(a: Span, b: Span) -> bool:
    return a.start < b.stop and b.start < a.stop
