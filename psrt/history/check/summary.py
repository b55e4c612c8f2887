"""What was written at the end: the last version, and a summary whose figures follow from events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from psrt.history.check.alternation import Shard, Workers
from psrt.history.check.contract import Contract
from psrt.history.check.exchange import all_finished
from psrt.history.check.findings import DIGESTS, FINAL, SUMMARY, EventRef, Findings
from psrt.history.check.table import Ints, Table, previous, rank_in_group
from psrt.history.events import Kind
from psrt.history.header import Header

#: Relative error of a mean of float32 numbers.
_ROUNDING = 1e-5


def check_final(
    finals: Table,
    shard: int,
    updates: int,
    last: EventRef,
    findings: Findings,
    *,
    end: float | None = None,
) -> None:
    """Check that the last version of a shard is written, once, after all that made it.

    Args:
        finals: the FINAL events of the run.
        shard: whose; −1 for the parameters that all workers share.
        updates: versions that it made.
        last: the last event of the rank that writes.
        findings: takes what is wrong.
        end: when the run ended, in seconds, which is when all is written; None where that is not
            known: by a real clock it may take any time.
    """
    at = np.flatnonzero(finals["shard"] == shard)
    what = "the parameters" if shard < 0 else f"shard {shard}"
    if not len(at):
        findings.count(FINAL, 1)
        findings.missing(FINAL, f"{what}, at version {updates}: never written", last)
        return
    because = [(last.table, np.full(len(at), last.at))]
    written, time = findings.on(finals, at), finals.real("time")[at]
    text = f"version {{said}} of {what} was written at the end, expected {{due}}"
    written.require_equal(FINAL, finals["version"][at], updates, text, because=because)
    text = f"{what} was written again"
    written.require(FINAL, np.arange(len(at)) == 0, text, because=[previous(at, -1)])
    due = last.time if end is None else end
    text = f"{what} was written at {{time:.6f}} s, expected {{due:.6f}} s{{later}}"
    written.require(
        FINAL,
        time >= due if end is None else time == due,
        text,
        due=due,
        later=" or later" if end is None else "",
        because=because,
    )


class SummaryCheck:
    """Holds figures of a ``summary.json`` against what events and header say."""

    def __init__(
        self, summary: Mapping[str, object], contract: Contract, header: Header, findings: Findings
    ) -> None:
        self._summary = summary
        self._contract = contract
        self._findings = findings
        self._same("mode", contract.mode.name)
        self._same("workers", contract.workers)
        for name, value in (
            ("servers", contract.shards),
            ("ranks", contract.workers + contract.shards),
            ("seed", header.knob("seed")),
            ("parameters", header.n),
            ("allreduce", header.algorithm),
        ):
            self._same_if_told(name, value)

    def updates(self, updates: int) -> None:
        """Check the number of updates."""
        self._same("updates", updates)

    def steps(self, table: Table, at: Ints) -> None:
        """Check what is counted of the steps of modes whose workers count them; nobody has died.

        Args:
            table: events of all workers.
            at: positions of the steps.
        """
        self._same_if_told("samples", int(table["samples"][at].sum()))
        self._same_if_told("steps", int(table["clock"][at].max(initial=-1)) + 1)

    def without_servers(self) -> None:
        """Check that what only servers and their readers have is not there."""
        self._same_if_told("dropped", 0)
        self._same_if_told("skew_max", 0)
        self._same_if_told("clock_spread_max", 0)
        none = np.zeros(0, np.int64)
        for name in ("staleness", "skew"):
            self._mean_and_max(name, self._summary.get(name), none)

    def reads(self, workers: Workers) -> None:
        """Check what is counted of pushes that were answered, and of the reads of the answers."""
        table, reads, pushes = workers.table, workers.reads, workers.pushes
        owner = table["worker"][reads[:, 0]]
        rank, _ = rank_in_group(owner, self._contract.workers)
        versions = table["version"][reads[rank > 0]]
        skew = versions.max(axis=1, initial=0) - versions.min(axis=1, initial=2**62)
        self._same_if_told("skew_max", int(skew.max(initial=0)))
        histogram = {str(n): int(k) for n, k in enumerate(np.bincount(skew)) if k}
        self._same_if_told("skew", histogram, "histogram")
        self._mean_and_max("skew", self._summary.get("skew"), skew)
        if self._contract.mode.averages:  # a push is no step
            return
        # A worker that died may have pushed once more than it was answered.
        pushed, _ = rank_in_group(table["worker"][pushes[:, 0]], self._contract.workers)
        answered = np.bincount(owner, minlength=self._contract.workers) - 1
        done = pushed < answered[table["worker"][pushes[:, 0]]]
        self._same_if_told("samples", int(table["samples"][pushes[done, 0]].sum()))
        self._same_if_told("steps", int(table["clock"][reads].max(initial=0)))

    def shards(self, shards: list[Shard]) -> None:
        """Check what is counted of updates, drops, staleness, gaps, and of who was ahead."""
        tables = [shard.table for shard in shards]
        applied = [table.where(Kind.APPLY) for table in tables]
        self.updates(max(len(shard.updates) for shard in shards))
        self._same("dropped", sum(len(table.where(Kind.DROP)) for table in tables))
        pushes = [at[table["worker"][at] >= 0] for table, at in zip(tables, applied, strict=True)]
        tau, worker = (
            np.concatenate([table[name][at] for table, at in zip(tables, pushes, strict=True)])
            for name in ("tau", "worker")
        )
        gap = np.concatenate(
            [table.real("gap")[at] for table, at in zip(tables, pushes, strict=True)]
        )
        shard = np.repeat(np.arange(len(shards)), [len(at) for at in pushes])
        told = self._summary.get("staleness")
        told = told if isinstance(told, dict) else {}
        self._compare("staleness histogram", told.get("histogram"), np.bincount(tau).tolist())
        self._mean_and_max("staleness", told, tau)
        for name, group, count in (
            ("by_shard", shard, len(shards)),
            ("by_worker", worker, self._contract.workers),
        ):
            if name in told:
                due = _histograms(group, tau, count)
                self._compare(f"staleness {name}", _told_histograms(told[name]), due)
                rows = told[name] if isinstance(told[name], list) else []
                for i, row in enumerate(rows[:count]):
                    self._mean_and_max(f"staleness {name} at {i}", row, tau[group == i])
        if "gap" in told:
            self._gaps(told["gap"], gap[~np.isnan(gap)])
        self._same_if_told("clock_spread_max", max(_spread(self._contract, it) for it in shards))

    def measured(self, metrics: Sequence[Mapping[str, object]]) -> None:
        """Check what follows from other figures, and from the last record; nobody has died.

        Loss and bytes are in no event. The last record has what all workers had reported by then,
        and only sends little after it: nothing is trained.
        """
        seconds, samples = self._summary.get("seconds"), self._summary.get("samples")
        if _is_number(seconds) and _is_number(samples):
            self._near("samples_per_second", samples / seconds if seconds else 0.0)
        last = metrics[-1] if metrics else {}
        for name, column in (("train_loss", "loss"), ("samples", "samples")):
            if column in last:
                self._same_if_told(name, last[column], of="the last of metrics.jsonl")
        for name in ("bytes_sent", "bytes_received"):
            said, least = self._summary.get(name), last.get(name)
            if _is_number(said) and _is_number(least):
                self._same_if_told(name, max(said, least), of="the last of metrics.jsonl")

    def waiting(self, table: Table, at: Ints) -> None:
        """Check how long each worker waited in all; the causes are not in the events.

        Args:
            table: events of all workers.
            at: the ends of their waits.
        """
        told = self._summary.get("waiting")
        if not isinstance(told, list):
            return
        due = np.bincount(table["worker"][at], table.real("seconds")[at], self._contract.workers)
        for row in told:
            worker = row.get("worker") if isinstance(row, dict) else None
            if type(worker) is int and 0 <= worker < self._contract.workers:
                self._near(f"waiting of worker {worker}", due[worker], row.get("seconds"))

    def digests(self, header: Header, saved: str | None, updates: int) -> None:
        """Check the digest of the parameters at the end.

        Args:
            header: of the run.
            saved: SHA-256 of what lies beside the summary; None where that cannot be told.
            updates: that were made; without any the parameters are the initial ones.
        """
        said = self._summary.get("parameters_sha256")
        if not said or not header.numerics:
            return
        self._digest(str(said), "model.safetensors", saved)
        if not updates:
            self._digest(str(said), "the initial parameters", header.initial_sha256)

    def _digest(self, said: str, what: str, due: str | None) -> None:
        if not due:
            return
        self._findings.count(DIGESTS, 1)
        if said != due:
            text = f"{what} have SHA-256 {due[:16]}…, the summary says {said[:16]}…"
            self._findings.missing(DIGESTS, text)

    def _gaps(self, told: object, gap: Any) -> None:
        told = told if isinstance(told, dict) else {}
        self._compare("gap count", told.get("count"), len(gap))
        self._mean_and_max("gap", {"mean": None, "max": None} | told, gap)

    def _mean_and_max(self, name: str, told: object, numbers: Any) -> None:
        """Compare the mean and the maximum of what was counted, as far as they are told."""
        for figure, due in (
            ("mean", float(numbers.mean()) if len(numbers) else 0.0),
            ("max", float(numbers.max(initial=0.0))),
        ):
            if isinstance(told, dict) and figure in told:
                self._near(f"{name} {figure}", due, told[figure])

    def _near(self, name: str, due: float, said: object = None) -> None:
        """Compare two numbers but for rounding; ``said`` is that of this name if not given."""
        said = self._summary.get(name) if said is None else said
        near = _is_number(said) and abs(said - due) <= _ROUNDING * abs(due)
        self._compare(name, due if near else said, due)

    def _same(self, name: str, due: object) -> None:
        self._compare(name, self._summary.get(name), due)

    def _same_if_told(
        self, name: str, due: object, inside: str | None = None, *, of: str = "the history"
    ) -> None:
        """Compare a figure that a summary need not have; ``inside`` names a part of it."""
        if name not in self._summary:
            return
        said = self._summary[name]
        if inside is not None:
            said = said.get(inside) if isinstance(said, dict) else said
        self._compare(name, said, due, of)

    def _compare(self, name: str, said: object, due: object, of: str = "the history") -> None:
        self._findings.count(SUMMARY, 1)
        if said == due:
            return
        if isinstance(said, list) and isinstance(due, list) and len(said) == len(due):
            at = next(i for i in range(len(due)) if said[i] != due[i])
            name, said, due = f"{name} at {at}", said[at], due[at]
        self._findings.missing(SUMMARY, f"{name}: the summary says {said}, {of} {due}")


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _spread(contract: Contract, shard: Shard) -> int:
    """Return by how many steps a worker was ahead of the slowest at most.

    It is looked at after each push, with the update that the push may have completed. In rounds
    nobody is behind the version: whom a round did not wait for goes on with the next one.
    """
    pushes = shard.pushes
    last = np.searchsorted(shard.message, pushes.message, side="right") - 1  # of its message
    passed = shard.version[last] if contract.rounds else 0
    slowest = np.searchsorted(all_finished(shard), pushes.at, side="right") - 1
    ahead = np.maximum(pushes.clock + ~pushes.asks, passed) - np.maximum(slowest, passed)
    return int(ahead.max(initial=0))


def _histograms(group: Ints, tau: Ints, count: int) -> list[dict[str, int]]:
    """Return how often each τ is in each group, as JSON has it."""
    found: list[dict[str, int]] = [{} for _ in range(count)]
    width = int(tau.max(initial=0)) + 1
    numbers, counts = np.unique(group * width + tau, return_counts=True)
    for number, times in zip(numbers.tolist(), counts.tolist(), strict=True):
        found[number // width][str(number % width)] = times
    return found


def _told_histograms(rows: object) -> object:
    """Return the histograms out of a summary's rows; what is none stands for itself."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return rows
    return [row.get("histogram") for row in rows]
