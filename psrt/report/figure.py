"""Figures of matplotlib, an extra: imported when one is drawn, so no rank ever pays for it."""

from __future__ import annotations

import importlib.util
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from psrt.core.errors import ConfigError
from psrt.core.files import check_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MISSING = "plots need matplotlib: pip install matplotlib"


def check_installed() -> None:
    """Find out before long work whether its plot could be drawn, without importing matplotlib.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(_MISSING)


def blank(width: float, height: float) -> Figure:
    """Return an empty figure, in inches.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(_MISSING) from error
    return Figure(figsize=(width, height), layout="constrained")


def titled(*, width: float, height: float, title: str, note: str = "") -> Figure:
    """Return an empty figure, in inches, with a title and a note below it.

    Args:
        width: in inches.
        height: in inches.
        title: above the plot.
        note: a second line, below the title.

    Raises:
        ConfigError: if matplotlib is not installed.
    """
    figure = blank(width, height)
    figure.suptitle(f"{title}\n{note}" if note else title, fontsize=11)
    return figure


def check_path(path: str | PathLike[str]) -> None:
    """Check that a figure can be written, before the work that it is to show.

    Raises:
        ConfigError: if matplotlib is not installed, the path's ending names no format, or the
            file cannot be written.
    """
    check_writable(path)
    # Without an ending matplotlib would write another file than the one that was asked for.
    formats = blank(1, 1).canvas.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in formats:
        raise ConfigError(
            f"cannot write {path}: its ending must name a format: {', '.join(sorted(formats))}"
        )


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure in the format that the path's ending names.

    Raises:
        ConfigError: if the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    except ValueError as error:  # an ending that is not a format
        raise ConfigError(f"cannot write {path}: {error}") from error
