"""The columns of a ``metrics.jsonl`` of any length, as arrays; lines are read one by one."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from psrt.core.errors import ConfigError
from psrt.core.files import open_regular
from psrt.history.folds.record import COLUMNS as KNOWN
from psrt.views.page.thin import Floats

#: The columns that a page shows; each is a number or null.
COLUMNS = (
    "step", "seconds", "epoch", "loss", "test_loss", "accuracy", "evaluated_seconds", "samples",
    "samples_per_second", "staleness_mean", "waiting_share", "bytes_sent", "gap_mean",
    "consensus_distance", "measured_seconds",
)  # fmt: skip
#: Longest line that can be a record, in bytes.
_LONGEST = 1 << 16
#: Larger numbers cannot come from a run, and drawing them would overflow.
_MOST = 1e300


@dataclass(frozen=True, slots=True)
class Metrics:
    """The records of a run by column; nan where a record has no value."""

    columns: dict[str, Floats]
    #: A line for each thing that is wrong with the file.
    damage: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.columns["step"])

    def __getitem__(self, name: str) -> Floats:
        """Return a column."""
        return self.columns[name]

    def has(self, name: str) -> bool:
        """Return whether any record has a value in a column."""
        return bool(np.isfinite(self.columns[name]).any())

    def time_of(self, name: str) -> Floats:
        """Return the times that the values of a column belong to."""
        found = self[KNOWN[name]["at"]]
        return np.where(np.isfinite(found), found, self["seconds"])

    def seconds_to(self, accuracy: float) -> float | None:
        """Return when the test accuracy first reached a value; None if it never did."""
        reached = np.flatnonzero(self["accuracy"] >= accuracy)
        return float(self.time_of("accuracy")[reached[0]]) if len(reached) else None


def read_columns(path: Path) -> Metrics:
    """Read a file; lines that are not records are left out and reported.

    Raises:
        ConfigError: if it cannot be read.
    """
    found = {name: array("d") for name in COLUMNS}
    wrong: list[int] = []
    torn = False
    try:
        with open_regular(path) as file:
            for number, line in enumerate(_lines(file), start=1):
                values = _record(line)
                if values is not None:
                    for name, value in zip(COLUMNS, values, strict=True):
                        found[name].append(value)
                elif line.endswith(b"\n"):
                    wrong.append(number)
                else:
                    torn = True
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror or error}") from None
    damage = []
    if wrong:
        more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        damage.append(f"{path.name}: line {wrong[0]:,}{more} left out: not a record of metrics")
    if torn:
        damage.append(f"{path.name}: its last line is incomplete, and left out")
    columns = {name: np.frombuffer(it) if len(it) else np.zeros(0) for name, it in found.items()}
    return _ascending(Metrics(columns, damage))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; a line that is too long is truncated."""
    while line := file.readline(_LONGEST):
        yield line
        while len(line) == _LONGEST and not line.endswith(b"\n"):
            line = file.readline(_LONGEST)
            if line.endswith(b"\n"):
                yield b"\n"  # a line by itself, which is not a record


def _record(line: bytes) -> list[float] | None:
    """Return the columns of a line; None if it is not a record."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
        values = [record.get(name) for name in COLUMNS]
    except (ValueError, RecursionError, AttributeError):
        return None
    numbers = [np.nan if it is None else it for it in values]
    if not all(type(it) in (int, float) for it in numbers) or values[0] is None:
        return None
    if not all(abs(it) <= _MOST for it in numbers if it == it):
        return None
    return [float(it) for it in numbers]


def _ascending(metrics: Metrics) -> Metrics:
    """Sort records that are not in order of their steps, which no run of psrt writes."""
    step = metrics["step"]
    if len(step) < 2 or bool((np.diff(step) >= 0).all()):
        return metrics
    order = np.argsort(step, kind="stable")
    columns = {name: it[order] for name, it in metrics.columns.items()}
    return Metrics(columns, [*metrics.damage, "metrics.jsonl: its steps are not in order"])
