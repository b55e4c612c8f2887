"""A timeline as text, as a drawing, and as JSON for programs.

=============  ===================================================================================
key            value
=============  ===================================================================================
format         ``"psrt explain timeline 1"``
mode, steps    the mode, and steps per worker; ``workers`` and ``servers`` count them
slow           by worker, the factor by which its steps take longer
seconds        time at which the last worker finished; a normal step takes 1
lines          by worker, in order of time: ``{"start", "stop", "what"}``; ``what`` is
               ``compute``, with ``step`` (from 0 on), or what it waits for: ``workers``, with
               ``waiting_for`` (the one), or ``messages``
shares         by worker, as fractions of its time: ``compute``, ``waiting``, and of that for
               ``workers`` and for ``messages``
staleness      ``{"mean", "max"}`` in versions; null where there is none
lesson         one line for people
=============  ===================================================================================
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from psrt.explain.svg import Canvas, text_width
from psrt.explain.timeline import (
    COMPUTE,
    MESSAGES,
    WAITING,
    WORKERS,
    Stretch,
    Timeline,
    described,
    lesson,
)

#: One character for each worker, for waits in the drawing.
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_COMPUTES, _STEP_ENDS, _WAITS, _TRAVELS = "█", "▌", "·", "-"
_LEGEND = (
    f"{_COMPUTES} computes ({_STEP_ENDS} end of a step)   {_WAITS}0{_WAITS} waits for worker 0   "
    f"{_TRAVELS} waits for messages"
)


def as_text(timeline: Timeline, *, width: int = 76) -> str:
    """Return the drawing, its legend and its lesson.

    Args:
        timeline: what to draw.
        width: of the time axis, in characters.
    """
    label = len(f"worker {timeline.workers - 1}")
    rows = [
        f"{f'worker {worker}':{label}}  {row_of(line, timeline.seconds, width).rstrip()}"
        for worker, line in enumerate(timeline.lines)
    ]
    axis = f"{'steps':{label}}  {_axis(timeline.seconds, width)}"
    shares = [
        f"{f'worker {i}':{label}}  {timeline.share(i, COMPUTE):4.0%} computing   "
        f"{timeline.share(i, *WAITING):4.0%} waiting{_waiting_for(timeline, i)}"
        for i in range(timeline.workers)
    ]
    parts = [" · ".join(described(timeline)), *rows, axis, "", _LEGEND, "", *shares, ""]
    return "\n".join([*parts, lesson(timeline)])


def row_of(line: tuple[Stretch, ...], seconds: float, width: int) -> str:
    """Return one worker's row: a character shows what the worker did at the middle of its time.

    >>> row_of((Stretch(0, 4, COMPUTE, 0), Stretch(4, 7, WORKERS, 1)), 8, 8)
    '████·1· '
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
        elif stretch.what == WORKERS:
            text += LETTERS[stretch.waiting_for].center(length, _WAITS)
        else:
            text += _TRAVELS * length
    return text


def _at(line: tuple[Stretch, ...], time: float) -> Stretch | None:
    return next((s for s in line if s.start <= time < s.stop), None)


def _axis(seconds: float, width: int) -> str:
    """Return the time axis, marked in normal steps, with marks far enough apart to be read."""
    apart = next(a for a in (1, 2, 5, 10, 20, 50, 100, 10**9) if a * width / seconds >= 6)
    text = ""
    mark = 0
    while (column := round(mark * width / seconds)) < width:
        text = f"{text:{column}}{mark}"
        mark += apart
    return text


def _waiting_for(timeline: Timeline, worker: int) -> str:
    """Return the worker that this one waits for most, and messages, with their shares."""
    shares = [(timeline.share(worker, WORKERS, waiting_for=i), -i) for i in range(timeline.workers)]
    share, waiting_for = max(shares)
    rest = timeline.share(worker, MESSAGES)
    texts = [f"{share:.0%} for worker {-waiting_for}"] if share >= 0.005 else []
    texts += [f"{rest:.0%} for messages"] if rest >= 0.005 else []
    return f"   ({', '.join(texts)})" if texts else ""


_MARGIN, _GUTTER, _LENGTH, _TOP, _ROW, _BAR = 26.0, 88.0, 1000.0, 84.0, 44.0, 28.0
#: By worker, Okabe and Ito's colours; a wait has the colour of the worker that is waited for.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A6A6A", "#8C6D1F")


def draw(timeline: Timeline) -> Canvas:
    """Return the drawing."""
    bottom = _TOP + _ROW * timeline.workers
    title = " · ".join(described(timeline))
    text = lesson(timeline)
    width = 2 * _MARGIN + max(_GUTTER + _LENGTH, text_width(title, 16), text_width(text, 12))
    canvas = Canvas(width, bottom + 108, title)
    canvas.text(_MARGIN, 34, title, size=16, anchor="start", bold=True)
    _draw_axis(canvas, timeline, bottom)
    for worker, line in enumerate(timeline.lines):
        y = _TOP + _ROW * worker
        canvas.text(_MARGIN, y + _BAR / 2, f"worker {worker}", anchor="start", bold=True)
        for stretch in line:
            _draw_stretch(canvas, timeline, worker, stretch, y)
    _legend(canvas, bottom + 52)
    canvas.text(_MARGIN, bottom + 84, text, anchor="start", fill="#444444")
    return canvas


def _colour(worker: int) -> str:
    return _COLOURS[worker % len(_COLOURS)]


def _x(timeline: Timeline, seconds: float) -> float:
    return _MARGIN + _GUTTER + _LENGTH * seconds / timeline.seconds


def _draw_stretch(
    canvas: Canvas, timeline: Timeline, worker: int, stretch: Stretch, y: float
) -> None:
    """Draw a full bar for computing, a thin one for a wait for a worker, a line for messages."""
    x, end = _x(timeline, stretch.start), _x(timeline, stretch.stop)
    middle = y + _BAR / 2
    if stretch.what == COMPUTE:
        canvas.rect(x, y, end - x, _BAR, fill=_colour(worker), stroke="white", line=1.2, radius=2)
        if end - x >= 18:
            canvas.text((x + end) / 2, middle, str(stretch.waiting_for + 1), size=10, fill="white")
    elif stretch.what == WORKERS:
        canvas.rect(x, middle - 4, end - x, 8, fill=_colour(stretch.waiting_for) + "55")
        if end - x >= 22:
            canvas.tag(
                (x + end) / 2, middle, str(stretch.waiting_for), fill=_colour(stretch.waiting_for)
            )
    else:
        canvas.line(x, middle, end, middle, stroke="#888888", width=1.5)


def _draw_axis(canvas: Canvas, timeline: Timeline, bottom: float) -> None:
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
    _label(canvas, x + 38, y, "waits for messages")


def _label(canvas: Canvas, x: float, y: float, text: str) -> float:
    """Write an entry of the legend and return the position of the next one."""
    canvas.text(x, y, text, size=11, anchor="start", fill="#555555")
    return x + text_width(text, 11) + 24


FORMAT = "psrt explain timeline 1"


def as_document(timeline: Timeline) -> dict[str, Any]:
    """Return the document as objects for ``json.dumps``."""
    config, staleness = timeline.config, timeline.staleness
    return {
        "format": FORMAT,
        "mode": config.mode,
        "workers": timeline.workers,
        "servers": config.servers,
        "steps": config.steps,
        "slow": list(timeline.slow),
        "seconds": timeline.seconds,
        "lines": [[_stretch_document(stretch) for stretch in line] for line in timeline.lines],
        "shares": [
            {"waiting": timeline.share(worker, *WAITING)}
            | {what: timeline.share(worker, what) for what in (COMPUTE, *WAITING)}
            for worker in range(timeline.workers)
        ],
        "staleness": staleness and {"mean": staleness[0], "max": staleness[1]},
        "lesson": lesson(timeline),
    }


def _stretch_document(stretch: Stretch) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start": stretch.start,
        "stop": stretch.stop,
        "what": stretch.what,
    }
    if stretch.what == COMPUTE:
        found["step"] = stretch.waiting_for
    elif stretch.what == WORKERS:
        found["waiting_for"] = stretch.waiting_for
    return found
