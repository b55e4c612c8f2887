"""The psrt command: subcommands found, errors told once, in one line."""

from __future__ import annotations

import importlib.abc
import subprocess
import sys
import types

import pytest

from psrt import __version__
from psrt.__main__ import COMMANDS, main
from psrt.cli import launch
from psrt.errors import DivergedError


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


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        (["train", "--lr", "1"], ("train", ["--lr", "1"], {})),
        (["server", "--lr", "1"], ("train", ["--lr", "1"], {"role": "server"})),
        (["worker"], ("train", [], {"role": "worker"})),
        (["bench", "step", "--help"], ("bench", ["step", "--help"], {})),
    ],
)
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


def test_show(capsys):
    assert main(["show", "--lr", "0.5"]) == 0
    assert "\nlr = 0.5\n" in capsys.readouterr().out


def test_the_words_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["psrt", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"psrt {__version__}\n"


def test_ctrl_c_while_the_first_modules_are_imported(monkeypatch, capsys):
    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "psrt.cli.process":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "psrt.cli.process", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["--version"]) == 130
    assert capsys.readouterr() == ("", "")


def test_little_is_imported_before_ctrl_c_is_caught():
    code = "import sys, psrt.__main__; print(*(name for name in sys.modules if 'psrt' in name))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names = {name for name in found.stdout.split() if not name.startswith("__editable__")}
    assert names == {"psrt", "psrt.__main__", "psrt.vendors", "psrt.version"}


def test_launch_knows_every_subcommand():
    known = [*launch._ON_RANKS, *launch._PARTS, *launch._WITHOUT_RANKS, "launch"]
    assert sorted(known) == sorted(COMMANDS)


def test_the_help_of_what_reads_runs_loads_nothing():
    code = (
        "import sys; from psrt.__main__ import main\n"
        "for it in sys.argv[1:]: assert main([it, '--help']) == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not {'numpy', 'mpi4py', 'perfetto', 'tensorboardX', 'rich'} & loaded"
    )
    commands = ["trace", "compare", "export", "watch", "completion"]
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], check=True, capture_output=True, text=True
    )
    assert [f"usage: psrt {it}" in done.stdout for it in commands] == [True] * 5


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_subcommand(flag, capsys):
    assert main([flag]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [],
            f"no command given, expected one of {', '.join(COMMANDS)}; psrt --help says more",
        ),
        (
            ["trian"],
            f"unknown command 'trian' (did you mean train?), expected one of {', '.join(COMMANDS)}",
        ),
        (["show", "--lr", "0"], "lr must be above 0, got 0"),
    ],
)
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--staleness", "2"], "it belongs to --mode ssp"),
        (["--dataset", "nowhere.npz"], "nowhere.npz: cannot be read"),
    ],
)
def test_ranks_are_not_advised_where_they_cure_nothing(words, says, capsys):
    assert main(["train", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, says in err) == ("", True)
    assert main(["train", "--steps", "1"]) == 0
    assert capsys.readouterr().out.startswith("training in this process alone; to start ranks: ")


def test_the_status_is_the_error_s(monkeypatch, capsys):
    module = types.ModuleType("psrt.cli.bench")

    def diverge(argv):
        raise DivergedError("loss is nan")

    module.main = diverge
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert main(["bench"]) == 3
    assert capsys.readouterr().err == "psrt: error: loss is nan\n"


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
