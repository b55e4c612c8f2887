"""Sums by a codec: all ranks of one in this process, and sums over MPI held against them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from psrt.core.arrays import Vector
from psrt.core.partition import Span, even_spans
from psrt.transport import drive
from psrt.transport.coded_sum import SumCodec

Posts = defaultdict[tuple[int, int], deque[Any]]


class Link:
    """One rank's end of messages that take no time, in no order between two ranks."""

    def __init__(self, rank: int, posts: Posts, *, copies: bool = False) -> None:
        """Set up.

        Args:
            rank: its number in the sum.
            posts: by sender and receiver, what is under way.
            copies: whether what is sent may be changed before it is received.
        """
        self.rank, self.posts, self.copies = rank, posts, copies
        self.encoded = self.decoded = 0

    def encodes(self, n: int, way: int) -> None:
        self.encoded += n

    def decodes(self, n: int, way: int) -> None:
        self.decoded += n

    def post(self, to: int, key: int, sent: Any, nbytes: int) -> None:
        assert sent is None or sent.nbytes == nbytes
        self.posts[self.rank, to].append(sent.copy() if self.copies and sent is not None else sent)

    def take_span(self, source: int, key: int) -> Sequence[Any]:
        waiting = self.posts[source, self.rank]
        return (waiting.popleft(),) if waiting else ()


class Ranks:
    """All ranks of a sum."""

    #: Turns of a rank in a round, at most, for each rank.
    TURNS = 60

    def __init__(
        self,
        codecs: Sequence[SumCodec],
        make: Callable[[Link, SumCodec], Any],
        *,
        copies: bool = False,
    ) -> None:
        """Set up.

        Args:
            codecs: of each rank.
            make: returns a rank's part in the sum.
            copies: see ``Link``.
        """
        self.posts: Posts = defaultdict(deque)
        self.codecs = codecs
        self.links = [Link(rank, self.posts, copies=copies) for rank in range(len(codecs))]
        self.sums = [make(link, codec) for link, codec in zip(self.links, codecs, strict=True)]

    def round(
        self,
        vectors: Sequence[Vector | None],
        total: float | None = None,
        clock: int = 0,
        order: int = 1,
    ) -> list[Any]:
        """Sum the vectors, all ranks in turn; return what each ends with."""
        found = [None if vector is None else vector.copy() for vector in vectors]
        for codec in self.codecs:
            codec.begin_round(clock, 0, float(len(found) if total is None else total))
        ranks = list(zip(self.sums, found, strict=True))[::order]
        left = [it for it, vector in ranks if not it.begin(vector)]
        for _ in range(self.TURNS * len(found)):
            left = [it for it in left if not it.advance()]
        assert not left
        assert not any(self.posts.values())
        return found


def normal(size: int, n: int, seed: int = 0) -> list[Vector]:
    """Return a vector of normal numbers for each rank."""
    return list(np.random.default_rng(seed).standard_normal((size, n)).astype(np.float32))


def numbers(rank: int, turn: int, n: int) -> Vector:
    """Return what a rank has in a round."""
    return np.random.default_rng((rank, turn)).standard_normal(n).astype(np.float32)


def hosts_of(comm: Any, host: int | None) -> list[list[int]]:
    """Return the ranks of each host, in order."""
    found = defaultdict(list)
    for rank, number in enumerate(comm.allgather(0 if host is None else host)):
        found[number].append(rank)
    return list(found.values())


def rounds_of(
    hosts: Sequence[Sequence[int]],
    n: int,
    span: Span,
    totals: Sequence[float],
    codec: Callable[[int], SumCodec],
    make: Callable[[Link, SumCodec, Span, int], Any],
    *,
    inside: bool,
    copies: bool = False,
) -> Iterator[tuple[Vector, int]]:
    """Yield round by round what all end with, and the bytes that all have sent by then.

    Args:
        hosts: the ranks of each.
        n: elements of what each rank has.
        span: that is summed.
        totals: of the weights, by round.
        codec: returns that of a rank.
        make: (link, codec, span, number of ranks) → a rank's part in the sum.
        inside: whether the ranks of a host sum as they are, and only hosts by the codec.
        copies: see ``Link``.
    """
    rails = min(map(len, hosts)) if inside else 1
    teams = [[ranks[i] for ranks in hosts] for i in range(rails)]
    if not inside:
        teams = [[rank for ranks in hosts for rank in ranks]]
    sums = []
    for team, part in zip(teams, even_spans(span.size, rails), strict=True):
        place = Span(span.start + part.start, span.start + part.stop)

        def one(link: Link, its: SumCodec, place: Span = place, size: int = len(team)) -> Any:
            return make(link, its, place, size)

        sums.append((part, Ranks([codec(rank) for rank in team], one, copies=copies)))
    for turn, total in enumerate(totals):
        given = [[span.of(numbers(rank, turn, n)) for rank in ranks] for ranks in hosts]
        brought = (
            [sum(each[1:], each[0]) for each in given]
            if inside
            else [one for each in given for one in each]
        )
        whole = np.empty(span.size, np.float32)
        for part, ranks in sums:
            part.of(whole)[:] = ranks.round([part.of(it) for it in brought], total, turn)[0]
        yield whole, sum(it.counts.stats.frame_bytes for _, ranks in sums for it in ranks.codecs)


def hold(
    comm: Any,
    port: Any,
    n: int,
    codec: SumCodec,
    sums: Sequence[Any],
    due: Sequence[tuple[Span, Iterator[tuple[Vector, int]]]],
    totals: Sequence[float],
    label: str,
) -> Iterator[int]:
    """Hold rounds over MPI against those of one process; yield the bytes sent after each.

    Args:
        comm: all ranks.
        port: of this one.
        n: elements of what each rank has.
        codec: of this rank.
        sums: the port's reductions.
        due: their spans, and ``rounds_of`` each.
        totals: of the weights, by round.
        label: of what is tried.
    """
    for turn, total in enumerate(totals):
        port.gradient[:n] = numbers(comm.rank, turn, n)
        codec.begin_round(turn, 0, total)
        for it in sums:
            it.begin()
        for it in sums:
            drive(it.finish())
        nbytes = 0
        for span, whole in due:
            means, moved = next(whole)
            nbytes += moved
            np.testing.assert_array_equal(span.of(port.gradient), means, err_msg=label)
        sent = sum(comm.allgather(codec.counts.stats.frame_bytes))
        assert sent == nbytes
        yield sent
