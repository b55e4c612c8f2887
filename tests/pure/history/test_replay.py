"""Messages in the recorded order, whatever order they come in, and what must not come.

Of a shard, and of a worker that averages in pairs; and what a replay says of another run.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrt.config import TrainConfig, resolve
from psrt.core.errors import ReplayError
from psrt.core.messages import Leave, Mix, Push
from psrt.history import EVENT, Header, Kind
from psrt.history.differences import differences, knob_differences
from psrt.history.events import ANSWER, pair
from psrt.history.pair_replay import PairScript, PairSequencer
from psrt.history.replay import Script, Sequencer
from psrt.transport import drive
from support.cases import each


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


def inbox(messages):
    """Return what gives messages in order of arrival."""
    left = list(messages)

    async def receive():
        return left.pop(0)

    return receive


def handed_on(arriving, script, count=None):
    """Return the messages that a sequencer hands on, of those that arrive."""
    sequencer = Sequencer(inbox(arriving), [script])

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


RECORDED = [push(0, 0, 0), push(1, 0, 0), push(0, 1, 1), leave(1, 1), push(0, 2, 3), leave(0, 3)]
WAS = ", in the recorded run "


@each(("at", "message", "told"), [
    (2, push(0, 2, 1), f"worker 0 pushed clock 2 on version 1{WAS}it pushed clock 1 on version 1"),
    (2, push(0, 1, 2), f"worker 0 pushed clock 1 on version 2{WAS}it pushed clock 1 on version 1"),
    (2, push(0, 1, 1, samples=3), f"worker 0 pushed clock 1 on version 1 with 3 samples{WAS}"
     "it pushed clock 1 on version 1 with 8 samples"),
    (2, leave(0, 1), f"worker 0 left at clock 1{WAS}it pushed clock 1 on version 1"),
    (3, push(1, 1, 2), f"worker 1 pushed clock 1 on version 2{WAS}it left at clock 1"),
    (5, leave(0, 4), f"worker 0 left at clock 4{WAS}it left at clock 3"),
])  # fmt: skip
def test_another_message_is_told_with_its_event(at, message, told):
    arriving = [*RECORDED[:at], message, *RECORDED[at + 1 :]]
    with pytest.raises(ReplayError) as error:
        handed_on(arriving, script_of(RECORDED))
    assert str(error.value) == f"the replay diverges at event {2 * at} of shard 1: {told}"


@each(("arriving", "count", "told"), [
    # A message is compared when it comes, not when it is due.
    ([push(1, 0, 5)], None, "event 2 of shard 1: worker 1 pushed clock 0 on version"),
    ([push(1, 0, 0), leave(1, 1), push(1, 1, 2)], None,
     f"worker 1 pushed clock 1 on version 2 at shard 1{WAS}it sent no more"),
    ([leave(7, 0)], None, "worker 7 left at clock 0 at shard 1"),
    (RECORDED, 7, "shard 1 waits for a message after the 6 that it received"),
])  # fmt: skip
def test_what_is_early_or_too_much_is_found(arriving, count, told):
    with pytest.raises(ReplayError, match=told):
        handed_on(arriving, script_of(RECORDED), count)


def test_who_is_waited_for_and_an_end_that_comes_too_early():
    sequencer = Sequencer(inbox(RECORDED), [script_of(RECORDED)])
    first = "worker 0, which pushed clock 0 on version 0 in the recorded run (event 0 of shard 1)"
    assert sequencer.waiting_for() == first
    for _ in range(4):
        drive(sequencer.receive())
    told = f"at event 8 of shard 1: it is over{WAS}worker 0 pushed clock 2 on version 3"
    with pytest.raises(ReplayError, match=told):
        sequencer.finish()
    for _ in range(2):
        drive(sequencer.receive())
    assert sequencer.waiting_for() == "workers to read the last answers"
    nothing = Script.of(0, np.zeros(0, EVENT))
    assert len(nothing) == 0
    Sequencer(inbox([]), [nothing]).finish()
    came = [push(0, 0, 0)]
    sequencer = Sequencer(inbox(came), [script_of(came), script_of(RECORDED, 2)])
    drive(sequencer.receive())
    assert sequencer.waiting_for() == first.replace("shard 1", "shard 2")


@settings(max_examples=20)
@given(runs(), runs(), st.lists(st.booleans(), min_size=60, max_size=60))
def test_each_shard_of_a_server_has_an_order_of_its_own(first, second, picks):
    """Whatever the two have in common: a message waits for those of its own shard alone."""
    scripts, arriving = [], []
    for shard, (recorded, came) in enumerate((first, second)):
        of_shard = [message._replace(shard=shard) for message in recorded]
        scripts.append(script_of(of_shard, shard))
        arriving.append([message._replace(shard=shard) for message in came])
    sequencer = Sequencer(inbox(merged(arriving, picks)), scripts)

    async def take():
        return [await sequencer.receive() for _ in range(sum(map(len, scripts)))]

    taken = drive(take())
    sequencer.finish()
    for shard, (recorded, _) in enumerate((first, second)):
        mine = [message._replace(shard=1) for message in taken if message.shard == shard]
        assert mine == [message._replace(shard=1) for message in recorded]
    with pytest.raises(ReplayError, match=r"shard 0 waits for .*; shard 1 waits for"):
        drive(sequencer.receive())


# --- in pairs -----------------------------------------------------------------------------------


def pair_events(*lines):
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


def pair_sequencer(lines, *arriving, worker=0):
    return PairSequencer(inbox(arriving), PairScript.of(worker, pair_events(*lines)))


def test_each_is_asked_and_taken_where_it_was():
    answers = Mix(1, 9, 0), Mix(1, 9, 2)
    it = pair_sequencer(ASKS, answers[0], Leave(3, 2), answers[1])
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
    it = pair_sequencer(ANSWERS, early, Leave(0, 4), first, worker=1)
    assert [drive(it.poll(1)) for _ in range(3)] == [first, early, None]
    assert drive(it.receive()) == Leave(0, 4)


@each("message", [Mix(1, 0, 1), Leave(1, 0)])
def test_another_message_is_found_out(message):
    it = pair_sequencer(ASKS, message)
    it.partner(0)
    with pytest.raises(ReplayError, match=r"event 3 of worker 0: worker 1 sent .* for offer 0"):
        drive(it.poll(1))


def test_what_is_left_out_is_found_out():
    it = pair_sequencer(ASKS)
    line = r"event 0 of worker 0: it continued without .* at clock 0"
    with pytest.raises(ReplayError, match=line):
        it.partner(1)
    with pytest.raises(ReplayError, match="event 0 of worker 0"):
        it.finish()
    pair_sequencer([]).finish()


# --- what differs between two runs --------------------------------------------------------------


def header(*, workers=2, servers=2, told=(), **knobs):
    """Return the header of an asynchronous run, or another one; ``told`` is of no knob."""
    knobs = {"mode": "async", "servers": servers or None} | knobs
    config = resolve(TrainConfig(**knobs), ranks=workers + servers)
    ranks = tuple(range(workers + servers))
    values = {
        "config": config.plain(), "n": 100, "workers": ranks[servers:],
        "servers": ranks[:servers], "initial_sha256": "a" * 64, "data_sha256": "b" * 64,
        "spans": tuple((50 * shard, 50 * shard + 50) for shard in range(servers)),
        "code_sha256": "c" * 64, "psrt": "0.1.0", "numpy": "2.0.0", "files": ("events.npy",),
        "hosts": (0,) * len(ranks),
    }  # fmt: skip
    return Header(**(values | dict(told)))


@each(("change", "said"), [
    ({"seed": 3}, "seed 3 instead of 0"),
    ({"hidden": (8,)}, "hidden 8 instead of 128,64"),
    ({"clip_norm": 1.0}, "clip-norm 1 instead of none"),
    ({"workers": 3}, "3 workers instead of 2"),
    ({"servers": 1}, "servers 1 instead of 2"),
    ({"told": {"psrt": "0.2.0"}}, "psrt 0.2.0 instead of 0.1.0"),
    ({"told": {"numpy": "2.1.0"}}, "numpy 2.1.0 instead of 2.0.0"),
    ({"told": {"code_sha256": "d" * 64}},
     "other source code of psrt (dddddddd instead of cccccccc)"),
    ({"told": {"data_sha256": ""}}, "other training data"),
    ({"told": {"initial_sha256": "d" * 64}},
     "other initial parameters (dddddddd instead of aaaaaaaa)"),
    ({"told": {"n": 99}}, "99 parameters instead of 100"),
    ({"told": {"spans": ((0, 40), (40, 100))}}, "shards with other bounds"),
    # What does not touch the numbers.
    *(({name: value}, None) for name, value in (
        ("out", "here"), ("log_every", 5), ("inject", ((0, "delay", (1.0,)),)),
        ("shared_memory", False), ("placement", "last"), ("timeout_s", 5.0),
        ("told", {"hosts": (0, 0, 1, 1)}), ("told", {"simulated": True}),
    )),
])  # fmt: skip
def test_one_difference_is_said_if_numbers_depend_on_it(change, said):
    assert differences(header(**change), header()) == ([said] if said else [])


def test_the_same_run_is_the_same_and_of_others_all_is_said():
    with_lists = header(hidden=(3, 4), inject=((0, "slow", (2.0, 1)),))
    assert differences(with_lists, Header.from_json(with_lists.to_json())) == []
    found = {*differences(header(seed=3, lr=0.5, mode="sync"), header())}
    assert found >= {"seed 3 instead of 0", "lr 0.5 instead of 0.1", "mode sync instead of async"}
    assert knob_differences({"warp": 9}, {}) == [], "what another psrt knows is passed over"


BY_HOST = {"mode": "gossip:variant=by-host"}
APART = "ranks on other hosts, "


@each(("now", "then", "algorithm", "hosts", "said"), [
    ({"allreduce": "ring"}, "auto", "ring", (0, 0, 0), None),
    ({"allreduce": "tree"}, "auto", "ring", (0, 0, 0), "allreduce tree instead of ring"),
    ({"allreduce": "node+ring"}, "auto", "node+ring", (0, 1, 1), APART + "which node+ring sums by"),
    ({"allreduce": "node"}, "auto", "node", (0, 1, 1), APART + "which node sums by"),
    ({"allreduce": "ring"}, "auto", "ring", (0, 1, 1), None),
    (BY_HOST, None, "", (4, 4, 4), None),
    (BY_HOST, None, "", (0, 1, 1), APART + "within which they average"),
])  # fmt: skip
def test_what_auto_chose_counts_and_hosts_by_which_they_average(now, then, algorithm, hosts, said):
    base = {"mode": "allreduce", "servers": 0, "workers": 3}
    was = now if then is None else {"allreduce": then}
    before = header(**base | was, told={"algorithm": algorithm, "hosts": (0, 0, 0)})
    found = differences(header(**base | now, told={"hosts": hosts}), before)
    assert found == ([said] if said else [])
