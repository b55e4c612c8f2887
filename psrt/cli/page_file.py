"""The file of a page of HTML: where it may be written, and what is said of it. Needs no jinja2."""

from __future__ import annotations

import argparse
import os

from psrt.core.errors import ConfigError
from psrt.core.files import check_writable, write_text
from psrt.core.units import size_text

#: What names a page.
_ENDINGS = (".html", ".htm")


def add_overwrite(parser: argparse.ArgumentParser, of: str = "the file") -> None:
    """Add the flag that lets a page replace another."""
    parser.add_argument(
        "--overwrite", action="store_true", help=f"replace {of} if there is one already"
    )


def check_page_file(path: str, flag: str, *, overwrite: bool) -> None:
    """Check, before the work begins, that a page can be written.

    Args:
        path: as the user gave it.
        flag: that it was given by.
        overwrite: whether a file that is there may be replaced.

    Raises:
        ConfigError: if it cannot, with what to do.
    """
    if not path.lower().endswith(_ENDINGS):
        raise ConfigError(f"{flag} {path}: a page ends in .html")
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{path} is there already; --overwrite replaces it, {flag} names another")
    check_writable(path)


def write_page(path: str, page: str, what: str) -> str:
    """Write a page and return the line that says so.

    Args:
        path: of the file.
        page: its HTML.
        what: it shows, such as ``2 runs``.

    Raises:
        ConfigError: if it cannot be written.
    """
    write_text(path, page)
    return f"{path}: {what}, {size_text(len(page.encode()))}; open it in a browser"
