"""Draws the charts of this folder whose numbers stand in a table: ``python docs/charts.py``.

A chart reads its table off the page, so that no number is written twice; a test holds the files
against them.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from psrt.views.page.scale import Scale, tick_text
from psrt.views.svg import INK, PALETTE, RULE, SOFT, Canvas

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


CHARTS = {"all_reduce.svg": all_reduce}


def main() -> int:
    """Draw all."""
    for name, draw in CHARTS.items():
        (_FOLDER / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
