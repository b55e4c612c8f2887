"""A timeline as a drawing: a bar per worker, time to the right."""

from __future__ import annotations

from psrt.explain.svg import Canvas, text_width
from psrt.explain.timeline import Timeline, described, lesson
from psrt.explain.waiting import COMPUTE, MESSAGE, WAIT, Stretch

_MARGIN, _GUTTER, _LENGTH, _TOP, _ROW, _BAR = 26.0, 88.0, 1000.0, 84.0, 44.0, 28.0
#: Computing, by worker: Okabe and Ito's colours; who waits wears those of whom it waits for.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A6A6A", "#8C6D1F")


def draw(timeline: Timeline) -> Canvas:
    """Return the drawing."""
    bottom = _TOP + _ROW * timeline.workers
    title = " · ".join(described(timeline))
    text = lesson(timeline)
    width = 2 * _MARGIN + max(_GUTTER + _LENGTH, text_width(title, 16), text_width(text, 12))
    canvas = Canvas(width, bottom + 108, title)
    canvas.text(_MARGIN, 34, title, size=16, anchor="start", bold=True)
    _axis(canvas, timeline, bottom)
    for worker, line in enumerate(timeline.lines):
        y = _TOP + _ROW * worker
        canvas.text(_MARGIN, y + _BAR / 2, f"worker {worker}", anchor="start", bold=True)
        for stretch in line:
            _stretch(canvas, timeline, worker, stretch, y)
    _legend(canvas, bottom + 52)
    canvas.text(_MARGIN, bottom + 84, text, anchor="start", fill="#444444")
    return canvas


def _colour(worker: int) -> str:
    return _COLOURS[worker % len(_COLOURS)]


def _x(timeline: Timeline, seconds: float) -> float:
    return _MARGIN + _GUTTER + _LENGTH * seconds / timeline.seconds


def _stretch(canvas: Canvas, timeline: Timeline, worker: int, stretch: Stretch, y: float) -> None:
    """Draw a full bar for computing, a thin one for waiting, a line for messages."""
    x, end = _x(timeline, stretch.start), _x(timeline, stretch.stop)
    middle = y + _BAR / 2
    if stretch.what == COMPUTE:
        canvas.rect(x, y, end - x, _BAR, fill=_colour(worker), stroke="white", line=1.2, radius=2)
        if end - x >= 18:
            canvas.text((x + end) / 2, middle, str(stretch.whom + 1), size=10, fill="white")
    elif stretch.what == WAIT:
        canvas.rect(x, middle - 4, end - x, 8, fill=_colour(stretch.whom) + "55")
        if end - x >= 22:
            canvas.tag((x + end) / 2, middle, str(stretch.whom), fill=_colour(stretch.whom))
    else:
        canvas.line(x, middle, end, middle, stroke="#888888", width=1.5)


def _axis(canvas: Canvas, timeline: Timeline, bottom: float) -> None:
    """Draw a scale in usual steps."""
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * 25 >= timeline.seconds)
    mark = 0
    while mark <= timeline.seconds:
        x = _x(timeline, mark)
        canvas.line(x, _TOP - 10, x, bottom, stroke="#E3E6EA")
        canvas.text(x, bottom + 12, str(mark), size=10, fill="#555555")
        mark += apart
    canvas.text(_MARGIN, bottom + 12, "usual steps", size=10, anchor="start", fill="#555555")


def _legend(canvas: Canvas, y: float) -> None:
    x = _MARGIN
    canvas.rect(x, y - 9, 34, 18, fill=_colour(0), radius=2)
    canvas.text(x + 17, y, "1", size=10, fill="white")
    x = _label(canvas, x + 42, y, "computes its first step")
    canvas.rect(x, y - 4, 44, 8, fill=_colour(1) + "55")
    canvas.tag(x + 22, y, "1", fill=_colour(1))
    x = _label(canvas, x + 52, y, "waits for worker 1")
    canvas.line(x, y, x + 30, y, stroke="#888888", width=1.5)
    _label(canvas, x + 38, y, f"{MESSAGE} on its way")


def _label(canvas: Canvas, x: float, y: float, text: str) -> float:
    """Write a text of the legend and return where the next entry begins."""
    canvas.text(x, y, text, size=11, anchor="start", fill="#555555")
    return x + text_width(text, 11) + 24
