"""Makes the trace of a run: from its history into a file for a trace viewer."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from psrt.config.names import PAIRS
from psrt.core.errors import ConfigError, OutputError
from psrt.core.files import read_text
from psrt.core.progress import PROGRESS, Amount
from psrt.core.units import plural, size_text
from psrt.views.trace.chrome import ChromeWriter
from psrt.views.trace.flows import Flows
from psrt.views.trace.marks import Chain, Count, Mark, Slice, Writer, nanoseconds
from psrt.views.trace.perfetto import PerfettoWriter
from psrt.views.trace.selection import Window, chosen_ranks, ranks_of, steps_of
from psrt.views.trace.source import Event, Source
from psrt.views.trace.spans import Spans

#: Name of a format → ending of its files.
FORMATS = {"perfetto": ".pftrace", "json": ".trace.json.gz"}
_PACKAGE = "perfetto"
_ROSTER = "roster.json"
#: Bytes for the end of the file and for tracks that occur last.
_RESERVE = 2048


@dataclass(slots=True)
class Traced:
    """What was drawn, and what was not."""

    path: Path
    #: Slices by lane, marks by name, and numbers by counter.
    slices: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    flows: int = 0
    #: Events of the history, and bytes of the file.
    events: int = 0
    nbytes: int = 0
    #: Lines for the user.
    notes: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield what to print."""
        drawn = plural(sum(self.slices.values()), "slice")
        drawn += f", {plural(sum(self.marks.values()), 'message')}, {plural(self.flows, 'flow')}"
        drawn += f", {plural(sum(self.counts.values()), 'number')}"
        yield f"{self.path}: {drawn} from {plural(self.events, 'event')}, {size_text(self.nbytes)}"
        yield from self.notes

    def document(self) -> dict[str, object]:
        """Return the fields, for JSON."""
        return asdict(self) | {"path": str(self.path)}


def default_format() -> str:
    """Return the format that can be written here."""
    return "json" if importlib.util.find_spec(_PACKAGE) is None else "perfetto"


def trace_run(
    run: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    steps: str | None = None,
    ranks: str | None = None,
    format: str | None = None,
    most_bytes: float = 64e6,
) -> Traced:
    """Write the trace of a run, real or simulated, finished or not.

    Args:
        run: the run's folder, or its ``history/``.
        out: the file; None names one after the folder, in the current folder.
        steps: ``A:B``, only the time of these steps; None: all steps.
        ranks: such as ``0,3-5``; None: all ranks.
        format: a key of ``FORMATS``; None chooses one that can be written here.
        most_bytes: most bytes of the trace, uncompressed.

    Raises:
        ConfigError: if there is no history, it is damaged, nothing is selected, or the file cannot
            be made.
        OutputError: if it cannot be written to its end.
    """
    format = format or default_format()
    if format == "perfetto" and importlib.util.find_spec(_PACKAGE) is None:
        raise ConfigError(
            "--format perfetto needs the package perfetto: pip install 'psrt-mpi[trace]', or use "
            "--format json"
        )
    window = None if steps is None else Window(steps_of(steps))
    ranges = None if ranks is None else ranks_of(ranks)
    source = Source(run, None if window is None else window.look)
    size = len(source.header.workers) + len(source.header.server_ranks)
    chosen = None if ranges is None else chosen_ranks(ranges, size)
    if not source.events:
        raise ConfigError(f"{source.folder} contains no events yet")
    path = Path(out) if out is not None else Path(_name(Path(run)) + FORMATS[format])
    drawing = _Drawing(source, Traced(path, events=source.events), window, chosen)
    with _replacing(path) as file:
        writer: Writer = (PerfettoWriter if format == "perfetto" else ChromeWriter)(
            file, _names(source)
        )
        with PROGRESS.doing("drawing", lambda: Amount(drawing.drawn, source.events, "event")):
            drawing.draw(writer, most_bytes)
    drawing.traced.nbytes = path.stat().st_size
    return drawing.traced


class _Drawing:
    """Passes the selected events of a run to a writer, and counts them."""

    def __init__(
        self,
        source: Source,
        traced: Traced,
        window: Window | None,
        ranks: frozenset[int] | None,
    ) -> None:
        self._source, self.traced, self._ranks = source, traced, ranks
        #: Events that are done.
        self.drawn = 0
        #: Start and end of the drawn time, in nanoseconds.
        self._start, self._stop = 0, 1 << 62
        #: Time after which nothing ends that began in the drawn time.
        self._over = math.inf
        if window is not None:
            start, stop = window.bounds()
            self._start, self._stop = nanoseconds(start), nanoseconds(stop)
            self._over = stop + window.longest
        self._writer: Writer
        axes = str(source.header.config.get("parallel") or "")
        slices = dict(it.split(":") for it in axes.split(",") if ":" in it).get("tensor", 1)
        pairs = source.header.mode.variant == PAIRS
        self._flows = Flows(self._write_marks, int(slices), rounds=not pairs)
        self._spans = Spans(
            self._slice,
            self._mark,
            self._count,
            shards=[len(servers) for servers in source.header.pushed_to],
            of_rank=[Counter(servers) for servers in source.header.pushed_to],
        )

    def draw(self, writer: Writer, most_bytes: float) -> None:
        """Write everything selected, as far as it fits; end the file."""
        self._writer = writer
        notes = self.traced.notes
        last = 0.0
        for event in self._source:
            self.drawn += 1
            if self._ranks is not None and event.rank not in self._ranks:
                continue
            if event.time > self._over:
                break
            held = (self._flows.held + 8) * writer.mark_bytes + _RESERVE
            if writer.size + held > most_bytes:
                notes.append(
                    f"cut off at {event.time:.6g} s, at {most_bytes / 1e6:g} MB: use --steps or "
                    "--ranks for another part, or a larger --max-mb"
                )
                break
            self._spans.add(event)
            last = event.time
        self._flows.close()
        writer.close()
        self._note(last)

    def _note(self, last: float) -> None:
        notes, source = self.traced.notes, self._source
        if source.header.is_end:
            notes.append(
                "only the end of the run: the last events of each rank"
                + (f", except for {', '.join(source.missing)}" if source.missing else "")
            )
            if cut := self._flows.cut:
                notes.append(f"{plural(cut, 'flow')} whose other end is cut off")
        if source.cut:
            notes.append(
                f"unfinished run: {source.cut} of {plural(len(source.header.files), 'file')} "
                f"without an end, drawn up to {last:.3f} s"
            )
        if line := source.clocks.line():
            notes.append(line)
        if missing := self._flows.disordered:
            notes.append(
                f"{plural(missing, 'flow')} left out that would go back in time: the clocks of "
                "hosts are not that exact"
            )

    def _slice(self, it: Slice) -> None:
        if it.stop >= self._start and it.start <= self._stop:
            self._writer.slice(it)
            self.traced.slices[it.lane] = self.traced.slices.get(it.lane, 0) + 1

    def _mark(self, event: Event, mark: Mark) -> None:
        if self._start <= mark.at <= self._stop:
            self._flows.add(event, mark)

    def _write_marks(self, marks: tuple[Mark, ...], chains: tuple[Chain, ...]) -> None:
        self._writer.marks(marks, chains)
        self.traced.flows += len(chains)
        for mark in marks:
            self.traced.marks[mark.name] = self.traced.marks.get(mark.name, 0) + 1

    def _count(self, it: Count) -> None:
        if self._start <= it.at <= self._stop:
            self._writer.count(it)
            self.traced.counts[it.name] = self.traced.counts.get(it.name, 0) + 1


class _names:  # noqa: N801 - a function with state
    """Rank → the names of its host and of itself."""

    def __init__(self, source: Source) -> None:
        header = source.header
        self._hosts = header.hosts
        self._roles = {rank: f"server {i}" for i, rank in enumerate(header.server_ranks)}
        self._roles |= {rank: f"worker {i}" for i, rank in enumerate(header.workers)}
        cells = source.cells[: len(header.cells)]
        for number, cell in enumerate(cells if len(cells) > 1 else ()):
            for rank in (*cell.workers, *cell.servers):
                self._roles[rank] += f", part {number}"
        self._machines = _machines(source.folder.parent / _ROSTER)

    def __call__(self, rank: int) -> tuple[str, str]:
        host = self._hosts[rank] if rank < len(self._hosts) else 0
        role = self._roles.get(rank)
        name = f"rank {rank}" if role is None else f"rank {rank}: {role}"
        return self._machines.get(rank, f"host {host}"), name


def _machines(roster: Path) -> dict[int, str]:
    """Return the name of each rank's machine, as far as it is in the run's roster."""
    try:
        rows = json.loads(read_text(str(roster)))
        return {int(row["rank"]): str(row["host"]) for row in rows}
    except (ConfigError, ValueError, TypeError, KeyError):
        return {}  # a simulation, or a history alone


def _name(run: Path) -> str:
    return (run.resolve().parent if run.name == "history" else run.resolve()).name


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` at the end, and is deleted on an error.

    Raises:
        ConfigError: if it cannot be made.
        OutputError: if it cannot be written.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"cannot write {path}: not a regular file")
    part = path.with_name(path.name + ".part")
    try:
        file = open(part, "wb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
