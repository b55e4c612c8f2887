"""A pipeline in words, all pipelines in a table, and both as JSON for programs.

==================  ==============================================================================
key                 value
==================  ==============================================================================
format              ``"psrt explain pipeline 1"``
schedule            its name; ``stages``, ``micro_batches``, ``chunks`` of a stage, and whether
                    weights are ``deferred``
units               of time that it takes; each pass of a chunk takes 1
bubble              share of the time in which stages are idle
speedup             over a single stage
alive               by stage, the most activations that are alive at a time, each of one micro-batch
                    in one chunk
messages            of all stages
staleness           by stage, the updates between a batch's passes, at most; null where the update
                    is at the end
versions            by stage, the versions of its parameters that are kept at most
lines               by stage, in order of time: ``{"start", "stop", "kind", "micro_batch",
                    "chunk"}``; micro-batch −1 is all
steps               by stage, in order: ``{"kind", "micro_batch", "chunk", "peer"}``
==================  ==============================================================================

A comparison has the format ``"psrt explain pipeline compare 1"`` and the keys down to ``versions``
for each of its ``schedules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from psrt.core.units import plural
from psrt.pipeline import ALL, Kind
from psrt.pipeline.timeline import Run
from psrt.views.explain.pipeline import Explained

FORMAT: Final = "psrt explain pipeline 1"
COMPARE_FORMAT: Final = "psrt explain pipeline compare 1"
#: Letters of the kinds of passes.
_FORWARD, _INPUT, _WEIGHT = "F", "B", "W"
_LEGEND = (
    f"{_FORWARD}3 forward of micro-batch 3, {_INPUT}3 backward to the input, {_WEIGHT}3 backward "
    "to the weights; a column is one pass."
)


def as_document(found: Explained) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    plan = found.row.plan(found.stages, found.micro_batches, found.chunks, deferred=found.deferred)
    return {
        "format": FORMAT,
        **_figures(found),
        "lines": [
            [
                {
                    "start": round(run.start),
                    "stop": round(run.end),
                    "kind": run.step.kind.value,
                    "micro_batch": run.step.micro_batch,
                    "chunk": run.step.chunk,
                }
                for run in runs
            ]
            for runs in found.price.runs
        ],
        "steps": [[{**it._asdict(), "kind": it.kind.value} for it in steps] for steps in plan],
    }


def compared_document(rows: Sequence[Explained]) -> dict[str, Any]:
    """Return what ``--json`` prints of a comparison."""
    return {"format": COMPARE_FORMAT, "schedules": [_figures(found) for found in rows]}


def _figures(found: Explained) -> dict[str, Any]:
    return {
        "schedule": found.row.name,
        "stages": found.stages,
        "micro_batches": found.micro_batches,
        "chunks": found.chunks,
        "deferred": found.deferred,
        "units": round(found.price.seconds),
        "bubble": found.price.bubble,
        "speedup": found.speedup,
        "alive": list(found.proof.alive),
        "messages": found.proof.messages,
        "staleness": list(found.proof.staleness) if found.row.asynchronous else None,
        "versions": list(found.proof.versions),
    }


def title(found: Explained) -> str:
    """Return the heading."""
    batches = "batch" if found.row.asynchronous else "micro-batch"
    many = plural(found.micro_batches, batches).replace("batchs", "batches")
    late = ", weights deferred" if found.deferred else ""
    return f"{found.name}, {plural(found.stages, 'stage')}, {many}{late}: {found.row.summary}"


def legend(found: Explained) -> Iterator[str]:
    """Yield what the letters mean."""
    yield _LEGEND.replace("micro-batch", "batch") if found.row.asynchronous else _LEGEND
    if found.chunks > 1:
        yield f"The letter after a number is the chunk, {chunks_of(found)}."
    if found.deferred:
        yield f"{_WEIGHT}* is one product of all micro-batches."


def chunks_of(found: Explained) -> str:
    """Return the letters of the chunks, and what a column is."""
    first, last = _chunk(0), _chunk(found.chunks - 1)
    return f"{first} to {last}; a pass of a chunk takes 1/{found.chunks} of that of a stage"


def facts(found: Explained) -> Iterator[tuple[str, str]]:
    """Yield the figures of the timeline, by name."""
    bubble = f"{found.price.bubble:.1%} of the time"
    formula = "" if found.deferred else found.row.formula
    if formula and (found.micro_batches >= found.stages or not found.row.chunked):
        bubble += f"; {formula}"
    total = round(found.price.seconds)
    yield "bubble", bubble
    yield "time", f"{plural(total, 'unit')}, in which each stage computes for {_busy(found)}"
    yield "speedup", f"{found.speedup:.3g} over a single stage, if only the bubble costs time"
    each = "" if found.chunks == 1 else f", each of one of its {found.chunks} chunks"
    yield "alive", f"at most {_by_stage(found.proof.alive, 'activation')}{each}"
    there = found.proof.messages // 2
    yield "messages", f"{found.proof.messages}: {there} activations, {there} gradients"
    if found.row.asynchronous:
        yield (
            "staleness",
            f"{_by_stage(found.proof.staleness, 'update')}; kept: "
            f"{_by_stage(found.proof.versions, 'version')}",
        )
    if found.row.source:
        yield "source", found.row.source


def _busy(found: Explained) -> int:
    return round(found.price.busy[0])


def _by_stage(numbers: Sequence[int], noun: str) -> str:
    """Return numbers by stage, or a single one if they are all the same.

    >>> _by_stage((4, 3, 2), "update"), _by_stage((8, 8, 8), "update")
    ('4 3 2 updates by stage', '8 updates in every stage')
    """
    if len(set(numbers)) == 1:
        return f"{plural(numbers[0], noun)} in every stage"
    return f"{' '.join(map(str, numbers))} {noun}s by stage"


def _chunk(chunk: int) -> str:
    """Return the letter of a chunk."""
    return chr(ord("a") + chunk) if chunk < 26 else f".{chunk}"


def cells_of(run: Run, chunks: int) -> list[str]:
    """Return the text in the columns of a computation."""
    kind, m, chunk, _ = run.step
    units = round(run.end - run.start)
    behind = ("*" if m == ALL else str(m)) + (_chunk(chunk) if chunks > 1 else "")
    if kind is Kind.BACKWARD:
        return [_INPUT + behind, _WEIGHT + behind]
    letter = {Kind.FORWARD: _FORWARD, Kind.BACKWARD_INPUT: _INPUT}.get(kind, _WEIGHT)
    return [letter + behind] * units


def compared_text(rows: Sequence[Explained]) -> str:
    """Return a table of the schedules of a comparison."""
    heads = ("schedule", "bubble", "speedup", "units", "alive", "messages", "staleness")
    table = [heads]
    for found in rows:
        alive = [f"{it:g}" for it in found.alive]
        span = alive[0] if len(set(alive)) == 1 else f"{alive[0]} to {alive[-1]}"
        stale = found.proof.staleness
        table.append(
            (
                found.name + (", weights deferred" if found.deferred else ""),
                f"{found.price.bubble:.1%}",
                f"{found.speedup:.2f}",
                f"{found.price.seconds / found.chunks:g}",
                span,
                str(found.proof.messages),
                f"{stale[0]} to {stale[-1]}" if found.row.asynchronous else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in table
    ]
    first = rows[0]
    sizes = f"{plural(first.stages, 'stage')}, {first.micro_batches} micro-batches"
    return "\n".join(
        [
            f"{sizes}; each pass of a micro-batch through a stage takes one unit",
            "",
            *lines,
            "",
            "bubble     share of the time in which stages are idle",
            "speedup    over a single stage, if only the bubble costs time",
            "alive      most micro-batches whose activations are kept, first to last stage",
            "messages   activations and gradients sent between stages, of all stages",
            "staleness  updates between the two passes of a batch, first to last stage",
            "",
            f"pipedream processes {first.micro_batches} "
            f"batch{'es' if first.micro_batches > 1 else ''}, all others one batch in as many "
            "micro-batches.",
        ]
    )
