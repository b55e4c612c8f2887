"""psrt completion: bash itself says what it completes to."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess

import pytest

from psrt.__main__ import COMMANDS, main
from support.launching import TIMEOUT_S

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("psrt ", [*COMMANDS, "--help", "--version"]),
        ("psrt ch", ["check", "checkpoints"]),
        ("psrt train --mode s", ["serial", "sync", "ssp", "softsync"]),
        ("psrt train --staleness-l", ["--staleness-limit"]),
        ("psrt launch -n 4 train --mode easg", ["easgd"]),
        ("psrt worker --optimizer ad", ["adagrad", "adam", "adamw"]),
        ("psrt trace --format ", ["perfetto", "json"]),
        ("psrt export t", ["tensorboard"]),
        ("psrt explain gos", ["gossip"]),
        ("psrt explain gossip --topolog", ["--topology"]),
        ("psrt check --js", ["--json"]),
        ("psrt trace runs/a -", ["-o", "--out"]),
        ("psrt compare a b", []),
        ("psrt trace -o x", []),
    ],
)
def test_a_word_becomes_what_it_may_be(line, words, script):
    found = completed(script, line)
    if line.endswith(" -"):
        assert "--steps" in found
        assert "--ranks" in found
    else:
        assert sorted(found) == sorted(words)


def test_zsh_takes_the_same_by_its_bashcompinit(script, capsys):
    assert main(["completion", "zsh"]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first.startswith("autoload ")
    assert "bashcompinit" in first
    assert rest == script.read_text()


def test_another_shell_is_one_line(capsys):
    assert main(["completion", "fish"]) == 2
    assert capsys.readouterr().err == "psrt: error: shell must be one of bash, zsh, got 'fish'\n"
