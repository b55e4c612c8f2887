"""The links of one rank to all its peers in a job, and the order in which they are received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from psrt.core.arrays import Bytes, Vector
from psrt.core.messages import Leave, Message
from psrt.mpi.fabric import Fabric
from psrt.mpi.links.departed import DepartedLink
from psrt.mpi.links.neighbour import LocalNeighbour, RemoteNeighbour
from psrt.mpi.links.remote import RemoteLink
from psrt.mpi.links.shared_memory import LocalLink
from psrt.mpi.lost import survives
from psrt.mpi.neighbour_memory import NeighbourMemory
from psrt.mpi.served_memory import ServedMemory
from psrt.transport.port import GRADIENT, NO_PAYLOAD, RoleMap
from psrt.transport.window import Window

#: Both directions between a worker and a shard, or two workers.
Link: TypeAlias = LocalLink | LocalNeighbour | RemoteLink | DepartedLink


class JobLinks:
    """On a worker, a link to each shard; on a server, one from each of its shards to each worker.

    On a worker with neighbours, a link to each of them, as of a shard 0. Where a shard decides
    for others, also one from its server to each of those at another server.
    """

    def __init__(
        self,
        fabric: Fabric,
        role_map: RoleMap,
        memory: ServedMemory,
        neighbours: NeighbourMemory | None,
        windows: bool,
        frame_bytes: Sequence[int],
        reply_bytes: Sequence[int],
    ) -> None:
        """Make the links; see ``MpiPort`` for the arguments."""
        self._fabric, self._role_map = fabric, role_map
        self._memory, self._neighbours = memory, neighbours
        self._frame_bytes, self._reply_bytes = frame_bytes, reply_bytes
        self._rank = fabric.comm.rank
        self._local = fabric.local
        mine = role_map.shards_of(self._rank)
        #: On a worker, by server; none if a server has only one shard.
        self._windows: dict[int, Window] = {}
        if windows and role_map.most_shards > 1 and not mine:
            self._windows = {server: Window() for server in role_map.server_ranks}
        #: Shard → rank of the peer → link.
        self.by_shard: dict[int, dict[int, Link]] = {}
        #: On a server: shard → worker number → the worker's gradient span.
        self.payloads: dict[int, list[Vector]] = {}
        if mine:
            self._make_server(mine)
        else:
            self._make_worker()
        everything = self._all()
        local: list[LocalLink | LocalNeighbour | DepartedLink] = [
            link for link in everything if isinstance(link, LocalLink | LocalNeighbour)
        ]
        #: The same links, in rotating order, so that none is favoured.
        self._rotations = [local[i:] + local[:i] for i in range(max(1, len(local)))]
        self._turn = 0
        #: The links to other hosts.
        self.remote = [link for link in everything if isinstance(link, RemoteLink)]
        self._frame_requests: list[MPI.Request] = [link.frame_request for link in self.remote]
        #: By rank, its links whose message has arrived but whose payload may not have, in order of
        #: arrival. Payloads are received in this order: the first shard is complete, and may be
        #: answered, while the next one is in flight.
        self._half: dict[int, deque[RemoteLink | DepartedLink]] = {}

    def _make_worker(self) -> None:
        role_map, memory = self._role_map, self._memory
        if self._neighbours is not None:
            self._make_neighbour(self._neighbours)
        if not role_map.servers:
            return
        gradient, theta = memory.gradient_of(self._rank), memory.theta_of(self._rank)
        for shard, (server, span) in enumerate(zip(role_map.servers, role_map.spans, strict=True)):
            link = self._link(server, shard, [span.of(gradient)], span.of(theta))
            self.by_shard[shard] = {server: link}

    def _make_neighbour(self, memory: NeighbourMemory) -> None:
        worker = self._role_map.worker_of(self._rank)
        assert worker is not None, "all ranks are workers"
        self.by_shard[0] = links = {}
        for number in self._role_map.peers[worker]:
            peer = self._role_map.workers[number]
            links[peer] = self._link_between(peer, memory)

    def _link_between(self, peer: int, memory: NeighbourMemory) -> Link:
        """Return a link to a neighbour."""
        local, fabric = self._local.get(peer), self._fabric
        if local is None:
            return RemoteNeighbour(
                fabric.comm,
                peer,
                regions=memory.offers_of(self._rank),
                most=fabric.unannounced_bytes[peer],
                frame_bytes=self._frame_bytes[0] if self._frame_bytes else 0,
            )
        return LocalNeighbour(
            fabric.memory,
            local,
            fabric.wakeup.waker(local),
            regions=memory.offers_of(peer),
            frames_out=memory.frames_of(self._rank, peer),
            frames_in=memory.frames_of(peer, self._rank),
        )

    def _make_server(self, mine: Sequence[int]) -> None:
        versions, workers = self._memory.versions_of(self._rank), self._role_map.workers
        for shard in mine:
            size, sends = self._role_map.spans[shard].size, versions[shard]
            self.by_shard[shard] = links = {}
            for worker in workers:
                landing = None if worker in self._local else np.zeros(size, np.float32)
                links[worker] = self._link(worker, shard, sends, landing)
            self.payloads[shard] = [links[worker].payload for worker in workers]
        self._join_servers(mine)

    def _join_servers(self, mine: Sequence[int]) -> None:
        """Make a link between each shard and the server of the one that decides for it."""
        servers = self._role_map.servers
        for shard, decider in enumerate(self._role_map.deciders):
            first, server = servers[decider], servers[shard]
            if server != first and first == self._rank:
                self.by_shard[shard] = {server: self._link_of_servers(server, shard)}
            elif server != first and shard in mine:
                self.by_shard[shard][first] = self._link_of_servers(first, shard)

    def _link_of_servers(self, peer: int, shard: int) -> Link:
        """Return a link without payloads."""
        place = self._role_map.shards_of(self._role_map.servers[shard]).index(shard)
        nothing, local, fabric = np.zeros(0, np.float32), self._local.get(peer), self._fabric
        if local is None:
            none = np.zeros(0, np.uint8)
            return RemoteLink(fabric.comm, peer, place, regions=[], landing=nothing, frames_in=none)
        return LocalLink(
            fabric.memory, local, place, fabric.wakeup.waker(local), regions=[], landing=nothing
        )

    def _link(self, peer: int, shard: int, sends: list[Vector], landing: Vector | None) -> Link:
        """Return one shard's link to a rank, with this rank's regions and landing."""
        local, span, memory = self._local.get(peer), self._role_map.spans[shard], self._memory
        # The shard's index among those of its server, which is the same number at both ends.
        server = self._role_map.servers[shard]
        place = self._role_map.shards_of(server).index(shard)
        if local is None:
            assert landing is not None, "a payload from another host needs a landing"
            longest = self._frame_bytes if self._rank == server else self._reply_bytes
            return RemoteLink(
                self._fabric.comm,
                peer,
                place,
                regions=sends,
                landing=landing,
                most=self._fabric.unannounced_bytes[peer],
                window=self._windows.get(peer),
                frames_in=np.zeros(longest[shard], np.uint8) if longest else None,
            )
        if landing is None:
            regions = [span.of(memory.gradient_of(peer))]
            landing, in_place = regions[GRADIENT], GRADIENT
        else:
            regions = memory.versions_of(peer)[shard]
            in_place = memory.landings.get(self._rank, NO_PAYLOAD)
        worker = peer if self._rank == server else self._rank
        of_push, of_reply = memory.push_frame(worker, shard), memory.reply_frame(shard, worker)
        into, out = (of_push, of_reply) if self._rank == server else (of_reply, of_push)
        return LocalLink(
            self._fabric.memory,
            local,
            place,
            self._fabric.wakeup.waker(local),
            regions=regions,
            landing=landing,
            in_place=in_place,
            frames_out=out,
            frames_in=into,
        )

    def _all(self) -> list[Link]:
        return [link for links in self.by_shard.values() for link in links.values()]

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages and payloads sent so far."""
        return sum(link.bytes_sent for link in self._all())

    @property
    def bytes_received(self) -> int:
        """Bytes of messages and payloads received so far."""
        return sum(link.bytes_received for link in self._all())

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Return the bytes that were sent and received for a shard."""
        links = self.by_shard[shard].values()
        return sum(it.bytes_sent for it in links), sum(it.bytes_received for it in links)

    def frame(self, shard: int, worker: int) -> Bytes:
        """Return the last frame between a shard and ``worker``, or from a neighbour."""
        if self._neighbours is not None:
            return self.neighbour(worker).frame
        server = self._role_map.servers[shard]
        peer = self._role_map.workers[worker] if self._rank == server else server
        return self.by_shard[shard][peer].frame

    def neighbour(self, worker: int) -> Link:
        """Return the link to the neighbour with this worker number."""
        return self.by_shard[0][self._role_map.workers[worker]]

    def poll(self) -> Message | None:
        """Return the next message in order of arrival, its payload in place; None if none is."""
        links = self._rotations[self._turn]
        for link in links:
            message = link.poll()
            if message is not None:
                self._turn = (self._turn + 1) % len(links)
                return message
        return self._poll_remote() if self.remote else None

    def take_frames(self) -> None:
        """Make progress on messages from other hosts."""
        for index in self._arrived():
            link = self.remote[index]
            link.arrived()
            queue = self._half.setdefault(link.peer, deque())
            queue.append(link)
            # One payload of a peer at a time: its shards share one connection, and payloads that
            # are received at the same time would all be complete only at the end.
            if len(queue) == 1:
                link.take_payload()

    def _arrived(self) -> Iterable[int]:
        """Return the indices of the links whose next message has arrived."""
        if not survives():
            return MPI.Request.Testsome(self._frame_requests) or ()
        # One by one, not by Testsome: the error of one would hide which others have completed.
        requests = enumerate(self._frame_requests)
        there = (index for index, request in requests if request != MPI.REQUEST_NULL)
        return [index for index in there if self.remote[index].has_message()]

    def _poll_remote(self) -> Message | None:
        self.take_frames()
        for rank, queue in self._half.items():
            message = queue[0].complete()
            if message is not None:
                queue.popleft()
                # To the end of the queue, so that no rank is favoured. This changes the list that
                # the loop iterates over, so the loop ends here.
                del self._half[rank]
                if queue:
                    queue[0].take_payload()
                    self._half[rank] = queue
                return message
        return None

    def drain(self) -> bool:
        """Receive and discard messages; return whether all sent messages have left.

        A worker may end before it has received all that its neighbours sent, and MPI can end only
        when everything has been received.
        """
        while self.remote and self._poll_remote() is not None:
            pass
        return not any(link.in_flight() for link in self.remote)

    def part_from(self, rank: int, leave_of: Callable[[int, int], Leave | None]) -> None:
        """Make a worker's links deliver that it left, and nothing else from now on."""
        worker = self._role_map.worker_of(rank)
        self._half.pop(rank, None)
        for shard, links in self.by_shard.items():
            link = links.get(rank)
            if link is None or worker is None:
                continue
            leave = leave_of(shard, worker)
            departed = links[rank] = DepartedLink(
                leave, link.payload, link.frame, link.bytes_sent, link.bytes_received
            )
            # MPI skips null requests; the receive itself stays posted until the end.
            if isinstance(link, RemoteLink):
                self._frame_requests[self.remote.index(link)] = MPI.REQUEST_NULL
                if leave is not None:
                    self._half.setdefault(rank, deque()).append(departed)
            for rotation in self._rotations:
                rotation[:] = [departed if it is link else it for it in rotation]

    def close(self) -> None:
        """Cancel posted receives, and drop views of others' memory."""
        for link in self.remote:
            link.close()
        self.remote.clear()
        self.by_shard.clear()
        self.payloads.clear()
        self._rotations = [[]]
