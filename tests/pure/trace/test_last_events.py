"""psrt trace of the end of a run: of each rank the last events, from whichever one on."""

import dataclasses

import numpy as np
import pytest

from psrt.__main__ import main
from psrt.history import EventLog, Kind
from psrt.history.folder import FOLDER, LAST_EVENTS, write_header
from psrt.history.reading import read_header
from psrt.job.last_events import drop_old
from psrt.trace import trace_run
from support.cases import each
from support.traces import check_trace, read_trace

#: Name → flags of a small run, of each way in which ranks depend on each other.
RUNS = {
    "ssp": "--mode ssp --staleness 1 --servers 2 --workers 3 --shards-per-server 2",
    "backup": "--mode sync --backup 1 --servers 1 --workers 4",
    "checkpoints": "--mode ssp --staleness 2 --servers 2 --workers 3 --checkpoint-every 3",
    "allreduce": "--mode allreduce --workers 3",
    "fragments": "--mode local-sgd --workers 3 --local-steps 4 --sync-delay 3 --fragments 2",
    "gossip": "--mode gossip --workers 5",
    "pairs": "--mode gossip --asynchronous --workers 6",
    "slices": "--mode allreduce --parallel pipeline:2,tensor:2 --workers 4 --hidden 8",
}
#: Events of each worker and shard that are left.
LEFT = (1, 2, 3, 5, 8, 13, 21)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return recorded runs by their names."""
    folder = tmp_path_factory.mktemp("runs")
    for name, flags in RUNS.items():
        words = ["simulate", "--steps", "9", "--seed", "3", "--record", *flags.split()]
        if not any(it in flags for it in ("parallel", "fragments", "check")):
            words += ["--timing-only", "--parameters", "12"]
        assert main([*words, "--out", str(folder / name), "--quiet"]) == 0
    return folder


def ends_of(run, folder, left, without=()):
    """Write the last events of each worker and shard of a run as those before an error."""
    header = read_header(run)
    last = folder / LAST_EVENTS
    last.mkdir(parents=True)
    kept = []
    for name in header.files:
        events = np.load(run / FOLDER / name)[:-1]
        at_server = np.isin(events["kind"], (16, 17, 18, 19, 20, 21, 22, 23, 27, 28))
        owner = np.where(at_server, 1000 + events["shard"], events["worker"])
        behind = np.array([(owner[at + 1 :] == it).sum() for at, it in enumerate(owner)])
        events = events[behind < left]
        if name not in without:
            with EventLog(last / name) as log:
                log.keep(events, (False, 0))
            kept.append(events)
    write_header(last, dataclasses.replace(header, is_end=True))
    return np.concatenate(kept)


@each("name", RUNS)
def test_it_may_begin_anywhere(name, recorded, tmp_path_factory):
    for left in LEFT:
        folder = tmp_path_factory.mktemp("ends")
        events = ends_of(recorded / name, folder, left)
        traced = trace_run(folder, folder / "it.json.gz", format="json")
        read = read_trace(traced.path)
        check_trace(read)
        assert traced.events == len(events)
        assert traced.notes[0] == "the end of a run: the last events of each rank"
        assert all("whose other end is cut off" in it for it in traced.notes[1:])
        if read.slices:  # nothing is drawn behind the last event, which is near the end of the run
            newest = max(it.stop for it in read.slices)
            assert newest <= round(events["time"].max() * 1e9) + 1


def test_flows_whose_other_end_is_cut_are_counted(recorded, tmp_path):
    kinds = {}
    for it in ends_of(recorded / "backup", tmp_path, 13):
        kind, of_next = Kind(it["kind"]), it["kind"] in (Kind.READ, Kind.REPLY)
        if kind not in (Kind.LEAVE, Kind.LEFT, Kind.FINAL):
            kinds.setdefault((it["worker"], it["clock"] - of_next), set()).add(kind)
    whole = [it for it in kinds.values() if Kind.READ in it and it & {Kind.APPLY, Kind.DROP}]
    assert whole
    traced = trace_run(tmp_path, tmp_path / "it.json.gz", format="json")
    assert traced.notes[1:] == [f"{len(kinds) - len(whole)} flows whose other end is cut off"]
    whole = trace_run(recorded / "backup", tmp_path / "it.json.gz", format="json")
    assert whole.notes == []


def test_a_rank_that_was_killed_has_left_nothing(recorded, tmp_path):
    header = read_header(recorded / "slices")
    killed = header.files[1]
    ends_of(recorded / "slices", tmp_path, 9, without=[killed])
    traced = trace_run(tmp_path, tmp_path / "it.json.gz", format="json")
    assert traced.notes[0] == f"the end of a run: the last events of each rank, but for {killed}"
    check_trace(read_trace(traced.path))


def test_of_earlier_jobs_only_the_newest_stay(tmp_path):
    names = [f"psrt-last-events-2026{day:04}-120000-000001" for day in range(12)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.npy").touch()
    (tmp_path / "others").mkdir()
    drop_old(tmp_path)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["others", *names[-8:]]
