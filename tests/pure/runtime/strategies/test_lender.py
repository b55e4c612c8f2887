"""What lends layers: when buckets are gathered, waited for, given away, and their places free."""

from __future__ import annotations

import numpy as np

from psrt.core.partition import Span
from psrt.core.sharding import Sharing
from psrt.model.lent_stage import Use
from psrt.runtime.strategies.lender import BucketLender
from psrt.runtime.strategies.shares import Shares
from psrt.transport import RoleMap, drive
from psrt.transport.port import CONTROL

LAYERS = [Span(0, 2), Span(2, 3), Span(3, 7), Span(7, 9)]
#: Each layer is one: the last one is bucket 0.
BUCKETS = tuple(LAYERS[::-1])
#: What the second of two workers owns, and the places of its own behind each other.
OWNED = (Span(8, 9), Span(5, 7), Span(3, 3), Span(1, 2))
#: Two places of four numbers behind the most that a worker owns.
MOST, ROOM = 6, 4


class Gather:
    """One bucket: the other worker's part is there when it is waited for, and not before."""

    def __init__(self, port, part, at):
        self.port, self.part, self.at = port, part, at
        self.bucket = BUCKETS.index(part)

    def begin(self):
        self.port.log.append(f"gather {self.bucket}")
        # The places of others are written from now on.
        place = self.port.theta[self.at : self.at + self.part.size]
        own, start = OWNED[self.bucket], self.part.start
        mine = place[own.start - start : own.stop - start].copy()
        place[:] = np.nan
        place[own.start - start : own.stop - start] = mine

    def poll(self):
        self.port.log.append(f"poll {self.bucket}")

    async def finish(self):
        self.port.log.append(f"have {self.bucket}")
        own, start = OWNED[self.bucket], self.part.start
        for i in range(*self.part):
            if not own.start <= i < own.stop:
                self.port.theta[self.at + i - start] = i


class Port:
    """Parameter i is the number i."""

    rank = 1
    role_map = RoleMap(9, workers=(0, 1))

    def __init__(self):
        self.log = []
        self.gradient = np.full(2 * ROOM + CONTROL, np.nan, np.float32)
        own = [i for span in OWNED for i in range(*span)]
        self.theta = np.full(MOST + 2 * ROOM, np.nan, np.float32)
        self.theta[: len(own)] = own

    def gather(self, part, algorithm, at):
        return Gather(self, part, at)


class Sums:
    """What sums buckets; notes what it is given."""

    chosen = "ring"

    def __init__(self, port):
        self.port, self.given = port, []

    async def release(self, bucket):
        self.port.log.append(f"free {bucket}")

    def begin(self):
        self.port.log.append("sum")
        self.given.append(self.port.gradient.copy())

    def poll(self):
        self.port.log.append("poll")


def lender(uses, shard=Sharing.PARAMETERS):
    port = Port()
    sums = Sums(port)
    shares = Shares(shard, BUCKETS, OWNED, MOST)
    made = BucketLender(port, sums, shares, LAYERS, uses, lambda at, gradient: None)
    return made, port, sums


def steps_of(*layers):
    """Return uses of layers: those that are read, and "!" before those that are written."""
    return [Use(int(it.strip("!")), "!" in it) for it in layers]


def log_of(uses, **knobs):
    """Walk through a step, and return what happened by use, without polls."""
    made, port, _ = lender(uses, **knobs)
    made.begin(1.0)
    found = []
    for i, writes in uses:
        port.log.clear()
        if writes:
            drive(made.room(i))
            made.final(i)
        else:
            got = drive(made.params(i))
            np.testing.assert_array_equal(got, range(*LAYERS[i]))
        found.append(" ".join(it for it in port.log if not it.startswith("poll")))
    return found


WHOLE = steps_of("0", "1", "2", "3", "3", "!3", "2", "!2", "1", "!1", "0", "!0")


def test_buckets_are_gathered_one_ahead_and_stay_while_they_have_a_place():
    assert log_of(WHOLE) == [
        "gather 3 gather 2 have 3", "gather 1 have 2", "gather 0 have 1", "have 0",
        "", "free -2 sum", "gather 2", "free -1 sum", "gather 3 have 2", "free 0 sum",
        "have 3", "free 1 sum",
    ]  # fmt: skip


def test_the_place_of_what_is_read_is_not_taken_for_what_follows():
    """Chunks of a stage go forward in turn: bucket 1 follows bucket 3, in the same place."""
    assert log_of(steps_of("0", "2", "0", "3")) == [
        "gather 3 have 3", "gather 1 have 1", "gather 3 gather 0 have 3", "have 0",
    ]  # fmt: skip


def test_what_is_on_its_way_is_moved_on():
    made, port, _ = lender(WHOLE)
    made.begin(1.0)
    drive(made.params(0))
    port.log.clear()
    made.poll()
    assert port.log == ["poll 2", "poll"]
    drive(made.room(3))
    port.log.clear()
    made.final(3)
    assert port.log == ["sum", "poll 2", "poll"]


def test_along_with_others_all_is_zero_and_in_the_same_order():
    made, port, sums = lender(WHOLE)
    drive(made.along())
    found = " ".join(it for it in port.log if not it.startswith("poll"))
    assert found == " ".join(filter(None, log_of(WHOLE)))
    for numbers, layer in zip(sums.given, (3, 2, 1, 0), strict=True):
        place = ROOM * (layer % 2 == 0)
        np.testing.assert_array_equal(numbers[place : place + LAYERS[layer].size], 0)
