"""What pages say of the code, made from the code as the site is built; no page holds it.

A page has a mark where it belongs, and for who reads the file itself a sentence in its place::

    <!-- RULES -->
    *On the site: every rule of the check.*
    <!-- / -->

A mark names a module, whose docstring belongs there, a table below, or a command of
``psrt explain``, whose output belongs there.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from inspect import cleandoc
from typing import Any, get_args, get_type_hints

from command_line import commands

from psrt.cli.explain import main as explain
from psrt.codec import CODECS
from psrt.collective import ALGORITHMS, PHASES, Schedule
from psrt.config import MODES
from psrt.history.check import RULES
from psrt.history.check.trust import ON_TRUST
from psrt.history.kinds import KINDS
from psrt.pipeline import PIPELINES
from psrt.report.simulation import Simulation
from psrt.report.summary import Summary
from psrt.rows.knobs import dashed, shown
from psrt.rows.row import knobs_of_row

#: A mark: what belongs there, and the sentence that stands for it.
MARK = re.compile(
    r"^<!-- (psrt\.[\w.]+|psrt explain [^>\n]+|[A-Z]+) -->\n(.*?)\n<!-- / -->$",
    re.MULTILINE | re.DOTALL,
)


def filled(page: str) -> str:
    """Return a page, in Markdown, with what its marks name in place of their sentences."""
    return MARK.sub(lambda mark: made(mark[1]), page)


def made(name: str) -> str:
    """Return what a mark names, as Markdown."""
    if name in _TABLES:
        return "\n".join(_TABLES[name]())
    if name.startswith("psrt explain "):
        return f"```text\n{_explained(name.split()[2:])}\n```"
    return _derivation(name)


def _explained(words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        explain(words)
    return said.getvalue().rstrip()


def _kinds() -> Iterator[str]:
    """Yield a table of the kinds of events; and columns whose names differ from their fields."""
    yield "| kind | | who | what happened | fields |"
    yield "|---|---|---|---|---|"
    for kind, it in sorted(KINDS.items()):
        fields = []
        for name, field in it.fields.items():
            column = "" if name == field else f" (`{field}`)"
            what = f"{'a pair of digests, ' * field.is_pair}{field.text}".removesuffix(", ")
            fields.append(f"`{name}`{column}{': ' * bool(what)}{what}")
        text = " ".join((it.__doc__ or "").replace("``", "`").split())
        cells = (f"{kind:d}", kind.name, it.who, text, "<br>".join(fields))
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _rules() -> Iterator[str]:
    """Yield a table of the checker's rules."""
    yield "| rule | what holds |"
    yield "|---|---|"
    yield from (f"| {rule} | {promise} |" for rule, promise in RULES.items())


def _trusted() -> Iterator[str]:
    yield "| where | numbers | what is known of them | in which runs |"
    yield "|---|---|---|---|"
    for it in ON_TRUST:
        names = ", ".join(f"`{name}`" for name in it.names)
        yield f"| {it.where} | {names} | {it.why} | {it.when or 'all'} |"


def _schedules(rows: Iterable[Schedule]) -> Iterator[str]:
    """Yield a table of collectives, and the derivation of each."""
    yield "| name | in short |"
    yield "|---|---|"
    yield from (f"| `{row.name}` | {row.summary} |" for row in rows)
    for row in rows:
        yield f"\n### {row.name}\n\n{_derivation(row.steps.__module__)}"


def _pipelines() -> Iterator[str]:
    """Yield a table of the schedules of pipelines, and the derivation of each."""
    yield "| name | in short | bubble where f = b = w, M ≥ P |"
    yield "|---|---|---|"
    for row in PIPELINES.values():
        name = f"{row.name}:V" if row.chunked else row.name
        yield f"| `{name}` | {row.summary} | {row.formula} |"
    for row in PIPELINES.values():
        yield f"\n### {row.name}\n\n{_derivation(row.order.__module__)}"


def _modes() -> Iterator[str]:
    """Yield a table of what the modes send by a codec."""
    yield "| mode | of what | pushes | replies, or means | sums | neighbours |"
    yield "|---|---|---|---|---|---|"
    for row in MODES.values():
        what = ("gradients" if row.encodes_gradients else "differences") if row.codecs else ""
        served = "with `--servers`" if row.sums else "yes"
        pushes = served if row.codecs and row.may_have_servers else ""
        sums = row.codecs and row.sums
        summed = ("without `--servers`" if row.may_have_servers else "yes") if sums else ""
        neighbours = "yes, in rounds" if row.codecs and row.mixes else ""
        replies = "yes" if row.codecs and not row.mixes else ""
        cells = (row.name, what, pushes, replies, summed, neighbours)
        yield f"| {' | '.join(cells)} |"


def _codecs() -> Iterator[str]:
    """Yield a table of the codecs, from their rows."""
    yield "| name | in short | knobs | unbiased | error feedback | replies, neighbours |"
    yield "|---|---|---|---|---|---|"
    for row in CODECS.values():
        knobs = [
            dashed(name) if row.knobs[name] is None else f"{dashed(name)} {shown(row.knobs[name])}"
            for name in knobs_of_row(row)
        ]
        unbiased = "if scaled" if "scaled" in row.knobs else "yes" if row.is_unbiased else ""
        feedback = "yes" if row.is_fed_back else "no"
        if row.feeds_back is None:
            feedback = "none"
        elif "scaled" in row.knobs:
            feedback = "if not scaled"
        replies = "yes" if row.sends_differences else "no"
        cells = (f"`{row.name}`", row.summary, ", ".join(knobs), unbiased, feedback, replies)
        yield f"| {' | '.join(cells)} |"


def _fields(name: str, kind: Any) -> Iterator[str]:
    """Yield a table of the fields of a JSON file, and of the objects in it."""
    yield f"| `{name}` | |"
    yield "|---|---|"
    for names, text in _commented(kind):
        cells = (", ".join(f"`{it}`" for it in names), text.replace("``", "`"))
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _commented(kind: Any, prefix: str = "") -> Iterator[tuple[list[str], str]]:
    """Yield fields that share a comment, and its text; else that of the docstring."""
    hints = get_type_hints(kind)
    groups: list[tuple[list[str], list[str]]] = [([], [])]
    for comment, name in re.findall(
        r"^    (?:#: (.*)|(\w+): .*)$", inspect.getsource(kind), re.MULTILINE
    ):
        if comment and groups[-1][0]:
            groups.append(([], []))
        if comment:
            groups[-1][1].append(comment)
        elif name in hints and name != "more":  # whose own fields are in the file
            groups[-1][0].append(name)
    for names, comments in groups:
        text = " ".join(comments) or cleandoc(kind.__doc__).split("\n\n")[0].replace("\n", " ")
        if names:
            yield [f"{prefix}{name}" for name in names], text
        for name in names:
            for inner in filter(is_dataclass, (hints[name], *get_args(hints[name]))):
                yield from _commented(inner, f"{prefix}{name}.")


def _derivation(module: str) -> str:
    return as_markdown(importlib.import_module(module).__doc__ or "")


def as_markdown(docstring: str) -> str:
    """Return a docstring of this project as Markdown."""
    text = cleandoc(docstring).replace("``", "`").replace(".. code-block:: text\n\n", "")
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    if text.startswith("=="):
        return "\n".join(_table(text.splitlines()))
    if text.startswith("    "):  # a picture or a formula
        return text
    # Powers, which Markdown would take for bold type, but not those within backquotes.
    pieces = text.split("`")
    pieces[::2] = (re.sub(r"(?<=\w)\*\*(?=[\w⌊(])", r"\*\*", piece) for piece in pieces[::2])
    return "`".join(pieces)


def _table(lines: list[str]) -> Iterator[str]:
    """Yield a table of a docstring as one of Markdown; without a heading it has an empty one."""
    rule = lines[0]
    spans = [match.span() for match in re.finditer("=+", rule)]
    ends = [*(start for start, _ in spans[1:]), None]
    rows: list[list[str]] = [] if lines.count(rule) == 3 else [[""] * len(spans)]
    for line in (it for it in lines if it != rule):
        cells = [line[start:end].strip() for (start, _), end in zip(spans, ends, strict=True)]
        if cells[0] or not rows:
            rows.append(cells)
        else:  # more of the row before
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    head, *rest = (f"| {' | '.join(cells)} |" for cells in rows)
    yield from (head, "|---" * len(spans) + "|", *rest)


#: What a mark in capitals stands for.
_TABLES = {
    "ALGORITHMS": lambda: _schedules(ALGORITHMS.values()),
    "CODECS": _codecs,
    "COMMANDS": commands,
    "KINDS": _kinds,
    "MODES": _modes,
    "PHASES": lambda: _schedules(PHASES.values()),
    "PIPELINES": _pipelines,
    "RULES": _rules,
    "SUMMARY": lambda: (
        *_fields("summary.json", Summary),
        "",
        *_fields("simulation.json", Simulation),
    ),
    "TRUST": _trusted,
}
