"""Sums whose messages are frames: against sums of what is decoded, with what is kept back."""

from __future__ import annotations

import numpy as np
import pytest

from psrt.codec import CODECS, draws
from psrt.codec.randomness import BACK, FORTH
from psrt.core.errors import CodecError
from psrt.core.partition import Span, even_spans
from psrt.simulation.schedule_run import sum_by_schedule
from psrt.transport.coded_sum import SumCodec
from psrt.transport.sums_in_frames import sum_in_frames
from support.cases import each
from support.coding import make_codec, make_encoder
from support.sums import Ranks, normal

every_codec = pytest.mark.parametrize("name", CODECS)
AT = 100


def encoder_of(name, **knobs):
    def make(span, way):
        more = CODECS[name].back if way == BACK else {}
        return make_encoder(name, span.size, **{**knobs, **more})

    return make


class Framed(Ranks):
    """All ranks of a sum in frames."""

    TURNS = 9

    def __init__(self, size, n, make, numerics=True, way="all-pairs", means=None):
        super().__init__(
            [SumCodec(make, seed=5, worker=rank, means=means) for rank in range(size)],
            lambda link, codec: sum_in_frames(
                way, link, codec, Span(AT, AT + n), rank=link.rank, size=size, numerics=numerics
            ),
        )


@each("name", ["sign", "qsgd", "top-k", "demo"])
@each("way", ["all-pairs", "naive"])
@each(("size", "n"), [(1, 7), (2, 1), (3, 0), (5, 301), (8, 7)])
def test_all_ranks_end_with_the_same_bits_whoever_comes_first(name, way, size, n):
    ranks = Framed(size, n, encoder_of(name), way=way)
    for clock in range(2):
        found = ranks.round(normal(size, n, clock), clock=clock, order=(-1) ** clock)
        assert len({it.tobytes() for it in found}) == 1


@each("way", ["all-pairs", "naive"])
@each("size", [2, 3, 7])
def test_a_codec_that_loses_nothing_is_the_dense_sum_to_the_bit(way, size):
    ranks = Framed(size, 1001, encoder_of("top-k", density=1.0), way=way)
    for clock, total in enumerate([size, size, 0.6, size]):
        vectors = normal(size, 1001, clock)
        dense = sum_by_schedule(way, vectors) * np.float32(1.0 / total)
        for found in ranks.round(vectors, total, clock):
            assert found.tobytes() == dense.tobytes()


class Reference:
    """Another program of sums in frames, out of the codecs alone, with what they keep back."""

    def __init__(self, name, size, n, *, cut=True):
        self.size, self.make = size, encoder_of(name)
        self.chunks = [Span(AT + it.start, AT + it.stop) for it in even_spans(n, size)]
        self.chunks = self.chunks if cut else [Span(AT, AT + n)]
        self.forth = [[self.make(chunk, FORTH) for chunk in self.chunks] for _ in range(size)]
        self.back = [self.make(chunk, BACK) for chunk in self.chunks]
        self.plain = [make_codec(name, chunk.size) for chunk in self.chunks]

    def decoded(self, sender, j, part, worker, clock, way=FORTH):
        """Return what a frame of a part of chunk j comes to."""
        rng, out = draws(5, worker, clock, self.chunks[j].start, way=way), np.empty_like(part)
        self.plain[j].decode(sender.encode(part, rng).copy(), out)
        return out

    def parts(self, vectors):
        """Yield each chunk's number, and what each rank has of it."""
        for j, it in enumerate(self.chunks):
            yield j, [vector[it.start - AT : it.stop - AT] for vector in vectors]


@every_codec
def test_each_message_is_what_the_codec_says(name):
    size, n = 3, 700
    ranks, its = Framed(size, n, encoder_of(name)), Reference(name, size, n)
    for clock in range(3):
        vectors, means = normal(size, n, clock), []
        for j, parts in its.parts(vectors):
            total = None
            for i, part in enumerate(parts):
                out = its.decoded(its.forth[i][j], j, part, i, clock)
                total = out if total is None else total + out
            means.append(its.decoded(its.back[j], j, total * np.float32(1 / size), j, clock, BACK))
        for found in ranks.round(vectors, clock=clock):
            assert found.tobytes() == np.concatenate(means).tobytes()


@every_codec
def test_gathered_frames_are_what_the_codec_says(name):
    """All frames, in the order of the ranks, and what is kept back is of another total."""
    size, n, last = 3, 700, None
    ranks = Framed(size, n, encoder_of(name), way="naive")
    its = Reference(name, size, n, cut=False)
    for clock, total in enumerate([3.0, 3.0, 0.5, 3.0]):
        vectors, expected = normal(size, n, clock), None
        for i, [sender] in enumerate(its.forth):
            if last not in (None, total):
                sender.rescale(total / last)
            out = its.decoded(sender, 0, vectors[i], i, clock)
            expected = out if expected is None else expected + out
        last, expected = total, expected * np.float32(1.0 / total)
        for found in ranks.round(vectors, total, clock):
            assert found.tobytes() == expected.tobytes()


@every_codec
@each("way", ["all-pairs", "naive"])
def test_bytes_are_those_of_the_formula(name, way):
    size, n = 4, 3001
    ranks = Framed(size, n, encoder_of(name), way=way)
    ranks.round(normal(size, n))
    chunks = [it.size for it in even_spans(n, size)]
    for rank, (it, codec) in enumerate(zip(ranks.sums, ranks.codecs, strict=True)):
        # Everything to each of the others; or each chunk to its owner, and the own mean to all.
        others = chunks[:rank] + chunks[rank + 1 :] + [chunks[rank]] * (size - 1)
        sent = [n] * (size - 1) if way == "naive" else others
        lengths = [make_codec(name, length).nbytes for length in sent]
        due = None if None in lengths else sum(lengths)
        assert it.frame_bytes == due
        assert due in (None, codec.counts.stats.frame_bytes)
        assert codec.counts.stats.frame_bytes <= it.most_bytes
        assert codec.counts.stats.framed_bytes == 4 * sum(sent)


def test_a_small_last_batch_does_not_multiply_what_was_kept_back():
    """Four full batches, then one sample of 32: the mean over it must not be that of the past."""
    ranks = Framed(4, 64, encoder_of("sign"))
    for clock in range(5):
        ranks.round([np.linspace(-1, 1, 64, dtype=np.float32)] * 4, clock=clock)
    nothing = np.zeros(64, np.float32)
    found = ranks.round([nothing] * 4, 1 / 32, 5)[0]
    assert np.abs(found).max() < 2


@each(("way", "stop"), [("all-pairs", 132), ("naive", 164)])
def test_a_damaged_frame_is_an_error_that_names_its_sender(way, stop):
    ranks = Framed(2, 64, encoder_of("sign"), way=way)
    vectors = normal(2, 64)
    assert not ranks.sums[1].begin(vectors[1])
    frame = ranks.posts[1, 0][0] = ranks.posts[1, 0][0].copy()
    frame[0] = 99
    with pytest.raises(CodecError, match=rf"worker 1 sent the elements \[100, {stop}\) of a sum: "):
        ranks.sums[0].begin(vectors[0])


@np.errstate(all="ignore")
@each(("size", "n"), [(2, 301), (3, 0), (5, 1), (8, 301)])
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("top-k", {"density": 0.05}), ("top-k", {"density": 1.0}), ("threshold", {"threshold": 9}),
        ("dgc", {"density": 0.1, "warmup_epochs": 0}), ("random-k", {"density": 0.1}),
    ],
)  # fmt: skip
def test_means_of_sparse_vectors_may_be_sent_as_they_are(name, knobs, size, n):
    """To the bit what a sum of what is decoded comes to; also with numbers that are none."""

    def make(span, way):
        sparse = {"name": name, **knobs} if way == FORTH else {"name": "nonzero"}
        return make_encoder(n=span.size, **sparse)

    ranks = Framed(size, n, make, means=lambda span: make_codec("nonzero", span.size))
    chunks = [Span(AT + it.start, AT + it.stop) for it in even_spans(n, size)]
    senders = [[make(chunk, FORTH) for chunk in chunks] for _ in range(size)]
    for clock in range(3):
        vectors, expected = normal(size, n, clock), np.zeros(n, np.float32)
        for vector in vectors[:clock] if n > 5 else ():
            vector[3:5] = np.nan, -np.inf
        for j, chunk in enumerate(chunks):
            here, out = slice(chunk.start - AT, chunk.stop - AT), np.empty(chunk.size, np.float32)
            for i, sender in enumerate(it[j] for it in senders):
                rng = draws(5, i, clock, chunk.start)
                sender.decode(sender.encode(vectors[i][here], rng).copy(), out)
                expected[here] = out if i == 0 else expected[here] + out
        expected *= np.float32(1 / size)
        before = [codec.counts.stats.frame_bytes for codec in ranks.codecs]
        for found in ranks.round(vectors, clock=clock):
            assert found.tobytes() == expected.tobytes()
        for it, codec, bytes_before in zip(ranks.sums, ranks.codecs, before, strict=True):
            assert codec.counts.stats.frame_bytes - bytes_before <= it.most_bytes
