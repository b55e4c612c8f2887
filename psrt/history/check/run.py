"""Puts the rules together: which apply to which history, and in which order."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from psrt.config import from_toml
from psrt.config.names import PARAMETERS
from psrt.core.errors import ConfigError
from psrt.core.files import open_regular, read_text
from psrt.core.progress import PROGRESS, Amount
from psrt.core.stats import Report, Stats
from psrt.history.check import copies, teams
from psrt.history.check.alternation import Shard, Workers, shard_of, workers_of
from psrt.history.check.by_host import check_by_host
from psrt.history.check.contract import Contract, contract_of
from psrt.history.check.data_plan import DataPlan
from psrt.history.check.elastic import check_forces, without_forces
from psrt.history.check.exchange import check_delivery, check_durations, check_replies
from psrt.history.check.findings import MEMBERSHIP, EventRef, Findings, Outcome
from psrt.history.check.fragments import check_averaging
from psrt.history.check.frames import check_frames, frames_of, without_frames
from psrt.history.check.gossip import check_gossip
from psrt.history.check.merge_sums import check_merge_sums
from psrt.history.check.merges import check_merges
from psrt.history.check.metrics import (
    check_distances,
    check_lines,
    check_metrics,
    check_windows,
    split_steps,
    told_by,
)
from psrt.history.check.norms import distances
from psrt.history.check.pairs import check_pairs, forgotten
from psrt.history.check.pipeline import check_pipeline, layout_of, without_passes
from psrt.history.check.served import (
    by_fragment,
    check_adopted,
    check_pushes,
    check_told_steps,
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
from psrt.history.check.stops import without_stops
from psrt.history.check.straight_sums import check_straight_sums
from psrt.history.check.sum_frames import Sums, check_sum_frames
from psrt.history.check.summary import SummaryCheck, check_final
from psrt.history.check.sums import check_sums, count_updates
from psrt.history.check.table import Ints, Table, joined
from psrt.history.check.tuning import check_tuning
from psrt.history.check.updates import check_updates
from psrt.history.check.wellformed import check_events, check_times
from psrt.history.events import MISSED, Kind
from psrt.history.folder import FOLDER
from psrt.history.folds.history import WorkerPieces, pieces_of, shards_of
from psrt.history.header import Header
from psrt.history.reading import History, read_cells

#: The file name, in the folder that has ``history/``.
_METRICS = "metrics.jsonl"
_CONFIG, _SUMMARY, _SIMULATION = "config.toml", "summary.json", "simulation.json"
_MODEL = "model.safetensors"
T = TypeVar("T")


def check(
    history: History,
    *,
    summary: Mapping[str, object] | None = None,
    metrics: Sequence[Mapping[str, object]] | None = None,
    crashed: Collection[int] | None = None,
    saved_sha256: str | None = None,
) -> Outcome:
    """Check a history against the contract of its mode.

    Args:
        history: as ``read_history`` returned it.
        summary: the run's ``summary.json``, if it should be checked.
        metrics: the records of its ``metrics.jsonl``, if they should be checked.
        crashed: workers that died in virtual time, if known.
        saved_sha256: of the saved parameters, if known.

    Returns:
        What was checked, and the first violation if there is one.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    case = _Case(contract_of(history.header), history, summary, metrics, crashed, saved_sha256)
    case.check_parts = history.header.mode.has_teams
    check_tuning(history.header, case.findings)
    with np.errstate(all="ignore"):  # senseless numbers are reported, not warned of
        case.check()
    return Outcome.of(case.contract, case.findings, case.tables)


def check_cells(
    header: Header,
    histories: Sequence[History],
    *,
    summary: Mapping[str, object] | None = None,
    metrics: Sequence[Mapping[str, object]] | None = None,
    saved_sha256: str | None = None,
) -> Outcome:
    """Check the histories of a split model against the contract of its mode.

    Each cell is checked as a separate job; then what they did together, and what was written about
    all of them.

    Args:
        header: of the job.
        histories: of its cells.
        summary: the run's ``summary.json``, if it should be checked.
        metrics: the records of its ``metrics.jsonl``, if they should be checked.
        saved_sha256: of the saved parameters, if known.

    Returns:
        What was checked, and the first violation if there is one.

    Raises:
        ConfigError: if the header cannot be that of a run of psrt.
    """
    layout, findings = layout_of(header), Findings(resumed=header.resumed)
    served: _Case | None = None
    if header.has_whole_servers:
        *histories, last = histories
        served = _Case(contract_of(last.header), last, None, None, None, None, findings)
    cases = [
        _Case(
            served.contract if served else contract_of(it.header),
            *(it, None, None, None, None, findings),
        )
        for it in histories
    ]
    with_servers = [served] if served else cases
    end = max(it.end for it in {*cases, *with_servers})
    for case in with_servers:
        case.end = end
    for number, case in enumerate(cases):
        case.number, case.cells = number, len(cases)
        if layout.asynchronous and case.contract.mode.weakens:
            behind = layout.stages - layout.place(number)[0] - 1
            case.contract = dataclasses.replace(case.contract, behind=behind)
    contract = dataclasses.replace(
        cases[0].contract,
        workers=len(header.workers),
        servers=len(header.server_ranks),
        shards=sum(case.contract.shards for case in with_servers),
    )
    tables = [case.tables[0] for case in cases]
    with np.errstate(all="ignore"):  # senseless numbers are reported, not warned of
        for number, case in enumerate(cases):
            before = findings.first
            if served is None:
                case.check()
            else:
                _check_copies(served, case, header)
            if findings.first is not None and findings.first is not before:
                stage, slice_ = layout.place(number)
                where = f"stage {stage}" + (f", slice {slice_}" if layout.slices > 1 else "")
                text = f"{where}: {findings.first.text}"
                findings.first = dataclasses.replace(findings.first, text=text)
        if findings.none:
            check_pipeline(layout, tables, findings, one_clock=contract.one_clock)
        if findings.none and layout.asynchronous and not contract.mode.weakens:
            for case in cases:
                case.by_stages = True
        if findings.none and summary is not None:
            told = SummaryCheck(summary, contract, header, findings)
            told.digests(saved_sha256, max(case.updates for case in with_servers))
            _check_summary_of_cells(told, cases, with_servers, metrics or ())
            exact = layout.slices == 1 and header.knob("clip_norm") is None
            told.cut(tables, exact=exact)
        if findings.none and metrics is not None:
            gap = max(case.gap for case in with_servers)
            lines = check_metrics(metrics, findings, numerics=header.numerics, gap=gap, apart=False)
            if contract.plan is not None:
                workers = _side_by_side([case.pieces for case in cases])
                reports = _side_by_side([case.reports for case in cases])
                check_lines(contract, lines, workers, reports, findings)
            elif not contract.resumed:
                check_windows(lines)
    its = [table for case in with_servers for table in case.tables[1:]]
    return Outcome.of(contract, findings, tables + its)


def _check_copies(served: _Case, case: _Case, header: Header) -> None:
    """Check a cell whose copies are learners: its workers, if it is not the first, have no servers.

    Args:
        served: the servers and the workers of the first cell, which is checked as a separate job.
        case: of the cell.
        header: of the job.
    """
    findings, workers = case.findings, case.history.workers
    case.left = [bool((it["kind"] == Kind.LEAVE).any()) for it in workers]
    if not case.number:
        served.check()
        return
    for copy in range(len(workers)):
        plan = served.contract.plan and served.contract.plan.of(copy)
        _Case.of_part(copies.alone(case.history, copy, header), findings, plan=plan).check()
    if findings.none:
        at, its = (it.tables[0].where(Kind.LEAVE) for it in (case, served))
        text = (
            "worker {worker} leaves after {said} averages, the first part of its copy after {due}"
        )
        due, why = served.tables[0]["clock"][its], [(served.tables[0], its)]
        left = findings.on(case.tables[0], at)
        left.require_equal(MEMBERSHIP, case.tables[0]["clock"][at], due, text, because=why)


def _check_summary_of_cells(
    summary: SummaryCheck,
    cases: Sequence[_Case],
    with_servers: Sequence[_Case],
    metrics: Sequence[Mapping[str, object]],
) -> None:
    """Check a summary of all cells; samples are counted by the first cell of a copy."""
    first, contract = with_servers[0], cases[0].contract
    ranks = [
        one.of_cell(case.number, len(cases), len(case.history.shards))
        for case in cases
        for one, _ in case.told
    ]
    ranks += [
        one.of_cell(case.number, len(cases), len(case.history.shards))
        for case in with_servers
        for one in shards_of(case.history)
    ]
    workers = _side_by_side([case.pieces for case in cases])
    summary.counted(ranks)
    summary.trained(workers, _side_by_side([case.left for case in cases]), first.begun)
    if first.reads is None:
        summary.updates(max(case.updates for case in cases))
        if contract.mode.mixes:
            summary.mixed(metrics)
            summary.exchanged(
                *[(case.header, case.nbytes, case.workers) for case in cases],
                codec=frames_of(first.header),
            )
        else:
            summary.summed(*[(case.header, case.tables[0]) for case in cases])
    else:
        summary.shards([shard for case in with_servers for shard in case.found])
        summary.sent(*[(it.header, it.tables[0], it.tables[1:-1]) for it in with_servers])
    summary.measured(metrics)
    summary.times(workers)


def _side_by_side(cells: Sequence[Sequence[T]]) -> list[T]:
    """Return per-worker values of cells, by the numbers of workers in the job."""
    return [it for copies in zip(*cells, strict=True) for it in copies]


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
        findings: Findings | None = None,
    ) -> None:
        self.contract = contract
        self.history, self.header = history, history.header
        workers = joined(history.workers, "worker")
        shards = [Table(events, f"shard {i}") for i, events in enumerate(history.shards)]
        self.finals = Table(history.finals, "final version")
        #: All events. The other tables leave out those of codecs, or of codecs and elastic forces.
        self.tables = [workers, *shards, self.finals]
        self.workers, *self.shards = (
            without_passes(without_forces(without_frames(it))) for it in (workers, *shards)
        )
        self.findings = findings or Findings(resumed=self.header.resumed)
        #: Results of earlier steps, if they got that far: the updates, shards and reads of a mode
        #: with servers, the largest gap, and whether a worker died.
        self.updates = 0
        self.found: list[Shard] = []
        self.reads: Workers | None = None
        self.gap = 0.0
        self.died = False
        #: The least and the most bytes that neighbours sent each other.
        self.nbytes = 0, 0
        #: By worker, whether it said that it leaves; else it died.
        self.left: list[bool] = []
        #: Whether stages count the staleness of gradients, rather than servers.
        self.by_stages = False
        #: Whether this is a part of a run; and whether the parts are to be checked.
        self.is_part = self.check_parts = False
        #: The number of this cell, and the number of cells.
        self.number, self.cells = 0, 1
        #: Time of the last event of a worker or a shard of the job.
        self.end = max((it.events["time"].max() for it in self.tables[:-1] if len(it)), default=0.0)
        self._summary, self._metrics = summary, metrics
        self._crashed = crashed
        self._saved_sha256 = saved_sha256

    def check(self) -> None:
        """Check step by step: single events, their order, then everything else."""
        checked = self.findings.checked
        with PROGRESS.doing("checking", lambda: Amount(sum(checked.values()), None, "check")):
            self._check()

    def _check(self) -> None:
        findings = self.findings
        if self.check_parts:
            self._check_teams()
            return
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
                sums = Sums.of(codec, self.contract, self.header, workers)
                check = check_straight_sums if sums.straight else check_sum_frames
                check(sums, findings)
            else:
                mine, *its = map(without_forces, (workers, *shards))
                check_frames(codec, mine, its, self.contract.unreported, findings)
        if not findings.none:
            return
        if self.contract.shards and self.contract.fragments == 1:
            self.workers = without_stops(self.contract.shards, self.workers, findings)
        if not findings.none:
            return
        leave = check_departures(self.contract, self.workers, self._crashed, findings)
        self.left = (leave < len(self.workers)).tolist()
        if not findings.none:
            return
        if self.contract.shards:
            self._check_served(leave)
        elif self.contract.mode.mixes:
            self._check_mixed(leave)
        else:
            self._check_alone(leave)

    def _check_teams(self) -> None:
        """Check learners of several ranks, part by part, then what was written of all."""
        history, findings, ranks = self.history, self.findings, teams.size_of(self.header)
        teams.check_order(self.tables[0], findings)
        leave = check_departures(self.contract, self.workers, self._crashed, findings)
        self.left = (leave < len(self.workers)).tolist()
        if not findings.none:
            return
        for first in range(0, len(history.workers), ranks):
            if not all(self.left[first : first + ranks]):
                continue  # it died in the middle of a sum
            part = teams.among(history, first // ranks)
            plan = self.contract.plan and self.contract.plan.of(first)
            _Case.of_part(part, findings, plan=plan).check()
        if not findings.none:
            return
        part = teams.served(history)
        case = _Case.of_part(part, findings)
        case.check()
        if not findings.none:
            return
        # The ranks of a learner count its averages together.
        leaves = self.workers.where(Kind.LEAVE)
        clock, worker = self.workers["clock"][leaves], self.workers["worker"][leaves]
        leads = np.searchsorted(worker, worker - worker % ranks)
        findings.on(self.workers, leaves).require_equal(
            MEMBERSHIP,
            clock,
            clock[leads],
            "worker {worker} leaves at clock {said}, the first of its learner at {due}",
            because=[leaves[leads]],
        )
        self.died, self.gap = not all(self.left), case.gap
        if summary := self._check_summary(case.updates):
            summary.shards(case.found)
            summary.measured(self._metrics or (), died=self.died)
            if not self.died:
                summary.times(self.pieces)
                summary.sent((self.header, self.tables[0], self.tables[1:-1]))
        self._check_metrics()

    @classmethod
    def of_part(cls, history: History, findings: Findings, *, plan: DataPlan | None = None) -> Self:
        """Return the case of a part of a run, of which no file but the history tells.

        What its workers do takes other times, too: those of what they do in other parts.
        """
        contract = dataclasses.replace(contract_of(history.header), plan=plan, ends_late=True)
        case = cls(contract, history, None, None, None, None, findings)
        case.is_part = True
        return case

    def _check_alone(self, leave: Ints) -> None:
        """Check a mode without servers."""
        contract, table, findings = self.contract, self.workers, self.findings
        sums = check_sums(contract, table, leave, findings)
        if sums is None or not findings.none:
            return
        rounds, ends = sums
        check_shared_rates(contract, self.header, table, rounds, ends, findings)
        check_own_rates(contract, self.header, table, findings)
        self.updates = updates = count_updates(table, rounds)
        if self.is_part:
            return
        self._check_final(-1, updates, self._last_before_final())
        if summary := self._check_summary(updates):
            summary.updates(updates)
            summary.summed((self.header, self.tables[0]))
            if contract.streams:
                summary.streamed(table, self.tables[0])
            summary.measured(self._metrics or ())
            summary.times(self.pieces)
        self._check_metrics()

    def _check_mixed(self, leave: Ints) -> None:
        """Check a mode whose workers average with neighbours."""
        contract, table, findings = self.contract, self.workers, self.findings
        check = check_pairs if contract.pairs else check_gossip
        check = check_by_host if contract.by_host else check
        self.nbytes = nbytes = check(contract, self.header, table, leave, findings)
        if not findings.none:
            return
        steps, rounds = table.where(Kind.STEP), table.where(Kind.MIXED)
        rounds = rounds[table["flag"][rounds] == 0]  # neither of gradients nor of hosts
        ended = np.bincount(table["worker"][rounds], minlength=contract.workers)
        self._check_final(-1, int(ended[0]), self._last_before_final())
        self.updates = updates = int(ended.max())
        summary = self._check_summary(max(updates, len(steps)))
        died = bool((leave == len(table)).any())
        if summary is not None:
            summary.updates(updates)
            summary.measured(self._metrics or (), died=died)
        if summary is not None and not died:
            summary.mixed(self._metrics or ())
            summary.exchanged((self.header, nbytes, table), codec=frames_of(self.header))
            summary.times(self.pieces)
        if contract.pairs:
            self.gap = float(np.nan_to_num(table.real("gap")[rounds]).max(initial=0.0))
        self.died = died
        self._check_metrics(
            apart=lambda: (
                {} if contract.pairs or contract.framed else distances(self.header, table)
            ),
        )

    def _check_served(self, leave: Ints) -> None:
        """Check a mode with servers."""
        contract, table, findings = self.contract, self.workers, self.findings
        died = leave == len(table)
        found = [shard_of(contract, i, it, died, findings) for i, it in enumerate(self.shards)]
        check_silence(table, leave, np.zeros(len(table), bool), findings)
        groups = self._groups(leave)
        shards = [shard for shard in found if shard is not None]
        if groups is None or len(shards) < len(found) or not findings.none:
            return
        by_shard = {it: group for group in groups for it in group.shards}
        for group in groups:
            check_durations(contract, group, findings)
        if not contract.mode.averages:  # with averages a push is not a step
            check_steps(contract, table, groups[0].pushes[:, 0], leave, findings)
        became = []
        for shard in shards:
            outcomes = check_updates(contract, shard, findings)
            became.append(outcomes)
            check_replies(contract, shard, outcomes, findings)
            check_rates(contract, self.header, shard, outcomes, findings)
            check_delivery(contract, by_shard[shard.number], shard, outcomes, findings)
            last_event = EventRef(shard.table, len(shard.table) - 1)
            self._check_final(shard.number, len(shard.updates), last_event)
        self.found = shards
        if contract.learners is not None and findings.none:
            check_told_steps(contract, shards, findings)
            check_merges(contract, shards, became, findings)
        if contract.mode.averages:
            if not self.is_part:  # whose steps are sums, which are checked as such
                check_local_steps(contract, table, leave, findings)
                check_own_rates(contract, self.header, table, findings)
            if findings.none:
                self._check_periods(groups, leave)
        self.reads = groups[0]
        self.updates, self.died = max(len(shard.updates) for shard in shards), bool(died.any())
        summary = self._check_summary(self.updates)
        if summary is not None:
            summary.shards(shards)
            summary.measured(self._metrics or (), died=self.died)
        if summary is not None and not died.any():
            summary.times(self.pieces)
            # A missed worker has not announced that it leaves, but may have left.
            if not any((it["flag"][it.where(Kind.LEFT)] == MISSED).any() for it in self.shards):
                summary.sent((self.header, self.tables[0], self.tables[1:-1]))
        self.gap = max(float(np.nan_to_num(it.real("gap")).max(initial=0.0)) for it in self.shards)
        if findings.none:
            mine, *its = map(without_frames, self.tables[:-1])
            if contract.mode.merges and self.header.numerics:
                check_merge_sums(contract, self.header, mine, its, shards, findings)
            else:
                check_forces(contract, self.header, mine, its, findings)
        self._check_metrics()

    def _groups(self, leave: Ints) -> list[Workers] | None:
        """Return workers' events about the shards of each fragment; None if they are invalid."""
        contract, table, findings = self.contract, self.workers, self.findings
        if contract.fragments == 1:
            whole = workers_of(contract, table, leave, findings, range(contract.shards))
            return None if whole is None else [whole]
        parts = [
            by_fragment(table, shards, contract.workers, findings) for shards in contract.together()
        ]
        check_adopted(table, leave, [it for _, _, it in parts], findings)
        groups = []
        for shards, (part, left, _) in zip(contract.together(), parts, strict=True):
            group = workers_of(contract, part, left, findings, shards)
            if group is None:
                return None
            groups.append(group)
        return groups

    def _check_periods(self, groups: Sequence[Workers], leave: Ints) -> None:
        """Check after which steps workers push, and read."""
        contract, table, findings = self.contract, self.workers, self.findings
        if contract.learners is None or not (contract.streams or contract.mode.dynamic):
            check_averaging(contract, table, groups[0].pushes[:, 0], leave, findings)
        else:
            check_pushes(contract, table, self.found, leave, findings)

    @property
    def begun(self) -> int:
        """Epochs that some worker had finished when it started a step."""
        at = self.workers.where(Kind.STEP, Kind.PUSH)
        return math.floor(float(self.workers.real("progress")[at].max(initial=0.0)))

    @functools.cached_property
    def pieces(self) -> list[WorkerPieces]:
        """What each worker counts."""
        return [
            pieces_of(self.history, it, by_stages=self.by_stages, is_copy=self.number > 0)
            for it in range(len(self.history.workers))
        ]

    @functools.cached_property
    def told(self) -> list[tuple[Stats, list[Report]]]:
        """What each worker counted and reported, in one pass."""
        cells, contract = self.cells, self.contract
        return [told_by(contract, it, it.worker * cells + self.number) for it in self.pieces]

    @property
    def reports(self) -> list[list[Report]]:
        """What each worker reported."""
        return [reports for _, reports in self.told]

    @property
    def ranks(self) -> list[Stats]:
        """What every worker and every shard counted."""
        return [stats for stats, _ in self.told] + shards_of(self.history)

    def _check_metrics(
        self, *, apart: Callable[[], Mapping[int, tuple[float, float]]] = dict
    ) -> None:
        """Check the lines of the metrics, and compare them with the counts where these suffice."""
        if self._metrics is None:
            return
        contract, header, findings = self.contract, self.header, self.findings
        measured = contract.mode.mixes and header.numerics and contract.workers > 1
        measured = measured and bool(header.knob("consensus_every"))
        lines = check_metrics(
            self._metrics,
            findings,
            numerics=header.numerics,
            gap=self.gap,
            apart=measured,
            silent=contract.own_loop,
            forgotten=forgotten(header, self.nbytes) if contract.pairs else 0,
        )
        if (contract.plan is None or self.died) and not contract.resumed:
            check_windows(lines)
        if contract.plan is not None and not self.died:
            check_lines(contract, lines, self.pieces, self.reports, findings)
            if measured:
                table, resumed = self.workers, header.resumed if contract.pairs else ()
                unknown = split_steps(table, resumed, contract.workers)
                if contract.stopped:  # at clocks that others may never have reached
                    unknown.append(range(min(contract.stopped), max(contract.stopped) + 1))
                check_distances(lines, apart(), unknown)

    def _last_before_final(self) -> EventRef:
        """Return the last event, of the writing rank, before the parameters are written.

        By a real clock others may still record events then: each process closes its own history.
        """
        table = self.workers
        if self.contract.simulated:
            return EventRef(table, int(table.real("time").argmax()))
        return EventRef(table, int(np.flatnonzero(table["worker"] == 0)[-1]))

    def _check_final(self, shard: int, updates: int, last: EventRef) -> None:
        # In virtual time a run ends with its last event, unless a fault comes after it. Sharded
        # parameters are gathered on the writing rank before.
        contract = self.contract
        exact = contract.simulated and not contract.crashes and not contract.ends_late
        exact = exact and self.header.mode.shard != PARAMETERS
        check_final(
            self.finals, shard, updates, last, self.findings, end=self.end if exact else None
        )

    def _check_summary(self, updates: int) -> SummaryCheck | None:
        """Check what every summary has; return the object that checks the rest."""
        if self._summary is None:
            return None
        check = SummaryCheck(self._summary, self.contract, self.header, self.findings)
        check.digests(self._saved_sha256, updates)
        check.counted(self.ranks)
        check.trained(self.pieces, self.left, self.begun)
        return check


def check_run(run: str | PathLike[str]) -> Outcome:
    """Check the history of a run, and that the files beside it belong to the same run.

    Args:
        run: the run's folder, or its ``history/``.

    Raises:
        ConfigError: if there is no history, or it is damaged, unfinished, or of another run.
    """
    header, histories = read_cells(run)
    folder = Path(run)
    if folder.resolve().name == FOLDER and not (folder / FOLDER).exists():
        folder = folder.resolve().parent
    _check_config(folder / _CONFIG, header)
    crashed = (_read_json(folder / _SIMULATION) or {}).get("crashed")
    if isinstance(crashed, list) and not all(type(it) is int for it in crashed):
        raise ConfigError(f"{folder / _SIMULATION}: the workers that crashed are not numbers")
    summary, metrics = _read_json(folder / _SUMMARY), _read_lines(folder / _METRICS)
    saved_sha256 = _saved_sha256(folder / _MODEL, header.n)
    if header.cells:
        return check_cells(
            header, histories, summary=summary, metrics=metrics, saved_sha256=saved_sha256
        )
    return check(
        histories[0],
        summary=summary,
        metrics=metrics,
        crashed=crashed if isinstance(crashed, list) else None,
        saved_sha256=saved_sha256,
    )


def _check_config(path: Path, header: Header) -> None:
    """Raise if the run's config differs from that of its history."""
    if not path.exists():
        return
    config = from_toml(read_text(str(path)), source=str(path)).plain()
    # In their JSON form, in which a tuple is a list.
    mine, its = (json.loads(json.dumps(values)) for values in (config, header.config))
    differs = [name for name in mine if mine[name] != its.get(name)]
    differs += [name for name in its if name not in mine]
    if differs:
        name = differs[0]
        raise ConfigError(
            f"{path} is of another run than the history: it has {name} {mine.get(name)!r}, "
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


def _whole(digits: str) -> int:
    if len(digits) > 20:  # more than 64 bits, which cannot be compared with a float
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _parsed(text: str, where: str) -> dict[str, object]:
    try:
        values = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: not a JSON object")
    return values


def _saved_sha256(path: Path, n: int) -> str | None:
    """Return the SHA-256 of the parameter vector whose parts a file of tensors has.

    Known are the vector itself and psrt's own layers, weight before bias. A problem with other
    names may store its tensors in any order.
    """
    if not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        open_regular(path).close()
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
