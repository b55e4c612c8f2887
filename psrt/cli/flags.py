"""Flags made from `TrainConfig`: one per knob, grouped in the help. Needs no numpy, no MPI."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

from psrt.cli.process import print_once
from psrt.cli.progress import add_flags
from psrt.config import MODES, RunKnob, TrainConfig, did_you_mean, read_toml
from psrt.config.former import now_of
from psrt.config.knobs import Condition, knobs_of, synonyms_of
from psrt.config.overriding import LENGTHS
from psrt.core.errors import ConfigError
from psrt.core.files import read_text
from psrt.rows.knobs import dashed, read, shown
from psrt.rows.registry import Chosen
from psrt.rows.row import Row, Rows, knobs_of_row
from psrt.rows.values import SWITCH, WIDTHS

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_DESCRIPTION = """\
Train a model on the ranks that psrt launch starts, or serially in this process.

  psrt train --epochs 5 --out runs/first
  psrt launch -n 4 train --mode ssp:staleness=2 --servers 1

Some defaults depend on the mode and the number of ranks. `psrt show` with the same flags prints the
configuration of such a run."""

_ROLE = """\
Train, with this rank as a {role}. Servers and workers of a job are started together, all with the
same flags of `psrt train`.

  mpirun -n 1 psrt server --mode ssp : -n 3 psrt worker --mode ssp

`psrt launch -n 4 train --mode ssp --servers 1` starts the same job in one line."""

#: Flags that users try for the number of ranks or workers, which psrt launch sets.
RANK_WORDS = ("workers", "ranks", "n", "np", "nproc", "num-workers", "processes", "world-size")
#: Flags of psrt launch that users try after the command.
LAUNCH_WORDS = ("restarts", "min-workers", "hostfile", "launcher", "bind-to")


#: A line of help with a longer list of names shows the names that are not in the list instead.
_MOST_NAMES = 7


class FlagParser(argparse.ArgumentParser):
    """argparse that raises `ConfigError` instead of exiting, and guesses misspelled flags."""

    #: Other name that a user may try → flag, both without leading dashes.
    synonyms: dict[str, str]
    #: Name without a flag, without leading dashes → what to do instead.
    notes: dict[str, str]
    #: Knobs by field name, if ``--help`` shows only the usual ones.
    knobs: Mapping[str, RunKnob]

    def __init__(self, *, knobs: Mapping[str, RunKnob] | None = None, **kwargs: Any) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **{"add_help": not knobs} | kwargs,
        )
        self.synonyms, self.notes, self.knobs = {}, {}, knobs or {}
        if self.knobs:
            self.add_argument(
                *("-h", "--help"), action=_Help, nargs="?", metavar="TOPIC",
                help="show the usual flags, or those of a topic: a heading, a flag, or a value "
                "such as ssp, top-k or adam",
            )  # fmt: skip
            self.add_argument("--help-all", action=_Help, nargs=0, help="show every flag")

    def help_on(self, topic: str | None) -> str:
        """Return the help with the usual flags only, or with those of a topic.

        Args:
            topic: a part of a heading or of a flag's name; a value of a knob, such as a mode, which
                shows the knobs that it uses; or a knob of such a value.

        Raises:
            ConfigError: if it is not one of these.
        """
        if topic is None:
            return self._help_with(self._is_usual) + (
                f"\nThese are the usual flags. {self.prog} --help-all shows all flags.\n"
                "--help TOPIC shows those of a heading, flag or value, as in --help codec.\n"
            )
        word = topic.lstrip("-").replace("_", "-").replace(" ", "-").lower()
        text = self._help_with(lambda action, title: self._is_about(word, action, title))
        for name, rows in _registries(self.knobs):
            names = [it for it in rows if word in _topics(rows[it])]
            if names or word == dashed(name):
                of_all = word == dashed(name)
                text += "\n" + rows_help(f"--{dashed(name)}", rows, None if of_all else names)
        if not re.search(r"^( {2})?--", text, re.MULTILINE):
            headings = [str(it.title) for it in self._action_groups if it._group_actions]
            known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            choices = [name for it in self.knobs.values() for name in it.names]
            synonyms = dict(self.synonyms)
            for _, rows in _registries(self.knobs):
                choices += [it for row in rows.values() for it in _topics(row)]
                synonyms |= rows.words | {
                    other: dashed(field)
                    for row in rows.values()
                    for field, knob in knobs_of_row(row).items()
                    for other in knob.synonyms
                }
            hint = did_you_mean(word, [*headings, *known, *choices], synonyms)
            raise ConfigError(
                f"--help knows no topic {topic!r}{hint}; "
                f"expected a heading ({', '.join(headings)}), a flag, or a value such as ssp"
            )
        return text

    def _is_usual(self, action: argparse.Action, title: str) -> bool:
        knob = self.knobs.get(action.dest)
        return knob is None or knob.usual

    def _is_about(self, word: str, action: argparse.Action, title: str) -> bool:
        names = (title.replace(" ", "-"), *(name[2:] for name in action.option_strings))
        if any(f"-{word}-" in f"-{name}-" for name in names):
            return True
        knob = self.knobs.get(action.dest)
        return knob is not None and (
            word in knob.names or any(word in map(str, it.values) for it in _named(knob))
        )

    def _help_with(self, shown: Callable[[argparse.Action, str], bool]) -> str:
        """Return the help, as `format_help` does, with some of the flags."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            chosen = [it for it in group._group_actions if shown(it, str(group.title))]
            if any(it.help is not argparse.SUPPRESS for it in chosen):
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(chosen)
                formatter.end_section()
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print before it ends the process."""
        if "required" in message:
            message += f"; see {self.prog} --help"
        raise ConfigError(message.removeprefix("argument "))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise if a value is not one of an argument's choices, with a guess which was meant."""
        if action.choices is not None and value not in action.choices:
            known = tuple(map(str, action.choices))
            raise ConfigError(
                f"{dashed(action.dest)} must be one of {', '.join(known)}, got {value!r}"
                f"{did_you_mean(str(value), known)}"
            )

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help once per job; argparse would not report a full disk."""
        if file is None:
            print_once(self.format_help(), sys.stdout)
        else:
            super().print_help(file)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the flags of this parser; return them and the other words."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            # Before Python 3.13 argparse takes this for the separator and hands on a list.
            if word.startswith("--") and word.endswith("=--"):
                raise ConfigError(f"{word[2:-3]} needs a value, got '--'")
        return super().parse_known_args(words, namespace)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of ``argv``.

        Raises:
            ConfigError: for an unknown flag, a flag without its value, or a stray word.
            SystemExit: after ``--help`` was printed to stdout.
        """
        words = list(argv)
        namespace, unknown = self.parse_known_args(words)
        for word in unknown:
            if word.startswith("-") and word != "--":
                if "--" in words and word not in words[: words.index("--")]:
                    raise ConfigError(f"unexpected argument {word!r}: flags go before --")
                flag = word.partition("=")[0]
                raise ConfigError(f"unknown flag {flag}{self._hint(flag)}")
        if unknown:
            raise ConfigError(
                f"unexpected argument {unknown[0]!r}{self._list_hint(argv, unknown[0])}"
            )
        return namespace

    def _list_hint(self, argv: Sequence[str], word: str) -> str:
        """Return how to write a list, if a stray word follows the value of a flag for a list."""
        at = list(argv).index(word)
        flag, value = (["", "", *argv])[at : at + 2]
        knob = self.knobs.get(flag.removeprefix("--").replace("-", "_"))
        if knob is None or not (knob.kind.several or knob.kind is WIDTHS):
            return ""
        return f" (did you mean {flag} {value},{word}?)"

    def _hint(self, flag: str) -> str:
        """Return a guess which flag was meant, or where all flags are listed."""
        word = flag.lstrip("-").replace("_", "-").lower()
        if now := now_of(word.removeprefix("no-").replace("-", "_")):
            return f": it is now {now}"
        if word in self.notes and word not in self.synonyms:
            return f" ({self.notes[word]})"
        known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        of_rows = {it: at for it, at in _words_of_rows(self.knobs).items() if it not in known}
        synonyms = of_rows | self.synonyms
        guess = did_you_mean(word, [*known, *of_rows.values()], synonyms, prefix="--")
        every = "--help-all" if self.knobs else "--help"
        return guess or f"; {self.prog} {every} lists all flags"


class _Help(argparse.Action):
    """``--help``, ``--help TOPIC`` and ``--help-all``: print the help and exit."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> NoReturn:
        assert isinstance(parser, FlagParser)
        is_all = self.nargs == 0
        every = "\n".join([parser.format_help(), *rows_of_all(parser.knobs)])
        print_once(every if is_all else parser.help_on(values), sys.stdout)
        parser.exit()


def train_parser(prog: str = "psrt train", description: str = _DESCRIPTION) -> FlagParser:
    """Return a parser with a flag for every knob and ``--config``.

    A flag that is not given leaves no attribute, so that it cannot override a TOML key.
    """
    parser = FlagParser(
        prog=prog,
        description=description,
        usage=f"{prog} [--config FILE] [flags]",
        argument_default=argparse.SUPPRESS,
        knobs=knobs_of(TrainConfig),
    )
    parser.synonyms = synonyms_of(TrainConfig)
    parser.notes = dict.fromkeys(RANK_WORDS, "psrt launch -n N starts N ranks, servers and workers")
    parser.notes["workers"] = "psrt launch --workers W train starts W workers, and their servers"
    parser.notes |= dict.fromkeys(LAUNCH_WORDS, "it is a flag of psrt launch, before train")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read a TOML file, such as the config.toml of a run; flags override it",
    )
    add_flags(parser)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, knob in knobs_of(TrainConfig).items():
        if knob.group not in groups:
            modes = (MODES[it] for it in MODES.own)
            intro = "\n".join(f"{row.name:<10} {row.summary}" for row in modes)
            groups[knob.group] = parser.add_argument_group(
                knob.group, intro if name == "mode" else None
            )
        _add_flag(groups[knob.group], name, knob)
    return parser


def role_parser(role: str) -> FlagParser:
    """Return the parser of ``psrt server`` or ``psrt worker``: the flags of `psrt train`."""
    return train_parser(f"psrt {role}", _ROLE.format(role=role))


def parse_train(argv: Sequence[str], *, prog: str = "psrt train") -> TrainConfig:
    """Return the config that the flags ask for, not resolved.

    Args:
        argv: the words after the subcommand.
        prog: the command, as the help calls it.

    Raises:
        ConfigError: one line for anything invalid.
        SystemExit: after ``--help`` was printed to stdout.
    """
    return config_of(train_parser(prog).parse(argv))


def config_of(namespace: argparse.Namespace) -> TrainConfig:
    """Return the config of parsed flags: the TOML of ``--config``, overridden by the flags.

    With ``--replay`` it is the config of the recorded run, and with ``--resume`` that of the
    resumed run, which other flags may not contradict.

    Raises:
        ConfigError: as `parse_train`.
    """
    values = values_of(namespace)
    if "replay" in values:
        from psrt.job.recorded import recorded_config  # needs numpy

        return recorded_config(values.pop("replay"), **values)
    if "resume" in values:
        from psrt.job.resuming import resumed_config

        return resumed_config(values.pop("resume"), **values)
    return TrainConfig(**values)


def values_of(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the values that ``--config`` and, with precedence, the parsed flags give.

    Raises:
        ConfigError: as `parse_train`.
    """
    given = vars(namespace)
    knobs = knobs_of(TrainConfig)
    flags = {name: value_given(name, knobs[name], given[name]) for name in knobs if name in given}
    values = _read_config(given["config"]) if "config" in given else {}
    if any(name in flags for name in LENGTHS):
        values = {name: value for name, value in values.items() if name not in LENGTHS}
    return {**values, **flags}


def _read_config(path: str) -> dict[str, Any]:
    return read_toml(read_text(path, "a TOML file"), source=path)


def _add_flag(group: argparse._ArgumentGroup, name: str, knob: RunKnob) -> None:
    flag = f"--{dashed(name)}"
    text = _help(name, knob)
    if knob.kind is SWITCH:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    metavar = knob.metavar or knob.kind.metavar
    if knob.choices and not knob.metavar:
        metavar = f"{{{','.join(knob.choices)}}}"
    action = "append" if knob.kind.several else "store"
    # The knob's kind reads the text afterwards: its messages are better than argparse's.
    group.add_argument(flag, metavar=metavar, action=action, help=text)


def value_given(name: str, knob: RunKnob, given: Any) -> Any:
    """Convert a value that argparse collected to the knob's type."""
    if knob.kind is SWITCH:
        return given
    return read(name, knob, ",".join(given) if isinstance(given, list) else given)


def _help(name: str, knob: RunKnob) -> str:
    """Return the help line: the knob's own text, when it applies, and its default."""
    # Of several conditions the last one is the narrowest.
    notes = [f"{dashed(it.field)} {_listed(it)}" for it in _named(knob)[-1:]]
    default = knob.default_text
    if not default:
        # The class's own attribute is a slot; the default is in the field.
        own = TrainConfig.__dataclass_fields__[name].default
        value = knob.fallback if own is None else own
        default = value if isinstance(value, str) else shown(value)
    notes.append(f"default: {default}")
    names = "" if knob.rows is None else f": {', '.join(knob.rows.own)}"
    return f"{knob.help}{names} ({'; '.join(notes)})"


def rows_help(before: str, rows: Rows[Any], names: Iterable[str] | None = None) -> str:
    """Return the help on the rows that a flag chooses from, each with its knobs.

    Args:
        before: what stands before the name, such as the flag.
        rows: the rows to choose from.
        names: names of the rows to show; None shows all.
    """
    lines = [f"{before} NAME:KNOB=VALUE,...", ""]
    for name in rows if names is None else names:
        lines += _row_lines(rows[name])
    return "\n".join(lines) + "\n"


def _row_lines(row: Row, inside: str = "") -> Iterator[str]:
    """Yield the lines about a row, which may be the value of another row's knob."""
    margin = "    " if inside else "  "
    yield f"{margin}{row.name:<16} {row.line()}"
    for field, knob in knobs_of_row(row).items():
        value = row.knobs[field]
        default = knob.default_text or (value if isinstance(value, str) else shown(value))
        metavar = knob.metavar or knob.kind.metavar or "true|false"
        if knob.rows is not None:
            metavar = "NAME"
        elif knob.choices and not knob.metavar:
            metavar = f"{{{','.join(knob.choices)}}}"
        left = f"{margin}  {inside}{dashed(field)}={metavar}"
        text = f"{left:<23} {knob.help} (default: {default})"
        yield from wrap(text, 96, subsequent_indent=" " * 24)
        for other in () if knob.rows is None else knob.rows.values():
            yield from _row_lines(other, f"{inside}{dashed(field)}.")


def _topics(row: Row) -> Iterator[str]:
    """Yield the topics that show a row: its name, its knobs and the rows that they choose."""
    yield row.name
    for field, knob in knobs_of_row(row).items():
        yield dashed(field)
        yield from knob.choices


def rows_of_all(knobs: Mapping[str, RunKnob]) -> Iterator[str]:
    """Yield the help on the rows of each knob that chooses rows."""
    return (rows_help(f"--{dashed(name)}", rows) for name, rows in _registries(knobs))


def _registries(knobs: Mapping[str, RunKnob]) -> Iterator[tuple[str, Rows[Any]]]:
    """Yield each registry that knobs choose from once, with the first such knob."""
    seen: list[Rows[Any]] = []
    for name, knob in knobs.items():
        if isinstance(knob.rows, Rows) and not any(knob.rows is it for it in seen):
            seen.append(knob.rows)
            yield name, knob.rows


def _words_of_rows(knobs: Mapping[str, RunKnob]) -> dict[str, str]:
    """Return the other names of rows' knobs, each with the flag that sets the knob."""
    return {
        word: f"{dashed(flag)} {name}:{dashed(field)}=..."
        for flag, rows in _registries(knobs)
        for name, row in list(rows.items())[::-1]
        for field, knob in knobs_of_row(row).items()
        for word in (dashed(field), *knob.synonyms)
    }


def _named(knob: RunKnob) -> list[Condition]:
    """Yield the conditions of a knob on names; its help text has those on numbers and switches."""
    return [
        it
        for it in knob.requires
        if isinstance(it.values, Chosen) or isinstance(next(iter(it.values), ""), str)
    ]


def _listed(condition: Condition) -> str:
    """Return the values of a condition, or those that it excludes if these are fewer."""
    # Every rank makes this text, so it must not look for other packages.
    values = condition.values
    named = values.own if isinstance(values, Chosen) else tuple(values)
    if len(named) <= _MOST_NAMES:
        return ", ".join(named)
    field = knobs_of(TrainConfig)[condition.field]
    known = field.choices if field.rows is None else field.rows.own
    others = [it for it in known if it not in named]
    return f"any but {', '.join(others)}" if others else "any"
