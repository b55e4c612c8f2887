"""A pipeline as a film: stages are lanes, a frame is a unit of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from psrt.core.units import plural
from psrt.pipeline import ALL, Kind, PipelineStep
from psrt.pipeline.step import COMPUTING, SENDING, WEIGHT_PASSES
from psrt.views.explain.pipeline import Explained
from psrt.views.explain.pipeline_output import cells_of, facts, legend, title
from psrt.views.film.film import (
    Bar,
    Cell,
    Change,
    Cost,
    Film,
    Frame,
    Lane,
    Lanes,
    Look,
    Message,
    SoFar,
    Strip,
)

#: Colours of the three kinds of passes, by their letters, and of the two kinds of messages.
_STYLES = {"F": 0, "B": 4, "W": 2}
_NAMES = {"F": "forward", "B": "backward to the input", "W": "backward to the weights"}
_STRENGTHS = 0.55, 0.3
_ACTIVATION, _GRADIENT, _ALIVE = 0, 4, 3
#: Most units that are visible at once, so that numbers in bars can be read.
_WINDOW = 36.0


class _Alive(NamedTuple):
    """A stage keeps more or fewer activations from some time on."""

    time: float
    more: int


def film_of(found: Explained) -> Film:
    """Return the film of a pipeline."""
    plan = found.row.plan(found.stages, found.micro_batches, found.chunks, deferred=found.deferred)
    messages = sorted(_messages(found, plan), key=lambda it: (it.stop, it.source))
    alive = _alive(found, plan)
    total = found.price.seconds
    names = tuple(f"stage {stage}" for stage in range(found.stages))
    heading, _, summary = title(found).partition(": ")
    return Film(
        title=heading,
        lead=summary,
        names=names,
        start=tuple((_held(0),) for _ in names),
        frames=tuple(_frames(found, messages, alive)),
        scene=Lanes(
            lanes=tuple(map(Lane, names)),
            lane_of=tuple(range(found.stages)),
            bars=tuple(_bars(found)),
            strip=Strip(26.0, 24.0, 1),
            columns=("alive",),
            window=min(_WINDOW, total),
            end=total,
            unit="units",
        ),
        costs=tuple(_costs(found, len(messages))),
        heading=title(found),
        legend=tuple((_NAMES[letter], style, _STRENGTHS[0]) for letter, style in _STYLES.items()),
        facts=tuple(facts(found)),
        reading=tuple(legend(found)),
    )


def _held(count: int) -> Cell:
    return Cell(str(count), _ALIVE if count else -1, min(0.12 + 0.05 * count, 0.5))


def _bars(found: Explained) -> Iterator[Bar]:
    for stage, runs in enumerate(found.price.runs):
        for run in runs:
            texts = cells_of(run, found.chunks)
            width = (run.end - run.start) / len(texts)
            parts = [(texts[0], run.end - run.start)]
            if len(set(texts)) > 1:
                parts = [(text, width) for text in texts]
            start = run.start
            for text, units in parts:
                strength = _STRENGTHS[run.step.chunk % 2]
                yield Bar(stage, start, start + units, text, Look(_STYLES[text[0]], strength))
                start += units


def _messages(found: Explained, plan: Sequence[Sequence[PipelineStep]]) -> Iterator[Message]:
    """Yield the messages of the plan, each at the time when its content has been computed."""
    for stage, steps in enumerate(plan):
        runs = iter(found.price.runs[stage])
        made: dict[tuple[bool, int, int], float] = {}
        for step in steps:
            kind, m, chunk, peer = step
            if kind in COMPUTING:
                made[kind is Kind.FORWARD, m, chunk] = next(runs).end
            elif kind in SENDING:
                forward = kind is Kind.SEND_ACTIVATION
                time = made[forward, m, chunk]
                what = "activation" if forward else "gradient"
                piece = f" of its chunk {chunk}" if found.chunks > 1 else ""
                yield Message(
                    stage, peer, str(m), f"stage {stage} → stage {peer}: {what} of {m}{piece}",
                    _ACTIVATION if forward else _GRADIENT, time, time,
                )  # fmt: skip


def _alive(found: Explained, plan: Sequence[Sequence[PipelineStep]]) -> list[list[_Alive]]:
    """Return by stage, in the order of its steps, when it keeps more activations, or fewer."""
    made = {
        (run.step.chunk * found.stages + stage, run.step.micro_batch): run.end
        for stage, runs in enumerate(found.price.runs)
        for run in runs
        if run.step.kind is Kind.FORWARD
    }
    return [list(_of_stage(found, stage, steps, made)) for stage, steps in enumerate(plan)]


def _of_stage(
    found: Explained,
    stage: int,
    steps: Sequence[PipelineStep],
    made: Mapping[tuple[int, int], float],
) -> Iterator[_Alive]:
    """Yield a change whenever the stage receives, makes or frees an input."""
    runs = iter(found.price.runs[stage])
    received: set[tuple[int, int]] = set()
    clock = 0.0
    for kind, m, chunk, _ in steps:
        if kind is Kind.RECEIVE_ACTIVATION:
            received.add((chunk, m))
            yield _Alive(max(clock, made[chunk * found.stages + stage - 1, m]), 1)
        elif kind in COMPUTING:
            clock = next(runs).end
            if kind is Kind.FORWARD and (chunk, m) not in received:
                yield _Alive(clock, 1)
            if kind in WEIGHT_PASSES:
                yield _Alive(clock, -found.micro_batches if m == ALL else -1)


def _frames(
    found: Explained, messages: Sequence[Message], alive: Sequence[Sequence[_Alive]]
) -> Iterator[Frame]:
    """Yield the start, and a frame at the end of every unit of time."""
    total = round(found.price.seconds)
    waiting = [deque(it) for it in alive]
    counts, most = [0] * found.stages, 0
    pending, busy = deque(messages), 0
    ahead = [deque(runs) for runs in found.price.runs]
    for unit in range(total + 1):
        for runs in ahead:
            while runs and runs[0].end < unit:
                runs.popleft()
        idle = [stage for stage, runs in enumerate(ahead) if not runs or runs[0].start >= unit]
        busy += found.stages - len(idle)
        arriving = []
        while pending and pending[0].stop <= unit:
            arriving.append(pending.popleft())
        changes = []
        for stage, events in enumerate(waiting):
            before = counts[stage]
            while events and events[0].time <= unit:
                counts[stage] += events.popleft().more
                most = max(most, counts[stage])
            if counts[stage] != before:
                changes.append(Change(stage, 0, _held(counts[stage])))
        yield Frame(
            label=f"unit {unit}" if unit else "start",
            caption=_caption(idle, found.stages) if unit else "Nothing has been computed.",
            messages=tuple(arriving),
            changes=tuple(changes),
            costs=_so_far(found, unit, busy, len(messages) - len(pending), len(messages), most),
            time=float(unit),
        )


def _caption(idle: Sequence[int], stages: int) -> str:
    """Return what the stages did in a unit."""
    if not idle:
        return "All stages compute."
    if len(idle) == stages:
        return "All stages are idle."
    names = f"Stage {idle[0]} is" if len(idle) == 1 else f"{plural(len(idle), 'stage')} are"
    which = f" ({', '.join(map(str, idle))})" if 1 < len(idle) <= 8 else ""
    return f"{names} idle{which}."


def _costs(found: Explained, messages: int) -> Iterator[Cost]:
    total, stages = round(found.price.seconds), found.stages
    least = max(found.price.busy)
    yield Cost("time, units", str(total), f"{least:g}", least / total)
    idle = round(sum(found.price.idle))
    yield Cost("idle, units of all stages", f"{idle} of {total * stages}", "0", 0.0)
    yield Cost("messages", str(messages), "", 0.0)
    yield Cost("most activations alive in a stage", str(max(found.proof.alive)), "", 0.0)


def _so_far(
    found: Explained, unit: int, busy: int, sent: int, messages: int, most: int
) -> tuple[SoFar, ...]:
    def share(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    idle, whole = unit * found.stages - busy, round(sum(found.price.idle))
    return (
        SoFar(str(unit), share(unit, found.price.seconds)),
        SoFar(str(idle), share(idle, whole)),
        SoFar(str(sent), share(sent, messages)),
        SoFar(str(most), share(most, max(found.proof.alive))),
    )
