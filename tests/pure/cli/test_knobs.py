"""``psrt launch --knobs``: what it does to the line that starts the ranks, and what it refuses."""

import shlex
import tomllib

import pytest

from psrt.cli.launch import main
from psrt.core.errors import ConfigError

SCRIPT = __file__


@pytest.fixture
def line(monkeypatch, capsys):
    monkeypatch.setattr("psrt.cli.launch.launched", lambda: False)

    def shown(*words):
        assert main(["-n", "3", "--dry-run", *words]) == 0
        return shlex.split(capsys.readouterr().out)

    return shown


def test_a_script_finds_them_in_one_variable(line):
    words = line("--knobs", "--mode ssp:staleness=3 --servers=1", "--knobs", "--no-record", SCRIPT)
    variable = next(it for it in words if it.startswith("PSRT_KNOBS="))
    found = tomllib.loads(f"it = {variable.partition('=')[2]}")["it"]
    assert found == {"mode": "ssp:staleness=3", "servers": 1, "record": False}
    assert words[-1] == SCRIPT


def test_with_train_they_are_further_flags(line):
    words = line("--knobs", "--steps 5 --mode ssp", "train", "--lr", "0.1")
    assert words[words.index("train") :] == [
        "train",
        "--lr",
        "0.1",
        *["--steps", "5", "--mode", "ssp"],
    ]
    assert not any("PSRT_KNOBS" in it for it in words)


@pytest.mark.parametrize(
    ("text", "rest", "says"),
    [
        ("--mod ssp", [SCRIPT], r"^--knobs: unknown flag --mod \(did you mean --mode\?\)"),
        ("--mode spp", [SCRIPT], "^--knobs: mode must be one of"),
        ("--servers", [SCRIPT], "^--knobs: --servers: expected one argument"),
        ("ssp", [SCRIPT], "^--knobs: unexpected argument 'ssp'"),
        ("--mode 'ssp", [SCRIPT], '^--knobs "--mode \'ssp": no closing quotation'),
        ("--quiet", [SCRIPT], "^--knobs: --quiet has no effect with a script"),
        ("--config nowhere.toml", [SCRIPT], "^--knobs: .*nowhere.toml"),
        ("--mode ssp", ["doctor"], "^--knobs has no effect with doctor, only with train"),
        ("--mode ssp", ["-m", "psrt", "bench"], "^--knobs has no effect with -m psrt bench"),
        ("--mode ssp", ["--restarts", "2", "--", "mpirun", "psrt", "train"], "your own line"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_starts(line, text, rest, says):
    with pytest.raises(ConfigError, match=says) as error:
        line("--knobs", text, *rest)
    assert "\n" not in str(error.value)
