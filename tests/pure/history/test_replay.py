"""A shard's messages in the recorded order, whatever order they come in; and what must not come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrt.errors import ProtocolError, ReplayError
from psrt.history import EVENT, Kind
from psrt.history.replay import Script, Sequencer
from psrt.messages import Leave, Params, Push
from psrt.transport import drive


def push(worker, clock, version, samples=8, shard=1):
    return Push(worker, clock, version, samples, 0.5, shard)


def leave(worker, clock, shard=1):
    return Leave(worker, clock, shard)


def script_of(messages, shard=1):
    """Return the script of a shard that took these messages and did something after each."""
    events = np.zeros(2 * len(messages), EVENT)
    for i, message in enumerate(messages):
        took, did = events[2 * i], events[2 * i + 1]
        left = type(message) is Leave
        took["kind"], took["worker"], took["clock"] = (
            Kind.LEFT if left else Kind.RECEIVE,
            message.worker,
            message.clock,
        )
        took["version"] = -1 if left else message.version
        took["samples"] = 0 if left else message.samples
        did["kind"], did["worker"] = Kind.REPLY, message.worker
    return Script.of(shard, events)


class Inbox:
    """Gives messages in order of arrival."""

    def __init__(self, messages):
        self.left = list(messages)

    async def receive(self):
        return self.left.pop(0)


def handed_on(arriving, script, count=None):
    """Return the messages that a sequencer hands on, of those that arrive."""
    sequencer = Sequencer(Inbox(arriving).receive, [script])

    async def take():
        return [await sequencer.receive() for _ in range(len(script) if count is None else count)]

    taken = drive(take())
    if count is None:
        sequencer.finish()
    return taken


def merged(queues, picks):
    """Return the messages of all queues, each queue in its order, by these picks."""
    queues = [list(queue) for queue in queues if queue]
    order = []
    for pick in picks:
        queue = queues[pick % len(queues)]
        order.append(queue.pop(0))
        queues = [queue for queue in queues if queue]
        if not queues:
            return order
    return order + [message for queue in queues for message in queue]


@st.composite
def runs(draw):
    """Return what each worker sent, and two orders in which it was taken up."""
    queues = []
    for worker in range(draw(st.integers(1, 4))):
        versions = sorted(draw(st.lists(st.integers(0, 20), max_size=6)))
        pushes = [push(worker, clock, version) for clock, version in enumerate(versions)]
        queues.append([*pushes, leave(worker, len(versions))])
    picks = st.lists(st.integers(0, 1000), min_size=30, max_size=30)
    return merged(queues, draw(picks)), merged(queues, draw(picks))


@given(runs())
def test_any_order_of_arrival_gives_the_recorded_one(orders):
    recorded, arriving = orders
    assert handed_on(arriving, script_of(recorded)) == recorded


@given(runs(), st.data())
def test_nothing_is_handed_on_before_its_turn(orders, data):
    """As much as can be is handed on with what has come, and not a message more."""
    recorded, arriving = orders
    come = data.draw(st.integers(0, len(arriving)))
    known = arriving[:come]
    due = next((i for i, message in enumerate(recorded) if message not in known), len(recorded))
    assert handed_on(known, script_of(recorded), due) == recorded[:due]
    if due < len(recorded):
        with pytest.raises(IndexError):  # nothing is left that could come
            handed_on(known, script_of(recorded), due + 1)


RECORDED = [push(0, 0, 0), push(1, 0, 0), push(0, 1, 1), leave(1, 1), push(0, 2, 3), leave(0, 3)]


@pytest.mark.parametrize(
    ("at", "message", "told"),
    [
        (2, push(0, 2, 1), "worker 0 pushed clock 2 on version 1"),
        (2, push(0, 1, 2), "worker 0 pushed clock 1 on version 2"),
        (2, push(0, 1, 1, samples=3), "worker 0 pushed clock 1 on version 1 with 3 samples"),
        (2, leave(0, 1), "worker 0 left at clock 1"),
        (3, push(1, 1, 2), "worker 1 pushed clock 1 on version 2"),
        (5, leave(0, 4), "worker 0 left at clock 4"),
    ],
)
def test_another_message_is_told_with_its_event(at, message, told):
    arriving = [*RECORDED[:at], message, *RECORDED[at + 1 :]]
    with pytest.raises(ReplayError) as error:
        handed_on(arriving, script_of(RECORDED))
    assert str(error.value).startswith(
        f"the replay diverges at event {2 * at} of shard 1: {told}, "
    )


def test_the_recorded_message_is_told_too():
    with pytest.raises(ReplayError, match=r"in the recorded run it pushed clock 1 on version 1$"):
        handed_on([*RECORDED[:2], push(0, 1, 2)], script_of(RECORDED))
    with pytest.raises(ReplayError, match=r"it pushed clock 1 on version 1 with 8 samples$"):
        handed_on([*RECORDED[:2], push(0, 1, 1, samples=3)], script_of(RECORDED))
    with pytest.raises(ReplayError, match=r"in the recorded run it left at clock 1$"):
        handed_on([*RECORDED[:3], push(1, 1, 2)], script_of(RECORDED))


def test_a_message_is_compared_when_it_comes_and_not_when_it_is_due():
    with pytest.raises(ReplayError, match="event 2 of shard 1: worker 1 pushed clock 0 on version"):
        handed_on([push(1, 0, 5)], script_of(RECORDED))


def test_a_message_too_many():
    with pytest.raises(
        ReplayError,
        match="worker 1 pushed clock 1 on version 2 at shard 1, in the "
        "recorded run it sent no more",
    ):
        handed_on([push(1, 0, 0), leave(1, 1), push(1, 1, 2)], script_of(RECORDED))
    with pytest.raises(ReplayError, match="worker 7 left at clock 0 at shard 1"):
        handed_on([leave(7, 0)], script_of(RECORDED))


def test_a_server_that_goes_on_after_the_last_event():
    with pytest.raises(
        ReplayError, match="shard 1 waits for a message after the 6 that it received"
    ):
        handed_on(RECORDED, script_of(RECORDED), count=7)


def test_an_end_that_comes_too_early():
    sequencer = Sequencer(Inbox(RECORDED).receive, [script_of(RECORDED)])
    for _ in range(4):
        drive(sequencer.receive())
    with pytest.raises(
        ReplayError,
        match="at event 8 of shard 1: it is over, in the recorded run "
        "worker 0 pushed clock 2 on version 3",
    ):
        sequencer.finish()


def test_what_is_no_message_to_a_server():
    with pytest.raises(ProtocolError, match="expected a push"):
        handed_on([Params(1, 0, 0, 0)], script_of(RECORDED))


def test_who_is_waited_for():
    sequencer = Sequencer(Inbox(RECORDED).receive, [script_of(RECORDED)])
    assert sequencer.waiting_for() == (
        "worker 0, which pushed clock 0 on version 0 in the recorded run (event 0 of shard 1)"
    )
    for _ in RECORDED:
        drive(sequencer.receive())
    assert sequencer.waiting_for() == "the last answers to be read"


@given(runs(), runs(), st.lists(st.booleans(), min_size=60, max_size=60))
def test_each_shard_of_a_server_has_an_order_of_its_own(first, second, picks):
    """Whatever the two have in common: a message waits for those of its own shard alone."""
    scripts, arriving = [], []
    for shard, (recorded, came) in enumerate((first, second)):
        of_shard = [message._replace(shard=shard) for message in recorded]
        scripts.append(script_of(of_shard, shard))
        arriving.append([message._replace(shard=shard) for message in came])
    sequencer = Sequencer(Inbox(merged(arriving, picks)).receive, scripts)

    async def take():
        return [await sequencer.receive() for _ in range(sum(map(len, scripts)))]

    taken = drive(take())
    sequencer.finish()
    for shard, (recorded, _) in enumerate((first, second)):
        mine = [message._replace(shard=1) for message in taken if message.shard == shard]
        assert mine == [message._replace(shard=1) for message in recorded]
    with pytest.raises(ReplayError, match=r"shard 0 waits for .*; shard 1 waits for"):
        drive(sequencer.receive())


def test_only_shards_that_miss_something_are_waited_for():
    sequencer = Sequencer(
        Inbox([push(0, 0, 0)]).receive, [script_of([push(0, 0, 0)]), script_of(RECORDED, 2)]
    )
    drive(sequencer.receive())
    assert sequencer.waiting_for() == (
        "worker 0, which pushed clock 0 on version 0 in the recorded run (event 0 of shard 2)"
    )


def test_a_shard_that_took_nothing():
    script = Script.of(0, np.zeros(0, EVENT))
    assert len(script) == 0
    Sequencer(Inbox([]).receive, [script]).finish()
