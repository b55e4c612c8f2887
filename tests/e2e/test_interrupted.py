"""Ctrl-C, and what batch systems send: one line, status 128 + signal, and what was made is kept."""

import json
import signal
import time

import pytest

from support.cases import pairs
from support.launching import TIMEOUT_S

LONG = ["--epochs", "100000", "--hidden", "8", "--out", "run", "--record"]
RANKS = ["--mode", "sync", *LONG]
#: Commands that go on for a long time, and whether they are one process.
COMMANDS = {
    "train": (1, ["-m", "psrt", "train", *LONG, "--quiet"]),
    "simulate": (1, ["-m", "psrt", "simulate", "--mode", "async", *LONG, "--quiet"]),
    "train, 3 ranks": (3, ["-m", "psrt", "train", *RANKS, "--quiet"]),
}


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def interrupted(launch, ranks, words, number):
    """Start a command, interrupt it once it has written metrics, and return how it ended."""
    process = launch.start(*words, ranks=ranks if ranks > 1 else 0)
    metrics = launch.folder / "run/metrics.jsonl"
    try:
        wait_for(
            lambda: (metrics.exists() and metrics.stat().st_size) or process.poll() is not None
        )
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


@pytest.mark.parametrize(
    ("command", "number"),
    pairs(COMMANDS, [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], one_in=3),
)
def test_it_ends_at_once_and_keeps_what_there_is(launch, command, number):
    ranks, words = COMMANDS[command]
    status, _, stderr = interrupted(launch, ranks, words, number)
    assert "Traceback" not in stderr
    if ranks == 1:
        assert (status, stderr) == (128 + number, "psrt: interrupted\n")
    else:
        assert status != 0
    lines = (launch.folder / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines[:1]]
    assert not (launch.folder / "run/summary.json").exists()
    done = launch.psrt("check", "run")
    assert done.status == 2
    assert "unfinished run" in done.errors[0]


def test_a_bench_ends_at_once(launch):
    flags = "--mode async --workers 5000 --timing-only --parameters 1000 --steps 100000"
    process = launch.start("-m", "psrt", "simulate", *flags.split())
    try:
        assert process.stdout.readline()  # before that Python may not be up yet
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert (process.returncode, stderr.splitlines()[-1]) == (130, "psrt: interrupted")
    assert "Traceback" not in stderr


def test_who_asks_twice_does_not_wait(launch):
    code = (
        "import time\nfrom psrt.cli.process import run_command\n"
        "def command():\n"
        "    try:\n        print('ready', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        print('cleaning', flush=True)\n        time.sleep(60)\n"
        "run_command(command, 'psrt')\n"
    )
    process = launch.start("-c", code)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGINT
