"""The rules by name, how often each was checked, the first violation, and its report.

Names are those of the consistency literature. A rule is checked for many events in one call, with
a template for the text of the earliest violation. The report shows that one with the events that
led to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from psrt.core.units import plural
from psrt.history.check.contract import Contract
from psrt.history.check.table import COLUMNS, Bools, Grid, Ints, Table
from psrt.history.events import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CAME,
    FORWARD,
    GRADIENT,
    LATE,
    LOST,
    PRESENT,
    Kind,
)
from psrt.history.kinds import KINDS, SERVER

FIELDS = "well-formed events"
STEPS = "steps"
BATCHES = "batches"
VERSIONS = "versions"
ALTERNATION = "request-reply alternation"
MEMBERSHIP = "membership"
DELIVERY = "reliable delivery"
FRAMES = "frames"
RESIDUALS = "residuals"
READS = "reads"
ONCE = "exactly once"
FIFO = "per-worker FIFO"
STALENESS = "staleness"
GAPS = "gaps"
QUORUM = "quorum"
WINDOWS = "windows"
RELAYS = "relayed merges"
ROUND = "rounds"
ORDER = "summation order"
REPLIES = "prompt replies"
PROGRESS = "progress"
GUARANTEE = "bounded-staleness read"
OWN = "read-your-writes"
SAVED = "saved gradients"
RATES = "rates"
AVERAGING = "averaging"
TUNING = "tuning"
ELASTIC = "elastic force"
MERGED = "merged vectors"
FRAGMENTS = "fragments"
SUMS = "sums"
TURNS = "turns"
NEIGHBOURS = "neighbours"
OFFERS = "offers"
CONSERVED = "conservation"
TRACKED_SUM = "tracking"
PIPELINE = "pipeline"
CAUSALITY = "causality"
DURATIONS = "durations"
FINAL = "final version"
SUMMARY = "summary"
METRICS = "metrics"
DIGESTS = "digests"

#: Tolerances of durations: relative, as they are float32; and in seconds, as they are differences
#: of two times of a clock that may have run for years.
_FLOAT32, CLOCK_S = 1e-6, 2e-6

#: Rule → its promise. The site's page on histories has a table of it.
RULES = {
    FIELDS: "every event is possible by itself, and timestamps never decrease",
    STEPS: "a worker's step numbers increase by one, from its first step to its last",
    BATCHES: "every step has the progress and the number of samples that the data plan gives it",
    VERSIONS: "versions increase by one, and a reply carries the newest version",
    ALTERNATION: "a shard receives a worker's push at the clock that it gave, and replies to it "
    "before the worker's next push",
    MEMBERSHIP: "every worker leaves every shard once, at its last clock, and sends nothing more",
    DELIVERY: "a shard receives exactly what was pushed, once, in order, after it was sent",
    FRAMES: "a frame has a length that its codec allows, and every receiver decodes it as it was "
    "sent",
    RESIDUALS: "what a frame lost is added to the next one of the same worker and shard or chunk, "
    "and nothing else is lost",
    READS: "a worker reads the whole reply that it got, and computes with what it read",
    ONCE: "every gradient is applied once, or dropped once for a reason that its mode allows",
    FIFO: "a worker's gradients are applied in the order of its steps",
    STALENESS: "recorded staleness is the version on arrival minus the version read",
    GAPS: "gaps are measured only in asynchronous modes, and are 0 if no update came between",
    QUORUM: "an update is made as soon as the gradients that its mode asks for have arrived, and "
    "of these",
    WINDOWS: "a merge with a window waits for more learners until that is over, or nobody else "
    "can come, and no longer",
    RELAYS: "shards make the same merges, as the one that decides has relayed them; only those "
    "that died on the way are missing",
    ROUND: "an update of a round contains only gradients of its version",
    ORDER: "gradients are summed in worker order in a round or a merge, else in order of arrival; "
    "neighbours are averaged in worker order",
    REPLIES: "a worker is answered as soon as its mode allows, and not before",
    PROGRESS: "no worker is further ahead of the slowest than the bound",
    GUARANTEE: "a read contains every update older than the bound, on every shard",
    OWN: "a read contains all of the reader's own updates",
    SAVED: "a gradient is saved if its worker continues before its update, and is summed first",
    RATES: "every gradient has the scheduled rate of its progress times its staleness factor",
    AVERAGING: "averages follow their period, weighted by the samples since the last average",
    TUNING: "the value of a knob follows from the times of those that were tried before the run",
    ELASTIC: "a worker and the centre are pulled towards each other by the same force, beta/W of "
    "their difference",
    MERGED: "a merge has what its learners pushed, by their weights, and they continue with what "
    "came of it",
    FRAGMENTS: "fragments take turns, and each arrives after the configured number of steps",
    SUMS: "every worker takes part in every sum and gets the same result",
    TURNS: "steps and averages with neighbours alternate, in the order that was configured",
    NEIGHBOURS: "in each round a worker averages once with each neighbour of its graph that has "
    "not left, by the weights of its matrix",
    OFFERS: "an average uses exactly what the neighbour offered for that round",
    CONSERVED: "an average is the weighted mean of what was offered and taken, and keeps the mean "
    "of all workers, except for rounding",
    TRACKED_SUM: "a tracked gradient changes by as much as the worker's own, and is sent unchanged",
    PIPELINE: "stages run every micro-batch forward and backward in the order of their schedule, "
    "and receive what others sent; all parts of a copy take the same steps",
    CAUSALITY: "a sum ends only after every worker has contributed, nothing is taken before it was "
    "offered, and both sides of an average are on the same side of a checkpoint",
    DURATIONS: "a duration is the time between the events that it spans",
    FINAL: "the last version is written, once, when the run ends",
    SUMMARY: "the figures of the summary follow from the events",
    METRICS: "every line of the metrics agrees with the events up to its step",
    DIGESTS: "the saved parameters have the digest in the summary",
}


class EventRef(NamedTuple):
    """One event."""

    table: Table
    at: int

    @property
    def time(self) -> float:
        """When it happened, in seconds."""
        return float(self.table.events["time"][self.at])


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    #: Its name, as in ``RULES``.
    rule: str
    #: What happened and what was expected, with the numbers.
    text: str
    #: The event that breaks it; None where an event is missing that nobody wrote.
    event: EventRef | None
    #: Events that contradict it.
    because: tuple[EventRef, ...] = ()

    @property
    def time(self) -> float:
        """When it happened; infinite if it should have happened and did not."""
        return math.inf if self.event is None else self.event.time


#: Events that show why the i-th is wrong: positions in the same table, one or several for each i,
#: or in another table. The invalid positions −1 and the table's length are left out.
Reasons = Ints | Grid | tuple[Table, Ints | Grid]


class _Blanks(dict[str, Any]):
    """The values of a template: those given by name, else the fields of the event itself."""

    def __init__(self, table: Table, at: int) -> None:
        super().__init__()
        self._table, self._at = table, at

    def __missing__(self, name: str) -> Any:
        kind = Kind(int(self._table["kind"][self._at]))
        column = KINDS[kind].fields.get(name, name)
        assert column in COLUMNS, f"no value for {{{name}}} in the text of a rule"
        return self._table.value(column, self._at)


@dataclass(slots=True)
class Findings:
    """Counts what is checked, by rule, and keeps the violation that happened first."""

    checked: dict[str, int] = field(default_factory=dict)
    first: Violation | None = None
    #: The times at which the run resumed from a checkpoint; durations do not include the pause.
    resumed: tuple[float, ...] = ()

    def on(self, table: Table, at: Ints) -> Asked:
        """Return an object that checks rules for the events at these (k,) positions of a table."""
        return Asked(self, table, at)

    def missing(self, rule: str, text: str, *because: EventRef) -> None:
        """Note that something never happened; an event that violates a rule is reported first."""
        if self.first is None:
            self.first = Violation(rule, text, None, because)

    def count(self, rule: str, number: int) -> None:
        """Note that a rule was checked that many times."""
        self.checked[rule] = self.checked.get(rule, 0) + int(number)

    @property
    def none(self) -> bool:
        """Whether no violation was found so far."""
        return self.first is None


class Asked(NamedTuple):
    """Events for which rules are checked, in bulk."""

    findings: Findings
    table: Table
    at: Ints

    def require(
        self,
        rule: str,
        holds: Bools,
        text: str,
        *,
        because: Sequence[Reasons] = (),
        counts: bool = True,
        **values: Any,
    ) -> None:
        """Require that a rule holds for each event.

        Args:
            rule: its name.
            holds: (k,) whether it holds for each event.
            text: what is wrong, with {names} of values or of the event's own fields.
            because: the events that contradict it.
            counts: whether to count these checks; False if they are counted elsewhere.
            values: for the text: (k,) arrays, functions of i, or one value for all.
        """
        findings, table, at = self
        if counts:
            findings.count(rule, len(holds))
        wrong = np.flatnonzero(~holds)
        if not len(wrong):
            return
        # Only the earliest is reported: later ones may follow from it.
        i = int(wrong[np.argmin(table.events["time"][at[wrong]])])
        ref = EventRef(table, int(at[i]))
        if findings.first is not None and ref.time >= findings.first.time:
            return
        blanks = _Blanks(table, ref.at)
        for name, value in values.items():
            blanks[name] = _of(value, i)
        refs = [ref for reasons in because for ref in _refs(reasons, table, i)]
        findings.first = Violation(rule, text.format_map(blanks), ref, tuple(refs))

    def require_equal(self, rule: str, said: Any, due: Any, text: str, **more: Any) -> None:
        """Require that two columns are equal; the text may name them, {said} and {due}."""
        self.require(rule, said == due, text, said=said, due=due, **more)

    def forbid(self, rule: str, text: str, **more: Any) -> None:
        """Require that there are no such events."""
        self.require(rule, np.zeros(len(self.at), bool), text, **more)


def require_duration(
    findings: Findings, table: Table, at: Ints, since: Ints, *, most: bool | Bools = False
) -> None:
    """Require that the duration of an event is the time since another event.

    Args:
        findings: takes what is wrong.
        table: of both events.
        at: the events with a duration.
        since: by event, the one from which its duration counts; −1 for the start of the run.
        most: whether it may be shorter, because it started some time after that.
    """
    seconds = table.real("seconds")[at]
    ends = table.real("time")[at]
    begins = np.where(since < 0, 0.0, table.real("time")[since])
    due = ends - begins
    for when in findings.resumed:
        most = most | ((begins < when) & (ends > when))
    slack = CLOCK_S + _FLOAT32 * due
    holds = (seconds <= due + slack) & (most | (seconds >= due - slack))
    text = "{kind} of worker {worker} says it took {seconds:g} s, it is {due:g} s since {before}"
    if most is True:
        text = text.replace("it is", "it is only")
    findings.on(table, at).require(
        DURATIONS,
        holds,
        text,
        due=due,
        before=lambda i: table.value("kind", int(since[i])) if since[i] >= 0 else "the beginning",
        because=[since],
    )


def require_some_time(findings: Findings, table: Table, at: Ints) -> None:
    """Require that a gradient took some time to compute, which is so by a real clock."""
    holds = (table.real("seconds")[at] > 0) | (table["samples"][at] == 0)
    text = "{kind} of worker {worker} at clock {clock} says that its gradient took no time"
    findings.on(table, at).require(DURATIONS, holds, text, counts=False)


def _of(value: Any, i: int) -> Any:
    """Return a template's value for event i."""
    if callable(value):
        return value(i)
    return value[i] if isinstance(value, np.ndarray) else value


def _refs(reasons: Reasons, table: Table, i: int) -> list[EventRef]:
    where, positions = reasons if isinstance(reasons, tuple) else (table, reasons)
    refs = [EventRef(where, int(at)) for at in np.atleast_1d(positions[i])]
    return [ref for ref in refs if 0 <= ref.at < len(where)]


#: The number of events of the same worker and shard that are shown before the wrong one, and how
#: far back they are searched, whatever the length of the history.
_BEFORE, _WITHIN = 4, 10_000
#: Columns that are not shown, and, as −1, those that an event does not have.
_HIDDEN, _MAYBE = ("gap", "seconds", "flag"), ("worker", "shard")
_FLAGS = {
    (Kind.DROP, LATE): "late",
    (Kind.DROP, LOST): "lost",
    (Kind.REDUCE, PRESENT): "training",
    (Kind.REDUCED, PRESENT): "some worker is training",
    (Kind.PASS, FORWARD): "forward",
    (Kind.PASS, BACKWARD): "backward",
    (Kind.PASS, BACKWARD_INPUT): "backward to the input",
    (Kind.PASS, BACKWARD_WEIGHT): "backward to the weights",
    (Kind.MESSAGE, 0): "activation sent",
    (Kind.MESSAGE, CAME): "activation came",
    (Kind.MESSAGE, GRADIENT): "gradient sent",
    (Kind.MESSAGE, GRADIENT | CAME): "gradient came",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a check: the rules checked, and the first violation if any."""

    contract: Contract
    #: The number of events, and the time from the first to the last, in seconds.
    events: int
    seconds: float
    #: Rule → the number of times it was checked.
    checked: dict[str, int]
    violation: Violation | None

    @classmethod
    def of(cls, contract: Contract, findings: Findings, tables: Sequence[Table]) -> Outcome:
        """Return the outcome for these tables."""
        times = [table.events["time"] for table in tables if len(table)]
        begin = min((float(t.min()) for t in times), default=0.0)
        end = max((float(t.max()) for t in times), default=0.0)
        checked = {rule: findings.checked[rule] for rule in RULES if rule in findings.checked}
        return cls(contract, sum(map(len, tables)), end - begin, checked, findings.first)

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return self.violation is None

    @property
    def unchecked(self) -> dict[str, str]:
        """Rule → why a history does not suffice to check it, or not everywhere."""
        scheduler = self.contract.scheduler
        return {RATES: f"set by the scheduler {scheduler}"} if scheduler else {}

    def lines(self) -> list[str]:
        """Return the report."""
        contract = self.contract
        who = plural(contract.workers, "worker")
        if contract.shards:
            who += f" and {plural(contract.shards, 'shard')}"
        head = f"{contract}, {who}: {self.events:,} events in {self.seconds:.3f} s"
        if contract.unreported:
            silent = ", ".join(map(str, contract.unreported))
            head += f", without those of worker {silent}, which went missing"
        if self.violation is not None:
            promise = f"{self.violation.rule}: {RULES[self.violation.rule]}"
            why = f"  {self.violation.text}"
            return [head, f"violated: {promise}", why, *_lines(self.violation)]
        asked = {rule: f"{number:,}" for rule, number in self.checked.items() if number}
        width, wide = (max(map(len, column), default=0) for column in (asked, asked.values()))
        rows = [f"  {rule:{width}}  {n:>{wide}}  {RULES[rule]}" for rule, n in asked.items()]
        rows += [f"  {rule}: not checked, {why}" for rule, why in self.unchecked.items()]
        return [head, *rows, "ok: nothing contradicts the contract of its mode"]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values, for programs."""
        found = self.violation
        violation = found and {
            "rule": found.rule,
            "text": found.text,
            "events": [_record(ref) for ref in _story(found)],
        }
        return {
            "ok": self.ok,
            "mode": self.contract.mode.name,
            "workers": self.contract.workers,
            "shards": self.contract.shards,
            "events": self.events,
            "seconds": _finite(self.seconds),
            "checked": self.checked,
            "unchecked": self.unchecked,
            "violation": violation,
        }


def _lines(violation: Violation) -> list[str]:
    """Return the events of a violation, one line each, with a mark at the violating one."""
    return [f"  {'>' if ref == violation.event else ' '} {_line(ref)}" for ref in _story(violation)]


def _story(violation: Violation) -> list[EventRef]:
    """Return the events of a violation and those that led to it, in order."""
    refs = set(violation.because)
    if violation.event is not None:
        refs |= {violation.event, *_before(violation.event)}
    return sorted(refs, key=lambda ref: (_when(ref), ref.table.name, ref.at))


def _before(ref: EventRef) -> list[EventRef]:
    """Return the last events of the same worker before one, and the update before it."""
    table = ref.table
    start = max(0, ref.at - _WITHIN)
    worker = table["worker"][start : ref.at] == table["worker"][ref.at]
    shard = table["shard"][start : ref.at] == table["shard"][ref.at]
    applied = table["kind"][start : ref.at] == Kind.APPLY
    same = np.flatnonzero(worker & shard)[-_BEFORE:]
    update = np.flatnonzero(shard & applied)[-1:]
    return [EventRef(table, start + int(i)) for i in (*same, *update)]


def _line(ref: EventRef) -> str:
    """Return one event as a line."""
    record = _record(ref)
    time, kind = record.pop("time"), record.pop("kind")
    fields = "  ".join(f"{name} {_shown(value)}" for name, value in record.items())
    return f"{'?' if time is None else format(time, '12.6f')} s  {kind:10}  {fields}"


def _record(ref: EventRef) -> dict[str, Any]:
    """Return the fields of an event that are shown, as JSON values."""
    event = ref.table.events[ref.at]
    kind = Kind(int(event["kind"]))
    record: dict[str, Any] = {"time": _finite(event["time"].item()), "kind": kind.name}
    fields = {str(it): it.name for it in KINDS[kind].fields.values() if not it.is_pair}
    # A server's events show their shard first.
    first = reversed(_MAYBE) if KINDS[kind].who == SERVER else _MAYBE
    for column in dict.fromkeys((*first, *fields)):
        value = event[column].item()
        if column not in _HIDDEN and not (column in _MAYBE and value < 0):
            record[fields.get(column, column)] = _finite(value)
    if flag := _FLAGS.get((kind, int(event["flag"]))):
        record["flag"] = flag
    return record


def _when(ref: EventRef) -> float:
    return ref.time if math.isfinite(ref.time) else math.inf


def _finite(number: Any) -> Any:
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    if value is None:
        return "nan"
    return f"{value:g}" if isinstance(value, float) else str(value)
