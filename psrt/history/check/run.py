"""Puts the rules together: which are asked of which history, and in which order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from psrt.config import from_toml
from psrt.errors import ConfigError
from psrt.files import read_text
from psrt.history.check.alternation import shard_of, workers_of
from psrt.history.check.contract import Contract, contract_of
from psrt.history.check.exchange import check_delivery, check_durations, check_replies
from psrt.history.check.findings import EventRef, Findings, Outcome
from psrt.history.check.frames import check_frames, frames_of, without_frames
from psrt.history.check.metrics import (
    Counted,
    check_lines,
    check_metrics,
    counted_of_pushes,
    counted_of_steps,
)
from psrt.history.check.steps import (
    check_departures,
    check_local_steps,
    check_own_rates,
    check_rates,
    check_shared_rates,
    check_silence,
    check_steps,
)
from psrt.history.check.straight_sums import check_straight_sums, goes_straight
from psrt.history.check.sum_frames import check_sum_frames
from psrt.history.check.summary import SummaryCheck, check_final
from psrt.history.check.sums import check_averaging, check_sums, count_updates
from psrt.history.check.table import Ints, Table, joined
from psrt.history.check.updates import check_updates
from psrt.history.check.wellformed import check_events, check_times
from psrt.history.events import Kind
from psrt.history.folder import FOLDER
from psrt.history.header import Header
from psrt.history.reading import History, read_history

#: Beside ``history/``.
_METRICS = "metrics.jsonl"
_CONFIG, _SUMMARY, _SIMULATION = "config.toml", "summary.json", "simulation.json"
_MODEL = "model.safetensors"


def check(
    history: History,
    *,
    summary: Mapping[str, object] | None = None,
    metrics: Sequence[Mapping[str, object]] | None = None,
    crashed: Collection[int] | None = None,
    saved_sha256: str | None = None,
) -> Outcome:
    """Hold a history against the contract of its mode.

    Args:
        history: as ``read_history`` returned it.
        summary: the run's ``summary.json``, if it is to tell the same.
        metrics: the records of its ``metrics.jsonl``, if they are to tell the same.
        crashed: workers that died in virtual time, if that is known.
        saved_sha256: of the parameters that were saved, if that is known.

    Returns:
        What was checked, and the first violation if there is one.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    case = _Case(contract_of(history.header), history, summary, metrics, crashed, saved_sha256)
    with np.errstate(all="ignore"):  # senseless numbers are reported, not warned of
        case.check()
    return Outcome.of(case.contract, case.findings, case.tables)


class _Case:
    """The check of one history; each step relies on those before."""

    def __init__(
        self,
        contract: Contract,
        history: History,
        summary: Mapping[str, object] | None,
        metrics: Sequence[Mapping[str, object]] | None,
        crashed: Collection[int] | None,
        saved_sha256: str | None,
    ) -> None:
        self.contract = contract
        self.header = history.header
        workers = joined(history.workers, "worker")
        shards = [Table(events, f"shard {i}") for i, events in enumerate(history.shards)]
        self.finals = Table(history.finals, "final version")
        #: All events; the others are those of them that make a run with or without a codec.
        self.tables = [workers, *shards, self.finals]
        self.workers, self.shards = without_frames(workers), [*map(without_frames, shards)]
        self.findings = Findings()
        #: Time of the last event of a worker or a shard.
        self._end = max(
            (it.events["time"].max() for it in self.tables[:-1] if len(it)), default=0.0
        )
        self._summary, self._metrics = summary, metrics
        self._crashed = crashed
        self._saved_sha256 = saved_sha256

    def check(self) -> None:
        """Check step by step: events alone, their order, then all else."""
        findings = self.findings
        workers, *shards, finals = self.tables
        check_times(workers, "worker", findings)
        check_times(finals, "shard", findings)
        for table in shards:
            check_times(table, None, findings)
        if findings.none:
            check_events(self.contract, self.tables, findings)
        if findings.none:
            codec = frames_of(self.header)
            if codec is not None and not shards:
                straight = goes_straight(self.header)
                check = check_straight_sums if straight else check_sum_frames
                check(codec, self.contract, self.header, workers, findings)
            else:
                check_frames(codec, workers, shards, self.contract.untold, findings)
        if not findings.none:
            return
        leave = check_departures(self.contract, self.workers, self._crashed, findings)
        if not findings.none:
            return
        if self.contract.shards:
            self._check_served(leave)
        else:
            self._check_alone(leave)

    def _check_alone(self, leave: Ints) -> None:
        """Check a mode without servers."""
        contract, table, findings = self.contract, self.workers, self.findings
        sums = check_sums(contract, table, leave, findings)
        if sums is None or not findings.none:
            return
        rounds, ends = sums
        check_shared_rates(contract, self.header, table, rounds, ends, findings)
        check_own_rates(contract, self.header, table, findings)
        updates = count_updates(table, rounds)
        last = int(np.flatnonzero(table["worker"] == 0)[-1])  # of the one that writes
        self._check_final(-1, updates, EventRef(table, last))
        if summary := self._check_summary(updates):
            summary.updates(updates)
            summary.steps(table, table.where(Kind.STEP))
            summary.without_servers()
            summary.summed(self.tables[0])
            if contract.streams:
                summary.streamed(table, self.tables[0])
            summary.measured(self._metrics or ())
            summary.times(table, table.where(Kind.REDUCED))
        self._check_metrics(lambda: counted_of_steps(table, None))

    def _check_served(self, leave: Ints) -> None:
        """Check a mode with servers."""
        contract, table, findings = self.contract, self.workers, self.findings
        died = leave == len(table)
        found = [shard_of(contract, i, it, died, findings) for i, it in enumerate(self.shards)]
        check_silence(table, leave, np.zeros(len(table), bool), findings)
        workers = workers_of(contract, table, leave, findings)
        shards = [shard for shard in found if shard is not None]
        if workers is None or len(shards) < len(found) or not findings.none:
            return
        check_durations(contract, workers, findings)
        if not contract.mode.averages:  # else a push is no step
            check_steps(contract, table, workers.pushes[:, 0], leave, findings)
        for shard in shards:
            outcomes = check_updates(contract, shard, findings)
            check_replies(contract, shard, outcomes, findings)
            check_rates(contract, self.header, shard, outcomes, findings)
            check_delivery(contract, workers, shard, findings)
            last_event = EventRef(shard.table, len(shard.table) - 1)
            self._check_final(shard.number, len(shard.updates), last_event)
        if contract.mode.averages:
            check_local_steps(contract, table, leave, findings)
            if findings.none:
                check_averaging(contract, table, workers.pushes[:, 0], leave, findings)
                check_own_rates(contract, self.header, table, findings)
        summary = self._check_summary(max(len(shard.updates) for shard in shards))
        if summary is not None:
            summary.shards(shards)
            summary.reads(workers)
        if summary is not None and not died.any():
            if contract.mode.averages:
                summary.steps(table, table.where(Kind.STEP))
            summary.times(table, workers.reads[:, 0])
            summary.measured(self._metrics or ())
            summary.sent(self.tables[0], self.tables[1:-1])
        gap = max(float(np.nan_to_num(it.real("gap")).max(initial=0.0)) for it in self.shards)
        self._check_metrics(
            (lambda: counted_of_steps(table, workers))
            if contract.mode.averages
            else lambda: counted_of_pushes(workers),
            gap=gap,
            died=bool(died.any()),
        )

    def _check_metrics(
        self, counted: Callable[[], Counted], *, gap: float = 0.0, died: bool = False
    ) -> None:
        """Check the lines of the metrics, and against what was counted where that says all."""
        if self._metrics is None:
            return
        contract, header, findings = self.contract, self.header, self.findings
        lines = check_metrics(self._metrics, findings, numerics=header.numerics, gap=gap)
        if contract.plan is not None and not died:
            log_every = header.knob("log_every", 0)
            check_lines(contract, lines, counted(), log_every, findings)

    def _check_final(self, shard: int, updates: int, last: EventRef) -> None:
        # In virtual time a run ends with its last event, but for a crash that comes too late.
        exact = self.contract.simulated and not self.contract.crashes
        check_final(
            self.finals, shard, updates, last, self.findings, end=self._end if exact else None
        )

    def _check_summary(self, updates: int) -> SummaryCheck | None:
        """Check what any summary says; return what checks the rest."""
        if self._summary is None:
            return None
        check = SummaryCheck(self._summary, self.contract, self.header, self.findings)
        check.digests(self._saved_sha256, updates)
        return check


def check_run(run: str | PathLike[str]) -> Outcome:
    """Check the history of a run, and that what lies beside it is of the same run.

    Args:
        run: the run's folder, or its ``history/``.

    Raises:
        ConfigError: if there is no history, it is damaged or unfinished, or that of another run.
    """
    history = read_history(run)
    folder = Path(run)
    if folder.resolve().name == FOLDER and not (folder / FOLDER).exists():
        folder = folder.resolve().parent
    _check_config(folder / _CONFIG, history.header)
    crashed = (_read_json(folder / _SIMULATION) or {}).get("crashed")
    return check(
        history,
        summary=_read_json(folder / _SUMMARY),
        metrics=_read_lines(folder / _METRICS),
        crashed=crashed if isinstance(crashed, list) else None,
        saved_sha256=_saved_sha256(folder / _MODEL, history.header.n),
    )


def _check_config(path: Path, header: Header) -> None:
    """Raise if the run's config is not that of its history."""
    if not path.exists():
        return
    config = dataclasses.asdict(from_toml(read_text(str(path)), source=str(path)))
    # As JSON knows them: a tuple is a list there.
    mine, its = (json.loads(json.dumps(values)) for values in (config, header.config))
    differs = [name for name in mine if mine[name] != its.get(name)]
    differs += [name for name in its if name not in mine]
    if differs:
        name = differs[0]
        raise ConfigError(
            f"{path} is not of the run that the history is of: it has {name} {mine.get(name)!r}, "
            f"the history {its.get(name)!r}"
        )


def _read_json(path: Path) -> dict[str, object] | None:
    """Return the object in a JSON file; None if there is no such file."""
    if not path.exists():
        return None
    return _parsed(read_text(str(path)), str(path))


def _read_lines(path: Path) -> list[dict[str, object]] | None:
    """Return the objects in a file of JSON lines; None if there is no such file."""
    if not path.exists():
        return None
    lines = read_text(str(path)).splitlines()
    return [_parsed(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]


def _parsed(text: str, where: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: not a JSON object")
    return values


def _saved_sha256(path: Path, n: int) -> str | None:
    """Return the SHA-256 of the parameter vector that a file of tensors was cut from.

    Known are the vector itself and psrt's own layers, weight before bias; a problem that names its
    tensors otherwise may store them as it likes.
    """
    if not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{path}: damaged: {str(error).splitlines()[0]}") from None
    layers = len(tensors) // 2
    names = [f"layers.{i}.{name}" for i in range(layers) for name in ("weight", "bias")]
    names = ["theta"] if "theta" in tensors else names
    if set(names) != set(tensors) or sum(tensor.size for tensor in tensors.values()) != n:
        return None
    digest = hashlib.sha256()
    for name in names:
        digest.update(np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return digest.hexdigest()
