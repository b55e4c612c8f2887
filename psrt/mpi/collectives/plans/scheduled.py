"""Runs the steps of a schedule: through windows inside a host, between hosts by MPI.

The two halves of a step are independent. A peer on this host whose vector is in a window is read
in place: it publishes the number of steps it has begun, the reader the number of receipts it has
read, and no other message is needed. Everything else goes by MPI through persistent requests,
which are bound to their spans once and started in every run.
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
    #: Number in the schedule → (local rank, the peer's vector), for those whose windows this rank
    #: sees; itself included.
    seen: dict[int, tuple[int, AnyVector]]


@dataclass(slots=True)
class _Move:
    """One step, compiled."""

    #: Counts in this rank's own steps, from 1.
    number: int
    #: Whether a peer reads what is sent from this rank's window.
    shown: bool = False
    #: MPI requests to start, and those to wait for.
    send: Persistent | None = None
    receive: Persistent | None = None
    #: Local rank whose window is read, and the number of its step that sends.
    source: int = -1
    source_number: int = 0
    #: Local rank that reads this rank's window, and the number of its step that receives.
    reader: int = -1
    reader_number: int = 0
    #: What arrives, where it goes, and whether it is folded in; given comes first or second.
    given: AnyVector | None = None
    mine: AnyVector | None = None
    combine: bool = False
    given_first: bool = False
    #: Where what is given is put until what was sent may be overwritten; None: not needed.
    aside: AnyVector | None = None
    #: The step's requests may be started before the receipt of the step before is folded.
    early: bool = False
    #: Who is waited for in this step, for messages.
    peers: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Scheduled(Plan):
    """The plan of one rank."""

    #: What the ranks of the team are of.
    comm: MPI.Intracomm
    #: Of the collective.
    context: CollectiveContext
    #: Who runs it.
    team: Team
    #: The steps of this rank and of the peers that it sees, by their numbers.
    schedules: InitVar[dict[int, Sequence[Step]]]
    #: (n,), this rank's.
    vector: AnyVector
    #: What folds two values.
    operation: InitVar[Operation]
    _: KW_ONLY
    #: What this rank ends with the fold of, to be finished; None: nothing.
    result: InitVar[Span | None] = None
    #: What the schedule's spans behind the vector are of; None: there are none.
    workspace: AnyVector | None = None
    #: By rank of ``comm``, the bytes of one message to it at most.
    most: Sequence[int]
    #: Whether a step may begin before the receipt of the last one is folded.
    overlaps: InitVar[bool] = False
    #: Whether messages go one way, to one rank or from it.
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
        #: Local rank → steps of a run, where node-local ranks count each other's; by MPI none does.
        self._lengths = {self.team.seen[r][0]: len(s) for r, s in schedules.items()}
        # A rank that nobody sees publishes no counts, and its peers add nothing to its base; so it
        # must not either, or the next call in this slot would begin at different counts.
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
        # Two, so that one may be folded while the next one arrives.
        self._scratch = [np.empty(most, self.vector.dtype) for _ in range(2)]
        # The k-th message between two ranks is the k-th non-empty half in both schedules, so each
        # end works out the number of the other's step, and no message has to carry it.
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
        # Both ends are this rank's own: its program order is all the order that is needed.
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
        # MPI calls a small message sent before anybody receives it. Where messages go both ways a
        # rank that calls something else is missed by those who wait for its message; towards a root
        # nobody may wait for anything, and what was sent would lie there for the next equal call.
        # A synchronous send is over when its like has been received, by a call with this tag: the
        # edges of the tree join all ranks, so between ranks that differ some edge does not end.
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
            # The peer's span, which may lie elsewhere in its vector than in this one.
            move.given = spans[source][which].of(vector)
            move.aside = scratch if apart else None
            return
        # MPI writes whenever the message comes: not to operands of a fold, and not to what this
        # step still sends.
        landing = scratch if apart or step.combine else move.mine
        move.given = landing
        data = landing.view(np.uint8)
        move.receive = persistent_receive(
            self.comm, data, rank, self.context.tag, most=self.most[rank]
        )

    def _view(self, span: Span) -> AnyVector:
        n = self.vector.size
        if span.start >= n and span.size:
            assert self.workspace is not None, "the schedule has spans behind the vector"
            return self.workspace[span.start - n : span.stop - n]
        return span.of(self.vector)

    def _allow_early(self, steps: Sequence[Step]) -> None:
        """Mark the steps that neither send nor overwrite what the step before folds."""
        for last, move, before, step in zip(
            self._moves, self._moves[1:], steps, steps[1:], strict=False
        ):
            folds = last.receive is not None and last.combine
            # A step through windows publishes counts, and these must not run ahead of the fold.
            by_mpi = move.source < 0 and not move.shown
            # The two scratch buffers alternate, so this receipt does not land on the last one.
            lands_apart = move.receive is None or move.combine
            free = not _meet(step.send, before.receive)
            move.early = folds and by_mpi and lands_apart and free

    def run(self) -> Run:
        """Run it."""
        # Not fenced by itself: the release of the first BEGUN orders this store before it.
        self._progress.enter()
        moves = self._moves
        for i, move in enumerate(moves):
            self._at = move
            # Every earlier receipt is in place by now, and the release in ``say`` orders these
            # stores before the count: a peer that sees the step begun reads finished numbers.
            if move.shown:
                self._progress.say(BEGUN, self._base + move.number)
            # By MPI: receive and send are both posted before either is waited for, so no two ranks
            # wait for each other's receive.
            if not move.early:
                _start(move)
            late = yield from self._take_in(move)
            yield from self._let_go(move)
            if i + 1 < len(moves) and moves[i + 1].early:
                _start(moves[i + 1])
            # Only now has the peer read what was sent, so what arrived may take its place.
            if late is not None:
                _combine(self._fold, move, late)
        # Counters go on from run to run and from call to call in this slot; every rank adds the
        # same lengths, so each knows where its peers' counters will be.
        for peer, length in self._lengths.items():
            self._bases[peer] += length
        self._at = None
        if self._result is not None:
            self._finish(self._result, len(self.team.ranks))

    @property
    def _base(self) -> int:
        """Steps that this rank has begun in earlier runs."""
        return self._bases[self.context.slot.local_rank]

    def _take_in(self, move: _Move) -> Generator[Ready, None, AnyVector | None]:
        """Wait for what arrives; return it if it is not in its place yet."""
        if move.source < 0:
            if move.receive is not None and not move.receive.Test():
                yield move.receive.Test
            return move.given
        reached, source = self._progress.reached, move.source
        # The count that the peer publishes at this step. It may be far ahead already: what it sends
        # here it leaves alone until this rank says READ, so greater is as good as equal.
        need = self._bases[source] + move.source_number
        if not reached(source, BEGUN, need):
            yield lambda: reached(source, BEGUN, need)
        if move.aside is not None and move.given is not None:
            # Two ranks may exchange the same span. If each delayed its copy until its own span had
            # been read, they would wait for each other; copied aside, both can say READ at once.
            np.copyto(move.aside, move.given)
        else:
            _combine(self._fold, move, move.given)
        # Release: the last load from the peer's window comes before the count that lets the peer
        # overwrite it.
        self._progress.say(READ, self._base + move.number)
        return move.aside

    def _let_go(self, move: _Move) -> Run:
        """Wait until what was sent may be overwritten."""
        if move.reader >= 0:
            reached, reader = self._progress.reached, move.reader
            # Acquire, in ``reached``: what this rank writes next cannot be stored before the count
            # was seen, so the reader never finds the numbers of a later step.
            need = self._bases[reader] + move.reader_number
            if not reached(reader, READ, need):
                yield lambda: reached(reader, READ, need)
        elif move.send is not None and not move.send.Test():
            yield move.send.Test

    def waiting_for(self) -> str:
        """Name the peers of the step that does not end."""
        if self._at is None:
            return nobody()
        return " and ".join(f"rank {peer}" for peer in dict.fromkeys(self._at.peers))

    def free(self) -> None:
        """Free the requests, and let go of the peers' memory."""
        # Only between runs: MPI would go on with an active request, on memory that is let go here.
        for move in self._moves:
            for request in (move.send, move.receive):
                if request is not None:
                    request.Free()
        self._moves.clear()


def _start(move: _Move) -> None:
    # The send first. A long message is announced, and goes when the receiver has answered. If the
    # peer's announcement is here already, this receive answers at once; sent before this rank's own
    # announcement, the answer would let the peer's long message go first, and what the peer answers
    # to the announcement waits behind it on the same connection: over TCP the two messages would
    # go one after the other instead of both at once.
    if move.send is not None:
        move.send.Start()
    if move.receive is not None:
        move.receive.Start()


def _combine(fold: Fold, move: _Move, given: AnyVector | None) -> None:
    """Copy or fold what was given into its place; the lower rank's operand comes first."""
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
