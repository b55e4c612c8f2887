"""What the stages of a split model did in each step: passes, messages, and weights.

A worker has a place: its copy of the model, its stage s of P and its slice of T. The workers with
the same stage and slice are a cell, whose history is checked as that of a separate job. This file
checks how the gradient of a step was computed: in the order of its schedule (``psrt.pipeline``),
with no more micro-batches alive than that promises, and from messages that arrived as they were
sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from psrt.config.names import DEFAULT_PIPELINE
from psrt.core.errors import ConfigError
from psrt.history import kinds
from psrt.history.check.findings import PIPELINE, EventRef, Findings
from psrt.history.check.table import (
    Floats,
    Ints,
    Table,
    find,
    previous,
    rank_in_run,
    repeats,
)
from psrt.history.events import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CAME,
    FORWARD,
    GRADIENT,
    OF_ALL,
    Kind,
)
from psrt.history.header import Header
from psrt.pipeline.registry import schedule_of
from psrt.pipeline.schedule import PipelineSchedule
from psrt.pipeline.step import COMPUTING
from psrt.pipeline.step import Kind as Step

KINDS = (Kind.PASS, Kind.MESSAGE)
#: By kind of step, the flag of its event.
_FLAGS: Mapping[Step, int] = {
    Step.FORWARD: FORWARD,
    Step.BACKWARD: BACKWARD,
    Step.BACKWARD_INPUT: BACKWARD_INPUT,
    Step.BACKWARD_WEIGHT: BACKWARD_WEIGHT,
}
_WORDS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    BACKWARD_INPUT: "backward to the input",
    BACKWARD_WEIGHT: "backward to the weights",
}
#: Passes after which activations are not needed any more.
_ENDS = (BACKWARD, BACKWARD_WEIGHT)
#: Bytes of the number that travels with a message.
_ALONG = 8


class Pass(NamedTuple):
    """An expected pass: its kind, micro-batch and chunk."""

    flag: int
    micro_batch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model was split, from a header."""

    #: Copies, stages and slices: D, P, T.
    copies: int
    stages: int
    slices: int
    #: Schedule, chunks of a stage, and micro-batches: V, M.
    schedule: PipelineSchedule
    chunks: int
    micro_batches: int
    #: Whether weight gradients are computed at the end, in one product.
    deferred: bool

    @property
    def asynchronous(self) -> bool:
        """Whether each micro-batch is a step, followed by an update."""
        return self.schedule.asynchronous

    def place(self, cell: int) -> tuple[int, int]:
        """Return stage and slice of a cell."""
        return divmod(cell, self.slices)

    def alive(self, stage: int, total: int) -> int:
        """Return the promise: the most micro-batches alive in a stage's chunks, of ``total``."""
        row = self.schedule
        return row.most_alive(stage, self.stages, total, self.chunks, deferred=self.deferred)

    def order(self, stage: int, total: int) -> list[Pass]:
        """Return the passes of a stage, in order.

        Args:
            stage: from 0.
            total: micro-batches.
        """
        steps = self.schedule(stage, self.stages, total, self.chunks, deferred=self.deferred)
        computed = (it for it in steps if it.kind in COMPUTING)
        return [Pass(_FLAGS[it.kind], it.micro_batch, it.chunk) for it in computed]


def layout_of(header: Header) -> Layout:
    """Return how the model of a run was split.

    Raises:
        ConfigError: if the header does not match its own config.
    """
    axes = dict(re.findall(r"(data|pipeline|tensor):(\d{1,7})", str(header.knob("parallel", ""))))
    copies, stages, slices = (int(axes.get(it, 1)) for it in ("data", "pipeline", "tensor"))
    chosen = schedule_of(str(header.knob("pipeline_schedule", DEFAULT_PIPELINE)))
    schedule, chunks = chosen.row, chosen.chunks
    micro_batches = header.knob("micro_batches", 1)
    if (
        stages * slices != len(header.cells)
        or copies * stages * slices != len(header.workers)
        or type(micro_batches) is not int
        or not 1 <= micro_batches <= header.knob("batch_size", 1)
    ):
        raise ConfigError(
            f"the history's header has {len(header.workers)} workers and {len(header.cells)} "
            f"cells, its config --parallel {header.knob('parallel')}"
        )
    return Layout(
        copies,
        stages,
        slices,
        schedule,
        chunks,
        micro_batches,
        bool(header.knob("defer_weights")),
    )


def without_passes(table: Table) -> Table:
    """Return a table without the events of stages, which the other rules do not expect."""
    passes = table.are(*KINDS)
    return Table(table.events[~passes], table.name) if passes.any() else table


class Steps(NamedTuple):
    """The steps of a worker, as positions in the table of its cell."""

    table: Table
    #: Positions of its steps, and of its stage's events.
    at: Ints
    own: Ints

    def column(self, name: str) -> Ints | Floats:
        """Return a column of the steps."""
        return self.table.column(name)[self.at]

    @property
    def epochs(self) -> Ints:
        """The epoch of each step."""
        return np.floor(self.table.real("progress")[self.at]).astype(np.int64)

    def staleness(self, most: int) -> Ints:
        """Return by how many updates the gradient of each step of a stage is late.

        Args:
            most: P − s − 1; it is less while the pipeline fills up.
        """
        return np.minimum(rank_in_run(self.epochs), most)


def check_pipeline(
    layout: Layout, tables: Sequence[Table], findings: Findings, *, one_clock: bool
) -> None:
    """Check what all workers did in their steps.

    Args:
        layout: how the model was split.
        tables: by cell, the events of its workers; each is valid as a job without faults.
        findings: takes what is wrong.
        one_clock: whether the times of two workers can be compared.
    """
    steps = [[_steps_of(table, copy) for copy in range(layout.copies)] for table in tables]
    _check_agreement(layout, steps, findings)
    if not findings.none:
        return
    for cell, copies in enumerate(steps):
        stage, _ = layout.place(cell)
        for own in copies:
            _check_passes(layout, stage, own, findings)
            _check_alive(layout, stage, own, findings)
    if not findings.none:
        return
    for cell, copies in enumerate(steps):
        for own in copies:
            _check_own_messages(layout, layout.place(cell)[0], own, findings)
    if findings.none:
        _check_messages(layout, steps, findings, one_clock=one_clock)


def _steps_of(table: Table, worker: int) -> Steps:
    mine = table["worker"] == worker
    kind = Kind.STEP if (table.are(Kind.STEP) & mine).any() else Kind.PUSH
    first = mine & table.are(kind) & (table["shard"] <= 0)
    return Steps(table, np.flatnonzero(first), np.flatnonzero(mine & table.are(*KINDS)))


def _check_agreement(layout: Layout, steps: list[list[Steps]], findings: Findings) -> None:
    """Check that all parts of a copy take the same steps on the same samples."""
    for cell, copies in enumerate(steps):
        stage, _ = layout.place(cell)
        for copy, (own, first) in enumerate(zip(copies, steps[0], strict=True)):
            count = min(len(own.at), len(first.at))
            for name in ("clock", "samples", "progress"):
                findings.on(own.table, own.at[:count]).require_equal(
                    PIPELINE,
                    own.column(name)[:count],
                    first.column(name)[:count],
                    f"step of stage {stage} of copy {copy} with {name} {{said}}, its first stage "
                    "has {due}",
                    because=[(first.table, first.at[:count])],
                )
            if len(own.at) != len(first.at):
                long = own if len(own.at) > count else first
                findings.missing(
                    PIPELINE,
                    f"stage {stage} of copy {copy} took {len(own.at)} steps, its first stage "
                    f"{len(first.at)}",
                    EventRef(long.table, int(long.at[count])),
                )


def _check_passes(layout: Layout, stage: int, own: Steps, findings: Findings) -> None:
    """Check the passes of a stage: their order, their rows and their weights."""
    table = own.table
    at = own.own[table.are(Kind.PASS)[own.own]]
    clocks, samples = (table[name][own.at] for name in ("clock", "samples"))
    ends = own.at
    if layout.asynchronous:
        flag, row = _never_drained(layout, stage, own.epochs)
        nothing = np.zeros_like(row)
        due = {kinds.Pass.flag: flag, kinds.Pass.micro_batch: nothing, kinds.Pass.chunk: nothing}
        rows = samples[row]
    else:
        clocks, ends, samples = clocks[samples > 0], ends[samples > 0], samples[samples > 0]
        order = np.array(layout.order(stage, layout.micro_batches), np.int64)
        row = np.repeat(np.arange(len(clocks)), len(order))
        flag, micro_batch, chunk = np.tile(order, (len(clocks), 1)).T
        due = {kinds.Pass.flag: flag, kinds.Pass.micro_batch: micro_batch, kinds.Pass.chunk: chunk}
        rows = _rows(samples[row], micro_batch, layout.micro_batches)
    due = {kinds.Pass.clock: clocks[row], **due, kinds.Pass.rows: rows}
    count = min(len(at), len(row))
    at, passes = at[:count], findings.on(table, at[:count])
    behind = [previous(at, -1)]
    said = {name: table[name][at] for name in due}
    wanted = {name: column[:count] for name, column in due.items()}
    same = np.all([said[name] == wanted[name] for name in due if name != kinds.Pass.rows], axis=0)
    passes.require(
        PIPELINE,
        same,
        f"stage {stage} went {{what}} at clock {{clock}}, expected {{due}} at clock {{at}}",
        what=lambda i: _words(said, i),
        due=lambda i: _words(wanted, i),
        at=wanted[kinds.Pass.clock],
        because=behind,
    )
    end = ends[row[:count]]
    text = f"stage {stage} ended step {{clock}} before it had computed micro-batch {{micro_batch}}"
    passes.require(PIPELINE, at < end, text, because=[end], counts=False)
    passes.require_equal(
        PIPELINE,
        said[kinds.Pass.rows],
        wanted[kinds.Pass.rows],
        "{kind} of micro-batch {micro_batch} of {said} rows at clock {clock}, expected {due}",
        counts=False,
    )
    if len(own.own) and len(row) != np.count_nonzero(table.are(Kind.PASS)[own.own]):
        findings.missing(
            PIPELINE,
            f"stage {stage} made {np.count_nonzero(table.are(Kind.PASS)[own.own])} passes, "
            f"expected {len(row)}",
            EventRef(table, int(own.own[-1])),
        )
    elif len(row) and not len(own.own):
        findings.missing(PIPELINE, f"stage {stage} made no passes, expected {len(row)}")
    if layout.asynchronous:
        if findings.none:
            _check_stash(layout, stage, own, at, findings)
    else:
        passes.require_equal(
            PIPELINE, table["version"][at], -1, "{kind} with version {said}", counts=False
        )


def _never_drained(layout: Layout, stage: int, epochs: Ints) -> tuple[Ints, Ints]:
    """Return, in order, the passes of a pipeline that is drained only at the ends of epochs.

    Args:
        layout: how the model was cut.
        stage: from 0.
        epochs: of each step.

    Returns:
        The flag of each pass, and the number of its step.
    """
    flags, steps = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    begins = np.flatnonzero(np.diff(epochs, prepend=-1))
    for begin, end in zip(begins, [*begins[1:], len(epochs)], strict=True):
        order = np.array(layout.order(stage, int(end - begin)), np.int64)
        flags.append(order[:, 0])
        steps.append(order[:, 1] + begin)
    return np.concatenate(flags), np.concatenate(steps)


def _check_stash(layout: Layout, stage: int, own: Steps, at: Ints, findings: Findings) -> None:
    """Check the weights of a batch's forward and backward passes, and how many were kept.

    Weights of version v have taken v steps. A batch goes forward with the newest, and backward with
    the same. By then P − s − 1 more steps were taken, or those since the pipeline was drained.
    """
    table = own.table
    clock, version = table["clock"][at], table["version"][at]
    forward, newest = table["flag"][at] == FORWARD, np.searchsorted(own.at, at)
    passes = findings.on(table, at)
    text = f"stage {stage} computed batch {{clock}} with the weights of version {{said}}, "
    passes.require_equal(
        PIPELINE, version, np.where(forward, newest, version), text + "its newest were {due}"
    )
    came = np.full(int(clock.max(initial=0)) + 1, -1)
    came[clock[forward]] = version[forward]
    passes.require_equal(
        PIPELINE, version, came[clock], text + "it had come with {due}", counts=False
    )
    passes.require_equal(
        PIPELINE,
        newest - version,
        np.where(forward, 0, own.staleness(layout.stages - stage - 1)[newest % len(own.at)]),
        f"stage {stage} computed batch {{clock}} with weights that are {{said}} updates old, "
        "expected {due}",
        counts=False,
    )
    _check_kept(layout, stage, own, at, findings)


def _check_kept(layout: Layout, stage: int, own: Steps, at: Ints, findings: Findings) -> None:
    """Check that no more versions were kept than promised, by counting.

    The kept versions are those of the batches in flight, which ascend, and the newest.
    """
    version, forward = own.table["version"][at], own.table["flag"][at] == FORWARD
    newest = np.searchsorted(own.at, at)
    came = version[forward] if forward.any() else newest
    ended = np.isin(own.table["flag"][at], _ENDS)
    oldest: Ints = np.cumsum(ended) - ended  # batches that have come back keep no version
    kept = newest - came[np.minimum(oldest, len(came) - 1)] + 1
    findings.on(own.table, at).require(
        PIPELINE,
        kept <= layout.stages - stage,
        f"stage {stage} keeps {{kept}} versions of its weights, expected at most "
        f"{layout.stages - stage}",
        kept=kept,
        counts=False,
    )


def _check_alive(layout: Layout, stage: int, own: Steps, findings: Findings) -> None:
    """Check that no more activations were alive than promised, by counting."""
    table = own.table
    at = own.own[table.are(Kind.PASS)[own.own]]
    flag, all_ = table["flag"][at], table[kinds.Pass.micro_batch][at] == OF_ALL
    total = len(own.at) if layout.asynchronous else layout.micro_batches
    ended = np.isin(flag, _ENDS)
    change = (flag == FORWARD) - ended * np.where(all_, total, 1)
    alive = np.cumsum(change)
    findings.on(table, at).require(
        PIPELINE,
        alive <= layout.alive(stage, total),
        f"{{alive}} micro-batches are alive in stage {stage}, expected at most "
        f"{layout.alive(stage, total)}",
        alive=alive,
        because=[previous(at, -1)],
    )


def _check_own_messages(layout: Layout, stage: int, own: Steps, findings: Findings) -> None:
    """Check that a stage sends what it has computed, and computes on what has arrived."""
    table, at = own.table, own.own
    message = table.are(Kind.MESSAGE)[at]
    flag, chunk, m = (
        table[name][at] for name in ("flag", kinds.Pass.chunk, kinds.Pass.micro_batch)
    )
    rows, clock = table[kinds.Pass.rows][at], table["clock"][at]
    back = np.where(message, flag & GRADIENT > 0, flag != FORWARD)
    virtual = chunk * layout.stages + stage
    last = layout.chunks * layout.stages - 1
    # A key for each micro-batch in each chunk, step and direction.
    key = ((clock * layout.micro_batches + m) * layout.chunks + chunk) * 2 + back
    passes = np.flatnonzero(~message & (flag != BACKWARD_WEIGHT) & (rows > 0))
    passes = passes[np.argsort(key[passes], kind="stable")]
    for way in ("came", "sent"):
        came = way == "came"
        found = np.flatnonzero(message & ((flag & CAME > 0) == came))
        # Nothing arrives at the first virtual stage or leaves the last; in reverse for gradients.
        there = virtual != np.where(back == came, last, 0)
        needs = passes[there[passes] & (layout.stages > 1)]
        of = find(key[needs], key[found])
        messages = findings.on(table, at[found])
        messages.require(
            PIPELINE,
            (of >= 0) & ~repeats(key[found]),
            f"micro-batch {{micro_batch}} of chunk {{chunk}} {way} at clock {{clock}} in "
            f"stage {stage}, which is not expected, or has happened before",
        )
        missing = needs[np.setdiff1d(np.arange(len(needs)), of)]
        text = f"stage {stage} computed micro-batch {{micro_batch}} at clock {{clock}}, which "
        text += f"never {way}"
        findings.on(table, at[missing]).forbid(PIPELINE, text)
        if not findings.none or not len(found):
            continue
        partner = needs[of]
        messages.require(
            PIPELINE,
            (found < partner) if came else (found > partner),
            f"micro-batch {{micro_batch}} at clock {{clock}} {way} at the wrong side of its pass",
            because=[at[partner]],
            counts=False,
        )
        neighbour = (virtual[found] + np.where(back[found] == came, 1, -1)) % layout.stages
        messages.require_equal(
            PIPELINE,
            table[kinds.Message.stage][at[found]],
            neighbour,
            f"micro-batch {{micro_batch}} {way} of stage {{said}}, expected {{due}}",
            counts=False,
        )
        same = rows[partner] == rows[found]
        text = f"micro-batch {{micro_batch}} at clock {{clock}} {way} with another number of rows"
        messages.require(PIPELINE, same, text, because=[at[partner]], counts=False)


def _check_messages(
    layout: Layout, steps: list[list[Steps]], findings: Findings, *, one_clock: bool
) -> None:
    """Check that one stage received what the other one sent, in that order."""
    stages, last = layout.stages, layout.chunks * layout.stages - 1
    for slice_ in range(layout.slices):
        for copy in range(layout.copies):
            of_stage = [steps[stage * layout.slices + slice_][copy] for stage in range(stages)]
            for edge in range(last if stages > 1 else 0):
                for back in (False, True):
                    ends = (edge + 1, edge) if back else (edge, edge + 1)
                    sent, came = (
                        _messages_of(of_stage[v % stages], v // stages, GRADIENT * back + came)
                        for v, came in zip(ends, (0, CAME), strict=True)
                    )
                    _check_way(sent, came, findings, one_clock=one_clock)


def _messages_of(own: Steps, chunk: int, flag: int) -> tuple[Table, Ints]:
    table, at = own.table, own.own
    wanted = table.are(Kind.MESSAGE)[at] & (table[kinds.Message.chunk][at] == chunk)
    return table, at[wanted & (table["flag"][at] == flag)]


def _check_way(
    sent: tuple[Table, Ints], came: tuple[Table, Ints], findings: Findings, *, one_clock: bool
) -> None:
    """Check the messages of one channel at both ends."""
    (writer, out), (reader, into) = sent, came
    count = min(len(out), len(into))
    if len(out) != len(into):
        long, at = (writer, out) if len(out) > count else (reader, into)
        text = f"{len(out)} messages were sent, but {len(into)} arrived"
        findings.missing(PIPELINE, text, EventRef(long, int(at[count])))
    asked = findings.on(reader, into[:count])
    out, into = out[:count], into[:count]
    because = [(writer, out)]
    for name, text in (
        ("clock", "a message came at clock {said}, but was sent at {due}"),
        (kinds.Message.micro_batch, "micro-batch {said} came, but {due} was sent"),
        (kinds.Message.rows, "micro-batch {micro_batch} came with {said} rows, of {due} sent"),
        (
            kinds.Message.nbytes,
            "{said:g} bytes of micro-batch {micro_batch} came, but {due:g} were sent",
        ),
    ):
        said, due = reader.column(name)[into], writer.column(name)[out]
        asked.require_equal(PIPELINE, said, due, text, because=because, counts=name == "clock")
    holds = (reader.real("time")[into] >= writer.real("time")[out]) | (not one_clock)
    asked.require(
        PIPELINE,
        holds,
        "micro-batch {micro_batch} came at {time:.6f} s, but was sent at {due:.6f} s",
        due=writer.real("time")[out],
        because=because,
        counts=False,
    )
    data = writer.real(kinds.Message.nbytes)[out] - _ALONG
    rows = writer[kinds.Message.rows][out]
    width = data[0] / rows[0] if count and rows[0] else 0.0
    findings.on(writer, out).require(
        PIPELINE,
        data == rows * width,
        "{nbytes:g} bytes of {rows} rows, expected {due:g}",
        due=rows * width + _ALONG,
        because=[out[:1].repeat(count)],
        counts=False,
    )


def _rows(samples: Ints, micro_batch: Ints, micro_batches: int) -> Ints:
    """Return the rows of a micro-batch: all have equally many, the first ones one more."""
    size, more = np.divmod(samples, micro_batches)
    return np.where(micro_batch == OF_ALL, samples, size + (micro_batch < more))


def _words(columns: dict[kinds.Field, Ints], i: int) -> str:
    what, m, chunk = (
        int(columns[name][i])
        for name in (kinds.Pass.flag, kinds.Pass.micro_batch, kinds.Pass.chunk)
    )
    whose = "all micro-batches" if m == OF_ALL else f"micro-batch {m}"
    return f"{_WORDS.get(what, '?')} of {whose}" + (f" in chunk {chunk}" if chunk else "")
