"""The rules by name, what a check has asked of them, the first violation, and the report of it.

Names are those of the consistency literature. A rule is asked of events in bulk: one call, with a
template for the text that says what was wrong with the earliest of them. The report shows that one
with the events that led to it.
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
ROUND = "rounds"
ORDER = "summation order"
REPLIES = "prompt replies"
PROGRESS = "progress"
GUARANTEE = "bounded-staleness read"
OWN = "read-your-writes"
SAVED = "saved gradients"
RATES = "rates"
AVERAGING = "averaging"
ELASTIC = "elastic force"
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

#: By how much durations may be off: as a float32, and, in seconds, as the difference of two times
#: of a clock that may have run for years.
_FLOAT32, CLOCK_S = 1e-6, 2e-6

#: Rule → its promise. The site's page on histories has a table of it.
RULES = {
    FIELDS: "every event is possible by itself, and timestamps never decrease",
    STEPS: "every worker counts its steps one by one, from the first of its run to the last",
    BATCHES: "every step has the progress and the samples that the data is cut into",
    VERSIONS: "versions increase by one, and a reply carries the newest version",
    ALTERNATION: "a shard receives a push and replies to it before the worker's next, at the "
    "clock that it gave",
    MEMBERSHIP: "every worker leaves every shard once, at its last clock, and is silent after it",
    DELIVERY: "a shard receives exactly what was pushed, once, in order, after it was sent",
    FRAMES: "a frame has the bytes that its codec says, and is decoded as it was sent, by those "
    "that it is for",
    RESIDUALS: "what a frame lost is added to the next one of its worker, and shard or chunk; what "
    "was given is sent or kept back",
    READS: "a worker reads the whole of the reply that it got, and computes with what it read",
    ONCE: "every gradient is applied once, or dropped once for a reason that its mode has",
    FIFO: "a worker's gradients are applied in the order of its steps",
    STALENESS: "recorded staleness is the version met minus the version read",
    GAPS: "gaps are measured in asynchronous modes only, and are 0 where no update came between",
    QUORUM: "an update has as many gradients as its mode asks for, as soon as they have arrived",
    ROUND: "an update of a round is made of gradients of its version only",
    ORDER: "gradients are summed in the order of workers in a round, of arrival in a quorum; "
    "neighbours are averaged in that of workers",
    REPLIES: "a worker is answered as soon as its mode allows, and not before",
    PROGRESS: "no worker is further ahead of the slowest than the bound",
    GUARANTEE: "a read contains every update older than the bound, on every shard",
    OWN: "a read contains all of the reader's own updates",
    SAVED: "a gradient is saved if its worker continues before its update, and is summed first",
    RATES: "every gradient has the scheduled rate of its progress times its staleness factor",
    AVERAGING: "averages follow their period, weighted by the samples since the one before",
    ELASTIC: "a worker and the centre draw each other by the same force, beta/W of how they differ",
    FRAGMENTS: "fragments take turns, and each arrives after the steps of the delay",
    SUMS: "every worker takes part in every sum and gets the same result",
    TURNS: "a step and an average with neighbours take turns, in the order of the run",
    NEIGHBOURS: "in each round a worker averages with the neighbours of its graph that have not "
    "left, each once, by the weights of its matrix",
    OFFERS: "what is averaged in is what its neighbour offered for that round",
    CONSERVED: "an average is of what was offered and taken, by its weights, and does not move the "
    "mean of all workers, but for rounding",
    TRACKED_SUM: "a tracked gradient grows by what the worker's own has, and is sent as it is",
    PIPELINE: "stages take every micro-batch forward and back in the order of their schedule, and "
    "receive what others sent; all parts of a copy take the same steps",
    CAUSALITY: "a sum ends only after every worker has contributed, nothing is taken before it was "
    "offered, and an average of two is before a checkpoint at both, or after it",
    DURATIONS: "a duration is the time between the events that it spans",
    FINAL: "the last version is written, once, when the run ends",
    SUMMARY: "the figures of the summary follow from the events",
    METRICS: "every line of the metrics has what happened up to its step",
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
        """When it happened; infinite where it should have happened and did not."""
        return math.inf if self.event is None else self.event.time


#: Events that show why the i-th is wrong: positions in the same table, one or several for each i,
#: or in another table. Positions that are none, −1 or the table's length, are left out.
Reasons = Ints | Grid | tuple[Table, Ints | Grid]


class _Blanks(dict[str, Any]):
    """What fills a template: values by name, and else the fields of the event itself."""

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
    #: When the run went on from a checkpoint, each time; a duration has nothing of what was before.
    resumed: tuple[float, ...] = ()

    def on(self, table: Table, at: Ints) -> Asked:
        """Return what asks rules of the events at these (k,) positions of a table."""
        return Asked(self, table, at)

    def missing(self, rule: str, text: str, *because: EventRef) -> None:
        """Note that something never happened; what did happen wrongly is reported before it."""
        if self.first is None:
            self.first = Violation(rule, text, None, because)

    def count(self, rule: str, number: int) -> None:
        """Note that a rule was asked that many times."""
        self.checked[rule] = self.checked.get(rule, 0) + int(number)

    @property
    def none(self) -> bool:
        """Whether no violation was found so far."""
        return self.first is None


class Asked(NamedTuple):
    """Events that rules are asked of, in bulk."""

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
        """Require that a rule holds of each.

        Args:
            rule: its name.
            holds: (k,) for each of them, whether it is kept.
            text: what is wrong, with {names} of values or of the event's own fields.
            because: the events that contradict it.
            counts: whether these are not counted elsewhere.
            values: for the text: (k,) arrays, functions of i, or one value for all.
        """
        findings, table, at = self
        if counts:
            findings.count(rule, len(holds))
        wrong = np.flatnonzero(~holds)
        if not len(wrong):
            return
        # The earliest of them: what follows from it is not reported.
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
    """Require that the duration of an event is the time since another one.

    Args:
        findings: takes what is wrong.
        table: of both.
        at: the events that have a duration.
        since: by event, the one since which it is counted; −1 for the beginning of the run.
        most: whether it may be shorter, since it began some time after that.
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
    """Require that a gradient took some time to compute, as it does by a real clock."""
    holds = (table.real("seconds")[at] > 0) | (table["samples"][at] == 0)
    text = "{kind} of worker {worker} at clock {clock} says that its gradient took no time"
    findings.on(table, at).require(DURATIONS, holds, text, counts=False)


def _of(value: Any, i: int) -> Any:
    """Return the i-th of a template's values."""
    if callable(value):
        return value(i)
    return value[i] if isinstance(value, np.ndarray) else value


def _refs(reasons: Reasons, table: Table, i: int) -> list[EventRef]:
    where, positions = reasons if isinstance(reasons, tuple) else (table, reasons)
    refs = [EventRef(where, int(at)) for at in np.atleast_1d(positions[i])]
    return [ref for ref in refs if 0 <= ref.at < len(where)]


#: Events of the same worker and of the same shard that are shown before the one that is wrong, and
#: how far back they are looked for, whatever the length of the history.
_BEFORE, _WITHIN = 4, 10_000
#: Columns that are not shown, and, as −1, those that an event does not have.
_HIDDEN, _MAYBE = ("gap", "seconds", "flag"), ("worker", "shard")
_FLAGS = {
    (Kind.DROP, LATE): "late",
    (Kind.DROP, LOST): "lost",
    (Kind.REDUCE, PRESENT): "training",
    (Kind.REDUCED, PRESENT): "somebody is training",
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
    #: Events in all, and the time from the first to the last, in seconds.
    events: int
    seconds: float
    #: Rule → the number of times it was asked.
    checked: dict[str, int]
    violation: Violation | None

    @classmethod
    def of(cls, contract: Contract, findings: Findings, tables: Sequence[Table]) -> Outcome:
        """Return what a check of these tables found."""
        times = [table.events["time"] for table in tables if len(table)]
        begin = min((float(t.min()) for t in times), default=0.0)
        end = max((float(t.max()) for t in times), default=0.0)
        checked = {rule: findings.checked[rule] for rule in RULES if rule in findings.checked}
        return cls(contract, sum(map(len, tables)), end - begin, checked, findings.first)

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return self.violation is None

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
        return [head, *rows, "ok: nothing contradicts the contract of its mode"]

    def document(self) -> dict[str, Any]:
        """Return the report for programs, as JSON can hold it."""
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
            "violation": violation,
        }


def _lines(violation: Violation) -> list[str]:
    """Return the events of a violation, a line each; the one that breaks the rule is marked."""
    return [f"  {'>' if ref == violation.event else ' '} {_line(ref)}" for ref in _story(violation)]


def _story(violation: Violation) -> list[EventRef]:
    """Return the events of a violation, and those that led there, in their order."""
    refs = set(violation.because)
    if violation.event is not None:
        refs |= {violation.event, *_before(violation.event)}
    return sorted(refs, key=lambda ref: (_when(ref), ref.table.name, ref.at))


def _before(ref: EventRef) -> list[EventRef]:
    """Return the last events before one that its worker has part in, and the update before it."""
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
    """Return what matters of an event, as JSON can hold it."""
    event = ref.table.events[ref.at]
    kind = Kind(int(event["kind"]))
    record: dict[str, Any] = {"time": _finite(event["time"].item()), "kind": kind.name}
    fields = {str(it): it.name for it in KINDS[kind].fields.values() if not it.is_pair}
    # A server's events are of its shard, above all.
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
