"""The study of codecs as a picture: accuracy against bytes, and time to the target against both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled
from studies.palette import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw(cells: Sequence[Row], path: str | PathLike[str], *, target: float, note: str = "") -> None:
    """Draw a row of plots for each mode: accuracy against bytes, then a plot for each link.

    A mark is the median of a setting, its line reaches to the worst or slowest run; a cross at the
    top marks a setting that never comes to the target.

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
    settings = list(dict.fromkeys(cell["setting"] for cell in cells))
    looks = {setting: _look(i) for i, setting in enumerate(settings)}
    figure = titled(
        width=3.2 * (1 + len(links)) + 2.6,
        height=max(2.7 * len(modes), 0.19 * len(settings)) + 0.7,
        title="Accuracy, bytes and time by codec", note=note,
    )  # fmt: skip
    plots = figure.subplots(len(modes), 1 + len(links), squeeze=False)
    for axes, mode in zip(plots, modes, strict=True):
        mine = [cell for cell in cells if cell["mode"] == mode]
        _against_bytes(axes[0], [cell for cell in mine if cell["link"] == links[0]], looks, mode)
        for there, link in zip(axes[1:], links, strict=True):
            _times(there, [cell for cell in mine if cell["link"] == link], looks, target, link)
    handles = [plots[0][0].plot([], [], linestyle="", label=it, **looks[it])[0] for it in settings]
    figure.legend(handles=handles, loc="outside right upper", fontsize=8)
    save(figure, path)


def _look(i: int) -> dict[str, Any]:
    """Return how the i-th setting is marked: no two alike among the first 64."""
    colour = COLOURS[i % len(COLOURS)]
    marker = MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]
    filled = "none" if i % 2 else colour
    return {"color": colour, "marker": marker, "markersize": 6, "markerfacecolor": filled}


def _against_bytes(
    axes: Axes, cells: Sequence[Row], looks: Mapping[str, Mapping[str, Any]], mode: str
) -> None:
    for cell in cells:
        if cell["bytes_sent"] is not None:
            x, look = cell["bytes_sent"] / 1e6, looks[cell["setting"]]
            axes.vlines(x, 100 * cell["worst"], 100 * cell["accuracy"], look["color"], linewidth=1)
            axes.plot([x], [100 * cell["accuracy"]], linestyle="", **look)
    axes.set_xscale("log")
    axes.set_xlabel("sent [MB]")
    axes.set_ylabel(f"{mode}: accuracy [%]")
    axes.grid(color="0.9")


def _times(
    axes: Axes,
    cells: Sequence[Row],
    looks: Mapping[str, Mapping[str, Any]],
    target: float,
    link: str,
) -> None:
    known = [cell for cell in cells if cell["bytes_sent"] is not None]
    for cell in known:
        x, look = cell["bytes_sent"] / 1e6, looks[cell["setting"]]
        if cell["median"] is None:
            axes.plot([x], [0.95], "x", color=look["color"], transform=axes.get_xaxis_transform())
            continue
        slowest = cell["slowest"] if cell["slowest"] is not None else math.nan
        axes.vlines(x, cell["median"], slowest, look["color"], linewidth=1)
        axes.plot([x], [cell["median"]], linestyle="", **look)
    axes.set_xscale("log")
    if any(cell["median"] is not None for cell in known):
        axes.set_yscale("log")
    axes.set_xlabel("sent [MB]")
    axes.set_ylabel(f"seconds to {100 * target:g} %")
    axes.set_title(link, fontsize=9)
    axes.grid(color="0.9")
