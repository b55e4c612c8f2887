"""A page: sections in a frame with style and scripts, in one file that uses no network.

Its content comes from files that somebody may have tampered with. So everything is escaped, and the
page's policy forbids anything that is not part of it: it lists the scripts by their SHA-256, so no
other script runs, and allows no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from psrt.core.errors import ConfigError
from psrt.core.version import __version__
from psrt.views.page import assets
from psrt.views.page.parts import Figure, Section

#: Characters that could end a script or begin a tag → how JSON may write them instead.
_TAGS = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
_MISSING = "pages need jinja2, psrt's extra report: pip install 'jinja2>=3.1'"


def check_installed() -> None:
    """Check before any work that a page can be made.

    Raises:
        ConfigError: if jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise ConfigError(_MISSING) from None


def render(
    title: str,
    lead: str,
    sections: Sequence[Section],
    *,
    scripts: Sequence[str] | None = None,
    style: str = "",
) -> str:
    """Return a page.

    The same arguments give the same text, byte for byte.

    Args:
        title: of the page.
        lead: a line below it.
        sections: in their order.
        scripts: scripts that run at the end, in this order; None for those that enlarge charts.
        style: style in addition to that of every page.

    Raises:
        ConfigError: if jinja2 is not installed.
    """
    check_installed()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    scripts = assets.scripts() if scripts is None else scripts
    figures = [it for section in sections for it in section.parts if isinstance(it, Figure)]
    environment = Environment(
        loader=FileSystemLoader(assets.TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html").render(
        title=title,
        lead=lead,
        sections=sections,
        style=assets.style() + style,
        scripts=scripts,
        data=embedded([dict(figure.data) for figure in figures]),
        policy=_policy(scripts),
        version=__version__,
    )
    # JSON may contain a lone surrogate, which UTF-8 cannot encode.
    return page.encode("utf-8", "replace").decode("utf-8")


def embedded(value: Any) -> str:
    r"""Return JSON that is safe inside a ``<script>``: nothing in it ends a script or begins a tag.

    >>> embedded({"name": "</script><img onerror=alert(1)>"})
    '{"name":"\\u003c/script\\u003e\\u003cimg onerror=alert(1)\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_TAGS)


def _policy(scripts: Sequence[str]) -> str:
    sums = [base64.b64encode(hashlib.sha256(it.encode()).digest()).decode() for it in scripts]
    allowed = " ".join(f"'sha256-{it}'" for it in sums) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )
