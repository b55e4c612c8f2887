"""The layout of vectors and frames of a job with servers in a host's memory. Knows no MPI.

A worker's part has its gradient with room for control values, its parameters, and the frames of its
pushes by shard. A server's part has the versions of its shards, then the frames of its replies by
shard and worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from psrt.core.arrays import ITEMSIZE, Bytes, Vector
from psrt.transport.port import CONTROL, RoleMap, ThetaMemory


def floats_of(
    rank: int, role_map: RoleMap, frame_bytes: Sequence[int], reply_bytes: Sequence[int]
) -> int:
    """Return how many float32 numbers a rank needs; see ``ServedMemory``."""
    shards = role_map.shards_of(rank)
    if not shards:
        return 2 * role_map.n + CONTROL + sum(map(_words, frame_bytes))
    frames = sum(_words(reply_bytes[shard]) for shard in shards) if reply_bytes else 0
    versions = role_map.versions * sum(role_map.spans[shard].size for shard in shards)
    return versions + len(role_map.workers) * frames


@dataclass(eq=False)
class ServedMemory:
    """Views of the ranks' vectors and frames on one host."""

    #: The roles of all ranks.
    role_map: RoleMap
    #: Returns the ``floats_of`` numbers of a rank of this host.
    numbers_of: Callable[[int], Vector]
    #: What the ``theta`` of each worker is.
    theta_memory: InitVar[ThetaMemory]
    #: By shard, the length of the longest frame of a push; empty if gradients are pushed
    #: uncompressed.
    frame_bytes: Sequence[int]
    #: The same for replies.
    reply_bytes: Sequence[int]
    #: Rank of a worker → the region that is its landing.
    landings: Mapping[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self, theta_memory: ThetaMemory) -> None:
        self._one_theta = theta_memory is ThetaMemory.SHARED
        if theta_memory is not ThetaMemory.OWN:
            self.landings = {
                rank: self.role_map.versions + i * (not self._one_theta)
                for i, rank in enumerate(self.role_map.workers)
            }

    def gradient_of(self, worker_rank: int) -> Vector:
        """Return the gradient of a worker, and its control values."""
        return self.numbers_of(worker_rank)[: self.role_map.n + CONTROL]

    def theta_of(self, worker_rank: int) -> Vector:
        """Return the parameters of a worker; if all share them, those of the first."""
        if self._one_theta:
            worker_rank = self.role_map.workers[0]
        start = self.role_map.n + CONTROL
        return self.numbers_of(worker_rank)[start : start + self.role_map.n]

    def push_frame(self, worker_rank: int, shard: int) -> Bytes | None:
        """Return a worker's memory for the frames of its pushes to a shard."""
        if not self.frame_bytes:
            return None
        start = 2 * self.role_map.n + CONTROL + sum(map(_words, self.frame_bytes[:shard]))
        return _frame(self.numbers_of(worker_rank)[start:], self.frame_bytes[shard])

    def reply_frame(self, shard: int, worker_rank: int) -> Bytes | None:
        """Return the server's memory for the frames of a shard's replies to a worker."""
        if not self.reply_bytes:
            return None
        role_map = self.role_map
        server = role_map.servers[shard]
        mine, workers = role_map.shards_of(server), role_map.workers
        before = mine[: mine.index(shard)]
        start = role_map.versions * sum(role_map.spans[it].size for it in mine)
        start += len(workers) * sum(_words(self.reply_bytes[it]) for it in before)
        start += workers.index(worker_rank) * _words(self.reply_bytes[shard])
        return _frame(self.numbers_of(server)[start:], self.reply_bytes[shard])

    def versions_of(self, server_rank: int) -> dict[int, list[Vector]]:
        """Return the regions of each shard of a server, shard after shard."""
        numbers = self.numbers_of(server_rank)
        by_region = {region: rank for rank, region in self.landings.items()}
        thetas = [self.theta_of(by_region[region]) for region in sorted(by_region)]
        found: dict[int, list[Vector]] = {}
        for shard in self.role_map.shards_of(server_rank):
            span = self.role_map.spans[shard]
            own = [
                numbers[i * span.size : (i + 1) * span.size] for i in range(self.role_map.versions)
            ]
            found[shard] = own + [span.of(theta) for theta in thetas]
            numbers = numbers[self.role_map.versions * span.size :]
        return found


def _words(nbytes: int) -> int:
    """Return the number of float32 numbers that hold that many bytes."""
    return -(-nbytes // ITEMSIZE)


def _frame(numbers: Vector, nbytes: int) -> Bytes:
    """Return the first bytes of the numbers' memory."""
    return numbers[: _words(nbytes)].view(np.uint8)[:nbytes]
