"""The lines between processes, with real processes that are killed, stopped, or end in order.

Nobody waits for a time-out, which is long: where one has to pass, the hub is told that it has.
Signs of life come often, so that nobody waits for these either.
"""

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import replace

import pytest

from psrt.core.errors import JobOverError
from psrt.faults import Detector, Hub, Line, Roster, Vitals
from psrt.faults.connection import Address, Connection, addresses
from psrt.faults.news import NewsHub, NewsLine
from psrt.faults.processes import exit_code, state_of
from psrt.faults.roster import this_process

TIMEOUT_S = 600.0
#: Longest that anything may take here on a busy machine.
SOON_S = 20.0


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr("psrt.faults.watcher.BEAT_S", 0.1)


def until(is_so):
    while not is_so():
        time.sleep(0.01)


class Job:
    """A hub in this process, and children with a line each."""

    def __init__(self, size, hub=Hub, line=Line):
        self.line = line
        self.roster = Roster(size)
        self.roster.add(this_process(0))
        self.told, self.vitals, self.children = [], Vitals(), {}
        self.detector = Detector(
            self.roster, timeout_s=TIMEOUT_S, busy_s=10 * TIMEOUT_S, stall_s=TIMEOUT_S / 2
        )
        self.forgiven = []
        own = {"tell": self.tell, "forgive": self.forgiven.extend}
        self.hub = hub(self.roster, self.vitals, self.detector, **own)
        self.hub.ends_within_s = float("inf")  # this process is pytest's

    def tell(self, text, status=0):
        self.told.append(text)

    def child(self, rank, act):
        """Fork a rank that connects and acts."""
        ready, done = os.pipe()
        pid = os.fork()
        if not pid:
            status = 99
            with contextlib.suppress(BaseException):
                vitals = Vitals()
                given = {"timeout_s": TIMEOUT_S, "roster": self.roster, "neighbours": {}}
                quiet = lambda text, status=0: None  # noqa: E731
                line = self.line(rank, self.hub.address, vitals, **given, tell=quiet)
                os.write(done, b"!")
                status = act(line, vitals) or 0
            os._exit(status)
        self.children[rank] = pid
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        assert poll.poll(1000 * SOON_S)
        self.roster.add(replace(this_process(rank), pid=pid))
        return pid

    def watch(self):
        self.hub.watch(self.children)

    def ends(self, rank):
        """Wait for the end of a rank, and return its status."""
        return os.waitstatus_to_exitcode(os.waitpid(self.children.pop(rank), 0)[1])

    def wait(self, done, meanwhile=lambda: None):
        deadline = time.monotonic() + SOON_S
        while not done() and time.monotonic() < deadline:
            meanwhile()
            time.sleep(0.01)
        assert done(), self.told

    def stop(self, rank, pid, done, *, for_s=2 * TIMEOUT_S):
        """Wait until a rank has stopped, and then as if it had been silent for some time."""
        self.wait(lambda: state_of(pid) == "T")

        def ages():  # again and again: a hub that was away itself excuses everybody
            self.detector._ranks[rank].heard_at = time.monotonic() - for_s
            self.hub._beat_now()

        self.wait(done, ages)

    def all_is_read(self):
        """Whether the hub has read what its callers have sent, to their ends."""
        return not self.hub._listener.callers

    def where(self, rank):
        """How far the hub knows a rank to be."""
        return getattr(self.detector._ranks[rank].condition, "where", "")


@pytest.fixture
def job(request):
    job = Job(4, *getattr(request, "param", ()))
    yield job
    for pid in job.children.values():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    job.hub.close()


def trains(line, vitals):
    vitals.where = lambda: "clock 412"
    time.sleep(600)


def test_the_end_of_the_daemon_that_started_a_rank_ends_the_job(job, monkeypatch):
    """MPICH's mpirun takes no notice of it before the ranks have ended, whose output nobody has."""
    monkeypatch.setenv("HYDI_CONTROL_FD", "7")
    parent = os.getpid()

    def loses_it(line, vitals):
        looks = iter([1, parent])  # as an mpirun ends its daemons and then their ranks
        os.getppid = lambda: next(looks, 1)
        trains(line, vitals)

    job.child(2, loses_it)
    job.watch()
    job.wait(lambda: job.told)
    (text,) = job.told
    assert text.startswith(f"psrt: error: rank 2 ({socket.gethostname()}) ")
    assert "hydra_pmi_proxy" in text
    assert job.hub.over.status == JobOverError.DIED


def test_a_killed_process_is_named_with_its_signal_and_all_others_are_told(job):
    def until_over(line, vitals):
        until(lambda: vitals.over)
        line.say_goodbye()
        return vitals.over.exit_status

    job.child(1, until_over)
    victim = job.child(2, trains)
    job.watch()
    job.wait(lambda: job.hub.lines == 2)
    os.kill(victim, signal.SIGKILL)
    job.wait(lambda: job.told)
    (text,) = job.told
    assert text.startswith(f"psrt: error: rank 2 ({socket.gethostname()}, pid {victim}) was killed")
    assert "by signal 9 (SIGKILL)" in text
    assert job.hub.over.status == job.vitals.over.exit_status == JobOverError.DIED
    assert job.ends(1) == JobOverError.DIED


def test_a_stopped_process_is_named_with_its_state_and_how_far_it_was(job):
    victim = job.child(1, trains)
    job.watch()
    job.wait(lambda: job.where(1))
    os.kill(victim, signal.SIGSTOP)
    job.stop(1, victim, lambda: job.told, for_s=0.75 * TIMEOUT_S)
    job.stop(1, victim, lambda: job.hub.over)
    stall, error = job.told
    assert "no progress" in stall
    assert f"pid {victim}) is stopped by a signal at clock 412" in error
    assert job.hub.over.status == JobOverError.LATE


@pytest.mark.parametrize("job", [(NewsHub, NewsLine)], indirect=True, ids=["news"])
def test_who_only_hears_news_learns_of_a_death_and_of_work_and_is_not_ended(job):
    def hears(line, vitals):
        until(lambda: line.late(frozenset({2}), TIMEOUT_S))
        text = line.late(frozenset({2}), TIMEOUT_S)
        line.close()
        return 7 if "was killed by signal 9" in text and vitals.over is None else 8

    job.child(1, hears)
    victim = job.child(2, trains)
    job.watch()
    job.wait(lambda: job.hub.lines == 2)
    assert not job.hub.late(frozenset({1, 2}), 0.0)
    os.kill(victim, signal.SIGKILL)
    job.wait(lambda: job.hub.late(frozenset({2}), TIMEOUT_S))
    assert not job.hub.late(frozenset({0, 1}), TIMEOUT_S)
    assert job.ends(1) == 7
    assert (job.hub.over, job.told) == (None, [])


def stops(line, vitals):
    os.kill(os.getpid(), signal.SIGSTOP)
    until(lambda: line.is_given_up)
    assert vitals.over is not None, "it must do nothing any more"
    line.fail("its own error, which nobody asks for\n", 1)
    return 5


def test_the_others_go_on_without_a_rank_that_they_can_spare(job):
    def hears(line, vitals):
        until(lambda: vitals.gone == {2})
        line.close()
        return 6

    job.child(1, hears)
    victim = job.child(2, stops)
    job.watch()
    assert job.hub.spare([1, 2, 3]) == frozenset()
    job.stop(2, victim, lambda: job.vitals.gone)
    assert f"pid {victim}) is stopped by a signal; the others continue" in job.told[-1]
    assert job.ends(1) == 6
    # It is heard no more: neither what it says when it is let go on, nor its end.
    os.kill(victim, signal.SIGCONT)
    assert job.ends(2) == 5
    job.wait(job.all_is_read)
    assert job.hub.spare(()) == {2}
    assert job.vitals.over is job.hub.over is None
    assert len(job.told) == 1, job.told


@pytest.mark.parametrize("spare", [(0, 1), (), (1,), (2,)], ids=str)
def test_without_the_last_of_them_the_job_ends(job, spare):
    victim = job.child(2, stops)
    job.watch()
    job.hub.spare(spare)
    job.stop(2, victim, lambda: job.hub.over)
    assert job.hub.over.status == JobOverError.LATE
    assert f"pid {victim}) is stopped by a signal" in job.told[-1]
    assert not job.vitals.gone


def told_of(line, epoch):
    line.ask_who_is_left_out(epoch)
    until(lambda: line.left_out(epoch) is not None)
    return line.left_out(epoch)


def test_the_others_go_on_without_the_dead_where_they_can(job):
    def asks(line, vitals):
        """Of the first epoch before a rank has gone; of all of them after it."""
        assert told_of(line, 0) == frozenset()
        until(lambda: vitals.gone == {2})
        assert vitals.dead == {2}
        assert [told_of(line, epoch) for epoch in range(3)] == [frozenset(), {2}, {2}]
        line.close()
        return 6

    job.child(1, asks)
    victim = job.child(2, trains)
    job.watch()
    job.hub.spare([1, 2, 3], survives=True)
    job.wait(lambda: job.hub.left_out_so_far)
    os.kill(victim, signal.SIGKILL)
    job.wait(lambda: job.told)
    assert f"pid {victim}) was killed by signal 9 (SIGKILL)" in job.told[0]
    assert job.told[0].endswith("; the others continue\n")
    assert job.ends(1) == 6
    assert job.vitals.dead == job.vitals.gone == job.hub.spare(()) == {2}
    assert job.hub.left_out_so_far == {0: set(), 1: {2}, 2: {2}}
    assert job.forgiven == [2]
    assert job.vitals.over is job.hub.over is None


def test_an_orderly_end_is_no_death(job):
    job.child(1, lambda line, vitals: line.close())
    job.watch()
    assert job.ends(1) == 0
    job.wait(job.all_is_read)
    assert job.told == []
    assert job.hub.over is None


@pytest.mark.parametrize("ranks", [(1,), (3, 1)])
def test_of_several_errors_the_lowest_rank_s_is_told(job, ranks, monkeypatch):
    def fails(line, vitals):
        line.fail(f"error of {line.rank}\n", 10 + line.rank)
        time.sleep(600)

    monkeypatch.setattr("psrt.faults.hub._GRACE_S", 600.0)
    for rank in ranks:
        job.child(rank, fails)
    job.watch()
    job.wait(lambda: len(job.hub._failed) == len(ranks))
    assert job.told == []
    monkeypatch.setattr("psrt.faults.hub._GRACE_S", 0.0)
    job.hub.prod()
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
            line._tell = lambda text, status=0: os.write(write, text.encode())
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


STRANGERS = [
    b'\x00\x00\x00\x1d{"secret": "no", "rank": 1}  ',
    *(b"\xff" * 8, b"\0\0\0\x02[]", b"\0\0\0\x03{{{", b"\0\0\0\0"),
]


def test_strangers_and_what_is_no_message_are_not_heard(job):
    job.watch()
    for data in STRANGERS:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(f"\0{job.hub.address.name}")
            stranger.sendall(data)
            stranger.settimeout(SOON_S)
            assert stranger.recv(1) == b"", data
    assert job.hub.watches


def test_over_the_network_too_if_there_is_one(job):
    job.hub.listen_on_network()
    address = job.hub.address
    assert address.port
    assert Address.from_text(address.to_text()) == address
    elsewhere = replace(address, name="no-such-name", addresses=("127.0.0.1",))
    given = {"timeout_s": 9, "roster": Roster(4), "neighbours": {}, "tell": job.tell}
    vitals = Vitals()
    vitals.over = JobOverError(4)
    line = Line(1, elsewhere, vitals, **given)
    assert vitals.over is None, "of an earlier job"
    job.wait(lambda: job.hub.lines == 1)
    line.close()
    assert job.told == []
    nowhere = Address("no-such-name", socket.gethostname(), "0")
    with pytest.raises(OSError, match="no network"):
        Line(1, nowhere, Vitals(), **given)


def test_a_message_that_a_full_socket_cuts_in_two_arrives_whole():
    ours, theirs = socket.socketpair()
    sender, receiver = Connection(ours), Connection(theirs)
    texts = [letter * 100_000 for letter in "abcdefgh"]
    for text in texts:
        assert sender.send({"text": text})
    assert sender.send({"beat": 1}, droppable=True)
    got = []
    while len(got) < len(texts):
        got += list(receiver.receive())
        sender.finish(time.monotonic())
    assert [message["text"] for message in got] == texts
    sender.close()
    assert list(receiver.receive()) == [None]
    receiver.close()


def test_what_ranks_say_comes_to_whom_it_is_meant_for_in_order(job):
    """By way of rank 0; a thread looks after each, whatever the main one does."""

    def echoes(line, vitals):
        heard, looked = [], []
        line.talk(heard.append, lambda: looked.append(1))
        line.say(0, ["here", line.rank])
        until(lambda: len(heard) == 4 and looked)
        line.say(0, [line.rank, heard])
        time.sleep(600)

    heard = []
    job.hub.talk(heard.append)
    job.child(1, echoes)
    job.child(2, echoes)
    job.wait(lambda: sorted(heard) == [["here", 1], ["here", 2]])
    heard.clear()
    job.hub.say(None, "to all")
    job.hub.say(2, "to one")
    caller = next(it for it in job.hub._listener.callers if it.rank == 1)
    for to, words in ((2, "on"), (None, "on to others"), (0, ["here"])):
        job.hub._heard(caller, {"says": words, "to": to})
    job.wait(lambda: len(heard) == 3)
    assert heard == ["on to others", ["here"], [2, ["to all", "to one", "on", "on to others"]]]


def test_a_hub_that_fails_says_so_and_waits_have_their_own_deadline_again(job):
    def until_unwatched(line, vitals):
        until(lambda: not line.watches)
        # Rank 0 is silent from now on, and that is nobody's fault.
        line._beat(time.monotonic() + 2 * TIMEOUT_S)
        line.close()
        return 7 if vitals.over is None else 8

    job.child(1, until_unwatched)
    job.watch()
    job.hub._detector = None
    job.wait(lambda: job.told)
    assert "watched no longer (AttributeError" in job.told[0]
    assert not job.hub.watches
    assert job.ends(1) == 7
    job.hub.fail("its own error\n", 1)
    assert job.told[1:] == ["its own error\n"]
    assert job.hub.over is None


def test_a_line_that_fails_is_not_taken_for_dead(job):
    read, write = os.pipe()

    def fails(line, vitals):
        os.read(read, 1)
        line.vitals = None
        line._beat_now()
        time.sleep(600)

    job.child(1, fails)
    job.watch()
    job.wait(lambda: job.hub.lines == 1)
    os.write(write, b"!")
    job.wait(lambda: job.hub.lines == 0)
    job.hub._beat(time.monotonic() + 2 * TIMEOUT_S)
    assert job.told == []


def test_more_files_than_select_knows(job):
    held = [os.dup(0) for _ in range(1030 - len(os.listdir("/proc/self/fd")))]
    try:
        job.child(1, lambda line, vitals: time.sleep(600))
        job.watch()
        job.wait(lambda: job.detector._ranks[1].condition is not None)
        assert job.hub.watches
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_a_rank_0_that_was_stopped_learns_that_it_was_given_up(job):
    def gives_up(line, vitals):
        line._tell_of_the_first(silent=True)
        time.sleep(600)

    job.child(1, gives_up)
    job.watch()
    job.wait(lambda: job.hub.over)
    assert job.hub.over.status == JobOverError.LATE
    job.wait(lambda: job.told)
    assert job.told == [""]  # that rank has told it


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
