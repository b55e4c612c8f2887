"""What one process writes down: as a file that numpy reads, or of the last events in memory."""

from __future__ import annotations

import functools
import math
import zlib

import numpy as np
import pytest

import psrt
from psrt.core.errors import ConfigError
from psrt.core.messages import Push
from psrt.history import EVENT, EVENT_BYTES, EventLog, Kind, kinds
from psrt.history.events import LAYOUT
from psrt.history.ring import EventRing
from psrt.runtime.event_recorder import WorkerEventRecorder
from support.cases import each


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.npy"


def test_every_field_comes_back_in_64_bytes_to_the_bit(path):
    with EventLog(path, origin=10.0) as log:
        add = functools.partial(log.adder, (False, 0))
        add(kinds.Apply)(12.5, 3, 2**40, 2**41, 5, 32, 1.25, 7, 0.5, 0.25, 0.125)
        add(kinds.Leave)(13.0, 4, 9)
        add(kinds.Track)(math.nan, 0, 2**62, -(2**62), rms=math.inf, gradient_total=-0.0)
        add(kinds.Offer)(12.5, 3, weight=2.0, flag=255)
    first, second, odd, offer, end = np.load(path)
    assert EVENT_BYTES == LAYOUT.size == EVENT.itemsize == 64
    assert first.tolist() == (18, 0, 5, 3, 2**40, 2**41, 1.25, 2.5, 7, 32, 0.5, 0.25, 0.0, 0.125)
    assert (offer["weight"], offer["flag"]) == (2.0, 255)
    assert (second["kind"], second["shard"], second["time"]) == (Kind.LEAVE, -1, 3.0)
    assert math.isnan(second["gap"])
    assert math.isnan(odd["time"])
    assert (odd["clock"], odd["version"], odd["gap"]) == (2**62, -(2**62), math.inf)
    assert np.signbit(odd["rate"])
    assert (end["kind"], end["clock"]) == (Kind.END, 4)
    whole = path.read_bytes()
    header = len(whole) - 5 * EVENT_BYTES
    assert end["version"] == zlib.crc32(whole[header:-EVENT_BYTES] + whole[:header])


@each("count", [0, 1, 4095, 4096, 4097])
def test_any_number_of_events_keeps_its_order_whether_queued_or_added(tmp_path, count):
    path = tmp_path / f"{count}.npy"
    with EventLog(path) as log:
        add = log.adder((False, 0), kinds.Step)
        for i in range(count):
            if i % 3:
                log.queue.append((add, i, 0, 2 * i))
            else:
                add(i, 0, 2 * i)
    events = np.load(path)
    assert len(events) == count + 1 == log.events + 1
    np.testing.assert_array_equal(events["clock"][:-1], 2 * np.arange(count))


def test_a_run_that_is_cut_off_shows_in_its_file(path):
    log = EventLog(path)
    assert len(np.load(path)) == 0  # as one that is killed at once leaves it
    add = log.adder((False, 0), kinds.Step)
    add(0.0, 0, 0)
    log.queue.append((add, 0.0, 0, 0))
    log.__exit__(RuntimeError, RuntimeError(), None)
    assert log.events == 2
    assert len(np.load(path)) == 0
    assert path.stat().st_size > 2 * EVENT_BYTES  # for those who look closer


def test_what_is_there_is_not_overwritten(path):
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot write .*a\.npy: File exists"):
        EventLog(path)
    with pytest.raises(ConfigError, match="No such file"):
        EventLog(path.parent / "no" / "a.npy")


# --- the last ones in memory --------------------------------------------------------------------


@each("room", [1, 2, 5])
def test_a_ring_keeps_exactly_the_last(tmp_path, room):
    for events in range(12):
        ring, path = EventRing(room), tmp_path / f"{room}-{events}.npy"
        with EventLog(path) as log:
            for number in range(events):
                for kept in (ring, log):
                    add = kept.adder((False, 0), kinds.Step)
                    add(0.5 * number, number % 3, number, samples=7, rate=0.1)
        kept = ring.last()
        assert kept.dtype == EVENT
        assert kept["clock"].tolist() == list(range(max(0, events - room), events))
        assert kept.tobytes() == np.load(path)[:-1][-room:].tobytes()


def test_what_is_noted_and_not_yet_encoded_is_there():
    ring = EventRing(4)
    recorder = WorkerEventRecorder(ring, 1)
    for clock in range(6):
        recorder.note((recorder.pushed, Push(1, clock, 0, 8, 0.0, 2), 1.0 + clock, 0.5))
    before = ring.last()
    assert before["clock"].tolist() == [2, 3, 4, 5]
    recorder.left(9.0, 6)
    assert ring.last()["kind"].tolist() == [Kind.PUSH] * 3 + [Kind.LEAVE]
    assert before["clock"].tolist() == [2, 3, 4, 5], "it is a copy"


def test_only_a_history_holds_what_takes_as_long_as_a_vector(path):
    vector = np.ones(5, np.float32)
    light = WorkerEventRecorder(EventRing(2), 0)
    assert not light.is_exact
    assert light.digest(vector) == 0
    assert light.content(vector) == (0, 0.0, 0.0)
    with EventLog(path) as log:
        exact = WorkerEventRecorder(log, 0)
        assert exact.digest(vector) != 0
        assert exact.content(vector).rms == 1.0


def test_its_memory_goes_with_the_run_though_roles_refer_to_each_other_in_circles(monkeypatch):
    rings = []

    class Kept(EventRing):
        def __init__(self, *args):
            super().__init__(*args)
            rings.append(self)

    monkeypatch.setattr("psrt.job.last_events.EventRing", Kept)
    psrt.run(psrt.TrainConfig(mode="allreduce", steps=2))
    (ring,) = rings
    assert not len(ring.last())
