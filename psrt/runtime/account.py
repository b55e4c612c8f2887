"""What one rank knows, at the end of a run, of staleness and of waiting; as text, to rank 0."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from psrt.runtime.books import Books
from psrt.runtime.meter import Meter


@dataclass(frozen=True, slots=True)
class ShardAccount:
    """A server's. JSON knows no numbers as keys, so counts are lists of pairs."""

    shard: int
    #: By worker: [τ, pushes] pairs, by τ.
    staleness: list[list[list[int]]]
    #: Measured gaps: count, sum, maximum.
    gaps: list[float]

    @classmethod
    def of(cls, shard: int, books: Books) -> ShardAccount:
        """Return what a shard's books say."""
        by_worker = [[[tau, n] for tau, n in sorted(found.items())] for found in books.by_worker]
        return cls(shard, by_worker, list(books.gaps))


@dataclass(frozen=True, slots=True)
class WorkerAccount:
    """A worker's."""

    worker: int
    #: Time from the first step to the last.
    seconds: float
    #: Seconds of waiting by cause, see ``strategy.Waiting``.
    waited: dict[str, float]
    #: [worker, seconds] for those that were waited for.
    whom: list[list[float]]
    #: [skew, reads] pairs.
    skews: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, worker: int, meter: Meter, seconds: float) -> WorkerAccount:
        """Return what a worker's meter says."""
        return cls(
            worker,
            seconds,
            dict(meter.waited),
            [[whom, waited] for whom, waited in sorted(meter.whom.items())],
            [[skew, reads] for skew, reads in sorted(meter.skews.items())],
        )


Account = ShardAccount | WorkerAccount


def to_text(account: Account) -> str:
    """Return the account as a line of JSON."""
    return json.dumps(asdict(account))


def from_text(text: str) -> Account:
    """Return what ``to_text`` wrote."""
    values: dict[str, Any] = json.loads(text)
    return ShardAccount(**values) if "shard" in values else WorkerAccount(**values)
