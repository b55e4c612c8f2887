"""What a worker that averages in pairs did, in its recorded order, and what does not fit it."""

import numpy as np
import pytest

from psrt.errors import ReplayError
from psrt.history import EVENT, Kind
from psrt.history.events import ANSWER, pair
from psrt.history.pair_replay import PairScript, PairSequencer
from psrt.messages import Leave, Mix
from psrt.transport import drive


def events_of(*lines):
    """Return events from (kind, neighbour, clock, number, flag) each."""
    events = np.zeros(len(lines), EVENT)
    for event, (kind, neighbour, clock, number, flag) in zip(events, lines, strict=True):
        event["kind"], event["shard"], event["clock"] = kind, neighbour, clock
        event["version"], event["flag"] = pair(77, number), flag
    return events


#: Offers something to 1, who answers, to 3, who leaves, and to 1 again.
ASKS = [
    (Kind.OFFER, 1, 0, 0, 0),
    (Kind.STEP, -1, 0, 0, 0),
    (Kind.OWN, -1, 1, 0, 0),
    (Kind.TAKE, 1, 1, 0, ANSWER),
    (Kind.OFFER, 3, 1, 1, 0),
    (Kind.OFFER, 1, 4, 2, 0),
    (Kind.TAKE, 1, 6, 2, ANSWER),
]
ANSWERS = [
    (Kind.OFFER, 2, 1, 5, ANSWER),
    (Kind.TAKE, 2, 1, 5, 0),
    (Kind.OFFER, 0, 1, 0, ANSWER),
    (Kind.TAKE, 0, 1, 0, 0),
]


def sequencer(lines, *arriving, worker=0):
    inbox = list(arriving)

    async def receive():
        return inbox.pop(0)

    return PairSequencer(receive, PairScript.of(worker, events_of(*lines)))


def test_each_is_asked_and_taken_where_it_was():
    answers = Mix(1, 9, 0), Mix(1, 9, 2)
    it = sequencer(ASKS, answers[0], Leave(3, 2), answers[1])
    assert it.partner(0) == 1
    assert drive(it.poll(1)) == answers[0]
    assert drive(it.poll(1)) is None
    assert it.partner(1) == 3
    assert [drive(it.poll(clock)) for clock in (2, 3)] == [None, None]
    assert "worker 3, which left by event 5 of worker 0" in it.waiting_for()
    assert drive(it.poll(4)) == Leave(3, 2)
    assert (drive(it.poll(4)), it.partner(4)) == (None, 1)
    assert [it.partner(5), drive(it.poll(5))] == [None, None]
    assert drive(it.poll(6)) == answers[1]
    assert it.waiting_for() == "its neighbours to finish"
    it.finish()


def test_who_comes_early_is_held():
    early, first = Mix(0, 3, 0), Mix(2, 3, 5)
    it = sequencer(ANSWERS, early, Leave(0, 4), first, worker=1)
    assert [drive(it.poll(1)) for _ in range(3)] == [first, early, None]
    assert drive(it.receive()) == Leave(0, 4)


@pytest.mark.parametrize("message", [Mix(1, 0, 1), Leave(1, 0)])
def test_another_message_is_found_out(message):
    it = sequencer(ASKS, message)
    it.partner(0)
    with pytest.raises(ReplayError, match=r"event 3 of worker 0: worker 1 sent .* for offer 0"):
        drive(it.poll(1))


def test_what_is_left_out_is_found_out():
    it = sequencer(ASKS)
    with pytest.raises(ReplayError, match=r"event 0 of worker 0: it went on without .* at clock 0"):
        it.partner(1)
    with pytest.raises(ReplayError, match="event 0 of worker 0"):
        it.finish()


def test_who_did_nothing_with_others_has_an_empty_script():
    script = PairScript.of(0, events_of((Kind.STEP, -1, 0, 0, 0)))
    assert len(script) == 0
    sequencer([]).finish()
