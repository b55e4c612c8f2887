"""The psrt command: finds the subcommand, imports only that, and reports errors in one line.

Imports next to nothing before `run_command` handles signals: Ctrl-C during an earlier import would
end in a traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from psrt import __version__

#: Subcommand → its line in the help text.
COMMANDS = {
    "launch": "start ranks: psrt launch -n 4 train, or a script of your own",
    "train": "train a model on the ranks of a job, or serially in this process",
    "server": "train, with this rank as a server: mpirun -n 1 psrt server : -n 3 psrt worker",
    "worker": "train, with this rank as a worker of psrt server",
    "simulate": "run a whole job in one process, in virtual time; needs no MPI",
    "plan": "say which mode, servers and codec make a step short, before ranks are booked",
    "bench": "benchmark all-reduces and codecs on this machine",
    "doctor": "find what would make a job fail or slow it down, and how to fix it",
    "check": "check that a recorded run kept the guarantees of its mode; needs no MPI",
    "compare": "print how runs differ in configuration and results; needs no MPI",
    "export": "write the metrics of runs for TensorBoard, or as CSV; needs no MPI",
    "predict": "print the classes that a trained model finds in data; needs no MPI",
    "watch": "follow a running job by the files that it writes; needs no MPI",
    "trace": "draw a recorded run as a timeline for a trace viewer; needs no MPI",
    "checkpoints": "list the checkpoints of a run, and whether they can be read; needs no MPI",
    "report": "write an HTML page about one run or several; needs no MPI",
    "show": "print the configuration of a run with these flags, as TOML; needs no MPI",
    "explain": "draw how a collective, a mode, a codec or a topology works; needs no MPI",
    "completion": "print a script that lets bash or zsh complete commands and flags",
}
#: Subcommands implemented by `psrt.cli.train`.
_ROLES = ("server", "worker")
_HELP = {"-h", "--help", "--help-all"}
#: Packages that psrt needs. A Python without them may still find psrt in the current folder.
_NEEDED = ("numpy", "mpi4py", "safetensors")
#: `psrt.core.errors.status_of` a KeyboardInterrupt; that module may not be imported yet.
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
            "psrt there with pip, or use the Python that has psrt installed"
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
        return f"no command given, expected one of {known}; see psrt --help"
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
