"""The last events in memory: as many as there is room for, in order, as a history has them."""

import numpy as np
import pytest

import psrt
from psrt.history import EVENT, EventLog, Kind
from psrt.history.ring import EventRing
from psrt.messages import Push
from psrt.runtime.event_recorder import WorkerEventRecorder


def add(log, number):
    log.add(Kind.STEP, 0.5 * number, number % 3, number, -1, samples=7, rate=0.1, seconds=0.25)


@pytest.mark.parametrize("room", [1, 2, 5])
@pytest.mark.parametrize("events", range(12))
def test_it_keeps_exactly_the_last(tmp_path, room, events):
    ring = EventRing(room)
    with EventLog(tmp_path / "events.npy") as log:
        for number in range(events):
            add(ring, number)
            add(log, number)
    everything = np.load(tmp_path / "events.npy")[:-1]  # without END
    kept = ring.last()
    assert kept.dtype == EVENT
    assert kept["clock"].tolist() == list(range(max(0, events - room), events))
    assert kept.tobytes() == everything[-room:].tobytes()


def test_what_is_noted_and_not_yet_encoded_is_there():
    ring = EventRing(4)
    recorder = WorkerEventRecorder(ring, 1)
    for clock in range(6):
        recorder.note((recorder.pushed, Push(1, clock, 0, 8, 0.0, 2), 1.0 + clock, 0.5))
    assert ring.last()["clock"].tolist() == [2, 3, 4, 5]
    recorder.left(9.0, 6)
    assert ring.last()["kind"].tolist() == [Kind.PUSH] * 3 + [Kind.LEAVE]


def test_a_copy_does_not_change():
    ring = EventRing(2)
    add(ring, 0)
    before = ring.last()
    before["time"] += 5.0
    add(ring, 1)
    add(ring, 2)
    assert before["clock"].tolist() == [0]
    assert ring.last()["time"].tolist() == [0.5, 1.0]


def test_nothing_that_takes_as_long_as_a_vector_is_recorded():
    vector = np.ones(5, np.float32)
    light = WorkerEventRecorder(EventRing(2), 0)
    assert not light.is_exact
    assert light.digest(vector) == 0
    assert light.content(vector) == (0, 0.0, 0.0)


def test_a_history_holds_digests(tmp_path):
    vector = np.ones(5, np.float32)
    with EventLog(tmp_path / "events.npy") as log:
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
    assert not ring._buffer
    assert not len(ring.last())
