"""``metrics.jsonl``: one record per line, readable during the run. Plain files, no MPI."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.history.folds.record import Record, time_of
from psrt.report.strict_json import dumps


class MetricsFile:
    """Writes records to a new file, each line complete on disk before ``write`` returns.

    Flushed line by line, so that a reader of the file sees a record at once, and a killed run loses
    none. Closing twice is allowed.

    Args:
        path: the file; it must not exist.
        earlier: records to begin with, from the run that this one resumes.
    """

    def __init__(self, path: str | PathLike[str], earlier: Iterable[Record] = ()) -> None:
        self.path = Path(path)
        self._file = open(path, "x", encoding="utf-8")  # noqa: SIM115 - closed by close()
        for record in earlier:
            self.write(record)

    def write(self, record: Record) -> None:
        """Append ``record`` as one line of JSON; nan and infinities become null."""
        self._file.write(line_of(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line_of(record: Record) -> str:
    """Return a record as a line of JSON; nan and infinities become null."""
    values = dataclasses.asdict(record)
    return dumps(values | values.pop("more"))


def read_metrics(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of a metrics file as dictionaries, in order.

    A last line without its line feed is still being written, or was cut off when the run was
    killed; it is left out.

    Raises:
        ConfigError: if there is no such file, or a line is not a JSON object.
    """
    text = read_text(os.fspath(path))
    *lines, _unfinished = text.split("\n")
    return [_parse(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]


def seconds_to_accuracy(records: Iterable[Mapping[str, Any]], target: float) -> float | None:
    """Return when the test accuracy first reached ``target``; None if it never did.

    The fair measure of a mode: samples per second mean little if each sample improves the model
    less. The resolution is that of the evaluations; between two of them the later one counts. The
    time is that of the evaluation, not of its record, which waits for the slowest worker.

    Args:
        records: as ``read_metrics`` returns them.
        target: accuracy in [0, 1].

    >>> run = [{"seconds": 1.0, "accuracy": 0.9}, {"seconds": 2.0, "accuracy": 0.96}]
    >>> seconds_to_accuracy(run, 0.95), seconds_to_accuracy(run, 0.97)
    (2.0, None)
    """
    for record in records:
        if record["accuracy"] is not None and record["accuracy"] >= target:
            return time_of(record, "accuracy")
    return None


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: expected a JSON object, got {line[:40]}")
    return record
