"""How a command ends, in one line or as a bug, and what it says while it works."""

import argparse
import contextlib
import errno
import os
import signal
import threading

import pytest

from psrt.cli import printing
from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.cli.progress import Shown
from psrt.core.errors import ConfigError, DivergedError
from psrt.faults.parent import PARENT, Parent, parent_of_this
from psrt.faults.watcher import End
from psrt.launch import RANKS, SIZES
from support.launching import TIMEOUT_S


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    for name in (*SIZES, *RANKS):
        monkeypatch.delenv(name, raising=False)
    before = {it: signal.getsignal(it) for it in (signal.SIGINT, signal.SIGTERM)}
    yield
    for it, handler in before.items():  # which a rank that leaves as all do ignores
        signal.signal(it, handler)


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(("error", "status", "line"), [
    (ConfigError("no such thing"), 2, "psrt: error: no such thing"),
    (ConfigError("no file a\nb\r"), 2, "psrt: error: no file a\\nb\\r"),
    (MemoryError(), 1, "psrt: error: out of memory"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b"), 1,
     "psrt: error: a/b: No space left on device"),
])  # fmt: skip
def test_what_is_no_bug_is_one_line(capsys, error, status, line):
    assert run_command(raising(error), "psrt") == status
    assert capsys.readouterr() == ("", line + "\n")


def test_a_signal_that_was_ignored_at_the_start_stays_ignored():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {it: signal.signal(it, signal.SIG_IGN) for it in (*numbers, signal.SIGCHLD)}

    def command():
        for number in numbers:
            signal.raise_signal(number)
        return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]

    try:
        assert run_command(command, "psrt") == 0
        assert [signal.getsignal(it) for it in numbers] == [signal.SIG_IGN] * len(numbers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), RuntimeError(), OSError(errno.EBADF, "odd")]
)
def test_a_bug_is_raised(error):
    with pytest.raises(type(error)):
        run_command(raising(error), "psrt")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(capsys, number):
    assert run_command(lambda: signal.raise_signal(number), "name") == 128 + number
    assert capsys.readouterr().err == "name: interrupted\n"


def test_a_signal_while_a_class_is_made(capsys):
    """As in an import: Python 3.11 makes another error of it."""

    class Attribute:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt(signal.SIGTERM)

    assert run_command(lambda: type("Made", (), {"it": Attribute()}), "psrt") == 143
    assert capsys.readouterr().err == "psrt: interrupted\n"


@pytest.mark.parametrize(("agreed", "status"), [(False, 0), (True, 2)])
def test_a_rank_that_does_not_speak(capsys, monkeypatch, agreed, status):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    error = ConfigError("no such thing")
    error.agreed = agreed
    assert run_command(raising(error), "psrt") == status
    assert capsys.readouterr() == ("", "")


def test_psrt_launch_hears_the_status_that_all_ranks_agreed_on(capsys, monkeypatch):
    """Before its launcher ends ranks that have lost one which left earlier, with another status."""
    told = []
    parent = Parent(2, told.append, several_hosts=False)
    parent.start(lambda: None)
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv(PARENT, parent.variables[PARENT])
    parent_of_this.cache_clear()
    error = DivergedError("the loss is nan")
    error.agreed = True
    try:
        assert run_command(raising(error), "psrt") == 3
        assert parent.close(blames=True) == End(3)
        assert told == []  # rank 0 prints it
    finally:
        parent_of_this()._connection.close()
        parent_of_this.cache_clear()


#: A stranger's file may hold them: what a terminal obeys, in the old and the new codes of control,
#: and what turns the direction of what is read.
OBEYED = [
    chr(code) for code in (*range(32), *range(127, 160), 0x202E, 0x2066) if code not in (9, 10)
]


def test_nothing_that_is_printed_is_obeyed_by_a_terminal(capsys):
    text = "".join(f"<{char}>" for char in OBEYED)
    error = FileNotFoundError(errno.ENOENT, "No such file", text)
    for command in (lambda: say(text) or 0, raising(ConfigError(text)), raising(error)):
        run_command(command, "psrt")
        out, err = capsys.readouterr()
        said = out + err
        assert said.count("<\\") == len(OBEYED)
        assert not set(said) & set(OBEYED)


# --quiet and --verbose: a line on a terminal that goes, lines elsewhere that stay.


class Steps:
    """A progress whose lines are due whenever the test lets one come."""

    def __init__(self):
        self.wanted, self.began, self.is_due = threading.Semaphore(0), [], False
        self.begin = lambda **how: self.began.append(how)

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


@pytest.mark.parametrize(("rank", "flags", "began"), [
    ("0", {}, [{"live": False, "verbose": False}]),
    ("0", {"verbose": True}, [{"live": False, "verbose": True}]),
    ("0", {"quiet": True}, []),
    ("1", {"verbose": True}, []),
])  # fmt: skip
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
    with Shown(steps, write=full, live=True) as it:
        it.begin(argparse.Namespace())
        steps.wanted.release()
        it._thread.join(TIMEOUT_S)
        assert not it._thread.is_alive()
