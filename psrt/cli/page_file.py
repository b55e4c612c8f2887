"""The file of an HTML page: where it may be written, and the line about it. Needs no jinja2."""

from __future__ import annotations

import argparse
import os

from psrt.core.errors import ConfigError
from psrt.core.files import check_writable, write_text
from psrt.core.units import size_text

#: Endings of a page's name.
_ENDINGS = (".html", ".htm")


def add_overwrite(parser: argparse.ArgumentParser, of: str = "the file") -> None:
    """Add the flag that lets a page replace a file."""
    parser.add_argument("--overwrite", action="store_true", help=f"replace {of} if it exists")


def check_page_file(path: str, flag: str, *, overwrite: bool) -> None:
    """Check, before the work begins, that a page can be written.

    Args:
        path: as the user gave it.
        flag: that it was given by.
        overwrite: whether a file that is there may be replaced.

    Raises:
        ConfigError: if it cannot, and how to fix that.
    """
    if not path.lower().endswith(_ENDINGS):
        raise ConfigError(f"{flag} {path}: the name of a page must end in .html")
    if os.path.lexists(path) and not overwrite:
        raise ConfigError(f"{path} exists: give --overwrite to replace it, or another {flag}")
    check_writable(path)


def write_page(path: str, page: str, what: str) -> str:
    """Write a page and return the line about it.

    Args:
        path: of the file.
        page: its HTML.
        what: what it shows, such as ``2 runs``.

    Raises:
        ConfigError: if it cannot be written.
    """
    write_text(path, page)
    return f"{path}: {what}, {size_text(len(page.encode()))}; open it in a browser"
