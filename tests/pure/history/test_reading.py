"""A history is read as it was written, or refused in one line: cut off, damaged, foreign."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest

from psrt.errors import ConfigError
from psrt.history import EVENT, EventLog, Header, Kind, read_history
from psrt.history.folder import write_header
from psrt.history.header import sealed
from psrt.history.reading import assemble
from psrt.history.stream import blocks_of, extent_of

#: (kind, time, worker, clock, version, shard) of two workers and two shards.
ROWS = [
    (Kind.READ, 0.0, 1, 0, 0, 0),
    (Kind.READ, 0.0, 1, 0, 0, 1),
    (Kind.PUSH, 0.1, 1, 0, 0, 1),
    (Kind.RECEIVE, 0.2, 1, 0, 0, 1),
    (Kind.APPLY, 0.2, 1, 0, 1, 1),
    (Kind.READ, 0.0, 0, 0, 0, 0),
    (Kind.APPLY, 0.2, -1, -1, 1, 0),
    (Kind.LEAVE, 0.3, 0, 1, -1, -1),
    (Kind.FINAL, 0.4, -1, -1, 1, 1),
]


def header(**changes):
    made = Header(
        config={"mode": "async", "hidden": (4,)},
        n=10,
        workers=(2, 3),
        servers=(0, 1),
        spans=((0, 5), (5, 10)),
        initial_sha256="ab" * 32,
        data_sha256="",
        code_sha256="cd" * 32,
        psrt="1",
        numpy="2",
        files=("a.npy", "b.npy"),
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def run(tmp_path):
    """A run's folder with a whole history in two files."""
    folder = tmp_path / "run" / "history"
    folder.mkdir(parents=True)
    write_header(folder, header())
    for name, rows in (("a.npy", ROWS[:4]), ("b.npy", ROWS[4:])):
        with EventLog(folder / name) as log:
            for row in rows:
                log.add(*row)
    return folder.parent


def refused(run):
    with pytest.raises(ConfigError) as caught:
        read_history(run)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def test_events_come_back_by_worker_and_shard(run):
    history = read_history(run)
    assert history.events == len(ROWS)
    assert [event["shard"].tolist() for event in history.workers[1]] == [0, 1, 1]
    assert [Kind(event["kind"]).name for event in history.workers[0]] == ["READ", "LEAVE"]
    assert [Kind(event["kind"]).name for event in history.shards[0]] == ["APPLY"]
    assert [Kind(event["kind"]).name for event in history.shards[1]] == ["RECEIVE", "APPLY"]
    assert history.finals["version"].tolist() == [1]
    assert history.header == header(config={"mode": "async", "hidden": [4]})
    assert read_history(run / "history").events == len(ROWS)


@pytest.mark.parametrize("workers", [2, 40_000])
def test_any_number_of_workers_is_sorted_alike(workers):
    """Few are sorted in another way than many."""
    rng = np.random.default_rng(0)
    events = np.zeros(5000, EVENT)
    events["kind"] = rng.choice([Kind.STEP, Kind.RECEIVE, Kind.FINAL], 5000)
    events["worker"], events["shard"] = rng.integers(0, workers, 5000), rng.integers(0, 2, 5000)
    events["clock"] = np.arange(5000)
    made = assemble(header(workers=tuple(range(2, workers + 2))), [events])
    assert len(made.workers) == workers
    for worker in (0, 1, workers - 1):
        its = events[(events["kind"] == Kind.STEP) & (events["worker"] == worker)]
        np.testing.assert_array_equal(made.workers[worker], its)
    its = events[(events["kind"] == Kind.RECEIVE) & (events["shard"] == 1)]
    np.testing.assert_array_equal(made.shards[1], its)
    assert made.events == 5000


def test_nothing_is_a_history_of_nothing():
    made = assemble(header(), [])
    assert made.events == 0
    assert (len(made.workers), len(made.shards)) == (2, 2)


def test_a_history_cut_anywhere_is_refused(run):
    path = run / "history" / "b.npy"
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        refused(run)


def test_a_flipped_bit_anywhere_is_refused(run):
    path = run / "history" / "b.npy"
    whole = path.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        refused(run)


def test_a_flipped_bit_of_the_header_is_refused_or_harmless(run):
    path = run / "history" / "header.json"
    whole, history = path.read_bytes(), read_history(run)
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 7
        path.write_bytes(broken)
        with contextlib.suppress(ConfigError):
            assert read_history(run).header == history.header  # white space


def test_a_byte_or_an_event_too_many_or_elsewhere_is_refused(run):
    path = run / "history" / "b.npy"
    events = np.load(path)
    np.save(path, np.concatenate([events, events[-1:]]))
    assert "not a valid END" in refused(run)
    with path.open("ab") as file:
        file.write(b" ")
    assert "449 bytes of events, expected 7 events" in refused(run)
    np.save(path, np.concatenate([events[1:]]))
    assert "not a valid END" in refused(run)
    np.save(path, events[[1, 0, *range(2, len(events))]])
    assert "checksum" in refused(run)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3),
        np.zeros((2, 2), EVENT),
        np.zeros((), EVENT),
        np.zeros(3, EVENT.newbyteorder(">")),
        np.zeros(3, [("kind", "<u1")]),
        np.zeros(3, [*EVENT.descr[:-1], ("seconds", "<f8")]),
    ],
    ids=["floats", "matrix", "scalar", "big-endian", "other fields", "other types"],
)
def test_another_array_is_refused(run, array):
    np.save(run / "history" / "a.npy", array)
    assert "not a file of events" in refused(run)


def test_nothing_is_ever_unpickled(run):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    path = run / "history" / "a.npy"
    np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    assert "damaged" in refused(run)
    path.write_bytes(pickle.dumps(Trap()))
    assert "damaged" in refused(run)


def test_a_file_of_several_arrays_is_refused(run):
    path = run / "history" / "a.npy"
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3, EVENT))
    assert "damaged" in refused(run)


@pytest.mark.parametrize("count", [10**6, 10**12, 2**62, 10**30])
def test_more_events_than_there_are_is_refused(run, count):
    path = run / "history" / "a.npy"
    whole = path.read_bytes()
    size = int.from_bytes(whole[8:10], "little")
    text = whole[10 : 10 + size].decode().replace("(5,)", f"({count},)").rstrip()
    path.write_bytes(whole[:10] + text.ljust(size - 1).encode() + b"\n" + whole[10 + size :])
    assert "damaged" in refused(run)


def test_a_run_that_was_cut_off_is_unfinished(run):
    path = run / "history" / "a.npy"
    path.unlink()
    log = EventLog(path)
    told = "unfinished run: 1 of 2 files without an end"
    assert f"{told}; 5 events up to 0.400 s were recorded" in refused(run)  # of the other file
    log.add(*ROWS[0])
    log.add(*ROWS[-1])
    log.abandon()
    assert f"{told}; 7 events up to 0.400 s were recorded" in refused(run)
    path.write_bytes(path.read_bytes()[:-70])  # within an event
    assert f"{told}; 5 events up to 0.400 s were recorded" in refused(run)
    path.write_bytes(b"")
    assert told in refused(run)
    (run / "history" / "header.json").unlink()
    path.rename(run / "history" / "rank-00000.npy")
    assert "unfinished run: it ended before its header was written" in refused(run)


def test_what_is_missing_is_named(tmp_path, run):
    assert f"no run at {tmp_path / 'none'}" in refused(tmp_path / "none")
    assert "keeps one with --record" in refused(tmp_path)
    (run / "history" / "b.npy").unlink()
    assert "b.npy is missing" in refused(run)


def rewritten(run, change):
    path = run / "history" / "header.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(sealed(values))
    return refused(run)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("format", 1, "of format 1, which an older psrt wrote; this psrt reads 12"),
        ("format", None, "of format None"),
        ("workers", [], "0 workers"),
        ("workers", [2, "3"], "not whole numbers"),
        ("workers", 7, "workers that are not a list"),
        ("spans", [3, 4], "spans"),
        ("spans", [[0, 5]], "ranks of 2 shards and the spans of 1"),
        ("spans", [[0, -5], [5, 10]], "not whole numbers"),
        ("n", 1.5, "not whole numbers"),
        ("n", True, "not whole numbers"),
        ("files", ["../a.npy"], "outside its folder"),
        ("files", ["a.npy", 3], "not text"),
        ("files", ["a.npy", "b\0.npy"], "b"),
        ("files", None, "files that are not a list"),
        ("config", [], "does not say the mode"),
        ("config", {}, "does not say the mode"),
        ("initial_sha256", "ab", "digests that are not"),
        ("code_sha256", "AB" * 32, "digests that are not"),
        ("batches", [10], "batches that are not"),
        ("batches", [0, 1], "batches that are not"),
        ("batches", [2**70, 1], "batches that are not"),
        ("clocks", 1, "clocks that are not a list"),
        ("clocks", [[0, 1.0, 2.0]], "clocks that are not a host and three times each"),
        ("clocks", [[0.5, 1.0, 2.0, 3.0]], "clocks that are not a host"),
        ("clocks", [[0, 1.0, "2", 3.0]], "clocks that are not a host"),
        ("codec_knobs", {"bucket": "8"}, "knobs of a codec that are not numbers"),
        ("reply_knobs", [], "knobs of a codec that are not numbers"),
        ("crashes", 1, "crashes that are not a list"),
        ("crashes", [-1], "not whole numbers"),
    ],
)
def test_a_header_that_cannot_be_is_refused(run, name, value, text):
    told = rewritten(run, lambda values: values.update({name: value}))
    assert any(part in told for part in text.split("|")), told


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", "null", "[" * 5000, '{"format": 1}', "é\0"])
def test_a_header_that_is_none_is_refused(run, text):
    (run / "history" / "header.json").write_text(text)
    assert "header.json" in refused(run)


def test_a_header_that_was_changed_is_refused(run):
    path = run / "history" / "header.json"
    path.write_text(path.read_text().replace('"n": 10', '"n": 11'))
    assert "header.json: damaged: its checksum" in refused(run)
    path.write_text(path.read_text().replace("crc32", "crc64"))
    assert "header.json: damaged: its checksum" in refused(run)


def test_a_header_that_lacks_something_is_refused(run):
    for item in dataclasses.fields(Header):
        before = (run / "history" / "header.json").read_text()
        told = rewritten(run, lambda values, name=item.name: values.pop(name))
        assert item.name in told or "format" in told
        (run / "history" / "header.json").write_text(before)


@pytest.mark.parametrize(
    "row",
    [
        (0, 0.0, 0, 0, 0, 0),
        (99, 0.0, 0, 0, 0, 0),
        (Kind.END, 0.0, 0, 0, 0, 0),
        (Kind.STEP, 0.0, 2, 0, 0, 0),
        (Kind.STEP, 0.0, -1, 0, 0, 0),
        (Kind.RECEIVE, 0.0, 0, 0, 0, 2),
        (Kind.RECEIVE, 0.0, 0, 0, 0, -1),
        (Kind.RECEIVE, 0.0, 2, 0, 0, 0),
        (Kind.APPLY, 0.0, -2, 0, 0, 0),
    ],
)
def test_an_event_of_nobody_is_refused(run, row):
    path = run / "history" / "a.npy"
    path.unlink()
    with EventLog(path) as log:
        log.add(*row)
    told = refused(run)
    assert f"kind {int(row[0])}, worker {row[2]}, shard {row[5]} in a run of 2 workers" in told


def test_fields_keep_their_bits(tmp_path):
    """Also what is no number."""
    with EventLog(tmp_path / "a.npy") as log:
        log.add(Kind.STEP, math.nan, 0, 2**62, -(2**62), gap=math.inf, rate=-0.0)
    (event,) = np.load(tmp_path / "a.npy")[:-1]
    assert math.isnan(event["time"])
    assert event["clock"] == 2**62
    assert np.signbit(event["rate"])


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_blocks_have_the_events_in_their_order(run, size):
    folder = run / "history"
    for name, rows in (("a.npy", ROWS[:4]), ("b.npy", ROWS[4:])):
        blocks = list(blocks_of(extent_of(folder, name), size))
        assert max(map(len, blocks)) <= size
        found = np.concatenate(blocks)
        assert [(it["kind"], it["time"]) for it in found] == [(row[0], row[1]) for row in rows]


def test_blocks_of_an_unfinished_file_go_as_far_as_it_does(run):
    folder, path = run / "history", run / "history" / "a.npy"
    whole = extent_of(folder, "a.npy")
    assert (whole.count, whole.whole) == (4, True)
    data = path.read_bytes()
    path.write_bytes(data[:-70])
    with pytest.raises(ConfigError, match="damaged"):  # it had an end
        extent_of(folder, "a.npy")
    path.write_bytes(b"")
    assert extent_of(folder, "a.npy").count == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("c.npy", "c.npy is missing"), ("../a.npy", "names a file outside"), ("h", "h: damaged")],
)
def test_blocks_of_what_is_no_file_of_events_are_refused(run, name, message):
    (run / "history" / "h").write_text("no events")
    with pytest.raises(ConfigError, match=message):
        extent_of(run / "history", name)
