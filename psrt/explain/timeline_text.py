"""A timeline as text: a row per worker, time to the right. Pure."""

from __future__ import annotations

from itertools import groupby

from psrt.explain.timeline import Timeline, described, lesson
from psrt.explain.waiting import COMPUTE, MESSAGE, WAIT, Stretch

#: Workers are called by one character where they are waited for.
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_COMPUTES, _STEP_ENDS, _WAITS, _TRAVELS = "█", "▌", "·", "-"
_LEGEND = (
    f"{_COMPUTES} computes ({_STEP_ENDS} end of a step)   {_WAITS}0{_WAITS} waits for worker 0   "
    f"{_TRAVELS} message on its way"
)


def as_text(timeline: Timeline, *, width: int = 76) -> str:
    """Return the drawing, its legend and its lesson.

    Args:
        timeline: what to draw.
        width: characters of the time axis.
    """
    label = len(f"worker {timeline.workers - 1}")
    rows = [
        f"{f'worker {worker}':{label}}  {row_of(line, timeline.seconds, width).rstrip()}"
        for worker, line in enumerate(timeline.lines)
    ]
    axis = f"{'steps':{label}}  {_axis(timeline.seconds, width)}"
    shares = [
        f"{f'worker {i}':{label}}  {timeline.share(i, COMPUTE):4.0%} computing   "
        f"{timeline.share(i, WAIT):4.0%} waiting{_whom(timeline, i)}"
        for i in range(timeline.workers)
    ]
    parts = [" · ".join(described(timeline)), *rows, axis, "", _LEGEND, "", *shares, ""]
    return "\n".join([*parts, lesson(timeline)])


def row_of(line: tuple[Stretch, ...], seconds: float, width: int) -> str:
    """Return one worker's row: each character is what the worker did in the middle of its time.

    >>> row_of((Stretch(0, 4, COMPUTE, 0), Stretch(4, 7, WAIT, 1), Stretch(7, 8, COMPUTE, 1)), 8, 8)
    '████·1·█'
    """
    found = [_at(line, (column + 0.5) * seconds / width) for column in range(width)]
    text = ""
    for stretch, run in groupby(found):
        length = len(list(run))
        if stretch is None:
            text += " " * length
        elif stretch.what == COMPUTE:
            after = found[len(text) + length] if len(text) + length < width else None
            ends = after is not None and after.what == COMPUTE
            text += _COMPUTES * (length - 1) + (_STEP_ENDS if ends else _COMPUTES)
        elif stretch.what == WAIT:
            text += LETTERS[stretch.whom].center(length, _WAITS)
        else:
            text += _TRAVELS * length
    return text


def _at(line: tuple[Stretch, ...], time: float) -> Stretch | None:
    return next((s for s in line if s.start <= time < s.stop), None)


def _axis(seconds: float, width: int) -> str:
    """Return the time axis, marked in usual steps, no nearer than the marks can be read."""
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * width / seconds >= 6)
    text = ""
    mark = 0
    while (column := round(mark * width / seconds)) < width:
        text = f"{text:{column}}{mark}"
        mark += apart
    return text


def _whom(timeline: Timeline, worker: int) -> str:
    """Return whom a worker waits for most, with its share."""
    shares = [(timeline.share(worker, WAIT, i), -i) for i in range(timeline.workers)]
    share, whom = max(shares)
    rest = timeline.share(worker, MESSAGE)
    texts = [f"{share:.0%} for worker {-whom}"] if share >= 0.005 else []
    texts += [f"messages {rest:.0%}"] if rest >= 0.005 else []
    return f"   ({', '.join(texts)})" if texts else ""
