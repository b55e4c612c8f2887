"""A sum whose every message is a frame of a codec: one rank's part in it. Pure: no MPI, no time.

The messages are those of ``collective.schedules.all_pairs``:

.. code-block:: text

    forth   encode chunk j of this rank's numbers and send it to rank j, for every j; decode the
            p frames of the own chunk, this rank's own among them, and add them in rank order
    mean    divide by the total of the weights
    back    encode the mean of the own chunk and send it to everybody; decode the p frames of means

All ranks decode the same frames, the owner its own, too, so all end with the same bits.

**What is lost.** Each rank keeps back what its frames have lost, chunk by chunk, and the owner of a
chunk what the means have lost (``codec.ErrorFeedback``). What is kept back of a contribution is
part of a sum, so where the total of the weights changes, as with the last and smaller batches of an
epoch, it is scaled by as much: it stays the same part of the mean. Otherwise what a rank kept back
of many full batches would count many times in a mean over few samples.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, section 3.3, for both
phases with an error feedback each; Tang et al., "1-bit Adam", ICML 2021, arXiv:2102.02888.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from psrt.arrays import Bytes, Vector
from psrt.codec import Encoder, draws
from psrt.codec.frame import HEADER_BYTES
from psrt.codec.randomness import BACK, FORTH
from psrt.collective.analysis.pick import Coding
from psrt.errors import CodecError
from psrt.partition import Span, even_spans


class FrameLink(Protocol):
    """What carries the frames of a sum."""

    def post(self, to: int, key: int, frame: Bytes | None, nbytes: int) -> None:
        """Send a frame to rank ``to`` of the sum; it stays as it is until the round is over."""

    def take_span(self, source: int, key: int) -> Sequence[Bytes | None]:
        """Return the next frame that rank ``source`` posted for ``key``, if it is here."""

    def encodes(self, n: int) -> None:
        """Note that n elements are encoded now: in virtual time, that takes some."""

    def decodes(self, n: int) -> None:
        """Note that n elements are decoded now."""


class FrameWatch(Protocol):
    """What is told of every frame of a worker's sums, as for a history."""

    def encodes(self, sender: Encoder) -> None:
        """A sender is about to encode."""

    def encoded(
        self, clock: int, owner: int, span: Span, way: int, sender: Encoder,
        numbers: Vector | None, frame: Bytes | None,
    ) -> None:  # fmt: skip
        """It has encoded the chunk of a worker, of its numbers or of their mean."""

    def decoded(
        self, clock: int, source: int, span: Span, way: int, frame: Bytes, numbers: Vector
    ) -> None:
        """The frame that a worker sent has been decoded."""


class SumCodec:
    """By what a worker encodes its sums, and what all of them must know of the round."""

    def __init__(
        self,
        encoder: Callable[[Span, int], Encoder],
        *,
        seed: int,
        worker: int,
        coding: Callable[[Span], Coding] | None = None,
        watch: FrameWatch | None = None,
    ) -> None:
        """Set up.

        Args:
            encoder: (span, way) → a new sender's side for a span of the whole vector, of
                contributions (``FORTH``) or of means (``BACK``).
            seed: of the run.
            worker: the number of this one.
            coding: what it makes of a span, and how the sum may travel; None where nobody asks.
            watch: is told of every frame.
        """
        self.encoder, self._coding, self.watch = encoder, coding, watch
        self.seed, self.worker = seed, worker
        #: Updates before this one.
        self.clock = 0
        #: The epoch that the workers are in.
        self.epoch = 0
        #: The total of all weights, which sums are divided by.
        self.total = 1.0
        #: Bytes of frames sent so far, and of the numbers that they stand for.
        self.frame_bytes = self.framed_bytes = 0
        #: The parts in sums that this codec makes the frames of.
        self.sums: list[CodedSum] = []

    def coding(self, span: Span) -> Coding:
        """Return what it makes of a span, and how the sum may travel."""
        assert self._coding is not None, "whoever chooses an all-reduce must know"
        return self._coding(span)

    def begin_round(self, clock: int, epoch: int, total: float) -> None:
        """Set what all workers know of the round that begins."""
        self.clock, self.epoch, self.total = clock, epoch, total


class CodedSum:
    """One rank's part in the sums of one span, round after round.

    A round is ``begin``, then ``advance`` until it returns True. Frames are consumed only there.
    """

    def __init__(
        self,
        link: FrameLink,
        codec: SumCodec,
        span: Span,
        *,
        rank: int,
        size: int,
        key: int = 0,
        workers: Sequence[int] = (),
        numerics: bool = True,
    ) -> None:
        """Make the codecs.

        Args:
            link: carries the frames.
            codec: makes them.
            span: of the whole vector, that is summed.
            rank: this rank's number in the sum, in [0, ``size``).
            size: the number of ranks, p.
            key: marks this sum's frames; the same on all ranks, and unique.
            workers: by rank of the sum, the number of the worker; if not given, the same.
            numerics: whether to compute; if not, only the lengths of frames are sent, the longest
                where they depend on the numbers.
        """
        self._link, self._codec, self._rank, self._key = link, codec, rank, key
        self._numerics, self._workers = numerics, workers or range(size)
        self.span = span
        chunks = even_spans(span.size, size)
        self._chunks = chunks
        #: In the whole vector: their first elements tell sums and chunks apart.
        self._places = [Span(span.start + it.start, span.start + it.stop) for it in chunks]
        # A chunk without elements has no frames.
        self._there = [rank for rank, chunk in enumerate(chunks) if chunk.size]
        self._forth = {j: codec.encoder(self._places[j], FORTH) for j in self._there}
        own = chunks[rank]
        self._back = codec.encoder(self._places[rank], BACK) if own.size else None
        self._sum = np.empty(own.size if numerics else 0, np.float32)
        self._scratch = np.empty_like(self._sum)
        #: The ranks in the order of the schedule: r + 1, r + 2, and so on.
        self._others = [(rank + k) % size for k in range(1, size)]
        self._size = size
        #: The total that the kept parts of contributions belong to; 0 before the first round.
        self._total = 0.0
        codec.sums.append(self)
        self._vector: Vector | None = None
        self._mine: Bytes | None = None
        #: Contributions to the own chunk that are added, and owners whose means are not here.
        self._added, self._awaited = size, list[int]()

    @property
    def frame_bytes(self) -> int | None:
        """Bytes of the frames that this rank sends in a round; None if they depend on numbers."""
        back = 0 if self._back is None else self._back.nbytes
        sizes = [self._forth[j].nbytes for j in self._there if j != self._rank]
        fixed = [it for it in sizes if it is not None]
        if back is None or len(fixed) < len(sizes):
            return None
        return sum(fixed) + back * (self._size - 1)

    @property
    def most_bytes(self) -> int:
        """Bytes of the frames that this rank sends in a round of this epoch, at most."""
        others = [self._forth[j].longest for j in self._there if j != self._rank]
        return sum(others) + (self._size - 1) * (self._back.longest if self._back else 0)

    @property
    def framed_bytes(self) -> int:
        """Bytes of the numbers that the frames of a round stand for."""
        own = self._chunks[self._rank].size
        return 4 * (self.span.size - own + own * (self._size - 1))

    @property
    def longest(self) -> dict[int, int]:
        """By rank that owns a chunk, the bytes of its longest frame in any epoch."""
        return {j: HEADER_BYTES + it.most for j, it in self._forth.items()}

    @property
    def awaited(self) -> list[int]:
        """The ranks whose frames are waited for."""
        contributions = range(self._added, self._size)
        return sorted({r for r in contributions if r != self._rank} | set(self._awaited))

    @property
    def sums(self) -> Vector:
        """The means, once the round is over; only with numbers."""
        assert self._vector is not None, "there are no numbers"
        return self._vector

    def begin(self, mine: Vector | None) -> bool:
        """Send this rank's contributions, and go as far as possible; return whether that is all.

        Args:
            mine: (span,) this rank's numbers, which the means will replace; None without numerics.
        """
        codec, rank = self._codec, self._rank
        self._vector = mine
        self._rescale()
        for j in self._others:
            if j in self._forth:
                self._post(j, self._forth[j], self._encoded(j, FORTH))
        if self._back is not None:
            self._mine = self._encoded(rank, FORTH)
        self._added = 0 if self._back is not None else self._size
        self._awaited = [j for j in self._others if j in self._forth]
        codec.framed_bytes += self.framed_bytes
        return self.advance()

    def advance(self) -> bool:
        """Take the frames that have come; return whether the round is over."""
        while self._added < self._size:
            if not self._add(self._added):
                return False
            self._added += 1
            if self._added == self._size:
                self._send_mean()
        # Only now: a rank's mean follows its contribution.
        self._awaited = [j for j in self._awaited if not self._take_mean(j)]
        return not self._awaited

    def _rescale(self) -> None:
        """Have what is kept back be the same part of the mean as in the last round."""
        total = self._codec.total
        if self._numerics and self._total not in (0.0, total):
            for sender in self._forth.values():
                sender.rescale(total / self._total)
        self._total = total

    def _encoded(self, chunk: int, way: int) -> Bytes | None:
        """Return the frame of a chunk of this rank's numbers, or of the sum of its own."""
        codec = self._codec
        sender = self._forth[chunk] if way == FORTH else self._back
        assert sender is not None, "the chunk has elements"
        sender.begin_epoch(codec.epoch)
        self._link.encodes(sender.n)
        frame, numbers, place, watch = None, None, self._places[chunk], codec.watch
        if self._vector is not None:
            if watch is not None:
                watch.encodes(sender)
            numbers = self._chunks[chunk].of(self._vector) if way == FORTH else self._sum
            drawn = draws(codec.seed, codec.worker, codec.clock, place.start, way=way)
            frame = sender.encode(numbers, drawn)
        if watch is not None:
            owner = self._workers[chunk]
            watch.encoded(codec.clock, owner, place, way, sender, numbers, frame)
        return frame

    def _post(self, to: int, sender: Encoder, frame: Bytes | None) -> None:
        nbytes = sender.longest if frame is None else frame.size
        self._codec.frame_bytes += nbytes
        self._link.post(to, self._key, frame, nbytes)

    def _add(self, source: int) -> bool:
        """Add a rank's contribution to the own chunk; return whether it has come."""
        frame = self._mine
        if source != self._rank:
            arrived = self._link.take_span(source, self._key)
            if not arrived:
                return False
            [frame] = arrived
        self._link.decodes(self._chunks[self._rank].size)
        if frame is not None:
            out = self._scratch if source else self._sum
            self._decode(self._rank, FORTH, frame, out, source)
            if source:
                np.add(self._sum, out, out=self._sum)
        return True

    def _send_mean(self) -> None:
        """Divide the sum of the own chunk, send it to everybody, and keep what they decode."""
        assert self._back is not None, "the chunk has elements"
        scale = np.float32(1.0 / self._codec.total)
        if scale != 1.0:
            np.multiply(self._sum, scale, out=self._sum)
        frame = self._encoded(self._rank, BACK)
        for to in self._others:
            self._post(to, self._back, frame)
        self._place(self._rank, frame)

    def _take_mean(self, owner: int) -> bool:
        """Put an owner's mean in its place; return whether it has come."""
        arrived = self._link.take_span(owner, self._key)
        if not arrived:
            return False
        [frame] = arrived
        self._place(owner, frame)
        return True

    def _place(self, chunk: int, frame: Bytes | None) -> None:
        self._link.decodes(self._chunks[chunk].size)
        if frame is not None and self._vector is not None:
            self._decode(chunk, BACK, frame, self._chunks[chunk].of(self._vector), chunk)

    def _decode(self, chunk: int, way: int, frame: Bytes, out: Vector, source: int) -> None:
        """Decode a frame.

        Raises:
            CodecError: naming the rank that sent it, if it is none of this chunk.
        """
        try:
            self._forth[chunk].decode(frame, out)
        except CodecError as error:
            start, stop = self._places[chunk]
            raise CodecError(
                f"worker {self._workers[source]} sent the elements [{start}, {stop}) of a sum: "
                f"{error}"
            ) from error
        codec = self._codec
        if codec.watch is not None:
            place, worker = self._places[chunk], self._workers[source]
            codec.watch.decoded(codec.clock, worker, place, way, frame, out)
