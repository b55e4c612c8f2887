"""The part of a run that is drawn: all of it, or some steps and some ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from psrt.core.errors import ConfigError
from psrt.history.events import PARKED, Kind
from psrt.history.log import Events

#: Largest rank or step that is worth a list.
_MOST = 1 << 31


def steps_of(text: str) -> tuple[int, int]:
    """Return the first step and the one after the last.

    Raises:
        ConfigError: if the text is not a range.

    >>> steps_of("10:20"), steps_of("10:11"), steps_of(":5")
    ((10, 20), (10, 11), (0, 5))
    """
    first, colon, stop = text.partition(":")
    try:
        found = int(first or 0), int(stop) if stop else _MOST
    except ValueError:
        found = 0, 0
    if not colon or not 0 <= found[0] < found[1] <= _MOST:
        raise ConfigError(f"steps must be A:B, for steps A to B − 1, got {text!r}")
    return found


def ranks_of(text: str) -> list[range]:
    """Return ranges of ranks.

    Raises:
        ConfigError: if the text does not name ranks.

    >>> ranks_of("0,3-5")
    [range(0, 1), range(3, 6)]
    """
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            found.append(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            found.append(range(0))
        if not 0 <= found[-1].start < found[-1].stop <= _MOST:
            raise ConfigError(f"ranks must be like 0,3-5, got {text!r}")
    return found


def chosen_ranks(ranges: Iterable[range], size: int) -> frozenset[int]:
    """Return the ranks of a job that are in the ranges.

    Raises:
        ConfigError: if a range goes beyond its ranks.
    """
    ranges = list(ranges)
    for it in ranges:
        if it.stop > size:
            raise ConfigError(f"there is no rank {it.stop - 1}: the run has ranks 0 to {size - 1}")
    return frozenset(rank for it in ranges for rank in it)


@dataclass(slots=True)
class Window:
    """The time in which workers made some steps; takes all events once, in any order."""

    #: The first step, and the one after the last.
    steps: tuple[int, int]
    #: Start and end in seconds: according to the steps that workers count, and according to pushes,
    #: which are used if there are no others.
    counted: list[float] = field(default_factory=lambda: [math.inf, -math.inf])
    pushed: list[float] = field(default_factory=lambda: [math.inf, -math.inf])
    #: The last step that any worker made.
    last: int = -1
    #: The longest duration of any event, in seconds.
    longest: float = 0.0

    def look(self, events: Events) -> None:
        """Take note of the events of a block."""
        kind, clock = events["kind"], events["clock"]
        spans = events["seconds"][np.isfinite(events["seconds"])]
        self.longest = max(self.longest, float(spans.max(initial=0.0)))
        first, stop = self.steps
        inside = (clock >= first) & (clock < stop)
        steps, pushes = (kind == Kind.STEP) | (kind == Kind.PASS), kind == Kind.PUSH
        made = steps | pushes
        if made.any():
            self.last = max(self.last, int(clock[made].max()))
        # The read of the next clock ends the step.
        reads = (kind == Kind.READ) & (events["flag"] != PARKED)
        reads &= (clock > first) & (clock <= stop)
        summed = (kind == Kind.REDUCED) & inside
        _widen(self.counted, events[steps & inside], events[summed])
        _widen(self.pushed, events[pushes & inside], events[reads])

    def bounds(self) -> tuple[float, float]:
        """Return the time from the beginning of the first step to the end of the last, in seconds.

        Raises:
            ConfigError: if no worker made any of the steps.
        """
        found = self.counted if self.counted[0] < math.inf else self.pushed
        if not (math.isfinite(found[0]) and math.isfinite(found[1])):
            first, stop = self.steps
            steps = f"{first}:{stop if stop < _MOST else ''}"
            made = f"0 to {self.last}" if self.last >= 0 else "none"
            raise ConfigError(f"--steps {steps}: no worker made such a step; the run has {made}")
        return found[0], found[1]


def _widen(bounds: list[float], steps: Events, ends: Events) -> None:
    """Extend bounds by steps, and by the ends of their waits."""
    if len(steps):
        bounds[0] = min(bounds[0], float((steps["time"] - steps["seconds"]).min()))
        bounds[1] = max(bounds[1], float(steps["time"].max()))
    if len(ends):
        bounds[1] = max(bounds[1], float(np.max(ends["time"])))
