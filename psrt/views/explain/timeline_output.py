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
sums           of streaming local SGD, by worker, in the order of sending: ``{"fragment", "sent",
               "complete", "taken"}``, the times when this worker sent its part of a mean, when
               the last one did, and when this worker took the mean; else empty
shares         by worker, as fractions of its time: ``compute``, ``waiting``, and of that for
               ``workers`` and for ``messages``
staleness      ``{"mean", "max"}`` in versions; null where there is none
lesson         one line for people
=============  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from psrt.views.explain.timeline import (
    COMPUTE,
    MESSAGES,
    WAITING,
    WORKERS,
    Stretch,
    Timeline,
    Transfer,
    described,
    lesson,
)
from psrt.views.svg import Canvas, text_width

#: One character for each worker, for waits in the drawing.
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_COMPUTES, _STEP_ENDS, _WAITS, _TRAVELS = "█", "▌", "·", "-"
_LEGEND = (
    f"{_COMPUTES} computes ({_STEP_ENDS} end of a step)   {_WAITS}0{_WAITS} waits for worker 0   "
    f"{_TRAVELS} waits for messages"
)
#: Of a fragment that is sent, whose mean others have yet to send their parts of, which all have,
#: and that is mixed in.
_SENT, _PARTIAL, _WHOLE, _TAKEN, _BOTH = "├", "·", "─", "┤", "┼"
_FRAGMENTS = (
    f"{_SENT} sends its part of a mean   {_PARTIAL} others have yet to   {_WHOLE} all have   "
    f"{_TAKEN} mixes it in"
)


def as_text(timeline: Timeline, *, width: int = 76) -> str:
    """Return the drawing, its legend and its lesson.

    Args:
        timeline: what to draw.
        width: of the time axis, in characters.
    """
    names = _fragments(timeline)
    label = max(len(it) for it in (f"worker {timeline.workers - 1}", *names))
    rows = []
    for worker, line in enumerate(timeline.lines):
        drawn = row_of(line, timeline.seconds, width).rstrip()
        rows.append(f"{f'worker {worker}':{label}}  {drawn}")
        for fragment, name in enumerate(names):
            sums = [it for it in timeline.sums[worker] if it.fragment == fragment]
            drawn = row_of_sums(sums, timeline.seconds, width).rstrip()
            rows.append(f"{name:{label}}  {drawn}")
    axis = f"{'steps':{label}}  {_axis(timeline.seconds, width)}"
    shares = [
        f"{f'worker {i}':{label}}  {timeline.share(i, COMPUTE):4.0%} computing   "
        f"{timeline.share(i, *WAITING):4.0%} waiting{_waiting_for(timeline, i)}"
        for i in range(timeline.workers)
    ]
    legend = [_LEGEND, *([_FRAGMENTS] if names else [])]
    parts = [" · ".join(described(timeline)), *rows, axis, "", *legend, "", *shares, ""]
    return "\n".join([*parts, lesson(timeline)])


def _fragments(timeline: Timeline) -> list[str]:
    """Return what the rows below a worker's are called."""
    count = (timeline.config.fragments or 1) if timeline.sums else 0
    return ["average"] if count == 1 else [f"fragment {f}" for f in range(count)]


def row_of_sums(sums: Sequence[Transfer], seconds: float, width: int) -> str:
    """Return the row of one fragment of a worker.

    >>> row_of_sums([Transfer(0, 0.5, 3.5, 5.5, 1), Transfer(0, 6.5, 6.5, 6.6, 0)], 8, 8)
    '├··──┤┼ '
    """
    row = [" "] * width
    column = width / seconds
    for it in sums:
        sent, complete, taken = (
            min(int(time * column), width - 1) for time in (it.sent, it.complete, it.taken)
        )
        row[sent:taken] = _PARTIAL * (complete - sent) + _WHOLE * (taken - complete)
        row[taken] = _TAKEN
        row[sent] = _SENT if taken > sent else _BOTH
    return "".join(row)


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
#: Height of a fragment's line, below a worker's bar.
_THIN = 12.0
#: By worker, Okabe and Ito's colours; a wait has the colour of the worker that is waited for.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A6A6A", "#8C6D1F")


def draw(timeline: Timeline) -> Canvas:
    """Return the drawing."""
    names = _fragments(timeline)
    row = _ROW + _THIN * len(names)
    bottom = _TOP + row * timeline.workers
    title = " · ".join(described(timeline))
    text = lesson(timeline)
    width = 2 * _MARGIN + max(_GUTTER + _LENGTH, text_width(title, 16), text_width(text, 12))
    canvas = Canvas(width, bottom + 108 + (24 if names else 0), title)
    canvas.text(_MARGIN, 34, title, size=16, anchor="start", bold=True)
    _draw_axis(canvas, timeline, bottom)
    for worker, line in enumerate(timeline.lines):
        y = _TOP + row * worker
        canvas.text(_MARGIN, y + _BAR / 2, f"worker {worker}", anchor="start", bold=True)
        for stretch in line:
            _draw_stretch(canvas, timeline, worker, stretch, y)
        for fragment, name in enumerate(names):
            at = y + _BAR + _THIN * (fragment + 0.5)
            canvas.text(_MARGIN, at, name, size=9, anchor="start", fill="#555555")
        for it in timeline.sums[worker] if names else ():
            _draw_sum(canvas, timeline, worker, it, y + _BAR + _THIN * (it.fragment + 0.5))
    _legend(canvas, bottom + 52)
    if names:
        bottom += 24
        _legend_of_sums(canvas, bottom + 52)
    canvas.text(_MARGIN, bottom + 84, text, anchor="start", fill="#444444")
    return canvas


def _draw_sum(canvas: Canvas, timeline: Timeline, worker: int, it: Transfer, y: float) -> None:
    """Draw a line while others have yet to send their parts, a bar from then on, and both ends."""
    colour = _colour(worker)
    sent, complete, taken = (_x(timeline, time) for time in (it.sent, it.complete, it.taken))
    complete = min(complete, taken)
    canvas.line(sent, y, complete, y, stroke=colour, width=1.0)
    canvas.line(complete, y, taken, y, stroke=colour, width=3.0)
    canvas.circle(sent, y, 3, fill="white", stroke=colour)
    canvas.circle(taken, y, 3, fill=colour, stroke=colour)


def _legend_of_sums(canvas: Canvas, y: float) -> None:
    x, colour = _MARGIN, _colour(0)
    canvas.circle(x + 3, y, 3, fill="white", stroke=colour)
    x = _label(canvas, x + 14, y, "sends its part of a mean")
    canvas.line(x, y, x + 30, y, stroke=colour, width=1.0)
    x = _label(canvas, x + 38, y, "others have yet to")
    canvas.line(x, y, x + 30, y, stroke=colour, width=3.0)
    x = _label(canvas, x + 38, y, "all have")
    canvas.circle(x + 3, y, 3, fill=colour, stroke=colour)
    _label(canvas, x + 14, y, "mixes it in")


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
        "sums": [[_sum_document(it) for it in of_worker] for of_worker in timeline.sums],
        "shares": [
            {"waiting": timeline.share(worker, *WAITING)}
            | {what: timeline.share(worker, what) for what in (COMPUTE, *WAITING)}
            for worker in range(timeline.workers)
        ],
        "staleness": staleness and {"mean": staleness[0], "max": staleness[1]},
        "lesson": lesson(timeline),
    }


def _sum_document(it: Transfer) -> dict[str, Any]:
    return {name: getattr(it, name) for name in ("fragment", "sent", "complete", "taken")}


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
