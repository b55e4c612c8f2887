"""The connection between the hosts of a recorded run: bandwidth and latency. Pure.

The time from the sending of one gradient to its receipt says little: it shared links with others,
and waited for its turn at its sender. But if several left after one time and had all arrived by
another, their bytes passed in between. No link can be slower than that rate, and the busiest link,
at its busiest, is hardly faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from psrt.core.arrays import ITEMSIZE
from psrt.history import Header, History, Kind
from psrt.history.kinds import Encode
from psrt.transport.frames import FRAME_BYTES

#: The fewest gradients that make up a burst, since a few bytes may pass at once; and the most.
_LEAST, _MOST = 4, 64
#: The fewest seconds that a burst takes.
_LEAST_S = 1e-9
#: Of a gradient: when it was sent, when it was received, and its bytes.
_Flight = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class Wire:
    """Links between hosts: one per host, shared by its ranks."""

    #: Host of each worker, and of each server.
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    #: Seconds that a message takes, except for its bytes.
    latency: float
    #: Bytes per second in each direction of a link.
    bandwidth: float

    @property
    def hosts(self) -> int:
        """The number of hosts, which are numbered from 0."""
        return 1 + max(*self.workers, *self.servers)


def measure_wire(header: Header, history: History) -> Wire | None:
    """Return the connection between the hosts, None where no two hosts exchanged messages.

    Args:
        header: of the run.
        history: all times by one clock.
    """
    hosts = header.hosts
    trips = [error for *_, error in header.clocks if error > 0]
    latency = min(trips, default=0.0)
    flights: dict[tuple[int, bool], list[_Flight]] = defaultdict(list)
    for worker, rank in enumerate(header.workers):
        for shard, server in enumerate(header.servers):
            if hosts and hosts[rank] != hosts[server]:
                found = list(_flights(history, worker, shard))
                flights[hosts[rank], False] += found
                flights[hosts[server], True] += found
    rates = [_rate(link, latency) for link in flights.values() if link]
    if not rates:
        return None
    return Wire(
        tuple(hosts[rank] for rank in header.workers),
        tuple(hosts[rank] for rank in header.server_ranks),
        latency,
        max(rates),
    )


def _flights(history: History, worker: int, shard: int) -> Iterator[_Flight]:
    """Yield the gradients that a worker sent to a shard."""
    start, stop = history.header.spans[shard]
    whole = ITEMSIZE * (stop - start)
    sent, came = history.workers[worker], history.shards[shard]
    encoded = sent[(sent["kind"] == Kind.ENCODE) & (sent["shard"] == shard)]
    # By clock, the bytes of the codec's frame that was sent instead of the gradient, if any.
    frames = dict(zip(encoded["clock"].tolist(), encoded[Encode.nbytes].tolist(), strict=True))
    pushes = sent[(sent["kind"] == Kind.PUSH) & (sent["shard"] == shard) & (sent["samples"] > 0)]
    mine = (came["kind"] == Kind.RECEIVE) & (came["worker"] == worker) & (came["samples"] > 0)
    received = dict(zip(came[mine]["clock"].tolist(), came[mine]["time"].tolist(), strict=True))
    for clock, time in zip(pushes["clock"].tolist(), pushes["time"].tolist(), strict=True):
        if clock in received:
            yield time, max(time, received[clock]), frames.get(clock, whole) + FRAME_BYTES


def _rate(flights: list[_Flight], latency: float) -> float:
    """Return the highest rate that a link reached over a burst of gradients, in bytes/s."""
    starts, stops, lengths = map(np.array, zip(*sorted(flights), strict=True))
    best = 0.0
    for i in np.unique(starts, return_index=True)[1].tolist():
        order = i + np.argsort(stops[i : i + _MOST], kind="stable")
        nbytes, seconds = np.cumsum(lengths[order]), stops[order] - starts[i]
        # Clocks agree no better than within half the time of a message.
        seconds = np.maximum(np.maximum(seconds - latency, seconds / 2), _LEAST_S)
        best = max(best, float((nbytes / seconds)[min(_LEAST, len(order)) - 1 :].max()))
    return best
