"""Codecs over MPI: sums are to the bit those of one process, replies those of virtual time.

That jobs with a codec come to what they come to in virtual time is a law: ``test_laws.py``.
"""

from functools import partial

import numpy as np
import pytest

import psrt
from psrt import TrainConfig
from psrt.codec import CODECS, Matrix, matrices_within
from psrt.codec.randomness import BACK, FORTH
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.pick import Coding, way_of
from psrt.core.errors import CodecError, ConfigError
from psrt.core.partition import Span
from psrt.core.ways import Way
from psrt.history.check.run import check_run
from psrt.job.build import role_map_for
from psrt.job.scenario import Scenario, run_in_virtual_time
from psrt.mpi.collectives.plans.framed import FrameLinks
from psrt.simulation.straight_run import StraightRun
from psrt.transport.coded_sum import SumCodec, coding_of
from psrt.transport.sums_in_frames import sum_in_frames
from support.coding import make_codec, make_encoder
from support.sums import hold, hosts_of, rounds_of

N, FIRST, TAG = 3001, 17, 5
SPANS = [Span(FIRST, N), Span(0, FIRST)]
#: From here on ranks are many for a small machine.
MANY = 5
TOTALS = [1.0, 0.25, 1.0]


@pytest.fixture
def open_port(comm, port_of):
    """Return what makes a port of workers alone, who are on these hosts."""
    return lambda host: port_of(role_map_for(N, (), tuple(range(comm.size))), host=host)


# --- sums in frames -----------------------------------------------------------------------------

SIGN = Coding("sign", (Way.TWO_PHASES,), (Way.GATHERED,), N)


def framed_codec(name, rank):
    """Return a rank's codec; of two names joined by a plus the second is that of means."""
    name, _, means = name.partition("+")
    knobs = {"threshold": {"threshold": 0.5}}.get(name, {})

    def make(span, way):
        if means and way == BACK:
            return make_encoder(means, span.size)
        more = CODECS[name].back if way == BACK else {}
        return make_encoder(name, span.size, **{**knobs, **more})

    decoder = (lambda span: make_codec(means, span.size)) if means else None
    return SumCodec(make, seed=3, worker=rank, means=decoder)


def framed(way, link, codec, span, size):
    return sum_in_frames(way, link, codec, span, rank=link.rank, size=size)


@pytest.mark.mpi
@pytest.mark.one_in(5)
@pytest.mark.parametrize("asked", ["auto", "all-pairs", "naive", "node"])
@pytest.mark.parametrize("most", [1 << 30, 100])
def test_sums_in_frames_are_those_of_one_process(comm, host, open_port, asked, most, monkeypatch):
    monkeypatch.setattr("psrt.mpi.fabric.unannounced_bytes", lambda comm, _: (most,) * comm.size)
    hosts, port = hosts_of(comm, host), open_port(host)
    if asked == "node" and len(hosts) == 1:
        with pytest.raises(ConfigError, match="--allreduce node does not sum what --codec sign"):
            port.choice(asked, N, coded=SIGN)
        return
    chosen, _ = port.choice(asked, N, coded=SIGN)
    inside, way = chosen.startswith("node"), chosen.removeprefix("node+")
    # What travels does not depend on the codec, but for frames of one length or of any.
    every = asked == "auto" and most > N and comm.size < MANY and len(hosts) < comm.size
    for name in (*CODECS, "top-k+nonzero") if every else ("sign", "threshold"):
        codec = framed_codec(name, comm.rank)
        sums = [port.reduction(span, chosen, None, codec) for span in SPANS]
        make, of = partial(framed, way), partial(framed_codec, name)
        due = [(it, rounds_of(hosts, N, it, TOTALS, of, make, inside=inside)) for it in SPANS]
        for sent in hold(comm, port, N, codec, sums, due, TOTALS, name):
            if not inside and comm.size > 1:
                moved = np.sum(comm.allgather((port.bytes_sent, port.bytes_received)), axis=0)
                assert moved[0] == moved[1] >= sent


@pytest.mark.mpi(min_size=2)
def test_a_frame_that_is_not_as_long_as_it_says_is_an_error(comm):
    """Sent by rank 1; rank 0 expects one of 20 to 100 bytes."""
    too_long = "rank 1 sent {} bytes of a frame that claims to have {}, expected at most 100"
    for sent, nbytes, words in (
        (30, 30, ""),
        *((sent, it, too_long.format(sent, it)) for sent, it in ((60, 101), (30, 2**63), (30, 50))),
        *((sent, 30, f"the first {sent} bytes of a frame, expected 20") for sent in (7, 0)),
    ):
        if comm.rank == 1:
            frame = np.zeros(sent, np.uint8)
            if sent >= 20:
                frame[12:20].view("<u8")[0] = nbytes - 20
            comm.Send(frame, 0, TAG)
        elif comm.rank == 0:
            links = FrameLinks(comm, TAG, (0, 1), [60, 60])
            links.expect(1, [100])
            if not words:
                assert received(links).size == 30
                continue
            with pytest.raises(CodecError, match=words):
                received(links)


def received(links):
    links.begin()
    while not (found := links.take_span(1, 0)):
        pass
    return found[0]


# --- linear codecs, straight through schedules --------------------------------------------------

#: Cut by the border between the spans, which has whole rows of it.
MATRICES = (Matrix(5, 10, 12), Matrix(300, 20, 15))
LINEAR = {
    "float16": {"error_feedback": True},
    "random-k": {"density": 0.1, "scaled": False},
    "low-rank": {"rank": 2},
}
SCHEDULES = [name for name in ALGORITHMS if way_of(name, [Way.STRAIGHT])]


def linear_codec(name, rank):
    def make(span, way):
        matrices = matrices_within(MATRICES, span)
        return make_encoder(name, span.size, matrices=matrices, **LINEAR[name])

    return SumCodec(make, seed=3, worker=rank)


def straight(algorithm, link, codec, span, size):
    return StraightRun(link, codec, span, algorithm, rank=link.rank, size=size, key=0)


@pytest.mark.mpi
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", LINEAR)
def test_sums_straight_through_schedules_are_those_of_one_process(comm, host, open_port, name):
    hosts, port = hosts_of(comm, host), open_port(host)
    coded = coding_of(linear_codec(name, comm.rank).encoder(Span(0, N), FORTH))
    for algorithm in [*SCHEDULES, *(["node+ring", "node+tree"] if len(hosts) > 1 else [])]:
        inside = algorithm.startswith("node+")
        assert port.choice(algorithm, N, coded=coded)[0] == algorithm
        codec = linear_codec(name, comm.rank)
        sums = [port.reduction(span, algorithm, None, codec) for span in SPANS]
        make, of = partial(straight, algorithm.removeprefix("node+")), partial(linear_codec, name)
        due = [
            (it, rounds_of(hosts, N, it, TOTALS, of, make, inside=inside, copies=True))
            for it in SPANS
        ]
        before = port.bytes_sent
        for _ in hold(comm, port, N, codec, sums, due, TOTALS, algorithm):
            pass
        if not inside:
            # Counted where they are sent, over MPI: nothing else is.
            assert port.bytes_sent - before == codec.counts.stats.frame_bytes
    assert port.choice("auto", N, coded=coded)[0].removeprefix("node+") in ALGORITHMS


# --- jobs ---------------------------------------------------------------------------------------

BASE = {"mode": "sync", "hidden": (16,), "batch_size": 8, "steps": 6, "lr": 0.05, "timeout_s": 20}
REPLIES = [row.name for row in CODECS.values() if row.sends_differences]


@pytest.mark.mpi(min_size=2)
@pytest.mark.one_in(6)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("codec", REPLIES)
def test_replies_over_links_and_in_virtual_time_agree(comm, shared_folder, codec, apart):
    if comm.size > 3:
        pytest.skip("seen on fewer ranks")
    flags = BASE | {"shards_per_server": 2, "codec": "sign", "codec_reply": codec}
    flags |= {"codec_everywhere": True}
    out = str(shared_folder / "run")
    config = TrainConfig(**flags, shared_memory=not apart, out=out, record=True)
    run = psrt.run(config, comm=comm)
    if comm.rank == 0:
        outcome = check_run(out)
        assert outcome.ok, "\n".join(outcome.lines())
        virtual = run_in_virtual_time(TrainConfig(**flags), Scenario(comm.size - 1))
        np.testing.assert_array_equal(run.theta, virtual.theta)
        for figure in ("frame_bytes", "framed_bytes", "bytes_sent", "bytes_received"):
            assert getattr(run.summary, figure) == getattr(virtual.summary, figure), figure
