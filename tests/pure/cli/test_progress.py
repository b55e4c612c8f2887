"""--quiet and --verbose: a line on a terminal that goes, lines elsewhere that stay."""

import argparse
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
import threading

import pytest

from psrt.__main__ import main
from psrt.cli import printing
from psrt.cli.progress import Shown
from psrt.progress import Progress
from support.launching import TIMEOUT_S


class Steps:
    """A progress whose lines are due whenever the test lets one come."""

    def __init__(self):
        self.wanted, self.began, self.is_due = threading.Semaphore(0), [], False

    def begin(self, **how):
        self.began.append(how)

    def due_s(self):
        if not self.is_due:
            self.wanted.acquire()
        self.is_due = True
        return 0.0

    def line(self):
        self.is_due = False
        return "trains: step 1 of 2"


class Stream:
    def __init__(self):
        self.written, self.came = [], threading.Semaphore(0)

    def __call__(self, text):
        self.written.append(text)
        self.came.release()


def shown(live, **flags):
    steps, stream = Steps(), Stream()
    return steps, stream, Shown(steps, write=stream, live=live), argparse.Namespace(**flags)


def let_one_come(steps, stream):
    steps.wanted.release()
    assert stream.came.acquire(timeout=TIMEOUT_S)


def test_lines_stay_where_there_is_no_terminal():
    steps, stream, it, flags = shown(live=False)
    with it:
        it.begin(flags)
        let_one_come(steps, stream)
        let_one_come(steps, stream)
        steps.wanted.release()
    assert stream.written[:2] == ["psrt: trains: step 1 of 2\n"] * 2
    assert "\r" not in "".join(stream.written)


def test_a_terminal_has_one_line_that_makes_room_and_goes(capsys, monkeypatch):
    steps, stream, it, flags = shown(live=True)
    with it:
        it.begin(flags)
        let_one_come(steps, stream)
        monkeypatch.setattr(printing, "PROGRESS", steps)
        printing.say("a result")
        assert stream.written == ["\r\x1b[Ktrains: step 1 of 2", "\r\x1b[K"]
        let_one_come(steps, stream)
        let_one_come(steps, stream)
        steps.wanted.release()
    assert stream.written[-1] == "\r\x1b[K"
    assert steps.above is contextlib.nullcontext
    assert capsys.readouterr().out == "a result\n"


@contextlib.contextmanager
def a_terminal(columns):
    """Have a terminal at stderr, of that many columns; yield what reads what comes to it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with pytest.MonkeyPatch.context() as patch, open(theirs, "w") as stream:
        patch.setattr(sys, "stderr", stream)
        yield lambda: os.read(ours, 4096).decode()
    os.close(ours)


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [(10, "trains: s"), (80, "trains: step 1 of 2"), (0, "trains: step 1 of 2")],
)
def test_a_line_is_as_wide_as_the_terminal_it_is_on(monkeypatch, columns, wanted):
    """Which is that of stderr: stdout may be a file."""
    monkeypatch.setenv("COLUMNS", "12")
    steps = Steps()
    with a_terminal(columns) as read, Shown(steps) as it:
        it.begin(argparse.Namespace())
        steps.wanted.release()
        assert read() == f"\r\x1b[K{wanted}"
        steps.wanted.release()


def test_a_dumb_terminal_has_lines_that_stay(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    steps = Steps()
    with a_terminal(80) as read, Shown(steps) as it:
        it.begin(argparse.Namespace())
        steps.wanted.release()
        assert read() == "psrt: trains: step 1 of 2\r\n"
        steps.wanted.release()


@pytest.mark.parametrize(
    ("rank", "flags", "began"),
    [
        ("0", {}, [{"live": False, "verbose": False}]),
        ("0", {"verbose": True}, [{"live": False, "verbose": True}]),
        ("0", {"quiet": True}, []),
        ("1", {"verbose": True}, []),
    ],
)
def test_only_the_first_rank_speaks_unless_it_is_to_be_quiet(monkeypatch, rank, flags, began):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    steps, _, it, given = shown(live=False, **flags)
    with it:
        it.begin(given)
        steps.wanted.release()
    assert steps.began == began


def test_a_stream_that_takes_no_more_ends_only_the_lines():
    def full(text):
        raise OSError(28, "No space left on device")

    steps = Steps()
    it = Shown(steps, write=full, live=True)
    with it:
        it.begin(argparse.Namespace())
        steps.wanted.release()
        it._thread.join(60)
        assert not it._thread.is_alive()


def test_nothing_is_said_of_what_is_soon_over():
    stream = Stream()
    with Shown(Progress(lambda: 0.0), write=stream, live=True) as it:
        it.begin(argparse.Namespace())
    assert stream.written == []


@pytest.mark.parametrize("command", ["train", "simulate", "check run", "bench ps", "trace run"])
def test_one_of_the_two(capsys, command):
    assert main([*command.split(), "--quiet", "--verbose"]) == 2
    assert "--verbose: not allowed with argument --quiet" in capsys.readouterr().err


def test_the_output_is_the_same_either_way(capsys, tmp_path, monkeypatch):
    """Of a simulation, which tells its own time in one line only."""
    monkeypatch.chdir(tmp_path)
    job = ["simulate", "--workers", "2", "--steps", "3", "--hidden", "4", "--mode", "async"]
    outs, errs = {}, {}
    for flag in ("--quiet", "--verbose"):
        assert main([*job, flag]) == 0
        out, errs[flag] = capsys.readouterr()
        outs[flag] = [line for line in out.splitlines() if not line.startswith("events")]
    assert outs["--quiet"] == outs["--verbose"]
    assert errs["--quiet"] == ""
    assert all(line.startswith("psrt: ") for line in errs["--verbose"].splitlines())
