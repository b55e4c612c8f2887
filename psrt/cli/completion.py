"""``psrt completion``: a script that makes a shell complete psrt's commands and flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence

from psrt.cli.flags import FlagParser
from psrt.cli.printing import say
from psrt.config.modes import MODES

_DESCRIPTION = """\
Print a script that makes the shell complete commands, flags, and the values of flags that take one
of a few names. For future shells, add the line to ~/.bashrc or ~/.zshrc:

  eval "$(psrt completion bash)"
  eval "$(psrt completion zsh)\""""

_ZSH = "autoload -Uz +X compinit bashcompinit && compinit && bashcompinit\n"
#: The last command of the line counts: psrt launch -n 4 train has the flags of train. Anything
#: else is completed with names of files.
_SCRIPT = """\
_psrt() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= words= it
  for it in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$it" in {commands}) [[ -z $command || $command == launch ]] && command=$it ;; esac
  done
  COMPREPLY=()
  case "$command $before" in
{values}
  *)
    case "$command" in
    "") words="{names} --help --version" ;;
{flags}
    esac
    [[ -n $command && $before != "$command" && $word != -* ]] && return ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _psrt psrt
"""


def completion_parser() -> FlagParser:
    """Return the parser."""
    parser = FlagParser(prog="psrt completion", description=_DESCRIPTION)
    parser.add_argument("shell", choices=("bash", "zsh"), help="bash, or zsh")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the script and return the exit status.

    Raises:
        ConfigError: for another shell.
        SystemExit: after ``--help`` was printed.
    """
    given = completion_parser().parse(argv)
    say((_ZSH if given.shell == "zsh" else "") + _script())
    return 0


def _script() -> str:
    """Return the script, for bash."""
    parsers, first = parsers_of_all(), {"explain": _explained()}
    flags = [
        f'    {name}) words="{" ".join(_words(its, first.get(name, ())))}" ;;'
        for name, its in parsers.items()
    ]
    values = [
        f'  "{name} {flag}") words="{" ".join(choices)}" ;;'
        for name, its in parsers.items()
        for flag, choices in _choices(its)
    ]
    names = list(parsers)
    return _SCRIPT.format(
        commands="|".join(names), names=" ".join(names), flags="\n".join(flags),
        values="\n".join(values),
    ).rstrip("\n")  # fmt: skip


def parsers_of_all() -> dict[str, list[FlagParser]]:
    """Return the parsers of each command."""
    from psrt.cli import (
        bench,
        check,
        checkpoints,
        compare,
        doctor,
        explain,
        explain_flags,
        export,
        flags,
        launch,
        plan,
        predict,
        report,
        show,
        simulate,
        trace,
        watch,
    )

    train = [flags.train_parser()]
    return {
        "launch": [launch.launch_parser()],
        "train": train,
        "server": train,
        "worker": train,
        "simulate": [simulate.simulate_parser()],
        "plan": [plan.plan_parser()],
        "bench": [bench.bench_parser()],
        "doctor": [doctor.doctor_parser()],
        "check": [check.check_parser()],
        "compare": [compare.compare_parser()],
        "export": [export.export_parser()],
        "watch": [watch.watch_parser()],
        "trace": [trace.trace_parser()],
        "checkpoints": [checkpoints.checkpoints_parser()],
        "predict": [predict.predict_parser()],
        "report": [report.report_parser()],
        "show": [show.show_parser()],
        "explain": [
            explain_flags.schedule_parser("a collective"),  # they all have the same flags
            *(explain_flags.timeline_parser(MODES[mode]) for mode in explain.TIMELINES),
            explain_flags.codec_parser(),
            explain_flags.gossip_parser(),
            explain_flags.pipeline_parser(),
            explain_flags.pipeline_compare_parser(),
            explain_flags.compare_parser(),
        ],
        "completion": [completion_parser()],
    }


def _explained() -> tuple[str, ...]:
    """Return what ``psrt explain`` explains."""
    from psrt.cli.explain import TIMELINES
    from psrt.collective import SCHEDULES

    return (*SCHEDULES, *TIMELINES, "codec", "gossip", "pipeline", "compare")


def _words(parsers: Iterable[FlagParser], first: Iterable[str]) -> list[str]:
    """Return the flags of parsers, and the words that may stand alone."""
    found = dict.fromkeys(first)
    for action in _actions(parsers):
        if not action.option_strings:
            found |= dict.fromkeys(map(str, action.choices or ()))
        found |= dict.fromkeys(it for it in action.option_strings if it.startswith("--"))
    return list(found)


def _choices(parsers: Sequence[FlagParser]) -> Iterator[tuple[str, list[str]]]:
    """Yield flags with their values, if there are only a few."""
    seen = set()
    knobs = {name: knob for parser in parsers for name, knob in parser.knobs.items()}
    for action in _actions(parsers):
        choices = list(map(str, action.choices or ()))
        if (knob := knobs.get(action.dest)) is not None and knob.rows is not None:
            choices = list(knob.rows)
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        if metavar.startswith("{") and metavar.endswith("}"):  # how a knob lists its choices
            choices = metavar[1:-1].split(",")
        for flag in action.option_strings:
            if choices and flag not in seen:
                seen.add(flag)
                yield flag, choices


def _actions(parsers: Iterable[FlagParser]) -> Iterator[argparse.Action]:
    for parser in parsers:
        yield from (it for it in parser._actions if it.help != argparse.SUPPRESS)
