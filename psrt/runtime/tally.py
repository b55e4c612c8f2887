"""What each rank counted, as a row of whole numbers, and what the rows of all ranks say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from psrt.runtime.server import Server
from psrt.runtime.worker import Worker
from psrt.transport.port import Port, Vector


class Tally(NamedTuple):
    """One rank's counters at the end of a run; 0 where its role has no such thing."""

    samples: int = 0
    #: Gradient steps finished, by the worker's clock.
    clock: int = 0
    skew_max: int = 0
    microseconds: int = 0
    epochs: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    updates: int = 0
    dropped: int = 0
    clock_spread_max: int = 0
    #: Of the final θ, in modes without servers: equal on all ranks, or something is broken.
    fingerprint: int = 0

    @classmethod
    def of_worker(cls, port: Port, worker: Worker) -> Tally:
        """Return a worker's row."""
        alone = not port.wiring.servers
        return cls(
            samples=worker.meter.samples,
            clock=worker.clock,
            skew_max=worker.meter.skew_max,
            microseconds=round(worker.seconds * 1e6),
            epochs=worker.epoch,
            bytes_sent=port.bytes_sent,
            bytes_received=port.bytes_received,
            updates=worker.strategy.updates if alone else 0,
            fingerprint=fingerprint(port.theta) if alone else 0,
        )

    @classmethod
    def of_server(cls, port: Port, server: Server) -> Tally:
        """Return a server's row."""
        return cls(
            bytes_sent=port.bytes_sent,
            bytes_received=port.bytes_received,
            updates=server.shard.version,
            dropped=server.shard.dropped,
            clock_spread_max=server.clock_spread_max,
        )

    @classmethod
    def of_all(cls, rows: Iterable[Tally]) -> Tally:
        """Return sums of what adds up over ranks, and maxima of the rest."""
        columns = list(zip(*rows, strict=True))
        return cls(
            *(
                sum(column) if name in _SUMMED else max(column)
                for name, column in zip(cls._fields, columns, strict=True)
            )
        )


_SUMMED = {"samples", "bytes_sent", "bytes_received", "dropped"}


def fingerprint(theta: Vector) -> int:
    """Return 63 bits of the SHA-256 of the vector's bytes."""
    digest = hashlib.sha256(theta.data).digest()
    return int.from_bytes(digest[:8], "big") >> 1
