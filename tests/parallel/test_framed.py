"""Sums whose messages are frames, over MPI: to the bit what one process makes of them."""

from functools import partial

import numpy as np
import pytest

from psrt.codec import CODECS, TABLE, make_codec, make_encoder
from psrt.codec.randomness import BACK
from psrt.collective.analysis.pick import Coding
from psrt.errors import CodecError, ConfigError
from psrt.job.build import role_map_for
from psrt.mpi.collectives.plans.framed import FrameLinks
from psrt.mpi.port import MpiPort
from psrt.partition import Span
from psrt.transport import drive
from psrt.transport.coded_sum import SumCodec
from psrt.transport.sums_in_frames import sum_in_frames
from psrt.ways import Way
from support.sums import hold, hosts_of, numbers, rounds_of

pytestmark = pytest.mark.mpi
N, FIRST, TAG = 3001, 17, 5
#: From here on ranks are many for a small machine.
MANY = 5
TOTALS = [1.0, 1.0, 0.25, 1.0]
SIGN = Coding("sign", (Way.TWO_PHASES,), (Way.GATHERED, Way.HOPS), N)


def encoder_of(name):
    """Return what makes senders; of two names joined by a plus the second is that of means."""
    name, _, means = name.partition("+")
    knobs = {"threshold": {"threshold": 0.5}}.get(name, {})

    def make(span, way):
        if means and way == BACK:
            return make_encoder(means, span.size)
        more = TABLE[name].back if way == BACK else {}
        return make_encoder(name, span.size, **{**knobs, **more})

    return make


def codec_of(name, rank):
    means = name.partition("+")[2]
    decoder = (lambda span: make_codec(means, span.size)) if means else None
    return SumCodec(encoder_of(name), seed=3, worker=rank, means=decoder)


def framed(way, link, codec, span, size):
    return sum_in_frames(way, link, codec, span, rank=link.rank, size=size)


@pytest.mark.parametrize("asked", ["auto", "all-pairs", "naive", "ring", "node"])
@pytest.mark.parametrize("most", [1 << 30, 100])
def test_frames_are_those_of_one_process(comm, host, asked, most, monkeypatch):
    monkeypatch.setattr("psrt.mpi.fabric.unannounced_bytes", lambda comm, _: (most,) * comm.size)
    hosts = hosts_of(comm, host)
    port = MpiPort(comm, role_map_for(N, (), tuple(range(comm.size))), timeout_s=20, host=host)
    if asked == "node" and len(hosts) == 1:
        with pytest.raises(ConfigError, match="--allreduce node does not sum what --codec sign"):
            port.choice(asked, N, coded=SIGN)
        port.close()
        return
    chosen, _ = port.choice(asked, N, coded=SIGN)
    inside, way = chosen.startswith("node"), chosen.removeprefix("node+")
    spans = [Span(FIRST, N), Span(0, FIRST)]
    # What travels does not depend on the codec, but for frames of one length or of any.
    every = asked == "auto" and most > N and comm.size < MANY
    names = (*CODECS, "top-k+nonzero") if every else ("sign", "threshold")
    for name in names:
        codec = codec_of(name, comm.rank)
        sums = [port.reduction(span, chosen, None, codec) for span in spans]
        make = partial(framed, way)
        due = [
            (span, rounds_of(hosts, N, span, TOTALS, partial(codec_of, name), make, inside=inside))
            for span in spans
        ]
        for sent in hold(comm, port, N, codec, sums, due, TOTALS, name):
            if not inside and comm.size > 1:
                assert sum(comm.allgather(port.bytes_sent)) >= sent
    port.close()


@pytest.mark.parametrize("name", ["sign", "top-k"])
def test_bytes_of_frames_are_counted_where_they_are_sent(comm, name):
    host = comm.rank
    port = MpiPort(comm, role_map_for(N, (), tuple(range(comm.size))), timeout_s=20, host=host)
    codec = SumCodec(encoder_of(name), seed=3, worker=comm.rank)
    it = port.reduction(Span(0, N), "all-pairs", None, codec)
    port.gradient[:N] = numbers(comm.rank, 0, N)
    codec.begin_round(0, 0, 1.0)
    it.begin()
    drive(it.finish())
    assert port.bytes_sent == codec.frame_bytes
    assert sum(comm.allgather(port.bytes_received)) == sum(comm.allgather(codec.frame_bytes))
    port.close()


def received(links):
    """Return the first frame of rank 1."""
    links.begin()
    while not (found := links.take_span(1, 0)):
        pass
    return found[0]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("sent", "nbytes", "match"),
    [
        (30, 30, None),
        (30, 101, "rank 1 sent 30 bytes of a frame that says it has 101, expected at most 100"),
        (30, 2**63, "rank 1 sent 30 bytes of a frame that says it has 9223372036854775808, "),
        (30, 50, "rank 1 sent 30 bytes of a frame that says it has 50, expected at most 100"),
        (7, 30, "the first 7 bytes of a frame, expected 20"),
        (0, 30, "the first 0 bytes of a frame, expected 20"),
    ],
)
def test_a_frame_that_is_not_as_long_as_it_says_is_an_error(comm, sent, nbytes, match):
    if comm.rank == 1:
        frame = np.zeros(sent, np.uint8)
        if sent >= 20:
            frame[12:20].view("<u8")[0] = nbytes - 20
        comm.Send(frame, 0, TAG)
    elif comm.rank == 0:
        links = FrameLinks(comm, TAG, (0, 1), [60, 60])
        links.expect(1, [100])
        if match is None:
            assert received(links).size == 30
            return
        with pytest.raises(CodecError, match=match):
            received(links)
