"""How runs ended: their figures, side by side where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from psrt.report.summary import Summary
from psrt.units import plural
from psrt.views.page.parts import Note, Part, Section, Table
from psrt.views.page.words import NONE, nbytes, number, percent, seconds
from psrt.views.report import again
from psrt.views.report.folder import RunFolder


def section(runs: Sequence[RunFolder]) -> Section:
    """Return the section; it is never empty."""
    rows = [(name, *map(value_of, runs)) for name, value_of in _rows(runs)]
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    several = len(runs) > 1
    table = Table(
        rows,
        head=("", *(run.name for run in runs)) if several else (),
        styles=range(len(runs)) if several else (),
    )
    parts: list[Part] = [
        Note(f"{run.name}: {line}" if several else line, "bad")
        for run in runs
        for line in run.damage
    ]
    return Section("outcome", "Outcome", [*parts, table])


def state(run: RunFolder) -> str:
    """Return whether a run came to its end, and how far it came if not."""
    if run.summary is not None and run.end is None:
        ended = "finished"
        if run.summary.missing:
            ended += f", without {plural(len(run.summary.missing), 'worker')}"
        return ended
    text = "no summary: under way, or ended early" if run.end is None else str(run.end)
    # Either may have been written later.
    step, after = run.progress.get("clock", 0), run.progress.get("seconds")
    if run.metrics is not None and len(run.metrics) and run.metrics["step"][-1] > step:
        step, after = float(run.metrics["step"][-1]), float(run.metrics["seconds"][-1])
    if step:
        text += f"; at step {number(step)}"
        text += f" after {seconds(after)}" if after is not None else ""
    return text


def _resume(run: RunFolder) -> str:
    """Return how to go on with a run that ended early."""
    if run.end is None:
        return NONE
    if (words := again.resume(run)) is None:
        return "there is no checkpoint: --checkpoint-every keeps them"
    return words


def _rows(runs: Sequence[RunFolder]) -> list[tuple[str, Callable[[RunFolder], str]]]:
    target = _target(runs)
    return [
        ("state", state),
        ("to resume", _resume),
        ("mode", lambda run: run.mode or NONE),
        ("ranks", _ranks),
        ("test accuracy", lambda run: percent(_last(run, "test_accuracy", "accuracy"))),
        ("test loss", lambda run: number(_last(run, "test_loss", "test_loss"))),
        *((f"test {name}", _figure(name)) for name in _figures(runs)),
        ("training loss", lambda run: number(_last(run, "train_loss", "loss"))),
        ("time", _time),
        (
            f"time to {percent(target)} accuracy" if target else "",
            lambda run: seconds(run.metrics.seconds_to(target)) if target and run.metrics else NONE,
        ),
        ("samples", lambda run: number(_last(run, "samples", "samples"), 15)),
        ("samples per second", _speed),
        ("steps", lambda run: number(_last(run, "steps", "step"), 15)),
        ("updates", _of(lambda it: f"{it.updates:,}")),
        ("parameters", _of(lambda it: f"{it.parameters:,}")),
        ("staleness, mean", _staleness),
        ("waiting, mean of workers", _waiting),
        ("bytes sent", _of(lambda it: nbytes(it.bytes_sent + it.cut_bytes_sent))),
        ("gradients not used", _of(lambda it: f"{it.dropped:,}" if it.dropped else NONE)),
        ("SHA-256 of the parameters", _of(lambda it: it.parameters_sha256[:16] or NONE)),
    ]


def _figures(runs: Sequence[RunFolder]) -> Iterable[str]:
    """Return the names of what else was found on the test set."""
    found = (run.summary.test_figures for run in runs if run.summary is not None)
    return dict.fromkeys(name for it in found for name in it)


def _figure(name: str) -> Callable[[RunFolder], str]:
    return _of(lambda it: number(it.test_figures.get(name)))


def _of(text_of: Callable[[Summary], str]) -> Callable[[RunFolder], str]:
    return lambda run: NONE if run.summary is None else text_of(run.summary)


def _last(run: RunFolder, in_summary: str, column: str) -> float | None:
    """Return a figure of the summary, or the last one in the metrics where there is none."""
    if run.summary is not None:
        found: float | None = getattr(run.summary, in_summary)
        return found
    if run.metrics is None or not run.metrics.has(column):
        return None
    values = run.metrics[column]
    return float(values[np.isfinite(values)][-1])


def _ranks(run: RunFolder) -> str:
    if run.summary is None:
        return NONE if run.ranks is None else f"{run.ranks:,}"
    roles = [
        plural(count, role)
        for role, count in (("server", run.summary.servers), ("worker", run.summary.workers))
        if count
    ]
    return ", ".join(roles)


def _time(run: RunFolder) -> str:
    text = seconds(_last(run, "seconds", "seconds"))
    return f"{text} of virtual time" if run.virtual and text != NONE else text


def _speed(run: RunFolder) -> str:
    if run.summary is None:
        return NONE
    return number(run.summary.samples_per_second, 3)


def _staleness(run: RunFolder) -> str:
    if run.summary is None or not run.summary.staleness.histogram:
        return NONE
    staleness = run.summary.staleness
    return f"{number(staleness.mean, 3)} versions, the largest {staleness.max:,}"


def _waiting(run: RunFolder) -> str:
    workers = run.summary.waiting if run.summary is not None else ()
    if not workers:
        return NONE
    return percent(sum(it.share for it in workers if it.share is not None) / len(workers))


def _target(runs: Sequence[RunFolder]) -> float | None:
    """Return the accuracy that all runs reached, in whole percents."""
    best = [
        float(np.nanmax(run.metrics["accuracy"]))
        for run in runs
        if run.metrics is not None and run.metrics.has("accuracy")
    ]
    target = math.floor(100 * min(best, default=0.0) + 1e-9) / 100
    return target if 0 < target <= 1 else None
