"""psrt trace: what is drawn of a run is what its history has, in both formats.

So it is of a run's last events, from whichever one on.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
from collections import Counter

import numpy as np
import pytest

from psrt.__main__ import main
from psrt.history import EVENT, EventLog, Kind
from psrt.history.events import PARKED
from psrt.history.folder import FOLDER, LAST_EVENTS, write_header
from psrt.history.header import sealed
from psrt.history.reading import read_header
from psrt.job.last_events import drop_old
from psrt.views.trace import trace_run
from support.cases import also, each
from support.histories import record
from support.traces import check_trace, read_trace

pytest.importorskip("perfetto.protos")

#: Name → flags of a small run, of each way in which ranks depend on each other.
RUNS = {
    "sync": "--mode sync --servers 2 --workers 3 --shards-per-server 2",
    "backup": "--mode sync:backup=1 --servers 1 --workers 4",
    "ssp": "--mode ssp:staleness=1 --servers 2 --workers 3",
    "softsync": "--mode softsync:k=2 --servers 1 --workers 4",
    "local-sgd, servers": "--mode local-sgd:local-steps=2 --servers 1 --workers 3",
    "windows": "--mode local-sgd:local-steps=2,quorum=2,grace=0.0002 --servers 2 --workers 4",
    "served fragments": "--mode local-sgd:local-steps=4,fragments=2,quorum=2,sync-delay=1 "
    "--servers 2 --workers 4",
    "checkpoints": "--mode ssp:staleness=2 --servers 2 --workers 3 --checkpoint-every 3",
    "allreduce": "--mode allreduce --workers 3",
    "fragments": "--mode local-sgd:local-steps=4,fragments=2,sync-delay=3 --workers 3",
    "gossip": "--mode gossip --workers 5",
    "pairs": "--mode gossip:variant=pairs --workers 6",
    "codec": "--mode async --servers 1 --workers 3 --codec top-k",
    "pipeline": "--mode allreduce --parallel data:2,pipeline:2 --workers 4 --hidden 8,8",
    "slices": "--mode allreduce --parallel pipeline:2,tensor:2 --workers 4 --hidden 8",
}
#: Those that cost little; the others are left out of `make test`.
QUICK = (
    "backup", "ssp", "softsync", "checkpoints", "local-sgd, servers", "windows", "served fragments",
    "fragments", "gossip", "pairs", "slices",
)  # fmt: skip
MARKS = {
    "read": Kind.READ, "push": Kind.PUSH, "receive": Kind.RECEIVE, "save": Kind.SAVE,
    "apply": Kind.APPLY, "drop": Kind.DROP, "reply": Kind.REPLY, "leave": Kind.LEAVE,
    "left": Kind.LEFT, "offer": Kind.OFFER, "take": Kind.TAKE, "final": Kind.FINAL,
    "tick": Kind.TICK, "relay": Kind.RELAY,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return runs by their names, each made once."""
    runs = {}

    def make(name):
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp("run") / "run"
            words = ["simulate", "--steps", "9", "--seed", "3", "--record", *RUNS[name].split()]
            if not any(it in RUNS[name] for it in ("parallel", "codec", "fragments", "check")):
                words += ["--timing-only", "--parameters", "12"]
            assert main([*words, "--out", str(runs[name]), "--quiet"]) == 0
        return runs[name]

    return make


def events_of(run):
    """Return the events of a run, without psrt's reader."""
    return np.concatenate([np.load(it)[:-1] for it in sorted((run / "history").glob("*.npy"))])


def traced(run, tmp_path, **more):
    """Return what both formats have, which is the same, and what psrt says of it."""
    chrome = trace_run(run, tmp_path / "it.json.gz", format="json", **more)
    perfetto = trace_run(run, tmp_path / "it.pftrace", format="perfetto", **more)
    reads = [read_trace(it.path) for it in (chrome, perfetto)]
    for read in reads:
        check_trace(read)
    key = lambda it: (it.start, it.rank, it.lane, it.name, sorted(it.facts.items()))  # noqa: E731
    assert sorted(reads[0].slices, key=key) == sorted(reads[1].slices, key=key)
    assert reads[0].numbers == reads[1].numbers
    assert reads[0].hosts == reads[1].hosts
    ends = [{n: [it for _, it in flow] for n, flow in read.flows.items()} for read in reads]
    assert ends[0] == ends[1]
    assert (chrome.slices, chrome.flows) == (perfetto.slices, perfetto.flows)
    return reads[0], chrome


@pytest.fixture(scope="module")
def drawn(made, tmp_path_factory):
    """Return what is drawn of a run, what psrt says of it, and its events; of each run once."""

    @functools.cache
    def found(name):
        return *traced(made(name), tmp_path_factory.mktemp("trace")), events_of(made(name))

    return found


@pytest.mark.parametrize("name", [it if it in QUICK else also(it) for it in RUNS])
def test_all_that_the_history_has_is_drawn_once_and_leads_on(name, drawn):
    read, said, events = drawn(name)
    kinds = Counter(events["kind"].tolist())
    marks = Counter(it.name for it in read.slices if it.lane == "messages")
    assert marks["send"] + marks["come"] == kinds[Kind.MESSAGE]
    assert {mark: marks[mark] for mark in MARKS} == {it: kinds[kind] for it, kind in MARKS.items()}
    lanes = Counter(it.lane.partition(" ")[0] for it in read.slices)
    updates = events[events["kind"] == Kind.APPLY]
    made = len({(it["shard"], it["version"]) for it in updates})
    assert lanes["update"] == made + kinds[Kind.SAVE]
    # Updates take time in virtual time, too.
    assert not made or any(it.stop > it.start for it in read.slices if it.lane == "update")
    windows = events[(events["kind"] == Kind.TICK) & (events["seconds"] > 0)]
    assert lanes["window"] == len(windows)
    assert len(windows) or name != "windows"
    assert lanes["sum"] == kinds[Kind.REDUCED] + kinds[Kind.MIXED]
    if kinds[Kind.PASS]:
        assert (lanes["compute"], lanes["step"]) == (kinds[Kind.PASS], kinds[Kind.STEP])
    elif kinds[Kind.STEP]:
        assert lanes["compute"] == kinds[Kind.STEP]
    else:
        pushes = events[events["kind"] == Kind.PUSH]
        assert lanes["compute"] == len({(it["worker"], it["clock"]) for it in pushes})
    assert Counter(it.lane for it in read.slices if it.lane != "messages") == said.slices
    assert said.events == len(events)
    assert not said.notes
    leads_to_what_came_of_it(read, events, kinds)


def leads_to_what_came_of_it(read, events, kinds):
    """Hold the way of every message against the events."""
    ways = Counter(tuple(it.name for _, it in flow) for flow in read.flows.values())
    used = sum(n for way, n in ways.items() if way[0] == "push" and {"apply", "drop"} & {*way})
    assert used == kinds[Kind.APPLY] + kinds[Kind.DROP] - int(
        ((events["kind"] == Kind.APPLY) & (events["worker"] < 0)).sum()
    )
    assert sum(n for way, n in ways.items() if way[-1] == "read") == kinds[Kind.REPLY]
    # Who goes on before its gradient is applied has it saved.
    assert ways["reply", "read"] == kinds[Kind.SAVE]
    stops = (events["kind"] == Kind.RECEIVE) & (events["flag"] == PARKED)
    assert ways["receive", "reply", "read"] == stops.sum()
    assert ways["offer", "take"] == kinds[Kind.TAKE]
    assert 2 * ways["send", "come"] == kinds[Kind.MESSAGE]
    for flow in read.flows.values():
        facts = [it.facts for _, it in flow]
        if flow[0][1].name == "push":
            # One worker's at one shard, and the reply is to the step after.
            assert len({(it["worker"], it["shard"]) for it in facts}) == 1
            steps = [it.facts["step"] - (it.name in ("reply", "read")) for _, it in flow]
            assert len(set(steps)) == 1
        if flow[0][1].name == "send":
            assert facts[0]["micro-batch"] == facts[1]["micro-batch"]
            assert facts[0]["step"] == facts[1]["step"]
        if flow[0][1].name == "offer":
            assert flow[0][1].rank.endswith(f"worker {facts[1]['neighbour']}")


@pytest.mark.parametrize(
    "name",
    ["ssp", "local-sgd, servers", "windows", "served fragments", "fragments", also("gossip")],
)
def test_a_worker_computes_and_waits_in_turn_for_as_long_as_its_events_say(name, drawn):
    read, _, events = drawn(name)
    kind = Kind.STEP if (events["kind"] == Kind.STEP).any() else Kind.PUSH
    steps = events[(events["kind"] == kind) & (events["shard"] <= 0)]
    computed = sum(it.stop - it.start for it in read.slices if it.lane == "compute")
    assert computed == pytest.approx(steps["seconds"].astype(float).sum() * 1e9, rel=1e-5)
    waits = [it for it in read.slices if it.lane == "wait"]
    ends = events[np.isin(events["kind"], [Kind.READ, Kind.REDUCED, Kind.MIXED, Kind.LEAVE])]
    # Of shards that are read together, the first one counts.
    others = set(events["shard"][events["kind"] == Kind.RELAY].tolist()) or {1}
    ends = ends[~np.isin(ends["shard"], [*others]) | ~np.isin(ends["kind"], [Kind.READ])]
    waited = sum(it.stop - it.start for it in waits)
    assert waited == pytest.approx(ends["seconds"].astype(float).sum() * 1e9, rel=1e-4)
    assert waited > 0
    reduced = events["time"][events["kind"] == Kind.REDUCED].sum()
    summed = sum(it.stop - it.start for it in read.slices if it.lane.startswith("sum"))
    if name != "gossip":
        due = reduced - events["time"][events["kind"] == Kind.REDUCE].sum()
        assert summed == pytest.approx(due * 1e9)


def test_a_stop_for_a_checkpoint_is_one_wait(drawn):
    read, _, events = drawn("checkpoints")
    stops = events[(events["kind"] == Kind.READ) & (events["flag"] == PARKED)]
    stops = stops[stops["shard"] == 0]
    waits = [it.stop - it.start for it in read.slices if it.name == "checkpoint"]
    assert len(waits) == len(stops) > 0
    assert sum(waits) == pytest.approx(stops["seconds"].astype(float).sum() * 1e9, rel=1e-5)


def test_a_stage_computes_from_its_last_event_to_a_pass(made, drawn):
    read, _, _ = drawn("slices")
    due = 0.0
    for path in (made("slices") / "history").glob("*.npy"):
        events = np.load(path)[:-1]
        for worker in set(events["worker"].tolist()):
            mine = events[events["worker"] == worker]
            passes = np.flatnonzero(mine["kind"] == Kind.PASS)
            due += (mine["time"][passes] - mine["time"][np.maximum(passes - 1, 0)]).sum()
    passes = [it for it in read.slices if it.lane == "compute"]
    assert sum(it.stop - it.start for it in passes) == pytest.approx(due * 1e9)
    assert set(read.hosts) == {f"rank {i}: worker {i}, part {i}" for i in range(4)}


def test_what_is_measured_is_a_curve(drawn):
    read, _, events = drawn("ssp")
    applied = events[events["kind"] == Kind.APPLY]
    for shard in range(2):
        its = read.numbers[f"rank {shard}: server {shard}", "τ"]
        assert [it for _, it in its] == applied["tau"][applied["shard"] == shard].tolist()
    read, _, events = drawn("codec")
    measured = events["gap"][(events["kind"] == Kind.APPLY) & ~np.isnan(events["gap"])]
    assert gaps_in(read) == pytest.approx(sorted(measured.tolist()))
    assert len(measured) > 1
    for worker in range(3):
        frames = events[(events["kind"] == Kind.ENCODE) & (events["worker"] == worker)]
        its = read.numbers[f"rank {worker + 1}: worker {worker}", "bytes"]
        assert [it for _, it in its] == np.cumsum(frames["samples"]).tolist()


def gaps_in(read):
    numbers = [its for (_, name), its in read.numbers.items() if name == "gap"]
    return sorted(value for its in numbers for _, value in its)


def test_steps_and_ranks_select(made, tmp_path):
    whole, _ = traced(made("ssp"), tmp_path)
    read, _ = traced(made("ssp"), tmp_path, steps="3:5", ranks="0,3-4")
    assert set(read.hosts) == {"rank 0: server 0", "rank 3: worker 1", "rank 4: worker 2"}
    steps = {it.facts["step"] for it in read.slices if it.lane == "compute"}
    assert {3, 4} <= steps < set(range(9))
    events = events_of(made("ssp"))
    pushes = events[(events["kind"] == Kind.PUSH) & np.isin(events["clock"], (3, 4))]
    reads = events[(events["kind"] == Kind.READ) & np.isin(events["clock"], (4, 5))]
    start = round((pushes["time"] - pushes["seconds"]).min() * 1e9)
    stop = round(reads["time"].max() * 1e9)
    for it in read.slices:
        assert it in whole.slices
    expected = [
        it for it in whole.slices if it.rank in read.hosts and it.stop >= start and it.start <= stop
    ]
    assert len(read.slices) == len(expected)
    assert len(read.slices) < len(whole.slices) / 2


@pytest.mark.parametrize("format", ["json", also("perfetto")])
def test_what_does_not_fit_is_cut_off_and_said(format, made, tmp_path):
    def bytes_of(most):
        said = trace_run(made("slices"), tmp_path / "it.json.gz", format=format, most_bytes=most)
        data = said.path.read_bytes()
        return said, len(gzip.decompress(data)) if format == "json" else len(data)

    whole, size = bytes_of(1e9)
    assert not whole.notes
    assert bytes_of(size + 10_000)[1] == size
    most = size // 2
    said, size = bytes_of(most)
    assert most / 3 < size <= most
    assert [it.partition(" at ")[0] for it in said.notes] == ["cut off"]
    if format == "perfetto":
        said.path.rename(tmp_path / "it")
    read = read_trace(tmp_path / "it" if format == "perfetto" else said.path)
    check_trace(read)
    assert read.slices


def test_clocks_of_hosts_that_drift_are_put_on_one(made, tmp_path):
    # Rank 1's host is 2 ms ahead at the start, which its times know, and 3 ms after 10 s.
    clocks = [(0, 0.0, 0.0, 0.0), (1, 0.0, 2e-3, 1e-5), (0, 10.0, 0.0, 0.0), (1, 10.0, 3e-3, 2e-5)]
    run = rewritten(made("allreduce"), tmp_path, clocks=clocks)
    with EventLog(run / "history/events.npy") as log:
        for worker in (0, 1):
            stepped = record(Kind.STEP, 5.0, worker, 0, -1, samples=1, rate=0.1, seconds=1.0)
            log.keep(stepped, (False, worker))
    read, said = traced(run, tmp_path)
    ends = {it.rank: it.stop for it in read.slices if it.lane == "compute"}
    assert ends["rank 0: worker 0"] == 5_000_000_000
    # A float32 says how long it took, so the start has no more than its digits.
    assert ends["rank 1: worker 1"] == 5_000_000_000 - 500_000
    assert set(read.hosts.values()) == {"host 0", "host 1"}
    line = "clocks of 2 hosts: read within 20 µs; times are corrected for a drift of at most 1 ms"
    assert said.notes == [line]


def test_a_flow_does_not_go_back_in_time(made, tmp_path):
    run = rewritten(made("ssp"), tmp_path)
    with EventLog(run / "history/events.npy") as log:
        for kind, time, worker, version in (
            (Kind.RECEIVE, 0.9, 0, 0), (Kind.PUSH, 1.0, 0, 0), (Kind.APPLY, 1.1, 0, 1),
            (Kind.PUSH, 1.0, 1, 0), (Kind.RECEIVE, 1.2, 1, 0),
        ):  # fmt: skip
            log.keep(record(kind, time, worker, 0, version, 0, 1), (False, worker))
    read, said = traced(run, tmp_path)
    assert [[it.name for _, it in flow] for flow in read.flows.values()] == [["push", "receive"]]
    assert "1 flow left out" in said.notes[0]


def rewritten(run, tmp_path, events=None, **header):
    """Return a copy of a run with other events, or none yet, and with another header."""
    copy = tmp_path / "copy"
    (copy / "history").mkdir(parents=True)
    fields = json.loads((run / "history/header.json").read_text())
    if header:
        fields |= header | {"hosts": [0, 1, 1]}
    (copy / "history/header.json").write_text(sealed(fields))
    if events is not None:
        with EventLog(copy / "history/events.npy") as log:
            log.keep(events, (False, 0))
    return copy


def test_an_unfinished_run_is_drawn_as_far_as_it_is_there(made, tmp_path):
    run = rewritten(made("ssp"), tmp_path)
    events = np.load(made("ssp") / "history/events.npy")[:40]
    log = EventLog(run / "history/events.npy")
    log.keep(events, (False, 0))
    log.abandon()
    with open(run / "history/events.npy", "ab") as file:
        file.write(b"half of an event")
    read, said = traced(run, tmp_path)
    assert said.events == 40
    assert said.notes == [
        f"unfinished run: 1 of 1 file without an end, drawn up to {events['time'][-1]:.3f} s"
    ]
    assert sum(it.lane == "messages" for it in read.slices) == 40


def test_what_cannot_be_drawn_is_one_line(made, tmp_path, capsys):
    line = "psrt: error: --steps 20:30: no worker made such a step; the run has 0 to 8\n"
    assert main(["trace", str(made("ssp")), "-o", str(tmp_path / "out"), "--steps", "20:30"]) == 2
    assert capsys.readouterr().err == line
    assert list(tmp_path.iterdir()) == []


def test_events_are_taken_in_order_of_time_from_blocks_of_any_size(made, tmp_path, monkeypatch):
    events = events_of(made("ssp"))
    by_rank = rewritten(made("ssp"), tmp_path)
    header = json.loads((by_rank / "history/header.json").read_text())
    # As ranks would have written it, a file each.
    names = [f"rank-{rank:05d}.npy" for rank in range(5)]
    (by_rank / "history/header.json").write_text(sealed(header | {"files": names}))
    is_worker = np.isin(events["kind"], [Kind.READ, Kind.PUSH, Kind.LEAVE])
    rank = np.where(is_worker, events["worker"] + 2, events["shard"])
    for number, name in enumerate(names):
        with EventLog(by_rank / "history" / name) as log:
            log.keep(events[rank == number].astype(EVENT), (False, 0))
    one, _ = traced(made("ssp"), tmp_path)
    monkeypatch.setattr("psrt.views.trace.source._HELD", 5)
    monkeypatch.setattr("psrt.views.trace.source._FEWEST", 3)
    monkeypatch.setattr("psrt.history.stream._BLOCK", 7)
    several, _ = traced(by_rank, tmp_path)
    assert several.numbers == one.numbers
    assert sorted(map(str, several.slices)) == sorted(map(str, one.slices))
    assert len(several.flows) == len(one.flows)


# --- the end of a run ---------------------------------------------------------------------------

ENDS = ("ssp", "backup", "checkpoints", "allreduce", "fragments", "gossip", "pairs", "slices")
#: Events of each worker and shard that are left.
LEFT = (1, 3, 8, 21)


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


@each("name", ENDS)
def test_it_may_begin_anywhere(name, made, tmp_path_factory):
    for left in LEFT:
        folder = tmp_path_factory.mktemp("ends")
        events = ends_of(made(name), folder, left)
        traced = trace_run(folder, folder / "it.json.gz", format="json")
        read = read_trace(traced.path)
        check_trace(read)
        assert traced.events == len(events)
        assert traced.notes[0] == "only the end of the run: the last events of each rank"
        assert all("whose other end is cut off" in it for it in traced.notes[1:])
        if read.slices:  # nothing is drawn behind the last event, which is near the end of the run
            newest = max(it.stop for it in read.slices)
            assert newest <= round(events["time"].max() * 1e9) + 1


def test_of_earlier_jobs_only_the_newest_stay(tmp_path):
    names = [f"psrt-last-events-2026{day:04}-120000-000001" for day in range(12)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.npy").touch()
    (tmp_path / "others").mkdir()
    drop_old(tmp_path)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["others", *names[-8:]]
