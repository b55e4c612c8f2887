"""Sums by linear codecs straight through schedules, over MPI: to the bit as in one process."""

from functools import partial

import pytest

from psrt.codec import Matrix, make_encoder, matrices_within
from psrt.codec.randomness import FORTH
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.pick import way_of
from psrt.job.build import role_map_for
from psrt.mpi.port import MpiPort
from psrt.partition import Span
from psrt.simulation.straight_run import StraightRun
from psrt.transport.coded_sum import SumCodec, coding_of
from psrt.ways import Way
from support.sums import hold, hosts_of, rounds_of

pytestmark = pytest.mark.mpi
N, FIRST = 701, 17
TOTALS = [1.0, 0.25, 1.0]
#: Cut by the border between the spans, which has whole rows of it.
MATRICES = (Matrix(5, 10, 12), Matrix(300, 20, 15))
CODECS = {
    "float16": {"error_feedback": True},
    "random-k": {"density": 0.1, "scaled": False},
    "low-rank": {"rank": 2},
}
SCHEDULES = [name for name in ALGORITHMS if way_of(name, [Way.STRAIGHT])]


def encoder_of(name):
    def make(span, way):
        matrices = matrices_within(MATRICES, span)
        return make_encoder(name, span.size, matrices=matrices, **CODECS[name])

    return make


def codec_of(name, rank):
    return SumCodec(encoder_of(name), seed=3, worker=rank)


def straight(algorithm, link, codec, span, size):
    return StraightRun(link, codec, span, algorithm, rank=link.rank, size=size, key=0)


@pytest.mark.parametrize("name", CODECS)
def test_sums_are_those_of_one_process(comm, host, name):
    hosts = hosts_of(comm, host)
    port = MpiPort(comm, role_map_for(N, (), tuple(range(comm.size))), timeout_s=20, host=host)
    spans = [Span(FIRST, N), Span(0, FIRST)]
    asked = [*SCHEDULES, *(["node+ring", "node+tree"] if len(hosts) > 1 else [])]
    for algorithm in asked:
        inside = algorithm.startswith("node+")
        codec = codec_of(name, comm.rank)
        coded = coding_of(codec.encoder(Span(0, N), FORTH))
        chosen, _ = port.choice(algorithm, N, coded=coded)
        assert chosen == algorithm
        sums = [port.reduction(span, chosen, None, codec) for span in spans]
        make = partial(straight, algorithm.removeprefix("node+"))
        due = [
            (span, rounds_of(
                hosts, N, span, TOTALS, partial(codec_of, name), make, inside=inside, copies=True
            ))
            for span in spans
        ]  # fmt: skip
        before = port.bytes_sent
        for _ in hold(comm, port, N, codec, sums, due, TOTALS, algorithm):
            pass
        if not inside:
            # Counted where they are sent, over MPI: nothing else is.
            assert port.bytes_sent - before == codec.frame_bytes
    assert port.choice("auto", N, coded=coded)[0].removeprefix("node+") in ALGORITHMS
    port.close()
