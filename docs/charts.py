"""Draws the charts of this folder: ``python docs/charts.py``.

A chart reads its numbers off a table of a page, so that none is written twice, or takes them from
a small job in virtual time; a test compares the files with what is drawn.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from psrt.config import TrainConfig
from psrt.views.explain.timeline import COMPUTE, run
from psrt.views.page.scale import Scale, tick_text
from psrt.views.svg import INK, PALETTE, RULE, SOFT, Canvas, tint

_FOLDER = Path(__file__).parent
#: Pixels of a chart, and of what stands around it.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 400, 48, 16, 88, 62
#: Of letters: they can still be read where a phone shows the chart at two thirds of its width.
_SIZE = 15.0


def table(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table below a heading of a page, row by row."""
    text = (_FOLDER / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip(" *") for cell in row.split("|")[1:-1]] for row in rows]


def all_reduce() -> str:
    """Times as fast as the library's all-reduce, by size."""
    head, *rows, aims = table("benchmarks.md", "All-reduce")
    sizes, wanted = head[2:-1], [float(aim) for aim in aims[2:-1]]
    canvas = Canvas(_WIDTH, _HEIGHT, "all-reduce: times as fast as MPI.Allreduce, by size")
    xs = Scale(0, len(sizes) - 1, _LEFT + 12, _WIDTH - _RIGHT - 24)
    ys = Scale(0.5, 25, _HEIGHT - _BOTTOM, _TOP, log=True)
    for value in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0):
        y = ys(value)
        canvas.line(_LEFT, y, _WIDTH - _RIGHT, y, stroke=INK if value == 1 else RULE)
        canvas.text(_LEFT - 8, y, tick_text(value), size=_SIZE, fill=SOFT, anchor="end")
    for i, size in enumerate(sizes):
        canvas.text(xs(i), ys.start + 18, size, size=_SIZE - 2, fill=SOFT)
    canvas.text(_WIDTH / 2, _HEIGHT - 14, "bytes of the array", size=_SIZE, fill=SOFT)
    canvas.text(8, 18, "times as fast as MPI.Allreduce", size=_SIZE, fill=INK, anchor="start")
    # What is wanted at a size is wanted up to the next one.
    steps = [(xs(0), ys(wanted[0]))]
    for i, (aim, following) in enumerate(pairwise(wanted), 1):
        steps += [(xs(i), ys(aim)), (xs(i), ys(following))]
    entries = [("aim", SOFT, "5 4", steps)]
    for (mpi, ranks, *cells), colour in zip(rows, PALETTE, strict=False):
        times = [float(cell.split(", ")[1]) for cell in cells[:-1]]
        points = [(xs(i), ys(value)) for i, value in enumerate(times)]
        entries.append((f"{mpi}, {ranks} ranks", colour, "", points))
    for i, (name, colour, dashes, points) in enumerate(entries):
        x, y = 8 + i % 2 * 250, 44 + i // 2 * 24
        for curve in (points, [(x, y), (x + 26, y)]):
            canvas.curve(curve, stroke=colour, width=2.4, dashes=dashes)
        canvas.text(x + 34, y, name, size=_SIZE, fill=INK, anchor="start")
    return canvas.as_text()


def waiting() -> str:
    """Who computes and who waits in three modes, where one of three workers is a straggler."""
    modes, workers, units, width = ("sync", "ssp:staleness=2", "async"), 3, 18, 440
    canvas = Canvas(width, 358, "three modes with a straggler: who computes and who waits")
    xs = Scale(0, units, 86, width - 8)
    canvas.text(8, 18, "One of three workers takes three times as long", size=_SIZE, fill=INK,
                anchor="start", bold=True)  # fmt: skip
    for x, name, fill in ((8, "computes a step", PALETTE[0]), (178, "waits", tint(1, 0.45))):
        canvas.rect(x, 37, 18, 13, fill=fill)
        canvas.text(x + 25, 44, name, size=_SIZE, fill=INK, anchor="start")
    for band, mode in enumerate(modes):
        top = 78 + 98 * band
        # More steps than there is time for: nobody has finished where the picture ends.
        timeline = run(TrainConfig(mode=mode, steps=2 * units), workers=workers, slow={1: 3.0})
        done = sum(
            it.what == COMPUTE and it.stop <= units for line in timeline.lines for it in line
        )
        canvas.text(8, top, mode, size=_SIZE, fill=INK, anchor="start", bold=True)
        canvas.text(width - 8, top, f"{done} gradients", size=_SIZE, fill=INK, anchor="end")
        for worker, line in enumerate(timeline.lines):
            y = top + 14 + 22 * worker
            canvas.text(8, y + 8, f"worker {worker}", size=_SIZE - 1, fill=SOFT, anchor="start")
            for it in line:
                start, stop = xs(it.start), xs(min(it.stop, units))
                if stop > start:  # a gap after each step tells it from the next one
                    fill = PALETTE[0] if it.what == COMPUTE else tint(1, 0.45)
                    canvas.rect(start, y, max(stop - start - 1.2, 0.3), 17, fill=fill)
    return canvas.as_text()


CHARTS = {"all_reduce.svg": all_reduce, "waiting.svg": waiting}


def main() -> int:
    """Draw all."""
    for name, draw in CHARTS.items():
        (_FOLDER / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
