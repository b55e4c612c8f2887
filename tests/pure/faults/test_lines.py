"""The lines between processes, with real processes that are killed, stopped, or end in order."""

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import replace

import pytest

from psrt.errors import JobOverError
from psrt.faults import Detector, Hub, Line, Roster, Vitals
from psrt.faults.lines import Address, addresses, exit_code, state_of
from psrt.faults.roster import this_process

TIMEOUT_S = 2.0
#: Longest that anything may take here on a busy machine.
SOON_S = 20.0


class Job:
    """A hub in this process, and children with a line each."""

    def __init__(self, size):
        self.roster = Roster(size)
        self.roster.add(this_process(0))
        self.told, self.vitals, self.children = [], Vitals(), {}
        self.detector = Detector(
            self.roster, timeout_s=TIMEOUT_S, busy_s=600, stall_s=TIMEOUT_S / 2
        )
        self.hub = Hub(self.roster, self.vitals, self.detector, tell=self.told.append)
        self.hub.ends_within_s = float("inf")  # this process is pytest's

    def child(self, rank, act):
        """Fork a rank that connects and acts."""
        ready, done = os.pipe()
        pid = os.fork()
        if not pid:
            status = 99
            with contextlib.suppress(BaseException):
                for inherited in (*self.hub._listeners, *self.hub._callers):
                    inherited.close()
                vitals = Vitals()
                line = Line(
                    rank,
                    self.hub.address,
                    vitals,
                    timeout_s=TIMEOUT_S,
                    roster=self.roster,
                    neighbours={},
                    tell=lambda text: None,
                )
                os.write(done, b"!")
                status = act(line, vitals) or 0
            os._exit(status)
        assert select.select([ready], [], [], SOON_S)[0]
        self.roster.add(replace(this_process(rank), pid=pid))
        self.children[rank] = pid
        return pid

    def watch(self):
        self.hub.watch(self.children)

    def wait(self, done):
        deadline = time.monotonic() + SOON_S
        while not done() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert done(), self.told


@pytest.fixture
def job():
    job = Job(4)
    yield job
    for pid in job.children.values():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    job.hub.close()


def trains(line, vitals):
    vitals.where = lambda: "clock 412"
    time.sleep(600)


def test_a_killed_process_is_named_with_its_signal_and_all_others_are_told(job):
    def until_over(line, vitals):
        while vitals.over is None:
            time.sleep(0.01)
        line.say_goodbye()
        return vitals.over.exit_status

    other = job.child(1, until_over)
    victim = job.child(2, trains)
    job.watch()
    job.wait(lambda: job.hub.lines == 2)
    os.kill(victim, signal.SIGKILL)
    job.wait(lambda: job.told)
    (text,) = job.told
    assert text.startswith(f"psrt: error: rank 2 ({socket.gethostname()}, pid {victim}) was killed")
    assert "by signal 9 (SIGKILL)" in text
    assert job.hub.over.status == job.vitals.over.exit_status == JobOverError.DIED
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == JobOverError.DIED


def test_a_stopped_process_is_named_with_its_state_and_how_far_it_was(job):
    victim = job.child(1, trains)
    job.watch()
    job.wait(lambda: job.detector._ranks[1].condition is not None)
    os.kill(victim, signal.SIGSTOP)
    job.wait(lambda: job.hub.over)
    stall, error = job.told
    assert "no progress" in stall
    assert f"pid {victim}) is stopped by a signal at clock 412" in error
    assert job.hub.over.status == JobOverError.LATE


def test_an_orderly_end_is_no_death(job):
    job.child(1, lambda line, vitals: line.close())
    job.watch()
    os.waitpid(job.children.pop(1), 0)
    time.sleep(0.3)
    assert job.told == []
    assert job.hub.over is None


@pytest.mark.parametrize("ranks", [(1,), (3, 1), (1, 2, 3)])
def test_of_several_errors_the_lowest_rank_s_is_told(job, ranks):
    def fails(line, vitals):
        line.fail(f"error of {line.rank}\n", 10 + line.rank)
        time.sleep(600)

    for rank in ranks:
        job.child(rank, fails)
    job.watch()
    job.wait(lambda: job.told)
    assert job.told == ["error of 1\n"]
    assert job.hub.over.status == 11


def test_the_end_of_the_hub_is_told_by_one_and_ends_all():
    read, write = os.pipe()
    first = os.fork()
    if not first:
        job = Job(3)
        os.setpgid(0, 0)

        def told(line, vitals):
            line._tell = lambda text: os.write(write, text.encode())
            line._pids = {0: first_pid}
            time.sleep(600)

        first_pid = os.getpid()
        for rank in (1, 2):
            job.child(rank, told)
        job.watch()
        job.wait(lambda: job.hub.lines == 2)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    text = b""
    while select.select([read], [], [], SOON_S)[0]:
        data = os.read(read, 4096)
        if not data:
            break  # all have ended
        text += data
    _, status = os.waitpid(first, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert text.decode().count("psrt: error: rank 0") == 1


def test_a_stranger_is_not_heard(job):
    job.watch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(f"\0{job.hub.address.name}")
        stranger.sendall(b'\x00\x00\x00\x1d{"secret": "no", "rank": 1}  ')
        stranger.settimeout(SOON_S)
        assert stranger.recv(1) == b""


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0\0\0\x02[]", b"\0\0\0\x03{{{", b"\0\0\0\0"])
def test_what_is_no_message_ends_the_connection(job, data):
    job.watch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(f"\0{job.hub.address.name}")
        stranger.sendall(data)
        stranger.settimeout(SOON_S)
        assert stranger.recv(1) == b""
    assert job.hub.watches


def test_over_the_network_too(job):
    job.hub.listen_on_network()
    address = job.hub.address
    assert address.port
    assert Address.from_text(address.to_text()) == address
    elsewhere = replace(address, name="no-such-name", addresses=("127.0.0.1",))
    roster = Roster(4)
    line = Line(
        1, elsewhere, Vitals(), timeout_s=9, roster=roster, neighbours={}, tell=job.told.append
    )
    job.wait(lambda: job.hub.lines == 1)
    line.close()
    assert job.told == []


def test_a_hub_that_cannot_be_reached_is_an_error(job):
    address = Address("no-such-name", socket.gethostname(), "0")
    with pytest.raises(OSError, match="no network"):
        Line(1, address, Vitals(), timeout_s=9, roster=Roster(2), neighbours={}, tell=print)


def test_the_state_and_the_end_of_a_process():
    assert state_of(os.getpid()) in "RS"
    pid = os.fork()
    if not pid:
        os._exit(3)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert exit_code(pid) == 3 << 8
    os.waitpid(pid, 0)
    assert exit_code(pid) is None
    assert state_of(pid) == "X"
    assert all(part.count(".") == 3 for part in addresses())
