"""The psrt command: subcommands found, errors told once in one line, words completed."""

from __future__ import annotations

import contextlib
import importlib.abc
import io
import re
import shutil
import subprocess
import sys
import types

import pytest

from psrt.__main__ import COMMANDS, main
from psrt.cli import launch
from support.launching import TIMEOUT_S


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def calls(monkeypatch):
    """Put recorders in the place of the subcommands that need MPI."""
    found = []
    for command in ("train", "bench"):
        module = types.ModuleType(f"psrt.cli.{command}")
        module.main = lambda argv, command=command, **rest: found.append((command, argv, rest)) or 7
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.mark.parametrize(("argv", "call"), [
    (["train", "--lr", "1"], ("train", ["--lr", "1"], {})),
    (["server", "--lr", "1"], ("train", ["--lr", "1"], {"role": "server"})),
    (["bench", "step", "--help"], ("bench", ["step", "--help"], {})),
])  # fmt: skip
def test_a_subcommand_gets_its_words_and_gives_the_status(calls, argv, call):
    assert main(argv) == 7
    assert calls == [call]


@pytest.mark.parametrize("command", ["train", "server", "worker"])
def test_help_of_training_comes_before_mpi(calls, command, capsys):
    assert main([command, "--lr", "1", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: psrt {command} ")
    assert (f"with this rank as a {command}" in text) == (command != "train")
    assert calls == []


def test_launch_knows_every_subcommand():
    known = [*launch._ON_RANKS, *launch._PARTS, *launch._WITHOUT_RANKS, "launch"]
    assert sorted(known) == sorted(COMMANDS)


@pytest.mark.parametrize(("argv", "message"), [
    ([], f"no command given, expected one of {', '.join(COMMANDS)}; see psrt --help"),
    (["trian"], f"unknown command 'trian' (did you mean train?), expected one of "
     f"{', '.join(COMMANDS)}"),
])  # fmt: skip
def test_an_error_is_one_line_and_status_2(argv, message, capsys):
    assert main(argv) == 2
    assert capsys.readouterr() == ("", f"psrt: error: {message}\n")


@pytest.mark.parametrize("package", ["numpy", "mpi4py", "safetensors"])
def test_a_python_without_what_psrt_needs(package, monkeypatch, capsys):
    """As that of the system, called in the folder where psrt lies."""

    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "psrt.cli.bench":
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.delitem(sys.modules, "psrt.cli.bench", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    assert main(["bench"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"psrt bench needs {package}, which {sys.executable} does not have" in line


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"])
def test_only_the_first_rank_tells(variable, monkeypatch, capsys):
    monkeypatch.setenv(variable, "1")
    assert main(["trian"]) == 0  # the first rank fails for all, and before it has spoken nobody
    assert main(["--help"]) == 0
    assert main(["train", "--help"]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv(variable, "0")
    assert main(["trian"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


#: Commands that need neither numpy nor MPI, so that their help comes at once.
HELP = (
    *("train --help", "help train ssp", "show --help", "simulate --help", "check --help"),
    *("report --help", "trace --help", "compare --help", "export --help", "watch --help"),
    *("completion --help", "explain --help", "explain ring --help", "explain ssp --help"),
    *("explain codec --help", "explain gossip --help", "explain pipeline --help"),
    *("explain pipeline compare --help", "explain compare --help"),
)  # fmt: skip


def test_help_loads_nothing():
    code = (
        "import io, sys; from psrt.__main__ import main\n"
        "for line in sys.argv[1:]:\n"
        "    try: assert not main(line.split())\n"
        "    except SystemExit as end: assert not end.code\n"
        "assert main(['show']) == 0\n"
        "told, sys.stderr = sys.stderr, io.StringIO()  # where there is no mpirun\n"
        "main(['launch', '--dry-run', 'train'])\n"
        "sys.stderr = told\n"
        "loaded = {it.partition('.')[0] for it in sys.modules} | {*sys.modules}\n"
        "unwanted = {'numpy', 'mpi4py', 'matplotlib', 'jinja2', 'perfetto', 'rich'}\n"
        "print(*(unwanted | {'psrt.cli.train'}) & loaded, file=sys.stderr)\n"
        "assert not any(main(['explain', it]) for it in ('ring', 'ssp', 'compare', 'sync'))\n"
        "assert not {'mpi4py', 'matplotlib'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code, *HELP], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "\n")
    assert len(re.findall("^usage: psrt ", done.stdout, re.MULTILINE)) == len(HELP)


# A job whose ranks are too few.


# Completion, of which bash itself says what it completes to.


bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "psrt.sh"
    path.write_text(out.getvalue())
    return path


def completed(script, line):
    """Return what the last word of a line may become; empty: files."""
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _psrt; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    words = ["bash", "--norc", "-c", code, "-", str(script), *line.split(" ")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert done.stderr == ""
    return [word for word in done.stdout.splitlines() if word]


@bash
def test_a_word_becomes_what_it_may_be(script):
    for line, words in {
        "psrt ": [*COMMANDS, "--help", "--version"],
        "psrt ch": ["check", "checkpoints"],
        "psrt train --mode s": ["serial", "sync", "ssp", "softsync"],
        "psrt train --staleness-r": ["--staleness-rate"],
        "psrt train --optimizer adam": ["adam", "adamw"],
        "psrt trace --format ": ["perfetto", "json"],
        "psrt explain gossip --topolog": ["--topology"],
        "psrt trace -o x": [],
    }.items():
        assert sorted(completed(script, line)) == sorted(words), line
    assert {"--steps", "--ranks"} <= {*completed(script, "psrt trace runs/a -")}
