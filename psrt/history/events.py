"""One event of a run as a record of 64 bytes. Pure: the layout and the meaning of the fields.

A worker records its reads, steps and pushes; a server the pushes it receives, applies and answers;
each in the order in which they happen there. The meaning of a field depends on the kind:

==========  =====================================================================================
kind        meaning; fields beyond ``kind``, ``worker`` and ``time``
==========  =====================================================================================
at a worker
READ        a shard's span of θ is in place, and ``clock`` computes with it: shard, clock, version;
            ``seconds``: since the push that it answers, ``tau``: of that push, from the reply, −1
            if no update takes it; flag PARKED: once more, after a stop for a checkpoint,
            ``seconds``: of the stop, no tau
PUSH        a gradient goes to a shard: shard, clock, version it was computed on, samples, progress;
            ``seconds``: computing, with injected delays
ENCODE      the gradient of a push was encoded: shard, clock, samples: bytes of the frame,
            version: a ``pair`` of digests, of the frame and, with error feedback, of what it
            decodes to
RESIDUAL    what a codec keeps back has changed: shard, clock, version: a ``pair`` of digests, of
            what it was before the last ENCODE and of what it is now; with error feedback
            ``rate``, ``gap`` and ``weight``: sums of what was given, of what its frame decodes to
            and of what is kept back, with signs, and ``seconds``: the most that rounding may make
            of them, over 2⁻²⁴; see ``runtime.conserved``
SUM_ENCODE  a chunk of a sum was encoded: shard: the worker that sums it, −1 if all do, clock:
            updates so far, of fragments the sums so far, progress: its first element, of fragments
            in all of them side by side, tau: the number of its elements, samples: bytes of the
            frame, version: as of ENCODE; flag BACK of the mean of a chunk. Straight through a
            schedule a part of a span was projected: shard −1, samples: its bytes, version: a
            ``pair`` of its digest and 0, flag: its number
SUM_KEEP    what a codec keeps back of that chunk has changed: as SUM_ENCODE, without samples;
            version and sums: as of RESIDUAL
SUM_DECODE  the frame of a chunk was decoded: as SUM_ENCODE; shard: the worker that sent it,
            version: as of DECODE. Straight through a schedule a part was summed: shard −1,
            samples: bytes that this worker sent for it, version: a ``pair`` of digests, of its
            mean and, of the last part, of the means of the span; flag: its number
REPLY_DECODE  the frame of a reply was added to a span of θ: shard, clock: as in the reply,
            samples: bytes of the frame, version: a ``pair`` of digests, of the frame and of that
            span
STEP        a local step is done, or, without servers, a gradient that is yet to be summed: clock,
            samples, progress; ``rate``: η of a local step; ``seconds``: computing, with delays
REDUCE      this worker's part of a sum over all workers is ready: clock, version: updates so far,
            samples, progress, ``weight``: its weight; flag PRESENT while it is still training;
            shard: the fragment, where parameters are averaged in fragments
REDUCED     the sum is over: clock, version: updates so far, ``weight``: of all workers,
            ``rate``: η, ``seconds``: waiting; flag PRESENT while any worker is still training;
            of a fragment: shard, ``tau``: this worker's steps since its part was ready
DRAW        the worker was drawn to the centre: shard, clock: of the push, version: a ``pair`` of
            digests, of the force and of the centre that made it, progress: the sum of the force;
            ``rate`` and ``gap``: sums of x − x̃ and of what the worker moved by; all with signs;
            ``weight`` and ``seconds``: the most that rounding may make of the worker and of the
            force, over 2⁻²⁴
PARK        a worker that averages with neighbours without rounds has come to a checkpoint, with its
            neighbours: clock, version: the step of the checkpoint, samples: the neighbours that it
            has told, ``seconds``: of the stop. What neighbours did before theirs it has taken, and
            nothing of what they did after
LEAVE       the worker is done: clock; ``seconds``: waiting until its neighbours are, too
OFFER       a vector was sent to neighbours: clock, samples: to how many, version: a ``pair`` of its
            digest and, without rounds, of the number of the offer, counted by who asks; weight:
            that of push-sum, else 1; progress: the sum of its numbers, with signs, gap: the root of
            their mean square, see ``runtime.conserved``; seconds: waiting until all of it was sent.
            With a codec it is what the neighbours know of θ by then. Flag TRACKED of the gradients
            that travel beside parameters; flag ANSWER of an answer; flag HOST of the mean of a
            host, weight: its workers in this round. Without rounds shard: the neighbour
OWN         what is averaged into, where that is not what was offered: with a codec, and at who asks
            without rounds: clock, version, progress and gap as of OFFER
TAKE        what a neighbour offered is averaged into it: shard: the neighbour, clock, version: as
            of its OFFER, of what came; weight: the factor, M_ij; flag: as of OFFER; without rounds
            tau: this worker's steps since it offered what this answers
MIXED       all of them are: clock, version, progress: as of OFFER, of the result; weight: the new
            one of push-sum, else 1, and rate: the sum of what it is divided by that; seconds:
            waiting; gap: ‖result − own‖/√n; flag: TRACKED, HOST or none; without rounds shard: the
            neighbour, gap: between what came and what was sent for it
TRACK       a gradient is tracked, y ← y + G − G_before: clock, version: as of OFFER, of y;
            progress and gap: of y; rate and weight: likewise of G
PASS        a stage of a model that is cut has computed a micro-batch: clock, shard: the chunk, tau:
            the micro-batch, ``OF_ALL`` for the weights of all in one product, samples: its rows,
            flag: FORWARD, BACKWARD, BACKWARD_INPUT or BACKWARD_WEIGHT; version: the steps that its
            parameters have taken, where a stage does not wait for an update, else unused
MESSAGE     a micro-batch goes to another stage, or has come from there: clock, shard: the chunk
            that sends or receives, tau: the micro-batch, samples: its rows, progress: bytes,
            version: the other stage; flag: GRADIENT, else it is an activation, and CAME where it
            has come, else it was sent
at a server
RECEIVE     a push was received: shard, clock, version it was computed on, samples, progress; flag
            PARKED: nothing is pushed, the worker has stopped for a checkpoint, which all had when
            this was written: shard, clock, version 0
DECODE      its frame was decoded: shard, clock, samples: bytes of the frame, version: a ``pair`` of
            digests, of the frame and of what it decodes to
SAVE        its gradient was saved, since its worker continues before the update: shard, clock,
            version it was computed on
APPLY       a push is part of an update; one event each, in the order of summation: shard, clock,
            version: the new one, tau, samples, ``rate``: η·r(τ), ``gap``, ``seconds``: of the
            whole update. An update without pushes has worker −1 and clock −1
DROP        a push is not used: shard, clock, version it was computed on, samples, progress, tau;
            flag LATE or LOST
REPLY       a worker was answered: shard, clock of its next step, version
REPLY_ENCODE  the reply was a frame: shard, clock, samples: bytes of the frame, version: a ``pair``
            of digests, of the frame and of the span that its worker then holds
LEFT        a worker's ``LEAVE`` was received: shard, clock; flag: MISSED if it did not say so, but
            was taken to be dead
FORCE       a push drew the centre: shard, clock, version: a ``pair`` of the digest of the force
            and 0, progress: the sum of the force, with signs; see ``runtime.conserved``
CENTRE      an update has drawn the centre, behind its FORCE: shard, clock: the new version,
            version: a ``pair`` of digests, of the centre that it moved and of the one that the
            update before had made, 0 at the first; progress: the sum of what it moved by, with
            signs, ``weight``: the most that rounding may make of that, over 2⁻²⁴
anywhere
FINAL       the final parameters were written: shard (−1 without servers), version
END         the last event of a file: clock: events before it, version: CRC-32 of them and then of
            numpy's header; its other fields are unused
==========  =====================================================================================
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


#: Kinds that a worker writes, and those of a server.
WORKER_KINDS = (
    Kind.READ, Kind.PUSH, Kind.ENCODE, Kind.RESIDUAL, Kind.STEP, Kind.REDUCE, Kind.REDUCED,
    Kind.LEAVE, Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE, Kind.REPLY_DECODE,
    Kind.OFFER, Kind.OWN, Kind.TAKE, Kind.MIXED, Kind.TRACK, Kind.DRAW, Kind.PASS,
    Kind.MESSAGE, Kind.PARK,
)  # fmt: skip
SERVER_KINDS = (
    Kind.RECEIVE, Kind.DECODE, Kind.SAVE, Kind.APPLY, Kind.DROP, Kind.REPLY, Kind.REPLY_ENCODE,
    Kind.LEFT, Kind.FORCE, Kind.CENTRE,
)  # fmt: skip

#: Kinds whose version is a ``pair``.
PAIRED = (
    Kind.ENCODE, Kind.RESIDUAL, Kind.DECODE, Kind.SUM_ENCODE, Kind.SUM_KEEP, Kind.SUM_DECODE,
    Kind.REPLY_ENCODE, Kind.REPLY_DECODE, Kind.OFFER, Kind.OWN, Kind.TAKE, Kind.MIXED, Kind.TRACK,
    Kind.DRAW, Kind.FORCE, Kind.CENTRE,
)  # fmt: skip

#: Kind → the fields that it has, beyond kind, worker and time; the others are as in ``UNUSED``.
FIELDS = {
    Kind.READ: ("shard", "clock", "version", "tau", "seconds", "flag"),
    Kind.PUSH: ("shard", "clock", "version", "samples", "progress", "seconds"),
    Kind.ENCODE: ("shard", "clock", "version", "samples"),
    Kind.RESIDUAL: ("shard", "clock", "version", "rate", "gap", "weight", "seconds"),
    Kind.SUM_ENCODE: ("shard", "clock", "version", "samples", "tau", "progress", "flag"),
    Kind.SUM_KEEP: (
        "shard", "clock", "version", "tau", "progress", "flag", "rate", "gap", "weight", "seconds",
    ),
    Kind.SUM_DECODE: ("shard", "clock", "version", "samples", "tau", "progress", "flag"),
    Kind.REPLY_DECODE: ("shard", "clock", "version", "samples"),
    Kind.STEP: ("clock", "samples", "progress", "rate", "seconds"),
    Kind.REDUCE: ("shard", "clock", "version", "samples", "progress", "weight", "flag"),
    Kind.REDUCED: ("shard", "clock", "version", "tau", "weight", "rate", "seconds", "flag"),
    Kind.LEAVE: ("clock", "seconds"),
    Kind.PARK: ("clock", "version", "samples", "seconds"),
    Kind.OFFER: (
        "shard", "clock", "version", "samples", "progress", "gap", "weight", "seconds", "flag",
    ),
    Kind.OWN: ("clock", "version", "progress", "gap"),
    Kind.TAKE: ("shard", "clock", "version", "tau", "weight", "flag"),
    Kind.MIXED: (
        "shard", "clock", "version", "progress", "rate", "gap", "weight", "seconds", "flag",
    ),
    Kind.TRACK: ("clock", "version", "progress", "rate", "gap", "weight"),
    Kind.RECEIVE: ("shard", "clock", "version", "samples", "progress", "flag"),
    Kind.DECODE: ("shard", "clock", "version", "samples"),
    Kind.REPLY_ENCODE: ("shard", "clock", "version", "samples"),
    Kind.SAVE: ("shard", "clock", "version"),
    Kind.APPLY: (
        "shard", "clock", "version", "tau", "samples", "progress", "rate", "gap", "seconds",
    ),
    Kind.DROP: ("shard", "clock", "version", "tau", "samples", "progress", "flag"),
    Kind.REPLY: ("shard", "clock", "version"),
    Kind.LEFT: ("shard", "clock", "flag"),
    Kind.DRAW: ("shard", "clock", "version", "progress", "rate", "gap", "weight", "seconds"),
    Kind.FORCE: ("shard", "clock", "version", "progress"),
    Kind.CENTRE: ("shard", "clock", "version", "progress", "weight"),
    Kind.PASS: ("shard", "clock", "version", "tau", "samples", "flag"),
    Kind.MESSAGE: ("shard", "clock", "version", "tau", "samples", "progress", "flag"),
    Kind.FINAL: ("shard", "version"),
}  # fmt: skip
#: The value of a field that an event does not have; numbers that count something have none.
UNUSED = {
    "shard": -1, "clock": -1, "version": -1, "tau": 0, "samples": 0, "progress": 0.0, "rate": 0.0,
    "gap": math.nan, "weight": 0.0, "seconds": 0.0, "flag": 0,
}  # fmt: skip

#: Flag of REDUCE and REDUCED: this worker, or any worker, is still training.
PRESENT = 1
#: Flag of SUM_ENCODE and the like: a mean on its way back, not a contribution.
BACK = 1
#: Flags of OFFER, TAKE and MIXED: gradients, where they are mixed as parameters are; of OFFER and
#: TAKE: the answer to an offer; of all three: the mean of a host, where hosts mix.
TRACKED, ANSWER, HOST = 1, 2, 4
#: Flags of PASS: what was computed. A whole backward pass is that to the input and to the weights.
FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 1, 2, 3, 4
#: Flags of MESSAGE: a gradient; come here.
GRADIENT, CAME = 1, 2
#: Shard of SUM_ENCODE and the like: a part that a schedule adds; their flag is its number. Of PASS:
#: all micro-batches.
OF_ALL = -1
#: Flags of DROP: the push arrived too late, or its worker died before it was used.
LATE, LOST = 1, 2
#: Flag of READ and RECEIVE: because the worker stopped for a checkpoint, not to push.
PARKED = 1
#: Flag of LEFT: others took the worker to be dead.
MISSED = 1

#: The record, little-endian everywhere.
EVENT = np.dtype(
    [
        ("kind", "<u1"),
        ("flag", "<u1"),
        #: Number of the shard, the fragment or the neighbour; −1 where there is none.
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
        #: Staleness τ, in versions; of a fragment, in steps of its worker.
        ("tau", "<i4"),
        ("samples", "<i4"),
        #: Learning rate times the scalar staleness factor.
        ("rate", "<f4"),
        #: ‖θ_now − θ_read‖/√n over the shard; nan where it was not measured.
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
