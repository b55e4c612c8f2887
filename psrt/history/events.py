"""One event of a run as a record of 64 bytes. Pure: what the fields mean, nothing else.

A worker writes down what it read and pushed, a server what it took, applied and answered, each in
the order in which it happened there. What a field holds depends on the kind:

==========  =====================================================================================
kind        meaning; fields beyond ``kind``, ``worker`` and ``time``
==========  =====================================================================================
at a worker
READ        shard's span of θ is in place, and ``clock`` computes with it: shard, clock, version;
            ``seconds``: since the push that it answers, ``tau``: of that push, as the server said
PUSH        a gradient goes to a shard: shard, clock, version it was computed on, samples, progress;
            ``seconds``: computing, with injected delays
STEP        a local step is done, or all of a step without servers but its sum: clock, samples,
            progress; ``rate``: η of a local step; ``seconds``: computing, with injected delays
REDUCE      this worker's part of a sum over all workers is ready: clock, version: updates so far,
            samples, progress, ``weight``: its weight; flag PRESENT while it is still training
REDUCED     the sum is over: clock, version: updates so far, ``weight``: of all workers,
            ``rate``: η, ``seconds``: waiting; flag PRESENT while any worker is still training
LEAVE       the worker is done: clock
at a server
RECEIVE     a push was taken up: shard, clock, version it was computed on, samples, progress
SAVE        its gradient was saved because its worker goes on: shard, clock
APPLY       it is in this version; one event for each push of an update, in the order of their
            summation: shard, clock, version: the new one, tau, samples, ``rate``: η·r(τ), ``gap``,
            ``seconds``: of the whole update. An update out of nothing has worker −1 and clock −1
DROP        it is not used: shard, clock, version it was computed on, tau; flag LATE or LOST
REPLY       a worker was answered: shard, clock it goes on with, version
LEFT        a worker's ``LEAVE`` was taken: shard, clock
anywhere
FINAL       the parameters as they are at the end were written: shard (−1 without servers), version
END         the last event of a file: clock: events before it, version: CRC-32 of them and then of
            numpy's header; its other fields hold nothing
==========  =====================================================================================
"""

from __future__ import annotations

import struct
from enum import IntEnum

import numpy as np


class Kind(IntEnum):
    """What happened."""

    READ = 1
    PUSH = 2
    STEP = 3
    REDUCE = 4
    REDUCED = 5
    LEAVE = 6
    RECEIVE = 16
    SAVE = 17
    APPLY = 18
    DROP = 19
    REPLY = 20
    LEFT = 21
    FINAL = 32
    END = 33


#: Kinds that a worker writes, and those of a server.
WORKER_KINDS = (Kind.READ, Kind.PUSH, Kind.STEP, Kind.REDUCE, Kind.REDUCED, Kind.LEAVE)
SERVER_KINDS = (Kind.RECEIVE, Kind.SAVE, Kind.APPLY, Kind.DROP, Kind.REPLY, Kind.LEFT)

#: Flags of REDUCE and REDUCED: somebody is still training.
PRESENT = 1
#: Flags of DROP: the push came too late, or its worker died before it was used.
LATE, LOST = 1, 2

#: The record, little-endian everywhere.
EVENT = np.dtype(
    [
        ("kind", "<u1"),
        ("flag", "<u1"),
        #: Shard number; −1 where there is none.
        ("shard", "<i2"),
        #: Worker number; −1 where there is none.
        ("worker", "<i4"),
        #: Gradient steps finished before this one.
        ("clock", "<i8"),
        #: Of the shard, or of the θ that all workers share.
        ("version", "<i8"),
        #: Where the worker stands in training, in epochs.
        ("progress", "<f8"),
        #: Seconds since the run began, by the clock of the rank's host.
        ("time", "<f8"),
        #: Staleness τ, in versions.
        ("tau", "<i4"),
        ("samples", "<i4"),
        #: Learning rate times the scalar staleness factor.
        ("rate", "<f4"),
        #: ‖θ_now − θ_read‖/√n over the shard; nan where it was not measured.
        ("gap", "<f4"),
        ("weight", "<f4"),
        #: How long it took, in seconds.
        ("seconds", "<f4"),
    ]
)
#: Bytes of a record.
EVENT_BYTES = EVENT.itemsize

#: Packs a record's fields in their order; the same layout as ``EVENT``.
LAYOUT = struct.Struct("<BBhiqqddiiffff")
