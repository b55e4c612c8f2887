"""The study of decentralized training as a picture: a row a partition, a column a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from psrt.report.figure import save, titled
from studies.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell = Mapping[str, Any]

#: By figure: the label of its axis, by what it is multiplied, and whether the axis is logarithmic.
_AXES = {
    "accuracy": ("accuracy of the mean [%]", 100.0, False),
    "apart": ("distance from the mean, rms", 1.0, True),
    "step_bytes": ("sent by a worker a step [KB]", 1e-3, True),
    "seconds": ("virtual time [s]", 1.0, True),
}


def draw(cells: Sequence[Cell], path: str | PathLike[str], *, note: str = "") -> None:
    """Draw a mark for the median of each setting, and a line between its extreme seeds.

    Args:
        cells: as ``decentralized.cells`` returned them.
        path: the file to write; its ending chooses the format.
        note: a line below the title.

    Raises:
        ConfigError: if matplotlib is not installed or the file cannot be written.
    """
    partitions = list(dict.fromkeys(cell["partition"] for cell in cells))
    settings = list(dict.fromkeys(cell["setting"] for cell in cells))
    figure = titled(
        width=13.0, height=(0.24 * len(settings) + 0.8) * len(partitions) + 0.8,
        title="Training without a centre", note=note,
    )  # fmt: skip
    plots = figure.subplots(len(partitions), len(_AXES), squeeze=False, sharey=True, sharex="col")
    for axes, partition in zip(plots, partitions, strict=True):
        mine = [cell for cell in cells if cell["partition"] == partition]
        for there, name in zip(axes, _AXES, strict=True):
            _draw(there, mine, settings, name)
        axes[0].set_title(partition, loc="left", fontsize=10)
        axes[0].set_yticks(range(len(settings)), settings, fontsize=8)
    plots[0][0].invert_yaxis()
    for there, (label, _, _) in zip(plots[-1], _AXES.values(), strict=True):
        there.set_xlabel(label)
    marks = [
        plots[0][0].plot([], [], linestyle="", label=label, **_look(slow))[0]
        for slow, label in ((False, "all workers alike"), (True, "with a straggler"))
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2, fontsize=9)
    save(figure, path)


def _look(slow: bool) -> dict[str, Any]:
    colour = COLOURS[6] if slow else COLOURS[1]
    return {
        "color": colour, "marker": "D" if slow else "o", "markersize": 5,
        "markerfacecolor": "none" if slow else colour,
    }  # fmt: skip


def _draw(axes: Axes, cells: Sequence[Cell], settings: Sequence[str], name: str) -> None:
    _, factor, logarithmic = _AXES[name]
    for cell in cells:
        # What is exactly nothing has no place on a logarithmic axis.
        if not cell[name]:
            continue
        slow = cell["slow"] > 1
        y = settings.index(cell["setting"]) + (0.16 if slow else -0.16)
        ends = factor * cell[f"{name}_least"], factor * cell[f"{name}_most"]
        axes.hlines(y, *ends, _look(slow)["color"], linewidth=1)
        axes.plot([factor * cell[name]], [y], linestyle="", **_look(slow))
    if logarithmic and any(cell[name] for cell in cells):
        axes.set_xscale("log")
    axes.grid(color="0.9")
