"""What ``psrt launch`` makes of the ends of its ranks: real processes that call it, and end."""

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import replace

import pytest

from psrt.core.errors import JobOverError
from psrt.faults.connection import Address
from psrt.faults.parent import PARENT, Parent, ParentLine
from psrt.faults.processes import look
from psrt.faults.roster import this_process
from psrt.faults.watcher import End

#: Longest that anything may take here on a busy machine.
SOON_S = 20.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Wait shortly for connections that do not end; tests see that the others have ended."""
    monkeypatch.setattr("psrt.faults.parent._LAST_WORDS_S", 0.1)


class Job:
    """A parent in this process, and ranks that call it."""

    def __init__(self):
        self.told, self.over, self.children, self.calls = [], [], [], []
        self.parent = Parent(9, self.told.append, several_hosts=False)
        self.parent.start(lambda: self.over.append(self.parent.over.status))
        self.address = Address.from_text(self.parent.variables[PARENT])

    def call(self, secret=None):
        connection = self.address.connect(SOON_S)
        self.calls.append(connection)
        return ParentLine(connection, secret or self.address.secret)

    def rank(self, rank, act, host=None, says=lambda line: None):
        """Fork a rank that calls, is watched, says something and acts; return its pid."""
        ready, done = os.pipe()
        pid = os.fork()
        if not pid:
            status = 99
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                member = replace(this_process(rank), role=f"worker {rank}")
                line = self.call()
                line.watch(member if host is None else replace(member, host=host))
                says(line)
                os.write(done, b"!")
                status = act(line) or 0
            os._exit(status)
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        assert poll.poll(1000 * SOON_S)
        self.children.append(pid)
        return pid

    def kill(self, pid, number=signal.SIGKILL):
        os.kill(pid, number)
        self.ends(pid)

    def ends(self, pid):
        """Wait until the parent knows that a rank has ended."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.settle()

    def settle(self):
        """Wait until the parent has read what had come by now.

        That is before it reads what a call says that it has accepted since.
        """
        line, run = self.call(), (f"{len(self.calls)}", "")
        line.runs(*run)
        self.until(lambda: self.parent.run == run)
        line._connection.close()

    def until(self, is_so):
        deadline = time.monotonic() + SOON_S
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self, *, blames=True):
        end = self.parent.close(blames=blames)
        for pid in self.children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.children.clear()
        for connection in self.calls:
            connection.close()
        return end


@pytest.fixture
def job():
    job = Job()
    yield job
    if job.children:
        job.close()


def lives(line):
    time.sleep(600)


def name(rank, pid, host=None):
    return f"worker {rank} (rank {rank}, {host or socket.gethostname()}, pid {pid})"


def test_the_first_that_dies_is_the_reason(job):
    first, second, third = (job.rank(rank, lives) for rank in (2, 0, 1))
    job.kill(second)
    job.kill(first)
    job.kill(third)
    assert job.told == [], "others may know more, until the launcher has ended"
    text = f"psrt: error: {name(0, second)} was killed by signal 9 (SIGKILL)\n"
    assert job.close() == End(JobOverError.DIED, text)
    assert job.told == [text]


def forgives(*ranks):
    return lambda line: line.forgive(ranks)


@pytest.mark.parametrize("late", [False, True], ids=["told first", "told afterwards"])
def test_those_that_the_others_go_on_without_are_no_reason(job, late):
    survived, fatal = (job.rank(rank, lives) for rank in (1, 2))
    if late:
        job.kill(survived)
    job.rank(0, lives, says=forgives(1))
    job.settle()
    if not late:
        job.kill(survived)
    job.kill(fatal)
    text = f"psrt: error: {name(2, fatal)} was killed by signal 9 (SIGKILL)\n"
    assert job.close() == End(JobOverError.DIED, text)


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "left alone"])
def test_where_nobody_goes_on_after_all_the_first_death_is_the_reason(job, ends):
    lost, other = (job.rank(rank, lives) for rank in (1, 2))
    first = job.rank(0, lives, says=forgives(1, 2))
    job.settle()
    job.kill(lost)
    job.kill(other, signal.SIGTERM)
    if ends:
        job.kill(first, signal.SIGTERM)
    assert job.told == []
    text = f"psrt: error: {name(1, lost)} was killed by signal 9 (SIGKILL)\n"
    assert job.close() == End(JobOverError.DIED, text)


def test_an_exit_without_a_word_is_a_death_and_none_after_a_goodbye(job):
    job.ends(job.rank(1, lambda line: None, says=lambda line: line.bye()))
    assert job.parent._reason() is None
    job.ends(job.rank(2, lambda line: 3))
    assert "exited with status 3" in job.close().text


def tells(status, text=""):
    return lambda line: line.tell(End(status, text))


def test_what_a_rank_tells_counts_for_more_and_is_told_at_once_and_once(job):
    job.kill(job.rank(1, lives))
    for rank in (0, 2):
        job.rank(rank, lives, says=tells(4, "psrt: error: mine\n"))
        job.settle()
        assert job.told == ["psrt: error: mine\n"]
    assert job.close() == End(4, "psrt: error: mine\n")
    assert job.told == ["psrt: error: mine\n"]
    assert job.over == [4]


def test_who_tells_a_status_without_a_reason_leaves_that_to_others(job):
    line = job.call()
    assert line.tell(End(3))
    job.settle()
    assert job.told == []
    other = job.call()
    for text in ("reason\n", "the same\n"):
        other.tell(End(3, text))
    assert job.close() == End(3, "reason\n")
    assert job.told == ["reason\n"]


@pytest.mark.parametrize("first", [0, 2])
def test_who_tells_of_rank_0_may_have_missed_an_earlier_death(job, first):
    """Launchers end the others, rank 0 among them, as soon as one has died."""
    text = "psrt: error: rank 0 died\n"
    pid = job.rank(first, lives)
    job.kill(pid)
    job.rank(1, lives, says=tells(JobOverError.DIED, text))
    job.settle()
    if first:
        text = f"psrt: error: {name(2, pid)} was killed by signal 9 (SIGKILL)\n"
    assert job.told == [text]
    assert job.close().status == JobOverError.DIED


def test_who_is_ended_by_the_launcher_is_not_the_reason(job):
    job.kill(job.rank(1, lives), signal.SIGTERM)
    assert job.close() is None


def test_who_is_out_of_reach_while_the_others_are_ended_is_the_reason(job):
    """Open MPI's leave by themselves, with status 195, when their launcher does."""
    job.kill(job.rank(0, lives), signal.SIGTERM)
    job.ends(job.rank(1, lambda line: 195))
    lost = job.rank(2, lives, host="node02")
    assert job.close() == End(
        JobOverError.LATE, f"psrt: error: out of reach: {name(2, lost, 'node02')}\n"
    )


@pytest.mark.parametrize("told", [True, False])
def test_a_host_that_the_launcher_has_lost_is_the_reason_and_nobody_whom_it_ended(job, told):
    """Open MPI ends all ranks then; rank 0 may see others go, and take the first for the cause."""
    assert job.parent._loss() is None
    job.parent.lost.append("node02")
    assert job.parent._loss() is None, "a host that never came is the launcher's to tell"
    lost = job.rank(2, lives, host="node02.here")
    job.kill(job.rank(1, lives))
    says = tells(JobOverError.DIED, "psrt: error: worker 1 died\n")
    job.rank(0, lives, says=says if told else lambda line: None)
    job.settle()
    who = name(2, lost, "node02.here")
    text = f"psrt: error: mpirun has lost the host of {who}, and has ended all ranks\n"
    assert job.close() == End(JobOverError.LATE, text)
    assert job.told == [text]


def test_an_interruption_is_the_reason_where_there_is_no_other(job):
    job.ends(job.rank(0, lambda line: 143, says=tells(143, "psrt: interrupted\n")))
    assert job.told == []
    job.ends(job.rank(1, lambda line: 143))
    assert job.close() == End(143, "psrt: interrupted\n")
    assert job.told == ["psrt: interrupted\n"]


def test_nobody_is_blamed_for_the_end_of_the_launcher_and_no_stranger_is_heard(job):
    job.kill(job.rank(1, lives))
    line = job.call("not the secret")
    line.watch(this_process(1))
    line.tell(End(4, "psrt: error: a stranger's\n"))
    job.settle()
    assert job.close(blames=False) is None
    assert job.told == []


def test_it_is_known_who_is_there_and_when_one_was_heard_last(job):
    assert (job.parent.heard_at, job.parent.is_called) == (None, False)
    read, write = os.pipe()

    def act(line):
        os.read(read, 1)
        line.live()
        signal.pause()

    first = job.rank(0, act)
    job.settle()
    heard_at = job.parent.heard_at
    assert heard_at is not None
    assert job.parent.is_called
    assert not job.parent.first_is_stopped
    os.write(write, b"!")
    job.until(lambda: job.parent.heard_at > heard_at)
    os.kill(first, signal.SIGSTOP)
    job.until(lambda: job.parent.first_is_stopped)
    job.kill(first)
    assert job.parent.first is None
    job.close()


@pytest.mark.parametrize("late", ["asleep", "computes", "elsewhere"])
def test_who_does_not_end_is_named_and_who_may_be_at_work_not_ended(monkeypatch, late):
    monkeypatch.setattr("psrt.faults.parent._LOOK_S", 600.0)  # only when it is asked to here
    monkeypatch.setenv("PSRT_START_TIMEOUT_S", "12")
    job = Job()

    def computes(line):
        while True:
            pass

    def sleeps(line):
        signal.pause()

    def ends(line):
        line.bye()
        line.ends()

    try:
        act, host = computes if late == "computes" else sleeps, "node02"
        pid = job.rank(1, act, host if late == "elsewhere" else None, says=lambda line: line.bye())
        job.rank(0, sleeps, says=ends)
        job.settle()
        now, worked = time.monotonic(), 0.0
        for seconds in (0, 8, 16):
            if late == "computes":
                job.until(lambda worked=worked: look(pid)[1] > worked)
                worked = look(pid)[1]
            job.parent._look_at_ends(now + seconds)
        assert (job.parent.over is not None) == (late == "asleep")
        assert all(f"pid {pid})" in text and "rank 0" not in text for text in job.told)
        assert len(job.told) == {"asleep": 2, "computes": 0, "elsewhere": 1}[late]
    finally:
        job.close()
