"""How much detail a page shows: less for more runs, so that it stays small. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Detail(NamedTuple):
    """The most points, rows and columns of a chart."""

    #: Points of a line: by default two for each pixel.
    points: int = 800
    #: Rows and columns of a heat map, and bars: more are grouped.
    rows: int = 32
    columns: int = 48

    def coarser(self) -> Detail:
        """Return half of it, or itself if there is nothing less.

        >>> Detail(800, 32, 48).coarser(), Detail(16, 4, 8).coarser()
        (Detail(points=400, rows=16, columns=24), Detail(points=16, rows=4, columns=8))
        """
        return Detail(max(16, self.points // 2), max(4, self.rows // 2), max(8, self.columns // 2))
