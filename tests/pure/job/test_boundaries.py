"""A process agrees with others on what is saved, by time and as it is asked, and waits in vain."""

from __future__ import annotations

import pytest

from psrt.core.errors import OutputError
from psrt.job.boundaries import Boundaries
from psrt.job.pace import FIRST_S, Pace
from psrt.sync.cut import Agreed, Cuts, Held, Hold, Wish, message_of, words_of


class Line:
    """To others, who say what the test has them say."""

    def __init__(self):
        self.said, self.hear, self.look = [], None, None

    def talk(self, hear=None, look=None):
        self.hear, self.look = hear, look

    def say(self, to, words):
        self.said.append((to, message_of(words)))

    def prod(self):
        if self.look is not None:
            self.look()


def boundaries_of(process=0, processes=2, line=None, **more):
    return Boundaries(Cuts(process, processes=processes), line, timeout_s=0.0, **more)


def test_one_process_agrees_with_itself():
    it = boundaries_of(processes=1)
    assert [it.at(step, 0) for step in (1, 2)] == [None, None]
    it.ask()
    assert [it.at(step, 0) for step in (100, 103)] == [None, Agreed(101, stops=False)]
    assert it.at(104, 103) is None
    it.ask(stop=True)
    assert [it.at(step, 103) for step in (104, 105)] == [None, Agreed(105, stops=True)]


def test_a_signal_is_passed_on_by_the_thread_and_a_promise_kept_until_all_know():
    line = Line()
    it = boundaries_of(1, line=line)
    it.at(3, 0)
    it.ask(stop=True)  # no boundary comes: the role waits for others
    assert line.said == [(0, Wish(stop=True))]
    line.hear(words_of(Hold()))
    assert line.said[1:] == [(0, Held(1, 4))]
    with pytest.raises(OutputError, match="no agreement on a step to save within 0 s"):
        it.at(4, 0)
    line.hear(words_of(Agreed(6, stops=True)))
    assert [it.at(step, 0) for step in (4, 5)] == [None, None]
    assert it.at(6, 0) == Agreed(6, stops=True)
    it.close()
    assert line.look is None


def test_who_is_gone_is_not_waited_for():
    line, gone = Line(), []
    it = boundaries_of(processes=3, line=line, gone=lambda: gone)
    it.ask()
    assert line.said == [(None, Hold())]
    line.hear(words_of(Held(1, 9)))
    gone.append(2)
    line.look()
    assert line.said[1:] == [(None, Agreed(9, stops=False))]


def test_nothing_is_asked_where_some_cannot_answer():
    line, told = Line(), []
    it = boundaries_of(line=line)
    it.trouble, it.failed = "rank 1 cannot be reached", told.append
    for step in range(3):
        it.ask()
        assert it.at(step, 0) is None
    assert line.said == []
    assert told == ["rank 1 cannot be reached"]


def test_time_asks_and_what_one_costs_says_how_often():
    now, cost_s = 0.0, None
    pace = Pace(None, mtbf_s=1800.0, cost_s=lambda: cost_s, now=lambda: now)
    cuts = Cuts(0, processes=1, parks=True)
    it, last, found = Boundaries(cuts, pace=pace), 0, []
    for step, at_s in ((0, 0), (1, 0), (2, 1), (90, 59), (90, 60.9), (91, 61), (92, 100)):
        now = FIRST_S * at_s
        found.append(abs(it.call(step, last)))
        if found[-1]:
            last, cost_s = found[-1], 1.0
    assert found == [0, 0, 2, 0, 0, 91, 0]
    assert pace.interval_s == 60.0


def test_a_stop_at_a_server_is_the_last_one():
    it = Boundaries(Cuts(0, processes=1, parks=True))
    it.ask(stop=True)
    assert it.call(0, 0) == 0  # no step is done, so there is nothing to save
    assert it.call(5, 0) == -5
    assert [it.call(step, 5) for step in (6, 100)] == [0, 0]
