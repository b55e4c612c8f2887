"""The files that go into every page: style, script, and the charts of uPlot. Read when needed."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
#: Folder of the page's own style, script and template.
TEMPLATES = _HERE / "template"
#: Folder of files by others.
VENDOR = _HERE / "vendor"

#: The version of uPlot, and the SHA-256 of its files, as npm has them.
UPLOT = "1.6.32"
SHA256 = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def style() -> str:
    """Return the style of a page."""
    return _text(VENDOR / "uPlot.min.css") + "\n" + _text(TEMPLATES / "page.css")


def scripts() -> tuple[str, ...]:
    """Return the scripts of a page that enlarges charts, in the order in which they run."""
    return _text(VENDOR / "uPlot.iife.min.js"), _text(TEMPLATES / "charts.js")


def player() -> str:
    """Return the script of a page that plays a film."""
    return _text(TEMPLATES / "play.js")


def player_style() -> str:
    """Return the style of such a page in addition to that of every page."""
    return _text(TEMPLATES / "play.css")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
