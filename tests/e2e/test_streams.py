"""Where output does not fit: a disk that is full, a stream that is closed, few characters.

A limit on the size of a file stands for the disk, so that this runs without root: what is larger
cannot be written, what is smaller can. Then there is one line, status 1, and all else but the
summary is written.
"""

import sys

import pytest

from psrt.__main__ import COMMANDS
from support.cases import also

EXHAUSTIVE = pytest.mark.exhaustive


#: Runs psrt with files of at most so many bytes.
LIMITED = """
import resource, signal, sys
from psrt.__main__ import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # Python 3.11 would cut that short, and fail by it ever after
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[2:]))
"""


LARGE = ["--hidden", "256", "--epochs", "1", "--out", "run", "--quiet"]


MANY = ["--hidden", "4", "--log-every", "1", "--epochs", "4", "--out", "run", "--quiet"]


def limited(launch, limit, *words):
    return launch.python("-c", LIMITED, limit, *words)


def told_once(done, *words, status=1):
    assert done.status == status, done.stderr
    assert len(done.errors) == len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.errors[0]


@pytest.mark.parametrize("command", [also("train"), "simulate"])
def test_a_model_that_does_not_fit(launch, command):
    done = limited(launch, 20_000, command, *LARGE)
    told_once(done, "run/model.safetensors", "File too large")
    there = {path.name for path in (launch.folder / "run").iterdir()}
    assert {"config.toml", "metrics.jsonl"} <= there
    assert not any(name.startswith("model") for name in there)
    assert "summary.json" not in there  # it says that all the others are
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("command", ["train", also("simulate")])
def test_metrics_that_do_not_fit(launch, command):
    done = limited(launch, 8_000, command, *MANY)
    told_once(done, "run/metrics.jsonl", "File too large")
    assert done.stdout.count("training continues without metrics") == 1
    assert (launch.folder / "run/model.safetensors").stat().st_size > 0
    assert not (launch.folder / "run/summary.json").exists()
    assert (launch.folder / "run/metrics.jsonl").stat().st_size <= 8_000


@pytest.mark.parametrize(
    "epochs", [pytest.param(4, id="written at the end"), also(30, id="written meanwhile")]
)
def test_a_history_that_does_not_fit(launch, epochs):
    more = ("--epochs", epochs, "--batch-size", 8, "--out", "run", "--record", "--quiet")
    done = limited(launch, 8_000, "train", *MANY[:2], *more)
    told_once(done, "run/history/events.npy", "File too large")
    again = limited(launch, 10**6, "train", *MANY, "--overwrite")
    assert again.status == 0, again.stderr


@pytest.mark.parametrize(
    "words",
    [
        "explain ring --html a.html",
        *map(also, ["explain ring --svg a.svg", "explain ssp --svg a.svg"]),
    ],
)
def test_what_commands_write(launch, words):
    told_once(limited(launch, 100, *words.split()), status=2)


@EXHAUSTIVE
@pytest.mark.parametrize(
    "words",
    [
        ["train", "--epochs", "1", "--hidden", "4", "--out", "run", "--quiet"],
        ["simulate", "--epochs", "1", "--hidden", "4", "--quiet"],
        *([command, "--help"] for command in COMMANDS),
    ],
)
@pytest.mark.parametrize("buffered", ["", "1"])
def test_stdout_that_is_full(launch, words, buffered):
    done = launch.command(
        *("sh", "-c", '"$@" >/dev/full', "sh", sys.executable, "-m", "psrt", *words),
        PYTHONUNBUFFERED=buffered,
    )
    told_once(done, "cannot write to stdout: No space left on device")
    if "--out" in words:
        assert (launch.folder / "run/model.safetensors").exists()


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", *map(also, [">&-", "2>&-", ">&- 2>&-"])])
def test_streams_that_are_closed(launch, closed):
    words = ["train", "--epochs", "1", "--hidden", "4", "--out", "run", "--quiet"]
    done = launch.command("sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-m", "psrt", *words)
    assert (done.status, done.stderr) == (0, "")
    assert (launch.folder / "run/summary.json").exists()


#: What each command may print, over all of its kinds of output.
PRINTED = [
    *("--help", "train --help", "simulate --help", "explain --help", "bench --help"),
    "train --epochs 1 --hidden 4 --quiet --record --out run",
    "simulate --mode ssp --epochs 1 --workers 3 --quiet",
    *("check run --quiet", "check run --json --quiet", "show --mode ssp --out größe"),
    *("explain ring --ranks 4", "explain tree --ranks 5 --all", "explain reduce-scatter"),
    *("explain ssp --slow 1:3", "explain sync", "explain local-sgd"),
]
REFUSED = ["train --dataset größe–µ", "train --größe 1", "größe"]


def test_a_terminal_of_few_characters_gets_those_that_it_has(launch):
    commands = {text: text.split() for text in (*PRINTED, *REFUSED)}
    printed = launch.one_after_another(0, commands, PYTHONIOENCODING="ascii")
    for text, done in zip(commands, printed, strict=True):
        refused = text in REFUSED
        assert done.status == (2 if refused else 0), text
        assert done.stdout.isascii(), text
        assert done.stderr.isascii(), text
        assert len(done.stderr.splitlines()) == refused, text
        assert refused or len(done.stdout) > 40, text
    done = printed[PRINTED.index("explain ring --ranks 4")]
    assert "us" in done.stdout  # for µs
    assert "?" not in done.stdout
