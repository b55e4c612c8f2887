"""The durations measured in a history. Pure: arrays and their means.

A step of a worker in a mode with servers has four parts, which together make up its time::

    worker     computes          waits                                       computes
               ├─────────────────┤                                           ├────────
                compute          push  wake_up or turnaround  update  reply
    server      …──────────────────────┼──────────────────────┼──────────────┼────────
               waits, or is busy       receives it            has decided

- *wake_up*: from sending to receipt, when the server was idle. On one host this is the time that
  the kernel takes to wake the server and to find it a core.
- *turnaround*: from the server's previous decision to receipt, when the message was already there.
  The server still sends replies during that time.
- *update*: from receipt to an update, by the number of gradients in it.
- *reply*: from the decision to the moment when the worker continues with new parameters.

The time that a push waits in the queue is not one of them: the simulation predicts it.
Between hosts messages share links, so their times follow from the rate of the links: wake_up,
turnaround and reply are not replayed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from psrt.core.units import size_text
from psrt.simulation.calibration.wire import Wire

#: (steps,) float64: a duration by clock; nan where there was none.
Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class ShardTimes:
    """The times measured of one shard; its server may have other shards, too."""

    #: By worker, by clock of the push that came first while the server was idle: from its sending
    #: to the receipt of that push, or of another one that had come by then.
    wake_up: tuple[Seconds, ...]
    #: By worker, by clock of a push that arrived before the server was idle: from the server's
    #: previous decision to the receipt.
    turnaround: tuple[Seconds, ...]
    #: By number of gradients: from the receipt, or from the previous update, to the update.
    update: Mapping[int, Seconds]
    #: Elements of the shard's span.
    size: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The durations of a recorded run, in seconds, each kind in the order of the run."""

    #: By worker, by clock: the time of a gradient between two waits, including injected delays,
    #: picking a batch and evaluating at the end of an epoch.
    compute: tuple[Seconds, ...]
    #: By worker, by clock of the push: from the last server's decision on.
    reply: tuple[Seconds, ...]
    #: By shard; empty where there were no servers.
    shards: tuple[ShardTimes, ...]
    #: By round: from the arrival of the last worker until the first worker continues; empty where
    #: there were no sums over all workers.
    sums: Seconds
    #: Of a round in which no worker brings anything, such as the last one.
    last_sum: float = 0.0
    #: Between a worker and a server on two hosts; None where there were no such pairs.
    wire: Wire | None = None

    def text(self) -> str:
        """Return the means in a line."""
        parts = [f"a gradient {_ms(self.compute)}"]
        if self.shards:
            parts += [
                f"a message to an idle server {_ms(*(it.wake_up for it in self.shards))}",
                f"to a busy one {_ms(*(it.turnaround for it in self.shards))}",
                f"an update {_ms(*(it.update.values() for it in self.shards))}",
                f"a reply {_ms(self.reply)}",
            ]
        if self.sums.size:
            parts.append(f"a sum {_ms((self.sums,))}")
        if self.wire is not None:
            parts.append(f"a host's link {size_text(self.wire.bandwidth)}/s")
        return ", ".join(parts)


def mean(*groups: Iterable[Seconds]) -> float:
    """Return the mean of all durations that are known, nan without any."""
    known = [seconds[~np.isnan(seconds)] for group in groups for seconds in group]
    found = np.concatenate(known) if known else np.zeros(0)
    return float(found.mean()) if found.size else float("nan")


def _ms(*groups: Iterable[Seconds]) -> str:
    seconds = mean(*groups)
    return "unknown" if np.isnan(seconds) else f"{1000 * seconds:.3g} ms"
