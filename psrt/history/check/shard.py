"""One shard's events in the terms that its rules are about: messages, versions, pushes, updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psrt.history.check.findings import Spot
from psrt.history.check.table import Bools, Ints, Table, find


@dataclass(frozen=True, slots=True)
class Takes:
    """The pushes that a shard took up, worker after worker, each column as long as there are."""

    #: Where in the shard's events each was taken up, and by which message that was.
    at: Ints
    message: Ints
    worker: Ints
    clock: Ints
    #: That it was computed on.
    version: Ints
    samples: Ints
    #: Staleness that it met: the shard's version then, minus that.
    met: Ints
    #: Position of the answer; the number of events where there is none.
    answer: Ints
    #: Position of its worker's answer before; −1 for the first.
    before: Ints
    #: Whether it asks for a newer version only, as those do that backups left behind.
    asks: Bools

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's events, and what follows from them."""

    number: int
    table: Table
    #: By position: which message, counted from 0, it is part of.
    message: Ints
    #: By position: the newest version, this event's included.
    version: Ints
    takes: Takes
    #: By worker: position of its LEFT; the number of events where there is none.
    left: Ints
    #: Positions of the first event of each update: that of version v is at index v − 1.
    updates: Ints

    def spots(self, *positions: int) -> tuple[Spot, ...]:
        """Return these events for a story; positions beyond the end are passed over."""
        return tuple(Spot(self.table, int(at)) for at in positions if 0 <= at < len(self.table))

    def key(self, worker: Ints, clock: Ints) -> Ints:
        """Return a number for each gradient: no two have the same, and they ascend in ``takes``."""
        return worker * (int(self.table["clock"].max(initial=0)) + 2) + clock

    def find_take(self, positions: Ints) -> Ints:
        """Return which of ``takes`` is the gradient of each of these events; −1 for none."""
        takes, table = self.takes, self.table
        real = np.flatnonzero(~takes.asks)
        keys = self.key(takes.worker[real], takes.clock[real])
        at = find(keys, self.key(table["worker"][positions], table["clock"][positions]))
        return np.where(at >= 0, real[at] if len(real) else -1, -1)
