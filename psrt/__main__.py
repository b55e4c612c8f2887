"""The psrt command: finds the subcommand, imports only that, and reports errors in one line.

Imports next to nothing before `run_command` handles signals: Ctrl-C during an import that comes
earlier would end in a traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from psrt import __version__

#: Subcommand → its line in the help text.
COMMANDS = {
    "launch": "start ranks: psrt launch -n 4 train, or a script of your own",
    "train": "train a model on ranks, or serially in this process",
    "server": "train, with this rank as a server: mpirun -n 1 psrt server : -n 3 psrt worker",
    "worker": "train, with this rank as a worker, next to psrt server",
    "simulate": "run a whole job in one process, in virtual time; needs no MPI",
    "bench": "benchmark all-reduces and codecs on this machine",
    "doctor": "look at ranks, hosts and MPI: what would fail or slow a job, and its cure",
    "check": "check that a recorded run kept the guarantees of its mode; needs no MPI",
    "compare": "a table of what differs between runs and what came out; needs no MPI",
    "export": "write the metrics of runs for TensorBoard, or as CSV; needs no MPI",
    "watch": "follow a run under way by the files that it writes; needs no MPI",
    "trace": "draw who did what when, from a recorded run, for a viewer; needs no MPI",
    "checkpoints": "list what a run has saved, and whether it can be read; needs no MPI",
    "report": "write a page about runs, or several side by side, as HTML; needs no MPI",
    "show": "print the configuration of a run with these flags, as TOML; needs no MPI",
    "explain": "draw how a collective, a mode, a codec or a topology works; needs no MPI",
    "completion": "print a script by which bash or zsh completes commands and flags",
}
#: Subcommands implemented by `psrt.cli.train`.
_ROLES = ("server", "worker")
_HELP = {"-h", "--help", "--help-all"}
#: What psrt depends on; a Python without them may find psrt itself in the current folder.
_NEEDED = ("numpy", "mpi4py", "safetensors")
#: As `psrt.core.errors.status_of` a KeyboardInterrupt, which may not be imported yet.
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status of the process.

    Args:
        argv: the words after ``psrt``; None takes those of this process.

    Returns:
        0, or the status of the error that was printed: 2 for errors that the user can fix.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        from psrt.cli.process import run_command
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run_command(lambda: _dispatch(words), "psrt")


def _dispatch(words: list[str]) -> int:
    from psrt.cli.process import print_once

    if words[:1] == ["help"] and words[1:] and words[1] in COMMANDS:
        words = [words[1], "--help", *words[2:]]
    if words[:1] in (["-h"], ["--help"], ["help"]):
        print_once(_help(), sys.stdout)
        return 0
    if words[:1] == ["--version"]:
        print_once(f"psrt {__version__}", sys.stdout)
        return 0
    if not words or words[0] not in COMMANDS:
        from psrt.core.errors import ConfigError

        raise ConfigError(_no_command(words))
    try:
        return _run(words[0], words[1:])
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        from psrt.core.errors import ConfigError

        raise ConfigError(
            f"psrt {words[0]} needs {error.name}, which {sys.executable} does not have: install "
            "psrt there with pip, or call the Python that it is installed for"
        ) from None


def _run(command: str, rest: list[str]) -> int:
    if command in ("train", *_ROLES) and _HELP & set(rest):
        from psrt.cli.flags import role_parser, train_parser  # before anything imports MPI

        (role_parser(command) if command in _ROLES else train_parser()).parse(rest)
    if command in _ROLES:
        return int(importlib.import_module("psrt.cli.train").main(rest, role=command))
    return int(importlib.import_module(f"psrt.cli.{command}").main(rest))


def _no_command(words: list[str]) -> str:
    known = ", ".join(COMMANDS)
    if not words:
        return f"no command given, expected one of {known}; psrt --help says more"
    from psrt.rows.suggest import did_you_mean

    return (
        f"unknown command {words[0]!r}{did_you_mean(words[0], COMMANDS)}, expected one of {known}"
    )


def _help() -> str:
    lines = ["usage: psrt COMMAND [flags]", "", "commands:"]
    lines += [f"  {command:12} {text}" for command, text in COMMANDS.items()]
    lines += [
        "",
        "psrt COMMAND --help lists the flags of a command; psrt --version prints the version.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
