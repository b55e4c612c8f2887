"""Perfetto's own format, TrackEvent packets; needs the package ``perfetto``.

A tree of tracks: host, rank, lane. Names are written once, and then referred to by number.
Source: google/perfetto, docs/reference/synthetic-track-event.md and protos/perfetto/trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from psrt.views.trace.marks import LANES, MESSAGES, Chain, Count, Facts, Mark, Slice

#: All packets form one sequence; the first one marks its beginning.
_SEQUENCE = 1
#: Field 1, of which the length follows.
_FIELD = b"\x0a"
_UNITS = {"bytes": "bytes", "τ": "versions"}


class PerfettoWriter:
    """Writes packets as they come: slices as a beginning and an end, marks as instants."""

    mark_bytes = 500

    def __init__(self, file: BinaryIO, name_of: Callable[[int], tuple[str, str]]) -> None:
        """Begin.

        Args:
            file: takes the bytes; left open.
            name_of: rank → names of its host and of itself.

        Raises:
            ImportError: without the package.
        """
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

        self._protos = protos
        self._file, self._name_of = file, name_of
        self.size = 0
        #: Tracks by host, rank, rank and lane, or rank and counter.
        self._tracks: dict[str | int | tuple[int, str, bool], int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._flows = 0
        packet = self._packet()
        packet.sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.trace_packet_defaults.timestamp_clock_id = protos.BUILTIN_CLOCK_BOOTTIME
        self._write(packet)

    def slice(self, it: Slice) -> None:
        """Write a slice."""
        kinds = self._protos.TrackEvent
        track = self._lane(it.rank, it.lane)
        self._event(kinds.TYPE_SLICE_BEGIN, track, it.start, it.name, it.lane, it.facts)
        packet = self._packet()
        packet.timestamp = it.stop
        packet.track_event.type, packet.track_event.track_uuid = kinds.TYPE_SLICE_END, track
        self._write(packet)

    def marks(self, marks: tuple[Mark, ...], flows: tuple[Chain, ...]) -> None:
        """Write marks, with the flows that they are in."""
        numbers = range(self._flows + 1, self._flows + 1 + len(flows))
        self._flows += len(flows)
        for mark in marks:
            mine = [
                (number, mark is flow.marks[-1])
                for number, flow in zip(numbers, flows, strict=True)
                if any(it is mark for it in flow.marks)
            ]
            on = [number for number, is_last in mine if not is_last]
            last = [number for number, is_last in mine if is_last]
            kind, track = self._protos.TrackEvent.TYPE_INSTANT, self._lane(mark.rank, MESSAGES)
            self._event(kind, track, mark.at, mark.name, MESSAGES, mark.facts, on, last)

    def count(self, it: Count) -> None:
        """Write a number."""
        packet = self._packet()
        packet.timestamp = it.at
        event = packet.track_event
        event.type, event.track_uuid = self._protos.TrackEvent.TYPE_COUNTER, self._counter(it)
        event.double_counter_value = it.value
        self._write(packet)

    def close(self) -> None:
        """Write nothing: the format has no end."""

    def _event(
        self, kind: int, track: int, at: int, name: str, category: str, facts: Facts,
        flows: list[int] | None = None, last: list[int] | None = None,
    ) -> None:  # fmt: skip
        packet = self._packet()
        packet.timestamp = at
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        event.name_iid = self._named(packet, "event_names", name)
        event.category_iids.append(self._named(packet, "event_categories", category))
        for key, value in facts.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._named(packet, "debug_annotation_names", key)
            if isinstance(value, str):
                annotation.string_value = value
            elif isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.double_value = value
        event.flow_ids.extend(flows or ())
        event.terminating_flow_ids.extend(last or ())
        self._write(packet)

    def _named(self, packet: Any, table: str, name: str) -> int:
        """Return the number of a name, and add the name to the packet if it is new."""
        key = table, name
        if key not in self._names:
            self._names[key] = len(self._names) + 1
            entry = getattr(packet.interned_data, table).add()
            entry.iid, entry.name = self._names[key], name
        return self._names[key]

    def _lane(self, rank: int, lane: str) -> int:
        key = rank, lane, False
        if key not in self._tracks:
            place = LANES.index(lane) if lane in LANES else len(LANES)
            self._describe(key, lane, self._rank(rank), place)
        return self._tracks[key]

    def _counter(self, it: Count) -> int:
        key = it.rank, it.name, True
        if key not in self._tracks:
            unit = _UNITS.get(it.name.partition(" ")[0], "")
            self._describe(key, it.name, self._rank(it.rank), len(LANES) + 1, unit)
        return self._tracks[key]

    def _rank(self, rank: int) -> int:
        if rank not in self._tracks:
            host, name = self._name_of(rank)
            if host not in self._tracks:
                self._describe(host, host, None, rank)
            self._describe(rank, name, self._tracks[host], rank)
        return self._tracks[rank]

    def _describe(
        self,
        key: str | int | tuple[int, str, bool],
        name: str,
        parent: int | None,
        place: int,
        unit: str | None = None,
    ) -> None:
        """Describe a track, before its first event."""
        packet = self._packet()
        track = packet.track_descriptor
        self._tracks[key] = track.uuid = len(self._tracks) + 1
        track.name, track.sibling_order_rank = name, place
        if parent is not None:
            track.parent_uuid = parent
        if unit is None:
            track.child_ordering = self._protos.TrackDescriptor.EXPLICIT
        else:
            track.counter.unit_name = unit
        self._write(packet)

    def _packet(self) -> Any:
        packet = self._protos.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = self._protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _write(self, packet: Any) -> None:
        # A trace is a sequence of packets, each as field 1 of the whole, after its length. That is
        # written by hand, since making a whole message for each would copy it once more.
        data = packet.SerializeToString()
        head = _FIELD + _varint(len(data))
        self._file.write(head + data)
        self.size += len(head) + len(data)


def _varint(number: int) -> bytes:
    r"""Return a number in groups of seven bits, the lowest first.

    >>> _varint(5), _varint(300)
    (b'\x05', b'\xac\x02')
    """
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
