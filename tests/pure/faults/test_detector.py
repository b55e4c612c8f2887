"""What a rank tells of itself, and what is decided from it: each case as a story in seconds."""

import pytest

from psrt.faults import Busy, Detector, Member, Paused, Roster, Vitals, Waiting

RANKS, TIMEOUT_S, BUSY_S, STALL_S, BEAT_S = 4, 60.0, 600.0, 30.0, 1.0


class Story:
    """Ranks that tell what they do, beat by beat."""

    def __init__(self):
        roster = Roster(RANKS)
        for rank in range(RANKS):
            roster.add(Member(rank, "", f"node{rank // 2}", 100 + rank))
        roster.give_roles((0,), (1, 2, 3))
        self.detector = Detector(roster, timeout_s=TIMEOUT_S, busy_s=BUSY_S, stall_s=STALL_S)
        self.detector.watch(range(RANKS), 0.0)
        self.now, self.doing, self.since = 0.0, {}, {}

    def does(self, rank, kind, *text):
        self.doing[rank] = (kind, text)
        self.since[rank] = self.now

    def silent(self, rank):
        self.doing.pop(rank)

    def passes(self, seconds, *, process="", cores=0.0):
        """Let time pass; return what is told meanwhile, with when.

        Silent processes look as given, and have computed on so many cores.
        """
        told = []
        end = self.now + seconds
        while self.now < end:
            self.now += BEAT_S
            for rank, (kind, text) in self.doing.items():
                condition = kind(self.now - self.since[rank], f"clock {rank}", *text)
                self.detector.heard(rank, condition, self.now)
            for rank in self.detector.quiet(self.now, 2.5 * BEAT_S):
                self.detector.looked_up(rank, process, cores * self.now, self.now)
            verdict = self.detector.judge(self.now)
            if verdict is not None:
                told.append((self.now, verdict))
        return told


@pytest.fixture
def story():
    story = Story()
    for rank in range(RANKS):
        story.does(rank, Busy, "trains")
    assert story.passes(5) == []
    return story


def kinds(told):
    return [(round(when), verdict.kind) for when, verdict in told]


def test_ranks_that_are_busy_are_left_alone_until_their_limit(story):
    assert story.passes(BUSY_S - 10) == []
    ((when, verdict), *_) = story.passes(20)
    assert verdict.kind == "stuck"
    assert "trains for more than 600 s" in verdict.text
    assert verdict.ranks == (0,)
    assert when == pytest.approx(BUSY_S + 1, abs=2)


def test_all_wait_told_first_and_ended_at_the_time_out(story):
    story.does(0, Waiting, "a push of worker 2 (rank 3)")
    for rank in (1, 2, 3):
        story.does(rank, Waiting, "a server (rank 0)")
    told = story.passes(TIMEOUT_S + 2)
    assert kinds(told)[:2] == [(5 + 31, "stall"), (5 + 61, "stuck")]
    # A server knows whose push is missing, so it is named first.
    assert told[1][1].text.startswith(
        "no answer within 60 s (--timeout-s): server 0 (rank 0, node0, pid 100) waits for a push "
        "of worker 2 (rank 3); worker 0 (rank 1, node0, pid 101) waits for a server"
    )
    assert told[1][1].ranks == ()


def test_who_computes_excuses_all_who_wait_for_as_long_as_that_takes(story):
    for rank in (0, 1, 2):
        story.does(rank, Waiting, "worker 2")
    assert story.passes(5 * TIMEOUT_S) == []
    # And what it goes on to do takes its time, too.
    story.does(3, Waiting, "something else")
    assert story.passes(STALL_S - 2) == []
    assert kinds(story.passes(TIMEOUT_S))[0][1] == "stall"


@pytest.mark.parametrize("seen", [(Busy, "trains"), (Waiting, "a server (rank 0)")])
def test_short_steps_of_others_excuse_who_has_finished(story, seen):
    """Whatever they are seen doing: they wait now and then, but never for long."""
    story.does(1, Waiting, "the other ranks to finish")
    for _ in range(3 * int(TIMEOUT_S)):
        for rank in (0, 2, 3):
            story.does(rank, *seen)
            story.since[rank] += 0.8
        assert story.passes(1) == []
    for rank in (0, 2, 3):
        story.does(rank, Waiting, "a server (rank 0)")
    assert kinds(story.passes(TIMEOUT_S + 2))[-1][1] == "stuck"


def test_a_pause_excuses_nobody(story):
    for rank in (0, 1, 2):
        story.does(rank, Waiting, "worker 2")
    story.does(3, Paused)
    told = story.passes(TIMEOUT_S + 2)
    assert told[-1][1].kind == "stuck"
    assert "worker 2 (rank 3, node1, pid 103) pauses at clock 3" in told[-1][1].text
    assert told[-1][1].ranks == (3,), "the others may go on without it"


@pytest.mark.parametrize(
    ("process", "word"),
    [("T", "stopped by a signal"), ("Z", "dead"), ("", "silent")],
)
def test_a_silent_rank_is_named_after_the_time_out_even_if_others_work(story, process, word):
    story.silent(2)
    told = story.passes(TIMEOUT_S + 2, process=process)
    assert kinds(told) == [(5 + 31, "stall"), (5 + 61, "silent")]
    stall, silent = (verdict for _, verdict in told)
    assert f"worker 1 (rank 2, node1, pid 102) is {word} at clock 2" in stall.text
    assert silent.ranks == (2,)
    assert silent.text == (
        "no sign of life within 60 s (--timeout-s): "
        f"worker 1 (rank 2, node1, pid 102) is {word} at clock 2"
    )
    assert story.passes(TIMEOUT_S) == [], "it is said once"


@pytest.mark.parametrize(("process", "cores"), [("R", 0), ("D", 0), ("S", 0.02)])
def test_a_silent_process_that_runs_may_be_busy_without_its_threads(story, process, cores):
    """Asleep, it is while threads of its compute, as a library does whose caller waits."""
    for rank in (0, 1, 3):
        story.does(rank, Waiting, "worker 1")
    story.silent(2)
    told = story.passes(BUSY_S - 10, process=process, cores=cores)
    assert {kind for _, kind in kinds(told)} == {"stall"}
    assert ("worker 1 (rank 2, node1, pid 102) is at work, and silent for up to 600 s" in
            told[0][1].text) == (cores > 0)  # fmt: skip
    assert ("silent", (2,)) in [
        (v.kind, v.ranks) for _, v in story.passes(TIMEOUT_S + 20, process=process, cores=cores)
    ]


def test_a_silent_process_that_sleeps_and_computes_nothing_is_silent(story):
    """As one does whose thread waits for another while it holds the interpreter."""
    for rank in (0, 1, 3):
        story.does(rank, Waiting, "worker 1")
    story.silent(2)
    told = story.passes(TIMEOUT_S - 10, process="S", cores=0.02)
    last_worked = story.now
    story.detector.looked_up(2, "S", 0.02 * story.now, story.now)
    told += [
        it for it in story.passes(TIMEOUT_S + 5, process="S", cores=0) if it[1].kind != "stall"
    ]
    assert [(v.kind, v.ranks) for _, v in told if v.kind != "stall"] == [("silent", (2,))]
    assert told[-1][0] == pytest.approx(last_worked + TIMEOUT_S, abs=2)


def test_the_hub_s_own_absence_is_nobody_s_fault(story):
    story.now += 5 * TIMEOUT_S
    story.detector.excuse(story.now)
    assert story.detector.judge(story.now) is None
    assert story.passes(10) == []


def test_a_death_is_told_once_and_only_before_the_rank_is_done(story):
    verdict = story.detector.died(3, 9)
    assert verdict.kind == "dead"
    assert verdict.ranks == (3,)
    assert verdict.text == (
        "worker 2 (rank 3, node1, pid 103) was killed by signal 9 (SIGKILL) at clock 3"
    )
    assert story.detector.died(3, None) is None
    story.detector.ended(2)
    assert story.detector.died(2, 0) is None
    assert story.detector.died(1, None).text.startswith("worker 0 (rank 1, node0, pid 101) died")
    assert story.detector.died(0, 3 << 8).text.endswith("exited with status 3 at clock 0")


def test_a_rank_that_is_done_or_gone_is_not_missed(story):
    story.detector.ended(1)
    story.silent(1)
    story.detector.forget([2], story.now)
    story.silent(2)
    assert story.passes(3 * TIMEOUT_S) == []


def test_who_waited_for_one_that_is_given_up_has_its_time_again(story):
    for rank in (0, 1, 3):
        story.does(rank, Waiting, "worker 1")
    story.silent(2)
    told = story.passes(TIMEOUT_S + 1, process="T")
    assert kinds(told)[-1][1] == "silent"
    story.detector.forget(told[-1][1].ranks, story.now)
    assert story.passes(STALL_S - 1) == []
    assert kinds(story.passes(TIMEOUT_S))[-1][1] == "stuck"


def test_it_is_busy_for_as_long_as_it_is_at_one_thing():
    vitals = Vitals()
    vitals.doing = "trains"
    first = vitals.condition(10.0)
    assert vitals.condition(13.0) == Busy(3.0, first.where, "trains")
    vitals.doing = "is in evaluate()"
    assert vitals.condition(14.0).seconds == 0.0
    assert vitals.condition(16.0).seconds == 2.0
    vitals.doing = "trains"
    assert vitals.condition(17.0).seconds == 0.0


def test_a_step_is_one_thing_also_where_nothing_is_sent():
    clock = 0
    vitals = Vitals()
    vitals.where = lambda: f"clock {clock}"
    for clock in range(3):
        assert vitals.condition(10.0 * clock).seconds == 0.0
        assert vitals.condition(10.0 * clock + 9.0) == Busy(9.0, f"clock {clock}", "starts")


def test_what_waits_gets_on_with_its_bytes():
    received = 0
    vitals = Vitals()
    vitals.pulse = lambda: received
    with vitals.blocked("rank 0"):
        vitals.condition(1.0)
        assert vitals.condition(4.0) == Waiting(3.0, "", "rank 0")
        received = 64
        assert vitals.condition(5.0).seconds == 0.0
