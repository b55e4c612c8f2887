"""Calibration: the durations that were found in a history. Pure: arrays and their means.

A step of a worker in a mode with servers falls into four parts, and all of its time is in one::

    worker     computes          waits                                       computes
               ├─────────────────┤                                           ├────────
                compute          push  woken or turned       worked   answer
    server      …──────────────────────┼──────────────────────┼──────────────┼────────
               waits, or has others    takes it up            has decided

- *woken*: a server that waited takes a message up so long after it was sent. On one host this is
  the kernel that wakes the server and finds it a core.
- *turned*: a server that finds a message when it has decided about the one before takes it up so
  long after that: it still sends answers then.
- *worked*: from there to an update, by how many gradients went into it.
- *answer*: from the decision to the moment at which the worker goes on with new parameters.

How long a push lies in the queue is no part of this: it is what the simulation is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

#: (steps,) float64: a duration by clock; nan where there was none.
Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class ShardTimes:
    """What was measured at one server."""

    #: By worker, by clock of the push that came first where the server had waited: from its
    #: sending to the taking up, of it or of another one that had come by then.
    woken: tuple[Seconds, ...]
    #: By worker, by clock of the push that was taken up where the server had not waited: from its
    #: last decision to the taking up.
    turned: tuple[Seconds, ...]
    #: By number of gradients: from the taking up, or the update before, to an update.
    worked: Mapping[int, Seconds]
    #: Elements of the shard's span.
    size: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """What things took in a recorded run, in seconds, each in the order in which it happened."""

    #: By worker, by clock: all that it did for a gradient between two waits, injected delays,
    #: the picking of a batch and the evaluation at an epoch's end included.
    compute: tuple[Seconds, ...]
    #: By worker, by clock of the push that is answered: from the last server's decision on.
    answer: tuple[Seconds, ...]
    #: By shard; empty where there were no servers.
    shards: tuple[ShardTimes, ...]
    #: By round: from the last worker's coming to the first one's going on; empty where there were
    #: no sums over all workers.
    sums: Seconds

    def text(self) -> str:
        """Return the means in a line."""
        parts = [f"a gradient {_ms(self.compute)}"]
        if self.shards:
            parts += [
                f"a message to a waiting server {_ms(*(it.woken for it in self.shards))}",
                f"to a busy one {_ms(*(it.turned for it in self.shards))}",
                f"an update {_ms(*(it.worked.values() for it in self.shards))}",
                f"an answer {_ms(self.answer)}",
            ]
        if self.sums.size:
            parts.append(f"a sum {_ms((self.sums,))}")
        return ", ".join(parts)


def mean(*groups: Iterable[Seconds]) -> float:
    """Return the mean of all durations that there are, nan without any."""
    known = [seconds[~np.isnan(seconds)] for group in groups for seconds in group]
    found = np.concatenate(known) if known else np.zeros(0)
    return float(found.mean()) if found.size else float("nan")


def _ms(*groups: Iterable[Seconds]) -> str:
    seconds = mean(*groups)
    return "unknown" if np.isnan(seconds) else f"{1000 * seconds:.3g} ms"
