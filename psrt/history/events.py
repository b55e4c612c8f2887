"""An event of a run as a record of 64 bytes. Pure: the numbers of kinds, and the layout.

A worker records its reads, steps and pushes; a server the pushes that it receives, applies and
answers; each in the order in which they happen there. ``history.kinds`` defines what each kind
means and which column holds which of its fields.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """The kinds of events."""

    READ = 1
    PUSH = 2
    STEP = 3
    REDUCE = 4
    REDUCED = 5
    LEAVE = 6
    ENCODE = 7
    RESIDUAL = 8
    SUM_ENCODE = 9
    SUM_KEEP = 10
    SUM_DECODE = 11
    REPLY_DECODE = 12
    OFFER = 13
    TAKE = 14
    MIXED = 15
    RECEIVE = 16
    SAVE = 17
    APPLY = 18
    DROP = 19
    REPLY = 20
    LEFT = 21
    DECODE = 22
    REPLY_ENCODE = 23
    OWN = 24
    TRACK = 25
    DRAW = 26
    FORCE = 27
    CENTRE = 28
    PASS = 29
    MESSAGE = 30
    PARK = 31
    FINAL = 32
    END = 33
    TICK = 34
    RELAY = 35


#: The value of each column in kinds that have no field there.
UNUSED = {
    "clock": -1, "version": -1, "shard": -1, "samples": 0, "progress": 0.0, "tau": 0, "rate": 0.0,
    "gap": math.nan, "weight": 0.0, "seconds": 0.0, "flag": 0,
}  # fmt: skip

#: Flag of REDUCE and REDUCED: this worker, or any worker, is still training.
PRESENT = 1
#: Flag of SUM_ENCODE and the like: a mean on its way back, not a contribution.
BACK = 1
#: Flags of OFFER, TAKE and MIXED: gradients, where they are mixed as parameters are; of OFFER and
#: TAKE: the answer to an offer; of all three: the mean of a host, where hosts mix.
TRACKED, ANSWER, HOST = 1, 2, 4
#: Flags of PASS: what was computed. A full backward pass is both to the input and to the weights.
FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 1, 2, 3, 4
#: Flags of MESSAGE: a gradient; received here.
GRADIENT, CAME = 1, 2
#: Shard of SUM_ENCODE and the like: a part that a schedule adds, whose number is their flag. Of
#: PASS: all micro-batches.
OF_ALL = -1
#: Flags of DROP: the push arrived too late, or its worker died before it was used.
LATE, LOST = 1, 2
#: Flag of READ and RECEIVE: the worker stopped for a checkpoint, rather than pushed.
PARKED = 1
#: Flag of LEFT: the worker was declared dead.
MISSED = 1

#: The record, little-endian on all machines, without padding. A column is named after the field
#: that most kinds have there, which is described here; ``history.kinds`` has the others. In this
#: order every column is aligned to its own size, and a record is 64 bytes, a cache line.
EVENT = np.dtype(
    [
        ("kind", "<u1"),
        ("flag", "<u1"),
        #: Number of the shard; −1 if there is none.
        ("shard", "<i2"),
        #: Worker number; −1 if there is none.
        ("worker", "<i4"),
        #: Gradient steps finished before this one.
        ("clock", "<i8"),
        #: Of the shard, or of the θ that all workers share.
        ("version", "<i8"),
        #: The worker's progress in training, in epochs.
        ("progress", "<f8"),
        #: Seconds since the run began, by the clock of the rank's host.
        ("time", "<f8"),
        #: Staleness τ, in versions.
        ("tau", "<i4"),
        #: The number of samples behind the gradient.
        ("samples", "<i4"),
        ("rate", "<f4"),
        #: ‖θ_now − θ_read‖/√n over the shard; nan if it was not measured.
        ("gap", "<f4"),
        ("weight", "<f4"),
        #: Duration, in seconds.
        ("seconds", "<f4"),
    ]
)
#: Bytes of a record.
EVENT_BYTES = EVENT.itemsize

#: Bits of a digest in a ``pair``, and the type of one or of an array of them.
_HALF = 32
DigestsT = TypeVar("DigestsT", int, npt.NDArray[np.int64])


def pair(first: int, second: int) -> int:
    """Return two digests, 31 bits each, as the one number that a field holds.

    >>> pair(1, 2) == (1 << 32) + 2, parts(pair(1, 2))
    (True, (1, 2))
    """
    return (first << _HALF) | second


def parts(value: DigestsT) -> tuple[DigestsT, DigestsT]:
    """Return the two digests of a ``pair``; of an array of them, two arrays."""
    return value >> _HALF, value & ((1 << _HALF) - 1)


#: Packs a record's fields in their order; the same layout as ``EVENT``.
LAYOUT = struct.Struct("<BBhiqqddiiffff")
