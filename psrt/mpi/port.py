"""The port over MPI. Every await completes immediately, so a role runs without suspending.

Ranks of one host talk through shared memory (``node``), others through MPI (``remote``); which
of the two is decided for each pair. Nothing here blocks inside MPI: every wait is psrt's
(``backoff``), so a waiting rank leaves its core to those that compute, and has a deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.collective.analysis.pick import Coding
from psrt.core.arrays import Bytes, Vector
from psrt.core.messages import Leave, Message
from psrt.core.partition import Span
from psrt.core.sharding import Sharing
from psrt.core.stats import Sent
from psrt.faults.vitals import HERE
from psrt.mpi.collectives.executor import CollectiveExecutor
from psrt.mpi.collectives.reductions import Reductions
from psrt.mpi.collectives.slots import FLOATS
from psrt.mpi.cores import Cores, cores_of_worker
from psrt.mpi.fabric import Fabric
from psrt.mpi.job_links import JobLinks, Link
from psrt.mpi.links.neighbour import AHEAD
from psrt.mpi.links.pieces import pieces
from psrt.mpi.lost import Living
from psrt.mpi.neighbour_memory import NeighbourMemory
from psrt.mpi.reports import Reports
from psrt.mpi.served_memory import ServedMemory, floats_of
from psrt.mpi.star import Star
from psrt.mpi.tags import FETCH
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import (
    CONTROL,
    NO_PAYLOAD,
    Held,
    Reduction,
    RoleMap,
    Take,
    ThetaMemory,
)

T = TypeVar("T")
#: Messages after which a rank that never waits looks for reports.
_UNREAD = 256
#: Where the user sets the deadline.
_KNOB = "--timeout-s"


def _fabric_of(
    comm: MPI.Comm,
    role_map: RoleMap,
    host: int | None,
    frame_bytes: Sequence[int],
    reply_bytes: Sequence[int],
) -> tuple[Fabric, NeighbourMemory | None]:
    """Allocate the memory that the ranks of a host share; return it, and neighbours' views of it.

    Without servers, gradient and parameters are in separate windows, which are made later.
    """
    rank, names = comm.rank, role_map.job_ranks
    if role_map.servers:
        floats = floats_of(rank, role_map, frame_bytes, reply_bytes)
        boxes = max(1, role_map.most_shards)
        return Fabric(comm, host, floats=floats, boxes=boxes, names=names), None
    if not role_map.peers:
        return Fabric(comm, host, floats=FLOATS, names=names), None
    neighbours = NeighbourMemory(
        role_map,
        lambda rank: fabric.numbers_of(rank),
        behind=FLOATS,
        ahead=AHEAD,
        frame_bytes=frame_bytes[0] if frame_bytes else 0,
    )
    floats = neighbours.floats_of(rank)
    fabric = Fabric(comm, host, floats=floats, boxes=AHEAD, names=names)
    return fabric, neighbours


class MpiPort:
    """One rank's port. Collective to make and to close, over all ranks of the job."""

    #: Real time needs no cost model.
    apply_s: Callable[[int, int], float] | None = None
    #: What the ``theta`` of each worker is: its own memory if servers are on other hosts.
    theta_memory = ThetaMemory.OWN
    #: The cores on which this rank computes; None leaves it to the kernel.
    cores: Cores | None = None
    #: Sums over the workers; in modes without servers only.
    _executor: CollectiveExecutor | None = None
    _reductions: Reductions | None = None
    _gone: frozenset[int] = frozenset()
    #: The number of messages received.
    _received = 0
    #: Whether no rank receives messages any more.
    _ends = False

    def __init__(
        self,
        comm: MPI.Comm,
        role_map: RoleMap,
        *,
        timeout_s: float = 60.0,
        host: int | None = None,
        costs: MachineCosts = DEFAULT_COSTS,
        busy_until: Callable[[], float] = lambda: -math.inf,
        windows: bool = True,
        theta_memory: ThetaMemory = ThetaMemory.OWN,
        frame_bytes: Sequence[int] = (),
        reply_bytes: Sequence[int] = (),
        job: MPI.Comm | None = None,
        within: MpiPort | None = None,
    ) -> None:
        """Allocate the shared memory and make the links.

        Args:
            comm: all ranks of ``role_map``; duplicated.
            role_map: the roles of the ranks; the same on every rank.
            timeout_s: the deadline of every wait.
            host: ranks with the same number count as being on one host if they really are; None
                leaves it to MPI. A different number for each rank turns shared memory off.
            costs: of the machine, for ``auto``; the same on every rank.
            busy_until: see ``Backoff``.
            windows: whether a push to another host may wait for the answers to earlier ones, see
                ``Window``. False if servers do not answer in order of arrival, as in a replay.
            theta_memory: what the ``theta`` of each worker may be, the same on every rank; its own
                memory if the job has several hosts, whose servers cannot write to it.
            frame_bytes: by shard, the length of the longest frame of a push; the same on every
                rank. None if gradients are pushed uncompressed.
            reply_bytes: the same for replies; None if parameters are sent uncompressed. Needs a
                ``theta`` that is the worker's own.
            job: all ranks of the job, if those of ``role_map`` are only some of them; reports and
                results go to rank 0 of the job.
            within: this rank's port in the job, if it has one beside this, which takes reports
                while this one waits.
        """
        longest = tuple(frame_bytes), tuple(reply_bytes)
        self.rank, self.role_map = comm.rank, role_map
        #: Returns in words what this rank waits for; a role replaces it.
        self.waiting_for: Callable[[], str] = lambda: "a message"
        #: See ``Port``.
        self.leave_of: Callable[[int, int], Leave | None] = lambda shard, worker: None
        #: Called with each rank that the others continue without.
        self.on_gone: Callable[[int], None] = lambda rank: None
        self._fabric, neighbours = _fabric_of(comm, role_map, host, *longest)
        self._comm, layout = self._fabric.comm, self._fabric.layout
        if role_map.servers:
            self.cores = cores_of_worker(self._comm, role_map.workers, layout.machine)
            self.theta_memory = theta_memory if len(layout.hosts) == 1 else ThetaMemory.OWN
        #: All ranks of the job, and this rank among them.
        self._job = self._comm if job is None else job
        self._reports: Reports = Reports(self._job) if within is None else within._reports
        memory = ServedMemory(role_map, self._fabric.numbers_of, self.theta_memory, *longest)
        #: Rank of a worker → the region that is its landing.
        self.landings: Mapping[int, int] = memory.landings
        self._take_vectors(memory)
        #: See ``Port``.
        self.offers = [] if neighbours is None else neighbours.offers_of(self.rank)
        for offer in self.offers:
            offer[:] = 0.0
        waits: dict[str, Any] = {"timeout_s": timeout_s, "busy_until": busy_until, "knob": _KNOB}
        if not role_map.servers:
            self._prepare_reductions(costs, waits)
        self._backoff = self._fabric.backoff(while_idle=self._while_idle, **waits)
        #: How rank 0 and the others end the job.
        self.star = Star(self._job, self._backoff.wait)
        self._links = JobLinks(self._fabric, role_map, memory, neighbours, windows, *longest)

    def _take_vectors(self, memory: ServedMemory) -> None:
        role_map, rank = self.role_map, self.rank
        self.gradient = self.theta = np.zeros(0, np.float32)
        self.versions: dict[int, list[Vector]] = {}
        if role_map.shards_of(rank):
            self.versions = memory.versions_of(rank)
        elif role_map.servers:
            self.gradient, self.theta = memory.gradient_of(rank), memory.theta_of(rank)
            self.gradient[:] = self.theta[:] = 0.0
        if self.theta_memory is ThetaMemory.SHARED:
            # A barrier: otherwise a late worker would clear memory that another has filled and
            # reads.
            self._comm.Barrier()

    def _prepare_reductions(self, costs: MachineCosts, waits: Mapping[str, Any]) -> None:
        executor = CollectiveExecutor(self._fabric, while_idle=self._reports.take, **waits)
        segments, local = executor.segments, executor.layout.local_rank
        role_map, behind = self.role_map, CONTROL * self.role_map.controls
        sizes = role_map.gradient_size + behind, role_map.theta_size
        for name, size in zip(("gradient", "theta"), sizes, strict=True):
            segment = segments.make(4 * size)
            setattr(self, name, segments.buffers(segment)[local].view(np.float32))
        self._executor = executor
        self._reductions = Reductions(executor, costs, self.gradient, self.theta)

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages, payloads and spans given to this port so far."""
        spans = 0 if self._executor is None else self._executor.bytes_sent
        return spans + self._links.bytes_sent

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Return the bytes that a server has sent and received for one of its shards."""
        return self._links.bytes_of(shard)

    @property
    def bytes_received(self) -> int:
        """Bytes of messages, payloads and spans received so far."""
        spans = 0 if self._executor is None else self._executor.bytes_received
        return spans + self._links.bytes_received

    def now(self) -> float:
        """Return the time in seconds; only differences are meaningful."""
        return time.perf_counter()

    def land_apart(self, theta: Vector | None = None) -> Vector:
        """Let ``theta`` be another; return where parameters land, as the links know it."""
        landing, self.theta = self.theta, self.theta.copy() if theta is None else theta
        return landing

    def payload(self, shard: int, worker: int) -> Vector:
        """Return the gradient of ``worker`` for a shard, or a neighbour's vector."""
        if self.role_map.peers:
            return self._links.neighbour(worker).payload
        return self._links.payloads[shard][worker]

    def frame(self, shard: int, worker: int) -> Bytes:
        """Return the last frame received between a shard and ``worker``."""
        return self._links.frame(shard, worker)

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``."""
        return work(*args)

    async def compute_part(self, share: float, work: Callable[[], T], *, first: bool) -> T:
        """Run ``work()``."""
        return work()

    def amid(self, share: float, action: Callable[[], object]) -> None:
        """Run ``action()``, and progress messages between hosts, which nothing else does."""
        action()
        if self._links.remote:
            self._links.take_frames()

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``, outside of any step."""
        before, HERE.doing = HERE.doing, f"is in {getattr(work, '__name__', 'work')}()"
        try:
            return work(*args)
        finally:
            HERE.doing = before

    async def catch_up(self) -> None:
        """Do nothing: real time has passed."""

    async def pause(self, seconds: float, *, works: bool = False) -> None:
        """Sleep, without counting as busy."""
        HERE.paused = True
        time.sleep(seconds)
        HERE.paused = False

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``."""
        self._free_link(to, message.shard).send(message, region)

    def send_framed(self, to: int, message: Message, frame: Bytes) -> None:
        """Send ``message``, and ``frame`` with it, to rank ``to``."""
        self._free_link(to, message.shard).send_framed(message, frame)

    def _free_link(self, to: int, shard: int) -> Link:
        """Return a link once the next message can be sent on it."""
        links = self._links.by_shard[shard]
        if links[to].unread():
            # Looked up at each poll: the link is replaced once that rank stops responding.
            self._backoff.wait(
                lambda: not links[to].unread(),
                lambda: f"rank {self._fabric.names[to]} to read the last message",
            )
        return links[to]

    def in_flight(self, to: int, shard: int) -> bool:
        """Return whether the last payload of a shard sent to ``to`` may still be read."""
        return self._links.by_shard[shard][to].in_flight()

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place."""
        poll, backoff = self._links.poll, self._backoff
        backoff.begin()
        while (message := poll()) is None:
            backoff.pause(self.waiting_for)
        backoff.end()
        self._received += 1
        if not self._received % _UNREAD:  # a busy server is never idle, see ``_while_idle``
            self._reports.take()
        return message

    async def receive_by(self, by: float) -> Message | None:
        """Return the next message; None if none has come by then."""
        poll, backoff = self._links.poll, self._backoff
        backoff.begin()
        while (message := poll()) is None and self.now() < by:
            backoff.pause(self.waiting_for)
        backoff.end()
        return message

    async def poll(self) -> Message | None:
        """Return the next message if one has come."""
        message = self._links.poll()
        if message is None:
            # A rank that only polls may never wait, so progress is made here.
            self._while_idle()
        return message

    def _while_idle(self) -> None:
        self._reports.take()
        # Only in idle polls, which cost no step: while messages arrive, no rank is missing.
        if HERE.gone is not self._gone:
            new, self._gone = HERE.gone - self._gone, HERE.gone
            self._reports.ignored = HERE.gone
            for rank in sorted(new):
                self._links.part_from(rank, self.leave_of)
                self.on_gone(rank)

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Wait until ``done()``."""
        self._backoff.wait(done, waiting_for)

    def choice(
        self,
        algorithm: str,
        n: int,
        *,
        coded: Coding | None = None,
        sharded: Sharing | None = None,
    ) -> tuple[str, str]:
        """Return the all-reduce that ``algorithm`` resolves to for n elements, and the reason."""
        return self._sums().choice(algorithm, n, coded=coded, sharded=sharded)

    def owned(self, span: Span, algorithm: str) -> Span:
        """Return the part of a span that this worker owns."""
        return self._sums().owned(span, algorithm)

    def reduction(
        self,
        span: Span,
        algorithm: str,
        take: Take | None,
        codec: SumCodec | None = None,
        *,
        held: Held | None = None,
    ) -> Reduction:
        """Make the plan that sums ``gradient[span]`` over all workers."""
        return self._sums().make(span, algorithm, take, codec, held)

    def gather(self, span: Span, algorithm: str, at: int) -> Reduction:
        """Make the plan that gathers the owned parts of a span on all workers."""
        return self._sums().gather(span, algorithm, at)

    def share_theta(self, algorithm: str) -> None:
        """Share one θ among the workers of this host if ``algorithm`` shards the update."""
        self.theta = self._sums().share_theta(algorithm)

    async def differing(self, number: int) -> list[int]:
        """Return the workers whose number is not the most frequent one."""
        return self._sums().differing(number)

    def _sums(self) -> Reductions:
        assert self._reductions is not None, "sums over workers are for modes without servers"
        return self._reductions

    def report(self, report: Sent) -> None:
        """Send ``report`` to rank 0, outside of the training traffic; never waits."""
        self._reports.send(report)

    @property
    def on_report(self) -> Callable[[Sent], None]:
        """Receives the reports at rank 0."""
        return self._reports.on_report

    @on_report.setter
    def on_report(self, take: Callable[[Sent], None]) -> None:
        self._reports.on_report = take

    def take_reports(self) -> None:
        """On rank 0, take the reports that have arrived."""
        self._reports.take()

    def finish_reports(self, complete: Callable[[], bool]) -> None:
        """Rank 0: take reports until ``complete()``; others: wait until theirs have been taken."""
        if self._job.rank == 0:
            self._reports.take()
            self._backoff.wait(complete, lambda: "the workers' last reports")
        else:
            self._backoff.wait(self._reports.are_taken, lambda: "rank 0 to take the reports")

    def fetch(self, source: int, mine: Vector | None, out: Vector | None) -> bool:
        """Copy a vector from rank ``source`` (which gives ``mine``) to rank 0 (into ``out``).

        Returns:
            Whether it was copied: rank 0 does not wait for a rank that the others continue without.
        """
        if source == 0 == self._job.rank:
            assert mine is not None
            assert out is not None
            np.copyto(out, mine)
            return True
        if self._job.rank == source:
            assert mine is not None
            requests = [self._job.Isend(piece, 0, FETCH) for piece in pieces(mine)]
            return self._through(requests, 0, lambda: "rank 0 to take the parameters")
        if self._job.rank == 0:
            assert out is not None
            requests = [self._job.Irecv(piece, source, FETCH) for piece in pieces(out)]
            return self._through(requests, source, lambda: f"rank {source} to send its parameters")
        return False

    def _through(
        self, requests: list[MPI.Request], peer: int, waiting_for: Callable[[], str]
    ) -> bool:
        """Wait until requests complete or their peer is gone; return whether they completed."""
        self._backoff.begin()
        test, living = partial(MPI.Request.Testall, requests), Living()
        while not (done := living.finds(test)) and peer not in HERE.gone:
            # Without sleeping: long messages progress only while they are polled.
            self._backoff.spin(waiting_for)
        self._backoff.end()
        return done

    def meet(self) -> None:
        """Wait, without burning a core, until every rank has called this."""
        request = self._comm.Ibarrier()

        def is_complete() -> bool:
            self._reports.take()
            if self._ends:
                self._links.drain()  # messages of ranks that are not here yet
            return bool(request.Test())

        self._backoff.wait(is_complete, lambda: "the other ranks to finish")

    def close(self) -> None:
        """Free all resources; collective."""
        self._backoff.wait(self._reports.are_taken, lambda: "rank 0 to take the reports")
        self._ends = bool(self.role_map.peers)
        if self._ends:
            self._backoff.wait(self._links.drain, lambda: "neighbours to take the last messages")
        self.meet()  # meanwhile rank 0 takes the reports
        self._links.close()
        if self._executor is not None and self._reductions is not None:
            self._reductions.close()
            self._executor.close()
        self.gradient = self.theta = np.zeros(0, np.float32)
        self.versions, self.offers = {}, []
        self._fabric.close(alone=self._executor is not None and bool(self._executor.broken))
