"""The page of the command line, typeset from its parsers: sections, flags, values of flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from textwrap import dedent
from typing import Any

from psrt.__main__ import COMMANDS
from psrt.cli.completion import parsers_of_all
from psrt.cli.flags import FlagParser
from psrt.config import MODES
from psrt.rows.knobs import Knob, dashed, shown
from psrt.rows.row import Rows, knobs_of_row

#: Commands that take the flags of another, and which.
_LIKE = {"server": "train", "worker": "train"}
#: What Markdown would take for its own.
_MARKUP = re.compile(r"([\\*_<>\[\]|$#~^])")
#: What is code: flags, but not the -B of exp(-B tau).
_CODE = re.compile(r"(?<![\w-])(--[a-z][\w-]*(?:='[^']+'|=[\w./:+-]*\w)?|(?<!\()-[a-z](?![\w-]))")
#: What descriptions list: a name, and what it is.
_LISTED = re.compile(r"([\w-]+) {2,}(.+)")
#: A help text, and at its end where a flag is used, and its default.
_NOTED = re.compile(r"(.*) \((.*\bdefault: .*)\)")


def commands() -> Iterator[str]:
    """Yield a table of the commands, and a section for each, in Markdown."""
    yield "| command | what it does |"
    yield "|---|---|"
    for name, text in COMMANDS.items():
        yield f"| [`psrt {name}`](#psrt-{_LIKE.get(name, name)}) | {_escaped(text)} |"
    yield "\n`psrt server` and `psrt worker` take the flags of `psrt train`."
    parsers = parsers_of_all()
    (train,) = parsers["train"]
    for name in (it for it in COMMANDS if it not in _LIKE):
        yield f"\n## psrt {name}"
        first, *more = parsers[name]
        if not more:
            yield from _command(first, 3, train if first.knobs and first is not train else None)
        for parser in _joined([first, *more]) if more else ():
            yield f"\n### {parser.prog}"
            yield from _command(parser, 4)
        if first is train:
            yield from _values(train)


def _command(parser: FlagParser, level: int, like: FlagParser | None = None) -> Iterator[str]:
    """Yield what a command does and takes; of another's flags only those that differ."""
    yield from _described(parser.description or "")
    known = {} if like is None else _helps(like)
    if like is not None:
        hidden = [f"`{it}`" for it, text in _helps(parser).items() if _hides(text, known.get(it))]
        without = f", without {', '.join(hidden)}" if hidden else ""
        yield f"\nIt takes the flags of [`{like.prog}`](#psrt-train){without}, and these:"
    yield f"\n```{{program}} {parser.prog}\n```"
    # What has no heading of its own is one list: arguments, then flags.
    plain, headed = parser._action_groups[:2], parser._action_groups[2:]
    yield from _flags((it for group in plain for it in group._group_actions), known)
    for group in headed:
        if flags := list(_flags(group._group_actions, known)):
            yield f"\n{'#' * level} {group.title}"
            yield from _described(group.description or "")
            yield from flags


def _joined(parsers: Iterable[FlagParser]) -> list[FlagParser]:
    """Return the parsers, those of modes as one that has all their flags."""
    joined: dict[str, FlagParser] = {}
    for parser in parsers:
        mode = parser.prog.split()[-1]
        if mode not in MODES:
            joined[parser.prog] = parser
            continue
        prog = parser.prog.removesuffix(mode) + "MODE"
        if prog not in joined:
            text = (parser.description or "").replace(f" {mode} ", " ")
            joined[prog] = FlagParser(prog=prog, description=text, add_help=False)
        seen = _helps(joined[prog])
        for action in parser._actions:
            if action.help != argparse.SUPPRESS and action.option_strings[-1] not in seen:
                joined[prog]._add_action(action)
    return list(joined.values())


def _values(parser: FlagParser) -> Iterator[str]:
    """Yield a section for each flag that chooses by name something that has knobs of its own."""
    done: list[Rows[Any]] = []
    for name, knob in parser.knobs.items():
        rows = knob.rows
        if not isinstance(rows, Rows) or any(rows is it for it in done):
            continue
        done.append(rows)
        flag = f"--{dashed(name)}"
        yield f"\n### Values of {flag}\n\n```{{program}} {parser.prog} {flag}\n```"
        for row in rows.values():
            knobs = [
                f"- `{dashed(name)}={it.metavar or it.kind.metavar or 'true|false'}`: "
                f"{_prose(f'{it.help} (default: {_default(it, row.knobs[name])})')}"
                for name, it in knobs_of_row(row).items()
            ]
            yield from _option(row.name, [_prose(row.line()), *(["", *knobs] if knobs else [])])


def _default(knob: Knob, value: Any) -> str:
    return knob.default_text or (value if isinstance(value, str) else shown(value))


def _flags(actions: Iterable[argparse.Action], known: Mapping[str, str]) -> Iterator[str]:
    """Yield the flags that are shown, except those whose help is known."""
    for action in actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        if action.option_strings and known.get(action.option_strings[-1]) == action.help:
            continue
        text, notes = action.help or "", ""
        if noted := _NOTED.fullmatch(text):
            text, notes = noted.groups()
        yield from _option(
            _signature(action), [_prose(text), *(["", _prose(notes)] if notes else [])]
        )


def _option(signature: str, lines: list[str]) -> Iterator[str]:
    yield f"\n````{{option}} {signature}"
    yield from lines
    yield "````"


def _signature(action: argparse.Action) -> str:
    """Return a flag with what follows it."""
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return metavar or "|".join(action.choices or [action.dest])
    value = metavar or ("{" + ",".join(action.choices) + "}" if action.choices else "")
    if value == "" and action.nargs != 0:
        value = action.dest.upper()
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def _helps(parser: FlagParser) -> dict[str, str]:
    """Return the help of each flag."""
    return {flag: it.help or "" for it in parser._actions for flag in it.option_strings}


def _hides(text: str, other: str | None) -> bool:
    return text == argparse.SUPPRESS and other not in (None, argparse.SUPPRESS)


def _described(text: str) -> Iterator[str]:
    """Yield a description: paragraphs, examples, and lists of names."""
    for part in filter(None, text.split("\n\n")):
        lines = part.splitlines()
        listed = [_LISTED.fullmatch(line) for line in lines]
        if part.startswith("  "):
            yield f"\n```sh\n{dedent(part)}\n```"
        elif all(listed) and lines:
            yield "\n| name | what it is |\n|---|---|"
            yield from (f"| `{it[1]}` | {_prose(it[2])} |" for it in listed if it)
        else:
            yield f"\n{_prose(' '.join(lines))}"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)


def _prose(text: str) -> str:
    """Return a line of help as Markdown, flags in it as code."""
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        parts = _CODE.split(pieces[i])
        parts[::2] = (_escaped(it) for it in parts[::2])
        parts[1::2] = (f"`{it}`" for it in parts[1::2])
        pieces[i] = "".join(parts)
    pieces[1::2] = (f"`{it}`" for it in pieces[1::2])
    return "".join(pieces)
