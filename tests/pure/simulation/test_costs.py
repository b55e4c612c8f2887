"""What messages take in virtual time, exactly: on links, among neighbours, in frames of a codec."""

from __future__ import annotations

import math
from collections import Counter
from unittest.mock import ANY

import pytest

from psrt.codec.times import CodecTimes, FrameTimes, Line
from psrt.config import TrainConfig
from psrt.config.modes import Gossip
from psrt.core.errors import ConfigError
from psrt.core.messages import Push
from psrt.core.partition import even_spans
from psrt.job.virtual import simulate
from psrt.simulation import SimulationCosts, Simulator
from psrt.transport import NO_PAYLOAD, RoleMap
from psrt.transport.frames import FRAME_BYTES
from psrt.transport.port import GRADIENT
from support.cases import each
from support.knobs import together

#: Parameters, latency in seconds, bytes per second: whole numbers, so times are exact.
N, LATENCY, RATE = 48, 8.0, 64.0
#: Seconds that a link is busy with a frame, and with a frame and N parameters.
FRAME = FRAME_BYTES / RATE
LONG = (FRAME_BYTES + 4 * N) / RATE


def push(worker=0, clock=0):
    return Push(worker, clock, 0, 1, 0.0)


async def sends(port, *messages):
    """Send (when, rank, region) each."""
    for clock, (when, to, region) in enumerate(messages):
        await port.pause(when - port.now())
        port.send(to, push(port.role_map.worker_of(port.rank) or 0, clock), region)


async def arrivals(port, count):
    """Return who was heard of when, and which of its messages it was."""
    heard = []
    for _ in range(count):
        message = await port.receive()
        heard.append((port.now(), message.worker, message.clock))
    return heard


def heard(sent, *, servers=1, seed=3, **costs):
    """Send messages; return by receiver what came: (when, worker, clock).

    Args:
        sent: by sender, (when, receiver, region) each.
        servers: the first ranks.
        seed: of chance.
        costs: other than the usual ones.
    """
    counts = Counter(to for messages in sent.values() for _, to, _ in messages)
    ranks = sorted({*sent, *counts})
    role_map = RoleMap(
        N,
        workers=tuple(range(servers, ranks[-1] + 1)),
        servers=tuple(range(servers)),
        spans=even_spans(N * servers, servers),
    )
    usual = {"latency": lambda _: LATENCY, "bandwidth": RATE}
    it = Simulator(role_map, seed=seed, costs=SimulationCosts(**usual | costs))

    async def role(port):
        await sends(port, *sent.get(port.rank, ()))
        return await arrivals(port, counts[port.rank])

    found = it.run({rank: role(it.ports[rank]) for rank in ranks})
    return {rank: found[rank] for rank in counts}


HERE, FAR_AND_NEAR = (0.0, 0, GRADIENT), iter((20.0, LATENCY))
#: What is sent, costs, and by receiver when it comes.
LINKS = {
    "a frame takes its latency and its bytes":
        ({1: [(5.0, 0, NO_PAYLOAD)]}, {}, {0: [5.0 + LATENCY + FRAME]}),
    "and its numbers, once":
        ({1: [(5.0, 0, GRADIENT)]}, {}, {0: [5.0 + LATENCY + LONG]}),
    "bytes that nobody queues for come on top":
        ({1: [HERE]}, {"per_byte": 0.5}, {0: [LATENCY + LONG + (FRAME_BYTES + 4 * N) / 2]}),
    "no bandwidth is no bytes":
        ({1: [HERE]}, {"bandwidth": math.inf}, {0: [LATENCY]}),
    "those for one rank come in one after the other":
        ({rank: [HERE] for rank in range(1, 6)}, {},
         {0: [LATENCY + k * LONG for k in range(1, 6)]}),
    "those of one rank leave one after the other":
        ({4: [(0.0, to, GRADIENT) for to in range(4)]}, {"servers": 4},
         {to: [LATENCY + (to + 1) * LONG] for to in range(4)}),
    "those of a pair do not pay at both ends":
        ({1: [HERE] * 3}, {}, {0: [LATENCY + k * LONG for k in (1, 2, 3)]}),
    "a link that was idle does not save up":
        ({1: [(0.0, 0, NO_PAYLOAD), (100.0, 0, GRADIENT), (101.0, 0, NO_PAYLOAD)]}, {},
         {0: [LATENCY + FRAME, 100.0 + LATENCY + LONG, 100.0 + LATENCY + LONG + FRAME]}),
    "both directions are free at a time":
        ({0: [(0.0, 1, 0)], 1: [HERE]}, {}, {0: [LATENCY + LONG], 1: [LATENCY + LONG]}),
    "the way in is taken in order of arrival, not of sending":
        ({1: [HERE], 2: [(1.0, 0, GRADIENT)]}, {"latency": lambda _: next(FAR_AND_NEAR)},
         {0: [1.0 + LATENCY + LONG, 20.0 + LONG]}),
    # Links of hosts, which the connections between ranks share.
    "messages of one rank end together":
        ({4: [(0.0, to, GRADIENT) for to in range(4)]}, {"servers": 4, "hosts": range(5)},
         {to: [LATENCY + 4 * LONG] for to in range(4)}),
    # Alone, then two parts of three, then of four; and the link is never idle.
    "who comes first gets two parts":
        ({rank: [(0.1 * (rank - 1), 0, GRADIENT)] for rank in (1, 2, 3)}, {"hosts": range(4)},
         {0: [LATENCY + 0.2 + (LONG - 0.1 - 0.1 * 2 / 3) * 2, ANY, LATENCY + 3 * LONG]}),
    "a pair takes one message after another":
        ({1: [HERE] * 3}, {"hosts": range(2)}, {0: [LATENCY + k * LONG for k in (1, 2, 3)]}),
    "ranks of a host share its link and need none between them":
        ({rank: [HERE] for rank in (1, 2, 3)}, {"hosts": (0, 1, 1, 0)},
         {0: [0.0, ANY, pytest.approx(LATENCY + 2 * LONG, rel=1e-3)]}),
}  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_when_messages_come(name):
    sent, given, due = LINKS[name]
    found = heard(sent, **given)
    assert found.keys() == due.keys()
    for rank, times in due.items():
        for (when, _, _), right in zip(found[rank], times, strict=True):
            assert when == (pytest.approx(right) if isinstance(right, float) else right)


@each("seed", range(5))
@each("costs", [{}, {"hosts": range(4)}])
def test_those_of_a_pair_keep_their_order_whatever_each_takes(seed, costs):
    sent = [(0.1 * k, 0, (NO_PAYLOAD, GRADIENT)[k % 2]) for k in range(40)]
    links = {"latency": lambda rng: rng.exponential(), "bandwidth": 2000.0, **costs}
    found = heard(dict.fromkeys((1, 2, 3), sent), seed=seed, **links)[0]
    for worker in range(3):
        assert [clock for _, who, clock in found if who == worker] == list(range(40))
    # A link has no room for more than its bytes.
    assert found[-1][0] >= 60 * (2 * FRAME_BYTES + 4 * N) / 2000.0
    if not costs:
        for (earlier, *_), (later, *_) in zip(found, found[20:], strict=False):
            assert later - earlier >= 20 * FRAME_BYTES / 2000.0 - 1e-9


@each(
    ("knobs", "error"),
    [
        ({"bandwidth": 0.0}, r"^a link's bandwidth must be more than 0 bytes/s, got "),
        ({"bandwidth": math.nan}, r"^a link's bandwidth must be more than 0 bytes/s, got "),
        ({"per_byte": -1e-9}, "seconds per byte must be finite and 0 or more, got"),
        ({"codec_speed": 0.0}, "codecs must be more than 0 times as fast"),
        ({"hosts": (0, 1)}, "links of hosts are shared, so their bandwidth"),
    ],
)
def test_costs_that_cannot_be(knobs, error):
    with pytest.raises(ConfigError, match=error):
        SimulationCosts(**knobs)


@each("seconds", [-1.0, math.inf, math.nan])
@each("what", ["compute", "latency", "apply", "reduce"])
def test_draws_that_are_no_times(what, seconds):
    mode = "allreduce" if what == "reduce" else "async"
    asked = TrainConfig(mode=mode, servers=int(mode == "async"), steps=2, hidden=(4,))
    costs = SimulationCosts(**{what: lambda *_: seconds})
    with pytest.raises(ConfigError, match=r"^costs must be finite and 0 or more seconds, one came"):
        simulate(asked, workers=2, costs=costs)


#: Parameters that neighbours average.
MANY = 1000


def step_s(workers, order, *, compute, latency, message, **knobs):
    """Return the seconds of a step, of which two to begin with do not count."""
    costs = SimulationCosts(
        compute=lambda rank, rng: compute,
        latency=lambda rng: latency,
        bandwidth=(4 * MANY + FRAME_BYTES) / message if message else math.inf,
    )
    seconds = [
        simulate(
            TrainConfig(**together({"mode": Gossip(order=order).text, "steps": steps} | knobs)),
            workers=workers, numerics=False, parameters=MANY, costs=costs,
        ).seconds
        for steps in (2, 12)
    ]  # fmt: skip
    return (seconds[1] - seconds[0]) / 10


@pytest.mark.parametrize(
    ("workers", "compute", "latency", "message"),
    [(3, 1e-3, 1e-2, 0.0), (4, 1e-2, 1e-3, 1e-3), (8, 1e-3, 1e-3, 5e-3)],
)
def test_a_step_on_a_ring_takes_what_two_messages_take(workers, compute, latency, message):
    """Beside the gradient if they set out before it, after it else: L + 2 m/B."""
    sent = latency + 2 * message
    costs = {"compute": compute, "latency": latency, "message": message}
    beside = step_s(workers, "combine-then-adapt", **costs)
    assert beside == pytest.approx(max(compute, sent))
    assert step_s(workers, "adapt-then-combine", **costs) == pytest.approx(compute + sent)


@pytest.mark.parametrize(
    ("topology", "vectors"), [("exponential", 3), ("one-peer-exponential", 1), ("full", 7)]
)
def test_links_are_used_evenly(topology, vectors):
    costs = {"compute": 1e-3, "latency": 1e-3, "message": 5e-3}
    found = step_s(8, "adapt-then-combine", topology=topology, **costs)
    assert found == pytest.approx(1e-3 + 1e-3 + vectors * 5e-3)


CODED = 64
#: Whole numbers and their halves, so that times are exact.
TIMES = CodecTimes(encode=Line(4.0, 0.5), decode=Line(2.0, 0.25))
ENCODE, DECODE = TIMES.encode.at(CODED), TIMES.decode.at(CODED)


def coded_s(config, workers=1, numerics=False, crashes=(), **costs):
    """Return how long a run takes whose links take no time."""
    asked = {"codecs": {"int8": TIMES}, "compute": lambda *_: 1.0, "latency": lambda _: 0.0}
    more = {} if numerics else {"parameters": CODED}
    common = {"steps": 1, "batch_size": 1, "codec": "int8"}
    return simulate(
        TrainConfig(**common | config), workers=workers, numerics=numerics, crashes=crashes,
        costs=SimulationCosts(**asked | costs), **more,
    ).seconds  # fmt: skip


@pytest.mark.parametrize(("mode", "workers"), [("sync", 2), ("async", 1), ("ssp", 5)])
def test_workers_encode_at_a_time_and_a_server_decodes_one_by_one(mode, workers):
    config = {"mode": mode, "servers": 1}
    assert coded_s(config, workers) == 1 + ENCODE + workers * DECODE
    assert coded_s(config | {"codec": None}, workers) == 1
    assert coded_s(config, workers, codec_speed=2.0) == 1 + (ENCODE + workers * DECODE) / 2
    assert coded_s(config, workers, codec_speed=math.inf) == 1
    assert coded_s(config, workers, framed=True) == 1


def test_a_server_decodes_while_the_next_frame_is_on_its_way():
    """Where a frame takes longer than decoding it, only the last one is waited for."""
    config = {"mode": "sync", "servers": 1}
    for workers in (1, 2, 3):
        free = coded_s(config, workers, bandwidth=4.0, codec_speed=math.inf)
        assert coded_s(config, workers, bandwidth=4.0) == free + ENCODE + DECODE


def test_replies_are_encoded_for_each_worker():
    config = {"mode": "sync", "servers": 1, "codec_reply": "int8"}
    times = FrameTimes.of(TIMES, feeds_back=False, reply=TIMES)
    encode, decode = times.encode_reply.at(CODED), times.decode_reply.at(CODED)
    assert encode > ENCODE + DECODE  # the server decodes, too, and adds it up
    pushed = 1 + ENCODE + 3 * DECODE
    assert coded_s(config, 3) == pytest.approx(pushed + 3 * encode + decode)


@pytest.mark.parametrize(
    ("order", "workers"),
    [("combine-then-adapt", 1), ("adapt-then-combine", 2), ("combine-then-adapt", 5)],
)
def test_what_neighbours_are_told_is_encoded_once_and_decoded_by_each(order, workers):
    """The sender decodes it, too, and all add it up."""
    times = FrameTimes.of(TIMES, feeds_back=False, reply=TIMES)
    encode, decode = times.encode_reply.at(CODED), times.decode_reply.at(CODED)
    config = {"mode": Gossip(topology="full", order=order), "steps": 3}
    due = 3 * (1 + encode * (workers > 1) + (workers - 1) * decode)
    assert coded_s(config, workers) == pytest.approx(due)
    assert coded_s(config, workers, codec_speed=math.inf) == 3


def test_what_is_fed_back_is_decoded_by_its_sender():
    plain = FrameTimes.of(TIMES, feeds_back=False).encode.at(CODED)
    fed_back = FrameTimes.of(TIMES, feeds_back=True).encode.at(CODED)
    assert plain == ENCODE
    assert ENCODE + DECODE < fed_back < ENCODE + DECODE + 1e-4
    config = {"mode": "async", "codec": "sign"}
    there = {"codecs": {"sign": TIMES}}
    without = config | {"error_feedback": False}
    assert coded_s(without, **there) == 1 + ENCODE + DECODE
    assert coded_s(config, **there) == pytest.approx(1 + fed_back + DECODE)


@pytest.mark.parametrize("numerics", [True, False])
def test_two_phases_of_a_sum(numerics):
    """Both chunks, one by one; both contributions to the own one; its mean; and both means."""
    model = {"dataset": "synthetic:64x20x3", "hidden": ()} if numerics else {}
    n = 63 if numerics else CODED
    times = CodecTimes(Line(0.0, 0.5), Line(0.0, 0.25))
    config = {"mode": "allreduce:overlap=false", "allreduce": "all-pairs"} | model
    spent = coded_s(config, 2, numerics, codecs={"int8": times})
    own = (n + 1) // 2  # the larger chunk's owner is done last
    first = 0.5 * n + 0.25 * 2 * own + 0.5 * own
    assert spent == 1 + first + 0.25 * n


def test_what_is_pushed_amid_a_gradient_holds_it_up():
    """Each shard is encoded when its layer is there; then the gradient goes on."""
    config = {
        "mode": "async", "servers": 1, "shards_per_server": 2, "hidden": (3,),
        "dataset": "synthetic:64x5x3",
    }  # fmt: skip
    times = CodecTimes(Line(0.0, 2.0), Line(0.0, 0.0))
    free = coded_s(config, numerics=True, codec_speed=math.inf)
    assert free == 1
    assert coded_s(config, numerics=True, codecs={"int8": times}) == 1 + 2.0 * (5 * 3 + 3 + 12)
