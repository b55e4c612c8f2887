"""Sums by linear codecs straight through schedules, over MPI: to the bit as in one process."""

from collections import defaultdict, deque
from functools import partial

import numpy as np
import pytest

from psrt.codec import Matrix, make_encoder, matrices_within
from psrt.codec.randomness import FORTH
from psrt.collective import ALGORITHMS
from psrt.collective.analysis.pick import way_of
from psrt.job.build import role_map_for
from psrt.mpi.port import MpiPort
from psrt.partition import Span, even_spans
from psrt.simulation.straight_run import StraightRun
from psrt.transport import drive
from psrt.transport.coded_sum import SumCodec, coding_of
from psrt.ways import Way

pytestmark = pytest.mark.mpi
N, FIRST, ROUNDS = 701, 17, 3
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


def numbers(rank, turn):
    return np.random.default_rng((rank, turn)).standard_normal(N).astype(np.float32)


class Here:
    """A rank's link to the others, all of them in this process."""

    def __init__(self, rank, posts):
        self.rank, self.posts = rank, posts

    def post(self, to, key, numbers, nbytes):
        self.posts[self.rank, to].append(numbers.copy())

    def take_span(self, source, key):
        waiting = self.posts[source, self.rank]
        return (waiting.popleft(),) if waiting else ()

    def encodes(self, n, way):
        pass

    def decodes(self, n, way):
        pass


def expected(name, algorithm, teams, span, given):
    """Yield round by round what all end with, and the bytes that go.

    Args:
        name: of the codec.
        algorithm: between the members of a team.
        teams: ranks by number in the schedule, for each rail.
        span: of the parameters.
        given: (turn) → for each member of a team, what it brings.
    """
    sums = []
    for team, part in zip(teams, even_spans(span.size, len(teams)), strict=True):
        posts = defaultdict(deque)
        place = Span(span.start + part.start, span.start + part.stop)
        codecs = [SumCodec(encoder_of(name), seed=3, worker=rank) for rank in team]
        runs = [
            StraightRun(
                Here(i, posts), codec, place, algorithm, rank=i, size=len(team), key=0
            )
            for i, codec in enumerate(codecs)
        ]  # fmt: skip
        sums.append((part, codecs, runs))
    for turn in range(ROUNDS):
        whole = np.empty(span.size, np.float32)
        for part, codecs, runs in sums:
            mine = [part.of(it).copy() for it in given(turn)]
            for codec in codecs:
                codec.begin_round(turn, 0, TOTALS[turn])
            left = [it for it, vector in zip(runs, mine, strict=True) if not it.begin(vector)]
            while left:
                left = [it for it in left if not it.advance()]
            part.of(whole)[:] = mine[0]
        yield whole, sum(codec.frame_bytes for _, codecs, _ in sums for codec in codecs)


def brought(hosts, span, inside, turn):
    """Return what takes part: the sums of each host, or all ranks host by host."""
    given = [[span.of(numbers(rank, turn)) for rank in ranks] for ranks in hosts]
    if inside:
        return [sum(each[1:], each[0]) for each in given]
    return [one for each in given for one in each]


@pytest.mark.parametrize("name", CODECS)
def test_sums_are_those_of_one_process(comm, host, name):
    hosts = defaultdict(list)
    for rank, number in enumerate(comm.allgather(0 if host is None else host)):
        hosts[number].append(rank)
    hosts = list(hosts.values())
    port = MpiPort(comm, role_map_for(N, (), tuple(range(comm.size))), timeout_s=20, host=host)
    spans = [Span(FIRST, N), Span(0, FIRST)]
    asked = [*SCHEDULES, *(["node+ring", "node+tree"] if len(hosts) > 1 else [])]
    for algorithm in asked:
        inside = algorithm.startswith("node+")
        order = [rank for ranks in hosts for rank in ranks]
        rails = min(map(len, hosts))
        teams = [[ranks[i] for ranks in hosts] for i in range(rails)] if inside else [order]
        codec = SumCodec(encoder_of(name), seed=3, worker=comm.rank)
        coded = coding_of(codec.encoder(Span(0, N), FORTH))
        chosen, _ = port.choice(algorithm, N, coded=coded)
        assert chosen == algorithm
        sums = [port.reduction(span, chosen, None, codec) for span in spans]

        due = [
            expected(
                name, algorithm.removeprefix("node+"), teams, span,
                partial(brought, hosts, span, inside),
            )
            for span in spans
        ]  # fmt: skip
        before = port.bytes_sent
        for turn in range(ROUNDS):
            port.gradient[:N] = numbers(comm.rank, turn)
            codec.begin_round(turn, 0, TOTALS[turn])
            for it in sums:
                it.begin()
            for it in sums:
                drive(it.finish())
            nbytes = 0
            for span, whole in zip(spans, due, strict=True):
                means, moved = next(whole)
                nbytes += moved
                np.testing.assert_array_equal(span.of(port.gradient), means, err_msg=algorithm)
            assert sum(comm.allgather(codec.frame_bytes)) == nbytes
        if not inside:
            # Counted where they are sent, over MPI: nothing else is.
            assert port.bytes_sent - before == codec.frame_bytes
    assert port.choice("auto", N, coded=coded)[0].removeprefix("node+") in ALGORITHMS
    port.close()
