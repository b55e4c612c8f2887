"""Reads traces back, of both formats, by their specifications; shares no code with the writers."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple


class Drawn(NamedTuple):
    """A slice; one without a length is a single event."""

    rank: str
    lane: str
    name: str
    start: int
    stop: int
    facts: dict[str, Any]


class Read(NamedTuple):
    """A trace."""

    slices: list[Drawn]
    #: By number, the events that it goes through, with their times, as in the file.
    flows: dict[int, list[tuple[str, Drawn]]]
    #: By rank and name, times and values.
    numbers: dict[tuple[str, str], list[tuple[int, float]]]
    #: Rank → host.
    hosts: dict[str, str]


def read_trace(path: Path) -> Read:
    """Return what is in a trace."""
    return _chrome(path) if path.name.endswith(".json.gz") else _perfetto(path)


def _chrome(path: Path) -> Read:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names: dict[tuple[int, int], str] = {}
    for it in events:
        if it["ph"] == "M" and it["name"] in ("process_name", "thread_name"):
            tid = it["tid"] if it["name"] == "thread_name" else 0
            assert (it["pid"], tid) not in names, "named twice"
            names[it["pid"], tid] = it["args"]["name"]
    read = Read([], defaultdict(list), defaultdict(list), {})
    #: By thread, the slice that was written last: a viewer sorts by time, and keeps the order.
    latest: dict[tuple[int, int], Drawn] = {}
    for it in events:
        host, _, rank = names[it["pid"], 0].partition(" · ")
        read.hosts[rank] = host
        if it["ph"] == "M":
            continue
        at = _ns(it["ts"])
        if it["ph"] == "X":
            lane = names[it["pid"], it["tid"]]
            assert it["cat"] == lane
            drawn = Drawn(rank, lane, it["name"], at, at + _ns(it["dur"]), it["args"])
            read.slices.append(drawn)
            latest[it["pid"], it["tid"]] = drawn
        elif it["ph"] == "C":
            ((name, value),) = it["args"].items()
            assert name == it["name"]
            read.numbers[rank, name].append((at, value))
        else:
            mark = latest[it["pid"], it["tid"]]
            assert mark.start == at == mark.stop, "a flow is at its own event"
            assert it["ph"] == "s" or it["bp"] == "e"
            read.flows[it["id"]].append((it["ph"], mark))
    for flow in read.flows.values():
        flow.sort(key=lambda it: "stf".index(it[0]))
        assert [it[0] for it in flow] == ["s", *["t"] * (len(flow) - 2), "f"]
    return read


def _ns(microseconds: float) -> int:
    found = round(microseconds * 1000)
    assert abs(found - microseconds * 1000) < 1e-3
    return found


def _perfetto(path: Path) -> Read:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    trace = protos.Trace.FromString(path.read_bytes())
    tables: dict[str, dict[int, str]] = defaultdict(dict)
    tracks: dict[int, Any] = {}
    read = Read([], defaultdict(list), defaultdict(list), {})
    #: By track, the slice that has begun.
    begun: dict[int, Drawn] = {}
    assert trace.packet[0].sequence_flags == 1, "nothing was said before"
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        for field, entries in packet.interned_data.ListFields():
            tables[field.name] |= {entry.iid: entry.name for entry in entries}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks, "described twice"
            tracks[track.uuid] = track
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        lane = tracks[event.track_uuid]
        rank = tracks[lane.parent_uuid]
        read.hosts[rank.name] = tracks[rank.parent_uuid].name
        if event.type == protos.TrackEvent.TYPE_COUNTER:
            assert lane.HasField("counter")
            read.numbers[rank.name, lane.name].append((at, event.double_counter_value))
            continue
        if event.type == protos.TrackEvent.TYPE_SLICE_END:
            read.slices.append(begun.pop(lane.uuid)._replace(stop=at))
            continue
        name = tables["event_names"][event.name_iid]
        assert [tables["event_categories"][it] for it in event.category_iids] == [lane.name]
        facts = {
            tables["debug_annotation_names"][it.name_iid]: getattr(it, it.WhichOneof("value"))
            for it in event.debug_annotations
        }
        if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            assert lane.uuid not in begun, "slices of a lane do not overlap"
            begun[lane.uuid] = Drawn(rank.name, lane.name, name, at, at, facts)
            continue
        assert event.type == protos.TrackEvent.TYPE_INSTANT
        drawn = Drawn(rank.name, lane.name, name, at, at, facts)
        read.slices.append(drawn)
        for number in event.flow_ids:
            read.flows[number].append(("on", drawn))
        for number in event.terminating_flow_ids:
            read.flows[number].append(("last", drawn))
    assert not begun
    for flow in read.flows.values():
        assert [it[0] for it in flow] == ["on"] * (len(flow) - 1) + ["last"]
    return read


def check_trace(read: Read) -> None:
    """Assert what holds of any trace: slices in order, flows with two ends, no time below 0."""
    lanes: dict[tuple[str, str], list[Drawn]] = defaultdict(list)
    for it in read.slices:
        assert 0 <= it.start <= it.stop
        lanes[it.rank, it.lane].append(it)
    for (_, lane), its in lanes.items():
        if lane != "messages":  # single events
            for before, later in itertools.pairwise(its):
                assert before.stop <= later.start
        else:
            assert all(it.start == it.stop for it in its)
    for flow in read.flows.values():
        assert len(flow) >= 2
        times = [it.start for _, it in flow]
        assert times == sorted(times)
    for numbers in read.numbers.values():
        assert [at for at, _ in numbers] == sorted(at for at, _ in numbers)
        assert numbers[0][0] >= 0
