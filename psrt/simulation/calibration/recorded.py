"""Costs of virtual time that are the durations of a recorded run, one after the other.

Step c of worker i takes what it took in the run, in every part; when the recorded steps are used
up they begin anew. So the order stays that the run had: what lasts for some steps still does, what
kept several ranks from a shared core at the same time does so again, and who was done first
leaves the machine to the others.
"""

from __future__ import annotations

import math

import numpy as np

from psrt.errors import ConfigError
from psrt.messages import Leave, Message, Params, Push
from psrt.simulation import Costs
from psrt.simulation.calibration.times import Calibration
from psrt.simulation.calibration.track import Attention, Track
from psrt.transport import Wiring


class RecordedCosts:
    """The costs of one job in virtual time. They count its steps, so another job needs new ones."""

    def __init__(self, times: Calibration, wiring: Wiring) -> None:
        """Set up.

        Args:
            times: of the recorded run. Worker and shard i take after those of that number, counted
                in a circle where the run had fewer.
            wiring: of the job to come.
        """
        self._times, self._wiring = times, wiring
        workers = len(wiring.workers)
        self._compute = Track(times.compute, workers=workers)
        self._answer = Track(times.answer, workers=workers)
        #: By shard of the job.
        self._attention = [
            Attention(times.shards[number % len(times.shards)], workers=workers)
            for number in range(len(wiring.servers) if times.shards else 0)
        ]
        #: By rank: gradients computed, and answers since the last one.
        self._computed = [0] * wiring.size
        self._answers = [0] * wiring.size
        #: By shard and number of gradients, how many updates there were; and how many sums.
        self._updates: dict[tuple[int, int], int] = {}
        self._sums = 0

    def costs(self) -> Costs:
        """Return them as a world takes them.

        Raises:
            ConfigError: if the job needs what was not in the run: servers, or sums.
        """
        _check(self._times, self._wiring)
        served = bool(self._wiring.servers)
        return Costs(
            compute=self.compute,
            latency=lambda rng: 0.0,  # it is a part of what taking up takes
            take=self.take if served else None,
            apply=self.apply if served else None,
            reduce=self.reduce if self._times.sums.size and not served else None,
        )

    def compute(self, rank: int, rng: np.random.Generator) -> float:
        """Return how long a worker computes its next gradient."""
        step = self._computed[rank]
        self._computed[rank] += 1
        self._answers[rank] = 0
        return self._compute.at(self._worker(rank), step)

    def take(self, rank: int, message: Message, waited: bool, rng: np.random.Generator) -> float:
        """Return how long it takes to take up a message."""
        if isinstance(message, Params):
            self._answers[rank] += 1
            if self._answers[rank] % len(self._wiring.servers):
                return 0.0  # a worker goes on with the last one
            return self._answer.at(self._worker(rank), message.clock - 1)
        attention = self._attention[self._wiring.shard_of(rank) or 0]
        if isinstance(message, Push) and not message.samples and message.version < message.clock:
            # A shard that backups left behind is asked again. The recorded times of this clock
            # belong to the push that follows.
            return attention.usual(waited=waited)
        # Who leaves says how many steps it has finished: one more than its last push did.
        step = message.clock - isinstance(message, Leave)
        return attention.at(message.worker, max(0, step), waited=waited)

    def apply(self, rank: int, nbytes: int, rng: np.random.Generator) -> float:
        """Return how long a server works gradients in.

        An update of so many gradients that the run had none takes after one of the next number,
        in proportion; so does a span of another length.
        """
        shard = self._shard(rank)
        recorded = self._times.shards[shard]
        if not recorded.worked:
            return 0.0
        gradients = max(1, round(nbytes / (4 * self._size(rank))))
        nearest = min(recorded.worked, key=lambda known: abs(math.log(known / gradients)))
        seconds, key = recorded.worked[nearest], (rank, nearest)
        update = self._updates[key] = self._updates.get(key, -1) + 1
        scale = gradients / nearest * self._size(rank) / recorded.size
        return scale * float(seconds[update % len(seconds)])

    def reduce(self, rng: np.random.Generator) -> float:
        """Return how long the next sum takes after the last worker has come to it."""
        sums = self._times.sums
        self._sums += 1
        return float(sums[(self._sums - 1) % len(sums)])

    def _worker(self, rank: int) -> int:
        worker = self._wiring.worker_of(rank)
        assert worker is not None, "only workers compute and are answered"
        return worker

    def _shard(self, rank: int) -> int:
        """Return the recorded shard that a server takes after."""
        shard = self._wiring.shard_of(rank)
        assert shard is not None, "only servers serve"
        return shard % len(self._times.shards)

    def _size(self, rank: int) -> int:
        shard = self._wiring.shard_of(rank)
        return self._wiring.spans[shard or 0].size


def _check(times: Calibration, wiring: Wiring) -> None:
    """Raise if a job needs what was not in the run."""
    if wiring.servers and not times.shards:
        raise ConfigError("the run had no servers, so it cannot tell what they take")
    if not wiring.servers and len(wiring.workers) > 1 and not times.sums.size:
        raise ConfigError("the run had no sums over all workers, so it cannot tell what they take")
