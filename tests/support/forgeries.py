"""What a liar may make of a history, its summary and its metrics: one thing is changed, all else is
left as it was, check sums included.

A forgery of events is drawn by its kind of event and by what is done to it: left out, doubled, put
behind the next one of its worker or shard, or one of its fields changed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history import EVENT, Header, History, Kind
from psrt.history.check import Outcome, check
from psrt.history.check.run import check_cells
from psrt.history.kinds import PAIRED
from psrt.history.reading import assemble, read_cells

#: What is done to a whole event.
LEFT_OUT, DOUBLED, SWAPPED = "left out", "doubled", "after the next"
#: What is done to a time: none is told by moving it between its neighbours.
EARLY, LATE = "time before all", "time after all"
FIRST_DIGEST = "version, the first digest"
FIELDS = tuple(name for name in EVENT.names or () if name != "time")

Events = np.ndarray[Any, Any]


def ways_of(kind: Kind) -> tuple[str, ...]:
    """Return what can be done to an event of a kind."""
    more = (FIRST_DIGEST,) if kind in PAIRED else ()
    return (LEFT_OUT, DOUBLED, SWAPPED, EARLY, LATE, *FIELDS, *more)


def draw(*what: object) -> int:
    """Return a number that is the same whenever it is drawn for the same."""
    return zlib.crc32("\0".join(map(str, what)).encode())


@dataclass(frozen=True)
class Told:
    """All that a run's folder tells ``psrt check``."""

    header: Header
    cells: tuple[History, ...]
    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    crashed: Sequence[int]

    def checked(self) -> Outcome | None:
        """Return what the check says; None where it refuses to read on."""
        try:
            if self.header.cells:
                return check_cells(
                    self.header, self.cells, summary=self.summary, metrics=self.metrics
                )
            (history,) = self.cells
            return check(history, summary=self.summary, metrics=self.metrics, crashed=self.crashed)
        except ConfigError:
            return None

    def is_found_out(self) -> bool:
        """Return whether the check sees that it is forged; it must say so in plain JSON."""
        outcome = self.checked()
        if outcome is None:
            return True
        json.dumps(outcome.document(), allow_nan=False)
        return not outcome.ok

    def events(self, cell: int) -> Events:
        """Return all events of a cell, one worker or shard after the other."""
        history = self.cells[cell]
        return np.concatenate([*history.workers, *history.shards, history.finals])

    def kinds(self) -> Iterator[tuple[int, Kind]]:
        """Yield which kinds of events there are, by cell."""
        for number in range(len(self.cells)):
            for kind in np.unique(self.events(number)["kind"]):
                yield number, Kind(int(kind))

    def with_events(self, cell: int, events: Events) -> Told | None:
        """Return what is told with other events in a cell; None of a worker that there is not."""
        try:
            forged = assemble(self.cells[cell].header, [events])
        except ConfigError:
            return None
        cells = [*self.cells]
        cells[cell] = forged
        if self.header.has_whole_servers and cell in (0, len(cells) - 1):  # the same events
            for it in (0, -1):
                cells[it] = replace(cells[it], workers=forged.workers)
        return replace(self, cells=tuple(cells))


def told_by(out: Path) -> Told:
    """Read what a run's folder tells."""
    header, cells = read_cells(out)
    simulation = json.loads((out / "simulation.json").read_text())
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return Told(
        header,
        tuple(cells),
        json.loads((out / "summary.json").read_text()),
        [json.loads(line) for line in lines],
        simulation.get("crashed") or (),
    )


def ends_of(told: Told, cell: int) -> Events:
    """Return of each event whether it is the last one of its worker, shard, or of those of none."""
    history = told.cells[cell]
    owned = [*history.workers, *history.shards, history.finals]
    ends = np.cumsum([len(it) for it in owned if len(it)])
    found = np.zeros(ends[-1], bool)
    found[ends - 1] = True
    return found


def forged(told: Told, cell: int, kind: Kind, way: str, turn: int) -> tuple[int, Events] | None:
    """Do something to one event of a kind.

    Args:
        told: by whose folder.
        cell: of which part of the model.
        kind: of the event.
        way: of ``ways_of``.
        turn: which of the events; any number.

    Returns:
        Its place, and all events of the cell; None if it can be done to none.
    """
    events = told.events(cell)
    chosen = events["kind"] == kind
    if way == SWAPPED:
        follows = np.append(events[1:] != events[:-1], False)
        chosen &= ~ends_of(told, cell) & follows
    (places,) = np.nonzero(chosen)
    if not len(places):
        return None
    i = int(places[turn % len(places)])
    if way == LEFT_OUT:
        return i, np.delete(events, i)
    if way == DOUBLED:
        return i, np.insert(events, i, events[i])
    if way == SWAPPED:
        order = np.arange(len(events))
        order[[i, i + 1]] = i + 1, i
        found = events[order]
        found["time"] = events["time"]  # which would tell of it
        return i, found
    if way == EARLY:
        events["time"][i] = -1.0
    elif way == LATE:
        events["time"][i] = 2 * events["time"].max() + 1.0
    elif way == FIRST_DIGEST:
        events["version"][i] += 1 << 32
    elif way == "kind":
        events["kind"][i] = another(kind, turn)
    else:
        events[way][i] = other(events[way][i], turn)
    return i, events


def another(kind: Kind, turn: int) -> int:
    """Return another kind of event."""
    kinds = [int(it) for it in Kind if it not in (kind, Kind.END)]
    return kinds[turn % len(kinds)]


def other(value: Any, turn: int) -> Any:
    """Return a number near by, of the same type."""
    dtype = np.asarray(value).dtype
    if dtype.kind == "f":
        return dtype.type(value * 1.25 + 0.125) if np.isfinite(value) else dtype.type(0.5)
    by = 1 if (value <= 0 and dtype.kind == "u") or turn % 2 else -1
    return dtype.type(int(value) + by)


def figures_of(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path of each figure inside, and what it is."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from figures_of(value, (*path, key))
        else:
            yield (*path, key), value


def with_figure(values: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return the same but for one figure, which is left out where it comes to nothing."""
    key, *inside = path
    found = dict(values) if isinstance(values, dict) else list(values)
    if inside:
        found[key] = with_figure(values[key], tuple(inside), new)
    elif new is ...:
        del found[key]
    else:
        found[key] = new
    return found


def other_figure(value: Any) -> Any:
    """Return another figure of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if value is None:
        return 0.5
    return value + 1 if isinstance(value, int) else value * 1.5 + 1
