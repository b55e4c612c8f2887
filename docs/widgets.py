"""What the site's pages have beside text: films, rows and cards, made of marks in comments.

A reader of the file itself sees no comment, and the rest as plain Markdown::

    <!-- play HEIGHT: WORDS -->

    <!-- film: WORDS -->

    <!-- row -->
    Paragraphs, one beside the other.
    <!-- / -->

    <!-- cards -->
    - [Title](page.md). Text.
    <!-- / -->

``play`` is the page of ``psrt explain WORDS --html``, in a frame of that height in pixels; ``film``
is the same without its controls, and plays by itself.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from psrt.cli.explain import main as explain

_HERE = Path(__file__).parent
_FRAME = re.compile(r"^<!-- (?:play (\d+)|film): (.+) -->$", re.MULTILINE)
_ROW = re.compile(r"^<!-- row -->\n(.*?)\n<!-- / -->$", re.MULTILINE | re.DOTALL)
_CARDS = re.compile(r"^<!-- cards -->\n(.*?)\n<!-- / -->$", re.MULTILINE | re.DOTALL)
_CARD = re.compile(r"^- \[(.+?)\]\(([\w-]+)\.md\)\. (.+(?:\n  .+)*)$", re.MULTILINE)


def framed(page: str, name: str, site: Path) -> str:
    """Return a page with a frame for each of its marks ``play`` and ``film``.

    Args:
        page: Markdown.
        name: of the page.
        site: the folder that the site is built into.
    """
    numbers = itertools.count(1)

    def frame(match: re.Match[str]) -> str:
        height, words = match.groups()
        address = f"play/{name}-{next(numbers)}.html"
        paths = [str(_HERE / it) if (_HERE / it).is_file() else it for it in words.split()]
        (site / "play").mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            explain([*paths, "--html", str(site / address), "--overwrite"])
        look, query, size, link = "play", "", f' height="{height}"', "on a page of its own"
        if height is None:
            look, query, size = "play film", "?film", ""
            link = f"<code>psrt explain {words.split()[0]}</code>, step by step"
        return (
            f'<iframe class="{look}" src="{address}{query}" title="psrt explain {words}, '
            f'step by step"{size} loading="lazy"></iframe>\n\n'
            f'<p class="play"><a href="{address}">{link}</a></p>'
        )

    return _FRAME.sub(frame, page)


def laid_out(page: str) -> str:
    """Return a page with its rows and cards as directives of sphinx-design."""

    def row(match: re.Match[str]) -> str:
        return _grid(2, (f"```{{grid-item}}\n{it}\n```" for it in match[1].strip().split("\n\n")))

    def cards(match: re.Match[str]) -> str:
        found = _CARD.findall(match[1])
        return _grid(
            len(found),
            (
                f"```{{grid-item-card}} {title}\n:link: {target}\n:link-type: doc\n\n{text}\n```"
                for title, target, text in found
            ),
        )

    return _CARDS.sub(cards, _ROW.sub(row, page))


def _grid(columns: int, items: Iterable[str]) -> str:
    """Return a grid, which has one column where the screen is narrow."""
    options = ":gutter: 3\n:margin: 0\n:padding: 0"
    inside = "\n".join(items)
    return f"````{{grid}} 1 1 {columns} {columns}\n{options}\n\n{inside}\n````"
