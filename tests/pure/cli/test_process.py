"""How a command ends: one line and a status for what is no bug, a traceback for what is."""

import errno
import os
import signal
import warnings

import pytest

from psrt.cli.printing import say
from psrt.cli.process import run_command
from psrt.errors import ConfigError, DivergedError, ProtocolError
from psrt.faults.parent import PARENT, Parent, parent_of_this
from psrt.faults.watcher import End
from psrt.mpirun import RANKS, SIZES


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch):
    for name in (*SIZES, *RANKS):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)  # which a rank that leaves as all do ignores


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("no such thing"), 2, "psrt: error: no such thing"),
        (DivergedError("nan"), 3, "psrt: error: nan"),
        (ProtocolError("odd"), 1, "psrt: error: odd"),
        (ConfigError("no file a\nb\r"), 2, "psrt: error: no file a\\nb\\r"),
        (MemoryError(), 1, "psrt: error: out of memory"),
        (MemoryError("9 TiB"), 1, "psrt: error: out of memory: 9 TiB"),
        (KeyboardInterrupt(), 130, "psrt: interrupted"),
        (KeyboardInterrupt(signal.SIGTERM), 143, "psrt: interrupted"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b"),
            1,
            "psrt: error: a/b: No space left on device",
        ),
    ],
)
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
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert run_command(lambda: signal.raise_signal(number), "name") == 128 + number
    finally:
        for each, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(each, handler)
    assert capsys.readouterr().err == "name: interrupted\n"


def test_a_signal_while_a_class_is_made(capsys):
    """As in an import: Python 3.11 makes another error of it."""

    class Attribute:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt(signal.SIGTERM)

    assert run_command(lambda: type("Made", (), {"it": Attribute()}), "psrt") == 143
    assert capsys.readouterr().err == "psrt: interrupted\n"


def test_a_signal_between_the_making_of_a_coroutine_and_its_await(capsys):
    async def never():
        """Not awaited, since the signal comes first."""

    def command():
        made = never()
        signal.raise_signal(signal.SIGINT)
        made.close()
        return 0

    before = signal.getsignal(signal.SIGINT)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert run_command(command, "psrt") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == []
    assert capsys.readouterr().err == "psrt: interrupted\n"


def test_handlers_are_put_back(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert run_command(lambda: 5, "psrt") == 5
    assert signal.getsignal(signal.SIGTERM) is before


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
