"""Chrome's trace events, as gzipped JSON; needs nothing but Python.

Each rank is a process there, and its lanes are threads. Source: Google, "Trace Event Format", 2016.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import BinaryIO

from psrt.views.trace.marks import LANES, MESSAGES, Chain, Count, Mark, Slice

_BEGIN = b'{"displayTimeUnit":"ms","traceEvents":[\n'
_END = b"\n]}\n"
#: Most threads of a rank, with those of fragments.
_THREADS = 1 << 12
#: A flow begins, continues, ends.
_FIRST, _ON, _LAST = "s", "t", "f"


class ChromeWriter:
    """Writes slices and single events as complete events, and flows by their number."""

    mark_bytes = 800

    def __init__(self, file: BinaryIO, name_of: Callable[[int], tuple[str, str]]) -> None:
        """Begin.

        Args:
            file: takes the compressed bytes; left open.
            name_of: rank → names of its host and of itself.
        """
        self._name_of = name_of
        # No name and no time in the compressed file: the same history makes the same bytes.
        self._file = gzip.GzipFile("", "wb", 6, file, 0)
        self._lanes: dict[tuple[int, str], int] = {}
        self._ranks: dict[int, int] = {}
        self._flows = 0
        self._file.write(_BEGIN)
        self.size = len(_BEGIN) + len(_END)
        self._between = b""

    def slice(self, it: Slice) -> None:
        """Write a slice."""
        self._complete(it.rank, it.lane, it.name, it.start, it.stop, it.facts)

    def marks(self, marks: tuple[Mark, ...], flows: tuple[Chain, ...]) -> None:
        """Write marks, each followed by its parts of flows: this order connects them."""
        numbers = range(self._flows + 1, self._flows + 1 + len(flows))
        self._flows += len(flows)
        for mark in marks:
            self._complete(mark.rank, MESSAGES, mark.name, mark.at, mark.at, mark.facts)
            for number, flow in zip(numbers, flows, strict=True):
                for at, its in enumerate(flow.marks):
                    if its is mark:
                        self._flow(number, flow, at)

    def count(self, it: Count) -> None:
        """Write a number."""
        self._write(
            {
                "ph": "C", "pid": self._pid(it.rank), "ts": _time(it.at), "name": it.name,
                "args": {it.name: it.value},
            }
        )  # fmt: skip

    def close(self) -> None:
        """Write the end."""
        self._file.write(_END)
        self._file.close()

    def _complete(
        self,
        rank: int,
        lane: str,
        name: str,
        start: int,
        stop: int,
        facts: dict[str, int | float | str],
    ) -> None:
        pid = self._pid(rank)
        self._write(
            {
                "ph": "X", "pid": pid, "tid": self._tid(rank, lane), "ts": _time(start),
                "dur": _time(stop - start), "name": name, "cat": lane, "args": facts,
            }
        )  # fmt: skip

    def _flow(self, number: int, flow: Chain, at: int) -> None:
        mark = flow.marks[at]
        phase = _FIRST if at == 0 else _LAST if at == len(flow.marks) - 1 else _ON
        event = {
            "ph": phase, "pid": self._pid(mark.rank), "tid": self._tid(mark.rank, MESSAGES),
            "ts": _time(mark.at), "name": flow.name, "cat": "flow", "id": number,
        }  # fmt: skip
        self._write(event | ({} if phase == _FIRST else {"bp": "e"}))

    def _pid(self, rank: int) -> int:
        if rank not in self._ranks:
            pid = self._ranks[rank] = rank + 1  # 0 is the idle process
            host, name = self._name_of(rank)
            self._about(pid, "process_name", {"name": f"{host} · {name}"})
            self._about(pid, "process_sort_index", {"sort_index": rank})
        return self._ranks[rank]

    def _tid(self, rank: int, lane: str) -> int:
        key = rank, lane
        if key not in self._lanes:
            pid = self._pid(rank)
            place = LANES.index(lane) if lane in LANES else len(LANES) + len(self._lanes)
            # Unique over all processes, as threads are.
            tid = self._lanes[key] = pid * _THREADS + place % _THREADS
            self._about(pid, "thread_name", {"name": lane}, tid)
            self._about(pid, "thread_sort_index", {"sort_index": place}, tid)
        return self._lanes[key]

    def _about(self, pid: int, what: str, args: dict[str, str | int], tid: int = 0) -> None:
        self._write({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args})

    def _write(self, event: dict[str, object]) -> None:
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
        self._file.write(self._between + text)
        self.size += len(self._between) + len(text)
        self._between = b",\n"


def _time(nanoseconds: int) -> float:
    """Return a time in microseconds, as the format has it; a float64 holds a month to the ns."""
    return nanoseconds / 1000
