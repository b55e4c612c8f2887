"""What ``psrt explain`` writes: text or JSON, and on request a drawing and a page. No MPI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from psrt.cli.page_file import check_page_file, write_page
from psrt.cli.printing import say
from psrt.core.errors import ConfigError
from psrt.core.files import check_writable
from psrt.core.units import plural

if TYPE_CHECKING:
    from psrt.views.film.film import Film
    from psrt.views.svg import Canvas


def checked(given: argparse.Namespace) -> argparse.Namespace:
    """Check that the drawing and the page can be written; return the flags."""
    check_writable(vars(given).get("svg"))
    if given.html is not None:
        from psrt.views.page.frame import check_installed

        check_page_file(given.html, "--html", overwrite=given.overwrite)
        check_installed()
    elif given.overwrite:
        raise ConfigError("--overwrite has no effect without --html")
    return given


def publish(
    given: argparse.Namespace,
    *,
    document: Callable[[], dict[str, Any]],
    film: Callable[[], Film],
    text: Callable[[], str] | None = None,
    canvas: Callable[[], Canvas] | None = None,
) -> None:
    """Write the drawing and the page if they are asked for, then print the document or the text.

    Args:
        given: the flags.
        document: makes the JSON.
        film: makes the film, from which text and drawing are made unless given below.
        text: makes the text.
        canvas: makes the drawing.
    """
    from psrt.views.film.drawing import draw
    from psrt.views.film.text import lanes_text

    film = cache(film)
    if vars(given).get("svg") is not None:
        (canvas() if canvas is not None else draw(film())).save(given.svg)
    line = "" if given.html is None else _written(given.html, film())
    if given.json:
        say(json_of(document()))
    else:
        say(text() if text is not None else lanes_text(film()))
    if line:
        # stdout holds only the document, for programs to read.
        print(line, file=sys.stderr) if given.json else say(f"\n{line}")


def film_of(kind: str, found: object) -> Film:
    """Return the film of an explanation."""
    made: Film = import_module(f"psrt.views.film.{kind}").film_of(found)
    return made


def _written(path: str, film: Film) -> str:
    """Write the page of a film; return the lines about it and about what was left out."""
    from psrt.views.film.page import page_of

    page, shown = page_of(film)
    return "\n".join([write_page(path, page, plural(len(shown.frames), "step")), *shown.notes])


def json_of(document: dict[str, Any]) -> str:
    """Return a document as JSON."""
    from psrt.report.strict_json import dumps

    return dumps(document)
