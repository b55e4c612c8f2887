"""Compiles collectives: turns a call on given buffers into a plan that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psrt.collective import ALGORITHMS, OPS, PHASES, Step
from psrt.collective.registry import LIBRARY, ONE_SHOT_BYTES, PLUS, owned_by
from psrt.collective.schedule import Schedule
from psrt.collective.schedules.all_to_all import on_blocks
from psrt.collective.spec import CollectiveSpec
from psrt.core.arrays import AnyVector
from psrt.core.partition import Span, block_spans, even_spans
from psrt.core.ways import Way
from psrt.mpi.collectives.contexts import BETWEEN, GATHERED, ContextTable
from psrt.mpi.collectives.plans.copy import Copied, Copy, Fetched
from psrt.mpi.collectives.plans.direct import Direct, Keep, Sink
from psrt.mpi.collectives.plans.exchange import Exchange, Swap
from psrt.mpi.collectives.plans.framed import Framed
from psrt.mpi.collectives.plans.one_shot import OneShot
from psrt.mpi.collectives.plans.plan import CollectiveContext, Plan
from psrt.mpi.collectives.plans.scheduled import Scheduled, Team
from psrt.mpi.collectives.plans.sharded import Sharded, Shifted, Spread
from psrt.mpi.collectives.plans.staged import PAIR_PIECE_BYTES, PIECE_BYTES, STAGES, Staged
from psrt.mpi.collectives.plans.straight import Straight
from psrt.mpi.collectives.plans.vendor import Vendor, VendorAccess
from psrt.mpi.fabric import Fabric
from psrt.mpi.links.pieces import MOST_BYTES
from psrt.mpi.links.segments import SegmentOffset
from psrt.optim import BLOCK
from psrt.transport.coded_sum import SumCodec
from psrt.transport.straight_sum import StraightSum


class Coded(NamedTuple):
    """The codec of a sum, and the part of the parameters that is summed."""

    codec: SumCodec
    span: Span

    def within(self, part: Span) -> Coded:
        """Return the same for a part of the summed vector."""
        first = self.span.start
        return Coded(self.codec, Span(first + part.start, first + part.stop))


class Compiler:
    """Makes the plans of one rank."""

    def __init__(self, fabric: Fabric, library: VendorAccess, contexts: ContextTable) -> None:
        """Set up.

        Args:
            fabric: of the ranks.
            library: gives access to the MPI library's own collectives.
            contexts: what all ranks derive from signatures.
        """
        self._comm = fabric.comm
        self._library = library
        self._layout = fabric.layout
        self._segments = fabric.segments
        self._contexts = contexts
        self._unannounced_bytes = fabric.unannounced_bytes

    def all_reduce(
        self,
        signature: str,
        vector: AnyVector,
        op: str,
        algorithm: str,
        place: SegmentOffset | None,
        sink: Sink | None = None,
        coded: Coded | None = None,
    ) -> Plan:
        """Compile an all-reduce.

        Args:
            signature: of the call, the same on every rank.
            vector: (n,), this rank's.
            op: a key of ``OPS``.
            algorithm: a key of ``ALGORITHMS``, ``node``, ``node+`` and such a key, or ``mpi``.
            place: of the vector, on every rank of every host; None if it is in no window.
            sink: receives the results, in ``node`` algorithms.
            coded: the codec of messages between ranks, or between hosts in ``node`` algorithms;
                None for none.

        Raises:
            ConfigError: if there is no such all-reduce for these numbers.
        """
        # Every branch below depends only on what is the same on all ranks of the call: the
        # signature, the layout, the size, and whether the array is in a window. Two ranks that took
        # different branches would wait for each other in different protocols.
        operation, context = OPS[op], self._contexts.of(signature)
        if algorithm == LIBRARY:
            return Vendor(self._library, vector, operation, context.checksum)
        if algorithm in ALGORITHMS:
            team, whole = self._team(vector, place), Span(0, vector.size)
            if coded is not None:
                return self._coded(context, algorithm, team, vector, coded)
            return self._schedule(context, algorithm, team, vector, op, result=whole)
        alone = len(self._layout.local_ranks) == 1
        if len(self._layout.hosts) == 1 and sink is None and not alone:
            if vector.nbytes <= ONE_SHOT_BYTES:
                return OneShot(context, vector, operation)
            if place is None:
                return Staged(context, vector, self._rooms(signature, vector), operation)
        return self._in_place(signature, vector, op, algorithm, place, sink, coded)

    def _in_place(
        self,
        signature: str,
        vector: AnyVector,
        op: str,
        algorithm: str,
        place: SegmentOffset | None,
        sink: Sink | None,
        coded: Coded | None,
    ) -> Plan:
        layout, context = self._layout, self._contexts.of(signature)
        # Decided by the largest host of the job, not by this one: ``stage`` is collective over all
        # ranks at first, so a rank that is alone on its host must take part.
        staged = place is None and max(map(len, layout.hosts)) > 1
        if place is None:
            buffers = [vector]
            if staged:
                buffers = list(self._contexts.stage(signature, vector.nbytes, vector.dtype))
        else:
            buffers = self._segments.views(place, vector)
        # Rail i of the host's sum goes between hosts, by the i-th rank of each. Ranks beyond the
        # smallest host's count lead no rail.
        rail = layout.local_rank
        between: Plan | None = None
        if len(layout.hosts) > 1 and rail < len(layout.rails):
            span = even_spans(vector.size, len(layout.rails))[rail]
            mine, ranks = span.of(buffers[0]), layout.rails[rail]
            me = ranks.index(layout.rank)
            team = Team(me, ranks, {me: (rail, mine)})
            apart = self._contexts.of(signature + BETWEEN)
            name = algorithm.removeprefix(PLUS)
            if coded is None:
                between = self._schedule(apart, name, team, mine, op)
            else:
                between = self._coded(apart, name, team, mine, coded.within(span))
        elif len(layout.hosts) > 1:
            # Not used here, but made: a context's slot is the number of contexts so far, and all
            # ranks must give the same slots to the same signatures.
            self._contexts.of(signature + BETWEEN)
        plan = Direct(
            context,
            buffers,
            OPS[op],
            size=layout.size,
            sink=sink,
            between=between,
            hosts=len(layout.hosts),
        )
        if not staged:
            return plan
        return Copied(plan, vector, buffers[layout.local_rank][: vector.size])

    def sharded(
        self,
        signature: str,
        vector: AnyVector,
        algorithm: str,
        take: Sink,
        parameters: Sequence[AnyVector],
    ) -> Plan:
        """Compile a sum in windows, of which each rank takes its own part: see ``owned``.

        Args:
            signature: of the call, the same on every rank.
            vector: (n,), this rank's numbers.
            algorithm: one of ``SHARDING``, after ``auto``.
            take: turns the sums that this rank owns into parameters.
            parameters: (n,) each, with which all ranks end: this rank's, or those of each rank of
                this host if ``algorithm`` is by hosts (one if they share it); empty if nothing
                is gathered.
        """
        place, context = self._segments.locate(vector), self._contexts.of(signature)
        if algorithm in ALGORITHMS:
            after = self._segments.locate(parameters[0]) if parameters else None
            theta = parameters[0] if parameters else None
            teams = self._team(vector, place), None if theta is None else self._team(theta, after)
            return self._halves(signature, algorithm, teams, vector, theta, take)
        assert place is not None, "node-local ranks sum in windows"
        buffers = self._segments.views(place, vector)
        layout, rail = self._layout, self._layout.local_rank
        between: Plan | None = None
        if rail < len(layout.rails):
            part = even_spans(vector.size, len(layout.rails))[rail]
            mine, theta, ranks = part.of(buffers[0]), part.of(parameters[0]), layout.rails[rail]
            me, name = ranks.index(layout.rank), algorithm.removeprefix(PLUS)
            both = (Team(me, ranks, {me: (rail, mine)}), Team(me, ranks, {me: (rail, theta)}))
            shifted = Shifted(take, part.start)
            between = self._halves(signature + BETWEEN, name, both, mine, theta, shifted)
        else:
            for half in (BETWEEN, BETWEEN + GATHERED):
                self._contexts.of(signature + half)  # made on all ranks, see ``_in_place``
        return Direct(
            context,
            buffers,
            OPS["sum"],
            size=layout.size,
            sink=Spread(parameters),
            between=between,
            hosts=len(layout.hosts),
        )

    def _halves(
        self,
        signature: str,
        name: str,
        teams: tuple[Team, Team | None],
        vector: AnyVector,
        parameters: AnyVector | None,
        take: Sink,
    ) -> Plan:
        """Compile both halves of a schedule, on different vectors, and the update in between."""
        context, apart = self._contexts.of(signature), self._contexts.of(signature + GATHERED)
        # The two halves have a context each: a rank that has finished the scatter may begin the
        # gather while others still scatter, and its messages must not match theirs.
        team, after = teams
        own = owned_by(name, team.rank, len(team.ranks), vector.size)
        blocks = [Span(own.start + a, own.start + b) for a, b in block_spans(own.size, BLOCK)]
        gather = None
        if parameters is not None and after is not None:
            gather = self._schedule(apart, name, after, parameters, "sum", half=1)
        scatter = self._schedule(context, name, team, vector, "sum", half=0)
        plans = [scatter] if gather is None else [scatter, gather]
        return Sharded(plans, [(block, block.of(vector)) for block in blocks], take)

    def gather(self, signature: str, vector: AnyVector, algorithm: str) -> Plan:
        """Compile the second half of a schedule, which gathers a vector's owned parts on all ranks.

        Args:
            signature: of the call, the same on every rank.
            vector: (n,), in a window; this rank's own part holds its numbers.
            algorithm: a key of ``ALGORITHMS`` with halves.
        """
        team = self._team(vector, self._segments.locate(vector))
        return self._schedule(self._contexts.of(signature), algorithm, team, vector, "sum", half=1)

    def owned(self, n: int, algorithm: str) -> Span:
        """Return the part of n elements whose sums this rank takes in ``sharded``."""
        layout, local = self._layout, self._layout.local_rank
        if algorithm in ALGORITHMS:
            order = [rank for host in layout.hosts for rank in host]
            return owned_by(algorithm, order.index(layout.rank), layout.size, n)
        # The same split as ``sharded`` and ``Direct`` use: an owner updates exactly the sums that
        # it folded. On several hosts, rails split the vector first and the schedule splits each
        # rail's part; a rank beyond the rails folds for its host but owns nothing.
        if len(layout.hosts) == 1:
            return even_spans(n, layout.size)[local]
        if local >= len(layout.rails):
            return Span(n, n)
        part, ranks = even_spans(n, len(layout.rails))[local], layout.rails[local]
        name, me = algorithm.removeprefix(PLUS), ranks.index(layout.rank)
        start, stop = owned_by(name, me, len(ranks), part.size)
        return Span(part.start + start, part.start + stop)

    def _schedule(
        self,
        context: CollectiveContext,
        name: str,
        team: Team,
        vector: AnyVector,
        op: str,
        *,
        result: Span | None = None,
        half: int | None = None,
    ) -> Plan:
        """Compile a schedule.

        Args:
            context: of the call.
            name: a key of ``ALGORITHMS``.
            team: the ranks that run it.
            vector: (n,), this rank's.
            op: a key of ``OPS``.
            result: the span that it finishes; None leaves that to the caller.
            half: 0 for the reduce-scatter, 1 for the all-gather; None for both.
        """
        algorithm, size, n = ALGORITHMS[name], len(team.ranks), vector.size

        def steps(rank: int) -> Sequence[Step]:
            if half is None:
                return list(algorithm(rank, size, n))
            return algorithm.halves(rank, size, n)[half]

        return Scheduled(
            self._comm,
            context,
            team,
            {r: steps(r) for r in {team.rank, *team.seen}},
            vector,
            OPS[op],
            result=result,
            workspace=np.empty(algorithm.workspace(size, n), vector.dtype),
            most=self._most(algorithm, size),
            overlaps=algorithm.overlaps,
        )

    def _coded(
        self,
        context: CollectiveContext,
        name: str,
        team: Team,
        vector: AnyVector,
        coded: Coded,
    ) -> Plan:
        """Compile a schedule that sums what a codec makes of the vector."""
        codec, span = coded
        rank, size = team.rank, len(team.ranks)
        if codec.way(name, span) is not Way.STRAIGHT:
            most = self._most(ALGORITHMS[name], size)
            return Framed(self._comm, context, name, team, codec, span, vector, most=most)
        straight = StraightSum(codec, span, name, rank=rank, size=size)
        # The parts lie in no window, so they go by MPI even to ranks of this host: only this rank
        # itself is "seen".
        local = self._layout.local_rank
        plans = [
            self._schedule(
                context, name, team._replace(seen={rank: (local, buffer)}), buffer, "sum"
            )
            for buffer in straight.buffers
        ]
        return Straight(plans, straight, vector)

    def phase(
        self,
        signature: str,
        name: str,
        vector: AnyVector,
        *,
        op: str = "sum",
        root: int = 0,
        place: SegmentOffset | None,
        meet: bool = False,
    ) -> Plan:
        """Compile a phase over all ranks.

        Chunk r belongs to rank r, so the schedule's numbers are the ranks here, whatever their
        hosts. Among windows of one host no schedule is needed: the copies and folds follow from
        what each rank is owed at the end.

        Args:
            signature: of the call.
            name: a key of ``PHASES``.
            vector: (n,), this rank's.
            op: a key of ``OPS``.
            root: of phases that have one.
            place: as in ``all_reduce``.
            meet: see ``ContextTable.of``; not needed among windows, where all ranks meet anyway.
        """
        phase, size, n = PHASES[name], self._layout.size, vector.size
        spec, in_windows = (
            phase.spec(size, n, root),
            place is not None and len(self._layout.hosts) == 1,
        )
        context = self._contexts.of(signature, meet=meet and not in_windows)
        if place is not None and in_windows:
            buffers = self._segments.views(place, vector)
            if spec.folds:
                return self._fold_to_owners(context, buffers, op, spec)
            return Copy(context, buffers, spec)
        team = self._team(vector, place, in_order=True)
        folds = [each.span for each in spec.owed[self._layout.rank] if each.source is None]
        return Scheduled(
            self._comm,
            context,
            team,
            {r: list(phase(r, size, n, root)) for r in {team.rank, *team.seen}},
            vector,
            OPS[op],
            result=folds[0] if folds else None,
            most=self._most(phase, size),
            rooted=phase.rooted,
        )

    def all_to_all(
        self,
        signature: str,
        vector: AnyVector,
        out: AnyVector | None,
        *,
        place: SegmentOffset | None,
    ) -> Plan:
        """Compile an all-to-all.

        Args:
            signature: of the call.
            vector: (n,), this rank's block for each rank; n is a multiple of their number.
            out: (n,), receives each rank's block for this one; None for ``vector``.
            place: as in ``all_reduce``.
        """
        size, n, context = self._layout.size, vector.size, self._contexts.of(signature)
        if place is not None and len(self._layout.hosts) == 1:
            buffers = self._segments.views(place, vector)
            return Swap(context, buffers) if out is None else Exchange(context, buffers, out)
        team = self._team(vector, place, in_order=True)
        phase, result = PHASES["all-to-all"], np.empty_like(vector) if out is None else out
        plan = Scheduled(
            self._comm,
            context,
            team,
            {r: list(on_blocks(phase(r, size, n * size), r, size, n)) for r in team.seen},
            vector,
            OPS["sum"],
            workspace=result,
            most=self._most(phase, size),
        )
        own, block = team.rank, n // size
        # A rank's block for itself is copied. In place, blocks of others are received into
        # ``result`` and copied afterwards: they may arrive before the block in their place has been
        # sent.
        mine = Span(own * block, (own + 1) * block)
        if out is not None:
            return Fetched(plan, [(mine.of(out), mine.of(vector))])
        others = (Span(0, mine.start), Span(mine.stop, n))
        return Fetched(plan, [(span.of(vector), span.of(result)) for span in others])

    def _most(self, schedule: Schedule, size: int) -> Sequence[int]:
        """Return by rank the most bytes of one message to it.

        Args:
            schedule: the schedule of the messages.
            size: the number of ranks that run it.
        """
        # If all ranks send in every round, an announcement would wait for a rank that is itself
        # sending: so messages are kept short enough to need none, by what their receiver accepts
        # unannounced.
        if schedule.busy(size):
            return self._unannounced_bytes
        return (MOST_BYTES,) * len(self._unannounced_bytes)

    def _fold_to_owners(
        self,
        context: CollectiveContext,
        buffers: Sequence[AnyVector],
        op: str,
        spec: CollectiveSpec,
    ) -> Plan:
        """Compile a fold among windows: each rank folds its slice to where it is owed.

        In a reduce-scatter that is its own buffer; in a reduction all ranks work for the root.
        """
        mine = even_spans(buffers[0].size, len(buffers))[context.slot.local_rank]
        # The home of this rank's slice: the rank whose owed span holds it. Slices are those of
        # ``even_spans``, as are the owed chunks, so no slice straddles two of them.
        homes = [
            rank for rank, each in enumerate(spec.owed) for one in each if holds(one.span, mine)
        ]
        return Direct(context, buffers, OPS[op], size=len(buffers), sink=Keep(), home=homes[0])

    def _team(
        self, vector: AnyVector, place: SegmentOffset | None, *, in_order: bool = False
    ) -> Team:
        """Number the ranks for a schedule: host by host, so that most neighbours share one."""
        layout = self._layout
        order = tuple(rank for host in layout.hosts for rank in host)
        if in_order:
            order = tuple(range(layout.size))
        me = order.index(layout.rank)
        seen: dict[int, tuple[int, AnyVector]] = {me: (layout.local_rank, vector)}
        if place is not None:
            for local, view in enumerate(self._segments.views(place, vector)):
                seen[order.index(layout.local_ranks[local])] = (local, view)
        return Team(me, order, seen)

    def _rooms(self, signature: str, vector: AnyVector) -> Sequence[AnyVector]:
        """Return each local rank's staging memory for a few pieces; collective the first time."""
        # A piece is a whole number of elements, so that no element is folded in two parts.
        most = PAIR_PIECE_BYTES if len(self._layout.local_ranks) == 2 else PIECE_BYTES
        piece = min(vector.nbytes, most // vector.itemsize * vector.itemsize)
        return self._contexts.stage(signature, STAGES * piece, vector.dtype)


def holds(whole: Span, part: Span) -> bool:
    """Return whether all of one span is in another; an empty one is in any."""
    return not part.size or (whole.start <= part.start and part.stop <= whole.stop)
