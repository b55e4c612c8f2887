"""Sphinx's settings: ``make docs-site`` builds these pages into ``docs/_build/html``.

The pages are read as they are on their own. What a site needs beside that is made here: each table
of ``index.md`` becomes a part of the navigation, three pages of the repository's root join in, and
``from_code.py`` fills in what pages say of the code, ``widgets.py`` what they show beside it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import mpi4py
from docutils import nodes

sys.path.insert(0, str(Path(__file__).parent))

from from_code import filled
from widgets import framed, laid_out

import psrt

# The communicator is imported for its docstrings; nothing here starts MPI.
mpi4py.rc.initialize = False

project = "psrt"
author = "The psrt developers"
project_copyright = f"2026 {author}"
release = psrt.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
# Plain text has flags, whose hyphens stay two.
smartquotes = False
# In docstrings `a` is code, as in Markdown, and so is ``a``.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
# Libraries that adapters need, and their docstrings do not.
autodoc_mock_imports = ["torch", "jax"]
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]
napoleon_use_ivar = True
# Types of other projects, whose indexes are on the network, and psrt's that are not public.
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|collections\.abc|os|MPI|torch|jax|nn)\..*"),
    (r"py:.*", r"(PathLike|AnyArray|Say|Work|OutputError|CrashError)"),
    (r"py:.*", r"psrt\.\w+\..*"),
]
doctest_global_setup = "import psrt\nfrom psrt import *"
highlight_language = "text"
copybutton_prompt_text = "$ "
copybutton_copy_empty_lines = False

html_theme = "furo"
html_title = f"psrt {psrt.__version__}"
html_static_path = ["_static"]
html_css_files = ["psrt.css"]
html_copy_source = False
html_show_sphinx = False

#: Files of the repository's root that are pages of the site, and what they are called there.
FROM_ROOT = {
    f"../{name.upper()}.md": f"{name}.md" for name in ("contributing", "changelog", "security")
}
_SECTION = re.compile(r"^## (.+)\n((?:.*\n)*?)(?=^## |\Z)", re.MULTILINE)
_LINK = re.compile(r"\]\(([\w-]+)\.(?:md|rst)\)")


def navigation(page: str) -> str:
    """Return the index with a hidden table of contents after each section, of what it links to."""

    def section(match: re.Match[str]) -> str:
        pages = "\n".join(dict.fromkeys(_LINK.findall(match[2])))
        return f"{match[0]}\n```{{toctree}}\n:hidden:\n:caption: {match[1]}\n\n{pages}\n```\n\n"

    return _SECTION.sub(section, page)


def others(page: str) -> str:
    """Return the directives of the public names that a page leaves out."""
    lines = []
    for name in psrt.__all__:
        if not re.search(rf":: (psrt\.)?{name}\b", page):
            kind = "class" if isinstance(getattr(psrt, name), type) else "function"
            lines.append(f".. auto{kind}:: psrt.{name}\n")
    return "\n".join(["Others\n------\n", *lines]) if lines else ""


def _read(app: Any, name: str, content: list[str]) -> None:
    text = laid_out(filled(content[0]))
    if app.builder.format == "html":
        text = framed(text, name, Path(app.outdir))
    for path, page in FROM_ROOT.items():
        text = text.replace(f"]({path})", f"]({page})")
    if name == "index":
        # Its sections are tables of pages, which the navigation has, too.
        text = f"---\nhide-toc: true\n---\n{navigation(text)}"
    if name == "api":
        text += f"\n{others(text)}"
    content[0] = text


def _public(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Lead from the module that has a public name, as annotations tell it, to its public name."""
    name = node["reftarget"].rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in psrt.__all__:
        return None
    domain, page = env.get_domain("py"), node["refdoc"]
    return domain.resolve_xref(env, page, app.builder, "obj", f"psrt.{name}", node, content)


def _code(app: object, tree: nodes.document, page: object) -> None:
    """Mark flags, and code that a cell of a table may break (long) or may not (short)."""
    for code in tree.findall(nodes.literal):
        if code.astext().startswith("--"):
            code["classes"].append("flag")
        if max(map(len, code.astext().split()), default=0) > 30:
            code["classes"].append("long")
        elif len(code.astext()) <= 16:
            code["classes"].append("short")


def _untyped(app: object, what: str, name: str, it: object, options: object, lines: Any) -> None:
    """Keep napoleon from taking what stands before a colon for a type: types are annotations."""
    if what in ("attribute", "property") and lines:
        lines[0] = f": {lines[0]}"
    for i, line in enumerate(lines[:-1]):
        if line in ("Returns:", "Yields:"):
            lines[i + 1] = re.sub(r"(\S)", r": \1", lines[i + 1], count=1)


def setup(app: Any) -> None:
    """Connect what is above to Sphinx."""
    app.connect("source-read", _read)
    app.connect("missing-reference", _public)
    app.connect("doctree-resolved", _code)
    app.connect("autodoc-process-docstring", _untyped, priority=1)
