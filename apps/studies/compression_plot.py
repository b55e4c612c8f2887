"""The study of codecs as a picture: a row for each setting with its name, a column a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled
from studies.compression_table import COSTS, FAILS, NONE, OPEN, PAYS
from studies.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

#: Inches of a row, of the titles and axis around those of a mode, of names, and of a column.
_ROW, _AROUND, _NAMES, _COLUMN = 0.2, 0.75, 2.2, 2.1
#: Colours of times, by how a setting stands beside none.
_STANDINGS = {PAYS: COLOURS[3], OPEN: COLOURS[7], COSTS: COLOURS[6]}
_KEY = (
    "times: green where a codec pays, orange where it costs time, grey where it is too close to "
    "tell; the line is without one, × never comes there"
)
#: Values that differ by this factor are on a logarithmic axis.
_WIDE = 4.0


def draw(cells: Sequence[Row], path: str | PathLike[str], *, target: float, note: str = "") -> None:
    """Draw for each mode a row for each setting: its accuracy, its bytes, its time by link.

    A mark is the median of a setting, its line reaches to the worst or slowest run. Times have a
    colour by how a codec stands, a vertical line is the time without one, and a cross at the right
    marks a setting that never comes to the target.

    Args:
        cells: as ``compression_table.cells`` returned them.
        path: the file to write; its ending chooses the format.
        target: accuracy in [0, 1].
        note: a line below the title.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    modes = list(dict.fromkeys(cell["mode"] for cell in cells))
    links = list(dict.fromkeys(cell["link"] for cell in cells))
    settings = {
        mode: list(dict.fromkeys(cell["setting"] for cell in cells if cell["mode"] == mode))
        for mode in modes
    }
    heights = [_ROW * len(settings[mode]) + _AROUND for mode in modes]
    figure = titled(
        width=_NAMES + _COLUMN * (2 + len(links)),
        height=sum(heights) + 0.8,
        title="Accuracy, bytes and time by codec", note=f"{note}\n{_KEY}".strip(),
    )  # fmt: skip
    plots = figure.subplots(
        len(modes), 2 + len(links), squeeze=False, sharey="row",
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    for axes, mode in zip(plots, modes, strict=True):
        mine = [cell for cell in cells if cell["mode"] == mode]
        first = [cell for cell in mine if cell["link"] == mine[0]["link"]]
        place = settings[mode].index
        _accuracies(axes[0], first, place)
        _bytes(axes[1], first, place)
        for there, link in zip(axes[2:], links, strict=True):
            _times(there, [cell for cell in mine if cell["link"] == link], place)
            there.set_title(f"seconds to {100 * target:g} %, {link}", fontsize=9)
        axes[0].set_yticks(range(len(settings[mode])), settings[mode], fontsize=8)
        axes[0].set_ylim(len(settings[mode]) - 0.5, -0.5)
        axes[0].set_ylabel(mode, fontsize=11, fontweight="bold")
        for there in axes:
            there.grid(color="0.9")
            there.set_axisbelow(True)
            there.tick_params(axis="x", labelsize=8)
            there.tick_params(axis="y", length=0)
    save(figure, path)


_Place = Callable[[str], int]


def _accuracies(axes: Axes, cells: Sequence[Row], place: _Place) -> None:
    axes.set_title("accuracy [%]", fontsize=9)
    for cell in cells:
        _mark(axes, place(cell["setting"]), 100 * cell["accuracy"], 100 * cell["worst"], COLOURS[1])


def _bytes(axes: Axes, cells: Sequence[Row], place: _Place) -> None:
    axes.set_title("sent [MB]", fontsize=9)
    known = [cell for cell in cells if cell["bytes_sent"] is not None]
    _scale(axes, [cell["bytes_sent"] / 1e6 for cell in known])
    for cell in known:
        megabytes = cell["bytes_sent"] / 1e6
        _mark(axes, place(cell["setting"]), megabytes, megabytes, COLOURS[1])


def _times(axes: Axes, cells: Sequence[Row], place: _Place) -> None:
    _scale(axes, [cell["median"] for cell in cells if cell["median"] is not None])
    for cell in cells:
        y = place(cell["setting"])
        if cell["standing"] == FAILS:
            axes.plot([0.96], [y], "x", color=COLOURS[6], transform=axes.get_yaxis_transform())
            continue
        worst = cell["median"] if cell["slowest"] is None else cell["slowest"]
        plain = cell["setting"] == NONE
        colour = COLOURS[0] if plain else _STANDINGS[cell["standing"]]
        if plain:
            axes.axvline(cell["median"], color=colour, linewidth=0.8)
        _mark(axes, y, cell["median"], worst, colour)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Choose an axis on which values can be distinguished, and few short numbers beside it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if values and min(values) > 0 and max(values) >= _WIDE * min(values):
        axes.set_xscale("log")
        subs = (1.0,) if max(values) >= 50 * min(values) else (1.0, 2.0, 5.0)
        axes.xaxis.set_major_locator(LogLocator(subs=subs))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _mark(axes: Axes, y: float, value: float, worst: float, colour: str) -> None:
    axes.hlines(y, min(value, worst), max(value, worst), colour, linewidth=1.2)
    axes.plot([value], [y], "o", color=colour, markersize=5)
