"""A history is read as it was written, or refused in one line: cut off, damaged, foreign."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from psrt.core.errors import ConfigError
from psrt.history import EVENT, EventLog, Header, Kind, read_history
from psrt.history.folder import write_header
from psrt.history.header import sealed
from psrt.history.reading import assemble
from psrt.history.stream import extent_of
from support.cases import each
from support.histories import record

#: (kind, time, worker, clock, version, shard) of two workers and two shards.
ROWS = [
    (Kind.READ, 0.0, 1, 0, 0, 0), (Kind.READ, 0.0, 1, 0, 0, 1),
    (Kind.PUSH, 0.1, 1, 0, 0, 1), (Kind.RECEIVE, 0.2, 1, 0, 0, 1),
    (Kind.APPLY, 0.2, 1, 0, 1, 1), (Kind.READ, 0.0, 0, 0, 0, 0), (Kind.APPLY, 0.2, -1, -1, 1, 0),
    (Kind.LEAVE, 0.3, 0, 1, -1, -1), (Kind.FINAL, 0.4, -1, -1, 1, 1),
]  # fmt: skip


def header(**changes):
    made = Header(
        config={"mode": "async", "hidden": (4,)}, n=10, workers=(2, 3), servers=(0, 1),
        spans=((0, 5), (5, 10)), initial_sha256="ab" * 32, data_sha256="", code_sha256="cd" * 32,
        psrt="1", numpy="2", files=("a.npy", "b.npy"),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


@pytest.fixture
def history(tmp_path):
    """The folder of a whole history in two files."""
    folder = tmp_path / "run" / "history"
    folder.mkdir(parents=True)
    write_header(folder, header())
    for name, rows in (("a.npy", ROWS[:4]), ("b.npy", ROWS[4:])):
        with EventLog(folder / name) as log:
            for row in rows:
                log.keep(record(*row), (False, 0))
    return folder


def refused(run):
    with pytest.raises(ConfigError) as caught:
        read_history(run)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def test_events_come_back_by_worker_and_shard(history):
    found = read_history(history.parent)
    assert found.events == read_history(history).events == len(ROWS)
    assert [event["shard"].tolist() for event in found.workers[1]] == [0, 1, 1]
    kinds = [[Kind(event["kind"]).name for event in its] for its in (*found.workers, *found.shards)]
    assert kinds == [["READ", "LEAVE"], ["READ", "READ", "PUSH"], ["APPLY"], ["RECEIVE", "APPLY"]]
    assert found.finals["version"].tolist() == [1]
    assert found.header == header(config={"mode": "async", "hidden": [4]})


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
    nothing = assemble(header(), [])
    assert (nothing.events, len(nothing.workers), len(nothing.shards)) == (0, 2, 2)


# --- what is no file of events ------------------------------------------------------------------


def test_a_history_cut_or_flipped_anywhere_is_refused(history):
    """A law and the fuzzing of files draw some places; these are all of them, but for a step."""
    path = history / "b.npy"
    whole = path.read_bytes()
    for place in range(0, len(whole), 11):
        for broken in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :],
        ):
            path.write_bytes(broken)
            refused(history)


def test_a_byte_or_an_event_too_many_or_elsewhere_is_refused(history):
    path = history / "b.npy"
    events = np.load(path)
    np.save(path, np.concatenate([events, events[-1:]]))
    assert "not a valid END" in refused(history)
    with path.open("ab") as file:
        file.write(b" ")
    assert "449 bytes of events, expected 7 events" in refused(history)
    np.save(path, events[1:])
    assert "not a valid END" in refused(history)
    np.save(path, events[[1, 0, *range(2, len(events))]])
    assert "checksum" in refused(history)


@each("array", [
    np.zeros(3),
    np.zeros((2, 2), EVENT),
    np.zeros((), EVENT),
    np.zeros(3, EVENT.newbyteorder(">")),
])  # fmt: skip
def test_another_array_is_refused(history, array):
    np.save(history / "a.npy", array)
    assert "not a file of events" in refused(history)


def test_nothing_is_ever_unpickled_nor_are_several_arrays_read(history):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    path = history / "a.npy"
    np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    assert "not a file of events" in refused(history)
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3, EVENT))
    assert "damaged" in refused(history)


def test_more_events_than_there_are_is_refused(history):
    path = history / "a.npy"
    whole = path.read_bytes()
    size = int.from_bytes(whole[8:10], "little")
    for count in (10**6, 10**12, 2**62, 10**30):
        text = whole[10 : 10 + size].decode().replace("(5,)", f"({count},)").rstrip()
        path.write_bytes(whole[:10] + text.ljust(size - 1).encode() + b"\n" + whole[10 + size :])
        assert "damaged" in refused(history)


def test_a_run_that_was_cut_off_is_unfinished(history):
    path = history / "a.npy"
    path.unlink()
    log = EventLog(path)
    told = "unfinished run: 1 of 2 files without an end"
    assert f"{told}; 5 events up to 0.400 s were recorded" in refused(history)  # of the other file
    for row in (ROWS[0], ROWS[-1]):
        log.keep(record(*row), (False, 0))
    log.abandon()
    assert f"{told}; 7 events up to 0.400 s were recorded" in refused(history)
    path.write_bytes(path.read_bytes()[:-70])  # within an event
    assert f"{told}; 5 events up to 0.400 s were recorded" in refused(history)
    (history / "header.json").unlink()
    path.rename(history / "rank-00000.npy")
    assert "unfinished run: it ended before its header was written" in refused(history)


def test_what_is_missing_is_named(tmp_path, history):
    assert f"no run at {tmp_path / 'none'}" in refused(tmp_path / "none")
    assert "keeps one with --record" in refused(tmp_path)
    (history / "b.npy").unlink()
    assert "b.npy is missing" in refused(history)


@each("row", [
    (0, 0.0, 0, 0, 0, 0), (99, 0.0, 0, 0, 0, 0), (Kind.END, 0.0, 0, 0, 0, 0),
    (Kind.STEP, 0.0, 2, 0, 0, 0), (Kind.STEP, 0.0, -1, 0, 0, 0), (Kind.APPLY, 0.0, -2, 0, 0, 0),
    (Kind.RECEIVE, 0.0, 0, 0, 0, 2), (Kind.RECEIVE, 0.0, 0, 0, 0, -1),
])  # fmt: skip
def test_an_event_of_nobody_is_refused(history, row):
    path = history / "a.npy"
    path.unlink()
    with EventLog(path) as log:
        log.keep(record(*row), (False, 0))
    told = f"kind {int(row[0])}, worker {row[2]}, shard {row[5]} in a run of 2 workers"
    assert told in refused(history)


# --- what is no header --------------------------------------------------------------------------


def rewritten(history, change):
    path = history / "header.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(sealed(values))
    return refused(history)


@each(("text", "values"), [
    ("of format 1, which an older psrt wrote; this psrt reads 14", {"format": 1}),
    ("of format None", {"format": None}),
    ("0 workers", {"workers": []}),
    ("workers that are not a list", {"workers": 7}),
    ("not whole numbers", {"workers": [2, "3"]}),
    ("not whole numbers", {"spans": [[0, -5], [5, 10]]}),
    ("not whole numbers", {"n": True}),
    ("ranks of 2 shards and the spans of 1", {"spans": [[0, 5]]}),
    ("outside its folder", {"files": ["../a.npy"]}),
    ("b", {"files": ["a.npy", "b\0.npy"]}),
    ("does not name the mode", {"config": {}}),
    ("digests that are not", {"code_sha256": "AB" * 32}),
    ("batches that are not", {"batches": [0, 1]}),
    ("tuned values that are not", {"tuned": [[1, "2"]]}),
    ("tuned values that are not", {"tuned": [[0, 1.0]]}),
    ("clocks that are not a list", {"clocks": 1}),
    ("clocks that are not a host and three times each", {"clocks": [[0, 1.0, "2", 3.0]]}),
])  # fmt: skip
def test_a_header_that_cannot_be_is_refused(history, text, values):
    write_header(history, header())
    assert text in rewritten(history, lambda it: it.update(values))


def test_a_header_that_lacks_something_is_refused(history):
    for item in dataclasses.fields(Header):
        write_header(history, header())
        told = rewritten(history, lambda values, name=item.name: values.pop(name))
        assert item.name in told or "format" in told


def test_a_header_that_is_none_or_was_changed_is_refused(history):
    path = history / "header.json"
    whole = path.read_text()
    for text in ("", "[]", "[" * 5000, '{"format": 1}', "é\0"):
        path.write_text(text)
        assert "header.json" in refused(history)
    for changed in (whole.replace('"n": 10', '"n": 11'), whole.replace("crc32", "crc64")):
        path.write_text(changed)
        assert "header.json: damaged: its checksum" in refused(history)


def test_what_is_read_block_by_block_is_refused_likewise(history):
    path = history / "a.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-70])
    (history / "h").write_text("no events")
    for name, message in (
        ("a.npy", "damaged"), ("h", "h: damaged"), ("c.npy", "c.npy is missing"),
        ("../a.npy", "names a file outside"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            extent_of(history, name)
    path.write_bytes(b"")  # as a run leaves it that was killed at once
    assert extent_of(history, "a.npy").count == 0
