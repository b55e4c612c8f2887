"""Checks of what was written at the end: the last version, and the summary's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from psrt.codec import Matrix
from psrt.collective.registry import shares_evenly
from psrt.config.names import GRADIENT_TRACKING, OPTIMIZER, PARAMETERS, PUSH_SUM
from psrt.core.arrays import ITEMSIZE
from psrt.core.stats import Stats
from psrt.history.check.alternation import Shard
from psrt.history.check.averages import mixing_of
from psrt.history.check.contract import Contract
from psrt.history.check.exchange import all_finished
from psrt.history.check.figures import Figures
from psrt.history.check.findings import DIGESTS, FINAL, SUMMARY, EventRef, Findings
from psrt.history.check.fragments import fragment_sizes, streamed_bytes
from psrt.history.check.frames import FrameContract, frame_bounds
from psrt.history.check.metrics import times_of
from psrt.history.check.pipeline import layout_of
from psrt.history.check.straight_sums import goes_straight, straight_bytes
from psrt.history.check.sum_frames import sent_bytes
from psrt.history.check.table import Table, previous
from psrt.history.check.tuning import choice
from psrt.history.events import CAME, Kind
from psrt.history.folds.figures import Counts, Staleness
from psrt.history.folds.history import WorkerPieces
from psrt.history.header import Header
from psrt.history.kinds import Encode, Message, Offer

#: The keys of every summary; ``psrt.report.Summary`` has a field for each.
KEYS = (
    "mode", "workers", "servers", "ranks", "hosts", "mpi", "seed", "epochs", "steps", "allreduce",
    "allreduce_why", "shards_per_server", "shards_why", "buckets", "overlap", "samples", "seconds",
    "samples_per_second", "train_loss", "test_loss", "test_accuracy", "parameters",
    "parameters_sha256", "updates", "dropped", "torn", "staleness", "skew_max", "skew", "waiting",
    "missing", "clock_spread_max", "bytes_sent", "bytes_received", "frame_bytes", "framed_bytes",
    "averages", "tuned", "graph_averages", "cut_bytes_sent", "cut_bytes_received", "model_cut",
    "memory", "stopped", "test_figures", "environment",
)  # fmt: skip
#: What a worker may wait for: the last one without servers, the others with servers.
_CAUSES = ("for_workers", "for_server", "for_messages", "for_reduce")
#: Bytes of a message between a worker and a shard, without its payload.
_MESSAGE = 64
#: The most workers for which the spectral gap is reported.
_MOST_SPECTRUM = 256
#: The most elements for which a distance in the metrics is exact, and its relative rounding.
_SKETCH, _ROUNDING = 4096, 1e-8
#: The digits of a summary's seconds.
_MICROSECOND = 1e-6


def check_final(
    finals: Table,
    shard: int,
    updates: int,
    last: EventRef,
    findings: Findings,
    *,
    end: float | None = None,
) -> None:
    """Check that the last version of a shard is written, once, after all updates.

    Args:
        finals: the FINAL events of the run.
        shard: its number; −1 for the parameters that all workers share.
        updates: the number of versions that it made.
        last: the last event of the writing rank.
        findings: takes what is wrong.
        end: seconds at which the run ended and all is written; None if unknown: by a real clock
            it may take any time.
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
    """Checks a ``summary.json`` against events and header, and that it is complete."""

    def __init__(
        self, summary: Mapping[str, object], contract: Contract, header: Header, findings: Findings
    ) -> None:
        self._contract = contract
        self._header = header
        self._findings = findings
        self._figures = figures = Figures(SUMMARY, "the summary", summary, findings)
        figures.has(*[(name,) for name in KEYS])
        for name, value in (
            ("mode", contract.mode.name),
            ("workers", contract.workers),
            ("servers", contract.servers),
            ("ranks", contract.workers + contract.servers),
            ("seed", header.knob("seed")),
            ("parameters", header.n),
            ("allreduce", header.algorithm),
            ("shards_per_server", header.knob("shards_per_server")),
            ("stopped", "on_epoch" if header.stopped else ""),
        ):
            figures.same(value, name)
        if header.hosts:
            figures.same(len(set(header.hosts)), "hosts")
        if contract.simulated:
            figures.same("", "mpi")
        figures.length(len(contract.unreported), "missing")
        for i, worker in enumerate(contract.unreported):
            figures.same(worker, "missing", i, "worker")
        self._sums()
        self._tuned()
        self._averages()
        self._graph_averages()
        self._model_cut()
        self._memory()

    def _memory(self) -> None:
        """Check the memory of a worker's vectors, which is reported if gradients are summed.

        Sharded vectors are split in each bucket separately, so a worker may have one more element
        per bucket than n/W. Between hosts, workers that lead no rail own nothing, and others more.
        """
        figures, header, workers = self._figures, self._header, self._contract.workers
        if not self._contract.mode.sums_gradients:
            figures.same(None, "memory")
            return
        if self._contract.cut:
            layout, sizes = layout_of(header), [cell["n"] for cell in header.cells]
            most = ITEMSIZE * max([header.n, *sizes])
            figures.within(0, most, "memory", "gradients")
            if layout.asynchronous:  # P − s versions of them
                behind = [layout.stages - layout.place(i)[0] for i in range(len(sizes))]
                most = ITEMSIZE * max(n * it for n, it in zip(sizes, behind, strict=True))
            figures.within(0, most, "memory", "parameters")
            for name in ("optimizer", "gathered", "activations"):
                figures.within(0, math.inf, "memory", name)
            return
        figures.same(0, "memory", "activations")
        whole, shard = ITEMSIZE * header.n, header.mode.shard
        buckets = figures.number("buckets") or 0
        least, most = whole / workers, whole / workers + ITEMSIZE * buckets
        vectors = header.chosen("optimizer").vectors
        if shard is None:
            least = most = whole
        elif not shares_evenly(self._header.algorithm):
            most = whole
        figures.within(vectors * least, vectors * most, "memory", "optimizer")
        some = 2 * whole / max(buckets, 2), 2 * whole
        for name, kept in (
            ("parameters", shard != PARAMETERS),
            ("gradients", shard in (None, OPTIMIZER)),
        ):
            own = (least, most) if name == "parameters" else some
            figures.within(*((whole, whole) if kept else own), "memory", name)
        if shard == PARAMETERS:
            figures.within(*some, "memory", "gathered")
        else:
            figures.same(0, "memory", "gathered")

    def _model_cut(self) -> None:
        """Check the figures of a split model, if it was split."""
        figures, header = self._figures, self._header
        if not self._contract.cut:
            figures.same(None, "model_cut")
            for name in ("cut_bytes_sent", "cut_bytes_received"):
                figures.same(0, name)
            return
        layers = [int(it) for it in str(header.knob("stages", "")).split(",") if it.isdecimal()]
        for name, due in (
            ("parallel", header.knob("parallel")),
            ("schedule", header.knob("pipeline_schedule")),
            ("micro_batches", header.knob("micro_batches")),
            ("layers", layers),
            ("parameters", [cell["n"] for cell in header.cells]),
        ):
            figures.same(due, "model_cut", name)

    def _tuned(self) -> None:
        """Check what was tried and chosen against the header."""
        if not self._header.tuned:
            self._figures.same(None, "tuned")
            return
        knob, chosen = choice(self._header)
        tried = [list(it) for it in self._header.tuned]
        self._figures.equal({"knob": knob, "chosen": chosen, "tried": tried}, "tuned")

    def _averages(self) -> None:
        """Check the figures of averages, which only local SGD has."""
        figures, contract, header = self._figures, self._contract, self._header
        if not contract.mode.averages:
            figures.same(None, "averages")
            return
        first = header.of_cell(0) if header.cells and contract.streams else header
        for name, due in (
            ("local_steps", contract.local_steps),
            ("fragments", contract.fragments),
            ("sync_delay", contract.delay),
            ("mixing", contract.mode.mixing),
            ("eager", contract.eager),
            ("period_bytes", ITEMSIZE * header.n),
            ("peak_bytes", ITEMSIZE * max(fragment_sizes(contract, first))),
        ):
            figures.same(due, "averages", name)

    def _graph_averages(self) -> None:
        """Check the figures of averages among neighbours, which only gossip has."""
        figures, contract, header = self._figures, self._contract, self._header
        if not contract.mode.mixes:
            figures.same(None, "graph_averages")
            return
        of = header.of_cell(0) if header.cells else header
        mixing = mixing_of(of)
        sent = sum(np.count_nonzero(it) - np.count_nonzero(it.diagonal()) for it in mixing.matrices)
        vectors = sent / len(mixing.matrices) / len(of.workers)
        if contract.mode.variant == GRADIENT_TRACKING:
            vectors *= 2
        for name, due in (
            ("topology", contract.mode.topology),
            ("order", contract.mode.order or ""),
            ("push_sum", mixing.push_sum),
            ("period", len(mixing.matrices)),
        ):
            figures.same(due, "graph_averages", name)
        if contract.pairs or contract.by_host or contract.framed:
            figures.same(None, "graph_averages", "step_bytes")
        else:
            figures.near(ITEMSIZE * header.n * vectors, "graph_averages", "step_bytes")
        if contract.workers > _MOST_SPECTRUM or contract.pairs:
            figures.same(None, "graph_averages", "gap")
        else:
            figures.near(mixing.gap, "graph_averages", "gap", slack=1e-6)
        figures.within(1, contract.workers - len(contract.unreported), "graph_averages", "models")
        if header.numerics:
            figures.within(0.0, math.inf, "graph_averages", "consensus_distance")
        else:
            figures.same(None, "graph_averages", "consensus_distance")

    def mixed(self, metrics: Sequence[Mapping[str, object]]) -> None:
        """Check that the model is the mean over all workers, and the distance, if nobody died.

        The last record measured it by sketches, which are exact for few elements, and from the
        plain mean, which is nearest to all of them.
        """
        figures, header = self._figures, self._header
        cells = max(1, len(header.cells))
        figures.same(self._contract.workers // cells, "graph_averages", "models")
        # Workers that were stopped at different clocks were never all compared at the last one.
        compared = bool(metrics) and len({*self._contract.stopped}) < 2
        last = metrics[-1].get("consensus_distance") if compared else None
        if isinstance(last, float) and self._contract.plan is not None:
            share = 1e-4 if header.n <= _SKETCH else 0.25
            is_free = self._contract.mode.variant == PUSH_SUM
            most = math.inf if is_free else last * (1 + share) + _ROUNDING
            least = last * (1 - share) - _ROUNDING
            figures.within(least, most, "graph_averages", "consensus_distance")

    def streamed(self, table: Table, workers: Table) -> None:
        """Check the bytes sent if averages are of fragments, or arrive late.

        Args:
            table: events of all workers; sums are matched.
            workers: the same, with those of a codec.
        """
        frame_bytes, _ = _coded_bytes(self._header, workers)
        due = streamed_bytes(self._contract, self._header, table, frame_bytes)
        for name in ("bytes_sent", "bytes_received") if due is not None else ():
            self._figures.same(due, name)

    def _sums(self) -> None:
        """Check the figures of the all-reduces of an update."""
        figures, header = self._figures, self._header
        buckets = figures.number("buckets") or 0
        if not header.servers:
            figures.same("", "shards_why")
        if header.algorithm is None:
            figures.same("", "allreduce_why")
            figures.same(0, "buckets")
        elif self._contract.mode.averages or not self._contract.mode.overlap:
            figures.same(1, "buckets")
        else:
            figures.within(1, header.n, "buckets")
        figures.same(buckets > 1, "overlap")  # the last bucket has nothing to overlap with

    def updates(self, updates: int) -> None:
        """Check the number of updates."""
        self._figures.same(updates, "updates")

    def trained(self, workers: Sequence[WorkerPieces], left: Sequence[bool], begun: int) -> None:
        """Check samples, steps and epochs.

        Args:
            workers: what each of them counts.
            left: of each, whether it announced that it leaves; otherwise it died.
            begun: epochs that some worker had finished when a step started.
        """
        figures, contract = self._figures, self._contract
        samples = [int(np.maximum(own.samples, 0).sum()) for own in workers]
        steps = [int(own.clock.max(initial=0)) for own in workers]
        self._reached("samples", samples, left, sum)
        self._reached("steps", steps, left, max)
        if contract.plan is not None and all(left):
            figures.same(int(contract.plan.epochs(np.array([max(steps)]))[0]), "epochs")
        else:  # a problem may split an epoch in any way
            figures.within(begun, contract.epochs + 1, "epochs")

    def _reached(
        self, name: str, each: list[int], left: Sequence[bool], of: Callable[[list[int]], int]
    ) -> None:
        """Check a figure of all workers; one that died may count for what it reported, or more."""
        least = of([it for it, has_left in zip(each, left, strict=True) if has_left] or [0])
        if all(left):
            self._figures.same(least, name)
        else:  # the events of some of them may be unknown
            self._figures.within(least, math.inf if self._contract.unreported else of(each), name)

    def counted(self, ranks: Sequence[Stats]) -> None:
        """Check the totals of what workers and shards count, by the folds of a run."""
        # The counts of a worker that went missing have not reached rank 0 either.
        ranks = [it for it in ranks if it.worker not in self._contract.unreported]
        figures, total = self._figures, Stats.merged(ranks)
        for name, due in (
            ("dropped", total.dropped),
            ("torn", total.torn),
            ("skew_max", max(total.skew, default=0)),
            ("skew", asdict(Counts.of(total.skew.items()))),
            ("staleness", asdict(Staleness.of_ranks(ranks))),
        ):
            figures.equal(due, name)
        if not self._contract.shards and not self._contract.pairs:
            figures.same(0, "clock_spread_max")

    def exchanged(
        self, *cells: tuple[Header, tuple[int, int], Table], codec: FrameContract | None
    ) -> None:
        """Check the bytes that workers sent to each other, if nobody died.

        Args:
            cells: of each, the header, the least and the most bytes that its workers sent without
                a codec, and the events of all of them.
            codec: of the frames; None if nothing was encoded.
        """
        figures = self._figures
        least, most = (sum(it[1][i] for it in cells) for i in range(2))
        framed = nbytes = 0
        if codec is None:
            figures.same(0, "frame_bytes")
        else:
            lows = highs = 0
            for header, _, table in cells:
                sent = int(table[Offer.receivers][table.where(Kind.OFFER)].sum())
                low, high = frame_bounds(codec, header.n, [Matrix(*it) for it in header.matrices])
                lows, highs = lows + sent * low, highs + sent * high
                framed += ITEMSIZE * header.n * sent
            figures.within(lows, highs, "frame_bytes")
            nbytes = int(figures.number("frame_bytes") or 0)
        figures.same(framed, "framed_bytes")
        for name in ("bytes_sent", "bytes_received"):
            figures.within(least - framed + nbytes, most - framed + nbytes, name)

    def shards(self, shards: list[Shard]) -> None:
        """Check the counts of updates, and how far ahead workers were, over shards of all cells."""
        self.updates(max(len(shard.updates) for shard in shards))
        spread = max(_spread(self._contract, it) for it in shards)
        self._figures.same(spread, "clock_spread_max")

    def measured(self, metrics: Sequence[Mapping[str, object]], *, died: bool = False) -> None:
        """Check the figures that follow from others, and from the last record.

        Loss and bytes are in no event. The last record has what all workers had reported by then.
        For workers that ``died`` nothing more is counted; the others send little after it, since
        they no longer train.
        """
        figures = self._figures
        seconds, samples = figures.number("seconds"), figures.number("samples")
        if seconds is not None and samples is not None:
            figures.near(samples / seconds if seconds else 0.0, "samples_per_second")
        if not metrics:
            return
        last, of = metrics[-1], "the last of metrics.jsonl"
        figures.same(last.get("loss"), "train_loss", of=of)
        figures.same(last.get("samples"), "samples", of=of)
        for name in ("bytes_sent", "bytes_received"):
            said, least = figures.number(name), last.get(name)
            due = max(said, least) if said is not None and isinstance(least, int) else least
            figures.same(due, name, of=of)
        if died:
            figures.same(last.get("step"), "steps", of=of)
            figures.same(last.get("epoch"), "epochs", of=of)
            ended = last.get("seconds")
            if isinstance(ended, float):  # to the digits of a summary
                figures.within(round(ended, 6), math.inf, "seconds")

    def sent(self, *cells: tuple[Header, Table, Sequence[Table]]) -> None:
        """Check the bytes sent between workers and servers, if nobody died.

        Args:
            cells: of each, the header, all events of its workers, with those of a codec, and the
                events of each of its shards.
        """
        figures = self._figures
        counted = [_served_bytes(*cell) for cell in cells]
        framed, whole, total = (sum(column) for column in zip(*counted, strict=True))
        total += sum(_relayed_bytes(self._contract, header, shards) for header, _, shards in cells)
        figures.same(framed, "frame_bytes")
        figures.same(whole, "framed_bytes")
        for name in ("bytes_sent", "bytes_received"):
            if self._contract.mode.has_teams:  # the ranks of a learner sent each other more
                figures.within(framed + total, math.inf, name)
            else:
                figures.same(framed + total, name)

    def cut(self, tables: Sequence[Table], *, exact: bool) -> None:
        """Check the bytes sent from stage to stage.

        Args:
            tables: all events of the workers of each cell.
            exact: whether there are no others: slices of a layer exchange sums, and clipped parts
                norms.
        """
        header, scattered = self._header, 0
        if header.has_whole_servers:
            # With each read but a copy's first, parts are gathered before it and scattered after.
            reads = tables[0]["shard"][tables[0].where(Kind.READ)] == 0
            rest = header.n - header.cells[0]["n"]
            copies = len(header.workers) // len(header.cells)
            scattered = 2 * ITEMSIZE * rest * (int(np.count_nonzero(reads)) - copies)
        for name, flag in (("cut_bytes_sent", 0), ("cut_bytes_received", CAME)):
            due = scattered
            for table in tables:
                at = table.where(Kind.MESSAGE)
                at = at[table["flag"][at] & CAME == flag]
                due += int(table.real(Message.nbytes)[at].sum())
            if exact:
                self._figures.same(due, name)
            else:
                self._figures.within(due, math.inf, name)

    def summed(self, *cells: tuple[Header, Table]) -> None:
        """Check the bytes of frames of sums over workers.

        Args:
            cells: of each, the header and all events of its workers, with those of a codec.
        """
        found = [_coded_bytes(*cell) for cell in cells]
        for name, parts in zip(
            ("frame_bytes", "framed_bytes"), zip(*found, strict=True), strict=True
        ):
            self._figures.same(sum(parts), name)

    def times(self, workers: Sequence[WorkerPieces]) -> None:
        """Check the duration of training, and each worker's waiting, if nobody died.

        A worker's time counts from before its first step until after its last event; in virtual
        time from 0 on and exactly. The pause between a checkpoint and its resumption does not
        count. The causes of waiting are in no event.

        Args:
            workers: what each of them counts.
        """
        figures, contract = self._figures, self._contract
        figures.length(contract.workers, "waiting")
        exact = contract.simulated and not contract.resumed and not contract.ends_late
        least = [float(times_of(contract, it)[0][-1]) for it in workers]
        longest = max(least)
        if exact:
            figures.near(longest, "seconds", slack=_MICROSECOND)
        else:
            figures.within(longest - _MICROSECOND, math.inf, "seconds", rounded=True)
        # No worker trained longer than the summary says, or for less time than its events take.
        most = max(figures.number("seconds") or 0.0, longest) + _MICROSECOND
        for worker, own in enumerate(least):
            seconds = float(workers[worker].waited.sum())
            self._waiting(worker, seconds)
            low = _share(seconds, own if exact else most)
            figures.within(low, _share(seconds, own), "waiting", worker, "share", rounded=True)

    def _waiting(self, worker: int, seconds: float) -> None:
        """Check one worker's waiting by cause, and by worker waited for."""
        figures = self._figures
        figures.same(worker, "waiting", worker, "worker")
        figures.near(seconds, "waiting", worker, "seconds")
        contract = self._contract
        causes: Sequence[str] = _CAUSES
        if not contract.mode.has_teams:
            causes = _CAUSES[:-1] if contract.shards or contract.mode.mixes else _CAUSES[-1:]
        for name in _CAUSES:
            figures.within(
                0.0, seconds if name in causes else 0.0, "waiting", worker, name, rounded=True
            )
        parts = [figures.number("waiting", worker, name) or 0.0 for name in _CAUSES]
        figures.near(sum(parts), "waiting", worker, "seconds", of="its causes")
        others = [str(it) for it in range(self._contract.workers) if it != worker]
        parts = []
        for name in figures.members(others, "waiting", worker, "waiting_for"):
            figures.within(0.0, seconds, "waiting", worker, "waiting_for", name, rounded=True)
            parts.append(figures.number("waiting", worker, "waiting_for", name) or 0.0)
        if contract.learners and (contract.grace or contract.fragments > 1):
            # The end of a window is no worker's.
            figures.within(sum(parts), seconds, "waiting", worker, "for_workers", rounded=True)
        else:
            figures.near(sum(parts), "waiting", worker, "for_workers", of="those waited for")

    def digests(self, saved: str | None, updates: int) -> None:
        """Check the digest of the parameters at the end.

        Args:
            saved: SHA-256 of the parameters beside the summary; None if unknown.
            updates: the number of updates; without any the parameters are the initial ones.
        """
        figures, header = self._figures, self._header
        if not header.numerics:
            figures.same("", "parameters_sha256")
            return
        said = figures.text("parameters_sha256")
        self._digest(said, "model.safetensors", saved)
        if not updates:
            self._digest(said, "the initial parameters", header.initial_sha256)

    def _digest(self, said: str, what: str, due: str | None) -> None:
        if not due:
            return
        self._findings.count(DIGESTS, 1)
        if said != due:
            text = f"{what} have SHA-256 {due[:16]}…, but the summary says {said[:16]}…"
            self._findings.missing(DIGESTS, text)


def _served_bytes(header: Header, workers: Table, shards: Sequence[Table]) -> tuple[int, int, int]:
    """Return the bytes of frames, of the numbers that they represent, and of all else sent."""
    sizes = ITEMSIZE * np.array([stop - start for start, stop in header.spans], np.int64)
    frames, framed, whole, total = workers.where(Kind.ENCODE), 0, 0, 0
    for table, kind in ((workers, Kind.ENCODE), *((it, Kind.REPLY_ENCODE) for it in shards)):
        at = table.where(kind)
        framed += int(table[Encode.nbytes][at].sum())  # the same column as in REPLY_ENCODE
        whole += int(sizes[table["shard"][at]].sum())
    for size, table in zip(sizes.tolist(), shards, strict=True):
        received, replies = table.where(Kind.RECEIVE), table.where(Kind.REPLY)
        messages = len(received) + len(replies) + len(table.where(Kind.LEFT))
        total += _MESSAGE * messages
        if not len(table.where(Kind.REPLY_ENCODE)):
            total += size * len(replies)
        if not len(frames):
            total += size * int(np.count_nonzero(table["samples"][received]))
    return framed, whole, total


def _relayed_bytes(contract: Contract, header: Header, shards: Sequence[Table]) -> int:
    """Return the bytes of what servers sent each other; within a server nothing is sent."""
    ranks = header.servers
    away = [ranks[it] != ranks[of] for it, of in enumerate(contract.deciders)]
    return _MESSAGE * sum(
        len(table.where(Kind.RELAY)) for table, sent in zip(shards, away, strict=True) if sent
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _spread(contract: Contract, shard: Shard) -> int:
    """Return the most steps by which a worker was ahead of the slowest.

    It is evaluated after each push, with the update that the push may have completed. In rounds no
    worker is behind the version: one that a round did not wait for continues with the next.
    """
    pushes = shard.pushes
    last = np.searchsorted(shard.message, pushes.message, side="right") - 1  # of the same message
    passed = shard.version[last] if contract.rounds else 0
    slowest = np.searchsorted(all_finished(shard), pushes.at, side="right") - 1
    ahead = np.maximum(pushes.clock + ~pushes.asks, passed) - np.maximum(slowest, passed)
    return int(ahead.max(initial=0))


def _coded_bytes(header: Header, workers: Table) -> tuple[int, int]:
    """Return the bytes that sums by a codec sent to other workers, and of their numbers."""
    return straight_bytes(workers) if goes_straight(header) else sent_bytes(header, workers)
