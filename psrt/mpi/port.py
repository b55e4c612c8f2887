"""The port over MPI. Every await completes on the spot, so a role runs straight through.

Ranks of one host talk through shared memory (``node``), others through MPI (``remote``); which
of the two is decided for each pair. Nothing here blocks inside MPI: every wait is our own
(``backoff``), so a waiting rank leaves its core to those that compute, and has a deadline.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from mpi4py import MPI

from psrt.arrays import ITEMSIZE, Bytes, Vector
from psrt.collective.analysis.machine import DEFAULT_COSTS, MachineCosts
from psrt.collective.analysis.pick import Coding
from psrt.faults.vitals import HERE
from psrt.messages import Leave, Message, Report
from psrt.mpi.collectives.executor import CollectiveExecutor
from psrt.mpi.collectives.reductions import Reductions
from psrt.mpi.collectives.slots import FLOATS
from psrt.mpi.cores import cores_of_worker
from psrt.mpi.fabric import Fabric
from psrt.mpi.links.departed import DepartedLink
from psrt.mpi.links.pieces import pieces
from psrt.mpi.links.remote import RemoteLink
from psrt.mpi.links.shared_memory import LocalLink
from psrt.mpi.reports import Reports
from psrt.mpi.star import Star
from psrt.mpi.tags import FETCH
from psrt.partition import Span
from psrt.transport.backoff import Backoff
from psrt.transport.coded_sum import SumCodec
from psrt.transport.port import (
    CONTROL,
    GRADIENT,
    NO_PAYLOAD,
    VERSIONS,
    Reduction,
    RoleMap,
    Take,
    ThetaMemory,
)
from psrt.transport.window import Window

T = TypeVar("T")
#: Both directions between a worker and a shard.
Link: TypeAlias = LocalLink | RemoteLink | DepartedLink
#: Where the user sets the deadline.
_KNOB = "--timeout-s"


class MpiPort:
    """One rank's port. Collective to make and to close, over all ranks of the job."""

    #: Time passes by itself.
    apply_s: Callable[[int, int], float] | None = None

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
    ) -> None:
        """Allocate the shared memory and make the links.

        Args:
            comm: all ranks of ``role_map``; duplicated.
            role_map: who is who; the same on every rank.
            timeout_s: the deadline of every wait.
            host: ranks that give the same number count as being on one host if they really are;
                None leaves it to MPI. A number of its own for each rank turns shared memory off.
            costs: of the machine, for ``auto``; the same on every rank.
            busy_until: see ``Backoff``.
            windows: whether a push to another host may wait for the answers to others, see
                ``Window``. Not where servers do not answer in order of arrival, as in a replay.
            theta_memory: what the ``theta`` of each worker may be, the same on every rank; its own
                where the job has several hosts, whose servers cannot write it.
            frame_bytes: by shard, the length of the longest frame of a push; the same on every
                rank. None where gradients are pushed as they are.
            reply_bytes: the same of replies; none where parameters are sent as they are, and only
                where ``theta`` is the worker's own.
        """
        self.rank = comm.rank
        self.role_map = role_map
        self._frame_bytes, self._reply_bytes = tuple(frame_bytes), tuple(reply_bytes)
        #: Returns what this rank waits for; a role replaces it.
        self.waiting_for: Callable[[], str] = lambda: "a message"
        #: See ``Port``.
        self.leave_of: Callable[[int, int], Leave | None] = lambda shard, worker: None
        #: Called with each rank that the others go on without.
        self.on_gone: Callable[[int], None] = lambda rank: None
        self._gone: frozenset[int] = frozenset()
        floats, boxes = self._floats(), max(1, role_map.most_shards)
        self._fabric = fabric = Fabric(comm, host, floats=floats, boxes=boxes)
        self._comm, self._memory, self._wakeup = fabric.comm, fabric.memory, fabric.wakeup
        layout = fabric.layout
        #: What the ``theta`` of each worker is.
        self.theta_memory = ThetaMemory.OWN
        if role_map.servers and len(layout.hosts) == 1:
            self.theta_memory = theta_memory
        #: Those that this rank is to compute on; None leaves it to the kernel.
        self.cores = (
            cores_of_worker(self._comm, role_map.workers, layout.machine)
            if role_map.servers
            else None
        )
        #: By rank of a worker, the region that is its landing.
        self.landings: Mapping[int, int] = self._landings()
        self._reports = Reports(self._comm)
        #: Rank in the job → rank on this host.
        self._local = {rank: local for local, rank in enumerate(layout.local_ranks)}
        self._lay_out_memory()
        #: Sums over the workers; in modes without servers only.
        self._executor: CollectiveExecutor | None = None
        self._reductions: Reductions | None = None
        if not role_map.servers:
            self._prepare_reductions(timeout_s, costs, busy_until)
        self._backoff = Backoff(
            oversubscribed=layout.oversubscribed,
            timeout_s=timeout_s,
            wakeup=self._wakeup if self._wakeup.works else None,
            while_idle=self._while_idle,
            busy_until=busy_until,
            knob=_KNOB,
        )
        #: How rank 0 and the others conclude.
        self.star = Star(self._comm, self._backoff.wait)
        #: At a worker, by server; none where a server has one shard only.
        self._windows: dict[int, Window] = {}
        if windows and role_map.most_shards > 1 and not role_map.shards_of(self.rank):
            self._windows = {server: Window() for server in role_map.server_ranks}
        self._make_links()

    def _floats(self) -> int:
        """Return how many numbers this rank has in the memory of its host."""
        role_map, shards = self.role_map, self.role_map.shards_of(self.rank)
        if not role_map.servers:
            return FLOATS  # gradient and parameters lie in windows of their own
        if not shards:
            return 2 * role_map.n + CONTROL + sum(map(_words, self._frame_bytes))
        reply = bool(self._reply_bytes)
        frames = sum(map(_words, map(self._reply_bytes.__getitem__, shards if reply else ())))
        versions = VERSIONS * sum(role_map.spans[shard].size for shard in shards)
        return versions + len(role_map.workers) * frames

    def _landings(self) -> dict[int, int]:
        if self.theta_memory is ThetaMemory.OWN:
            return {}
        shared = self.theta_memory is ThetaMemory.SHARED
        return {rank: VERSIONS + i * (not shared) for i, rank in enumerate(self.role_map.workers)}

    def _lay_out_memory(self) -> None:
        role_map, rank = self.role_map, self.rank
        self.gradient = self.theta = np.zeros(0, np.float32)
        self.versions: dict[int, list[Vector]] = {}
        if role_map.shards_of(rank):
            self.versions = self._versions_of(rank)
        elif role_map.servers:
            self.gradient = self._gradient_of(rank)
            self.theta = self._theta_of(rank)
            self.gradient[:] = self.theta[:] = 0.0
        if self.theta_memory is ThetaMemory.SHARED:
            # Else a worker that is late would clear what another has filled and reads by now.
            self._comm.Barrier()

    def _prepare_reductions(
        self, timeout_s: float, costs: MachineCosts, busy_until: Callable[[], float]
    ) -> None:
        executor = CollectiveExecutor(
            self._fabric,
            timeout_s=timeout_s,
            while_idle=self._reports.take,
            busy_until=busy_until,
            knob=_KNOB,
        )
        segments, local = executor.segments, executor.layout.local_rank
        n = self.role_map.n
        behind = CONTROL * self.role_map.controls
        for name, size in (("gradient", n + behind), ("theta", n)):
            segment = segments.make(4 * size)
            setattr(self, name, segments.buffers(segment)[local].view(np.float32))
        self._executor = executor
        self._reductions = Reductions(executor, costs, self.gradient, self.theta)

    def _gradient_of(self, worker_rank: int) -> Vector:
        numbers = self._memory.numbers(self._local[worker_rank])
        return numbers[: self.role_map.n + CONTROL]

    def _theta_of(self, worker_rank: int) -> Vector:
        if self.theta_memory is ThetaMemory.SHARED:
            worker_rank = self.role_map.workers[0]
        numbers = self._memory.numbers(self._local[worker_rank])
        return numbers[self.role_map.n + CONTROL : 2 * self.role_map.n + CONTROL]

    def _frames_of(self, worker_rank: int, shard: int) -> Bytes | None:
        """Return where a worker of this host puts the frames of its pushes to a shard."""
        if not self._frame_bytes:
            return None
        words = [*map(_words, self._frame_bytes)]
        start = 2 * self.role_map.n + CONTROL + sum(words[:shard])
        numbers = self._memory.numbers(self._local[worker_rank])[start : start + words[shard]]
        return numbers.view(np.uint8)[: self._frame_bytes[shard]]

    def _replies_of(self, shard: int, worker_rank: int) -> Bytes | None:
        """Return where the server of a shard on this host puts its replies to a worker."""
        if not self._reply_bytes:
            return None
        role_map = self.role_map
        server = role_map.servers[shard]
        mine, place = role_map.shards_of(server), role_map.workers.index(worker_rank)
        start = VERSIONS * sum(role_map.spans[it].size for it in mine)
        before = mine[: mine.index(shard)]
        start += len(role_map.workers) * sum(_words(self._reply_bytes[it]) for it in before)
        words = _words(self._reply_bytes[shard])
        start += place * words
        numbers = self._memory.numbers(self._local[server])[start : start + words]
        return numbers.view(np.uint8)[: self._reply_bytes[shard]]

    def _versions_of(self, server_rank: int) -> dict[int, list[Vector]]:
        """Return the regions of each shard of a server of this host: one shard behind another."""
        numbers = self._memory.numbers(self._local[server_rank])
        by_region = {region: rank for rank, region in self.landings.items()}
        thetas = [self._theta_of(by_region[region]) for region in sorted(by_region)]
        found: dict[int, list[Vector]] = {}
        for shard in self.role_map.shards_of(server_rank):
            span = self.role_map.spans[shard]
            own = [numbers[i * span.size : (i + 1) * span.size] for i in range(VERSIONS)]
            found[shard] = own + [span.of(theta) for theta in thetas]
            numbers = numbers[VERSIONS * span.size :]
        return found

    def _make_links(self) -> None:
        role_map, workers = self.role_map, self.role_map.workers
        #: Shard → rank of the peer → link.
        self._links: dict[int, dict[int, Link]] = {}
        #: Shard → worker number → where its gradient span is found, at a server.
        self._payloads: dict[int, list[Vector]] = {}
        mine = role_map.shards_of(self.rank)
        if not mine:
            for shard, (server, span) in enumerate(
                zip(role_map.servers, role_map.spans, strict=True)
            ):
                sends, landing = [span.of(self.gradient)], span.of(self.theta)
                self._links[shard] = {server: self._link(server, shard, sends, landing)}
        for shard in mine:
            size, sends = role_map.spans[shard].size, self.versions[shard]
            self._links[shard] = links = {}
            for worker in workers:
                landing_or_none = None if worker in self._local else np.zeros(size, np.float32)
                links[worker] = self._link(worker, shard, sends, landing_or_none)
            self._payloads[shard] = [links[worker].payload for worker in workers]
        everything = self._all_links()
        local: list[LocalLink | DepartedLink] = [
            link for link in everything if isinstance(link, LocalLink)
        ]
        #: The same links, begun at each in turn, so that none is favoured.
        self._rotations = [local[i:] + local[:i] for i in range(max(1, len(local)))]
        self._turn = 0
        self._remote = [link for link in everything if isinstance(link, RemoteLink)]
        self._frame_requests: list[MPI.Request] = [link.frame_request for link in self._remote]
        #: By rank, its links whose frame has come while the payload may not have, in order: the
        #: first shard is whole, and may be answered, while the next one is on its way.
        self._half: dict[int, deque[RemoteLink | DepartedLink]] = {}
        # What comes by MPI wakes no sleeper.
        self._backoff.must_poll = len(self._local) < self._comm.size

    def _all_links(self) -> list[Link]:
        return [link for links in self._links.values() for link in links.values()]

    def _link(self, peer: int, shard: int, sends: list[Vector], landing: Vector | None) -> Link:
        """Return one shard's link to a rank, with this rank's regions and landing."""
        local, span = self._local.get(peer), self.role_map.spans[shard]
        # The shard's place among those of its server: both ends count alike.
        server = self.role_map.servers[shard]
        place = self.role_map.shards_of(server).index(shard)
        if local is None:
            assert landing is not None, "a payload from another host needs a place to land"
            longest = self._frame_bytes if self.rank == server else self._reply_bytes
            frames = np.zeros(longest[shard], np.uint8) if longest else None
            return RemoteLink(
                self._comm,
                peer,
                place,
                regions=sends,
                landing=landing,
                most=self._fabric.unannounced_bytes[peer],
                window=self._windows.get(peer),
                frames_in=frames,
            )
        if landing is None:
            regions = [span.of(self._gradient_of(peer))]
            landing, in_place = regions[GRADIENT], GRADIENT
        else:
            regions = self._versions_of(peer)[shard]
            in_place = self.landings.get(self.rank, NO_PAYLOAD)
        worker = peer if self.rank == server else self.rank
        of_push, of_reply = self._frames_of(worker, shard), self._replies_of(shard, worker)
        into, out = (of_push, of_reply) if self.rank == server else (of_reply, of_push)
        return LocalLink(
            self._memory,
            local,
            place,
            self._wakeup.waker(local),
            regions=regions,
            landing=landing,
            in_place=in_place,
            frames_out=out,
            frames_in=into,
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages, payloads and spans handed to this port so far."""
        spans = 0 if self._executor is None else self._executor.bytes_sent
        return spans + sum(link.bytes_sent for link in self._all_links())

    @property
    def bytes_received(self) -> int:
        """Bytes of messages, payloads and spans received so far."""
        spans = 0 if self._executor is None else self._executor.bytes_received
        return spans + sum(link.bytes_received for link in self._all_links())

    def now(self) -> float:
        """Return the time in seconds; only differences mean anything."""
        return time.perf_counter()

    def payload(self, shard: int, worker: int) -> Vector:
        """Return where a shard's span of the gradient of ``worker`` is found."""
        return self._payloads[shard][worker]

    def frame(self, shard: int, worker: int) -> Bytes:
        """Return the frame that came last between a shard and ``worker``."""
        server = self.role_map.servers[shard]
        peer = self.role_map.workers[worker] if self.rank == server else server
        return self._links[shard][peer].frame

    async def compute(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``."""
        return work(*args)

    def amid(self, share: float, action: Callable[[], object]) -> None:
        """Run ``action()``; see to what is on its way between hosts, which nothing else does."""
        action()
        if self._remote:
            self._take_frames()

    async def aside(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)``, which is no part of a step."""
        before, HERE.doing = HERE.doing, f"is in {getattr(work, '__name__', 'work')}()"
        result = work(*args)
        HERE.doing = before
        return result

    async def pause(self, seconds: float) -> None:
        """Sleep, which does not excuse being late."""
        HERE.paused = True
        time.sleep(seconds)
        HERE.paused = False

    def send(self, to: int, message: Message, region: int = NO_PAYLOAD) -> None:
        """Send ``message``, and the contents of ``region`` with it, to rank ``to``."""
        link = self._links[message.shard][to]
        self._wait_until_read(to, link)
        link.send(message, region)

    def send_framed(self, to: int, message: Message, frame: Bytes) -> None:
        """Send ``message``, and ``frame`` with it, to rank ``to``."""
        link = self._links[message.shard][to]
        self._wait_until_read(to, link)
        link.send_framed(message, frame)

    def _wait_until_read(self, to: int, link: Link) -> None:
        if link.unread():
            self._backoff.wait(
                lambda: not link.unread(), lambda: f"rank {to} to read the last message"
            )

    def in_flight(self, to: int, shard: int) -> bool:
        """Return whether the last payload of a shard sent to ``to`` may still be being read."""
        return self._links[shard][to].in_flight()

    async def receive(self) -> Message:
        """Return the next message in order of arrival, its payload in place."""
        links = self._rotations[self._turn]
        backoff = self._backoff
        backoff.begin()
        while True:
            for link in links:
                message = link.poll()
                if message is not None:
                    self._turn = (self._turn + 1) % len(links)
                    backoff.end()
                    return message
            if self._remote:
                message = self._poll_remote()
                if message is not None:
                    backoff.end()
                    return message
            backoff.pause(self.waiting_for)

    def _take_frames(self) -> None:
        for index in MPI.Request.Testsome(self._frame_requests) or ():
            link = self._remote[index]
            link.arrived()
            queue = self._half.setdefault(link.peer, deque())
            queue.append(link)
            if len(queue) == 1:
                link.take_payload()

    def _poll_remote(self) -> Message | None:
        self._take_frames()
        for rank, queue in self._half.items():
            message = queue[0].complete()
            if message is not None:
                queue.popleft()
                # To the end of the line: no rank is favoured.
                del self._half[rank]
                if queue:
                    queue[0].take_payload()
                    self._half[rank] = queue
                return message
        return None

    def _while_idle(self) -> None:
        self._reports.take()
        # Only here, where a step does not pay for it: as long as messages come, nobody is missed.
        if HERE.gone is not self._gone:
            new, self._gone = HERE.gone - self._gone, HERE.gone
            self._reports.ignored = HERE.gone
            for rank in sorted(new):
                self._part_from(rank)
                self.on_gone(rank)

    def _part_from(self, rank: int) -> None:
        """Have a worker's links deliver that it left, and nothing else from now on."""
        worker = self.role_map.worker_of(rank)
        self._half.pop(rank, None)
        for shard, links in self._links.items():
            link = links.get(rank)
            if link is None or worker is None:
                continue
            leave = self.leave_of(shard, worker)
            departed = links[rank] = DepartedLink(
                leave, link.payload, link.frame, link.bytes_sent, link.bytes_received
            )
            if isinstance(link, RemoteLink):
                self._frame_requests[self._remote.index(link)] = MPI.REQUEST_NULL
                if leave is not None:
                    self._half.setdefault(rank, deque()).append(departed)
            for rotation in self._rotations:
                # In place: ``receive`` goes on with the one that it has.
                rotation[:] = [departed if it is link else it for it in rotation]

    async def until(self, done: Callable[[], bool], waiting_for: Callable[[], str]) -> None:
        """Wait until ``done()``."""
        self._backoff.wait(done, waiting_for)

    def choice(self, algorithm: str, n: int, *, coded: Coding | None = None) -> tuple[str, str]:
        """Return the all-reduce that ``algorithm`` comes to for n elements, and why."""
        return self._sums().choice(algorithm, n, coded=coded)

    def reduction(
        self, span: Span, algorithm: str, take: Take | None, codec: SumCodec | None = None
    ) -> Reduction:
        """Make the plan that sums ``gradient[span]`` over all workers."""
        return self._sums().make(span, algorithm, take, codec)

    def share_theta(self, algorithm: str) -> None:
        """Let the workers of this host have one θ, where ``algorithm`` shards its update."""
        self.theta = self._sums().share_theta(algorithm)

    async def differing(self, number: int) -> list[int]:
        """Return the workers whose number is not the most frequent one."""
        return self._sums().differing(number)

    def _sums(self) -> Reductions:
        assert self._reductions is not None, "sums over workers are for modes without servers"
        return self._reductions

    def report(self, report: Report) -> None:
        """Send ``report`` to rank 0, apart from the traffic of the training; never waits."""
        self._reports.send(report)

    @property
    def on_report(self) -> Callable[[Report], None]:
        """What takes the reports that reach rank 0."""
        return self._reports.on_report

    @on_report.setter
    def on_report(self, take: Callable[[Report], None]) -> None:
        self._reports.on_report = take

    def finish_reports(self, complete: Callable[[], bool]) -> None:
        """Rank 0: take reports until ``complete``; others: until theirs have been taken."""
        if self.rank == 0:
            self._reports.take()
            self._backoff.wait(complete, lambda: "the workers' last reports")
        else:
            self._backoff.wait(self._reports.are_taken, lambda: "rank 0 to take the reports")

    def fetch(self, source: int, mine: Vector | None, out: Vector | None) -> None:
        """Copy a vector from rank ``source`` (which gives ``mine``) to rank 0 (into ``out``)."""
        if source == 0 == self.rank:
            assert mine is not None
            assert out is not None
            np.copyto(out, mine)
        elif self.rank == source:
            assert mine is not None
            with HERE.blocked("rank 0 to take the parameters"):
                for piece in pieces(mine):
                    self._comm.Send(piece, 0, FETCH)
        elif self.rank == 0:
            assert out is not None
            with HERE.blocked(f"rank {source} to send its parameters"):
                for piece in pieces(out):
                    self._comm.Recv(piece, source, FETCH)

    def meet(self) -> None:
        """Wait, without burning a core, until every rank is here."""
        request = self._comm.Ibarrier()

        def is_complete() -> bool:
            self._reports.take()
            return bool(request.Test())

        self._backoff.wait(is_complete, lambda: "the other ranks to finish")

    def close(self) -> None:
        """Free what was made; collective."""
        self._backoff.wait(self._reports.are_taken, lambda: "rank 0 to take the reports")
        self.meet()  # at rank 0, which takes them meanwhile
        for link in self._remote:
            link.close()
        self._remote.clear()
        self._links.clear()
        self._payloads.clear()
        self._rotations = [[]]
        if self._executor is not None and self._reductions is not None:
            self._reductions.close()
            self._executor.close()
        self.gradient = self.theta = np.zeros(0, np.float32)
        self.versions = {}
        self._fabric.close(alone=self._executor is not None and bool(self._executor.broken))


def _words(nbytes: int) -> int:
    """Return how many float32 numbers take that many bytes."""
    return -(-nbytes // ITEMSIZE)
