"""A terminal or a file that has few characters: every command prints, in characters that it has."""

import pytest

TRAIN = ["train", "--epochs", "1", "--hidden", "4", "--quiet"]
#: What each command may print, over all of its kinds of output.
COMMANDS = {
    "help": ["--help"],
    "train": TRAIN,
    "train, help": ["train", "--help"],
    "simulate": ["simulate", "--mode", "ssp", "--epochs", "1", "--workers", "3", "--quiet"],
    "simulate, help": ["simulate", "--help"],
    "check": ["check", "run", "--quiet"],
    "check, json": ["check", "run", "--json", "--quiet"],
    "show": ["show", "--mode", "ssp", "--out", "größe"],
    "explain, help": ["explain", "--help"],
    "explain ring": ["explain", "ring", "--ranks", "4"],
    "explain tree, all": ["explain", "tree", "--ranks", "5", "--all"],
    "explain reduce-scatter": ["explain", "reduce-scatter"],
    "explain ssp": ["explain", "ssp", "--slow", "1:3"],
    "explain sync": ["explain", "sync"],
    "explain local-sgd": ["explain", "local-sgd"],
    "explain compare": ["explain", "compare", "--ranks", "2:64"],
    "explain compare, json": ["explain", "compare", "--ranks", "2:64", "--json"],
    "bench, help": ["bench", "--help"],
}
REFUSED = {
    "a name": ["train", "--dataset", "größe–µ"],
    "a flag": ["train", "--größe", "1"],
    "a command": ["größe"],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, launch_in):
    launch = launch_in(tmp_path_factory.mktemp("recorded"))
    assert launch.psrt(*TRAIN, "--record", "--out", "run").status == 0
    return launch


#: They print as others do: `make test-all` has them.
ALIKE = ("explain tree, all", "explain reduce-scatter", "explain sync", "explain local-sgd")


@pytest.mark.parametrize(
    "command",
    [pytest.param(it, marks=[pytest.mark.exhaustive] * (it in ALIKE)) for it in COMMANDS],
)
def test_every_command_prints(recorded, command):
    done = recorded.python("-m", "psrt", *COMMANDS[command], PYTHONIOENCODING="ascii")
    assert done.status == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.isascii()
    assert len(done.stdout) > 40


@pytest.mark.parametrize("command", REFUSED)
def test_an_error_prints(recorded, command):
    done = recorded.python("-m", "psrt", *REFUSED[command], PYTHONIOENCODING="ascii")
    assert done.status == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.isascii()


def test_what_stands_for_it_can_be_read(recorded):
    done = recorded.python("-m", "psrt", "explain", "ring", PYTHONIOENCODING="ascii")
    whole = recorded.python("-m", "psrt", "explain", "ring", PYTHONIOENCODING="utf-8")
    assert "µs" in whole.stdout
    assert "us" in done.stdout
    assert "?" not in done.stdout


@pytest.mark.parametrize("app", ["train_mlp.py", "compare_modes.py", "staleness_study.py"])
def test_apps_help_prints(recorded, app):
    from pathlib import Path

    path = Path(__file__).parents[2] / "apps" / app
    done = recorded.python(path, "--help", PYTHONIOENCODING="ascii")
    assert done.status == 0, done.stderr
    assert done.stdout.isascii()


#: As Python shows an argument that is not text in its locale: ``--out ä`` under ``LC_ALL=C``, too.
NOT_TEXT = "x\udcff"


def test_what_is_not_text_is_refused_among_ranks_as_alone(launch):
    words = ["train", "--steps", "1"]
    commands = {flag: [*words, flag, NOT_TEXT] for flag in ("--out", "--resume", "--config")}
    for done in launch.one_after_another(2, {**commands, "a word": [*words, NOT_TEXT]}):
        assert done.status == 2
        assert len(done.errors) == 1
        assert "Traceback" not in done.stderr
    assert done.errors == launch.psrt(*words, NOT_TEXT).errors


def test_the_doctor_tries_a_folder_whose_name_is_not_text(launch):
    done = launch.psrt("launch", "-n", 2, "doctor", "--out", NOT_TEXT)
    assert done.status == 0, done.stderr
    assert "seen" in done.stdout
