"""Writes the pages of this folder that say what the code says: ``python docs/build.py [PAGE ...]``.

Each page has a function below that returns its text; a test holds the files against them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path

from psrt.__main__ import COMMANDS
from psrt.cli.bench import bench_parser
from psrt.cli.check import check_parser
from psrt.cli.checkpoints import checkpoints_parser
from psrt.cli.compare import compare_parser as runs_parser
from psrt.cli.completion import completion_parser
from psrt.cli.doctor import doctor_parser
from psrt.cli.explain_flags import (
    codec_parser,
    compare_parser,
    gossip_parser,
    pipeline_compare_parser,
    pipeline_parser,
    schedule_parser,
    timeline_parser,
)
from psrt.cli.export import export_parser
from psrt.cli.flags import FlagParser, rows_of_all, train_parser
from psrt.cli.launch import launch_parser
from psrt.cli.report import report_parser
from psrt.cli.show import show_parser
from psrt.cli.simulate import simulate_parser
from psrt.cli.trace import trace_parser
from psrt.cli.watch import watch_parser
from psrt.codec import CODECS
from psrt.collective import ALGORITHMS, PHASES, Schedule
from psrt.config import MODES
from psrt.history.check import RULES
from psrt.history.check.trust import ON_TRUST
from psrt.history.kinds import KINDS
from psrt.pipeline import PIPELINES
from psrt.rows.knobs import dashed, shown
from psrt.rows.row import knobs_of_row

_FOLDER = Path(__file__).parent
#: Stands for a module's docstring, or for a section per row of a registry.
_PART = re.compile(r"(<!-- (psrt\.[\w.]+|[A-Z]+) -->\n).*?(<!-- / -->)", re.DOTALL)
_ROWS: dict[str, Iterable[Schedule]] = {
    "ALGORITHMS": ALGORITHMS.values(),
    "PHASES": PHASES.values(),
}


def cli() -> str:
    """The command line, from its parsers."""
    lines = ["# The command line", "", "Made from the code by `python docs/build.py cli.md`.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    lines += [f"| `psrt {name}` | {_cell(text)} |" for name, text in COMMANDS.items()]
    lines += ["", "`psrt server` and `psrt worker` take the flags of `psrt train`."]
    train = train_parser()
    own = {name for action in train._actions for name in action.option_strings}
    lines += _command(launch_parser())
    lines += _command(train)
    for text in rows_of_all(train.knobs):
        lines += ["", "```text", text.rstrip(), "```"]
    lines += _command(
        simulate_parser(), "Beside the flags of `psrt train`, but `--timeout-s`:", own
    )
    lines += _command(show_parser(), "Beside the flags of `psrt train`:", own)
    lines += _command(doctor_parser())
    lines += _command(check_parser())
    lines += _command(trace_parser())
    lines += _command(watch_parser())
    lines += _command(runs_parser())
    lines += _command(export_parser())
    lines += _command(checkpoints_parser())
    lines += _command(report_parser())
    lines += _command(bench_parser())
    lines += _command(schedule_parser("NAME"), "NAME is an all-reduce or another collective.")
    timelines = [timeline_parser(mode) for mode in MODES.values() if not mode.single]
    lines += _command(
        _joined(timelines), "MODE is any but serial, with its knobs as --mode takes them."
    )
    lines += _command(codec_parser())
    lines += _command(gossip_parser())
    lines += _command(pipeline_parser())
    lines += _command(pipeline_compare_parser())
    lines += _command(compare_parser())
    lines += _command(completion_parser())
    return "\n".join(lines) + "\n"


def collectives() -> str:
    """The page on collectives, whose derivations are the docstrings of the code.

    Between ``<!-- psrt.some.module -->`` and ``<!-- / -->`` stands the docstring of that module.
    So everything is derived in one place, beside the code that it is about.
    """
    return _filled("collectives.md")


def history() -> str:
    """The page on histories, whose table of rules is the checker's."""
    return _filled("history.md")


def compression() -> str:
    """The page on codecs, whose table of codecs and wire formats are those of the code."""
    return _filled("compression.md")


def parallelism() -> str:
    """The page on models cut across ranks, whose schedules are derived beside the code."""
    return _filled("parallelism.md")


#: Name of a page → what returns its text.
PAGES = {
    "cli.md": cli,
    "collectives.md": collectives,
    "compression.md": compression,
    "history.md": history,
    "parallelism.md": parallelism,
}


def _filled(name: str) -> str:
    """Return a page with its marked parts made anew."""
    page = (_FOLDER / name).read_text(encoding="utf-8")
    return _PART.sub(lambda part: f"{part[1]}{_part(part[2])}\n{part[3]}", page)


def _trusted() -> Iterator[str]:
    yield "| where | numbers | what is known of them | in which runs |"
    yield "|---|---|---|---|"
    for it in ON_TRUST:
        names = ", ".join(f"`{name}`" for name in it.names)
        yield f"| {it.where} | {names} | {it.why} | {it.when or 'all'} |"


def _kinds() -> Iterator[str]:
    """Yield a table of the kinds of events; a column is said where a field is not called so."""
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
        yield f"| {' | '.join(map(_cell, cells))} |"


def _part(name: str) -> str:
    if name == "KINDS":
        return "\n".join(_kinds())
    if name == "RULES":
        rules = [f"| {rule} | {promise} |" for rule, promise in RULES.items()]
        return "\n".join(["| rule | what holds |", "|---|---|", *rules])
    if name == "TRUST":
        return "\n".join(_trusted())
    if name == "CODECS":
        return "\n".join(_codecs())
    if name == "MODES":
        return "\n".join(_modes())
    if name == "PIPELINES":
        return "\n\n".join(_pipelines())
    if name not in _ROWS:
        return _derivation(name)
    rows = list(_ROWS[name])
    table = ["| name | in short |", "|---|---|"]
    table += [f"| `{row.name}` | {row.summary} |" for row in rows]
    sections = [f"### {row.name}\n\n{_derivation(row.steps.__module__)}" for row in rows]
    return "\n\n".join(["\n".join(table), *sections])


def _pipelines() -> Iterator[str]:
    """Yield a table of the schedules of pipelines, and the derivation of each."""
    table = ["| name | in short | bubble where f = b = w, M ≥ P |", "|---|---|---|"]
    for row in PIPELINES.values():
        name = f"{row.name}:V" if row.chunked else row.name
        table.append(f"| `{name}` | {row.summary} | {row.formula} |")
    yield "\n".join(table)
    for row in PIPELINES.values():
        yield f"### {row.name}\n\n{_derivation(row.order.__module__)}"


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


def _derivation(module: str) -> str:
    return as_markdown(importlib.import_module(module).__doc__ or "")


def as_markdown(docstring: str) -> str:
    """Return a docstring of this project as Markdown."""
    text = cleandoc(docstring).replace("``", "`").replace(".. code-block:: text\n\n", "")
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    if text.startswith("=="):  # a table
        return f"```text\n{text}\n```"
    if text.startswith("    "):  # a picture or a formula
        return text
    # Powers, which Markdown would take for bold type, but not those within backquotes.
    pieces = text.split("`")
    pieces[::2] = (re.sub(r"(?<=\w)\*\*(?=[\w⌊(])", r"\*\*", piece) for piece in pieces[::2])
    return "`".join(pieces)


def _command(
    parser: FlagParser, note: str = "", known: set[str] | frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield the section of one command, without the flags that are known from another."""
    yield from ("", f"## {parser.prog}", "", "```text", parser.description or "", "```")
    if note:
        yield from ("", note)
    # What has no heading of its own is one table: arguments, then flags.
    plain, headed = parser._action_groups[:2], parser._action_groups[2:]
    yield from _table([it for group in plain for it in group._group_actions], known)
    for group in headed:
        rows = list(_table(group._group_actions, known))
        if rows:
            yield from ("", f"### {group.title}")
            if group.description:
                yield from ("", "```text", group.description, "```")
            yield from rows


def _table(actions: list[argparse.Action], known: set[str] | frozenset[str]) -> Iterator[str]:
    """Yield a table of the flags that are shown, nothing if none is."""
    shown = [
        action
        for action in actions
        if action.help != argparse.SUPPRESS
        and not known & set(action.option_strings)
        and not isinstance(action, argparse._HelpAction)
    ]
    if shown:
        yield from ("", "| flag | meaning |", "|---|---|")
        yield from (f"| {_flag(action)} | {_cell(action.help or '')} |" for action in shown)


def _joined(parsers: list[FlagParser]) -> FlagParser:
    """Return a parser with every flag that one of these shows."""
    joined = FlagParser(prog="psrt explain MODE", description=parsers[0].description)
    seen: set[str] = set()
    for action in (action for parser in parsers for action in parser._actions):
        if action.help != argparse.SUPPRESS and action.option_strings[-1] not in seen | {"--help"}:
            seen.add(action.option_strings[-1])
            joined._add_action(action)
    return joined


def _flag(action: argparse.Action) -> str:
    """Return a flag with what follows it, as code."""
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return f"`{_cell(metavar or '|'.join(action.choices or [action.dest]))}`"
    value = metavar or ("{" + ",".join(action.choices) + "}" if action.choices else "")
    if value == "" and action.nargs != 0:
        value = action.dest.upper()
    return f"`{_cell(' '.join(filter(None, (', '.join(action.option_strings), value))))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*:", "\\*:")


def main(words: list[str]) -> int:
    """Write the pages that are named, or all of them."""
    for name in words or PAGES:
        (_FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
