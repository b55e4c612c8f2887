"""The log of one process: what is written is what numpy reads."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.history import EVENT, EVENT_BYTES, EventLog, Kind
from psrt.history.events import LAYOUT


def test_an_event_is_64_bytes():
    assert EVENT_BYTES == LAYOUT.size == EVENT.itemsize == 64


def test_every_field_comes_back(tmp_path):
    with EventLog(tmp_path / "a.npy", origin=10.0) as log:
        log.add(Kind.APPLY, 12.5, 3, 2**40, 2**41, 5, 32, 1.25, 7, 0.5, 0.25, 2.0, 0.125, 1)
        log.add(Kind.LEAVE, 13.0, 4, 9, -1)
    first, second, end = np.load(tmp_path / "a.npy")
    assert first.tolist() == (18, 1, 5, 3, 2**40, 2**41, 1.25, 2.5, 7, 32, 0.5, 0.25, 2.0, 0.125)
    assert (second["kind"], second["shard"], second["time"]) == (Kind.LEAVE, -1, 3.0)
    assert math.isnan(second["gap"])
    assert (end["kind"], end["clock"]) == (Kind.END, 2)
    whole = (tmp_path / "a.npy").read_bytes()
    header = len(whole) - 3 * EVENT_BYTES
    assert end["version"] == zlib.crc32(whole[header:-EVENT_BYTES] + whole[:header])


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 20_000])
def test_any_number_of_events(tmp_path, count):
    with EventLog(tmp_path / "a.npy") as log:
        for i in range(count):
            log.add(Kind.STEP, i, 0, i, 2 * i)
    events = np.load(tmp_path / "a.npy")
    assert len(events) == count + 1 == log.events + 1
    np.testing.assert_array_equal(events["version"][:-1], 2 * np.arange(count))


def test_a_run_that_is_cut_off_shows_in_its_file(tmp_path):
    log = EventLog(tmp_path / "a.npy")
    log.add(Kind.STEP, 0.0, 0, 0, 0)
    log.__exit__(RuntimeError, RuntimeError(), None)
    assert len(np.load(tmp_path / "a.npy")) == 0
    assert (tmp_path / "a.npy").stat().st_size > EVENT_BYTES  # for those who look closer


def test_a_run_that_is_killed_at_once_has_a_file_that_says_so(tmp_path):
    log = EventLog(tmp_path / "a.npy")
    assert len(np.load(tmp_path / "a.npy")) == 0
    log.close()


def test_ending_twice_is_ending_once(tmp_path):
    log = EventLog(tmp_path / "a.npy")
    log.close()
    log.close()
    log.abandon()
    assert len(np.load(tmp_path / "a.npy")) == 1


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "a.npy").write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot write .*a\.npy: File exists"):
        EventLog(tmp_path / "a.npy")
    with pytest.raises(ConfigError, match="No such file"):
        EventLog(tmp_path / "no" / "a.npy")


def test_events_keep_their_order_whether_queued_or_added(tmp_path):
    with EventLog(tmp_path / "a.npy") as log:
        for i in range(0, 300, 3):
            log.queue.append((log.add, Kind.STEP, i, 0, i, 0))
            log.queue.append((log.add, Kind.STEP, i + 1, 0, i + 1, 0))
            log.add(Kind.STEP, i + 2, 0, i + 2, 0)
        log.queue.append((log.add, Kind.LEAVE, 300, 0, 300, -1))
    events = np.load(tmp_path / "a.npy")
    assert events["clock"][:-1].tolist() == list(range(301))


def test_queued_events_of_a_run_that_is_cut_off_are_written(tmp_path):
    log = EventLog(tmp_path / "a.npy")
    log.queue.append((log.add, Kind.STEP, 0.0, 0, 0, 0))
    log.abandon()
    assert log.events == 1
